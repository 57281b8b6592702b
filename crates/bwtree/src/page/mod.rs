//! The format of leaf pages, and how they are read, written, merged and cut. No pointers, no atomics, no
//! unsafe code: everything here works on flat bytes.

pub(crate) mod batch;
pub(crate) mod key;
pub(crate) mod merge;
pub(crate) mod run;
pub(crate) mod split;
pub(crate) mod writer;

#[cfg(all(test, not(loom)))]
mod model_tests;

use deuteron_llama::PageId;
use merge::{Merge, bytes_of};
use writer::{Bounds, RunWriter};

/// The size in bytes of `merge` as one base page.
pub(crate) fn merged_bytes(merge: &Merge<'_>) -> usize {
    writer::base_bytes(&Bounds::of(merge.base()), merge.records_bytes())
}

/// Writes `merge` as one base page of [`merged_bytes`] bytes, with the bounds and the right sibling of the base.
pub(crate) fn write_merged(merge: &Merge<'_>, bytes: &mut [u8]) {
    let mut writer = RunWriter::base(bytes, merge.count(), &Bounds::of(merge.base()));
    merge.pieces().for_each(|piece| writer.push_piece(merge.base(), &piece));
    writer.finish();
}

/// The bounds of two neighbours as one page.
fn joined_bounds<'a>([left, right]: &[Merge<'a>; 2]) -> Bounds<'a> {
    let (left, right) = (Bounds::of(left.base()), Bounds::of(right.base()));
    debug_assert_eq!(left.high, Some(right.low));
    Bounds { low: left.low, high: right.high, right: right.right }
}

/// The size in bytes of two neighbours as one base page.
pub(crate) fn joined_bytes(merges: &[Merge<'_>; 2]) -> usize {
    let bounds = joined_bounds(merges);
    let prefix_bytes = bounds.prefix_bytes();
    let records = merges.iter().flat_map(Merge::records);
    writer::base_bytes(&bounds, records.map(|record| bytes_of(&record, prefix_bytes)).sum())
}

/// Writes two neighbours as one base page of [`joined_bytes`] bytes.
pub(crate) fn write_joined(merges: &[Merge<'_>; 2], bytes: &mut [u8]) {
    let count = merges.iter().map(Merge::count).sum();
    let mut writer = RunWriter::base(bytes, count, &joined_bounds(merges));
    for record in merges.iter().flat_map(Merge::records) {
        writer.push(&record);
    }
    writer.finish();
}

/// The first page of a new tree: empty, without bounds.
pub(crate) fn empty_base() -> Vec<u8> {
    empty_base_within(&Bounds { low: &[], high: None, right: PageId::NONE })
}

/// An empty page with these bounds.
pub(crate) fn empty_base_within(bounds: &Bounds<'_>) -> Vec<u8> {
    let mut bytes = vec![0; writer::base_bytes(bounds, 0)];
    RunWriter::base(&mut bytes, 0, bounds).finish();
    bytes
}
