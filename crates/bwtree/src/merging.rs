//! Merging an underfull page, *right*, into its left neighbour, *left*.
//!
//! One merge at a time in a tree: `Tree::maintain_step` begins it under a lock that is only tried. Others never wait for it:
//! whoever meets an unfinished merge can finish it.
//!
//! | step | what | from here on |
//! |---|---|---|
//! | 1 | both pages are held; left is not split up to step 4, and gets a new base | left stays in memory whole: a base that was installed under a hold has no address, and is not flushed |
//! | 2 | the separator on right's right side is posted; right is sealed | right does not change |
//! | 3 | left's new base holds the content of both and disowns right | the merge is a fact |
//! | 4 | right's separator is taken out of the index, the holds are released | left may be flushed, and right freed once that is durable |
//!
//! Between 2 and 3 a reader that comes to right looks at left: if that still names right as its neighbour, what right holds
//! counts at that moment. A writer does step 3 itself ([`Tree::finish_merge`]), and writes to left. Nothing can stand in
//! its way but other changes of left, and those are progress. After step 3 everybody goes on to the page that covers right's
//! low key now.
//!
//! - **G1** Who comes by way of a sealed page finds that page through the index, as the one just left of right's low key, and
//!   needs it in memory whole, so that its own bounds decide (U1). The index is not asked about right's range (U2) before
//!   step 4, and step 4 comes after step 3.
//! - **G2** A separator is posted only after its page was seen unsealed, and after the node that is to take it was read.
//!   Taking a separator out replaces the node even if it was not there. So a belated helper of a split cannot bring it back.
//! - **G3** Right is never the first child of its inner node, whose low key must not change; if that is underfull, it is merged first. It does not become so
//!   before step 4 (X6 in `index`).
//! - **G4** Whether a merge has happened is told by the *identifier* of left's neighbour, not by the key at which left ends: after the
//!   merge left may be split again at that very key. Under a guard under which right was met, its identifier is not given out
//!   again, and a page does not live again.
//! - **G5** Until step 4 the index ends left where right began, so nobody may ask it for left's bounds (U2): left stays in memory, in one piece.
//!
//! At a crash the merge has happened, or has not; see [`Llama::seal`](deuteron_llama::Llama::seal).

use crate::chain::{WholeChain, base_of};
use crate::consolidate::Consolidation;
use crate::error::Miss;
use crate::interruption::{Moment, strike};
use crate::marks::Reason;
use crate::page::Joined;
use crate::page::merge::Merge;
use crate::sync::Ordering;
use crate::{BwTreeError, Tree, scratch};
use deuteron_epoch::Guard;
use deuteron_llama::{NodeRef, OwnedNode, PageId, PageState, Snapshot};

/// How often a step is tried again that another thread has got in the way of. Then the merge waits for a better moment.
const ATTEMPTS: usize = 8;

/// What has become of a page that was looked at.
enum Tidied {
    Done,
    /// It is to be looked at again, as it is now.
    Consolidated,
}

/// Where the content of a sealed page is.
pub(crate) enum Heir<'g> {
    /// Still in the page itself: its left neighbour as it is.
    Unmerged(PageId, Snapshot<'g>),
    /// In this page, or to the right of it.
    Merged(PageId),
}

impl Tree {
    /// Whether `page` lives and is not sealed. Under a guard under which its identifier was met.
    pub(crate) fn is_alive(&self, page: PageId, guard: &Guard<'_>) -> bool {
        match self.llama.snapshot(page, guard).state() {
            PageState::Free => false,
            PageState::Stored(_) => true,
            PageState::Resident(head) => !head.is_sealed(),
        }
    }

    /// Looks for the heir of page `right`, whose newest node is `sealed` (G1, G4).
    #[cold]
    pub(crate) fn heir_of<'g>(
        &self,
        right: PageId,
        sealed: NodeRef<'_>,
        guard: &'g Guard<'_>,
    ) -> Result<Heir<'g>, Miss> {
        let low = base_of(sealed).expect("a sealed page is whole").low();
        let mut page = self.index.find_before(Some(low), guard);
        // A sealed page on the way, and where it begins.
        let mut passed: Option<(PageId, &[u8])> = None;
        loop {
            let snapshot = self.llama.snapshot(page, guard);
            let head = match snapshot.state() {
                PageState::Resident(head) if !head.is_partial() => head,
                PageState::Free => {
                    // Merged and freed since the index was asked.
                    page = self.index.find_before(Some(low), guard);
                    continue;
                }
                PageState::Resident(_) | PageState::Stored(_) => return Err(Miss(page)),
            };
            let base = base_of(head).expect("the chain is whole");
            if head.is_sealed() {
                passed = Some((page, base.low()));
                page = self.index.find_before(Some(base.low()), guard);
                continue;
            }
            match base.high() {
                Some(high) if high <= low => match passed {
                    _ if base.right() == right => return Ok(Heir::Unmerged(page, snapshot)),
                    // That one is not merged itself yet, so it is the one.
                    Some((passed, begins)) if begins == high && base.right() == passed => {
                        return Ok(Heir::Merged(passed));
                    }
                    _ => page = self.go_right(page, high, base.right(), guard)?,
                },
                _ => return Ok(Heir::Merged(page)),
            }
        }
    }

    /// Installs the base of `left` that holds what `left` and `right` hold, if `left` is still `snapshot`: step 3.
    pub(crate) fn finish_merge(
        &self,
        left: PageId,
        snapshot: Snapshot<'_>,
        right: PageId,
        sealed: NodeRef<'_>,
        guard: &Guard<'_>,
    ) -> bool {
        let whole = |head| WholeChain::new(head).expect("both pages are in memory whole");
        let (left_chain, right_chain) = (whole(snapshot.head().expect("resident")), whole(sealed));
        let forget_below = self.forget_below();
        let merges = [
            Merge::new(left_chain.base, left_chain.deltas(), forget_below),
            Merge::new(right_chain.base, right_chain.deltas(), forget_below),
        ];
        let joined = Joined::new(&merges);
        let base = scratch::with(joined.bytes(), |bytes| {
            joined.write(bytes);
            self.mark_if_sparse(bytes);
            OwnedNode::heir(bytes, self.descriptor(left_chain.base.low()), &[], &[right])
        });
        strike(Moment::Step);
        self.llama.install(left, snapshot, base, guard).is_ok()
    }

    /// Does one piece of what consolidations have left to do: rewrites a page whose tombstones may be forgotten by now, or
    /// merges an underfull page into its left neighbour, loading both. Whether there was something to look at. One thread
    /// at a time does this in a tree; others are told that there is nothing.
    ///
    /// # Errors
    /// [`BwTreeError::Load`]. The page is looked at again later.
    ///
    /// ```
    /// # use deuteron_bwtree::{Options, Tree, Upsert};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
    /// for (round, value) in [(1, Some(&b"a value of thirty-two bytes or so"[..])), (2, None)] {
    ///     for number in 0u64..1000 {
    ///         tree.upsert(&[Upsert { key: &number.to_be_bytes(), value, stamp: round, lsn: round }])?;
    ///     }
    /// }
    /// let leaves = tree.check()?.leaves;
    /// while tree.llama().flush_step()? != deuteron_llama::FlushProgress::Nothing {}
    /// tree.forget_tombstones_below(3);
    /// for _ in 0..2 {
    ///     while tree.maintain_step()? {}
    ///     while tree.llama().flush_step()? != deuteron_llama::FlushProgress::Nothing {}
    ///     tree.retry_merges();
    /// }
    /// assert!(tree.check()?.leaves < leaves);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn maintain_step(&self) -> Result<bool, BwTreeError> {
        let Ok(_one_at_a_time) = self.merging.try_lock() else { return Ok(false) };
        let Some((low, reason)) = self.marks.take(self.forget_below()) else { return Ok(false) };
        let tidied = self.tidy(&low, reason);
        if tidied.is_err() {
            self.marks.postpone(low, reason);
        }
        tidied.map(|()| true)
    }

    /// Has [`Tree::maintain_step`] look at some leaves, a few hundred from the first that begins at `from` or behind, whatever is known of them,
    /// and merge each with its left neighbour if both fill at most seven eighths of a page, however full it is; for compaction.
    /// Where to go on, or `None` at the end.
    pub fn mark_some(&self, from: &[u8]) -> Option<Vec<u8>> {
        let mut lows = Vec::new();
        let next = self.some_leaves(from, |low, _| lows.push(low.to_vec()));
        self.marks.mark_all(lows, Reason::Asked);
        next
    }

    /// Looks again at the pages that could not be merged as they, or their left neighbours, had to be flushed first. To be
    /// called after a flush or a checkpoint.
    pub fn retry_merges(&self) {
        self.marks.retry();
    }

    /// Looks after the page that begins at `low`, if there still is one.
    fn tidy(&self, low: &[u8], reason: Reason) -> Result<(), BwTreeError> {
        for _ in 0..ATTEMPTS {
            let missing = match self.try_tidy(low, reason, &self.llama.pin()) {
                Ok(Tidied::Done) => return Ok(()),
                Ok(Tidied::Consolidated) => continue,
                Err(Miss(page)) => page,
            };
            self.load(missing)?;
        }
        // The memory is too small for both pages, or there is too much going on.
        self.marks.postpone(low.to_vec(), reason);
        Ok(())
    }

    fn try_tidy(&self, low: &[u8], reason: Reason, guard: &Guard<'_>) -> Result<Tidied, Miss> {
        let target = self.target(low, guard)?;
        let chain = target.snapshot.head().and_then(WholeChain::new).ok_or(Miss(target.page))?;
        if chain.base.low() != low {
            return Ok(Tidied::Done);
        }
        let merge = Merge::new(chain.base, chain.deltas(), self.forget_below());
        if !chain.is_base() || merge.count() < chain.base.count() {
            // This marks the page again, if there is reason to.
            if self.consolidate_page(target.page, target.snapshot, guard) != Consolidation::Done {
                self.marks.postpone(low.to_vec(), reason);
                return Ok(Tidied::Done);
            }
            return Ok(if reason == Reason::Asked { Tidied::Consolidated } else { Tidied::Done });
        }
        let is_asked = reason == Reason::Asked;
        if low.is_empty() || !(is_asked || self.is_sparse(&chain.base)) {
            return Ok(Tidied::Done);
        }
        if self.index.begins_node(low, guard) {
            self.tidy_index(low, guard);
            if self.index.begins_node(low, guard) {
                return Ok(Tidied::Done);
            }
        }
        let left = self.target_before(low, guard)?;
        let left_chain = left.1.head().and_then(WholeChain::new).ok_or(Miss(left.0))?;
        let left_merge = Merge::new(left_chain.base, left_chain.deltas(), self.forget_below());
        let page_bytes_max = self.options.page_bytes_max;
        let most = page_bytes_max / 8 * if is_asked { 7 } else { 6 };
        if merge.count() > 0 && Joined::new(&[left_merge, merge]).counted(page_bytes_max) > most {
            return Ok(Tidied::Done);
        }
        if !self.merge(left.0, low, target.page, guard) {
            self.marks.postpone(low.to_vec(), reason);
        }
        Ok(Tidied::Done)
    }

    /// The page that ends at `low`, in memory whole.
    fn target_before<'g>(&self, low: &[u8], guard: &'g Guard<'_>) -> Result<(PageId, Snapshot<'g>), Miss> {
        let mut page = self.index.find_before(Some(low), guard);
        loop {
            // What is looked at is what is answered: the page may be split at any time.
            let snapshot = self.llama.snapshot(page, guard);
            let Some(head) = Self::resident_head(page, snapshot)? else {
                page = self.index.find_before(Some(low), guard);
                continue;
            };
            if head.is_sealed() {
                match self.heir_of(page, head, guard)? {
                    Heir::Merged(heir) => page = heir,
                    // There is no merge under way but ours, which has not begun.
                    Heir::Unmerged(..) => return Err(Miss(page)),
                }
                continue;
            }
            let base = base_of(head).ok_or(Miss(page))?;
            match base.high() {
                Some(high) if high < low => page = self.go_right(page, high, base.right(), guard)?,
                _ => {
                    strike(Moment::Step);
                    return Ok((page, snapshot));
                }
            }
        }
    }

    /// Merges `right`, which begins at `low`, into `left`. `false` if that is not possible now; then nothing has changed.
    fn merge(&self, left: PageId, low: &[u8], right: PageId, guard: &Guard<'_>) -> bool {
        strike(Moment::Step);
        let is_settled = self.llama.is_settled(left) && self.llama.is_settled(right);
        if !is_settled || !self.index.begin_removal(low, right, guard) {
            return false;
        }
        self.llama.hold(left);
        self.llama.hold(right);
        strike(Moment::Step);
        self.heir.store(left.0, Ordering::SeqCst);
        let merged = self.merge_held(left, low, right, guard);
        if merged {
            strike(Moment::Merged);
            // Step 4. G5 would not hold any more if a page that is gone stayed in the index.
            assert!(self.index.remove(low, right, guard), "a merged page has become a first child (G3)");
        }
        strike(Moment::Step);
        self.index.end_removal();
        self.heir.store(0, Ordering::SeqCst);
        self.llama.release(right);
        self.llama.release(left);
        if merged {
            self.tidy_index(low, guard);
        }
        merged
    }

    /// Merges inner nodes around `low`. The leaf with which one of them began can be merged now.
    fn tidy_index(&self, low: &[u8], guard: &Guard<'_>) {
        self.marks.mark_all(self.index.tidy(low, guard), Reason::Found);
    }

    /// Steps 1 to 3.
    fn merge_held(&self, left: PageId, low: &[u8], right: PageId, guard: &Guard<'_>) -> bool {
        let renewed = (0..ATTEMPTS).any(|_| self.renew(left, low, right, guard));
        strike(Moment::Step);
        let Some(sealed) = renewed.then(|| self.seal(low, right, guard)).flatten() else { return false };
        loop {
            strike(Moment::Step);
            let snapshot = self.llama.snapshot(left, guard);
            let head = snapshot.head().expect("a held page with a new base stays in memory");
            let base = base_of(head).expect("and it stays whole");
            // Another thread may have been faster.
            if base.right() != right || self.finish_merge(left, snapshot, right, sealed, guard) {
                self.counters.leaf_merges.add(1);
                return true;
            }
        }
    }

    /// Gives `left` a new base, so that it stays in memory as long as it is held, if `right` is its neighbour.
    fn renew(&self, left: PageId, low: &[u8], right: PageId, guard: &Guard<'_>) -> bool {
        let snapshot = self.llama.snapshot(left, guard);
        let Some(chain) = snapshot.head().filter(|head| !head.is_sealed()).and_then(WholeChain::new) else {
            return false;
        };
        chain.base.high() == Some(low)
            && chain.base.right() == right
            && self.consolidate_whole(left, snapshot, &chain, guard) == Consolidation::Done
    }

    /// Step 2.
    fn seal<'g>(&self, low: &[u8], right: PageId, guard: &'g Guard<'_>) -> Option<NodeRef<'g>> {
        for _ in 0..ATTEMPTS {
            let snapshot = self.llama.snapshot(right, guard);
            let head = snapshot.head().filter(|head| !head.is_partial() && !head.is_sealed())?;
            let base = base_of(head)?;
            debug_assert_eq!(base.low(), low);
            if let Some(high) = base.high() {
                // If right is split after this, its chain is another, and the seal fails.
                self.post(high, base.right(), guard);
            }
            strike(Moment::Step);
            if let Ok(sealed) = self.llama.seal(right, snapshot, guard) {
                return sealed.head();
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::interruption::Bed;

    /// G5. If the left page is split, or leaves memory, it takes upserts as if it ended where the right one began.
    #[test]
    fn a_merge_that_the_index_does_not_know_of_survives_eviction_and_blind_upserts() {
        const KEYS: usize = 240;
        let bed = Bed::new(KEYS);
        (0..KEYS).for_each(|key| bed.write(key));
        bed.at_interruptions(|bed| {
            bed.evict();
            // The pages fill again.
            (0..KEYS).for_each(|key| bed.write(key));
            bed.evict();
            bed.rewrite();
        });
        for _ in 0..20 {
            (0..KEYS).filter(|key| key % 12 > 0).for_each(|key| bed.delete(key));
            bed.flush();
            bed.forget_tombstones();
            bed.tree.retry_merges();
            while bed.tree.maintain_step().unwrap() {}
        }
        assert!(bed.tree.statistics().leaf_merges > 5, "{:?}", bed.tree.statistics());
        assert!(bed.tree.statistics().blind_deltas > 50, "{:?}", bed.tree.statistics());
        bed.verify();
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
