//! Writes a run into a buffer of exactly its size.
//!
//! The size is computed first ([`Shape::record_bytes`], [`delta_bytes`], [`base_bytes`]), so that a page is built in the memory in which it
//! will live.

use super::key::{HEAD_BYTES, KeyParts, behind_head, common_prefix_bytes, copy_short, head_bytes};
use super::layout::{Layout, Shape};
use super::merge::Piece;
use super::run::{
    BASE_HEADER_BYTES, DELTA_HEADER_BYTES, KIND_BASE, KIND_DELTA, PREFIX_OF_HIGH, RecordRef, Run,
};
use deuteron_llama::PageId;
use std::ops::Range;

/// One part in so many of a page may be taken by its bounds before they make it longer.
pub(super) const BOUNDS_COUNTED: usize = 8;

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

    /// How many bytes every key within the bounds begins with.
    pub(crate) fn prefix_bytes(&self) -> usize {
        self.high.map_or(0, |high| common_prefix_bytes(self.low, high))
    }

    /// The longest prefix in bytes of a page of keys from `first` to `last` only: a beginning of its low key, or a longer one of its high
    /// key, since all keys between two share what these share.
    fn longest_prefix_bytes(&self, [first, last]: [KeyParts<'_>; 2]) -> usize {
        match self.high.map_or(0, |high| first.shared_bytes(high)) {
            with_high if with_high > self.low.len() => with_high,
            _ => last.shared_bytes(self.low),
        }
    }

    /// What of a page's `bytes` counts where its size is judged: all, but for what the bounds take beyond an eighth of `page_bytes_max`.
    /// They cannot be split, and would leave no room for records if they were long.
    pub(crate) fn counted(&self, bytes: usize, page_bytes_max: usize) -> usize {
        let own = self.low.len() + self.high.map_or(0, <[u8]>::len);
        bytes - own.saturating_sub(page_bytes_max / BOUNDS_COUNTED)
    }
}

/// How a base page is going to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) layout: Layout,
    /// Of its keys, however much its bounds share.
    pub(crate) prefix_bytes: usize,
    /// The page's size.
    pub(crate) bytes: usize,
}

impl Plan {
    /// With a prefix that all keys of the page have; the records take `records_bytes` in a shape and with so long a prefix.
    #[inline]
    pub(crate) fn with_prefix(
        bounds: &Bounds<'_>,
        layout: Layout,
        prefix_bytes: usize,
        records_bytes: impl Fn(Shape, usize) -> usize,
    ) -> Plan {
        let (layout, bytes) =
            layout.fitting(|shape| base_bytes(shape, bounds, records_bytes(shape, prefix_bytes)));
        Plan { layout, prefix_bytes, bytes }
    }

    /// With the prefix that makes it shortest, `ends` being the first and the last key. Where it is as short with what its bounds share it has that, which no
    /// other key can take from it.
    pub(crate) fn new(
        bounds: &Bounds<'_>,
        layout: Layout,
        ends: Option<[KeyParts<'_>; 2]>,
        records_bytes: impl Fn(Shape, usize) -> usize,
    ) -> Plan {
        let plan = Plan::with_prefix(bounds, layout, bounds.prefix_bytes(), &records_bytes);
        plan.shortened(bounds, layout, ends, records_bytes)
    }

    /// The same with a longer prefix, if that makes it shorter.
    pub(crate) fn shortened(
        self,
        bounds: &Bounds<'_>,
        layout: Layout,
        ends: Option<[KeyParts<'_>; 2]>,
        records_bytes: impl Fn(Shape, usize) -> usize,
    ) -> Plan {
        match ends.map_or(0, |ends| bounds.longest_prefix_bytes(ends)) {
            longest if longest > self.prefix_bytes => {
                let longer = Plan::with_prefix(bounds, layout, longest, records_bytes);
                if longer.bytes < self.bytes { longer } else { self }
            }
            _ => self,
        }
    }
}

/// Bytes of a delta whose records, slots included, take `records_bytes`.
pub(crate) fn delta_bytes(
    shape: Shape,
    prefix_bytes: usize,
    high: Option<&[u8]>,
    records_bytes: usize,
) -> usize {
    DELTA_HEADER_BYTES + shape.header_bytes() + prefix_bytes + high.map_or(0, <[u8]>::len) + records_bytes
}

/// Bytes of a base page whose records, slots included, take `records_bytes`.
pub(crate) fn base_bytes(shape: Shape, bounds: &Bounds<'_>, records_bytes: usize) -> usize {
    BASE_HEADER_BYTES
        + shape.header_bytes()
        + bounds.low.len()
        + bounds.high.map_or(0, <[u8]>::len)
        + records_bytes
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

/// Writes a run, record by record.
pub(crate) struct RunWriter<'b> {
    bytes: &'b mut [u8],
    layout: Layout,
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
    /// Begins a delta of `count` records that share `prefix` and that `layout` holds, on a page that ends at `high` and whose older
    /// stamps are at most `stamp_below`.
    pub(crate) fn delta(
        bytes: &'b mut [u8],
        layout: Layout,
        count: usize,
        prefix: &[u8],
        high: Option<&[u8]>,
        stamp_below: u64,
    ) -> RunWriter<'b> {
        bytes[16..24].copy_from_slice(&stamp_below.to_le_bytes());
        let high_at = DELTA_HEADER_BYTES + prefix.len();
        bytes[DELTA_HEADER_BYTES..high_at].copy_from_slice(prefix);
        let keys_end = put_high(bytes, high_at, high);
        RunWriter::begin(bytes, layout, KIND_DELTA, count, prefix.len(), keys_end)
    }

    /// Begins a base page of `count` records, as it is planned.
    pub(crate) fn base(
        bytes: &'b mut [u8],
        Plan { layout, prefix_bytes, .. }: Plan,
        count: usize,
        bounds: &Bounds<'_>,
    ) -> RunWriter<'b> {
        bytes[16..24].copy_from_slice(&bounds.right.0.to_le_bytes());
        bytes[26..28].copy_from_slice(&length_of(bounds.low).to_le_bytes());
        let high_at = BASE_HEADER_BYTES + bounds.low.len();
        bytes[BASE_HEADER_BYTES..high_at].copy_from_slice(bounds.low);
        let keys_end = put_high(bytes, high_at, bounds.high);
        let writer = RunWriter::begin(bytes, layout, KIND_BASE, count, prefix_bytes, keys_end);
        if prefix_bytes > bounds.low.len() {
            writer.bytes[0] = PREFIX_OF_HIGH;
        }
        writer
    }

    fn begin(
        bytes: &'b mut [u8],
        layout: Layout,
        kind: u8,
        count: usize,
        prefix_bytes: usize,
        keys_end: usize,
    ) -> Self {
        let slots_at = keys_end + layout.shape.header_bytes();
        layout.write(&mut bytes[keys_end..slots_at]);
        assert!(
            bytes.len() <= layout.shape.run_bytes_max(),
            "a run has no more bytes than its offsets can say"
        );
        bytes[0] = layout.shape.format().expect("a shape of a layout");
        bytes[1] = kind | layout.shape.in_kind();
        let prefix_field = u16::try_from(prefix_bytes).expect("keys are shorter than 64 KiB");
        bytes[2..4].copy_from_slice(&prefix_field.to_le_bytes());
        let count_field = u32::try_from(count).expect("a run has fewer than 2^32 records");
        bytes[4..8].copy_from_slice(&count_field.to_le_bytes());
        let offsets_at = slots_at + HEAD_BYTES * count;
        RunWriter {
            bytes,
            layout,
            prefix_bytes,
            heads_at: slots_at,
            offsets_at,
            records_at: offsets_at + layout.shape.offset_bytes() * count,
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
        self.put_slot(head, self.records_at);
        let header_bytes = self.layout.shape.record_header_bytes();
        let end = self.records_at + header_bytes + rest.len() + value.len();
        let (header, behind) = self.bytes[self.records_at..end].split_at_mut(header_bytes);
        self.layout.write_record(header, suffix_bytes, record);
        let (rest_target, value_target) = behind.split_at_mut(rest.len());
        copy_short(rest_target, rest);
        copy_short(value_target, value);
        self.records_at = end;
        self.newest_stamp = self.newest_stamp.max(record.stamp);
        self.tombstones += u32::from(record.value.is_none());
    }

    fn put_slot(&mut self, head: [u8; HEAD_BYTES], record_at: usize) {
        self.bytes[self.heads_at..self.heads_at + HEAD_BYTES].copy_from_slice(&head);
        self.heads_at += HEAD_BYTES;
        // See `begin`, and `Layout::fitting`.
        if self.layout.shape.is_wide() {
            self.bytes[self.offsets_at..self.offsets_at + 4]
                .copy_from_slice(&(record_at as u32).to_le_bytes());
            self.offsets_at += 4;
        } else {
            self.bytes[self.offsets_at..self.offsets_at + 2]
                .copy_from_slice(&(record_at as u16).to_le_bytes());
            self.offsets_at += 2;
        }
    }

    /// Appends what a merge over `base` has at one place.
    #[inline]
    pub(crate) fn push_piece(&mut self, base: &Run<'_>, piece: &Piece<'_, '_>) {
        match piece {
            Piece::Base(range) => self.push_range(base, range.clone()),
            Piece::Record(record) => self.push(record),
        }
    }

    /// Appends records `range` of `source`: in bulk where prefix and layout are the same, which is what makes
    /// consolidation cheap, since the bounds of a page, and so its prefix, and its layout rarely change.
    pub(crate) fn push_range(&mut self, source: &Run<'_>, range: Range<usize>) {
        if source.prefix().len() != self.prefix_bytes || !source.is_base() || source.layout() != self.layout {
            for index in range {
                self.push(&source.record(index));
            }
            return;
        }
        let heads = source.heads(range.clone());
        self.bytes[self.heads_at..self.heads_at + heads.len()].copy_from_slice(heads);
        self.heads_at += heads.len();
        let source_at = source.record_start(range.start);
        let from = source.offsets(range.clone());
        let offsets = &mut self.bytes[self.offsets_at..self.offsets_at + from.len()];
        self.offsets_at += from.len();
        // Both and the sum fit into an offset; what it goes through on the way does not matter.
        let shift = (self.records_at as u32).wrapping_sub(source_at as u32);
        if self.layout.shape.is_wide() {
            for (offset, from) in offsets.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
                *offset = u32::from_le_bytes(*from).wrapping_add(shift).to_le_bytes();
            }
        } else {
            for (offset, from) in offsets.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
                *offset = u16::from_le_bytes(*from).wrapping_add(shift as u16).to_le_bytes();
            }
        }
        let records = source.record_bytes(range.clone());
        self.bytes[self.records_at..self.records_at + records.len()].copy_from_slice(records);
        self.records_at += records.len();
        self.newest_stamp = self.newest_stamp.max(source.newest_stamp());
        if source.tombstones() > 0 {
            let count = range.filter(|&index| source.is_tombstone(index)).count();
            self.tombstones += u32::try_from(count).expect("fewer than 2^32 records");
        }
    }

    /// Completes the header; the last call. Panics if the records are not as many or as long as announced.
    // By reference, as a move would read again what has just been written in smaller pieces, which a processor can do only when all
    // writes before have been done: those to a page that another processor had, too.
    pub(crate) fn finish(&mut self) {
        assert_eq!(self.heads_at, self.heads_end, "record count differs from the header's");
        assert_eq!(self.records_at, self.bytes.len(), "records do not fill the run");
        self.bytes[8..16].copy_from_slice(&self.newest_stamp.to_le_bytes());
        if self.base {
            self.bytes[28..32].copy_from_slice(&self.tombstones.to_le_bytes());
        }
    }
}
