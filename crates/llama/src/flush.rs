//! Flushing: dirty pages become fragments in a flush buffer, and the buffer becomes durable.
//!
//! Any number of threads fill the buffer at the same time ([`Filling`](crate::filling)). For each page, under its claim and a guard:
//!
//! 1. the dirty bit is cleared, then the mapping word is read (M2), then the holds (M5);
//! 2. the nodes that no fragment holds are collected: from the head down to the base (a *full* fragment), or to the
//!    first node with an address, which becomes `previous`. The whole chain is taken where `previous` would be one
//!    fragment too many, or the cleaner wants the page moved.
//!    Before that the access method is asked to consolidate the page ([`AccessMethod`]), so that blind deltas are not
//!    written again and again;
//!    Of a page that must be read for that and cannot be, what is known of it is one more fragment;
//!    More than one fragment takes, as a page may have taken that could not be read, is written as several;
//!    Of a sealed page, what lies below the seal is written, until a fragment that disowns it is;
//! 3. pages that the base adopts and that were never flushed go first, so that whoever finds the adoption on flash
//!    finds the adopted page too;
//! 4. room is reserved in the buffer, the nodes are copied there, and the fragment's address is noted in them and in the page's entry. The pages that
//!    the base disowns are claimed meanwhile, so that nobody writes a fragment of one of them behind it.
//!
//! What else there is to note of a fragment is noted when the buffer is closed, under the flush lock; then it is written ([`Writing`](crate::writing)).
//!
//! ## The flush lock
//!
//! A buffer is opened and closed under the flush lock. Nobody waits for it to fill a buffer, but to look at what is changed by that: who has got it by [`Llama::lock_flusher`]
//! finds no buffer open, none being written, and everything noted.

use crate::accounts::Accounts;
use crate::error::LlamaError;
use crate::fetched::Fetched;
use crate::filling::{Filling, Taken};
use crate::flash_address::FlashAddress;
use crate::flush_buffer::{HEADER_BYTES, Position, Stream};
use crate::fragment::Marshal;
use crate::fragments::{ANYTHING, Filter};
use crate::images::Images;
use crate::llama::{Llama, chain};
use crate::mapping_table::Word;
use crate::node::{NodeRef, OwnedNode, PageDescriptor};
use crate::page_id::PageId;
use crate::segments::Segments;
use crate::sync::{MutexGuard, Ordering, RwLockReadGuard, RwLockWriteGuard, yield_now};
use crate::unadopted::Unadopted;
use crate::unreadable::{Known, leave_newest};
use deuteron_canary::{Canary, is_planted};
use deuteron_device::{AlignedBuffer, BLOCK_BYTES, DeviceError};
use std::collections::{HashMap, HashSet};
use std::mem;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, TryLockError, Weak};
use std::thread;

/// The access method, as the store sees it.
pub trait AccessMethod: Send + Sync {
    /// Replaces the chain of `page`, which is in memory, by a base (or splits it), if that can be done at once. Called
    /// without a guard, on a thread that may be filling a flush buffer: it must not flush, take part in a checkpoint, or ask for
    /// [`Llama::statistics`]. Whatever it does, the page is written afterwards.
    fn consolidate(&self, page: PageId);

    /// A Bloom filter of the keys in `delta`, the payload of one: whoever reads for a key whose bits are not all set in it need not read that delta
    /// ([`Llama::excerpt`]). All bits, if nothing is known. Called while a flush buffer is filled.
    fn filter(&self, delta: &[u8]) -> Filter {
        let _ = delta;
        ANYTHING
    }

    /// Whether this is the payload of a base with this descriptor. Called for each that is read, before anybody else sees it: of what
    /// passes the access method asks no more whether it is right. What is wrong, in words.
    fn check_base(&self, descriptor: PageDescriptor<'_>, payload: &[u8]) -> Result<(), String> {
        let _ = (descriptor, payload);
        Ok(())
    }

    /// Whether such a base, which has passed that check, has its place in this tree as `page`, which is not in memory as a whole. Called before it becomes resident: of an
    /// [excerpt](Llama::excerpt), which is shown to nobody else, it need not be known.
    fn check_place(&self, tree: u32, page: PageId, payload: &[u8]) -> Result<(), String> {
        let _ = (tree, page, payload);
        Ok(())
    }

    /// The same of a delta that lies on this base, or on one that cannot be read.
    fn check_delta(&self, payload: &[u8], base: Option<&[u8]>) -> Result<(), String> {
        let _ = (payload, base);
        Ok(())
    }

    /// One delta that says what these say together, which lie on each other, the newest first: for a page that cannot be read, and so cannot be consolidated.
    /// `None` if there is none. Called while a flush buffer is filled.
    fn unite(&self, deltas: &[&[u8]]) -> Option<Vec<u8>> {
        let _ = deltas;
        None
    }
}

/// What a [`Llama::flush_step`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushProgress {
    /// Pages were put into a flush buffer, which is durable or another thread is about to write.
    Wrote {
        /// How many.
        pages: usize,
        /// Bytes of their fragments.
        bytes: u64,
    },
    /// No page can be flushed: all are clean or held.
    Nothing,
    /// Another thread is about to open or to close a buffer, or fills one alone.
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
    /// Adoptions by pages that are durable but not adopted themselves.
    pub(crate) waiting: HashMap<PageId, Vec<PageId>>,
    pub(crate) unadopted: Unadopted,
    /// Pages that a durable fragment disowns, sealed, with somebody's hold on them.
    pub(crate) disowned: Vec<PageId>,
    /// Dead segments without an account that could not be removed.
    pub(crate) unremoved: Vec<u64>,
}

/// What one thread puts into flush buffers.
struct Batch {
    stream: usize,
    /// A page to be flushed, above it one of its adoptees, and so on.
    stack: Vec<PageId>,
    /// Whether the lowest was named by who flushes this batch; else all were left by whoever came before.
    is_named: bool,
    /// The page that consolidation was last asked for. Once is enough: it may have good reasons not to do it.
    asked: Option<PageId>,
    /// Pages that were found to be held or claimed, and all that have to wait for them: not to be asked again for each that does.
    waiting: HashSet<PageId>,
    /// Fragments, and their bytes.
    fragments: usize,
    bytes: u64,
    skipped: Vec<PageId>,
    unread: Vec<PageId>,
    /// It has ended at a page whose row had no place among those that are left.
    has_met_unleft: bool,
}

/// What [`Llama::flush_batch`] has done.
pub(crate) struct Written {
    pub(crate) pages: usize,
    /// Of them.
    pub(crate) bytes: u64,
    /// Of the pages that were named: those that have to wait for room, or for their adoptees to be flushed, which goes on with whoever comes next. The
    /// adoptees are not among them: a row of splits that were never flushed may be a hundred thousand long, and one buffer takes a few hundred.
    pub(crate) begun: Vec<PageId>,
    /// Those left for later, dirty as before.
    pub(crate) skipped: Vec<PageId>,
    /// Pages that must be read before, and whose rows are left for [`Llama::prepare_left`], or in the making.
    pub(crate) unread: Vec<PageId>,
    /// Whether it has ended because a buffer had no room for the next, or was full before there was a next.
    pub(crate) found_no_room: bool,
    /// Whether it has ended at a page that must be read before, and whose row had no place among those that are left: it is what comes next.
    pub(crate) has_met_unleft: bool,
}

impl Batch {
    /// The page that was named and is not flushed yet.
    fn named(&self) -> Option<PageId> {
        self.stack.first().copied().filter(|_| self.is_named)
    }
}

/// One who fills the open buffer.
struct Joined<'l> {
    llama: &'l Llama,
    filling: RwLockReadGuard<'l, Filling>,
    /// What he has put into it.
    taken: Vec<Taken>,
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // Pages say that they lie in the buffer, and perhaps they do not.
            self.llama.store.poison("a thread that filled a flush buffer has panicked");
        }
        self.filling.note(&mut self.taken);
    }
}

/// With whom a buffer is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// With others; if that cannot be begun at once it is not.
    IfFree,
    /// With others, after whatever goes on.
    Awaited,
    /// Alone, after whatever goes on: of a page whose dirty bit another has taken nobody knows whether it will be in the buffer.
    Alone,
}

/// What became of one page.
pub(crate) enum Marshalled {
    /// It is in the buffer, or there is nothing to write.
    Done,
    /// It is to be looked at again: its newest deltas are a fragment of their own, or it has changed.
    Again,
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
    pub(crate) fn new(position: Position, incarnation: u64, accounts: Accounts, images: Images) -> Flusher {
        Flusher {
            position,
            incarnation,
            accounts,
            image_start: position,
            images,
            waiting: HashMap::new(),
            unadopted: Unadopted::default(),
            disowned: Vec::new(),
            unremoved: Vec::new(),
        }
    }

    /// Where a recovery must start to scan if everything that is dirty now were flushed.
    pub(crate) fn scan_start(&self) -> Position {
        self.unadopted.first().map_or(self.position, |first| first.min(self.position))
    }
}

impl Llama {
    /// The flush lock, if nobody has it. A buffer may be in the middle of being filled, or written.
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

    /// The flush lock, if nobody has it. Waits for the buffers that are being filled and written, and what is durable has been noted.
    pub(crate) fn try_flusher(&self) -> Option<MutexGuard<'_, Flusher>> {
        let mut flusher = self.try_fill()?;
        self.settle(&mut flusher);
        Some(flusher)
    }

    /// The flush lock; waits for another thread's device I/O at most. No buffer is being filled or written, and what is durable has been noted.
    pub(crate) fn lock_flusher(&self) -> MutexGuard<'_, Flusher> {
        // Those who flush take the lock again as soon as they have given it back, and the lock is not fair.
        self.flusher_awaited.fetch_add(1, Ordering::Relaxed);
        let mut flusher = self.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        self.flusher_awaited.fetch_sub(1, Ordering::Relaxed);
        self.settle(&mut flusher);
        flusher
    }

    fn filling(&self) -> RwLockWriteGuard<'_, Filling> {
        // A panic of somebody who fills it poisons the store.
        self.filling.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the buffer that is open, writes it, and waits for the one that is being written; under the flush lock no other is begun.
    fn settle(&self, flusher: &mut Flusher) {
        if let Ok(Some(unwritten)) = self.close(flusher, self.filling()) {
            // A failure poisons the store, and is told of to whoever wants something of it.
            let _ = self.write(unwritten);
        }
        self.settle_written(flusher, &mut self.writing());
    }

    /// Waits for the flush that goes on, if one does.
    pub fn await_flush(&self) {
        let mut flusher = self.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        match self.close(&mut flusher, self.filling()) {
            Ok(Some(unwritten)) => {
                // The next one may be filled meanwhile.
                drop(flusher);
                let _ = self.write(unwritten);
            }
            _ => {
                self.settle_written(&mut flusher, &mut self.writing());
                drop(flusher);
                // Whoever has the next turn may be about to take the lock.
                yield_now();
            }
        }
        self.evict_durable();
    }

    /// Writes one flush buffer of dirty pages, if there are any, durably. (While somebody [hurries](Llama::hurry) it may be on its way still when this returns, and durable when
    /// the next one is written, or [awaited](Llama::await_flush).)
    ///
    /// # Errors
    /// [`LlamaError::Device`] if the write fails, which poisons the store, or no segment can be made because the
    /// disk is full, which does not; [`LlamaError::Poisoned`] after an earlier failure; [`LlamaError::PageTooLarge`]. A page that had to be read
    /// and cannot be is written as what is known of it, or, if it has no room for that, left dirty: neither is an error.
    ///
    /// # Panics
    /// If a page adopts another on which nothing is installed.
    pub fn flush_step(&self) -> Result<FlushProgress, LlamaError> {
        let begun = self.now();
        // Whether pages that somebody is preparing are left until they are ready.
        let mut is_left_to_others = true;
        let mut has_prepared = false;
        loop {
            let mut fetched = Fetched::new(self);
            let mut awaited = None;
            let written = self.flush_batch(Turn::IfFree, Stream::Fresh, || {
                if let Some(page) = self.next_ready() {
                    return Some(page);
                }
                loop {
                    let page = fetched.next()?;
                    if !is_left_to_others || !self.is_in_the_making(page) {
                        return Some(page);
                    }
                    awaited = Some(page);
                }
            });
            self.begun(Stream::Fresh as usize).extend(fetched.rest());
            let Some(written) = written? else { return Ok(FlushProgress::Busy) };
            let awaited = written.unread.last().copied().or(awaited);
            // Once: a page that is left out of its row because somebody else reads it would be met, and its row prepared, again and again.
            let prepares_first = self.prepare_left() && !mem::replace(&mut has_prepared, true);
            match (written.bytes, awaited) {
                // What was prepared comes next. Or others had filled the buffer, which is written by now, or about to be.
                (0, _) if prepares_first || written.found_no_room => {}
                // All that is left is with others, who are about to have it ready; or are reading a page of a row that was prepared without it.
                (0, Some(page)) => {
                    self.load_for_flush(page);
                    is_left_to_others = false;
                }
                // By now its row has a place: of those that were left this thread, or another, has taken some.
                (0, None) if written.has_met_unleft => {}
                (0, None) => return Ok(FlushProgress::Nothing),
                (bytes, _) => {
                    self.histograms.flush_step_nanoseconds.record_time(self.now() - begun);
                    return Ok(FlushProgress::Wrote { pages: written.pages, bytes });
                }
            }
        }
    }

    /// Puts the pages that `next` names, and those that they need, into flush buffers for `stream` until one is full, and writes that, unless somebody else does so.
    /// `None` if that cannot be begun now, and need not.
    fn flush_batch(
        &self,
        turn: Turn,
        stream: Stream,
        mut next: impl FnMut() -> Option<PageId>,
    ) -> Result<Option<Written>, LlamaError> {
        let stream = stream as usize;
        // What a fragment takes for which there was no room in an empty buffer.
        let mut wanted = 0;
        let mut batch = Batch {
            stream,
            stack: Vec::new(),
            is_named: false,
            asked: None,
            waiting: HashSet::new(),
            fragments: 0,
            bytes: 0,
            skipped: Vec::new(),
            unread: Vec::new(),
            has_met_unleft: false,
        };
        let mut begun = Vec::new();
        let filled = loop {
            self.store.check()?;
            let Some(mut joined) = self.join(turn, stream, wanted)? else { return Ok(None) };
            self.evict_durable();
            batch.stack = mem::take(&mut *self.begun(stream));
            batch.is_named = false;
            let filled = self.fill(&mut joined, &mut batch, &mut next);
            let is_sealer = joined.filling.seal();
            let (number, is_empty) = (joined.filling.number(), joined.filling.is_empty());
            drop(joined);
            if filled.is_err() {
                for page in batch.stack.drain(..) {
                    self.table.mark_dirty(page);
                }
            }
            begun.extend(batch.named());
            self.begun(stream).append(&mut batch.stack);
            if is_sealer && !is_empty {
                // An error must not leave addresses in nodes that no buffer will hold: what is in the buffer is written in any case.
                self.write_sealed(number)?;
            }
            wanted = match filled {
                Ok(Some(bytes)) if is_empty => bytes,
                filled => break filled,
            };
        };
        let found_no_room = filled?.is_some();
        // What was on its way before may have failed: then what is clean is not durable.
        self.store.check()?;
        let Batch { fragments, bytes, skipped, unread, has_met_unleft, .. } = batch;
        Ok(Some(Written { pages: fragments, bytes, begun, skipped, unread, found_no_room, has_met_unleft }))
    }

    /// As [`Llama::flush_batch`], of a turn that is awaited.
    pub(crate) fn flush_in_turn(
        &self,
        turn: Turn,
        stream: Stream,
        next: impl FnMut() -> Option<PageId>,
    ) -> Result<Written, LlamaError> {
        debug_assert!(turn != Turn::IfFree);
        self.flush_batch(turn, stream, next).map(|written| written.expect("it is awaited"))
    }

    /// Pages whose flush has begun, and waits for room or for the one above; kept between steps, so that a long row of splits that were never flushed is walked once. They
    /// are dirty, too.
    pub(crate) fn begun(&self, stream: usize) -> MutexGuard<'_, Vec<PageId>> {
        self.begun[stream].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins those who fill the open buffer, or opens one with room for a fragment of `wanted` bytes. `None` if it is not one's turn.
    fn join(&self, turn: Turn, stream: usize, wanted: u64) -> Result<Option<Joined<'_>>, LlamaError> {
        let is_alone = turn == Turn::Alone;
        let mut opened = None;
        loop {
            if let Ok(filling) = self.filling.try_read()
                && filling.takes(stream, opened, is_alone)
            {
                return Ok(Some(Joined { llama: self, filling, taken: Vec::new() }));
            }
            let mut flusher = match turn {
                Turn::IfFree => match self.try_fill() {
                    Some(flusher) => flusher,
                    None => return Ok(None),
                },
                Turn::Awaited | Turn::Alone => self.lock_flusher(),
            };
            let mut filling = match self.filling.try_write() {
                Ok(filling) => filling,
                // Others fill it, or have just looked at it.
                Err(TryLockError::WouldBlock) if turn == Turn::IfFree => return Ok(None),
                Err(_) => self.filling(),
            };
            if !filling.is_sealed() {
                // Somebody has just opened it. If for other pages, he has to come to fill it first.
                if turn == Turn::IfFree && !filling.takes(stream, opened, is_alone) {
                    return Ok(None);
                }
                continue;
            }
            if !filling.is_empty() {
                // Who has sealed it is about to close it.
                return Ok(None);
            }
            self.prepare_buffer(&mut flusher, &mut filling, stream, wanted)?;
            let room = self.room(&flusher, &filling, stream);
            opened = Some(filling.open(stream, flusher.position.offsets[stream], room, is_alone));
        }
    }

    /// What is done before a buffer is opened: notes what has become durable, and makes room for a fragment of `wanted` bytes.
    fn prepare_buffer(
        &self,
        flusher: &mut Flusher,
        filling: &mut Filling,
        stream: usize,
        wanted: u64,
    ) -> Result<(), LlamaError> {
        if self.pages.has_returned() {
            // A page is not to be forgotten before what was written of it has been noted.
            self.settle_written(flusher, &mut self.writing());
            self.recycle(flusher);
        } else {
            self.settle_if_written(flusher);
        }
        if wanted == 0 && flusher.unadopted.have_become_many() {
            // Under an ascending load the hand follows the new pages and does not come round; but what adopts them lies behind it.
            self.flush_hand.store(1, Ordering::Relaxed);
        }
        if wanted > 0 { self.make_room(flusher, filling, stream, wanted) } else { Ok(()) }
    }

    /// Closes and writes buffer `number`, which the caller has sealed, unless somebody else has done so.
    fn write_sealed(&self, number: u64) -> Result<(), LlamaError> {
        let mut flusher = self.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        let filling = self.filling();
        if filling.number() != number {
            return Ok(());
        }
        let Some(unwritten) = self.close(&mut flusher, filling)? else { return Ok(()) };
        drop(flusher);
        self.write(unwritten)?;
        if let Some(mut flusher) = self.try_fill() {
            self.settle_if_written(&mut flusher);
        }
        self.evict_durable();
        Ok(())
    }

    /// Puts pages into the buffer until it is full, or there are none but such as must be read before. The length of a fragment for which there was no
    /// room, if that is so; 0 if the buffer was full before there was a next one.
    fn fill(
        &self,
        joined: &mut Joined<'_>,
        batch: &mut Batch,
        next: &mut dyn FnMut() -> Option<PageId>,
    ) -> Result<Option<u64>, LlamaError> {
        loop {
            if joined.filling.used() >= self.options.flush_buffer_bytes as u64 || joined.filling.is_sealed() {
                return Ok(Some(0));
            }
            let page = match batch.stack.last() {
                Some(&page) => page,
                None => match next() {
                    Some(page) => {
                        batch.is_named = true;
                        batch.stack.push(page);
                        page
                    }
                    None => return Ok(None),
                },
            };
            let is_waiting = batch.waiting.contains(&page);
            match if is_waiting { Marshalled::Later } else { self.marshal(joined, batch, page) } {
                Marshalled::Done => {
                    batch.stack.pop();
                }
                Marshalled::Later => {
                    // Whoever adopts it has to wait with it.
                    batch.skipped.extend(batch.named());
                    for page in batch.stack.drain(..) {
                        self.table.mark_dirty(page);
                        batch.waiting.insert(page);
                    }
                }
                Marshalled::Again => {}
                Marshalled::First(adoptee) => batch.stack.push(adoptee),
                // Nothing is read meanwhile. It is alone: what was never flushed is in memory, and so are its adopters.
                Marshalled::Load => {
                    if !self.leave_row(page) {
                        batch.has_met_unleft = true;
                        return Ok(None);
                    }
                    batch.unread.push(page);
                    batch.stack.pop();
                }
                Marshalled::Long => {
                    batch.asked = Some(page);
                    if let Some(method) = self.access_method() {
                        method.consolidate(page);
                    }
                }
                Marshalled::Full(bytes) => return Ok(Some(bytes)),
                Marshalled::TooLarge(bytes) => {
                    let limit = self.store.segments.fragment_bytes_max();
                    return Err(LlamaError::PageTooLarge { page, bytes, limit });
                }
            }
        }
    }

    /// Has `method` asked to consolidate long pages before they are written in full, and for the filters of deltas. Once per store.
    pub fn set_access_method(&self, method: Weak<dyn AccessMethod>) {
        // A second one would be a mistake in the wiring; the first stays.
        let _ = self.access_method.set(method);
    }

    /// The access method, while there is one.
    pub(crate) fn access_method(&self) -> Option<Arc<dyn AccessMethod>> {
        self.access_method.get().and_then(Weak::upgrade)
    }

    /// Copies the unflushed part of `page` into the buffer.
    fn marshal(&self, joined: &mut Joined<'_>, batch: &mut Batch, page: PageId) -> Marshalled {
        let guard = self.epochs.pin();
        let Some(claim) = self.table.try_claim(page) else { return Marshalled::Later };
        self.table.take_dirty(page);
        let word = self.table.word_after_take_dirty(page);
        let mut rewrite = self.table.wants_rewrite(page);
        let postponed = |outcome| {
            self.table.mark_dirty(page);
            outcome
        };
        let head = match Word::decode(word) {
            Word::Free => return Marshalled::Done,
            Word::Stored(_) if rewrite && !self.table.is_unreadable(page) => {
                return postponed(Marshalled::Load);
            }
            Word::Stored(_) => {
                if rewrite {
                    self.table.clear_rewrite(page);
                }
                return Marshalled::Done;
            }
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
        let mut previous = match nodes.last() {
            Some(oldest) => oldest.flash_below(),
            None => head.flash(),
        };
        if nodes.is_empty() && !rewrite {
            return Marshalled::Done;
        }
        let below = previous.map(|newest| fragments.up_to(newest));
        debug_assert!(below != Some(None), "{page} refers to a fragment that is not its own");
        // What the fragment is written for.
        let has_changed = head.flash().is_none();
        let lies_on = previous.is_some();
        let too_many = below.is_some_and(|below| {
            below.is_none_or(|below| self.are_enough(page, below.sizes(), head.is_partial()))
        });
        let (mut one, mut is_part, mut ticket) = (None, false, None);
        let is_full = lies_on && (rewrite || too_many);
        let may_ask =
            || head.chain_length() > 0 && batch.asked != Some(page) && self.access_method.get().is_some();
        if is_full && head.is_partial() {
            if !self.table.is_unreadable(page) {
                return postponed(Marshalled::Load);
            }
            // The cleaner comes back to it.
            self.table.clear_rewrite(page);
            rewrite = false;
            if nodes.is_empty() {
                return Marshalled::Done;
            }
            Known { nodes, previous, one, is_part, ticket } =
                match self.known_of(page, word, head, nodes, previous, fragments.len()) {
                    Ok(known) => known,
                    Err(outcome) => return postponed(outcome),
                };
        } else if is_full {
            if may_ask() {
                return postponed(Marshalled::Long);
            }
            nodes = chain(head).collect();
            previous = None;
        } else if lies_on && leave_newest(&mut nodes, self.store.segments.fragment_bytes_max()) {
            // What it has taken while it could not be read.
            if !head.is_partial() && may_ask() {
                return postponed(Marshalled::Long);
            }
            is_part = true;
        }
        let is_moved = rewrite && lies_on;
        let one = one.as_ref().map(|one: &OwnedNode| [one.as_ref()]);
        let written = one.as_ref().map_or(&nodes[..], |one| &one[..]);
        let mut marshal = Marshal { page, nodes: written, previous, packed: None };
        // Counted once it has its room in this buffer or an earlier one, whoever writes it.
        let is_flushed = |adoptee: PageId| self.table.fragment_count(adoptee) > 0;
        if let Some(&adoptee) = marshal.adopts().iter().find(|&&adoptee| !is_flushed(adoptee))
            && !is_planted(Canary::SplitBeforeSibling)
        {
            if self.table.word(adoptee) == 0 {
                // Both are being given up, the adopter first.
                assert!(
                    self.table.word(page) != word,
                    "{page} adopts {adoptee}, on which nothing is installed"
                );
                return postponed(Marshalled::Again);
            }
            return postponed(Marshalled::First(adoptee));
        }
        let saved = if self.options.compress { marshal.pack() } else { None };
        let length = match marshal.length() {
            Ok(length) if length <= self.store.segments.fragment_bytes_max() => length,
            Ok(length) | Err(length) => return postponed(Marshalled::TooLarge(length)),
        };
        let mut claims = Vec::new();
        for &disowned in marshal.disowns() {
            match self.table.try_claim(disowned) {
                Some(claim) => claims.push(claim),
                None => return postponed(Marshalled::Later),
            }
        }
        let Some(room) = joined.filling.reserve(length) else { return postponed(Marshalled::Full(length)) };
        let (address, length) = (room.address, room.address.length());
        let crc = marshal.encode(address.offset(), room.bytes);
        let (adopts, disowns) = (marshal.adopts().to_vec(), marshal.disowns().to_vec());
        disowns.iter().for_each(|&disowned| self.table.set_disowned(disowned));
        drop(claims);
        for node in &nodes {
            node.set_flash(address);
        }
        drop(ticket);
        let descriptor = nodes.last().and_then(|base| base.descriptor()).filter(|_| fragments.len() == 0);
        let place = descriptor.map(|descriptor| (descriptor.tree, descriptor.low_key.into()));
        let mut dead = Vec::new();
        while fragments.newest() != previous {
            let Some(superseded) = fragments.pop() else {
                unreachable!("{page} has lost its fragment {previous:?}");
            };
            dead.push(superseded);
        }
        let is_rewritten = !dead.is_empty();
        let pushed = fragments.push_filtered(address, self.filter(&nodes, previous));
        debug_assert!(pushed, "a page has at most {} fragments", self.options.fragments_max);
        self.table.set_fragments(page, fragments);
        if previous.is_none() {
            self.note_readable(page);
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
        } else if previous.is_none() && is_rewritten {
            self.counters.bytes_rewritten.add(length);
        } else {
            self.counters.bytes_flushed.add(length);
        }
        batch.fragments += 1;
        batch.bytes += length;
        let root = marshal.is_root();
        joined.taken.push(Taken { page, address, crc, dead, has_changed, place, adopts, disowns, root });
        drop(claim);
        drop(guard);
        if is_part { postponed(Marshalled::Again) } else { Marshalled::Done }
    }

    /// The filter of a fragment of these nodes.
    fn filter(&self, nodes: &[NodeRef<'_>], previous: Option<FlashAddress>) -> Filter {
        match self.access_method() {
            Some(method) if previous.is_some() => {
                nodes.iter().fold(0, |filter, node| filter | method.filter(node.payload()))
            }
            _ => ANYTHING,
        }
    }

    /// Up to where the flush buffer may be filled: what is allocated of the segment. 0 if there is none.
    fn room(&self, flusher: &Flusher, filling: &Filling, stream: usize) -> u64 {
        let segments = &self.store.segments;
        let offset = flusher.position.offsets[stream];
        let allocated = flusher.accounts.allocated(segments.index(offset));
        (filling.buffer_bytes() as u64).min(allocated.saturating_sub(offset % segments.segment_bytes))
    }

    /// Makes the closed buffer large enough for one fragment and for what usually goes into it, allocates a piece of the
    /// segment, and begins the next segment if this one has too little room, or if there is none on the device but that of a spare.
    fn make_room(
        &self,
        flusher: &mut Flusher,
        filling: &mut Filling,
        stream: usize,
        fragment_bytes: u64,
    ) -> Result<(), LlamaError> {
        let segments = &self.store.segments;
        let bytes = (HEADER_BYTES as u64 + fragment_bytes).next_multiple_of(BLOCK_BYTES as u64);
        let usual = bytes.max(self.options.flush_buffer_bytes as u64);
        if filling.buffer_bytes() < bytes as usize {
            filling.replace_buffer(AlignedBuffer::zeroed(bytes as usize));
        }
        let offset = flusher.position.offsets[stream];
        let index = segments.index(offset);
        // Nothing refers to what was not allocated, so a full disk is no reason to stop for ever.
        let failed = |error: DeviceError| match error.is_full() {
            true => LlamaError::Device(error),
            false => self.store.fail(error),
        };
        let exists = flusher.accounts.allocated(index) > 0;
        if exists && offset + bytes <= segments.end(offset) {
            match segments.extend(offset, usual) {
                Ok(allocated) => {
                    flusher.accounts.set_allocated(index, allocated);
                    return Ok(());
                }
                // The next segment needs no room. But a recovery looks for the next buffer behind the last one and in the segment that follows: one in which there is none
                // yet is not left behind.
                Err(full)
                    if full.is_full() && segments.spares.bytes() > 0 && offset > segments.start(index) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let next = if exists { Segments::following(index) } else { index };
        let allocated = segments.create(next, usual).map_err(failed)?;
        flusher.accounts.open(next, allocated, 0);
        flusher.position.offsets[stream] = segments.start(next);
        Ok(())
    }

    /// Forgets the freed pages that nobody can hold any more, and lets their identifiers be given out again.
    fn recycle(&self, flusher: &mut Flusher) {
        let (held, pages): (Vec<PageId>, Vec<PageId>) =
            self.pages.take_returned().into_iter().partition(|&page| self.table.is_held(page));
        for page in held {
            // Its release is still to come.
            self.pages.give_back(page);
        }
        let mut recycled = Vec::with_capacity(pages.len());
        for page in pages {
            for dead in self.table.fragments(page).iter() {
                flusher.accounts.remove(dead, true);
            }
            flusher.unadopted.remove(page);
            flusher.images.take_place(page);
            self.table.reset(page);
            // A recovery that scans what it has adopted would take that for adopted by whoever has the identifier next. The opening after that scans it no more.
            if flusher.waiting.remove(&page).is_none() {
                recycled.push(page);
            }
        }
        self.pages.recycle(&recycled);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
