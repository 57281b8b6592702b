//! What the proxy sees of the recovery log.
//!
//! The passes are written against these traits, not against the log: a proxy beside a remote data component gets its
//! buffers from a network, and tests make theirs by hand.

use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};
use std::ops::ControlFlow;

/// What the proxy sees of a log record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A transaction gives a key a value, or deletes it.
    Update {
        /// The transaction.
        transaction: TransactionId,
        /// The table.
        table: TableId,
        /// The key.
        key: &'a [u8],
        /// The value, or `None` for a delete.
        value: Option<&'a [u8]>,
    },
    /// A transaction has logged a part of a long value; the next [`Entry::Large`] of the transaction says whose.
    Piece {
        /// The transaction.
        transaction: TransactionId,
        /// The bytes that follow those of the pieces before.
        bytes: &'a [u8],
    },
    /// A transaction gives a key the value that lies in its pieces before.
    Large {
        /// The transaction.
        transaction: TransactionId,
        /// The table.
        table: TableId,
        /// The key.
        key: &'a [u8],
        /// The length of the value.
        length: u64,
    },
    /// A transaction has committed; all of its updates lie before.
    Commit {
        /// The transaction.
        transaction: TransactionId,
        /// Its final timestamp.
        timestamp: Timestamp,
    },
    /// A transaction has aborted; all of its updates lie before.
    Abort {
        /// The transaction.
        transaction: TransactionId,
    },
    /// Something that is not for the proxy.
    Other,
}

/// A commit record, as the eager pass finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The transaction.
    pub transaction: TransactionId,
    /// Its final timestamp.
    pub timestamp: Timestamp,
}

/// A stretch of the stable log in memory: a buffer.
pub trait RecordSource {
    /// Where the stretch starts.
    fn start(&self) -> Lsn;

    /// Where the next one starts.
    fn end(&self) -> Lsn;

    /// Visits every record in the order of the log, until told to stop.
    fn visit<'a, B>(&'a self, visit: impl FnMut(Lsn, Entry<'a>) -> ControlFlow<B>) -> ControlFlow<B>;

    /// Visits every commit record, in any order. A source that links its commit records does better than this.
    fn visit_commits(&self, mut visit: impl FnMut(Commit)) {
        let _: ControlFlow<()> = self.visit(|_, entry| {
            if let Entry::Commit { transaction, timestamp } = entry {
                visit(Commit { transaction, timestamp });
            }
            ControlFlow::Continue(())
        });
    }
}

/// A log that updates can be read from again.
pub trait ReadBack {
    /// Reads the records at `lsns`, which ascend, from wherever they are, until told to stop. The log keeps them while
    /// the proxy's [redo scan start point](crate::Proxy::redo_scan_start_point) is at or below.
    ///
    /// # Errors
    /// Whatever keeps the log from reading the next one.
    fn read_back(
        &self,
        lsns: &[Lsn],
        take: &mut dyn FnMut(Entry<'_>) -> ControlFlow<()>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// The stable log, as the proxy takes it.
pub trait StableLog: ReadBack {
    /// A buffer, lent by the log until it is released.
    type Buffer<'a>: RecordSource
    where
        Self: 'a;

    /// The stable buffer that starts at `after`, where another one ends, if it is stable yet. Asked again with the
    /// same position it lends the same buffer, as long as that has not been released.
    fn next_stable(&self, after: Lsn) -> Option<Self::Buffer<'_>>;

    /// The proxy will not ask for buffers below `upto` any more.
    fn release(&self, upto: Lsn);
}

/// A stretch of the log given as a slice.
#[derive(Clone, Copy, Debug)]
pub struct RecordSlice<'s> {
    /// Where the stretch starts.
    pub start: Lsn,
    /// Where it ends (exclusive).
    pub end: Lsn,
    /// Its records, in the order of the log.
    pub entries: &'s [(Lsn, Entry<'s>)],
}

impl RecordSource for RecordSlice<'_> {
    fn start(&self) -> Lsn {
        self.start
    }

    fn end(&self) -> Lsn {
        self.end
    }

    fn visit<'a, B>(&'a self, mut visit: impl FnMut(Lsn, Entry<'a>) -> ControlFlow<B>) -> ControlFlow<B> {
        self.entries.iter().try_for_each(|(lsn, entry)| visit(*lsn, *entry))
    }
}

impl ReadBack for RecordSlice<'_> {
    fn read_back(
        &self,
        lsns: &[Lsn],
        take: &mut dyn FnMut(Entry<'_>) -> ControlFlow<()>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for lsn in lsns {
            let found = self.entries.binary_search_by_key(lsn, |(lsn, _)| *lsn);
            let index = found.map_err(|_| format!("no record at {lsn} in this stretch of the log"))?;
            if take(self.entries[index].1).is_break() {
                break;
            }
        }
        Ok(())
    }
}
