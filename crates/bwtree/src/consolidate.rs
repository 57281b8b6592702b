//! Consolidation, and the splits that come of it.
//!
//! Consolidation replaces a page's chain by one base with the same content: one compare-and-swap. If that is lost,
//! the work is dropped, for then somebody else has been at the page.
//!
//! If the content has outgrown a page, it is split, in steps each of which leaves a right tree:
//!
//! 1. The page is held ([`Llama::hold`](deuteron_llama::Llama::hold)), and so is every right part but the last.
//!    Before that the index is told where the page itself ends.
//! 2. The right parts are installed under new page identifiers. Nobody can reach them.
//! 3. The left part replaces the page's chain. From here on the split is a fact: whoever looks for a key of a
//!    right part meets the left part's high key and goes right. The left part's base lists the right parts as
//!    adopted, so that on flash, too, they come into being with it.
//! 4. The separators are posted in the index, left to right, and each hold released once the separator on
//!    its right side is there. (Any thread that goes right posts the separator too.)
//!
//! If the compare-and-swap of step 3 is lost, the right parts are freed again. A crash before the left part is durable
//! leaves the old page, and the right parts, if they were written, adopted by nobody.
//!
//! Why hold: a page that is not in memory takes upserts on the word of the index alone (see `upsert`, U2). So a page may
//! not leave memory while the index does not know its high key. The last part is not held: it ends where the page ended, which the index has been told.
//!
//! Consolidation marks the pages that it leaves underfull, or with tombstones, for `merging`.

use crate::Tree;
use crate::chain::WholeChain;
use crate::interruption::{Moment, strike};
use crate::page::merge::Merge;
use crate::page::run::Run;
use crate::page::split::Split;
use crate::page::{self, Merged};
use crate::scratch;
use crate::sync::Ordering;
use deuteron_canary::{Canary, is_planted};
use deuteron_epoch::Guard;
use deuteron_llama::{OwnedNode, PageDescriptor, PageId, Snapshot};

/// How a consolidation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consolidation {
    Done,
    /// The page changed meanwhile.
    Lost,
    /// The base is not in memory.
    NotWhole,
}

impl Tree {
    pub(crate) fn descriptor<'k>(&self, low_key: &'k [u8]) -> PageDescriptor<'k> {
        // Splits go to the right, so the leftmost page is the tree's first.
        PageDescriptor { tree: self.id, low_key, root: low_key.is_empty() }
    }

    pub(crate) fn try_consolidate(
        &self,
        page: PageId,
        snapshot: Snapshot<'_>,
        guard: &Guard<'_>,
    ) -> Consolidation {
        let Some(mut chain) = snapshot.head().and_then(WholeChain::new) else {
            return Consolidation::NotWhole;
        };
        // They are copied soon; meanwhile the deltas find their places.
        chain.base.prefetch_records();
        if is_planted(Canary::LoseDelta) {
            chain.drop_oldest();
        }
        let merge = Merge::new(chain.base, chain.deltas(), self.forget_below());
        // A page that is about to take another one over is not split; asked after the snapshot was taken, so that whoever
        // has seen it before that fails. The next consolidation splits.
        let merged = Merged::new(&merge, self.options.page_bytes_max);
        if merged.is_too_long()
            && self.heir.load(Ordering::SeqCst) != page.0
            && let Some(split) = Split::new(&merged)
        {
            return self.split(page, snapshot, &chain.base, &split, guard);
        }
        self.install_merged(page, snapshot, &merged, guard)
    }

    /// Consolidates a page without splitting it.
    pub(crate) fn consolidate_whole(
        &self,
        page: PageId,
        snapshot: Snapshot<'_>,
        chain: &WholeChain<'_>,
        guard: &Guard<'_>,
    ) -> Consolidation {
        let merge = Merge::new(chain.base, chain.deltas(), self.forget_below());
        let merged = Merged::new(&merge, self.options.page_bytes_max);
        self.install_merged(page, snapshot, &merged, guard)
    }

    fn install_merged(
        &self,
        page: PageId,
        snapshot: Snapshot<'_>,
        merged: &Merged<'_, '_>,
        guard: &Guard<'_>,
    ) -> Consolidation {
        strike(Moment::Step);
        let installed = scratch::with(merged.bytes(), |bytes| {
            merged.write(bytes);
            debug_assert!(Run::verify(bytes).is_ok());
            self.mark_if_sparse(bytes);
            let descriptor = self.descriptor(merged.low());
            self.llama.install_base(page, snapshot, bytes, descriptor, &[], self.slack_bytes(snapshot), guard)
        });
        if installed.is_some() { Consolidation::Done } else { Consolidation::Lost }
    }

    /// Room for the next deltas of a page that is changed, as long as there is memory to spare: for as many as make it due, if they are
    /// like those of the slack that it had.
    fn slack_bytes(&self, chain: Snapshot<'_>) -> usize {
        if !self.llama.has_spare_memory() {
            return 0;
        }
        let most = self.options.slack_bytes;
        match chain.head().map(|head| (head.slack_taken(), head.chain_length())) {
            Some((taken @ 1.., deltas)) => most.min(taken * self.near_deltas() / deltas),
            _ => most,
        }
    }

    /// Whether a page should be merged, if it has a left neighbour with room.
    pub(crate) fn is_sparse(&self, base: &Run<'_>) -> bool {
        let page_bytes_max = self.options.page_bytes_max;
        page::counted(base, page_bytes_max) < page_bytes_max / 4
    }

    /// Marks a page that is about to get this base, if it is worth another look.
    pub(crate) fn mark_if_sparse(&self, base: &[u8]) {
        let run = Run::new(base);
        self.note_records(&run);
        if run.tombstones() > 0 {
            let tombstones = (0..run.count()).filter(|&index| run.is_tombstone(index));
            self.marks.mark(run.low(), tombstones.map(|index| run.record(index).lsn).max());
        } else if self.is_sparse(&run) && !run.low().is_empty() {
            self.marks.mark(run.low(), None);
        }
    }

    /// Notes how long records are.
    pub(crate) fn note_records(&self, base: &Run<'_>) {
        let Some(bytes) = base.bytes().checked_div(base.count()) else { return };
        // Relaxed: a figure. Most pages are alike, and leave the line alone.
        let known = self.record_bytes.load(Ordering::Relaxed);
        if known.abs_diff(bytes as u64) > known / 2 {
            self.record_bytes.store((bytes as u64).max(1), Ordering::Relaxed);
        }
    }

    fn split(
        &self,
        page: PageId,
        snapshot: Snapshot<'_>,
        base: &Run<'_>,
        split: &Split<'_, '_>,
        guard: &Guard<'_>,
    ) -> Consolidation {
        // The last part, which is not held, must end where the index says: this page may have been split off from its right neighbour a moment
        // ago (U2). If the neighbour is another by now, so is the chain, and the split fails.
        if let Some(high) = base.high() {
            self.post(high, base.right(), guard);
        }
        let rights: Vec<PageId> = split.parts()[1..].iter().map(|_| self.llama.allocate()).collect();
        // All but the last part have a right neighbour that the index does not know. Held before they can be
        // flushed, that is before they are installed.
        let held = || std::iter::once(page).chain(rights.iter().copied()).take(rights.len());
        held().for_each(|left| self.llama.hold(left));
        strike(Moment::Step);
        for (index, &right) in (1..).zip(&rights) {
            let base = self.with_part(split, index, &rights, |bytes, descriptor| {
                OwnedNode::base_with_slack(bytes, descriptor, &[], self.slack_bytes(snapshot))
            });
            let free = self.llama.snapshot(right, guard);
            self.llama.install(right, free, base, guard).expect("nobody else knows the new page");
        }
        strike(Moment::Step);
        let installed = self.with_part(split, 0, &rights, |bytes, descriptor| {
            self.llama.install_base(
                page,
                snapshot,
                bytes,
                descriptor,
                &rights,
                self.slack_bytes(snapshot),
                guard,
            )
        });
        if installed.is_none() {
            held().for_each(|left| self.llama.release(left));
            rights.iter().for_each(|&right| self.abandon(right, guard));
            return Consolidation::Lost;
        }
        strike(Moment::Split);
        for ((part, &right), left) in split.parts()[1..].iter().zip(&rights).zip(held()) {
            self.post(&part.low, right, guard);
            strike(Moment::Step);
            self.llama.release(left);
        }
        self.counters.leaf_splits.add(rights.len() as u64);
        Consolidation::Done
    }

    /// Calls `work` with part `index` of a split as the payload of a base, and with its descriptor.
    fn with_part<T>(
        &self,
        split: &Split<'_, '_>,
        index: usize,
        rights: &[PageId],
        work: impl FnOnce(&[u8], PageDescriptor<'_>) -> T,
    ) -> T {
        let descriptor = self.descriptor(&split.parts()[index].low);
        scratch::with(split.bytes(index), |bytes| {
            split.write(index, rights.get(index).copied().unwrap_or(PageId::NONE), bytes);
            debug_assert!(Run::verify(bytes).is_ok());
            self.mark_if_sparse(bytes);
            work(bytes, descriptor)
        })
    }

    /// Frees a right part that was never reachable. Flush or eviction may have been at it meanwhile.
    fn abandon(&self, right: PageId, guard: &Guard<'_>) {
        let mut expected = self.llama.snapshot(right, guard);
        while let Err(changed) = self.llama.free_page(right, expected, guard) {
            expected = changed;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::Cursor;
    use crate::interruption::{Bed, checked};
    use std::ops::Bound;

    /// Without holds the left page is evicted, and takes upserts that belong to the right one.
    #[test]
    fn an_unposted_split_survives_eviction_and_blind_upserts() {
        let bed = Bed::new(60);
        bed.at_interruptions(|bed| {
            bed.evict();
            bed.rewrite();
        });
        for key in 0..60 {
            // Not ascending, so that right parts hold keys that are known already.
            bed.write(key * 37 % 60);
        }
        assert!(bed.tree.statistics().leaf_splits > 5 && bed.tree.statistics().blind_deltas > 50);
        bed.verify();
    }

    /// The left page of a split that nobody has been told of is split again. The last part of that, which is not held, is evicted, and must not
    /// take what belongs behind it.
    #[test]
    fn a_page_that_is_split_again_before_its_split_is_posted_ends_where_it_ends() {
        let bed = Bed::new(2000);
        bed.at_interruptions(|bed| {
            let splits = bed.tree.statistics().leaf_splits;
            // Descending, so that the left part of the split just made is the leftmost page; below the key that is being written.
            for key in (0..bed.lowest() - 1).rev().take(40) {
                bed.write(key);
                if bed.tree.statistics().leaf_splits > splits {
                    break;
                }
            }
            bed.evict();
            // What belongs behind it comes first: who passes it in memory posts where it ends.
            let lowest = bed.lowest();
            (lowest..lowest + 60).rev().filter(|&key| bed.is_known(key)).for_each(|key| bed.write(key));
        });
        for _ in 0..20 {
            let lowest = bed.lowest();
            bed.write(lowest - 1);
        }
        bed.verify();
    }

    #[test]
    fn the_last_part_of_an_unposted_split_is_read_by_who_comes_from_its_left() {
        let bed = Bed::new(60);
        let _checks = checked(&bed.tree);
        bed.at_interruptions(|bed| {
            bed.evict();
            let mut everything = Cursor::new(Bound::Unbounded, Bound::Unbounded, false, usize::MAX);
            bed.tree.scan(&mut everything, |_| {}).unwrap();
            bed.evict();
            bed.tree.check().unwrap();
        });
        for key in 0..60 {
            bed.write(key * 37 % 60);
        }
        assert!(bed.tree.statistics().leaf_splits > 5);
        bed.verify();
    }
}
