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
//! - **G2** A range's place is taken by another only when the range's timestamp is below the oldest active transaction:
//!   later ones begin above it, so it can push nobody any more. (Those that read what is committed may have begun before. They commit at a
//!   timestamp that they draw at the end, R16, which is later than that of every range there was when they looked.)
//! - **G3** A range is written by whoever has claimed its place, between two changes of its [sequence](Place::sequence), and only what was read between two loads of
//!   the same even number is one range. A range with long keys lies elsewhere, is immutable, read under a guard, and retired when it is replaced.

use crate::sync::{AtomicPtr, AtomicU64, Lost, Ordering, Padded, fence, publication_fence};
use deuteron_contract::{Direction, TableId, Timestamp};
use deuteron_epoch::Guard;
use smallvec::SmallVec;
use std::ops::Bound;
use std::ptr;

/// The timestamp of a place that has been claimed, until it has its own.
const CHANGING: u64 = u64::MAX;

/// Words of a place for the keys that bound its range.
const KEY_WORDS: usize = 5;

/// So many bytes both bounds of a range have together that lies in its place.
const KEY_BYTES: usize = 8 * KEY_WORDS;

/// [`Place::head`] of a range that does not: no bound is of such a kind.
const LONG: u64 = u64::MAX;

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

/// A range where all look for it: a scan that publishes one allocates nothing.
#[repr(align(64))]
struct Place {
    /// Odd while the range is being written (G3).
    sequence: AtomicU64,
    /// The table, and from bit 32 and 48 on of which [kind](kind_of) the lower and the upper bound are, and how many bytes they have; or [`LONG`].
    head: AtomicU64,
    /// The bytes of the bounds, one behind the other.
    keys: [AtomicU64; KEY_WORDS],
    /// A range whose bounds are longer than that.
    long: AtomicPtr<OwnedRange>,
}

/// In the high bits of sixteen what bound it is, in the low ones the length of its key.
fn kind_of(bound: Bound<&[u8]>) -> u64 {
    match bound {
        Bound::Unbounded => 0,
        Bound::Included(key) => 1 << 14 | key.len() as u64,
        Bound::Excluded(key) => 2 << 14 | key.len() as u64,
    }
}

/// The bound of such a kind, whose key begins `keys`, and what lies behind it.
fn bound_of(kind: u64, keys: &[u8]) -> (Bound<&[u8]>, &[u8]) {
    let (key, behind) = keys.split_at((kind & 0x3fff) as usize);
    match kind >> 14 & 3 {
        0 => (Bound::Unbounded, behind),
        1 => (Bound::Included(key), behind),
        _ => (Bound::Excluded(key), behind),
    }
}

fn key_of(bound: Bound<&[u8]>) -> &[u8] {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => key,
        Bound::Unbounded => &[],
    }
}

impl Place {
    fn new() -> Place {
        let word = || AtomicU64::new(0);
        let keys = std::array::from_fn(|_| word());
        Place { sequence: word(), head: word(), keys, long: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Writes the range. The caller has claimed the place.
    fn write(&self, range: KeyRange<'_>, guard: &Guard<'_>) {
        // Relaxed: nobody else writes it until the place is claimed again, which comes after this.
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        // Whoever reads what is written below reads that, too (G3).
        fence(Ordering::Release);
        let (lower, upper) = (key_of(range.lower), key_of(range.upper));
        let head = if lower.len() + upper.len() <= KEY_BYTES {
            let mut keys = [0; KEY_BYTES];
            keys[..lower.len()].copy_from_slice(lower);
            keys[lower.len()..][..upper.len()].copy_from_slice(upper);
            for (word, bytes) in self.keys.iter().zip(keys.as_chunks().0) {
                word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
            u64::from(range.table.0) | kind_of(range.lower) << 32 | kind_of(range.upper) << 48
        } else {
            let long = Box::into_raw(Box::new(OwnedRange::from(range)));
            let old = self.long.swap(long, Ordering::AcqRel);
            if !old.is_null() {
                // SAFETY: unlinked by the swap, from `Box::into_raw`, retired once (G3).
                unsafe { guard.retire_box(old) };
            }
            LONG
        };
        self.head.store(head, Ordering::Relaxed);
        self.sequence.store(sequence + 2, Ordering::Release);
    }

    /// Whether the key is in the range; `None` while that is being written.
    fn contains(&self, table: TableId, key: &[u8], _guard: &Guard<'_>) -> Option<bool> {
        let sequence = self.sequence.load(Ordering::Acquire);
        if !sequence.is_multiple_of(2) {
            return None;
        }
        let head = self.head.load(Ordering::Relaxed);
        let contains = if head == LONG {
            // SAFETY: whatever was there when it was loaded lives as long as the guard (G3).
            let range = unsafe { self.long.load(Ordering::Acquire).as_ref() };
            range.is_some_and(|range| range.lend().contains(table, key))
        } else {
            let words = self.keys.each_ref().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
            let (lower, keys) = bound_of(head >> 32 & 0xffff, words.as_flattened());
            let (upper, _) = bound_of(head >> 48, keys);
            KeyRange { table: TableId(head as u32), lower, upper }.contains(table, key)
        };
        fence(Ordering::Acquire);
        (self.sequence.load(Ordering::Relaxed) == sequence).then_some(contains)
    }
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
    /// Of each place the timestamp of its range, so that most need not be looked at; 0: free.
    timestamps: Box<[AtomicU64]>,
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
        RangeTimestamps {
            timestamps: (0..places).map(|_| AtomicU64::new(0)).collect(),
            places: (0..places).map(|_| Place::new()).collect(),
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
        self.places[ticket.0].write(range, guard);
        self.timestamps[ticket.0].store(at.0, Ordering::SeqCst);
        self.newest.0.fetch_max(at.0, Ordering::SeqCst);
        publication_fence();
        Some(ticket)
    }

    /// A place whose range can push nobody any more (G2).
    fn claim(&self, start: usize, mut oldest_active: impl FnMut(bool) -> Timestamp) -> Option<Ticket> {
        let (full_at, spared) = &self.full.0;
        let (before, from) = self.timestamps.split_at(start % self.timestamps.len().max(1));
        for exactly in [false, true] {
            let oldest = oldest_active(exactly);
            if !exactly
                && full_at.load(Ordering::Relaxed) == oldest.0
                && spared.fetch_add(1, Ordering::Relaxed) % LOOKS_SPARED != 0
            {
                return None;
            }
            let in_turn = (before.len()..).zip(from).chain((0..).zip(before));
            for (index, timestamp) in in_turn {
                let seen = timestamp.load(Ordering::SeqCst);
                let claim =
                    || timestamp.compare_exchange(seen, CHANGING, Ordering::SeqCst, Ordering::Relaxed);
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
    fn search(&self, table: TableId, key: &[u8], begin: Timestamp, guard: &Guard<'_>) -> Option<Timestamp> {
        let mut latest = self.floor.load(Ordering::SeqCst);
        for (place, timestamp) in self.places.iter().zip(&self.timestamps) {
            let at = timestamp.load(Ordering::SeqCst);
            if at <= begin.0 {
                continue;
            }
            // What is being written errs upward, and so does what has been claimed: no range has a later timestamp than the newest.
            latest = match place.contains(table, key, guard) {
                Some(false) => latest,
                Some(true) if at != CHANGING => latest.max(at),
                Some(true) | None => latest.max(self.newest.0.load(Ordering::SeqCst)),
            };
        }
        (latest > begin.0).then_some(Timestamp(latest))
    }
}

impl Drop for RangeTimestamps {
    fn drop(&mut self) {
        for place in &self.places {
            let long = place.long.load(Ordering::Relaxed);
            if !long.is_null() {
                // SAFETY: `&mut self`; from `Box::into_raw`.
                drop(unsafe { Box::from_raw(long) });
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
    fn a_range_is_read_as_it_was_published_whatever_bounds_it() {
        let (epochs, ranges) = (Epochs::new(), RangeTimestamps::new(1));
        let keys: Vec<Vec<u8>> =
            [0, 1, 19, 20, 21, 39, 40, 41, 1000].iter().map(|&bytes| vec![b'k'; bytes]).collect();
        let probes: Vec<&[u8]> = keys.iter().map(|key| &key[..]).chain([&b"a"[..], b"kl", b"z"]).collect();
        let bounds = |key| [Bound::Unbounded, Bound::Included(key), Bound::Excluded(key)];
        let mut at = 10;
        for (lower, upper) in keys.iter().flat_map(|lower| keys.iter().map(move |upper| (lower, upper))) {
            for (lower, upper) in bounds(&lower[..])
                .into_iter()
                .flat_map(|lower| bounds(&upper[..]).map(|upper| (lower, upper)))
            {
                let (range, guard) = (KeyRange { table: TABLE, lower, upper }, epochs.pin());
                assert!(ranges.publish(range, Timestamp(at), None, 0, |_| Timestamp(at), &guard).is_some());
                for key in &probes {
                    let expected = range.contains(TABLE, key).then_some(Timestamp(at));
                    assert_eq!(
                        ranges.latest(TABLE, key, Timestamp(at - 1), &guard),
                        expected,
                        "{key:?} in {range:?}"
                    );
                    assert_eq!(ranges.latest(TableId(2), key, Timestamp(at - 1), &guard), None);
                }
                at += 1;
            }
        }
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

    /// G3: a range that is widened while somebody looks holds what it held all the while.
    #[test]
    fn loom_a_range_holds_its_keys_while_it_is_widened() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let shared = Arc::new((Epochs::new(), RangeTimestamps::new(1)));
            let publish = |shared: &(Arc<Epochs>, RangeTimestamps), upper, ticket| {
                let range = KeyRange { table: TableId(1), lower: Bound::Included(b"b"), upper };
                shared.1.publish(range, Timestamp(10), ticket, 0, |_| Timestamp(5), &shared.0.pin())
            };
            let ticket = publish(&shared, Bound::Included(b"d"), None);
            assert!(ticket.is_some());
            let other = Arc::clone(&shared);
            let scan = thread::spawn(move || publish(&other, Bound::Excluded(b"xyz"), ticket));
            let latest = |key| shared.1.latest(TableId(1), key, Timestamp(6), &shared.0.pin());
            assert_eq!(latest(b"c"), Some(Timestamp(10)));
            scan.join().unwrap();
            assert_eq!([latest(b"a"), latest(b"x")], [None, Some(Timestamp(10))]);
        });
    }

    /// Publishes a range, then others in its place, while somebody asks whether some keys are in it that are in none of them.
    fn check_replaced(
        first: [&'static [u8]; 2],
        others: &'static [[&'static [u8]; 2]],
        in_none: &'static [&'static [u8]],
    ) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let shared = Arc::new((Epochs::new(), RangeTimestamps::new(1)));
            let publish = |shared: &(Arc<Epochs>, RangeTimestamps), bounds: [&'static [u8]; 2], at| {
                let [lower, upper] = bounds.map(Bound::Included);
                let (range, oldest) = (KeyRange { table: TableId(1), lower, upper }, |_| Timestamp(at - 1));
                shared.1.publish(range, Timestamp(at), None, 0, oldest, &shared.0.pin());
            };
            publish(&shared, first, 10);
            let other = Arc::clone(&shared);
            let scans = thread::spawn(move || {
                (12..).step_by(2).zip(others).for_each(|(at, bounds)| publish(&other, *bounds, at));
            });
            let place = &shared.1.places[0];
            let contains = |key| place.contains(TableId(1), key, &shared.0.pin());
            in_none.iter().for_each(|key| assert_ne!(contains(key), Some(true)));
            scans.join().unwrap();
            let [lower, _] = others.last().expect("there is one");
            assert_eq!([contains(lower), contains(first[0])], [Some(true), Some(false)]);
        });
    }

    /// G3: what is read of a range is never put together of two. (Each bound has a word of its own.)
    #[test]
    fn loom_a_range_is_read_whole_while_its_place_is_taken_by_another() {
        check_replaced([b"bbbbbbbb", b"cccccccc"], &[[b"xxxxxxxx", b"yyyyyyyy"]], &[b"d"]);
    }

    /// G3: of ranges with long keys nothing is read that has been freed.
    #[test]
    fn loom_a_range_with_long_keys_lives_as_long_as_somebody_reads_it() {
        const LONG_KEY: [u8; KEY_BYTES] = [b'm'; KEY_BYTES];
        check_replaced([b"b", b"c"], &[[&LONG_KEY, b"n"], [&LONG_KEY, b"mn"], [b"x", b"y"]], &[b"d"]);
    }

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
