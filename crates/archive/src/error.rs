//! [`ArchiveError`]: what can go wrong.

use deuteron_device::DeviceError;

/// What can go wrong with an archive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// There is something where the archive or its files are to be written; nothing was changed.
    #[error("{path} exists already")]
    Exists {
        /// What is there.
        path: String,
    },
    /// There is no such file or directory.
    #[error("there is no {path}")]
    NotFound {
        /// What is not there.
        path: String,
    },
    /// The path does not end in the name of a file, or not in one that is UTF-8.
    #[error("{path} is {reason}")]
    NotAFileName {
        /// The path.
        path: String,
        /// What it is instead.
        reason: &'static str,
    },
    /// Somebody has the directory open in which files are to be brought back.
    #[error("{path} is in use")]
    InUse {
        /// The directory.
        path: String,
    },
    /// The archive is not what was written, or is no archive.
    #[error("{file} is corrupt at byte {offset}: expected {expected}, found {found}")]
    Corrupt {
        /// The archive.
        file: String,
        /// Where in it.
        offset: u64,
        /// What should have been there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The archive was written by a newer release.
    #[error("{file} has archive format version {found}; this release reads version {supported}")]
    Version {
        /// The archive.
        file: String,
        /// Its version.
        found: u32,
        /// The version that can be read.
        supported: u32,
    },
    /// A device operation failed.
    #[error("cannot {context}")]
    Device {
        /// What was being done.
        context: String,
        /// The cause.
        #[source]
        source: DeviceError,
    },
}

/// Wraps a device error with what was being done.
pub(crate) fn device(context: impl Into<String>) -> impl FnOnce(DeviceError) -> ArchiveError {
    let context = context.into();
    move |source| ArchiveError::Device { context, source }
}
