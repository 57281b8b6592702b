//! [`Scan`]: the records of a range, from either end.

use crate::{Error, Table};
use deuteron_contract::{Direction, KeyBounds, ScanRequest};
use std::collections::VecDeque;
use std::ops::Bound;

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// About how many bytes of keys and values a scan reads ahead.
const BATCH_BYTES: usize = 64 << 10;

/// The records of a range, as [`crate::Table::scan`] returns them. After an error the scan is over.
pub struct Scan {
    table: Table,
    /// What neither end has read.
    unread: KeyBounds,
    forward: VecDeque<Entry>,
    backward: VecDeque<Entry>,
    done: bool,
}

impl Scan {
    pub(crate) fn new(table: Table, range: KeyBounds) -> Scan {
        Scan { table, unread: range, forward: VecDeque::new(), backward: VecDeque::new(), done: false }
    }

    /// Reads batches of what is unread at one end, until there is a record or nothing is unread.
    fn read(&mut self, direction: Direction) -> Result<(), Error> {
        while !self.done {
            let (lower, upper) = (borrowed(&self.unread.0), borrowed(&self.unread.1));
            let (table, bytes_max) = (self.table.id(), BATCH_BYTES);
            let scanned = table.and_then(|table| {
                self.table.engine().scan(&ScanRequest { table, lower, upper, direction, bytes_max })
            });
            let batch = match scanned {
                Ok(batch) => batch,
                Err(error) => {
                    self.done = true;
                    self.forward.clear();
                    self.backward.clear();
                    return Err(error);
                }
            };
            self.done = batch.complete;
            if let Some(last) = batch.records.last() {
                let bound = Bound::Excluded(last.key.clone());
                match direction {
                    Direction::Forward => self.unread.0 = bound,
                    Direction::Reverse => self.unread.1 = bound,
                }
            }
            let end = match direction {
                Direction::Forward => &mut self.forward,
                Direction::Reverse => &mut self.backward,
            };
            // Tombstones are not the user's business.
            end.extend(batch.records.into_iter().filter_map(|record| Some((record.key, record.value?))));
            if !end.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl Iterator for Scan {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.forward.is_empty()
            && let Err(error) = self.read(Direction::Forward)
        {
            return Some(Err(error));
        }
        // When the ends have met, what is left lies at the other one, whose first read is the last in order.
        self.forward.pop_front().or_else(|| self.backward.pop_back()).map(Ok)
    }
}

impl DoubleEndedIterator for Scan {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.backward.is_empty()
            && let Err(error) = self.read(Direction::Reverse)
        {
            return Some(Err(error));
        }
        self.backward.pop_front().or_else(|| self.forward.pop_back()).map(Ok)
    }
}
