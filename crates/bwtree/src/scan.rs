//! Range scans, a leaf at a time.
//!
//! A scan reads each leaf as of one snapshot, whose bounds say where to go on: forward at its high key, backward
//! below its low key. While it keeps its guard it goes on to the right sibling as that snapshot names it, without the
//! index: what that page was merged into, or has split off, leads on as everywhere else, and its identifier is nobody
//! else's under this guard. A leaf that was merged meanwhile reaches into what has been read already; of every leaf only
//! what lies beyond is taken, so what is read is disjoint and leaves no gap, whatever splits and merges happen between.
//! Every operation that was complete before a leaf was read is seen; operations during the scan may be.
//!
//! A reverse scan has no left siblings to follow. It descends to the page that holds the keys *just below* the bound.

use crate::chain::{FIRST_LINES, WholeChain};
use crate::error::Miss;
use crate::interruption::{Moment, strike};
use crate::merging::Heir;
use crate::page::merge::{Merge, Piece};
use crate::page::run::{RecordRef, Run};
use crate::page::stretch::Stretch;
use crate::{BwTreeError, Tree};
use deuteron_epoch::Guard;
use deuteron_llama::{PageId, PageState};
use smallvec::SmallVec;
use std::ops::{Bound, Range};

/// So many leaves are read under one guard at most.
const LEAVES_MAX: usize = 8;

/// A bound: short keys, as most are, lie in place.
type Key = SmallVec<[u8; 24]>;

/// Where a scan is: the part of its range that it has still to read.
#[derive(Clone, Debug)]
pub struct Cursor {
    lower: Bound<Key>,
    upper: Bound<Key>,
    reverse: bool,
    bytes_left: usize,
    records_left: usize,
    state: CursorState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CursorState {
    Reading,
    Full,
    Complete,
}

fn as_slice(bound: &Bound<Key>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

fn is_empty(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low >= high
        }
        (Bound::Unbounded, Bound::Excluded(high)) => high.is_empty(),
        _ => false,
    }
}

impl Cursor {
    /// A scan of the keys between `lower` and `upper`, from the lower end or in reverse from the upper, that ends
    /// when it has read about `bytes_max` bytes of keys and values, and at least one record.
    pub fn new(lower: Bound<&[u8]>, upper: Bound<&[u8]>, reverse: bool, bytes_max: usize) -> Cursor {
        let state = if is_empty(lower, upper) { CursorState::Complete } else { CursorState::Reading };
        Cursor {
            lower: lower.map(Key::from_slice),
            upper: upper.map(Key::from_slice),
            reverse,
            bytes_left: bytes_max,
            records_left: usize::MAX,
            state,
        }
    }

    /// The same, which also ends when it has read `records_max` records that are no tombstones, and at least one.
    pub fn records_max(self, records_max: usize) -> Cursor {
        Cursor { records_left: records_max, ..self }
    }

    /// Whether there is nothing more to read: the range is exhausted or the bytes are.
    pub fn is_done(&self) -> bool {
        self.state != CursorState::Reading
    }

    /// Whether the whole range has been read.
    pub fn is_complete(&self) -> bool {
        self.state == CursorState::Complete
    }

    pub(crate) fn is_reverse(&self) -> bool {
        self.reverse
    }

    /// The part of the range that is still to be read.
    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (as_slice(&self.lower), as_slice(&self.upper))
    }

    /// How many bytes of keys and values may still be read.
    pub fn bytes_left(&self) -> usize {
        self.bytes_left
    }

    /// How many records that are no tombstones may still be read.
    pub fn records_left(&self) -> usize {
        self.records_left
    }

    /// Counts what has been read; `false` if that is enough.
    #[inline]
    fn count(&mut self, bytes: usize, records: usize) -> bool {
        let goes_on = bytes < self.bytes_left && records < self.records_left;
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        self.records_left = self.records_left.saturating_sub(records);
        if !goes_on {
            self.state = CursorState::Full;
        }
        goes_on
    }

    /// Gives a record to `read`; `false` if it is the last.
    #[inline]
    fn take<'a>(&mut self, record: &RecordRef<'a>, read: &mut impl FnMut(&Stretch<'a>)) -> bool {
        read(&Stretch::of_one(record));
        let bytes = record.key_bytes() + record.value.map_or(0, <[u8]>::len);
        self.count(bytes, usize::from(record.value.is_some()))
    }

    /// Gives the records of `base` in `range` to `read`; `false` if that has had enough before their end.
    #[inline]
    fn take_stretch<'a>(
        &mut self,
        base: &Run<'a>,
        mut range: Range<usize>,
        read: &mut impl FnMut(&Stretch<'a>),
    ) -> bool {
        while !range.is_empty() {
            let first = |count: usize| match self.reverse {
                true => range.end - count..range.end,
                false => range.start..range.start + count,
            };
            let (mut count, mut values) =
                base.first_values(range.clone(), self.records_left.max(1), self.reverse);
            let mut bytes = base.entry_bytes_max(first(count));
            while bytes >= self.bytes_left && count > 1 {
                // Half of them: all may be too many.
                count /= 2;
                (bytes, values) = (base.entry_bytes_max(first(count)), base.values(first(count)));
            }
            let taken = first(count);
            read(&Stretch::of_run(base, taken.clone(), self.reverse));
            if !self.count(bytes, values) {
                return false;
            }
            match self.reverse {
                true => range.end = taken.start,
                false => range.start = taken.end,
            }
        }
        true
    }

    /// Goes on behind a leaf that has been read to its end.
    fn pass(&mut self, leaf: &Run<'_>) {
        let rest = if self.reverse {
            self.upper = Bound::Excluded(Key::from_slice(leaf.low()));
            !leaf.low().is_empty()
        } else {
            match leaf.high() {
                Some(high) => self.lower = Bound::Included(Key::from_slice(high)),
                None => self.state = CursorState::Complete,
            }
            leaf.high().is_some()
        };
        if !rest || is_empty(as_slice(&self.lower), as_slice(&self.upper)) {
            self.state = CursorState::Complete;
        }
    }
}

impl Tree {
    /// Reads what `cursor` wants of the next few leaves, and gives it to `read`, in order; then the cursor stands behind these
    /// leaves. Call it until [`Cursor::is_done`], with a fresh guard now and then.
    ///
    /// # Errors
    /// [`Miss`] if a leaf must be loaded first; the cursor stands where that leaf begins.
    #[inline]
    pub fn try_scan_leaves(
        &self,
        cursor: &mut Cursor,
        guard: &Guard<'_>,
        mut read: impl FnMut(&Stretch<'_>),
    ) -> Result<(), Miss> {
        let mut sibling = None;
        for _ in 0..LEAVES_MAX {
            if cursor.is_done() {
                break;
            }
            let chain = self.leaf(cursor, sibling, guard)?;
            strike(Moment::Step);
            let mut merge = Merge::new(chain.base, chain.deltas(), 0);
            merge.restrict(as_slice(&cursor.lower), as_slice(&cursor.upper));
            if !cursor.reverse && merge.count() < cursor.records_left {
                self.ask_for_sibling(&chain.base, guard);
            }
            let to_the_end = merge.visit(cursor.reverse, |piece| match piece {
                Piece::Base(range) => cursor.take_stretch(&chain.base, range, &mut read),
                Piece::Record(record) => cursor.take(record, &mut read),
            });
            if to_the_end {
                cursor.pass(&chain.base);
                sibling = (!cursor.reverse).then(|| chain.base.right());
            }
        }
        Ok(())
    }

    /// Scans until the cursor is done, loading pages if need be.
    ///
    /// # Errors
    /// [`BwTreeError::Load`] if a page cannot be loaded; what was read before stands.
    pub fn scan(&self, cursor: &mut Cursor, mut read: impl FnMut(&RecordRef<'_>)) -> Result<(), BwTreeError> {
        while !cursor.is_done() {
            // A guard for a few leaves, so that a long scan does not hold up reclamation.
            let scanned = self.try_scan_leaves(cursor, &self.llama.pin(), |stretch| {
                stretch.visit(&mut read);
            });
            if let Err(Miss(page)) = scanned {
                self.load(page)?;
            }
        }
        Ok(())
    }

    /// Asks the processor for the leaf to the right of `leaf`, whose records are about to be read. A hint: the scan may end before.
    #[inline]
    fn ask_for_sibling(&self, leaf: &Run<'_>, guard: &Guard<'_>) {
        let right = leaf.right();
        if right.is_none() {
            return;
        }
        if let PageState::Resident(head) = self.llama.snapshot(right, guard).state() {
            head.prefetch(0..FIRST_LINES);
        }
    }

    /// The leaf in which the cursor's range begins, which is not to the left of `sibling`: that was the right sibling, read under this guard, of the
    /// leaf behind which the cursor stands.
    fn leaf<'g>(
        &self,
        cursor: &Cursor,
        sibling: Option<PageId>,
        guard: &'g Guard<'_>,
    ) -> Result<WholeChain<'g>, Miss> {
        let start = if cursor.reverse { as_slice(&cursor.upper) } else { as_slice(&cursor.lower) };
        let find = || match start {
            Bound::Unbounded if cursor.reverse => self.index.find_before(None, guard),
            Bound::Excluded(key) if cursor.reverse => self.index.find_before(Some(key), guard),
            Bound::Unbounded => self.index.find(&[], guard),
            Bound::Included(key) | Bound::Excluded(key) => self.index.find(key, guard),
        };
        let mut page = sibling.unwrap_or_else(find);
        loop {
            let Some(head) = self.resident(page, guard)? else {
                page = find();
                continue;
            };
            if head.is_sealed()
                && let Heir::Merged(heir) = self.heir_of(page, head, guard)?
            {
                page = heir;
                continue;
            }
            let chain = WholeChain::new(head).ok_or(Miss(page))?;
            let beyond = chain.base.high().filter(|high| match start {
                Bound::Unbounded => cursor.reverse,
                Bound::Excluded(key) if cursor.reverse => key > *high,
                Bound::Included(key) | Bound::Excluded(key) => key >= *high,
            });
            match beyond {
                Some(high) => page = self.go_right(page, high, chain.base.right(), guard)?,
                None => return Ok(chain),
            }
        }
    }
}
