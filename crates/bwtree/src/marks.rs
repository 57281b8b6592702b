//! [`Marks`]: the pages that consolidation has found worth another look.

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::PoisonError;

/// Why a page is to be looked at; the greater reason includes the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Something has left it underfull, or with tombstones.
    Found,
    /// A compaction looks at every page, to merge all that fit together.
    Asked,
}

/// About what a mark takes besides its key: its entry, as much again that is free, and what an allocation costs.
const MARK_BYTES: u64 = 2 * size_of::<(Vec<u8>, u64)>() as u64 + 16;

/// Pages by their low keys, in memory only: what is lost at a restart is found again by the next consolidation.
#[derive(Default)]
pub(crate) struct Marks {
    lists: Mutex<Lists>,
    /// About what they take. Changed under the lock only.
    bytes: AtomicU64,
    /// Marks that came while another thread was at the lists: whoever is there next takes them up. Held for a moment only.
    left: Mutex<Vec<(Vec<u8>, Option<u64>)>>,
    /// Whether there are any, and about what they take. Changed under the lock only.
    left_bytes: AtomicU64,
}

#[derive(Default)]
struct Lists {
    /// To be looked at now.
    ready: List<Reason>,
    /// Pages with tombstones, and the highest LSN of those.
    tombstones: List<u64>,
    /// Up to which LSN `tombstones` has been looked through.
    looked_below: u64,
    /// To be looked at after a flush.
    postponed: List<Reason>,
}

/// Marks, and about what they take.
struct List<V> {
    marks: BTreeMap<Vec<u8>, V>,
    bytes: u64,
}

impl<V> Default for List<V> {
    fn default() -> List<V> {
        List { marks: BTreeMap::new(), bytes: 0 }
    }
}

/// About what the mark of a page with this low key takes.
fn mark_bytes(low: &[u8]) -> u64 {
    MARK_BYTES + low.len() as u64
}

impl<V: Copy> List<V> {
    /// Gives the mark of a page the value that `merge` makes of the one it has and this one.
    fn put(&mut self, low: Vec<u8>, value: V, merge: impl FnOnce(V, V) -> V) {
        let bytes = mark_bytes(&low);
        match self.marks.entry(low) {
            Entry::Occupied(mut mark) => {
                let merged = merge(*mark.get(), value);
                mark.insert(merged);
            }
            Entry::Vacant(place) => {
                place.insert(value);
                self.bytes += bytes;
            }
        }
    }

    fn pop_first(&mut self) -> Option<(Vec<u8>, V)> {
        let first = self.marks.pop_first()?;
        self.bytes -= mark_bytes(&first.0);
        Some(first)
    }

    /// Takes those away of which `is_taken` says so.
    fn take(&mut self, mut is_taken: impl FnMut(V) -> bool) -> Vec<(Vec<u8>, V)> {
        let taken: Vec<_> = self.marks.extract_if(.., |_, value| is_taken(*value)).collect();
        self.bytes -= taken.iter().map(|(low, _)| mark_bytes(low)).sum::<u64>();
        taken
    }
}

impl Lists {
    /// See [`Marks::mark`].
    fn mark(&mut self, low: Vec<u8>, newest_tombstone: Option<u64>) {
        match newest_tombstone {
            Some(lsn) => self.tombstones.put(low, lsn, u64::max),
            None => self.ready.add(low, Reason::Found),
        }
    }
}

impl List<Reason> {
    fn add(&mut self, low: Vec<u8>, reason: Reason) {
        self.put(low, reason, Reason::max);
    }
}

impl Marks {
    /// Works on the lists.
    fn with<T>(&self, mut lists: MutexGuard<'_, Lists>, work: impl FnOnce(&mut Lists) -> T) -> T {
        // Relaxed: who leaves something just now leaves it to the next.
        if self.left_bytes.load(Ordering::Relaxed) > 0 {
            let mut left = self.left();
            let taken = std::mem::take(&mut *left);
            self.left_bytes.store(0, Ordering::Relaxed);
            drop(left);
            taken.into_iter().for_each(|(low, newest_tombstone)| lists.mark(low, newest_tombstone));
        }
        let done = work(&mut lists);
        // Relaxed: a figure.
        let bytes = lists.ready.bytes + lists.tombstones.bytes + lists.postponed.bytes;
        self.bytes.store(bytes, Ordering::Relaxed);
        done
    }

    fn left(&self) -> MutexGuard<'_, Vec<(Vec<u8>, Option<u64>)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Every critical section leaves the lists whole.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// About how many bytes they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) + self.left_bytes.load(Ordering::Relaxed)
    }

    /// Marks the page that begins at `low`, for now or for when its tombstones, whose highest LSN this is, may be
    /// forgotten. Waits for nobody who looks through the lists.
    pub(crate) fn mark(&self, low: &[u8], newest_tombstone: Option<u64>) {
        match self.lists.try_lock() {
            Ok(lists) => self.with(lists, |lists| lists.mark(low.to_vec(), newest_tombstone)),
            Err(_) => {
                let mut left = self.left();
                left.push((low.to_vec(), newest_tombstone));
                self.left_bytes.fetch_add(mark_bytes(low), Ordering::Relaxed);
            }
        }
    }

    /// Marks all these pages for now.
    pub(crate) fn mark_all(&self, lows: Vec<Vec<u8>>, reason: Reason) {
        self.with(self.lists(), |lists| lows.into_iter().for_each(|low| lists.ready.add(low, reason)));
    }

    /// Keeps the mark of a page until [`Marks::retry`].
    pub(crate) fn postpone(&self, low: Vec<u8>, reason: Reason) {
        self.with(self.lists(), |lists| lists.postponed.add(low, reason));
    }

    pub(crate) fn retry(&self) {
        self.with(self.lists(), |lists| {
            let postponed = std::mem::take(&mut lists.postponed);
            postponed.marks.into_iter().for_each(|(low, reason)| lists.ready.add(low, reason));
        });
    }

    /// Takes a page to be looked at, if there is one. Tombstones below `forget_below` may be forgotten.
    pub(crate) fn take(&self, forget_below: u64) -> Option<(Vec<u8>, Reason)> {
        self.with(self.lists(), |lists| {
            if forget_below > lists.looked_below {
                lists.looked_below = forget_below;
                let passed = lists.tombstones.take(|lsn| lsn < forget_below);
                passed.into_iter().for_each(|(low, _)| lists.ready.add(low, Reason::Found));
            }
            lists.ready.pop_first()
        })
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

    #[test]
    fn what_marks_take_is_counted_wherever_they_are() {
        let marks = Marks::default();
        let of = |bytes: u64, count: u64| bytes + count * MARK_BYTES;
        marks.mark(b"tombstones", Some(7));
        marks.mark(b"tombstones", Some(8));
        marks.mark_all(vec![b"asked".to_vec(), b"too".to_vec()], Reason::Asked);
        marks.mark(b"asked", None);
        assert_eq!(marks.bytes(), of(18, 3));
        marks.postpone(b"asked".to_vec(), Reason::Found);
        assert_eq!(marks.bytes(), of(23, 4));
        marks.retry();
        assert_eq!(marks.bytes(), of(18, 3));
        let taken: Vec<_> = std::iter::from_fn(|| marks.take(9)).map(|(low, _)| low).collect();
        assert_eq!(taken, [&b"asked"[..], b"tombstones", b"too"]);
        assert_eq!(marks.bytes(), 0);
    }
}
