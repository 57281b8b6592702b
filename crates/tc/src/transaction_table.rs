//! The transaction table (paper 2.1): one slot for each transaction that is active, or whose versions still refer
//! to it.
//!
//! Slots lie in chunks that are added and never move; chunk `k` holds `FIRST << k` of them, so an index finds its
//! slot with two instructions and no lock.
//!
//! # Invariants
//!
//! - **T1** A slot belongs to one workspace (see `workspace`), which gives it to one transaction at a time.
//! - **T2** A slot is given to another transaction only after all versions that refer to it have been stamped and
//!   every guard of that time is gone. So a guard that has loaded a reference to a slot reads the status of the
//!   transaction that wrote the version, and of no later one.
//! - **T3** `begin` of an active transaction is never later than the timestamp at which it reads: from its begin to its end, or, if it reads what
//!   is committed (R16), during each of its operations. See [`TransactionTable::begin`]; when it is *fixed* says A1 (`active_timestamps`).

use crate::clock::Clock;
use crate::error::ConflictCause;
use crate::status::StatusWord;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Lost, Ordering, Padded, publication_fence};
use deuteron_contract::{Lsn, Timestamp, TransactionId};
use std::ptr;

#[cfg(not(any(loom, shuttle)))]
const FIRST: u32 = 64;
#[cfg(any(loom, shuttle))]
const FIRST: u32 = 2;
/// `64 << 26` slots: more than there are 32-bit indexes that matter.
const CHUNKS: usize = 26;

/// What [`Slot`] has for a begin when no transaction is active in it.
const IDLE: u64 = u64::MAX;
/// Of the begin, which is shifted by it: the timestamp is fixed (A1).
const FIXED: u64 = 1;
/// [`Slot::first_lsn`] of a transaction that has logged nothing.
const NOTHING_LOGGED: u64 = u64::MAX;
/// [`Slot::waits_for`] of a transaction that does not wait. No slot has that number.
const NOBODY: u32 = u32::MAX;
/// [`Slot::aborted_for`]: it kept the log from being cut.
const LOG: u32 = 0;
/// [`Slot::aborted_for`]: what it had written took the memory that others needed.
const MEMORY: u32 = 1;

/// As of when an active transaction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// At this timestamp, and at no other (A1).
    Fixed(Timestamp),
    /// At this one or later.
    NotBefore(Timestamp),
}

impl Begin {
    /// No later than the earliest timestamp at which it reads.
    pub(crate) fn earliest(self) -> Timestamp {
        match self {
            Begin::Fixed(at) | Begin::NotBefore(at) => at,
        }
    }

    fn encode(self) -> u64 {
        match self {
            Begin::Fixed(at) => at.0 << 1 | FIXED,
            Begin::NotBefore(at) => at.0 << 1,
        }
    }
}

/// The number of a slot; what an unstamped version refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotIndex(pub(crate) u32);

/// What the others may know of a transaction. One line of its own: its owner writes it at every begin and commit.
#[repr(align(64))]
pub(crate) struct Slot {
    /// State and timestamp.
    pub(crate) status: StatusWord,
    /// The [`Begin`] of the active transaction (T3), or [`IDLE`].
    begin: AtomicU64,
    /// Where the commit record lies. Written before the status word says `Committed`.
    commit_lsn: AtomicU64,
    /// Where the first log record of the active transaction lies, or a place before it behind those that are void; or [`NOTHING_LOGGED`].
    first_lsn: AtomicU64,
    /// Under which number the active transaction logs. Not its begin, which moves on.
    log_id: AtomicU64,
    /// The slot of the transaction that the active one waits for (R19), or [`NOBODY`].
    waits_for: AtomicU32,
    /// Whether somebody waits for the active transaction, 1 or 0.
    awaited: AtomicU32,
    /// What the active transaction has written or noted takes so many bytes, if that is much; else 0.
    written: AtomicU64,
    /// Why others abort the active transaction: [`LOG`] or [`MEMORY`]. Of no meaning unless they have.
    aborted_for: AtomicU32,
}

impl Slot {
    fn new() -> Slot {
        Slot {
            status: StatusWord::new(),
            begin: AtomicU64::new(IDLE),
            commit_lsn: AtomicU64::new(0),
            first_lsn: AtomicU64::new(NOTHING_LOGGED),
            log_id: AtomicU64::new(0),
            waits_for: AtomicU32::new(NOBODY),
            awaited: AtomicU32::new(0),
            written: AtomicU64::new(0),
            aborted_for: AtomicU32::new(LOG),
        }
    }

    /// What the owner has written or noted takes so many bytes, which is much. [How it logs](Slot::set_log_id) it has said before.
    #[inline]
    pub(crate) fn set_written(&self, bytes: usize) {
        self.written.store(bytes as u64, Ordering::Release);
    }

    /// What the active transaction has written or noted takes so many bytes; 0 if that is little.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Somebody else aborts the transaction, because of the log or of memory; whether it was active.
    pub(crate) fn abort_for(&self, cause: ConflictCause, lost: &Lost) -> bool {
        let told = if cause == ConflictCause::MemoryShort { MEMORY } else { LOG };
        // Before the swap: of two who abort it the owner may be told the other's, and both are true.
        self.aborted_for.store(told, Ordering::Relaxed);
        self.status.abort(lost)
    }

    /// Why, of a transaction that others have aborted.
    pub(crate) fn aborted_for(&self) -> ConflictCause {
        match self.aborted_for.load(Ordering::Relaxed) {
            MEMORY => ConflictCause::MemoryShort,
            _ => ConflictCause::LogPinned,
        }
    }

    /// Where the commit record of a transaction lies that was seen committed.
    pub(crate) fn commit_lsn(&self) -> Lsn {
        // Relaxed: ordered by the load of the status word that said `Committed`.
        Lsn(self.commit_lsn.load(Ordering::Relaxed))
    }

    /// The owner has reserved its commit record; the status word says so next.
    pub(crate) fn set_commit_lsn(&self, lsn: Lsn) {
        self.commit_lsn.store(lsn.0, Ordering::Relaxed);
    }

    /// The owner has logged its first record, as `id`.
    pub(crate) fn set_first_lsn(&self, lsn: Lsn, id: TransactionId) {
        self.set_log_id(id);
        self.first_lsn.store(lsn.0, Ordering::Release);
    }

    /// Of what the owner has logged only what lies at this place or behind it counts any more; `None`: nothing does.
    pub(crate) fn forget_logged_before(&self, lsn: Option<Lsn>) {
        self.first_lsn.store(lsn.map_or(NOTHING_LOGGED, |lsn| lsn.0), Ordering::Release);
    }

    /// The owner logs as `id` from here on.
    pub(crate) fn set_log_id(&self, id: TransactionId) {
        self.log_id.store(id.0, Ordering::Relaxed);
    }

    /// As whom the transaction logs whose [`Slot::first_lsn`], or whose [`Slot::written`], has been seen.
    pub(crate) fn log_id(&self) -> TransactionId {
        // Relaxed: ordered by the load of either; and of two that it had, either has been aborted or will be.
        TransactionId(self.log_id.load(Ordering::Relaxed))
    }

    /// Where the first log record lies, if there is one and the transaction is active.
    pub(crate) fn first_lsn(&self) -> Option<Lsn> {
        let lsn = self.first_lsn.load(Ordering::Acquire);
        (lsn != NOTHING_LOGGED).then_some(Lsn(lsn))
    }

    /// As of when the active transaction reads, if there is one.
    pub(crate) fn begin(&self) -> Option<Begin> {
        let begin = self.begin.load(Ordering::SeqCst);
        let at = Timestamp(begin >> 1);
        let decoded = if begin & FIXED != 0 { Begin::Fixed(at) } else { Begin::NotBefore(at) };
        (begin != IDLE).then_some(decoded)
    }

    /// R17: the owner is going to read at `at`, which is in the past.
    pub(crate) fn begin_as_of(&self, at: Timestamp) {
        self.begin.store(Begin::Fixed(at).encode(), Ordering::SeqCst);
    }

    /// R26: the owner, who is active, is going to read at timestamps that it takes from the clock after this, too (A2).
    #[inline]
    pub(crate) fn unfix(&self) {
        // Nobody else writes it.
        let begin = self.begin.load(Ordering::Relaxed);
        self.begin.store(begin & !FIXED, Ordering::SeqCst);
    }

    /// R20: the owner, who is active and not fixed, reads at `at` and at no other timestamp from here on (A1).
    pub(crate) fn fix(&self, at: Timestamp) {
        // Release: what it has read as of earlier ones comes before.
        self.begin.store(Begin::Fixed(at).encode(), Ordering::Release);
    }

    /// R16: the owner, who is active and not fixed, is going to read at the clock's present, which was `at` or is later. The bound is there before
    /// the clock is read for that, as in [`TransactionTable::begin_reader`].
    #[inline]
    pub(crate) fn read_from(&self, at: Timestamp) {
        self.begin.store(Begin::NotBefore(at).encode(), Ordering::SeqCst);
        publication_fence();
    }

    /// R16: the owner, who is active still, reads nothing before it says [`Slot::read_from`] again.
    #[inline]
    pub(crate) fn read_nothing(&self) {
        // Release: what it has read comes before.
        self.begin.store(Begin::NotBefore(Timestamp::MAX).encode(), Ordering::Release);
    }

    /// R19: the owner waits for another transaction from here on, or for nobody.
    pub(crate) fn set_waits_for(&self, other: Option<SlotIndex>) {
        self.waits_for.store(other.map_or(NOBODY, |other| other.0), Ordering::SeqCst);
    }

    /// Whom the owner waits for.
    pub(crate) fn waits_for(&self) -> Option<SlotIndex> {
        let other = self.waits_for.load(Ordering::SeqCst);
        (other != NOBODY).then_some(SlotIndex(other))
    }

    /// Somebody is going to wait for the active transaction, unless its status says that it has ended, which is looked at next.
    pub(crate) fn set_awaited(&self) {
        self.awaited.store(1, Ordering::SeqCst);
    }

    /// Whether somebody waits for the owner, who has ended by what its status says.
    #[inline]
    pub(crate) fn take_awaited(&self) -> bool {
        // Of this look and the one in `set_awaited` at least one sees the other's store.
        let awaited = self.awaited.load(Ordering::SeqCst) != 0;
        if awaited {
            self.awaited.store(0, Ordering::SeqCst);
        }
        awaited
    }

    /// The owner is done: the oldest active transaction may be a later one now.
    pub(crate) fn end(&self) {
        if self.written() != 0 {
            self.set_written(0);
        }
        self.first_lsn.store(NOTHING_LOGGED, Ordering::Relaxed);
        self.begin.store(IDLE, Ordering::Release);
    }
}

/// See the [module](self).
pub(crate) struct TransactionTable {
    chunks: [AtomicPtr<Slot>; CHUNKS],
    allocated: Padded<AtomicU32>,
    /// Of the status words.
    pub(crate) lost: Lost,
}

impl TransactionTable {
    pub(crate) fn new() -> TransactionTable {
        TransactionTable {
            chunks: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            allocated: Padded(AtomicU32::new(0)),
            lost: Lost::new(),
        }
    }

    fn locate(index: SlotIndex) -> (usize, usize) {
        let from_first = index.0 / FIRST + 1;
        let chunk = from_first.ilog2();
        (chunk as usize, (index.0 - FIRST * ((1 << chunk) - 1)) as usize)
    }

    fn chunk_len(chunk: usize) -> usize {
        (FIRST as usize) << chunk
    }

    /// The slot of an index that [`TransactionTable::allocate`] returned.
    #[inline]
    pub(crate) fn slot(&self, index: SlotIndex) -> &Slot {
        let (chunk, offset) = Self::locate(index);
        let first = self.chunks[chunk].load(Ordering::Acquire);
        debug_assert!(!first.is_null());
        // SAFETY: `allocate` installed the chunk before it returned the index, chunks are freed only with the
        // table, and `offset` is within the chunk's length.
        unsafe { &*first.add(offset) }
    }

    /// A slot that nobody has used before.
    pub(crate) fn allocate(&self) -> SlotIndex {
        let index = SlotIndex(self.allocated.0.fetch_add(1, Ordering::SeqCst));
        let (chunk, _) = Self::locate(index);
        if self.chunks[chunk].load(Ordering::Acquire).is_null() {
            let slots: Box<[Slot]> = (0..Self::chunk_len(chunk)).map(|_| Slot::new()).collect();
            let new = Box::into_raw(slots).cast::<Slot>();
            let installed = self.chunks[chunk].compare_exchange(
                ptr::null_mut(),
                new,
                // SeqCst: `oldest_active` must not miss the chunk of a slot in use.
                Ordering::SeqCst,
                Ordering::Acquire,
            );
            if installed.is_err() {
                // SAFETY: `new` was never shared.
                unsafe { Self::free_chunk(new, chunk) };
            }
        }
        index
    }

    /// # Safety
    /// `first` is a chunk that `allocate` made for `chunk`, and nobody uses it.
    unsafe fn free_chunk(first: *mut Slot, chunk: usize) {
        let slots = ptr::slice_from_raw_parts_mut(first, Self::chunk_len(chunk));
        // SAFETY: the caller's contract; it was a boxed slice of this length.
        drop(unsafe { Box::from_raw(slots) });
    }

    /// R1: begins a transaction in a slot that belongs to the caller (T1), and returns its timestamp.
    ///
    /// The lower bound is in the slot *before* the clock ticks. A scan for the oldest active transaction reads the
    /// clock first. If it misses the bound, then its reading of the clock came before the tick, so the answer,
    /// which is at most one more than that reading, is not above the timestamp.
    #[inline]
    pub(crate) fn begin(&self, slot: &Slot, clock: &Clock) -> Timestamp {
        slot.begin.store(Begin::NotBefore(clock.last()).encode(), Ordering::SeqCst);
        let timestamp = clock.tick();
        // Says more than what it replaces: whoever does not see it yet errs to the safe side.
        slot.begin.store(Begin::Fixed(timestamp).encode(), Ordering::Relaxed);
        slot.status.begin(timestamp);
        timestamp
    }

    /// R15: begins a declared read-only transaction at the clock's present, or later if that is before `at_least`. It
    /// shares its timestamp with the writer that has it, behind which it comes. The bound is in the slot before the
    /// clock is read, so a scan that misses it answers at most one more than the timestamp: what is posted then is
    /// visible to the transaction.
    #[inline]
    pub(crate) fn begin_reader(&self, slot: &Slot, clock: &Clock, at_least: Timestamp) -> Timestamp {
        slot.begin.store(Begin::NotBefore(clock.last()).encode(), Ordering::SeqCst);
        publication_fence();
        let present = clock.last();
        let timestamp = if present >= at_least { present } else { clock.tick() };
        slot.begin.store(Begin::Fixed(timestamp).encode(), Ordering::Relaxed);
        timestamp
    }

    /// OAT: no transaction that is active now or begins later has a timestamp below it (R1).
    pub(crate) fn oldest_active(&self, clock: &Clock) -> Timestamp {
        let bound = Timestamp(clock.last().0 + 1);
        self.slots().filter_map(Slot::begin).map(Begin::earliest).fold(bound, Timestamp::min)
    }

    /// All slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.chunks.iter().enumerate().flat_map(|(chunk, first)| {
            let first = first.load(Ordering::SeqCst);
            let len = if first.is_null() { 0 } else { Self::chunk_len(chunk) };
            // SAFETY: as in `slot`.
            (0..len).map(move |offset| unsafe { &*first.add(offset) })
        })
    }

    /// Bytes of all chunks.
    pub(crate) fn bytes(&self) -> usize {
        self.slots().count() * size_of::<Slot>()
    }
}

impl Drop for TransactionTable {
    fn drop(&mut self) {
        for (chunk, first) in self.chunks.iter().enumerate() {
            let first = first.load(Ordering::Relaxed);
            if !first.is_null() {
                // SAFETY: installed by `allocate`; `&mut self` excludes users.
                unsafe { Self::free_chunk(first, chunk) };
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_its_own_slot() {
        let table = TransactionTable::new();
        let slots: std::collections::HashSet<*const Slot> =
            (0..1000).map(|_| ptr::from_ref(table.slot(table.allocate()))).collect();
        assert_eq!(slots.len(), 1000);
        assert!(table.slots().count() >= 1000);
    }

    #[test]
    fn the_oldest_active_transaction_is_the_bound() {
        let (table, clock) = (TransactionTable::new(), Clock::new(Timestamp(100)));
        let (old, young) = (table.allocate(), table.allocate());
        let first = table.begin(table.slot(old), &clock);
        let second = table.begin(table.slot(young), &clock);
        assert_eq!((first, second), (Timestamp(101), Timestamp(102)));
        assert_eq!(table.oldest_active(&clock), first);
        table.slot(old).end();
        assert_eq!(table.oldest_active(&clock), second);
        table.slot(young).end();
        assert_eq!(table.oldest_active(&clock), Timestamp(103));
    }

    #[test]
    fn a_slot_says_of_its_transaction_what_the_owner_has_said() {
        let (table, clock) = (TransactionTable::new(), Clock::new(Timestamp(100)));
        let slot = table.slot(table.allocate());
        assert_eq!((slot.begin(), slot.first_lsn(), slot.waits_for()), (None, None, None));
        table.begin(slot, &clock);
        assert_eq!(slot.begin(), Some(Begin::Fixed(Timestamp(101))));
        slot.unfix();
        assert_eq!(slot.begin(), Some(Begin::NotBefore(Timestamp(101))));
        slot.set_first_lsn(Lsn(8), TransactionId(5));
        assert_eq!((slot.first_lsn(), slot.log_id()), (Some(Lsn(8)), TransactionId(5)));
        slot.set_log_id(TransactionId(6));
        assert_eq!((slot.first_lsn(), slot.log_id()), (Some(Lsn(8)), TransactionId(6)));
        slot.forget_logged_before(None);
        assert_eq!(slot.first_lsn(), None);
        slot.forget_logged_before(Some(Lsn(24)));
        assert_eq!((slot.first_lsn(), slot.log_id()), (Some(Lsn(24)), TransactionId(6)));
        slot.set_commit_lsn(Lsn(16));
        assert_eq!(slot.commit_lsn(), Lsn(16));
        slot.set_waits_for(Some(SlotIndex(0)));
        assert_eq!(slot.waits_for(), Some(SlotIndex(0)));
        slot.set_waits_for(None);
        assert_eq!(slot.waits_for(), None);
        slot.set_written(5);
        assert_eq!(slot.written(), 5);
        assert!(!slot.take_awaited());
        slot.set_awaited();
        assert!(slot.take_awaited() && !slot.take_awaited(), "told once");
        slot.end();
        assert_eq!((slot.begin(), slot.first_lsn(), slot.written()), (None, None, 0));
    }

    #[test]
    fn who_is_aborted_is_told_why_by_whoever_did_it() {
        let (table, clock) = (TransactionTable::new(), Clock::new(Timestamp(100)));
        let slot = table.slot(table.allocate());
        for cause in [ConflictCause::MemoryShort, ConflictCause::LogPinned] {
            table.begin(slot, &clock);
            assert!(slot.abort_for(cause, &table.lost) && !slot.abort_for(cause, &table.lost));
            assert_eq!(slot.aborted_for(), cause);
            slot.end();
        }
    }

    #[test]
    fn whoever_reads_the_past_holds_the_horizon_there() {
        let (table, clock) = (TransactionTable::new(), Clock::new(Timestamp(100)));
        let slot = table.slot(table.allocate());
        slot.begin_as_of(Timestamp(50));
        assert_eq!(table.oldest_active(&clock), Timestamp(50));
        slot.read_from(Timestamp(60));
        assert_eq!(table.oldest_active(&clock), Timestamp(60));
        // It holds nothing, and is active.
        slot.read_nothing();
        assert_eq!(table.oldest_active(&clock), Timestamp(101));
        assert_eq!(slot.begin(), Some(Begin::NotBefore(Timestamp::MAX)));
    }

    #[test]
    fn a_declared_reader_takes_the_present_if_that_is_late_enough() {
        let (table, clock) = (TransactionTable::new(), Clock::new(Timestamp(100)));
        let slot = table.slot(table.allocate());
        assert_eq!(table.begin_reader(slot, &clock, Timestamp(100)), Timestamp(100));
        assert_eq!((slot.begin(), clock.last()), (Some(Begin::Fixed(Timestamp(100))), Timestamp(100)));
        assert_eq!(table.begin_reader(slot, &clock, Timestamp(101)), Timestamp(101));
        assert_eq!(clock.last(), Timestamp(101));
    }

    #[test]
    fn chunks_double_and_their_bytes_count() {
        let table = TransactionTable::new();
        assert_eq!(table.bytes(), 0);
        table.allocate();
        assert_eq!(table.bytes(), FIRST as usize * 64);
        (0..FIRST).for_each(|_| _ = table.allocate());
        assert_eq!((table.slots().count(), table.bytes()), (3 * FIRST as usize, 3 * FIRST as usize * 64));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    /// R1. Loom has no order among sequentially consistent accesses, only among fences; the read-modify-writes of
    /// the clock stand in: whoever computes the bound ticks it too.
    #[test]
    fn loom_no_transaction_begins_below_the_oldest_active() {
        loom::model(|| {
            let shared = Arc::new((TransactionTable::new(), Clock::new(Timestamp(10))));
            let index = shared.0.allocate();
            let other = Arc::clone(&shared);
            let begun = thread::spawn(move || other.0.begin(other.0.slot(index), &other.1));
            let bound = Timestamp(shared.1.tick().0);
            let oldest =
                shared.0.slots().filter_map(Slot::begin).map(Begin::earliest).fold(bound, Timestamp::min);
            assert!(oldest <= begun.join().unwrap());
        });
    }
}
