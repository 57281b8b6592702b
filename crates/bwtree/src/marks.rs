//! [`Marks`]: the pages that consolidation has found worth another look.

use crate::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// Why a page is to be looked at; the greater reason includes the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Something has left it underfull, or with tombstones.
    Found,
    /// A compaction looks at every page, to merge all that fit together.
    Asked,
}

/// Pages by their low keys, in memory only: what is lost at a restart is found again by the next consolidation.
#[derive(Default)]
pub(crate) struct Marks {
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    /// To be looked at now.
    ready: BTreeMap<Vec<u8>, Reason>,
    /// Pages with tombstones, and the highest LSN of those.
    tombstones: BTreeMap<Vec<u8>, u64>,
    /// Up to which LSN `tombstones` has been looked through.
    looked_below: u64,
    /// To be looked at after a flush.
    postponed: BTreeMap<Vec<u8>, Reason>,
}

fn add(list: &mut BTreeMap<Vec<u8>, Reason>, low: Vec<u8>, reason: Reason) {
    let known = list.entry(low).or_insert(reason);
    *known = reason.max(*known);
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
            None => add(&mut lists.ready, low.to_vec(), Reason::Found),
        }
    }

    /// Marks all these pages for now.
    pub(crate) fn mark_all(&self, lows: Vec<Vec<u8>>, reason: Reason) {
        let mut lists = self.lists();
        lows.into_iter().for_each(|low| add(&mut lists.ready, low, reason));
    }

    /// Keeps the mark of a page until [`Marks::retry`].
    pub(crate) fn postpone(&self, low: Vec<u8>, reason: Reason) {
        add(&mut self.lists().postponed, low, reason);
    }

    pub(crate) fn retry(&self) {
        let mut lists = self.lists();
        let postponed = std::mem::take(&mut lists.postponed);
        postponed.into_iter().for_each(|(low, reason)| add(&mut lists.ready, low, reason));
    }

    /// Takes a page to be looked at, if there is one. Tombstones below `forget_below` may be forgotten.
    pub(crate) fn take(&self, forget_below: u64) -> Option<(Vec<u8>, Reason)> {
        let mut lists = self.lists();
        if forget_below > lists.looked_below {
            lists.looked_below = forget_below;
            let Lists { ready, tombstones, .. } = &mut *lists;
            tombstones.retain(|low, &mut lsn| {
                if lsn < forget_below {
                    add(ready, low.clone(), Reason::Found);
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
        let found = |low: &[u8]| Some((low.to_vec(), Reason::Found));
        marks.mark(b"tombstones", Some(7));
        marks.mark(b"sparse", None);
        assert_eq!(marks.take(7), found(b"sparse"));
        assert_eq!(marks.take(7), None);
        assert_eq!(marks.take(8), found(b"tombstones"));
        marks.postpone(b"unflushed".to_vec(), Reason::Found);
        assert_eq!(marks.take(9), None);
        marks.retry();
        assert_eq!(marks.take(9), found(b"unflushed"));
    }

    #[test]
    fn what_a_compaction_has_asked_for_is_not_forgotten_for_a_lesser_reason() {
        let marks = Marks::default();
        let asked = Some((b"page".to_vec(), Reason::Asked));
        marks.mark_all(vec![b"page".to_vec()], Reason::Asked);
        marks.mark(b"page", None);
        assert_eq!(marks.take(0), asked);
        marks.postpone(b"page".to_vec(), Reason::Asked);
        marks.mark(b"page", None);
        marks.retry();
        assert_eq!(marks.take(0), asked);
        assert_eq!(marks.take(0), None);
    }
}
