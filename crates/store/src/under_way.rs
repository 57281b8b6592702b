//! [`UnderWay`]: the calls that have begun and not ended, so that closing can wait for them.
//!
//! Whoever reads may write, too: it is he who makes the room that he needs. So every call that reaches the component is counted; in
//! several counts, as one would be a line that all threads write.
//!
//! - **W1** A call is counted, then it looks whether the store closes. Who closes says so, then looks at the counts. Each of these is one of
//!   a single order, so of the two one at least sees the other: a call that goes on is waited for.
//! - **W2** A call ends where it was counted. So once a count was found to be 0 after the store was said to close, whoever is counted there later
//!   only finds that it is.
//! - **W3** Of the calls that are counted in one place only one that has found nothing there has it [to itself](Call::place). The next that finds nothing comes after that one's end: all of them
//!   read what the one before has left of the count.
//!
//! W1 rests on the order of all sequentially consistent accesses, which loom does not model but for fences: there is no model beside that, but a test in
//! which threads begin, end and close some hundred times. Those of W3 are beside what rests on it (`stamps`).

use crate::sync::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Where calls are counted; threads share them if they are more.
pub(crate) const PLACES: usize = 16;

/// Two lines, since the prefetcher of x86 fetches pairs.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicUsize);

/// See the [module](self).
#[derive(Default)]
pub(crate) struct UnderWay {
    counts: [Count; PLACES],
    is_closing: AtomicBool,
    /// Held while it is looked whether a call has ended, and while one that has says so.
    ending: Mutex<()>,
    ended: Condvar,
}

/// A call that is under way, until it is dropped.
#[must_use = "the call has ended when this is dropped"]
pub(crate) struct Call<'u> {
    all: &'u UnderWay,
    place: usize,
    is_alone: bool,
}

impl UnderWay {
    /// Begins a call; `None` if the store closes.
    #[inline]
    pub(crate) fn begin(&self) -> Option<Call<'_>> {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PLACES;
        }
        // A thread that is already past its thread-locals' destructors uses any.
        self.begin_at(MINE.try_with(|mine| *mine).unwrap_or(0))
    }

    /// The same, counted at `place`.
    #[inline]
    pub(crate) fn begin_at(&self, place: usize) -> Option<Call<'_>> {
        // W1, W3.
        let is_alone = self.counts[place].0.fetch_add(1, Ordering::SeqCst) == 0;
        let call = Call { all: self, place, is_alone };
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

impl Call<'_> {
    /// Which of the [`PLACES`] this call has to itself until it ends; none if others were under way there when it began (W3). What is done with something that belongs to the
    /// place happens after all that those before have done with it.
    #[inline]
    pub(crate) fn place(&self) -> Option<usize> {
        self.is_alone.then_some(self.place)
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        self.all.counts[self.place].0.fetch_sub(1, Ordering::SeqCst);
        if self.all.is_closing() {
            let _ending = self.all.ending();
            self.all.ended.notify_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What a place has is changed without an atomic addition, and nothing is lost.
    #[test]
    fn a_place_belongs_to_one_call_at_a_time() {
        let calls = UnderWay::default();
        let alone: [_; PLACES] = std::array::from_fn(|_| AtomicUsize::new(0));
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            // Some share a place.
            for _ in 0..PLACES + 4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let call = calls.begin().expect("it is open");
                        let nested = calls.begin().expect("it is open");
                        assert_eq!(nested.place(), None);
                        if let Some(place) = call.place() {
                            alone[place].store(alone[place].load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let alone: usize = alone.into_iter().map(AtomicUsize::into_inner).sum();
        assert!(alone > 0 && alone == count.into_inner());
    }

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
