//! [`Cancellation`]: a word from elsewhere that a wait is no longer wanted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

/// Tells whoever waits with it that the wait is no longer wanted: a request that was withdrawn, a server that shuts down.
/// Clones are the same token; once cancelled it stays so.
///
/// What is given up is the *wait*. See [`Ticket::wait_unless`](crate::Ticket::wait_unless) and
/// [`Transaction::commit_unless`](crate::Transaction::commit_unless) for what is known of the commit then.
///
/// ```
/// use deuteron::Cancellation;
/// let cancellation = Cancellation::new();
/// let elsewhere = cancellation.clone();
/// std::thread::spawn(move || elsewhere.cancel()).join().expect("does not panic");
/// assert!(cancellation.is_cancelled());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancellation(Arc<State>);

#[derive(Debug, Default)]
struct State {
    cancelled: AtomicBool,
    /// Threads that wait, each once for each wait.
    waiting: Mutex<Vec<Thread>>,
}

impl Cancellation {
    /// A token that nobody has cancelled.
    ///
    /// ```
    /// assert!(!deuteron::Cancellation::new().is_cancelled());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends all waits with this token, now and from now on.
    ///
    /// ```
    /// let cancellation = deuteron::Cancellation::new();
    /// cancellation.cancel();
    /// assert!(cancellation.is_cancelled());
    /// ```
    pub fn cancel(&self) {
        // Under the lock, so that whoever is about to wait sees the flag or is in the list.
        let waiting = self.waiting();
        self.0.cancelled.store(true, Ordering::Release);
        waiting.iter().for_each(Thread::unpark);
    }

    /// Whether [`Cancellation::cancel`] has been called.
    ///
    /// ```
    /// assert!(!deuteron::Cancellation::default().is_cancelled());
    /// ```
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// From here until the guard is dropped, a cancellation unparks the calling thread.
    pub(crate) fn watch(&self) -> Watched<'_> {
        let thread = std::thread::current();
        self.waiting().push(thread.clone());
        Watched { cancellation: self, thread }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`Cancellation::watch`].
pub struct Watched<'c> {
    cancellation: &'c Cancellation,
    thread: Thread,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        let mut waiting = self.cancellation.waiting();
        if let Some(place) = waiting.iter().position(|thread| thread.id() == self.thread.id()) {
            waiting.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancellation_unparks_who_waits_and_nobody_stays_in_the_list() {
        let cancellation = Cancellation::new();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let _watched = cancellation.watch();
                    while !cancellation.is_cancelled() {
                        std::thread::park();
                    }
                });
            }
            cancellation.cancel();
        });
        assert!(cancellation.waiting().is_empty());
    }
}
