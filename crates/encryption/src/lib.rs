//! Encryption at rest: [`EncryptedDirectory`], a directory over another whose files hold nothing but encrypted, authenticated blocks.
//!
//! ```
//! use deuteron_device::{Directory, File, MemoryDirectory, OpenMode};
//! use deuteron_encryption::{EncryptedDirectory, EncryptionError, Key, Keys};
//! use std::sync::Arc;
//!
//! let disk = Arc::new(MemoryDirectory::new());
//! let key = Key::random()?;
//! let directory = EncryptedDirectory::new(disk.clone(), Keys::new(key.clone()))?;
//! let file = directory.open("letter", OpenMode::CreateNew, false)?;
//! file.write_at(b"dear", 0)?;
//! let mut read = [0; 4];
//! file.read_at(&mut read, 0)?;
//! assert_eq!(&read, b"dear");
//!
//! let wrong = EncryptedDirectory::new(disk, Keys::new(Key::random()?));
//! assert!(matches!(wrong.err(), Some(EncryptionError::WrongKey { file }) if file == "letter"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Model
//!
//! Each block of 4096 bytes is kept as a *unit* of 4608: the encrypted block, and a sector with its nonce and its tag. A unit is written
//! as a whole, with a nonce drawn for it, and shares no sector with another. So a write that is torn costs the block that
//! was written, as it does without encryption, and never a neighbour, though there is a tag to be kept with it.
//!
//! # Invariants
//!
//! - **E1** A nonce is drawn from the system for every unit that is written, 192 bits: none is ever used for two plaintexts.
//! - **E2** A unit is authentic only in its file (named by 128 bits drawn when it was created) and at its place.
//! - **E3** The first write through a handle puts back the very unit that is there for every block whose bytes stay the same. Recovery
//!   of the log depends on that: it writes the last buffer again, which must survive if the machine stops meanwhile.
//! - **E4** A block that is not authentic reads as 4096 times [`DAMAGED`], not as an error: a torn tail must look torn, and
//!   what is damaged is told by those who have checksums.
//!
//! What shows: the names of files (which say how much log was ever written, and how many segments and images), their lengths, and
//! which units are written when. What is not hindered: putting an old unit, or a whole old file, back in its place.
#![forbid(unsafe_code)]

mod directory;
mod error;
mod file;
mod header;
mod key;
mod unit;

pub use directory::{EncryptedDirectory, Rotation};
pub use error::EncryptionError;
pub use header::MAGIC;
pub use key::{Key, Keys};
pub use unit::{DAMAGED, UNIT_BYTES};
