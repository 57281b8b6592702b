//! The synchronisation primitives of this crate: those of std, loom's models of them under `cfg(loom)`, or shuttle's under
//! `cfg(shuttle)`.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicPtr, AtomicU64, Ordering, fence},
    },
    thread_local,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicPtr, AtomicU64, Ordering, fence},
    },
    thread_local,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicPtr, AtomicU64, Ordering, fence},
    },
    thread_local,
};
