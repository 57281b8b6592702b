//! One batch of a scan: what this component knows of a range, merged with what the data component stores.

use crate::core::Core;
use crate::error::TcError;
use crate::planted::{Bug, is_planted};
use crate::range_timestamps::{KeyRange, Ticket};
use crate::read::{Copied, Failure, Protection, Reader, Visible};
use crate::record::REMOVED;
use crate::scan::Entry;
use crate::schedule::point;
use crate::sync::Ordering;
use deuteron_contract::{Direction, Lsn, Record as StoredRecord, ScanRequest, TableId, Timestamp};
use foldhash::fast::FixedState;
use std::cmp;
use std::hash::{BuildHasher, Hasher};
use std::ops::Bound;

/// Restricts `range` to what lies up to and including `last`, in the direction of the scan.
pub(crate) fn up_to<'k>(range: KeyRange<'k>, direction: Direction, last: Option<&'k [u8]>) -> KeyRange<'k> {
    match (last, direction) {
        (None, _) => range,
        (Some(last), Direction::Forward) => KeyRange { upper: Bound::Included(last), ..range },
        (Some(last), Direction::Reverse) => KeyRange { lower: Bound::Included(last), ..range },
    }
}

fn compare(a: &[u8], b: &[u8], direction: Direction) -> cmp::Ordering {
    match direction {
        Direction::Forward => a.cmp(b),
        Direction::Reverse => b.cmp(a),
    }
}

/// What this component knows of a key in the range.
struct Known {
    key: Vec<u8>,
    what: What,
    at: Timestamp,
    commit_lsn: Lsn,
}

enum What {
    /// The transaction's own version was there first: part of the answer, not of what has to stay as it is.
    Own(Option<Vec<u8>>),
    OwnRecycled(Lsn),
    Absent,
    Present(Vec<u8>),
    /// The log has the value no longer in memory.
    Recycled(Lsn),
}

impl What {
    fn is_there(&self) -> bool {
        !matches!(self, What::Own(None) | What::Absent)
    }
}

/// One batch.
pub(crate) struct Segment {
    pub(crate) entries: Vec<Entry>,
    /// The last key that the batch covers; `None`: the whole range.
    pub(crate) last: Option<Vec<u8>>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) read_lsn: Lsn,
}

/// What is read for one batch, and why.
pub(crate) struct SegmentRequest<'k> {
    pub(crate) range: KeyRange<'k>,
    pub(crate) direction: Direction,
    /// The near end of what has been published under `ticket`.
    pub(crate) start: Bound<&'k [u8]>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) bytes_max: usize,
    /// So many records of this component that are there end the batch.
    pub(crate) records_max: usize,
    /// Whether values are wanted.
    pub(crate) values: bool,
}

/// A running digest of committed records: those of a scan and of its refresh are equal if both saw the same.
fn fold(digest: &mut [u64; 2], key: &[u8], at: Timestamp) {
    for (word, seed) in digest.iter_mut().zip([0x5CA9, 0xD16E57]) {
        let mut hasher = FixedState::with_seed(seed).build_hasher();
        hasher.write_u64(*word);
        hasher.write(key);
        hasher.write_u64(at.0);
        *word = hasher.finish();
    }
}

impl Core {
    /// One batch as the reader sees it; see `scan`. Folds the committed records into `digest`.
    pub(crate) fn read_segment(
        &self,
        request: &SegmentRequest<'_>,
        reader: Reader,
        digest: &mut [u64; 2],
    ) -> Result<Segment, Failure> {
        let mut ticket = request.ticket;
        loop {
            let before = *digest;
            match self.try_read_segment(request, reader, digest, &mut ticket)? {
                Some(segment) => return Ok(segment),
                None => *digest = before,
            }
        }
    }

    /// `None`: a value was recycled just then; start over.
    fn try_read_segment(
        &self,
        request: &SegmentRequest<'_>,
        reader: Reader,
        digest: &mut [u64; 2],
        ticket: &mut Option<Ticket>,
    ) -> Result<Option<Segment>, Failure> {
        let direction = request.direction;
        let departures = self.index.departures();
        point();
        let mut batch = self.scan_stored(request.range, direction, request.bytes_max)?;
        point();
        let mut last = batch.last.take();
        let (known, walked_to) = self.walk_index(request, reader, last.as_deref(), ticket)?;
        if walked_to.is_some() {
            last = walked_to;
        }
        point();
        if self.index.departures() != departures && !is_planted(Bug::DcFirst) {
            // What has left the index may not have been at the data component when that was read.
            let covered = up_to(request.range, direction, last.as_deref());
            batch = self.scan_stored(covered, direction, request.bytes_max)?;
            if batch.last.is_some() {
                last = batch.last.take();
            }
        }
        point();
        // R11: looked at after the data component.
        if reader.at < self.forced_horizon() {
            return Err(Failure::TooOld);
        }
        let mut merge = Merge {
            core: self,
            table: request.range.table,
            values: request.values,
            at: reader.at,
            digest,
            entries: Vec::with_capacity(if request.values { known.len() + batch.records.len() } else { 0 }),
            read_lsn: Lsn(0),
        };
        if !merge.run(known, batch.records, direction, last.as_deref())? {
            return Ok(None);
        }
        let Merge { entries, read_lsn, .. } = merge;
        Ok(Some(Segment { entries, last, ticket: *ticket, read_lsn }))
    }

    fn scan_stored(
        &self,
        range: KeyRange<'_>,
        direction: Direction,
        bytes_max: usize,
    ) -> Result<Stored, TcError> {
        let KeyRange { table, lower, upper } = range;
        let request = ScanRequest { table, lower, upper, direction, bytes_max };
        let batch = self.versions.scan(&request).map_err(TcError::DataComponent)?;
        let last = match batch.records.last() {
            Some(record) if !batch.complete => Some(record.key.clone()),
            _ => None,
        };
        Ok(Stored { records: batch.records, last })
    }

    /// R4, then the walk. Returns what is known here up to `last`, and how far the walk came if that is less.
    fn walk_index(
        &self,
        request: &SegmentRequest<'_>,
        reader: Reader,
        last: Option<&[u8]>,
        ticket: &mut Option<Ticket>,
    ) -> Result<(Vec<Known>, Option<Vec<u8>>), Failure> {
        let guard = self.epochs.pin();
        let covered = up_to(request.range, request.direction, last);
        if reader.protection == Protection::Published {
            let published = match request.direction {
                Direction::Forward => KeyRange { lower: request.start, ..covered },
                Direction::Reverse => KeyRange { upper: request.start, ..covered },
            };
            let oldest =
                |exactly| if exactly { self.find_oldest_active() } else { self.known_oldest_active() };
            *ticket = self.ranges.publish(published, reader.at, *ticket, oldest, &guard);
        }
        point();
        self.index.complete(&guard);
        point();
        let (mut known, mut walked_to, mut failed) = (Vec::new(), None, None);
        // Deleted ones are walked over in bulk, but not without end.
        let (mut looked_at, mut there) = (0, 0);
        self.index.list().walk(covered, request.direction, &guard, |record| {
            point();
            let head = record.head.load(Ordering::SeqCst);
            if head == REMOVED {
                // Gone: then it is at the data component.
                return true;
            }
            looked_at += 1;
            let (visible, _) = self.visible(head, reader, &guard);
            let key = || record.key().to_vec();
            let (mut value, mut large) = (Vec::new(), false);
            match visible {
                Visible::Own(version) => {
                    let what = match self.copy_value(version, &mut value, &guard) {
                        Copied::Absent => What::Own(None),
                        Copied::Present => What::Own(Some(value)),
                        Copied::Recycled(lsn) => What::OwnRecycled(lsn),
                        Copied::Large(lsn) => {
                            large = true;
                            What::OwnRecycled(lsn)
                        }
                    };
                    there += usize::from(what.is_there());
                    known.push(Known { key: key(), what, at: reader.at, commit_lsn: Lsn(0) });
                }
                Visible::Committed { version, at, commit_lsn } => {
                    let what = match self.copy_value(version, &mut value, &guard) {
                        Copied::Absent => What::Absent,
                        Copied::Present => What::Present(value),
                        Copied::Recycled(lsn) => What::Recycled(lsn),
                        Copied::Large(lsn) => {
                            large = true;
                            What::Recycled(lsn)
                        }
                    };
                    there += usize::from(what.is_there());
                    known.push(Known { key: key(), what, at, commit_lsn });
                }
                // The data component has it.
                Visible::Unresolved => {}
                Visible::Pruned => failed = Some(Failure::TooOld),
                Visible::Undecided(other) => failed = Some(Failure::GivesWay(other)),
            }
            // One large value is enough for the memory of a batch.
            if large || there >= request.records_max || looked_at >= self.options.scan_batch_records_max {
                walked_to = Some(key());
            }
            walked_to.is_none() && failed.is_none()
        });
        failed.map_or(Ok((known, walked_to)), Err)
    }
}

struct Stored {
    records: Vec<StoredRecord>,
    /// The last key, if the range goes on behind it.
    last: Option<Vec<u8>>,
}

/// Brings together what is known here and what is stored at the data component: what is known here wins.
struct Merge<'m> {
    core: &'m Core,
    table: TableId,
    values: bool,
    at: Timestamp,
    digest: &'m mut [u64; 2],
    entries: Vec<Entry>,
    read_lsn: Lsn,
}

impl Merge<'_> {
    /// Up to `last`. False: start over.
    fn run(
        &mut self,
        known: Vec<Known>,
        stored: Vec<StoredRecord>,
        direction: Direction,
        last: Option<&[u8]>,
    ) -> Result<bool, Failure> {
        let within = |key: &[u8]| last.is_none_or(|last| compare(key, last, direction).is_le());
        let mut stored = stored.into_iter().take_while(|record| within(&record.key)).peekable();
        for known in known.into_iter().take_while(|known| within(&known.key)) {
            while let Some(record) =
                stored.next_if(|record| compare(&record.key, &known.key, direction).is_lt())
            {
                self.add_stored(record)?;
            }
            stored.next_if(|record| record.key == known.key);
            if !self.add_known(known)? {
                return Ok(false);
            }
        }
        for record in stored {
            self.add_stored(record)?;
        }
        Ok(true)
    }

    fn add_stored(&mut self, record: StoredRecord) -> Result<(), Failure> {
        if record.timestamp > self.at {
            return Err(Failure::TooOld);
        }
        if let Some(value) = record.value {
            fold(self.digest, &record.key, record.timestamp);
            if self.values {
                self.entries.push((record.key, value));
            }
        }
        Ok(())
    }

    fn add_known(&mut self, known: Known) -> Result<bool, Failure> {
        let Known { key, what, at, commit_lsn } = known;
        self.read_lsn = self.read_lsn.max(commit_lsn);
        let value = match what {
            What::Own(None) | What::Absent => return Ok(true),
            What::Own(Some(value)) => value,
            What::OwnRecycled(lsn) => {
                let hashed = self.core.table.key(self.table, &key);
                match self.core.load_recycled(hashed, lsn, None)? {
                    Some(value) => value,
                    None => return Ok(false),
                }
            }
            What::Present(value) => {
                fold(self.digest, &key, at);
                value
            }
            What::Recycled(lsn) => {
                fold(self.digest, &key, at);
                if !self.values {
                    return Ok(true);
                }
                let hashed = self.core.table.key(self.table, &key);
                match self.core.load_recycled(hashed, lsn, Some((at, commit_lsn)))? {
                    Some(value) => value,
                    None if self.at < self.core.forced_horizon() => return Err(Failure::TooOld),
                    None => return Ok(false),
                }
            }
        };
        if self.values {
            self.entries.push((key, value));
        }
        Ok(true)
    }
}
