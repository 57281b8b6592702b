//! [`Transaction`]: reads, writes and scans that happen together or not at all.

use crate::deadline::Watch;
use crate::handle::Handle;
use crate::record::{Recorder, Recording};
use crate::{Cancellation, Durability, Error, Isolation, KeyRange, Scan, Table, Ticket};
use deuteron_contract::{TableId, Timestamp};
use deuteron_history::Outcome;
use deuteron_tc::{BeginOptions, Conflict, ConflictCause, ConflictPlace, ScanCursor, TcError};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

/// Options of one transaction.
///
/// ```
/// use deuteron::{Durability, TransactionOptions};
/// let options = TransactionOptions::new().durability(Durability::Sync).read_only(true);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionOptions {
    durability: Option<Durability>,
    isolation: Isolation,
    read_only: bool,
    as_of: Option<Timestamp>,
    deadline: Option<Instant>,
}

impl TransactionOptions {
    /// The database's durability, reading and writing.
    ///
    /// ```
    /// assert_eq!(deuteron::TransactionOptions::new(), deuteron::TransactionOptions::default());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// The durability of this transaction, instead of the database's.
    ///
    /// ```
    /// let options = deuteron::TransactionOptions::new().durability(deuteron::Durability::None);
    /// # let _ = options;
    /// ```
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// How far the transaction is kept apart from the others. The default is [`Isolation::Serializable`], which is strict.
    ///
    /// ```
    /// use deuteron::{Isolation, TransactionOptions};
    /// let options = TransactionOptions::new().isolation(Isolation::Snapshot);
    /// # let _ = options;
    /// ```
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Declares that the transaction will not write; a write is then an error.
    ///
    /// Such a transaction never waits for another and never conflicts; only if it stays so long that memory runs out may
    /// it be told that its snapshot is too old. Its reads leave no marks: instead, writers that began before it commit
    /// after it, once they have made sure that what they have read is still so.
    ///
    /// ```
    /// let options = deuteron::TransactionOptions::new().read_only(true);
    /// # let _ = options;
    /// ```
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Reads the database as it was at a timestamp in the past: what had been committed at it and before, and nothing
    /// later. Implies [`TransactionOptions::read_only`]. How far back that goes [`crate::Options::retention`] says. A table that
    /// has been dropped since has no past any more.
    ///
    /// ```
    /// use deuteron::{Options, TransactionOptions};
    /// # let directory = std::sync::Arc::new(deuteron::device::MemoryDirectory::new());
    /// let db = Options::tiny_for_tests().retention(std::time::Duration::from_secs(60)).open_in(directory)?;
    /// let stock = db.table("stock")?;
    /// db.transact(|tx| tx.put(&stock, b"apples", b"12"))?;
    /// let then = db.timestamp();
    /// db.transact(|tx| tx.delete(&stock, b"apples"))?;
    /// let mut past = db.begin_with(TransactionOptions::new().as_of(then))?;
    /// assert_eq!(past.get(&stock, b"apples")?.as_deref(), Some(&b"12"[..]));
    /// # drop(past);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn as_of(mut self, timestamp: Timestamp) -> Self {
        self.as_of = Some(timestamp);
        self
    }

    /// The latest moment at which the transaction goes on: after it every operation, and every wait for room in one, fails
    /// with [`Error::DeadlineExceeded`], and the transaction is aborted. A begin that waits for its turn then waits no longer, and the
    /// first operation fails. A [`Transaction::commit`] that has committed, but
    /// not become durable by then, returns [`Error::DurabilityUnknown`]. An operation that does not have to wait may end
    /// a little later than this.
    ///
    /// ```
    /// use deuteron::TransactionOptions;
    /// use std::time::{Duration, Instant};
    /// let options = TransactionOptions::new().deadline(Instant::now() + Duration::from_secs(5));
    /// # let _ = options;
    /// ```
    pub fn deadline(mut self, moment: Instant) -> Self {
        self.deadline = Some(moment);
        self
    }
}

/// A transaction: strictly serializable unless its options say otherwise. Owned and `Send`; dropping it aborts it.
///
/// After an error that aborted it ([`Error::Conflict`]) every further operation returns [`Error::Aborted`].
///
/// ```
/// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
/// let stock = db.table("stock")?;
/// let mut tx = db.begin();
/// tx.put(&stock, b"apples", b"12")?;
/// assert_eq!(tx.get(&stock, b"apples")?.as_deref(), Some(&b"12"[..]));
/// tx.commit()?;
/// # db.close()?;
/// # Ok::<(), deuteron::Error>(())
/// ```
pub struct Transaction {
    pub(crate) inner: deuteron_tc::Transaction,
    engine: Arc<Handle>,
    durability: Durability,
    deadline: Option<Instant>,
    pub(crate) attempt: u32,
    /// Whether it was declared to read only.
    is_reader: bool,
    /// What it does, if that is recorded. Reads go on in functions of their own then, out of the way of the others.
    pub(crate) recording: Option<Box<Recording>>,
}

impl Transaction {
    /// A transaction in the present, or in the past that the options say.
    pub(crate) fn begin(
        engine: &Arc<Handle>,
        options: TransactionOptions,
        recorder: Option<&Arc<Recorder>>,
    ) -> Result<Self, Error> {
        let Some(at) = options.as_of else { return Ok(Self::begin_now(engine, options, recorder)) };
        let inner = engine.tc().begin_as_of(at).map_err(|error| engine.error(error))?;
        Ok(Self::over(inner, engine, options))
    }

    /// A transaction in the present.
    pub(crate) fn begin_now(
        engine: &Arc<Handle>,
        options: TransactionOptions,
        recorder: Option<&Arc<Recorder>>,
    ) -> Self {
        let TransactionOptions { isolation, read_only, .. } = options;
        let recording = recorder.map(|recorder| Box::new(recorder.begin()));
        // It may have to wait for its turn. If the deadline passes meanwhile the first operation is told.
        let _watch = options.deadline.map(|deadline| Watch::new(Some(deadline)));
        let inner = engine.tc().begin_with(BeginOptions { isolation, read_only });
        Self { recording, ..Self::over(inner, engine, options) }
    }

    fn over(inner: deuteron_tc::Transaction, engine: &Arc<Handle>, options: TransactionOptions) -> Self {
        Self {
            inner,
            durability: options.durability.unwrap_or(engine.durability()),
            engine: Arc::clone(engine),
            deadline: options.deadline,
            attempt: 1,
            is_reader: options.read_only || options.as_of.is_some(),
            recording: None,
        }
    }

    /// The timestamp as of which the transaction reads; under [`Isolation::ReadCommitted`], that of its begin.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// assert!(db.begin().timestamp() < db.begin().timestamp());
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn timestamp(&self) -> Timestamp {
        self.inner.timestamp()
    }

    /// How many of the transaction's reads so far were not answered from its part of the memory, but had to ask for the
    /// record's page, or read the log on disk.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// let mut tx = db.begin();
    /// tx.get(&stock, b"pears")?;
    /// assert_eq!(tx.misses(), 1, "nobody has asked for it before");
    /// # drop(tx);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn misses(&self) -> u32 {
        self.inner.misses()
    }

    /// The value of `key`, copied, or `None`.
    ///
    /// # Errors
    /// [`Error::Conflict`] (snapshot too old), [`Error::KeySize`], [`Error::Closed`], [`Error::Poisoned`],
    /// [`Error::Corrupt`], [`Error::Device`], [`Error::ForeignTable`], [`Error::TableDropped`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// assert_eq!(db.begin().get(&stock, b"pears")?, None);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn get(&mut self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.get_with(table, key, <[u8]>::to_vec)
    }

    /// Calls `reader` on the value of `key` where it lies, without copying it, and returns what it returned.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// let mut tx = db.begin();
    /// tx.put(&stock, b"apples", b"12")?;
    /// assert_eq!(tx.get_with(&stock, b"apples", <[u8]>::len)?, Some(2));
    /// # drop(tx);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn get_with<R>(
        &mut self,
        table: &Table,
        key: &[u8],
        reader: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let id = self.usable(table)?;
        if self.recording.is_some() {
            return self.get_recorded((table, id), key, reader);
        }
        let is_watched = self.deadline.is_some();
        self.run(|tx| {
            tx.get_with(id, key, |value| {
                // What the reader does, perhaps with other transactions, is not under this one's deadline.
                let _unwatched = is_watched.then(|| Watch::new(None));
                reader(value)
            })
        })
    }

    #[cold]
    fn get_recorded<R>(
        &mut self,
        (table, id): (&Table, TableId),
        key: &[u8],
        reader: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let value = self.run(|tx| tx.get_with(id, key, <[u8]>::to_vec))?;
        self.record(|recording| recording.read(table, key, value.as_deref()));
        Ok(value.as_deref().map(reader))
    }

    /// Has something recorded, if anything is.
    #[inline]
    pub(crate) fn record(&mut self, what: impl FnOnce(&mut Recording)) {
        if let Some(recording) = &mut self.recording {
            what(recording);
        }
    }

    /// The values of several keys, copied, in their order. Faster than as many calls of [`Transaction::get`]: the keys' ways from
    /// memory overlap, and the reads of what is not in memory are done at the same time.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// let mut tx = db.begin();
    /// tx.put(&stock, b"apples", b"12")?;
    /// assert_eq!(tx.get_many(&stock, &["apples", "pears"])?, [Some(b"12".to_vec()), None]);
    /// # drop(tx);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        table: &Table,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let id = self.usable(table)?;
        let mut values = Vec::with_capacity(keys.len());
        self.run(|tx| tx.get_many(id, keys, |_, value| values.push(value.map(<[u8]>::to_vec))))?;
        self.record(|recording| {
            for (key, value) in keys.iter().zip(&values) {
                recording.read(table, key.as_ref(), value.as_deref());
            }
        });
        Ok(values)
    }

    /// Says which keys the transaction will read, and which it will write unread, next. So they come from memory, and those
    /// to be read from the disk if need be, all at once and not one after the other. Worth it for two keys and more. A hint: it
    /// counts as no read and fails on nothing, but it may take as long as a read. Of many keys tell some tens at a time, before
    /// they are used: of thousands the first would have left the processor's caches again.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// let mut tx = db.begin();
    /// tx.prefetch(&stock, &["apples", "pears"], &["quinces"]);
    /// let apples = tx.get(&stock, b"apples")?.unwrap_or(b"0".to_vec());
    /// let pears = tx.get(&stock, b"pears")?.unwrap_or(b"0".to_vec());
    /// tx.put(&stock, b"quinces", apples.max(pears).as_slice())?;
    /// tx.commit()?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn prefetch<K: AsRef<[u8]>>(&mut self, table: &Table, reads: &[K], writes: &[K]) {
        if table.database == self.engine.number() {
            self.inner.prefetch(table.id, reads, writes);
        }
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another transaction has an uncommitted write on the key, [`Error::KeySize`],
    /// [`Error::ValueSize`], [`Error::ReadOnly`], and as [`Transaction::get`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// db.transact(|tx| tx.put(&stock, b"apples", b"12"))?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn put(&mut self, table: &Table, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.usable(table)?;
        self.run(|tx| tx.put(table.id, key, value))?;
        self.record(|recording| recording.write(table, key, Some(value)));
        Ok(())
    }

    /// Deletes `key`, whether or not it exists.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// db.transact(|tx| tx.delete(&stock, b"apples"))?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn delete(&mut self, table: &Table, key: &[u8]) -> Result<(), Error> {
        self.usable(table)?;
        self.run(|tx| tx.delete(table.id, key))?;
        self.record(|recording| recording.write(table, key, None));
        Ok(())
    }

    /// The records of `range` in key order; `.rev()` for the other order. The range is protected as a whole: that
    /// nothing comes between is part of what was read. (Under [`Isolation::Snapshot`] and
    /// [`Isolation::ReadCommitted`] nothing that is read is protected.) Bounds that cross give an empty scan.
    ///
    /// # Errors
    /// As [`Transaction::get`]; the iterator's items may fail with the same, or with [`Error::Conflict`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// let mut tx = db.begin();
    /// tx.put(&stock, b"apples", b"12")?;
    /// tx.put(&stock, b"pears", b"7")?;
    /// let first = tx.scan(&stock, &b"a"[..]..&b"b"[..])?.next().expect("one record")?;
    /// assert_eq!(first.0, b"apples");
    /// let last = tx.scan(&stock, ..)?.rev().next().expect("two records")?;
    /// assert_eq!(last.0, b"pears");
    /// # drop(tx);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn scan(&mut self, table: &Table, range: impl KeyRange) -> Result<Scan<'_>, Error> {
        let id = self.usable(table)?;
        let (lower, upper) = range.key_bounds();
        let recorded = self.recording.as_mut().map(|recording| recording.range(table, &lower, &upper));
        Ok(Scan::new(self, id, (lower, upper), recorded))
    }

    /// Reads the next batch of a scan, of so many entries at most; `false` at its end.
    pub(crate) fn scan_next(&mut self, cursor: &mut ScanCursor, entries_max: usize) -> Result<bool, Error> {
        self.engine.usable()?;
        self.run(|tx| tx.scan_next(cursor, entries_max))
    }

    /// Commits, and returns when the commit is as durable as the transaction's [`Durability`] promises.
    ///
    /// # Errors
    /// [`Error::Conflict`] if what was read had changed by the time at which the transaction had to commit,
    /// [`Error::Aborted`], [`Error::Closed`], [`Error::Poisoned`], [`Error::DiskFull`]: it has not committed. [`Error::DurabilityUnknown`]: it has, and others see it, but it
    /// is not known whether it is durable.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let mut tx = db.begin();
    /// tx.commit()?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn commit(self) -> Result<(), Error> {
        let (durability, deadline) = (self.durability, self.deadline);
        let mut ticket = self.commit_in_memory()?;
        match (durability, deadline) {
            (Durability::Delayed(_) | Durability::None, _) => {
                ticket.announce(durability);
                Ok(())
            }
            (Durability::Sync, None) => ticket.wait(),
            (Durability::Sync, Some(deadline)) => {
                match ticket.wait_timeout(deadline.saturating_duration_since(ticket.now()))? {
                    true => Ok(()),
                    false => Err(ticket.unknown(None)),
                }
            }
        }
    }

    /// Commits as [`Transaction::commit`] does, unless that is no longer wanted. A cancellation that comes before the commit
    /// aborts the transaction; one that comes while the commit waits to be durable ends the wait, and says what is known.
    ///
    /// # Errors
    /// [`Error::Cancelled`]: nothing has happened. [`Error::DurabilityUnknown`]: the transaction has committed, and others see
    /// it; only a crash could still undo it. As [`Transaction::commit`].
    ///
    /// ```
    /// use deuteron::{Cancellation, Error};
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// # let stock = db.table("stock")?;
    /// let cancellation = Cancellation::new();
    /// let mut tx = db.begin();
    /// tx.put(&stock, b"apples", b"12")?;
    /// tx.commit_unless(&cancellation)?;
    ///
    /// cancellation.cancel();
    /// assert!(matches!(db.begin().commit_unless(&cancellation), Err(Error::Cancelled)));
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn commit_unless(self, cancellation: &Cancellation) -> Result<(), Error> {
        if cancellation.is_cancelled() {
            self.abort();
            return Err(Error::Cancelled);
        }
        let (durability, deadline) = (self.durability, self.deadline);
        let mut ticket = self.commit_in_memory()?;
        if durability != Durability::Sync {
            ticket.announce(durability);
            return Ok(());
        }
        if ticket.wait_until(deadline, cancellation)? {
            return Ok(());
        }
        Err(ticket.unknown(None))
    }

    /// Commits in memory and returns at once; the [`Ticket`] tells when the commit is durable. With
    /// [`Durability::Sync`] the log is written as soon as the device is free once somebody waits for a ticket, in whichever way, and within half a
    /// millisecond if nobody does: so commits of whoever has many in flight are written together.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// # let stock = db.table("stock")?;
    /// let mut tx = db.begin();
    /// tx.put(&stock, b"apples", b"12")?;
    /// let ticket = tx.commit_async()?;
    /// ticket.wait()?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn commit_async(self) -> Result<Ticket, Error> {
        let durability = self.durability;
        let ticket = self.commit_in_memory()?;
        ticket.announce(durability);
        Ok(ticket)
    }

    /// The same, but the flusher is not told yet.
    fn commit_in_memory(mut self) -> Result<Ticket, Error> {
        self.engine.usable()?;
        let committed = self.run(deuteron_tc::Transaction::commit);
        if let Some(recording) = self.recording.take() {
            recording.end(match &committed {
                Ok(_) => Outcome::Committed,
                Err(Error::Poisoned { .. } | Error::DiskFull { .. } | Error::Device { .. }) => {
                    Outcome::Unknown
                }
                Err(_) => Outcome::Aborted,
            });
        }
        let committed = committed?;
        Ok(Ticket::new(self.engine, committed.timestamp, committed.durable_at))
    }

    /// Gives everything up. The same as dropping the transaction, but it can be read.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// # let stock = db.table("stock")?;
    /// let mut tx = db.begin();
    /// tx.put(&stock, b"apples", b"12")?;
    /// tx.abort();
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn abort(self) {
        drop(self);
    }

    /// Runs an operation, under the deadline if there is one.
    #[inline]
    pub(crate) fn run<T>(
        &mut self,
        operation: impl FnOnce(&mut deuteron_tc::Transaction) -> Result<T, TcError>,
    ) -> Result<T, Error> {
        match self.deadline {
            None => operation(&mut self.inner).map_err(|error| self.engine.error(error)),
            Some(deadline) => self.run_until(deadline, operation),
        }
    }

    #[cold]
    fn run_until<T>(
        &mut self,
        deadline: Instant,
        operation: impl FnOnce(&mut deuteron_tc::Transaction) -> Result<T, TcError>,
    ) -> Result<T, Error> {
        if self.engine.now() >= deadline {
            let was_active = self.inner.give_up();
            return Err(self.late(was_active));
        }
        let outcome = {
            let _watch = Watch::new(Some(deadline));
            operation(&mut self.inner)
        };
        match outcome {
            // Which has aborted it.
            Err(TcError::Stopped { .. }) if self.engine.now() >= deadline => Err(self.late(true)),
            outcome => outcome.map_err(|error| self.engine.error(error)),
        }
    }

    /// The error of a deadline that has passed, and whether it is what has ended the transaction.
    fn late(&self, is_the_end: bool) -> Error {
        if is_the_end {
            self.engine.note_deadline();
        }
        // A database that has stopped has the better reason.
        self.engine.usable().err().unwrap_or(Error::DeadlineExceeded)
    }

    pub(crate) fn usable_engine(&self) -> Result<(), Error> {
        self.engine.usable()
    }

    /// The table in which to look for what is wanted of this one.
    #[inline]
    pub(crate) fn usable(&mut self, table: &Table) -> Result<TableId, Error> {
        self.engine.usable()?;
        if table.database != self.engine.number() {
            return Err(Error::ForeignTable { table: table.name.to_string() });
        }
        if table.is_dropped() {
            return Err(Error::TableDropped { table: table.name.to_string() });
        }
        if table.since > self.inner.timestamp() { self.before(table) } else { Ok(table.id) }
    }

    /// The same for what writes only if it finds something: whether it may is not to depend on that.
    pub(crate) fn usable_to_write(&mut self, table: &Table) -> Result<TableId, Error> {
        let id = self.usable(table)?;
        if self.is_reader { Err(Error::ReadOnly) } else { Ok(id) }
    }

    /// The transaction reads as of a moment at which the table had not been loaded: there is nothing in it. Who might still have to commit later begins again.
    #[cold]
    fn before(&mut self, table: &Table) -> Result<TableId, Error> {
        if self.inner.isolation() == Isolation::ReadCommitted {
            return Ok(table.id);
        }
        if self.is_reader {
            return Ok(TableId::NOWHERE);
        }
        if !self.inner.give_up() {
            return Err(Error::Aborted);
        }
        let place = ConflictPlace::Range { lower: Bound::Unbounded, upper: Bound::Unbounded };
        let (cause, own, other) = (ConflictCause::TableLoaded, self.inner.timestamp(), Some(table.since));
        let conflict = Conflict { table: table.id, place, cause, own, other };
        Err(self.engine.error(TcError::Conflict(Box::new(conflict))))
    }
}
