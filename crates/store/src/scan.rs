//! [`Scan`]: the records of a range, from either end.

use crate::{Error, Table};
use deuteron_contract::{Direction, KeyBounds, ScanBatch, ScanRequest};
use std::ops::{Bound, Range};

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// A key and its value, as a scan lends them.
pub type LentEntry<'s> = (&'s [u8], &'s [u8]);

/// About how many bytes of keys and values a scan reads at first, and at most, ahead. Each batch is twice the one before.
const BATCH_BYTES_FIRST: usize = 4 << 10;
const BATCH_BYTES_MAX: usize = 64 << 10;

/// The records of a range, as [`crate::Table::scan`] returns them. After an error the scan is over.
///
/// The iterator's entries are the caller's to keep: two allocations each. [`Scan::next_ref`] lends them, and allocates nothing. Who wants a few
/// records only says so with [`Scan::limit`].
pub struct Scan {
    table: Table,
    /// What neither end has read.
    unread: KeyBounds,
    forward: End,
    backward: End,
    /// How many bytes the next batch has.
    batch_bytes: usize,
    /// How many entries may still be returned; `usize::MAX`: all.
    limit: usize,
    done: bool,
}

/// What one end has read.
#[derive(Default)]
struct End {
    batch: ScanBatch,
    /// Of the batch, what has not been returned.
    left: Range<usize>,
}

impl End {
    /// Where in the batch the next record is that is there, of those that are left at the end `nearest` or at the other; tombstones are not the user's business.
    #[inline]
    fn take(&mut self, nearest: bool) -> Option<usize> {
        loop {
            let index = if nearest { self.left.next()? } else { self.left.next_back()? };
            if self.batch.get(index).value.is_some() {
                return Some(index);
            }
        }
    }

    /// The record there.
    fn lend(&self, index: usize) -> Option<LentEntry<'_>> {
        let record = self.batch.get(index);
        record.value.map(|value| (record.key, value))
    }
}

impl Scan {
    pub(crate) fn new(table: Table, range: KeyBounds) -> Scan {
        let (forward, backward) = (End::default(), End::default());
        let (batch_bytes, limit) = (BATCH_BYTES_FIRST, usize::MAX);
        Scan { table, unread: range, forward, backward, batch_bytes, limit, done: false }
    }

    /// The scan ends when it has returned `records` more of them. Unlike with [`Iterator::take`], no more is read than that, if the limit is set before the first
    /// is asked for.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let table = store.table("planets")?;
    /// for name in [b"earth", b"pluto", b"venus"] {
    ///     table.upsert(name, b"")?;
    /// }
    /// assert_eq!(table.scan(..).limit(2).count(), 2);
    /// assert_eq!(table.scan(..).limit(1).rev().next().expect("there are three")?.0, b"venus");
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn limit(mut self, records: usize) -> Scan {
        self.limit = self.limit.min(records);
        self
    }

    /// The next entry, lent until the scan goes on. `None` at its end.
    ///
    /// # Errors
    /// As [`Table::get`]. The scan is over then.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// # let table = store.table("planets")?;
    /// # table.upsert(b"earth", b"third")?;
    /// let (mut scan, mut bytes) = (table.scan(..), 0);
    /// while let Some((key, value)) = scan.next_ref()? {
    ///     bytes += key.len() + value.len();
    /// }
    /// assert_eq!(bytes, 10);
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn next_ref(&mut self) -> Result<Option<LentEntry<'_>>, Error> {
        self.advance(Direction::Forward)
    }

    /// As [`Scan::next_ref`], from the high end.
    ///
    /// # Errors
    /// As [`Scan::next_ref`].
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// # let table = store.table("planets")?;
    /// # table.upsert(b"earth", b"third")?;
    /// assert_eq!(table.scan(..).next_back_ref()?, Some((&b"earth"[..], &b"third"[..])));
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn next_back_ref(&mut self) -> Result<Option<LentEntry<'_>>, Error> {
        self.advance(Direction::Reverse)
    }

    /// Reads a batch of what is unread at one end, unless nothing is.
    fn read(&mut self, direction: Direction) -> Result<(), Error> {
        let end = match direction {
            Direction::Forward => &mut self.forward,
            Direction::Reverse => &mut self.backward,
        };
        let (lower, upper) = (borrowed(&self.unread.0), borrowed(&self.unread.1));
        // Who has said how many records he wants has them at once.
        let bytes_max = if self.limit < usize::MAX { BATCH_BYTES_MAX } else { self.batch_bytes };
        let records_max = self.limit;
        self.batch_bytes = (self.batch_bytes * 2).min(BATCH_BYTES_MAX);
        let scanned = self.table.id().and_then(|table| {
            let request = ScanRequest { table, lower, upper, direction, bytes_max, records_max };
            self.table.engine().scan_into(&request, &mut end.batch)
        });
        if let Err(error) = scanned {
            self.done = true;
            (self.forward, self.backward) = (End::default(), End::default());
            return Err(error);
        }
        end.left = 0..end.batch.len();
        self.done = end.batch.is_complete();
        if let Some(last) = end.batch.last_key() {
            let bound = Bound::Excluded(last.to_vec());
            match direction {
                Direction::Forward => self.unread.0 = bound,
                Direction::Reverse => self.unread.1 = bound,
            }
        }
        Ok(())
    }

    fn advance(&mut self, direction: Direction) -> Result<Option<LentEntry<'_>>, Error> {
        if self.limit == 0 {
            return Ok(None);
        }
        let opposite = match direction {
            Direction::Forward => Direction::Reverse,
            Direction::Reverse => Direction::Forward,
        };
        let (from, index) = loop {
            if let Some(index) = self.end(direction).take(true) {
                break (direction, index);
            }
            if self.done {
                // The ends have met: what is left lies at the other one, whose first read is the last in order.
                match self.end(opposite).take(false) {
                    Some(index) => break (opposite, index),
                    None => return Ok(None),
                }
            }
            self.read(direction)?;
        };
        if self.limit < usize::MAX {
            self.limit -= 1;
        }
        Ok(self.end(from).lend(index))
    }

    fn end(&mut self, direction: Direction) -> &mut End {
        match direction {
            Direction::Forward => &mut self.forward,
            Direction::Reverse => &mut self.backward,
        }
    }
}

fn owned((key, value): LentEntry<'_>) -> Entry {
    (key.to_vec(), value.to_vec())
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl Iterator for Scan {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_ref().map(|entry| entry.map(owned)).transpose()
    }
}

impl DoubleEndedIterator for Scan {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_back_ref().map(|entry| entry.map(owned)).transpose()
    }
}
