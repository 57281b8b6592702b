//! Ranges that scans have found empty, so that who takes the first of a queue does not walk over all that was taken before (rule R25).
//!
//! A scan that passes many records which are not there before the first that is *notes* the range up to that one. A later scan from the same
//! bound that saw the note before it published its own range (R4), and finds the range empty with nothing unsettled in it, makes it
//! *known*, as of its timestamp. Scans of that timestamp or later begin behind it. Whoever installs a version in a range that is noted or
//! known forgets it, before he looks who has read (R5).
//!
//! # Invariants
//!
//! - **J1** A range is known only if it was noted when the scan that found it empty published its own, and has been noted ever since. So a version in it that this scan
//!   could not find was installed by somebody who had yet to look for the note, and he forgets the range.
//! - **J2** A scan that begins behind a known range looks, after it has published its own, whether it is known still. So whoever has installed a version in it
//!   forgets it only afterwards, and after that he finds the scan's range (R5).
//! - **J3** Entries are immutable, read under a guard, and retired when they are replaced. Their numbers are never given out again.

use crate::planted::{Bug, is_planted};
use crate::range_timestamps::KeyRange;
use crate::sync::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, Padded, publication_fence};
use deuteron_contract::{Lsn, TableId, Timestamp};
use deuteron_epoch::Guard;
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

struct EmptyRange {
    /// Of its own.
    number: u64,
    table: TableId,
    lower: Bound<Box<[u8]>>,
    /// The first key that is not in it.
    end: Box<[u8]>,
    /// Since when it is known to be empty; `None`: it is noted.
    at: Option<Timestamp>,
    /// The latest commit record of those who have emptied it: what a scan that does not look into it depends on.
    read_lsn: Lsn,
}

impl EmptyRange {
    fn range(&self) -> KeyRange<'_> {
        KeyRange {
            table: self.table,
            lower: self.lower.as_ref().map(|key| &**key),
            upper: Bound::Excluded(&self.end),
        }
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

/// What a scan found of its lower bound before it published its range.
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

    /// What is noted and known of ranges that begin at `lower`, for a reader at `at`.
    pub(crate) fn find(
        &self,
        table: TableId,
        lower: Bound<&[u8]>,
        at: Timestamp,
        _guard: &Guard<'_>,
    ) -> Found {
        let mut found = Found::default();
        for (place, entry) in self.places.iter().enumerate() {
            // SAFETY: read under the guard (J3).
            let Some(entry) = (unsafe { entry.load(Ordering::SeqCst).as_ref() }) else { continue };
            if entry.table != table || entry.range().lower != lower {
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

    /// Whether the range is remembered still (J2). The caller has published its own.
    pub(crate) fn is_there(&self, entry: &Entry, _guard: &Guard<'_>) -> bool {
        publication_fence();
        // SAFETY: read under the guard (J3).
        let there = unsafe { self.places[entry.place].load(Ordering::SeqCst).as_ref() };
        there.is_some_and(|there| there.number == entry.number)
    }

    /// Notes that a scan has found nothing from `lower` up to `end`.
    pub(crate) fn note(&self, table: TableId, lower: Bound<&[u8]>, end: &[u8], guard: &Guard<'_>) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let (lower, end) = (lower.map(Box::from), Box::from(end));
        let range = EmptyRange { number, table, lower, end, at: None, read_lsn: Lsn(0) };
        let free = self.places.iter().position(|place| place.load(Ordering::SeqCst).is_null());
        let place = free.unwrap_or(number as usize % PLACES);
        let old = self.places[place].load(Ordering::SeqCst);
        // If another has just come there, so be it.
        self.replace(place, old, Some(range), guard);
    }

    /// What is noted becomes known up to `end`, which is no further, as of `at`, if everything up to `read_lsn` is durable; it takes the place of what was known. The caller has seen the note before it published
    /// its range, and found nothing in it (J1).
    pub(crate) fn know(
        &self,
        noted: &Entry,
        end: &[u8],
        (at, read_lsn): (Timestamp, Lsn),
        known: Option<&Entry>,
        guard: &Guard<'_>,
    ) {
        debug_assert!(*end <= *noted.end);
        let old = self.places[noted.place].load(Ordering::SeqCst);
        // SAFETY: read under the guard (J3).
        let Some(range) = (unsafe { old.as_ref() }) else { return };
        if range.number != noted.number {
            return;
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let (table, lower) = (range.table, range.lower.clone());
        let new = EmptyRange { number, table, lower, end: Box::from(end), at: Some(at), read_lsn };
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
    const FROM: Bound<&[u8]> = Bound::Included(b"a");

    fn ends(ranges: &EmptyRanges, at: u64, guard: &Guard<'_>) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let Found { known, noted } = ranges.find(TABLE, FROM, Timestamp(at), guard);
        (known.map(|entry| entry.end), noted.map(|entry| entry.end))
    }

    #[test]
    fn what_is_noted_becomes_known_and_is_forgotten_when_a_key_comes() {
        let (epochs, ranges) = (Epochs::new(), EmptyRanges::new());
        let guard = epochs.pin();
        assert_eq!(ends(&ranges, 9, &guard), (None, None));
        ranges.note(TABLE, FROM, b"k", &guard);
        assert_eq!(ends(&ranges, 9, &guard), (None, Some(b"k".to_vec())));
        assert!(ranges.find(TableId(2), FROM, Timestamp(9), &guard).noted.is_none());
        assert!(ranges.find(TABLE, Bound::Excluded(b"a"), Timestamp(9), &guard).noted.is_none());
        let noted = ranges.find(TABLE, FROM, Timestamp(9), &guard).noted.unwrap();
        ranges.know(&noted, b"i", (Timestamp(9), Lsn(3)), None, &guard);
        assert!(!ranges.is_there(&noted, &guard));
        assert_eq!(ends(&ranges, 8, &guard), (None, None), "it was not empty then, for all that is known");
        assert_eq!(ends(&ranges, 9, &guard), (Some(b"i".to_vec()), None));
        // What became known once becomes so no second time.
        ranges.know(&noted, b"h", (Timestamp(5), Lsn(4)), None, &guard);
        assert_eq!(ends(&ranges, 5, &guard), (None, None));
        for elsewhere in [b"i", b"k", b"A"] {
            ranges.forget(TABLE, elsewhere, &guard);
        }
        ranges.forget(TableId(65), b"b", &guard);
        let known = ranges.find(TABLE, FROM, Timestamp(9), &guard).known.unwrap();
        assert!(ranges.is_there(&known, &guard));
        ranges.forget(TABLE, b"hz", &guard);
        assert!(!ranges.is_there(&known, &guard));
        assert_eq!(ranges.of_table(TABLE).load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_longer_range_takes_the_place_of_a_shorter_one() {
        let (epochs, ranges) = (Epochs::new(), EmptyRanges::new());
        let guard = epochs.pin();
        let mut known = None;
        for (at, end) in [(5, b"c"), (6, b"f"), (7, b"i")] {
            ranges.note(TABLE, FROM, end, &guard);
            let found = ranges.find(TABLE, FROM, Timestamp(at), &guard);
            ranges.know(&found.noted.unwrap(), end, (Timestamp(at), Lsn(at)), found.known.as_ref(), &guard);
            known = ranges.find(TABLE, FROM, Timestamp(at), &guard).known;
            assert_eq!(known.as_ref().unwrap().end, end);
            assert_eq!(ranges.of_table(TABLE).load(Ordering::SeqCst), 1);
        }
        assert!(ranges.is_there(&known.unwrap(), &guard));
    }

    #[test]
    fn as_many_are_remembered_as_there_are_places() {
        let (epochs, ranges) = (Epochs::new(), EmptyRanges::new());
        let guard = epochs.pin();
        for number in 0..PLACES as u32 + 10 {
            ranges.note(TABLE, Bound::Included(&number.to_be_bytes()), &(number + 1).to_be_bytes(), &guard);
        }
        assert_eq!(ranges.of_table(TABLE).load(Ordering::SeqCst), PLACES);
        let there = |number: u32| {
            ranges.find(TABLE, Bound::Included(&number.to_be_bytes()), Timestamp(1), &guard).noted.is_some()
        };
        assert_eq!((0..PLACES as u32 + 10).filter(|number| there(*number)).count(), PLACES);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use deuteron_epoch::Epochs;
    use loom::thread;
    use std::sync::Arc;

    const TABLE: TableId = TableId(1);
    const FROM: Bound<&[u8]> = Bound::Unbounded;

    /// J1 and J2: a writer, a scan that would make a noted range known, and one that would begin behind it. `version` and `published` stand for what the
    /// writer installs and the second scan's range.
    #[test]
    fn loom_who_begins_behind_an_empty_range_is_found_by_whoever_writes_into_it() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let words = || (AtomicU64::new(0), AtomicU64::new(0));
            let shared = Arc::new((Epochs::new(), EmptyRanges::new(), words()));
            shared.1.note(TABLE, FROM, b"k", &shared.0.pin());
            let finder = Arc::clone(&shared);
            let finder = thread::spawn(move || {
                let (epochs, ranges, (version, _)) = &*finder;
                let guard = epochs.pin();
                let Some(noted) = ranges.find(TABLE, FROM, Timestamp(9), &guard).noted else { return };
                publication_fence();
                if version.load(Ordering::SeqCst) == 0 {
                    ranges.know(&noted, b"k", (Timestamp(9), Lsn(0)), None, &guard);
                }
            });
            let scan = Arc::clone(&shared);
            let scan = thread::spawn(move || {
                let (epochs, ranges, (_, published)) = &*scan;
                let guard = epochs.pin();
                let known = ranges.find(TABLE, FROM, Timestamp(9), &guard).known;
                published.store(1, Ordering::SeqCst);
                known.is_some_and(|known| ranges.is_there(&known, &guard))
            });
            let (epochs, ranges, (version, published)) = &*shared;
            let guard = epochs.pin();
            version.store(1, Ordering::SeqCst);
            ranges.forget(TABLE, b"b", &guard);
            publication_fence();
            let seen = published.load(Ordering::SeqCst) == 1;
            let began_behind = scan.join().unwrap();
            finder.join().unwrap();
            assert!(!began_behind || seen);
            // Nothing of it stays.
            let found = ranges.find(TABLE, FROM, Timestamp(9), &guard);
            assert!(found.known.is_none() && found.noted.is_none());
        });
    }
}
