//! [`Fetched`]: the dirty pages that a flush comes to next, asked of memory before it needs them.

use crate::llama::Llama;
use crate::page_id::PageId;

/// Dirty pages that are asked of memory together.
const FETCHED: usize = 16;

/// The dirty pages that come next, asked of memory together: else the flush would wait for each page's entry, then for its word's node, one
/// after the other, and all that is written passes it.
#[derive(Default)]
pub(crate) struct Fetched {
    pages: [PageId; FETCHED],
    from: usize,
    to: usize,
}

impl Fetched {
    /// The first page from `hand` on that is dirty, and lies below `limit`. One that was when it was fetched counts: that it has been flushed
    /// since, with a page that adopts it, does no harm.
    pub(crate) fn next(&mut self, llama: &Llama, hand: PageId, limit: PageId) -> Option<PageId> {
        if self.from == self.to {
            self.fetch(llama, hand, limit);
        }
        let page = *self.pages[self.from..self.to].first()?;
        self.from += 1;
        Some(page)
    }

    fn fetch(&mut self, llama: &Llama, mut hand: PageId, limit: PageId) {
        (self.from, self.to) = (0, 0);
        while self.to < FETCHED
            && let Some(page) = llama.table.next_dirty(hand, limit)
        {
            llama.table.prefetch(page);
            self.pages[self.to] = page;
            (self.to, hand) = (self.to + 1, PageId(page.0 + 1));
        }
        let guard = llama.epochs.pin();
        let mut nodes = [None; FETCHED];
        for (node, &page) in nodes.iter_mut().zip(&self.pages[..self.to]) {
            *node = llama.snapshot(page, &guard).head();
            if let Some(head) = node {
                head.prefetch(0..4);
            }
        }
        // Below the newest a stub, mostly.
        nodes.iter().flatten().filter_map(|node| node.next()).for_each(|below| below.prefetch(0..1));
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
        let (hand, limit) = (dirty[1], dirty[dirty.len() - 1]);
        let mut fetched = Fetched::default();
        let mut from = hand;
        let next = || {
            let page = fetched.next(&llama, from, limit)?;
            from = PageId(page.0 + 1);
            Some(page)
        };
        assert_eq!(std::iter::from_fn(next).collect::<Vec<_>>(), dirty[1..dirty.len() - 1]);
        assert_eq!(fetched.next(&llama, limit, limit), None);
    }
}
