//! The epochs: a global counter, the slots in which threads say what they may still see, and the reclamation.
//!
//! # Model
//!
//! `epoch` only grows, by anybody, at any time. A pinned thread has in its slot the epoch it read when it pinned.
//! A retired thing is stamped with the epoch read *after* it was unlinked. It is freed when its stamp is below the
//! *safe epoch*: the least epoch in any slot, or the current epoch if no thread is pinned.
//!
//! # Why nothing is freed under a reader
//!
//! Three sequentially consistent fences, which have one order among them:
//!
//! - **F_p** between a reader's store to its slot and its reads of shared pointers (`Slot::pin`);
//! - **F_r** between a retirer's unlinking and its reading of the stamp R (`Guard::push`);
//! - **F_c** between a collector's reading of the current epoch C and its scan of the slots
//!   ([`Epochs::safe_epoch`]).
//!
//! The collector frees R only if R < C, so F_r came before F_c (had it come later, the retirer would have read C
//! or more). Take a reader whose slot says e.
//!
//! - F_c before F_p: then F_r before F_p, hence the reader finds the thing already unlinked. This also covers a
//!   thread whose slot, or whose chunk of slots, the scan did not see.
//! - F_p before F_c: the scan sees e, or a later pin or idleness of the same thread, in which case the reader's
//!   accesses are over (release store, acquiring scan). If it sees e, the thing is freed only if R < e. The
//!   reader had read e while the retirer, after F_r, still read R: so F_r before F_p, and the reader finds the
//!   thing unlinked.
//!
//! # Concurrency
//!
//! Pinning writes only the thread's own slot. Retiring takes the mutex of the thread's own limbo list, which
//! others only try while they collect. Nothing is allocated or freed by them while they hold it, and a thread that is collecting
//! does not start a second collection, so a deferred action may pin, retire and defer.
//!
//! # Source
//!
//! Paper 5.2. Ours differs in the fence, which the paper's enter lacks; in keeping a list for each thread instead
//! of one ring for all; and in bounding garbage by bytes instead of by the ring's length.

use crate::guard::Guard;
use crate::limbo::Limbo;
use crate::slots::{IDLE, Slot, Slots};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence};
use crate::thread::Collecting;
use deuteron_canary::{Canary, is_planted};
use deuteron_histogram::{Distribution, Histogram};
use std::fmt;
use std::sync::{Arc, PoisonError, TryLockError};

/// Default of [`Epochs::with_threshold`].
const THRESHOLD_BYTES: u64 = 1 << 20;

/// Keeps the global epoch, which all threads read, off the lines that one of them writes.
#[repr(align(128))]
struct Padded<T>(T);

/// One domain of reclamation. Guards of one instance do not hold back the garbage of another.
///
/// Dropping it frees everything retired: its guards borrow it, so none is left.
pub struct Epochs {
    epoch: Padded<AtomicU64>,
    slots: Slots,
    threshold_bytes: u64,
    lags: Histogram,
    /// The planted bug of the loom model: pins without F_p.
    #[cfg(all(test, loom))]
    pub(crate) without_pin_fence: bool,
}

impl Epochs {
    /// A new instance; each thread collects whenever 1 MiB of garbage has gathered in its list.
    pub fn new() -> Arc<Epochs> {
        Epochs::with_threshold(THRESHOLD_BYTES)
    }

    /// A new instance whose threads collect at every `bytes` of garbage. Tests make it small.
    ///
    /// ```
    /// let epochs = deuteron_epoch::Epochs::with_threshold(100);
    /// for _ in 0..1000 {
    ///     let guard = epochs.pin();
    ///     // SAFETY: never shared, retired once.
    ///     unsafe { guard.retire_box(Box::into_raw(Box::new([0u8; 50]))) };
    /// }
    /// assert!(epochs.garbage_bytes() <= 100);
    /// ```
    pub fn with_threshold(bytes: u64) -> Arc<Epochs> {
        Arc::new(Epochs {
            epoch: Padded(AtomicU64::new(IDLE + 1)),
            slots: Slots::new(),
            threshold_bytes: bytes,
            lags: Histogram::new(),
            #[cfg(all(test, loom))]
            without_pin_fence: false,
        })
    }

    /// Pins the thread: whatever it reaches through shared pointers from now on stays until the guard is dropped.
    #[inline]
    pub fn pin(&self) -> Guard<'_> {
        Guard::new(self)
    }

    /// The current epoch, read after all earlier writes of this thread.
    ///
    /// To reuse something that is no heap object: make it unreachable, note `current()`, [`advance`](Self::advance)
    /// and reuse it once [`is_quiescent`](Self::is_quiescent) of the noted epoch.
    ///
    /// ```
    /// let epochs = deuteron_epoch::Epochs::new();
    /// let reader = epochs.pin();
    /// let noted = epochs.current();
    /// epochs.advance();
    /// let later = epochs.pin();
    /// assert!(!epochs.is_quiescent(noted));
    /// drop((reader, later));
    /// assert!(epochs.is_quiescent(noted));
    /// ```
    pub fn current(&self) -> u64 {
        // F_r for those who use the counter themselves.
        fence(Ordering::SeqCst);
        self.load_epoch()
    }

    /// Begins a new epoch and returns it. Everything made unreachable before the call counts for the epoch before:
    /// wait for `is_quiescent(advance() - 1)`.
    pub fn advance(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.epoch.0.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether no guard is left that was pinned in `epoch` or before. Guards pinned after this call see all
    /// writes made before it, so for something already unreachable the answer stays true.
    pub fn is_quiescent(&self, epoch: u64) -> bool {
        fence(Ordering::SeqCst);
        self.pinned().all(|pinned| pinned > epoch)
    }

    /// Advances the epoch and frees, of all threads' garbage, what is safe; how many things that was. Cheap: a look at
    /// each slot. 0 if called by something that is just being freed.
    pub fn collect(&self) -> usize {
        self.collect_where(|_| true)
    }

    /// Bytes retired and not yet freed, as stated by those who retired them. Grows while a guard is held for long.
    pub fn garbage_bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.garbage_bytes.load(Ordering::Relaxed)).sum()
    }

    /// By how many epochs the oldest guard is behind; 0 if no thread is pinned. A number that grows together with
    /// [`garbage_bytes`](Self::garbage_bytes) means a guard that is held too long.
    pub fn oldest_pin_lag(&self) -> u64 {
        let current = self.current();
        self.pinned().min().map_or(0, |oldest| current.saturating_sub(oldest))
    }

    /// By how many epochs the oldest guard was behind at each collection; 0 if no thread was pinned. Each collection begins an epoch, so 1
    /// is no sign of a guard that is held long.
    ///
    /// ```
    /// let epochs = deuteron_epoch::Epochs::new();
    /// let guard = epochs.pin();
    /// (0..5).for_each(|_| drop(epochs.collect()));
    /// drop(guard);
    /// epochs.collect();
    /// let lags = epochs.lags();
    /// assert_eq!((lags.count(), lags.quantile(0.0), lags.max()), (6, 0, 5));
    /// ```
    pub fn lags(&self) -> Distribution {
        self.lags.read()
    }

    /// The collection of a thread whose list has reached the threshold: its own garbage, and the list of any other
    /// thread that has overgrown (its owner exited, or no longer retires). The rest is left to its owners, whose
    /// caches and allocators know it.
    #[cold]
    pub(crate) fn collect_slot(&self, own: &Slot) {
        own.collect_due.set(false);
        self.collect_where(|slot| {
            std::ptr::eq(slot, own) || slot.garbage_bytes.load(Ordering::Relaxed) > self.threshold_bytes
        });
    }

    fn collect_where(&self, mut wanted: impl FnMut(&Slot) -> bool) -> usize {
        let Some(_collecting) = Collecting::begin() else { return 0 };
        self.advance();
        let (current, safe) = self.safe_epoch();
        self.lags.record(current - safe);
        let (mut count, mut taken) = (0, Vec::new());
        for slot in self.slots.iter().filter(|slot| wanted(slot)) {
            // Its owner is retiring, or another thread is collecting it: then the list is left alone.
            while let Some(mut limbo) = try_lock(&slot.limbo) {
                let more = limbo.take_before(safe, self.threshold_bytes, &mut taken);
                slot.garbage_bytes.store(limbo.bytes(), Ordering::Relaxed);
                let excess = limbo.take_excess();
                // Allocating and freeing take as long as they like, and the owner waits for the list while it is pinned.
                drop(limbo);
                drop(excess);
                if more == 0 {
                    break;
                }
                taken.reserve_exact(more);
            }
            count += taken.len();
            for reclaim in taken.drain(..) {
                // SAFETY: stamped before the safe epoch; see the proof in the module document.
                unsafe { reclaim.run() };
            }
        }
        count
    }

    /// The current epoch, and the one below which nothing that is stamped can be reached by a guard.
    fn safe_epoch(&self) -> (u64, u64) {
        let current = self.load_epoch();
        // F_c.
        fence(Ordering::SeqCst);
        (current, self.pinned().fold(current, u64::min))
    }

    /// The epochs of all pinned threads. To be called after a SeqCst fence.
    fn pinned(&self) -> impl Iterator<Item = u64> {
        // Acquire pairs with the release of `Slot::pin` and of the guard's drop.
        let pinned =
            self.slots.iter().map(|slot| slot.epoch.load(Ordering::Acquire)).filter(|&epoch| epoch != IDLE);
        pinned.map(|epoch| epoch + u64::from(is_planted(Canary::FreeEarly)))
    }

    #[inline]
    pub(crate) fn load_epoch(&self) -> u64 {
        self.epoch.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    #[inline]
    pub(crate) fn threshold(&self) -> u64 {
        self.threshold_bytes
    }

    #[inline]
    pub(crate) fn fences_pins(&self) -> bool {
        #[cfg(all(test, loom))]
        return !self.without_pin_fence;
        #[cfg(not(all(test, loom)))]
        true
    }
}

/// The list, unless somebody has it.
fn try_lock(limbo: &Mutex<Limbo>) -> Option<MutexGuard<'_, Limbo>> {
    match limbo.try_lock() {
        Ok(limbo) => Some(limbo),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        let mut taken = Vec::new();
        for slot in self.slots.iter() {
            let mut limbo = slot.limbo.lock().unwrap_or_else(PoisonError::into_inner);
            let all = limbo.take_before(u64::MAX, 0, &mut taken);
            taken.reserve(all);
            limbo.take_before(u64::MAX, 0, &mut taken);
        }
        for reclaim in taken {
            // SAFETY: guards borrow the instance, which is being dropped, so there is none.
            unsafe { reclaim.run() };
        }
    }
}

impl fmt::Debug for Epochs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Epochs")
            .field("current", &self.current())
            .field("oldest_pin_lag", &self.oldest_pin_lag())
            .field("garbage_bytes", &self.garbage_bytes())
            .finish()
    }
}
