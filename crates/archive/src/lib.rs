//! Files of a directory in one file, every block with its checksum: what a backup is kept in.
//!
//! [`ArchiveWriter`] copies files, or their beginnings, while others append to them; [`extract`] brings them back, and
//! refuses a damaged archive with the place of the damage. One file, written and read from front to back, of blocks that are
//! chained by their checksums; `docs/format.md` has the bytes.
//!
//! What a crash leaves: an archive has its name only when it is whole; before that it is called `NAME.part`. Of the files that
//! are extracted the last one of the archive gets its name last, when all others are durable, so that it says whether the
//! directory is whole. (The superblock of a database comes last.)
//!
//! ```
//! use deuteron_archive::{ArchiveWriter, Beginning, extract};
//! use deuteron_device::{AlignedBuffer, Directory, File, MemoryDirectory, OpenMode};
//!
//! let (source, shelf, target) = (MemoryDirectory::new(), MemoryDirectory::new(), MemoryDirectory::new());
//! let file = source.open("log", OpenMode::CreateNew, false)?;
//! file.write_at(&AlignedBuffer::zeroed(8192), 0)?;
//!
//! let mut archive = ArchiveWriter::create(&shelf, "monday")?;
//! archive.copy(&source, &Beginning { name: "log".into(), bytes: 4096, length: 1 << 20 })?;
//! let written = archive.finish()?;
//! assert_eq!((written.files, written.bytes), (1, 4096));
//!
//! extract(&shelf, "monday", &target)?;
//! assert_eq!(target.open("log", OpenMode::Read, false)?.length()?, 1 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What this crate is not: it knows no log, no page and no database, does not compress, and decides nothing about which files
//! belong together.
#![forbid(unsafe_code)]

mod block;
mod error;
mod extract;
mod restore;
mod writer;

pub use error::ArchiveError;
pub use extract::extract;
pub use restore::{place, restore, restore_in, restore_into};
pub use writer::{ArchiveWriter, Beginning};

/// What an archive holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files.
    pub files: u64,
    /// Bytes of their beginnings.
    pub bytes: u64,
    /// Bytes of the archive.
    pub archive_bytes: u64,
}
