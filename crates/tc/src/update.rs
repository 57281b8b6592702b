//! Writing what others write as well: waiting a little for the writer before (rule R19), and going on from a later timestamp
//! than the begin (rule R20).
//!
//! Both are for transactions that say, by [`Transaction::get_for_update`] or by writing, that they want the newest version of a
//! key. Who only reads neither waits nor moves.

use crate::error::TcError;
use crate::host::Stall;
use crate::options::Isolation;
use crate::planted::{Bug, is_planted};
use crate::read::Own;
use crate::record::{KeyRef, REMOVED};
use crate::schedule::point;
use crate::statistics::Counter;
use crate::status::Status;
use crate::sync::Ordering;
use crate::transaction::Transaction;
use crate::transaction_table::SlotIndex;
use crate::version::Version;
use crate::workspace::{Observed, Workspace};
use crate::write::{Intent, Top};
use deuteron_contract::{TableId, Timestamp};
use std::time::{Duration, Instant};

/// Looks at a writer that is in the way, before it is worth letting go of the processor: about as long as that would take, some five
/// microseconds.
const LOOKS: u32 = 20;

/// Time between them. Every look takes the line from the writer, who is about to write to it. (In pauses of the processor it would be four times as long on some processors as
/// on others.)
const LOOK_EVERY: Duration = Duration::from_nanos(200);

/// A chain of waiting transactions longer than this counts as a circle.
const CHAIN_MAX: usize = 64;

/// So many of what a transaction has read last are compared with what it is going to write: under a guard, and only to know it early.
const READS_LOOKED_AT: usize = 256;

/// What is in the way of a write of a key, at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    Nothing,
    /// A committed version, or a read, that is later than the transaction.
    Later(Timestamp),
    /// A committed version that is not the one which the transaction has read, not long ago.
    Changed(Timestamp),
    /// An uncommitted version of another transaction, at this lower bound.
    Undecided {
        other: Timestamp,
        slot: SlotIndex,
    },
}

impl Transaction {
    /// The value of `key`, copied, or `None`, with the intent to change it. From here on the record counts as written, with the
    /// value that it has: others that would write it wait a little and then give way. If another transaction has an uncommitted
    /// version of it, this one waits for that a little (R19); if a newer version has been committed since this one began,
    /// it goes on from the present, so that the newest value is what it sees (R20).
    ///
    /// # Errors
    /// As [`Transaction::put`]; a conflict also if it had to go on from the present, and what it had read has changed.
    ///
    /// ```
    /// # use deuteron_contract::{Lsn, MemoryDc, TableId, Timestamp};
    /// # use deuteron_device::MemoryDirectory;
    /// # use deuteron_epoch::Epochs;
    /// # use deuteron_log::{Log, LogOptions};
    /// # use deuteron_tc::{Host, Stall, TcError, TcOptions, TransactionComponent};
    /// # use std::sync::Arc;
    /// # struct Flusher(Arc<Log>);
    /// # impl Host for Flusher {
    /// #     fn stalled(&self, _: Stall) -> Result<(), String> {
    /// #         self.0.flush_step().map(drop).map_err(|error| error.to_string())
    /// #     }
    /// # }
    /// # let (epochs, directory) = (Epochs::new(), Arc::new(MemoryDirectory::new()));
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs.clone(), Lsn(0)..Lsn(0))?;
    /// # let log = Arc::new(log);
    /// # let (host, dc) = (Arc::new(Flusher(log.clone())), Arc::new(MemoryDc::new()));
    /// # let options = TcOptions { retains: true, ..TcOptions::tiny_for_tests() };
    /// # let tc = TransactionComponent::open(options, log, dc, epochs, host)?;
    /// # let table = TableId(1);
    /// let mut first = tc.begin();
    /// let mut second = tc.begin();
    /// second.put(table, b"apples", b"12")?;
    /// second.commit()?;
    /// assert_eq!(first.get_for_update(table, b"apples")?.as_deref(), Some(&b"12"[..]), "the newest");
    /// first.put(table, b"apples", b"11")?;
    /// first.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_for_update(&mut self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, TcError> {
        self.check_active()?;
        self.check_key(key)?;
        self.approach(table, key)?;
        let value = self.get(table, key)?;
        let may_miss =
            self.options.isolation == Isolation::ReadCommitted && !self.workspace.writes_key(table, key);
        self.write_for(table, key, value.as_deref(), Intent::Hold)?;
        if !may_miss {
            return Ok(value);
        }
        // R16: another may have come between, and nobody looks at the reading again. From here on nobody comes any more.
        let newest = self.read_newest(table, key, Own::Beneath);
        let newest = newest.map_err(|failure| self.fail_on_key(failure, table, key))?;
        if newest != value {
            self.write(table, key, newest.as_deref())?;
        }
        Ok(newest)
    }

    /// Waits and moves on, as far as it may. What is in the way after that the write will find.
    pub(crate) fn approach(&mut self, table: TableId, key: &[u8]) -> Result<(), TcError> {
        let mut moves = 0;
        while self.may_wait() {
            let hashed = self.workspace.core.table.key(table, key);
            match self.workspace.ahead(hashed, self.at) {
                Ahead::Undecided { slot, .. } if self.wait_for(slot)? => {}
                Ahead::Later(_)
                    if self.options.isolation == Isolation::Serializable
                        && moves < self.workspace.core.options.refreshes_max =>
                {
                    self.move_on()?;
                    moves += 1;
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// Whether it is any use to wait for writers: what they commit must be in time for the transaction.
    pub(crate) fn may_wait(&self) -> bool {
        !self.options.read_only && self.options.isolation != Isolation::Snapshot && !self.must_be_in_time()
    }

    /// R19: lets others have a turn, on behalf of a writer before; false if the patience is at its end, or if that writer waits
    /// for this transaction.
    #[cold]
    pub(crate) fn wait_for(&mut self, other: SlotIndex) -> Result<bool, TcError> {
        if self.workspace.ends_soon(other) {
            return Ok(true);
        }
        self.workspace.meet();
        if self.workspace.patience == 0 {
            return Ok(false);
        }
        // First said, then looked: of several that close a circle at least one sees it.
        self.workspace.slot().set_waits_for(Some(other));
        point();
        let is_circle = self.workspace.waits_in_a_circle(other);
        let waited = if is_circle { Ok(()) } else { self.workspace.wait_a_turn(other) };
        self.workspace.slot().set_waits_for(None);
        if let Err(error) = waited {
            self.roll_back();
            return Err(error);
        }
        Ok(!is_circle)
    }

    /// R20: everything that has been read is read again as of the present; if it is still so, the transaction goes on from there.
    fn move_on(&mut self) -> Result<(), TcError> {
        if !is_planted(Bug::StayFixed) {
            self.workspace.announcement().unfix();
        }
        let at = self.workspace.core.clock.tick();
        if let Err(error) = self.workspace.core.cover(at) {
            self.roll_back();
            return Err(error);
        }
        point();
        if !is_planted(Bug::MoveBlindly) {
            self.refresh(at)?;
        }
        point();
        // Only at `at` or later can it commit now; if somebody has pushed it beyond, it will look again.
        let lost = &self.workspace.core.transactions.lost;
        if !self.workspace.slot().status.self_push(Timestamp(at.0 - 1), lost) {
            return Err(self.conflict_of_aborted());
        }
        self.at = at;
        self.workspace.announcement().fix(at);
        self.workspace.counts.add(Counter::Moves);
        Ok(())
    }
}

impl Workspace {
    /// Whether another transaction has ended within a moment: one that runs on another processor is about to, as a rule. One that
    /// waits itself is not.
    fn ends_soon(&self, other: SlotIndex) -> bool {
        let slot = self.core.transactions.slot(other);
        if slot.waits_for().is_some() {
            return false;
        }
        let mut looked = Instant::now();
        (0..LOOKS).any(|_| {
            while looked.elapsed() < LOOK_EVERY {
                std::hint::spin_loop();
            }
            looked = Instant::now();
            !matches!(slot.status.load(), Status::Active(_))
        })
    }

    fn wait_a_turn(&mut self, other: SlotIndex) -> Result<(), TcError> {
        let core = &*self.core;
        let since = core.host.ends(other.0);
        let slot = core.transactions.slot(other);
        slot.set_awaited();
        point();
        if !matches!(slot.status.load(), Status::Active(_)) {
            return Ok(());
        }
        let turn = core.options.patience - self.patience;
        self.patience -= 1;
        self.counts.add(Counter::Waits);
        core.stall(Stall::Writer { number: other.0, since, turn })
    }

    /// Whether one that the transaction is going to wait for waits for it, directly or through others. A slot on the way may
    /// have gone to another transaction: then the answer may be wrong, which costs a conflict or some patience.
    fn waits_in_a_circle(&self, other: SlotIndex) -> bool {
        let mut last = other;
        for _ in 0..CHAIN_MAX {
            match self.core.transactions.slot(last).waits_for() {
                None => return false,
                Some(next) if next == self.slot => return true,
                Some(next) => last = next,
            }
        }
        true
    }

    /// What is in the way of a write by a transaction that reads as of `at`. Only to know it early: it is looked at again after
    /// the installation (R5, R6).
    pub(crate) fn ahead(&self, key: KeyRef<'_>, at: Timestamp) -> Ahead {
        let guard = self.core.epochs.pin();
        let Some(record) = self.core.table.find(key, &guard) else { return Ahead::Nothing };
        let head = record.head.load(Ordering::SeqCst);
        if head == REMOVED {
            return Ahead::Nothing;
        }
        let committed = match self.top(head, &guard) {
            Top::Base | Top::Own(_) => Timestamp(0),
            Top::Committed(committed, _) if committed <= at => committed,
            Top::Committed(committed, version) => {
                if self.has_read_another(key, committed, version) {
                    return Ahead::Changed(committed);
                }
                committed
            }
            Top::Other { lower_bound, slot } => return Ahead::Undecided { other: lower_bound, slot },
        };
        let latest = committed.max(record.own_read_timestamp());
        if committed > at || (self.core.is_timestamp_order() && latest > at) {
            return Ahead::Later(latest);
        }
        Ahead::Nothing
    }

    /// Whether the transaction has read the key, not long ago, and saw something else than `version`, which was committed at `committed`.
    pub(crate) fn has_read_another(&self, key: KeyRef<'_>, committed: Timestamp, version: &Version) -> bool {
        // Two versions in which the key does not exist are the same to a reader.
        let now = if version.is_absent() { Observed::Absent } else { Observed::Version(committed) };
        self.observed(key).is_some_and(|observed| observed != now)
    }

    /// What the transaction saw when it read the key, if it did lately and remembers.
    fn observed(&self, key: KeyRef<'_>) -> Option<Observed> {
        let is_it = |read: &&crate::workspace::ReadEntry| {
            read.hash == key.hash && read.table == key.table && self.key_of(read) == key.key
        };
        self.reads.iter().rev().take(READS_LOOKED_AT).find(is_it).map(|read| read.observed)
    }
}
