//! Packing: a page in memory is copied to where it takes no more than it needs, or to where it is not in the way.
//!
//! A base keeps the [slack](crate::OwnedNode::base_with_slack) it was given, and its slot, for as long as it lives. When memory is short, what nobody has used of
//! the first is worth more to pages that would leave for want of it; and slots that are free in spans with one such base left are worth nothing to slots of any other size. To copy a
//! page takes less than a microsecond, to read it again a hundred times as much. What is copied says the same, so that it takes the place of the other like a page that
//! was [loaded](crate::Llama::load), with the addresses and the kin that it had: under the page's claim no flush changes these (M3).

use crate::evict::Outcome;
use crate::llama::{Llama, chain};
use crate::load::OwnedChain;
use crate::node::{NodeRef, OwnedNode, SLACK_UNIT};
use crate::page_id::PageId;
use crate::snapshot::Snapshot;
use deuteron_epoch::Guard;

impl Llama {
    /// Copies a page that is whole in memory, if it takes less then; or also if it takes as much, if it `must_move` and the copy is not [stranded](NodeRef::is_stranded).
    pub(crate) fn pack(
        &self,
        page: PageId,
        snapshot: Snapshot<'_>,
        must_move: bool,
        guard: &Guard<'_>,
    ) -> Outcome {
        let Some(head) = snapshot.head().filter(|head| !head.is_sealed()) else { return Outcome::Passed };
        // Told by the head alone: the hand is not to wait for each base that it passes.
        if !must_move && head.unused_slack_bytes() < SLACK_UNIT {
            return Outcome::Passed;
        }
        let Some(base) = head.base() else { return Outcome::Passed };
        let Some(_claim) = self.table.try_claim(page) else { return Outcome::Passed };
        // Read again, as the addresses and the kin may have changed before the claim. The chain is the same if the word is.
        if self.table.word(page) != snapshot.word() {
            return Outcome::Passed;
        }
        let copy = OwnedChain::packed(head, base);
        copy.head().copy_referenced(head);
        let (before, after) = (head.chain_memory() as u64, copy.head().chain_memory() as u64);
        let is_better = after < before || must_move && !copy.head().is_stranded();
        if !is_better || !self.publish_chain(page, snapshot, copy, guard) {
            return Outcome::Passed;
        }
        self.counters.pages_packed.add(1);
        Outcome::Packed { freed: before.saturating_sub(after), moved: before }
    }
}

impl OwnedChain {
    /// A copy of the chain from `head` down to its `base`, with a slack that has room for its deltas, as far as may be.
    fn packed(head: NodeRef<'_>, base: NodeRef<'_>) -> OwnedChain {
        let deltas = || chain(head).take_while(|node| node.as_ptr() != base.as_ptr());
        let slack_bytes = deltas().map(NodeRef::bytes_in_slack).sum::<usize>().next_multiple_of(SLACK_UNIT);
        let descriptor = base.descriptor().expect("a base has a descriptor");
        // What a flush has taken it has told of.
        let kin = if base.flash().is_none() { base.kin() } else { (&[][..], &[][..]) };
        let copy = OwnedNode::successor(base.payload(), descriptor, &[], slack_bytes, kin);
        copy.copy_flash(base);
        let mut copies = OwnedChain::new(copy);
        copies.push_copies(deltas());
        copies
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::evict::Evicted;
    use crate::node::{NodeKind, PageDescriptor};
    use crate::options::Options;
    use crate::test_bed::{flush, open, put};

    const DESCRIPTOR: PageDescriptor<'_> = PageDescriptor { tree: 1, low_key: b"low", root: true };

    /// A page with this base, and room for a kilobyte of deltas.
    fn with_slack(llama: &Llama, payload: &[u8], adopts: &[PageId]) -> PageId {
        let (page, guard) = (llama.allocate(), llama.pin());
        let free = llama.snapshot(page, &guard);
        llama.install_base(page, free, payload, DESCRIPTOR, adopts, 1024, &guard).unwrap();
        page
    }

    fn delta(llama: &Llama, page: PageId, payload: &[u8]) {
        let guard = llama.pin();
        let write = |bytes: &mut [u8]| bytes.copy_from_slice(payload);
        llama.install_delta(page, llama.snapshot(page, &guard), payload.len(), write, &guard).unwrap();
    }

    fn pack(llama: &Llama, page: PageId, must_move: bool) -> bool {
        let guard = llama.pin();
        let packed = llama.pack(page, llama.snapshot(page, &guard), must_move, &guard);
        matches!(packed, Outcome::Packed { .. })
    }

    /// Of each node from the newest on: what it is, whether it is durable, what it says.
    fn nodes(llama: &Llama, page: PageId) -> Vec<(NodeKind, bool, Vec<u8>)> {
        let guard = llama.pin();
        let head = llama.snapshot(page, &guard).head().unwrap();
        chain(head).map(|node| (node.kind(), node.flash().is_some(), node.payload().to_vec())).collect()
    }

    #[test]
    fn a_page_gives_back_the_room_that_nobody_has_used_before_it_leaves() {
        let llama = open(Options { memory_bytes: 1 << 20, ..Options::default() });
        let page = with_slack(&llama, &[7; 500], &[]);
        flush(&llama);
        let (before, said) = (llama.memory_bytes(), nodes(&llama, page));
        let packed = llama.evict_step(1);
        assert_eq!(packed, Evicted { bytes: before - llama.memory_bytes(), packed: 1, ..Evicted::default() });
        assert!(packed.bytes >= 1000 && nodes(&llama, page) == said);
        assert_eq!(llama.statistics().pages_packed, 1);
        // It has lost its second chance with that, and is durable as it was.
        let evicted = llama.evict_step(1);
        assert_eq!((evicted.pages, evicted.packed, evicted.spared, llama.memory_bytes()), (1, 0, 0, 0));
        llama.load(page).unwrap();
        assert_eq!(nodes(&llama, page), said);
    }

    #[test]
    fn what_is_packed_says_the_same_and_is_flushed_and_changed_as_before() {
        let llama = open(Options { memory_bytes: 1 << 20, ..Options::default() });
        let right = with_slack(&llama, b"right", &[]);
        let page = with_slack(&llama, &[7; 500], &[right]);
        for number in 0..2 {
            delta(&llama, page, &[number; 100]);
        }
        let said = nodes(&llama, page);
        assert!(pack(&llama, page, false) && nodes(&llama, page) == said);
        {
            let guard = llama.pin();
            let head = llama.snapshot(page, &guard).head().unwrap();
            assert!(head.is_near() && head.base().unwrap().slack_bytes() == 384);
            assert_eq!((head.base().unwrap().kin(), head.chain_length()), ((&[right][..], &[][..]), 2));
        }
        assert!(!pack(&llama, page, false), "there is nothing more to gain");
        flush(&llama);
        assert!(nodes(&llama, page).iter().all(|(_, is_flushed, _)| *is_flushed));
        // The next lie in what is left of the slack, and then elsewhere.
        delta(&llama, page, &[2; 50]);
        delta(&llama, page, &[3; 400]);
        let said = nodes(&llama, page);
        assert_eq!(said.iter().filter(|(_, is_flushed, _)| *is_flushed).count(), 3);
        let before = llama.memory_bytes();
        // All of them lie in a slack again.
        assert!(pack(&llama, page, true));
        {
            let guard = llama.pin();
            let head = llama.snapshot(page, &guard).head().unwrap();
            assert!(head.is_near() && head.base().unwrap().slack_bytes() == 896);
        }
        assert_eq!(nodes(&llama, page), said);
        assert!(llama.memory_bytes() <= before + before / 8, "{} after {before}", llama.memory_bytes());
        flush(&llama);
        let mut payloads: Vec<_> = said.into_iter().map(|(_, _, payload)| payload).collect();
        while llama.evict_step(u64::MAX).pages > 0 {}
        llama.load(page).unwrap();
        let loaded: Vec<_> = nodes(&llama, page).into_iter().map(|(_, _, payload)| payload).collect();
        payloads.truncate(loaded.len());
        assert_eq!(loaded, payloads);
    }

    #[test]
    fn pages_that_are_not_whole_or_take_no_changes_or_are_busy_stay_as_they_are() {
        let llama = open(Options { memory_bytes: 1 << 20, ..Options::default() });
        let page = with_slack(&llama, &[7; 500], &[]);
        {
            let _claim = llama.table.try_claim(page).unwrap();
            assert!(!pack(&llama, page, false), "a flush may be at it");
        }
        let guard = llama.pin();
        let old = llama.snapshot(page, &guard);
        delta(&llama, page, b"newer");
        assert!(matches!(llama.pack(page, old, false, &guard), Outcome::Passed), "it has changed");
        drop(guard);
        flush(&llama);
        while llama.evict_step(u64::MAX).pages > 0 {}
        assert!(!pack(&llama, page, true), "it is on flash only");
        delta(&llama, page, b"blind");
        assert!(!pack(&llama, page, true), "its base is on flash only");
        let sealed = with_slack(&llama, &[7; 500], &[]);
        flush(&llama);
        let guard = llama.pin();
        llama.seal(sealed, llama.snapshot(sealed, &guard), &guard).unwrap();
        assert!(!pack(&llama, sealed, true), "it takes no changes");
        assert_eq!(llama.statistics().pages_packed, 1, "as it was evicted");
    }

    #[test]
    #[cfg_attr(miri, ignore = "nodes do not lie in the pool")]
    fn what_is_in_the_way_is_moved_and_keeps_its_second_chance() {
        let llama = open(Options { memory_bytes: 64 << 20, ..Options::default() });
        let pages: Vec<_> = (0..400).map(|_| llama.allocate()).collect();
        // No other test has nodes of this size, of which five have a span.
        pages.iter().for_each(|&page| put(&llama, page, &[7; 12_500]));
        flush(&llama);
        assert_eq!(llama.pack_stranded_step(u64::MAX), 0, "no slot is free");
        let (left, gone): (Vec<_>, Vec<_>) = pages.iter().partition(|page| page.0 % 4 == 0);
        llama.evict_unread(&gone);
        while llama.epochs.collect() > 0 {}
        deuteron_pool::give_back();
        let (before, one) = (llama.memory_bytes(), llama.memory_bytes() / left.len() as u64);
        let moved = llama.pack_stranded_step(u64::MAX) / one;
        let packed = llama.statistics().pages_packed;
        assert!((10..90).contains(&moved) && moved == packed, "{moved} {packed}");
        assert_eq!(llama.memory_bytes(), before, "they take as much");
        // What they have left is free, and most of it in spans that are.
        while llama.epochs.collect() > 0 {}
        deuteron_pool::give_back();
        let again = llama.pack_stranded_step(u64::MAX) / one;
        assert!(again < moved, "{again} after {moved}");
        let spared = llama.evict_step(0).spared + llama.evict_step(u64::MAX).spared;
        assert!(spared >= left.len() as u64 - again, "{spared}");
    }
}
