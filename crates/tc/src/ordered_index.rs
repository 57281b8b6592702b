//! The ordered index of the records whose newest versions the data component may not have: what a scan merges with
//! the data component's records.
//!
//! The hash table has no order. Putting every record that is written into an ordered structure at once would cost an update
//! as much again; so writers only *queue* the record (a flag and a push on a list of their own), and whoever scans
//! first brings the queued records into the order. The collector takes out what the data component has got, from the
//! queues just as from the order; without scans nothing is ever ordered.
//!
//! ```text
//!   writer: install, set QUEUED ─► queues[shard], set PLACED ── collect ─► waiting ── (a scan) ─► list + ordered
//!                                                                            │                      │
//!                                                      collector: settled ───┴──────────────────────┴──► cleared
//! ```
//!
//! # Invariants
//!
//! - **O1** A record that has been queued stays in a queue, in `waiting` or in `list` until it is *settled*: its newest
//!   version is at the data component, visible to all, and no uncommitted one is above it.
//! - **O2** After [`OrderedIndex::complete`] the list holds every record that was queued before the call and has not
//!   settled since (rule R10).
//! - **O3** `list` and the vectors change under the mutex only; the list is read without it, under a guard.
//! - **O4** A record leaves the list before its QUEUED flag is cleared, so that the list never refers to a record that has
//!   been retired (see E3).
//!
//! - **O5** `departures` grows before a record leaves the list, and again once it is known to be gone for good, still under
//!   the mutex. So whoever reads the data component between two equal readings of it, the second after a walk that did not
//!   find the record, has read what made the record settle. (The second time is for a record that is written, posted and
//!   settled again while the collector has it in hand: a scan that begins then waits for the mutex.)
//! - **O6** Whoever returns from [`OrderedIndex::note`] has set PLACED or seen it: a scan that begins then finds the record.
//!
//! # Why a record that is just being written again is not missed
//!
//! The collector takes a settled record out, clears the flag and looks at the record again; a writer installs and then
//! looks at the flag. Either the writer finds the flag cleared and queues the record, or the collector finds the
//! record not settled and puts it back, still under the mutex. A scan that published its range before the collector
//! began may miss the version meanwhile; but then it was installed after the collector's first look, thus after the
//! publication, and its writer finds the range.
//!
//! # Why a writer may have to wait for another
//!
//! The flag is set before the record is queued, else it would be queued twice. A writer that is stopped in between and aborted there by
//! somebody else is in nobody's way: the next one writes above its version, finds QUEUED, and could commit before a scan
//! finds the record. So that one waits, as long as the first takes for a few instructions (O6). Nobody else comes so far: above the
//! version of a writer that is active none is installed.

use crate::linked::Linked;
use crate::memory::Account;
use crate::mvcc_table::MvccTable;
use crate::record::{Record, prefetch};
use crate::schedule::point;
use crate::skip_list::SkipList;
use crate::sync::{
    AtomicPtr, AtomicU64, AtomicUsize, Lost, Mutex, Ordering, Padded, lock, publication_fence, yield_now,
};
use deuteron_epoch::Guard;
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

#[cfg(not(any(loom, shuttle)))]
const SHARDS: usize = 16;
#[cfg(any(loom, shuttle))]
const SHARDS: usize = 1;

/// Queues of a shard, which are emptied side by side: each leads from record to record all over memory, and the waits overlap.
#[cfg(not(any(loom, shuttle)))]
const LANES: usize = 8;
#[cfg(any(loom, shuttle))]
const LANES: usize = 1;

/// How many references ahead of its turn a record's version is asked for; the record itself twice as many.
const AHEAD: usize = 8;
/// [`OrderedIndex::unordered`] while somebody changes things under the mutex.
const CHANGING: usize = usize::MAX;

/// What is to be waited for before a record may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing: it has settled (O1).
    Settled,
    /// The data component is to get its newest version; that of those that were queued later it gets later, as a rule.
    Unposted,
    /// The writer of its newest version is to end, which says nothing of others.
    Uncommitted,
}

/// What became of the records that [`OrderedIndex::settle`] has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settlement {
    /// So many have left.
    pub(crate) settled: usize,
    /// So many have gone behind all others, as their writers have not ended.
    pub(crate) uncommitted: usize,
    /// So many there are still.
    pub(crate) remaining: usize,
}

/// A record that the index refers to (E3).
#[derive(Clone, Copy)]
struct Reference(*mut Record);

// SAFETY: records are shared between threads; the flag QUEUED keeps this one alive (E3).
unsafe impl Send for Reference {}

impl Reference {
    fn record<'g>(self, _guard: &'g Guard<'_>) -> Linked<'g, Record> {
        // SAFETY: QUEUED keeps it alive (E3), and after it has been cleared the guard does.
        unsafe { Linked::new(self.0) }.expect("no record is at null")
    }
}

#[derive(Default)]
struct Holdings {
    /// Not in the list, oldest first.
    waiting: VecDeque<Reference>,
    /// In the list, oldest first.
    ordered: VecDeque<Reference>,
}

/// See the [module](self).
pub(crate) struct OrderedIndex {
    queues: [Padded<[AtomicPtr<Record>; LANES]>; SHARDS],
    /// How many are waiting; [`CHANGING`] while it may not be relied on.
    unordered: Padded<AtomicUsize>,
    /// Counts records that leave (rule R10).
    departures: AtomicU64,
    list: SkipList,
    holdings: Mutex<Holdings>,
    /// Of the queues' tops.
    pub(crate) lost: Lost,
}

impl OrderedIndex {
    pub(crate) fn new(account: Arc<Account>) -> OrderedIndex {
        OrderedIndex {
            queues: std::array::from_fn(|_| Padded(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())))),
            unordered: Padded(AtomicUsize::new(0)),
            departures: AtomicU64::new(0),
            list: SkipList::new(account),
            holdings: Mutex::new(Holdings::default()),
            lost: Lost::new(),
        }
    }

    /// A version has been installed in `record`: sees to it that scans find it. `shard` is the caller's, `lane` any number, which
    /// had better be another each time.
    #[inline]
    pub(crate) fn note(&self, record: Linked<'_, Record>, shard: usize, lane: usize) {
        publication_fence();
        // The load spares hot records the locked instructions.
        if record.is_placed() {
            return;
        }
        if record.set_queued() {
            point();
            let queue = &self.queues[shard % SHARDS].0[lane % LANES];
            let mut top = queue.load(Ordering::Relaxed);
            loop {
                record.queue_next.store(top, Ordering::Relaxed);
                let new = record.pointer();
                match queue.compare_exchange_weak(top, new, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(now) => {
                        self.lost.note();
                        top = now;
                    }
                }
            }
            record.set_placed();
        } else {
            Self::wait_until_placed(&record);
        }
    }

    /// O6: somebody else has set the flag and queues the record.
    #[cold]
    fn wait_until_placed(record: &Record) {
        while record.is_being_placed() {
            point();
            yield_now();
        }
    }

    /// How many records have left; see [`OrderedIndex::list`].
    pub(crate) fn departures(&self) -> u64 {
        self.departures.load(Ordering::SeqCst)
    }

    /// Brings everything queued so far into the list (O2).
    pub(crate) fn complete(&self, guard: &Guard<'_>) {
        publication_fence();
        // The queues first: what has left them since is counted by `unordered`, which is set before they are emptied.
        // All of them without a branch for each, as there is nothing in most.
        let tops =
            self.queues.iter().flat_map(|lanes| &lanes.0).map(|queue| queue.load(Ordering::SeqCst).addr());
        if tops.fold(0, |any, top| any | top) == 0 && self.unordered.0.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut holdings = lock(&self.holdings);
        self.unordered.0.store(CHANGING, Ordering::SeqCst);
        self.collect_queues(&mut holdings);
        let Holdings { waiting, ordered } = &mut *holdings;
        self.list.insert_all(waiting.iter().map(|reference| reference.record(guard).get()));
        ordered.extend(waiting.drain(..));
        self.unordered.0.store(0, Ordering::SeqCst);
    }

    /// The records in order. What a walk does not find was not queued before [`OrderedIndex::complete`], or has
    /// settled: if [`OrderedIndex::departures`] is after the walk what it was before the data component was
    /// read, then the former (rule R10).
    pub(crate) fn list(&self) -> &SkipList {
        &self.list
    }

    fn collect_queues(&self, holdings: &mut Holdings) {
        for lanes in &self.queues {
            let start = holdings.waiting.len();
            let mut tops = lanes.0.each_ref().map(|queue| match queue.load(Ordering::SeqCst).is_null() {
                true => ptr::null_mut(),
                false => queue.swap(ptr::null_mut(), Ordering::SeqCst),
            });
            while tops.iter().any(|top| !top.is_null()) {
                for top in &mut tops {
                    // SAFETY: queued records are alive (E3); `queue_next` is the queue's while they are in it.
                    if let Some(record) = unsafe { top.as_ref() } {
                        holdings.waiting.push_back(Reference(*top));
                        *top = record.queue_next.load(Ordering::Relaxed);
                        prefetch(top.cast_const().cast());
                    }
                }
            }
            holdings.waiting.make_contiguous()[start..].reverse();
        }
    }

    /// Empties the queues, which needs no guard and may take a while, for [`OrderedIndex::settle`]. Does nothing if somebody else is at
    /// it.
    pub(crate) fn gather(&self) {
        let Ok(mut holdings) = self.holdings.try_lock() else { return };
        self.unordered.0.store(CHANGING, Ordering::SeqCst);
        self.collect_queues(&mut holdings);
        self.unordered.0.store(holdings.waiting.len(), Ordering::SeqCst);
    }

    /// Looks at up to `count_max` records that are in the list and as many that are not, and takes out what has settled. Nothing if somebody
    /// else is at it.
    pub(crate) fn settle(
        &self,
        count_max: usize,
        standing: impl Fn(&Record) -> Standing,
        guard: &Guard<'_>,
    ) -> Settlement {
        let mut settlement = Settlement::default();
        let Ok(mut holdings) = self.holdings.try_lock() else { return settlement };
        self.unordered.0.store(CHANGING, Ordering::SeqCst);
        self.collect_queues(&mut holdings);
        let Holdings { waiting, ordered } = &mut *holdings;
        self.settle_some(waiting, count_max, false, &standing, &mut settlement, guard);
        self.settle_some(ordered, count_max, true, &standing, &mut settlement, guard);
        self.unordered.0.store(waiting.len(), Ordering::SeqCst);
        settlement
    }

    fn settle_some(
        &self,
        references: &mut VecDeque<Reference>,
        count_max: usize,
        listed: bool,
        standing: &impl Fn(&Record) -> Standing,
        settlement: &mut Settlement,
        guard: &Guard<'_>,
    ) {
        // Oldest first, so that those behind a record that is not posted are mostly not posted either; unless it
        // is one that is written again and again.
        let (mut settled, mut misses) = (0, 0);
        for _ in 0..count_max.min(references.len()) {
            // Records and versions lie all over memory, and were written a while ago.
            if let Some(far) = references.get(2 * AHEAD) {
                prefetch(far.0.cast());
            }
            if let Some(near) = references.get(AHEAD) {
                near.record(guard).prefetch_version(guard);
            }
            let Some(reference) = references.pop_front() else { break };
            let record = reference.record(guard);
            // Who has queued it may be about to say so still, and QUEUED is not cleared before (E3).
            let found = if record.is_placed() { standing(&record) } else { Standing::Uncommitted };
            if found != Standing::Settled {
                references.push_back(reference);
                match found {
                    Standing::Uncommitted => settlement.uncommitted += 1,
                    _ => misses += 1,
                }
                if misses > 8 + settled {
                    break;
                }
                continue;
            }
            self.departures.fetch_add(1, Ordering::SeqCst);
            point();
            if listed {
                self.list.remove(&record, guard);
            }
            if record.clear_queued() {
                // SAFETY: unlinked, not in the list any more, and the flags say that it is ours to retire (E3).
                unsafe { MvccTable::retire(record, guard) };
                settled += 1;
                continue;
            }
            point();
            publication_fence();
            if standing(&record) == Standing::Settled || !record.set_queued() {
                // Done; or a writer has found the flag cleared and queued it anew. Counted once more (O5), for it may have
                // been written, posted and settled again since the first look.
                self.departures.fetch_add(1, Ordering::SeqCst);
                settled += 1;
            } else {
                // Whoever scans waits for the mutex.
                record.set_placed();
                if listed {
                    self.list.insert_all(std::iter::once(record.get()));
                }
                references.push_back(reference);
            }
        }
        settlement.settled += settled;
        settlement.remaining += references.len();
    }

    /// For the destructor of the component: frees the records that only the index refers to any more (E3). To be called
    /// before those of the table are freed.
    pub(crate) fn free_unlinked(&mut self) {
        let mut holdings = lock(&self.holdings);
        self.collect_queues(&mut holdings);
        let Holdings { waiting, ordered } = &mut *holdings;
        for reference in waiting.drain(..).chain(ordered.drain(..)) {
            // SAFETY: alive by E3; `&mut self` says that nobody else uses the component. Freed if the flags say that it is ours.
            unsafe {
                if (*reference.0).clear_queued() {
                    Record::free(reference.0.cast(), (*reference.0).bytes());
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::range_timestamps::KeyRange;
    use crate::record::KeyRef;
    use deuteron_contract::{Direction, TableId, Timestamp};
    use deuteron_epoch::Epochs;
    use loom::thread;
    use std::ops::Bound;

    struct World {
        epochs: Arc<Epochs>,
        index: OrderedIndex,
        record: *mut Record,
        /// Stands for the newest version: 0 settled, else not.
        unsettled: AtomicU64,
    }

    // SAFETY: the record is shared, and freed by the destructor.
    unsafe impl Send for World {}
    // SAFETY: as above.
    unsafe impl Sync for World {}

    impl World {
        fn record(&self) -> Linked<'_, Record> {
            // SAFETY: allocated by the model, freed by `drop`.
            unsafe { Linked::new(self.record) }.unwrap()
        }

        fn finds(&self) -> bool {
            let guard = self.epochs.pin();
            self.index.complete(&guard);
            let range = KeyRange { table: TableId(1), lower: Bound::Unbounded, upper: Bound::Unbounded };
            let mut found = false;
            self.index.list().walk(range, Direction::Forward, &guard, |_| {
                found = true;
                true
            });
            found
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            // SAFETY: nobody uses it any more.
            unsafe { Record::free(self.record.cast(), (*self.record).bytes()) };
        }
    }

    fn world() -> Arc<World> {
        let key = KeyRef { hash: 0, table: TableId(1), key: b"k" };
        Arc::new(World {
            epochs: Epochs::new(),
            index: OrderedIndex::new(Arc::new(Account::new(1 << 20))),
            record: Record::allocate(key, Timestamp(0), 0),
            unsettled: AtomicU64::new(0),
        })
    }

    fn model(check: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(check);
    }

    /// O1: a record that is written while the collector takes it out for settled is there for whoever scans afterwards.
    #[test]
    fn loom_a_record_written_again_stays_in_the_index() {
        model(|| {
            let world = world();
            world.index.note(world.record(), 0, 0);
            let other = Arc::clone(&world);
            let writer = thread::spawn(move || {
                other.unsettled.store(1, Ordering::SeqCst);
                other.index.note(other.record(), 0, 0);
            });
            let guard = world.epochs.pin();
            let standing = |_: &Record| match world.unsettled.load(Ordering::SeqCst) {
                0 => Standing::Settled,
                _ => Standing::Unposted,
            };
            world.index.settle(1, standing, &guard);
            drop(guard);
            writer.join().unwrap();
            assert!(world.finds());
        });
    }

    /// O6: of two that note a record the one that has done so is found by whoever scans then, wherever the other is.
    #[test]
    fn loom_a_record_that_another_is_about_to_queue_is_found_by_who_scans_after_it_was_noted() {
        model(|| {
            let world = world();
            let other = Arc::clone(&world);
            let writer = thread::spawn(move || other.index.note(other.record(), 0, 0));
            world.index.note(world.record(), 0, 0);
            assert!(world.finds());
            writer.join().unwrap();
        });
    }

    /// O2 with R4: a scan finds the record, or the writer, who looks after it has noted the record, sees the publication; a
    /// second scan may be bringing the record into the order meanwhile.
    #[test]
    fn loom_a_scan_finds_the_record_or_the_writer_finds_the_range() {
        model(|| {
            let world = world();
            let published = Arc::new(AtomicU64::new(0));
            let (other, seen) = (Arc::clone(&world), Arc::clone(&published));
            let writer = thread::spawn(move || {
                other.index.note(other.record(), 0, 0);
                publication_fence();
                seen.load(Ordering::SeqCst) == 1
            });
            let other = Arc::clone(&world);
            let scan = thread::spawn(move || other.finds());
            published.store(1, Ordering::SeqCst);
            publication_fence();
            let found = world.finds();
            assert!(writer.join().unwrap() || found);
            scan.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::range_timestamps::KeyRange;
    use crate::record::KeyRef;
    use deuteron_contract::{Direction, TableId, Timestamp};
    use deuteron_epoch::Epochs;
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::ops::Bound;

    fn settled_if(is_settled: bool) -> Standing {
        if is_settled { Standing::Settled } else { Standing::Unposted }
    }

    #[test]
    fn what_is_noted_is_walked_in_order_until_it_settles() {
        let epochs = Epochs::new();
        let index = OrderedIndex::new(Arc::new(Account::new(1 << 20)));
        let key = |number: usize| format!("{:03} and some more", number * 37 % 500).into_bytes();
        let records: Vec<*mut Record> = (0..500)
            .map(|number| {
                let key = key(number);
                Record::allocate(KeyRef { hash: 0, table: TableId(1), key: &key }, Timestamp(0), 0)
            })
            .collect();
        // SAFETY: freed at the end.
        let record = |number: usize| unsafe { Linked::new(records[number]) }.unwrap();
        let guard = epochs.pin();
        let walked = |direction, lower: Bound<&[u8]>, upper: Bound<&[u8]>| {
            index.complete(&guard);
            let mut keys = Vec::new();
            let range = KeyRange { table: TableId(1), lower, upper };
            index.list().walk(range, direction, &guard, |record| {
                keys.push(record.key().to_vec());
                true
            });
            keys
        };
        let unsettled = RefCell::new(BTreeSet::new());
        for round in 0..10 {
            for number in (round * 50)..(round * 50 + 50) {
                index.note(record(number), number, number / 3);
                index.note(record(number), number + 1, 0);
                unsettled.borrow_mut().insert(key(number));
            }
            if round % 2 == 1 {
                let gone = key(round * 50 - 7);
                unsettled.borrow_mut().remove(&gone);
                // It looks at a few of the oldest at a time.
                let is_gone = |record: &Record| settled_if(record.key() == gone);
                while index.settle(1000, is_gone, &guard).settled == 0 {}
            }
            let expected: Vec<Vec<u8>> = unsettled.borrow().iter().cloned().collect();
            assert_eq!(walked(Direction::Forward, Bound::Unbounded, Bound::Unbounded), expected);
            let mut reverse = walked(Direction::Reverse, Bound::Unbounded, Bound::Unbounded);
            reverse.reverse();
            assert_eq!(reverse, expected);
            let (lower, upper) = (&expected[expected.len() / 3][..], &expected[expected.len() / 2][..]);
            let part = &expected[expected.len() / 3 + 1..=expected.len() / 2];
            assert_eq!(walked(Direction::Forward, Bound::Excluded(lower), Bound::Included(upper)), part);
            let mut reverse = walked(Direction::Reverse, Bound::Excluded(lower), Bound::Included(upper));
            reverse.reverse();
            assert_eq!(reverse, part);
        }
        while index.settle(1000, |_| Standing::Settled, &guard).settled > 0 {}
        assert!(walked(Direction::Forward, Bound::Unbounded, Bound::Unbounded).is_empty());
        for record in records {
            // SAFETY: the index refers to it no longer.
            unsafe { Record::free(record.cast(), (*record).bytes()) };
        }
    }

    /// An index of so many records, and the records.
    fn world(count: usize) -> (Arc<Epochs>, OrderedIndex, Vec<*mut Record>) {
        let (epochs, index) = (Epochs::new(), OrderedIndex::new(Arc::new(Account::new(1 << 20))));
        let records: Vec<*mut Record> = (0..count as u32)
            .map(|number| {
                let key = number.to_be_bytes();
                Record::allocate(KeyRef { hash: 0, table: TableId(1), key: &key }, Timestamp(0), 0)
            })
            .collect();
        for record in &records {
            // SAFETY: freed at the end.
            index.note(unsafe { Linked::new(*record) }.unwrap(), 0, 0);
        }
        (epochs, index, records)
    }

    fn end(epochs: &Arc<Epochs>, index: &OrderedIndex, records: Vec<*mut Record>) {
        while index.settle(1000, |_| Standing::Settled, &epochs.pin()).settled > 0 {}
        for record in records {
            // SAFETY: the index refers to it no longer.
            unsafe { Record::free(record.cast(), (*record).bytes()) };
        }
    }

    #[test]
    fn the_collector_gives_up_after_a_few_that_are_not_posted_more_than_are() {
        let (epochs, index, records) = world(100);
        let guard = epochs.pin();
        let looked = RefCell::new(0);
        let settle = |settled: u32, count_max| {
            looked.replace(0);
            let standing = |record: &Record| {
                *looked.borrow_mut() += 1;
                settled_if(record.key() < &settled.to_be_bytes()[..])
            };
            let found = index.settle(count_max, standing, &guard);
            ((found.settled, found.remaining), *looked.borrow())
        };
        assert_eq!(settle(0, 1000), ((0, 100), 9));
        assert_eq!(settle(0, 5), ((0, 100), 5), "so many at most");
        // The 14 that were looked at have gone behind; 20 of the oldest settle now, each looked at twice.
        let departures = index.departures();
        assert_eq!(settle(34, 1000), ((20, 80), 2 * 20 + 29));
        assert_eq!(index.departures(), departures + 40, "before and after");
        // Listed and waiting ones alike.
        index.complete(&guard);
        // SAFETY: alive.
        index.note(unsafe { Linked::new(records[20]) }.unwrap(), 0, 0);
        assert_eq!(settle(0, 1000), ((0, 81), 1 + 9));
        drop(guard);
        end(&epochs, &index, records);
    }

    #[test]
    fn what_is_not_committed_is_passed_by_on_the_way_to_what_has_settled() {
        for listed in [false, true] {
            let (epochs, index, records) = world(2000);
            let guard = epochs.pin();
            if listed {
                index.complete(&guard);
            }
            let standing = |record: &Record| match record.key() < &1000u32.to_be_bytes()[..] {
                true => Standing::Uncommitted,
                false => Standing::Settled,
            };
            let settlement = |settled, uncommitted, remaining| Settlement { settled, uncommitted, remaining };
            assert_eq!(index.settle(700, standing, &guard), settlement(0, 700, 2000));
            assert_eq!(index.settle(700, standing, &guard), settlement(400, 300, 1600));
            assert_eq!(index.settle(700, standing, &guard), settlement(600, 100, 1000));
            assert_eq!(index.settle(2000, standing, &guard), settlement(0, 1000, 1000), "each once");
            drop(guard);
            end(&epochs, &index, records);
        }
    }

    #[test]
    fn a_record_that_is_written_again_meanwhile_stays_and_one_that_is_gone_is_retired() {
        for listed in [false, true] {
            let (epochs, index, mut records) = world(2);
            let guard = epochs.pin();
            if listed {
                index.complete(&guard);
            }
            let looks = RefCell::new(0);
            let is_settled = |record: &Record| {
                *looks.borrow_mut() += 1;
                settled_if(record.key() == [0; 4] && *looks.borrow() == 1)
            };
            let departures = index.departures();
            let none = Settlement { remaining: 2, ..Settlement::default() };
            assert_eq!(index.settle(1, is_settled, &guard), none);
            assert_eq!((*looks.borrow(), index.departures()), (2, departures + 1));
            // SAFETY: alive.
            assert!(records.iter().all(|record| unsafe { (**record).is_queued() }));
            let mut found = 0;
            index.complete(&guard);
            let range = KeyRange { table: TableId(1), lower: Bound::Unbounded, upper: Bound::Unbounded };
            index.list().walk(range, Direction::Forward, &guard, |_| {
                found += 1;
                true
            });
            assert_eq!(found, 2);
            // Unlinked from its bucket while the index refers to it.
            let gone = records.remove(1);
            // SAFETY: alive.
            assert!(unsafe { !(*gone).set_unlinked() });
            let is_gone = |record: &Record| settled_if(record.key() == [0, 0, 0, 1]);
            let before = epochs.garbage_bytes();
            let one = Settlement { settled: 1, uncommitted: 0, remaining: 1 };
            assert_eq!(index.settle(10, is_gone, &guard), one);
            assert!(epochs.garbage_bytes() > before, "the index has retired it");
            drop(guard);
            end(&epochs, &index, records);
        }
    }
}
