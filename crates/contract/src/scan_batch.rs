//! [`ScanBatch`]: what a scan returns, in one piece of memory for all its records.
//!
//! A batch is filled, read, and filled again: whoever scans on keeps one, and allocates nothing once it has grown to what its batches
//! take. Values are taken over as they lie, many at once; of each record one slot says where its key and its value are.

use crate::{Record, Timestamp};
use std::{iter, slice};

/// In place of the length of a value: there is none.
const TOMBSTONE: u32 = u32::MAX;

/// The room behind keys that [`ScanBatch::push_block`] lends, in bytes: whoever writes them one behind the other may write beyond the end of each.
pub const KEYS_SLACK: usize = 8;

/// The least room that a batch has.
const ROOM_MIN: usize = 1 << 12;

/// Where a record lies.
#[derive(Clone, Copy, Debug)]
struct Slot {
    key_start: usize,
    value_start: usize,
    key_bytes: u32,
    value_bytes: u32,
    timestamp: Timestamp,
}

impl Slot {
    const NONE: Slot =
        Slot { key_start: 0, value_start: 0, key_bytes: 0, value_bytes: TOMBSTONE, timestamp: Timestamp(0) };

    #[inline]
    fn version(&self) -> (Timestamp, bool) {
        (self.timestamp, self.value_bytes != TOMBSTONE)
    }
}

/// One batch of a range scan: records in the order asked for, tombstones included.
///
/// The batch covers the asked range from its start up to and including the last key returned, and all of it if it
/// [is complete](ScanBatch::is_complete). To go on, ask again with the near bound *excluding* the last key.
///
/// ```
/// use deuteron_contract::{ScanBatch, Timestamp};
/// let mut batch = ScanBatch::new();
/// batch.push(b"apples", Some(b"12"), Timestamp(3));
/// batch.push(b"pears", None, Timestamp(4));
/// assert_eq!(batch.iter().map(|record| record.key).collect::<Vec<_>>(), [&b"apples"[..], b"pears"]);
/// assert_eq!(batch.get(0).value, Some(&b"12"[..]));
/// assert_eq!(batch.last_key(), Some(&b"pears"[..]));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ScanBatch {
    /// As many as there is room for: they are written anew with each use.
    bytes: Vec<u8>,
    used: usize,
    slots: Vec<Slot>,
    complete: bool,
}

/// A record where it lies in a [`ScanBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'b> {
    /// The key.
    pub key: &'b [u8],
    /// The value, or `None` where the newest version is a delete that is still remembered.
    pub value: Option<&'b [u8]>,
    /// The commit timestamp of this version.
    pub timestamp: Timestamp,
}

impl RecordView<'_> {
    /// The record in memory of its own.
    ///
    /// ```
    /// # use deuteron_contract::{Record, ScanBatch, Timestamp};
    /// let mut batch = ScanBatch::new();
    /// batch.push(b"k", None, Timestamp(3));
    /// let record = Record { key: b"k".to_vec(), value: None, timestamp: Timestamp(3) };
    /// assert_eq!(batch.get(0).to_record(), record);
    /// ```
    pub fn to_record(self) -> Record {
        Record { key: self.key.to_vec(), value: self.value.map(<[u8]>::to_vec), timestamp: self.timestamp }
    }
}

impl ScanBatch {
    /// A batch without records, of a range that may have some.
    ///
    /// ```
    /// assert!(deuteron_contract::ScanBatch::new().is_empty());
    /// ```
    pub fn new() -> ScanBatch {
        ScanBatch::default()
    }

    /// Makes the batch as a new one, which keeps its memory.
    ///
    /// ```
    /// # use deuteron_contract::{ScanBatch, Timestamp};
    /// let mut batch = ScanBatch::new();
    /// batch.push(b"k", Some(b"v"), Timestamp(3));
    /// batch.set_complete(true);
    /// batch.clear();
    /// assert!(batch.is_empty() && !batch.is_complete());
    /// ```
    pub fn clear(&mut self) {
        self.used = 0;
        self.slots.clear();
        self.complete = false;
    }

    /// Adds a record behind the others.
    ///
    /// ```
    /// # use deuteron_contract::{ScanBatch, Timestamp};
    /// let mut batch = ScanBatch::new();
    /// batch.push(b"k", Some(b"v"), Timestamp(3));
    /// assert_eq!(batch.len(), 1);
    /// ```
    ///
    /// # Panics
    /// If key or value are 4 GiB long, which none is.
    #[inline]
    pub fn push(&mut self, key: &[u8], value: Option<&[u8]>, timestamp: Timestamp) {
        let (key_bytes, value_bytes) = (key.len(), value.map(<[u8]>::len));
        let entry = BlockEntry { key_bytes, value_at: 0, value_bytes, timestamp };
        self.push_block(value.unwrap_or_default(), key_bytes, iter::once(entry), |_, room| {
            room[..key_bytes].copy_from_slice(key);
        });
    }

    /// Adds records behind the others, whose values lie in `bytes`, all of which are copied at once, and whose keys have no more than `keys_bytes_max` bytes
    /// together. `write_keys` is lent room for them and [`KEYS_SLACK`] bytes more, and writes them to its beginning, one behind the other; their lengths it is told.
    ///
    /// ```
    /// # use deuteron_contract::{BlockEntry, ScanBatch, Timestamp};
    /// let mut batch = ScanBatch::new();
    /// let timestamp = Timestamp(3);
    /// let entries = [
    ///     BlockEntry { key_bytes: 6, value_at: 7, value_bytes: Some(2), timestamp },
    ///     BlockEntry { key_bytes: 4, value_at: 15, value_bytes: None, timestamp },
    ///     BlockEntry { key_bytes: 5, value_at: 26, value_bytes: Some(1), timestamp },
    /// ];
    /// batch.push_block(b"apples:12,figs:none,pears:7", 15, entries.into_iter(), |lengths, room| {
    ///     assert!(lengths.eq([6, 4, 5]));
    ///     room[..15].copy_from_slice(b"applesfigspears");
    /// });
    /// assert_eq!(batch.iter().map(|record| record.value).collect::<Vec<_>>(), [Some(&b"12"[..]), None, Some(b"7")]);
    /// assert_eq!(batch.last_key(), Some(&b"pears"[..]));
    /// ```
    ///
    /// # Panics
    /// If the keys are longer than that, or any key or value is 4 GiB long, which none is. Of a value that is not in `bytes`, whoever reads it gets other
    /// bytes, or panics.
    // Part of the loops of scans, of which there are several: a call takes as much as what is done here.
    #[inline(always)]
    pub fn push_block(
        &mut self,
        bytes: &[u8],
        keys_bytes_max: usize,
        entries: impl ExactSizeIterator<Item = BlockEntry>,
        write_keys: impl FnOnce(KeyLengths<'_>, &mut [u8]),
    ) {
        let (values_start, keys_start) = (self.used, self.used + bytes.len());
        let end = keys_start + keys_bytes_max + KEYS_SLACK;
        if self.bytes.len() < end {
            self.grow_to(end);
        }
        if !bytes.is_empty() {
            self.bytes[values_start..keys_start].copy_from_slice(bytes);
        }
        let first = self.slots.len();
        self.slots.resize(first + entries.len(), Slot::NONE);
        let added = &mut self.slots[first..];
        let (mut slots, mut key_start) = (added.iter_mut(), keys_start);
        for BlockEntry { key_bytes, value_at, value_bytes, timestamp } in entries {
            let Some(slot) = slots.next() else { break };
            let (value_start, value_bytes) = (values_start + value_at, value_bytes.map_or(TOMBSTONE, length));
            *slot = Slot { key_start, value_start, key_bytes: length(key_bytes), value_bytes, timestamp };
            key_start += key_bytes;
        }
        assert!(key_start - keys_start <= keys_bytes_max, "the keys are no longer than was said");
        write_keys(KeyLengths(added.iter()), &mut self.bytes[keys_start..end]);
        self.used = key_start;
    }

    /// Makes room for so many bytes in all.
    #[cold]
    fn grow_to(&mut self, bytes: usize) {
        let room = bytes.max(2 * self.bytes.len()).max(ROOM_MIN);
        self.bytes.resize(room, 0);
    }

    /// Says whether the range holds no further records.
    ///
    /// ```
    /// let mut batch = deuteron_contract::ScanBatch::new();
    /// batch.set_complete(true);
    /// assert!(batch.is_complete());
    /// ```
    pub fn set_complete(&mut self, complete: bool) {
        self.complete = complete;
    }

    /// Whether the range holds no further records.
    ///
    /// ```
    /// assert!(!deuteron_contract::ScanBatch::new().is_complete());
    /// ```
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The number of records, tombstones included.
    ///
    /// ```
    /// assert_eq!(deuteron_contract::ScanBatch::new().len(), 0);
    /// ```
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no record.
    ///
    /// ```
    /// assert!(deuteron_contract::ScanBatch::new().is_empty());
    /// ```
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The record at `index`.
    ///
    /// ```
    /// # use deuteron_contract::{ScanBatch, Timestamp};
    /// let mut batch = ScanBatch::new();
    /// batch.push(b"k", Some(b"v"), Timestamp(3));
    /// assert_eq!(batch.get(0).timestamp, Timestamp(3));
    /// ```
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn get(&self, index: usize) -> RecordView<'_> {
        self.view(&self.slots[index])
    }

    #[inline]
    fn view(&self, slot: &Slot) -> RecordView<'_> {
        let piece = |start: usize, bytes: u32| &self.bytes[start..start + bytes as usize];
        let value = (slot.value_bytes != TOMBSTONE).then(|| piece(slot.value_start, slot.value_bytes));
        RecordView { key: piece(slot.key_start, slot.key_bytes), value, timestamp: slot.timestamp }
    }

    /// The commit timestamp of the record at `index`, and whether it has a value: without a look at key and value.
    ///
    /// ```
    /// # use deuteron_contract::{ScanBatch, Timestamp};
    /// let mut batch = ScanBatch::new();
    /// batch.push(b"k", None, Timestamp(3));
    /// assert_eq!(batch.version(0), (Timestamp(3), false));
    /// ```
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn version(&self, index: usize) -> (Timestamp, bool) {
        self.slots[index].version()
    }

    /// The same of all records.
    ///
    /// ```
    /// # use deuteron_contract::{ScanBatch, Timestamp};
    /// let mut batch = ScanBatch::new();
    /// batch.push(b"k", None, Timestamp(3));
    /// assert!(batch.versions().eq([(Timestamp(3), false)]));
    /// ```
    #[inline]
    pub fn versions(&self) -> impl ExactSizeIterator<Item = (Timestamp, bool)> {
        self.slots.iter().map(Slot::version)
    }

    /// The records in the order of the batch.
    ///
    /// ```
    /// # use deuteron_contract::{ScanBatch, Timestamp};
    /// let mut batch = ScanBatch::new();
    /// batch.push(b"k", Some(b"v"), Timestamp(3));
    /// assert_eq!(batch.iter().filter_map(|record| record.value).count(), 1);
    /// ```
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = RecordView<'_>> + ExactSizeIterator {
        self.slots.iter().map(|slot| self.view(slot))
    }

    /// The key of the last record.
    ///
    /// ```
    /// assert_eq!(deuteron_contract::ScanBatch::new().last_key(), None);
    /// ```
    pub fn last_key(&self) -> Option<&[u8]> {
        self.slots.last().map(|slot| self.view(slot).key)
    }

    /// Gives memory back beyond `bytes_max`, in bytes, if the batch keeps more. It is empty then.
    ///
    /// ```
    /// # use deuteron_contract::{ScanBatch, Timestamp};
    /// let mut batch = ScanBatch::new();
    /// batch.push(b"k", Some(&[7; 1000]), Timestamp(3));
    /// batch.limit_memory(100);
    /// assert!(batch.is_empty());
    /// ```
    pub fn limit_memory(&mut self, bytes_max: usize) {
        if self.bytes.capacity() + self.slots.capacity() * size_of::<Slot>() > bytes_max {
            *self = ScanBatch::new();
        }
    }
}

/// A record that [`ScanBatch::push_block`] adds, but for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEntry {
    /// The length of the key.
    pub key_bytes: usize,
    /// Where in the block the value begins, if there is one.
    pub value_at: usize,
    /// The length of the value, if there is one.
    pub value_bytes: Option<usize>,
    /// The commit timestamp.
    pub timestamp: Timestamp,
}

/// The lengths of the keys of a block, in the order of its records.
#[derive(Clone, Debug)]
pub struct KeyLengths<'b>(slice::Iter<'b, Slot>);

impl Iterator for KeyLengths<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        self.0.next().map(|slot| slot.key_bytes as usize)
    }
}

#[inline]
fn length(bytes: usize) -> u32 {
    // Below the mark of a tombstone, which is the largest.
    u32::try_from(bytes)
        .ok()
        .filter(|&bytes| bytes != TOMBSTONE)
        .expect("keys and values are shorter than 4 GiB")
}

/// The same records, and the same completeness.
impl PartialEq for ScanBatch {
    fn eq(&self, other: &ScanBatch) -> bool {
        self.complete == other.complete && self.iter().eq(other.iter())
    }
}

impl Eq for ScanBatch {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_is_there_in_order_and_a_cleared_batch_is_as_new() {
        let mut batch = ScanBatch::new();
        for round in 0..3u64 {
            batch.clear();
            assert!(batch.is_empty() && !batch.is_complete() && batch.last_key().is_none());
            let records: Vec<Record> = (0..100)
                .map(|number| Record {
                    key: format!("{round} {number}").into_bytes(),
                    value: (number % 7 != 0).then(|| vec![number as u8; (number * round) as usize]),
                    timestamp: Timestamp(number + round),
                })
                .collect();
            for record in &records {
                batch.push(&record.key, record.value.as_deref(), record.timestamp);
            }
            batch.set_complete(round == 1);
            assert_eq!(batch.is_complete(), round == 1);
            assert_eq!(batch.len(), records.len());
            assert_eq!(batch.last_key(), Some(&records[99].key[..]));
            assert!(batch.iter().map(RecordView::to_record).eq(records.iter().cloned()));
            assert!(batch.iter().rev().map(RecordView::to_record).eq(records.iter().rev().cloned()));
            assert_eq!(batch.get(42).to_record(), records[42]);
        }
    }

    #[test]
    fn batches_are_equal_if_their_records_are_wherever_those_lie() {
        let (mut one, mut other) = (ScanBatch::new(), ScanBatch::new());
        one.push(b"ab", Some(b"c"), Timestamp(1));
        other.push(b"x", None, Timestamp(9));
        other.clear();
        other.push(b"ab", Some(b"c"), Timestamp(1));
        assert_eq!(one, other);
        other.set_complete(true);
        assert_ne!(one, other);
        // An empty value is none that is missing, and the border between key and value counts.
        let of = |key: &[u8], value: Option<&[u8]>| {
            let mut batch = ScanBatch::new();
            batch.push(key, value, Timestamp(1));
            batch
        };
        assert_ne!(of(b"a", Some(b"")), of(b"a", None));
        assert_ne!(of(b"ab", Some(b"c")), of(b"a", Some(b"bc")));
    }
}
