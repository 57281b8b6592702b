//! The errors of the transaction component, and the conflict, which is an outcome with a type of its own.

use deuteron_contract::{DcError, TableId, Timestamp};
use deuteron_log::{AppendError, LogError};
use std::fmt;
use std::ops::Bound;

/// Why two transactions could not both go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConflictCause {
    /// Another transaction has an uncommitted version of a key that this one wanted to write (or, under snapshot
    /// isolation, has committed one since this one began).
    WriteWrite,
    /// The transaction had to commit later than it began, and by then a key that it had read was changed.
    ReadChanged,
    /// The same, for a range that it had scanned.
    RangeChanged,
    /// The versions that it would have to see were given up for want of memory.
    SnapshotTooOld,
    /// It had to commit later than it began, but had read more than half of the memory can remember to look at again. It may have more luck
    /// where fewer others read what it writes; with more memory, or if it reads fewer keys (a scan counts once), it needs none.
    ReadsForgotten,
    /// Readers pushed it again each time that it was about to commit.
    PushedTooOften,
    /// It kept the log from being cut for too long.
    LogPinned,
    /// What it had written, or noted to be changed, took memory that others needed, and so did what an earlier transaction had. Of several such the earliest is spared, so a
    /// retry comes to its turn.
    MemoryShort,
    /// Under pure timestamp order: a later transaction has read what it wrote, or an earlier one has written, and not yet
    /// committed, what it wanted to read.
    TimestampOrder,
    /// It had to commit later than it began, and by then a table that it had read was dropped.
    TableDropped,
    /// It began before a table was loaded in which it wants to read or write. The transaction component knows nothing of loads: its user refuses such.
    TableLoaded,
}

impl ConflictCause {
    /// The word that reports use.
    ///
    /// ```
    /// assert_eq!(deuteron_tc::ConflictCause::ReadChanged.name(), "read-changed");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            ConflictCause::WriteWrite => "write-write",
            ConflictCause::ReadChanged => "read-changed",
            ConflictCause::RangeChanged => "range-changed",
            ConflictCause::SnapshotTooOld => "snapshot-too-old",
            ConflictCause::ReadsForgotten => "reads-forgotten",
            ConflictCause::PushedTooOften => "pushed-too-often",
            ConflictCause::LogPinned => "log-pinned",
            ConflictCause::MemoryShort => "memory-short",
            ConflictCause::TimestampOrder => "timestamp-order",
            ConflictCause::TableDropped => "table-dropped",
            ConflictCause::TableLoaded => "table-loaded",
        }
    }
}

/// Where a conflict arose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictPlace {
    /// On a key.
    Key(Vec<u8>),
    /// In a range that was scanned.
    Range {
        /// Its lower end.
        lower: Bound<Vec<u8>>,
        /// Its upper end.
        upper: Bound<Vec<u8>>,
    },
    /// Nowhere in particular.
    Transaction,
}

/// A conflict: the transaction has been aborted, and running it again helps. `T` is how a table is called: here by its
/// number, elsewhere perhaps by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict<T = TableId> {
    /// The table, where there is a place.
    pub table: T,
    /// The key or the range. Of one that has kept the log from being cut, or has taken too much memory, a key that it has written or was to change.
    pub place: ConflictPlace,
    /// Why.
    pub cause: ConflictCause,
    /// The timestamp of the transaction that gave way.
    pub own: Timestamp,
    /// The timestamp of the other, where it is known: of the version that was in the way, or of the reader that pushed the transaction last.
    pub other: Option<Timestamp>,
}

impl<T> Conflict<T> {
    /// The same with the table called otherwise.
    ///
    /// ```
    /// use deuteron_contract::{TableId, Timestamp};
    /// use deuteron_tc::{Conflict, ConflictCause, ConflictPlace};
    /// let (place, cause) = (ConflictPlace::Key(b"k".to_vec()), ConflictCause::WriteWrite);
    /// let conflict = Conflict { table: TableId(1), place, cause, own: Timestamp(2), other: Some(Timestamp(1)) };
    /// let named = conflict.map_table(|_| "stock");
    /// let text = "write-write conflict in table stock on key \"k\" (own timestamp 2, other 1)";
    /// assert_eq!(named.to_string(), text);
    /// ```
    pub fn map_table<U>(self, name: impl FnOnce(T) -> U) -> Conflict<U> {
        let Conflict { table, place, cause, own, other } = self;
        Conflict { table: name(table), place, cause, own, other }
    }
}

impl<T: fmt::Display> fmt::Display for Conflict<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} conflict", self.cause.name())?;
        let end = |bound: &Bound<Vec<u8>>, formatter: &mut fmt::Formatter<'_>| match bound {
            Bound::Unbounded => Ok(()),
            Bound::Included(key) => write!(formatter, "\"{}\"", key.escape_ascii()),
            Bound::Excluded(key) => write!(formatter, "\"{}\" (excluded)", key.escape_ascii()),
        };
        match &self.place {
            ConflictPlace::Key(key) => {
                write!(formatter, " in table {} on key \"{}\"", self.table, key.escape_ascii())?
            }
            ConflictPlace::Range { lower, upper } => {
                write!(formatter, " in table {} in range ", self.table)?;
                end(lower, formatter)?;
                formatter.write_str("..")?;
                end(upper, formatter)?;
            }
            ConflictPlace::Transaction => {}
        }
        write!(formatter, " (own timestamp {}", self.own)?;
        if let Some(other) = self.other {
            write!(formatter, ", other {other}")?;
        }
        formatter.write_str(")")
    }
}

/// Why a value could not be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// Something was to be added to a value that is no integer.
    #[error("the value has {found} bytes; an integer has 8")]
    NotAnInteger {
        /// Its length in bytes.
        found: usize,
    },
    /// The sum is too large, or too small.
    #[error("{value} and {delta} are more than 64 bits hold")]
    Overflow {
        /// The integer that was there.
        value: i64,
        /// What was to be added.
        delta: i64,
    },
    /// The value would become too long.
    #[error("the value would have {found} bytes; the limit is {limit} bytes")]
    TooLong {
        /// Its length in bytes.
        found: usize,
        /// The longest in bytes.
        limit: usize,
    },
}

/// What can go wrong in a transaction. After any error but those of [`TcError::is_harmless`] the transaction is
/// aborted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcError {
    /// The transaction met another one and gave way.
    #[error("{0}")]
    Conflict(Box<Conflict>),
    /// A key is empty or too long.
    #[error("key of {found} bytes; a key has between 1 and {limit} bytes")]
    KeySize {
        /// Its length in bytes.
        found: usize,
        /// The longest in bytes.
        limit: usize,
    },
    /// A value is too long for the log.
    #[error("value of {found} bytes; the limit for this key is {limit} bytes")]
    ValueSize {
        /// Its length in bytes.
        found: usize,
        /// The longest in bytes.
        limit: usize,
    },
    /// A value is not such that it could be changed: added to, or appended to.
    #[error("cannot change key \"{}\" in table {table}", key.escape_ascii())]
    Change {
        /// The table.
        table: TableId,
        /// The key.
        key: Vec<u8>,
        /// Why not.
        #[source]
        cause: ChangeError,
    },
    /// A savepoint of another transaction, or one made after a savepoint that has been returned to.
    #[error("there is no such savepoint in the transaction")]
    NoSavepoint,
    /// A table that has been dropped meanwhile was to be read. The transaction lives on.
    #[error("table {table} was dropped")]
    TableDropped {
        /// Which.
        table: TableId,
    },
    /// A write in a transaction that was declared to be read-only.
    #[error("the transaction was declared to be read-only")]
    ReadOnly,
    /// The past that was asked for is not kept, or is none yet.
    #[error("timestamp {wanted} cannot be read; versions are kept from {oldest} on, and now is {newest}")]
    NotRetained {
        /// The timestamp asked for.
        wanted: Timestamp,
        /// The earliest that can be read; [`Timestamp::MAX`] if the past is not kept at all.
        oldest: Timestamp,
        /// The latest.
        newest: Timestamp,
    },
    /// The transaction has been aborted by an earlier error.
    #[error("the transaction has been aborted by an earlier error")]
    Aborted,
    /// The transaction writes more than the component's memory can hold, beside what was there before, until it commits, or has logged so much itself that it kept the log
    /// from being cut ([`TcOptions::log_bytes_max`](crate::TcOptions::log_bytes_max)).
    #[error("the transaction has written {found} versions; memory and log hold {limit}")]
    TransactionTooLarge {
        /// Versions written.
        found: usize,
        /// The most that one transaction may write; where it is the log that is too long, versions of that size.
        limit: usize,
    },
    /// Memory stayed exhausted although everybody helped to free some.
    #[error("the memory of the transaction component stayed exhausted")]
    MemoryExhausted,
    /// The log refused a record.
    #[error("the log refused a record")]
    Append(#[source] AppendError),
    /// The log could not be read.
    #[error("the log could not be read")]
    Log(#[source] LogError),
    /// The data component failed.
    #[error("the data component failed")]
    DataComponent(#[source] DcError),
    /// An option has a value with which the component could not work.
    #[error("option {option}: {problem}")]
    Options {
        /// Which.
        option: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The host of this component said that waiting is pointless.
    #[error("stopped: {reason}")]
    Stopped {
        /// What the host said.
        reason: String,
    },
}

impl TcError {
    /// Whether running the transaction again may help.
    ///
    /// ```
    /// assert!(deuteron_tc::TcError::MemoryExhausted.is_retryable());
    /// assert!(!deuteron_tc::TcError::ReadOnly.is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        matches!(self, TcError::Conflict(_) | TcError::MemoryExhausted)
    }

    /// Whether the transaction lives on: the operation was refused before it did anything.
    ///
    /// ```
    /// assert!(deuteron_tc::TcError::KeySize { found: 0, limit: 4096 }.is_harmless());
    /// ```
    pub fn is_harmless(&self) -> bool {
        matches!(
            self,
            TcError::KeySize { .. }
                | TcError::ValueSize { .. }
                | TcError::ReadOnly
                | TcError::NoSavepoint
                | TcError::TableDropped { .. }
        )
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_word_of_its_own_and_is_named_by_the_conflict() {
        use ConflictCause::*;
        let causes = [
            WriteWrite,
            ReadChanged,
            RangeChanged,
            SnapshotTooOld,
            ReadsForgotten,
            PushedTooOften,
            LogPinned,
            MemoryShort,
            TimestampOrder,
            TableDropped,
            TableLoaded,
        ];
        let words: std::collections::BTreeSet<&str> = causes.iter().map(|cause| cause.name()).collect();
        assert_eq!(words.len(), causes.len());
        let excluded = |key: &[u8]| Bound::Excluded(key.to_vec());
        let places = [
            (ConflictPlace::Key(b"k\0".to_vec()), " in table 3 on key \"k\\x00\""),
            (
                ConflictPlace::Range { lower: Bound::Included(b"a".to_vec()), upper: excluded(b"b") },
                " in table 3 in range \"a\"..\"b\" (excluded)",
            ),
            (ConflictPlace::Transaction, ""),
        ];
        for cause in causes {
            for (place, text) in &places {
                let (own, other) = (Timestamp(2), None);
                let conflict = Conflict { table: 3, place: place.clone(), cause, own, other };
                let expected = format!("{} conflict{text} (own timestamp 2)", cause.name());
                assert_eq!(conflict.to_string(), expected);
            }
        }
    }

    #[test]
    fn an_operation_that_was_refused_is_harmless_and_a_failure_is_not() {
        let table = TableId(1);
        let refused = [
            TcError::KeySize { found: 0, limit: 1 },
            TcError::ValueSize { found: 2, limit: 1 },
            TcError::ReadOnly,
            TcError::NoSavepoint,
            TcError::TableDropped { table },
        ];
        let failed = [
            TcError::Aborted,
            TcError::MemoryExhausted,
            TcError::TransactionTooLarge { found: 2, limit: 1 },
            TcError::Stopped { reason: String::new() },
            TcError::Append(AppendError::Full),
        ];
        assert!(refused.iter().all(|error| error.is_harmless() && !error.is_retryable()));
        assert!(failed.iter().all(|error| !error.is_harmless()));
        assert!(failed.iter().all(|error| error.is_retryable() == matches!(error, TcError::MemoryExhausted)));
    }
}
