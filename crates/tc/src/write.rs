//! Writing: log first, then install, then look at who has read (rules R5, R6).

use crate::core::Core;
use crate::error::{ConflictCause, ConflictPlace, TcError};
use crate::linked::Linked;
use crate::options::Isolation;
use crate::planted::{Bug, is_planted};
use crate::record::{KeyRef, REMOVED, Record};
use crate::schedule::point;
use crate::statistics::Counter;
use crate::status::Status;
use crate::sync::{Ordering, publication_fence};
use crate::transaction::Transaction;
use crate::transaction_table::{Slot, SlotIndex};
use crate::update::Ahead;
use crate::version::{PRUNED, Version, VersionState, WRITTEN_INLINE_MAX, Written};
use crate::workspace::{Workspace, WriteEntry};
use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};
use deuteron_epoch::Guard;
use deuteron_log::Record as LogRecord;

/// What lies at the top of a record's versions, aborted ones aside.
pub(crate) enum Top<'g> {
    /// Nothing but what the data component holds.
    Base,
    /// A committed version.
    Committed(Timestamp, &'g Version),
    /// An uncommitted version of the writer itself.
    Own(&'g Version),
    /// An uncommitted version of another transaction.
    Other { lower_bound: Timestamp, slot: SlotIndex },
}

/// Of so many bytes the redo records wait for the commit, if the log takes so much at once: it reserves room for all of them together.
#[cfg(not(any(test, loom, shuttle)))]
const UNLOGGED_BYTES_MAX: usize = 8 << 10;
/// Some do, and some do not.
#[cfg(any(test, loom, shuttle))]
const UNLOGGED_BYTES_MAX: usize = 512;

/// What a write is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Gives the key the value.
    Put,
    /// Has a version there before others. The value is the one that the key has, and likely to be written anew.
    Hold,
}

/// How a transaction writes.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// As of when it reads.
    pub(crate) at: Timestamp,
    pub(crate) isolation: Isolation,
    /// R18: it must commit there.
    pub(crate) in_time: bool,
    pub(crate) intent: Intent,
}

/// What became of an installation.
enum Installed<'g> {
    /// Version `new` is at the head, above one committed at this time, or `None`: above the base, of which nothing is known here.
    Above(Option<Timestamp>),
    /// The writer has a version there.
    Own(&'g Version),
    /// Another transaction, at this timestamp, has an uncommitted version there.
    Conflict { other: Timestamp, slot: SlotIndex },
}

impl Transaction {
    /// Gives `key` a value.
    ///
    /// # Errors
    /// [`TcError`]; a conflict if another transaction has an uncommitted version of the key.
    #[inline]
    pub fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), TcError> {
        self.write(table, key, Some(value))
    }

    /// Deletes `key`, whether or not it exists.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    #[inline]
    pub fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), TcError> {
        self.write(table, key, None)
    }

    pub(crate) fn write(&mut self, table: TableId, key: &[u8], value: Option<&[u8]>) -> Result<(), TcError> {
        self.write_for(table, key, value, Intent::Put)
    }

    pub(crate) fn write_for(
        &mut self,
        table: TableId,
        key: &[u8],
        value: Option<&[u8]>,
        intent: Intent,
    ) -> Result<(), TcError> {
        self.check_active()?;
        self.check_key(key)?;
        if self.options.read_only {
            return Err(TcError::ReadOnly);
        }
        let core = &self.workspace.core;
        let limit = core.options.value_bytes_max;
        if let Some(value) = value.filter(|value| value.len() > limit) {
            return Err(TcError::ValueSize { found: value.len(), limit });
        }
        loop {
            let (cause, other) = match self.write_checked(table, key, value, intent) {
                Ok(()) => {
                    self.workspace.counts.add(Counter::Writes);
                    return Ok(());
                }
                Err(WriteFailure::Error(error)) => {
                    self.roll_back();
                    return Err(error);
                }
                Err(WriteFailure::Undecided { other, slot }) => {
                    if self.may_wait() && self.wait_for(slot)? {
                        continue;
                    }
                    (ConflictCause::WriteWrite, Some(other))
                }
                Err(WriteFailure::Conflict(cause, other)) => (cause, other),
            };
            return Err(self.conflict(cause, table, ConflictPlace::Key(key.to_vec()), other));
        }
    }

    fn write_checked(
        &mut self,
        table: TableId,
        key: &[u8],
        value: Option<&[u8]>,
        intent: Intent,
    ) -> Result<(), WriteFailure> {
        let manner = Manner {
            at: self.at,
            isolation: self.options.isolation,
            in_time: self.must_be_in_time(),
            intent,
        };
        let workspace = &mut **self.workspace;
        workspace.make_room()?;
        workspace.check_size(0)?;
        let core = &*workspace.core;
        let slot = core.transactions.slot(workspace.slot);
        if !matches!(slot.status.load(), Status::Active(_)) {
            return Err(WriteFailure::Conflict(slot.aborted_for(), None));
        }
        let hashed = core.table.key(table, key);
        // A copy is for readers. A large transaction has better uses for the memory, and so has a full table.
        let copied = value.filter(|value| {
            value.len() <= WRITTEN_INLINE_MAX
                && !core.account.is_much(workspace.written_bytes)
                && !core.account.is_over_target()
        });
        let transaction = workspace.log_id;
        let record = LogRecord::Upsert { transaction, table, key, value: value.unwrap_or_default() };
        let waiting_bytes = workspace.unlogged_bytes + record.encoded_bytes();
        let may_wait = intent == Intent::Hold || waiting_bytes <= core.unlogged_bytes_max();
        let unlogged = copied.filter(|_| may_wait);
        // What is logged is looked at before, so that a conflict which is there already does not fill the log with garbage.
        if unlogged.is_none() || manner.in_time {
            workspace.check_ahead(hashed, manner)?;
        }
        if let Some(value) = unlogged {
            let own = workspace.install(hashed, Lsn(0), Written::Unlogged(value), manner)?;
            let Some(own) = own.filter(|_| intent == Intent::Put) else {
                workspace.unlogged_bytes = waiting_bytes;
                return Ok(());
            };
            // SAFETY: in the write set and not stamped (see `WriteEntry`).
            let own = unsafe { &*own };
            if own.has_room_for(value) {
                workspace.rewrite(own, Lsn(0), Written::Unlogged(value));
                workspace.unlogged_bytes = waiting_bytes;
                return Ok(());
            }
        }
        let (core, slot) = (&*workspace.core, workspace.slot());
        let (lsn, is_large) =
            core.log_write(slot, workspace.log_id, &mut self.logged_bytes, table, key, value)?;
        point();
        // Who has aborted it while it waited for room has told the log before this record was there: it is to be told again, behind it.
        if !matches!(slot.status.load(), Status::Active(_)) {
            return Err(WriteFailure::Conflict(slot.aborted_for(), None));
        }
        let written = match value {
            None => Written::Absent,
            Some(_) if is_large => Written::Large,
            Some(_) => copied.map_or(Written::Logged, Written::Inline),
        };
        if let Some(own) = workspace.install(hashed, lsn, written, manner)? {
            // SAFETY: in the write set and not stamped (see `WriteEntry`).
            workspace.rewrite(unsafe { &*own }, lsn, written);
        }
        Ok(())
    }
}

pub(crate) enum WriteFailure {
    Error(TcError),
    Conflict(ConflictCause, Option<Timestamp>),
    /// Another transaction has an uncommitted version; nothing has been done yet.
    Undecided {
        other: Timestamp,
        slot: SlotIndex,
    },
}

impl From<TcError> for WriteFailure {
    fn from(error: TcError) -> WriteFailure {
        WriteFailure::Error(error)
    }
}

impl Core {
    /// So much of a transaction may wait for its commit to be logged.
    fn unlogged_bytes_max(&self) -> usize {
        UNLOGGED_BYTES_MAX.min(self.versions.record_bytes_max() / 2)
    }

    /// Logs a write of the transaction in `slot`: a value that no record takes in pieces before it. `logged_bytes` is what it has logged
    /// before, and grows. Returns the last record, and whether there were pieces.
    pub(crate) fn log_write(
        &self,
        slot: &Slot,
        transaction: TransactionId,
        logged_bytes: &mut u64,
        table: TableId,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(Lsn, bool), TcError> {
        let mut append = |record: &LogRecord<'_>| {
            let lsn = self.append(record)?;
            if *logged_bytes == 0 {
                slot.set_first_lsn(lsn, transaction);
            }
            *logged_bytes += record.encoded_bytes() as u64;
            Ok::<Lsn, TcError>(lsn)
        };
        let mut last = Lsn(0);
        let record = match value {
            None => LogRecord::Delete { transaction, table, key },
            Some(value) if value.len() <= self.versions.value_bytes_max(key.len()) => {
                LogRecord::Upsert { transaction, table, key, value }
            }
            Some(value) => {
                for bytes in value.chunks(self.versions.piece_bytes()) {
                    last = append(&LogRecord::Piece { transaction, before: last, bytes })?;
                }
                LogRecord::LargeUpsert { transaction, table, key, length: value.len() as u64, last }
            }
        };
        Ok((append(&record)?, last != Lsn(0)))
    }
}

impl Workspace {
    /// The newest version of a chain that is not aborted.
    pub(crate) fn top<'g>(&self, head: *mut Version, _guard: &'g Guard<'_>) -> Top<'g> {
        let mut current = head;
        loop {
            // The suffix of a chain is pruned below a committed version only.
            debug_assert!(current != PRUNED);
            // SAFETY: reached through a record's head under a guard (V1).
            let Some(version) = (unsafe { current.as_ref::<'g>() }) else { return Top::Base };
            match version.state() {
                VersionState::Committed(at) => return Top::Committed(at, version),
                VersionState::Aborted => {}
                VersionState::Pending(slot) => match self.core.transactions.slot(slot).status.load() {
                    Status::Committed(at) => return Top::Committed(at, version),
                    Status::Aborted => {}
                    Status::Active(_) if slot == self.slot => return Top::Own(version),
                    Status::Active(lower_bound) => return Top::Other { lower_bound, slot },
                },
            }
            current = version.next.load(Ordering::Acquire);
        }
    }

    /// What is in the way of a write already.
    fn check_ahead(&self, key: KeyRef<'_>, manner: Manner) -> Result<(), WriteFailure> {
        match self.ahead(key, manner.at) {
            Ahead::Undecided { other, slot } => Err(WriteFailure::Undecided { other, slot }),
            Ahead::Later(other) if manner.in_time => {
                Err(WriteFailure::Conflict(ConflictCause::TimestampOrder, Some(other)))
            }
            // It would have to commit later than that, and would find it then.
            Ahead::Changed(other) if manner.isolation == Isolation::Serializable => {
                Err(WriteFailure::Conflict(ConflictCause::ReadChanged, Some(other)))
            }
            _ => Ok(()),
        }
    }

    /// The same of one that has been installed above a version which was committed later than the transaction reads.
    #[cold]
    fn check_beneath(
        &self,
        key: KeyRef<'_>,
        new: *const Version,
        guard: &Guard<'_>,
    ) -> Result<(), WriteFailure> {
        // SAFETY: installed by this transaction, which has not stamped it.
        let beneath = unsafe { &*new }.next.load(Ordering::Acquire);
        match self.top(beneath, guard) {
            Top::Committed(committed, version) if self.has_read_another(key, committed, version) => {
                Err(WriteFailure::Conflict(ConflictCause::ReadChanged, Some(committed)))
            }
            _ => Ok(()),
        }
    }

    /// Installs a version, which was logged at `lsn` or will be, sees to it that scans find it, and pushes the transaction itself
    /// beyond whoever must come before it (R5). If it has a version there, returns that, and has done nothing.
    pub(crate) fn install(
        &mut self,
        key: KeyRef<'_>,
        lsn: Lsn,
        written: Written<'_>,
        manner: Manner,
    ) -> Result<Option<*const Version>, WriteFailure> {
        let Manner { at, in_time, .. } = manner;
        let core = &*self.core;
        let bytes = Version::written_bytes(written);
        let recycled = self.recycler.take(bytes, &core.epochs);
        let new = recycled.unwrap_or_else(|| Version::allocate(bytes));
        // SAFETY: of that size, and nobody else's.
        unsafe { Version::write_written(new, self.slot, lsn, written, self.next_ordinal) };
        let guard = core.epochs.pin();
        let (record, installed) = loop {
            let record = self.find_or_insert(key, &guard);
            if let Some(installed) = self.try_install(&record, new, &guard) {
                break (record, installed);
            }
        };
        let Installed::Above(below) = installed else {
            match recycled {
                Some(version) => self.recycler.put_back(version, bytes),
                // SAFETY: not installed, so nobody knows it.
                None => unsafe { Version::free(new.cast(), bytes) },
            }
            return match installed {
                // Nothing is in the log yet, so that it can be tried again.
                Installed::Conflict { other, slot } if matches!(written, Written::Unlogged(_)) => {
                    Err(WriteFailure::Undecided { other, slot })
                }
                Installed::Conflict { other, .. } => {
                    Err(WriteFailure::Conflict(ConflictCause::WriteWrite, Some(other)))
                }
                Installed::Own(version) => Ok(Some(version)),
                Installed::Above(_) => unreachable!("matched above"),
            };
        };
        if recycled.is_none() {
            core.account.add(bytes);
        }
        self.writes.push(WriteEntry { record: record.pointer(), version: new });
        self.next_ordinal += 1;
        self.written_bytes += bytes + record.bytes();
        point();
        core.index.note(record, self.shard, self.writes.len());
        point();
        core.empty.forget(key.table, key.key, &guard);
        point();
        match manner {
            Manner { isolation: Isolation::Snapshot, .. } => self.check_snapshot(below, at)?,
            Manner { isolation: Isolation::Serializable, intent: Intent::Put, .. }
                if below.is_some_and(|below| below > at) =>
            {
                self.check_beneath(key, new, &guard)?;
            }
            _ => {}
        }
        let below = below.unwrap_or_default();
        if !is_planted(Bug::NoSelfPush) {
            let latest = self.latest_to_follow(&record, key, below, at, &guard);
            if in_time && latest > at {
                return Err(WriteFailure::Conflict(ConflictCause::TimestampOrder, Some(latest)));
            }
            if latest > at && !self.slot().status.self_push(latest, &core.transactions.lost) {
                return Err(WriteFailure::Conflict(self.slot().aborted_for(), None));
            }
        }
        record.set_referenced();
        let is_above_another = core.prune_below(&record, new, &mut self.recycler, &guard);
        if is_above_another && core.account.is_filling() {
            // SAFETY: ours, and not stamped (see `WriteEntry`).
            let beneath = unsafe { &*new }.next.load(Ordering::Relaxed);
            if self.superseded.note(&record, [new, beneath], at) {
                core.prune_superseded(&mut self.superseded, &mut self.recycler, &guard);
            }
        }
        Ok(None)
    }

    /// Writes anew what the transaction has written.
    fn rewrite(&mut self, own: &Version, lsn: Lsn, written: Written<'_>) {
        let kept = self.savepoints.note_rewrite(own);
        self.written_bytes += kept;
        // Room has been made at the begin of the write.
        self.held.add(kept, &self.core.account);
        // SAFETY: it is ours, and we have not ended (V5).
        unsafe { own.rewrite(lsn, written) };
    }

    /// Whether a writer that never looks at its reads again may write above a version of this time. Looked at after the installation:
    /// what is above the base then nobody has posted and evicted unless the horizon had been forced beyond it before (R11).
    fn check_snapshot(&self, below: Option<Timestamp>, at: Timestamp) -> Result<(), WriteFailure> {
        match below {
            Some(below) if below > at => Err(WriteFailure::Conflict(ConflictCause::WriteWrite, Some(below))),
            None if at < self.core.forced_horizon() => {
                Err(WriteFailure::Conflict(ConflictCause::SnapshotTooOld, None))
            }
            _ => Ok(()),
        }
    }

    fn find_or_insert<'g>(&self, key: KeyRef<'_>, guard: &'g Guard<'_>) -> Linked<'g, Record> {
        if let Some(record) = self.core.table.find(key, guard) {
            return record;
        }
        let new = Record::allocate(key, Timestamp(0), 0);
        self.core.table.insert(key, new, guard).unwrap_or_else(|record| {
            // SAFETY: not linked, so nobody knows it.
            unsafe { Record::free(new.cast(), (*new).bytes()) };
            record
        })
    }

    /// R6: puts `new` on top of the record's versions, unless another transaction's uncommitted one is there. `None`: start
    /// over.
    fn try_install<'g>(
        &self,
        record: &Record,
        new: *mut Version,
        guard: &'g Guard<'_>,
    ) -> Option<Installed<'g>> {
        let head = record.head.load(Ordering::SeqCst);
        if head == REMOVED {
            self.core.table.remove_frozen(record, guard);
            return None;
        }
        let below = match self.top(head, guard) {
            Top::Base => None,
            Top::Committed(at, version) => {
                // It will be pruned.
                version.prefetch_below();
                Some(at)
            }
            Top::Own(version) => return Some(Installed::Own(version)),
            Top::Other { lower_bound: other, slot } => return Some(Installed::Conflict { other, slot }),
        };
        point();
        // SAFETY: not installed yet, so nobody else knows it.
        unsafe { (*new).next.store(head, Ordering::Relaxed) };
        let swapped = record.head.compare_exchange(head, new, Ordering::SeqCst, Ordering::Relaxed);
        self.core.table.versions_lost.is_won(swapped).then_some(Installed::Above(below))
    }

    /// R5: who must come before the version that has been installed. Timestamps are unique: what equals `at` is
    /// the transaction's own.
    fn latest_to_follow(
        &self,
        record: &Record,
        key: KeyRef<'_>,
        below: Timestamp,
        at: Timestamp,
        guard: &Guard<'_>,
    ) -> Timestamp {
        let core = &*self.core;
        publication_fence();
        // Pairs with the reader's second look at the head, which comes after it has raised the timestamp (R3).
        let read = record.read_timestamp(core.table.stripe(key.hash), &core.table.read_timestamps_lost);
        point();
        let scanned = core.ranges.latest(key.table, key.key, at, guard).unwrap_or_default();
        // R11: a version of a later time may have been posted and forgotten.
        let forced = Timestamp(core.forced_horizon().0.saturating_sub(1));
        below.max(read).max(scanned).max(forced)
    }
}
