//! Ranges that scans have found empty, so that who takes the first of a queue, or the last of a stack, does not walk over all that was taken before (rule R25).
//!
//! A scan that passes many records which are not there before the first that is *notes* the range up to that one. A later scan from the same
//! bound, in the same direction, that saw the note before it published its own range (R4), and finds the range empty with nothing unsettled in it, makes it
//! *known*, as of its timestamp. Scans of that timestamp or later begin behind it. Whoever installs a version in a range that is noted or
//! known forgets it, before he looks who has read (R5, R15). Scans that publish nothing, of declared readers and at read committed, use what is known and
//! remember nothing: a look stores nothing.
//!
//! # Invariants
//!
//! - **J1** A range is known only if it was noted when the scan that found it empty published its own, and has been noted ever since. So a version in it that this scan
//!   could not find was installed by somebody who had yet to look for the note, and he forgets the range.
//! - **J2** A scan that begins behind a known range looks, after it has published its own or raised the fence, whether it is known still. So whoever has installed a version in it
//!   forgets it only afterwards, and after that he finds the scan's range (R5) or the fence (R15). At read committed, where nothing protects what was read, the look alone says that what was committed before
//!   it is not in the range.
//! - **J3** Entries are immutable, read under a guard, and retired when they are replaced. Their numbers are never given out again.

use crate::entries::compare;
use crate::planted::{Bug, is_planted};
use crate::range_timestamps::KeyRange;
use crate::sync::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, Padded, publication_fence};
use deuteron_contract::{Direction, Lsn, TableId, Timestamp};
use deuteron_epoch::Guard;
use std::cmp;
use std::ops::Bound;
use std::ptr;

/// Ranges that are remembered, at most.
#[cfg(not(loom))]
const PLACES: usize = 64;
#[cfg(loom)]
const PLACES: usize = 1;
/// Tables are told apart by so many low bits of their identifiers.
#[cfg(not(loom))]
const TABLES: usize = 64;
#[cfg(loom)]
const TABLES: usize = 1;

/// Where scans begin, and which way they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin<'k> {
    pub(crate) table: TableId,
    pub(crate) direction: Direction,
    pub(crate) bound: Bound<&'k [u8]>,
}

struct EmptyRange {
    /// Of its own.
    number: u64,
    table: TableId,
    direction: Direction,
    /// Where scans in that direction come to it.
    near: Bound<Box<[u8]>>,
    /// The first key behind it.
    end: Box<[u8]>,
    /// Since when it is known to be empty; `None`: it is noted.
    at: Option<Timestamp>,
    /// The latest commit record of those who have emptied it: what a scan that does not look into it depends on.
    read_lsn: Lsn,
}

impl EmptyRange {
    fn origin(&self) -> Origin<'_> {
        let bound = self.near.as_ref().map(|key| &**key);
        Origin { table: self.table, direction: self.direction, bound }
    }

    fn range(&self) -> KeyRange<'_> {
        let Origin { table, direction, bound } = self.origin();
        let end = Bound::Excluded(&*self.end);
        KeyRange { table, lower: end, upper: end }.beginning_at(bound, direction)
    }
}

/// An entry, as a scan found it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    place: usize,
    number: u64,
    pub(crate) end: Vec<u8>,
    /// The latest commit record that must be durable for it to be empty.
    pub(crate) read_lsn: Lsn,
}

/// A scan that has found nothing yet, and nothing unsettled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Front {
    /// It has read a batch, and published what that covers.
    pub(crate) has_begun: bool,
    /// Records that it has passed, none of which is there.
    pub(crate) passed: usize,
    /// The latest commit record of those who have deleted them.
    pub(crate) read_lsn: Lsn,
    pub(crate) found: Found,
}

/// What a scan found where it begins, before it published its range.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) known: Option<Entry>,
    pub(crate) noted: Option<Entry>,
}

/// See the [module](self).
pub(crate) struct EmptyRanges {
    places: Box<[AtomicPtr<EmptyRange>]>,
    /// How many of them are of tables with these low bits: most writers and scans need to read nothing else.
    of_tables: Padded<[AtomicUsize; TABLES]>,
    numbers: AtomicU64,
}

impl EmptyRanges {
    pub(crate) fn new() -> EmptyRanges {
        EmptyRanges {
            places: (0..PLACES).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            of_tables: Padded(std::array::from_fn(|_| AtomicUsize::new(0))),
            numbers: AtomicU64::new(0),
        }
    }

    fn of_table(&self, table: TableId) -> &AtomicUsize {
        &self.of_tables.0[table.0 as usize % TABLES]
    }

    /// Puts `new` where `old` was, which is given to the guard; whether it was there still.
    fn replace(
        &self,
        place: usize,
        old: *mut EmptyRange,
        new: Option<EmptyRange>,
        guard: &Guard<'_>,
    ) -> bool {
        // Counted before it is there, and no longer only when it has gone.
        let new_of = new.as_ref().map(|new| self.of_table(new.table));
        if let Some(count) = new_of {
            count.fetch_add(1, Ordering::SeqCst);
        }
        let new = new.map_or(ptr::null_mut(), |new| Box::into_raw(Box::new(new)));
        let swapped =
            self.places[place].compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        let gone = if swapped { old } else { new };
        // SAFETY: from `Box::into_raw`, and read under the guard (J3) or never linked.
        if let Some(range) = unsafe { gone.as_ref() } {
            self.of_table(range.table).fetch_sub(1, Ordering::SeqCst);
            // SAFETY: unlinked by the swap, or never linked; retired once.
            unsafe { guard.retire_box(gone) };
        }
        swapped
    }

    /// Whether there may be one of the table.
    #[inline]
    pub(crate) fn may_have(&self, table: TableId) -> bool {
        self.of_table(table).load(Ordering::SeqCst) > 0
    }

    /// What is noted and known of ranges that begin at `origin`, for a reader at `at`.
    pub(crate) fn find(&self, origin: Origin<'_>, at: Timestamp, _guard: &Guard<'_>) -> Found {
        let mut found = Found::default();
        for (place, entry) in self.places.iter().enumerate() {
            // SAFETY: read under the guard (J3).
            let Some(entry) = (unsafe { entry.load(Ordering::SeqCst).as_ref() }) else { continue };
            if entry.origin() != origin {
                continue;
            }
            let of = |entry: &EmptyRange| {
                let EmptyRange { number, read_lsn, .. } = *entry;
                Entry { place, number, end: entry.end.to_vec(), read_lsn }
            };
            match entry.at {
                None => found.noted = Some(of(entry)),
                Some(known_at) if known_at <= at => found.known = Some(of(entry)),
                Some(_) => {}
            }
        }
        found
    }

    /// Whether the range is remembered still (J2). The caller has published its own, or raised the fence.
    pub(crate) fn is_there(&self, entry: &Entry, _guard: &Guard<'_>) -> bool {
        publication_fence();
        // SAFETY: read under the guard (J3).
        let there = unsafe { self.places[entry.place].load(Ordering::SeqCst).as_ref() };
        there.is_some_and(|there| there.number == entry.number)
    }

    /// Notes that a scan has found nothing between `origin` and `end`.
    pub(crate) fn note(&self, origin: Origin<'_>, end: &[u8], guard: &Guard<'_>) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let Origin { table, direction, bound } = origin;
        let (near, end) = (bound.map(Box::from), Box::from(end));
        let range = EmptyRange { number, table, direction, near, end, at: None, read_lsn: Lsn(0) };
        let free = self.places.iter().position(|place| place.load(Ordering::SeqCst).is_null());
        let place = free.unwrap_or(number as usize % PLACES);
        let old = self.places[place].load(Ordering::SeqCst);
        // If another has just come there, so be it.
        self.replace(place, old, Some(range), guard);
    }

    /// What is noted becomes known, up to `end` if that comes first, as of `at`, if everything up to `read_lsn` is durable; it takes the place of what was known. The caller has seen the note before it published
    /// its range, and found nothing in it up to `end` (J1).
    pub(crate) fn know(
        &self,
        noted: &Entry,
        end: &[u8],
        (at, read_lsn): (Timestamp, Lsn),
        known: Option<&Entry>,
        guard: &Guard<'_>,
    ) {
        let old = self.places[noted.place].load(Ordering::SeqCst);
        // SAFETY: read under the guard (J3).
        let Some(range) = (unsafe { old.as_ref() }) else { return };
        if range.number != noted.number {
            return;
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let EmptyRange { table, direction, .. } = *range;
        let end = Box::from(cmp::min_by(end, &*range.end, |a, b| compare(a, b, direction)));
        let new =
            EmptyRange { number, table, direction, near: range.near.clone(), end, at: Some(at), read_lsn };
        if self.replace(noted.place, old, Some(new), guard)
            && let Some(known) = known
        {
            let old = self.places[known.place].load(Ordering::SeqCst);
            // SAFETY: read under the guard (J3).
            if unsafe { old.as_ref() }.is_some_and(|old| old.number == known.number) {
                self.replace(known.place, old, None, guard);
            }
        }
    }

    /// Forgets the ranges that contain `key`. The caller has installed a version of it that scans find, and has yet to look who has read.
    #[inline]
    pub(crate) fn forget(&self, table: TableId, key: &[u8], guard: &Guard<'_>) {
        publication_fence();
        if self.may_have(table) {
            self.forget_now(table, key, guard);
        }
    }

    #[cold]
    fn forget_now(&self, table: TableId, key: &[u8], guard: &Guard<'_>) {
        if is_planted(Bug::KeepEmpty) {
            return;
        }
        for place in 0..PLACES {
            loop {
                let old = self.places[place].load(Ordering::SeqCst);
                // SAFETY: read under the guard (J3).
                let Some(range) = (unsafe { old.as_ref() }) else { break };
                // Else it has become known just then, or another.
                if !range.range().contains(table, key) || self.replace(place, old, None, guard) {
                    break;
                }
            }
        }
    }
}

impl Drop for EmptyRanges {
    fn drop(&mut self) {
        for place in &self.places {
            let range = place.load(Ordering::Relaxed);
            if !range.is_null() {
                // SAFETY: `&mut self`; from `Box::into_raw`.
                drop(unsafe { Box::from_raw(range) });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use deuteron_epoch::Epochs;

    const TABLE: TableId = TableId(1);
    const UP: Origin<'_> = origin(Direction::Forward, b"a");
    const DOWN: Origin<'_> = origin(Direction::Reverse, b"k");

    const fn origin(direction: Direction, key: &[u8]) -> Origin<'_> {
        Origin { table: TABLE, direction, bound: Bound::Included(key) }
    }

    #[test]
    fn what_is_noted_becomes_known_and_is_forgotten_when_a_key_comes() {
        type Keys<const COUNT: usize> = [&'static [u8]; COUNT];
        // Where it is noted to end, where it is known to, and nearer still; keys beside it, and in it.
        let cases: [(Origin<'_>, Keys<3>, Keys<3>, Keys<2>); 2] = [
            (UP, [b"k", b"i", b"h"], [b"i", b"k", b"A"], [b"a", b"hz"]),
            (DOWN, [b"a", b"c", b"d"], [b"c", b"a", b"ka"], [b"k", b"ca"]),
        ];
        for (origin, [far, end, near], beside, within) in cases {
            let (epochs, ranges) = (Epochs::new(), EmptyRanges::new());
            let guard = epochs.pin();
            let ends = |at| {
                let Found { known, noted } = ranges.find(origin, Timestamp(at), &guard);
                [known, noted].map(|entry| entry.map(|entry| entry.end))
            };
            for key in within {
                assert_eq!(ends(9), [None, None]);
                ranges.note(origin, far, &guard);
                assert_eq!(ends(9), [None, Some(far.to_vec())]);
                let Origin { direction, bound, .. } = origin;
                let other = match direction {
                    Direction::Forward => Direction::Reverse,
                    Direction::Reverse => Direction::Forward,
                };
                for elsewhere in [
                    Origin { table: TableId(2), ..origin },
                    Origin { bound: Bound::Excluded(b"a"), ..origin },
                    Origin { table: TABLE, direction: other, bound },
                ] {
                    assert!(ranges.find(elsewhere, Timestamp(9), &guard).noted.is_none());
                }
                let noted = ranges.find(origin, Timestamp(9), &guard).noted.unwrap();
                ranges.know(&noted, end, (Timestamp(9), Lsn(3)), None, &guard);
                assert!(!ranges.is_there(&noted, &guard));
                assert_eq!(ends(8), [None, None], "it was not empty then, for all that is known");
                assert_eq!(ends(9), [Some(end.to_vec()), None]);
                // What became known once becomes so no second time.
                ranges.know(&noted, near, (Timestamp(5), Lsn(4)), None, &guard);
                assert_eq!(ends(5), [None, None]);
                beside.iter().for_each(|key| ranges.forget(TABLE, key, &guard));
                ranges.forget(TableId(65), key, &guard);
                let known = ranges.find(origin, Timestamp(9), &guard).known.unwrap();
                assert!(ranges.is_there(&known, &guard));
                ranges.forget(TABLE, key, &guard);
                assert!(!ranges.is_there(&known, &guard));
                assert_eq!(ranges.of_table(TABLE).load(Ordering::SeqCst), 0);
            }
            // Beyond the note nothing was looked for.
            ranges.note(origin, near, &guard);
            let noted = ranges.find(origin, Timestamp(9), &guard).noted.unwrap();
            ranges.know(&noted, far, (Timestamp(9), Lsn(3)), None, &guard);
            assert_eq!(ends(9), [Some(near.to_vec()), None]);
        }
    }

    #[test]
    fn a_longer_range_takes_the_place_of_a_shorter_one() {
        for (origin, keys) in [(UP, [b"c", b"f", b"i"]), (DOWN, [b"i", b"f", b"c"])] {
            let (epochs, ranges) = (Epochs::new(), EmptyRanges::new());
            let guard = epochs.pin();
            let mut known = None;
            for (at, end) in (5..).zip(keys) {
                ranges.note(origin, end, &guard);
                let found = ranges.find(origin, Timestamp(at), &guard);
                let known_as = (Timestamp(at), Lsn(at));
                ranges.know(&found.noted.unwrap(), end, known_as, found.known.as_ref(), &guard);
                known = ranges.find(origin, Timestamp(at), &guard).known;
                assert_eq!(known.as_ref().unwrap().end, end);
                assert_eq!(ranges.of_table(TABLE).load(Ordering::SeqCst), 1);
            }
            assert!(ranges.is_there(&known.unwrap(), &guard));
        }
    }

    #[test]
    fn as_many_are_remembered_as_there_are_places() {
        let (epochs, ranges) = (Epochs::new(), EmptyRanges::new());
        let guard = epochs.pin();
        for number in 0..PLACES as u32 + 10 {
            let key = number.to_be_bytes();
            ranges.note(origin(Direction::Forward, &key), &(number + 1).to_be_bytes(), &guard);
        }
        assert_eq!(ranges.of_table(TABLE).load(Ordering::SeqCst), PLACES);
        let there = |number: u32| {
            let key = number.to_be_bytes();
            ranges.find(origin(Direction::Forward, &key), Timestamp(1), &guard).noted.is_some()
        };
        assert_eq!((0..PLACES as u32 + 10).filter(|number| there(*number)).count(), PLACES);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::fence::Fence;
    use deuteron_epoch::Epochs;
    use loom::thread;
    use std::sync::Arc;

    const TABLE: TableId = TableId(1);
    const ORIGIN: Origin<'_> =
        Origin { table: TABLE, direction: Direction::Reverse, bound: Bound::Unbounded };

    /// A writer, a scan that would make a noted range known, and one that would begin behind it, which the fence protects or the range that it publishes. `version`
    /// and `published` stand for what the writer installs and that range.
    fn whoever_writes_finds_who_begins_behind(fences: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let words = || (AtomicU64::new(0), AtomicU64::new(0));
            let shared = Arc::new((Epochs::new(), EmptyRanges::new(), Fence::new(), words()));
            shared.1.note(ORIGIN, b"a", &shared.0.pin());
            let finder = Arc::clone(&shared);
            let finder = thread::spawn(move || {
                let (epochs, ranges, _, (version, _)) = &*finder;
                let guard = epochs.pin();
                let Some(noted) = ranges.find(ORIGIN, Timestamp(9), &guard).noted else { return };
                publication_fence();
                if version.load(Ordering::SeqCst) == 0 {
                    ranges.know(&noted, b"a", (Timestamp(9), Lsn(0)), None, &guard);
                }
            });
            let scan = Arc::clone(&shared);
            let scan = thread::spawn(move || {
                let (epochs, ranges, fence, (_, published)) = &*scan;
                if fences {
                    fence.raise(Timestamp(9));
                }
                let guard = epochs.pin();
                let known = ranges.find(ORIGIN, Timestamp(9), &guard).known;
                if !fences {
                    published.store(1, Ordering::SeqCst);
                }
                known.is_some_and(|known| ranges.is_there(&known, &guard))
            });
            let (epochs, ranges, fence, (version, published)) = &*shared;
            let guard = epochs.pin();
            version.store(1, Ordering::SeqCst);
            ranges.forget(TABLE, b"b", &guard);
            publication_fence();
            let seen = match fences {
                true => fence.latest() == Timestamp(9),
                false => published.load(Ordering::SeqCst) == 1,
            };
            let began_behind = scan.join().unwrap();
            finder.join().unwrap();
            assert!(!began_behind || seen);
            // Nothing of it stays.
            let found = ranges.find(ORIGIN, Timestamp(9), &guard);
            assert!(found.known.is_none() && found.noted.is_none());
        });
    }

    /// J1 and J2, of a scan that says what it reads.
    #[test]
    fn loom_who_begins_behind_an_empty_range_is_found_by_whoever_writes_into_it() {
        whoever_writes_finds_who_begins_behind(false);
    }

    /// J1 and J2, of a declared reader's.
    #[test]
    fn loom_who_begins_behind_an_empty_range_has_raised_the_fence_before_whoever_writes_into_it_looks() {
        whoever_writes_finds_who_begins_behind(true);
    }
}
