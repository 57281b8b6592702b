//! Space that is given back: what deletes have left behind leaves pages, then segments, then the disk.
//!
//! | what keeps space | what gives it back |
//! |---|---|
//! | tombstones | consolidation, once a redo scan start point has passed that lets them be forgotten |
//! | underfull pages | merges ([`Tree::maintain_step`]) |
//! | segments that are partly dead | cleaning, which moves what is live in them |
//! | dead segments that a recovery would scan | an image, at the redo scan start point as it is |
//! | dead segments kept to become the next ones | an idle step |

use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::{BwTreeDc, error};
use deuteron_bwtree::Tree;
use deuteron_contract::DcError;
use deuteron_llama::{FlushProgress, PageId};

/// Trees that one step asks whether there is something to merge.
const STEP_TREES: usize = 64;
/// So many steps without anything applied between them make a component idle: a second or so, as its caller sleeps for
/// milliseconds when there was nothing to do.
const IDLE_STEPS: u64 = 200;
/// So many images are tried one after the other where the device has no room: the one after the first is whole, which may be shorter.
const IMAGES_REFUSED_MAX: u64 = 2;
/// Then one in so many steps, unless something is flushed or cleaned: likewise a second or so, if there is nothing else to do.
const STEPS_AN_IMAGE: u64 = 200;
/// How close to the live bytes an idle component brings what is written in the segments, in percent.
const IDLE_PERCENT: u32 = 120;
/// So many flushes after the store was found to be within its bounds it is looked at again.
const FLUSHES_PER_LOOK: u64 = 8;
/// How close to the live bytes compaction brings what is written in the segments, in percent.
const COMPACT_PERCENT: u32 = 105;
/// Rounds of merging in a compaction, and of cleaning; each takes up what the one before has made underfull, or sparse.
const COMPACT_ROUNDS: usize = 8;

/// One merge to so many dirty pages makes a round of flushing worth while.
const DIRTY_PER_MERGE: u64 = 4;

/// What has been merged and not been flushed: until it is, the pages that were given up take their room on disk.
#[derive(Default)]
pub(crate) struct Merged {
    /// Merges since the last round of flushing that was begun for their sake.
    pages: AtomicU64,
    /// That round is to be followed by the merges that had to wait for it.
    is_awaited: AtomicBool,
}

/// So many pages that cannot be read are named.
const NAMED_PAGES: usize = 16;

/// Damage that a compaction has met, and gone on.
#[derive(Default)]
struct Damage {
    first: Option<DcError>,
}

impl Damage {
    /// What was done; `None` if damage was in its way, which is noted.
    fn unless<T>(&mut self, done: Result<T, DcError>) -> Result<Option<T>, DcError> {
        match done {
            Err(error @ DcError::Corrupt { .. }) => {
                self.first.get_or_insert(error);
                Ok(None)
            }
            done => done.map(Some),
        }
    }
}

/// What a compaction has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Bytes of all files before.
    pub before_bytes: u64,
    /// And after. What was written meanwhile counts, too.
    pub after_bytes: u64,
}

impl BwTreeDc {
    /// Looks after one page that consolidation has marked. Whether there was one.
    pub(crate) fn tidy_step(&self) -> Result<bool, DcError> {
        let trees = self.tables.all();
        let hand = self.tidy_hand.fetch_add(1, Ordering::Relaxed);
        for at in 0..trees.len().min(STEP_TREES) {
            if self.tidy(trees[(hand + at) % trees.len()])? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn tidy(&self, tree: &Tree) -> Result<bool, DcError> {
        if self.llama.over_budget() {
            let _ = self.relieve(false);
        }
        let before = tree.statistics().leaf_merges;
        let tidied = tree.maintain_step().map_err(|error| error::tree("merge pages", error));
        self.merged.pages.fetch_add(tree.statistics().leaf_merges - before, Ordering::Relaxed);
        tidied
    }

    /// Between two rounds of flushing: takes up the merges that have waited for the last one, or begins one if much of what is dirty has
    /// been merged. Whether there was something to do.
    pub(crate) fn merged_step(&self) -> bool {
        if self.round_pages.load(Ordering::Relaxed) > 0 {
            return false;
        }
        if self.merged.is_awaited.swap(false, Ordering::Relaxed) {
            self.tables.all().iter().for_each(|tree| tree.retry_merges());
            return true;
        }
        let merged = self.merged.pages.load(Ordering::Relaxed);
        let enough = merged * DIRTY_PER_MERGE;
        if merged == 0 || self.llama.dirty_pages_up_to(enough + 1) > enough {
            return false;
        }
        self.merged.pages.fetch_sub(merged, Ordering::Relaxed);
        self.merged.is_awaited.store(true, Ordering::Relaxed);
        self.begin_round();
        true
    }

    /// Writes an image, if the store asks for one. Whether it has done so.
    pub(crate) fn image_step(&self) -> Result<bool, DcError> {
        if !self.llama.is_image_due() {
            return Ok(false);
        }
        self.try_image()
    }

    /// Writes an image, unless a checkpoint or a backup goes on, or there was no room for the last ones. Whether it has done so. That there is no room is no error: nothing
    /// is lost without an image. But one in the making takes time, and room that others need, and so it is not begun again and again.
    fn try_image(&self) -> Result<bool, DcError> {
        // Relaxed: a matter of turns.
        let refused = self.images_refused.load(Ordering::Relaxed);
        let steps = self.steps.load(Ordering::Relaxed);
        if refused >= IMAGES_REFUSED_MAX && !steps.is_multiple_of(STEPS_AN_IMAGE) {
            return Ok(false);
        }
        let Ok(_one_at_a_time) = self.checkpointing.try_lock() else { return Ok(false) };
        match self.image() {
            Err(DcError::DiskFull { .. }) => {
                self.images_refused.fetch_add(1, Ordering::Relaxed);
                Ok(false)
            }
            done => {
                self.images_refused.store(0, Ordering::Relaxed);
                done.map(|()| true)
            }
        }
    }

    /// A step of cleaning after some flushes, if there is something to clean. Where memory is short there is always something to flush, and what is done
    /// when there is not would never be done: disk use would grow for as long. Whether there was something to do.
    pub(crate) fn clean_beside_flushes(&self) -> Result<bool, DcError> {
        let flushes = self.flushes.load(Ordering::Relaxed);
        if flushes < self.clean_at.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let cleaned = self.clean_step(self.space_percent())?;
        let until_next = if cleaned { 1 } else { FLUSHES_PER_LOOK };
        self.clean_at.store(flushes + until_next, Ordering::Relaxed);
        Ok(cleaned)
    }

    fn clean_step(&self, percent: u32) -> Result<bool, DcError> {
        let cleaned = self.llama.clean_step_to(percent).map_err(|error| error::store("clean", error))?;
        if cleaned {
            // There may be room for an image now.
            self.images_refused.store(0, Ordering::Relaxed);
        }
        Ok(cleaned)
    }

    /// Empties sparse segments, and lets dead ones go. Whether there was something to do.
    pub(crate) fn reclaim_step(&self) -> Result<bool, DcError> {
        let percent = self.space_percent();
        if self.clean_step(percent)? {
            return Ok(true);
        }
        if self.is_idle() && self.release_spare()? {
            return Ok(true);
        }
        if !self.llama.wants_image(percent) {
            return Ok(false);
        }
        // Where a recovery begins its scan is up to images; nothing need be flushed for it, which a full device would refuse.
        self.try_image()
    }

    /// How much more than what is live the segments may hold: what the options say or, when nothing has been applied for a
    /// while, less.
    fn space_percent(&self) -> u32 {
        let percent_max = self.llama.options().space_amplification_percent_max;
        let applied = self.applied_bytes.sum();
        if self.applied_at_reclaim.swap(applied, Ordering::Relaxed) != applied {
            self.idle_steps.store(0, Ordering::Relaxed);
        }
        self.idle_steps.fetch_add(1, Ordering::Relaxed);
        if self.is_idle() { percent_max.min(IDLE_PERCENT) } else { percent_max }
    }

    /// Whether nothing has been applied for a while.
    fn is_idle(&self) -> bool {
        self.idle_steps.load(Ordering::Relaxed) > IDLE_STEPS
    }

    fn release_spare(&self) -> Result<bool, DcError> {
        self.llama.release_spare().map_err(|error| error::store("remove a spare segment", error))
    }

    /// Has every page that is dirty now written once.
    pub(crate) fn begin_round(&self) {
        self.round_pages.store(self.llama.dirty_pages(), Ordering::Relaxed);
    }

    /// A checkpoint writes every page that is dirty now: what is left of a round need not, and the next one is due as if one began here.
    pub(crate) fn round_is_taken_over(&self) {
        self.applied_at_round.fetch_max(self.applied_bytes.about(), Ordering::Relaxed);
        self.round_pages.store(0, Ordering::Relaxed);
    }

    /// Brings disk use down to about what the live data need: looks at every page, so that tombstones that may be forgotten
    /// are, and underfull pages are merged; then empties all but full segments. Reads and writes everything once or twice, or a few times more
    /// while others write: they go on meanwhile, and it does not wait for the end of it. Which tombstones may be forgotten is up to the
    /// [redo scan start points](deuteron_contract::DataComponent::redo_scan_start_point) that were set before.
    ///
    /// Pages that cannot be read stay as they are, and with them what lies beside them; all else is compacted, and then they are told of.
    ///
    /// # Errors
    /// [`DcError`] if the device fails; [`DcError::Corrupt`] at the end, which names pages that could not be read.
    ///
    /// ```
    /// use deuteron_contract::{DataComponent, Lsn, Operation, TableId, Timestamp};
    /// use deuteron_dc::{BwTreeDc, DcOptions};
    /// use std::sync::Arc;
    ///
    /// let directory = Arc::new(deuteron_device::MemoryDirectory::new());
    /// let options = DcOptions { memory_bytes: 1 << 20, ..DcOptions::tiny_for_tests() };
    /// let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), options)?;
    /// for number in 1..=10_000u64 {
    ///     let (key, lsn) = (number.to_be_bytes(), number);
    ///     let row = |value, lsn| Operation { table: TableId(1), key: &key, value, timestamp: Timestamp(lsn), lsn: Lsn(lsn) };
    ///     dc.apply(&[row(Some(b"a value that takes some room"), lsn), row(None, lsn + 10_000)])?;
    /// }
    /// for lsn in [20_001, 20_002, 20_003] {
    ///     dc.redo_scan_start_point(Lsn(lsn))?;
    /// }
    /// dc.compact()?;
    /// assert!(dc.statistics().disk_bytes < 10 * (64 << 10));
    /// # Ok::<(), deuteron_contract::DcError>(())
    /// ```
    pub fn compact(&self) -> Result<(), DcError> {
        let mut damage = Damage::default();
        while damage.unless(self.drop_step())?.unwrap_or(false) {}
        damage.unless(self.sweep_all())?;
        for tree in self.tables.all() {
            let mut from = Some(Vec::new());
            while let Some(low) = from {
                from = tree.mark_some(&low);
                self.tidy_all(tree, &mut damage)?;
            }
        }
        // What has been merged must be durable before it is merged again; so each round halves what is underfull.
        for _ in 0..COMPACT_ROUNDS {
            let before = self.leaf_merges();
            damage.unless(self.settle())?;
            for tree in self.tables.all() {
                self.tidy_all(tree, &mut damage)?;
            }
            if self.leaf_merges() == before {
                break;
            }
        }
        let failed = |error| error::store("clean", error);
        let mut from = Some(PageId(1));
        while let Some(page) = from {
            from = self.llama.unite_step(page);
            if self.llama.over_budget() {
                self.relieve(false)?;
            }
        }
        for _ in 0..COMPACT_ROUNDS {
            damage.unless(self.settle())?;
            // As much as there is now: what others write meanwhile is sparse again before it has been moved.
            let (written, cleaned) = (self.llama.statistics().disk_bytes, self.llama.cleaned_bytes());
            let mut worked = false;
            while self.llama.cleaned_bytes() - cleaned <= written
                && self.llama.clean_step_to(COMPACT_PERCENT).map_err(failed)?
            {
                worked = true;
            }
            if !worked {
                break;
            }
            let mut dirty = self.llama.dirty_pages();
            while dirty > 0
                && let FlushProgress::Wrote { pages, .. } =
                    self.llama.flush_step().map_err(|error| error::store("flush", error))?
            {
                dirty = dirty.saturating_sub(pages as u64);
            }
        }
        self.llama.renew_images();
        damage.unless(self.settle())?;
        while self.release_spare()? {}
        self.tell(damage)
    }

    /// Looks after all pages of a tree that are marked. One that cannot be read is postponed.
    fn tidy_all(&self, tree: &Tree, damage: &mut Damage) -> Result<(), DcError> {
        while damage.unless(self.tidy(tree))?.unwrap_or(true) {}
        Ok(())
    }

    /// The damage that was met, and the pages that are concerned by now.
    fn tell(&self, damage: Damage) -> Result<(), DcError> {
        let pages = self.llama.unreadable_pages();
        let error = match damage.first {
            Some(error) => error,
            // Met by what goes on beside it.
            None => match pages.iter().try_for_each(|&page| self.llama.load(page)) {
                Ok(()) => return Ok(()),
                Err(error) => error::store("compact", error),
            },
        };
        let DcError::Corrupt { file, offset, expected, found } = error else { return Err(error) };
        let names: Vec<String> = pages.iter().take(NAMED_PAGES).map(ToString::to_string).collect();
        let others = if pages.len() > names.len() { ", …" } else { "" };
        let found =
            format!("{found} (pages that cannot be read: {}, {}{others})", pages.len(), names.join(", "));
        Err(DcError::Corrupt { file, offset, expected, found })
    }

    fn leaf_merges(&self) -> u64 {
        self.tables.all().iter().map(|tree| tree.statistics().leaf_merges).sum()
    }

    /// A checkpoint at the redo scan start point as it is.
    pub(crate) fn settle(&self) -> Result<(), DcError> {
        let _one_at_a_time = self.checkpointing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.checkpoint(self.redo_scan_start_point.load(Ordering::Acquire))
    }
}
