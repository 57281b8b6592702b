//! Storage devices: one pair of traits, three implementations.
//!
//! [`Directory`] is a directory of files; [`File`] one file in it, read and written at byte offsets.
//!
//! | implementation | for |
//! |---|---|
//! | `OsDirectory` | real files: direct I/O, preallocated space, buffered fallback |
//! | `MemoryDirectory` | tests and databases that live in memory |
//! | `SimulatedDirectory` | crashes that lose, keep, reorder and tear unsynced writes; errors, full disk, flipped bits, all from one seed |
//!
//! This crate is not a file system and no cache: it neither buffers nor retries. A failed sync is reported once;
//! what to do about it (stop) is the caller's business.

mod directory;
mod error;

pub use directory::{BLOCK_BYTES, Directory, File, OpenMode};
pub use error::{DeviceError, Operation};
