//! [`Marks`]: the pages that consolidation has found worth another look.

use crate::sync::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

/// Pages by their low keys, in memory only: what is lost at a restart is found again by the next consolidation.
#[derive(Default)]
pub(crate) struct Marks {
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    /// To be looked at now.
    ready: BTreeSet<Vec<u8>>,
    /// Pages with tombstones, and the highest LSN of those.
    tombstones: BTreeMap<Vec<u8>, u64>,
    /// Up to which LSN `tombstones` has been looked through.
    looked_below: u64,
    /// To be looked at after a flush.
    postponed: BTreeSet<Vec<u8>>,
}

impl Marks {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Every critical section leaves the lists whole.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the page that begins at `low`, for now or for when its tombstones, whose highest LSN this is, may be
    /// forgotten. Never waits: if another thread is at the lists, the mark is left to the next consolidation.
    pub(crate) fn mark(&self, low: &[u8], newest_tombstone: Option<u64>) {
        let Ok(mut lists) = self.lists.try_lock() else { return };
        match newest_tombstone {
            Some(lsn) => drop(lists.tombstones.insert(low.to_vec(), lsn)),
            None => drop(lists.ready.insert(low.to_vec())),
        }
    }

    /// Marks all these pages for now.
    pub(crate) fn mark_all(&self, lows: Vec<Vec<u8>>) {
        self.lists().ready.extend(lows);
    }

    /// Keeps the mark of a page until [`Marks::retry`].
    pub(crate) fn postpone(&self, low: Vec<u8>) {
        self.lists().postponed.insert(low);
    }

    pub(crate) fn retry(&self) {
        let mut lists = self.lists();
        let mut postponed = std::mem::take(&mut lists.postponed);
        lists.ready.append(&mut postponed);
    }

    /// Takes a page to be looked at, if there is one. Tombstones below `forget_below` may be forgotten.
    pub(crate) fn take(&self, forget_below: u64) -> Option<Vec<u8>> {
        let mut lists = self.lists();
        if forget_below > lists.looked_below {
            lists.looked_below = forget_below;
            let Lists { ready, tombstones, .. } = &mut *lists;
            tombstones.retain(|low, &mut lsn| {
                if lsn < forget_below {
                    ready.insert(low.clone());
                }
                lsn >= forget_below
            });
        }
        lists.ready.pop_first()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_looked_at_when_there_is_reason_to() {
        let marks = Marks::default();
        marks.mark(b"tombstones", Some(7));
        marks.mark(b"sparse", None);
        assert_eq!(marks.take(7).as_deref(), Some(&b"sparse"[..]));
        assert_eq!(marks.take(7), None);
        assert_eq!(marks.take(8).as_deref(), Some(&b"tombstones"[..]));
        marks.postpone(b"unflushed".to_vec());
        assert_eq!(marks.take(9), None);
        marks.retry();
        assert_eq!(marks.take(9).as_deref(), Some(&b"unflushed"[..]));
    }
}
