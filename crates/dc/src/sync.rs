//! The locks and atomics of this crate: std's, or shuttle's under `cfg(shuttle)`.

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::yield_now,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::yield_now,
};
