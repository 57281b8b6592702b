//! The catalogue: what table 0 holds, in a database and in a stand-alone store alike.
//!
//! | key | value |
//! |---|---|
//! | `n` name | the identifier, 4 bytes little endian: above 0, which is the catalogue's, and below 2^31 - 1 |
//! | `#` | the next free identifier, 4 bytes little endian |
//! | `d` identifier | nothing: if no name has this identifier, the data component has still to be told that the table is dropped |

use crate::TableId;

/// The longest table name in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The key of the next free identifier.
pub const NEXT: &[u8] = b"#";
/// What the keys of names begin with.
pub const NAME_PREFIX: u8 = b'n';
/// What the keys of dropped tables begin with.
pub const DROPPED_PREFIX: u8 = b'd';

/// Whether a table may be called so: names have 1 to [`NAME_BYTES_MAX`] bytes.
///
/// ```
/// use deuteron_contract::catalogue::is_name;
/// assert!(is_name("accounts") && !is_name(""));
/// ```
pub fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
}

/// The key under which the identifier of the table `name` lies.
///
/// ```
/// assert_eq!(deuteron_contract::catalogue::name_key("accounts"), b"naccounts");
/// ```
pub fn name_key(name: &str) -> Vec<u8> {
    [&[NAME_PREFIX], name.as_bytes()].concat()
}

/// The key that says that table `id` is to be dropped.
///
/// ```
/// use deuteron_contract::{TableId, catalogue::dropped_key};
/// assert_eq!(dropped_key(TableId(1)), b"d\x01\0\0\0");
/// ```
pub fn dropped_key(id: TableId) -> Vec<u8> {
    [&[DROPPED_PREFIX][..], &id.0.to_le_bytes()].concat()
}

/// An identifier as values, and the keys of dropped tables behind their first byte, hold it; `None` if that is none that was ever given out.
///
/// ```
/// use deuteron_contract::{TableId, catalogue::decode_id};
/// assert_eq!(decode_id(&[7, 0, 0, 0]), Some(TableId(7)));
/// for wrong in [&b"seven"[..], &[0, 0, 0, 0], &TableId::NOWHERE.0.to_le_bytes(), &[0, 0, 0, 0x80]] {
///     assert_eq!(decode_id(wrong), None);
/// }
/// ```
pub fn decode_id(bytes: &[u8]) -> Option<TableId> {
    let id = TableId(u32::from_le_bytes(bytes.try_into().ok()?));
    (TableId::CATALOGUE < id && id < TableId::NOWHERE).then_some(id)
}
