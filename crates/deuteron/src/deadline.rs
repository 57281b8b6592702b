//! The deadline of the operation that the calling thread is in, for those who make it wait.
//!
//! A stall happens deep inside, where no transaction is known; it asks here. Background work that a waiting thread does
//! meanwhile is under no deadline.

use std::cell::Cell;
use std::time::Instant;

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
}
