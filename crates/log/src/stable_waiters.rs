//! Those who wait for the log to become stable up to their commit record (paper 2.3.1): threads that have parked, and tasks.
//!
//! Waiters are kept in order of their LSNs. Commits come nearly in that order, so entering is a look at the end of a
//! queue, and waking takes from its front.
//!
//! # Invariants
//!
//! - **S1** No wake-up is lost: a waiter looks at the stable LSN again under the mutex before it is entered; the
//!   flusher publishes the stable LSN before it takes the mutex.
//! - **S2** Wakers are called without the mutex, and not by who writes the log: they may run anything, for as long as they like. One that
//!   panics has woken nobody else's task, and must not end the thread that all others wait for: the panic has been reported by its hook, and goes no further.

use crate::sync::Mutex;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::task::{Poll, Waker};
use std::thread::Thread;

/// One that waits.
pub(crate) trait Waiter: Clone {
    /// Whether waking one is as good as waking the other.
    fn is(&self, other: &Self) -> bool;

    fn wake(self);
}

impl Waiter for Thread {
    fn is(&self, other: &Self) -> bool {
        self.id() == other.id()
    }

    fn wake(self) {
        self.unpark();
    }
}

impl Waiter for Waker {
    fn is(&self, other: &Self) -> bool {
        self.will_wake(other)
    }

    fn wake(self) {
        // S2.
        drop(catch_unwind(AssertUnwindSafe(|| Waker::wake(self))));
    }
}

/// See the module document.
pub(crate) struct StableWaiters<W> {
    queue: Mutex<VecDeque<(u64, W)>>,
}

impl<W> Default for StableWaiters<W> {
    fn default() -> Self {
        Self { queue: Mutex::default() }
    }
}

impl<W: Waiter> StableWaiters<W> {
    /// What `ready` says, or `Pending` after having entered `waiter` to be woken when `lsn` becomes stable.
    pub(crate) fn poll<T>(&self, lsn: u64, waiter: &W, ready: impl Fn() -> Option<T>) -> Poll<T> {
        if let Some(result) = ready() {
            return Poll::Ready(result);
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // S1.
        if let Some(result) = ready() {
            return Poll::Ready(result);
        }
        let mut at = queue.len();
        while at > 0 && queue[at - 1].0 >= lsn {
            at -= 1;
            if queue[at].0 == lsn && queue[at].1.is(waiter) {
                // Polled before.
                return Poll::Pending;
            }
        }
        queue.insert(at, (lsn, waiter.clone()));
        Poll::Pending
    }

    /// Whether somebody waits for an LSN below `stable`.
    pub(crate) fn is_due(&self, stable: u64) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.front().is_some_and(|&(lsn, _)| lsn < stable)
    }

    /// Wakes everybody who waits for an LSN below `stable`; how many. To be called after that was published.
    pub(crate) fn wake(&self, stable: u64) -> usize {
        let mut woken = 0;
        let mut batch: [Option<W>; 32] = [const { None }; 32];
        loop {
            let mut count = 0;
            {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                while count < batch.len() && queue.front().is_some_and(|&(lsn, _)| lsn < stable) {
                    batch[count] = queue.pop_front().map(|(_, waiter)| waiter);
                    count += 1;
                }
            }
            // S2.
            batch[..count].iter_mut().filter_map(Option::take).for_each(Waiter::wake);
            woken += count;
            if count < batch.len() {
                return woken;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU64);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn wakes_in_order_and_once() {
        let waiters = StableWaiters::<Waker>::default();
        let counts: Vec<Arc<Count>> = (0..100).map(|_| Arc::default()).collect();
        for index in [50, 3, 99, 4, 3].into_iter().chain(5..40) {
            let waker = Waker::from(counts[index].clone());
            assert!(waiters.poll(index as u64, &waker, || None::<()>).is_pending());
        }
        assert!(!waiters.is_due(3));
        assert_eq!(waiters.wake(3), 0);
        assert!(waiters.is_due(4));
        assert_eq!(waiters.wake(51), 38);
        assert!(!waiters.is_due(51));
        let woken: Vec<u64> = counts.iter().map(|count| count.0.load(Ordering::Relaxed)).collect();
        assert!(
            woken
                .iter()
                .enumerate()
                .all(|(index, &count)| count == u64::from((3..40).contains(&index) || index == 50))
        );
        assert_eq!(waiters.wake(u64::MAX), 1);
    }

    #[test]
    fn a_waker_that_panics_keeps_nobody_from_being_woken() {
        struct Panics;

        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("a waker of the test");
            }
        }

        let waiters = StableWaiters::<Waker>::default();
        let count = Arc::new(Count::default());
        assert!(waiters.poll(1, &Waker::from(Arc::new(Panics)), || None::<()>).is_pending());
        assert!(waiters.poll(2, &Waker::from(count.clone()), || None::<()>).is_pending());
        assert_eq!(waiters.wake(3), 2);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_thread_that_asks_again_and_again_waits_once() {
        let waiters = StableWaiters::<Thread>::default();
        let polled = |lsn| waiters.poll(lsn, &std::thread::current(), || None::<()>);
        assert!((0..100).all(|_| polled(7).is_pending() && polled(9).is_pending()));
        assert_eq!((waiters.wake(8), waiters.wake(u64::MAX)), (1, 1));
    }

    #[test]
    fn becoming_stable_between_the_looks_is_noticed() {
        let waiters = StableWaiters::<Waker>::default();
        let looks = Cell::new(0);
        let ready = || {
            looks.set(looks.get() + 1);
            (looks.get() == 2).then_some(7)
        };
        assert_eq!(waiters.poll(1, Waker::noop(), ready), Poll::Ready(7));
        assert_eq!(waiters.wake(u64::MAX), 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(std::sync::atomic::AtomicBool);

    impl Wake for Woken {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    /// S1: after the flusher is done, a waiter either saw its LSN stable or has been woken.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let state =
                Arc::new((StableWaiters::<Waker>::default(), AtomicU64::new(0), AtomicBool::new(false)));
            let flusher = {
                let state = state.clone();
                loom::thread::spawn(move || {
                    state.1.store(8, Ordering::SeqCst);
                    state.0.wake(8);
                })
            };
            let woken = std::sync::Arc::new(Woken::default());
            let waker = Waker::from(woken.clone());
            let ready = || (state.1.load(Ordering::SeqCst) > 7).then_some(());
            let polled = state.0.poll(7, &waker, ready);
            flusher.join().unwrap();
            assert!(polled.is_ready() || woken.0.load(std::sync::atomic::Ordering::SeqCst));
        });
    }
}
