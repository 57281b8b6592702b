//! [`Db`]: an open database.

use crate::background;
use crate::backup::BackupReport;
use crate::check::{self, CheckReport};
use crate::engine::Engine;
use crate::handle::Handles;
use crate::{
    Compaction, Duty, Error, Lookahead, Options, RecoveryPlan, RetryPolicy, Stats, Table, TableLoad,
    Transaction, TransactionOptions,
};
use deuteron_contract::Timestamp;
use deuteron_device::Directory;
use std::path::Path;
use std::sync::Arc;
use std::thread::Builder;

/// An open database. Clones are handles of the same one; it closes when [`Db::close`] is called or the last handle is dropped. Transactions,
/// tickets, scans and loads are no handles: those that are left get [`Error::Closed`] from then on. But the directory stays in use until they are gone, too.
///
/// ```
/// # let scratch = tempfile::tempdir()?;
/// # let path = scratch.path().join("bank.db");
/// use deuteron::Db;
/// let db = Db::open(&path)?;
/// let accounts = db.table("accounts")?;
/// db.transact(|tx| tx.put(&accounts, b"alice", b"100"))?;
/// let balance = db.transact(|tx| tx.get(&accounts, b"alice"))?;
/// assert_eq!(balance.as_deref(), Some(&b"100"[..]));
/// db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Db {
    engine: Arc<Engine>,
    handles: Arc<Handles>,
    // Dropped with the last handle; the background threads hold the engine, but not this.
    _closer: Arc<Closer>,
}

/// Closes the engine when the last handle goes.
struct Closer(Arc<Engine>);

impl Drop for Closer {
    fn drop(&mut self) {
        // Nobody is left to tell. What was acknowledged as durable is durable; the rest is recovered at open.
        let engine = Arc::clone(&self.0);
        let close = move || drop(engine.close());
        if background::is_duty() {
            // Dropped by a waker that the duty has called: it cannot wait for its own end. Without a thread it is as if the process had been killed.
            drop(Builder::new().name("deuteron-closer".into()).spawn(close));
        } else {
            close();
        }
    }
}

impl Db {
    /// Opens (or creates) the database in the directory `path` with the default [`Options`].
    ///
    /// # Errors
    /// As [`Options::open`].
    ///
    /// ```
    /// # let scratch = tempfile::tempdir()?;
    /// let db = deuteron::Db::open(scratch.path().join("bank.db"))?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Db, Error> {
        Options::new().open(path)
    }

    pub(crate) fn from_engine(engine: Arc<Engine>) -> Db {
        let handles = Arc::new(Handles::new(&engine));
        Db { _closer: Arc::new(Closer(Arc::clone(&engine))), handles, engine }
    }

    /// The table `name`, created (durably) if it does not exist. A name has 1 to 255 bytes.
    ///
    /// # Errors
    /// [`Error::TableName`], [`Error::Closed`], [`Error::Poisoned`], or what a commit may return.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let orders = db.table("orders")?;
    /// assert_eq!(orders.name(), "orders");
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn table(&self, name: &str) -> Result<Table, Error> {
        self.engine.catalogue().table(&self.engine, name)
    }

    /// The names of all tables, sorted.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Poisoned`], or what a scan may return.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// db.table("orders")?;
    /// assert_eq!(db.tables()?, ["orders"]);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn tables(&self) -> Result<Vec<String>, Error> {
        self.engine.catalogue().names(&self.engine)
    }

    /// Drops the table `name`: at once, for good, and durably, a crash or not. Its handles answer [`Error::TableDropped`] from
    /// now on, also to transactions that are under way or in the past. What such a transaction has written to it is lost. One that has
    /// read it commits at the time at which it began, or not at all, with a conflict ([`crate::ConflictCause::TableDropped`]).
    /// Background work gives the space back. A table that is created under the same name later is another one.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::TableName`], [`Error::Closed`], [`Error::Poisoned`], [`Error::DiskFull`], or what a
    /// commit may return. Unless it is one of the first two, the table may be dropped all the same.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let orders = db.table("orders")?;
    /// db.drop_table("orders")?;
    /// assert!(db.tables()?.is_empty());
    /// assert!(matches!(db.begin().get(&orders, b"1"), Err(deuteron::Error::TableDropped { .. })));
    /// assert_ne!(db.table("orders")?, orders);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        self.engine.catalogue().drop_table(&self.engine, name)
    }

    /// Runs `body` as a transaction: committed if it returns `Ok`, aborted if it returns `Err` ([`Error::other`] for reasons of its own) or panics, run
    /// again (with a fresh transaction) after a conflict, as the default [`RetryPolicy`] says. On return the
    /// commit is as durable as the database's [`crate::Durability`] promises.
    ///
    /// `body` may run several times: what it does outside the transaction should bear that.
    ///
    /// # Errors
    /// What `body` returned, or what [`Transaction::commit`] may return. A conflict only after the last attempt.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let counters = db.table("counters")?;
    /// let visits = db.transact(|tx| {
    ///     let seen = tx.get(&counters, b"visits")?.map_or(0, |bytes| bytes[0]);
    ///     tx.put(&counters, b"visits", &[seen + 1])?;
    ///     Ok(seen + 1)
    /// })?;
    /// assert_eq!(visits, 1);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn transact<T>(&self, body: impl FnMut(&mut Transaction) -> Result<T, Error>) -> Result<T, Error> {
        self.transact_with(TransactionOptions::default(), RetryPolicy::default(), body)
    }

    /// [`Db::transact`] with options of its own.
    ///
    /// # Errors
    /// As [`Db::transact`].
    ///
    /// ```
    /// use deuteron::{Durability, RetryPolicy, TransactionOptions};
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let table = db.table("metrics")?;
    /// let options = TransactionOptions::new().durability(Durability::None);
    /// db.transact_with(options, RetryPolicy::default(), |tx| tx.put(&table, b"load", b"0.7"))?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn transact_with<T>(
        &self,
        options: TransactionOptions,
        retry: RetryPolicy,
        mut body: impl FnMut(&mut Transaction) -> Result<T, Error>,
    ) -> Result<T, Error> {
        retry.run(|attempt| {
            let mut transaction = self.begin_with(options)?;
            transaction.attempt = attempt;
            let value = body(&mut transaction)?;
            transaction.commit()?;
            Ok(value)
        })
    }

    /// A place for one thread to announce the keys of transactions that it will run soon.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let lookahead = db.lookahead();
    /// # drop(lookahead);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn lookahead(&self) -> Lookahead {
        Lookahead::new(self.engine.tc().lookahead(), self.engine.number())
    }

    /// Begins a transaction that the caller commits or aborts by hand. It is owned: it may be sent to another
    /// thread, and dropping it aborts it. Errors (a closed database, say) come with its first operation.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let table = db.table("orders")?;
    /// let mut tx = db.begin();
    /// tx.put(&table, b"1", b"two apples")?;
    /// tx.commit()?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn begin(&self) -> Transaction {
        Transaction::begin_now(self.handles.mine(), TransactionOptions::default(), self.engine.recorder())
    }

    /// [`Db::begin`] with options of its own.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Poisoned`], [`Error::NotRetained`].
    ///
    /// ```
    /// use deuteron::TransactionOptions;
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let table = db.table("orders")?;
    /// let mut tx = db.begin_with(TransactionOptions::new().read_only(true))?;
    /// assert_eq!(tx.get(&table, b"1")?, None);
    /// # drop(tx);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn begin_with(&self, options: TransactionOptions) -> Result<Transaction, Error> {
        self.engine.usable()?;
        Transaction::begin(self.handles.mine(), options, self.engine.recorder())
    }

    /// The present: the timestamp as of which a read-only transaction that begins now reads. Whoever keeps it can come
    /// back to this moment with [`TransactionOptions::as_of`]. A crash does not make it another one: what is committed
    /// afterwards is later, however little of what was committed before has been durable.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// assert!(db.timestamp() <= db.begin().timestamp());
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn timestamp(&self) -> Timestamp {
        self.engine.tc().now()
    }

    /// The earliest timestamp that [`TransactionOptions::as_of`] can read; `None` if the database was opened without
    /// [`Options::retention`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// assert_eq!(db.retained_from(), None);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn retained_from(&self) -> Option<Timestamp> {
        let from = self.engine.tc().retained_from();
        (from != Timestamp::MAX).then_some(from)
    }

    /// Makes everything committed so far durable, whatever durability it was committed with.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Poisoned`], [`Error::DiskFull`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// db.flush()?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn flush(&self) -> Result<(), Error> {
        self.engine.usable()?;
        self.engine.flush()
    }

    /// Takes a checkpoint now: the data component makes stable what has been posted to it, and the log before it
    /// is given back.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Poisoned`], [`Error::DiskFull`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// db.checkpoint()?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.engine.usable()?;
        self.engine.flush()?;
        self.engine.checkpoint()
    }

    /// One round of all background work, for databases opened with [`crate::Background::Inline`]. Returns whether
    /// there was any. Harmless beside background threads.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Poisoned`], [`Error::DiskFull`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// while db.step()? {}
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn step(&self) -> Result<bool, Error> {
        self.engine.usable()?;
        self.engine.step()
    }

    /// One step of one duty, for databases opened with [`crate::Background::Inline`] whose duties are to be done in another order
    /// than [`Db::step`]'s. Returns whether there was anything to do.
    ///
    /// # Errors
    /// As [`Db::step`].
    ///
    /// ```
    /// use deuteron::Duty;
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// while db.step_of(Duty::Flush)? {}
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn step_of(&self, duty: Duty) -> Result<bool, Error> {
        self.engine.usable()?;
        self.engine.step_of(duty)
    }

    /// Sizes, memory, and the counters of every mechanism.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// assert!(db.stats().transactions.commits < 10);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// What recovery found and did when the database was opened.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// assert_eq!(db.recovery().operations_posted, 0, "it is new");
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn recovery(&self) -> &RecoveryPlan {
        self.engine.recovery()
    }

    /// Verifies every checksum and structure of the data component while the database works.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Corrupt`], [`Error::Device`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let report = db.check()?;
    /// assert!(report.problems.is_empty());
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn check(&self) -> Result<CheckReport, Error> {
        self.engine.usable()?;
        check::check_open(&self.engine)
    }

    /// Begins to load a new table from records in ascending key order: full pages are written at once, past the log, in one pass.
    /// Nobody sees the table before [`TableLoad::finish`] has returned, and a crash before leaves no table. Transactions that began before are refused there, with a conflict; those that were declared to read only find it empty.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::TableName`], [`Error::Closed`], [`Error::Poisoned`], or what a commit may return.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let mut load = db.load_table("squares")?;
    /// for number in 0..1000u32 {
    ///     load.push(&number.to_be_bytes(), &(number * number).to_le_bytes())?;
    /// }
    /// let squares = load.finish()?;
    /// assert_eq!(db.transact(|tx| tx.get(&squares, &7u32.to_be_bytes()))?, Some(49u32.to_le_bytes().to_vec()));
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn load_table(&self, name: &str) -> Result<TableLoad, Error> {
        TableLoad::begin(&self.engine, name)
    }

    /// Brings disk use down to about what the live records need: underfull pages are merged, sparse segments emptied, the log cut.
    /// Reads and writes everything once or twice, or a few times more while others write: they go on, and so do checkpoints.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Poisoned`], [`Error::Device`]; [`Error::DiskFull`], upon which the database goes on, and it may be called again when there is more room (but the checkpoint that it
    /// begins with poisons it, as any); [`Error::Corrupt`] if there are pages that cannot be read, after all else has been compacted: it names them.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let compaction = db.compact()?;
    /// assert!(compaction.after_bytes <= compaction.before_bytes + (1 << 20));
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn compact(&self) -> Result<Compaction, Error> {
        self.engine.usable()?;
        self.engine.flush()?;
        self.engine.compact()
    }

    /// Writes a backup to the file `target` while the database works: one file, every block with its checksum, for
    /// [`crate::restore`]. It holds the database as of one moment after the call: everything that was committed before, and of what
    /// is committed meanwhile a prefix. Writers are not stopped; checkpoints wait, so that the log grows for as long as it takes.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is a file of that name; [`Error::NothingAt`] if there is no such directory; [`Error::InvalidOption`] if it is named as no file can be,
    /// or `lock`; [`Error::DiskFull`], [`Error::Device`]: there is no backup then, and the database goes on; [`Error::Corrupt`] if the log is not as it was written, and there is none either. A
    /// [checkpoint](Db::checkpoint) makes such a log superfluous. [`Error::Closed`], [`Error::Poisoned`].
    ///
    /// ```
    /// # let scratch = tempfile::tempdir()?;
    /// # let at = |name: &str| scratch.path().join(name);
    /// let db = deuteron::Db::open(at("bank.db"))?;
    /// let accounts = db.table("accounts")?;
    /// db.transact(|tx| tx.put(&accounts, b"alice", b"100"))?;
    /// db.backup(at("bank.backup"))?;
    /// db.transact(|tx| tx.put(&accounts, b"alice", b"0"))?;
    /// db.close()?;
    ///
    /// deuteron::restore(at("bank.backup"), at("again.db"))?;
    /// let db = deuteron::Db::open(at("again.db"))?;
    /// let accounts = db.table("accounts")?;
    /// assert_eq!(db.transact(|tx| tx.get(&accounts, b"alice"))?.as_deref(), Some(&b"100"[..]));
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup(&self, target: impl AsRef<Path>) -> Result<BackupReport, Error> {
        let (shelf, name) = deuteron_archive::place(target.as_ref())?;
        self.backup_in(&shelf, &name)
    }

    /// [`Db::backup`] to the file `name` in a directory of the caller's making.
    ///
    /// # Errors
    /// As [`Db::backup`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let shelf = deuteron::device::MemoryDirectory::new();
    /// assert!(db.backup_in(&shelf, "monday")?.archive_bytes > 0);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn backup_in(&self, shelf: &dyn Directory, name: &str) -> Result<BackupReport, Error> {
        self.engine.usable()?;
        self.engine.backup(shelf, name)
    }

    /// Makes everything durable, takes a checkpoint so that the next open is quick, and stops. Other handles and
    /// transactions get [`Error::Closed`] from then on. The directory can be opened again when the last of them, of the tickets and of the loads is gone.
    /// To close it once more by another handle is harmless: it waits for the first, and says [`Error::Poisoned`] if that has failed.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::DiskFull`], [`Error::Device`]; the database is closed all the same, and the
    /// next open recovers it. With a [recorded history](Options::record_history) [`Error::Device`] also says that not all was recorded.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let other = db.clone();
    /// db.close()?;
    /// assert!(matches!(other.table("orders"), Err(deuteron::Error::Closed)));
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn close(self) -> Result<(), Error> {
        self.engine.close()
    }
}
