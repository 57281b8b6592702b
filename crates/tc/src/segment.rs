//! One batch of a scan: what this component knows of a range, merged with what the data component stores.

use crate::core::Core;
use crate::empty_ranges::{Entry, Found, Front, Origin};
use crate::entries::{Entries, Known, What, compare, up_to};
use crate::error::TcError;
use crate::planted::{Bug, is_planted};
use crate::range_timestamps::{BoundKey, KeyRange, Ticket};
use crate::read::{Failure, Lent, Protection, Reader, Visible};
use crate::record::REMOVED;
use crate::schedule::point;
use crate::sync::Ordering;
use crate::version::Version;
use deuteron_contract::{Direction, Lsn, ScanBatch, ScanRequest, Timestamp};
use deuteron_epoch::Guard;
use std::ops::Bound;
use std::ptr;

/// What a batch has covered; its entries are in [`Entries`].
pub(crate) struct Segment {
    /// The last key that the batch covers; `None`: the whole range.
    pub(crate) last: Option<BoundKey>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) read_lsn: Lsn,
    /// It has begun behind a range that was known to be empty.
    pub(crate) is_shortened: bool,
}

/// What is read for one batch, and why.
pub(crate) struct SegmentRequest<'k> {
    pub(crate) range: KeyRange<'k>,
    pub(crate) direction: Direction,
    /// The near end of what has been published under `ticket`.
    pub(crate) start: Bound<&'k [u8]>,
    pub(crate) ticket: Option<Ticket>,
    /// Without a ticket: where to look for a place first.
    pub(crate) place: usize,
    /// About so much is read from the data component.
    pub(crate) bytes_max: usize,
    /// And so many records that are there.
    pub(crate) stored_max: usize,
    /// So many records of this component that are there end the batch.
    pub(crate) records_max: usize,
    /// So many entries end the batch.
    pub(crate) entries_max: usize,
    /// Whether values are wanted.
    pub(crate) values: bool,
}

/// What a walk over the index has come to.
struct Walked {
    /// The last key, if that is less than was wanted.
    walked_to: Option<BoundKey>,
    /// Whether it has passed a record that was evicted.
    met_removed: bool,
}

/// A running digest of committed records: those of a scan and of its refresh show the same if both saw the same, and only then. What has come to the range or was
/// written in it since the scan has a later timestamp than everything that the scan saw. So if as many records are there as before, either nothing has changed, or
/// the sum of their timestamps has grown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Digest {
    records: u64,
    timestamps: u128,
    /// The latest version that was met, though it may be a deletion.
    pub(crate) newest: Timestamp,
}

impl Digest {
    /// A record that is there, with its commit timestamp.
    #[inline]
    fn add(&mut self, at: Timestamp) {
        self.records += 1;
        self.timestamps += u128::from(at.0);
        self.newest = self.newest.max(at);
    }

    /// Whether the range shows what it did.
    pub(crate) fn shows_same(&self, other: &Digest) -> bool {
        (self.records, self.timestamps) == (other.records, other.timestamps)
    }
}

impl Core {
    /// One batch as the reader sees it, into `entries`; see `scan`. Adds the committed records to `digest`, if there is one.
    pub(crate) fn read_segment(
        &self,
        request: &SegmentRequest<'_>,
        reader: Reader,
        mut digest: Option<&mut Digest>,
        front: &mut Option<Front>,
        entries: &mut Entries,
    ) -> Result<Segment, Failure> {
        let mut ticket = request.ticket;
        let before = digest.as_deref().copied();
        loop {
            entries.clear();
            let digest_here = digest.as_deref_mut();
            if let Some(segment) =
                self.try_read_segment(request, reader, digest_here, &mut ticket, front, entries)?
            {
                return Ok(segment);
            }
            if let (Some(digest), Some(before)) = (digest.as_deref_mut(), before) {
                *digest = before;
            }
        }
    }

    /// `None`: a value was recycled just then, or something has come into an empty range; start over.
    fn try_read_segment(
        &self,
        request: &SegmentRequest<'_>,
        reader: Reader,
        digest: Option<&mut Digest>,
        ticket: &mut Option<Ticket>,
        front: &mut Option<Front>,
        entries: &mut Entries,
    ) -> Result<Option<Segment>, Failure> {
        let direction = request.direction;
        let begins = front.as_mut().filter(|front| !front.has_begun);
        let known = begins.and_then(|front| self.find_empty(request, reader, front));
        let range = match known {
            Some(known) => request.range.beginning_at(Bound::Included(&known.end), direction),
            None => request.range,
        };
        point();
        let departures = self.index.departures();
        point();
        let mut last = self.scan_stored(request, range, &mut entries.stored)?;
        point();
        let Walked { walked_to, met_removed } =
            self.walk_index(request, range, reader, last.as_deref(), ticket, &mut entries.known)?;
        // J2: the range has been published, or the fence raised.
        if known.is_some_and(|known| !self.empty.is_there(known, &self.epochs.pin())) {
            return Ok(None);
        }
        let is_shortened = known.is_some();
        let stopped = walked_to.is_some();
        if stopped {
            last = walked_to;
        }
        point();
        let left = (self.index.departures() != departures && !is_planted(Bug::DcFirst)) || met_removed;
        if left {
            // What has left the index, or was evicted before it could, may not have been at the data component when that was read.
            let covered = up_to(range, direction, last.as_deref());
            if let Some(key) = self.scan_stored(request, covered, &mut entries.stored)? {
                last = Some(key);
            }
        }
        point();
        // R11: looked at after the data component.
        if reader.at < self.forced_horizon() {
            return Err(Failure::TooOld);
        }
        // What lies in a range that is known to be empty has been deleted by somebody.
        let read_lsn = known.map_or(Lsn(0), |known| known.read_lsn);
        let mut merge = Merge { core: self, request, at: reader.at, digest, entries, read_lsn };
        // What was read last goes no further than `last`, unless something else has ended the batch.
        let within = last.as_deref().filter(|_| stopped || left);
        let end = merge.run(within)?;
        let read_lsn = merge.read_lsn;
        match end {
            End::StartOver => return Ok(None),
            End::Full => {
                let (key, _) = entries.get(entries.len() - 1);
                if last.as_deref() != Some(key) {
                    last = Some(key.into());
                }
            }
            End::Reached => {}
        }
        // Who publishes nothing remembers nothing: that would store.
        if let Some(begun) = front.take()
            && reader.protection == Protection::Published
        {
            *front = self.learn_empty(request, reader, begun, entries);
        }
        Ok(Some(Segment { last, ticket: *ticket, read_lsn, is_shortened }))
    }

    /// Returns the last key, if the range goes on behind it.
    fn scan_stored(
        &self,
        request: &SegmentRequest<'_>,
        range: KeyRange<'_>,
        stored: &mut ScanBatch,
    ) -> Result<Option<BoundKey>, TcError> {
        let KeyRange { table, lower, upper } = range;
        let (direction, bytes_max, records_max) = (request.direction, request.bytes_max, request.stored_max);
        let request = ScanRequest { table, lower, upper, direction, bytes_max, records_max };
        self.versions.scan_into(&request, stored).map_err(TcError::DataComponent)?;
        Ok(stored.last_key().filter(|_| !stored.is_complete()).map(BoundKey::from_slice))
    }

    /// R25: what is remembered at the bound from which the scan begins; the range that is known to be empty.
    #[inline]
    fn find_empty<'f>(
        &self,
        request: &SegmentRequest<'_>,
        reader: Reader,
        front: &'f mut Front,
    ) -> Option<&'f Entry> {
        let (table, direction) = (request.range.table, request.direction);
        front.found = Found::default();
        if self.empty.may_have(table) {
            let origin = Origin { table, direction, bound: request.range.near(direction) };
            front.found = self.empty.find(origin, reader.at, &self.epochs.pin());
        }
        front.found.known.as_ref().filter(|known| request.range.contains(table, &known.end))
    }

    /// R25: remembers that nothing lies before the first entry, if many records do that are not there. The scan as it goes on, if it has found nothing yet.
    #[inline]
    fn learn_empty(
        &self,
        request: &SegmentRequest<'_>,
        reader: Reader,
        mut front: Front,
        entries: &Entries,
    ) -> Option<Front> {
        let (known, stored) = entries.passed(request.direction);
        front.has_begun = true;
        front.passed += known.max(stored);
        let before = (0..known).map(|index| entries.known.slot(index).commit_lsn);
        front.read_lsn = before.fold(front.read_lsn, Lsn::max);
        if !entries.known.is_settled_before(known) && !is_planted(Bug::IgnoreUnsettled) {
            return None;
        }
        if entries.is_empty() {
            return Some(front);
        }
        let Front { passed, found, read_lsn, .. } = front;
        let begun_behind = found.known.as_ref().map_or(Lsn(0), |known| known.read_lsn);
        let known_as = (reader.at, read_lsn.max(begun_behind));
        if passed >= self.options.empty_records_min || found.noted.is_some() {
            let (table, direction, guard) = (request.range.table, request.direction, self.epochs.pin());
            let origin = Origin { table, direction, bound: request.start };
            let (end, _) = entries.get(0);
            if let Some(noted) = &found.noted {
                self.empty.know(noted, end, known_as, found.known.as_ref(), &guard);
            } else {
                self.empty.note(origin, end, &guard);
            }
            if is_planted(Bug::KnowAtOnce) {
                let noted = self.empty.find(origin, reader.at, &guard).noted;
                noted.iter().for_each(|noted| self.empty.know(noted, end, known_as, None, &guard));
            }
        }
        None
    }

    /// R4, then the walk. Adds what is known here of `range` up to `last`; returns how far the walk came if that is less.
    fn walk_index(
        &self,
        request: &SegmentRequest<'_>,
        range: KeyRange<'_>,
        reader: Reader,
        last: Option<&[u8]>,
        ticket: &mut Option<Ticket>,
        known: &mut Known,
    ) -> Result<Walked, Failure> {
        let guard = self.epochs.pin();
        let covered = up_to(range, request.direction, last);
        if reader.protection == Protection::Published {
            let published = covered.beginning_at(request.start, request.direction);
            let oldest =
                |exactly| if exactly { self.find_oldest_active() } else { self.known_oldest_active() };
            *ticket = self.ranges.publish(published, reader.at, *ticket, request.place, oldest, &guard);
        }
        point();
        self.index.complete(&guard);
        point();
        let (mut walked_to, mut met_removed, mut failed) = (None, false, None);
        // Deleted ones are walked over in bulk, but not without end.
        let (mut looked_at, mut there) = (0, 0);
        self.index.list().walk(covered, request.direction, &guard, |record| {
            point();
            let head = record.head.load(Ordering::SeqCst);
            if head == REMOVED {
                // Evicted: then it is at the data component, though perhaps since a moment ago.
                met_removed = true;
                return true;
            }
            looked_at += 1;
            let visible = self.visible(head, reader, &guard).0;
            match visible {
                Visible::Committed { version, .. } if ptr::eq(version, head) => {}
                Visible::Unresolved if head.is_null() => {}
                Visible::Unresolved => known.note_unsettled(false),
                _ => known.note_unsettled(true),
            }
            let mut large = false;
            let mut add = |own: bool, version: &Version, at: Timestamp, commit_lsn: Lsn| {
                known.push(record.key(), own, (at, commit_lsn), |bytes| {
                    let (what, is_large) = self.append_value(version, request.values, bytes, &guard);
                    large = is_large;
                    there += usize::from(!matches!(what, What::Absent));
                    what
                });
            };
            match visible {
                Visible::Own(version) => add(true, version, reader.at, Lsn(0)),
                Visible::Committed { version, at, commit_lsn } => add(false, version, at, commit_lsn),
                // The data component has it.
                Visible::Unresolved => {}
                Visible::Pruned => failed = Some(Failure::TooOld),
                Visible::Undecided(other) => failed = Some(Failure::GivesWay(other)),
            }
            // One large value is enough for the memory of a batch.
            if large || there >= request.records_max || looked_at >= self.options.scan_batch_records_max {
                walked_to = Some(record.key().into());
            }
            walked_to.is_none() && failed.is_none()
        });
        failed.map_or(Ok(Walked { walked_to, met_removed }), Err)
    }

    /// Appends the value of a version to `bytes`, if it is wanted; what there is, and whether it is a large one.
    #[inline]
    fn append_value(
        &self,
        version: &Version,
        wanted: bool,
        bytes: &mut Vec<u8>,
        guard: &Guard<'_>,
    ) -> (What, bool) {
        match self.lend_value(version, guard) {
            Lent::Absent => (What::Absent, false),
            Lent::Present(value) => {
                if wanted {
                    bytes.extend_from_slice(value);
                }
                (What::Present, false)
            }
            Lent::Recycled(lsn) => (What::Recycled(lsn), false),
            Lent::Large(lsn) => (What::Recycled(lsn), true),
        }
    }
}

/// Brings together what is known here and what is stored at the data component: what is known here wins.
struct Merge<'m, 'k> {
    core: &'m Core,
    request: &'m SegmentRequest<'k>,
    at: Timestamp,
    digest: Option<&'m mut Digest>,
    entries: &'m mut Entries,
    read_lsn: Lsn,
}

/// Where a merge has come to.
enum End {
    /// The end of what was read.
    Reached,
    /// As many entries as are wanted.
    Full,
    /// Nowhere: a value was recycled just then.
    StartOver,
}

impl Merge<'_, '_> {
    /// Up to `last`, or everything that was read.
    fn run(&mut self, last: Option<&[u8]>) -> Result<End, Failure> {
        let direction = self.request.direction;
        let is_within = |key: &[u8], last: &[u8]| compare(key, last, direction).is_le();
        let mut next = 0;
        if self.entries.known.len() == 0 && last.is_none() {
            next = self.add_plain()?;
            if self.is_full() {
                return Ok(End::Full);
            }
        }
        for index in 0..self.entries.known.len() {
            let slot = self.entries.known.slot(index);
            if last.is_some_and(|last| !is_within(self.entries.known.key(&slot), last)) {
                break;
            }
            while next < self.entries.stored.len() {
                let Entries { stored, known, .. } = &*self.entries;
                let order = compare(stored.get(next).key, known.key(&slot), direction);
                if order.is_lt() {
                    self.add_stored(next)?;
                    if self.is_full() {
                        return Ok(End::Full);
                    }
                }
                next += usize::from(order.is_le());
                if order.is_ge() {
                    break;
                }
            }
            if !self.add_known(index)? {
                return Ok(End::StartOver);
            }
            if self.is_full() {
                return Ok(End::Full);
            }
        }
        while next < self.entries.stored.len() {
            if last.is_some_and(|last| !is_within(self.entries.stored.get(next).key, last)) {
                break;
            }
            self.add_stored(next)?;
            if self.is_full() {
                return Ok(End::Full);
            }
            next += 1;
        }
        Ok(End::Reached)
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.entries.len() >= self.request.entries_max
    }

    /// Adds the first of what is stored, as many as there are before one that was deleted and as are wanted.
    fn add_plain(&mut self) -> Result<usize, Failure> {
        let mut digest = self.digest.as_deref().copied().unwrap_or_default();
        let mut count = 0;
        for (timestamp, is_there) in self.entries.stored.versions().take(self.request.entries_max) {
            if timestamp > self.at {
                return Err(Failure::TooOld);
            }
            if !is_there {
                break;
            }
            digest.add(timestamp);
            count += 1;
        }
        self.entries.set_plain(count);
        if let Some(kept) = &mut self.digest {
            **kept = digest;
        }
        Ok(count)
    }

    #[inline]
    fn add_stored(&mut self, index: usize) -> Result<(), Failure> {
        let (timestamp, is_there) = self.entries.stored.version(index);
        if timestamp > self.at {
            return Err(Failure::TooOld);
        }
        if is_there {
            if let Some(digest) = &mut self.digest {
                digest.add(timestamp);
            }
            self.entries.add_stored(index);
        }
        Ok(())
    }

    /// False: start over.
    fn add_known(&mut self, index: usize) -> Result<bool, Failure> {
        let slot = self.entries.known.slot(index);
        self.read_lsn = self.read_lsn.max(slot.commit_lsn);
        if matches!(slot.what, What::Absent) {
            if let Some(digest) = self.digest.as_deref_mut().filter(|_| !slot.own) {
                digest.newest = digest.newest.max(slot.at);
            }
            return Ok(true);
        }
        if let Some(digest) = self.digest.as_deref_mut().filter(|_| !slot.own) {
            digest.add(slot.at);
        }
        if let What::Recycled(lsn) = slot.what
            && self.request.values
        {
            let written = (!slot.own).then_some((slot.at, slot.commit_lsn));
            let key = self.core.table.key(self.request.range.table, self.entries.known.key(&slot));
            match self.core.load_recycled(key, lsn, written)? {
                Some(value) => self.entries.known.set_value(index, &value),
                None if written.is_some() && self.at < self.core.forced_horizon() => {
                    return Err(Failure::TooOld);
                }
                None => return Ok(false),
            }
        }
        self.entries.add_known(index);
        Ok(true)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The timestamp at which all scans here read.
    const SCANNED_AT: u64 = 50;

    fn digest(records: &BTreeMap<u8, u64>) -> Digest {
        let mut digest = Digest::default();
        records.values().for_each(|&at| digest.add(Timestamp(at)));
        digest
    }

    proptest! {
        #[test]
        fn a_range_shows_the_same_if_and_only_if_it_is_the_same(
            before in prop::collection::btree_map(0..12u8, 0..=SCANNED_AT, 0..8),
            changes in prop::collection::vec((0..12u8, any::<bool>()), 0..6),
        ) {
            let mut after = before.clone();
            for (later, (key, is_there)) in (SCANNED_AT + 1..).zip(changes) {
                if is_there {
                    after.insert(key, later);
                } else {
                    after.remove(&key);
                }
            }
            prop_assert_eq!(digest(&before).shows_same(&digest(&after)), before == after);
        }
    }
}
