//! Checkpoints: an image of the mapping table, so that recovery need not scan the whole store.
//!
//! ```text
//! checkpoint_begin          notes the scan start S, and which pages are dirty
//! checkpoint_flush_step     flushes those, one buffer at a time, until `Done`
//! checkpoint_add            takes every page of every index, in order
//! checkpoint_finish         makes the image durable, removes the older one and dead segments
//! ```
//!
//! Everything installed before `checkpoint_begin` is durable after `checkpoint_finish`. Writers go on meanwhile; the
//! image is not of one moment. It need not be: whatever is flushed after S is found by the scan, and overrides what
//! the image says of its page. So an image only has to name, for each page that counted before S, fragments that
//! were its newest at some moment after S.
//!
//! S is the place of the next buffer or, if a page is durable but not adopted, of the buffer with its first
//! fragment, where that is earlier: the page will not be in the image unless its adoption becomes durable in time,
//! and then the scan must find both.

use crate::error::LlamaError;
use crate::flush::Flusher;
use crate::flush_buffer::Position;
use crate::image::{ImageStart, ImageWriter, image_name, image_number};
use crate::llama::Llama;
use crate::page_id::PageId;
use crate::sync::{AtomicBool, MutexGuard, Ordering};
use deuteron_device::DeviceError;
use std::sync::Arc;

/// Pages gathered before their addresses are asked for, under the flush lock.
const GATHERED: usize = 512;

/// What a [`Llama::checkpoint_flush_step`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointProgress {
    /// A flush buffer has been written; there may be more to do.
    Wrote {
        /// Fragments in it.
        pages: usize,
        /// Its length.
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
    start: Position,
    number: u64,
    user_data: Vec<u8>,
    round: FlushRound,
    writer: Option<ImageWriter>,
    gathered: Vec<(u32, Vec<u8>, PageId)>,
    _active: Active,
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
    /// Begins a checkpoint. `user_data` is what [`Recovered`](crate::Recovered) will give back once it is complete.
    /// Waits for a flush that is going on.
    ///
    /// # Errors
    /// [`LlamaError::CheckpointBusy`] if another one is going on; [`LlamaError::Poisoned`].
    pub fn checkpoint_begin(&self, user_data: &[u8]) -> Result<Checkpoint, LlamaError> {
        self.store.check()?;
        let active = Active::begin(&self.checkpointing)?;
        // Under the lock no page is between its dirty bit and its durable fragment.
        let flusher = self.lock_flusher();
        Ok(Checkpoint {
            start: flusher.scan_start(),
            number: flusher.image_number + 1,
            user_data: user_data.to_vec(),
            round: self.round(&flusher),
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
        self.flush_round_step(&mut checkpoint.round)
    }

    fn round(&self, _under_its_lock: &Flusher) -> FlushRound {
        FlushRound { pending: self.table.dirty_pages(self.pages.end()).collect() }
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
    /// As [`Llama::flush_step`]. After a full disk the step may be repeated.
    pub fn flush_round_step(&self, round: &mut FlushRound) -> Result<CheckpointProgress, LlamaError> {
        let mut flusher = self.lock_flusher();
        let mut tried = Vec::new();
        let pending = &mut round.pending;
        let written = self.flush_batch(&mut flusher, || {
            // A clean page has been flushed since, by whomever.
            let page = std::iter::from_fn(|| pending.pop()).find(|&page| self.table.is_dirty(page))?;
            tried.push(page);
            Some(page)
        });
        match written {
            Ok(written) => {
                // Those that were left for later, or for want of room; the adopters of held pages among them.
                pending.extend_from_slice(&written.skipped);
                pending.extend_from_slice(flusher.begun());
                Ok(match written.bytes {
                    0 if pending.is_empty() => CheckpointProgress::Done,
                    0 => CheckpointProgress::Blocked { pages: pending.len() },
                    bytes => CheckpointProgress::Wrote { pages: written.pages, bytes },
                })
            }
            Err(error) => {
                pending.extend_from_slice(&tried);
                Err(error)
            }
        }
    }

    /// Puts a page of the index into the image. Every page of every index is to be added between the last
    /// [`Llama::checkpoint_flush_step`] and [`Llama::checkpoint_finish`], in the order of tree and low key; pages that
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
        checkpoint.gathered.push((tree, low_key.to_vec(), page));
        if checkpoint.gathered.len() >= GATHERED { self.write_gathered(checkpoint) } else { Ok(()) }
    }

    fn write_gathered(&self, checkpoint: &mut Checkpoint) -> Result<(), LlamaError> {
        self.store.check()?;
        let mut known = Vec::with_capacity(checkpoint.gathered.len());
        let flusher = self.lock_flusher();
        for (tree, low_key, page) in checkpoint.gathered.drain(..) {
            // Under the lock all fragments are durable, or the store is poisoned.
            let fragments = self.table.fragments(page);
            if self.table.is_adopted(page) && fragments.len() > 0 {
                known.push((tree, low_key, page, fragments));
            }
        }
        let incarnation = flusher.incarnation;
        drop(flusher);
        self.store.check()?;
        let segments = &self.store.segments;
        let writer = match &mut checkpoint.writer {
            Some(writer) => writer,
            None => {
                let start = ImageStart {
                    store: segments.store,
                    number: checkpoint.number,
                    start: checkpoint.start,
                    incarnation,
                    segment_bytes: segments.segment_bytes,
                    user_data: std::mem::take(&mut checkpoint.user_data),
                };
                let created = ImageWriter::create(&segments.directory, self.options.direct, &start);
                checkpoint.writer.insert(created.map_err(|error| self.image_failed(error))?)
            }
        };
        for (tree, low_key, page, fragments) in known {
            writer.add(page, tree, &low_key, &fragments).map_err(|error| self.image_failed(error))?;
        }
        Ok(())
    }

    /// Completes the checkpoint: the image becomes durable, the older one is removed, and the segments that no
    /// recovery can need any more.
    ///
    /// # Errors
    /// [`LlamaError::Device`] if the device fails; the earlier checkpoint then stands, unless only the removal of
    /// what is not needed failed. A full disk is no reason to stop; any other failure poisons the store.
    ///
    /// # Panics
    /// If [`Llama::checkpoint_flush_step`] has not said `Done`.
    pub fn checkpoint_finish(&self, mut checkpoint: Checkpoint) -> Result<(), LlamaError> {
        assert!(checkpoint.round.pending.is_empty(), "the checkpoint is not flushed");
        // Sealed pages that still count may have left the index already. Those that stop counting meanwhile do so by a
        // fragment behind the scan start.
        checkpoint.gathered.extend(self.sealed_pages());
        self.write_gathered(&mut checkpoint)?;
        let writer = checkpoint.writer.as_mut().expect("made by write_gathered");
        let bytes = writer.finish(self.pages.end()).map_err(|error| self.image_failed(error))?;
        self.counters.bytes_written.add(bytes);
        self.store.check()?;
        writer.publish().map_err(|error| self.store.fail(error))?;
        self.counters.checkpoints.add(1);
        self.remove_older_images(checkpoint.number).map_err(|error| self.store.fail(error))?;

        let mut flusher = self.lock_flusher();
        flusher.image_number = checkpoint.number;
        flusher.image_start = checkpoint.start;
        self.remove_dead_segments(flusher)?;
        Ok(())
    }

    /// Removes the segments before the image's scan start in which nothing is live; how many.
    ///
    /// What is dead has been superseded by a durable fragment. Either the image says so, or the scan finds that
    /// fragment: it is younger than the image's entry of its page, hence behind the scan start. The removals are
    /// not synced: a segment that comes back at a crash is dead still.
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
        let dead = flusher.accounts.dead(segments.index(flusher.image_start.offset));
        for &segment in &dead {
            flusher.accounts.close(segment);
        }
        drop(flusher);
        for &segment in &dead {
            segments.remove(segment).map_err(LlamaError::Device)?;
            self.counters.segments_removed.add(1);
        }
        Ok(dead.len())
    }

    /// The older image must be gone for good before a segment is removed that it refers to.
    fn remove_older_images(&self, number: u64) -> Result<(), DeviceError> {
        let directory = &self.store.segments.directory;
        let names = directory.list()?;
        let older = names.iter().filter_map(|name| image_number(name)).filter(|&older| older < number);
        let mut removed = false;
        for older in older {
            directory.remove(&image_name(older))?;
            removed = true;
        }
        if removed { directory.sync() } else { Ok(()) }
    }

    fn image_failed(&self, error: DeviceError) -> LlamaError {
        if error.is_full() { LlamaError::Device(error) } else { self.store.fail(error) }
    }
}
