//! [`UnderWay`]: the calls that have begun and not ended, so that closing can wait for them.
//!
//! Whoever reads may write, too: it is he who makes the room that he needs. So every call that reaches the component is counted; in
//! several counts, as one would be a line that all threads write.
//!
//! - **W1** A call is counted, then it looks whether the store closes. Who closes says so, then looks at the counts. Each of these is one of
//!   a single order, so of the two one at least sees the other: a call that goes on is waited for.
//! - **W2** A call ends where it was counted. So once a count was found to be 0 after the store was said to close, whoever is counted there later
//!   only finds that it is.
//!
//! W1 rests on the order of all sequentially consistent accesses, which loom does not model but for fences: there is no model beside this, but a test in
//! which threads begin, end and close some hundred times.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Counts, to be shared by so many threads or more.
const COUNTS: usize = 16;

/// Two lines, since the prefetcher of x86 fetches pairs.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicUsize);

/// See the [module](self).
#[derive(Default)]
pub(crate) struct UnderWay {
    counts: [Count; COUNTS],
    is_closing: AtomicBool,
    /// Held while it is looked whether a call has ended, and while one that has says so.
    ending: Mutex<()>,
    ended: Condvar,
}

/// A call that is under way, until it is dropped.
#[must_use = "the call has ended when this is dropped"]
pub(crate) struct Call<'u> {
    all: &'u UnderWay,
    count: &'u AtomicUsize,
}

impl UnderWay {
    /// Begins a call; `None` if the store closes.
    #[inline]
    pub(crate) fn begin(&self) -> Option<Call<'_>> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % COUNTS;
        }
        // A thread that is already past its thread-locals' destructors uses any.
        let count = &self.counts[MINE.try_with(|mine| *mine).unwrap_or(0)].0;
        // W1.
        count.fetch_add(1, Ordering::SeqCst);
        let call = Call { all: self, count };
        (!self.is_closing()).then_some(call)
    }

    /// Whether no call begins any more.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    /// Says that no call is to begin any more; whether nobody has said so before.
    pub(crate) fn close(&self) -> bool {
        !self.is_closing.swap(true, Ordering::SeqCst)
    }

    /// Waits for all calls that have begun. After [`UnderWay::close`].
    pub(crate) fn wait(&self) {
        let mut ending = self.ending();
        for count in &self.counts {
            // W2.
            while count.0.load(Ordering::SeqCst) > 0 {
                ending = self.ended.wait(ending).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn ending(&self) -> MutexGuard<'_, ()> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        if self.all.is_closing() {
            let _ending = self.all.ending();
            self.all.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_closes_waits_for_all_that_have_begun_and_nothing_begins_later() {
        for _ in 0..200 {
            let (calls, closed) = (UnderWay::default(), AtomicBool::new(false));
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while let Some(_call) = calls.begin() {
                            assert!(!closed.load(Ordering::SeqCst), "a call is under way in a closed store");
                        }
                    });
                }
                let nested = calls.begin().expect("it is open");
                drop(calls.begin().expect("it is open"));
                scope.spawn(|| {
                    assert!(calls.close() && !calls.close());
                    calls.wait();
                    closed.store(true, Ordering::SeqCst);
                });
                std::thread::yield_now();
                assert!(!closed.load(Ordering::SeqCst));
                drop(nested);
            });
            assert!(calls.begin().is_none());
        }
    }
}
