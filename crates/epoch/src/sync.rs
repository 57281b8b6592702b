//! The synchronisation primitives of this crate: those of std, or loom's models of them under `cfg(loom)`.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicPtr, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex,
    atomic::{AtomicPtr, AtomicU64, Ordering, fence},
};
