//! Where to cut a page whose parts share longer prefixes than all of its keys do, each part judged by its own.
//!
//! What any of the keys share is told by what each shares with the one before it: two share the least of what lies between them. So
//! the bytes of ever longer ranges of records are found in one pass, but that they are counted anew where the prefix gets shorter.
//!
//! This takes longer than to judge by the bytes as they are (`split`), and is for the few pages where these say little.

use super::key::common_prefix_bytes;
use super::layout::Shape;
use super::merge::{Merge, Place};
use super::run::{BASE_HEADER_BYTES, RecordRef};
use super::split::{FILL_ASCENDING_PERCENT, FILL_EVEN_PERCENT, Part};
use super::writer::{BOUNDS_COUNTED, Bounds};
use std::cmp::{max, min};
use std::ops::Range;

/// A record as far as it matters here.
struct Item<'a> {
    place: Place,
    record: RecordRef<'a>,
    /// How much its key shares with the one before it; the first one's with the low key of the page.
    shared: usize,
}

/// The content of a page that is to be cut.
pub(super) struct Ranges<'a> {
    items: Vec<Item<'a>>,
    shape: Shape,
    bounds: Bounds<'a>,
    /// How much the last key shares with the high key of the page.
    shared_with_high: usize,
    is_append: bool,
    page_bytes_max: usize,
}

impl<'a> Ranges<'a> {
    /// The content of `merge`, whose page has these bounds.
    pub(super) fn new(
        merge: &Merge<'a>,
        bounds: &Bounds<'a>,
        shape: Shape,
        page_bytes_max: usize,
    ) -> Ranges<'a> {
        let mut before = bounds.low.to_vec();
        let mut items = Vec::with_capacity(merge.count());
        merge.visit_places(|place, record| {
            let record = record.copied().unwrap_or_else(|| merge.base().record(place.base));
            let shared = record.key.shared_bytes(&before);
            before.clear();
            record.append_key_to(&mut before);
            items.push(Item { place, record, shared });
        });
        let shared_with_high = bounds.high.map_or(0, |high| common_prefix_bytes(&before, high));
        let is_append = merge.is_append();
        Ranges { items, shape, bounds: *bounds, shared_with_high, is_append, page_bytes_max }
    }

    /// The parts: at least two, if there are two records.
    pub(super) fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut push = |range: Range<usize>| {
            let Item { place: from, record, .. } = &self.items[range.start];
            let mut low = Vec::new();
            match range.start {
                0 => low.extend_from_slice(self.bounds.low),
                _ => record.append_key_to(&mut low),
            }
            low.truncate(self.low_bytes(&range));
            parts.push(Part { from: *from, last: self.items[range.end - 1].place, count: range.len(), low });
        };
        if self.is_append {
            self.fill(&mut push)
        } else {
            self.halve(0..self.items.len(), &mut push)
        }
        parts
    }

    /// Full parts, and what is left.
    fn fill(&self, push: &mut impl FnMut(Range<usize>)) {
        let full = self.page_bytes_max * FILL_ASCENDING_PERCENT / 100;
        let (mut from, count) = (0, self.items.len());
        while from < count {
            // All of it is too long by what the caller has found.
            let most = if from == 0 { count - 1 } else { count };
            let ever_longer = self.bytes((from + 1..=most).map(|end| from..end));
            let fitting = ever_longer.take_while(|&bytes| bytes <= full).count();
            push(from..from + max(fitting, 1));
            from += max(fitting, 1);
        }
    }

    /// Two parts, the larger of which is as small as can be; and these again, while they are too full.
    fn halve(&self, range: Range<usize>, push: &mut impl FnMut(Range<usize>)) {
        let Range { start, end } = range;
        let lefts = self.bytes((start + 1..end).map(|cut| start..cut));
        let mut rights: Vec<usize> = self.bytes((start + 1..end).rev().map(|cut| cut..end)).collect();
        rights.reverse();
        let larger = lefts.zip(&rights).map(|(left, &right)| max(left, right));
        let Some((cut, _)) = (start + 1..end).zip(larger).min_by_key(|(_, larger)| *larger) else {
            return push(range);
        };
        for part in [start..cut, cut..end] {
            match self.bytes_of(part.clone()) > self.page_bytes_max * FILL_EVEN_PERCENT / 100 {
                true => self.halve(part, push),
                false => push(part),
            }
        }
    }

    /// What of a part counts.
    pub(super) fn bytes_of(&self, range: Range<usize>) -> usize {
        self.bytes(std::iter::once(range)).sum()
    }

    /// What of a part that is each of these ranges counts, each of which goes on beyond the one before.
    fn bytes(&self, ranges: impl Iterator<Item = Range<usize>>) -> impl Iterator<Item = usize> {
        let mut known: Option<Range<usize>> = None;
        let (mut shared, mut prefix_bytes, mut bytes) = (usize::MAX, usize::MAX, 0);
        ranges.map(move |range| {
            let before = known.replace(range.clone()).unwrap_or(range.start..range.start + 1);
            let (left, right) = (range.start..before.start, before.end..range.end);
            let seams = left.clone().map(|at| at + 1).chain(right.clone());
            shared = seams.map(|at| self.items[at].shared).fold(shared, min);
            let prefix = self.prefix_bytes(&range, shared);
            let bytes_of = |at: usize| self.shape.bytes_of(&self.items[at].record, prefix);
            bytes = match prefix == prefix_bytes {
                true => bytes + left.chain(right).map(bytes_of).sum::<usize>(),
                false => range.clone().map(bytes_of).sum(),
            };
            prefix_bytes = prefix;
            let own =
                (self.low_bytes(&range) + self.high_bytes(&range)).min(self.page_bytes_max / BOUNDS_COUNTED);
            BASE_HEADER_BYTES + self.shape.header_bytes() + own + bytes
        })
    }

    /// The longest prefix in bytes of a part of which any two neighbours share at least `shared`: see [`Plan`](super::writer::Plan).
    fn prefix_bytes(&self, range: &Range<usize>, shared: usize) -> usize {
        let low_bytes = self.low_bytes(range);
        let shared_with_high = self.items.get(range.end).map_or(self.shared_with_high, |next| next.shared);
        match shared.min(shared_with_high) {
            with_high if with_high > low_bytes => with_high,
            _ if range.start == 0 => shared.min(self.items[0].shared),
            _ => shared.min(low_bytes),
        }
    }

    /// Bytes of the low key of a part: it ends where the first record's key differs from the one before.
    fn low_bytes(&self, range: &Range<usize>) -> usize {
        if range.start == 0 { self.bounds.low.len() } else { self.items[range.start].shared + 1 }
    }

    fn high_bytes(&self, range: &Range<usize>) -> usize {
        match self.items.get(range.end) {
            Some(next) => next.shared + 1,
            None => self.bounds.high.map_or(0, <[u8]>::len),
        }
    }
}
