//! [`Transaction`]: what one client reads and writes, together or not at all.

use crate::ahead::AHEAD_KEYS_MAX;
use crate::core::Core;
use crate::error::{Conflict, ConflictCause, ConflictPlace, TcError};
use crate::linked::Linked;
use crate::options::{BeginOptions, Isolation};
use crate::read::{Attempt, Copied, Failure, Own, Protection, Reader};
use crate::record::Record;
use crate::schedule::point;
use crate::statistics::Counter;
use crate::status::Status;
use crate::version::Version;
use crate::workspace::{Observed, Pool, Workspace};
use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};
use deuteron_epoch::Guard;
use std::mem::ManuallyDrop;

/// Keys whose memory is asked for at a time: enough to keep the memory busy, few enough to stay in the first-level cache.
const AHEAD: usize = 8;

/// The same of keys that will be written, of which less is asked for.
const WRITES_AHEAD: usize = 16;

/// Keys that are brought from the data component's device at a time.
pub(crate) const STORED_AHEAD: usize = 64;

/// What a commit returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The final timestamp: the transaction's place in the serial order.
    pub timestamp: Timestamp,
    /// The transaction is durable once the log is stable *beyond* this record: once `stable_lsn() > durable_at`. For a
    /// read-only transaction it is the last commit record that it read from. `None`: durable already.
    pub durable_at: Option<Lsn>,
}

/// Where a transaction stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Active,
    Ended,
}

/// A transaction. Owned and `Send`; it holds the component it belongs to. Dropping it aborts it.
///
/// After an error that is not [harmless](TcError::is_harmless) the transaction is aborted, and every further operation returns
/// [`TcError::Aborted`].
pub struct Transaction {
    pub(crate) workspace: ManuallyDrop<Box<Workspace>>,
    pub(crate) begin: Timestamp,
    /// As of when it reads: its begin, or later if it has gone on from there (R20).
    pub(crate) at: Timestamp,
    pub(crate) options: BeginOptions,
    pub(crate) phase: Phase,
    /// The clock's ceiling covers the timestamp (K2).
    pub(crate) covered: bool,
    /// What it has in the log under its identity there, and until that is logged again (R21) under the one before.
    pub(crate) logged_bytes: u64,
}

impl Transaction {
    pub(crate) fn new(mut workspace: Box<Workspace>, options: BeginOptions) -> Transaction {
        if !options.read_only {
            workspace.pass_turnstile();
        }
        let core = &workspace.core;
        let begin = match options.read_only {
            true => {
                let begin = workspace.announcement().begin_reader(&core.clock, core.forced_horizon());
                if options.isolation != Isolation::ReadCommitted {
                    core.fence.raise(begin);
                }
                begin
            }
            false => {
                let begin = workspace.announcement().begin(&core.clock);
                workspace.slot().status.begin(begin);
                begin
            }
        };
        if options.isolation == Isolation::ReadCommitted {
            workspace.announcement().read_nothing();
        }
        // What a reader sees has been covered by its writers.
        let covered = options.read_only || core.clock.is_covered(begin);
        workspace.log_id = TransactionId(begin.0);
        Transaction {
            covered,
            workspace: ManuallyDrop::new(workspace),
            begin,
            at: begin,
            options,
            phase: Phase::Active,
            logged_bytes: 0,
        }
    }

    /// R17: a read-only transaction at `at`.
    pub(crate) fn new_as_of(workspace: Box<Workspace>, at: Timestamp) -> Result<Transaction, TcError> {
        let core = &workspace.core;
        workspace.announcement().begin_as_of(at);
        let (oldest, newest) = (core.retained_from(), core.clock.last());
        let is_retained = oldest <= at && at <= newest;
        if is_retained {
            core.fence.raise(at);
        }
        let mut transaction = Transaction {
            workspace: ManuallyDrop::new(workspace),
            begin: at,
            at,
            options: BeginOptions { read_only: true, ..BeginOptions::default() },
            phase: Phase::Active,
            covered: true,
            logged_bytes: 0,
        };
        if !is_retained {
            transaction.roll_back();
            return Err(TcError::NotRetained { wanted: at, oldest, newest });
        }
        Ok(transaction)
    }

    /// The timestamp as of which the transaction reads: that of its begin, or later, if [`Transaction::get_for_update`] has
    /// met a newer version. Under [`Isolation::ReadCommitted`], that of its begin.
    pub fn timestamp(&self) -> Timestamp {
        self.at
    }

    /// How far the transaction is kept apart from the others.
    pub fn isolation(&self) -> Isolation {
        self.options.isolation
    }

    /// How many versions the transaction has written.
    pub fn versions_written(&self) -> usize {
        self.workspace.writes.len()
    }

    /// How many of its reads had to ask the data component, or the log on disk. 0 once the transaction has ended.
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
    /// let mut tx = tc.begin();
    /// tx.get(table, b"apples")?;
    /// assert_eq!(tx.misses(), 1, "nobody has asked for it before");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn misses(&self) -> u32 {
        self.workspace.counts.of(Counter::Misses)
    }

    /// As of when the next operation reads, and how that is protected.
    #[inline]
    pub(crate) fn reader(&self) -> Reader {
        let mut at = self.at;
        let protection = match self.options {
            BeginOptions { isolation: Isolation::ReadCommitted, .. } => {
                at = self.workspace.core.present();
                point();
                Protection::None
            }
            BeginOptions { read_only: true, .. } => Protection::Fence,
            _ => Protection::Published,
        };
        Reader { at, slot: self.workspace.slot, own: Own::Visible, protection }
    }

    /// R16: from here on, and until [`Transaction::end_reading`], versions are kept for a transaction that reads what is committed, at the timestamp
    /// of its next [`Transaction::reader`] or a later one. The newest version of a key, which no horizon takes away, can be read without.
    pub(crate) fn begin_reading(&self) {
        if self.options.isolation == Isolation::ReadCommitted {
            self.workspace.announcement().read_from(self.workspace.core.clock.last());
            point();
        }
    }

    /// R16: between the operations of a transaction that reads what is committed no version is kept for it.
    pub(crate) fn end_reading(&self) {
        if self.options.isolation == Isolation::ReadCommitted {
            debug_assert_eq!(self.phase, Phase::Active);
            self.workspace.announcement().read_nothing();
        }
    }

    /// Whether what is read has to be remembered for a refresh.
    pub(crate) fn remembers_reads(&self) -> bool {
        !self.options.read_only
            && self.options.isolation == Isolation::Serializable
            && !self.must_be_in_time()
    }

    /// R18: whether the transaction commits at its begin or not at all.
    pub(crate) fn must_be_in_time(&self) -> bool {
        self.options.isolation == Isolation::Serializable && self.workspace.core.is_timestamp_order()
    }

    pub(crate) fn check_active(&mut self) -> Result<(), TcError> {
        if self.phase != Phase::Active {
            return Err(TcError::Aborted);
        }
        if !self.covered {
            if let Err(error) = self.workspace.core.cover(self.begin) {
                self.roll_back();
                return Err(error);
            }
            self.covered = true;
        }
        Ok(())
    }

    /// After a read: if somebody has aborted the transaction, others may have written over its versions, and what it has read
    /// fits nothing.
    #[inline]
    pub(crate) fn check_not_aborted(&mut self) -> Result<(), TcError> {
        if self.workspace.writes.is_empty()
            || matches!(self.workspace.slot().status.load(), Status::Active(_))
            || self.phase == Phase::Ended
        {
            return Ok(());
        }
        Err(self.conflict_of_aborted())
    }

    /// R24, after a read: what was found in a table that is dropped is nothing.
    #[inline]
    pub(crate) fn check_not_dropped(&self, table: TableId) -> Result<(), TcError> {
        if self.workspace.core.is_dropped(table) {
            return Err(TcError::TableDropped { table });
        }
        Ok(())
    }

    pub(crate) fn check_key(&self, key: &[u8]) -> Result<(), TcError> {
        let limit = self.workspace.core.options.key_bytes_max;
        if key.is_empty() || key.len() > limit {
            return Err(TcError::KeySize { found: key.len(), limit });
        }
        Ok(())
    }

    // ---- reading --------------------------------------------------------------------------------------------

    /// The value of `key`, copied, or `None`.
    ///
    /// # Errors
    /// [`TcError`]; of conflicts only that the snapshot is too old.
    pub fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, TcError> {
        self.get_with(table, key, <[u8]>::to_vec)
    }

    /// Calls `reader` on the value of `key`, and returns what it returned. Nothing is allocated if the value is in memory.
    ///
    /// The reader is given the transaction's own copy: it runs outside of the epoch and may take its time.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    #[inline]
    pub fn get_with<R>(
        &mut self,
        table: TableId,
        key: &[u8],
        reader: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, TcError> {
        self.check_active()?;
        self.check_key(key)?;
        if !self.workspace.changes.is_empty() {
            self.write_changes(table, key)?;
        }
        let read = self.read(table, key);
        self.check_not_aborted()?;
        let exists = read.map_err(|failure| self.fail_on_key(failure, table, key))?;
        self.check_not_dropped(table)?;
        Ok(exists.then(|| reader(&self.workspace.value)))
    }

    /// Reads several keys, and calls `reader` for each with its index and value, in the order of the keys. The memory accesses
    /// of neighbouring keys overlap, and so do the reads of what is not in memory, so that this is faster than as many calls of
    /// [`Transaction::get_with`].
    ///
    /// # Errors
    /// As [`Transaction::get`]. The reader has been called for the keys before the one that failed.
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        table: TableId,
        keys: &[K],
        mut reader: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), TcError> {
        let mut index = 0;
        for keys in keys.chunks(STORED_AHEAD) {
            self.prefetch(table, keys, &[]);
            for group in keys.chunks(AHEAD) {
                // The first ones are still on their way.
                if index % STORED_AHEAD > 0 {
                    self.workspace.core.prefetch_keys(table, group, &[], |_| {});
                }
                for key in group {
                    let found = self.get_with(table, key.as_ref(), |value| reader(index, Some(value)))?;
                    if found.is_none() {
                        reader(index, None);
                    }
                    index += 1;
                }
            }
        }
        Ok(())
    }

    /// Says which keys will be read and which will be written next: their ways from memory overlap, and what of the former this
    /// component has no record of is asked for from the data component, all at once. (A write needs no read.) Worth it for
    /// two keys and more, up to a few hundred at a time. A hint: it counts as no read and fails on nothing. It may block on storage.
    pub fn prefetch<K: AsRef<[u8]>>(&mut self, table: TableId, reads: &[K], writes: &[K]) {
        let mut stored: Vec<&[u8]> = Vec::new();
        self.workspace.core.prefetch_keys(table, reads, writes, |key| stored.push(key));
        // A single one is read no later by the read itself.
        if stored.len() > 1 {
            self.fetch_ahead(table, &stored);
        }
    }

    /// Asks the data component for `keys`, so that the reads which will miss them need not (R14).
    fn fetch_ahead(&mut self, table: TableId, keys: &[&[u8]]) {
        // The others are asked for when they are read.
        let keys = &keys[..keys.len().min(AHEAD_KEYS_MAX)];
        let Workspace { core, ahead, .. } = &mut **self.workspace;
        let bytes_max = ahead.make_room(core.account.budget() as usize / 64, keys.len(), &core.account);
        // Before the data component is asked.
        let hashed: Vec<_> = keys.iter().map(|key| core.table.key(table, key)).collect();
        let generations: Vec<_> = hashed.iter().map(|key| core.table.stripe(key.hash).generation()).collect();
        // Whoever reads what cannot be read is told.
        let Ok(records) = core.versions.get_many(table, keys, bytes_max) else { return };
        for ((key, generation), record) in hashed.into_iter().zip(generations).zip(records) {
            // For a long one that waits there might be no room besides, not even for the read that it waits for, which asks once more.
            let is_much = |value_bytes| core.account.is_much(value_bytes);
            if !record.as_ref().is_some_and(|record| is_much(record.value_bytes())) {
                ahead.put(key, generation, record, &core.account);
            }
        }
    }

    /// Reads the value of `key` into the workspace; false if the key does not exist.
    pub(crate) fn read(&mut self, table: TableId, key: &[u8]) -> Result<bool, Failure> {
        let (reader, remembers) = (self.reader(), self.remembers_reads());
        let workspace = &mut **self.workspace;
        workspace.counts.add(Counter::Reads);
        let hashed = workspace.core.table.key(table, key);
        let guard = workspace.core.epochs.pin();
        // Nearly always that is all, and takes two thirds of the instructions that it takes among the rest.
        if let Some((version, at, commit_lsn)) = workspace.core.read_newest(hashed, reader, &guard) {
            let cached = version.cached_bytes().is_some();
            let copied = workspace.core.copy_value(version, &mut workspace.value, &guard);
            if let Copied::Present | Copied::Absent = copied {
                drop(guard);
                if cached {
                    workspace.counts.add(Counter::ReadCacheHits);
                }
                workspace.read_lsn = workspace.read_lsn.max(commit_lsn);
                let exists = matches!(copied, Copied::Present);
                let observed = if exists { Observed::Version(at) } else { Observed::Absent };
                if remembers && workspace.remember(hashed, observed) {
                    workspace.make_room_for_held()?;
                }
                return Ok(exists);
            }
        }
        drop(guard);
        self.read_in_full(table, key)
    }

    /// As [`Transaction::read`], whatever is the case.
    #[inline(never)]
    fn read_in_full(&mut self, table: TableId, key: &[u8]) -> Result<bool, Failure> {
        let read = loop {
            self.begin_reading();
            let reader = self.reader();
            match self.read_as(reader, table, key) {
                // The present has moved on, and the horizon with it.
                Err(Failure::TooOld) if reader.protection == Protection::None => {}
                read => break read,
            }
        };
        self.end_reading();
        read
    }

    fn read_as(&mut self, reader: Reader, table: TableId, key: &[u8]) -> Result<bool, Failure> {
        let remembers = self.remembers_reads();
        let workspace = &mut **self.workspace;
        let hashed = workspace.core.table.key(table, key);
        let mut fetched = None;
        loop {
            let guard = workspace.core.epochs.pin();
            let attempt = workspace.core.attempt_read(hashed, reader, fetched.as_ref(), &guard);
            let (recycled, written) = match attempt {
                Attempt::Found { version, at, commit_lsn } => {
                    if version.cached_bytes().is_some() {
                        workspace.counts.add(Counter::ReadCacheHits);
                    }
                    let copied = workspace.core.copy_value(version, &mut workspace.value, &guard);
                    drop(guard);
                    workspace.read_lsn = workspace.read_lsn.max(commit_lsn);
                    let recycled = match copied {
                        Copied::Recycled(lsn) | Copied::Large(lsn) => Some(lsn),
                        Copied::Present | Copied::Absent => None,
                    };
                    let absent = matches!(copied, Copied::Absent);
                    if remembers {
                        let observed = if absent { Observed::Absent } else { Observed::Version(at) };
                        if workspace.remember(hashed, observed) {
                            workspace.make_room_for_held()?;
                        }
                    }
                    match recycled {
                        None => return Ok(!absent),
                        Some(lsn) => (lsn, Some((at, commit_lsn))),
                    }
                }
                Attempt::Own(version) => {
                    let copied = workspace.core.copy_value(version, &mut workspace.value, &guard);
                    drop(guard);
                    match copied {
                        Copied::Absent => return Ok(false),
                        Copied::Present => return Ok(true),
                        Copied::Recycled(lsn) | Copied::Large(lsn) => (lsn, None),
                    }
                }
                Attempt::Fetched => {
                    drop(guard);
                    let Some(fetched) = fetched.take() else { continue };
                    if remembers {
                        let absent = fetched.value.is_none();
                        let observed =
                            if absent { Observed::Absent } else { Observed::Version(fetched.timestamp) };
                        if workspace.remember(hashed, observed) {
                            workspace.make_room_for_held()?;
                        }
                    }
                    return Ok(match fetched.value {
                        Some(value) => {
                            workspace.value = value;
                            true
                        }
                        None => false,
                    });
                }
                Attempt::Miss { generation } => {
                    drop(guard);
                    workspace.counts.add(Counter::Misses);
                    if reader.protection == Protection::Published {
                        workspace.make_room()?;
                    }
                    let Workspace { core, ahead, .. } = workspace;
                    fetched = Some(core.fetch_unless_ahead(ahead, hashed, generation, reader.at)?);
                    continue;
                }
                Attempt::TooOld => return Err(Failure::TooOld),
                Attempt::Undecided(other) => return Err(Failure::GivesWay(other)),
            };
            workspace.counts.add(Counter::Misses);
            if let Some(value) = workspace.core.load_recycled(hashed, recycled, written)? {
                workspace.value = value;
                return Ok(true);
            }
            if reader.at < workspace.core.forced_horizon() {
                return Err(Failure::TooOld);
            }
        }
    }

    // ---- failing --------------------------------------------------------------------------------------------

    pub(crate) fn conflict(
        &mut self,
        cause: ConflictCause,
        table: TableId,
        place: ConflictPlace,
        other: Option<Timestamp>,
    ) -> TcError {
        if cause == ConflictCause::LogPinned && self.has_logged_too_much() {
            return self.log_too_large();
        }
        self.workspace.counts.add(Counter::Conflicts);
        let is_want_of_room = matches!(
            cause,
            ConflictCause::SnapshotTooOld | ConflictCause::LogPinned | ConflictCause::MemoryShort
        );
        if !is_want_of_room {
            self.workspace.meet();
        }
        self.roll_back();
        TcError::Conflict(Box::new(Conflict { table, place, cause, own: self.begin, other }))
    }

    /// Whether it would keep the log from being cut for too long even if it were alone. What the log has between records is not counted.
    fn has_logged_too_much(&self) -> bool {
        let limit = self.workspace.core.options.log_bytes_max;
        self.logged_bytes > limit - limit / 8
    }

    /// Aborts because of that: running it again would not help.
    #[cold]
    fn log_too_large(&mut self) -> TcError {
        self.roll_back();
        let (found, limit) = (self.workspace.writes.len().max(1), self.workspace.core.options.log_bytes_max);
        let fits = u128::from(limit) * found as u128 / u128::from(self.logged_bytes.max(1));
        TcError::TransactionTooLarge { found, limit: (fits as usize).min(found - 1) }
    }

    /// Makes the error of a failure that has to do with a key, and aborts unless it is harmless.
    #[cold]
    pub(crate) fn fail_on_key(&mut self, failure: Failure, table: TableId, key: &[u8]) -> TcError {
        let place = || ConflictPlace::Key(key.to_vec());
        let error = failure.into_error(|cause, other| self.conflict(cause, table, place(), other));
        if error.is_harmless() { error } else { self.end_with(error) }
    }

    /// Aborts because of an error. If somebody has aborted the transaction before, that is the error: from then on its records in
    /// the log are void, so that the log may have been cut before it read its own writes there.
    #[cold]
    pub(crate) fn end_with(&mut self, error: TcError) -> TcError {
        if matches!(error, TcError::Log(_))
            && let Err(aborted) = self.check_not_aborted()
        {
            return aborted;
        }
        self.roll_back();
        error
    }

    /// Gives everything up, if the transaction has not ended, and says whether it had not; every further operation returns
    /// [`TcError::Aborted`].
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
    /// let mut tx = tc.begin();
    /// tx.put(table, b"apples", b"12")?;
    /// assert!(tx.give_up());
    /// assert!(matches!(tx.get(table, b"apples"), Err(TcError::Aborted)) && !tx.give_up());
    /// assert_eq!(tc.begin().get(table, b"apples")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn give_up(&mut self) -> bool {
        let is_active = self.phase == Phase::Active;
        self.roll_back();
        is_active
    }

    /// Gives everything up. The same as dropping the transaction, but it can be read.
    pub fn abort(self) {
        drop(self);
    }
}

impl Core {
    /// Asks for the buckets of keys that will be read or written, then for their records, their newest versions and what is needed of
    /// these, each for several keys at once. Calls `without` for each key to be read of which there is no version here.
    fn prefetch_keys<'k, K: AsRef<[u8]>>(
        &self,
        table: TableId,
        mut reads: &'k [K],
        mut writes: &'k [K],
        mut without: impl FnMut(&'k [u8]),
    ) {
        let guard = self.epochs.pin();
        while let Some((some, rest)) = reads.split_at_checked(AHEAD) {
            self.prefetch_some::<AHEAD, _>(table, some, &[], &guard, &mut without);
            reads = rest;
        }
        // The last few go with the first to be written.
        if !reads.is_empty() {
            let (some, rest) = writes.split_at(writes.len().min(AHEAD - reads.len()));
            self.prefetch_some::<AHEAD, _>(table, reads, some, &guard, &mut without);
            writes = rest;
        }
        for some in writes.chunks(WRITES_AHEAD) {
            self.prefetch_some::<WRITES_AHEAD, _>(table, &[], some, &guard, &mut without);
        }
    }

    /// The same for at most `N` keys together. Of a record that will be read the value is needed; of one that will be written the newest
    /// version is looked at, and the one beneath it is pruned.
    #[inline]
    fn prefetch_some<'k, const N: usize, K: AsRef<[u8]>>(
        &self,
        table: TableId,
        reads: &'k [K],
        writes: &'k [K],
        guard: &Guard<'_>,
        without: &mut impl FnMut(&'k [u8]),
    ) {
        let records = self.find_ahead::<N, _>(table, reads.iter().chain(writes), guard);
        let mut versions = [None; N];
        for (index, (record, version)) in records.iter().zip(&mut versions).enumerate() {
            let Some(record) = record else { continue };
            *version = match index < reads.len() {
                true => record.prefetch_version(guard),
                false => record.prefetch_head(guard),
            };
        }
        for (key, version) in reads.iter().zip(&versions) {
            match version {
                Some(version) => self.prefetch_value(version),
                None => without(key.as_ref()),
            }
        }
        versions[reads.len()..].iter().flatten().for_each(|version| version.prefetch_below());
    }

    /// The records of at most `N` keys, each step being begun for all of them before the next.
    #[inline]
    fn find_ahead<'g, 'k, const N: usize, K: AsRef<[u8]> + 'k>(
        &self,
        table: TableId,
        keys: impl Iterator<Item = &'k K>,
        guard: &'g Guard<'_>,
    ) -> [Option<Linked<'g, Record>>; N] {
        let mut hashed = [None; N];
        for (key, hashed) in keys.zip(&mut hashed) {
            let key = self.table.key(table, key.as_ref());
            self.table.prefetch_bucket(key);
            *hashed = Some(key);
        }
        for &key in hashed.iter().flatten() {
            self.table.prefetch_record(key);
        }
        hashed.map(|key| self.table.find(key?, guard))
    }
}

impl Workspace {
    /// The version of a write.
    ///
    /// # Safety
    /// The version has not been stamped, or a guard has been held since before it was.
    pub(crate) unsafe fn version_of(&self, write: usize) -> &Version {
        // SAFETY: see `WriteEntry`.
        unsafe { &*self.writes[write].version }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.roll_back();
        // SAFETY: taken once; the transaction is not used any more.
        let mut workspace = unsafe { ManuallyDrop::take(&mut self.workspace) };
        workspace.reset(self.logged_bytes > 0);
        Pool::give_back(workspace);
    }
}
