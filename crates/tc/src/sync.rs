//! The atomics and locks of this crate: the standard library's, loom's under `cfg(loom)`, shuttle's under `cfg(shuttle)`, or those
//! that count in the tests.

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use crate::counted::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(any(test, loom, shuttle)))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

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

/// Locks, whatever happened to an earlier holder: no code under our mutexes panics half-way through a change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(all(test, not(any(loom, shuttle))))]
    crate::counted::note_store();
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
