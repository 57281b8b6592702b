//! [`FreeList`]: which page identifiers may be given out.
//!
//! An identifier goes round: given out, freed by `free_page`, *returned* once the epoch of the freeing has passed
//! (nobody can hold a snapshot of the old page any more), *free* once the flusher has forgotten the old page's
//! fragments. A mutex is enough: splits only come here, and a latch-free stack of identifiers is a known source
//! of bugs (noisepage replaced its own by this).

use crate::page_id::PageId;
use crate::sync::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::PoisonError;

pub(crate) struct FreeList {
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    returned: Vec<PageId>,
    free: Vec<PageId>,
    /// Further free ones, the lowest at the end.
    gaps: Vec<Range<u64>>,
    /// The lowest identifier never given out.
    next: u64,
}

impl FreeList {
    /// All but those in `used`, which ascend, and are below `next`.
    pub(crate) fn new(next: PageId, used: impl Iterator<Item = PageId>) -> FreeList {
        let (mut gaps, mut from) = (Vec::new(), 1);
        for page in used.chain([next]) {
            debug_assert!(!page.is_none() && page <= next);
            if from < page.0 {
                gaps.push(from..page.0);
            }
            from = page.0 + 1;
        }
        gaps.reverse();
        FreeList { lists: Mutex::new(Lists { gaps, next: next.0, ..Lists::default() }) }
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Every critical section leaves the lists whole, even where it could panic.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An identifier that nobody uses; `reserve` is called for it before any other thread can see it as given out.
    pub(crate) fn allocate(&self, reserve: impl FnOnce(PageId)) -> PageId {
        let mut lists = self.lists();
        if let Some(page) = lists.free.pop() {
            return page;
        }
        while let Some(gap) = lists.gaps.last_mut() {
            match gap.next() {
                Some(page) => return PageId(page),
                None => drop(lists.gaps.pop()),
            }
        }
        let page = PageId(lists.next);
        reserve(page);
        lists.next += 1;
        page
    }

    /// Every identifier given out so far is below.
    pub(crate) fn end(&self) -> PageId {
        PageId(self.lists().next)
    }

    /// Takes an identifier back; the epoch of its freeing has passed.
    pub(crate) fn give_back(&self, page: PageId) {
        self.lists().returned.push(page);
    }

    /// The identifiers taken back since the last call; the flusher forgets their fragments and then says so with
    /// [`FreeList::recycle`].
    pub(crate) fn take_returned(&self) -> Vec<PageId> {
        std::mem::take(&mut self.lists().returned)
    }

    /// Whether there are any.
    pub(crate) fn has_returned(&self) -> bool {
        !self.lists().returned.is_empty()
    }

    pub(crate) fn recycle(&self, pages: &[PageId]) {
        self.lists().free.extend_from_slice(pages);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_used_is_given_out_before_what_is_new() {
        let list = FreeList::new(PageId(8), [1, 2, 4, 7].map(PageId).into_iter());
        let given = || list.allocate(|page| assert!(page >= PageId(8))).0;
        assert_eq!([given(), given()], [3, 5]);
        list.recycle(&[PageId(2)]);
        assert_eq!(std::array::from_fn(|_| given()), [2, 6, 8, 9]);
        // However many there are.
        let list = FreeList::new(PageId(1 << 40), [PageId(1 << 39)].into_iter());
        assert_eq!(list.allocate(|_| {}), PageId(1));
        assert_eq!(FreeList::new(PageId(1), std::iter::empty()).allocate(|_| {}), PageId(1));
    }
}
