//! [`Scan`]: the records of a range, from either end.

use crate::record::RangeRecord;
use crate::{Error, Transaction};
use deuteron_contract::Direction;
use deuteron_tc::ScanCursor;
use std::collections::VecDeque;

/// Keys and values, as a scan returns them.
pub type Entry = (Vec<u8>, Vec<u8>);

/// The records of a range in key order, read batch by batch as of the transaction's timestamp; what the
/// transaction wrote itself included. Memory is one batch, however long the range. From the high end with
/// [`Iterator::rev`].
///
/// After an error the scan is over.
pub struct Scan<'t> {
    transaction: &'t mut Transaction,
    forward: End,
    backward: End,
    failed: bool,
    recorded: Option<RangeRecord>,
}

/// One end of the scan: where it is, and what it has read ahead.
struct End {
    cursor: ScanCursor,
    read_ahead: VecDeque<Entry>,
    last: Option<Vec<u8>>,
}

impl<'t> Scan<'t> {
    pub(crate) fn new(
        transaction: &'t mut Transaction,
        forward: ScanCursor,
        backward: ScanCursor,
        recorded: Option<RangeRecord>,
    ) -> Self {
        let end = |cursor| End { cursor, read_ahead: VecDeque::new(), last: None };
        Self { transaction, forward: end(forward), backward: end(backward), failed: false, recorded }
    }

    /// The next entry from the end `direction` starts at, unless the other end has already returned it.
    fn advance(&mut self, direction: Direction) -> Option<Result<Entry, Error>> {
        if self.failed {
            return None;
        }
        let (end, other) = match direction {
            Direction::Forward => (&mut self.forward, &self.backward),
            Direction::Reverse => (&mut self.backward, &self.forward),
        };
        while end.read_ahead.is_empty() {
            match self.transaction.scan_batch(&mut end.cursor) {
                Ok(Some(batch)) => end.read_ahead = batch.into(),
                Ok(None) => {
                    self.record_end(direction, None);
                    return None;
                }
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
        let (key, value) = end.read_ahead.pop_front()?;
        let met = other.last.as_ref().is_some_and(|last| match direction {
            Direction::Forward => key >= *last,
            Direction::Reverse => key <= *last,
        });
        if met {
            self.failed = true;
            self.record_end(direction, Some(&key));
            return None;
        }
        // In the memory of the one before.
        end.last.get_or_insert_default().clone_from(&key);
        let entry = (key, value);
        if self.recorded.is_some() {
            self.record_entry(direction, &entry);
        }
        Some(Ok(entry))
    }

    #[cold]
    fn record_entry(&mut self, direction: Direction, entry: &Entry) {
        if let (Some(recording), Some(range)) = (&mut self.transaction.recording, &self.recorded) {
            recording.found(range, direction == Direction::Reverse, entry);
        }
    }

    /// One end has come to the other, or to a record that the other has returned.
    #[cold]
    fn record_end(&mut self, direction: Direction, met: Option<&[u8]>) {
        if let (Some(recording), Some(range)) = (&mut self.transaction.recording, &self.recorded) {
            recording.scanned(range, direction == Direction::Reverse, met);
        }
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Forward)
    }
}

impl DoubleEndedIterator for Scan<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Reverse)
    }
}
