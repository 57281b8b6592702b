//! Where to cut a page that has grown too large.
//!
//! A page is cut into as many parts as needed at once: one large delta may bring many pages' worth. Parts are
//! of even size, so that each has room to grow, except under an ascending load: then the left parts are filled and the
//! rest begins the last one, since nobody will ever add to the left parts again. A record larger than a page
//! gets a part of its own.
//!
//! Sizes are those that records have under the prefix of the page, which most parts have, too. Where a key has not got it, or keys go on far behind
//! it, parts are judged by their own prefixes: see `ranges`.

use super::Merged;
use super::key::HEAD_BYTES;
use super::layout::{Layout, Shape};
use super::merge::{Merge, Piece, Place};
use super::ranges::Ranges;
use super::run::RecordRef;
use super::writer::{BOUNDS_COUNTED, Bounds, Plan, RunWriter};
use deuteron_llama::PageId;

/// How full a part is made, in percent of the page size, under an ascending load.
pub(super) const FILL_ASCENDING_PERCENT: usize = 95;
/// How full a part is made at most otherwise.
pub(super) const FILL_EVEN_PERCENT: usize = 70;

/// One part in so many of the records is much.
const RESTS_ARE_MUCH: usize = 4;

/// One of the pages into which a page is cut.
#[derive(Debug)]
pub(crate) struct Part {
    /// Its first and its last record.
    pub(super) from: Place,
    pub(super) last: Place,
    pub(super) count: usize,
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
    plans: Vec<Plan>,
}

impl<'m, 'a> Split<'m, 'a> {
    /// Cuts the content of a page into parts of at most about a page, or `None` if there is nothing
    /// to cut, that is if the page is one large record.
    pub(crate) fn new(merged: &Merged<'m, 'a>) -> Option<Split<'m, 'a>> {
        let Merged { merge, layout, page_bytes_max, .. } = *merged;
        let bounds = Bounds::of(merge.base());
        let parts = if may_have_longer_prefixes(merge, layout.shape) {
            Ranges::new(merge, &bounds, layout.shape, page_bytes_max).parts()
        } else {
            by_bytes(merge, &bounds, layout.shape, page_bytes_max)
        };
        (parts.len() > 1).then(|| Split::of_parts(merge, layout, parts))
    }

    /// A cut into these parts.
    pub(super) fn of_parts(merge: &'m Merge<'a>, layout: Layout, parts: Vec<Part>) -> Split<'m, 'a> {
        let bounds = Bounds::of(merge.base());
        let mut split = Split { merge, bounds, layout, parts, plans: Vec::new() };
        split.plans = (0..split.parts.len()).map(|index| split.plan(index)).collect();
        split
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

    /// Part `index` as a base page.
    fn plan(&self, index: usize) -> Plan {
        let Part { from, last, .. } = self.parts[index];
        let ends = [from, last].map(|place| self.merge.record_at(place).key);
        let records_bytes = |shape, prefix_bytes| self.records_bytes(index, shape, prefix_bytes);
        let bounds = self.bounds_of(index, PageId::NONE);
        Plan::new(&bounds, self.layout, Some(ends), records_bytes)
    }

    /// Bytes of the records of part `index` with their slots, in a run with a prefix that all have.
    fn records_bytes(&self, index: usize, shape: Shape, prefix_bytes: usize) -> usize {
        let base = self.merge.base();
        let is_as_in_base = shape == base.layout().shape && prefix_bytes == base.prefix().len();
        let bytes = self.pieces(index).map(|piece| match piece {
            Piece::Base(range) if is_as_in_base => {
                shape.slot_bytes() * range.len() + base.record_bytes(range).len()
            }
            Piece::Base(range) => range.map(|at| shape.bytes_of(&base.record(at), prefix_bytes)).sum(),
            Piece::Record(record) => shape.bytes_of(record, prefix_bytes),
        });
        bytes.sum()
    }

    /// The size in bytes of part `index` as a base page.
    pub(crate) fn bytes(&self, index: usize) -> usize {
        self.plans[index].bytes
    }

    /// Writes part `index` as a base page with the right sibling `right` (ignored for the last part).
    pub(crate) fn write(&self, index: usize, right: PageId, bytes: &mut [u8]) {
        let (plan, count) = (self.plans[index], self.parts[index].count);
        let mut writer = RunWriter::base(bytes, plan, count, &self.bounds_of(index, right));
        self.pieces(index).for_each(|piece| writer.push_piece(self.merge.base(), &piece));
        writer.finish();
    }
}

/// Whether the parts are to be judged by their own prefixes: if the page cannot keep its prefix, or much of what its records take is what their keys have behind it and their
/// heads, of which parts may share some.
fn may_have_longer_prefixes(merge: &Merge<'_>, shape: Shape) -> bool {
    if !merge.keeps_prefix() {
        return true;
    }
    let prefix_bytes = merge.base().prefix().len();
    let (mut rests_bytes, mut bytes) = (0, 0);
    for record in merge.samples() {
        rests_bytes += (record.key_bytes() - prefix_bytes).saturating_sub(HEAD_BYTES);
        bytes += shape.bytes_of(&record, prefix_bytes);
    }
    RESTS_ARE_MUCH * rests_bytes > bytes
}

/// The parts by the bytes that the records have under the prefix of the page.
fn by_bytes(merge: &Merge<'_>, bounds: &Bounds<'_>, shape: Shape, page_bytes_max: usize) -> Vec<Part> {
    let start = merge.start();
    let target = target_bytes(merge, bounds, shape, page_bytes_max);
    let mut part = Part { from: start, last: start, count: 0, low: bounds.low.to_vec() };
    let (mut parts, mut filled, mut before) = (Vec::new(), 0, start);
    merge.visit_sizes(shape, |place, bytes| {
        if filled > 0 && filled + bytes > target {
            let low = separator(&merge.record_at(before), &merge.record_at(place));
            let next = Part { from: place, last: place, count: 0, low };
            parts.push(Part { last: before, ..std::mem::replace(&mut part, next) });
            filled = 0;
        }
        filled += bytes;
        part.count += 1;
        before = place;
    });
    parts.push(Part { last: before, ..part });
    parts
}

/// How many bytes of records to put into a part.
fn target_bytes(merge: &Merge<'_>, bounds: &Bounds<'_>, shape: Shape, page_bytes_max: usize) -> usize {
    // The bounds of the parts are about as long as the longer one of the page.
    let longer = bounds.low.len().max(bounds.high.map_or(0, <[u8]>::len));
    let own = (2 * longer).min(page_bytes_max / BOUNDS_COUNTED);
    let room = page_bytes_max - own;
    if merge.is_append() {
        return room * FILL_ASCENDING_PERCENT / 100;
    }
    let total = merge.records_bytes(shape, merge.base().prefix().len());
    let parts = total.div_ceil(room * FILL_EVEN_PERCENT / 100).max(2);
    // A part is closed *before* it would exceed the target, so parts fall short of it by half a record on
    // average: without the allowance the last part would be a sliver.
    let allowance = total / merge.count().max(1);
    (total / parts + allowance).min(room)
}

fn separator(left: &RecordRef<'_>, right: &RecordRef<'_>) -> Vec<u8> {
    let (mut left_scratch, mut right_scratch) = (Vec::new(), Vec::new());
    let left = left.key.contiguous(&mut left_scratch);
    super::key::separator(left, right.key.contiguous(&mut right_scratch)).to_vec()
}
