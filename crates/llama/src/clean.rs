//! Cleaning: sparse segments are emptied, so that the disk does not fill with what is dead.
//!
//! A cleaning step picks a segment ([`Accounts::victim`](crate::accounts::Accounts::victim)) and asks for every page
//! with a fragment in it to be written in full. The ordinary flush does that, reading pages that are on flash only;
//! what was scattered becomes contiguous. Then nothing in the segment is live, and it is removed once it lies before
//! the scan start of the newest image, too: at once, or by the next checkpoint.

use crate::error::LlamaError;
use crate::llama::Llama;
use crate::page_id::PageId;

/// Entries of the mapping table that one step looks at.
const STEP_PAGES: u64 = 64 * 1024;

/// A segment being emptied.
pub(crate) struct Cleaning {
    segment: u64,
    /// Pages below have been looked at.
    next: PageId,
}

impl Llama {
    /// Removes dead segments or else, if the segments take more room than the options allow, looks for pages to be moved
    /// out of a sparse one; whether there was something to do.
    ///
    /// # Errors
    /// [`LlamaError::Device`] if a segment cannot be removed; [`LlamaError::Poisoned`] after a failed write.
    pub fn clean_step(&self) -> Result<bool, LlamaError> {
        self.clean_step_to(self.options.space_amplification_percent_max)
    }

    /// As [`Llama::clean_step`], down to segments that take `percent_max` of the live bytes.
    ///
    /// # Errors
    /// As [`Llama::clean_step`].
    pub fn clean_step_to(&self, percent_max: u32) -> Result<bool, LlamaError> {
        let Some(flusher) = self.try_flusher() else { return Ok(false) };
        if self.remove_dead_segments(flusher)? > 0 {
            return Ok(true);
        }
        let Some(mut flusher) = self.try_flusher() else { return Ok(false) };
        let flusher = &mut *flusher;
        let segments = &self.store.segments;
        let mut cleaning = match flusher.cleaning.take() {
            Some(cleaning) => cleaning,
            None => {
                let end = segments.index(flusher.position.offset);
                let Some(segment) = flusher.accounts.victim(end, percent_max) else { return Ok(false) };
                self.counters.segments_cleaned.add(1);
                Cleaning { segment, next: PageId(1) }
            }
        };
        // Pages that come into being meanwhile are not in an old segment.
        let end = self.pages.end();
        let until = PageId(cleaning.next.0.saturating_add(STEP_PAGES)).min(end);
        while cleaning.next < until {
            let page = cleaning.next;
            let fragments = self.table.fragments(page);
            if fragments.iter().any(|address| segments.index(address.offset()) == cleaning.segment) {
                self.table.set_rewrite(page);
                self.table.mark_dirty(page);
            }
            cleaning.next.0 += 1;
        }
        if until < end {
            flusher.cleaning = Some(cleaning);
        }
        Ok(true)
    }

    /// Whether the segments take more room than the options allow, and a checkpoint would remove some of them: nothing in
    /// them is live, but a recovery would scan them. `false` while a flush is going on or files are held.
    pub fn wants_checkpoint(&self) -> bool {
        let Some(flusher) = self.try_flusher() else { return false };
        if self.segment_holds.is_held() {
            return false;
        }
        let segments = &self.store.segments;
        let totals = flusher.accounts.totals();
        let occupied = (totals.segments * segments.segment_bytes) as f64;
        let allowed =
            totals.live_bytes as f64 * f64::from(self.options.space_amplification_percent_max) / 100.0;
        // Those before the scan start as it is go without a checkpoint, those behind the next one not even with it.
        let first = segments.index(flusher.image_start.offset);
        let end = segments.index(flusher.scan_start().offset);
        occupied > allowed && flusher.accounts.dead(end).into_iter().any(|segment| segment >= first)
    }
}
