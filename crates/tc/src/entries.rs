//! [`Entries`]: one batch of a scan, as the transaction sees it.
//!
//! What is known here lies in one piece of memory, what the data component has sent in another; which of the two an entry is of, and
//! the how manieth there, is all that is kept of an entry; nothing, where the first entries are what was sent, as it was sent. So a record is copied once,
//! and nothing is allocated once both have grown.

use crate::range_timestamps::KeyRange;
use deuteron_contract::{Direction, Lsn, ScanBatch, Timestamp};
use std::cmp;

/// Of an entry's number: it is known here.
const KNOWN: u32 = 1 << 31;
/// More memory than so many bytes is not kept from one transaction to the next, by either part.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// The order of two keys in a scan.
#[inline]
pub(crate) fn compare(a: &[u8], b: &[u8], direction: Direction) -> cmp::Ordering {
    let order = match (a.first_chunk::<8>(), b.first_chunk::<8>()) {
        // Most differ there: no call of a library function for those.
        (Some(a), Some(b)) if a != b => u64::from_be_bytes(*a).cmp(&u64::from_be_bytes(*b)),
        _ => a.cmp(b),
    };
    match direction {
        Direction::Forward => order,
        Direction::Reverse => order.reverse(),
    }
}

/// Keys and values, in the order of a scan, lent by the transaction that has read them.
///
/// ```
/// # fn show(tx: &mut deuteron_tc::Transaction, table: deuteron_contract::TableId) -> Result<(), deuteron_tc::TcError> {
/// use deuteron_contract::Direction;
/// use std::ops::Bound;
/// let mut cursor = deuteron_tc::ScanCursor::new(table, Bound::Unbounded, Bound::Unbounded, Direction::Forward);
/// while tx.scan_next(&mut cursor, usize::MAX)? {
///     for (key, value) in tx.scanned(Direction::Forward).iter() {
///         println!("{key:?} {value:?}");
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct Entries {
    pub(crate) stored: ScanBatch,
    pub(crate) known: Known,
    /// So many entries are the first records that the data component has sent.
    plain: usize,
    /// Where those behind them are.
    places: Vec<u32>,
}

/// Where an entry is.
#[derive(Clone, Copy)]
enum Place {
    Stored(usize),
    Known(usize),
}

impl Entries {
    /// The number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.plain + self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn place(&self, index: usize) -> Place {
        if index < self.plain {
            return Place::Stored(index);
        }
        let place = self.places[index - self.plain];
        if place & KNOWN == 0 {
            Place::Stored(place as usize)
        } else {
            Place::Known((place & !KNOWN) as usize)
        }
    }

    /// Key and value of the entry at `index`.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn get(&self, index: usize) -> (&[u8], &[u8]) {
        match self.place(index) {
            Place::Stored(index) => {
                let record = self.stored.get(index);
                (record.key, record.value.unwrap_or_default())
            }
            Place::Known(index) => {
                let slot = &self.known.slots[index];
                (self.known.key(slot), self.known.value(slot))
            }
        }
    }

    /// Keys and values in the order of the scan.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Of the records that were read, how many known here and how many stored ones lie before the first entry of a scan in that direction.
    pub(crate) fn passed(&self, direction: Direction) -> (usize, usize) {
        if self.is_empty() {
            return (self.known.len(), self.stored.len());
        }
        let (key, _) = self.get(0);
        let is_before = |other: &[u8]| compare(other, key, direction).is_lt();
        match self.place(0) {
            Place::Known(known) => {
                let stored =
                    (0..self.stored.len()).take_while(|&index| is_before(self.stored.get(index).key));
                (known, stored.count())
            }
            Place::Stored(stored) => {
                let known = self.known.slots.iter().take_while(|slot| is_before(self.known.key(slot)));
                (known.count(), stored)
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.stored.clear();
        self.known.clear();
        self.plain = 0;
        self.places.clear();
    }

    /// For the next transaction: memory that only a large batch takes goes.
    pub(crate) fn limit_memory(&mut self) {
        self.stored.limit_memory(KEPT_BYTES_MAX);
        let Known { bytes, slots, .. } = &mut self.known;
        if bytes.capacity() + slots.capacity() * size_of::<Slot>() > KEPT_BYTES_MAX {
            self.known = Known::default();
        }
        if self.places.capacity() * size_of::<u32>() > KEPT_BYTES_MAX {
            self.places = Vec::new();
        }
    }

    /// The first records that the data component has sent, so many, are the first entries.
    #[inline]
    pub(crate) fn set_plain(&mut self, count: usize) {
        debug_assert!(self.is_empty() && count <= self.stored.len());
        self.plain = count;
    }

    /// The record that the data component has sent at `index` is an entry.
    #[inline]
    pub(crate) fn add_stored(&mut self, index: usize) {
        debug_assert!(index < KNOWN as usize);
        self.places.push(index as u32);
    }

    /// What is known of a key, at `index`, is an entry.
    #[inline]
    pub(crate) fn add_known(&mut self, index: usize) {
        debug_assert!(index < KNOWN as usize);
        self.places.push(index as u32 | KNOWN);
    }
}

/// What this component knows of keys in the range.
#[derive(Default)]
pub(crate) struct Known {
    bytes: Vec<u8>,
    slots: Vec<Slot>,
    /// Where the first record is that has a version which the reader does not see, or only the reader: twice the number of slots before it, and one more if it has a slot itself.
    unsettled: Option<usize>,
}

/// What it knows of one key. The value, if it is there, lies behind the key, or behind all the others.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    key_start: usize,
    value_start: usize,
    key_bytes: u32,
    value_bytes: u32,
    pub(crate) what: What,
    /// The transaction's own version was there first: part of the answer, not of what has to stay as it is.
    pub(crate) own: bool,
    pub(crate) at: Timestamp,
    pub(crate) commit_lsn: Lsn,
}

#[derive(Clone, Copy)]
pub(crate) enum What {
    Absent,
    Present,
    /// The log has the value no longer in memory.
    Recycled(Lsn),
}

impl Known {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.slots.clear();
        self.unsettled = None;
    }

    /// The record that is looked at now, which is about to get a slot or not, is unsettled.
    #[inline]
    pub(crate) fn note_unsettled(&mut self, gets_slot: bool) {
        self.unsettled.get_or_insert(2 * self.slots.len() + usize::from(gets_slot));
    }

    /// Whether nothing before the slot at `index` is unsettled; nothing at all, if there is none.
    pub(crate) fn is_settled_before(&self, index: usize) -> bool {
        self.unsettled.is_none_or(|place| place > 2 * index)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds what is known of `key`; `append_value` appends the value, if it is to be copied, and says what there is.
    #[inline]
    pub(crate) fn push(
        &mut self,
        key: &[u8],
        own: bool,
        (at, commit_lsn): (Timestamp, Lsn),
        append_value: impl FnOnce(&mut Vec<u8>) -> What,
    ) {
        let key_start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let value_start = self.bytes.len();
        let what = append_value(&mut self.bytes);
        let value_bytes = (self.bytes.len() - value_start) as u32;
        let key_bytes = key.len() as u32;
        self.slots.push(Slot { key_start, value_start, key_bytes, value_bytes, what, own, at, commit_lsn });
    }

    /// The value of the slot at `index` has been read.
    pub(crate) fn set_value(&mut self, index: usize, value: &[u8]) {
        let slot = &mut self.slots[index];
        slot.value_start = self.bytes.len();
        slot.value_bytes = value.len() as u32;
        slot.what = What::Present;
        self.bytes.extend_from_slice(value);
    }

    #[inline]
    pub(crate) fn slot(&self, index: usize) -> Slot {
        self.slots[index]
    }

    #[inline]
    pub(crate) fn key(&self, slot: &Slot) -> &[u8] {
        &self.bytes[slot.key_start..][..slot.key_bytes as usize]
    }

    #[inline]
    fn value(&self, slot: &Slot) -> &[u8] {
        &self.bytes[slot.value_start..][..slot.value_bytes as usize]
    }
}

/// Restricts `range` to what lies up to and including `last`, in the direction of the scan.
pub(crate) fn up_to<'k>(range: KeyRange<'k>, direction: Direction, last: Option<&'k [u8]>) -> KeyRange<'k> {
    use std::ops::Bound;
    match (last, direction) {
        (None, _) => range,
        (Some(last), Direction::Forward) => KeyRange { upper: Bound::Included(last), ..range },
        (Some(last), Direction::Reverse) => KeyRange { lower: Bound::Included(last), ..range },
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn entries_are_of_either_part_and_memory_beyond_the_limit_goes() {
        let mut entries = Entries::default();
        entries.stored.push(b"a", Some(b"stored"), Timestamp(1));
        entries.stored.push(b"c", None, Timestamp(1));
        let present = |value: &'static [u8]| {
            move |bytes: &mut Vec<u8>| {
                bytes.extend_from_slice(value);
                What::Present
            }
        };
        entries.known.push(b"b", false, (Timestamp(2), Lsn(3)), present(b"known"));
        entries.known.push(b"d", true, (Timestamp(2), Lsn(0)), |_| What::Recycled(Lsn(7)));
        entries.known.push(b"e", false, (Timestamp(2), Lsn(3)), present(b""));
        entries.known.set_value(1, b"read later");
        entries.add_stored(0);
        (0..3).for_each(|index| entries.add_known(index));
        let expected: [(&[u8], &[u8]); 4] =
            [(b"a", b"stored"), (b"b", b"known"), (b"d", b"read later"), (b"e", b"")];
        assert!(entries.iter().eq(expected));
        entries.limit_memory();
        assert_eq!(entries.len(), 4, "it is small");
        let long = vec![7; KEPT_BYTES_MAX + 1];
        entries.known.set_value(2, &long);
        assert_eq!(entries.get(3), (&b"e"[..], &long[..]));
        entries.clear();
        entries.limit_memory();
        assert_eq!((entries.len(), entries.known.bytes.capacity()), (0, 0));
        // The first as they were sent, the others here and there.
        for key in [&b"a"[..], b"b", b"c"] {
            entries.stored.push(key, Some(b"stored"), Timestamp(1));
        }
        entries.set_plain(2);
        entries.known.push(b"bb", false, (Timestamp(2), Lsn(3)), present(b"known"));
        entries.add_known(0);
        entries.add_stored(2);
        assert!(entries.iter().map(|(key, _)| key).eq([&b"a"[..], b"b", b"bb", b"c"]));
        assert_eq!(entries.passed(Direction::Forward), (0, 0));
    }

    #[test]
    fn keys_compare_as_their_bytes_do() {
        let keys: [&[u8]; 7] = [b"", b"a", b"abcdefgh", b"abcdefgh\0", b"abcdefghi", b"abcdefgi", b"b"];
        for (i, a) in keys.iter().enumerate() {
            for (j, b) in keys.iter().enumerate() {
                assert_eq!(compare(a, b, Direction::Forward), i.cmp(&j));
                assert_eq!(compare(a, b, Direction::Reverse), j.cmp(&i));
            }
        }
    }
}
