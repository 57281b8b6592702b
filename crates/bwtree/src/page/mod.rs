//! The format of leaf pages, and how they are read, written, merged and cut. No pointers, no atomics, no
//! unsafe code: everything here works on flat bytes.

pub(crate) mod batch;
pub(crate) mod key;
pub(crate) mod layout;
pub(crate) mod merge;
pub(crate) mod run;
pub(crate) mod split;
pub(crate) mod writer;

#[cfg(all(test, not(loom)))]
mod model_tests;

use deuteron_llama::PageId;
use layout::{Layout, Span};
use merge::Merge;
use writer::{Bounds, RunWriter};

/// The content of a page as one base page.
pub(crate) struct Merged<'m, 'a> {
    merge: &'m Merge<'a>,
    layout: Layout,
    bytes: usize,
}

impl<'m, 'a> Merged<'m, 'a> {
    /// With the bounds and the right sibling of the base.
    pub(crate) fn new(merge: &'m Merge<'a>) -> Merged<'m, 'a> {
        let bounds = Bounds::of(merge.base());
        let bytes = |shape| writer::base_bytes(shape, &bounds, merge.records_bytes(shape));
        let (layout, bytes) = merge.layout().fitting(bytes);
        Merged { merge, layout, bytes }
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its low key.
    pub(crate) fn low(&self) -> &'a [u8] {
        self.merge.base().low()
    }

    /// Writes it into a buffer of that size.
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        let base = self.merge.base();
        let mut writer = RunWriter::base(bytes, self.layout, self.merge.count(), &Bounds::of(base));
        self.merge.pieces().for_each(|piece| writer.push_piece(base, &piece));
        writer.finish();
    }
}

/// The bounds of two neighbours as one page.
fn joined_bounds<'a>([left, right]: &[Merge<'a>; 2]) -> Bounds<'a> {
    let (left, right) = (Bounds::of(left.base()), Bounds::of(right.base()));
    debug_assert_eq!(left.high, Some(right.low));
    Bounds { low: left.low, high: right.high, right: right.right }
}

/// Two neighbours as one base page.
pub(crate) struct Joined<'m, 'a> {
    merges: &'m [Merge<'a>; 2],
    layout: Layout,
    bytes: usize,
}

impl<'m, 'a> Joined<'m, 'a> {
    /// From the left bounds of the first to the right bounds of the second.
    pub(crate) fn new(merges: &'m [Merge<'a>; 2]) -> Joined<'m, 'a> {
        let bounds = joined_bounds(merges);
        let prefix_bytes = bounds.prefix_bytes();
        let records = || merges.iter().flat_map(Merge::records);
        let (layout, bytes) = Span::of(records()).layout().fitting(|shape| {
            writer::base_bytes(
                shape,
                &bounds,
                records().map(|record| shape.bytes_of(&record, prefix_bytes)).sum(),
            )
        });
        Joined { merges, layout, bytes }
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes it into a buffer of that size.
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        let count = self.merges.iter().map(Merge::count).sum();
        let mut writer = RunWriter::base(bytes, self.layout, count, &joined_bounds(self.merges));
        for record in self.merges.iter().flat_map(Merge::records) {
            writer.push(&record);
        }
        writer.finish();
    }
}

/// The first page of a new tree: empty, without bounds.
pub(crate) fn empty_base() -> Vec<u8> {
    empty_base_within(&Bounds { low: &[], high: None, right: PageId::NONE })
}

/// An empty page with these bounds.
pub(crate) fn empty_base_within(bounds: &Bounds<'_>) -> Vec<u8> {
    let layout = Span::NONE.layout();
    let mut bytes = vec![0; writer::base_bytes(layout.shape, bounds, 0)];
    RunWriter::base(&mut bytes, layout, 0, bounds).finish();
    bytes
}
