//! [`LlamaError`]: what can go wrong.

use crate::page_id::PageId;
use deuteron_device::DeviceError;
use std::sync::Arc;

/// What can go wrong in the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LlamaError {
    /// A device operation failed. A failed write or sync also poisons the store; a failed read does not, and may
    /// be repeated; nor does a full disk met while a new segment is being made ([`DeviceError::is_full`]): work goes
    /// on once there is space.
    #[error("the store's device failed")]
    Device(#[source] DeviceError),
    /// An earlier write or sync failed. What is in memory can still be read, but nothing can be made durable any
    /// more: close the store and open it again.
    #[error("the store accepts no more work since a write failed: {reason}")]
    Poisoned {
        /// The first failure.
        reason: Arc<str>,
    },
    /// Bytes on disk are not what was written there. Repeating does not help.
    #[error("{file} is corrupt at byte {offset}: expected {expected}, found {found}")]
    Corrupt {
        /// The file's name within the directory.
        file: String,
        /// Where in the file.
        offset: u64,
        /// What should have been there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The file was written by a newer release, or by something else.
    #[error("{file} has store format version {found}; this release reads version {supported}")]
    Version {
        /// The file's name.
        file: String,
        /// Its version.
        found: u32,
        /// The version that can be read.
        supported: u32,
    },
    /// A page has grown over [`Llama::page_bytes_max`](crate::Llama::page_bytes_max).
    #[error("{page} takes {bytes} bytes on flash, over the limit of {limit}")]
    PageTooLarge {
        /// The page.
        page: PageId,
        /// Its bytes as one fragment.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A setting cannot be.
    #[error("the option {setting} must be {requirement}")]
    Options {
        /// The setting.
        setting: &'static str,
        /// What it must be.
        requirement: &'static str,
    },
    /// There is another checkpoint going on; try again when it has ended.
    #[error("another checkpoint is going on")]
    CheckpointBusy,
}
