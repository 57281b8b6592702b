//! The transaction table (paper 2.1): one slot for each transaction that is active, or whose versions still refer
//! to it.
//!
//! # Invariants
//!
//! - **T1** A slot belongs to one workspace (see `workspace`), which gives it to one transaction at a time.
//! - **T2** A slot is given to another transaction only after all versions that refer to it have been stamped and
//!   every guard of that time is gone. So a guard that has loaded a reference to a slot reads the status of the
//!   transaction that wrote the version, and of no later one.

use crate::chunks::Chunks;
use crate::error::ConflictCause;
use crate::status::StatusWord;
use crate::sync::{AtomicU32, AtomicU64, Lost, Ordering};
use deuteron_contract::{Lsn, Timestamp, TransactionId};

#[cfg(not(any(loom, shuttle)))]
const FIRST: u32 = 64;
#[cfg(any(loom, shuttle))]
const FIRST: u32 = 2;
/// [`Slot::first_lsn`] of a transaction that has logged nothing.
const NOTHING_LOGGED: u64 = u64::MAX;
/// [`Slot::began`] of a transaction that has not said so.
const NOT_SAID: u64 = u64::MAX;
/// [`Slot::waits_for`] of a transaction that does not wait. No slot has that number.
const NOBODY: u32 = u32::MAX;
/// [`Slot::aborted_for`]: it kept the log from being cut.
const LOG: u32 = 0;
/// [`Slot::aborted_for`]: what it had written took the memory that others needed.
const MEMORY: u32 = 1;

/// The number of a slot; what an unstamped version refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotIndex(pub(crate) u32);

/// What the others may know of a transaction. One line of its own: its owner writes it at every begin and commit.
#[repr(align(64))]
pub(crate) struct Slot {
    /// State and timestamp.
    pub(crate) status: StatusWord,
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
    /// Of one that has written much: when it began.
    began: AtomicU64,
    /// Why others abort the active transaction: [`LOG`] or [`MEMORY`]. Of no meaning unless they have.
    aborted_for: AtomicU32,
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            status: StatusWord::new(),
            commit_lsn: AtomicU64::new(0),
            first_lsn: AtomicU64::new(NOTHING_LOGGED),
            log_id: AtomicU64::new(0),
            waits_for: AtomicU32::new(NOBODY),
            awaited: AtomicU32::new(0),
            written: AtomicU64::new(0),
            began: AtomicU64::new(NOT_SAID),
            aborted_for: AtomicU32::new(LOG),
        }
    }
}

impl Slot {
    /// What the owner has written or noted takes so many bytes, which is much. [How it logs](Slot::set_log_id) and [when it began](Slot::set_began) it
    /// has said before.
    pub(crate) fn set_written(&self, bytes: usize) {
        self.written.store(bytes as u64, Ordering::Release);
    }

    /// The active transaction began `at`, or before that if it has said so.
    pub(crate) fn set_began(&self, at: Timestamp) {
        // Relaxed: nobody else writes it.
        let began = self.began.load(Ordering::Relaxed).min(at.0);
        self.began.store(began, Ordering::Relaxed);
    }

    /// When the transaction began whose [`Slot::written`] has been seen; `None` if it has ended.
    pub(crate) fn began(&self) -> Option<Timestamp> {
        // Relaxed: ordered by the load of that.
        let began = self.began.load(Ordering::Relaxed);
        (began != NOT_SAID).then_some(Timestamp(began))
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

    /// The owner is done. If somebody has aborted it, it has told the log.
    #[inline]
    pub(crate) fn end(&self) {
        if self.began.load(Ordering::Relaxed) != NOT_SAID {
            self.began.store(NOT_SAID, Ordering::Relaxed);
            self.written.store(0, Ordering::Release);
        }
        if self.first_lsn.load(Ordering::Relaxed) != NOTHING_LOGGED {
            self.first_lsn.store(NOTHING_LOGGED, Ordering::Release);
        }
    }
}

/// See the [module](self).
pub(crate) struct TransactionTable {
    slots: Chunks<Slot, FIRST>,
    /// Of the status words.
    pub(crate) lost: Lost,
}

impl TransactionTable {
    pub(crate) fn new() -> TransactionTable {
        TransactionTable { slots: Chunks::new(), lost: Lost::new() }
    }

    /// The slot of an index that [`TransactionTable::allocate`] returned.
    #[inline]
    pub(crate) fn slot(&self, index: SlotIndex) -> &Slot {
        self.slots.get(index.0)
    }

    /// A slot that nobody has used before.
    pub(crate) fn allocate(&self) -> SlotIndex {
        SlotIndex(self.slots.allocate())
    }

    /// All slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_says_of_its_transaction_what_the_owner_has_said() {
        let table = TransactionTable::new();
        let slot = table.slot(table.allocate());
        assert_eq!((slot.first_lsn(), slot.waits_for()), (None, None));
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
        for (at, began) in [(7, 7), (9, 7), (6, 6)] {
            slot.set_began(Timestamp(at));
            slot.set_written(5);
            assert_eq!((slot.written(), slot.began()), (5, Some(Timestamp(began))));
        }
        slot.set_written(0);
        assert_eq!(slot.began(), Some(Timestamp(6)), "it has not ended");
        assert!(!slot.take_awaited());
        slot.set_awaited();
        assert!(slot.take_awaited() && !slot.take_awaited(), "told once");
        slot.end();
        assert_eq!((slot.first_lsn(), slot.written(), slot.began()), (None, 0, None));
    }

    #[test]
    fn who_is_aborted_is_told_why_by_whoever_did_it() {
        let table = TransactionTable::new();
        let slot = table.slot(table.allocate());
        for cause in [ConflictCause::MemoryShort, ConflictCause::LogPinned] {
            slot.status.begin(Timestamp(101));
            assert!(slot.abort_for(cause, &table.lost) && !slot.abort_for(cause, &table.lost));
            assert_eq!(slot.aborted_for(), cause);
            slot.end();
        }
    }
}
