//! Loom models of the reclamation. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p deuteron-epoch --release --lib loom`.
//!
//! The reclaimed object is a loom cell that outlives the model: freeing is a write to it, so a read after the free, or
//! one not ordered before it, is reported by loom instead of being undefined behaviour.

use crate::Epochs;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::sync::Arc;

const LIVE: u32 = 42;
const FREED: u32 = 0;

/// A shared pointer and what it points to.
struct Shared {
    linked: AtomicU64,
    object: UnsafeCell<u32>,
}

// SAFETY: that the object is touched by one thread at a time, or only read, is what the models check.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared { linked: AtomicU64::new(1), object: UnsafeCell::new(LIVE) })
    }

    fn read(&self, epochs: &Epochs) {
        let _guard = epochs.pin();
        if self.linked.load(Ordering::Acquire) == 1 {
            // SAFETY: under test.
            self.object.with(|object| assert_eq!(unsafe { *object }, LIVE));
        }
    }

    fn free(&self) {
        // SAFETY: under test.
        self.object.with_mut(|object| unsafe { *object = FREED });
    }

    fn unlink(self: &Arc<Shared>, epochs: &Epochs) {
        let guard = epochs.pin();
        // Relaxed on purpose: the proof must not depend on more.
        self.linked.store(0, Ordering::Relaxed);
        let shared = Arc::clone(self);
        guard.defer(0, Box::new(move || shared.free()));
    }
}

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(check);
}

fn reader_against_writer(without_pin_fence: bool) {
    model(move || {
        let mut epochs = Arc::into_inner(Epochs::new()).unwrap();
        epochs.without_pin_fence = without_pin_fence;
        let epochs = Arc::new(epochs);
        let shared = Shared::new();
        let reader = {
            let (epochs, shared) = (Arc::clone(&epochs), Arc::clone(&shared));
            thread::spawn(move || shared.read(&epochs))
        };
        shared.unlink(&epochs);
        epochs.collect();
        reader.join().unwrap();
    });
}

#[test]
fn a_reader_never_sees_freed_memory() {
    reader_against_writer(false);
}

/// The harness's own test: the paper's enter has no fence, and loom finds the reader that the collector misses.
#[test]
#[should_panic]
fn the_planted_pin_without_a_fence_is_caught() {
    reader_against_writer(true);
}

#[test]
fn a_collector_of_another_threads_garbage_spares_readers() {
    model(|| {
        let epochs = Epochs::new();
        let shared = Shared::new();
        let reader = {
            let (epochs, shared) = (Arc::clone(&epochs), Arc::clone(&shared));
            thread::spawn(move || shared.read(&epochs))
        };
        let writer = {
            let (epochs, shared) = (Arc::clone(&epochs), Arc::clone(&shared));
            thread::spawn(move || shared.unlink(&epochs))
        };
        epochs.collect();
        reader.join().unwrap();
        writer.join().unwrap();
    });
}

/// A thread that pins twice in succession: its second pin must not hide that the first one's reads came before.
#[test]
fn a_second_pin_publishes_that_the_first_is_over() {
    model(|| {
        let epochs = Epochs::new();
        let shared = Shared::new();
        let reader = {
            let (epochs, shared) = (Arc::clone(&epochs), Arc::clone(&shared));
            thread::spawn(move || {
                shared.read(&epochs);
                drop(epochs.pin());
            })
        };
        shared.unlink(&epochs);
        epochs.collect();
        reader.join().unwrap();
    });
}

#[test]
fn quiescent_space_is_reused_after_its_last_reader() {
    model(|| {
        let epochs = Epochs::new();
        let shared = Shared::new();
        let reader = {
            let (epochs, shared) = (Arc::clone(&epochs), Arc::clone(&shared));
            thread::spawn(move || shared.read(&epochs))
        };
        shared.linked.store(0, Ordering::Relaxed);
        let noted = epochs.current();
        epochs.advance();
        if epochs.is_quiescent(noted) {
            shared.free();
        }
        reader.join().unwrap();
    });
}
