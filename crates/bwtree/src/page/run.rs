//! A run: the records of one page node, sorted, as flat bytes.
//!
//! Base pages and deltas are both runs; a delta is a sorted batch of upserts. What is in memory is what goes to
//! flash. All integers are little-endian and unaligned.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0 | format | 3 of a base whose prefix is longer than its low key; of others 2 if narrow, 1 if wide |
//! | 1 | kind | in the low half: 1 delta, 2 base; in the high half the [`Shape`], 0 of a wide run |
//! | 2..4 | prefix bytes | how many leading bytes all keys share |
//! | 4..8 | count | of records |
//! | 8..16 | newest stamp | an upper bound of the stamps in this run |
//! | 16..24 | delta: stamp below | an upper bound of the stamps in all older nodes of the page |
//! | | base: right sibling | page identifier, or 0: none |
//! | 24..26 | high key bytes | of the page; or all ones: no upper bound |
//! | 26..28 | base: low key bytes | |
//! | 28..32 | base: tombstones | count |
//! | then | delta: the shared prefix, high key; base: low key, high key | a base's prefix is the beginning of its low key, or if longer than that of its high key |
//! | then | *if stamps are written:* least stamp (8); *if LSNs are:* least LSN (8) | of a narrow run |
//! | then | heads | 8 bytes a record, big-endian: the bytes behind the prefix, zero-padded |
//! | then | offsets | 2 bytes a record, 4 in a wide run: where it begins, from the start of the run |
//! | then | records | in key order |
//!
//! | of a record | narrow | wide | |
//! |---|---|---|---|
//! | value bytes | 0..2 | 16..20 | or all ones: a tombstone |
//! | suffix bytes | 2..3 | 20..22 | the key's length without the prefix |
//! | stamp | 0, 4 or 6 bytes from 3 on | 0..8 | narrow: less the least one |
//! | LSN | as many, or none: it is the stamp | 8..16 | narrow: less the least one |
//! | rest of the key | then | then | what does not fit into the head |
//! | value | then | then | |
//!
//! In a narrow run where no stamps are written all are the newest one.
//!
//! Invariants:
//!
//! - **R1** Keys are strictly ascending within a run.
//! - **R2** A page's bounds never change while its base lives, and `low <= key < high` for every key. So a delta can
//!   repeat the high key, and the newest node alone says whether a key belongs to the page.
//! - **R3** Reading a run never reads outside its bytes, and never panics: all that comes from a disk has been [verified](Run::verify) when it was loaded, once, whatever its checksum says, and
//!   what is written here is right. A checksum says that the bytes are those that somebody wrote; whether that was a tree is another question.

use super::key::{HEAD_BYTES, KeyParts, compare_behind_head, compare_with_prefix, head_bytes, head_number};
use super::layout::{Head, Layout, Shape, u32_at, u64_at};
use crate::search::lower_bound;
use deuteron_canary::{Canary, is_planted};
use deuteron_epoch::prefetch;
use deuteron_llama::{Filter, PageId};
use std::cmp::Ordering;
use std::ops::Range;
use std::slice;

/// Format of a base whose prefix is longer than its low key.
pub(crate) const PREFIX_OF_HIGH: u8 = 3;
/// Kind of a delta.
pub(crate) const KIND_DELTA: u8 = 1;
/// Kind of a base page.
pub(crate) const KIND_BASE: u8 = 2;
/// The half of the kind that says that.
const KIND_MASK: u8 = 15;
/// Bytes of a delta's header, up to its keys.
pub(crate) const DELTA_HEADER_BYTES: usize = 26;
/// The same of a base's.
pub(crate) const BASE_HEADER_BYTES: usize = 32;
/// So many lines are asked for on either side of where a record is expected: of a hundred keys that are spread at random the middle one is five places away from there as a rule, that of records of
/// thirty bytes less than three lines.
const LINES_AROUND_EXPECTED: isize = 2;
/// So many lines of records are asked for at once at most: four KiB.
const RECORD_LINES_AHEAD: usize = 64;

/// A version of a record: which of two wins is decided by stamp, then LSN.
pub(crate) type Version = (u64, u64);

/// A record where it lies.
#[derive(Clone, Copy, Debug)]
pub struct RecordRef<'a> {
    pub(crate) key: KeyParts<'a>,
    /// The stamp of this version.
    pub stamp: u64,
    /// The LSN of this version.
    pub lsn: u64,
    /// The value, or `None` for a tombstone.
    pub value: Option<&'a [u8]>,
}

/// A record but for its key, where it lies among others.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The key's length in bytes.
    pub key_bytes: usize,
    /// The stamp of this version.
    pub stamp: u64,
    /// The value, or `None` for a tombstone.
    pub value: Option<&'a [u8]>,
    /// Where in the bytes of all of them the value begins, if there is one.
    pub value_at: usize,
}

impl RecordRef<'_> {
    /// Appends the key to `key`.
    #[inline]
    pub fn append_key_to(&self, key: &mut Vec<u8>) {
        self.key.append_to(key);
    }

    /// The key's length in bytes.
    #[inline]
    pub fn key_bytes(&self) -> usize {
        self.key.bytes()
    }

    #[inline]
    pub(crate) fn version(&self) -> Version {
        if is_planted(Canary::ApplyByLsn) { (self.lsn, self.stamp) } else { (self.stamp, self.lsn) }
    }
}

/// The [filter](deuteron_llama::AccessMethod::filter) of a delta whose payload this is: the bits of all its keys.
///
/// ```
/// # use deuteron_bwtree::{Options, Tree, Upsert, filter_of_delta};
/// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
/// # let epochs = deuteron_epoch::Epochs::new();
/// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
/// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
/// tree.upsert(&[Upsert { key: b"one", value: Some(b"1"), stamp: 1, lsn: 1 }])?;
/// let guard = tree.llama().pin();
/// tree.some_leaves(&[], |_, page| {
///     let newest = tree.llama().snapshot(page, &guard).head().expect("in memory");
///     assert!((1..=2).contains(&filter_of_delta(newest.payload()).count_ones()));
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn filter_of_delta(payload: &[u8]) -> Filter {
    let run = Run::new(payload);
    let first = usize::from(is_planted(Canary::ForgetKey));
    (first..run.count()).fold(0, |filter, index| filter | run.record(index).key.filter())
}

/// Some records of a run that is known to have this shape, and offsets of so many bytes: in the order of their keys, and from the other end.
#[derive(Clone)]
pub(super) struct Entries<'a, const SHAPE: u8, const OFFSET_BYTES: usize> {
    bytes: &'a [u8],
    prefix_bytes: usize,
    layout: Layout,
    offsets: slice::Iter<'a, [u8; OFFSET_BYTES]>,
    /// Where the first of them begins.
    from: usize,
}

impl<'a, const SHAPE: u8, const OFFSET_BYTES: usize> Entries<'a, SHAPE, OFFSET_BYTES> {
    #[inline(always)]
    fn entry(&self, offset: &[u8; OFFSET_BYTES]) -> Entry<'a> {
        let mut start = [0; 4];
        start[..OFFSET_BYTES].copy_from_slice(offset);
        let start = u32::from_le_bytes(start) as usize;
        let record = &self.bytes[start..];
        let head = self.layout.of_shape::<SHAPE>().read_record(record);
        let value_at = head.value_at();
        Entry {
            key_bytes: self.prefix_bytes + head.suffix_bytes,
            stamp: head.stamp,
            value: head.value_bytes.map(|bytes| &record[value_at..value_at + bytes]),
            value_at: start + value_at - self.from,
        }
    }
}

// In the loops of scans a call would cost as much as what it does.
impl<'a, const SHAPE: u8, const OFFSET_BYTES: usize> Iterator for Entries<'a, SHAPE, OFFSET_BYTES> {
    type Item = Entry<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Entry<'a>> {
        let offset = self.offsets.next()?;
        Some(self.entry(offset))
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.offsets.size_hint()
    }
}

impl<const SHAPE: u8, const OFFSET_BYTES: usize> DoubleEndedIterator for Entries<'_, SHAPE, OFFSET_BYTES> {
    #[inline(always)]
    fn next_back(&mut self) -> Option<Self::Item> {
        let offset = self.offsets.next_back()?;
        Some(self.entry(offset))
    }
}

impl<const SHAPE: u8, const OFFSET_BYTES: usize> ExactSizeIterator for Entries<'_, SHAPE, OFFSET_BYTES> {}

/// A run, its header decoded.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    bytes: &'a [u8],
    prefix: &'a [u8],
    high: Option<&'a [u8]>,
    heads: &'a [[u8; 8]],
    offsets: &'a [u8],
    layout: Layout,
    base: bool,
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes")))
}

/// Whether the run that begins `bytes` is a base, and where its keys begin.
#[inline]
fn keys_at(bytes: &[u8]) -> (bool, usize) {
    let base = bytes[1] & KIND_MASK == KIND_BASE;
    (base, if base { BASE_HEADER_BYTES } else { DELTA_HEADER_BYTES })
}

impl<'a> Run<'a> {
    /// Decodes the header of a run.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Run<'a> {
        let prefix_bytes = u16_at(bytes, 2);
        let count = u32_at(bytes, 4) as usize;
        let (base, keys_at) = keys_at(bytes);
        let shape = Shape::of_kind(bytes[1]);
        let first_bytes = if base { u16_at(bytes, 26) } else { prefix_bytes };
        let high_at = keys_at + first_bytes;
        let prefix_at = if prefix_bytes > first_bytes { high_at } else { keys_at };
        let high_bytes = u16_at(bytes, 24);
        let bounded = high_bytes != usize::from(u16::MAX);
        let high_end = high_at + if bounded { high_bytes } else { 0 };
        let slots_at = high_end + shape.header_bytes();
        let offsets_at = slots_at + HEAD_BYTES * count;
        Run {
            bytes,
            prefix: &bytes[prefix_at..prefix_at + prefix_bytes],
            high: bounded.then(|| &bytes[high_at..high_end]),
            heads: bytes[slots_at..offsets_at].as_chunks().0,
            offsets: &bytes[offsets_at..offsets_at + shape.offset_bytes() * count],
            layout: Layout::read(shape, u64_at(bytes, 8), bytes, high_end),
            base,
        }
    }

    /// The high key and the upper bound of all stamps from here down that the header of the run in `bytes` says, without the rest of
    /// [`Run::new`].
    #[inline]
    pub(crate) fn high_and_newest_stamp(bytes: &[u8]) -> (Option<&[u8]>, u64) {
        let ((base, keys_at), high_bytes) = (keys_at(bytes), u16_at(bytes, 24));
        let high_at = keys_at + u16_at(bytes, if base { 26 } else { 2 });
        let high = (high_bytes != usize::from(u16::MAX)).then(|| &bytes[high_at..high_at + high_bytes]);
        let below = if base { 0 } else { u64_at(bytes, 16) };
        (high, u64_at(bytes, 8).max(below))
    }

    /// Whether the run in `bytes` may hold `key`, as far as the prefix of its keys says. Of a delta of one record that is
    /// all of its key.
    #[inline]
    pub(crate) fn delta_may_hold(bytes: &[u8], key: &[u8]) -> bool {
        let prefix_bytes = u16_at(bytes, 2);
        let prefix = &bytes[DELTA_HEADER_BYTES..DELTA_HEADER_BYTES + prefix_bytes];
        compare_with_prefix(key, prefix).is_eq()
    }

    /// Whether this is a base page.
    #[inline]
    pub(crate) fn is_base(&self) -> bool {
        self.base
    }

    /// Where the slots begin and end, in bytes from the start of the run.
    #[inline]
    pub(crate) fn slots(&self) -> Range<usize> {
        let start = self.heads.as_ptr().addr() - self.bytes.as_ptr().addr();
        start..start + self.layout.shape.slot_bytes() * self.heads.len()
    }

    /// The number of records.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.heads.len()
    }

    /// The run's size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// An upper bound of the stamps in this run.
    #[inline]
    pub(crate) fn newest_stamp(&self) -> u64 {
        u64_at(self.bytes, 8)
    }

    /// An upper bound of the stamps in every older node of the page.
    #[inline]
    pub(crate) fn stamp_below(&self) -> u64 {
        if self.base { 0 } else { u64_at(self.bytes, 16) }
    }

    /// The prefix that all keys share; of a base as many bytes of it as it was written with, which a key within its bounds need not have.
    pub(crate) fn prefix(&self) -> &'a [u8] {
        self.prefix
    }

    /// The low key of a base, empty for the leftmost page.
    pub(crate) fn low(&self) -> &'a [u8] {
        debug_assert!(self.base);
        &self.bytes[BASE_HEADER_BYTES..BASE_HEADER_BYTES + u16_at(self.bytes, 26)]
    }

    /// How its records are written.
    #[inline]
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// The high key of the page, exclusive, or `None` if it is the rightmost one.
    #[inline]
    pub(crate) fn high(&self) -> Option<&'a [u8]> {
        self.high
    }

    /// The right sibling of a base.
    #[inline]
    pub(crate) fn right(&self) -> PageId {
        debug_assert!(self.base);
        PageId(u64_at(self.bytes, 16))
    }

    /// The number of tombstones in a base.
    pub(crate) fn tombstones(&self) -> usize {
        debug_assert!(self.base);
        u32_at(self.bytes, 28) as usize
    }

    #[inline]
    fn offset(&self, index: usize) -> usize {
        if self.layout.shape.is_wide() {
            u32_at(self.offsets, 4 * index) as usize
        } else {
            u16_at(self.offsets, 2 * index)
        }
    }

    /// Where record `index` begins; for `index == count`, where the run ends.
    #[inline]
    pub(crate) fn record_start(&self, index: usize) -> usize {
        if index < self.count() { self.offset(index) } else { self.bytes.len() }
    }

    /// The bytes of record `index` with its slot.
    #[inline]
    pub(crate) fn bytes_with_slot(&self, index: usize) -> usize {
        self.layout.shape.slot_bytes() + self.record_start(index + 1) - self.record_start(index)
    }

    /// The bytes of the records in `range`, one behind the other.
    pub(crate) fn record_bytes(&self, range: Range<usize>) -> &'a [u8] {
        &self.bytes[self.record_start(range.start)..self.record_start(range.end)]
    }

    /// The bytes of the keys and values in `range`, or somewhat more.
    #[inline]
    pub(crate) fn entry_bytes_max(&self, range: Range<usize>) -> usize {
        range.len() * (self.prefix.len() + HEAD_BYTES) + self.record_bytes(range).len()
    }

    /// How many of the records in `range` are no tombstones, of a base.
    #[inline]
    pub(crate) fn values(&self, range: Range<usize>) -> usize {
        match self.tombstones() {
            0 => range.len(),
            _ => range.filter(|&index| !self.is_tombstone(index)).count(),
        }
    }

    /// How many records of `range`, from its beginning or in reverse from its end, have `values_max` among them that are no tombstones, and how many of them are none: all of
    /// the range, if it has not so many. Of a base.
    #[inline]
    pub(crate) fn first_values(
        &self,
        mut range: Range<usize>,
        values_max: usize,
        reverse: bool,
    ) -> (usize, usize) {
        if self.tombstones() == 0 {
            let count = range.len().min(values_max);
            return (count, count);
        }
        let mut next = || if reverse { range.next_back() } else { range.next() };
        let (mut count, mut values) = (0, 0);
        while values < values_max
            && let Some(index) = next()
        {
            count += 1;
            values += usize::from(!self.is_tombstone(index));
        }
        (count, values)
    }

    /// The heads of the records in `range`.
    pub(crate) fn heads(&self, range: Range<usize>) -> &'a [u8] {
        self.heads[range].as_flattened()
    }

    /// Where the records in `range` begin, as it is written.
    pub(crate) fn offsets(&self, range: Range<usize>) -> &'a [u8] {
        let bytes = self.layout.shape.offset_bytes();
        &self.offsets[bytes * range.start..bytes * range.end]
    }

    /// Record `index`.
    // A call would cost as much as the rest.
    #[inline(always)]
    pub(crate) fn record(&self, index: usize) -> RecordRef<'a> {
        let record = &self.bytes[self.offset(index)..];
        let head = self.layout.read_record(record);
        let Head { bytes, suffix_bytes, value_bytes, stamp, lsn } = head;
        let value_at = head.value_at();
        let rest = &record[bytes..value_at];
        let key = KeyParts { prefix: self.prefix, head: self.heads[index], suffix_bytes, rest };
        let value = value_bytes.map(|value_bytes| &record[value_at..value_at + value_bytes]);
        RecordRef { key, stamp, lsn, value }
    }

    /// The records in `range` of this run, which has this shape.
    #[inline(always)]
    pub(super) fn entries<const SHAPE: u8, const OFFSET_BYTES: usize>(
        &self,
        range: Range<usize>,
    ) -> Entries<'a, SHAPE, OFFSET_BYTES> {
        debug_assert!(
            SHAPE == self.layout.shape.number() && OFFSET_BYTES == self.layout.shape.offset_bytes()
        );
        let from = self.record_start(range.start);
        let offsets = self.offsets.as_chunks().0[range].iter();
        Entries { bytes: self.bytes, prefix_bytes: self.prefix.len(), layout: self.layout, offsets, from }
    }

    /// Writes the keys of the records in `range`, of these lengths, one behind the other to the beginning of `room`, which has at least eight bytes more.
    #[inline]
    pub(super) fn write_keys(
        &self,
        range: Range<usize>,
        reverse: bool,
        lengths: impl Iterator<Item = usize>,
        room: &mut [u8],
    ) {
        let slots = self.heads[range.clone()].iter().zip(range);
        match (self.prefix.len() <= HEAD_BYTES, reverse) {
            (true, false) => self.write_keys_with::<true>(slots, lengths, room),
            (true, true) => self.write_keys_with::<true>(slots.rev(), lengths, room),
            (false, false) => self.write_keys_with::<false>(slots, lengths, room),
            (false, true) => self.write_keys_with::<false>(slots.rev(), lengths, room),
        }
    }

    #[inline]
    fn write_keys_with<'h, const SHORT_PREFIX: bool>(
        &self,
        slots: impl Iterator<Item = (&'h [u8; HEAD_BYTES], usize)>,
        lengths: impl Iterator<Item = usize>,
        mut room: &mut [u8],
    ) {
        let prefix_bytes = self.prefix.len();
        let head_end = prefix_bytes + HEAD_BYTES;
        let prefix = head_bytes(self.prefix);
        for ((head, index), key_bytes) in slots.zip(lengths) {
            if SHORT_PREFIX {
                // So many bytes as are known here.
                *room.first_chunk_mut().expect("there are eight bytes more") = prefix;
            } else {
                room[..prefix_bytes].copy_from_slice(self.prefix);
            }
            // All of the head, with its padding.
            room[prefix_bytes..head_end].copy_from_slice(head);
            if key_bytes > head_end {
                room[head_end..key_bytes].copy_from_slice(self.record(index).key.rest);
            }
            room = &mut room[key_bytes..];
        }
    }

    /// Asks for the first lines of the records: those of a page of common size.
    #[inline]
    pub(crate) fn prefetch_records(&self) {
        let records = &self.bytes[self.record_start(0)..];
        for line in 0..records.len().div_ceil(64).min(RECORD_LINES_AHEAD) {
            prefetch(records.as_ptr().wrapping_add(64 * line));
        }
    }

    /// Asks for the lines around [`Run::expected_at`]. A hint: where the keys are not spread evenly, some lines too many.
    #[inline]
    pub(crate) fn prefetch_where_expected(&self, key: &[u8]) {
        if let Some(expected) = self.expected_at(key) {
            let there = self.bytes.as_ptr().wrapping_add(expected);
            for line in -LINES_AROUND_EXPECTED..=LINES_AROUND_EXPECTED {
                prefetch(there.wrapping_offset(64 * line));
            }
        }
    }

    /// Where the record of `key` lies in this base, from the start of the run, if the keys are spread evenly between the page's bounds: before the heads
    /// have come, so that the record need not be waited for after the search. `None` at either end of the tree, and for some short keys.
    #[inline]
    pub(crate) fn expected_at(&self, key: &[u8]) -> Option<usize> {
        let (low_bytes, high_bytes) = (self.low().len(), self.high?.len());
        let from = self.prefix.len().min(key.len().checked_sub(HEAD_BYTES)?);
        if low_bytes.min(high_bytes) <= from || self.count() == 0 {
            return None;
        }
        let number = |bytes: &[u8], at: usize| {
            u64::from_be_bytes(*bytes[at..].first_chunk().expect("a slot is longer"))
        };
        // Bounds are no longer than it takes to tell the keys beside them apart: what is read behind them is less than the distance of these.
        let low = number(self.bytes, BASE_HEADER_BYTES + from);
        let high = number(self.bytes, BASE_HEADER_BYTES + low_bytes + from);
        let (distance, range) = (number(key, from).wrapping_sub(low), high.wrapping_sub(low));
        // Not so if a bound does not begin with the prefix, as a rule.
        (distance < range).then(|| {
            // In 32 bits, so that the product fits.
            let shift = 32 - range.leading_zeros().min(32);
            let records_at = self.slots().end;
            let records_bytes = (self.bytes.len() - records_at) as u64;
            records_at + ((distance >> shift) * records_bytes / (range >> shift)) as usize
        })
    }

    /// Whether record `index` is a tombstone.
    pub(crate) fn is_tombstone(&self, index: usize) -> bool {
        self.layout.read_record(&self.bytes[self.offset(index)..]).value_bytes.is_none()
    }

    /// How the suffix of the searched key, of so many bytes, lies to record `index`, whose head is the same.
    #[inline]
    fn compare_same_head(&self, index: usize, suffix_bytes: usize, suffix_rest: &[u8]) -> Ordering {
        let record = &self.bytes[self.offset(index)..];
        let record_bytes = self.layout.shape.suffix_bytes(record);
        let rest_at = self.layout.shape.record_header_bytes();
        let rest = &record[rest_at..rest_at + record_bytes.saturating_sub(HEAD_BYTES)];
        compare_behind_head(suffix_bytes, suffix_rest, record_bytes, rest)
    }

    /// Finds `key`: `Ok` with its index, or `Err` with the index where it would be.
    #[inline]
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        match compare_with_prefix(key, self.prefix) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.count()),
            Ordering::Equal => {}
        }
        let suffix = &key[self.prefix.len()..];
        self.search_suffix(head_number(suffix), suffix.len(), super::key::behind_head(suffix))
    }

    /// As [`Run::search`], for a key that begins with the run's prefix, by what follows that: its head, its bytes, and what does not
    /// fit into the head.
    #[inline]
    pub(crate) fn search_suffix(&self, head: u64, bytes: usize, rest: &[u8]) -> Result<usize, usize> {
        let first = lower_bound(self.heads, head, u64::from_be_bytes);
        if first == self.count() || u64::from_be_bytes(self.heads[first]) != head {
            return Err(first);
        }
        match self.compare_same_head(first, bytes, rest) {
            Ordering::Equal => Ok(first),
            Ordering::Less => Err(first),
            Ordering::Greater => self.search_same_heads(first + 1, head, bytes, rest),
        }
    }

    /// The rare rest of a search: several records with the wanted head.
    fn search_same_heads(
        &self,
        first: usize,
        wanted: u64,
        bytes: usize,
        rest: &[u8],
    ) -> Result<usize, usize> {
        let behind = first + self.heads[first..].partition_point(|head| u64::from_be_bytes(*head) <= wanted);
        let (mut low, mut high) = (first, behind);
        while low < high {
            let middle = low.midpoint(high);
            match self.compare_same_head(middle, bytes, rest) {
                Ordering::Equal => return Ok(middle),
                Ordering::Less => high = middle,
                Ordering::Greater => low = middle + 1,
            }
        }
        Err(low)
    }

    /// Checks everything that the format promises.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn verify(bytes: &'a [u8]) -> Result<Run<'a>, String> {
        let records_at = Run::verify_header(bytes)?;
        let run = Run::new(bytes);
        run.verify_records(records_at)?;
        Ok(run)
    }

    /// Checks what [`Run::new`] reads, which does not depend on how many records there are; where these begin.
    fn verify_header(bytes: &[u8]) -> Result<usize, String> {
        if bytes.len() < DELTA_HEADER_BYTES {
            return Err(format!("a run of {} bytes has no room for a header", bytes.len()));
        }
        let shape = Shape::of_kind(bytes[1]);
        if !(1..=PREFIX_OF_HIGH).contains(&bytes[0]) {
            return Err(format!("page format {}, expected 1 to {PREFIX_OF_HIGH}", bytes[0]));
        }
        let prefix_bytes = u16_at(bytes, 2);
        let (keys_at, first_bytes) = match bytes[1] & KIND_MASK {
            KIND_DELTA => (DELTA_HEADER_BYTES, prefix_bytes),
            KIND_BASE if bytes.len() < BASE_HEADER_BYTES => return Err("base header cut off".into()),
            KIND_BASE => (BASE_HEADER_BYTES, u16_at(bytes, 26)),
            kind => return Err(format!("run of unknown kind {kind}")),
        };
        let high_bytes = match u16_at(bytes, 24) {
            0xffff => 0,
            high_bytes => high_bytes,
        };
        let of_high = prefix_bytes > first_bytes;
        if shape.format().map(|format| if of_high { PREFIX_OF_HIGH } else { format }) != Some(bytes[0]) {
            return Err(format!("kind {:#x} in a run of format {}", bytes[1], bytes[0]));
        }
        if of_high && prefix_bytes > high_bytes {
            return Err("prefix longer than the bounds".into());
        }
        let header_bytes = keys_at + first_bytes + high_bytes;
        let records_at = header_bytes + shape.header_bytes() + shape.slot_bytes() * u32_at(bytes, 4) as usize;
        if records_at > bytes.len() {
            return Err(format!("slots end at {records_at} of {} bytes", bytes.len()));
        }
        Ok(records_at)
    }

    fn verify_records(&self, records_at: usize) -> Result<(), String> {
        let tombstones = match self.layout.shape.number() {
            8 => self.verify_each::<8>(records_at),
            10 => self.verify_each::<10>(records_at),
            11 => self.verify_each::<11>(records_at),
            12 => self.verify_each::<12>(records_at),
            14 => self.verify_each::<14>(records_at),
            15 => self.verify_each::<15>(records_at),
            _ => self.verify_each::<0>(records_at),
        }?;
        if !self.base {
            return Ok(());
        }
        if tombstones != self.tombstones() {
            return Err(format!("{tombstones} tombstones, the header says {}", self.tombstones()));
        }
        self.verify_ends(self)
    }

    /// Checks each record by itself and against the one before; how many are tombstones. It is done once for each that is loaded: so there is one of it for each shape, whose lengths and places
    /// the compiler knows, and keys are not put together.
    fn verify_each<const SHAPE: u8>(&self, records_at: usize) -> Result<usize, String> {
        let layout = self.layout.of_shape::<SHAPE>();
        let (header_bytes, newest_stamp) = (layout.shape.record_header_bytes(), self.newest_stamp());
        let key_bytes_max = layout.shape.key_bytes_max();
        let (mut at, mut tombstones, mut head_before) = (records_at, 0, 0);
        let offsets = self.offsets.chunks_exact(layout.shape.offset_bytes());
        for (index, (head, offset)) in self.heads.iter().zip(offsets).enumerate() {
            let offset = if layout.shape.is_wide() { u32_at(offset, 0) as usize } else { u16_at(offset, 0) };
            let record = self.bytes.get(at..).filter(|record| record.len() >= header_bytes);
            let Some(record) = record.filter(|_| offset == at) else {
                return Err(format!("record {index} at {offset}, expected at {at}"));
            };
            let Head { suffix_bytes, value_bytes, stamp, lsn, .. } = layout.read_record(record);
            let rest_bytes = suffix_bytes.saturating_sub(HEAD_BYTES);
            let bytes = header_bytes + rest_bytes + value_bytes.unwrap_or(0);
            if bytes > record.len() {
                return Err(format!("record {index} ends behind the run"));
            }
            if self.prefix.len() + suffix_bytes > key_bytes_max {
                return Err(format!("the key of record {index} is too long"));
            }
            if stamp > newest_stamp {
                return Err(format!("record {index} is newer than the run"));
            }
            if !layout.counts_to(stamp, lsn) {
                return Err(format!("the stamp of record {index} is too large"));
            }
            let head = u64::from_be_bytes(*head);
            // Keys are searched by their heads as they lie here.
            if suffix_bytes < HEAD_BYTES && head << (8 * suffix_bytes) != 0 {
                return Err(format!("the head of record {index} goes on behind its key"));
            }
            if head <= head_before && index > 0 && self.record(index - 1).key >= self.record(index).key {
                return Err(format!("records {} and {index} are out of order", index - 1));
            }
            head_before = head;
            tombstones += usize::from(value_bytes.is_none());
            at += bytes;
        }
        match at == self.bytes.len() {
            true => Ok(tombstones),
            false => Err(format!("records end at {at} of {} bytes", self.bytes.len())),
        }
    }

    /// Checks that the keys of this delta lie within the bounds of `base`, and that it says the same of these.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn verify_within(&self, base: &Run<'_>) -> Result<(), String> {
        match self.high() == base.high() {
            true => self.verify_ends(base),
            false => Err("a delta repeats another high key".to_owned()),
        }
    }

    /// Checks that the first and the last key lie within the bounds of `base`, and so all between them (R1).
    fn verify_ends(&self, base: &Run<'_>) -> Result<(), String> {
        let last = self.count().wrapping_sub(1);
        let mut ends = [0, last].into_iter().take(self.count());
        match ends.find(|&index| !base.within_bounds(&self.record(index))) {
            Some(index) => Err(format!("record {index} lies outside the page's bounds")),
            None => Ok(()),
        }
    }

    fn within_bounds(&self, record: &RecordRef<'_>) -> bool {
        record.key.compare_whole(self.low()).is_ge()
            && self.high().is_none_or(|high| record.key.compare_whole(high).is_lt())
    }
}
