//! The end of a transaction: refresh if pushed, reserve, swap, fill, stamp (rules R7 to R9).

use crate::core::Core;
use crate::error::{ConflictCause, ConflictPlace, TcError};
use crate::host::Stall;
use crate::options::Isolation;
use crate::planted::{Bug, is_planted};
use crate::read::{Attempt, Failure, Own, Protection, Reader};
use crate::record::{KeyRef, Record};
use crate::schedule::{self, point};
use crate::statistics::Counter;
use crate::status::Status;
use crate::sync::lock;
use crate::transaction::{Committed, Phase, Transaction};
use crate::version::{Payload, Version};
use crate::workspace::{Observed, Workspace};
use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};
use deuteron_log::{AppendError, CommitReservation, Record as LogRecord};
use std::ops::Bound;

/// A refresh that found something changed: where, and by a version of which time.
pub(crate) struct Changed {
    pub(crate) cause: ConflictCause,
    pub(crate) table: TableId,
    pub(crate) place: ConflictPlace,
    pub(crate) other: Option<Timestamp>,
}

/// Why a refresh failed.
pub(crate) enum RefreshFailure {
    Error(TcError),
    Changed(Box<Changed>),
}

impl From<TcError> for RefreshFailure {
    fn from(error: TcError) -> RefreshFailure {
        RefreshFailure::Error(error)
    }
}

impl Transaction {
    /// Commits. When it returns, others see what the transaction has written; [`Committed::durable_at`] tells when it is
    /// durable.
    ///
    /// # Errors
    /// [`TcError`]; a conflict if the transaction had to commit later than it began and what it had read has changed.
    /// After an error from the log the outcome is an abort, unless the log stopped working altogether.
    pub fn commit(&mut self) -> Result<Committed, TcError> {
        self.check_active()?;
        if self.workspace.writes.is_empty() && self.workspace.changes.is_empty() {
            return Ok(self.commit_read_only());
        }
        if let Err(error) = self.relog() {
            return Err(self.end_with(error));
        }
        if !self.workspace.changes.is_empty() {
            self.commit_changes()?;
        }
        // R15, after the last installation. R16: what was read last may be later than the begin.
        let fenced = !is_planted(Bug::NoFence) && self.workspace.core.fence.latest() >= self.at;
        let late = fenced || self.options.isolation == Isolation::ReadCommitted;
        for round in 0.. {
            let Status::Active(lower_bound) = self.workspace.slot().status.load() else {
                return Err(self.conflict_of_aborted());
            };
            point();
            let mut at = self.at;
            if late || lower_bound != self.at {
                if self.must_be_in_time() {
                    return Err(self.conflict_of_transaction(ConflictCause::TimestampOrder));
                }
                if round >= self.workspace.core.options.refreshes_max {
                    return Err(self.conflict_of_transaction(ConflictCause::PushedTooOften));
                }
                if !is_planted(Bug::StayFixed) {
                    self.workspace.announcement().unfix();
                }
                at = self.workspace.core.clock.tick();
                if let Err(error) = self.workspace.core.cover(at) {
                    self.roll_back();
                    return Err(error);
                }
                self.refresh(at)?;
            }
            point();
            match self.try_commit(lower_bound, at) {
                Ok(Some(committed)) => return Ok(committed),
                Ok(None) => {}
                Err(error) => {
                    self.roll_back();
                    return Err(error);
                }
            }
        }
        unreachable!("the rounds are limited by refreshes_max")
    }

    /// A transaction that wrote nothing cannot have been pushed. Its place is where it reads (paper 2.3.1).
    fn commit_read_only(&mut self) -> Committed {
        if self.logged_bytes > 0 {
            // All of it was rolled back.
            self.workspace.core.tell_abort(self.workspace.log_id);
        }
        let read = self.workspace.read_lsn;
        let durable = read < self.workspace.core.versions.stable_lsn() || read == Lsn(0);
        self.workspace.slot().status.abort(&self.workspace.core.transactions.lost);
        self.phase = Phase::Ended;
        self.workspace.counts.add(Counter::Commits);
        self.workspace.end();
        Committed { timestamp: self.at, durable_at: (!durable).then_some(read) }
    }

    /// R8: reserve, log what waits for that, then swap, then fill. `None` if the transaction has been pushed meanwhile.
    fn try_commit(&mut self, lower_bound: Timestamp, at: Timestamp) -> Result<Option<Committed>, TcError> {
        let workspace = &mut **self.workspace;
        let bytes = workspace.fit_unlogged(&mut self.logged_bytes)?;
        let id = workspace.log_id;
        let lost = &workspace.core.transactions.lost;
        let mut reservation = workspace.core.reserve_commit(bytes)?;
        let reserving = schedule::reserving();
        let mut lsn = reservation.lsn();
        if bytes > 0 {
            workspace.log_before(&mut reservation, &mut self.logged_bytes);
            workspace.unlogged_bytes = 0;
        }
        workspace.slot().set_commit_lsn(lsn);
        // From before the swap: as soon as the status says so, others may take the versions for what they are.
        let guard = workspace.core.epochs.pin();
        if is_planted(Bug::LogOrder) {
            reservation.cancel();
            if !workspace.slot().status.commit(lower_bound, at, lost) {
                return Ok(None);
            }
            point();
            let late = workspace.core.reserve_commit(0)?;
            lsn = late.lsn();
            late.fill(id, at, 0);
        } else {
            if !workspace.slot().status.commit(lower_bound, at, lost) {
                // Nobody can write the log before.
                reservation.cancel();
                drop(guard);
                return Ok(None);
            }
            reservation.fill(id, at, 0);
        }
        reserving.end();
        self.phase = Phase::Ended;
        point();
        for write in 0..workspace.writes.len() {
            // SAFETY: the guard is from before the swap, hence from before the stamping.
            unsafe { workspace.version_of(write) }.stamp_committed(at, lsn);
        }
        drop(guard);
        workspace.counts.add(Counter::Commits);
        if at != self.begin {
            workspace.counts.add(Counter::RefreshedCommits);
        }
        workspace.end();
        Ok(Some(Committed { timestamp: at, durable_at: Some(lsn) }))
    }

    /// R7: what was read must be what is visible at `at`.
    pub(crate) fn refresh(&mut self, at: Timestamp) -> Result<(), TcError> {
        if self.options.isolation != Isolation::Serializable || is_planted(Bug::NoRefresh) {
            return Ok(());
        }
        if self.workspace.reads_forgotten {
            return Err(self.conflict_of_transaction(ConflictCause::ReadsForgotten));
        }
        match self.workspace.refresh(at) {
            Ok(()) => Ok(()),
            Err(RefreshFailure::Error(error)) => {
                self.roll_back();
                Err(error)
            }
            Err(RefreshFailure::Changed(changed)) => {
                let Changed { cause, table, place, other } = *changed;
                Err(self.conflict(cause, table, place, other))
            }
        }
    }

    /// A conflict that no operation has met: with whoever has pushed the transaction last.
    fn conflict_of_transaction(&mut self, cause: ConflictCause) -> TcError {
        let other = self.pushed_by();
        self.conflict(cause, TableId(0), ConflictPlace::Transaction, other)
    }

    /// Of a transaction that others have aborted: a conflict at the key that it wrote first, or at one that it was to change.
    #[cold]
    pub(crate) fn conflict_of_aborted(&mut self) -> TcError {
        let cause = self.workspace.slot().aborted_for();
        let first = self.workspace.writes.first().filter(|_| self.phase == Phase::Active).map(|entry| {
            // SAFETY: not stamped as long as we have not ended (see `WriteEntry`).
            let record = unsafe { &*entry.record };
            (record.table(), ConflictPlace::Key(record.key().to_vec()))
        });
        let noted = || {
            let (table, key) = self.workspace.changes.first()?;
            Some((table, ConflictPlace::Key(key.to_vec())))
        };
        let (table, place) = first.or_else(noted).unwrap_or((TableId(0), ConflictPlace::Transaction));
        self.conflict(cause, table, place, None)
    }

    /// The latest reader, or version, that has pushed the transaction beyond where it reads (R2, R5, R15).
    fn pushed_by(&self) -> Option<Timestamp> {
        match self.workspace.slot().status.load() {
            Status::Active(lower_bound) if lower_bound > self.at => Some(Timestamp(lower_bound.0 - 1)),
            _ => Some(self.workspace.core.fence.latest()).filter(|fence| *fence >= self.at),
        }
    }

    /// R9: aborts, if the transaction is active: its versions become garbage, and the log is told.
    pub(crate) fn roll_back(&mut self) {
        if self.phase == Phase::Ended {
            return;
        }
        self.phase = Phase::Ended;
        let workspace = &mut **self.workspace;
        workspace.slot().status.abort(&workspace.core.transactions.lost);
        workspace.counts.add(Counter::Aborts);
        if !workspace.writes.is_empty() {
            let guard = workspace.core.epochs.pin();
            let horizon = workspace.core.known_horizon();
            for entry in &workspace.writes {
                // SAFETY: not stamped yet, and then under the guard (see `WriteEntry`).
                let (record, version) = unsafe { (&*entry.record, &*entry.version) };
                version.stamp_aborted();
                point();
                workspace.core.maintain(record, horizon, &guard);
            }
        }
        if self.logged_bytes > 0 {
            workspace.core.tell_abort(workspace.log_id);
        }
        workspace.end();
    }
}

impl Workspace {
    /// The versions that wait for the commit to be logged.
    fn unlogged(&self) -> impl Iterator<Item = (&Record, &Version)> {
        let waits = if self.unlogged_bytes > 0 { &self.writes[..] } else { &[] };
        // SAFETY: not stamped (see `WriteEntry`).
        let entries = waits.iter().map(|entry| unsafe { (&*entry.record, &*entry.version) });
        entries.filter(|(_, version)| version.is_unlogged())
    }

    /// How many bytes of redo records wait for the commit record. If they are too many to be logged with it, logs them, and there are none.
    fn fit_unlogged(&mut self, logged_bytes: &mut u64) -> Result<usize, TcError> {
        let bytes = self.unlogged().map(|(record, version)| self.redo(record, version).encoded_bytes()).sum();
        let commit =
            LogRecord::Commit { transaction: self.log_id, timestamp: Timestamp(0), token: 0 }.encoded_bytes();
        if bytes + commit <= self.core.versions.record_bytes_max() {
            return Ok(bytes);
        }
        for write in 0..self.writes.len() {
            // SAFETY: not stamped (see `WriteEntry`).
            if unsafe { self.version_of(write) }.is_unlogged() {
                self.log_again(write, logged_bytes)?;
            }
        }
        self.unlogged_bytes = 0;
        Ok(0)
    }

    /// Logs what waits for that, in the room before the commit record.
    fn log_before(&self, commit: &mut CommitReservation<'_>, logged_bytes: &mut u64) {
        for (record, version) in self.unlogged() {
            let redo = self.redo(record, version);
            let lsn = commit.append(&redo);
            if *logged_bytes == 0 {
                self.slot().set_first_lsn(lsn, self.log_id);
            }
            *logged_bytes += redo.encoded_bytes() as u64;
        }
    }

    /// The redo record of a version with an inline value.
    fn redo<'v>(&self, record: &'v Record, version: &'v Version) -> LogRecord<'v> {
        let Payload::Inline(value) = version.payload() else { unreachable!("what waits is inline") };
        let (transaction, table, key) = (self.log_id, record.table(), record.key());
        LogRecord::Upsert { transaction, table, key, value }
    }

    fn refresh(&mut self, at: Timestamp) -> Result<(), RefreshFailure> {
        for index in 0..self.reads.len() {
            let read = &self.reads[index];
            let key = KeyRef { hash: read.hash, table: read.table, key: self.key_of(read) };
            let protection = Protection::Published;
            let reader = Reader { at, slot: self.slot, own: Own::Beneath, protection };
            let (now, commit_lsn) = match self.core.observe(key, reader) {
                Ok(now) => now,
                Err(failure) => {
                    return Err(failure.into_error(|cause, other| changed(cause, key, other)));
                }
            };
            if now != read.observed {
                let other = match now {
                    Observed::Version(other) => Some(other),
                    Observed::Absent => None,
                };
                return Err(changed(ConflictCause::ReadChanged, key, other));
            }
            self.read_lsn = self.read_lsn.max(commit_lsn);
        }
        for scan in 0..self.scans.len() {
            self.refresh_scan(scan, at)?;
        }
        // R24: at last, for what was just read says nothing of a table that is dropped.
        let mut tables =
            self.reads.iter().map(|read| read.table).chain(self.scans.iter().map(|scan| scan.range.table));
        match tables.find(|table| self.core.is_dropped(*table) && !is_planted(Bug::NoDropCheck)) {
            Some(table) => {
                let place = ConflictPlace::Range { lower: Bound::Unbounded, upper: Bound::Unbounded };
                let changed = Changed { cause: ConflictCause::TableDropped, table, place, other: None };
                Err(RefreshFailure::Changed(Box::new(changed)))
            }
            None => Ok(()),
        }
    }
}

fn changed(cause: ConflictCause, key: KeyRef<'_>, other: Option<Timestamp>) -> RefreshFailure {
    let place = ConflictPlace::Key(key.key.to_vec());
    RefreshFailure::Changed(Box::new(Changed { cause, table: key.table, place, other }))
}

impl Core {
    /// Reads a key only to see which version is there, and protects that (R3).
    fn observe(&self, key: KeyRef<'_>, reader: Reader) -> Result<(Observed, Lsn), Failure> {
        let mut fetched = None;
        loop {
            let guard = self.epochs.pin();
            match self.attempt_read(key, reader, fetched.as_ref(), &guard) {
                Attempt::Found { version, at, commit_lsn } => {
                    let observed = if version.is_absent() { Observed::Absent } else { Observed::Version(at) };
                    return Ok((observed, commit_lsn));
                }
                // Looking beneath its own versions, the reader does not find any.
                Attempt::Own(_) => unreachable!("the reader looks beneath its own versions"),
                Attempt::Fetched => {
                    let Some(fetched) = fetched.take() else { continue };
                    let absent = fetched.value.is_none();
                    let observed =
                        if absent { Observed::Absent } else { Observed::Version(fetched.timestamp) };
                    return Ok((observed, Lsn(0)));
                }
                Attempt::Miss { generation } => {
                    drop(guard);
                    fetched = Some(self.fetch(key, generation, reader.at)?);
                }
                Attempt::TooOld => return Err(Failure::TooOld),
                Attempt::Undecided(other) => return Err(Failure::GivesWay(other)),
            }
        }
    }

    /// Reserves a commit record behind so many bytes, waiting for room.
    fn reserve_commit(&self, bytes: usize) -> Result<CommitReservation<'_>, TcError> {
        loop {
            match self.versions.reserve_commit(bytes) {
                Ok(reservation) => return Ok(reservation),
                Err(AppendError::Full) => self.stall(Stall::Log)?,
                Err(other) => return Err(TcError::Append(other)),
            }
        }
    }

    /// R9: the proxy keeps what a transaction has logged until it hears how it ended. Aborts do not wait for room in
    /// the log; the collector sees to those that found none.
    pub(crate) fn tell_abort(&self, transaction: TransactionId) {
        if self.versions.append(&LogRecord::Abort { transaction }) == Err(AppendError::Full) {
            lock(&self.untold_aborts).push(transaction);
        }
    }
}
