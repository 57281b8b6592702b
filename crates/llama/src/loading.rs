//! [`Loading`]: which pages are being loaded, so that each is read once however many need it.

use crate::page_id::PageId;
use crate::sync::{Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;

/// Pages are spread over so many lists, so that threads that load different pages do not meet.
const SHARDS: usize = 64;

/// The pages that are being loaded. A thread that holds a [`LoadTicket`] waits for nothing but the device, so
/// that whoever waits for it waits for the device, too.
pub(crate) struct Loading {
    shards: Box<[Shard]>,
}

#[derive(Default)]
struct Shard {
    list: Mutex<List>,
    ended: Condvar,
}

#[derive(Default)]
struct List {
    pages: Vec<PageId>,
    /// Threads that wait for one of them. Seldom any, and only they need be woken.
    waiting: usize,
}

impl Shard {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loading {
    pub(crate) fn new() -> Loading {
        Loading { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    fn shard(&self, page: PageId) -> &Shard {
        &self.shards[page.0 as usize % SHARDS]
    }

    /// The right to load `page`, unless somebody has it.
    pub(crate) fn begin(&self, page: PageId) -> Option<LoadTicket<'_>> {
        let shard = self.shard(page);
        let mut list = shard.list();
        if list.pages.contains(&page) {
            return None;
        }
        list.pages.push(page);
        Some(LoadTicket { shard, page })
    }

    /// Returns when nobody is loading `page`. Not to be called with a ticket or a guard.
    pub(crate) fn wait(&self, page: PageId) {
        let shard = self.shard(page);
        let mut list = shard.list();
        while list.pages.contains(&page) {
            list.waiting += 1;
            list = shard.ended.wait(list).unwrap_or_else(PoisonError::into_inner);
            list.waiting -= 1;
        }
    }
}

/// The right to load a page. Given back when dropped, and those who wait look again.
#[must_use]
pub(crate) struct LoadTicket<'l> {
    shard: &'l Shard,
    page: PageId,
}

impl Drop for LoadTicket<'_> {
    fn drop(&mut self) {
        let mut list = self.shard.list();
        let index = list.pages.iter().position(|&page| page == self.page).expect("a ticket is listed");
        list.pages.swap_remove(index);
        let is_awaited = list.waiting > 0;
        drop(list);
        if is_awaited {
            self.shard.ended.notify_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn one_loads_and_the_others_wait() {
        let loading = Loading::new();
        let (inside, done) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while done.load(Ordering::SeqCst) < 100 {
                        let Some(ticket) = loading.begin(PageId(5)) else {
                            loading.wait(PageId(5));
                            continue;
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        done.fetch_add(1, Ordering::SeqCst);
                        drop(ticket);
                    }
                });
            }
        });
        loading.wait(PageId(5));
        for shard in &loading.shards {
            let list = shard.list();
            assert_eq!((list.pages.len(), list.waiting), (0, 0), "nobody loads or waits any more");
        }
    }

    #[test]
    fn pages_of_one_list_are_loaded_independently() {
        let loading = Loading::new();
        let first = loading.begin(PageId(1)).unwrap();
        let second = loading.begin(PageId(1 + SHARDS as u64)).unwrap();
        assert!(loading.begin(PageId(1)).is_none());
        drop(first);
        loading.wait(PageId(1));
        assert!(loading.begin(PageId(1 + SHARDS as u64)).is_none());
        drop(second);
    }
}
