//! A signal between a thread that waits for work (or for progress) and those that bring it.
//!
//! A count of events: a waiter notes the count, looks for work, and sleeps only while the count is what it noted.
//! An event between the look and the sleep is therefore never missed. Raising a signal that nobody waits for
//! costs one fetch-add and one load.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// See the [module](self).
#[derive(Default)]
pub struct Signal {
    events: AtomicU64,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    condition: Condvar,
}

impl Signal {
    /// The count of events so far; to be taken before looking for work.
    pub fn observe(&self) -> u64 {
        self.events.load(Ordering::SeqCst)
    }

    /// How many sleep, or are about to.
    pub fn sleepers(&self) -> usize {
        self.sleepers.load(Ordering::Relaxed) as usize
    }

    /// Says that something happened.
    pub fn raise(&self) {
        self.events.fetch_add(1, Ordering::SeqCst);
        // Pairs with the increment of `sleepers` in `wait`: either the sleeper is seen here, or it sees the event.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.condition.notify_all();
        }
    }

    /// Sleeps until there has been an event since `observed`, or for `timeout`. May return early.
    pub fn wait(&self, observed: u64, timeout: Duration) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if self.events.load(Ordering::SeqCst) == observed {
            drop(self.condition.wait_timeout(guard, timeout));
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn an_event_between_look_and_sleep_is_not_missed() {
        let signal = Signal::default();
        let observed = signal.observe();
        signal.raise();
        // Would sleep for an hour if the event were lost.
        signal.wait(observed, Duration::from_secs(3600));
    }

    #[test]
    fn a_sleeper_is_woken() {
        let signal = Arc::new(Signal::default());
        let observed = signal.observe();
        let sleeper = thread::spawn({
            let signal = Arc::clone(&signal);
            move || {
                while signal.observe() == observed {
                    signal.wait(observed, Duration::from_secs(3600));
                }
            }
        });
        signal.raise();
        sleeper.join().expect("the sleeper ends");
    }
}
