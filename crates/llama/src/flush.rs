//! Flushing: dirty pages become fragments in a flush buffer, and the buffer becomes durable.
//!
//! One thread at a time fills the buffer, under the flush lock, which nobody but a checkpoint waits for. For each page, under
//! its claim and a guard:
//!
//! 1. the dirty bit is cleared, then the mapping word is read (M2), then the holds (M5);
//! 2. the nodes that no fragment holds are collected: from the head down to the base (a *full* fragment), or to the
//!    first node with an address, which becomes `previous`. The whole chain is taken where `previous` would be one
//!    fragment too many, or the cleaner wants the page moved.
//!    Before that the access method is asked to consolidate the page ([`AccessMethod`]), so that blind deltas are not
//!    written again and again;
//!    Of a sealed page, what lies below the seal is written, until a fragment that disowns it is;
//! 3. pages that the base adopts and that were never flushed go first, so that whoever finds the adoption on flash
//!    finds the adopted page too;
//! 4. the nodes are copied into the buffer, and the fragment's address is noted in them and in the page's entry.
//!
//! Then, without guard, claim or flush lock, the buffer is written by one durable write, and `durable_end` is raised. The next one may be filled
//! meanwhile, and is written after that ([`Writing`]). An
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

use crate::accounts::{Accounts, Times};
use crate::error::LlamaError;
use crate::fetched::Fetched;
use crate::flash_address::FlashAddress;
use crate::flush_buffer::{BufferHeader, HEADER_BYTES, Position, STREAMS, Stream, fragment_address};
use crate::fragment::Marshal;
use crate::fragments::{ANYTHING, Filter, Fragments};
use crate::images::Images;
use crate::llama::{Llama, chain};
use crate::mapping_table::Word;
use crate::node::{NodeKind, NodeRef};
use crate::page_id::PageId;
use crate::rows::{LEFT_MAX, Row};
use crate::segments::{InFlight, Segments};
use crate::sync::{MutexGuard, Ordering};
use crate::unadopted::Unadopted;
use deuteron_canary::{Canary, is_planted};
use deuteron_device::{AlignedBuffer, BLOCK_BYTES, DeviceError};
use std::collections::HashMap;
use std::mem;
use std::ptr::NonNull;
use std::sync::{PoisonError, TryLockError, Weak};

/// Room for so many pages that wait for their adoption is kept when none does.
const WAITING_KEPT: usize = 1024;
/// In so many pieces a buffer is written while nobody waits for memory: a read beside 256 KiB waits half as long as beside 1 MiB.
const WRITE_PIECES: usize = 4;

/// The access method, as the store sees it.
pub trait AccessMethod: Send + Sync {
    /// Replaces the chain of `page`, which is in memory, by a base (or splits it), if that can be done at once. Called
    /// without a guard, on a thread that may have the flush lock: it must not flush, take part in a checkpoint, or ask for
    /// [`Llama::statistics`]. Whatever it does, the page is written afterwards.
    fn consolidate(&self, page: PageId);

    /// A Bloom filter of the keys in `delta`, the payload of one: whoever reads for a key whose bits are not all set in it need not read that delta
    /// ([`Llama::excerpt`]). All bits, if nothing is known. Called under the flush lock.
    fn filter(&self, delta: &[u8]) -> Filter {
        let _ = delta;
        ANYTHING
    }
}

/// What a [`Llama::flush_step`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushProgress {
    /// A flush buffer has been written.
    Wrote {
        /// Fragments in it.
        pages: usize,
        /// Its length.
        bytes: u64,
    },
    /// No page can be flushed: all are clean or held.
    Nothing,
    /// Another thread is flushing.
    Busy,
}

/// The writing end of the store. Only under the flush lock.
pub(crate) struct Flusher {
    /// Where the next buffer goes.
    pub(crate) position: Position,
    pub(crate) incarnation: u64,
    pub(crate) accounts: Accounts,
    /// The scan start of the newest durable image: what lies before it is not read by a recovery, but for live
    /// fragments.
    pub(crate) image_start: Position,
    /// From which images a recovery would start, and what they do not say yet.
    pub(crate) images: Images,
    buffer: AlignedBuffer,
    /// For each stream a page to be flushed, above it one of its adoptees, and so on. Kept between steps, so that a long
    /// row of splits that were never flushed is walked once.
    stacks: [Vec<PageId>; STREAMS],
    /// Adoptions by pages that are durable but not adopted themselves.
    waiting: HashMap<PageId, Vec<PageId>>,
    unadopted: Unadopted,
    /// Pages that a durable fragment disowns, sealed, with somebody's hold on them.
    pub(crate) disowned: Vec<PageId>,
}

/// What lies in the flush buffer and is not written yet.
struct Batch<'l> {
    stream: usize,
    used: usize,
    fragments: u32,
    body_crc: u32,
    taken: Vec<Taken>,
    skipped: Vec<PageId>,
    rows: Vec<Row<'l>>,
    passed: Vec<PageId>,
}

struct Taken {
    page: PageId,
    adopts: Vec<PageId>,
    disowns: Vec<PageId>,
    root: bool,
}

/// What [`Llama::flush_batch`] has done.
pub(crate) struct Written<'l> {
    pub(crate) pages: usize,
    pub(crate) bytes: u64,
    /// Pages left for later, dirty as before.
    pub(crate) skipped: Vec<PageId>,
    /// What must be read before it can be flushed, by [`Llama::prepare_rows`].
    pub(crate) rows: Vec<Row<'l>>,
    /// Pages that were passed as somebody else is reading them.
    pub(crate) passed: Vec<PageId>,
}

impl Written<'_> {
    /// Pages that could not be written as they must be read before.
    pub(crate) fn unread(&self) -> Vec<PageId> {
        self.rows.iter().map(Row::due).chain(self.passed.iter().copied()).collect()
    }
}

/// The buffer that is being written. Its lock is held meanwhile, and taken under the flush lock, so that buffers are written in order;
/// whoever writes does not take the flush lock.
pub(crate) struct Writing {
    buffer: AlignedBuffer,
    /// What has become durable and has not been [noted](Llama::note_durable) yet.
    durable: Vec<(Taken, Position)>,
}

impl Writing {
    pub(crate) fn new(buffer_bytes: usize) -> Writing {
        Writing { buffer: AlignedBuffer::zeroed(buffer_bytes), durable: Vec::new() }
    }
}

/// What became of one page.
enum Marshalled {
    /// It is in the buffer, or there is nothing to write.
    Done,
    /// It is held or claimed.
    Later,
    /// This adoptee must go first.
    First(PageId),
    /// It must be read first, and is dirty still.
    Load,
    /// It should be consolidated first.
    Long,
    /// There is no room for a fragment of this length.
    Full(u64),
    TooLarge(u64),
}

impl Flusher {
    pub(crate) fn new(
        position: Position,
        incarnation: u64,
        accounts: Accounts,
        images: Images,
        buffer_bytes: usize,
    ) -> Flusher {
        Flusher {
            position,
            incarnation,
            accounts,
            image_start: position,
            images,
            buffer: AlignedBuffer::zeroed(buffer_bytes),
            stacks: Default::default(),
            waiting: HashMap::new(),
            unadopted: Unadopted::default(),
            disowned: Vec::new(),
        }
    }

    /// Where a recovery must start to scan if everything that is dirty now were flushed.
    pub(crate) fn scan_start(&self) -> Position {
        self.unadopted.first().map_or(self.position, |first| first.min(self.position))
    }

    /// Pages whose flush has begun, and waits for room or for the one above. They are dirty, too.
    pub(crate) fn begun(&self) -> impl Iterator<Item = PageId> {
        self.stacks.iter().flatten().copied()
    }
}

/// What is added to a fragment of so many bytes that begins at `used`, so that the next begins with a block: nothing, if that is more than a
/// sixteenth. So pages that nearly fill a block lie in one each, and a cold read of such a page is one block, not two.
fn padding(used: usize, length: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    let end = used as u64 + length;
    let rest = end.next_multiple_of(block) - end;
    if length <= block && rest * 16 <= length { rest } else { 0 }
}

impl Llama {
    /// The flush lock, if nobody has it. A buffer may be in the middle of being written.
    pub(crate) fn try_fill(&self) -> Option<MutexGuard<'_, Flusher>> {
        // Relaxed: a matter of turns.
        if self.flusher_awaited.load(Ordering::Relaxed) > 0 {
            return None;
        }
        match self.flusher.try_lock() {
            Ok(flusher) => Some(flusher),
            // A panic under the lock is a bug that the poisoned store below reports; its accounts are still whole.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The flush lock, if nobody has it. Waits for the buffer that is being written, and what is durable has been noted.
    pub(crate) fn try_flusher(&self) -> Option<MutexGuard<'_, Flusher>> {
        let mut flusher = self.try_fill()?;
        self.settle(&mut flusher);
        Some(flusher)
    }

    /// The flush lock; waits for another thread's device I/O at most. No buffer is being written, and what is durable has been noted.
    pub(crate) fn lock_flusher(&self) -> MutexGuard<'_, Flusher> {
        // Those who flush take the lock again as soon as they have given it back, and the lock is not fair.
        self.flusher_awaited.fetch_add(1, Ordering::Relaxed);
        let mut flusher = self.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        self.flusher_awaited.fetch_sub(1, Ordering::Relaxed);
        self.settle(&mut flusher);
        flusher
    }

    fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the buffer that is being written; under the flush lock no other is begun.
    fn settle(&self, flusher: &mut Flusher) {
        self.note_durable(flusher, &mut self.writing());
    }

    /// As [`Llama::settle`], unless that would have to wait.
    fn settle_if_written(&self, flusher: &mut Flusher) {
        match self.writing.try_lock() {
            Ok(mut writing) => self.note_durable(flusher, &mut writing),
            Err(TryLockError::Poisoned(poisoned)) => self.note_durable(flusher, &mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// Draws the conclusions from what has become durable.
    fn note_durable(&self, flusher: &mut Flusher, writing: &mut Writing) {
        for (taken, position) in writing.durable.drain(..) {
            taken.disowns.iter().for_each(|&page| self.forget_disowned(flusher, page));
            self.note_adoptions(flusher, taken, position);
        }
        self.free_disowned(flusher);
    }

    /// Whether a buffer is being written at the moment: who only needs room soon need not flush, too.
    pub fn is_writing(&self) -> bool {
        matches!(self.writing.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Waits for the flush that goes on, if one does.
    pub fn await_flush(&self) {
        let mut flusher = self.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        self.settle(&mut flusher);
    }

    /// Writes one flush buffer of dirty pages, if there are any, durably.
    ///
    /// # Errors
    /// [`LlamaError::Device`] if the write fails, which poisons the store, or no segment can be made because the
    /// disk is full, which does not; [`LlamaError::Poisoned`] after an earlier failure; [`LlamaError::Corrupt`] if a
    /// page that had to be read is; [`LlamaError::PageTooLarge`].
    ///
    /// # Panics
    /// If a page adopts another on which nothing is installed.
    pub fn flush_step(&self) -> Result<FlushProgress, LlamaError> {
        // Whether pages that somebody is preparing are left until they are ready.
        let mut is_left_to_others = true;
        loop {
            let Some(mut flusher) = self.try_fill() else { return Ok(FlushProgress::Busy) };
            if flusher.unadopted.have_become_many() {
                // Under an ascending load the hand follows the new pages and does not come round; but what adopts them lies behind it.
                self.flush_hand.store(1, Ordering::Relaxed);
            }
            let end = self.pages.end();
            // Relaxed: written under the flush lock only, and to others a hint.
            let start = PageId(self.flush_hand.load(Ordering::Relaxed)).min(end);
            // One revolution: from the hand to the end, then from the first page to the hand.
            let (mut hand, mut limit, mut wrapped) = (start, end, false);
            let mut fetched = Fetched::default();
            let mut awaited = None;
            let written = self.flush_batch(flusher, Stream::Fresh, || {
                if let Some(page) = self.next_ready() {
                    return Some(page);
                }
                loop {
                    if let Some(page) = fetched.next(self, hand, limit) {
                        hand = PageId(page.0 + 1);
                        self.flush_hand.store(hand.0, Ordering::Relaxed);
                        if !is_left_to_others || !self.is_in_the_making(page) {
                            return Some(page);
                        }
                        awaited = Some(page);
                    } else if wrapped {
                        return None;
                    } else {
                        (hand, limit, wrapped) = (PageId(1), start, true);
                    }
                }
            })?;
            let awaited = written.passed.last().copied().or(awaited);
            let is_reading = !written.rows.is_empty();
            self.prepare_rows(written.rows)?;
            match (written.bytes, awaited) {
                (0, _) if is_reading => {}
                // All that is left is with others, who are about to have it ready.
                (0, Some(page)) => {
                    self.load(page)?;
                    is_left_to_others = false;
                }
                (0, None) => return Ok(FlushProgress::Nothing),
                (bytes, _) => return Ok(FlushProgress::Wrote { pages: written.pages, bytes }),
            }
        }
    }

    /// Fills the flush buffer with the pages that `next` names, and those that they need, and writes it to `stream`, the flush lock being
    /// given back as soon as it is full.
    pub(crate) fn flush_batch(
        &self,
        mut flusher: MutexGuard<'_, Flusher>,
        stream: Stream,
        mut next: impl FnMut() -> Option<PageId>,
    ) -> Result<Written<'_>, LlamaError> {
        self.store.check()?;
        if self.pages.has_returned() {
            // A page is not to be forgotten before what was written of it has been noted.
            self.settle(&mut flusher);
            self.recycle(&mut flusher);
        } else {
            self.settle_if_written(&mut flusher);
        }
        let mut batch = Batch {
            stream: stream as usize,
            used: HEADER_BYTES,
            fragments: 0,
            body_crc: 0,
            taken: Vec::new(),
            skipped: Vec::new(),
            rows: Vec::new(),
            passed: Vec::new(),
        };
        // An error must not leave addresses in nodes that no buffer will hold: what is in the batch is written
        // in any case.
        let filled = self.fill(&mut flusher, &mut batch, &mut next);
        if filled.is_err() {
            self.give_up_begun(&mut flusher, batch.stream);
        }
        let flushed: Vec<_> = batch.taken.iter().map(|taken| taken.page).collect();
        let mut bytes = 0;
        if batch.fragments > 0 {
            bytes = self.write_buffer(flusher, &mut batch)?;
            if let Some(mut flusher) = self.try_fill() {
                self.settle_if_written(&mut flusher);
            }
        }
        self.evict_flushed(&flushed);
        filled?;
        let Batch { fragments, skipped, rows, passed, .. } = batch;
        Ok(Written { pages: fragments as usize, bytes, skipped, rows, passed })
    }

    /// Leaves the pages whose flush has begun for later.
    fn give_up_begun(&self, flusher: &mut Flusher, stream: usize) {
        for page in flusher.stacks[stream].drain(..) {
            self.table.mark_dirty(page);
        }
    }

    /// Puts pages into the buffer until it is full, or there are none but such as must be read before.
    fn fill<'l>(
        &'l self,
        flusher: &mut Flusher,
        batch: &mut Batch<'l>,
        next: &mut dyn FnMut() -> Option<PageId>,
    ) -> Result<(), LlamaError> {
        // The page that consolidation was last asked for. Once is enough: it may have good reasons not to do it.
        let mut asked = None;
        while batch.used < self.options.flush_buffer_bytes {
            let page = match flusher.stacks[batch.stream].last() {
                Some(&page) => page,
                None => match next() {
                    Some(page) => {
                        flusher.stacks[batch.stream].push(page);
                        page
                    }
                    None => break,
                },
            };
            match self.marshal(flusher, batch, page, asked == Some(page)) {
                Marshalled::Done => {
                    flusher.stacks[batch.stream].pop();
                }
                Marshalled::Later => {
                    // Whoever adopts it has to wait with it.
                    for page in flusher.stacks[batch.stream].drain(..) {
                        self.table.mark_dirty(page);
                        batch.skipped.push(page);
                    }
                }
                Marshalled::First(adoptee) => flusher.stacks[batch.stream].push(adoptee),
                // Nothing is read under the flush lock. It is alone: what was never flushed is in memory, and so are its adopters.
                Marshalled::Load => {
                    match self.row_for_flush(page) {
                        Some(row) => batch.rows.push(row),
                        None => batch.passed.push(page),
                    }
                    flusher.stacks[batch.stream].pop();
                    if batch.rows.len() == LEFT_MAX {
                        break;
                    }
                }
                Marshalled::Long => {
                    asked = Some(page);
                    if let Some(method) = self.access_method.get().and_then(Weak::upgrade) {
                        method.consolidate(page);
                    }
                }
                Marshalled::Full(_) if batch.fragments > 0 => break,
                Marshalled::Full(bytes) => self.make_room(flusher, batch.stream, bytes)?,
                Marshalled::TooLarge(bytes) => {
                    let limit = self.store.segments.fragment_bytes_max();
                    return Err(LlamaError::PageTooLarge { page, bytes, limit });
                }
            }
        }
        Ok(())
    }

    /// Has `method` asked to consolidate long pages before they are written in full, and for the filters of deltas. Once per store.
    pub fn set_access_method(&self, method: Weak<dyn AccessMethod>) {
        // A second one would be a mistake in the wiring; the first stays.
        let _ = self.access_method.set(method);
    }

    /// Copies the unflushed part of `page` into the buffer.
    fn marshal(&self, flusher: &mut Flusher, batch: &mut Batch<'_>, page: PageId, asked: bool) -> Marshalled {
        let guard = self.epochs.pin();
        let Some(claim) = self.table.try_claim(page) else { return Marshalled::Later };
        self.table.take_dirty(page);
        let word = self.table.word_after_take_dirty(page);
        let rewrite = self.table.wants_rewrite(page);
        let postponed = |outcome| {
            self.table.mark_dirty(page);
            outcome
        };
        let head = match Word::decode(word) {
            Word::Free => return Marshalled::Done,
            Word::Stored(_) if rewrite => return postponed(Marshalled::Load),
            Word::Stored(_) => return Marshalled::Done,
            Word::Resident(head) => NonNull::new(head).expect("a resident word is not null").cast(),
        };
        // SAFETY: read from the mapping table under the guard (N3).
        let mut head = unsafe { NodeRef::new(head) };
        if head.is_sealed() {
            if self.table.is_disowned(page) {
                // Its heir has been taken, and with it all that is here.
                return Marshalled::Done;
            }
            // Held or not: it leaves memory with its identifier only, and blind deltas do not reach it.
            head = head.next().expect("a seal lies on a chain");
        } else if self.table.is_held(page) {
            self.counters.flushes_held.add(1);
            return postponed(Marshalled::Later);
        }
        let mut fragments = self.table.fragments(page);
        let mut nodes: Vec<NodeRef<'_>> = chain(head).take_while(|node| node.flash().is_none()).collect();
        let mut previous = chain(head).nth(nodes.len()).and_then(NodeRef::flash);
        if nodes.is_empty() && !rewrite {
            return Marshalled::Done;
        }
        let below = previous.map(|newest| fragments.up_to(newest));
        debug_assert!(below != Some(None), "{page} refers to a fragment that is not its own");
        // What the fragment is written for.
        let has_changed = head.flash().is_none();
        let is_moved = rewrite && previous.is_some();
        let max = self.fragments_max(page, head.is_partial());
        let too_many = below.is_some_and(|below| below.is_none_or(|below| below.are_enough(max)));
        if previous.is_some() && (rewrite || too_many) {
            if head.is_partial() {
                return postponed(Marshalled::Load);
            }
            if head.chain_length() > 0 && !asked && self.access_method.get().is_some() {
                return postponed(Marshalled::Long);
            }
            nodes = chain(head).collect();
            previous = None;
        }
        let mut marshal = Marshal { page, nodes: &nodes, previous, packed: None };
        for &adoptee in marshal.adopts() {
            if self.table.fragments(adoptee).len() == 0 && !is_planted(Canary::SplitBeforeSibling) {
                assert!(
                    self.table.word(adoptee) != 0,
                    "{page} adopts {adoptee}, on which nothing is installed"
                );
                return postponed(Marshalled::First(adoptee));
            }
        }
        let saved = if self.options.compress { marshal.pack() } else { None };
        let length = match marshal.length() {
            Ok(length) if length <= self.store.segments.fragment_bytes_max() => length,
            Ok(length) | Err(length) => return postponed(Marshalled::TooLarge(length)),
        };
        if batch.used as u64 + length > self.room(flusher, batch.stream) {
            return postponed(Marshalled::Full(length));
        }
        let length = length + padding(batch.used, length);
        let address = fragment_address(flusher.position.offsets[batch.stream], batch.used, length);
        let out = &mut flusher.buffer[batch.used..batch.used + length as usize];
        let crc = marshal.encode(address.offset(), out);
        let (adopts, disowns) = (marshal.adopts().to_vec(), marshal.disowns().to_vec());
        disowns.iter().for_each(|&disowned| self.table.set_disowned(disowned));
        for node in &nodes {
            node.set_flash(address);
        }
        if fragments.len() == 0
            && let Some(descriptor) = nodes.last().and_then(|base| base.descriptor())
        {
            flusher.images.note_place(&self.table, page, descriptor.tree, descriptor.low_key);
        }
        flusher.images.note(&self.table, page);
        let times = self.supersede(flusher, &mut fragments, previous, page, has_changed);
        let pushed = fragments.push_filtered(address, self.filter(&nodes, previous));
        debug_assert!(pushed, "a page has at most {} fragments", self.options.fragments_max);
        flusher.accounts.add(address, times);
        self.table.set_fragments(page, fragments);
        if previous.is_none() {
            self.counters.full_fragments_written.add(1);
        } else {
            self.counters.delta_fragments_written.add(1);
        }
        if rewrite {
            self.table.clear_rewrite(page);
        }
        if let Some(saved) = saved {
            self.counters.fragments_compressed.add(1);
            self.counters.bytes_compressed_away.add(saved as u64);
        }
        if is_moved {
            self.counters.pages_relocated.add(1);
            self.counters.pages_kept_apart.add(batch.stream as u64);
            self.counters.bytes_cleaned.add(length);
        } else if previous.is_none() && times.is_some() {
            self.counters.bytes_rewritten.add(length);
        } else {
            self.counters.bytes_flushed.add(length);
        }
        batch.taken.push(Taken { page, adopts, disowns, root: marshal.is_root() });
        batch.used += length as usize;
        batch.fragments += 1;
        batch.body_crc = crc32c::crc32c_append(batch.body_crc, &crc.to_le_bytes());
        debug_assert!(nodes.last().is_some_and(|node| node.kind() != NodeKind::Stub));
        drop(claim);
        drop(guard);
        Marshalled::Done
    }

    /// The filter of a fragment of these nodes.
    fn filter(&self, nodes: &[NodeRef<'_>], previous: Option<FlashAddress>) -> Filter {
        match self.access_method.get().and_then(Weak::upgrade) {
            Some(method) if previous.is_some() => {
                nodes.iter().fold(0, |filter, node| filter | method.filter(node.payload()))
            }
            _ => ANYTHING,
        }
    }

    /// Takes the fragments that a new one on top of `previous` makes superfluous off the page's list. When the page was
    /// updated, if it was flushed before.
    fn supersede(
        &self,
        flusher: &mut Flusher,
        fragments: &mut Fragments,
        previous: Option<FlashAddress>,
        page: PageId,
        has_changed: bool,
    ) -> Option<Times> {
        let mut times = None;
        while fragments.newest() != previous {
            let Some(dead) = fragments.pop() else {
                unreachable!("{page} has lost its fragment {previous:?}");
            };
            times = flusher.accounts.remove(dead, has_changed);
        }
        times
    }

    /// Up to where the flush buffer may be filled: what is allocated of the segment. 0 if there is none.
    fn room(&self, flusher: &Flusher, stream: usize) -> u64 {
        let segments = &self.store.segments;
        let offset = flusher.position.offsets[stream];
        let allocated = flusher.accounts.allocated(segments.index(offset));
        (flusher.buffer.len() as u64).min(allocated.saturating_sub(offset % segments.segment_bytes))
    }

    /// Makes the empty buffer large enough for one fragment and for what usually goes into it, allocates a piece of the
    /// segment, and begins the next segment if this one has too little room.
    fn make_room(&self, flusher: &mut Flusher, stream: usize, fragment_bytes: u64) -> Result<(), LlamaError> {
        let segments = &self.store.segments;
        let bytes = (HEADER_BYTES as u64 + fragment_bytes).next_multiple_of(BLOCK_BYTES as u64);
        let usual = bytes.max(self.options.flush_buffer_bytes as u64);
        if flusher.buffer.len() < bytes as usize {
            flusher.buffer = AlignedBuffer::zeroed(bytes as usize);
        }
        let offset = flusher.position.offsets[stream];
        let index = segments.index(offset);
        // Nothing refers to what was not allocated, so a full disk is no reason to stop for ever.
        let failed = |error: DeviceError| match error.is_full() {
            true => LlamaError::Device(error),
            false => self.store.fail(error),
        };
        let exists = flusher.accounts.allocated(index) > 0;
        if !exists || offset + bytes > segments.end(offset) {
            let next = if exists { Segments::following(index) } else { index };
            let allocated = segments.create(next, usual).map_err(failed)?;
            flusher.accounts.open(next, allocated, 0);
            flusher.position.offsets[stream] = segments.start(next);
            return Ok(());
        }
        let allocated = segments.extend(offset, usual).map_err(failed)?;
        flusher.accounts.set_allocated(index, allocated);
        Ok(())
    }

    /// Writes the buffer that has been filled, once the one before is durable.
    fn write_buffer(
        &self,
        mut flusher: MutexGuard<'_, Flusher>,
        batch: &mut Batch<'_>,
    ) -> Result<u64, LlamaError> {
        let segments = &self.store.segments;
        let mut writing = self.writing();
        // If that one failed, none is written any more.
        self.store.check()?;
        self.note_durable(&mut flusher, &mut writing);
        let position = flusher.position;
        let offset = position.offsets[batch.stream];
        let length = batch.used.next_multiple_of(BLOCK_BYTES);
        flusher.buffer[batch.used..length].fill(0);
        let header = BufferHeader {
            store: segments.store,
            sequence: position.sequence,
            incarnation: flusher.incarnation,
            offset,
            length: length as u64,
            fragments: batch.fragments,
            chain: position.chain,
            body_crc: batch.body_crc,
            // Not before the nodes were copied: above what they depend on.
            marks: self.marks(),
        };
        let chain = header.encode(&mut flusher.buffer);
        let file = segments.file(segments.index(offset)).expect("there is room only in a segment");
        let end = offset + length as u64;
        flusher.position = position.next(batch.stream, segments.behind(offset, end), chain);
        let fragments = (batch.used - HEADER_BYTES) as u64;
        flusher.accounts.written(segments.index(offset), length as u64, fragments);
        mem::swap(&mut flusher.buffer, &mut writing.buffer);
        if flusher.buffer.len() != self.options.flush_buffer_bytes {
            flusher.buffer = AlignedBuffer::zeroed(self.options.flush_buffer_bytes);
        }
        drop(flusher);
        let at_once = match self.in_flight() {
            InFlight::Few => (self.options.flush_buffer_bytes / WRITE_PIECES).next_multiple_of(BLOCK_BYTES),
            InFlight::Many => length,
        };
        for (piece, at) in writing.buffer[..length].chunks(at_once).zip((0..).step_by(at_once)) {
            file.write_durable_at(piece, offset % segments.segment_bytes + at)
                .map_err(|error| self.store.fail(error))?;
        }
        self.store.set_durable_end(batch.stream, end);
        self.counters.bytes_written.add(length as u64);
        self.counters.bytes_padded.add((HEADER_BYTES + length - batch.used) as u64);
        self.counters.buffers_written.add(1);
        writing.durable.extend(batch.taken.drain(..).map(|taken| (taken, position)));
        Ok(length as u64)
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

    /// Forgets the freed pages that nobody can hold any more, and lets their identifiers be given out again.
    fn recycle(&self, flusher: &mut Flusher) {
        let (held, pages): (Vec<PageId>, Vec<PageId>) =
            self.pages.take_returned().into_iter().partition(|&page| self.table.is_held(page));
        for page in held {
            // Its release is still to come.
            self.pages.give_back(page);
        }
        for &page in &pages {
            for dead in self.table.fragments(page).iter() {
                flusher.accounts.remove(dead, true);
            }
            flusher.unadopted.remove(page);
            flusher.waiting.remove(&page);
            flusher.images.take_place(page);
            self.table.reset(page);
        }
        self.pages.recycle(&pages);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::node::{OwnedNode, PageDescriptor};
    use crate::options::Options;
    use crate::test_bed::{flush, open, put};
    use std::sync::{Arc, Mutex};

    /// What the steps write that flush new pages whose fragments are of these lengths: fragments and bytes.
    fn steps(llama: &Llama, lengths: &[usize]) -> Vec<(usize, u64)> {
        // A header of 64, a length of four, and a low key of eight.
        lengths.iter().for_each(|length| put(llama, llama.allocate(), &vec![7; length - 76]));
        let step = || match llama.flush_step().unwrap() {
            FlushProgress::Wrote { pages, bytes } => Some((pages, bytes)),
            FlushProgress::Nothing | FlushProgress::Busy => None,
        };
        std::iter::from_fn(step).collect()
    }

    #[test]
    fn a_buffer_is_filled_to_its_last_byte_and_no_further() {
        let llama = open(Options::tiny_for_tests());
        assert_eq!(steps(&llama, &[4032, 4032]), [(2, 8192)]);
        assert_eq!(steps(&llama, &[4032, 4096]), [(1, 8192), (1, 8192)]);
        assert_eq!(steps(&llama, &[8064]), [(1, 8192)]);
        // Longer for a longer page, and for that alone.
        let llama = open(Options { segment_bytes: 1 << 20, ..Options::tiny_for_tests() });
        assert_eq!(steps(&llama, &[50_048]), [(1, 53_248)]);
        assert_eq!(steps(&llama, &[3136; 6]), [(2, 8192); 3]);
    }

    #[test]
    fn what_adopts_many_durable_pages_is_flushed_though_there_are_always_new_ones_ahead() {
        // More than two buffers take.
        const EACH: u64 = 210;
        let llama = open(Options { segment_bytes: 1 << 20, ..Options::tiny_for_tests() });
        let first = llama.allocate();
        put(&llama, first, b"first");
        flush(&llama);
        let base = |page: PageId, adopts: &[PageId]| {
            let guard = llama.pin();
            let descriptor = PageDescriptor { tree: 1, low_key: &page.0.to_be_bytes(), root: page == first };
            let base = OwnedNode::base(b"", descriptor, adopts);
            llama.install(page, llama.snapshot(page, &guard), base, &guard).unwrap();
        };
        llama.flush_hand.store(first.0 + 1, Ordering::Relaxed);
        let mut durable = 0;
        while durable < 8000 {
            let leader = llama.allocate();
            let adopted: Vec<_> = (0..EACH).map(|_| llama.allocate()).collect();
            adopted.iter().for_each(|&page| base(page, &[]));
            base(leader, &adopted);
            base(first, &[leader]);
            for _ in 0..2 {
                assert!(matches!(llama.flush_step().unwrap(), FlushProgress::Wrote { .. }));
            }
            durable = llama.lock_flusher().unadopted.count();
        }
        let new: Vec<_> = (0..3000).map(|_| llama.allocate()).collect();
        new.iter().for_each(|&page| put(&llama, page, b"new"));
        while llama.lock_flusher().unadopted.count() > 0 {
            assert!(matches!(llama.flush_step().unwrap(), FlushProgress::Wrote { .. }));
        }
        let left = new.iter().filter(|&&page| llama.table.is_dirty(page)).count();
        assert!(left > 2000, "{left}");
        let flusher = llama.lock_flusher();
        assert!(flusher.waiting.is_empty() && flusher.waiting.capacity() < 4 * WAITING_KEPT);
    }

    /// The pages that it was asked to consolidate, which it does not.
    struct Asked(Mutex<Vec<PageId>>);

    impl AccessMethod for Asked {
        fn consolidate(&self, page: PageId) {
            self.0.lock().unwrap().push(page);
        }
    }

    #[test]
    fn consolidation_is_asked_for_once_of_a_page_with_deltas_that_is_written_in_full() {
        let llama = open(Options { memory_bytes: 1 << 20, ..Options::tiny_for_tests() });
        let asked = Arc::new(Asked(Mutex::default()));
        let method: Weak<Asked> = Arc::downgrade(&asked);
        llama.set_access_method(method);
        let [long, short] = std::array::from_fn(|_| llama.allocate());
        [long, short].into_iter().for_each(|page| put(&llama, page, &[7; 1000]));
        flush(&llama);
        let delta = || {
            let guard = llama.pin();
            let delta = OwnedNode::delta(b"delta");
            llama.install(long, llama.snapshot(long, &guard), delta, &guard).unwrap();
        };
        // A second fragment, and one too many.
        for (full, expected) in [(2, &[][..]), (3, &[long])] {
            delta();
            flush(&llama);
            assert_eq!(&asked.0.lock().unwrap()[..], expected);
            assert_eq!(llama.counters.full_fragments_written.get(), full);
        }
        // The cleaner wants one moved that is a base alone.
        llama.table.set_rewrite(short);
        llama.table.mark_dirty(short);
        flush(&llama);
        assert_eq!(asked.0.lock().unwrap().len(), 1);
        assert_eq!(llama.counters.pages_relocated.get(), 1);
    }

    /// A page whose first fragment, of the first page of a tree, has just become durable.
    fn durable(llama: &Llama) -> PageId {
        let page = llama.allocate();
        let position = llama.lock_flusher().position;
        let taken = Taken { page, adopts: Vec::new(), disowns: Vec::new(), root: true };
        llama.writing().durable.push((taken, position));
        page
    }

    #[test]
    fn what_has_become_durable_is_noted_by_whoever_takes_the_flush_lock() {
        let llama = open(Options::tiny_for_tests());
        let ways: [fn(&Llama); 4] = [
            |llama| drop(llama.lock_flusher()),
            |llama| drop(llama.try_flusher()),
            Llama::await_flush,
            |llama| assert_eq!(llama.flush_step().unwrap(), FlushProgress::Nothing),
        ];
        for take in ways {
            let page = durable(&llama);
            drop(llama.try_fill());
            assert!(!llama.table.is_adopted(page));
            take(&llama);
            assert!(llama.table.is_adopted(page));
        }
    }

    #[test]
    fn pages_are_looked_for_while_a_buffer_is_being_written() {
        let llama = open(Options::tiny_for_tests());
        let page = durable(&llama);
        assert!(!llama.is_writing());
        let writing = llama.writing();
        assert!(llama.is_writing());
        assert_eq!(llama.flush_step().unwrap(), FlushProgress::Nothing);
        assert!(!llama.table.is_adopted(page));
        drop(writing);
        assert!(!llama.is_writing());
    }

    #[test]
    fn a_fragment_that_nearly_fills_its_block_is_lengthened_to_its_end() {
        let block = BLOCK_BYTES as u64;
        // A sixteenth of what it takes, and a step more.
        assert_eq!(padding(128, 3776), 192);
        assert_eq!(padding(64, 3776), 0);
        assert_eq!(padding(0, block), 0);
        assert_eq!(padding(BLOCK_BYTES, block - 256), 0);
        assert_eq!(padding(BLOCK_BYTES + 64, block - 256), 192);
        // Long ones are of many blocks in any case.
        assert_eq!(padding(128, 2 * block - 192), 0);
    }
}
