//! Which past can be read: the timestamp from which versions are kept (rule R17).
//!
//! - **P1** Whoever computes the horizon reads the bound first and the announcements after it, and stays at or below both. Whoever
//!   begins in the past announces that first and reads the bound after it. So one of the two sees the other, and no horizon
//!   passes a transaction that was admitted.
//! - **P2** The bound only rises.

use crate::sync::{AtomicU64, Ordering};
use deuteron_contract::Timestamp;

/// See the [module](self). [`Timestamp::MAX`]: nothing is kept for the sake of the past.
pub(crate) struct Retention(AtomicU64);

impl Retention {
    /// Keeps what is visible from `start` on, if anything is to be kept.
    pub(crate) fn new(retains: bool, start: Timestamp) -> Retention {
        Retention(AtomicU64::new(if retains { start.0 } else { Timestamp::MAX.0 }))
    }

    /// Gives up what is visible before `to` only.
    pub(crate) fn raise(&self, to: Timestamp) {
        self.0.fetch_max(to.0, Ordering::SeqCst);
    }

    /// The earliest timestamp that may be read.
    pub(crate) fn from(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}
