//! The one error of the store. Every case says what happened and what is left.

use deuteron_archive::ArchiveError;
use deuteron_contract::DcError;
use deuteron_dc::LoadError;
use deuteron_device::{DeviceError, with_causes};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key is empty or too long.
    #[error("key of {found} bytes; a key has between 1 and {limit} bytes")]
    KeySize {
        /// Its length in bytes.
        found: usize,
        /// The longest in bytes.
        limit: usize,
    },
    /// A value is too long.
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
    /// There is no table of this name.
    #[error("there is no table {table}")]
    NoSuchTable {
        /// The name.
        table: String,
    },
    /// A table that was dropped was used.
    #[error("table {table} was dropped")]
    TableDropped {
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
    /// A table of another store, or of an earlier opening of this one, was used.
    #[error("table {table} belongs to another store")]
    ForeignTable {
        /// Its name.
        table: String,
    },
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
    /// The store takes no more writes because its device failed. Reads go on; what was durable is on disk. Open it again when
    /// the device works.
    #[error("the store takes no more writes: {reason}; open it again when the device works")]
    Poisoned {
        /// What failed.
        reason: String,
    },
    /// Stored bytes are not what was written.
    #[error("corrupt {file} at byte {offset}: expected {expected}, found {found}")]
    Corrupt {
        /// The file within the directory.
        file: String,
        /// The byte offset of the damage.
        offset: u64,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Another process, or another handle in this one, has the store open.
    #[error("{path} is in use")]
    InUse {
        /// The directory.
        path: String,
    },
    /// There is something where a backup or a restored store is to be written. Nothing was changed.
    #[error("{path} exists already")]
    Exists {
        /// What is there.
        path: String,
    },
    /// The store, or the backup, does not exist.
    #[error("there is nothing at {path}")]
    NotFound {
        /// Where it should be.
        path: String,
    },
    /// The backup was written in a format that this version does not know.
    #[error(
        "{file} has format version {found}, which is not known to this program; it reads version {supported}"
    )]
    UnknownFormat {
        /// The backup.
        file: String,
        /// Its version.
        found: u32,
        /// The version that this program reads and writes.
        supported: u32,
    },
    /// The directory holds files that are not a store's: those of a transactional database, for instance.
    #[error("{path} is not a store: it holds {file}")]
    NotAStore {
        /// The directory.
        path: String,
        /// A file in it.
        file: String,
    },
    /// An option has a value that cannot work.
    #[error("option {option}: {reason}")]
    InvalidOption {
        /// Which.
        option: &'static str,
        /// Why not.
        reason: String,
    },
    /// The disk (or a quota) is full. Nothing is lost; make room and go on.
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
    fn from(error: DcError) -> Error {
        match error {
            DcError::KeySize { found, limit } => Error::KeySize { found, limit },
            DcError::ValueSize { found, limit } => Error::ValueSize { found, limit },
            DcError::Corrupt { file, offset, expected, found } => {
                Error::Corrupt { file, offset, expected, found }
            }
            DcError::Poisoned { reason } => Error::Poisoned { reason },
            DcError::DiskFull { context } => Error::DiskFull { context },
            DcError::Device { context, source } => Error::Device { context, source },
            other => Error::Device { context: "work with the store".into(), source: Box::new(other) },
        }
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Error {
        match error {
            LoadError::OutOfOrder { record, key, previous } => Error::OutOfOrder { record, key, previous },
            LoadError::NotNew { table } => Error::TableExists { table: table.to_string() },
            LoadError::Component(error) => error.into(),
            other => Error::Device { context: "load a table".into(), source: Box::new(other) },
        }
    }
}

impl From<ArchiveError> for Error {
    fn from(error: ArchiveError) -> Error {
        match error {
            ArchiveError::Exists { path } => Error::Exists { path },
            ArchiveError::NotFound { path } => Error::NotFound { path },
            ArchiveError::InUse { path } => Error::InUse { path },
            ArchiveError::NotAFileName { path, reason } => {
                Error::InvalidOption { option: "backup", reason: format!("{path} is {reason}") }
            }
            ArchiveError::Corrupt { file, offset, expected, found } => {
                Error::Corrupt { file, offset, expected, found }
            }
            ArchiveError::Version { file, found, supported } => {
                Error::UnknownFormat { file, found, supported }
            }
            ArchiveError::Device { context, source } => Error::device(&context)(source),
            other => Error::Device { context: "work with the backup".into(), source: Box::new(other) },
        }
    }
}
