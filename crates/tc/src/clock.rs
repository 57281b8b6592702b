//! The clock: unique, increasing timestamps, none of which a restart can hand out again.
//!
//! A restart must start above every timestamp that the database ever handed out: identities of transactions are
//! timestamps, and the log may still hold records of transactions that never ended. Instead of logging each
//! timestamp the clock leases them: it hands out nothing above a *ceiling* that a stable log record states, and
//! a restart starts at the ceiling.
//!
//! - **K1** Every timestamp is handed out once, and later calls return later timestamps.
//! - **K2** A timestamp above the ceiling is not used before the ceiling has been raised (see
//!   [`Clock::is_covered`]; the caller stalls). So nothing is committed above it, and a moment to come back to is
//!   never beyond it ([`Clock::present`]).
//!
//! One atomic addition a transaction is cheap up to tens of cores. Whatever replaces it stays behind this type.

use crate::sync::{AtomicU64, Ordering, Padded};
use deuteron_contract::Timestamp;

/// See the [module](self).
pub(crate) struct Clock {
    last: Padded<AtomicU64>,
    ceiling: Padded<AtomicU64>,
}

impl Clock {
    /// A clock whose first timestamp is later than `start`, with a ceiling that permits none yet.
    pub(crate) fn new(start: Timestamp) -> Clock {
        Clock { last: Padded(AtomicU64::new(start.0)), ceiling: Padded(AtomicU64::new(start.0)) }
    }

    /// The next timestamp. Sequentially consistent: R1 orders it against the scan of the active transactions.
    #[inline]
    pub(crate) fn tick(&self) -> Timestamp {
        Timestamp(self.last.0.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// The last timestamp handed out.
    #[inline]
    pub(crate) fn last(&self) -> Timestamp {
        Timestamp(self.last.0.load(Ordering::SeqCst))
    }

    /// The last timestamp handed out of which a restart knows: everything committed so far is at or before it.
    pub(crate) fn present(&self) -> Timestamp {
        self.last().min(self.ceiling())
    }

    /// Whether a restart would start above `timestamp` (K2).
    #[inline]
    pub(crate) fn is_covered(&self, timestamp: Timestamp) -> bool {
        timestamp.0 <= self.ceiling.0.load(Ordering::Relaxed)
    }

    /// The ceiling.
    pub(crate) fn ceiling(&self) -> Timestamp {
        Timestamp(self.ceiling.0.load(Ordering::Relaxed))
    }

    /// Raises the ceiling: a stable log record says `ceiling`.
    pub(crate) fn raise_ceiling(&self, ceiling: Timestamp) {
        self.ceiling.0.fetch_max(ceiling.0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_above_the_ceiling_is_covered() {
        let clock = Clock::new(Timestamp(10));
        let first = clock.tick();
        assert_eq!(first, Timestamp(11));
        assert!(!clock.is_covered(first));
        clock.raise_ceiling(Timestamp(12));
        assert!(clock.is_covered(first) && clock.is_covered(clock.tick()));
        assert!(!clock.is_covered(clock.tick()));
        assert_eq!((clock.last(), clock.present()), (Timestamp(13), Timestamp(12)));
        clock.raise_ceiling(Timestamp(20));
        assert_eq!(clock.present(), Timestamp(13));
    }

    #[test]
    fn the_ceiling_only_rises() {
        let clock = Clock::new(Timestamp(10));
        assert_eq!((clock.ceiling(), clock.last()), (Timestamp(10), Timestamp(10)));
        assert!(clock.is_covered(Timestamp(10)) && !clock.is_covered(Timestamp(11)));
        clock.raise_ceiling(Timestamp(20));
        clock.raise_ceiling(Timestamp(15));
        assert_eq!(clock.ceiling(), Timestamp(20));
    }
}
