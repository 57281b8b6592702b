//! The atomics and locks of this crate: std's, loom's under `cfg(loom)`, or shuttle's under `cfg(shuttle)`. Loom's models are of
//! the mapping table, which has no lock.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{
        Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    thread::yield_now,
};

/// Orders a sequentially consistent store-like operation before a following sequentially consistent load.
///
/// With real atomics this is nothing: sequentially consistent operations are totally ordered among themselves.
/// Loom treats them as acquire and release only, so its build needs the fence spelt out.
#[inline]
pub(crate) fn store_load_fence() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
