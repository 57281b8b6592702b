//! Checkpoints: an image of the mapping table, so that recovery need not scan the whole store.
//!
//! ```text
//! checkpoint_begin          notes which pages are dirty; image_begin notes none
//! checkpoint_flush_step     flushes those, one buffer at a time, until `Done`; then notes the scan start S
//! checkpoint_add            takes every page of every index, in order; only if the image is to be whole
//! checkpoint_finish         makes the image durable, removes what it replaces and dead segments
//! ```
//!
//! Everything installed before `checkpoint_begin` is durable after `checkpoint_finish`; after `image_begin`, what was durable then
//! is, and a recovery scans less. Writers go on meanwhile; the
//! image is not of one moment. It need not be: whatever is flushed after S is found by the scan, and overrides what
//! the image says of its page. So an image only has to name, for each page that counted before S, fragments that
//! were its newest at some moment after S.
//!
//! Most images hold only what has changed since the one before ([`Images`](crate::images::Images)). What an earlier image says of a
//! page that is not noted was its newest at the moment of that image, and is still, so it was at a moment after this one's S.
//!
//! S is taken before the indexes are walked, so that a page which comes into one behind the walk has its first fragment behind S, or none
//! yet; and after the flush, so that a recovery does not scan what that wrote.
//!
//! S is the place of the next buffer or, if a page is durable but not adopted, of the buffer with its first
//! fragment, where that is earlier: the page will not be in the image unless its adoption becomes durable in time,
//! and then the scan must find both.

use crate::error::LlamaError;
use crate::flush::{Flusher, Turn, Written};
use crate::flush_buffer::{Position, Stream};
use crate::fragments::Fragments;
use crate::image::{ImagePage, ImageStart, ImageWriter, image_name, image_number};
use crate::llama::Llama;
use crate::page_id::PageId;
use crate::sync::{AtomicBool, MutexGuard, Ordering};
use deuteron_device::{DeviceError, OpenMode};
use std::mem;
use std::sync::Arc;
use std::time::Instant;

/// Pages gathered before their addresses are asked for, under the flush lock.
const GATHERED: usize = 512;
const FLUSHED: &str = "the checkpoint has been flushed";

/// So many segments are to be scanned by a recovery at most (about), if somebody asks whether an image is due.
const SCANNED_SEGMENTS_MAX: u64 = 4;

/// What a [`Llama::checkpoint_flush_step`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointProgress {
    /// A flush buffer has been written; there may be more to do.
    Wrote {
        /// Fragments in it.
        pages: usize,
        /// Their bytes.
        bytes: u64,
    },
    /// The pages that are left are held, or in another thread's hands for a moment. Go on later.
    Blocked {
        /// How many.
        pages: usize,
    },
    /// Everything that was dirty at the beginning is durable.
    Done,
}

/// The pages that were dirty at some moment, while they are being flushed.
pub struct FlushRound {
    /// Those that may still be.
    pending: Vec<PageId>,
}

/// A checkpoint that is going on. Dropping it gives it up; the earlier one then stands.
pub struct Checkpoint {
    /// Known once the flush is done.
    start: Option<Position>,
    begun: Instant,
    /// The newest image before this one.
    previous: u64,
    /// Known with the start.
    is_whole: bool,
    user_data: Vec<u8>,
    round: FlushRound,
    writer: Option<ImageWriter>,
    gathered: Vec<(u32, Vec<u8>, PageId)>,
    _active: Active,
}

impl Checkpoint {
    /// Whether the image is to name every page: the pages of the indexes are to be [added](Llama::checkpoint_add). Else the store
    /// knows by itself what has changed.
    ///
    /// # Panics
    /// If [`Llama::checkpoint_flush_step`] has not said `Done`.
    pub fn is_whole(&self) -> bool {
        self.start.expect(FLUSHED);
        self.is_whole
    }

    fn number(&self) -> u64 {
        self.previous + 1
    }
}

/// Excludes other checkpoints until it is dropped.
pub(crate) struct Active(Arc<AtomicBool>);

impl Active {
    pub(crate) fn begin(checkpointing: &Arc<AtomicBool>) -> Result<Active, LlamaError> {
        match checkpointing.swap(true, Ordering::Acquire) {
            true => Err(LlamaError::CheckpointBusy),
            false => Ok(Active(Arc::clone(checkpointing))),
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Llama {
    /// Has the next image hold all pages, so that it replaces all that there are.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// llama.renew_images();
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn renew_images(&self) {
        self.lock_flusher().images.renew();
    }

    /// Begins a checkpoint. `user_data` is what [`Recovered`](crate::Recovered) will give back once it is complete.
    /// Waits for a flush that is going on.
    ///
    /// # Errors
    /// [`LlamaError::CheckpointBusy`] if another one is going on; [`LlamaError::Poisoned`].
    pub fn checkpoint_begin(&self, user_data: &[u8]) -> Result<Checkpoint, LlamaError> {
        self.begin(user_data, |flusher| self.round(flusher))
    }

    /// Begins a checkpoint of what is durable as it is, so that a recovery scans less: it flushes nothing, but for pages whose flush has begun.
    /// `user_data` is to promise no more than that of the checkpoint before. Waits for a flush that is going on.
    ///
    /// # Errors
    /// As [`Llama::checkpoint_begin`].
    ///
    /// ```
    /// # use deuteron_llama::CheckpointProgress;
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// let mut image = llama.image_begin(b"")?;
    /// while llama.checkpoint_flush_step(&mut image)? != CheckpointProgress::Done {}
    /// // Here the pages of the indexes are added, if the image is to be whole.
    /// llama.checkpoint_finish(image)?;
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn image_begin(&self, user_data: &[u8]) -> Result<Checkpoint, LlamaError> {
        self.begin(user_data, |_| FlushRound { pending: Vec::new() })
    }

    fn begin(
        &self,
        user_data: &[u8],
        round: impl FnOnce(&Flusher) -> FlushRound,
    ) -> Result<Checkpoint, LlamaError> {
        let begun = self.now();
        self.store.check()?;
        let active = Active::begin(&self.checkpointing)?;
        // Under the lock no page is between its dirty bit and its durable fragment.
        let mut flusher = self.lock_flusher();
        flusher.images.give_up();
        Ok(Checkpoint {
            start: None,
            begun,
            previous: flusher.images.newest(),
            is_whole: false,
            user_data: user_data.to_vec(),
            round: round(&flusher),
            writer: None,
            gathered: Vec::new(),
            _active: active,
        })
    }

    /// Flushes one buffer of the pages that were dirty when the checkpoint began.
    ///
    /// # Errors
    /// As [`Llama::flush_step`]. After a full disk the step may be repeated.
    pub fn checkpoint_flush_step(
        &self,
        checkpoint: &mut Checkpoint,
    ) -> Result<CheckpointProgress, LlamaError> {
        let progress = self.flush_round_step(&mut checkpoint.round)?;
        if progress == CheckpointProgress::Done && checkpoint.start.is_none() {
            let mut flusher = self.lock_flusher();
            checkpoint.start = Some(flusher.scan_start());
            checkpoint.is_whole = flusher.images.begin();
        }
        Ok(progress)
    }

    /// Whether an image should be [written](Llama::image_begin) for the store's own sake: a recovery would have to scan more than four
    /// segments from the newest one on, or what it does not say yet takes too much memory. `false` while a flush is being prepared. A few loads.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// assert!(!llama.is_image_due());
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn is_image_due(&self) -> bool {
        let Some(flusher) = self.try_fill() else { return false };
        let segments = &self.store.segments;
        let scanned = segments.bytes_between(flusher.image_start, flusher.scan_start());
        scanned > SCANNED_SEGMENTS_MAX * segments.segment_bytes || flusher.images.are_places_many()
    }

    fn round(&self, _under_its_lock: &Flusher) -> FlushRound {
        // Those that could not be flushed are tried again.
        self.forget_unread();
        let mut pending: Vec<PageId> = self.table.dirty_pages(self.pages.end()).collect();
        // Taken from the end: in the order of their identifiers, as every flush does.
        pending.reverse();
        FlushRound { pending }
    }

    /// Begins to flush what is dirty now, which is what a checkpoint does first: once [`Llama::flush_round_step`] says `Done`, everything
    /// installed before this call is durable. Waits for a flush that is going on.
    ///
    /// # Errors
    /// [`LlamaError::Poisoned`].
    pub fn flush_round(&self) -> Result<FlushRound, LlamaError> {
        self.store.check()?;
        // Under the lock no page is between its dirty bit and its durable fragment.
        Ok(self.round(&self.lock_flusher()))
    }

    /// Flushes one buffer of the pages that were dirty when the round began.
    ///
    /// # Errors
    /// As [`Llama::flush_step`]. After a full disk the step may be repeated. [`LlamaError::Corrupt`] or [`LlamaError::Device`] if all others have been flushed, and those that are left can neither be
    /// read nor have room for what is known of them.
    pub fn flush_round_step(&self, round: &mut FlushRound) -> Result<CheckpointProgress, LlamaError> {
        let mut tried = Vec::new();
        let pending = &mut round.pending;
        let mut has_prepared = false;
        loop {
            let written = self.flush_in_turn(Turn::Alone, Stream::Fresh, || {
                // What the rows of this round have made ready takes much memory. A clean page has been flushed since, by whomever.
                let ready = if pending.is_empty() { None } else { self.next_ready() };
                let pending = || std::iter::from_fn(|| pending.pop()).find(|&page| self.table.is_dirty(page));
                let page = ready.or_else(pending)?;
                tried.push(page);
                Some(page)
            });
            match written {
                Ok(Written { pages, bytes, begun, skipped, unread, .. }) => {
                    let is_prepared = self.prepare_left();
                    // Once, as in `flush_step`.
                    let prepares_first = is_prepared && !mem::replace(&mut has_prepared, true);
                    if let (false, 0, Some(&page)) = (prepares_first, bytes, unread.first()) {
                        // Somebody else is reading it.
                        self.load_for_flush(page);
                    }
                    // Those that were left for later, or for want of room.
                    let is_read = is_prepared || !unread.is_empty();
                    [skipped, begun, unread].into_iter().for_each(|left| pending.extend(left));
                    return Ok(match bytes {
                        0 if is_read => continue,
                        0 if pending.is_empty() => CheckpointProgress::Done,
                        0 => match self.why_unflushed(pending) {
                            Some(error) => return Err(error),
                            None => CheckpointProgress::Blocked { pages: pending.len() },
                        },
                        bytes => CheckpointProgress::Wrote { pages, bytes },
                    });
                }
                Err(error) => {
                    pending.extend_from_slice(&tried);
                    return Err(error);
                }
            }
        }
    }

    /// Puts a page of the index into the image, if it [is whole](Checkpoint::is_whole): then every page of every index is to be
    /// added between the last
    /// [`Llama::checkpoint_flush_step`] and [`Llama::checkpoint_finish`]; pages that
    /// come into being meanwhile may be missed. Pages that recovery could not use are left out.
    ///
    /// # Errors
    /// [`LlamaError::Device`] if the image cannot be written; [`LlamaError::Poisoned`].
    pub fn checkpoint_add(
        &self,
        checkpoint: &mut Checkpoint,
        tree: u32,
        low_key: &[u8],
        page: PageId,
    ) -> Result<(), LlamaError> {
        if !checkpoint.is_whole {
            return Ok(());
        }
        checkpoint.gathered.push((tree, low_key.to_vec(), page));
        if checkpoint.gathered.len() >= GATHERED { self.write_gathered(checkpoint) } else { Ok(()) }
    }

    fn write_gathered(&self, checkpoint: &mut Checkpoint) -> Result<(), LlamaError> {
        let mut known = Vec::with_capacity(checkpoint.gathered.len());
        self.table.prefetch_fragments(checkpoint.gathered.iter().map(|&(_, _, page)| page));
        let mut flusher = self.lock_flusher();
        flusher.images.begin_to_take();
        for (tree, low_key, page) in checkpoint.gathered.drain(..) {
            let fragments = self.table.fragments(page);
            if self.table.is_adopted(page) && fragments.len() > 0 {
                self.table.take_changed(page);
                // Since it was gathered the page may have gone, and another have its identifier: that one's place has been noted with its first fragment.
                let place = flusher.images.take_place(page).unwrap_or((tree, low_key));
                known.push(ImagePage { page, fragments, place: Some(place) });
            }
        }
        let incarnation = flusher.incarnation;
        drop(flusher);
        self.write_records(checkpoint, incarnation, &known)
    }

    /// Puts everything that has changed since the image before into this one.
    fn write_changes(&self, checkpoint: &mut Checkpoint) -> Result<(), LlamaError> {
        let mut flusher = self.lock_flusher();
        flusher.images.begin_to_take();
        let changed = flusher.images.take_changed();
        let incarnation = flusher.incarnation;
        drop(flusher);
        let written = self.write_noted(checkpoint, incarnation, &changed);
        if written.is_err() {
            self.lock_flusher().images.put_back(changed);
        }
        written
    }

    fn write_noted(
        &self,
        checkpoint: &mut Checkpoint,
        incarnation: u64,
        changed: &[PageId],
    ) -> Result<(), LlamaError> {
        // Once at least, for the beginning of the image.
        self.write_records(checkpoint, incarnation, &[])?;
        for pages in changed.chunks(GATHERED) {
            self.table.prefetch_fragments(pages.iter().copied());
            let mut flusher = self.lock_flusher();
            let noted = pages.iter().copied().filter(|&page| self.table.take_changed(page));
            let records: Vec<ImagePage> = noted
                .map(|page| match self.table.is_adopted(page) {
                    true => {
                        let fragments = self.table.fragments(page);
                        ImagePage { page, fragments, place: flusher.images.take_place(page) }
                    }
                    false => ImagePage { page, fragments: Fragments::default(), place: None },
                })
                .collect();
            drop(flusher);
            self.write_records(checkpoint, incarnation, &records)?;
        }
        Ok(())
    }

    /// Writes what was read under the flush lock.
    fn write_records(
        &self,
        checkpoint: &mut Checkpoint,
        incarnation: u64,
        records: &[ImagePage],
    ) -> Result<(), LlamaError> {
        // Under the lock all fragments were durable, or the store is poisoned.
        self.store.check()?;
        let segments = &self.store.segments;
        let writer = match &mut checkpoint.writer {
            Some(writer) => writer,
            None => {
                let start = ImageStart {
                    store: segments.store,
                    number: checkpoint.number(),
                    previous: if checkpoint.is_whole { checkpoint.number() } else { checkpoint.previous },
                    start: checkpoint.start.expect(FLUSHED),
                    incarnation,
                    segment_bytes: segments.segment_bytes,
                    marks: self.marks(),
                    user_data: mem::take(&mut checkpoint.user_data),
                };
                let created = ImageWriter::create(&segments.directory, self.options.direct, &start);
                checkpoint.writer.insert(created.map_err(|error| self.image_failed(error))?)
            }
        };
        for record in records {
            writer.add(record).map_err(|error| self.image_failed(error))?;
        }
        Ok(())
    }

    /// Completes the checkpoint: the image becomes durable, older ones are removed if it is whole, and the segments that no
    /// recovery can need any more.
    ///
    /// # Errors
    /// [`LlamaError::Device`] if the device fails; the earlier checkpoint then stands, unless only the removal of
    /// what is not needed failed. A full disk is no reason to stop; any other failure poisons the store.
    ///
    /// # Panics
    /// If [`Llama::checkpoint_flush_step`] has not said `Done`.
    pub fn checkpoint_finish(&self, mut checkpoint: Checkpoint) -> Result<(), LlamaError> {
        let start = checkpoint.start.expect(FLUSHED);
        if checkpoint.is_whole {
            // Sealed pages that still count may have left the index already. Those that stop counting meanwhile do so by a
            // fragment behind the scan start.
            checkpoint.gathered.extend(self.sealed_pages());
            self.write_gathered(&mut checkpoint)?;
            self.counters.images_whole.add(1);
        } else {
            self.write_changes(&mut checkpoint)?;
        }
        let writer = checkpoint.writer.as_mut().expect("made when records are written");
        let written = writer.finish(self.pages.end()).map_err(|error| self.image_failed(error))?;
        self.counters.bytes_written.add(written.bytes);
        self.counters.bytes_of_images.add(written.bytes);
        self.store.check()?;
        writer.publish().map_err(|error| self.store.fail(error))?;
        self.counters.checkpoints.add(1);
        self.histograms.image_nanoseconds.record_time(self.now() - checkpoint.begun);
        let number = checkpoint.number();
        if checkpoint.is_whole {
            self.remove_older_images(number).map_err(|error| self.store.fail(error))?;
        }

        let mut flusher = self.lock_flusher();
        flusher.images.completed(&self.table, number, checkpoint.is_whole, written);
        flusher.image_start = start;
        self.remove_dead_segments(flusher)?;
        Ok(())
    }

    /// Removes the segments before the image's scan start in which nothing is live, but for their files that are kept as [spares](crate::spares); how many.
    ///
    /// What is dead has been superseded by a durable fragment. Either the image says so, or the scan finds that
    /// fragment: it is younger than the image's entry of its page, hence behind the scan start. The removals are
    /// not synced: a segment, or the beginning of one, that comes back at a crash is dead still. Nobody waits for them but the caller: the
    /// flush lock is given back before. One that cannot be removed hinders none of the others, and is tried again with the next.
    pub(crate) fn remove_dead_segments(
        &self,
        mut flusher: MutexGuard<'_, Flusher>,
    ) -> Result<usize, LlamaError> {
        // Under the lock: after a failed write the accounts know fragments that are not durable.
        self.store.check()?;
        if self.segment_holds.is_held() {
            return Ok(0);
        }
        let segments = &self.store.segments;
        let mut dead: Vec<u64> = flusher.accounts.dead(segments.indexes_at(flusher.image_start)).collect();
        let spares_bytes_max = self.spares_bytes_max(&flusher);
        for &segment in &dead {
            flusher.accounts.close(segment);
        }
        dead.append(&mut flusher.unremoved);
        drop(flusher);
        let mut removed = Ok(dead.len());
        for segment in dead {
            match segments.retire(segment, spares_bytes_max) {
                Ok(()) => self.counters.segments_removed.add(1),
                Err(error) => {
                    removed = Err(LlamaError::Device(error));
                    self.lock_flusher().unremoved.push(segment);
                }
            }
        }
        removed
    }

    /// What dead segments may take that are kept to become the next ones.
    pub(crate) fn spares_bytes_max(&self, flusher: &Flusher) -> u64 {
        flusher.accounts.totals().allocated_bytes / 100 * u64::from(self.options.spare_percent_max)
    }

    /// A recovery would not look at them: it begins with the highest number.
    fn remove_older_images(&self, number: u64) -> Result<(), DeviceError> {
        let segments = &self.store.segments;
        let directory = &segments.directory;
        let names = directory.list()?;
        let older = names.iter().filter_map(|name| image_number(name)).filter(|&older| older < number);
        let mut removed = false;
        for older in older {
            let name = image_name(older);
            let file = directory.open(&name, OpenMode::ReadWrite, self.options.direct);
            segments.remove_file(&name, file.ok())?;
            removed = true;
        }
        if removed { directory.sync() } else { Ok(()) }
    }

    fn image_failed(&self, error: DeviceError) -> LlamaError {
        if error.is_full() { LlamaError::Device(error) } else { self.store.fail(error) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::node::{OwnedNode, PageDescriptor};
    use crate::options::Options;
    use crate::test_bed::{open, put, put_in_buffer};

    #[test]
    fn where_the_scan_starts_is_known_once_all_is_flushed_and_stays() {
        let llama = open(Options::tiny_for_tests());
        put(&llama, llama.allocate(), b"page");
        let mut checkpoint = llama.checkpoint_begin(b"").unwrap();
        let wrote = llama.checkpoint_flush_step(&mut checkpoint).unwrap();
        assert!(matches!(wrote, CheckpointProgress::Wrote { pages: 1, .. }));
        assert_eq!(checkpoint.start, None);
        for _ in 0..2 {
            assert_eq!(llama.checkpoint_flush_step(&mut checkpoint).unwrap(), CheckpointProgress::Done);
            assert_eq!(checkpoint.start.map(|start| start.sequence), Some(2));
            put_in_buffer(&llama, |_| vec![7; 10]);
        }
    }

    #[test]
    fn a_long_row_of_splits_that_were_never_flushed_makes_a_round_no_longer() {
        let llama = open(Options { memory_bytes: 8 << 20, ..Options::tiny_for_tests() });
        let pages: Vec<_> = (0..5000).map(|_| llama.allocate()).collect();
        for (at, &page) in pages.iter().enumerate() {
            let adopts = pages.get(at + 1).map_or(&[][..], std::slice::from_ref);
            let descriptor = PageDescriptor { tree: 1, low_key: &page.0.to_be_bytes(), root: at == 0 };
            let guard = llama.pin();
            let base = OwnedNode::base(b"payload", descriptor, adopts);
            llama.install(page, llama.snapshot(page, &guard), base, &guard).unwrap();
        }
        let mut round = llama.flush_round().unwrap();
        let held = pages[4000];
        llama.hold(held);
        let mut step = || {
            let progress = llama.flush_round_step(&mut round).unwrap();
            assert!(round.pending.len() <= pages.len(), "{}", round.pending.len());
            progress
        };
        while let CheckpointProgress::Wrote { pages: 1.., .. } = step() {}
        // With those that adopt it.
        assert_eq!(step(), CheckpointProgress::Blocked { pages: 4001 });
        llama.release(held);
        while let CheckpointProgress::Wrote { pages: 1.., .. } = step() {}
        assert_eq!(step(), CheckpointProgress::Done);
        assert!(pages.iter().all(|&page| llama.table.is_adopted(page)));
    }

    #[test]
    fn an_image_is_due_if_more_than_four_segments_would_be_scanned_or_places_are_many() {
        let llama = open(Options::tiny_for_tests());
        let segments = &llama.store.segments;
        let scanned = |bytes: u64| {
            let mut flusher = llama.lock_flusher();
            let position = flusher.position;
            flusher.position.offsets[0] =
                segments.start(2 * (bytes / segments.segment_bytes)) + bytes % segments.segment_bytes;
            assert_eq!(segments.bytes_between(segments.origin(), flusher.position), bytes);
            drop(flusher);
            let is_due = llama.is_image_due();
            llama.lock_flusher().position = position;
            is_due
        };
        let most = SCANNED_SEGMENTS_MAX * segments.segment_bytes;
        assert_eq!([0, most - 8192, most, most + 4096].map(scanned), [false, false, false, true]);
        while !llama.lock_flusher().images.are_places_many() {
            assert!(!llama.is_image_due());
            put_in_buffer(&llama, |_| vec![7; 10]);
        }
        assert!(llama.is_image_due());
        // While somebody flushes nothing is.
        let _flusher = llama.lock_flusher();
        assert!(!llama.is_image_due());
    }
}
