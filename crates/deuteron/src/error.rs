//! The one error of the store. Every case says what happened, and [`Error::is_retryable`] whether a retry helps.

use deuteron_archive::ArchiveError;
use deuteron_contract::{DcError, Timestamp};
use deuteron_dc::LoadError;
use deuteron_device::{DeviceError, with_causes};
use deuteron_log::{AppendError, LogError};
use deuteron_proxy::ProxyError;
use deuteron_tc::{ChangeError, TcError};

/// A conflict between two transactions: this one has been aborted, and running it again helps. The table is called by its
/// name, or its number where the name is not known.
pub type Conflict = deuteron_tc::Conflict<String>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The transaction met another one and was aborted. Run it again; [`crate::Db::transact`] does.
    #[error("{0}; the transaction was aborted, a retry helps")]
    Conflict(Box<Conflict>),
    /// A key is empty or too long.
    #[error("key of {found} bytes; a key has between 1 and {limit} bytes")]
    KeySize {
        /// Its length in bytes.
        found: usize,
        /// The longest in bytes.
        limit: usize,
    },
    /// A value is too long: over 64 MiB, a quarter of the [memory](crate::Options::memory), or half of
    /// [`Options::version_memory`](crate::Options::version_memory) or [`Options::writer_log_max`](crate::Options::writer_log_max).
    #[error("value of {found} bytes; the limit is {limit} bytes")]
    ValueSize {
        /// Its length in bytes.
        found: usize,
        /// The longest in bytes.
        limit: usize,
    },
    /// A table name is empty or too long.
    #[error("table name of {found} bytes; a name has between 1 and {limit} bytes")]
    TableName {
        /// Its length in bytes.
        found: usize,
        /// The longest in bytes.
        limit: usize,
    },
    /// A table that is to be loaded exists already.
    #[error("table {table} exists already")]
    TableExists {
        /// Its name.
        table: String,
    },
    /// A key of a load is not greater than the one before it.
    #[error("record {record} is out of order: its key \"{}\" is not greater than \"{}\", the one before", key.escape_ascii(), previous.escape_ascii())]
    OutOfOrder {
        /// Which record, from 1.
        record: u64,
        /// Its key.
        key: Vec<u8>,
        /// The key before it.
        previous: Vec<u8>,
    },
    /// A value is not such that it could be changed as [`add`](crate::Transaction::add) or
    /// [`append`](crate::Transaction::append) wanted. The transaction was aborted.
    #[error("cannot change key \"{}\" in table {table}: {cause}; the transaction was aborted", key.escape_ascii())]
    Change {
        /// The table's name.
        table: String,
        /// The key.
        key: Vec<u8>,
        /// Why not.
        cause: ChangeError,
    },
    /// A savepoint of another transaction, or one made after a savepoint that has been returned to. The transaction lives on.
    #[error("there is no such savepoint in the transaction")]
    NoSavepoint,
    /// The transaction wrote although it was declared read-only.
    #[error("the transaction was declared read-only")]
    ReadOnly,
    /// The past that was asked for is not kept (any more), or is none yet. [`crate::Options::retention`] says how long it is
    /// kept, as far as memory allows.
    #[error("timestamp {wanted} cannot be read: {}", not_retained(*oldest, *newest))]
    NotRetained {
        /// The timestamp that was asked for.
        wanted: Timestamp,
        /// The earliest that can be read; `None` if the past is not kept.
        oldest: Option<Timestamp>,
        /// The latest.
        newest: Timestamp,
    },
    /// The transaction had already been aborted by an earlier error.
    #[error("the transaction was aborted by an earlier error; begin a new one")]
    Aborted,
    /// The transaction has written more records than memory can hold something of until it commits (some 250 bytes and the key of each, and what was there before; values are in the log only),
    /// or nearly as much log by itself as [`Options::writer_log_max`](crate::Options::writer_log_max) allows. It was aborted; write less at a time.
    #[error("the transaction has written {found} records; memory and log hold {limit} in one transaction")]
    TransactionTooLarge {
        /// Records written.
        found: usize,
        /// The most that one transaction may write.
        limit: usize,
    },
    /// Memory stayed exhausted although older transactions were made to give way. The transaction was aborted; a
    /// retry may succeed.
    #[error("memory stayed exhausted; the transaction was aborted")]
    MemoryExhausted,
    /// The transaction's deadline passed before it committed. It was aborted.
    #[error("the transaction's deadline has passed; it was aborted")]
    DeadlineExceeded,
    /// The commit was cancelled before it began. The transaction was aborted.
    #[error("the commit was cancelled; the transaction was aborted")]
    Cancelled,
    /// The transaction has committed, and others see it, but its deadline passed, the wait was cancelled, or the database stopped before it was known to be
    /// durable. In the first two cases only a crash could still undo it; in the last whether it is there shows when the database is opened again.
    #[error("committed at {timestamp}, but not known to be durable when the wait ended")]
    DurabilityUnknown {
        /// Its place in the serial order.
        timestamp: Timestamp,
        /// What stopped the database; `None` if nothing has.
        #[source]
        cause: Option<Box<Error>>,
    },
    /// The database has been closed.
    #[error("the database is closed")]
    Closed,
    /// A table of another database was used, or one of an earlier opening of this one.
    #[error("table {table} belongs to another database, or to an earlier opening of this one")]
    ForeignTable {
        /// Its name.
        table: String,
    },
    /// A table that was dropped was used.
    #[error("table {table} was dropped")]
    TableDropped {
        /// Its name.
        table: String,
    },
    /// There is no table of this name.
    #[error("there is no table {table}")]
    NoSuchTable {
        /// The name.
        table: String,
    },
    /// The database accepts no more work because its device failed. What was acknowledged as durable is on
    /// disk. A transaction that gets it has not committed; one that had, and was waiting to be durable, gets [`Error::DurabilityUnknown`].
    #[error("the database stopped: {reason}; open it again when the device works")]
    Poisoned {
        /// What failed.
        reason: String,
    },
    /// Stored bytes are not what was written.
    #[error("corrupt {file} at byte {offset}: expected {expected}, found {found}")]
    Corrupt {
        /// The file within the database directory.
        file: String,
        /// The byte offset of the damage.
        offset: u64,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Another process has the database open, or this one has: a handle, a transaction, a ticket or a load that is left.
    #[error("{path} is in use, by another process or by this one")]
    InUse {
        /// The directory.
        path: String,
    },
    /// There is something where a backup or a restored database is to be written. Nothing was changed.
    #[error("{path} exists already")]
    Exists {
        /// What is there.
        path: String,
    },
    /// The database does not exist.
    #[error("there is no database at {path}")]
    NotFound {
        /// The directory.
        path: String,
    },
    /// There is no backup of this name, or no directory to put one into.
    #[error("there is nothing at {path}")]
    NothingAt {
        /// What was looked for.
        path: String,
    },
    /// The program's own reason to give up a transaction, from [`Error::other`].
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// The directory holds files that are not a database's.
    #[error("{path} is not a database: {reason}")]
    NotADatabase {
        /// The directory.
        path: String,
        /// What was found.
        reason: String,
    },
    /// The files are encrypted, and were opened without a key.
    #[error("the files of {path} are encrypted, and no key is given")]
    Encrypted {
        /// The directory.
        path: String,
    },
    /// The database was written in a format that this version does not know.
    #[error("format version {found} is not known to this program, which reads version {supported}")]
    UnknownFormat {
        /// The version in the superblock.
        found: u32,
        /// The version that this program reads and writes.
        supported: u32,
    },
    /// An option has a value that cannot work.
    #[error("option {option}: {reason}")]
    InvalidOption {
        /// Which.
        option: &'static str,
        /// Why not.
        reason: String,
    },
    /// The disk (or a quota) is full. Nothing acknowledged is lost; make room and open the database again.
    #[error("the disk is full: cannot {context}")]
    DiskFull {
        /// What was being done.
        context: String,
    },
    /// The device refused.
    #[error("cannot {context}")]
    Device {
        /// What was being done.
        context: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Whether running the same transaction again can succeed.
    ///
    /// ```
    /// assert!(!deuteron::Error::Closed.is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Conflict(_) | Error::MemoryExhausted)
    }

    /// The program's own reason to give up a transaction: [`crate::Db::transact`] aborts it, does not run it again, and returns this. The reason can be had
    /// back from [`Error::Other`].
    ///
    /// ```
    /// use deuteron::Error;
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// # let stock = db.table("stock")?;
    /// let outcome = db.transact(|tx| {
    ///     tx.put(&stock, b"apples", b"12")?;
    ///     Err::<(), _>(Error::other("out of stock"))
    /// });
    /// assert!(matches!(outcome, Err(Error::Other(reason)) if reason.to_string() == "out of stock"));
    /// assert_eq!(db.begin().get(&stock, b"apples")?, None);
    /// # db.close()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn other(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Other(reason.into())
    }

    /// Wraps a device error with what was being done.
    pub(crate) fn device(context: &str) -> impl FnOnce(DeviceError) -> Error {
        let context = context.to_owned();
        move |source| {
            if source.is_full() {
                Error::DiskFull { context: format!("{context} ({})", with_causes(&source)) }
            } else {
                Error::Device { context, source: Box::new(source) }
            }
        }
    }
}

impl From<DcError> for Error {
    fn from(error: DcError) -> Self {
        match error {
            DcError::KeySize { found, limit } => Error::KeySize { found, limit },
            DcError::ValueSize { found, limit } => Error::ValueSize { found, limit },
            DcError::Corrupt { file, offset, expected, found } => {
                Error::Corrupt { file, offset, expected, found }
            }
            DcError::Poisoned { reason } => Error::Poisoned { reason },
            DcError::DiskFull { context } => Error::DiskFull { context },
            DcError::Device { context, source } => Error::Device { context, source },
            other => {
                Error::Device { context: "work with the data component".into(), source: Box::new(other) }
            }
        }
    }
}

impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        if error.is_full() {
            return Error::DiskFull { context: format!("write the log ({})", with_causes(&error)) };
        }
        match error {
            LogError::Corrupt { file, offset, expected, found } => {
                Error::Corrupt { file, offset, expected, found }
            }
            LogError::Missing { wanted, start, end } => Error::Corrupt {
                file: "log".into(),
                offset: wanted.0,
                expected: format!("the log from {wanted} on"),
                found: format!("the log from {start} to {end}"),
            },
            LogError::Poisoned(poison) => Error::Poisoned { reason: poison.to_string() },
            other => Error::Device { context: "work with the recovery log".into(), source: Box::new(other) },
        }
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::OutOfOrder { record, key, previous } => Error::OutOfOrder { record, key, previous },
            LoadError::NotNew { table } => Error::TableExists { table: table.to_string() },
            LoadError::Component(error) => error.into(),
            other => Error::Device { context: "load a table".into(), source: Box::new(other) },
        }
    }
}

impl From<ArchiveError> for Error {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Exists { path } => Error::Exists { path },
            ArchiveError::NotFound { path } => Error::NothingAt { path },
            ArchiveError::InUse { path } => Error::InUse { path },
            ArchiveError::NotAFileName { path, reason } => {
                Error::InvalidOption { option: "backup", reason: format!("{path} is {reason}") }
            }
            ArchiveError::Corrupt { file, offset, expected, found } => {
                Error::Corrupt { file, offset, expected, found }
            }
            ArchiveError::Version { found, supported, .. } => Error::UnknownFormat { found, supported },
            ArchiveError::Device { context, source } => Error::device(&context)(source),
            other => Error::Device { context: "work with the backup".into(), source: Box::new(other) },
        }
    }
}

impl From<ProxyError> for Error {
    fn from(error: ProxyError) -> Self {
        match error {
            ProxyError::Apply { source, .. } => source.into(),
            ProxyError::ReadBack { lsn, source } => match source.downcast::<LogError>() {
                Ok(source) => (*source).into(),
                Err(source) => {
                    Error::Device { context: format!("read back the log from position {lsn} on"), source }
                }
            },
            other => Error::Device {
                context: "post the log to the data component".into(),
                source: Box::new(other),
            },
        }
    }
}

impl Error {
    /// The transaction component's error as the user's; `table_name` names a table.
    pub(crate) fn from_tc(
        error: TcError,
        table_name: impl Fn(deuteron_contract::TableId) -> String,
    ) -> Error {
        match error {
            TcError::Conflict(conflict) => Error::Conflict(Box::new(conflict.map_table(table_name))),
            TcError::KeySize { found, limit } => Error::KeySize { found, limit },
            TcError::ValueSize { found, limit } => Error::ValueSize { found, limit },
            TcError::ReadOnly => Error::ReadOnly,
            TcError::NoSavepoint => Error::NoSavepoint,
            TcError::TableDropped { table } => Error::TableDropped { table: table_name(table) },
            TcError::Change { table, key, cause } => Error::Change { table: table_name(table), key, cause },
            TcError::NotRetained { wanted, oldest, newest } => {
                let oldest = (oldest != Timestamp::MAX).then_some(oldest);
                Error::NotRetained { wanted, oldest, newest }
            }
            TcError::Aborted => Error::Aborted,
            TcError::TransactionTooLarge { found, limit } => Error::TransactionTooLarge { found, limit },
            TcError::MemoryExhausted => Error::MemoryExhausted,
            TcError::Append(error) if error.is_full() => {
                Error::DiskFull { context: format!("write the log ({error})") }
            }
            TcError::Append(AppendError::Poisoned(poison)) => Error::Poisoned { reason: poison.to_string() },
            TcError::Log(error) => error.into(),
            TcError::DataComponent(error) => error.into(),
            TcError::Options { option, problem } => Error::InvalidOption { option, reason: problem.into() },
            TcError::Stopped { reason } => Error::Poisoned { reason },
            other => Error::Device { context: "run the transaction".into(), source: Box::new(other) },
        }
    }
}

fn not_retained(oldest: Option<Timestamp>, newest: Timestamp) -> String {
    match oldest {
        Some(oldest) => format!("what can be read is {oldest} to {newest}"),
        None => "the database does not keep its past".into(),
    }
}
