//! The buffers: a small ring of descriptors through which one buffer after the other is open for appending.
//!
//! # Where it sits
//!
//! Appenders call [`Buffers::reserve`]. The flusher walks the buffers in order of their numbers with
//! [`Buffers::opened`], [`Buffers::seal`], [`Buffers::finished`] and [`Buffers::free`]. A descriptor serves a buffer from
//! opening until it is written; the buffer's memory lives on without it, described by its header.
//!
//! # Model
//!
//! Buffer number *n* uses slot *n mod N*. A slot's fields, and who writes them:
//!
//! | field | holds | written |
//! |---|---|---|
//! | `word` | USERS and OFFSET, see [`buffer_word`](crate::buffer_word) | by everybody |
//! | `extent` | base and length in blocks (base's low 12 bits) while taken; number of the buffer to come, shifted, while free | by who opens, by the flusher |
//! | `last_commit` | offset of the commit record filled last | by committers who are users; zeroed by the flusher |
//! | `used` | bytes in use | by the sealer, before `successor` |
//! | `successor` | base of buffer *n*+1, tagged with *n* in the low 12 bits | by the sealer |
//!
//! ```text
//!        open_next               reserve (straddles) / seal        finished, written; free
//!  free ───────────► taken, open ────────────────────────► sealed ───────────────────────► free (n + N)
//! ```
//!
//! **Opening** buffer *n*+1 takes three compare-and-swaps: `extent` from "free for *n*+1" to base and length, `word`
//! from "free for *n*+1" to open, `active` from *n* to *n*+1. Everything that is put in follows from what the sealer
//! of *n* published, so anybody who finds *n* sealed does it, any number of threads at once, and each finishes what
//! another began: the numbers in the expected values make a thread that comes late fail.
//!
//! **The successor's base** is the end of the used bytes, rounded up to a block, so that a partial seal costs little
//! ring memory. Only if a record straddled the end of a buffer that ends at a *boundary* (the end of the ring or of a
//! segment, which no buffer crosses) the successor starts at the boundary.
//!
//! # Invariants
//!
//! - **B1** `extent` and `last_commit` are in place before the word is opened and stay while the word counts a
//!   user (W3).
//! - **B2** A slot is freed for *n*+N only by the flusher, after buffer *n* was written, and opened for *n*+N only after
//!   *n*+N−1; so buffers open in the order of their numbers and LSNs.
//! - **B3** `successor` carries the tag of *n* from the sealing of *n* until the sealing of *n*+N, also while the slot is
//!   free; so that buffer *n*+1 can be opened even after *n* has been written. (N ≤ 2048 keeps tags apart.)
//! - **B4** A buffer is opened only if [`MemoryWindow::has_room`] for all of it: whoever reserves in it may write at
//!   once.
//! - **B5** All of a user's range belongs to it alone until it leaves (W2), and no range reaches beyond the buffer's end.
//!
//! # Progress
//!
//! Nothing here waits long. Between a sealer's addition and its publication of the successor there are a few
//! instructions in which others can only spin, as while a late comer takes its addition back; both spin with
//! [`Patience`] and then report `Full`, which callers must expect anyway. Who asks for the tail spins, too, until it is published. The paper's design, with buffers of fixed
//! length, has no such gap; the price would be up to a whole buffer of ring memory at every partial seal.
//!
//! # Source
//!
//! Paper 5.1.

use crate::block::{BLOCK, HEADER_BYTES, block_up};
use crate::buffer_word::{BufferWord, Reserved};
use crate::memory_window::MemoryWindow;
use crate::sync::{AtomicU32, AtomicU64, Lost, Ordering, Padded, Patience};
use deuteron_device::BLOCK_BYTES;

/// The bits of a base that are always zero.
const TAG: u64 = BLOCK - 1;
const HEADER: u32 = HEADER_BYTES as u32;

/// The descriptor of one buffer; see the module document.
#[repr(align(128))]
struct Slot {
    word: BufferWord,
    extent: AtomicU64,
    last_commit: AtomicU32,
    used: AtomicU32,
    successor: AtomicU64,
}

/// Base and limit of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    base: u64,
    limit: u32,
}

impl Extent {
    /// `limit` is 0 if the slot is free.
    #[inline]
    fn unpack(word: u64) -> Extent {
        Extent { base: word & !TAG, limit: ((word & TAG) * BLOCK) as u32 }
    }

    fn pack(self) -> u64 {
        self.base | (u64::from(self.limit) / BLOCK)
    }

    fn free_for(number: u64) -> u64 {
        number << BLOCK.trailing_zeros()
    }

    fn end(self) -> u64 {
        self.base + u64::from(self.limit)
    }
}

/// See the module document.
pub(crate) struct Buffers {
    slots: Box<[Slot]>,
    /// The number of the newest buffer that has been opened.
    active: Padded<AtomicU64>,
    buffer_bytes_max: u64,
    /// No buffer crosses a multiple of it.
    boundary_bytes: u64,
    counters: Counters,
}

/// Counts of rare events.
#[derive(Default)]
struct Counters {
    sealed_full: AtomicU64,
    opening_lost: Lost,
    reservations_lost: Lost,
}

/// Space in an open buffer, whose user the holder is until [`Reservation::leave`].
pub(crate) struct Reservation<'a> {
    slot: &'a Slot,
    pub(crate) lsn: u64,
    offset: u32,
}

impl Reservation<'_> {
    /// Makes the record at this LSN, within the space, the head of the buffer's commit chain; the offset of the former head.
    pub(crate) fn link(&self, lsn: u64) -> u32 {
        self.slot.last_commit.swap(self.offset + (lsn - self.lsn) as u32, Ordering::AcqRel)
    }

    /// What was written is complete.
    #[inline]
    pub(crate) fn leave(self) {
        self.slot.word.leave();
    }
}

/// There is no room: neither in the newest buffer nor for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// A sealed buffer that nobody writes to any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub base: u64,
    pub used: u32,
    pub last_commit: u32,
    pub successor: u64,
}

/// What [`Buffers::opened`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub base: u64,
    /// How far it is given away, if it is not sealed.
    pub open_offset: Option<u32>,
}

impl Buffers {
    /// No buffer is open; number 1 will start at `start`.
    pub(crate) fn new(count: usize, start: u64, buffer_bytes_max: u64, boundary_bytes: u64) -> Buffers {
        assert!(count.is_power_of_two() && (2..=BLOCK_BYTES / 2).contains(&count));
        assert!(start.is_multiple_of(BLOCK) && boundary_bytes.is_multiple_of(BLOCK));
        let slot = |index: u64| {
            // Slot 0 is as if buffer 0 had been written and freed: it publishes where buffer 1 starts.
            // The others carry the tag of a buffer N before their first.
            let (number, successor) = if index == 0 {
                (count as u64, start)
            } else {
                (index, index.wrapping_sub(count as u64) & TAG)
            };
            Slot {
                word: BufferWord::new_free(number),
                extent: AtomicU64::new(Extent::free_for(number)),
                last_commit: AtomicU32::new(0),
                used: AtomicU32::new(0),
                successor: AtomicU64::new(successor),
            }
        };
        Buffers {
            slots: (0..count as u64).map(slot).collect(),
            active: Padded(AtomicU64::new(0)),
            buffer_bytes_max,
            boundary_bytes,
            counters: Counters::default(),
        }
    }

    #[inline]
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[number as usize & (self.slots.len() - 1)]
    }

    /// Reserves `size` bytes, a multiple of 8 that fits into a fresh buffer.
    #[inline]
    pub(crate) fn reserve(&self, size: u32, window: &MemoryWindow) -> Result<Reservation<'_>, NoRoom> {
        loop {
            let number = self.active.load(Ordering::Acquire);
            let slot = self.slot(number);
            // The slot may have gone on to a later buffer meanwhile: then the space is in that one.
            let limit = || Extent::unpack(slot.extent.load(Ordering::Relaxed)).limit;
            let reserved = slot.word.reserve(size, limit, &self.counters.reservations_lost);
            match reserved {
                Reserved::At(offset) => {
                    // B1: we are a user.
                    let base = Extent::unpack(slot.extent.load(Ordering::Relaxed)).base;
                    return Ok(Reservation { slot, lsn: base + u64::from(offset), offset });
                }
                Reserved::Straddled { used } => {
                    let extent = Extent::unpack(slot.extent.load(Ordering::Relaxed));
                    self.counters.sealed_full.fetch_add(1, Ordering::Relaxed);
                    self.publish_end(slot, extent, used, true);
                    slot.word.leave();
                }
                Reserved::Sealed => {}
            }
            self.open_next(number, window)?;
        }
    }

    /// The sealer's duty: says how much is used and where the next buffer starts.
    fn publish_end(&self, slot: &Slot, extent: Extent, used: u32, straddled: bool) {
        let at_boundary = extent.end().is_multiple_of(self.boundary_bytes);
        let successor =
            if straddled && at_boundary { extent.end() } else { extent.base + block_up(u64::from(used)) };
        slot.used.store(used, Ordering::Relaxed);
        // The sealer need not know the buffer's number, which may have grown since it looked: the slot still carries the
        // tag of the buffer that it served before, which nobody but that buffer's sealer wrote (B3).
        let before = slot.successor.load(Ordering::Relaxed);
        let tag = (before + self.slots.len() as u64) & TAG;
        slot.successor.store(successor | tag, Ordering::Release);
    }

    /// The base of buffer `number` + 1, if `number` is sealed and that has been published. Acquire pairs with
    /// [`Self::publish_end`].
    fn successor(&self, number: u64) -> Option<u64> {
        let word = self.slot(number).successor.load(Ordering::Acquire);
        if word & TAG == number & TAG { Some(word & !TAG) } else { None }
    }

    /// The extent of a buffer that starts at `base`.
    fn extent_at(&self, base: u64) -> Extent {
        let to_boundary = self.boundary_bytes - base % self.boundary_bytes;
        Extent { base, limit: self.buffer_bytes_max.min(to_boundary) as u32 }
    }

    /// Opens the buffer after `number`, which is sealed, or finds that somebody has.
    #[cold]
    fn open_next(&self, number: u64, window: &MemoryWindow) -> Result<(), NoRoom> {
        let is_opened = || self.active.load(Ordering::Acquire) != number;
        let mut patience = Patience::new();
        let base = loop {
            if is_opened() {
                return Ok(());
            }
            match self.successor(number) {
                Some(base) => break base,
                None if patience.wait() => {}
                None => return Err(NoRoom),
            }
        };
        let extent = self.extent_at(base);
        // Two steps of recycling: one raises `memory_start`, one finds the readers gone.
        let mut steps = 0;
        while !window.has_room(extent.end()) {
            steps += 1;
            if steps > 2 || !window.recycle_step() {
                return Err(NoRoom);
            }
        }
        let next = number + 1;
        let slot = self.slot(next);
        let taken = extent.pack();
        let free = Extent::free_for(next);
        // Release pairs with the acquire of the helpers, who may be the ones to open the word.
        match slot.extent.compare_exchange(free, taken, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {}
            Err(found) if found == taken => {
                self.counters.opening_lost.note();
            }
            // Either it was opened and is history, or the slot still holds a buffer that is not written.
            Err(_) => return if is_opened() { Ok(()) } else { Err(NoRoom) },
        }
        while !slot.word.open(next, HEADER) && slot.word.is_marked() {
            // A late comer is about to take back what it added, or all is done and `next` is sealed again.
            if is_opened() {
                return Ok(());
            }
            if !patience.wait() {
                return Err(NoRoom);
            }
        }
        window.opened(extent.end());
        let _ = self.active.compare_exchange(number, next, Ordering::AcqRel, Ordering::Relaxed);
        Ok(())
    }

    /// Buffer `number`, if it has been opened. Only for the flusher, who has not freed it.
    pub(crate) fn opened(&self, number: u64) -> Option<Opened> {
        if self.active.load(Ordering::Acquire) < number {
            return None;
        }
        let slot = self.slot(number);
        let extent = Extent::unpack(slot.extent.load(Ordering::Relaxed));
        Some(Opened { base: extent.base, open_offset: slot.word.open_offset(extent.limit) })
    }

    /// Seals buffer `number`, if it is open. Only for the flusher, who has not freed it.
    pub(crate) fn seal(&self, number: u64) -> bool {
        let slot = self.slot(number);
        let extent = Extent::unpack(slot.extent.load(Ordering::Relaxed));
        match slot.word.seal(extent.limit) {
            Some(used) => {
                self.publish_end(slot, extent, used, false);
                true
            }
            None => false,
        }
    }

    /// What buffer `number` came to, if it is sealed and all its writers have left. Only for the flusher, who has not
    /// freed it.
    pub(crate) fn finished(&self, number: u64) -> Option<Finished> {
        let successor = self.successor(number)?;
        let slot = self.slot(number);
        // In this order: users seen after the seal are those of before, or late comers who write nothing.
        if !slot.word.is_unused() {
            return None;
        }
        Some(Finished {
            base: Extent::unpack(slot.extent.load(Ordering::Relaxed)).base,
            used: slot.used.load(Ordering::Relaxed),
            last_commit: slot.last_commit.load(Ordering::Relaxed),
            successor,
        })
    }

    /// Gives the slot of buffer `number`, which is written, to buffer `number` + N; false if a late comer is there.
    /// Only for the flusher.
    pub(crate) fn free(&self, number: u64) -> bool {
        let slot = self.slot(number);
        let later = number + self.slots.len() as u64;
        slot.last_commit.store(0, Ordering::Relaxed);
        if !slot.word.free(later) {
            return false;
        }
        // Only now: until the word says S, a late comer needs the old limit to know that it is late.
        slot.extent.store(Extent::free_for(later), Ordering::Release);
        true
    }

    /// An LSN above everything reserved before the call, and none that nobody has reached: who waits until all below is stable must not wait
    /// for more than there is.
    pub(crate) fn tail(&self) -> u64 {
        let mut patience = Patience::new();
        loop {
            let number = self.active.load(Ordering::Acquire);
            let slot = self.slot(number);
            let extent = Extent::unpack(slot.extent.load(Ordering::Acquire));
            let tail = match slot.word.open_offset(extent.limit) {
                // Who has opened it is about to reserve.
                Some(offset) if offset as usize <= HEADER_BYTES => Some(extent.base),
                Some(offset) => Some(extent.base + u64::from(offset)),
                // Who seals it is about to say where the next begins.
                None => self.successor(number),
            };
            // Else the slot may have changed between the looks.
            if let Some(tail) = tail
                && self.active.load(Ordering::Acquire) == number
            {
                return tail;
            }
            // Whatever it says: he goes on.
            let _ = patience.wait();
        }
    }

    /// How many buffers were sealed because they were full.
    pub(crate) fn sealed_full(&self) -> u64 {
        self.counters.sealed_full.load(Ordering::Relaxed)
    }

    /// How many threads found that another had just opened the buffer that they were opening.
    pub(crate) fn opening_lost(&self) -> u64 {
        self.counters.opening_lost.count()
    }

    /// How many reservations had to be made again.
    pub(crate) fn reservations_lost(&self) -> u64 {
        self.counters.reservations_lost.count()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use deuteron_epoch::Epochs;

    const MAX: u32 = 16 << 10;

    /// Buffers of 16 KiB in a ring of 64 KiB, and segments as long.
    fn buffers(start: u64) -> (Buffers, MemoryWindow) {
        let window = MemoryWindow::new(start, 64 << 10, u64::from(MAX), Epochs::new());
        (Buffers::new(4, start, u64::from(MAX), 64 << 10), window)
    }

    fn take(buffers: &Buffers, window: &MemoryWindow, size: u32) -> Result<u64, NoRoom> {
        buffers.reserve(size, window).map(|reservation| {
            let lsn = reservation.lsn;
            reservation.leave();
            lsn
        })
    }

    #[test]
    fn partial_seal_costs_less_than_a_block() {
        let (buffers, window) = buffers(0);
        assert_eq!(buffers.tail(), 0);
        assert_eq!(buffers.opened(1), None);
        assert_eq!(take(&buffers, &window, 96), Ok(64));
        assert_eq!(buffers.opened(1), Some(Opened { base: 0, open_offset: Some(160) }));
        assert_eq!(buffers.finished(1), None, "not sealed");
        assert!(buffers.seal(1) && !buffers.seal(1));
        let finished = Finished { base: 0, used: 160, last_commit: 0, successor: 4096 };
        assert_eq!(buffers.finished(1), Some(finished));
        assert_eq!(buffers.tail(), 4096);
        assert!(buffers.free(1));
        assert_eq!(buffers.tail(), 4096, "also when it has been written before the next was opened");
        assert_eq!(take(&buffers, &window, 96), Ok(4096 + 64));
    }

    #[test]
    fn straddler_continues_behind_what_is_used_or_at_the_boundary() {
        let (buffers, window) = buffers(0);
        assert_eq!(take(&buffers, &window, 8000), Ok(64));
        // Over the end of a buffer that is as long as buffers get: the rest of its range is used.
        assert_eq!(take(&buffers, &window, 16_000), Ok(8192 + 64));
        assert_eq!(buffers.finished(1).unwrap().successor, 8192);
        assert_eq!(take(&buffers, &window, 16_000), Ok(8192 + 16_384 + 64));
        assert_eq!(take(&buffers, &window, 16_000), Ok(8192 + 2 * 16_384 + 64));
        // The next one has but 8 KiB to the boundary, and there the ring is full.
        assert_eq!(take(&buffers, &window, 16_000), Err(NoRoom));
        assert_eq!(buffers.finished(4).unwrap().successor, 8192 + 3 * 16_384);
        for number in 1..=4 {
            assert!(buffers.free(number));
        }
        window.set_stable(32 << 10);
        window.release(32 << 10);
        assert_eq!(
            take(&buffers, &window, 16_000),
            Ok((64 << 10) + 64),
            "an empty buffer ends at the boundary"
        );
        let empty = Finished { base: 8192 + 3 * 16_384, used: 64, last_commit: 0, successor: 64 << 10 };
        assert_eq!(buffers.finished(5), Some(empty));
    }

    #[test]
    fn slots_are_a_limit_too() {
        let (buffers, window) = buffers(4096);
        for number in 1..=4 {
            assert_eq!(take(&buffers, &window, 96), Ok(4096 * number + 64));
            assert!(buffers.seal(number));
        }
        assert_eq!(take(&buffers, &window, 96), Err(NoRoom));
        assert!(buffers.free(1));
        assert_eq!(take(&buffers, &window, 96), Ok(4096 * 5 + 64));
    }

    #[test]
    fn unfinished_writer_holds_the_buffer() {
        let (buffers, window) = buffers(0);
        let first = buffers.reserve(32, &window).unwrap();
        let second = buffers.reserve(32, &window).unwrap();
        assert_eq!(second.link(second.lsn), 0);
        assert_eq!(first.link(first.lsn), 96);
        second.leave();
        buffers.seal(1);
        assert_eq!(buffers.finished(1), None);
        first.leave();
        assert_eq!(buffers.finished(1).map(|finished| finished.last_commit), Some(64));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use deuteron_epoch::Epochs;
    use loom::sync::Arc;

    const MAX: u32 = 8192;

    fn model(
        threads: usize,
        test: impl Fn(Arc<(Buffers, MemoryWindow)>, usize) + Sync + Send + 'static + Copy,
    ) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let window = MemoryWindow::new(0, 64 << 10, u64::from(MAX), Epochs::new());
            let shared = Arc::new((Buffers::new(2, 0, u64::from(MAX), 64 << 10), window));
            let others: Vec<_> = (1..threads)
                .map(|thread| {
                    let shared = shared.clone();
                    loom::thread::spawn(move || test(shared, thread))
                })
                .collect();
            test(shared, 0);
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }

    /// Two threads find no open buffer and open it together: they get different space in one buffer.
    #[test]
    fn opening_together_opens_once() {
        model(2, |shared, thread| {
            let (buffers, window) = &*shared;
            if let Ok(reservation) = buffers.reserve(8, window) {
                assert!([64, 72].contains(&reservation.lsn), "thread {thread}: {}", reservation.lsn);
                reservation.leave();
            }
            assert!(buffers.active.load(Ordering::Acquire) <= 1);
        });
    }

    /// While a buffer is being sealed the tail is where its records end, or where the next begins.
    #[test]
    fn the_tail_is_not_beyond_what_is_reached_while_a_buffer_is_sealed() {
        model(2, |shared, thread| {
            let (buffers, window) = &*shared;
            if thread == 1 {
                if buffers.opened(1).is_some() {
                    let tail = buffers.tail();
                    assert!([0, 72, 4096].contains(&tail), "{tail}");
                }
            } else if let Ok(reservation) = buffers.reserve(8, window) {
                reservation.leave();
                buffers.seal(1);
            }
        });
    }

    /// One thread appends while the flusher seals, writes and frees: whatever the appender got is in what was finished.
    #[test]
    fn flusher_and_appender() {
        model(2, |shared, thread| {
            let (buffers, window) = &*shared;
            if thread == 1 {
                for _ in 0..2 {
                    if let Ok(reservation) = buffers.reserve(8, window) {
                        assert!([64, 72, 4096 + 64, 4096 + 72].contains(&reservation.lsn));
                        reservation.leave();
                    }
                }
            } else if buffers.opened(1).is_some() {
                buffers.seal(1);
                if let Some(finished) = buffers.finished(1) {
                    assert!((64..=80).contains(&finished.used));
                    assert_eq!((finished.base, finished.successor), (0, 4096));
                    buffers.free(1);
                    assert!(buffers.tail() >= 4096);
                }
            }
        });
    }
}
