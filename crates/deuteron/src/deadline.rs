//! The deadline of the operation that the calling thread is in, for those who make it wait.
//!
//! A stall happens deep inside, where no transaction is known; it asks here. Background work that a waiting thread does
//! meanwhile is under no deadline.

use std::cell::Cell;
use std::time::{Duration, Instant};

std::thread_local! {
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Sets the thread's deadline; dropping it restores the one before.
pub struct Watch(Option<Instant>);

impl Watch {
    /// Under `deadline`, or under none.
    pub fn new(deadline: Option<Instant>) -> Self {
        Self(DEADLINE.replace(deadline))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        DEADLINE.set(self.0);
    }
}

/// Whether the thread's deadline has passed.
pub fn has_passed(now: Instant) -> bool {
    DEADLINE.get().is_some_and(|deadline| now >= deadline)
}

/// So much of a wait of this length as is left until the thread's deadline.
pub fn until(wait: Duration, now: Instant) -> Duration {
    DEADLINE.get().map_or(wait, |deadline| wait.min(deadline.saturating_duration_since(now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_holds_until_its_watch_ends() {
        assert!(!has_passed(Instant::now()));
        let outer = Watch::new(Some(Instant::now()));
        assert!(has_passed(Instant::now()));
        let inner = Watch::new(None);
        assert!(!has_passed(Instant::now()));
        drop(inner);
        assert!(has_passed(Instant::now()));
        drop(outer);
        assert!(!has_passed(Instant::now()));
    }

    #[test]
    fn nobody_waits_beyond_a_deadline() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(until(second, now), second);
        let _watch = Watch::new(Some(now + 3 * second / 2));
        let left = [0, 1, 2].map(|seconds| until(second, now + seconds * second));
        assert_eq!(left, [second, second / 2, Duration::ZERO]);
    }
}
