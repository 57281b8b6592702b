//! The atomics of this crate: std's, or loom's under `cfg(loom)`.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};

/// Orders a sequentially consistent store-like operation before a following sequentially consistent load.
///
/// With real atomics this is nothing: sequentially consistent operations are totally ordered among themselves.
/// Loom treats them as acquire and release only, so its build needs the fence spelt out.
#[inline]
pub(crate) fn store_load_fence() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
