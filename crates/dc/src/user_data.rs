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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is on disks must stay readable: as `docs/format.md` says, byte for byte.
    #[test]
    fn formats_stay_as_they_are() {
        let expected: [&[u8]; 4] = [
            b"\x02",                             // version
            b"\x08\x07\x06\x05\x04\x03\x02\x01", // redo scan start point
            b"\x14\x13\x12\x11",                 // a table
            b"\x14\x13\x12\x91",                 // the tree of its chunks
        ];
        let (lsn, dropped) = (0x0102_0304_0506_0708, vec![0x1112_1314, 0x9112_1314]);
        assert_eq!(encode(lsn, dropped.iter().copied()), expected.concat());
        assert_eq!(decode(&expected.concat()).unwrap(), (lsn, dropped));
        let without_tables = b"\x01\x08\x07\x06\x05\x04\x03\x02\x01";
        assert_eq!(decode(without_tables).unwrap(), (lsn, vec![]));
    }
}
