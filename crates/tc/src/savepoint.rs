//! Savepoints: giving up what a transaction has written since one (rule R21).
//!
//! A transaction has one version of each key that it writes, and rewrites it. What a savepoint must bring back is therefore of
//! two kinds: versions that were not there, which are aborted one by one while their writer goes on, and versions that were
//! rewritten, whose payload before is kept aside.
//!
//! The log has redo records of what was rolled back, under the transaction's id, and the proxy would post them with the rest.
//! So at the commit a transaction that has rolled back logs what is left once more, under a new id, and the old id is
//! aborted. That costs as much log again as the transaction has written, but costs it only there. From then on what it has logged
//! before neither counts as its own nor keeps the log from being cut.
//!
//! What was read stays read: timestamps and ranges are where they were, and the refresh looks at all of it. Only the digests
//! of scans are made anew that had met keys which are the transaction's own no longer.

use crate::commit::RefreshFailure;
use crate::error::TcError;
use crate::planted::{Bug, is_planted};
use crate::read::Copied;
use crate::schedule::point;
use crate::transaction::Transaction;
use crate::version::{Payload, Version, Written};
use crate::workspace::{Workspace, clear};
use deuteron_contract::{Lsn, Timestamp, TransactionId};
use std::sync::atomic::{AtomicU64, Ordering};

/// Of the next savepoint. Of the whole process, as transactions have the same id in several databases, and so has a reader in the past.
/// An atomic of std's, also for loom and shuttle: all that counts is that no number comes twice.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);

/// A place in a transaction to which it can be rolled back; made by [`Transaction::savepoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    depth: usize,
    /// Different for each savepoint of the process.
    serial: u64,
}

/// What a transaction knows of one of its savepoints.
struct Mark {
    serial: u64,
    /// Writes, the next ordinal and the length of the undo list then.
    writes: usize,
    ordinal: u64,
    undo: usize,
    /// What had been noted then (R22).
    changes: u64,
}

/// The payload of a version before it was rewritten. The pointer is good as those of the write set are.
struct Undo {
    version: *const Version,
    before: Before,
}

enum Before {
    Absent(Lsn),
    Logged(Lsn),
    Large(Lsn),
    Inline(Box<[u8]>),
}

impl Undo {
    fn bytes(&self) -> usize {
        let Before::Inline(value) = &self.before else { return size_of::<Undo>() };
        size_of::<Undo>() + value.len()
    }
}

/// The savepoints of a transaction, and what it takes to go back to them.
#[derive(Default)]
pub(crate) struct Savepoints {
    marks: Vec<Mark>,
    undo: Vec<Undo>,
    /// Something that was rolled back may be in the log under the transaction's id.
    pub(crate) relog: bool,
}

impl Savepoints {
    pub(crate) fn clear(&mut self) {
        clear(&mut self.marks);
        clear(&mut self.undo);
        self.relog = false;
    }

    /// The writer is about to rewrite a version of its own; how many bytes of memory that takes.
    #[inline]
    pub(crate) fn note_rewrite(&mut self, version: &Version) -> usize {
        match self.marks.last() {
            Some(mark) if version.ordinal() < mark.ordinal => self.keep(version),
            _ => 0,
        }
    }

    #[cold]
    fn keep(&mut self, version: &Version) -> usize {
        // Kept since the last savepoint already: what it was in between is nobody's.
        let since = self.marks.last().map_or(0, |mark| mark.undo);
        if self.undo.last().is_some_and(|last| self.undo.len() > since && last.version == version) {
            return 0;
        }
        let lsn = version.lsn().unwrap_or_default();
        let before = match version.payload() {
            Payload::Absent => Before::Absent(lsn),
            Payload::Logged(lsn) => Before::Logged(lsn),
            Payload::Large(lsn) => Before::Large(lsn),
            Payload::Inline(value) => Before::Inline(value.into()),
        };
        let undo = Undo { version, before };
        let bytes = undo.bytes();
        self.undo.push(undo);
        bytes
    }
}

impl Transaction {
    /// A place to which [`Transaction::rollback_to`] returns: what is written from here on can be given up by itself.
    ///
    /// # Errors
    /// [`TcError::Aborted`]; [`TcError::TransactionTooLarge`], if they and what was written take more than half of the memory; as
    /// [`Transaction::put`], if memory is short.
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
    /// let before = tx.savepoint()?;
    /// tx.put(table, b"apples", b"12")?;
    /// tx.rollback_to(&before)?;
    /// assert_eq!(tx.get(table, b"apples")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn savepoint(&mut self) -> Result<Savepoint, TcError> {
        self.check_active()?;
        let marks_bytes = (self.workspace.savepoints.marks.len() + 1) * size_of::<Mark>();
        self.workspace.check_size(marks_bytes).inspect_err(|_| self.roll_back())?;
        let workspace = &mut **self.workspace;
        if workspace.held.add(size_of::<Mark>(), &workspace.core.account) {
            workspace.make_room().inspect_err(|_| self.roll_back())?;
        }
        let workspace = &mut **self.workspace;
        let savepoints = &mut workspace.savepoints;
        let serial = NEXT_SERIAL.fetch_add(1, Ordering::Relaxed);
        savepoints.marks.push(Mark {
            serial,
            writes: workspace.writes.len(),
            ordinal: workspace.next_ordinal,
            undo: savepoints.undo.len(),
            changes: workspace.changes.mark(),
        });
        Ok(Savepoint { depth: savepoints.marks.len() - 1, serial })
    }

    /// Gives up everything written since the savepoint: the keys are as they were there, and what was not written before can be
    /// written by others again. What was read since counts as read. The savepoint stays; those made after it are gone.
    ///
    /// # Errors
    /// [`TcError::NoSavepoint`], if it is one of another transaction or gone; the transaction lives on. As
    /// [`Transaction::get`].
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
    /// let (outer, inner) = (tx.savepoint()?, tx.savepoint()?);
    /// tx.rollback_to(&outer)?;
    /// assert!(matches!(tx.rollback_to(&inner), Err(TcError::NoSavepoint)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<(), TcError> {
        self.check_active()?;
        let marks = &self.workspace.savepoints.marks;
        let Some(mark) = marks.get(savepoint.depth).filter(|mark| mark.serial == savepoint.serial) else {
            return Err(TcError::NoSavepoint);
        };
        let (writes, ordinal, undo, changes) = (mark.writes, mark.ordinal, mark.undo, mark.changes);
        let workspace = &mut **self.workspace;
        let given_back = workspace.changes.rollback_to(changes);
        workspace.give_back(given_back);
        let gone = workspace.savepoints.marks.len() - (savepoint.depth + 1);
        workspace.held.subtract(gone * size_of::<Mark>(), &workspace.core.account);
        workspace.savepoints.marks.truncate(savepoint.depth + 1);
        workspace.restore(undo);
        let aborted = workspace.abort_writes_since(writes, ordinal, self.at);
        // Who looks for large ones that could give way finds no more in it than there is.
        if workspace.has_said_much {
            let written = workspace.written_bytes;
            let is_much = workspace.core.account.is_much(written);
            workspace.slot().set_written(if is_much { written } else { 0 });
        }
        match aborted {
            Ok(()) => {}
            Err(RefreshFailure::Error(error)) => {
                self.roll_back();
                return Err(error);
            }
            Err(RefreshFailure::Changed(changed)) => {
                return Err(self.conflict(changed.cause, changed.table, changed.place, changed.other));
            }
        }
        self.check_not_aborted()
    }

    /// R21, before the commit record: logs what is left of the writes once more, under a new id. Nothing of it, if the log has nothing yet.
    pub(crate) fn relog(&mut self) -> Result<(), TcError> {
        if !self.workspace.savepoints.relog || self.logged_bytes == 0 || is_planted(Bug::NoRelog) {
            return Ok(());
        }
        let core = &self.workspace.core;
        let fresh = core.clock.tick();
        core.cover(fresh)?;
        let workspace = &mut **self.workspace;
        let old = std::mem::replace(&mut workspace.log_id, TransactionId(fresh.0));
        workspace.slot().set_log_id(workspace.log_id);
        let (void_bytes, end) = (self.logged_bytes, workspace.core.versions.tail_lsn());
        let again = (0..workspace.writes.len())
            .try_for_each(|write| workspace.log_again(write, &mut self.logged_bytes));
        // Not before: once its records are void nothing keeps the log from being cut, and the values are read from it.
        workspace.core.tell_abort(old);
        self.logged_bytes -= void_bytes;
        workspace.slot().forget_logged_before((self.logged_bytes > 0).then_some(end));
        point();
        again?;
        (workspace.savepoints.relog, workspace.unlogged_bytes) = (false, 0);
        Ok(())
    }
}

impl Workspace {
    /// What could not be given back before the end of the transaction, as it seemed, has been.
    fn give_back(&mut self, bytes: usize) {
        self.written_bytes = self.written_bytes.saturating_sub(bytes);
        self.held.subtract(bytes, &self.core.account);
    }

    /// Brings back the payloads that were rewritten since the undo list had this length.
    fn restore(&mut self, length: usize) {
        while self.savepoints.undo.len() > length {
            let Some(undo) = self.savepoints.undo.pop() else { return };
            self.give_back(undo.bytes());
            let Undo { version, before } = undo;
            let (lsn, written) = match &before {
                Before::Absent(lsn) => (*lsn, Written::Absent),
                Before::Logged(lsn) => (*lsn, Written::Logged),
                Before::Large(lsn) => (*lsn, Written::Large),
                // Whether the log has it or not.
                Before::Inline(value) => {
                    self.unlogged_bytes += value.len().max(1);
                    (Lsn(0), Written::Unlogged(value))
                }
            };
            // SAFETY: in the write set and not stamped (see `WriteEntry`); we are the writer, and have not ended (V5).
            unsafe { (*version).rewrite(lsn, written) };
            self.savepoints.relog = true;
        }
    }

    /// Aborts the versions of the write set from `first` on, the lowest of which has the ordinal `ordinal`.
    fn abort_writes_since(
        &mut self,
        first: usize,
        ordinal: u64,
        at: Timestamp,
    ) -> Result<(), RefreshFailure> {
        if first == self.writes.len() {
            return Ok(());
        }
        self.savepoints.relog = true;
        let mut stale = Vec::new();
        let guard = self.core.epochs.pin();
        let horizon = self.core.known_horizon();
        for entry in self.writes.drain(first..) {
            // SAFETY: not stamped yet, and then under the guard (see `WriteEntry`).
            let (record, version) = unsafe { (&*entry.record, &*entry.version) };
            let met = |scan: &crate::workspace::ScanEntry| {
                scan.own > ordinal && scan.range.lend().contains(record.table(), record.key())
            };
            stale.extend((0..self.scans.len()).filter(|index| met(&self.scans[*index])));
            self.written_bytes = self.written_bytes.saturating_sub(version.bytes() + record.bytes());
            version.stamp_aborted();
            point();
            self.core.maintain(record, horizon, &guard);
        }
        drop(guard);
        self.tell_waiting();
        stale.sort_unstable();
        stale.dedup();
        for scan in stale {
            // As of when it was read, or moved on to: what was committed then is there still, under its marks.
            let (digest, _) = self.digest_scan(scan, at)?;
            self.scans[scan].digest = digest;
        }
        Ok(())
    }

    /// Logs the value that a version of the write set has.
    pub(crate) fn log_again(&mut self, write: usize, logged_bytes: &mut u64) -> Result<(), TcError> {
        let guard = self.core.epochs.pin();
        let entry = self.writes[write];
        // SAFETY: not stamped, with or without the guard; the record is there as long as the version is (see `WriteEntry`).
        let (record, version) = unsafe { (&*entry.record, &*entry.version) };
        let (table, key) = (record.table(), record.key());
        let is_inline = matches!(version.payload(), Payload::Inline(_));
        let copied = self.core.copy_value(version, &mut self.value, &guard);
        drop(guard);
        if let Copied::Recycled(lsn) | Copied::Large(lsn) = copied {
            let hashed = self.core.table.key(table, key);
            match self.core.load_recycled(hashed, lsn, None)? {
                Some(value) => self.value = value,
                None => unreachable!("what is not committed is not at the data component"),
            }
        }
        let value = (!matches!(copied, Copied::Absent)).then_some(self.value.as_slice());
        let (lsn, is_large) =
            self.core.log_write(self.slot(), self.log_id, logged_bytes, table, key, value)?;
        let written = match copied {
            Copied::Absent => Written::Absent,
            _ if is_large => Written::Large,
            _ if is_inline => Written::Inline(&self.value),
            _ => Written::Logged,
        };
        // SAFETY: ours, and we have not ended (V5).
        unsafe { version.rewrite(lsn, written) };
        Ok(())
    }
}
