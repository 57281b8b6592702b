//! What the proxy says of itself.

/// Counters since the proxy was made, and sizes of the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyStatistics {
    /// Buffers that the eager pass has scanned.
    pub buffers_scanned: u64,
    /// Buffers that the delayed pass is through with.
    pub buffers_posted: u64,
    /// Operations that the data component has applied, repetitions after an error included.
    pub operations_posted: u64,
    /// Operations that a newer one of the same key in the same batch made unnecessary.
    pub operations_superseded: u64,
    /// Operations copied because their transaction had not ended.
    pub operations_undecided: u64,
    /// Operations copied because their transaction had committed at or above the horizon.
    pub operations_waited: u64,
    /// Operations dropped with their aborted transaction.
    pub operations_aborted: u64,
    /// Operations of undecided transactions of which only the LSN was kept.
    pub operations_left_in_log: u64,
    /// Operations read back from the log.
    pub operations_read_back: u64,
    /// Batches applied.
    pub batches: u64,
    /// Steps in which the delayed pass did not go on because too much waited for the horizon.
    pub stalls: u64,
    /// Transactions in the side buffer.
    pub undecided_transactions: u64,
    /// Bytes in the side buffer.
    pub side_buffer_bytes: u64,
    /// Bytes in the waiting list.
    pub waiting_list_bytes: u64,
    /// Transactions whose outcome is known and whose operations are not all behind.
    pub outcomes: u64,
}
