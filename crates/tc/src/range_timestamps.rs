//! The read timestamps of ranges: what records are to single keys, for scans, which also read what is not there.
//!
//! A scan publishes its range and timestamp *before* it looks at records (rule R4); a writer installs its version and
//! then consults the published ranges (rule R5). A bounded array that may only err upward: where a range finds no room,
//! a floor for all keys stands in for it. A range that errs costs the writer a refresh, not an abort.
//!
//! The precedent is CockroachDB's timestamp cache; the paper has no ranges (section 8.2).
//!
//! # Invariants
//!
//! - **G1** From the moment [`RangeTimestamps::publish`] returns until no transaction older than the range's timestamp is
//!   active, [`RangeTimestamps::latest`] returns at least that timestamp for each key of the range.
//! - **G2** An entry's place is taken by another only when the entry's timestamp is below the oldest active transaction:
//!   later ones begin above it, so it can push nobody any more. (Those that read what is committed may have begun before. They commit at a
//!   timestamp that they draw at the end, R16, which is later than that of every range there was when they looked.)
//! - **G3** Entries are immutable, read under a guard, and retired when they are replaced.

use crate::sync::{AtomicPtr, AtomicU64, Lost, Ordering, Padded, publication_fence};
use deuteron_contract::{Direction, TableId, Timestamp};
use deuteron_epoch::Guard;
use smallvec::SmallVec;
use std::ops::Bound;
use std::ptr;

/// [`Place::timestamp`] while the entry is being changed: look at the entry itself.
const CHANGING: u64 = u64::MAX;

/// Of so many ranges one looks for a place although there was none when the oldest active transaction was the same.
const LOOKS_SPARED: u64 = 16;

/// A range of keys of one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRange<'k> {
    pub(crate) table: TableId,
    pub(crate) lower: Bound<&'k [u8]>,
    pub(crate) upper: Bound<&'k [u8]>,
}

impl<'k> KeyRange<'k> {
    /// Where a scan in that direction begins.
    pub(crate) fn near(self, direction: Direction) -> Bound<&'k [u8]> {
        match direction {
            Direction::Forward => self.lower,
            Direction::Reverse => self.upper,
        }
    }

    /// The range as a scan in that direction reads it that begins at `near`.
    pub(crate) fn beginning_at(self, near: Bound<&'k [u8]>, direction: Direction) -> KeyRange<'k> {
        match direction {
            Direction::Forward => KeyRange { lower: near, ..self },
            Direction::Reverse => KeyRange { upper: near, ..self },
        }
    }

    pub(crate) fn contains(&self, table: TableId, key: &[u8]) -> bool {
        let above = match self.lower {
            Bound::Included(lower) => key >= lower,
            Bound::Excluded(lower) => key > lower,
            Bound::Unbounded => true,
        };
        let below = match self.upper {
            Bound::Included(upper) => key <= upper,
            Bound::Excluded(upper) => key < upper,
            Bound::Unbounded => true,
        };
        table == self.table && above && below
    }

    /// Whether no key can be in it.
    pub(crate) fn is_empty(&self) -> bool {
        match (self.lower, self.upper) {
            (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
            (
                Bound::Included(lower) | Bound::Excluded(lower),
                Bound::Included(upper) | Bound::Excluded(upper),
            ) => lower >= upper,
            // No key is shorter than one byte.
            (_, Bound::Excluded(upper)) => upper.is_empty(),
            _ => false,
        }
    }
}

/// A key that bounds a range. As short as most are it lies in place, and a scan keeps several.
pub(crate) type BoundKey = SmallVec<[u8; 24]>;

/// A [`KeyRange`] that has its keys.
#[derive(Clone, Debug)]
pub(crate) struct OwnedRange {
    pub(crate) table: TableId,
    pub(crate) lower: Bound<BoundKey>,
    pub(crate) upper: Bound<BoundKey>,
}

impl OwnedRange {
    #[inline]
    pub(crate) fn lend(&self) -> KeyRange<'_> {
        let (lower, upper) =
            (self.lower.as_ref().map(|key| &key[..]), self.upper.as_ref().map(|key| &key[..]));
        KeyRange { table: self.table, lower, upper }
    }

    /// Bytes of its keys.
    pub(crate) fn key_bytes(&self) -> usize {
        let bytes = |bound: &Bound<BoundKey>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.len(),
            Bound::Unbounded => 0,
        };
        bytes(&self.lower) + bytes(&self.upper)
    }
}

impl From<KeyRange<'_>> for OwnedRange {
    #[inline]
    fn from(range: KeyRange<'_>) -> OwnedRange {
        let KeyRange { table, lower, upper } = range;
        OwnedRange { table, lower: lower.map(BoundKey::from_slice), upper: upper.map(BoundKey::from_slice) }
    }
}

struct Entry {
    range: OwnedRange,
    timestamp: Timestamp,
}

struct Place {
    /// The entry's timestamp, so that most entries need not be looked at; 0: free.
    timestamp: AtomicU64,
    entry: AtomicPtr<Entry>,
}

/// Where a transaction published a range, so that it may widen it while it is active (G2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(usize);

impl Ticket {
    /// Where the next range of the same thread had better look for a place first.
    pub(crate) fn next_start(self) -> usize {
        self.0 + 1
    }
}

/// See the [module](self).
pub(crate) struct RangeTimestamps {
    places: Box<[Place]>,
    /// At or above every timestamp published: most writers need to read nothing else.
    newest: Padded<AtomicU64>,
    /// Stands in for the ranges that found no place.
    floor: AtomicU64,
    /// The oldest active transaction when all places were found taken last, and how many ranges have taken that for granted since: a
    /// transaction that stays holds on to every place, and looking at all of them each time would cost more than the rest of a short scan.
    full: Padded<(AtomicU64, AtomicU64)>,
    /// Of the places.
    pub(crate) lost: Lost,
}

impl RangeTimestamps {
    pub(crate) fn new(places: usize) -> RangeTimestamps {
        let place = || Place { timestamp: AtomicU64::new(0), entry: AtomicPtr::new(ptr::null_mut()) };
        RangeTimestamps {
            places: (0..places).map(|_| place()).collect(),
            newest: Padded(AtomicU64::new(0)),
            floor: AtomicU64::new(0),
            full: Padded((AtomicU64::new(u64::MAX), AtomicU64::new(0))),
            lost: Lost::new(),
        }
    }

    /// R4: no transaction that installs a version in `range` from now on commits at or below `at` unseen (G1). With a
    /// ticket of the same transaction, the range takes the place of the one published then, which it contains.
    /// A place is looked for from number `start` on: it is best found at once if that is where the caller, unlike others, found the last one.
    /// `oldest_active` is asked at most twice.
    pub(crate) fn publish(
        &self,
        range: KeyRange<'_>,
        at: Timestamp,
        widened: Option<Ticket>,
        start: usize,
        oldest_active: impl FnMut(bool) -> Timestamp,
        guard: &Guard<'_>,
    ) -> Option<Ticket> {
        if crate::planted::is_planted(crate::planted::Bug::NoRange) {
            return None;
        }
        let Some(ticket) = widened.or_else(|| self.claim(start, oldest_active)) else {
            self.floor.fetch_max(at.0, Ordering::SeqCst);
            self.newest.0.fetch_max(at.0, Ordering::SeqCst);
            publication_fence();
            return None;
        };
        let place = &self.places[ticket.0];
        let entry = Box::into_raw(Box::new(Entry { range: range.into(), timestamp: at }));
        let old = place.entry.swap(entry, Ordering::SeqCst);
        place.timestamp.store(at.0, Ordering::SeqCst);
        self.newest.0.fetch_max(at.0, Ordering::SeqCst);
        publication_fence();
        if !old.is_null() {
            // SAFETY: unlinked by the swap, from `Box::into_raw`, retired once (G3).
            unsafe { guard.retire_box(old) };
        }
        Some(ticket)
    }

    /// A place whose entry can push nobody any more (G2).
    fn claim(&self, start: usize, mut oldest_active: impl FnMut(bool) -> Timestamp) -> Option<Ticket> {
        let (full_at, spared) = &self.full.0;
        let (before, from) = self.places.split_at(start % self.places.len().max(1));
        for exactly in [false, true] {
            let oldest = oldest_active(exactly);
            if !exactly
                && full_at.load(Ordering::Relaxed) == oldest.0
                && spared.fetch_add(1, Ordering::Relaxed) % LOOKS_SPARED != 0
            {
                return None;
            }
            let in_turn = (before.len()..).zip(from).chain((0..).zip(before));
            for (index, place) in in_turn {
                let seen = place.timestamp.load(Ordering::SeqCst);
                let claim =
                    || place.timestamp.compare_exchange(seen, CHANGING, Ordering::SeqCst, Ordering::Relaxed);
                if seen < oldest.0 && self.lost.is_won(claim()) {
                    return Some(Ticket(index));
                }
            }
            if exactly {
                full_at.store(oldest.0, Ordering::Relaxed);
            }
        }
        None
    }

    /// R5: the latest timestamp above `begin` at which a range was read that contains the key. The caller has installed
    /// its version.
    #[inline]
    pub(crate) fn latest(
        &self,
        table: TableId,
        key: &[u8],
        begin: Timestamp,
        guard: &Guard<'_>,
    ) -> Option<Timestamp> {
        publication_fence();
        if self.newest.0.load(Ordering::SeqCst) <= begin.0 {
            return None;
        }
        self.search(table, key, begin, guard)
    }

    #[cold]
    fn search(&self, table: TableId, key: &[u8], begin: Timestamp, _guard: &Guard<'_>) -> Option<Timestamp> {
        let mut latest = self.floor.load(Ordering::SeqCst);
        for place in &self.places {
            if place.timestamp.load(Ordering::SeqCst) <= begin.0 {
                continue;
            }
            // SAFETY: read under the guard (G3).
            let Some(entry) = (unsafe { place.entry.load(Ordering::SeqCst).as_ref() }) else { continue };
            if entry.range.lend().contains(table, key) {
                latest = latest.max(entry.timestamp.0);
            }
        }
        (latest > begin.0).then_some(Timestamp(latest))
    }
}

impl Drop for RangeTimestamps {
    fn drop(&mut self) {
        for place in &self.places {
            let entry = place.entry.load(Ordering::Relaxed);
            if !entry.is_null() {
                // SAFETY: `&mut self`; from `Box::into_raw`.
                drop(unsafe { Box::from_raw(entry) });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use deuteron_epoch::Epochs;

    const TABLE: TableId = TableId(1);

    fn range<'k>(lower: &'k [u8], upper: &'k [u8]) -> KeyRange<'k> {
        KeyRange { table: TABLE, lower: Bound::Included(lower), upper: Bound::Excluded(upper) }
    }

    #[test]
    fn a_key_in_a_published_range_counts_as_read() {
        let (epochs, ranges) = (Epochs::new(), RangeTimestamps::new(2));
        let guard = epochs.pin();
        assert_eq!(ranges.latest(TABLE, b"c", Timestamp(0), &guard), None);
        let ticket = ranges.publish(range(b"b", b"d"), Timestamp(10), None, 0, |_| Timestamp(5), &guard);
        assert_eq!(ranges.latest(TABLE, b"c", Timestamp(9), &guard), Some(Timestamp(10)));
        assert_eq!(ranges.latest(TABLE, b"c", Timestamp(10), &guard), None);
        assert_eq!(ranges.latest(TABLE, b"d", Timestamp(9), &guard), None);
        assert_eq!(ranges.latest(TableId(2), b"c", Timestamp(9), &guard), None);
        ranges.publish(range(b"b", b"z"), Timestamp(10), ticket, 0, |_| Timestamp(5), &guard);
        assert_eq!(ranges.latest(TABLE, b"d", Timestamp(9), &guard), Some(Timestamp(10)));
    }

    #[test]
    fn bounds_are_kept_whatever_their_length() {
        for bytes in [0, 1, 23, 24, 25, 1000] {
            let (lower, upper) = (vec![b'b'; bytes], vec![b'c'; bytes + 1]);
            let owned = OwnedRange::from(range(&lower, &upper));
            assert_eq!(
                (owned.lend().lower, owned.lend().upper),
                (Bound::Included(&lower[..]), Bound::Excluded(&upper[..]))
            );
            assert_eq!(owned.key_bytes(), 2 * bytes + 1);
        }
        let all = KeyRange { table: TABLE, lower: Bound::Unbounded, upper: Bound::Unbounded };
        assert_eq!(OwnedRange::from(all).key_bytes(), 0);
    }

    #[test]
    fn a_full_table_errs_upward() {
        let (epochs, ranges) = (Epochs::new(), RangeTimestamps::new(1));
        let guard = epochs.pin();
        assert!(
            ranges.publish(range(b"b", b"d"), Timestamp(10), None, 0, |_| Timestamp(5), &guard).is_some()
        );
        assert!(
            ranges.publish(range(b"x", b"y"), Timestamp(12), None, 0, |_| Timestamp(5), &guard).is_none()
        );
        assert_eq!(ranges.latest(TABLE, b"anything", Timestamp(9), &guard), Some(Timestamp(12)));
        // Once the first is too old to matter its place is free.
        assert!(
            ranges.publish(range(b"f", b"g"), Timestamp(14), None, 0, |_| Timestamp(13), &guard).is_some()
        );
        assert_eq!(ranges.latest(TABLE, b"f", Timestamp(13), &guard), Some(Timestamp(14)));
    }

    #[test]
    fn a_place_is_found_wherever_the_search_begins() {
        let (epochs, ranges) = (Epochs::new(), RangeTimestamps::new(3));
        let guard = epochs.pin();
        let publish = |at, start| {
            let taken =
                ranges.publish(range(b"b", b"d"), Timestamp(at), None, start, |_| Timestamp(5), &guard);
            taken.map(|ticket| ticket.0)
        };
        assert_eq!((publish(10, 2), publish(11, 2), publish(12, 7)), (Some(2), Some(0), Some(1)));
        assert_eq!(publish(13, 1), None, "all are taken");
    }

    #[test]
    fn a_full_table_is_searched_now_and_then_until_the_oldest_transaction_is_known_to_have_ended() {
        let (epochs, ranges) = (Epochs::new(), RangeTimestamps::new(1));
        let guard = epochs.pin();
        let looks = std::cell::Cell::new(0);
        let publish = |at, known, exact| {
            let oldest = |exactly| {
                looks.set(looks.get() + u32::from(exactly));
                Timestamp(if exactly { exact } else { known })
            };
            ranges.publish(range(b"b", b"d"), Timestamp(at), None, 0, oldest, &guard).is_some()
        };
        assert!(publish(10, 5, 5));
        (11..200).for_each(|at| assert!(!publish(at, 5, 5)));
        assert!((12..15).contains(&looks.get()), "{}", looks.get());
        assert_eq!(ranges.latest(TABLE, b"x", Timestamp(9), &guard), Some(Timestamp(199)), "the floor");
        // It has ended, which nobody has noticed.
        let missed = (200..300).take_while(|at| !publish(*at, 5, 150)).count() as u64;
        assert!(missed < LOOKS_SPARED);
        assert!(publish(300, 299, 299), "and it is looked for a place at once if somebody has");
    }

    #[test]
    fn crossed_bounds_hold_no_key() {
        assert!(
            range(b"d", b"b").is_empty() && range(b"b", b"b").is_empty() && !range(b"b", b"c").is_empty()
        );
    }

    #[test]
    fn a_range_is_empty_if_no_key_can_be_in_it() {
        use Bound::{Excluded, Included, Unbounded};
        type Case = (Bound<&'static [u8]>, Bound<&'static [u8]>, bool);
        let cases: [Case; 14] = [
            (Included(b"b"), Included(b"b"), false),
            (Included(b"c"), Included(b"b"), true),
            (Included(b"b"), Included(b"c"), false),
            (Excluded(b"b"), Included(b"b"), true),
            (Included(b"b"), Excluded(b"b"), true),
            (Excluded(b"b"), Excluded(b"b"), true),
            (Excluded(b"b"), Included(b"c"), false),
            (Excluded(b"b"), Excluded(b"c"), false),
            (Unbounded, Excluded(b""), true),
            (Unbounded, Included(b""), false),
            (Unbounded, Excluded(b"b"), false),
            (Unbounded, Unbounded, false),
            (Included(b"b"), Unbounded, false),
            (Excluded(b"b"), Unbounded, false),
        ];
        for (lower, upper, empty) in cases {
            let range = KeyRange { table: TABLE, lower, upper };
            assert_eq!(range.is_empty(), empty, "{range:?}");
            let holds = |key: &[u8]| range.contains(TABLE, key);
            assert!(!empty || [&b"a"[..], b"b", b"bb", b"c", b"d"].into_iter().all(|key| !holds(key)));
            assert!(!range.contains(TableId(2), b"b"));
        }
    }

    #[test]
    fn the_ends_of_a_range_are_in_it_or_not_as_they_say() {
        let with = |lower, upper| KeyRange { table: TABLE, lower, upper };
        let inside = with(Bound::Included(&b"b"[..]), Bound::Included(&b"d"[..]));
        let between = with(Bound::Excluded(&b"b"[..]), Bound::Excluded(&b"d"[..]));
        let held = |range: KeyRange<'_>| [b"a", b"b", b"c", b"d", b"e"].map(|key| range.contains(TABLE, key));
        assert_eq!(held(inside), [false, true, true, true, false]);
        assert_eq!(held(between), [false, false, true, false, false]);
    }

    #[test]
    fn a_place_is_taken_once_all_who_are_active_are_later() {
        let (epochs, ranges) = (Epochs::new(), RangeTimestamps::new(1));
        let guard = epochs.pin();
        let publish = |at, oldest| {
            let ticket =
                ranges.publish(range(b"b", b"d"), Timestamp(at), None, 0, |_| Timestamp(oldest), &guard);
            ticket.is_some()
        };
        assert!(publish(10, 5));
        assert!(!publish(12, 10), "who began at 10 may be pushed by it");
        assert!(publish(14, 11));
        // Exactly as late as asked for is not later.
        assert_eq!(ranges.latest(TABLE, b"c", Timestamp(14), &guard), None);
        assert_eq!(ranges.latest(TABLE, b"c", Timestamp(13), &guard), Some(Timestamp(14)));
        assert_eq!(ranges.latest(TABLE, b"x", Timestamp(12), &guard), None);
        assert_eq!(ranges.latest(TABLE, b"x", Timestamp(11), &guard), Some(Timestamp(12)), "the floor");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicU64;
    use deuteron_epoch::Epochs;
    use loom::thread;
    use std::sync::Arc;

    /// R4 against R5: the scan finds the version, or the writer finds the range.
    #[test]
    fn loom_the_scan_or_the_writer_sees_the_other() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let shared = Arc::new((Epochs::new(), RangeTimestamps::new(1), AtomicU64::new(0)));
            let other = Arc::clone(&shared);
            let scan = thread::spawn(move || {
                let (epochs, ranges, version) = &*other;
                let range = KeyRange { table: TableId(1), lower: Bound::Unbounded, upper: Bound::Unbounded };
                ranges.publish(range, Timestamp(10), None, 0, |_| Timestamp(5), &epochs.pin());
                version.load(Ordering::SeqCst) == 1
            });
            let (epochs, ranges, version) = &*shared;
            version.store(1, Ordering::SeqCst);
            let pushed = ranges.latest(TableId(1), b"k", Timestamp(6), &epochs.pin()).is_some();
            assert!(scan.join().unwrap() || pushed);
        });
    }
}
