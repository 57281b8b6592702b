//! [`Scan`]: the records of a range, from either end.

use crate::record::RangeRecord;
use crate::{Error, Transaction};
use deuteron_contract::{Direction, KeyBounds, TableId};
use deuteron_tc::ScanCursor;

/// Keys and values, as a scan returns them.
pub type Entry = (Vec<u8>, Vec<u8>);

/// A key and its value, as a scan lends them.
pub type LentEntry<'s> = (&'s [u8], &'s [u8]);

/// The records of a range in key order, read batch by batch as of the transaction's timestamp; what the
/// transaction wrote itself included. Memory is one batch, however long the range. From the high end with
/// [`Iterator::rev`].
///
/// The iterator's entries are the caller's to keep: two allocations each. [`Scan::next_ref`] lends them, and allocates nothing. Who wants a few
/// records only says so with [`Scan::limit`].
///
/// After an error the scan is over.
pub struct Scan<'t> {
    transaction: &'t mut Transaction,
    table: TableId,
    range: KeyBounds,
    forward: End,
    backward: End,
    /// How many entries of earlier batches have been returned, and how many may be in all; `usize::MAX`: all.
    passed: usize,
    limit: usize,
    failed: bool,
    recorded: Option<RangeRecord>,
}

/// One end of the scan: where it is. What it has read ahead lies in the transaction's workspace.
#[derive(Default)]
struct End {
    /// Made when somebody asks for this end.
    cursor: Option<ScanCursor>,
    /// Of the batch, how many entries have been returned, and how many there are.
    returned: usize,
    count: usize,
    /// So many of them may be returned without a look at anything else: all, unless the other end is in use, or what is found is recorded.
    plain: usize,
    /// The entry returned last, if it is of an earlier batch.
    last: Option<Vec<u8>>,
}

impl<'t> Scan<'t> {
    pub(crate) fn new(
        transaction: &'t mut Transaction,
        table: TableId,
        range: KeyBounds,
        recorded: Option<RangeRecord>,
    ) -> Self {
        let (forward, backward) = (End::default(), End::default());
        Self {
            transaction,
            table,
            range,
            forward,
            backward,
            passed: 0,
            limit: usize::MAX,
            failed: false,
            recorded,
        }
    }

    /// The scan ends when it has returned `records` of them, those before the call included. Unlike with [`Iterator::take`], no more is read, and
    /// no more is protected from others, than is returned, if the limit is set before the first is asked for.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// let mut tx = db.begin();
    /// for fruit in ["apples", "figs", "pears"] {
    ///     tx.put(&stock, fruit.as_bytes(), b"12")?;
    /// }
    /// assert_eq!(tx.scan(&stock, ..)?.limit(2).count(), 2);
    /// assert_eq!(tx.scan(&stock, ..)?.limit(1).rev().next().expect("there are three")?.0, b"pears");
    /// # drop(tx);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn limit(mut self, records: usize) -> Self {
        self.limit = self.limit.min(records);
        // What has been read ahead may be more.
        (self.forward.plain, self.backward.plain) = (0, 0);
        self
    }

    /// The next entry, lent until the scan goes on. `None` at its end.
    ///
    /// # Errors
    /// As [`Transaction::get`], [`Error::Conflict`]. The scan is over then.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// # let stock = db.table("stock")?;
    /// # db.transact(|tx| tx.put(&stock, b"apples", b"12"))?;
    /// let mut tx = db.begin();
    /// let mut scan = tx.scan(&stock, ..)?;
    /// let mut bytes = 0;
    /// while let Some((key, value)) = scan.next_ref()? {
    ///     bytes += key.len() + value.len();
    /// }
    /// assert_eq!(bytes, 8);
    /// # drop(tx);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    #[inline]
    pub fn next_ref(&mut self) -> Result<Option<LentEntry<'_>>, Error> {
        if self.forward.returned < self.forward.plain {
            self.forward.returned += 1;
            return Ok(Some(
                self.transaction.inner.scanned(Direction::Forward).get(self.forward.returned - 1),
            ));
        }
        self.advance(Direction::Forward)
    }

    /// As [`Scan::next_ref`], from the high end.
    ///
    /// # Errors
    /// As [`Scan::next_ref`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// # let stock = db.table("stock")?;
    /// # db.transact(|tx| tx.put(&stock, b"apples", b"12"))?;
    /// assert_eq!(db.begin().scan(&stock, ..)?.next_back_ref()?, Some((&b"apples"[..], &b"12"[..])));
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    #[inline]
    pub fn next_back_ref(&mut self) -> Result<Option<LentEntry<'_>>, Error> {
        if self.backward.returned < self.backward.plain {
            self.backward.returned += 1;
            return Ok(Some(
                self.transaction.inner.scanned(Direction::Reverse).get(self.backward.returned - 1),
            ));
        }
        self.advance(Direction::Reverse)
    }

    /// How many entries have been returned.
    fn returned(&self) -> usize {
        self.passed + self.forward.returned + self.backward.returned
    }

    /// The next entry from the end `direction` starts at, unless the other end has already returned it.
    fn advance(&mut self, direction: Direction) -> Result<Option<LentEntry<'_>>, Error> {
        if self.failed || self.returned() >= self.limit {
            return Ok(None);
        }
        let end = match direction {
            Direction::Forward => &self.forward,
            Direction::Reverse => &self.backward,
        };
        if end.returned == end.count && !self.read(direction)? {
            return Ok(None);
        }
        let (end, other, opposite) = match direction {
            Direction::Forward => (&mut self.forward, &self.backward, Direction::Reverse),
            Direction::Reverse => (&mut self.backward, &self.forward, Direction::Forward),
        };
        let (key, value) = self.transaction.inner.scanned(direction).get(end.returned);
        if other.cursor.is_some() {
            let last = match other.returned {
                0 => other.last.as_deref(),
                returned => Some(self.transaction.inner.scanned(opposite).get(returned - 1).0),
            };
            let met = last.is_some_and(|last| match direction {
                Direction::Forward => key >= last,
                Direction::Reverse => key <= last,
            });
            if met {
                self.failed = true;
                if let (Some(recording), Some(range)) = (&mut self.transaction.recording, &self.recorded) {
                    recording.scanned(range, direction == Direction::Reverse, Some(key));
                }
                return Ok(None);
            }
        }
        end.returned += 1;
        if let (Some(recording), Some(range)) = (&mut self.transaction.recording, &self.recorded) {
            recording.found(range, direction == Direction::Reverse, (key, value));
        }
        Ok(Some((key, value)))
    }

    /// Reads a batch at one end; whether there is another entry.
    fn read(&mut self, direction: Direction) -> Result<bool, Error> {
        let wanted = match self.limit {
            usize::MAX => usize::MAX,
            limit => limit - self.returned(),
        };
        let (end, other) = match direction {
            Direction::Forward => (&mut self.forward, &mut self.backward),
            Direction::Reverse => (&mut self.backward, &mut self.forward),
        };
        // From now on each end has to look where the other is.
        other.plain = 0;
        if end.returned > 0 {
            let (key, _) = self.transaction.inner.scanned(direction).get(end.returned - 1);
            // In the memory of the one before.
            let last = end.last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
        }
        self.passed += end.returned;
        (end.returned, end.count, end.plain) = (0, 0, 0);
        let cursor = end.cursor.get_or_insert_with(|| {
            let (lower, upper) = self.range.clone();
            ScanCursor::new(self.table, lower, upper, direction)
        });
        match self.transaction.scan_next(cursor, wanted) {
            Ok(true) => {
                end.count = self.transaction.inner.scanned(direction).len();
                end.plain = if self.recorded.is_none() && other.cursor.is_none() { end.count } else { 0 };
                Ok(true)
            }
            Ok(false) => {
                // One end has come to the other's.
                if let (Some(recording), Some(range)) = (&mut self.transaction.recording, &self.recorded) {
                    recording.scanned(range, direction == Direction::Reverse, None);
                }
                Ok(false)
            }
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        }
    }
}

fn owned((key, value): LentEntry<'_>) -> Entry {
    (key.to_vec(), value.to_vec())
}

impl Iterator for Scan<'_> {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_ref().map(|entry| entry.map(owned)).transpose()
    }
}

impl DoubleEndedIterator for Scan<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_back_ref().map(|entry| entry.map(owned)).transpose()
    }
}
