//! [`Writing`]: the flush buffer that is being written, and what follows when it is durable.
//!
//! Without guard, claim or flush lock the buffer is written by one durable write, or some one after the other, and then `durable_end` is raised. The next one may be filled
//! meanwhile, and is written after that: so one at most is in doubt. Where somebody [waits for memory](Llama::hurry) the write is begun, and goes on while who has begun it does something else:
//! whoever comes next takes notice of its end. An
//! address at or above `durable_end` is only reserved: eviction leaves such a page alone. If the write fails the
//! store is poisoned, `durable_end` never moves again, and so no page leaves memory whose bytes might be lost.
//!
//! ## Which pages count
//!
//! A page is *adopted* once recovery will find it: it is the first of a tree and durable, or a durable fragment of
//! an adopted page adopts it. As pages are flushed adoptee first, a page may be durable before it is adopted; then
//! `unadopted` remembers the buffer of its first fragment (a checkpoint's scan must start there or earlier), and
//! `waiting` what it adopts in turn.
//!
//! Once a fragment that *disowns* a page is durable, the page does not count any more; see [`seal`](crate::seal).

use crate::error::LlamaError;
use crate::filling::{Filling, Taken};
use crate::flush::Flusher;
use crate::flush_buffer::{BufferHeader, HEADER_BYTES, Position};
use crate::llama::Llama;
use crate::page_id::PageId;
use crate::reading::InFlight;
use crate::sync::{MutexGuard, RwLockWriteGuard};
use deuteron_device::{AlignedBuffer, BLOCK_BYTES, DurableWrite, File, WriteInFlight};
use std::mem;
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::Instant;

/// Room for so many pages that wait for their adoption is kept when none does.
pub(crate) const WAITING_KEPT: usize = 1024;
/// In so many pieces a buffer is written while nobody waits for memory: a read beside 256 KiB waits half as long as beside 1 MiB.
const WRITE_PIECES: usize = 4;

/// The buffer that is being written. Its lock is held while somebody waits for that, and taken under the flush lock, so that buffers are written in order;
/// whoever writes does not take the flush lock.
pub(crate) struct Writing {
    /// Empty while it is in flight.
    buffer: AlignedBuffer,
    in_flight: Option<(Box<dyn WriteInFlight>, Sent)>,
    /// What has become durable and has not been [noted](Llama::settle_written) yet.
    durable: Vec<(Taken, Position)>,
}

impl Writing {
    pub(crate) fn new(buffer_bytes: usize) -> Writing {
        Writing { buffer: AlignedBuffer::zeroed(buffer_bytes), in_flight: None, durable: Vec::new() }
    }

    /// As if a fragment of the first page of a tree had just become durable.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn note_root(&mut self, page: PageId, position: Position) {
        let (address, crc) = (crate::flash_address::FlashAddress::new(4096, 64), 0);
        let (dead, adopts, disowns) = (Vec::new(), Vec::new(), Vec::new());
        let taken =
            Taken { page, address, crc, dead, has_changed: true, place: None, adopts, disowns, root: true };
        self.durable.push((taken, position));
    }
}

/// A buffer that is closed, and whose turn it is.
pub(crate) struct Unwritten<'l> {
    writing: MutexGuard<'l, Writing>,
    file: Arc<dyn File>,
    sent: Sent,
}

/// What a buffer holds that is written.
struct Sent {
    stream: usize,
    position: Position,
    /// Bytes of it that are used.
    used: usize,
    taken: Vec<Taken>,
    /// When it was closed, from which moment on it is written.
    begun: Instant,
}

impl Sent {
    fn length(&self) -> usize {
        self.used.next_multiple_of(BLOCK_BYTES)
    }
}

impl Llama {
    pub(crate) fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what has become durable, unless a buffer is being written.
    pub(crate) fn settle_if_written(&self, flusher: &mut Flusher) {
        let mut writing = match self.writing.try_lock() {
            Ok(writing) => writing,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if writing.in_flight.as_mut().is_none_or(|(write, _)| write.is_done()) {
            self.settle_written(flusher, &mut writing);
        }
    }

    /// Waits for the buffer that is being written, and draws the conclusions from what has become durable.
    pub(crate) fn settle_written(&self, flusher: &mut Flusher, writing: &mut Writing) {
        if let Some((write, sent)) = writing.in_flight.take() {
            let (buffer, outcome) = write.wait();
            writing.buffer = buffer;
            match outcome {
                Ok(()) => self.note_written(writing, sent),
                // Whoever wants something of the store is told of it.
                Err(error) => drop(self.store.fail(error)),
            }
        }
        for (taken, position) in writing.durable.drain(..) {
            taken.disowns.iter().for_each(|&page| self.forget_disowned(flusher, page));
            self.note_adoptions(flusher, taken, position);
        }
        self.free_disowned(flusher);
    }

    /// Whether a buffer is being written at the moment: who only needs room soon need not flush, too.
    pub fn is_writing(&self) -> bool {
        match self.writing.try_lock() {
            Ok(mut writing) => writing.in_flight.as_mut().is_some_and(|(write, _)| !write.is_done()),
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Poisoned(_)) => false,
        }
    }

    /// Closes the buffer that has been filled, if there is anything in it, once the one before is durable: its place in the store is taken, and what was written into it
    /// is noted.
    pub(crate) fn close<'l>(
        &'l self,
        flusher: &mut Flusher,
        mut filling: RwLockWriteGuard<'_, Filling>,
    ) -> Result<Option<Unwritten<'l>>, LlamaError> {
        let segments = &self.store.segments;
        let Some((stream, buffer, used, taken)) = filling.close() else { return Ok(None) };
        let mut writing = self.writing();
        self.settle_written(flusher, &mut writing);
        // If that one failed, none is written any more.
        self.store.check()?;
        taken.iter().for_each(|taken| self.note_taken(flusher, taken));
        let position = flusher.position;
        let offset = position.offsets[stream];
        let length = used.next_multiple_of(BLOCK_BYTES);
        buffer[used..length].fill(0);
        let header = BufferHeader {
            store: segments.store,
            sequence: position.sequence,
            incarnation: flusher.incarnation,
            offset,
            length: length as u64,
            fragments: taken.len() as u32,
            chain: position.chain,
            body_crc: taken.iter().fold(0, |crc, taken| crc32c::crc32c_append(crc, &taken.crc.to_le_bytes())),
            // Not before the nodes were copied: above what they depend on.
            marks: self.marks(),
        };
        let chain = header.encode(buffer);
        let file = segments.file(segments.index(offset)).expect("there is room only in a segment");
        flusher.position = position.next(stream, segments.behind(offset, offset + length as u64), chain);
        flusher.accounts.written(segments.index(offset), length as u64, (used - HEADER_BYTES) as u64);
        let written = mem::replace(&mut writing.buffer, AlignedBuffer::zeroed(0));
        writing.buffer = filling.replace_buffer(match written.len() == self.options.flush_buffer_bytes {
            true => written,
            false => AlignedBuffer::zeroed(self.options.flush_buffer_bytes),
        });
        Ok(Some(Unwritten { writing, file, sent: Sent { stream, position, used, taken, begun: self.now() } }))
    }

    /// Notes a fragment whose buffer is closed.
    fn note_taken(&self, flusher: &mut Flusher, taken: &Taken) {
        if let Some((tree, low_key)) = &taken.place {
            flusher.images.note_place(&self.table, taken.page, *tree, low_key);
        }
        flusher.images.note(&self.table, taken.page);
        // When the page was updated, if it was flushed before.
        let mut times = None;
        for &dead in &taken.dead {
            times = flusher.accounts.remove(dead, taken.has_changed);
        }
        flusher.accounts.add(taken.address, times);
    }

    /// Writes a buffer; or begins to, if somebody waits for memory.
    pub(crate) fn write(&self, unwritten: Unwritten<'_>) -> Result<(), LlamaError> {
        let Unwritten { mut writing, file, sent } = unwritten;
        let segments = &self.store.segments;
        let (offset, length) = (sent.position.offsets[sent.stream] % segments.segment_bytes, sent.length());
        if self.in_flight() == InFlight::Many {
            let buffer = mem::replace(&mut writing.buffer, AlignedBuffer::zeroed(0));
            let write = segments.directory.begin_write(DurableWrite { file, buffer, length, offset });
            writing.in_flight = Some((write, sent));
            return Ok(());
        }
        let piece_bytes = (self.options.flush_buffer_bytes / WRITE_PIECES).next_multiple_of(BLOCK_BYTES);
        for (piece, at) in writing.buffer[..length].chunks(piece_bytes).zip((offset..).step_by(piece_bytes)) {
            file.write_durable_at(piece, at).map_err(|error| self.store.fail(error))?;
        }
        self.note_written(&mut writing, sent);
        Ok(())
    }

    /// A buffer has become durable.
    fn note_written(&self, writing: &mut Writing, sent: Sent) {
        let length = sent.length();
        let Sent { stream, position, used, taken, begun } = sent;
        self.store.set_durable_end(stream, position.offsets[stream] + length as u64);
        self.counters.bytes_written.add(length as u64);
        self.counters.bytes_padded.add((HEADER_BYTES + length - used) as u64);
        self.counters.buffers_written.add(1);
        self.histograms.buffer_write_nanoseconds.record_time(self.now() - begun);
        self.flushed().extend(taken.iter().map(|taken| taken.page));
        writing.durable.extend(taken.into_iter().map(|taken| (taken, position)));
    }

    /// Pages of buffers that have become durable, which may be evicted if memory is short.
    fn flushed(&self) -> MutexGuard<'_, Vec<PageId>> {
        self.flushed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evicts what has become durable and nobody has read lately, if memory is short.
    pub(crate) fn evict_durable(&self) {
        let flushed = mem::take(&mut *self.flushed());
        self.evict_flushed(&flushed);
    }

    /// A fragment at `position` has become durable.
    fn note_adoptions(&self, flusher: &mut Flusher, taken: Taken, position: Position) {
        let Taken { page, adopts, root, .. } = taken;
        if root {
            self.adopt(flusher, page);
        }
        if self.table.is_adopted(page) {
            for adoptee in adopts {
                self.adopt(flusher, adoptee);
            }
        } else {
            flusher.unadopted.note(page, position);
            if !adopts.is_empty() {
                flusher.waiting.entry(page).or_default().extend(adopts);
            }
        }
    }

    /// `page` counts from now on, and what it adopts.
    fn adopt(&self, flusher: &mut Flusher, page: PageId) {
        let mut pages = vec![page];
        while let Some(page) = pages.pop() {
            if !self.table.is_adopted(page) {
                self.table.set_adopted(page);
                flusher.images.note(&self.table, page);
                flusher.unadopted.remove(page);
                pages.extend(flusher.waiting.remove(&page).unwrap_or_default());
            }
        }
        if flusher.waiting.is_empty() && flusher.waiting.capacity() > WAITING_KEPT {
            flusher.waiting.shrink_to(WAITING_KEPT);
        }
    }
}
