//! Eviction: what is durable leaves memory when the budget asks for it.
//!
//! A hand goes round the mapping table. A page that was touched since the hand last came by is spared once, and [packed](crate::pack) if it can do with less. Of the others the part that is durable leaves: all of the page, and its mapping word becomes the address; or what lies
//! below the deltas that are not flushed yet, and its address takes its place (*partial swap-out*). Pages that are not
//! durable at all stay, and the caller is told to flush.
//!
//! When memory is short, a flush evicts what it has made durable: under random updates nearly everything in memory is dirty, and
//! the hand would have to pass it all to find the few pages that are not.

use crate::llama::{Llama, chain};
use crate::load::OwnedChain;
use crate::mapping_table::Word;
use crate::page_id::PageId;
use crate::snapshot::Snapshot;
use crate::sync::Ordering;
use deuteron_epoch::Guard;

/// Pages that the hand passes under one guard.
const BATCH: u64 = 64;
/// Pages that one step looks at; at about a cache miss each, less than a millisecond.
const STEP_PAGES: u64 = 4096;

/// What a [`Llama::evict_step`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Bytes that the resident pages have become smaller by.
    pub bytes: u64,
    /// Pages that have left, entirely or in part.
    pub pages: u64,
    /// Pages that stay, and take less: nobody has used the room that they had for what comes.
    pub packed: u64,
    /// Pages passed that cannot leave before a flush.
    pub dirty: u64,
    /// Pages that have had their second chance.
    pub spared: u64,
}

/// What has become of a page that was passed.
pub(crate) enum Outcome {
    Evicted(u64),
    /// It takes so many bytes less, and all that it took lies elsewhere.
    Packed {
        freed: u64,
        moved: u64,
    },
    Dirty,
    Spared,
    /// Not resident, or somebody else is at it.
    Passed,
}

impl Llama {
    /// Evicts pages until about `target_bytes` bytes are freed or a few thousand pages have been looked at. Any number
    /// of threads may evict at once. No I/O: if pages are `dirty`, a [`Llama::flush_step`] makes them evictable.
    pub fn evict_step(&self, target_bytes: u64) -> Evicted {
        let mut evicted = Evicted::default();
        self.pass_pages(Self::evict, |outcome| {
            match outcome {
                Outcome::Evicted(bytes) => {
                    evicted.bytes += bytes;
                    evicted.pages += 1;
                }
                Outcome::Packed { freed, .. } => {
                    evicted.bytes += freed;
                    evicted.packed += 1;
                }
                Outcome::Dirty => evicted.dirty += 1,
                Outcome::Spared => evicted.spared += 1,
                Outcome::Passed => {}
            }
            evicted.bytes < target_bytes
        });
        evicted
    }

    /// Packs pages whose base is in the way of others ([`deuteron_pool::is_stranded`]) until about `target_bytes` bytes have been moved or a few thousand pages have been looked at: each is
    /// copied to where it takes as little as may be and is in nobody's way. How many bytes were moved; no page loses its second chance.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// assert_eq!(llama.pack_stranded_step(1 << 20), 0);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn pack_stranded_step(&self, target_bytes: u64) -> u64 {
        // The slots of this thread came from anywhere; those that it takes next lie where they shall.
        deuteron_pool::give_back();
        let mut moved_bytes = 0;
        self.pass_pages(Self::pack_stranded, |outcome| {
            if let Outcome::Packed { moved, .. } = outcome {
                moved_bytes += moved;
            }
            moved_bytes < target_bytes
        });
        moved_bytes
    }

    /// Lets the hand pass pages, a step's at most, and has `act` look after those in memory until `goes_on`, which hears of each, says that it is enough.
    fn pass_pages(
        &self,
        act: fn(&Self, PageId, &Guard<'_>) -> Outcome,
        mut goes_on: impl FnMut(Outcome) -> bool,
    ) {
        // Page 0 does not exist.
        let pages = self.pages.end().0.saturating_sub(1);
        let (mut looked, mut is_on) = (0, goes_on(Outcome::Passed));
        let mut resident = Vec::with_capacity(BATCH as usize);
        // Twice round at most: once to take the second chances away.
        while is_on && looked < STEP_PAGES.min(2 * pages) {
            // Relaxed: where exactly the hand is does not matter.
            let hand = self.evict_hand.fetch_add(BATCH, Ordering::Relaxed);
            let guard = self.epochs.pin();
            let first = hand % pages + 1;
            let count = BATCH.min(pages);
            let until_end = count.min(pages + 1 - first);
            resident.clear();
            for (from, count) in [(first, until_end), (1, count - until_end)] {
                self.table.resident(PageId(from)..PageId(from + count), |page| resident.push(page));
            }
            // Most of the time goes into waiting for the nodes, and the waits of a batch overlap.
            for &page in &resident {
                if let Some(head) = self.snapshot(page, &guard).head() {
                    head.prefetch(0..1);
                }
            }
            for &page in &resident {
                is_on = goes_on(act(self, page, &guard));
            }
            looked += BATCH.min(pages);
        }
    }

    /// Evicts those of `pages`, just flushed, that nobody has read lately, if memory is short. That they were written does not
    /// count: what is written to them next goes on top of what is left.
    pub(crate) fn evict_flushed(&self, pages: &[PageId]) {
        for batch in pages.chunks(BATCH as usize) {
            if self.memory.about() <= self.high_water() {
                return;
            }
            self.evict_unread(batch);
        }
    }

    /// Evicts those of `pages` that nobody has read lately.
    pub(crate) fn evict_unread(&self, pages: &[PageId]) {
        let guard = self.epochs.pin();
        for &page in pages {
            let snapshot = self.snapshot(page, &guard);
            if snapshot.head().is_some_and(|head| !head.is_touched()) {
                self.swap_out(page, snapshot, &guard);
            }
        }
    }

    /// A page with a second chance is packed as it loses it: it stays, and takes less.
    fn evict(&self, page: PageId, guard: &Guard<'_>) -> Outcome {
        let snapshot = self.snapshot(page, guard);
        match snapshot.head() {
            Some(head) if head.take_referenced() => {
                let is_stranded = self.looks_at_pool() && head.is_near_and_stranded();
                match self.pack(page, snapshot, is_stranded, guard) {
                    Outcome::Passed => Outcome::Spared,
                    packed => packed,
                }
            }
            _ => self.swap_out(page, snapshot, guard),
        }
    }

    fn pack_stranded(&self, page: PageId, guard: &Guard<'_>) -> Outcome {
        let snapshot = self.snapshot(page, guard);
        match snapshot.head() {
            Some(head) if head.is_stranded() => self.pack(page, snapshot, true, guard),
            _ => Outcome::Passed,
        }
    }

    fn swap_out(&self, page: PageId, snapshot: Snapshot<'_>, guard: &Guard<'_>) -> Outcome {
        let Some(head) = snapshot.head() else { return Outcome::Passed };
        if head.is_sealed() {
            // What is on flash is not enough: it would be taken for a page that takes blind deltas.
            return Outcome::Passed;
        }
        // Under the claim no flush changes the addresses (M3).
        let Some(_claim) = self.table.try_claim(page) else { return Outcome::Passed };
        // Read again: the page may have been rewritten before the claim, and its addresses with it. The chain is
        // the same if the word is, as the guard keeps its nodes from being used again.
        if self.table.word(page) != snapshot.word() {
            return Outcome::Passed;
        }
        let flushed = chain(head).find_map(|node| node.flash().map(|address| (node, address)));
        let Some((node, address)) = flushed.filter(|&(_, address)| self.store.is_durable(address)) else {
            if head.flash().is_none() {
                self.table.mark_dirty(page);
            }
            return Outcome::Dirty;
        };
        if node.as_ptr() == head.as_ptr() {
            if !self.table.replace(page, snapshot.word(), Word::Stored(address).encode()) {
                self.counters.mapping_lost.add(1);
                return Outcome::Passed;
            }
            self.counters.pages_evicted.add(1);
            let freed = head.chain_memory() as u64;
            self.retire(head, guard);
            return Outcome::Evicted(freed);
        }
        self.table.mark_dirty(page);
        let mut rest = OwnedChain::on_flash(address);
        rest.push_copies(chain(head).take_while(|above| above.as_ptr() != node.as_ptr()));
        let (before, after) = (head.chain_memory() as u64, rest.head().chain_memory() as u64);
        if before > after && self.publish_chain(page, snapshot, rest, guard) {
            self.counters.pages_evicted_in_part.add(1);
            return Outcome::Evicted(before - after);
        }
        Outcome::Dirty
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::node::{NodeKind, OwnedNode};
    use crate::options::Options;
    use crate::snapshot::PageState;
    use crate::test_bed::{flush, open, put};

    /// A store with durable pages of 100 bytes, all in memory, and what each takes there.
    fn durable(count: u64) -> (Llama, Vec<PageId>, u64) {
        let options = Options { memory_bytes: 1 << 20, ..Options::default() };
        let llama = open(options);
        let pages: Vec<_> = (0..count).map(|_| llama.allocate()).collect();
        pages.iter().for_each(|&page| put(&llama, page, &[7; 100]));
        flush(&llama);
        let one = llama.memory_bytes() / count;
        (llama, pages, one)
    }

    #[test]
    fn the_hand_goes_round_twice_and_each_page_has_a_second_chance() {
        for count in [10, 100, 128] {
            let (llama, _, one) = durable(count);
            let evicted = llama.evict_step(u64::MAX);
            assert_eq!(
                evicted,
                Evicted { bytes: count * one, pages: count, packed: 0, dirty: 0, spared: count }
            );
            assert_eq!((llama.memory_bytes(), llama.statistics().pages_evicted), (0, count));
        }
        // Twice round is enough.
        let (llama, ..) = durable(128);
        llama.evict_step(u64::MAX);
        assert_eq!(llama.evict_hand.load(Ordering::Relaxed), 256);
    }

    #[test]
    fn a_step_ends_with_the_batch_that_has_freed_enough() {
        let (llama, pages, one) = durable(128);
        let first = llama.evict_step(64 * one);
        assert_eq!(first, Evicted { bytes: 64 * one, pages: 64, packed: 0, dirty: 0, spared: 128 });
        assert_eq!(llama.evict_step(0), Evicted::default());
        let guard = llama.pin();
        let is_stored = |page: &PageId| matches!(llama.snapshot(*page, &guard).state(), PageState::Stored(_));
        assert!(pages[..64].iter().all(is_stored) && !pages[64..].iter().any(is_stored));
        drop(guard);
        assert_eq!(
            llama.evict_step(1),
            Evicted { bytes: 64 * one, pages: 64, packed: 0, dirty: 0, spared: 0 }
        );
    }

    #[test]
    fn a_step_looks_at_a_few_thousand_pages() {
        let (llama, _, one) = durable(3000);
        let expected = Evicted { bytes: 1096 * one, pages: 1096, packed: 0, dirty: 0, spared: 3000 };
        assert_eq!(llama.evict_step(u64::MAX), expected);
    }

    #[test]
    fn pages_that_are_not_durable_stay_and_are_counted() {
        let (llama, pages, one) = durable(20);
        pages[..5].iter().for_each(|&page| put(&llama, page, &[8; 100]));
        let evicted = llama.evict_step(u64::MAX);
        // Five are met once more.
        assert_eq!(evicted, Evicted { bytes: 15 * one, pages: 15, packed: 0, dirty: 5, spared: 20 });
        assert_eq!((llama.memory_bytes(), llama.dirty_pages()), (5 * one, 5));
    }

    #[test]
    fn what_lies_below_unflushed_deltas_leaves_and_they_stay_on_its_address() {
        let (llama, pages, one) = durable(1);
        let guard = llama.pin();
        for delta in [b"first", b"other"] {
            let delta = OwnedNode::delta(delta);
            llama.install(pages[0], llama.snapshot(pages[0], &guard), delta, &guard).unwrap();
        }
        let before = llama.memory_bytes();
        let head = llama.snapshot(pages[0], &guard).head().unwrap();
        assert!(head.take_referenced());
        let evicted = llama.evict_step(1);
        assert_eq!(
            evicted,
            Evicted { bytes: before - llama.memory_bytes(), pages: 1, packed: 0, dirty: 0, spared: 0 }
        );
        assert!(evicted.bytes > one / 2 && llama.is_missing(pages[0]));
        let head = llama.snapshot(pages[0], &guard).head().unwrap();
        let kinds: Vec<_> = chain(head).map(|node| (node.kind(), node.payload().to_vec())).collect();
        let delta = |payload: &[u8]| (NodeKind::Delta, payload.to_vec());
        assert_eq!(kinds, [delta(b"other"), delta(b"first")]);
        assert_eq!(llama.statistics().pages_evicted_in_part, 1);
        // There is nothing more to leave.
        assert!(head.take_referenced());
        let dirty = llama.evict_step(1);
        assert_eq!((dirty.pages, dirty.bytes, llama.dirty_pages()), (0, 0, 1));
    }

    #[test]
    fn what_was_just_flushed_leaves_only_if_memory_is_short_and_nobody_has_read_it() {
        let (llama, pages, one) = durable(100);
        llama.evict_flushed(&pages);
        assert_eq!(llama.memory_bytes(), 100 * one, "there is enough");
        let touch = |page: PageId| {
            let guard = llama.pin();
            llama.snapshot(page, &guard).head().unwrap().touch();
        };
        touch(pages[3]);
        // The high water is what is told of them now.
        let most = (llama.memory.about() / 15 + 1) * 16;
        llama.pages_bytes_max.store(most, Ordering::Relaxed);
        llama.evict_flushed(&pages);
        assert_eq!(llama.memory_bytes(), 100 * one);
        llama.pages_bytes_max.store(16, Ordering::Relaxed);
        llama.evict_flushed(&pages[..64]);
        assert_eq!(llama.memory_bytes(), 37 * one);
        assert!(!llama.is_missing(pages[3]) && llama.is_missing(pages[4]));
    }
}
