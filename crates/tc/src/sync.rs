//! The atomics and locks of this crate: the standard library's, loom's under `cfg(loom)`, shuttle's under `cfg(shuttle)`, or those
//! that count in the tests.

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use crate::counted::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(any(test, loom, shuttle)))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic::fence};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// For guesses on which nothing depends: std's under loom and shuttle, too, as there is no need to switch threads there.
#[cfg(not(any(loom, shuttle)))]
pub(crate) use self::AtomicU32 as AtomicGuess;
#[cfg(any(loom, shuttle))]
pub(crate) use std::sync::atomic::AtomicU32 as AtomicGuess;

/// Lets others have a turn of the processor.
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::thread::yield_now;

#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(shuttle)]
pub(crate) use shuttle::thread::yield_now;

/// Stands between a publication and the look at what the other side has published.
///
/// Both are sequentially consistent accesses, which have one order among them, so that nothing is needed here.
/// Loom treats such accesses as acquire and release only; it does know fences, so its models get one.
#[inline(always)]
pub(crate) fn publication_fence() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Keeps a value on cache lines of its own; 128 bytes, since the prefetcher fetches lines in pairs.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Padded<T>(pub(crate) T);

/// How many compare-and-swaps were lost to another thread at one kind of place.
///
/// Touched by losers only, and on cache lines of its own: what lies beside it is read by everybody. An atomic of std's, also for loom and
/// shuttle: nothing depends on it, so that there is no need to switch threads there.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Lost(std::sync::atomic::AtomicU64);

impl Lost {
    pub(crate) const fn new() -> Lost {
        Lost(std::sync::atomic::AtomicU64::new(0))
    }

    #[cold]
    pub(crate) fn note(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Whether a compare-and-swap was won; it is counted if not.
    #[inline(always)]
    pub(crate) fn is_won<T>(&self, swapped: Result<T, T>) -> bool {
        let is_won = swapped.is_ok();
        if !is_won {
            self.note();
        }
        is_won
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// Locks, whatever happened to an earlier holder: no code under our mutexes panics half-way through a change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(all(test, not(any(loom, shuttle))))]
    crate::counted::note_store(std::ptr::from_ref(mutex).addr());
    // In the schedule tests the holder may be waiting for its turn.
    #[cfg(all(test, not(any(loom, shuttle))))]
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => {
                crate::schedule::point();
                std::thread::yield_now();
            }
        }
    }
    #[cfg(not(all(test, not(any(loom, shuttle)))))]
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
