//! Consolidation, and the splits that come of it.
//!
//! Consolidation replaces a page's chain by one base with the same content: one compare-and-swap. If that is lost,
//! the work is dropped, for then somebody else has been at the page.
//!
//! If the content has outgrown a page, it is split, in steps each of which leaves a right tree:
//!
//! 1. The page is held ([`Llama::hold`](deuteron_llama::Llama::hold)), and so is every right part but the last.
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
//! not leave memory while the index does not know its high key.
//!
//! Consolidation marks the pages that it leaves underfull, or with tombstones, for `merging`.

use crate::Tree;
use crate::chain::WholeChain;
use crate::page::merge::Merge;
use crate::page::run::Run;
use crate::page::split::Split;
use crate::page::{merged_bytes, write_merged};
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
        let Some(mut chain) = snapshot.head().and_then(WholeChain::collect) else {
            return Consolidation::NotWhole;
        };
        if is_planted(Canary::LoseDelta) {
            chain.deltas.pop();
        }
        let merge = Merge::new(chain.base, &chain.deltas, self.forget_below());
        // A page that is about to take another one over is not split; asked after the snapshot was taken, so that whoever
        // has seen it before that fails. The next consolidation splits.
        if merged_bytes(&merge) > self.options.page_bytes_max
            && self.heir.load(Ordering::SeqCst) != page.0
            && let Some(split) = Split::new(&merge, self.options.page_bytes_max)
        {
            return self.split(page, snapshot, &split, guard);
        }
        self.install_merged(page, snapshot, &merge, guard)
    }

    /// Consolidates a page without splitting it.
    pub(crate) fn consolidate_whole(
        &self,
        page: PageId,
        snapshot: Snapshot<'_>,
        chain: &WholeChain<'_>,
        guard: &Guard<'_>,
    ) -> Consolidation {
        let merge = Merge::new(chain.base, &chain.deltas, self.forget_below());
        self.install_merged(page, snapshot, &merge, guard)
    }

    fn install_merged(
        &self,
        page: PageId,
        snapshot: Snapshot<'_>,
        merge: &Merge<'_>,
        guard: &Guard<'_>,
    ) -> Consolidation {
        let base = scratch::with(merged_bytes(merge), |bytes| {
            write_merged(merge, bytes);
            debug_assert!(Run::verify(bytes).is_ok());
            self.mark_if_sparse(bytes);
            OwnedNode::base_with_slack(bytes, self.descriptor(merge.base().low()), &[], self.slack_bytes())
        });
        match self.llama.install(page, snapshot, base, guard) {
            Ok(_) => Consolidation::Done,
            Err(_) => Consolidation::Lost,
        }
    }

    /// Room for the next deltas of a page that is changed, as long as there is memory to spare.
    fn slack_bytes(&self) -> usize {
        if self.llama.has_spare_memory() { self.options.slack_bytes } else { 0 }
    }

    /// Whether a page of so many bytes should be merged, if it has a left neighbour with room.
    pub(crate) fn is_sparse(&self, bytes: usize) -> bool {
        bytes < self.options.page_bytes_max / 4
    }

    /// Marks a page that is about to get this base, if it is worth another look.
    pub(crate) fn mark_if_sparse(&self, base: &[u8]) {
        let run = Run::new(base);
        if run.tombstones() > 0 {
            let tombstones = (0..run.count()).filter(|&index| run.is_tombstone(index));
            self.marks.mark(run.low(), tombstones.map(|index| run.record(index).lsn).max());
        } else if self.is_sparse(base.len()) && !run.low().is_empty() {
            self.marks.mark(run.low(), None);
        }
    }

    fn split(
        &self,
        page: PageId,
        snapshot: Snapshot<'_>,
        split: &Split<'_>,
        guard: &Guard<'_>,
    ) -> Consolidation {
        let rights: Vec<PageId> = split.parts()[1..].iter().map(|_| self.llama.allocate()).collect();
        // All but the last part have a right neighbour that the index does not know. Held before they can be
        // flushed, that is before they are installed.
        let held = || std::iter::once(page).chain(rights.iter().copied()).take(rights.len());
        held().for_each(|left| self.llama.hold(left));
        for (index, &right) in (1..).zip(&rights) {
            let base = self.part(split, index, &rights, &[]);
            let free = self.llama.snapshot(right, guard);
            self.llama.install(right, free, base, guard).expect("nobody else knows the new page");
        }
        let left = self.part(split, 0, &rights, &rights);
        if self.llama.install(page, snapshot, left, guard).is_err() {
            held().for_each(|left| self.llama.release(left));
            rights.iter().for_each(|&right| self.abandon(right, guard));
            return Consolidation::Lost;
        }
        #[cfg(all(test, not(loom)))]
        interruption::strike();
        for ((part, &right), left) in split.parts()[1..].iter().zip(&rights).zip(held()) {
            self.post(&part.low, right, guard);
            self.llama.release(left);
        }
        self.counters.leaf_splits.add(rights.len() as u64);
        Consolidation::Done
    }

    /// Part `index` of a split as a base node.
    fn part(&self, split: &Split<'_>, index: usize, rights: &[PageId], adopts: &[PageId]) -> OwnedNode {
        let descriptor = self.descriptor(&split.parts()[index].low);
        scratch::with(split.bytes(index), |bytes| {
            split.write(index, rights.get(index).copied().unwrap_or(PageId::NONE), bytes);
            debug_assert!(Run::verify(bytes).is_ok());
            self.mark_if_sparse(bytes);
            OwnedNode::base_with_slack(bytes, descriptor, adopts, self.slack_bytes())
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

/// Lets a test do something at the worst moment: when a page has been split and nobody has been told.
#[cfg(all(test, not(loom)))]
mod interruption {
    use std::cell::RefCell;

    type Action = Box<dyn FnMut()>;

    thread_local! {
        static ACTION: RefCell<Option<Action>> = const { RefCell::new(None) };
    }

    /// Has `action` run at each split of this thread, but not during itself.
    pub(super) fn set(action: Action) {
        ACTION.set(Some(action));
    }

    pub(super) fn strike() {
        if let Some(mut action) = ACTION.take() {
            action();
            ACTION.set(Some(action));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Options, Upsert};
    use deuteron_device::MemoryDirectory;
    use deuteron_epoch::Epochs;
    use deuteron_llama::{FlushProgress, Llama};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// While a split is not posted, everything that can be flushed and evicted is, and then every key is written
    /// again. Without holds the left page is evicted, and takes upserts that belong to the right one.
    #[test]
    fn an_unposted_split_survives_eviction_and_blind_upserts() {
        let options = deuteron_llama::Options::default();
        let (llama, _) = Llama::open(Arc::new(MemoryDirectory::new()), options, Epochs::new()).unwrap();
        let tree = Arc::new(Tree::create(Arc::new(llama), 1, Options::tiny_for_tests()));
        // The stamp with which each key has been written last.
        let known: Arc<[AtomicU64]> = (0..60).map(|_| AtomicU64::new(0)).collect();
        let stamp = Arc::new(AtomicU64::new(1));
        let write = |tree: &Tree, known: &[AtomicU64], key: usize, stamp: u64| {
            let (bytes, value) = (key.to_be_bytes(), stamp.to_be_bytes());
            tree.upsert(&[Upsert { key: &bytes, value: Some(&value), stamp, lsn: stamp }]).unwrap();
            known[key].fetch_max(stamp, Ordering::Relaxed);
        };
        let (in_tree, in_known, in_stamp) = (Arc::downgrade(&tree), known.clone(), stamp.clone());
        interruption::set(Box::new(move || {
            let tree = in_tree.upgrade().unwrap();
            while let FlushProgress::Wrote { .. } = tree.llama.flush_step().unwrap() {}
            for _ in 0..3 {
                tree.llama.evict_step(u64::MAX);
            }
            let stamp = in_stamp.fetch_add(1, Ordering::Relaxed) + 1;
            for key in (0..in_known.len()).filter(|&key| in_known[key].load(Ordering::Relaxed) > 0) {
                write(&tree, &in_known, key, stamp);
            }
        }));
        for key in 0..known.len() {
            // Not ascending, so that right parts hold keys that are known already.
            write(&tree, &known, key * 37 % known.len(), stamp.load(Ordering::Relaxed));
        }
        assert!(tree.statistics().leaf_splits > 5 && tree.statistics().blind_deltas > 50);
        for (key, stamp) in known.iter().enumerate() {
            let found = tree.get(&key.to_be_bytes(), |record| record.unwrap().stamp).unwrap();
            assert_eq!(found, stamp.load(Ordering::Relaxed), "key {key}");
        }
        tree.check().unwrap();
    }
}
