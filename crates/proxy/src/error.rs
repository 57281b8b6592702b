//! The errors of the proxy.

use deuteron_contract::{DcError, Lsn};

/// Why a step of the proxy could not be done. No step that fails has released a buffer or reported progress beyond
/// what is applied; a later step does the same work again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The data component refused a batch.
    #[error(
        "the data component did not apply a batch of {operations} operations, the lowest at log position {lsn}"
    )]
    Apply {
        /// How many operations the batch had.
        operations: usize,
        /// The lowest LSN of the batch.
        lsn: Lsn,
        /// The cause.
        #[source]
        source: DcError,
    },
    /// Operations whose bytes were left in the log could not be read back.
    #[error("reading back operations from log position {lsn} on")]
    ReadBack {
        /// Where the first of them lies.
        lsn: Lsn,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What was read back is no update.
    #[error("the log holds no update at position {lsn}, where one was read before")]
    NotAnUpdate {
        /// The position.
        lsn: Lsn,
    },
    /// The log no longer lends a buffer that has not been released.
    #[error("the log lends no buffer after position {after}, though one was scanned there")]
    BufferLost {
        /// Where the delayed pass stands.
        after: Lsn,
    },
    /// Replay was ended although a stretch of the log has not been applied.
    #[error("replay ended before the log after position {after} was applied")]
    ReplayIncomplete {
        /// Up to where the log has been applied.
        after: Lsn,
    },
}

impl ProxyError {
    /// Whether a later step may succeed. If not, the database must be opened again.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            ProxyError::Apply { source: DcError::Device { .. } | DcError::DiskFull { .. }, .. }
                | ProxyError::ReadBack { .. }
        )
    }
}
