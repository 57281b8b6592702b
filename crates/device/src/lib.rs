//! Storage devices: one pair of traits, and their implementations.
//!
//! [`Directory`] is a directory of files; [`File`] one file in it, read and written at byte offsets.
//!
//! | implementation | for |
//! |---|---|
//! | [`OsDirectory`] | real files: direct I/O, preallocated space, buffered fallback |
//! | [`MemoryDirectory`] | tests and databases that live in memory |
//! | [`SimulatedDirectory`] | crashes that lose, keep, reorder and tear unsynced writes; errors, full disk, flipped bits, all from one seed |
//! | [`AdverseDirectory`] | real files whose device fails, or whose machine loses its power |
//! | [`WatchedDirectory`] | tests in which something has to happen, or to wait, at a certain moment |
//! | [`OverlayDirectory`] | another directory with writes kept in memory: what would happen, without its happening |
//!
//! [`Directory::read_many`] does several reads at the same time, [`Directory::read_each`] while the later ones are still being prepared, and [`Directory::begin_write`] does not wait for a write, through io_uring where the kernel has it.
//!
//! This crate is not a file system and no cache: it neither buffers nor retries. A failed sync is reported once;
//! what to do about it (stop) is the caller's business.
//!
//! ```
//! use deuteron_device::{AlignedBuffer, BLOCK_BYTES, Directory, File, MemoryDirectory, OpenMode};
//!
//! let directory = MemoryDirectory::new();
//! let file = directory.open("segment", OpenMode::CreateNew, true)?;
//! let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
//! block[..5].copy_from_slice(b"hello");
//! file.write_durable_at(&block, 0)?;
//! directory.sync()?;
//!
//! let mut read = AlignedBuffer::zeroed(BLOCK_BYTES);
//! file.read_at(&mut read, 0)?;
//! assert_eq!(&read[..5], b"hello");
//! # Ok::<(), deuteron_device::DeviceError>(())
//! ```

mod adverse;
mod aligned_buffer;
mod checks;
mod damaged;
mod directory;
mod durable_write;
mod error;
mod image;
mod memory;
mod os;
mod overlay;
mod read_request;
pub mod simulated;
mod watched;

pub use adverse::{AdverseDirectory, Adversity};
pub use aligned_buffer::AlignedBuffer;
pub use damaged::{DamagedFile, Loss};
pub use directory::{BLOCK_BYTES, Directory, File, OpenMode};
pub use durable_write::{DurableWrite, WriteInFlight};
pub use error::{DeviceError, MachineStopped, MisalignedAccess, Operation, with_causes};
pub use memory::MemoryDirectory;
pub use os::OsDirectory;
pub use overlay::OverlayDirectory;
pub use read_request::{ReadRequest, Reads};
pub use simulated::{
    CrashPolicy, FaultKind, FaultPlan, InjectedFault, SECTOR_BYTES, SimulatedDirectory, SimulatedDisk,
};
pub use watched::{Doing, WatchedDirectory};
