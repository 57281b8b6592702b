//! What users of the epochs rely on, through the public interface.
#![cfg(not(loom))]

use deuteron_epoch::Epochs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn retire_one(epochs: &Epochs, drops: &Arc<AtomicUsize>) {
    let guard = epochs.pin();
    // SAFETY: never shared, retired once.
    unsafe { guard.retire_box(Box::into_raw(Box::new(Counted(Arc::clone(drops))))) };
}

#[test]
fn nothing_is_freed_while_an_older_guard_lives() {
    let epochs = Epochs::new();
    let drops = Arc::new(AtomicUsize::new(0));
    let (pinned, is_pinned) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let epochs = &epochs;
        scope.spawn(move || {
            let _guard = epochs.pin();
            pinned.send(()).unwrap();
            released.recv().unwrap();
        });
        is_pinned.recv().unwrap();
        retire_one(epochs, &drops);
        for _ in 0..5 {
            assert_eq!(epochs.collect(), 0);
        }
        assert_eq!(epochs.oldest_pin_lag(), 5);
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        release.send(()).unwrap();
    });
    assert_eq!(epochs.collect(), 1);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    assert_eq!((epochs.garbage_bytes(), epochs.oldest_pin_lag()), (0, 0));
}

#[test]
fn nested_guards_end_with_the_outermost() {
    let epochs = Epochs::new();
    let mut outer = epochs.pin();
    let inner = epochs.pin();
    let noted = epochs.current();
    epochs.advance();
    assert!(!outer.repin(), "the inner guard still needs the old epoch");
    drop(outer);
    assert!(!epochs.is_quiescent(noted));
    drop(inner);
    assert!(epochs.is_quiescent(noted));
}

#[test]
fn guards_of_one_instance_do_not_hold_back_another() {
    let (one, other) = (Epochs::new(), Epochs::new());
    let drops = Arc::new(AtomicUsize::new(0));
    let _guard = one.pin();
    retire_one(&other, &drops);
    assert_eq!(other.collect(), 1);
}

#[test]
fn garbage_of_an_exited_thread_is_anybodys_to_free() {
    let epochs = Epochs::new();
    let drops = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| (0..10).for_each(|_| retire_one(&epochs, &drops)));
    });
    assert!(epochs.garbage_bytes() > 0);
    assert_eq!(epochs.collect(), 10);
    assert_eq!(drops.load(Ordering::Relaxed), 10);
}

#[test]
fn dropping_the_instance_frees_everything() {
    let epochs = Epochs::new();
    let drops = Arc::new(AtomicUsize::new(0));
    (0..10).for_each(|_| retire_one(&epochs, &drops));
    drop(epochs);
    assert_eq!(drops.load(Ordering::Relaxed), 10);
}

#[test]
fn crossing_the_threshold_collects_unasked() {
    let epochs = Epochs::with_threshold(1000);
    let drops = Arc::new(AtomicUsize::new(0));
    (0..1000).for_each(|_| retire_one(&epochs, &drops));
    assert!(drops.load(Ordering::Relaxed) > 900);
}

#[test]
fn garbage_behind_a_long_pin_is_visible_and_goes_when_the_pin_does() {
    let epochs = Epochs::with_threshold(1000);
    let drops = Arc::new(AtomicUsize::new(0));
    let guard = epochs.pin();
    thread::scope(|scope| {
        scope.spawn(|| (0..1000).for_each(|_| retire_one(&epochs, &drops)));
    });
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    assert_eq!(epochs.garbage_bytes(), 1000 * size_of::<Counted>() as u64);
    // Collections were tried, but not at every retirement.
    assert!((10..200).contains(&epochs.oldest_pin_lag()), "{}", epochs.oldest_pin_lag());
    drop(guard);
    assert_eq!(epochs.collect(), 1000);
}

#[test]
fn a_deferred_action_may_pin_retire_defer_and_collect() {
    let epochs = Epochs::with_threshold(1);
    let drops = Arc::new(AtomicUsize::new(0));
    let (weak, counted) = (Arc::downgrade(&epochs), Arc::clone(&drops));
    epochs.pin().defer(
        0,
        Box::new(move || {
            let epochs = weak.upgrade().unwrap();
            let guard = epochs.pin();
            retire_one(&epochs, &counted);
            let again = Arc::clone(&counted);
            guard.defer(1, Box::new(move || drop(Counted(again))));
            assert_eq!(epochs.collect(), 0, "one collection at a time");
        }),
    );
    epochs.collect();
    epochs.collect();
    assert_eq!(drops.load(Ordering::Relaxed), 2);
    assert_eq!(epochs.garbage_bytes(), 0);
}

/// A thread-local of another crate may be destroyed after ours, and use the epochs then.
#[test]
fn guards_work_and_may_even_end_in_thread_local_destructors() {
    struct PinsLate(Arc<Epochs>, Arc<AtomicUsize>);
    impl Drop for PinsLate {
        fn drop(&mut self) {
            for _ in 0..3 {
                retire_one(&self.0, &self.1);
            }
        }
    }
    thread_local! {
        static LATE: std::cell::RefCell<Option<PinsLate>> = const { std::cell::RefCell::new(None) };
    }
    let epochs = Epochs::new();
    let drops = Arc::new(AtomicUsize::new(0));
    for pin_first in [true, false] {
        let (epochs, drops) = (Arc::clone(&epochs), Arc::clone(&drops));
        thread::spawn(move || {
            if pin_first {
                drop(epochs.pin());
            }
            LATE.set(Some(PinsLate(Arc::clone(&epochs), drops)));
            drop(epochs.pin());
        })
        .join()
        .unwrap();
    }
    assert_eq!(epochs.collect(), 6);
}

/// Readers follow pointers that writers replace; each object says whether it was freed too early.
#[test]
fn readers_and_writers_under_stress() {
    const ALIVE: u64 = 0x5afe_5afe_5afe_5afe;
    struct Object {
        state: AtomicU64,
        live: Arc<AtomicUsize>,
    }
    impl Drop for Object {
        fn drop(&mut self) {
            assert_eq!(self.state.swap(0, Ordering::Relaxed), ALIVE, "freed twice");
            self.live.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let live = Arc::new(AtomicUsize::new(0));
    let new = || {
        live.fetch_add(1, Ordering::Relaxed);
        Box::into_raw(Box::new(Object { state: AtomicU64::new(ALIVE), live: Arc::clone(&live) }))
    };
    let epochs = Epochs::with_threshold(4096);
    let cells: Vec<AtomicPtr<Object>> = (0..8).map(|_| AtomicPtr::new(new())).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..2 {
            let (epochs, cells, stop) = (&epochs, &cells, &stop);
            scope.spawn(move || {
                let mut at = reader;
                while !stop.load(Ordering::Relaxed) {
                    let guard = epochs.pin();
                    let object = cells[at % cells.len()].load(Ordering::Acquire);
                    for _ in 0..at % 50 {
                        // SAFETY: pinned before it was read.
                        assert_eq!(unsafe { &*object }.state.load(Ordering::Relaxed), ALIVE);
                    }
                    drop(guard);
                    at += 1;
                }
            });
        }
        let writers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for round in 0..20_000 {
                        let guard = epochs.pin();
                        let old = cells[round % cells.len()].swap(new(), Ordering::AcqRel);
                        // SAFETY: the swap unlinked it, once.
                        unsafe { guard.retire_box(old) };
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    epochs.collect();
    assert_eq!(live.load(Ordering::Relaxed), cells.len());
    for cell in cells {
        // SAFETY: all threads are gone.
        drop(unsafe { Box::from_raw(cell.into_inner()) });
    }
}

/// Many short-lived threads reuse the same few slots.
#[test]
fn slots_are_reused_by_later_threads() {
    let epochs = Epochs::new();
    let drops = Arc::new(AtomicUsize::new(0));
    for _ in 0..50 {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| retire_one(&epochs, &drops));
            }
        });
    }
    assert_eq!(epochs.collect(), 200);
    assert_eq!(epochs.oldest_pin_lag(), 0);
}
