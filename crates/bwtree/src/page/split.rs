//! Where to cut a page that has grown too large.
//!
//! A page is cut into as many parts as needed at once: one large delta may bring many pages' worth. Parts are
//! of even size, so that each has room to grow, except under an ascending load: then the left parts are filled and the
//! rest begins the last one, since nobody will ever add to the left parts again. A record larger than a page
//! gets a part of its own.

use super::layout::{Layout, Shape};
use super::merge::{Merge, Piece, Place};
use super::run::RecordRef;
use super::writer::{Bounds, RunWriter, base_bytes};
use deuteron_llama::PageId;

/// How full a part is made, in percent of the page size, under an ascending load.
const FILL_ASCENDING_PERCENT: usize = 95;
/// How full a part is made at most otherwise.
const FILL_EVEN_PERCENT: usize = 70;

/// One of the pages into which a page is cut.
#[derive(Debug)]
pub(crate) struct Part {
    /// Where its records begin.
    from: Place,
    count: usize,
    /// Bytes of the records with their slots, in a run with the prefix of the page that is cut and of its shape.
    filled: usize,
    /// The low key of the page.
    pub(crate) low: Vec<u8>,
}

/// A cut of a page into at least two.
pub(crate) struct Split<'m, 'a> {
    merge: &'m Merge<'a>,
    bounds: Bounds<'a>,
    /// Of the parts, but for those that are too long for it.
    layout: Layout,
    parts: Vec<Part>,
}

impl<'m, 'a> Split<'m, 'a> {
    /// Cuts the content of a page into parts of at most about `page_bytes_max`, or `None` if there is nothing
    /// to cut, that is if the page is one large record.
    pub(crate) fn new(merge: &'m Merge<'a>, page_bytes_max: usize) -> Option<Split<'m, 'a>> {
        let bounds = Bounds::of(merge.base());
        let layout = merge.layout();
        let target = target_bytes(merge, layout.shape, page_bytes_max);
        let mut parts = vec![Part { from: merge.start(), count: 0, filled: 0, low: bounds.low.to_vec() }];
        let (mut last, mut before) = (0, merge.start());
        merge.visit_sizes(layout.shape, |place, bytes| {
            if parts[last].filled > 0 && parts[last].filled + bytes > target {
                let low = separator(&merge.record_at(before), &merge.record_at(place));
                parts.push(Part { from: place, count: 0, filled: 0, low });
                last += 1;
            }
            parts[last].filled += bytes;
            parts[last].count += 1;
            before = place;
        });
        (parts.len() > 1).then_some(Split { merge, bounds, layout, parts })
    }

    /// The parts, leftmost first.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The bounds of part `index`, whose right sibling will be `right` unless it is the last part.
    fn bounds_of(&self, index: usize, right: PageId) -> Bounds<'_> {
        let low = &self.parts[index].low;
        match self.parts.get(index + 1) {
            Some(next) => Bounds { low, high: Some(&next.low), right },
            None => Bounds { low, high: self.bounds.high, right: self.bounds.right },
        }
    }

    /// The records of part `index`.
    fn pieces(&self, index: usize) -> impl Iterator<Item = Piece<'_, 'a>> {
        let end = self.parts.get(index + 1).map_or(self.merge.end(), |next| next.from);
        self.merge.pieces_within(self.parts[index].from..end)
    }

    /// The layout of part `index` as a base page, and its size in bytes.
    fn fitting(&self, index: usize) -> (Layout, usize) {
        let bounds = self.bounds_of(index, PageId::NONE);
        let prefix_bytes = bounds.prefix_bytes();
        self.layout
            .fitting(|shape| base_bytes(shape, &bounds, self.records_bytes(index, shape, prefix_bytes)))
    }

    /// Bytes of the records of part `index` with their slots.
    fn records_bytes(&self, index: usize, shape: Shape, prefix_bytes: usize) -> usize {
        let base = self.merge.base();
        if shape == self.layout.shape && prefix_bytes == base.prefix().len() {
            return self.parts[index].filled;
        }
        let bytes = self.pieces(index).map(|piece| match piece {
            Piece::Base(range) => range.map(|at| shape.bytes_of(&base.record(at), prefix_bytes)).sum(),
            Piece::Record(record) => shape.bytes_of(record, prefix_bytes),
        });
        bytes.sum()
    }

    /// The size in bytes of part `index` as a base page.
    pub(crate) fn bytes(&self, index: usize) -> usize {
        self.fitting(index).1
    }

    /// Writes part `index` as a base page with the right sibling `right` (ignored for the last part).
    pub(crate) fn write(&self, index: usize, right: PageId, bytes: &mut [u8]) {
        let (layout, count) = (self.fitting(index).0, self.parts[index].count);
        let mut writer = RunWriter::base(bytes, layout, count, &self.bounds_of(index, right));
        self.pieces(index).for_each(|piece| writer.push_piece(self.merge.base(), &piece));
        writer.finish();
    }
}

/// How many bytes of records to put into a part.
fn target_bytes(merge: &Merge<'_>, shape: Shape, page_bytes_max: usize) -> usize {
    if merge.is_append() {
        return page_bytes_max * FILL_ASCENDING_PERCENT / 100;
    }
    let total = merge.records_bytes(shape);
    let parts = total.div_ceil(page_bytes_max * FILL_EVEN_PERCENT / 100).max(2);
    // A part is closed *before* it would exceed the target, so parts fall short of it by half a record on
    // average: without the allowance the last part would be a sliver.
    let allowance = total / merge.count().max(1);
    (total / parts + allowance).min(page_bytes_max)
}

fn separator(left: &RecordRef<'_>, right: &RecordRef<'_>) -> Vec<u8> {
    let (mut left_scratch, mut right_scratch) = (Vec::new(), Vec::new());
    let left = left.key.contiguous(&mut left_scratch);
    super::key::separator(left, right.key.contiguous(&mut right_scratch)).to_vec()
}
