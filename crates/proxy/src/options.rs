//! The proxy's options. All of them are of the running process; none is persisted.

/// How the proxy works. See each field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many bytes of log the delayed pass stays behind the eager pass while there is more to scan, and how many it then
    /// takes in one round: the more, the fewer transactions are undecided when their operations are met, and the more
    /// operations fall to one page. With nothing left to scan it catches up.
    pub lag_bytes: u64,
    /// The most operations in one batch to the data component. Longer batches put more operations into one page
    /// update.
    pub batch_operations_max: usize,
    /// The most bytes of operations that are kept for undecided transactions. Beyond that only their LSNs are
    /// kept, and the operations are read back from the stable log when their transaction commits.
    pub side_buffer_bytes_max: usize,
    /// The most bytes of committed operations that wait for the horizon. Beyond that the host is asked to force the
    /// horizon, and the delayed pass takes no further buffer until it has done so. One round's operations may come on top.
    /// [`Proxy::set_waiting_list_bytes_max`](crate::Proxy::set_waiting_list_bytes_max) changes it.
    pub waiting_list_bytes_max: usize,
    /// The same of the log from the first operation that waits for the horizon on: none of it can be cut. Of long values, which stay in
    /// the log, little is kept in the list.
    pub waiting_log_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lag_bytes: 2 << 20,
            batch_operations_max: 1 << 18,
            side_buffer_bytes_max: 16 << 20,
            waiting_list_bytes_max: 32 << 20,
            waiting_log_bytes_max: 2 << 30,
        }
    }
}

impl Options {
    /// Bounds so small that the rare paths are common.
    pub fn tiny_for_tests() -> Self {
        Options {
            lag_bytes: 256,
            batch_operations_max: 4,
            side_buffer_bytes_max: 1 << 10,
            waiting_list_bytes_max: 2 << 10,
            waiting_log_bytes_max: 2 << 30,
        }
    }
}
