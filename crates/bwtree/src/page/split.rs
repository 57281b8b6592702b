//! Where to cut a page that has grown too large.
//!
//! A page is cut into as many parts as needed at once: one large delta may bring many pages' worth. Parts are
//! of even size, so that each has room to grow, except under an ascending load: then the left parts are filled and the
//! rest begins the last one, since nobody will ever add to the left parts again. A record larger than a page
//! gets a part of its own.

use super::merge::{Merge, bytes_of};
use super::run::RecordRef;
use super::writer::{Bounds, RunWriter, base_bytes};
use deuteron_llama::PageId;
use std::ops::Range;

/// How full a part is made, in percent of the page size, under an ascending load.
const FILL_ASCENDING_PERCENT: usize = 95;
/// How full a part is made at most otherwise.
const FILL_EVEN_PERCENT: usize = 70;

/// One of the pages into which a page is cut.
#[derive(Debug)]
pub(crate) struct Part {
    /// Which of the records.
    range: Range<usize>,
    /// The low key of the page.
    pub(crate) low: Vec<u8>,
}

/// A cut of a page into at least two.
pub(crate) struct Split<'a> {
    records: Vec<RecordRef<'a>>,
    bounds: Bounds<'a>,
    parts: Vec<Part>,
}

impl<'a> Split<'a> {
    /// Cuts the content of a page into parts of at most about `page_bytes_max`, or `None` if there is nothing
    /// to cut, that is if the page is one large record.
    pub(crate) fn new(merge: &Merge<'a>, page_bytes_max: usize) -> Option<Split<'a>> {
        let records: Vec<_> = merge.records().collect();
        let bounds = Bounds::of(merge.base());
        let target = target_bytes(merge, page_bytes_max);
        let prefix_bytes = merge.base().prefix().len();
        let mut parts = vec![Part { range: 0..0, low: bounds.low.to_vec() }];
        let mut filled = 0;
        for (index, record) in records.iter().enumerate() {
            let bytes = bytes_of(record, prefix_bytes);
            if filled > 0 && filled + bytes > target {
                let low = separator(&records[index - 1], record);
                parts.push(Part { range: index..index, low });
                filled = 0;
            }
            filled += bytes;
            let last = parts.len() - 1;
            parts[last].range.end = index + 1;
        }
        (parts.len() > 1).then_some(Split { records, bounds, parts })
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

    /// The size in bytes of part `index` as a base page.
    pub(crate) fn bytes(&self, index: usize) -> usize {
        let bounds = self.bounds_of(index, PageId::NONE);
        let prefix_bytes = bounds.prefix_bytes();
        let records = &self.records[self.parts[index].range.clone()];
        base_bytes(&bounds, records.iter().map(|record| bytes_of(record, prefix_bytes)).sum())
    }

    /// Writes part `index` as a base page with the right sibling `right` (ignored for the last part).
    pub(crate) fn write(&self, index: usize, right: PageId, bytes: &mut [u8]) {
        let records = &self.records[self.parts[index].range.clone()];
        let mut writer = RunWriter::base(bytes, records.len(), &self.bounds_of(index, right));
        for record in records {
            writer.push(record);
        }
        writer.finish();
    }
}

/// How many bytes of records to put into a part.
fn target_bytes(merge: &Merge<'_>, page_bytes_max: usize) -> usize {
    if merge.is_append() {
        return page_bytes_max * FILL_ASCENDING_PERCENT / 100;
    }
    let total = merge.records_bytes();
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
