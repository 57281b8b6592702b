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
    /// Cutting the end off a file.
    Shorten,
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

impl Operation {
    /// All of them, for whoever makes each fail or counts each.
    ///
    /// ```
    /// use deuteron_device::{FaultKind, FaultPlan, Operation, SimulatedDisk};
    /// for operation in Operation::ALL {
    ///     SimulatedDisk::new(1).set_faults(FaultPlan::new().fail(operation, 0, FaultKind::Refuse));
    /// }
    /// ```
    pub const ALL: [Operation; 12] = [
        Operation::Open,
        Operation::Read,
        Operation::Write,
        Operation::Sync,
        Operation::Allocate,
        Operation::Shorten,
        Operation::Length,
        Operation::List,
        Operation::Remove,
        Operation::Rename,
        Operation::SyncDirectory,
        Operation::Lock,
    ];
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Operation::Open => "open",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Sync => "sync",
            Operation::Allocate => "allocate space for",
            Operation::Shorten => "shorten",
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
    pub(crate) fn new(
        operation: Operation,
        file: &str,
        offset: u64,
        source: impl Into<io::Error>,
    ) -> DeviceError {
        DeviceError { operation, file: file.to_owned(), offset, source: source.into() }
    }

    /// Whether the disk (or the quota) is full.
    pub fn is_full(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Whether the file does not exist.
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// The misaligned access, if that is the cause: an error of the program, not of the device.
    pub fn misaligned(&self) -> Option<&MisalignedAccess> {
        self.source.get_ref()?.downcast_ref()
    }

    /// Whether the simulated machine has stopped: the handle is from before a crash, or the crash is due.
    pub fn is_stopped(&self) -> bool {
        self.source.get_ref().is_some_and(|source| source.is::<MachineStopped>())
    }

    /// Whether another handle or process holds the lock.
    pub fn is_locked(&self) -> bool {
        self.operation == Operation::Lock && self.source.kind() == io::ErrorKind::WouldBlock
    }
}

/// The message of an error with those of its causes, for where an error can be told as text only.
///
/// ```
/// let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
/// assert_eq!(deuteron_device::with_causes(&full), full.to_string());
/// ```
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let messages = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
    messages.collect::<Vec<_>>().join(": ")
}

/// An access to a file opened `direct` whose offset, length or memory address is no multiple of
/// [`BLOCK_BYTES`](crate::BLOCK_BYTES).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "direct access to {length} bytes at byte {offset} from memory at {address:#x} is not aligned to blocks"
)]
pub struct MisalignedAccess {
    /// The byte offset in the file.
    pub offset: u64,
    /// The length of the buffer.
    pub length: usize,
    /// The address of the buffer.
    pub address: usize,
}

impl From<MisalignedAccess> for io::Error {
    fn from(access: MisalignedAccess) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, access)
    }
}

/// Every operation fails with this from the moment at which a simulated machine stops, and for ever on handles
/// made before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the simulated machine has stopped")]
pub struct MachineStopped;

impl From<MachineStopped> for io::Error {
    fn from(stopped: MachineStopped) -> io::Error {
        io::Error::other(stopped)
    }
}
