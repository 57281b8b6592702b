//! The format of leaf pages, and how they are read, written, merged and cut. No pointers, no atomics, no
//! unsafe code: everything here works on flat bytes.

pub(crate) mod batch;
pub(crate) mod key;
pub(crate) mod layout;
pub(crate) mod merge;
mod ranges;
pub(crate) mod run;
pub(crate) mod split;
pub(crate) mod stretch;
pub(crate) mod writer;

#[cfg(all(test, not(loom)))]
mod model_tests;

use deuteron_llama::PageId;
use layout::{Layout, Span};
use merge::Merge;
use run::Run;
use writer::{Bounds, Plan, RunWriter};

/// The content of a page as one base page.
pub(crate) struct Merged<'m, 'a> {
    merge: &'m Merge<'a>,
    /// Of the content; the plan may have had to take the wide one.
    layout: Layout,
    plan: Plan,
    page_bytes_max: usize,
}

impl<'m, 'a> Merged<'m, 'a> {
    /// With the bounds and the right sibling of the base, and with its prefix for as long as that serves: until a key comes that has not
    /// got it, or the page is too long with it.
    pub(crate) fn new(merge: &'m Merge<'a>, page_bytes_max: usize) -> Merged<'m, 'a> {
        let (layout, bounds) = (merge.layout(), Bounds::of(merge.base()));
        let records_bytes = |shape, prefix_bytes| merge.records_bytes(shape, prefix_bytes);
        let ends = || merge.ends().map(|ends| ends.map(|record| record.key));
        let plan = match merge.keeps_prefix() {
            true => Plan::with_prefix(&bounds, layout, merge.base().prefix().len(), records_bytes),
            false => Plan::new(&bounds, layout, ends(), records_bytes),
        };
        let mut merged = Merged { merge, layout, plan, page_bytes_max };
        if merged.is_too_long() && merge.keeps_prefix() {
            merged.plan = plan.shortened(&bounds, layout, ends(), records_bytes);
        }
        merged
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.plan.bytes
    }

    /// Whether it is to be split, if it can be.
    #[inline]
    pub(crate) fn is_too_long(&self) -> bool {
        let bounds = Bounds::of(self.merge.base());
        bounds.counted(self.plan.bytes, self.page_bytes_max) > self.page_bytes_max
    }

    /// Its low key.
    pub(crate) fn low(&self) -> &'a [u8] {
        self.merge.base().low()
    }

    /// Writes it into a buffer of that size.
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        let base = self.merge.base();
        let mut writer = RunWriter::base(bytes, self.plan, self.merge.count(), &Bounds::of(base));
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
    plan: Plan,
}

impl<'m, 'a> Joined<'m, 'a> {
    /// From the left bounds of the first to the right bounds of the second.
    pub(crate) fn new(merges: &'m [Merge<'a>; 2]) -> Joined<'m, 'a> {
        let bounds = joined_bounds(merges);
        let records = || merges.iter().flat_map(Merge::records);
        let [left, right] = merges.each_ref().map(Merge::ends);
        let ends = left.or(right).zip(right.or(left)).map(|([first, _], [_, last])| [first.key, last.key]);
        let plan = Plan::new(&bounds, Span::of(records()).layout(), ends, |shape, prefix_bytes| {
            records().map(|record| shape.bytes_of(&record, prefix_bytes)).sum()
        });
        Joined { merges, plan }
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.plan.bytes
    }

    /// What of it counts where pages are of so many bytes.
    pub(crate) fn counted(&self, page_bytes_max: usize) -> usize {
        joined_bounds(self.merges).counted(self.plan.bytes, page_bytes_max)
    }

    /// Writes it into a buffer of that size.
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        let count = self.merges.iter().map(Merge::count).sum();
        let mut writer = RunWriter::base(bytes, self.plan, count, &joined_bounds(self.merges));
        for record in self.merges.iter().flat_map(Merge::records) {
            writer.push(&record);
        }
        writer.finish();
    }
}

/// What of a base page counts where its size is judged.
pub(crate) fn counted(base: &Run<'_>, page_bytes_max: usize) -> usize {
    Bounds::of(base).counted(base.bytes(), page_bytes_max)
}

/// The first page of a new tree: empty, without bounds.
pub(crate) fn empty_base() -> Vec<u8> {
    empty_base_within(&Bounds { low: &[], high: None, right: PageId::NONE })
}

/// An empty page with these bounds.
pub(crate) fn empty_base_within(bounds: &Bounds<'_>) -> Vec<u8> {
    let plan = Plan::new(bounds, Span::NONE.layout(), None, |_, _| 0);
    let mut bytes = vec![0; plan.bytes];
    RunWriter::base(&mut bytes, plan, 0, bounds).finish();
    bytes
}
