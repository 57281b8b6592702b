//! [`Fetched`]: the dirty pages that a flush comes to next, asked of memory before it needs them.

use crate::llama::Llama;
use crate::page_id::PageId;
use crate::sync::Ordering;
use std::mem;
use std::ops::Range;

/// Dirty pages that are asked of memory together.
const FETCHED: usize = 16;

/// The dirty pages that come next, asked of memory together: else the flush would wait for each page's entry, then for its word's node, one
/// after the other, and all that is written passes it. One revolution: from where the flush is to the end, then from the first page to there. What several threads fetch at the
/// same time is not the same, as the flush is soon behind what one has fetched.
pub(crate) struct Fetched<'l> {
    llama: &'l Llama,
    pages: [PageId; FETCHED],
    from: usize,
    to: usize,
    /// What is left of the part of the revolution, once it has begun.
    left: Option<Range<u64>>,
    is_first_part: bool,
    /// Where the revolution began.
    start: u64,
}

impl<'l> Fetched<'l> {
    /// The revolution begins when the first page is asked for.
    pub(crate) fn new(llama: &'l Llama) -> Fetched<'l> {
        Fetched {
            llama,
            pages: Default::default(),
            from: 0,
            to: 0,
            left: None,
            is_first_part: true,
            start: 0,
        }
    }

    /// The next page that is dirty. One that was when it was fetched counts: that it has been flushed since, with a page that adopts it, does no
    /// harm.
    pub(crate) fn next(&mut self) -> Option<PageId> {
        while self.from == self.to && !self.fetch() {
            if !mem::take(&mut self.is_first_part) {
                return None;
            }
            self.left = Some(1..self.start);
        }
        let page = self.pages[self.from..self.to].first().copied();
        self.from += 1;
        page
    }

    /// The pages that were fetched and not asked for, the first of them last.
    pub(crate) fn rest(&self) -> impl Iterator<Item = PageId> {
        self.pages[self.from..self.to].iter().rev().copied()
    }

    /// Fetches what comes next in this part of the revolution; whether there is anything.
    fn fetch(&mut self) -> bool {
        let Fetched { llama, pages, .. } = self;
        (self.from, self.to) = (0, 0);
        loop {
            // Relaxed: a hint of where to look.
            let hand = llama.flush_hand.load(Ordering::Relaxed);
            let left = self.left.get_or_insert_with(|| {
                let end = llama.pages.end().0;
                self.start = hand.min(end);
                self.start..end
            });
            // Others have fetched what lies before the hand.
            let mut next = if left.contains(&hand) { hand } else { left.start };
            let mut count = 0;
            while count < FETCHED
                && let Some(page) = llama.table.next_dirty(PageId(next), PageId(left.end))
            {
                llama.table.prefetch(page);
                pages[count] = page;
                (count, next) = (count + 1, page.0 + 1);
            }
            if count == 0 {
                return false;
            }
            let advanced =
                llama.flush_hand.compare_exchange(hand, next, Ordering::Relaxed, Ordering::Relaxed);
            if advanced.is_ok() {
                (left.start, self.to) = (next, count);
                break;
            }
        }
        let guard = llama.epochs.pin();
        for &page in &pages[..self.to] {
            if let Some(head) = llama.snapshot(page, &guard).head() {
                head.prefetch(0..4);
            }
        }
        true
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::test_bed::{flush, open, put};

    #[test]
    fn all_dirty_pages_between_hand_and_limit_come_once_and_in_order() {
        let llama = open(Options::tiny_for_tests());
        let pages: Vec<_> = (0..5 * FETCHED as u64).map(|_| llama.allocate()).collect();
        pages.iter().for_each(|&page| put(&llama, page, b"page"));
        flush(&llama);
        let dirty: Vec<_> = pages.iter().copied().filter(|page| page.0 % 3 > 0).collect();
        dirty.iter().for_each(|&page| put(&llama, page, b"again"));
        let fetched = |hand: PageId| {
            llama.flush_hand.store(hand.0, Ordering::Relaxed);
            Fetched::new(&llama)
        };
        for begin in [0, 1, dirty.len() - 1] {
            let mut round = fetched(dirty[begin]);
            let expected = [&dirty[begin..], &dirty[..begin]].concat();
            assert_eq!(std::iter::from_fn(|| round.next()).collect::<Vec<_>>(), expected);
            assert_eq!(round.rest().count(), 0);
        }
        let end = llama.pages.end();
        assert_eq!(std::iter::from_fn(|| fetched(end).next()).take(1).collect::<Vec<_>>(), dirty[..1]);
    }

    #[test]
    fn two_threads_share_the_dirty_pages() {
        let llama = open(Options::tiny_for_tests());
        let pages: Vec<_> = (0..5 * FETCHED as u64).map(|_| llama.allocate()).collect();
        pages.iter().for_each(|&page| put(&llama, page, b"page"));
        let (mut one, mut other) = (Fetched::new(&llama), Fetched::new(&llama));
        let first: Vec<_> = std::iter::from_fn(|| one.next()).take(3).collect();
        assert_eq!(first, pages[..3]);
        let second: Vec<_> = std::iter::from_fn(|| other.next()).take(FETCHED).collect();
        assert_eq!(second, pages[FETCHED..2 * FETCHED]);
        let rest: Vec<_> = one.rest().collect();
        assert!(rest.iter().rev().eq(&pages[3..FETCHED]));
        let third: Vec<_> = std::iter::from_fn(|| one.next()).take(FETCHED + 1 - 3).collect();
        assert_eq!(third[FETCHED - 3..], pages[2 * FETCHED..2 * FETCHED + 1]);
    }
}
