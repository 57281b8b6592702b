//! What a transaction needs besides its slot: read set, write set, buffers. Reused from one transaction to the next, so
//! that a short transaction allocates nothing but its versions.
//!
//! - **W1** A workspace belongs to one transaction at a time, or to the pool.
//! - **W2** It owns its announcement (H1) and its slots (T1). A slot that versions have referred to, or whose transaction has logged, or has said that it has written
//!   much, is *spent*: it is used again once the guards of that time are gone (T2).
//!
//! A workspace holds the component, so that beginning a transaction touches no shared reference count. The cycle (the
//! component holds the pool) is broken by [`Pool::close`], when the last user of the component goes.

use crate::ahead::Ahead;
use crate::announcements::{Announcement, AnnouncementIndex};
use crate::change::Changes;
use crate::core::Core;
use crate::entries::Entries;
use crate::error::TcError;
use crate::held::Held;
use crate::host::Host;
use crate::memory::shard_of_thread;
use crate::range_timestamps::OwnedRange;
use crate::record::{KeyHash, Record};
use crate::recycler::Recycler;
use crate::savepoint::Savepoints;
use crate::segment::Digest;
use crate::statistics::Counts;
use crate::superseded::Superseded;
use crate::sync::{AtomicPtr, AtomicUsize, Lost, Mutex, Ordering, Padded, lock};
use crate::transaction_table::{Slot, SlotIndex};
use crate::turnstile::{CONTENDS, Pass};
use crate::version::Version;
use deuteron_contract::{Direction, Lsn, TableId, Timestamp, TransactionId};
use deuteron_epoch::prefetch_for_write;
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

#[cfg(not(any(loom, shuttle)))]
const POOL: usize = 64;
#[cfg(any(loom, shuttle))]
const POOL: usize = 1;
/// So many neighbours are tried for a workspace, or for a place to leave one.
const NEIGHBOURS: usize = 4;
/// Spent slots kept back before the epoch is asked to advance.
const SPENT_MAX: usize = 64;
/// Of so many transactions that pass the turnstile one is timed.
const SAMPLED: u64 = 16;
/// Threads look for places of their ranges so far apart.
const RANGE_PLACES_APART: usize = 16;
/// Vectors longer than this are not kept.
const CAPACITY_MAX: usize = 1 << 12;

/// What a read saw: enough to tell whether it would see the same at another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    /// The key did not exist.
    Absent,
    /// The version committed at this timestamp.
    Version(Timestamp),
}

/// A key that was read; its bytes lie in [`Workspace::keys`].
pub(crate) struct ReadEntry {
    pub(crate) hash: KeyHash,
    pub(crate) table: TableId,
    pub(crate) key_start: u32,
    pub(crate) key_length: u32,
    pub(crate) observed: Observed,
}

/// A version that was written. Both pointers are good until the version is stamped: a record with an unstamped version is
/// not evicted, and an unstamped version is not unlinked (V2).
#[derive(Clone, Copy)]
pub(crate) struct WriteEntry {
    pub(crate) record: *const Record,
    pub(crate) version: *const Version,
}

/// A range that was scanned, and a digest of what was there.
pub(crate) struct ScanEntry {
    pub(crate) range: OwnedRange,
    pub(crate) direction: Direction,
    pub(crate) digest: Digest,
    /// The next ordinal then: keys whose versions had lower ones were the transaction's own and are no part of the digest.
    pub(crate) own: u64,
}

/// The begin of a transaction that is timed.
struct Began {
    at: Instant,
    by: ThreadId,
    /// How long that thread had had a processor.
    ran: Option<Duration>,
}

impl Began {
    fn now(host: &dyn Host) -> Began {
        // The clock of the thread is a system call: within both of them lies what is timed, and they in nothing.
        let ran = host.processor_time();
        Began { ran, by: thread::current().id(), at: Instant::now() }
    }

    /// How long it has had a processor since, if it is the same thread that asks.
    fn ran(&self, host: &dyn Host) -> Option<Duration> {
        let ran = self.ran.filter(|_| self.by == thread::current().id())?;
        Some(host.processor_time()?.saturating_sub(ran))
    }
}

/// See the [module](self).
pub(crate) struct Workspace {
    pub(crate) core: Arc<Core>,
    pub(crate) slot: SlotIndex,
    /// The transaction's identity in the log; an earlier one's in a reader of the past, which logs nothing.
    pub(crate) log_id: TransactionId,
    announcement: AnnouncementIndex,
    spent: VecDeque<(SlotIndex, u64)>,
    /// No guard of this epoch or an earlier one is left.
    safe_epoch: u64,
    pub(crate) reads: Vec<ReadEntry>,
    pub(crate) keys: Vec<u8>,
    pub(crate) scans: Vec<ScanEntry>,
    /// Bytes of the scans with their bounds.
    pub(crate) scan_bytes: usize,
    /// What it keeps for itself: reads, scans, noted changes, what savepoints bring back.
    pub(crate) held: Held,
    pub(crate) writes: Vec<WriteEntry>,
    /// Where versions that are pruned go, and new ones come from.
    pub(crate) recycler: Recycler,
    /// What its last transactions have written above others.
    pub(crate) superseded: Superseded,
    /// Memory that cannot be given back before the transaction ends.
    pub(crate) written_bytes: usize,
    /// The slot has said that this is much.
    pub(crate) has_said_much: bool,
    /// The value read last.
    pub(crate) value: Vec<u8>,
    /// What has been fetched before the reads that need it.
    pub(crate) ahead: Ahead,
    /// The batches read last, of scans in either direction.
    pub(crate) scanned: [Entries; 2],
    /// Where a scan looks for a place for its range first.
    pub(crate) range_place: usize,
    pub(crate) counts: Counts,
    pub(crate) shard: usize,
    /// The highest commit LSN among the versions read (paper 2.3.1).
    pub(crate) read_lsn: Lsn,
    /// Too much was read to be remembered.
    pub(crate) reads_forgotten: bool,
    /// The ordinal of the next version to be installed (V4).
    pub(crate) next_ordinal: u64,
    pub(crate) savepoints: Savepoints,
    /// Noted and not written yet (R22).
    pub(crate) changes: Changes,
    /// Redo records of about so many bytes wait for the commit; none, if this is 0.
    pub(crate) unlogged_bytes: usize,
    /// How many turns are left to give to others (R19).
    pub(crate) patience: u32,
    /// How many more transactions pass the turnstile before they begin (R23).
    contends: u32,
    pass: Option<Pass>,
    /// The transaction has met another.
    met: bool,
    /// If it is one of those that are timed.
    began: Option<Began>,
    /// How often the turnstile has been passed.
    passes: u64,
}

// SAFETY: the pointers of the write set are to records and versions, which are shared between threads, and stay good
// whichever thread the transaction moves to (see `WriteEntry`). Those of notes of what is superseded are compared only.
unsafe impl Send for Workspace {}

impl Workspace {
    fn new(core: &Arc<Core>) -> Box<Workspace> {
        Box::new(Workspace {
            core: Arc::clone(core),
            slot: core.pool.spare_slot(core),
            announcement: core.pool.spare_announcement(core),
            log_id: TransactionId(0),
            spent: VecDeque::new(),
            safe_epoch: 0,
            reads: Vec::new(),
            keys: Vec::new(),
            scans: Vec::new(),
            scan_bytes: 0,
            held: Held::default(),
            writes: Vec::new(),
            recycler: Recycler::new(),
            superseded: Superseded::default(),
            written_bytes: 0,
            has_said_much: false,
            value: Vec::new(),
            ahead: Ahead::default(),
            scanned: Default::default(),
            range_place: shard_of_thread() * RANGE_PLACES_APART,
            counts: Counts::default(),
            shard: shard_of_thread(),
            read_lsn: Lsn(0),
            reads_forgotten: false,
            next_ordinal: 0,
            savepoints: Savepoints::default(),
            changes: Changes::default(),
            unlogged_bytes: 0,
            patience: core.options.patience,
            contends: 0,
            pass: None,
            met: false,
            began: None,
            passes: 0,
        })
    }

    /// R23: before the begin of a transaction that may write.
    #[inline]
    pub(crate) fn pass_turnstile(&mut self) {
        if self.contends > 0 {
            let core = &*self.core;
            self.passes += 1;
            // Of this workspace and its slot, neither of which two have at a time; not 0.
            let token = (u64::from(self.slot.0) + 1) << 32 | u64::from(self.passes as u32);
            self.pass = core.turnstile.enter(self.shard, token, &*core.host);
            if self.passes.is_multiple_of(SAMPLED) && self.pass.is_some() {
                self.began = Some(Began::now(&*core.host));
            }
        }
    }

    /// R23: the transaction has let go of the processor for another, or gives way to it.
    #[cold]
    pub(crate) fn meet(&mut self) {
        if !self.met && !self.core.is_timestamp_order() {
            self.met = true;
            self.contends = CONTENDS;
            self.core.turnstile.narrow();
        }
    }

    /// The slot of the transaction.
    #[inline]
    pub(crate) fn slot(&self) -> &Slot {
        self.core.transactions.slot(self.slot)
    }

    /// Where it is announced as of when the transaction reads.
    #[inline]
    pub(crate) fn announcement(&self) -> &Announcement {
        self.core.announcements.announcement(self.announcement)
    }

    /// The key of a read.
    pub(crate) fn key_of(&self, read: &ReadEntry) -> &[u8] {
        &self.keys[read.key_start as usize..][..read.key_length as usize]
    }

    /// The transaction has ended; all its versions are stamped. The horizon may pass.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.slot().end();
        self.announcement().end();
        self.tell_waiting();
        if self.contends > 0 {
            self.leave_turnstile();
        }
        self.core.counters.take(&mut self.counts);
    }

    fn leave_turnstile(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.core.turnstile.leave(pass);
        }
        let began = self.began.take();
        if !self.met {
            self.contends -= 1;
            if let Some(began) = began {
                let elapsed = began.at.elapsed();
                let ran = began.ran(&*self.core.host);
                self.core.turnstile.has_met_nobody(elapsed, ran, SAMPLED as u32);
            }
        }
        self.met = false;
    }

    /// R19: whoever waits for the transaction looks again.
    #[inline]
    pub(crate) fn tell_waiting(&self) {
        if self.slot().take_awaited() {
            self.core.host.ended(self.slot.0);
        }
    }

    /// Makes room for an operation that takes memory. Never under a guard.
    ///
    /// # Errors
    /// As [`Core::make_room`](crate::core::Core::make_room).
    #[inline]
    pub(crate) fn make_room(&mut self) -> Result<(), TcError> {
        if self.core.account.is_much(self.written_bytes) {
            self.say_much();
        }
        self.core.make_room(self.slot(), || self.takes_all())
    }

    /// An error, if the transaction itself keeps all of the memory: what it has written, and what lies beneath, as it may still be aborted. Takes time in proportion to what was
    /// written.
    fn takes_all(&self) -> Result<(), TcError> {
        let guard = self.core.epochs.pin();
        // SAFETY: ours, and not stamped (see `WriteEntry`).
        let beneath = self.writes.iter().map(|entry| unsafe { (*entry.version).bytes_below(&guard) });
        let taken = self.written_bytes + beneath.sum::<usize>();
        if taken as u64 <= self.core.account.budget() {
            return Ok(());
        }
        Err(self.too_large())
    }

    /// Half of the budget at most waits for one transaction to commit: an error, if what it has written and `more` bytes are more.
    #[inline]
    pub(crate) fn check_size(&self, more: usize) -> Result<(), TcError> {
        let is_too_large = self.written_bytes + more > self.core.account.budget() as usize / 2;
        if is_too_large { Err(self.too_large()) } else { Ok(()) }
    }

    #[cold]
    fn too_large(&self) -> TcError {
        let limit = self.writes.len();
        TcError::TransactionTooLarge { found: limit + 1, limit }
    }

    /// Says in the slot how much the transaction has written, or noted, so that it may have to give way to others; and how the log calls it, or
    /// will, for who aborts it tells the log, whether that knows of it or not.
    fn say_much(&mut self) {
        self.has_said_much = true;
        let slot = self.slot();
        slot.set_log_id(self.log_id);
        // The id is that of the begin, unless something was rolled back; what is announced may be later than the begin (R20), or nothing of it (R16).
        let id = Timestamp(self.log_id.0);
        let began = self.announcement().get().map_or(id, |begin| id.min(begin.earliest()));
        slot.set_began(began);
        slot.set_written(self.written_bytes);
    }

    /// For the next transaction: everything is as new.
    pub(crate) fn reset(&mut self, has_logged: bool) {
        // Whatever it has installed, rolled back or not, referred to the slot; and whoever has seen in it where a transaction began to log
        // looks at its status next (see `Core::abort_writers_before`), and so does whoever has seen that it has written much.
        if self.next_ordinal > 0 || has_logged || self.has_said_much {
            self.renew_slot();
        }
        self.has_said_much = false;
        self.next_ordinal = 0;
        self.savepoints.clear();
        self.changes.clear();
        self.ahead.clear(&self.core.account);
        self.held.clear(&self.core.account);
        self.scan_bytes = 0;
        self.written_bytes = 0;
        self.read_lsn = Lsn(0);
        self.reads_forgotten = false;
        self.unlogged_bytes = 0;
        self.patience = self.core.options.patience;
        clear(&mut self.reads);
        clear(&mut self.keys);
        clear(&mut self.scans);
        clear(&mut self.writes);
        self.scanned.iter_mut().for_each(Entries::limit_memory);
        if self.value.capacity() > 1 << 16 {
            self.value = Vec::new();
        }
    }

    /// T2: sets the slot aside for an epoch and takes another.
    fn renew_slot(&mut self) {
        let epochs = &self.core.epochs;
        let now = epochs.current();
        self.spent.push_back((self.slot, now));
        let recycled = match self.spent.front() {
            Some(&(_, epoch)) if self.spent.len() > SPENT_MAX => {
                if epoch > self.safe_epoch {
                    if epoch == now {
                        epochs.advance();
                    }
                    // Half of them at once, if that can be; it seldom cannot.
                    let (_, middle) = self.spent[SPENT_MAX / 2];
                    let safe = [middle, epoch].into_iter().find(|epoch| epochs.is_quiescent(*epoch));
                    self.safe_epoch = safe.unwrap_or(self.safe_epoch);
                }
                epoch <= self.safe_epoch
            }
            _ => false,
        };
        self.slot = match self.spent.front() {
            Some(&(slot, _)) if recycled => {
                self.spent.pop_front();
                slot
            }
            // Those of workspaces that found no place are many, where many transactions are open.
            _ => self.core.pool.spare_slot(&self.core),
        };
        // It has left the nearer caches since it was used last.
        if let Some(&(next, _)) = self.spent.front() {
            prefetch_for_write(self.core.transactions.slot(next));
        }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let core = &*self.core;
        self.recycler.empty(&core.account, &core.epochs.pin());
    }
}

/// Empties what is used again, unless it has become large.
pub(crate) fn clear<T>(vector: &mut Vec<T>) {
    if vector.capacity() > CAPACITY_MAX {
        *vector = Vec::new();
    } else {
        vector.clear();
    }
}

/// A place of a pool that has been closed.
const CLOSED: *mut Workspace = ptr::without_provenance_mut(1);

/// The workspaces that nobody uses.
pub(crate) struct Pool {
    places: [Padded<AtomicPtr<Workspace>>; POOL],
    /// Slots of workspaces that found no place, with the epochs in which they were spent.
    slots: Mutex<VecDeque<(SlotIndex, u64)>>,
    /// How many they are. Changed under the lock only.
    slot_count: AtomicUsize,
    /// Theirs, at which nobody looks for longer than it takes.
    announcements: Mutex<Vec<AnnouncementIndex>>,
    /// Of the places: found taken.
    pub(crate) lost: Lost,
}

impl Pool {
    pub(crate) fn new() -> Pool {
        Pool {
            places: std::array::from_fn(|_| Padded(AtomicPtr::new(ptr::null_mut()))),
            slots: Mutex::new(VecDeque::new()),
            slot_count: AtomicUsize::new(0),
            announcements: Mutex::new(Vec::new()),
            lost: Lost::new(),
        }
    }

    fn neighbours(&self) -> impl Iterator<Item = &AtomicPtr<Workspace>> {
        let start = shard_of_thread();
        (0..NEIGHBOURS).map(move |neighbour| &self.places[(start + neighbour) % POOL].0)
    }

    /// A workspace, as new. The caller has a hold on the component: the pool is not closed.
    #[inline]
    pub(crate) fn take(&self, core: &Arc<Core>) -> Box<Workspace> {
        for place in self.neighbours() {
            if place.load(Ordering::Relaxed).is_null() {
                continue;
            }
            let taken = place.swap(ptr::null_mut(), Ordering::Acquire);
            if !taken.is_null() {
                // SAFETY: from `Box::into_raw`; whoever swapped it out owns it (W1).
                return unsafe { Box::from_raw(taken) };
            }
        }
        Workspace::new(core)
    }

    /// Gives a workspace back that has been reset.
    #[inline]
    pub(crate) fn give_back(workspace: Box<Workspace>) {
        let core = Arc::as_ptr(&workspace.core);
        let raw = Box::into_raw(workspace);
        // SAFETY: the workspace keeps the core alive until a place has taken it. After that nothing here is touched any
        // more: whoever closes the pool may drop both.
        let pool = unsafe { &(*core).pool };
        for place in pool.neighbours() {
            let given = place.compare_exchange(ptr::null_mut(), raw, Ordering::AcqRel, Ordering::Relaxed);
            if pool.lost.is_won(given) {
                return;
            }
        }
        // SAFETY: no place took it.
        let mut workspace = unsafe { Box::from_raw(raw) };
        let mut slots = lock(&pool.slots);
        slots.extend(workspace.spent.drain(..));
        slots.push_back((workspace.slot, workspace.core.epochs.current()));
        pool.slot_count.store(slots.len(), Ordering::Relaxed);
        drop(slots);
        lock(&pool.announcements).push(workspace.announcement);
        // The core may go with it.
        drop(workspace);
    }

    fn spare_announcement(&self, core: &Core) -> AnnouncementIndex {
        let spare = lock(&self.announcements).pop();
        spare.unwrap_or_else(|| core.announcements.allocate())
    }

    fn spare_slot(&self, core: &Core) -> SlotIndex {
        // Relaxed: one that has just come is found by the next.
        if self.slot_count.load(Ordering::Relaxed) == 0 {
            return core.transactions.allocate();
        }
        let mut slots = lock(&self.slots);
        let Some(&(slot, epoch)) = slots.front() else { return core.transactions.allocate() };
        if !core.epochs.is_quiescent(epoch) {
            if epoch == core.epochs.current() {
                // Nobody else may.
                core.epochs.advance();
            }
            return core.transactions.allocate();
        }
        slots.pop_front();
        self.slot_count.store(slots.len(), Ordering::Relaxed);
        slot
    }

    /// The component's last user is going, and keeps the core alive during the call: drops the workspaces, and with
    /// them their hold on the core. Those of transactions that are still active find no place any more.
    pub(crate) fn close(&self) {
        for place in &self.places {
            let workspace = place.0.swap(CLOSED, Ordering::AcqRel);
            if !workspace.is_null() && workspace != CLOSED {
                // SAFETY: from `Box::into_raw`, swapped out (W1).
                drop(unsafe { Box::from_raw(workspace) });
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::test_bed::{Bed, TABLE, roomy};
    use crate::{BeginOptions, TcOptions, Transaction};
    use deuteron_contract::MemoryDc;
    use deuteron_log::LogOptions;
    use std::collections::BTreeSet;

    fn slot_of_a_writer(bed: &Bed) -> u32 {
        let mut tx = bed.begin();
        tx.put(TABLE, b"k", b"1").unwrap();
        let slot = tx.workspace.slot;
        tx.commit().unwrap();
        slot.0
    }

    #[test]
    fn a_slot_that_versions_referred_to_is_used_again_when_nobody_can_look_at_it() {
        let bed = roomy();
        let idle = bed.begin().workspace.slot;
        assert_eq!(bed.begin().workspace.slot, idle, "nothing refers to it");
        assert_eq!(slot_of_a_writer(&bed), idle.0);
        let slots: BTreeSet<u32> = (0..1000).map(|_| slot_of_a_writer(&bed)).collect();
        assert!(!slots.contains(&idle.0) || slots.len() > SPENT_MAX, "it is spent");
        assert!((SPENT_MAX..4 * SPENT_MAX).contains(&slots.len()), "{}", slots.len());
        // While somebody may look at them none comes back.
        let guard = bed.epochs.pin();
        let slots: BTreeSet<u32> = (0..500).map(|_| slot_of_a_writer(&bed)).collect();
        assert!(slots.len() > 400, "{}", slots.len());
        drop(guard);
    }

    #[test]
    fn slots_of_workspaces_without_a_place_come_back() {
        let bed = roomy();
        let core = &bed.tc().core;
        let round = || {
            let open: Vec<_> = (0..100).map(|_| bed.begin()).collect();
            let slots: BTreeSet<u32> = open.iter().map(|tx| tx.workspace.slot.0).collect();
            assert_eq!(slots.len(), 100, "each has its own");
            slots
        };
        let first = round();
        bed.epochs.advance();
        let guard = bed.epochs.pin();
        let fresh = round().difference(&first).count();
        assert!(fresh < 20, "those spent before the guard may be used: {fresh}");
        assert!(round().difference(&first).count() > 80, "and those spent since may not");
        drop(guard);
        bed.epochs.advance();
        let before = core.transactions.slots().count();
        (0..5).for_each(|_| {
            round();
            bed.epochs.advance();
        });
        assert!(core.transactions.slots().count() <= before.max(256));
    }

    #[test]
    fn buffers_are_kept_up_to_a_size() {
        let bed = roomy();
        for (length, kept) in [(60 << 10, true), (100 << 10, false)] {
            bed.put(b"k", &vec![7; length]);
            assert!(bed.get(b"k").is_some());
            assert_eq!(bed.begin().workspace.value.capacity() >= length, kept);
        }
        for (length, kept) in [(CAPACITY_MAX, true), (CAPACITY_MAX + 1, false)] {
            let mut vector = Vec::with_capacity(length);
            vector.push(1u8);
            clear(&mut vector);
            assert_eq!((vector.len(), vector.capacity()), (0, if kept { length } else { 0 }));
        }
    }

    #[test]
    fn who_meets_another_passes_the_turnstile_for_a_while() {
        let bed = roomy();
        let core = &bed.tc().core;
        let all = core.turnstile.open();
        {
            let tx = bed.begin();
            assert!(tx.workspace.contends == 0 && tx.workspace.pass.is_none());
        }
        {
            let mut tx = bed.begin();
            tx.workspace.meet();
            tx.workspace.meet();
        }
        assert_eq!(core.turnstile.open(), all * 3 / 4, "once a transaction");
        let mut passes = BTreeSet::new();
        for round in 1..=40 {
            let tx = bed.begin();
            assert_eq!(
                (tx.workspace.contends, tx.workspace.passes),
                (CONTENDS + 1 - round, u64::from(round))
            );
            assert!(passes.insert(format!("{:?}", tx.workspace.pass.expect("it is inside"))));
            assert_eq!(tx.workspace.began.is_some(), round % 16 == 0, "one in so many is timed");
        }
        assert!(core.turnstile.open() >= all * 3 / 4);
        // Who does not write does not pass.
        let reader = bed.begin_with(crate::BeginOptions { read_only: true, ..Default::default() });
        assert!(reader.workspace.contends > 0 && reader.workspace.pass.is_none());
        drop(reader);
        let mut tx = bed.begin();
        tx.workspace.meet();
        drop(tx);
        let tx = bed.begin();
        assert_eq!(tx.workspace.contends, CONTENDS, "anew");
        assert!(!tx.workspace.met);
    }

    /// A thread that has had a processor a millisecond longer each time that one asks.
    #[derive(Default)]
    struct Clock(std::sync::atomic::AtomicU64);

    impl Host for Clock {
        fn stalled(&self, _: crate::Stall) -> Result<(), String> {
            Ok(())
        }

        fn processor_time(&self) -> Option<Duration> {
            Some(Duration::from_millis(self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
        }
    }

    #[test]
    fn what_another_thread_has_run_says_nothing() {
        let clock = Clock::default();
        let began = Began::now(&clock);
        assert_eq!(began.ran(&clock), Some(Duration::from_millis(1)));
        thread::scope(|scope| assert_eq!(scope.spawn(|| began.ran(&clock)).join().unwrap(), None));
        assert_eq!(Began { ran: None, ..began }.ran(&clock), None);
    }

    #[test]
    fn the_places_of_two_workspaces_are_told_apart() {
        let bed = roomy();
        let core = &bed.tc().core;
        (0..100).for_each(|_| core.turnstile.narrow());
        assert_eq!(core.turnstile.open(), 1);
        let mut workspaces = [core.pool.take(core), core.pool.take(core)];
        for workspace in &mut workspaces {
            workspace.contends = 10;
            workspace.pass_turnstile();
        }
        let [first, second] = workspaces.map(|mut workspace| {
            let pass = workspace.pass.take().expect("it is inside");
            Pool::give_back(workspace);
            pass
        });
        // The second has robbed the first of the only place.
        assert_ne!(first, second);
        core.turnstile.leave(first);
        let mut third = core.pool.take(core);
        third.contends = 1;
        let before = bed.tc().statistics().stalls;
        let _ = before;
        third.pass_turnstile();
        assert!(third.pass.is_some());
        third.end();
        Pool::give_back(third);
    }

    #[test]
    fn who_is_not_to_wait_for_a_place_begins_without_and_is_timed_by_nobody() {
        let stalled = |_: &Bed| Err("it is late".to_string());
        let options = TcOptions { memory_bytes: 1 << 20, ..TcOptions::default() };
        let (log, proxy) = (LogOptions::tiny_for_tests(), deuteron_proxy::Options::tiny_for_tests());
        let bed = Bed::open(Arc::new(MemoryDc::new()), options, &log, proxy, stalled).expect("a new log");
        let core = &bed.tc().core;
        (0..100).for_each(|_| core.turnstile.narrow());
        let begin = || {
            let mut workspace = core.pool.take(core);
            (workspace.contends, workspace.passes) = (10, SAMPLED - 1);
            Transaction::new(workspace, BeginOptions::default())
        };
        let inside = begin();
        assert!(inside.workspace.pass.is_some() && inside.workspace.began.is_some());
        let late = begin();
        assert!(late.workspace.pass.is_none() && late.workspace.began.is_none());
        drop(late);
        assert!(begin().workspace.pass.is_none(), "it had no place to give back");
        drop(inside);
        assert!(begin().workspace.pass.is_some());
    }

    #[test]
    fn meetings_are_those_of_transactions_and_not_of_memory() {
        use crate::ConflictCause::*;
        let place = || crate::ConflictPlace::Transaction;
        let causes = [(WriteWrite, true), (ReadChanged, true), (SnapshotTooOld, false), (LogPinned, false)];
        for (cause, meets) in causes {
            let bed = roomy();
            let mut tx = bed.begin();
            tx.conflict(cause, TABLE, place(), None);
            assert_eq!(tx.workspace.contends > 0, meets, "{cause:?}");
            assert_eq!(bed.tc().statistics().conflicts, 1);
        }
    }
}
