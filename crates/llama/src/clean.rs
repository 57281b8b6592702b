//! Cleaning: sparse segments are emptied, so that the disk does not fill with what is dead.
//!
//! Segments are picked ([`Accounts::victim`](crate::accounts::Accounts::victim)), as many as give about a segment of live
//! pages, and every page with a fragment in them is written in full, a buffer a step. Which these are the mapping table says, which is looked through beside flushes. What was scattered becomes contiguous. Pages that have not been updated for longer than
//! pages are on average go to segments of their own ([`Stream`]), the others to where changes go: so what is short-lived
//! and what is not do not lie side by side again.
//! Then nothing in the segments is live, and each is removed once it lies before
//! the scan start of the newest image, too: at once, or by the next checkpoint.

use crate::accounts::Victim;
use crate::error::LlamaError;
use crate::flash_address::FlashAddress;
use crate::flush::{Flusher, Turn, Written};
use crate::flush_buffer::Stream;
use crate::fragments::Fragments;
use crate::llama::Llama;
use crate::page_id::PageId;
use crate::segments::Segments;
use std::sync::PoisonError;

/// Entries of the mapping table that one step looks at.
const STEP_PAGES: u64 = 64 * 1024;
/// Pages that a step moves at most; fewer if they fill a flush buffer.
const MOVED_AT_ONCE: usize = 256;
/// Where more is occupied than may be, the part of what may be beyond what is live, of so many, is freed besides: all pages are looked at for it, whether one segment is emptied or
/// ten.
const FURTHER: u32 = 8;
/// Segments that are emptied together at most.
const VICTIMS_MAX: usize = 16;

/// Segments being emptied.
pub(crate) struct Cleaning {
    victims: Vec<Victim>,
    /// Pages below have been looked at.
    next: PageId,
    /// Pages to be moved that go to segments of their own.
    cold: Vec<PageId>,
    /// The others.
    hot: Vec<PageId>,
}

/// What a step has to do next.
enum Work {
    /// Write these pages.
    Write(Stream, Vec<PageId>),
    /// Look again.
    Look,
    Nothing,
}

impl Llama {
    /// As [`Llama::clean_step_to`], down to what the options allow.
    ///
    /// # Errors
    /// As [`Llama::clean_step_to`].
    pub fn clean_step(&self) -> Result<bool, LlamaError> {
        self.clean_step_to(self.options.space_amplification_percent_max)
    }

    /// Removes dead segments or else, if more than `percent_max` of what is live was written to the segments, moves some pages
    /// out of sparse ones; whether there was something to do. Reads and writes about a flush buffer at most, and waits for the flush that goes on.
    ///
    /// # Errors
    /// [`LlamaError::Device`] if a segment cannot be removed; else as [`Llama::flush_step`].
    pub fn clean_step_to(&self, percent_max: u32) -> Result<bool, LlamaError> {
        if self.remove_dead_segments(self.lock_flusher())? > 0 {
            return Ok(true);
        }
        let segments = &self.store.segments;
        if segments.spares.bytes() > 0 {
            let spares_bytes_max = self.spares_bytes_max(&self.lock_flusher());
            if segments.release_spare(spares_bytes_max).map_err(LlamaError::Device)? {
                return Ok(true);
            }
        }
        match self.next_of_cleaning(percent_max) {
            Work::Write(stream, pages) => {
                let begun = self.now();
                self.move_pages(stream, &pages)?;
                self.histograms.clean_step_nanoseconds.record_time(self.now() - begun);
                Ok(true)
            }
            Work::Look => Ok(true),
            Work::Nothing => Ok(false),
        }
    }

    /// Removes one of the dead segments that are kept to become the next ones; whether there was one.
    ///
    /// # Errors
    /// [`LlamaError::Device`] if it cannot be removed.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// while llama.release_spare()? {}
    /// assert_eq!(llama.statistics().spare_bytes, 0);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn release_spare(&self) -> Result<bool, LlamaError> {
        self.store.segments.release_spare(0).map_err(LlamaError::Device)
    }

    /// Bytes of the segments that were picked to be emptied since the store was opened. [`Llama::statistics`] has them, too, and takes longer.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// assert_eq!(llama.cleaned_bytes(), llama.statistics().cleaned_bytes);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn cleaned_bytes(&self) -> u64 {
        self.counters.cleaned_bytes.get()
    }

    fn next_of_cleaning(&self, percent_max: u32) -> Work {
        let mut going_on = self.cleaning.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cleaning = match going_on.take() {
            Some(cleaning) => cleaning,
            None => {
                let mut flusher = self.lock_flusher();
                let victims = self.victims(&mut flusher, percent_max);
                if victims.is_empty() {
                    return self.close_sparse(&mut flusher, percent_max);
                }
                Cleaning { victims, next: PageId(1), cold: Vec::new(), hot: Vec::new() }
            }
        };
        // Pages that come into being meanwhile are not in an old segment.
        let end = self.pages.end();
        let until = PageId(cleaning.next.0.saturating_add(STEP_PAGES)).min(end);
        self.look_for_pages(&mut cleaning, until);
        let work = if cleaning.next < end {
            Work::Look
        } else {
            let (stream, pages) = match cleaning.cold.is_empty() {
                false => (Stream::Moved, &mut cleaning.cold),
                true => (Stream::Fresh, &mut cleaning.hot),
            };
            let mut room = self.options.flush_buffer_bytes as u64;
            let mut fits = |page: &PageId| {
                let had_room = room > 0;
                room = room.saturating_sub(self.table.sizes(*page).bytes());
                had_room
            };
            let count = pages.iter().take(MOVED_AT_ONCE).take_while(|page| fits(page)).count();
            let rest = pages.split_off(count);
            Work::Write(stream, std::mem::replace(pages, rest))
        };
        if cleaning.next < end || !cleaning.cold.is_empty() || !cleaning.hot.is_empty() {
            *going_on = Some(cleaning);
        }
        work
    }

    /// Picks segments to be emptied together: about a segment of live pages.
    fn victims(&self, flusher: &mut Flusher, percent_max: u32) -> Vec<Victim> {
        let segments = &self.store.segments;
        let ends = segments.indexes_at(flusher.position);
        let (mut victims, mut live_bytes) = (Vec::new(), 0);
        let mut percent_max = percent_max;
        while victims.len() < VICTIMS_MAX
            && live_bytes < segments.segment_bytes
            && let Some(victim) = flusher.accounts.victim(ends, percent_max)
        {
            if victims.is_empty() {
                percent_max -= percent_max.saturating_sub(100) / FURTHER;
            }
            self.counters.segments_cleaned.add(1);
            self.counters.cleaned_bytes.add(victim.allocated);
            self.counters.cleaned_live_bytes.add(victim.live_bytes);
            let live_percent = (victim.live_bytes * 100).checked_div(victim.allocated).unwrap_or(0);
            self.histograms.cleaned_live_percent.record(live_percent);
            live_bytes += victim.live_bytes;
            victims.push(victim);
        }
        victims
    }

    /// Has the next buffers go to a new segment, if the one that is being filled is itself what should be cleaned.
    fn close_sparse(&self, flusher: &mut Flusher, percent_max: u32) -> Work {
        let segments = &self.store.segments;
        for offset in &mut flusher.position.offsets {
            let segment = segments.index(*offset);
            if flusher.accounts.is_filled_in_vain(segment, percent_max) {
                *offset = segments.start(Segments::following(segment));
                return Work::Look;
            }
        }
        Work::Nothing
    }

    /// Marks the pages from where `cleaning` is up to `until` that have a fragment in one of its segments. Beside flushes: they are no longer written to.
    fn look_for_pages(&self, cleaning: &mut Cleaning, until: PageId) {
        let Cleaning { victims, next, cold, hot } = cleaning;
        let mut look = |page: PageId, fragments: Fragments| {
            let victim_of = |address: FlashAddress| {
                let segment = self.store.segments.index(address.offset());
                victims.iter().find(|victim| victim.segment == segment)
            };
            if let Some(victim) = fragments.iter().find_map(victim_of) {
                // Whoever flushes it before it is its turn moves it.
                self.table.set_rewrite(page);
                let is_cold = victim.is_cold && !self.table.is_dirty(page);
                if is_cold { &mut *cold } else { &mut *hot }.push(page);
            }
        };
        let mut changing = Vec::new();
        self.table.look_through(*next..until, |page, fragments| match fragments {
            Some(fragments) => look(page, fragments),
            None => changing.push(page),
        });
        if !changing.is_empty() {
            let _flusher = self.lock_flusher();
            changing.into_iter().for_each(|page| look(page, self.table.fragments(page)));
        }
        *next = until;
    }

    /// Writes those of `pages` that were not written meanwhile. What had to be read for it leaves memory again.
    fn move_pages(&self, stream: Stream, pages: &[PageId]) -> Result<(), LlamaError> {
        let wanted: Vec<PageId> =
            pages.iter().copied().filter(|&page| self.table.wants_rewrite(page)).collect();
        let read: Vec<PageId> = wanted.iter().copied().filter(|&page| self.is_missing(page)).collect();
        // Together, and before the lock. A page that cannot be read is met, and told of, by the flush.
        let _ = self.load_pages(&read, self.in_flight());
        let mut left = wanted;
        let moved = loop {
            let next = || std::iter::from_fn(|| left.pop()).find(|&page| self.table.wants_rewrite(page));
            let prepared = |Written { bytes, unread, begun, found_no_room, .. }: Written| {
                // Rows that the ordinary flush has left, too.
                while self.prepare_left() {}
                // Those that somebody else is reading.
                let wanted = unread.iter().filter(|&&page| self.table.wants_rewrite(page));
                wanted.for_each(|&page| self.load_for_flush(page));
                (bytes > 0 || found_no_room, [unread, begun].concat())
            };
            match self.flush_in_turn(Turn::Awaited, stream, next).map(prepared) {
                Ok((false, unread)) if unread.is_empty() => break Ok(()),
                Ok((_, unread)) => left.extend(unread),
                Err(error) => break Err(error),
            }
        };
        // The ordinary flush, which knows nothing of this list, shall move what is left: after an error, or where what a flush had begun with is in the way.
        for &page in &left {
            self.table.mark_dirty(page);
        }
        self.evict_unread(&read);
        moved
    }

    /// Whether the segments take more than `percent_max` of the live bytes, and an image would have some of them removed: nothing in
    /// them is live, but a recovery would scan them. `false` while a flush is going on or files are held.
    pub fn wants_image(&self, percent_max: u32) -> bool {
        let Some(flusher) = self.try_flusher() else { return false };
        if self.segment_holds.is_held() {
            return false;
        }
        let segments = &self.store.segments;
        let totals = flusher.accounts.totals();
        let occupied = totals.allocated_bytes as f64;
        let allowed = totals.live_bytes as f64 * f64::from(percent_max) / 100.0;
        // Those before the scan start as it is go without an image, those behind the next one not even with it.
        let now = segments.indexes_at(flusher.image_start);
        let then = segments.indexes_at(flusher.scan_start());
        occupied > allowed && flusher.accounts.dead(then).count() > flusher.accounts.dead(now).count()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::flush::FlushProgress;
    use crate::options::Options;
    use crate::test_bed::{flush, open, put};
    use std::thread;

    /// Has `flush` join a buffer that somebody else seals before the first page is put into it.
    fn sealed_by_another<T: Send>(llama: &Llama, flush: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            // Taken between the two.
            let begun = llama.begun(Stream::Fresh as usize);
            let flushing = scope.spawn(flush);
            while !llama.filling.try_read().is_ok_and(|filling| !filling.is_sealed() && filling.seal()) {
                thread::yield_now();
            }
            drop(begun);
            flushing.join().unwrap()
        })
    }

    #[test]
    fn who_finds_his_buffer_sealed_goes_on_with_the_next() {
        let llama = open(Options::tiny_for_tests());
        let page = llama.allocate();
        put(&llama, page, b"page");
        let flushed = sealed_by_another(&llama, || llama.flush_step().unwrap());
        assert!(matches!(flushed, FlushProgress::Wrote { pages: 1, .. }), "{flushed:?}");
        flush(&llama);
        llama.table.set_rewrite(page);
        sealed_by_another(&llama, || llama.move_pages(Stream::Fresh, &[page]).unwrap());
        assert!(!llama.table.wants_rewrite(page));
    }

    #[test]
    fn what_is_not_moved_as_another_page_is_in_the_way_is_moved_by_the_ordinary_flush() {
        let llama = open(Options::tiny_for_tests());
        let pages: Vec<_> = (0..6).map(|_| llama.allocate()).collect();
        pages.iter().for_each(|&page| put(&llama, page, b"page"));
        flush(&llama);
        (0..4).for_each(|_| _ = llama.evict_step(u64::MAX));
        // As many rows as may be left, and a flush that has begun with a page that must be read.
        assert!(pages[..4].iter().all(|&page| llama.leave_row(page)));
        let [begun, moved] = [pages[4], pages[5]];
        llama.load(moved).unwrap();
        for page in [begun, moved] {
            llama.table.set_rewrite(page);
        }
        llama.table.mark_dirty(begun);
        llama.begun(Stream::Fresh as usize).push(begun);
        llama.move_pages(Stream::Fresh, &[moved]).unwrap();
        flush(&llama);
        assert!(pages.iter().all(|&page| !llama.table.wants_rewrite(page)));
    }
}
