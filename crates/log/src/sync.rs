//! Atomics and mutexes: the standard library's, loom's under `cfg(loom)`, shuttle's under `cfg(shuttle)`, or those that count in the
//! tests. All that threads share without a lock takes them from here.

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use crate::counted::{AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::Mutex,
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
    thread::yield_now,
};
#[cfg(not(any(test, loom, shuttle)))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{hint::spin_loop, sync::Mutex, sync::atomic::fence, thread::yield_now};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    hint::spin_loop,
    sync::Mutex,
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
    thread::yield_now,
};

/// Keeps a value on cache lines of its own (two, as the prefetcher of x86 fetches pairs).
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// How many attempts were lost to other threads at one kind of place.
///
/// Touched by losers only, and on cache lines of its own: what lies beside it is read by everybody. An atomic of std's, also for loom and
/// shuttle: nothing depends on it, so that there is no need to switch threads there.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Lost(std::sync::atomic::AtomicU64);

impl Lost {
    #[cfg(test)]
    pub(crate) const fn new() -> Lost {
        Lost(std::sync::atomic::AtomicU64::new(0))
    }

    #[cold]
    pub(crate) fn note(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// Waits for another thread that is a few instructions away from its goal: spins, then gives up the processor, then
/// gives up. Nothing here may wait for long, because the thread waited for may be this one (deterministic tests run
/// every duty inline).
pub(crate) struct Patience {
    rounds: u32,
}

impl Patience {
    #[cfg(not(any(loom, shuttle)))]
    const SPINS: u32 = 64;
    #[cfg(not(any(loom, shuttle)))]
    const ROUNDS: u32 = 256;
    #[cfg(any(loom, shuttle))]
    const SPINS: u32 = 0;
    #[cfg(any(loom, shuttle))]
    const ROUNDS: u32 = 3;

    pub(crate) fn new() -> Patience {
        Patience { rounds: 0 }
    }

    /// Waits a little; false when it has been enough.
    pub(crate) fn wait(&mut self) -> bool {
        self.rounds += 1;
        if self.rounds <= Self::SPINS {
            spin_loop();
        } else {
            yield_now();
        }
        self.rounds <= Self::ROUNDS
    }
}
