//! Rows: pages that must be read before they can be flushed, read and consolidated together, ahead of the flush.
//!
//! A page that has as many fragments as it may is written in full the next time, and what of it is not in memory must be read for that.
//! Read one by one, a page costs as many random reads as it has fragments. But every flush goes over the pages in the order of
//! their identifiers, so what it writes of neighbours lies side by side. So where a page is due, by itself or as those of its stretch have enough fragments on average, all of its *stretch* of identifiers that have some
//! fragments are prepared with it, as a *row*. Rows have the same bounds each time: what was written side by side is read side by side,
//! the full fragments in a few long reads, and of each flush since what lies in one or two blocks. Pages are rewritten a little before they are due, for
//! a tenth of the reads.
//!
//! A row is read and consolidated without the flush lock, by whoever has time ([`Llama::prepare_step`]): those who write more than is flushed. Where a flush comes to a page
//! that is due it *leaves* its row and goes on; each flush prepares one of those that are left (or a few, until they fill a buffer), when it has filled its buffer with others:
//! so none takes much longer than others, and memory does not grow by several rows at once. While a row is left, or *in the making*, the flush passes its
//! pages; once it is *ready* they are what is flushed next, wherever the flush is in its revolution. Whole pages in memory take as much as twenty
//! deltas: left to the next revolution, those that the flush has passed meanwhile would take the memory that deltas are to gather in.
//! Several rows may be in the making. A consolidated page is a new base, which the flush writes in full
//! whatever it was before; so preparing a page decides nothing that must be remembered, and nothing is lost with these lists but time.

use crate::error::LlamaError;
use crate::fragments::Sizes;
use crate::llama::Llama;
use crate::page_id::PageId;
use crate::snapshot::PageState;
use crate::sync::{MutexGuard, Ordering};
use std::collections::VecDeque;
use std::sync::PoisonError;

/// Identifiers of a stretch, of which the pages of a row are: the first of them is a multiple of it.
const STRETCH: u64 = 256;
/// The part of the fragments, or of what they take, that it may have, which a page of the stretch must have to be taken along.
const TAKEN_ALONG: u64 = 4;
/// How many times what its full fragment takes the deltas of a page may take, while those of its stretch take less than their full fragments.
const DELTAS_MAX: u64 = 2;
/// The part of the memory that the fragments of a row may take.
const SHARE: u64 = 64;
/// Rows that wait for the flush at most.
const AHEAD_MAX: usize = 4;
/// How often the pages of a row are read together at most.
const LOADED_TIMES: usize = 2;
/// How far ahead of the flush they are looked for.
const AHEAD_IDENTIFIERS: u64 = 8192;
/// Dirty pages that one step looks at to find a row.
const LOOKED_AT: usize = 1024;
/// Rows that flushes have left, at most.
const LEFT_MAX: usize = 4;

/// What is being prepared, and what is.
#[derive(Default)]
pub(crate) struct Rows {
    /// Pages from here on have not been looked at, in this revolution of the flush.
    hand: u64,
    /// Where the flush was seen last.
    seen: u64,
    /// Rows that flushes have left, and nobody has begun to read.
    left: VecDeque<Row>,
    /// Rows that somebody is reading and consolidating.
    making: Vec<Row>,
    /// Pages of rows that have been prepared and wait for the flush, row by row.
    ready: VecDeque<PageId>,
}

/// A row.
#[derive(Clone)]
struct Row {
    /// The page for the sake of which it is prepared.
    due: PageId,
    /// In order.
    pages: Vec<PageId>,
    /// What their fragments take.
    bytes: u64,
}

/// Rows in the making.
struct Making<'l> {
    llama: &'l Llama,
    due: Vec<PageId>,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.llama.rows().making.retain(|row| !self.due.contains(&row.due));
    }
}

impl Rows {
    /// Takes note of where the flush is.
    fn follow(&mut self, flush: u64) {
        if flush < self.seen {
            // It has begun another revolution.
            self.hand = 0;
        }
        self.seen = flush;
        self.hand = self.hand.max(flush);
    }

    /// Whether `page` is of a row that is left, or in the making.
    fn has(&self, page: PageId) -> bool {
        self.left.iter().chain(&self.making).any(|row| row.pages.binary_search(&page).is_ok())
    }

    /// Pages that the flush has still to write.
    fn waiting(&self) -> usize {
        let rows = self.left.iter().chain(&self.making);
        rows.map(|row| row.pages.len()).sum::<usize>() + self.ready.len()
    }
}

impl Llama {
    /// Reads and consolidates pages that a flush has left, or will soon come to and would have to leave, unless enough of them wait; whether it
    /// did. For those who would otherwise wait for the flush; any number of threads at once.
    ///
    /// A page that cannot be read is in nobody's way: it is [flushed](Llama::flush_step) as what is known of it.
    ///
    /// # Errors
    /// [`LlamaError::Poisoned`]: no flush will come.
    pub fn prepare_step(&self) -> Result<bool, LlamaError> {
        self.store.check()?;
        if self.prepare_left() {
            return Ok(true);
        }
        let mut rows = self.rows();
        // Relaxed: a hint of where to look. Where nothing is dirty any more the flush goes on with the first page.
        let hand = PageId(self.flush_hand.load(Ordering::Relaxed));
        rows.follow(self.table.next_dirty(hand, self.pages.end()).map_or(1, |_| hand.0));
        // Others than the flush may have written them: a checkpoint.
        while rows.ready.pop_front_if(|page| !self.table.is_dirty(*page)).is_some() {}
        if rows.waiting() > (AHEAD_MAX - 1) * STRETCH as usize {
            return Ok(false);
        }
        let end = self.pages.end().min(PageId(rows.seen + AHEAD_IDENTIFIERS));
        let dirty = std::iter::successors(self.table.next_dirty(PageId(rows.hand), end), |&page| {
            self.table.next_dirty(PageId(page.0 + 1), end)
        });
        let mut behind = rows.hand;
        let due = dirty
            .take(LOOKED_AT)
            .inspect(|page| behind = page.0 + 1)
            .find(|&page| self.is_due(page) && !rows.has(page));
        rows.hand = behind;
        let Some(due) = due else { return Ok(false) };
        let row = self.row_of(&mut rows, due);
        self.prepare(rows, vec![row]);
        Ok(true)
    }

    /// Reads and consolidates a row that flushes have left, or a few small ones, if there is one; whether it did. To be called without the flush lock.
    pub(crate) fn prepare_left(&self) -> bool {
        let mut rows = self.rows();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < self.options.flush_buffer_bytes as u64
            && let Some(row) = rows.left.pop_front()
        {
            bytes += row.bytes;
            taken.push(row);
        }
        let is_any = !taken.is_empty();
        if is_any {
            self.prepare(rows, taken);
        }
        is_any
    }

    /// Reads and consolidates some pages that have more than one fragment, so that the flush writes them in full and what they had before is
    /// dead; for compaction. `from` is where to begin, the first page at first; the answer is where to go on, `None` at the end. Those that cannot be read stay as they are
    /// ([`Llama::unreadable_pages`]).
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// let mut from = Some(deuteron_llama::PageId(1));
    /// while let Some(page) = from {
    ///     from = llama.unite_step(page);
    /// }
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn unite_step(&self, from: PageId) -> Option<PageId> {
        let (mut row, mut page) = (Vec::new(), from);
        let mut room = self.options.memory_bytes / SHARE;
        while page < self.pages.end() && row.len() < STRETCH as usize {
            if self.table.fragment_count(page) > 1 && self.is_used(page) {
                let bytes = self.table.sizes(page).bytes();
                if bytes > room && !row.is_empty() {
                    break;
                }
                room = room.saturating_sub(bytes);
                row.push(page);
            }
            page = PageId(page.0 + 1);
        }
        self.counters.rows_prepared.add(1);
        self.counters.rows_pages.add(row.len() as u64);
        // All of them, however often one is evicted meanwhile: nobody comes back to a page that is left out.
        let _ = self.load_pages(&row, self.in_flight());
        self.consolidate(&row);
        (page < self.pages.end()).then_some(page)
    }

    fn is_used(&self, page: PageId) -> bool {
        let guard = self.epochs.pin();
        !matches!(self.snapshot(page, &guard).state(), PageState::Free)
    }

    /// The next page that is ready to be flushed.
    pub(crate) fn next_ready(&self) -> Option<PageId> {
        let mut rows = self.rows();
        std::iter::from_fn(|| rows.ready.pop_front()).find(|&page| self.table.is_dirty(page))
    }

    /// Whether somebody is about to prepare `page`, so that a flush need not.
    pub(crate) fn is_in_the_making(&self, page: PageId) -> bool {
        self.rows().has(page)
    }

    /// Leaves the row of `page`, which a flush has come to and which must be read before, for [`Llama::prepare_left`], unless somebody is preparing it. `false` if too many
    /// are left.
    pub(crate) fn leave_row(&self, page: PageId) -> bool {
        let mut rows = self.rows();
        if rows.has(page) {
            return true;
        }
        let has_room = rows.left.len() < LEFT_MAX;
        if has_room {
            let row = self.row_of(&mut rows, page);
            rows.left.push_back(row);
        }
        has_room
    }

    /// The row of `due`, of which nobody has one yet.
    fn row_of(&self, rows: &mut Rows, due: PageId) -> Row {
        let (row, end) = self.row(rows, due);
        if (due.0..end).contains(&rows.hand) {
            rows.hand = end;
        }
        row
    }

    /// Reads and consolidates `taken`, which are what is flushed next. What of it cannot be read is met again when it is its turn.
    fn prepare(&self, mut rows: MutexGuard<'_, Rows>, taken: Vec<Row>) {
        let due: Vec<PageId> = taken.iter().map(|row| row.due).collect();
        let pages: Vec<PageId> = taken.iter().flat_map(|row| row.pages.iter().copied()).collect();
        rows.making.extend(taken);
        drop(rows);
        let making = Making { llama: self, due: due.clone() };
        self.counters.rows_prepared.add(due.len() as u64);
        let loaded = self.load_and_consolidate(&pages);
        self.rows().ready.extend(pages);
        drop(making);
        // Not without need: they may have been flushed, and have left memory.
        if loaded.is_err() {
            due.into_iter().for_each(|page| self.load_for_flush(page));
        }
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What of `pages` is missing then was evicted meanwhile, or written by somebody else: it is not read page by page.
    fn load_and_consolidate(&self, pages: &[PageId]) -> Result<(), LlamaError> {
        self.counters.rows_pages.add(pages.len() as u64);
        let mut loaded = Ok(());
        let mut left = pages.to_vec();
        // Again, as those that are not consolidated may be evicted while the others are read, where memory is short.
        for _ in 0..LOADED_TIMES {
            loaded = loaded.and(self.load_once(&left, self.in_flight()));
            self.consolidate(&left);
            left.retain(|&page| self.is_missing(page));
        }
        loaded
    }

    fn consolidate(&self, pages: &[PageId]) {
        if let Some(method) = self.access_method() {
            pages.iter().for_each(|&page| method.consolidate(page));
        }
    }

    /// The row of `due`, and the identifier behind it.
    fn row(&self, rows: &Rows, due: PageId) -> (Row, u64) {
        let from = due.0 - due.0 % STRETCH;
        let end = self.pages.end().0.min(from + STRETCH);
        let bytes_max = self.options.memory_bytes / SHARE;
        let mut row = Row { due, pages: Vec::new(), bytes: 0 };
        let wanted = (from..end).map(PageId).filter(|&page| {
            page == due || (self.is_taken_along(page) || self.is_due(page)) && !rows.has(page)
        });
        for page in wanted {
            let bytes = self.table.sizes(page).bytes();
            if row.bytes + bytes > bytes_max {
                if page > due {
                    return (row, page.0);
                }
                // What lies before is left for its own row.
                (row.pages, row.bytes) = (Vec::new(), 0);
            }
            row.bytes += bytes;
            row.pages.push(page);
        }
        (row, end)
    }

    /// Whether `page`, whose fragments take so much, is written in full next: it has as many fragments as a page may have, or those of its stretch have on average about half as many; or a third
    /// as many if it is in memory as a whole.
    pub(crate) fn are_enough(&self, page: PageId, sizes: Sizes, is_partial: bool) -> bool {
        let max = self.options.fragments_max as u64;
        if !is_partial {
            return sizes.reach(max_of_whole(max));
        }
        let mean = mean_of_stretch(max, page.0 / STRETCH);
        sizes.count >= max
            || sizes.deltas > DELTAS_MAX * sizes.full
            || sizes.reach(mean) && self.is_stretch_due(page, mean)
    }

    /// Whether the pages of the stretch of `page` have `mean` fragments on average, or their deltas take more than their full fragments.
    fn is_stretch_due(&self, page: PageId, mean: u64) -> bool {
        let from = page.0 - page.0 % STRETCH;
        let end = self.pages.end().0.min(from + STRETCH);
        let (sizes, pages) = self.table.sizes_of(PageId(from)..PageId(end));
        sizes.reach(mean * pages)
    }

    /// Whether `page` must be read before it can be flushed; a guess that is seldom wrong.
    fn is_due(&self, page: PageId) -> bool {
        // The entry first: most pages need not be looked at any further.
        let is_moved = self.table.wants_rewrite(page);
        if !is_moved && !self.are_enough(page, self.table.sizes(page), true) || !self.table.is_dirty(page) {
            return false;
        }
        self.is_unread(page, is_moved)
    }

    /// Whether `page`, a neighbour of one that is due, is read, consolidated and so written in full along with it, though it may be clean.
    fn is_taken_along(&self, page: PageId) -> bool {
        let Sizes { count, full, deltas } = self.table.sizes(page);
        let enough = (self.options.fragments_max as u64 / TAKEN_ALONG).max(2);
        (count >= enough || deltas * TAKEN_ALONG > full * DELTAS_MAX) && self.is_unread(page, true)
    }

    /// Whether a part of `page` is not in memory; `stored` if nothing of it is.
    fn is_unread(&self, page: PageId, stored: bool) -> bool {
        let guard = self.epochs.pin();
        match self.snapshot(page, &guard).state() {
            PageState::Free => false,
            PageState::Stored(_) => stored,
            PageState::Resident(head) => head.is_partial(),
        }
    }
}

/// How many fragments the pages of a stretch may have on average, where one may have `max`: half as many, or up to a third less than that, by the number of the stretch: so that what was loaded at once
/// does not become due at once, while the device does nothing before and falls behind then.
fn mean_of_stretch(max: u64, stretch: u64) -> u64 {
    let mean = (max / 2).max(2).min(max);
    // The fractions of the multiples of the golden ratio are as far apart as they can be.
    let fraction = stretch.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mean - ((fraction * (mean / 3)) >> 32)
}

/// A third of `max`, but two if there may be so many: for a page that is in memory as a whole.
fn max_of_whole(max: u64) -> u64 {
    (max / 3).max(2).min(max)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_due_at_different_times() {
        let mean: Vec<u64> = (0..8).map(|stretch| mean_of_stretch(24, stretch)).collect();
        assert_eq!(mean, [12, 10, 12, 9, 11, 12, 10, 11]);
        assert_eq!(max_of_whole(24), 8);
        for max in 1..=5 {
            assert!((0..100).all(|stretch| mean_of_stretch(max, stretch) == max.min(2)));
            assert_eq!(max_of_whole(max), max.min(2));
        }
    }
}
