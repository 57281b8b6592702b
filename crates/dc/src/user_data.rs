//! What a checkpoint remembers for the data component: the redo scan start point, and which tables were dropped.

use deuteron_contract::DcError;

/// Of what checkpoints remember.
const VERSION: u8 = 2;
/// Without dropped tables.
const VERSION_1: u8 = 1;

/// As it is written.
pub(crate) fn encode(redo_scan_start_point: u64, dropped: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&redo_scan_start_point.to_le_bytes());
    dropped.for_each(|table| bytes.extend_from_slice(&table.to_le_bytes()));
    bytes
}

/// The redo scan start point, and the dropped tables.
pub(crate) fn decode(bytes: &[u8]) -> Result<(u64, Vec<u32>), DcError> {
    let number = |lsn: &[u8; 8]| u64::from_le_bytes(*lsn);
    let (version, rest) = match bytes.split_first() {
        None => return Ok((0, Vec::new())),
        Some((&version, rest)) => (version, rest.split_first_chunk()),
    };
    match rest {
        Some((lsn, [])) if version == VERSION_1 => Ok((number(lsn), Vec::new())),
        Some((lsn, dropped)) if version == VERSION && dropped.len().is_multiple_of(4) => {
            let dropped = dropped.as_chunks().0.iter().map(|table| u32::from_le_bytes(*table));
            Ok((number(lsn), dropped.collect()))
        }
        _ => Err(DcError::Corrupt {
            file: "checkpoint".to_owned(),
            offset: 0,
            expected: format!("user data of a version up to {VERSION}"),
            found: format!("{} bytes of version {version}", bytes.len()),
        }),
    }
}
