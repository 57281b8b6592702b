//! Merging the deltas of a page into its base: the content of the page, as of one snapshot.
//!
//! The base is never sorted again. The few records of the deltas are sorted, as a rule by the heads that they have in the base, each is given
//! its place there by one binary search, and what lies between two places is copied in bulk.

use super::key::{KeyParts, compare_with_prefix, head_number};
use super::layout::{Layout, Shape, Span};
use super::run::{RecordRef, Run};
use std::cmp::Ordering;
use std::ops::{Bound, Range};

/// So many records tell of what others are like.
const SAMPLES: usize = 8;

/// What becomes of one key that the deltas speak of, or of a record of the base that goes.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// Where in the base.
    at: u32,
    /// Which of the deltas' records comes in its place, or [`NOTHING`].
    record: u32,
    /// Whether the base's record at `at` goes.
    replaces: bool,
}

/// That nothing comes in the place of a record.
const NOTHING: u32 = u32::MAX;

impl Change {
    /// Where in the base.
    #[inline]
    fn at(self) -> usize {
        self.at as usize
    }

    /// What comes in its place, of the deltas' `records`.
    #[inline]
    fn record<'m, 'a>(self, records: &'m [RecordRef<'a>]) -> Option<&'m RecordRef<'a>> {
        if self.record == NOTHING { None } else { Some(&records[self.record as usize]) }
    }
}

/// A stretch of the merged content, in key order.
#[derive(Clone, Debug)]
pub(crate) enum Piece<'m, 'a> {
    /// Records of the base.
    Base(Range<usize>),
    /// A record of a delta.
    Record(&'m RecordRef<'a>),
}

/// A place in the merged content: what lies behind it are the records of the base and the changes from these on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(super) base: usize,
    change: usize,
}

/// The record, its key cut behind the base's prefix if it lies so that it can be, and the head of what follows that. If it has not got that prefix it is a
/// *stray*: its head is the least or the greatest, as it lies before the keys that have it or behind.
///
/// Part of the loop over the deltas, whose instructions are counted: a call takes a twentieth of them.
#[inline(always)]
fn cut<'a>(
    base: &Run<'a>,
    mut record: RecordRef<'a>,
    strays: &mut bool,
    scratch: &mut Vec<u8>,
) -> (u64, RecordRef<'a>) {
    let head = match record.key.behind(base.prefix()) {
        // Written as it is, too, unless the page is split in between.
        Some(key) => {
            record.key = key;
            u64::from_be_bytes(key.head)
        }
        None => {
            let key = record.key.contiguous(scratch);
            let order = compare_with_prefix(key, base.prefix());
            *strays |= order.is_ne();
            match order {
                Ordering::Less => 0,
                Ordering::Equal => head_number(&key[base.prefix().len()..]),
                Ordering::Greater => u64::MAX,
            }
        }
    };
    (head, record)
}

/// Where a key is in the base, `Ok` if it is there; unless there are strays it begins with the base's prefix and goes on with `head`.
fn place(
    base: &Run<'_>,
    head: u64,
    key: &KeyParts<'_>,
    strays: bool,
    scratch: &mut Vec<u8>,
) -> Result<usize, usize> {
    match key.prefix.len() == base.prefix().len() && !strays {
        true => base.search_suffix(head, key.suffix_bytes, key.rest),
        false => base.search(key.contiguous(scratch)),
    }
}

/// What record `number` of the deltas, the newest there for its key, changes in the base, where it was `found`.
#[inline]
fn decide(
    base: &Run<'_>,
    number: u32,
    record: &RecordRef<'_>,
    found: Result<usize, usize>,
    forget_below: u64,
) -> Option<Change> {
    let forgotten = record.value.is_none() && record.lsn < forget_below;
    let (at, replaces) = match found {
        Ok(at) if base.record(at).version() >= record.version() => return None,
        Ok(at) => (at, true),
        Err(_) if forgotten => return None,
        Err(at) => (at, false),
    };
    // A run counts its records in 32 bits.
    Some(Change { at: at as u32, record: if forgotten { NOTHING } else { number }, replaces })
}

/// The content of a page as of one snapshot of its chain.
pub(crate) struct Merge<'a> {
    base: Run<'a>,
    /// Which of the base's records count: all, unless [`Merge::restrict`] says otherwise.
    within: Range<usize>,
    /// Those of the deltas.
    records: Vec<RecordRef<'a>>,
    changes: Vec<Change>,
    /// Whether a record of the deltas has not got the base's prefix.
    strays: bool,
}

impl<'a> Merge<'a> {
    /// Merges `deltas` (in any order) into `base`. Of several versions of a key the one with the highest
    /// (stamp, LSN) is kept. Tombstones with an LSN below `forget_below` are left out.
    pub(crate) fn new(
        base: Run<'a>,
        deltas: impl IntoIterator<Item = Run<'a>>,
        forget_below: u64,
    ) -> Merge<'a> {
        let deltas = deltas.into_iter();
        let expected = deltas.size_hint().0;
        // Most pages that a scan meets have none.
        if deltas.size_hint().1 == Some(0) && forget_below == 0 {
            let within = 0..base.count();
            return Merge { base, within, records: Vec::new(), changes: Vec::new(), strays: false };
        }
        let (mut scratch, mut strays) = (Vec::new(), false);
        let (mut heads, mut records) = (Vec::with_capacity(expected), Vec::with_capacity(expected));
        for delta in deltas {
            for index in 0..delta.count() {
                let (head, record) = cut(&base, delta.record(index), &mut strays, &mut scratch);
                let number = u32::try_from(records.len()).expect("deltas have fewer than 2^32 records");
                heads.push((head, number));
                records.push(record);
            }
        }
        let record = |head: &(u64, u32)| &records[head.1 as usize];
        let by_key = |left: &(u64, u32), right: &(u64, u32)| {
            left.0.cmp(&right.0).then_with(|| record(left).key.cmp(&record(right).key))
        };
        // Each delta is sorted by itself, which the sort makes use of. Newest first among equal keys.
        heads.sort_by(|left, right| {
            by_key(left, right).then_with(|| record(right).version().cmp(&record(left).version()))
        });
        let mut changes = Vec::with_capacity(heads.len());
        for (index, head) in heads.iter().enumerate() {
            if index == 0 || by_key(&heads[index - 1], head).is_ne() {
                let found = place(&base, head.0, &record(head).key, strays, &mut scratch);
                changes.extend(decide(&base, head.1, record(head), found, forget_below));
            }
        }
        let mut merge = Merge { base, within: 0..base.count(), records, changes, strays };
        merge.forget_old_tombstones(forget_below);
        merge
    }

    fn forget_old_tombstones(&mut self, forget_below: u64) {
        if self.base.tombstones() == 0 || forget_below == 0 {
            return;
        }
        let known = self.changes.len();
        for at in 0..self.base.count() {
            let replaced = self.changes[..known]
                .binary_search_by(|change| (change.at(), change.replaces).cmp(&(at, true)))
                .is_ok();
            if !replaced && self.base.is_tombstone(at) && self.base.record(at).lsn < forget_below {
                self.changes.push(Change { at: at as u32, record: NOTHING, replaces: true });
            }
        }
        // Insertions at a place come before the replacement of the record there. Stable, so that several
        // insertions at one place keep their order.
        self.changes.sort_by_key(|change| (change.at, change.replaces));
    }

    /// The base.
    pub(crate) fn base(&self) -> &Run<'a> {
        &self.base
    }

    /// The number of records.
    pub(crate) fn count(&self) -> usize {
        let (mut gone, mut come) = (0, 0);
        for change in &self.changes {
            gone += usize::from(change.replaces);
            come += usize::from(change.record != NOTHING);
        }
        self.within.len() - gone + come
    }

    /// Whether all of it begins with the base's prefix, as far as is easily known.
    pub(crate) fn keeps_prefix(&self) -> bool {
        !self.strays
    }

    /// Whether every record that the deltas bring lies behind the base's last one: an ascending load.
    pub(crate) fn is_append(&self) -> bool {
        self.changes.iter().all(|change| change.at() == self.base.count())
    }

    /// The content in key order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece<'_, 'a>> {
        self.pieces_within(self.start()..self.end())
    }

    /// Where the content begins.
    pub(crate) fn start(&self) -> Place {
        Place { base: self.within.start, change: 0 }
    }

    /// Where the content ends.
    pub(crate) fn end(&self) -> Place {
        Place { base: self.within.end, change: self.changes.len() }
    }

    /// The content between two places, in key order.
    pub(crate) fn pieces_within(&self, places: Range<Place>) -> impl Iterator<Item = Piece<'_, 'a>> {
        let mut from = places.start.base;
        let mut changes = self.changes[places.start.change..places.end.change].iter();
        let mut pending = None;
        std::iter::from_fn(move || {
            loop {
                if let Some(record) = pending.take() {
                    return Some(Piece::Record(record));
                }
                let change = changes.next();
                let until = change.map_or(places.end.base, |change| change.at());
                let stretch = from..until;
                match change {
                    Some(change) => {
                        from = change.at() + usize::from(change.replaces);
                        pending = change.record(&self.records);
                    }
                    None if stretch.is_empty() => return None,
                    None => from = until,
                }
                if !stretch.is_empty() {
                    return Some(Piece::Base(stretch));
                }
            }
        })
    }

    /// The layout of the content as a page: the base's, if it holds what is new.
    pub(crate) fn layout(&self) -> Layout {
        let layout = self.base.layout();
        let mut come = self.changes.iter().filter_map(|change| change.record(&self.records));
        // What made a page wide may be gone.
        if !layout.shape.is_wide() && come.all(|record| layout.holds(record)) {
            return layout;
        }
        Span::of(self.records()).layout()
    }

    /// Gives each record's place and bytes, its slot included, to `visit`, in key order; the bytes are those in a run of `shape` with
    /// the base's prefix, which it keeps.
    pub(crate) fn visit_sizes(&self, shape: Shape, mut visit: impl FnMut(Place, usize)) {
        let prefix_bytes = self.base.prefix().len();
        let bytes_in_base = |at| match self.base.layout().shape == shape {
            true => self.base.bytes_with_slot(at),
            false => shape.bytes_of(&self.base.record(at), prefix_bytes),
        };
        self.visit_places(|place, record| {
            let bytes = record.map(|record| shape.bytes_of(record, prefix_bytes));
            visit(place, bytes.unwrap_or_else(|| bytes_in_base(place.base)));
        });
    }

    /// Gives each record's place to `visit`, in key order, and the record unless it is the base's.
    #[inline]
    pub(super) fn visit_places(&self, mut visit: impl FnMut(Place, Option<&RecordRef<'a>>)) {
        let mut from = self.within.start;
        for number in 0..=self.changes.len() {
            let change = self.changes.get(number);
            for at in from..change.map_or(self.within.end, |change| change.at()) {
                visit(Place { base: at, change: number }, None);
            }
            let Some(change) = change else { break };
            if let Some(record) = change.record(&self.records) {
                visit(Place { base: change.at(), change: number }, Some(record));
            }
            from = change.at() + usize::from(change.replaces);
        }
    }

    /// The record at a place that [`Merge::visit_sizes`] has named.
    pub(crate) fn record_at(&self, place: Place) -> RecordRef<'a> {
        let change = self.changes.get(place.change).filter(|change| change.at() == place.base);
        match change.and_then(|change| change.record(&self.records)) {
            Some(record) => *record,
            None => self.base.record(place.base),
        }
    }

    /// The content in key order, record by record.
    pub(crate) fn records(&self) -> impl Iterator<Item = RecordRef<'a>> + '_ {
        self.pieces().flat_map(move |piece| {
            let (range, record) = match piece {
                Piece::Base(range) => (range, None),
                Piece::Record(record) => (0..0, Some(*record)),
            };
            range.map(|index| self.base.record(index)).chain(record)
        })
    }

    /// A few records of the base, and of the deltas, evenly.
    pub(super) fn samples(&self) -> impl Iterator<Item = RecordRef<'a>> + '_ {
        let of_base = (0..self.base.count()).step_by(self.base.count() / SAMPLES + 1);
        let of_deltas = self.records.iter().step_by(self.records.len() / SAMPLES + 1);
        of_base.map(|at| self.base.record(at)).chain(of_deltas.copied())
    }

    /// The first and the last record.
    pub(crate) fn ends(&self) -> Option<[RecordRef<'a>; 2]> {
        let mut last = None;
        self.visit(true, |piece| {
            last = Some(match piece {
                Piece::Base(range) => self.base.record(range.end - 1),
                Piece::Record(record) => *record,
            });
            false
        });
        Some([self.records().next()?, last?])
    }

    /// Gives the content to `visit`, piece by piece in key order or in reverse, until that returns false; whether it never has.
    #[inline]
    pub(crate) fn visit(&self, reverse: bool, mut visit: impl FnMut(Piece<'_, 'a>) -> bool) -> bool {
        let Range { start: mut from, end: mut until } = self.within;
        let mut changes = self.changes.iter();
        loop {
            // What of the base lies before the next change, in that order, and what comes with that.
            let change = if reverse { changes.next_back() } else { changes.next() };
            let stretch = match change {
                None => from..until,
                Some(change) if reverse => change.at() + usize::from(change.replaces)..until,
                Some(change) => from..change.at(),
            };
            let brought = change.and_then(|change| change.record(&self.records));
            if !stretch.is_empty() && !visit(Piece::Base(stretch)) {
                return false;
            }
            if brought.is_some_and(|record| !visit(Piece::Record(record))) {
                return false;
            }
            let Some(change) = change else { return true };
            if reverse {
                until = change.at();
            } else {
                from = change.at() + usize::from(change.replaces);
            }
        }
    }

    /// Leaves only what lies within the bounds. For a merge that forgets nothing.
    pub(crate) fn restrict(&mut self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) {
        // Most pages of a scan lie within it as they are, and so does what is on them.
        let (low, high) = (self.base.low(), self.base.high());
        let lower = match lower {
            Bound::Included(key) if key <= low => Bound::Unbounded,
            Bound::Excluded(key) if key < low => Bound::Unbounded,
            lower => lower,
        };
        let upper = match upper {
            Bound::Included(key) | Bound::Excluded(key) if high.is_some_and(|high| key >= high) => {
                Bound::Unbounded
            }
            upper => upper,
        };
        if (lower, upper) == (Bound::Unbounded, Bound::Unbounded) {
            return;
        }
        let start = match lower {
            Bound::Unbounded => 0,
            Bound::Included(key) => self.base.search(key).unwrap_or_else(|at| at),
            Bound::Excluded(key) => self.base.search(key).map_or_else(|at| at, |at| at + 1),
        };
        let end = match upper {
            Bound::Unbounded => self.base.count(),
            Bound::Included(key) => self.base.search(key).map_or_else(|at| at, |at| at + 1),
            Bound::Excluded(key) => self.base.search(key).unwrap_or_else(|at| at),
        };
        self.within = start..end.max(start);
        let records = &self.records;
        self.changes.retain(|change| {
            let Some(record) = change.record(records) else { return false };
            let above = match lower {
                Bound::Unbounded => true,
                Bound::Included(key) => record.key.compare_whole(key).is_ge(),
                Bound::Excluded(key) => record.key.compare_whole(key).is_gt(),
            };
            above
                && match upper {
                    Bound::Unbounded => true,
                    Bound::Included(key) => record.key.compare_whole(key).is_le(),
                    Bound::Excluded(key) => record.key.compare_whole(key).is_lt(),
                }
        });
    }

    /// Bytes of all records with their slots, in a run of `shape` with a prefix of `prefix_bytes`, which all have.
    pub(crate) fn records_bytes(&self, shape: Shape, prefix_bytes: usize) -> usize {
        if self.base.layout().shape != shape || self.base.prefix().len() != prefix_bytes {
            return self.records().map(|record| shape.bytes_of(&record, prefix_bytes)).sum();
        }
        let (mut gone, mut come) = (0, 0);
        for change in &self.changes {
            gone += if change.replaces { self.base.bytes_with_slot(change.at()) } else { 0 };
            come += change.record(&self.records).map_or(0, |record| shape.bytes_of(record, prefix_bytes));
        }
        let within = self.within.clone();
        shape.slot_bytes() * within.len() + self.base.record_bytes(within).len() + come - gone
    }
}
