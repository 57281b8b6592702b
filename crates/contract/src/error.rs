//! The errors of a data component.

/// Why a data component could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DcError {
    /// A key is empty or longer than the component takes.
    #[error("key of {found} bytes; a key has between 1 and {limit} bytes")]
    KeySize {
        /// The key's length in bytes.
        found: usize,
        /// The longest key in bytes.
        limit: usize,
    },
    /// A value is longer than the component takes.
    #[error("value of {found} bytes; the limit is {limit} bytes")]
    ValueSize {
        /// The value's length in bytes.
        found: usize,
        /// The longest value in bytes.
        limit: usize,
    },
    /// Stored bytes are not what was written.
    #[error("corrupt {file} at byte {offset}: expected {expected}, found {found}")]
    Corrupt {
        /// The file's name within the database directory.
        file: String,
        /// The byte offset of the damaged block.
        offset: u64,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The disk (or a quota) is full. What was applied before stands; make room and repeat.
    #[error("the disk is full: cannot {context}")]
    DiskFull {
        /// What could not be done, and what the device said.
        context: String,
    },
    /// The device refused: an I/O error, a failed sync.
    #[error("the data component cannot {context}")]
    Device {
        /// What could not be done.
        context: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An earlier failure has stopped the component; the database must be opened again.
    #[error("the data component stopped after an earlier failure: {reason}")]
    Poisoned {
        /// The earlier failure.
        reason: String,
    },
}
