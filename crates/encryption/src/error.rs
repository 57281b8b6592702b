//! [`EncryptionError`]: what can go wrong with keys.

use deuteron_device::DeviceError;
use std::io;

/// What can go wrong with keys. Within a [`DeviceError`] it is the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncryptionError {
    /// None of the keys is that of the file. Nothing was changed.
    #[error("{file} is encrypted with another key")]
    WrongKey {
        /// The file.
        file: String,
    },
    /// The file is not encrypted, or its header is damaged.
    #[error("{file} is not encrypted, or the header that names its key is damaged")]
    NotEncrypted {
        /// The file.
        file: String,
    },
    /// The file of keys cannot be read.
    #[error("cannot read the key file {path}")]
    KeyFile {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file of keys holds something else.
    #[error("line {line} of the key file {path} is not a key of 64 hexadecimal digits")]
    NotAKey {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
    },
    /// Others than the owner may read the file of keys.
    #[error("others than its owner may read the key file {path}")]
    Exposed {
        /// The file.
        path: String,
    },
    /// The system has no randomness to give.
    #[error("the system gives no randomness: {reason}")]
    NoRandomness {
        /// Why.
        reason: String,
    },
    /// A device operation failed.
    #[error("the device failed")]
    Device(#[from] DeviceError),
}

/// Bytes from the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], EncryptionError> {
    let mut bytes = [0; N];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

/// Fills `bytes` from the system.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), EncryptionError> {
    getrandom::fill(bytes).map_err(|error| EncryptionError::NoRandomness { reason: error.to_string() })
}

impl From<EncryptionError> for io::Error {
    fn from(error: EncryptionError) -> io::Error {
        match error {
            EncryptionError::Device(DeviceError { source, .. }) => source,
            other => io::Error::other(other),
        }
    }
}
