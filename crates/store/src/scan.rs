//! [`Scan`]: the records of a range, from either end.

use crate::{Error, Table};
use deuteron_contract::{Direction, KeyBounds, ScanBatch, ScanRequest};
use std::ops::{Bound, Range};

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// About how many bytes of keys and values a scan reads ahead.
const BATCH_BYTES: usize = 64 << 10;

/// The records of a range, as [`crate::Table::scan`] returns them. After an error the scan is over.
pub struct Scan {
    table: Table,
    /// What neither end has read.
    unread: KeyBounds,
    forward: End,
    backward: End,
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
    /// The next record that is there, of those that are left at the end `nearest` or at the other; tombstones are not the user's business.
    fn take(&mut self, nearest: bool) -> Option<Entry> {
        loop {
            let index = if nearest { self.left.next()? } else { self.left.next_back()? };
            let record = self.batch.get(index);
            if let Some(value) = record.value {
                return Some((record.key.to_vec(), value.to_vec()));
            }
        }
    }
}

impl Scan {
    pub(crate) fn new(table: Table, range: KeyBounds) -> Scan {
        let (forward, backward) = (End::default(), End::default());
        Scan { table, unread: range, forward, backward, done: false }
    }

    /// Reads a batch of what is unread at one end, unless nothing is.
    fn read(&mut self, direction: Direction) -> Result<(), Error> {
        let end = match direction {
            Direction::Forward => &mut self.forward,
            Direction::Reverse => &mut self.backward,
        };
        let (lower, upper) = (borrowed(&self.unread.0), borrowed(&self.unread.1));
        let (bytes_max, records_max) = (BATCH_BYTES, usize::MAX);
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

    fn advance(&mut self, direction: Direction) -> Option<Result<Entry, Error>> {
        loop {
            let (end, other) = match direction {
                Direction::Forward => (&mut self.forward, &mut self.backward),
                Direction::Reverse => (&mut self.backward, &mut self.forward),
            };
            if let Some(entry) = end.take(true) {
                return Some(Ok(entry));
            }
            if self.done {
                // The ends have met: what is left lies at the other one, whose first read is the last in order.
                return other.take(false).map(Ok);
            }
            if let Err(error) = self.read(direction) {
                return Some(Err(error));
            }
        }
    }
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl Iterator for Scan {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Forward)
    }
}

impl DoubleEndedIterator for Scan {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Reverse)
    }
}
