//! [`FreeList`]: which page identifiers may be given out.
//!
//! An identifier goes round: given out, freed by `free_page`, *returned* once the epoch of the freeing has passed
//! (nobody can hold a snapshot of the old page any more), *free* once the flusher has forgotten the old page's
//! fragments. A mutex is enough: splits only come here, and a latch-free stack of identifiers is a known source
//! of bugs (noisepage replaced its own by this).

use crate::page_id::PageId;
use crate::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;

pub(crate) struct FreeList {
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    returned: Vec<PageId>,
    free: Vec<PageId>,
    /// The lowest identifier never given out.
    next: u64,
}

impl FreeList {
    /// All from `next` on are free, and those in `free`.
    pub(crate) fn new(next: PageId, free: Vec<PageId>) -> FreeList {
        debug_assert!(!next.is_none() && free.iter().all(|page| !page.is_none() && *page < next));
        FreeList { lists: Mutex::new(Lists { returned: Vec::new(), free, next: next.0 }) }
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
