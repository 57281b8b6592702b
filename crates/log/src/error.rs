//! Errors: of the log as a whole, and of the hot path.

use deuteron_contract::Lsn;
use deuteron_device::DeviceError;
use std::sync::Arc;

/// The failure that stopped the log for good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Poison {
    /// What failed, with its causes.
    pub reason: String,
    /// Whether it was a full disk.
    pub disk_full: bool,
}

/// Why a record was not appended. Nothing of it is in the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The ring has no room at present. Try again after some steps of flushing, of the proxy and of recycling; holding
    /// no epoch guard meanwhile.
    #[error("the log's memory is full until the proxy and the flusher have caught up")]
    Full,
    /// The record fits no buffer. Never try again.
    #[error("record of {found} bytes; the log takes {limit}")]
    TooLarge {
        /// The record's length in the log.
        found: usize,
        /// The longest record.
        limit: usize,
    },
    /// No space could be had on disk for the log's next segment. Commit, abort and clock ceiling records are still taken as
    /// long as the last segment lasts. Try again once there is space.
    #[error("the disk has no space for the log to go on")]
    DiskFull,
    /// An earlier failure has stopped the log; the database must be opened again.
    #[error("the log stopped after an earlier failure: {0}")]
    Poisoned(Arc<Poison>),
}

/// Why the log could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The device refused.
    #[error("the log failed to {doing}")]
    Device {
        /// What was being done.
        doing: &'static str,
        /// The cause.
        #[source]
        source: DeviceError,
    },
    /// Stored bytes are not what was written. At opening this is never a torn tail: there are valid buffers behind.
    #[error("corrupt log file {file} at byte {offset}: expected {expected}, found {found}")]
    Corrupt {
        /// The file's name.
        file: String,
        /// The byte offset of the damaged block.
        offset: u64,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The log on disk does not reach what is asked for.
    #[error("log position {wanted} is needed, but the log on disk spans {start} to {end}")]
    Missing {
        /// The LSN asked for.
        wanted: Lsn,
        /// Where the log starts.
        start: Lsn,
        /// Where it ends.
        end: Lsn,
    },
    /// No record starts at the LSN.
    #[error("no log record starts at {lsn}")]
    NotARecord {
        /// The LSN asked for.
        lsn: Lsn,
    },
    /// An option is out of its range.
    #[error("log option {option}: {problem}")]
    Options {
        /// The option.
        option: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An earlier failure has stopped the log; the database must be opened again.
    #[error("the log stopped after an earlier failure: {0}")]
    Poisoned(Arc<Poison>),
}

impl LogError {
    /// Whether a full disk is the cause.
    pub fn is_full(&self) -> bool {
        match self {
            LogError::Device { source, .. } => source.is_full(),
            LogError::Poisoned(poison) => poison.disk_full,
            _ => false,
        }
    }

    /// What later callers are told when this error stops the log.
    pub(crate) fn to_poison(&self) -> Poison {
        let mut reason = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            reason.push_str(": ");
            reason.push_str(&cause.to_string());
            source = cause.source();
        }
        Poison { reason, disk_full: self.is_full() }
    }

    /// For `map_err`: says what was being done.
    pub(crate) fn device(doing: &'static str) -> impl Fn(DeviceError) -> LogError {
        move |source| LogError::Device { doing, source }
    }
}

impl AppendError {
    /// Whether the same append may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, AppendError::Full | AppendError::DiskFull)
    }

    /// Whether a full disk is the cause.
    pub fn is_full(&self) -> bool {
        match self {
            AppendError::DiskFull => true,
            AppendError::Poisoned(poison) => poison.disk_full,
            _ => false,
        }
    }
}
