//! Pointer stability for latch-free structures: memory unlinked by one thread is freed only when no other
//! thread can still hold a pointer to it (paper 5.2).
//!
//! A thread *pins* itself before it follows shared pointers and unpins by dropping the [`Guard`]. Whoever unlinks
//! an object *retires* it through its own guard; the object is freed once every guard that might have seen it is
//! gone. [`Epochs`] also answers the same question for things that are not heap objects, such as a stretch of a
//! ring buffer: [`Epochs::current`], [`Epochs::advance`], [`Epochs::is_quiescent`].
//!
//! This crate is not a garbage collector with a thread of its own: collection runs on the thread whose garbage
//! crosses a threshold, or where somebody calls [`Epochs::collect`]. It never waits for a reader either: a guard
//! held for long delays every reclamation behind it, which [`Epochs::garbage_bytes`] and
//! [`Epochs::oldest_pin_lag`] make visible, and [`Epochs::lags`] of all collections so far.
//!
//! Besides, [`prefetch`] and [`prefetch_for_write`] tell the processor which memory such a structure will touch next.
//!
//! ```
//! use deuteron_epoch::Epochs;
//! use std::sync::atomic::{AtomicPtr, Ordering};
//!
//! let epochs = Epochs::new();
//! let shared = AtomicPtr::new(Box::into_raw(Box::new(1)));
//!
//! let guard = epochs.pin();
//! let old = shared.swap(Box::into_raw(Box::new(2)), Ordering::AcqRel);
//! // SAFETY: `old` came from Box::into_raw and the swap unlinked it, so nobody retires it a second time.
//! unsafe { guard.retire_box(old) };
//! // SAFETY: the guard was pinned before `old` was retired.
//! assert_eq!(unsafe { *old }, 1);
//! drop(guard);
//!
//! assert_eq!(epochs.collect(), 1);
//! # // SAFETY: the only owner.
//! # drop(unsafe { Box::from_raw(shared.load(Ordering::Relaxed)) });
//! ```

mod epochs;
mod guard;
mod limbo;
mod prefetch;
mod slots;
mod sync;
mod thread;

#[cfg(all(test, loom))]
mod loom_tests;

pub use epochs::Epochs;
pub use guard::Guard;
pub use prefetch::{prefetch, prefetch_for_write};
