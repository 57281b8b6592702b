//! The error of a device: what was being done, to which file, where, and why it failed.

use std::fmt;
use std::io;

/// What a device was doing when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening or creating a file.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making writes durable.
    Sync,
    /// Allocating space.
    Allocate,
    /// Asking for the length.
    Length,
    /// Listing a directory.
    List,
    /// Removing a file.
    Remove,
    /// Renaming a file.
    Rename,
    /// Making directory entries durable.
    SyncDirectory,
    /// Taking the lock.
    Lock,
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Operation::Open => "open",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Sync => "sync",
            Operation::Allocate => "allocate space for",
            Operation::Length => "ask the length of",
            Operation::List => "list",
            Operation::Remove => "remove",
            Operation::Rename => "rename",
            Operation::SyncDirectory => "sync the directory of",
            Operation::Lock => "lock",
        })
    }
}

/// A failed device operation.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {file} at byte {offset}")]
pub struct DeviceError {
    /// What was being done.
    pub operation: Operation,
    /// The file's name within its directory.
    pub file: String,
    /// The byte offset, 0 where none applies.
    pub offset: u64,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

impl DeviceError {
    /// Whether the disk (or the quota) is full.
    pub fn is_full(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Whether the file does not exist.
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}
