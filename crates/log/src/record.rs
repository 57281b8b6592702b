//! Log records and their bytes, encoded in place in the ring.
//!
//! A record is an update (which is at once the redo record and the version that readers are served from, paper 3.2),
//! the end of a transaction, or housekeeping. Redo only: there are no before images.
//!
//! # Bytes
//!
//! Little-endian. Every record starts at a multiple of 8 and takes a multiple of 8 bytes; the rest is zeros.
//!
//! | offset | bytes | upsert, delete | commit | abort | clock ceiling | padding |
//! |---|---|---|---|---|---|---|
//! | 0 | 1 | kind 1, 2 | kind 3 | kind 4 | kind 5 | kind 6 |
//! | 1 | 1 | 0 | 0 | 0 | 0 | 0 |
//! | 2 | 2 | key bytes | 0 | 0 | 0 | 0 |
//! | 4 | 4 | value bytes | link | 0 | 0 | bytes, head included |
//! | 8 | 8 | transaction | transaction | transaction | timestamp | (anything) |
//! | 16 | 4 | table | timestamp (8) | | | |
//! | 20 | … | key, value | outcome token (8, at 24) | | | |
//!
//! | offset | bytes | piece | large upsert |
//! |---|---|---|---|
//! | 0 | 1 | kind 7 | kind 8 |
//! | 1 | 1 | 0 | 0 |
//! | 2 | 2 | 0 | key bytes |
//! | 4 | 4 | bytes of the piece | 0 |
//! | 8 | 8 | transaction | transaction |
//! | 16 | 8 | LSN of the piece before, 0 for the first | table (4), 0 (4) |
//! | 24 | … | the bytes | length of the value (8), LSN of the last piece (8), key |
//!
//! *Link* is the offset, from the buffer's base, of another commit record of the same buffer, or 0: the chain starts
//! in the buffer's header and visits each commit record once (paper 2.3.2), in the order in which they were filled
//! backwards, which is nearly that of their offsets. Kind 0 is no record, so that zeros are never taken for one.
//!
//! The bytes of a cancelled commit record become padding, whose contents mean nothing.

use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};

/// Bytes of an update before its key.
pub(crate) const UPDATE_HEAD_BYTES: usize = 20;
/// Bytes of a commit record.
pub(crate) const COMMIT_BYTES: usize = 32;
/// Bytes of an abort or a clock ceiling record.
const SHORT_BYTES: usize = 16;
/// What every record starts with and is a multiple of.
pub(crate) const HEAD_BYTES: usize = 8;

const UPSERT: u8 = 1;
const DELETE: u8 = 2;
const COMMIT: u8 = 3;
const ABORT: u8 = 4;
const CLOCK_CEILING: u8 = 5;
const PADDING: u8 = 6;
const PIECE: u8 = 7;
const LARGE_UPSERT: u8 = 8;

/// Bytes of a piece before its bytes of the value.
pub(crate) const PIECE_HEAD_BYTES: usize = 24;
/// Bytes of a large upsert before its key.
const LARGE_HEAD_BYTES: usize = 40;

/// A log record whose key and value are borrowed: from the caller on the way in, from the ring or a buffer read from
/// disk on the way out.
///
/// ```
/// use deuteron_contract::{TableId, TransactionId};
/// use deuteron_log::Record;
///
/// let record = Record::Upsert { transaction: TransactionId(7), table: TableId(1), key: b"k", value: b"v" };
/// let mut bytes = vec![0; record.encoded_bytes()];
/// record.encode(0, &mut bytes);
/// assert_eq!(Record::decode(&bytes).unwrap().record, record);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record<'a> {
    /// A transaction gives a key a value.
    Upsert {
        /// The transaction.
        transaction: TransactionId,
        /// The table.
        table: TableId,
        /// The key, of at most 65 535 bytes.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// A transaction deletes a key.
    Delete {
        /// The transaction.
        transaction: TransactionId,
        /// The table.
        table: TableId,
        /// The key, of at most 65 535 bytes.
        key: &'a [u8],
    },
    /// A part of a value that is too long for one record. Behind the last part comes the [`Record::LargeUpsert`].
    Piece {
        /// The transaction.
        transaction: TransactionId,
        /// The part before it; 0 if it is the first.
        before: Lsn,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// A transaction gives a key a value that lies in pieces.
    LargeUpsert {
        /// The transaction.
        transaction: TransactionId,
        /// The table.
        table: TableId,
        /// The key, of at most 65 535 bytes.
        key: &'a [u8],
        /// The length of the value.
        length: u64,
        /// Its last piece.
        last: Lsn,
    },
    /// A transaction has committed.
    Commit {
        /// The transaction.
        transaction: TransactionId,
        /// Its final timestamp, which its versions carry.
        timestamp: Timestamp,
        /// What the notifier of durable commits finds its client by; opaque to the log.
        token: u64,
    },
    /// A transaction has aborted: its updates are void.
    Abort {
        /// The transaction.
        transaction: TransactionId,
    },
    /// No timestamp above this one has been handed out so far.
    ClockCeiling {
        /// The bound.
        timestamp: Timestamp,
    },
    /// Space without meaning.
    Padding {
        /// Its length in bytes, a multiple of 8, the head included.
        bytes: u32,
    },
}

/// The name of [`Record`] where it is a view of the log's own memory.
pub type RecordView<'a> = Record<'a>;

/// A decoded record and what is around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// The record.
    pub record: Record<'a>,
    /// Where the next record starts, counted from this one.
    pub bytes: usize,
    /// For a commit record the offset of the one that it links to, 0 at the end of the chain; else 0.
    pub link: u32,
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The bytes end before the record does.
    #[error("record of {expected} bytes in {found}")]
    Short {
        /// How long the record is.
        expected: usize,
        /// How many bytes there are.
        found: usize,
    },
    /// No such kind of record.
    #[error("unknown record kind {found}")]
    Kind {
        /// The kind found.
        found: u8,
    },
    /// A field holds what is never written.
    #[error("malformed record of kind {kind}")]
    Malformed {
        /// The kind.
        kind: u8,
    },
}

impl<'a> Record<'a> {
    /// The transaction of an update, commit or abort.
    pub fn transaction(&self) -> Option<TransactionId> {
        match *self {
            Record::Upsert { transaction, .. }
            | Record::Delete { transaction, .. }
            | Record::Piece { transaction, .. }
            | Record::LargeUpsert { transaction, .. }
            | Record::Commit { transaction, .. }
            | Record::Abort { transaction } => Some(transaction),
            Record::ClockCeiling { .. } | Record::Padding { .. } => None,
        }
    }

    /// The length of the record in the log.
    #[inline]
    pub fn encoded_bytes(&self) -> usize {
        match *self {
            Record::Upsert { key, value, .. } => update_bytes(key.len(), value.len()),
            Record::Delete { key, .. } => update_bytes(key.len(), 0),
            Record::Piece { bytes, .. } => padded(PIECE_HEAD_BYTES, bytes.len()),
            Record::LargeUpsert { key, .. } => padded(LARGE_HEAD_BYTES, key.len()),
            Record::Commit { .. } => COMMIT_BYTES,
            Record::Abort { .. } | Record::ClockCeiling { .. } => SHORT_BYTES,
            Record::Padding { bytes } => bytes as usize,
        }
    }

    /// Whether the lengths fit their fields. (Whether the record fits a buffer is another matter.)
    #[inline]
    pub(crate) fn is_representable(&self) -> bool {
        match *self {
            Record::Upsert { key, value, .. } => {
                key.len() <= u16::MAX as usize && value.len() <= u32::MAX as usize
            }
            Record::Delete { key, .. } | Record::LargeUpsert { key, .. } => key.len() <= u16::MAX as usize,
            Record::Piece { bytes, .. } => bytes.len() <= u32::MAX as usize,
            Record::Padding { bytes } => bytes as usize >= HEAD_BYTES && bytes.is_multiple_of(8),
            _ => true,
        }
    }

    /// Writes the record over `out`. `link` goes into a commit record and is ignored for others.
    ///
    /// # Panics
    /// If `out` is not exactly [`Record::encoded_bytes`] long, or a length does not fit its field.
    #[inline]
    pub fn encode(&self, link: u32, out: &mut [u8]) {
        assert!(self.is_representable() && out.len() == self.encoded_bytes(), "record buffer of wrong size");
        match *self {
            Record::Upsert { transaction, table, key, value } => {
                encode_update(UPSERT, transaction, table, key, value, out);
            }
            Record::Delete { transaction, table, key } => {
                encode_update(DELETE, transaction, table, key, &[], out);
            }
            Record::Piece { transaction, before, bytes } => {
                // The tail first: up to seven of its bytes are not covered by what follows.
                put_u64(out, out.len() - 8, 0);
                put_u64(out, 0, head(PIECE, 0, bytes.len() as u32));
                put_u64(out, 8, transaction.0);
                put_u64(out, 16, before.0);
                out[PIECE_HEAD_BYTES..][..bytes.len()].copy_from_slice(bytes);
            }
            Record::LargeUpsert { transaction, table, key, length, last } => {
                put_u64(out, out.len() - 8, 0);
                put_u64(out, 0, head(LARGE_UPSERT, key.len() as u16, 0));
                put_u64(out, 8, transaction.0);
                put_u64(out, 16, u64::from(table.0));
                put_u64(out, 24, length);
                put_u64(out, 32, last.0);
                out[LARGE_HEAD_BYTES..][..key.len()].copy_from_slice(key);
            }
            Record::Commit { transaction, timestamp, token } => {
                put_u64(out, 0, head(COMMIT, 0, link));
                put_u64(out, 8, transaction.0);
                put_u64(out, 16, timestamp.0);
                put_u64(out, 24, token);
            }
            Record::Abort { transaction } => {
                put_u64(out, 0, head(ABORT, 0, 0));
                put_u64(out, 8, transaction.0);
            }
            Record::ClockCeiling { timestamp } => {
                put_u64(out, 0, head(CLOCK_CEILING, 0, 0));
                put_u64(out, 8, timestamp.0);
            }
            Record::Padding { bytes } => {
                put_u64(out, 0, head(PADDING, 0, bytes));
                out[HEAD_BYTES..].fill(0);
            }
        }
    }

    /// Reads the record at the start of `bytes`. Never panics, whatever the bytes are.
    ///
    /// # Errors
    /// [`RecordError`] if no record starts there.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Decoded<'a>, RecordError> {
        let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
            return Err(RecordError::Short { expected: HEAD_BYTES, found: bytes.len() });
        };
        let length = bytes_from_head(*head)?;
        let Some(body) = bytes.get(..length) else {
            return Err(RecordError::Short { expected: length, found: bytes.len() });
        };
        let kind = head[0];
        let key_bytes = u16::from_le_bytes([head[2], head[3]]) as usize;
        let word = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let mut link = 0;
        let record = match kind {
            UPSERT | DELETE => {
                let transaction = TransactionId(get_u64(body, 8));
                let table = table_of(body, kind)?;
                let (key, rest) = body[UPDATE_HEAD_BYTES..].split_at(key_bytes);
                if kind == UPSERT {
                    Record::Upsert { transaction, table, key, value: &rest[..word as usize] }
                } else {
                    Record::Delete { transaction, table, key }
                }
            }
            PIECE => Record::Piece {
                transaction: TransactionId(get_u64(body, 8)),
                before: Lsn(get_u64(body, 16)),
                bytes: &body[PIECE_HEAD_BYTES..][..word as usize],
            },
            LARGE_UPSERT => Record::LargeUpsert {
                transaction: TransactionId(get_u64(body, 8)),
                table: table_of(body, kind)?,
                key: &body[LARGE_HEAD_BYTES..][..key_bytes],
                length: get_u64(body, 24),
                last: Lsn(get_u64(body, 32)),
            },
            COMMIT => {
                link = word;
                Record::Commit {
                    transaction: TransactionId(get_u64(body, 8)),
                    timestamp: Timestamp(get_u64(body, 16)),
                    token: get_u64(body, 24),
                }
            }
            ABORT => Record::Abort { transaction: TransactionId(get_u64(body, 8)) },
            CLOCK_CEILING => Record::ClockCeiling { timestamp: Timestamp(get_u64(body, 8)) },
            PADDING => Record::Padding { bytes: word },
            found => return Err(RecordError::Kind { found }),
        };
        Ok(Decoded { record, bytes: length, link })
    }
}

/// The table of an update with this body: never one whose number says that it is none.
#[inline]
fn table_of(body: &[u8], kind: u8) -> Result<TableId, RecordError> {
    let table = TableId(u32::from_le_bytes([body[16], body[17], body[18], body[19]]));
    if table <= TableId::NOWHERE { Ok(table) } else { Err(RecordError::Malformed { kind }) }
}

/// The length of an update in the log.
#[inline]
pub(crate) const fn update_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    UPDATE_HEAD_BYTES.saturating_add(key_bytes).saturating_add(value_bytes).saturating_add(7) & !7
}

/// The length of a record with so many bytes behind its head.
#[inline]
const fn padded(head_bytes: usize, bytes: usize) -> usize {
    head_bytes.saturating_add(bytes).saturating_add(7) & !7
}

/// The length of the record that starts with `head`.
#[inline]
pub(crate) fn bytes_from_head(head: [u8; HEAD_BYTES]) -> Result<usize, RecordError> {
    let kind = head[0];
    let key_bytes = u16::from_le_bytes([head[2], head[3]]) as usize;
    let word = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    if head[1] != 0 {
        return Err(RecordError::Malformed { kind });
    }
    match kind {
        UPSERT => Ok(update_bytes(key_bytes, word as usize)),
        DELETE if word == 0 => Ok(update_bytes(key_bytes, 0)),
        COMMIT if key_bytes == 0 => Ok(COMMIT_BYTES),
        ABORT | CLOCK_CEILING if key_bytes == 0 && word == 0 => Ok(SHORT_BYTES),
        PADDING if key_bytes == 0 && word as usize >= HEAD_BYTES && word.is_multiple_of(8) => {
            Ok(word as usize)
        }
        PIECE if key_bytes == 0 => Ok(padded(PIECE_HEAD_BYTES, word as usize)),
        LARGE_UPSERT if word == 0 => Ok(padded(LARGE_HEAD_BYTES, key_bytes)),
        0 | 9.. => Err(RecordError::Kind { found: kind }),
        _ => Err(RecordError::Malformed { kind }),
    }
}

#[inline]
fn encode_update(
    kind: u8,
    transaction: TransactionId,
    table: TableId,
    key: &[u8],
    value: &[u8],
    out: &mut [u8],
) {
    // The tail first: up to seven of its bytes are not covered by what follows.
    let tail = out.len() - 8;
    put_u64(out, tail, 0);
    put_u64(out, 0, head(kind, key.len() as u16, value.len() as u32));
    put_u64(out, 8, transaction.0);
    out[16..20].copy_from_slice(&table.0.to_le_bytes());
    let (key_out, rest) = out[UPDATE_HEAD_BYTES..].split_at_mut(key.len());
    key_out.copy_from_slice(key);
    rest[..value.len()].copy_from_slice(value);
}

#[inline]
fn head(kind: u8, key_bytes: u16, word: u32) -> u64 {
    u64::from(kind) | u64::from(key_bytes) << 16 | u64::from(word) << 32
}

#[inline]
fn put_u64(out: &mut [u8], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[inline]
fn get_u64(bytes: &[u8], at: usize) -> u64 {
    let mut array = [0; 8];
    array.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(array)
}

/// A record with bytes of its own, as read back from disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRecord {
    bytes: Box<[u8]>,
}

impl OwnedRecord {
    /// Copies the encoded record at the start of `bytes`.
    pub(crate) fn copy(bytes: &[u8]) -> Result<OwnedRecord, RecordError> {
        let length = Record::decode(bytes)?.bytes;
        Ok(OwnedRecord { bytes: bytes[..length].into() })
    }

    /// The record.
    pub fn view(&self) -> Record<'_> {
        match Record::decode(&self.bytes) {
            Ok(decoded) => decoded.record,
            Err(error) => unreachable!("bytes checked when they were copied: {error}"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(record: &Record<'_>, link: u32) -> Vec<u8> {
        let mut bytes = vec![0xAA; record.encoded_bytes()];
        record.encode(link, &mut bytes);
        bytes
    }

    #[test]
    fn zeros_are_no_record() {
        assert_eq!(Record::decode(&[0; 64]), Err(RecordError::Kind { found: 0 }));
    }

    #[test]
    fn bytes_after_value_are_zero() {
        let record =
            Record::Upsert { transaction: TransactionId(1), table: TableId(2), key: b"abc", value: b"" };
        assert_eq!(encoded(&record, 0)[23..], [0]);
    }

    /// What is on disks must stay readable: as `docs/format.md` says, byte for byte.
    #[test]
    fn formats_stay_as_they_are() {
        const TRANSACTION: &[u8] = b"\x08\x07\x06\x05\x04\x03\x02\x01";
        const TIMESTAMP: &[u8] = b"\x18\x17\x16\x15\x14\x13\x12\x11";
        const TABLE: &[u8] = b"\x24\x23\x22\x21";
        const LSN: &[u8] = b"\x38\x37\x36\x35\x34\x33\x32\x31";
        const NUMBER: &[u8] = b"\x48\x47\x46\x45\x44\x43\x42\x41";
        let transaction = TransactionId(0x0102_0304_0506_0708);
        let timestamp = Timestamp(0x1112_1314_1516_1718);
        let table = TableId(0x2122_2324);
        let lsn = Lsn(0x3132_3334_3536_3738);
        let number = 0x4142_4344_4546_4748;
        let link = 0x5152_5354;
        // Kind, 0, bytes of the key, and what the kind has at 4.
        let records: [(Record<'_>, &[&[u8]]); 8] = [
            (
                Record::Upsert { transaction, table, key: b"key", value: b"value" },
                &[b"\x01\0\x03\0\x05\0\0\0", TRANSACTION, TABLE, b"key", b"value", b"\0\0\0\0"],
            ),
            (
                Record::Delete { transaction, table, key: b"key" },
                &[b"\x02\0\x03\0\0\0\0\0", TRANSACTION, TABLE, b"key", b"\0"],
            ),
            (
                Record::Commit { transaction, timestamp, token: number },
                &[b"\x03\0\0\0\x54\x53\x52\x51", TRANSACTION, TIMESTAMP, NUMBER],
            ),
            (Record::Abort { transaction }, &[b"\x04\0\0\0\0\0\0\0", TRANSACTION]),
            (Record::ClockCeiling { timestamp }, &[b"\x05\0\0\0\0\0\0\0", TIMESTAMP]),
            (Record::Padding { bytes: 24 }, &[b"\x06\0\0\0\x18\0\0\0", &[0; 16]]),
            (
                Record::Piece { transaction, before: lsn, bytes: b"piece" },
                &[b"\x07\0\0\0\x05\0\0\0", TRANSACTION, LSN, b"piece", b"\0\0\0"],
            ),
            (
                Record::LargeUpsert { transaction, table, key: b"key", length: number, last: lsn },
                &[
                    b"\x08\0\x03\0\0\0\0\0",
                    TRANSACTION,
                    TABLE,
                    b"\0\0\0\0",
                    NUMBER,
                    LSN,
                    b"key",
                    b"\0\0\0\0\0",
                ],
            ),
        ];
        for (record, expected) in records {
            let bytes = expected.concat();
            assert_eq!(encoded(&record, link), bytes, "{record:?}");
            let link = if matches!(record, Record::Commit { .. }) { link } else { 0 };
            assert_eq!(Record::decode(&bytes), Ok(Decoded { record, bytes: bytes.len(), link }));
        }
    }

    /// They went as far as the data component, which asserts that there are none.
    #[test]
    fn a_table_that_nobody_can_have_is_malformed() {
        let (transaction, key) = (TransactionId(1), &b"key"[..]);
        for number in [1 << 31, u32::MAX] {
            let table = TableId(number);
            for record in [
                Record::Upsert { transaction, table, key, value: b"value" },
                Record::Delete { transaction, table, key },
                Record::LargeUpsert { transaction, table, key, length: 1 << 20, last: Lsn(64) },
            ] {
                let kind = encoded(&record, 0)[0];
                assert_eq!(Record::decode(&encoded(&record, 0)), Err(RecordError::Malformed { kind }));
            }
        }
    }

    #[test]
    fn update_bytes_saturate_and_stay_aligned() {
        assert_eq!(update_bytes(1, 3), 24);
        assert_eq!(update_bytes(1, 4), 32);
        assert!(update_bytes(usize::MAX, usize::MAX) > usize::MAX - 8);
    }

    proptest! {
        #[test]
        fn round_trip(kind in 0..8u8, transaction: u64, timestamp: u64, token: u64, table: u32, link: u32,
            key in prop::collection::vec(any::<u8>(), 0..40), value in prop::collection::vec(any::<u8>(), 0..200)) {
            let transaction = TransactionId(transaction);
            let timestamp = Timestamp(timestamp);
            let table = TableId(table & TableId::NOWHERE.0);
            let record = match kind {
                0 => Record::Upsert { transaction, table, key: &key, value: &value },
                1 => Record::Delete { transaction, table, key: &key },
                2 => Record::Commit { transaction, timestamp, token },
                3 => Record::Abort { transaction },
                4 => Record::ClockCeiling { timestamp },
                6 => Record::Piece { transaction, before: Lsn(token), bytes: &value },
                7 => Record::LargeUpsert { transaction, table, key: &key, length: timestamp.0, last: Lsn(token) },
                _ => Record::Padding { bytes: 8 + 8 * (table.0 % 100) },
            };
            let mut bytes = encoded(&record, link);
            prop_assert_eq!(bytes.len() % 8, 0);
            let length = bytes.len();
            bytes.extend_from_slice(&value); // what follows does not matter
            let decoded = Record::decode(&bytes).unwrap();
            prop_assert_eq!(decoded.record, record);
            prop_assert_eq!(decoded.bytes, length);
            prop_assert_eq!(decoded.link, if kind == 2 { link } else { 0 });
            prop_assert!(Record::decode(&bytes[..length - 1]).is_err());
            let owned = OwnedRecord::copy(&bytes).unwrap();
            prop_assert_eq!(owned.view(), record);
        }

        #[test]
        fn decoder_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0..10u8) {
            let _ = Record::decode(&bytes);
            let mut bytes = bytes;
            if bytes.len() > 4 {
                bytes[0] = kind;
                bytes[1] = 0;
                let _ = Record::decode(&bytes);
                bytes[4..].iter_mut().take(4).for_each(|byte| *byte &= 0x1f);
                if let Ok(decoded) = Record::decode(&bytes) {
                    prop_assert!(decoded.bytes <= bytes.len() && decoded.bytes >= 8);
                }
            }
        }
    }
}
