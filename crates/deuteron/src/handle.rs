//! What transactions and tickets hold the engine by.
//!
//! A transaction is owned, so it must keep the engine alive. Were that a clone of one `Arc`, every begin and every end would
//! write its reference count, on one cache line for all threads. So a database has several, each with a count of its
//! own on a line of its own, and a thread always takes the same.

use crate::engine::Engine;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts of references, to be shared by so many threads or more.
const HANDLES: usize = 16;

/// A reference to the engine, with its own count. Two lines, since the prefetcher of x86 fetches pairs.
#[repr(align(128))]
pub struct Handle(Arc<Engine>);

impl Handle {
    pub fn new(engine: &Arc<Engine>) -> Arc<Self> {
        Arc::new(Self(Arc::clone(engine)))
    }
}

impl Deref for Handle {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        &self.0
    }
}

/// The handles of a database. See the [module](self).
pub struct Handles([Arc<Handle>; HANDLES]);

impl Handles {
    pub fn new(engine: &Arc<Engine>) -> Self {
        Self(std::array::from_fn(|_| Handle::new(engine)))
    }

    /// The calling thread's.
    #[inline]
    pub fn mine(&self) -> &Arc<Handle> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % HANDLES;
        }
        &self.0[MINE.with(|mine| *mine)]
    }
}
