//! What the value of a record is as a tree keeps it: itself, or where it lies in chunks.
//!
//! Nearly all values are kept as they are. A value that begins with the *mark* is something else, said by the byte behind it:
//!
//! | behind the mark | what |
//! |---|---|
//! | 0 | a value that begins with the mark itself; it follows |
//! | 1 | a large value: its number, 24 bytes, its length, 8, and the length of its chunks, 4 |
//!
//! A value's *number* is stamp and LSN of the operation that brought it (of a load: the stamp, and a count), and a hash of the
//! key, for callers who are careless about the others. Its chunks are records of another tree, the *chunk tree* of the table. All
//! integers are big-endian, so that they order as keys.
//!
//! | key in the chunk tree | value |
//! |---|---|
//! | `h` number | length (8), length of the chunks (4), the key of the record |
//! | `c` number, which chunk from 0 (4) | the bytes |

use crate::options::VALUE_BYTES_MAX;
use deuteron_contract::TableId;

/// What no value begins with by chance.
const MARK: [u8; 16] = *b"\xf1\x9cDeuteron\x03large";
const ESCAPED: u8 = 0;
const REFERENCE: u8 = 1;
const ESCAPED_AT: usize = MARK.len() + 1;
/// Bytes of a number.
const NUMBER_BYTES: usize = 24;
/// Bytes of the key of a chunk.
pub(crate) const CHUNK_KEY_BYTES: usize = 1 + NUMBER_BYTES + 4;
const REFERENCE_BYTES: usize = ESCAPED_AT + NUMBER_BYTES + 12;
/// Of the identifier of a chunk tree; that of its table is below.
const CHUNK_TREE: u32 = 1 << 31;

/// How many bytes a value may grow by when it is kept.
pub(crate) const ESCAPE_BYTES: usize = ESCAPED_AT;
/// Tables have identifiers below this one.
pub(crate) const TABLES_END: u32 = CHUNK_TREE;

/// The tree that holds the chunks of a table's large values.
pub(crate) fn chunk_tree(table: TableId) -> TableId {
    TableId(table.0 | CHUNK_TREE)
}

/// Whether a tree is that of a table, and not of its chunks.
pub(crate) fn is_table(tree: u32) -> bool {
    tree & CHUNK_TREE == 0
}

/// The number of a large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ValueNumber {
    pub(crate) stamp: u64,
    pub(crate) lsn: u64,
    key_hash: u64,
}

/// FNV-1a, which is part of the format.
fn hash(key: &[u8]) -> u64 {
    key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl ValueNumber {
    /// Of the value that an operation brings for `key`.
    pub(crate) fn new(stamp: u64, lsn: u64, key: &[u8]) -> ValueNumber {
        ValueNumber { stamp, lsn, key_hash: hash(key) }
    }

    fn encode(self) -> [u8; NUMBER_BYTES] {
        let mut bytes = [0; NUMBER_BYTES];
        bytes[..8].copy_from_slice(&self.stamp.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.lsn.to_be_bytes());
        bytes[16..].copy_from_slice(&self.key_hash.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; NUMBER_BYTES]) -> ValueNumber {
        let part = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        ValueNumber { stamp: part(0), lsn: part(8), key_hash: part(16) }
    }

    /// The key of the header.
    pub(crate) fn header_key(self) -> [u8; 1 + NUMBER_BYTES] {
        let mut key = [b'h'; 1 + NUMBER_BYTES];
        key[1..].copy_from_slice(&self.encode());
        key
    }

    /// The key of a chunk.
    pub(crate) fn chunk_key(self, chunk: u32) -> [u8; CHUNK_KEY_BYTES] {
        let mut key = [b'c'; CHUNK_KEY_BYTES];
        key[1..1 + NUMBER_BYTES].copy_from_slice(&self.encode());
        key[1 + NUMBER_BYTES..].copy_from_slice(&chunk.to_be_bytes());
        key
    }

    /// The number in the key of a header; `None` if it is none.
    pub(crate) fn of_header(key: &[u8]) -> Option<ValueNumber> {
        let number = key.strip_prefix(b"h")?.as_array()?;
        Some(ValueNumber::decode(number))
    }
}

/// Where a large value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LargeValue {
    pub(crate) number: ValueNumber,
    pub(crate) length: u64,
    pub(crate) chunk_bytes: u32,
}

impl LargeValue {
    /// As a record's value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(REFERENCE_BYTES);
        bytes.extend_from_slice(&MARK);
        bytes.push(REFERENCE);
        bytes.extend_from_slice(&self.number.encode());
        self.append_lengths(&mut bytes);
        bytes
    }

    /// The value of its header, whose record's key is `key`.
    pub(crate) fn header(&self, key: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(12 + key.len());
        self.append_lengths(&mut bytes);
        bytes.extend_from_slice(key);
        bytes
    }

    fn append_lengths(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.length.to_be_bytes());
        bytes.extend_from_slice(&self.chunk_bytes.to_be_bytes());
    }

    /// From the header's value; with the key of its record. `None` if it is none: no value is longer than [`VALUE_BYTES_MAX`].
    pub(crate) fn of_header(number: ValueNumber, header: &[u8]) -> Option<(LargeValue, &[u8])> {
        let (length, rest) = header.split_first_chunk()?;
        let (chunk_bytes, key) = rest.split_first_chunk()?;
        let (length, chunk_bytes) = (u64::from_be_bytes(*length), u32::from_be_bytes(*chunk_bytes));
        let is_one = chunk_bytes > 0 && length <= VALUE_BYTES_MAX as u64;
        is_one.then_some((LargeValue { number, length, chunk_bytes }, key))
    }

    /// How many chunks it has.
    pub(crate) fn chunks(&self) -> u32 {
        self.length.div_ceil(self.chunk_bytes.into()) as u32
    }
}

/// What a record's value says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredValue<'v> {
    Plain(&'v [u8]),
    Large(LargeValue),
}

/// Whether a value, given or kept, begins with the mark.
#[inline]
pub(crate) fn is_marked(value: &[u8]) -> bool {
    // Nearly all others differ in the first byte.
    value.first() == Some(&MARK[0]) && value.starts_with(&MARK)
}

/// A value that begins with the mark as it is kept.
pub(crate) fn escape(value: &[u8]) -> Vec<u8> {
    [&MARK[..], &[ESCAPED], value].concat()
}

/// What is kept as `value`; `None` if it was never written like that.
pub(crate) fn decode(value: &[u8]) -> Option<StoredValue<'_>> {
    if !is_marked(value) {
        return Some(StoredValue::Plain(value));
    }
    match *value.get(MARK.len())? {
        ESCAPED => Some(StoredValue::Plain(&value[ESCAPED_AT..])),
        REFERENCE => {
            let (number, lengths) = value[ESCAPED_AT..].split_first_chunk()?;
            let (large, rest) = LargeValue::of_header(ValueNumber::decode(number), lengths)?;
            rest.is_empty().then_some(StoredValue::Large(large))
        }
        _ => None,
    }
}

/// How long the value is that is kept as `value`.
pub(crate) fn value_bytes(value: &[u8]) -> u64 {
    match decode(value) {
        Some(StoredValue::Plain(value)) => value.len() as u64,
        Some(StoredValue::Large(large)) => large.length,
        // Whoever reads it says what is wrong.
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_whatever_they_begin_with() {
        let number = ValueNumber::new(7, u64::MAX, b"key");
        let large = LargeValue { number, length: 1 << 26, chunk_bytes: 1 << 18 };
        let reference = large.encode();
        assert_eq!(decode(&reference), Some(StoredValue::Large(large)));
        assert_eq!((value_bytes(&reference), value_bytes(&MARK)), (1 << 26, 0));
        for value in [&b""[..], b"x", &MARK, &MARK[..15], &reference, &escape(&reference)] {
            let kept = if is_marked(value) { escape(value) } else { value.to_vec() };
            assert_eq!(decode(&kept), Some(StoredValue::Plain(value)));
            assert_eq!(value_bytes(&kept), value.len() as u64);
            assert!(kept.len() <= value.len() + ESCAPE_BYTES);
        }
        assert_eq!(decode(&MARK), None);
        assert_eq!(decode(&reference[..reference.len() - 1]), None);
        assert_eq!(decode(&[&reference[..], b"x"].concat()), None);
        assert_eq!(decode(&[&MARK[..], &[2]].concat()), None);
    }

    #[test]
    fn headers_and_chunks_are_ordered_by_number() {
        let [one, two] = [(1, 9), (2, 1)].map(|(stamp, lsn)| ValueNumber::new(stamp, lsn, b"key"));
        assert!(one.header_key() < two.header_key() && one.chunk_key(u32::MAX) < two.chunk_key(0));
        assert!(one.chunk_key(1) < one.chunk_key(256));
        assert_ne!(one, ValueNumber::new(1, 9, b"yek"));
        // The hash is on disk.
        assert_eq!(hash(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(ValueNumber::of_header(&two.header_key()), Some(two));
        assert_eq!(ValueNumber::of_header(&two.chunk_key(0)), None);
        let large = LargeValue { number: two, length: 1001, chunk_bytes: 100 };
        assert_eq!(LargeValue::of_header(two, &large.header(b"key")), Some((large, &b"key"[..])));
        assert_eq!(LargeValue::of_header(two, b"short"), None);
        let longest = LargeValue { length: VALUE_BYTES_MAX as u64, ..large };
        assert!(LargeValue::of_header(two, &longest.header(b"key")).is_some());
        let longer = LargeValue { length: longest.length + 1, ..large };
        assert_eq!(LargeValue::of_header(two, &longer.header(b"key")), None);
        assert_eq!(large.chunks(), 11);
        assert!(is_table(7) && !is_table(chunk_tree(TableId(7)).0));
    }

    #[test]
    fn fuzz_stored_values() {
        let number = ValueNumber::new(7, 9, b"key");
        let large = LargeValue { number, length: 1 << 26, chunk_bytes: 1 << 18 };
        let reference = large.encode();
        let corpus = [b"plain".to_vec(), escape(&reference), reference];
        deuteron_fuzz::Fuzz::new("dc-stored-value", &corpus, 100_000).run(
            |_| {},
            |bytes| match decode(bytes) {
                Some(StoredValue::Large(large)) => {
                    let _ = large.encode();
                    true
                }
                found => found.is_some(),
            },
        );
    }
}
