//! What a transaction needs besides its slot: read set, write set, buffers. Reused from one transaction to the next, so
//! that a short transaction allocates nothing but its versions.
//!
//! - **W1** A workspace belongs to one transaction at a time, or to the pool.
//! - **W2** It owns its slots (T1). A slot that versions have referred to is *spent*: it is used again once the guards of
//!   that time are gone (T2).
//!
//! A workspace holds the component, so that beginning a transaction touches no shared reference count. The cycle (the
//! component holds the pool) is broken by [`Pool::close`], when the last user of the component goes.

use crate::change::Changes;
use crate::core::Core;
use crate::memory::shard_of_thread;
use crate::record::{KeyHash, Record};
use crate::recycler::Recycler;
use crate::savepoint::Savepoints;
use crate::statistics::Counts;
use crate::sync::{AtomicPtr, Mutex, Ordering, Padded, lock};
use crate::transaction_table::{Slot, SlotIndex};
use crate::turnstile::{CONTENDS, Pass};
use crate::version::Version;
use deuteron_contract::{Direction, Lsn, TableId, Timestamp};
use std::collections::VecDeque;
use std::ops::Bound;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

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
    pub(crate) table: TableId,
    pub(crate) lower: Bound<Vec<u8>>,
    pub(crate) upper: Bound<Vec<u8>>,
    pub(crate) direction: Direction,
    pub(crate) digest: [u64; 2],
    /// The next ordinal then: keys whose versions had lower ones were the transaction's own and are no part of the digest.
    pub(crate) own: u64,
}

/// See the [module](self).
pub(crate) struct Workspace {
    pub(crate) core: Arc<Core>,
    pub(crate) slot: SlotIndex,
    spent: VecDeque<(SlotIndex, u64)>,
    /// No guard of this epoch or an earlier one is left.
    safe_epoch: u64,
    pub(crate) reads: Vec<ReadEntry>,
    pub(crate) keys: Vec<u8>,
    pub(crate) scans: Vec<ScanEntry>,
    pub(crate) writes: Vec<WriteEntry>,
    /// Where versions that are pruned go, and new ones come from.
    pub(crate) recycler: Recycler,
    /// Memory that cannot be given back before the transaction ends.
    pub(crate) written_bytes: usize,
    /// The value read last.
    pub(crate) value: Vec<u8>,
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
    /// There may be versions in the write set that the log knows nothing of.
    pub(crate) unlogged: bool,
    /// How many turns are left to give to others (R19).
    pub(crate) patience: u32,
    /// How many more transactions pass the turnstile before they begin (R23).
    contends: u32,
    pass: Option<Pass>,
    /// The transaction has met another.
    met: bool,
    /// When it began, if it is one of those that are timed.
    began: Option<Instant>,
    /// How often the turnstile has been passed.
    passes: u64,
}

// SAFETY: the pointers of the write set are to records and versions, which are shared between threads, and stay good
// whichever thread the transaction moves to (see `WriteEntry`).
unsafe impl Send for Workspace {}

impl Workspace {
    fn new(core: &Arc<Core>) -> Box<Workspace> {
        Box::new(Workspace {
            core: Arc::clone(core),
            slot: core.pool.spare_slot(core),
            spent: VecDeque::new(),
            safe_epoch: 0,
            reads: Vec::new(),
            keys: Vec::new(),
            scans: Vec::new(),
            writes: Vec::new(),
            recycler: Recycler::new(),
            written_bytes: 0,
            value: Vec::new(),
            counts: Counts::default(),
            shard: shard_of_thread(),
            read_lsn: Lsn(0),
            reads_forgotten: false,
            next_ordinal: 0,
            savepoints: Savepoints::default(),
            changes: Changes::default(),
            unlogged: false,
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
            self.pass = Some(core.turnstile.enter(self.shard, token, &*core.host));
            if self.passes.is_multiple_of(SAMPLED) {
                self.began = Some(Instant::now());
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

    /// The key of a read.
    pub(crate) fn key_of(&self, read: &ReadEntry) -> &[u8] {
        &self.keys[read.key_start as usize..][..read.key_length as usize]
    }

    /// The transaction has ended; all its versions are stamped. The horizon may pass.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.slot().end();
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
                self.core.turnstile.widen(began.elapsed() * SAMPLED as u32);
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

    /// For the next transaction: everything is as new.
    pub(crate) fn reset(&mut self) {
        // Whatever it has installed, rolled back or not, referred to the slot.
        if self.next_ordinal > 0 {
            self.renew_slot();
        }
        self.next_ordinal = 0;
        self.savepoints.clear();
        self.changes.clear();
        self.written_bytes = 0;
        self.read_lsn = Lsn(0);
        self.reads_forgotten = false;
        self.unlogged = false;
        self.patience = self.core.options.patience;
        clear(&mut self.reads);
        clear(&mut self.keys);
        clear(&mut self.scans);
        clear(&mut self.writes);
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
            _ => self.core.transactions.allocate(),
        };
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let core = &*self.core;
        self.recycler.empty(&core.account, &core.epochs.pin());
    }
}

fn clear<T>(vector: &mut Vec<T>) {
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
}

impl Pool {
    pub(crate) fn new() -> Pool {
        Pool {
            places: std::array::from_fn(|_| Padded(AtomicPtr::new(ptr::null_mut()))),
            slots: Mutex::new(VecDeque::new()),
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
            if place.compare_exchange(ptr::null_mut(), raw, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
        // SAFETY: no place took it.
        let mut workspace = unsafe { Box::from_raw(raw) };
        let mut slots = lock(&pool.slots);
        slots.extend(workspace.spent.drain(..));
        slots.push_back((workspace.slot, workspace.core.epochs.current()));
        drop(slots);
        // The core may go with it.
        drop(workspace);
    }

    fn spare_slot(&self, core: &Core) -> SlotIndex {
        let mut slots = lock(&self.slots);
        match slots.front() {
            Some(&(slot, epoch)) if core.epochs.is_quiescent(epoch) => {
                slots.pop_front();
                slot
            }
            _ => core.transactions.allocate(),
        }
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
