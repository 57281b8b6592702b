//! Rows: pages that must be read before they can be flushed, read and consolidated together, ahead of the flush.
//!
//! A page that has as many fragments as it may is written in full the next time, and what of it is not in memory must be read for that.
//! Read one by one, a page costs as many random reads as it has fragments. But every flush goes over the pages in the order of
//! their identifiers, so what it writes of neighbours lies side by side, and if neighbours are written in full together, their
//! next full fragments do, too. So the pages are prepared a *row* at a time: those of a stretch of identifiers that are due, and those that
//! have half as many fragments as they may, so that neighbours become due together. Their reads are few and long. Others in between are left
//! alone: to write them in full that early costs more than their reads save.
//!
//! A row is read and consolidated without the flush lock, by the flusher that comes to it, or before, by whoever else has time
//! ([`Llama::prepare_step`]): those who write more than is flushed. Several rows may be in the making. A consolidated page is a new base, which the flush writes in full
//! whatever it was before; so preparing a page decides nothing that must be remembered.

use crate::error::LlamaError;
use crate::flash_address::FlashAddress;
use crate::llama::Llama;
use crate::page_id::PageId;
use crate::snapshot::PageState;
use crate::sync::{MutexGuard, Ordering};
use std::collections::VecDeque;
use std::sync::{PoisonError, Weak};

/// Pages of a row at most: who needs one of them waits for all.
const PAGES_MAX: usize = 32;
/// Identifiers from the first page of a row to the last at most.
const STRETCH: u64 = 1024;
/// The part of the memory that the fragments of a row may take.
const SHARE: u64 = 64;
/// Rows that wait for the flush at most.
const AHEAD_MAX: usize = 4;
/// How far ahead of the flush they are looked for.
const AHEAD_IDENTIFIERS: u64 = 8 * STRETCH;
/// Dirty pages that one step looks at to find a row.
const LOOKED_AT: usize = 1024;
/// The rows that wait for the flush.
#[derive(Default)]
pub(crate) struct Rows {
    /// Pages from here on have not been looked at, in this revolution of the flush.
    hand: u64,
    /// Where the flush was seen last.
    seen: u64,
    /// The identifiers behind the rows that wait, in order.
    ends: VecDeque<u64>,
}

impl Rows {
    /// Takes note of where the flush is.
    fn follow(&mut self, flush: u64) {
        if flush < self.seen {
            // It has begun another revolution.
            *self = Rows::default();
        }
        self.seen = flush;
        self.hand = self.hand.max(flush);
        while self.ends.front().is_some_and(|&end| end <= flush) {
            self.ends.pop_front();
        }
    }
}

impl Llama {
    /// Reads and consolidates pages that the flush will soon come to and would have to read itself, unless enough of them wait; whether it
    /// did. For those who would otherwise wait for the flush; any number of threads at once.
    ///
    /// # Errors
    /// As [`Llama::load_many`].
    pub fn prepare_step(&self) -> Result<bool, LlamaError> {
        let mut rows = self.rows();
        // Relaxed: a hint of where to look. Where nothing is dirty any more the flush goes on with the first page.
        let hand = PageId(self.flush_hand.load(Ordering::Relaxed));
        rows.follow(self.table.next_dirty(hand, self.pages.end()).map_or(1, |_| hand.0));
        if rows.ends.len() >= AHEAD_MAX {
            return Ok(false);
        }
        let end = self.pages.end().min(PageId(rows.seen + AHEAD_IDENTIFIERS));
        let dirty = std::iter::successors(self.table.next_dirty(PageId(rows.hand), end), |&page| {
            self.table.next_dirty(PageId(page.0 + 1), end)
        });
        let due =
            dirty.take(LOOKED_AT).inspect(|page| rows.hand = page.0 + 1).find(|&page| self.is_due(page));
        let Some(first) = due else { return Ok(false) };
        let (row, end) = self.row(first);
        rows.hand = end;
        rows.ends.push_back(end);
        drop(rows);
        self.prepare_row(&row).map(|()| true)
    }

    /// Reads and consolidates some pages that have more than one fragment, so that the flush writes them in full and what they had before is
    /// dead; for compaction. `from` is where to begin, the first page at first; the answer is where to go on, `None` at the end.
    ///
    /// # Errors
    /// As [`Llama::load_many`].
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// let mut from = Some(deuteron_llama::PageId(1));
    /// while let Some(page) = from {
    ///     from = llama.unite_step(page)?;
    /// }
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn unite_step(&self, from: PageId) -> Result<Option<PageId>, LlamaError> {
        let (mut row, mut page) = (Vec::new(), from);
        while page < self.pages.end() && row.len() < PAGES_MAX {
            if self.table.fragments(page).len() > 1 && self.is_used(page) {
                row.push(page);
            }
            page = PageId(page.0 + 1);
        }
        self.prepare_row(&row)?;
        Ok((page < self.pages.end()).then_some(page))
    }

    fn is_used(&self, page: PageId) -> bool {
        let guard = self.epochs.pin();
        !matches!(self.snapshot(page, &guard).state(), PageState::Free)
    }

    /// Prepares `page`, which the flush has come to, and which must be read before; and the row that begins with it, unless that is being
    /// prepared already.
    pub(crate) fn prepare_for_flush(&self, page: PageId) -> Result<(), LlamaError> {
        let mut rows = self.rows();
        rows.follow(page.0);
        if rows.hand <= page.0 && self.is_due(page) {
            let (row, end) = self.row(page);
            rows.hand = end;
            drop(rows);
            // What fails is met again when it is its turn.
            let _ = self.prepare_row(&row);
        } else {
            drop(rows);
        }
        self.load(page)
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads and consolidates these pages.
    fn prepare_row(&self, row: &[PageId]) -> Result<(), LlamaError> {
        self.counters.rows_prepared.add(1);
        self.counters.rows_pages.add(row.len() as u64);
        let loaded = self.load_many(row);
        if let Some(method) = self.consolidator.get().and_then(Weak::upgrade) {
            row.iter().for_each(|&page| method.consolidate(page));
        }
        loaded
    }

    /// The pages of the row from `first` on, and the identifier behind it.
    fn row(&self, first: PageId) -> (Vec<PageId>, u64) {
        let end = self.pages.end().0.min(first.0 + STRETCH);
        let mut room = self.options.memory_bytes / SHARE;
        let mut row = vec![first];
        let mut next = first.0 + 1;
        while next < end && row.len() < PAGES_MAX {
            let page = PageId(next);
            if self.is_due(page) || self.is_taken_along(page) {
                let bytes: u64 = self.table.fragments(page).iter().map(FlashAddress::length).sum();
                if bytes > room {
                    break;
                }
                room -= bytes;
                row.push(page);
            }
            next += 1;
        }
        (row, next)
    }

    /// Whether `page` must be read before it can be flushed; a guess that is seldom wrong.
    fn is_due(&self, page: PageId) -> bool {
        // The entry first: most pages need not be looked at any further.
        let is_moved = self.table.wants_rewrite(page);
        if !is_moved && !self.table.fragments(page).are_enough(self.options.fragments_max)
            || !self.table.is_dirty(page)
        {
            return false;
        }
        self.is_unread(page, is_moved)
    }

    /// Whether `page`, a neighbour of one that is due, is read, consolidated and so written in full along with it, though it may be clean.
    fn is_taken_along(&self, page: PageId) -> bool {
        self.table.fragments(page).len() >= (self.options.fragments_max / 2).max(2)
            && self.is_unread(page, true)
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
