//! The flusher: writes one buffer after the other and publishes the stable prefix.
//!
//! # Invariants
//!
//! - **F1** At most one write is under way, and the next is not issued before it is durable. So the stable log is
//!   always a prefix, and on disk a valid buffer proves that all before it had been durable.
//! - **F2** A buffer is written when it is sealed and its writers have left (W1, W3): nobody changes its bytes any more.
//! - **F3** The stable LSN is published before anybody is woken (S1).
//! - **F4** After the first failed write or sync nothing is written any more, and the same bytes are never tried again:
//!   after a failed sync nobody knows what is on disk.
//!
//! # Group commit
//!
//! There is no timer. Whoever wants durability raises `requested`; a step that finds records below it seals the open
//! buffer, however full, and writes it. While the device is busy the next buffer fills, so the batches grow with
//! the device's latency and the load, and a lone commit waits for nobody.
//!
//! # Room that has been written before
//!
//! What is written durably where a file has been allocated and not been written yet has the file system note that it is written now, and make that durable, too: by
//! threads of its own, which on a busy machine wait for a processor, and it takes half as long again at least. So small buffers get zeros written before
//! them, many buffers' room at a time, by the flusher itself between two writes ([`Flusher::fill_ahead`]). A segment that was another one before needs none.

use crate::LogError;
use crate::block::{BLOCK, BufferHeader, HEADER_BYTES, block_up};
use crate::buffers::Finished;
use crate::log::Log;
use crate::segment::Segments;
use crate::sync::{AtomicU64, Ordering, Patience};
use deuteron_canary::{Canary, is_planted};
use deuteron_device::{AlignedBuffer, DeviceError, File};
use deuteron_histogram::Histogram;
use std::sync::Arc;

/// How many buffers are written before preparing a segment is tried again after the disk was full.
const RETRY_EVERY: u64 = 64;

/// So many bytes of a new segment are filled at once at most.
const FILL_BYTES: u64 = 256 << 10;
/// Ahead of buffers of up to so many bytes: what larger ones would gain is less than the zeros take.
const FILLED_WRITE_MAX: u64 = 32 << 10;

/// The flusher's memory between steps.
pub(crate) struct Flusher {
    /// The number of the next buffer to write.
    next: u64,
    /// The number of the next buffer whose descriptor is to be freed.
    next_free: u64,
    /// Where the next buffer starts.
    position: u64,
    previous_crc: u32,
    /// The segment that the last buffer went to.
    segment: Option<(u64, Arc<dyn File>)>,
    /// How many bytes of the last buffer were written.
    written: u64,
    /// Up to where that segment has been filled; `None` if nobody has looked yet whether it has to be.
    filled: Option<u64>,
    /// What it is filled with, once there is something to fill.
    zeros: Option<AlignedBuffer>,
}

/// What a step has done.
pub(crate) enum Step {
    Idle,
    Worked,
    /// A buffer has become durable: those who wait for something below are to be woken, and then the next segment prepared.
    Wrote {
        stable: u64,
    },
}

/// What the flusher counts. Written by it alone.
#[derive(Default)]
pub(crate) struct FlushCounters {
    pub flushes: AtomicU64,
    pub bytes_written: AtomicU64,
    pub record_bytes_written: AtomicU64,
    pub bytes_filled: AtomicU64,
    pub sealed_on_request: AtomicU64,
    pub write_times: Histogram,
}

impl Flusher {
    /// Buffer number 1 comes next, at `position`, after a buffer with this checksum.
    pub(crate) fn new(position: u64, previous_crc: u32) -> Flusher {
        let (written, filled, zeros) = (0, None, None);
        Flusher { next: 1, next_free: 1, position, previous_crc, segment: None, written, filled, zeros }
    }

    /// One step; see [`Log::flush_step`]. An error must stop the log.
    pub(crate) fn step(&mut self, log: &Log) -> Result<Step, LogError> {
        self.free_written(log);
        let number = self.next;
        let Some(opened) = log.buffers.opened(number) else { return self.idle(log) };
        if let Some(offset) = opened.open_offset {
            let is_wanted = log.requested.load(Ordering::Acquire) > opened.base;
            if offset as usize <= HEADER_BYTES || !is_wanted {
                return self.idle(log);
            }
            if log.buffers.seal(number) {
                log.flush_counters.sealed_on_request.fetch_add(1, Ordering::Relaxed);
            }
        }
        let mut patience = Patience::new();
        let finished = loop {
            match log.buffers.finished(number) {
                Some(finished) => break finished,
                None if patience.wait() => {}
                // A writer is slow. There is work to do, so true; but not here.
                None => return Ok(Step::Worked),
            }
        };
        self.write(log, finished)?;
        self.next += 1;
        self.free_written(log);
        Ok(Step::Wrote { stable: finished.successor })
    }

    /// There is nothing to write.
    fn idle(&mut self, log: &Log) -> Result<Step, LogError> {
        let worked = self.prepare_ahead(log, true)?;
        Ok(if worked { Step::Worked } else { Step::Idle })
    }

    /// Writes a finished buffer and publishes it.
    fn write(&mut self, log: &Log, finished: Finished) -> Result<(), LogError> {
        let Finished { base, used, last_commit, successor } = finished;
        debug_assert_eq!(base, self.position, "buffers are contiguous");
        let used = used as usize;
        let written = block_up(used as u64) as usize;
        let segments = &log.segments;
        // SAFETY: F2: nobody writes to the records any more; version readers only read.
        let records = unsafe { log.ring.slice(base + HEADER_BYTES as u64, used - HEADER_BYTES) };
        let header = BufferHeader {
            crc: 0,
            base,
            distance: (successor - base) as u32,
            record_bytes: records.len() as u32,
            last_commit,
            previous_crc: self.previous_crc,
            incarnation: log.incarnation,
            identity: segments.shape().identity,
        }
        .seal(records);
        // SAFETY: no record is in the header's place, and the proxy looks at it only once the buffer is stable.
        unsafe { log.ring.slice_mut(base, HEADER_BYTES) }.copy_from_slice(&header.to_bytes());
        // SAFETY: no record is behind the used part: it was given to nobody (B5), and the next buffer starts behind
        // the block (or at a boundary further on).
        unsafe { log.ring.slice_mut(base + used as u64, written - used) }.fill(0);

        if is_planted(Canary::AcknowledgeBeforeSync)
            && let Some((_, unsynced)) = &self.segment
        {
            unsynced.sync().map_err(LogError::device("sync the buffer before"))?;
        }
        let segment = segments.base_of(base);
        let file = match &self.segment {
            Some((current, file)) if *current == segment => file,
            _ => {
                let file = match segments.get(segment) {
                    Some(file) => file,
                    None => segments.prepare(segment)?,
                };
                self.filled = None;
                &self.segment.insert((segment, file)).1
            }
        };
        let (last_part, next) = (segments.last_part(segment), segment + segments.shape().segment_bytes);
        if successor > last_part && log.opened_at < last_part && segments.get(next).is_none() {
            // Who opens the log next needs room to write, too.
            segments.prepare(next)?;
        }
        // SAFETY: F2.
        let bytes = unsafe { log.ring.slice(base, written) };
        let begun = segments.now();
        write_durable(&**file, bytes, BLOCK + (base - segment))
            .map_err(LogError::device("write a buffer"))?;
        let write_time = segments.now() - begun;

        (self.position, self.written) = (successor, written as u64);
        self.previous_crc = header.crc;
        log.index.note(base);
        // F3.
        log.window.set_stable(successor);
        let counters = &*log.flush_counters;
        counters.write_times.record_time(write_time);
        counters.flushes.fetch_add(1, Ordering::Relaxed);
        counters.bytes_written.fetch_add(written as u64, Ordering::Relaxed);
        counters.record_bytes_written.fetch_add(records.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Writes zeros to the next part of a segment that has not been written yet, if buffers are small and the next one would come there: behind all that is
    /// written (F1 holds), and before the next buffer is, as this takes the flusher. Nobody relies on it, so a full disk is no error.
    pub(crate) fn fill_ahead(&mut self, log: &Log) -> Result<(), LogError> {
        let Some((segment, file)) = &self.segment else { return Ok(()) };
        if self.written > FILLED_WRITE_MAX {
            return Ok(());
        }
        let end = segment + log.segments.shape().segment_bytes;
        let filled = match self.filled {
            Some(filled) => filled,
            None if log.segments.is_written(file)? => end,
            None => *segment,
        };
        let from = filled.max(self.position);
        self.filled = Some(filled);
        if self.position + self.written <= from || from >= end {
            return Ok(());
        }
        let bytes = FILL_BYTES.min(end - from);
        let zeros =
            self.zeros.get_or_insert_with(|| AlignedBuffer::zeroed(FILL_BYTES.min(end - segment) as usize));
        self.filled = match file.write_at(&zeros[..bytes as usize], BLOCK + (from - segment)) {
            Err(error) if !error.is_full() => return Err(LogError::device("fill a segment")(error)),
            Err(_) => Some(end),
            Ok(()) => Some(from + bytes),
        };
        log.flush_counters.bytes_filled.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Gives back the descriptors of written buffers, in order, until one has a late comer in it.
    fn free_written(&mut self, log: &Log) {
        while self.next_free < self.next && log.buffers.free(self.next_free) {
            self.next_free += 1;
        }
    }

    /// Prepares the segment that is due, if it is not there.
    pub(crate) fn prepare_ahead(&mut self, log: &Log, is_idle: bool) -> Result<bool, LogError> {
        let segments: &Segments = &log.segments;
        let Some(due) = segments.due_at(self.position) else {
            // A write may have made it.
            log.condition.set_space_low(false);
            return Ok(false);
        };
        let is_retry = log.condition.is_space_low();
        if is_retry && !is_idle && !self.next.is_multiple_of(RETRY_EVERY) {
            return Ok(false);
        }
        match segments.prepare(due) {
            Ok(_) => {
                log.condition.set_space_low(false);
                Ok(true)
            }
            Err(error) if error.is_full() => {
                log.condition.set_space_low(true);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// F1 and F4.
fn write_durable(file: &dyn File, bytes: &[u8], offset: u64) -> Result<(), DeviceError> {
    if is_planted(Canary::AcknowledgeBeforeSync) {
        return file.write_at(bytes, offset);
    }
    match file.write_durable_at(bytes, offset) {
        Err(_) if is_planted(Canary::RetryFailedSync) => file.sync(),
        written => written,
    }
}
