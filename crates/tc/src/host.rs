//! What the component asks of whoever runs it.

use std::time::Duration;

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stall {
    /// The log has no room: it must be flushed, posted and recycled.
    Log,
    /// Memory is exhausted: versions must be posted, then collected.
    Memory,
    /// The clock's ceiling must become stable: the log must be flushed.
    Clock,
    /// Another transaction has an uncommitted version of a key that the operation wants to write. It ends soon, as a rule: the
    /// host lets others have a turn of the processor, or sleeps, though not for long, until [`Host::ended`] has been called for
    /// that transaction more often than `since`.
    Writer {
        /// The other transaction.
        number: u32,
        /// What [`Host::ends`] returned for it before the operation looked.
        since: u64,
        /// How often the operation's own transaction has waited so far.
        turn: u32,
    },
    /// The transaction meets others too often to begin at once, and is not at the front of the queue. The host sleeps until
    /// [`Host::ended`] has been called for `number` more often than `since`, or for a few milliseconds.
    Turn {
        /// The number of the place in the queue.
        number: u32,
        /// What [`Host::ends`] returned for it before the transaction looked.
        since: u64,
    },
    /// The transaction is at the front of that queue. The host sleeps for a millisecond or so.
    Front,
}

/// Runs, or wakes, the background duties while an operation cannot go on.
///
/// The component starts no threads and never sleeps: the host decides whether to wait for others or to do the work here
/// and now. No epoch guard is held during the call.
pub trait Host: Send + Sync {
    /// An operation cannot go on for `reason`. Returns after a while, or after some work was done; the operation then
    /// looks again.
    ///
    /// # Errors
    /// A reason why waiting is pointless, such as a poisoned log; the operation fails with it. A transaction that was to wait for its turn
    /// ([`Stall::Turn`], [`Stall::Front`]) begins without it, and whoever uses the component tells its first operation.
    fn stalled(&self, reason: Stall) -> Result<(), String>;

    /// How long the calling thread has had a processor so far; `None` if nobody can tell. Asked twice for some of those transactions that
    /// keep meeting others.
    fn processor_time(&self) -> Option<Duration> {
        None
    }

    /// How many threads can run at a time; `None` if nobody can tell. Asked once.
    fn processors(&self) -> Option<usize> {
        None
    }

    /// A count that has grown after each [`Host::ended`] for `number`.
    fn ends(&self, number: u32) -> u64 {
        let _ = number;
        0
    }

    /// The transaction `number`, for which somebody waits, has ended, or has given up some of what it had written; or place `number` in
    /// the queue ([`Stall::Turn`]) is the front now. Cheap, and never blocks.
    fn ended(&self, number: u32) {
        let _ = number;
    }
}
