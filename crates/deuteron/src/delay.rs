//! The window of delayed durability: the earliest moment by which something committed must be written.
//!
//! Commits set it, the flusher clears it. A commit inside a window that is already open costs one load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// No window is open.
const CLOSED: u64 = u64::MAX;

/// See the [module](self).
pub struct Delay {
    start: Instant,
    /// Nanoseconds from `start`, or [`CLOSED`].
    due: AtomicU64,
    /// The length in nanoseconds of the window that set `due`.
    length: AtomicU64,
}

impl Delay {
    /// No window is open. The clock is asked for `start` and later moments.
    pub fn new(start: Instant) -> Self {
        Self { start, due: AtomicU64::new(CLOSED), length: AtomicU64::new(CLOSED) }
    }

    /// Something was committed that must be durable within `window`. Returns whether the flusher has to be told,
    /// because the moment has come nearer.
    pub fn open(&self, window: Duration, now: impl FnOnce() -> Instant) -> bool {
        let length = (window.as_nanos() as u64).min(CLOSED / 2);
        // An open window of at most this length ends soon enough; no look at the clock is needed to know it.
        if self.due.load(Ordering::Acquire) != CLOSED && self.length.load(Ordering::Acquire) <= length {
            return false;
        }
        let due = self.nanoseconds(now()).saturating_add(length).min(CLOSED - 1);
        self.length.store(length, Ordering::Release);
        self.due.fetch_min(due, Ordering::AcqRel) > due
    }

    /// How long until the window ends; `None` if none is open.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        match self.due.load(Ordering::Acquire) {
            CLOSED => None,
            due => Some(Duration::from_nanos(due.saturating_sub(self.nanoseconds(now)))),
        }
    }

    /// Closes the window. What is committed from here on opens the next; what was before is in the flush that the
    /// caller requests *after* this call.
    pub fn restart(&self) {
        self.due.store(CLOSED, Ordering::Release);
    }

    fn nanoseconds(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.start).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_commit_of_a_window_wakes_the_flusher() {
        let delay = Delay::new(Instant::now());
        assert_eq!(delay.due_in(Instant::now()), None);
        assert!(delay.open(Duration::from_secs(1), Instant::now));
        assert!(!delay.open(Duration::from_secs(1), Instant::now));
        assert!(
            delay.open(Duration::from_millis(1), Instant::now),
            "a shorter window brings the moment nearer"
        );
        delay.restart();
        assert_eq!(delay.due_in(Instant::now()), None);
    }
}
