//! Which part of the log is in memory, and when its memory may be used again.
//!
//! # Model
//!
//! Five positions in LSN space, each of which only grows:
//!
//! ```text
//!  reusable ≤ memory_start ≤ min(released, stable, everything lent) ≤ … ≤ opened_end ≤ reusable + ring bytes
//! ```
//!
//! | position | says | moved by |
//! |---|---|---|
//! | `stable` | everything below is on disk | the flusher |
//! | `released` | the proxy needs nothing below in memory | the proxy |
//! | `memory_start` | readers may not begin to read below | the recycler |
//! | `reusable` | nobody reads below any more | the recycler |
//! | `opened_end` | all buffers opened so far end by here | who opens a buffer |
//!
//! A buffer is opened only if it ends at or below `reusable + ring bytes`.
//!
//! # Invariants
//!
//! - **M1** A record is written completely before its LSN is known to anybody but the writer, and never again as long
//!   as its LSN is at or above `reusable`.
//! - **M2** `memory_start` is at or below `stable`, `released` and the base of every lent buffer, so what is recycled is
//!   on disk and needed by nobody but version readers.
//! - **M3** A version reader pins an epoch, then loads `memory_start` (both sequentially consistent), and reads the
//!   record only if its LSN is not below.
//! - **M4** The recycler raises `memory_start`, then begins a new epoch, and raises `reusable` only when no guard pinned
//!   in an earlier epoch is left.
//!
//! So a reader never reads memory that is being written again: writing over LSN *l* needs `reusable` above *l*, hence a
//! `memory_start` above *l* stored before the epoch *e* ended (M4). A reader pinned in *e* or before, and seen by
//! the recycler, has finished. A reader that the recycler did not see pinned later than the recycler looked, and a
//! reader pinned after *e* read the new epoch: by the order of the fences in the pin and in the recycler's look, both
//! load a `memory_start` above *l* and do not read (M3). What such a reader returns earlier is complete (M1).
//!
//! # Concurrency
//!
//! Recycling is done by whoever gets the recycler's mutex; others go on without. Lending takes a mutex once for a buffer.
//!
//! # Source
//!
//! Paper 3.2 (log buffers as version cache) and 5.2 (memory reuse). The paper does not say how a reader tells that a
//! version has left the buffers; this is ours.

use crate::sync::{AtomicU64, Mutex, Ordering, Padded, fence};
use deuteron_epoch::{Epochs, Guard};
use std::sync::{Arc, TryLockError};

/// See the module document.
pub(crate) struct MemoryWindow {
    ring_bytes: u64,
    /// How much room to keep ahead of `opened_end`.
    ahead_bytes: u64,
    /// Read with every version, written seldom.
    memory_start: Padded<AtomicU64>,
    stable: Padded<AtomicU64>,
    released: AtomicU64,
    reusable: AtomicU64,
    opened_end: AtomicU64,
    epochs: Arc<Epochs>,
    recycler: Mutex<Recycler>,
    lent: Mutex<Vec<u64>>,
}

/// A raised `memory_start` whose readers may not be gone.
#[derive(Default)]
struct Recycler {
    pending: Option<Pending>,
}

struct Pending {
    upto: u64,
    epoch: u64,
}

impl MemoryWindow {
    /// An empty window that begins at `start`.
    pub(crate) fn new(
        start: u64,
        ring_bytes: u64,
        buffer_bytes_max: u64,
        epochs: Arc<Epochs>,
    ) -> MemoryWindow {
        MemoryWindow {
            ring_bytes,
            ahead_bytes: (ring_bytes / 8).max(2 * buffer_bytes_max),
            memory_start: Padded(AtomicU64::new(start)),
            stable: Padded(AtomicU64::new(start)),
            released: AtomicU64::new(start),
            reusable: AtomicU64::new(start),
            opened_end: AtomicU64::new(start),
            epochs,
            recycler: Mutex::new(Recycler::default()),
            lent: Mutex::new(Vec::new()),
        }
    }

    /// Where what may be read in memory begins. The guard must belong to the log's epochs (M3).
    #[inline]
    pub(crate) fn memory_start(&self, guard: &Guard<'_>) -> u64 {
        assert!(std::ptr::eq(guard.epochs(), &*self.epochs), "a guard of other epochs than the log's");
        self.memory_start.load(Ordering::SeqCst)
    }

    /// The end of the stable prefix.
    #[inline]
    pub(crate) fn stable(&self) -> u64 {
        self.stable.load(Ordering::SeqCst)
    }

    pub(crate) fn set_stable(&self, upto: u64) {
        self.stable.store(upto, Ordering::SeqCst);
    }

    /// The proxy needs nothing below `upto`.
    pub(crate) fn release(&self, upto: u64) {
        self.released.fetch_max(upto, Ordering::AcqRel);
    }

    /// Whether a buffer that ends at `end` may be opened now. Acquire pairs with the release in [`Self::recycle_step`]: the
    /// readers of what is overwritten are over.
    pub(crate) fn has_room(&self, end: u64) -> bool {
        end <= self.reusable.load(Ordering::Acquire) + self.ring_bytes
    }

    pub(crate) fn opened(&self, end: u64) {
        self.opened_end.fetch_max(end, Ordering::Relaxed);
    }

    /// Bytes of LSN space that occupy memory, and those of them that are there only for version readers.
    pub(crate) fn occupancy(&self) -> (u64, u64) {
        let reusable = self.reusable.load(Ordering::Relaxed);
        let opened_end = self.opened_end.load(Ordering::Relaxed);
        let needed = self.released.load(Ordering::Relaxed).min(self.stable());
        (opened_end.saturating_sub(reusable), needed.saturating_sub(reusable))
    }

    /// Makes room ahead of need, as far as the proxy and the flusher have let go; true if something moved.
    ///
    /// Keeps as much as it can as version cache, so it does nothing as long as there is room.
    pub(crate) fn recycle_step(&self) -> bool {
        let mut recycler = match self.recycler.try_lock() {
            Ok(recycler) => recycler,
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        if let Some(pending) = &recycler.pending {
            if !self.epochs.is_quiescent(pending.epoch) {
                return false;
            }
            // M4. Release pairs with `has_room`.
            self.reusable.store(pending.upto, Ordering::Release);
            recycler.pending = None;
            return true;
        }
        let reusable = self.reusable.load(Ordering::Relaxed);
        let wanted =
            (self.opened_end.load(Ordering::Relaxed) + self.ahead_bytes).saturating_sub(self.ring_bytes);
        if wanted <= reusable {
            return false;
        }
        // Some more than needed, so that an epoch is not ended for every small buffer.
        let wanted = wanted + self.ahead_bytes / 4;
        let upto = {
            // Held until `memory_start` is stored: a buffer is lent either before, and counts here, or after, and
            // then `lend` sees the new start.
            let lent = self.lent.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let bound = lent.iter().copied().min().unwrap_or(u64::MAX);
            let released = self.released.load(Ordering::Acquire);
            let upto = wanted.min(bound).min(released).min(self.stable());
            if upto <= reusable {
                return false;
            }
            self.memory_start.store(upto, Ordering::SeqCst);
            upto
        };
        // Pairs with the fence of a pin: see the argument at the head of the file.
        fence(Ordering::SeqCst);
        let epoch = self.epochs.advance() - 1;
        recycler.pending = Some(Pending { upto, epoch });
        true
    }

    /// Protects what begins at `base` from being recycled until [`Self::take_back`]; false if it is gone already.
    pub(crate) fn lend(&self, base: u64) -> bool {
        let mut lent = self.lent.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if base < self.memory_start.load(Ordering::SeqCst) {
            return false;
        }
        lent.push(base);
        true
    }

    pub(crate) fn take_back(&self, base: u64) {
        let mut lent = self.lent.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let index = lent.iter().position(|&other| other == base).expect("lent before");
        lent.swap_remove(index);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const RING: u64 = 64 << 10;

    fn window() -> (Arc<Epochs>, MemoryWindow) {
        let epochs = Epochs::new();
        (epochs.clone(), MemoryWindow::new(0, RING, 8192, epochs))
    }

    #[test]
    fn recycles_only_what_is_stable_released_and_unread() {
        let (epochs, window) = window();
        assert!(!window.recycle_step(), "there is room");
        window.opened(RING);
        assert!(!window.has_room(RING + 4096));
        assert!(!window.recycle_step(), "nothing is stable");
        window.set_stable(RING);
        assert!(!window.recycle_step(), "nothing is released");
        window.release(8192);
        let reader = epochs.pin();
        assert_eq!(window.memory_start(&reader), 0);
        assert!(window.recycle_step(), "raises memory_start");
        assert!(!window.recycle_step(), "a reader is there");
        assert_eq!(window.memory_start(&reader), 8192);
        assert!(!window.has_room(RING + 4096));
        drop(reader);
        let later = epochs.pin();
        assert!(window.recycle_step(), "the reader is gone, the later one does not matter");
        drop(later);
        assert!(window.has_room(RING + 8192));
        assert!(!window.recycle_step(), "nothing more is released");
    }

    #[test]
    fn lent_buffer_stays_whatever_is_released() {
        let (_epochs, window) = window();
        window.opened(RING);
        window.set_stable(RING);
        assert!(window.lend(4096));
        window.release(RING);
        assert!(window.recycle_step() && window.recycle_step());
        assert!(window.has_room(RING + 4096) && !window.has_room(RING + 8192));
        assert!(!window.lend(0));
        window.take_back(4096);
        assert!(window.recycle_step() && window.recycle_step());
        assert!(window.has_room(RING + 8192));
    }

    #[test]
    #[should_panic(expected = "other epochs")]
    fn guard_of_other_epochs_is_refused() {
        let (_epochs, window) = window();
        window.memory_start(&Epochs::new().pin());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! The argument of the module document on an abstraction: one reader's slot, one byte of ring memory that is
    //! either the old record or being overwritten.
    use crate::sync::{AtomicU64, Ordering, fence};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    const IDLE: u64 = 0;
    const OLD_LSN: u64 = 1;

    struct Model {
        epoch: AtomicU64,
        slot: AtomicU64,
        memory_start: AtomicU64,
        memory: UnsafeCell<u64>,
    }

    // SAFETY: a test of exactly that; loom reports unordered access to the cell.
    unsafe impl Sync for Model {}

    fn model(epoch_passes_first: bool) {
        loom::model(move || {
            let model = Arc::new(Model {
                epoch: AtomicU64::new(1),
                slot: AtomicU64::new(IDLE),
                memory_start: AtomicU64::new(0),
                memory: UnsafeCell::new(7),
            });
            let reader = {
                let model = model.clone();
                loom::thread::spawn(move || {
                    // A pin as in `deuteron_epoch`, then M3.
                    model.slot.store(model.epoch.load(Ordering::Relaxed), Ordering::Release);
                    fence(Ordering::SeqCst);
                    if OLD_LSN >= model.memory_start.load(Ordering::SeqCst) {
                        // SAFETY: the property under test.
                        let seen = model.memory.with(|memory| unsafe { *memory });
                        assert_eq!(seen, 7);
                    }
                    model.slot.store(IDLE, Ordering::Release);
                })
            };
            // M4.
            let mut ended = 0;
            if epoch_passes_first {
                fence(Ordering::SeqCst);
                ended = model.epoch.fetch_add(1, Ordering::AcqRel);
                fence(Ordering::SeqCst);
                let pinned = model.slot.load(Ordering::Acquire);
                if pinned != IDLE && pinned <= ended {
                    reader.join().unwrap();
                    return;
                }
            }
            model.memory_start.store(OLD_LSN + 1, Ordering::SeqCst);
            if !epoch_passes_first {
                fence(Ordering::SeqCst);
                ended = model.epoch.fetch_add(1, Ordering::AcqRel);
            }
            fence(Ordering::SeqCst);
            let pinned = model.slot.load(Ordering::Acquire);
            if epoch_passes_first || pinned == IDLE || pinned > ended {
                // SAFETY: the property under test.
                model.memory.with_mut(|memory| unsafe { *memory = 8 });
            }
            reader.join().unwrap();
        });
    }

    #[test]
    fn reader_never_meets_overwritten_memory() {
        model(false);
    }

    /// The model is worth something: with the epoch ended before `memory_start` is raised it must fail.
    #[test]
    #[should_panic]
    fn planted_bug_is_caught() {
        model(true);
    }
}
