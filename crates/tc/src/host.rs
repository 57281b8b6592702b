//! What the component asks of whoever runs it.

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
    /// Another transaction has an uncommitted version of a key that the operation wants to write. It ends soon, as a rule, so
    /// that a turn of the processor for others is all that is asked; the operation does not wait long.
    Writer,
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
    /// A reason why waiting is pointless, such as a poisoned log; the operation fails with it.
    fn stalled(&self, reason: Stall) -> Result<(), String>;
}
