//! Range scans: the records of the ordered index merged with those of the data component (rules R4, R7, R10).
//!
//! A scan goes batch by batch. Between batches it holds nothing but the cursor: no guard, no latch, no more memory than a
//! batch. For each batch it
//!
//! 1. notes how many records have left the ordered index so far;
//! 2. reads a batch from the data component, whose last key says how far the batch goes;
//! 3. publishes the range so far (R4);
//! 4. brings the ordered index up to date and walks it;
//! 5. reads the data component again if a record has left the index since 1 (R10): the order that is always right is the
//!    index first, then the data component, for what leaves the index is at the data component by then.

use crate::commit::{Changed, RefreshFailure};
use crate::empty_ranges::Front;
use crate::entries::Entries;
use crate::error::{ConflictCause, ConflictPlace, TcError};
use crate::range_timestamps::{BoundKey, KeyRange, OwnedRange, Ticket};
use crate::read::{Failure, Own, Protection, Reader};
use crate::segment::{Digest, Segment, SegmentRequest};
use crate::statistics::Counter;
use crate::transaction::Transaction;
use crate::workspace::{ScanEntry, Workspace};
use deuteron_contract::{Direction, Lsn, TableId, Timestamp};
use std::ops::Bound;

/// Later batches grow up to this many times the first.
const BATCH_GROWTH_MAX: usize = 64;

/// Records of this component that end the first batch; later ones may have more as they grow. What a batch has read is protected, wanted or
/// not: whoever takes the first of a queue is not to conflict with those who append to it.
const BATCH_RECORDS_FIRST: usize = 16;

/// So many more records than are wanted are read from the data component by a second batch; later ones have more as they grow.
const BATCH_RECORDS_MORE: usize = 8;

/// A key and its value, as a scan returns them.
pub type Entry = (Vec<u8>, Vec<u8>);

/// Where a scan is; see [`Transaction::scan_batch`]. A clone goes on from the same place as a scan of its own.
#[derive(Debug)]
pub struct ScanCursor {
    range: OwnedRange,
    direction: Direction,
    batch_bytes: usize,
    done: bool,
    /// What has been published and remembered for the transaction, and the near end of it.
    progress: Option<Progress>,
}

impl Clone for ScanCursor {
    fn clone(&self) -> ScanCursor {
        let ScanCursor { ref range, direction, batch_bytes, done, .. } = *self;
        // What has been published and remembered grows with one of them.
        let progress = None;
        ScanCursor { range: range.clone(), direction, batch_bytes, done, progress }
    }
}

#[derive(Debug)]
struct Progress {
    /// Of which component, and its begin.
    transaction: (u64, Timestamp),
    start: Bound<BoundKey>,
    /// With the timestamp at which it reads: once it reads at a later one, the place may be another's (G2).
    ticket: Option<(Timestamp, Ticket)>,
    /// The entry in the scan set, and how many versions the transaction had written.
    entry: Option<usize>,
    own: u64,
    /// While nothing has been found.
    front: Option<Front>,
}

impl ScanCursor {
    /// A cursor over a range, at the end where `direction` starts.
    ///
    /// ```
    /// use deuteron_contract::{Direction, TableId};
    /// use std::ops::Bound;
    /// let from_b = Bound::Included(b"b".to_vec());
    /// let cursor = deuteron_tc::ScanCursor::new(TableId(1), from_b, Bound::Unbounded, Direction::Forward);
    /// assert!(!cursor.is_done());
    /// ```
    pub fn new(
        table: TableId,
        lower: Bound<Vec<u8>>,
        upper: Bound<Vec<u8>>,
        direction: Direction,
    ) -> ScanCursor {
        let (lower, upper) = (lower.map(BoundKey::from_vec), upper.map(BoundKey::from_vec));
        let range = OwnedRange { table, lower, upper };
        let done = range.lend().is_empty();
        ScanCursor { range, direction, batch_bytes: 0, done, progress: None }
    }

    /// Whether the scan has reached its end.
    pub fn is_done(&self) -> bool {
        self.done
    }

    fn near(&mut self) -> &mut Bound<BoundKey> {
        match self.direction {
            Direction::Forward => &mut self.range.lower,
            Direction::Reverse => &mut self.range.upper,
        }
    }
}

/// The records of a range, one by one; made by [`Transaction::scan`]. After an error it is over.
pub struct Scan<'t> {
    transaction: &'t mut Transaction,
    cursor: ScanCursor,
    batch: std::vec::IntoIter<Entry>,
}

impl Iterator for Scan<'_> {
    type Item = Result<Entry, TcError>;

    fn next(&mut self) -> Option<Result<Entry, TcError>> {
        loop {
            if let Some(entry) = self.batch.next() {
                return Some(Ok(entry));
            }
            match self.transaction.scan_batch(&mut self.cursor) {
                Ok(Some(batch)) => self.batch = batch.into_iter(),
                Ok(None) => return None,
                Err(error) => {
                    self.cursor.done = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Transaction {
    /// The records of a range, the transaction's own writes included. The range is protected as a whole: that nothing comes
    /// between is part of what was read. (Not under [`Isolation::Snapshot`](crate::Isolation::Snapshot) and
    /// [`Isolation::ReadCommitted`](crate::Isolation::ReadCommitted).)
    pub fn scan(
        &mut self,
        table: TableId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Scan<'_> {
        let cursor = ScanCursor::new(table, lower.map(<[u8]>::to_vec), upper.map(<[u8]>::to_vec), direction);
        Scan { transaction: self, cursor, batch: Vec::new().into_iter() }
    }

    /// The next batch of a scan, or `None` at its end. The transaction may read and write between batches; a batch shows its
    /// writes up to then.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn scan_batch(&mut self, cursor: &mut ScanCursor) -> Result<Option<Vec<Entry>>, TcError> {
        if !self.scan_next(cursor, usize::MAX)? {
            return Ok(None);
        }
        let entries = self.scanned(cursor.direction).iter();
        Ok(Some(entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()))
    }

    /// Reads the next batch of a scan, of at most `entries_max` entries (and at least one), which [`Transaction::scanned`] then lends; `false`
    /// at the end of the scan. The transaction may read and write between batches; a batch shows its writes up to then.
    ///
    /// Who says how many entries he wants has no more read and protected than he gets. Otherwise batches are small at first, and grow.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn scan_next(&mut self, cursor: &mut ScanCursor, entries_max: usize) -> Result<bool, TcError> {
        // Out of the workspace while they are filled, which it helps to do.
        let mut entries = std::mem::take(self.entries(cursor.direction));
        let read = self.read_batch(cursor, entries_max.max(1), &mut entries);
        if !matches!(read, Ok(true)) {
            entries.clear();
        }
        *self.entries(cursor.direction) = entries;
        read
    }

    /// The batch that [`Transaction::scan_next`] has read last, of all scans in that direction. Nothing at the end of a scan.
    #[inline]
    pub fn scanned(&self, direction: Direction) -> &Entries {
        &self.workspace.scanned[direction as usize]
    }

    fn entries(&mut self, direction: Direction) -> &mut Entries {
        &mut self.workspace.scanned[direction as usize]
    }

    fn read_batch(
        &mut self,
        cursor: &mut ScanCursor,
        entries_max: usize,
        entries: &mut Entries,
    ) -> Result<bool, TcError> {
        self.check_active()?;
        if !self.workspace.changes.is_empty() && !cursor.done {
            let KeyRange { table, lower, upper } = cursor.range.lend();
            self.write_changes_within(table, lower, upper)?;
        }
        while !cursor.done {
            self.begin_reading();
            let reader = self.reader();
            let segment = self.next_segment(cursor, reader, entries_max, entries);
            self.end_reading();
            self.check_not_aborted()?;
            if matches!(segment, Err(Failure::TooOld)) && reader.protection == Protection::None {
                // The present has moved on, and the horizon with it.
                continue;
            }
            let segment = match segment {
                Ok(segment) => segment,
                Err(failure) => {
                    let error = failure.into_error(|cause, other| {
                        self.conflict(cause, cursor.range.table, cursor.range.place(), other)
                    });
                    return Err(if error.is_harmless() { error } else { self.end_with(error) });
                }
            };
            self.check_not_dropped(cursor.range.table)?;
            match segment.last {
                Some(last) => {
                    *cursor.near() = Bound::Excluded(last);
                    cursor.done = cursor.range.lend().is_empty();
                }
                None => cursor.done = true,
            }
            if !entries.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn next_segment(
        &mut self,
        cursor: &mut ScanCursor,
        reader: Reader,
        entries_max: usize,
        entries: &mut Entries,
    ) -> Result<Segment, Failure> {
        let transaction = (self.workspace.core.serial, self.begin);
        let remembers = self.remembers_reads();
        let workspace = &mut **self.workspace;
        workspace.counts.add(Counter::ScanBatches);
        if reader.protection == Protection::Published {
            workspace.make_room()?;
        }
        let first_bytes = workspace.core.options.scan_batch_bytes;
        cursor.batch_bytes = (cursor.batch_bytes * 2).clamp(first_bytes, first_bytes * BATCH_GROWTH_MAX);
        let growth = cursor.batch_bytes / first_bytes;
        let (bytes_max, stored_max, records_max) = match entries_max {
            usize::MAX => (cursor.batch_bytes, usize::MAX, BATCH_RECORDS_FIRST * growth),
            // All at once, and no more than is wanted; unless that was not enough, as of what is stored some is deleted here.
            _ => {
                let stored_max = entries_max.saturating_add(BATCH_RECORDS_MORE * (growth / 2));
                (first_bytes * BATCH_GROWTH_MAX, stored_max, entries_max)
            }
        };
        let own = workspace.next_ordinal;
        let near = cursor.near().clone();
        let mut progress = match cursor.progress.take() {
            Some(progress) if progress.transaction == transaction => progress,
            _ => {
                let front = Some(Front::default());
                Progress { transaction, start: near, ticket: None, entry: None, own, front }
            }
        };
        let request = SegmentRequest {
            range: cursor.range.lend(),
            direction: cursor.direction,
            start: progress.start.as_ref().map(|key| &key[..]),
            ticket: progress.ticket.filter(|(at, _)| *at == reader.at).map(|(_, ticket)| ticket),
            place: workspace.range_place,
            bytes_max,
            stored_max,
            records_max,
            entries_max,
            values: true,
        };
        // A declared reader may have begun at the same time as the transaction whose cursor it was.
        let known_entry =
            progress.entry.filter(|_| remembers && progress.own == own && !workspace.reads_forgotten);
        let mut digest = known_entry.map_or(Digest::default(), |entry| workspace.scans[entry].digest);
        let added = (remembers && !workspace.reads_forgotten).then_some(&mut digest);
        let mut front = progress.front.take();
        let segment = workspace.core.read_segment(&request, reader, added, &mut front, entries)?;
        if segment.is_shortened {
            workspace.counts.add(Counter::ScansShortened);
        }
        workspace.read_lsn = workspace.read_lsn.max(segment.read_lsn);
        workspace.range_place = segment.ticket.map_or(workspace.range_place, Ticket::next_start);
        let entry = if remembers {
            workspace.remember_scan(known_entry, &request, segment.last.as_deref(), digest, own)?
        } else {
            None
        };
        let Progress { start, .. } = progress;
        let ticket = segment.ticket.map(|ticket| (reader.at, ticket));
        cursor.progress = Some(Progress { transaction, start, ticket, entry, own, front });
        Ok(segment)
    }
}

impl Workspace {
    /// R7: a scan must find at `at` what it found.
    pub(crate) fn refresh_scan(&mut self, scan: usize, at: Timestamp) -> Result<(), RefreshFailure> {
        let (digest, read_lsn) = self.digest_scan(scan, at)?;
        let entry = &self.scans[scan];
        if !digest.shows_same(&entry.digest) {
            // The latest may have been there when it was read, if something is gone that nobody here knows of any more.
            let other = (digest.newest > entry.digest.newest).then_some(digest.newest);
            return Err(entry.failure(ConflictCause::RangeChanged, other));
        }
        self.read_lsn = self.read_lsn.max(read_lsn);
        Ok(())
    }

    /// The digest of the range of a scan as of `at`, and the latest commit record read for it.
    pub(crate) fn digest_scan(&self, scan: usize, at: Timestamp) -> Result<(Digest, Lsn), RefreshFailure> {
        let entry = &self.scans[scan];
        let (own, protection) = (Own::VisibleBefore(entry.own), Protection::Published);
        let reader = Reader { at, slot: self.slot, own, protection };
        let whole = entry.range.lend();
        let start = whole.near(entry.direction);
        let (mut digest, mut ticket, mut read_lsn) = (Digest::default(), None, Lsn(0));
        let (mut last, mut entries): (Option<BoundKey>, _) = (None, Entries::default());
        let mut front = Some(Front::default());
        loop {
            let range = match &last {
                Some(last) => whole.beginning_at(Bound::Excluded(last), entry.direction),
                None => whole,
            };
            if range.is_empty() {
                break;
            }
            let request = SegmentRequest {
                range,
                direction: entry.direction,
                start,
                ticket,
                place: self.range_place,
                bytes_max: self.core.options.scan_batch_bytes * BATCH_GROWTH_MAX,
                stored_max: usize::MAX,
                records_max: self.core.options.scan_batch_records_max,
                entries_max: usize::MAX,
                values: false,
            };
            let read = self.core.read_segment(&request, reader, Some(&mut digest), &mut front, &mut entries);
            let segment = match read {
                Ok(segment) => segment,
                Err(failure) => return Err(failure.into_error(|cause, other| entry.failure(cause, other))),
            };
            ticket = segment.ticket;
            read_lsn = read_lsn.max(segment.read_lsn);
            match segment.last {
                Some(key) => last = Some(key),
                None => break,
            }
        }
        Ok((digest, read_lsn))
    }
}

impl ScanEntry {
    fn failure(&self, cause: ConflictCause, other: Option<Timestamp>) -> RefreshFailure {
        let (table, place) = (self.range.table, self.range.place());
        RefreshFailure::Changed(Box::new(Changed { cause, table, place, other }))
    }
}

impl OwnedRange {
    /// As an error says it.
    fn place(&self) -> ConflictPlace {
        let keys = |bound: &Bound<BoundKey>| bound.as_ref().map(|key| key.to_vec());
        ConflictPlace::Range { lower: keys(&self.lower), upper: keys(&self.upper) }
    }
}
