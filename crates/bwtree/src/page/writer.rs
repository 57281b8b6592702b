//! Writes a run into a buffer of exactly its size.
//!
//! The size is computed first ([`record_bytes`], [`delta_bytes`], [`base_bytes`]), so that a page is built in the memory in which it
//! will live.

use super::key::{HEAD_BYTES, behind_head, head_bytes};
use super::merge::Piece;
use super::run::{
    BASE_HEADER_BYTES, DELTA_HEADER_BYTES, FORMAT, KIND_BASE, KIND_DELTA, RECORD_HEADER_BYTES, RecordRef,
    Run, SLOT_BYTES,
};
use deuteron_llama::PageId;
use std::ops::Range;

/// The bounds and the right sibling of a base page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds<'a> {
    /// Inclusive; empty for the leftmost page.
    pub(crate) low: &'a [u8],
    /// Exclusive; `None` for the rightmost page.
    pub(crate) high: Option<&'a [u8]>,
    /// The page that begins at `high`, or none.
    pub(crate) right: PageId,
}

impl<'a> Bounds<'a> {
    /// The bounds of a base page.
    pub(crate) fn of(base: &Run<'a>) -> Bounds<'a> {
        Bounds { low: base.low(), high: base.high(), right: base.right() }
    }

    /// The bytes that every key within the bounds begins with.
    pub(crate) fn prefix_bytes(&self) -> usize {
        self.high.map_or(0, |high| super::key::common_prefix_bytes(self.low, high))
    }
}

/// Bytes of a record in a run with a prefix of `prefix_bytes`, its slot included.
#[inline]
pub(crate) fn record_bytes(key_bytes: usize, value_bytes: usize, prefix_bytes: usize) -> usize {
    let rest_bytes = (key_bytes - prefix_bytes).saturating_sub(HEAD_BYTES);
    SLOT_BYTES + RECORD_HEADER_BYTES + rest_bytes + value_bytes
}

/// Bytes of a delta whose records, slots included, take `records_bytes`.
pub(crate) fn delta_bytes(prefix_bytes: usize, high: Option<&[u8]>, records_bytes: usize) -> usize {
    DELTA_HEADER_BYTES + prefix_bytes + high.map_or(0, <[u8]>::len) + records_bytes
}

/// Bytes of a base page whose records, slots included, take `records_bytes`.
pub(crate) fn base_bytes(bounds: &Bounds<'_>, records_bytes: usize) -> usize {
    BASE_HEADER_BYTES + bounds.low.len() + bounds.high.map_or(0, <[u8]>::len) + records_bytes
}

fn length_of(key: &[u8]) -> u16 {
    u16::try_from(key.len()).expect("keys are shorter than 64 KiB")
}

/// Writes the high key at `at`; returns where it ends.
fn put_high(bytes: &mut [u8], at: usize, high: Option<&[u8]>) -> usize {
    bytes[24..26].copy_from_slice(&high.map_or(u16::MAX, length_of).to_le_bytes());
    let high = high.unwrap_or(&[]);
    bytes[at..at + high.len()].copy_from_slice(high);
    at + high.len()
}

/// Copies a slice into one as long. Most are short: without a call of a library function for those of eight to sixteen bytes, or none.
#[inline]
fn copy_short(target: &mut [u8], source: &[u8]) {
    match (source.first_chunk::<8>(), source.last_chunk::<8>()) {
        (Some(first), Some(last)) if source.len() <= 16 && target.len() == source.len() => {
            *target.first_chunk_mut().expect("as long as the source") = *first;
            *target.last_chunk_mut().expect("as long as the source") = *last;
        }
        _ if source.is_empty() => {}
        _ => target.copy_from_slice(source),
    }
}

/// Writes a run, record by record.
pub(crate) struct RunWriter<'b> {
    bytes: &'b mut [u8],
    prefix_bytes: usize,
    heads_at: usize,
    offsets_at: usize,
    records_at: usize,
    /// Where the slots of the records end, for [`RunWriter::finish`] to check.
    heads_end: usize,
    newest_stamp: u64,
    tombstones: u32,
    base: bool,
    scratch: Vec<u8>,
}

impl<'b> RunWriter<'b> {
    /// Begins a delta of `count` records that share `prefix`, on a page that ends at `high` and whose older stamps
    /// are at most `stamp_below`.
    pub(crate) fn delta(
        bytes: &'b mut [u8],
        count: usize,
        prefix: &[u8],
        high: Option<&[u8]>,
        stamp_below: u64,
    ) -> RunWriter<'b> {
        bytes[16..24].copy_from_slice(&stamp_below.to_le_bytes());
        let high_at = DELTA_HEADER_BYTES + prefix.len();
        bytes[DELTA_HEADER_BYTES..high_at].copy_from_slice(prefix);
        let slots_at = put_high(bytes, high_at, high);
        RunWriter::begin(bytes, KIND_DELTA, count, prefix.len(), slots_at)
    }

    /// Begins a base page of `count` records.
    pub(crate) fn base(bytes: &'b mut [u8], count: usize, bounds: &Bounds<'_>) -> RunWriter<'b> {
        bytes[16..24].copy_from_slice(&bounds.right.0.to_le_bytes());
        bytes[26..28].copy_from_slice(&length_of(bounds.low).to_le_bytes());
        let high_at = BASE_HEADER_BYTES + bounds.low.len();
        bytes[BASE_HEADER_BYTES..high_at].copy_from_slice(bounds.low);
        let slots_at = put_high(bytes, high_at, bounds.high);
        RunWriter::begin(bytes, KIND_BASE, count, bounds.prefix_bytes(), slots_at)
    }

    fn begin(bytes: &'b mut [u8], kind: u8, count: usize, prefix_bytes: usize, slots_at: usize) -> Self {
        u32::try_from(bytes.len()).expect("a run is smaller than 4 GiB");
        bytes[0] = FORMAT;
        bytes[1] = kind;
        let prefix_field = u16::try_from(prefix_bytes).expect("keys are shorter than 64 KiB");
        bytes[2..4].copy_from_slice(&prefix_field.to_le_bytes());
        let count_field = u32::try_from(count).expect("a run has fewer than 2^32 records");
        bytes[4..8].copy_from_slice(&count_field.to_le_bytes());
        let offsets_at = slots_at + HEAD_BYTES * count;
        RunWriter {
            bytes,
            prefix_bytes,
            heads_at: slots_at,
            offsets_at,
            records_at: offsets_at + 4 * count,
            heads_end: offsets_at,
            newest_stamp: 0,
            tombstones: 0,
            base: kind == KIND_BASE,
            scratch: Vec::new(),
        }
    }

    /// Appends a record.
    pub(crate) fn push(&mut self, record: &RecordRef<'_>) {
        let key = &record.key;
        if key.prefix.len() == self.prefix_bytes {
            self.put(key.head, key.suffix_bytes, key.rest, record);
        } else {
            let mut scratch = std::mem::take(&mut self.scratch);
            let suffix = &key.contiguous(&mut scratch)[self.prefix_bytes..];
            self.put(head_bytes(suffix), suffix.len(), behind_head(suffix), record);
            self.scratch = scratch;
        }
    }

    #[inline]
    fn put(&mut self, head: [u8; HEAD_BYTES], suffix_bytes: usize, rest: &[u8], record: &RecordRef<'_>) {
        let value = record.value.unwrap_or(&[]);
        let value_field = match record.value {
            Some(value) => u32::try_from(value.len()).expect("values are shorter than 4 GiB"),
            None => u32::MAX,
        };
        let suffix_field = u16::try_from(suffix_bytes).expect("keys are shorter than 64 KiB");
        self.put_slot(head, self.records_at);
        let end = self.records_at + RECORD_HEADER_BYTES + rest.len() + value.len();
        let (header, behind) = self.bytes[self.records_at..end]
            .split_first_chunk_mut::<RECORD_HEADER_BYTES>()
            .expect("a record has room for its header");
        header[0..8].copy_from_slice(&record.stamp.to_le_bytes());
        header[8..16].copy_from_slice(&record.lsn.to_le_bytes());
        header[16..20].copy_from_slice(&value_field.to_le_bytes());
        header[20..22].copy_from_slice(&suffix_field.to_le_bytes());
        let (rest_target, value_target) = behind.split_at_mut(rest.len());
        copy_short(rest_target, rest);
        copy_short(value_target, value);
        self.records_at = end;
        self.newest_stamp = self.newest_stamp.max(record.stamp);
        self.tombstones += u32::from(record.value.is_none());
    }

    fn put_slot(&mut self, head: [u8; HEAD_BYTES], record_at: usize) {
        // See `begin`.
        let offset = record_at as u32;
        self.bytes[self.heads_at..self.heads_at + HEAD_BYTES].copy_from_slice(&head);
        self.bytes[self.offsets_at..self.offsets_at + 4].copy_from_slice(&offset.to_le_bytes());
        self.heads_at += HEAD_BYTES;
        self.offsets_at += 4;
    }

    /// Appends what a merge over `base` has at one place.
    #[inline]
    pub(crate) fn push_piece(&mut self, base: &Run<'_>, piece: &Piece<'_, '_>) {
        match piece {
            Piece::Base(range) => self.push_range(base, range.clone()),
            Piece::Record(record) => self.push(record),
        }
    }

    /// Appends records `range` of `source`: in bulk where the prefix is the same, which is what makes
    /// consolidation cheap, since the bounds of a page and so its prefix rarely change.
    pub(crate) fn push_range(&mut self, source: &Run<'_>, range: Range<usize>) {
        if source.prefix().len() != self.prefix_bytes || !source.is_base() {
            for index in range {
                self.push(&source.record(index));
            }
            return;
        }
        let heads = source.heads(range.clone());
        self.bytes[self.heads_at..self.heads_at + heads.len()].copy_from_slice(heads);
        self.heads_at += heads.len();
        let source_at = source.record_start(range.start);
        // Both below 4 GiB (see `begin`), and so is the sum; what it goes through on the way does not matter.
        let shift = (self.records_at as u32).wrapping_sub(source_at as u32);
        let offsets_end = self.offsets_at + 4 * range.len();
        let offsets = self.bytes[self.offsets_at..offsets_end].as_chunks_mut::<4>().0;
        for (offset, from) in offsets.iter_mut().zip(source.offsets(range.clone())) {
            *offset = u32::from_le_bytes(*from).wrapping_add(shift).to_le_bytes();
        }
        self.offsets_at = offsets_end;
        let records = source.record_bytes(range.clone());
        self.bytes[self.records_at..self.records_at + records.len()].copy_from_slice(records);
        self.records_at += records.len();
        self.newest_stamp = self.newest_stamp.max(source.newest_stamp());
        if source.tombstones() > 0 {
            let count = range.filter(|&index| source.is_tombstone(index)).count();
            self.tombstones += u32::try_from(count).expect("fewer than 2^32 records");
        }
    }

    /// Completes the header. Panics if the records are not as many or as long as announced.
    pub(crate) fn finish(self) {
        assert_eq!(self.heads_at, self.heads_end, "record count differs from the header's");
        assert_eq!(self.records_at, self.bytes.len(), "records do not fill the run");
        self.bytes[8..16].copy_from_slice(&self.newest_stamp.to_le_bytes());
        if self.base {
            self.bytes[28..32].copy_from_slice(&self.tombstones.to_le_bytes());
        }
    }
}
