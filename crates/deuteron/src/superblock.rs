//! The superblock: what the directory is. The components keep the shapes of their own files in those files.
//!
//! The file `superblock` is written once, at creation, under another name, and renamed when it is durable. It
//! holds two equal copies, so that a damaged sector does not cost the database. A backup has one of its own, with how far
//! the log in it reaches: a copy without the log's last commits would be the database as it was before.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic `DEUTERON` |
//! | 8..12 | format version, little endian, 1 |
//! | 12..16 | CRC-32C of bytes 0..4096 with this field zero |
//! | 16..24 | database identifier, random |
//! | 24..32 | time of creation, seconds since 1970 |
//! | 32..40 | the log position up to which a backup's log reaches; zero in a database that was not restored |
//! | 40..4096 | zero |
//! | 4096..8192 | the second copy |

use crate::Error;
use deuteron_contract::Lsn;
use deuteron_device::{AlignedBuffer, BLOCK_BYTES, Directory, OpenMode};
use std::time::UNIX_EPOCH;

/// The format version that this program reads and writes.
pub const FORMAT_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"DEUTERON";
/// What encrypted files begin with (`crates/encryption`): seen where no key is given.
const ENCRYPTED: [u8; 8] = *b"DEUENC01";
/// Its name.
pub const FILE: &str = "superblock";
const FILE_UNFINISHED: &str = "superblock.new";

/// The identity of a database, persisted at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Tells two databases apart.
    pub database: u64,
    /// When it was created, in seconds since 1970.
    pub created_seconds: u64,
    /// The log is as long at least. 0 if the database was not restored from a backup.
    pub log_reaches: Lsn,
}

impl Superblock {
    /// A superblock with a fresh identifier, for `directory`.
    pub fn new(directory: &dyn Directory) -> Self {
        let created_seconds =
            directory.system_time().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { database: directory.identifier(), created_seconds, log_reaches: Lsn(0) }
    }

    /// The file's bytes: two equal copies.
    pub fn file(&self) -> AlignedBuffer {
        let mut both = AlignedBuffer::zeroed(2 * BLOCK_BYTES);
        both.chunks_exact_mut(BLOCK_BYTES).for_each(|copy| copy.copy_from_slice(&self.encode()));
        both
    }

    fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        block[0..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        block[16..24].copy_from_slice(&self.database.to_le_bytes());
        block[24..32].copy_from_slice(&self.created_seconds.to_le_bytes());
        block[32..40].copy_from_slice(&self.log_reaches.0.to_le_bytes());
        let checksum = crc32c::crc32c(&block);
        block[12..16].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    fn decode(block: &[u8], offset: u64) -> Result<Self, Error> {
        let corrupt = |expected: String, found: String| {
            Err(Error::Corrupt { file: FILE.into(), offset, expected, found })
        };
        let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
        let short = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
        if &block[0..8] != MAGIC {
            return corrupt("the magic DEUTERON".into(), format!("\"{}\"", block[0..8].escape_ascii()));
        }
        let mut unsigned = block[..BLOCK_BYTES].to_vec();
        unsigned[12..16].fill(0);
        let (stored, computed) = (short(12), crc32c::crc32c(&unsigned));
        if stored != computed {
            return corrupt(format!("checksum {stored:08x}"), format!("{computed:08x}"));
        }
        // After the checksum: a flipped bit in the version is damage, not a newer program.
        if short(8) != FORMAT_VERSION {
            return Err(Error::UnknownFormat { found: short(8), supported: FORMAT_VERSION });
        }
        Ok(Self { database: number(16), created_seconds: number(24), log_reaches: Lsn(number(32)) })
    }

    /// Reads the superblock, or `None` where there is no database yet.
    ///
    /// # Errors
    /// [`Error::NotADatabase`] if other files are there, [`Error::Encrypted`], [`Error::UnknownFormat`], [`Error::Corrupt`] if both
    /// copies are damaged.
    pub fn read(directory: &dyn Directory) -> Result<Option<Self>, Error> {
        let names = directory.list().map_err(Error::device("list the directory"))?;
        if !names.iter().any(|name| name == FILE) {
            return match names.iter().find(|name| *name != FILE_UNFINISHED && *name != "lock") {
                None => Ok(None),
                Some(name) => Err(Error::NotADatabase {
                    path: directory.name(),
                    reason: format!("it holds {name} but no superblock"),
                }),
            };
        }
        let file =
            directory.open(FILE, OpenMode::Read, false).map_err(Error::device("open the superblock"))?;
        let length = file.length().map_err(Error::device("read the superblock"))?;
        if length < BLOCK_BYTES as u64 {
            return Err(Error::Corrupt {
                file: FILE.into(),
                offset: length,
                expected: format!("{} bytes", 2 * BLOCK_BYTES),
                found: format!("{length} bytes"),
            });
        }
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        let mut first_error = None;
        for copy in 0..2 {
            let offset = copy * BLOCK_BYTES as u64;
            let decoded = match file.read_at(&mut block, offset) {
                Ok(()) if block[0..8] == ENCRYPTED => Err(Error::Encrypted { path: directory.name() }),
                Ok(()) => Self::decode(&block, offset),
                Err(error) => Err(Error::device("read the superblock")(error)),
            };
            match decoded {
                Ok(superblock) => return Ok(Some(superblock)),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.expect("two copies were tried"))
    }

    /// Creates the superblock. If the machine stops on the way, the directory still counts as empty.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Device`].
    pub fn create(&self, directory: &dyn Directory) -> Result<(), Error> {
        let context = "create the superblock";
        let names = directory.list().map_err(Error::device(context))?;
        if names.iter().any(|name| name == FILE_UNFINISHED) {
            directory.remove(FILE_UNFINISHED).map_err(Error::device(context))?;
        }
        let file =
            directory.open(FILE_UNFINISHED, OpenMode::CreateNew, false).map_err(Error::device(context))?;
        file.write_at(&self.file(), 0).map_err(Error::device(context))?;
        file.sync().map_err(Error::device(context))?;
        directory.rename(FILE_UNFINISHED, FILE).map_err(Error::device(context))?;
        directory.sync().map_err(Error::device(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_device::MemoryDirectory;

    /// What is on disks must stay readable: as `docs/format.md` says, byte for byte.
    #[test]
    fn formats_stay_as_they_are() {
        let copy: [&[u8]; 7] = [
            b"DEUTERON",                         // magic
            b"\x01\0\0\0",                       // version
            b"\x5a\xcc\x92\xb4",                 // checksum
            b"\x08\x07\x06\x05\x04\x03\x02\x01", // database
            b"\x18\x17\x16\x15\x14\x13\x12\x11", // time of creation
            b"\x28\x27\x26\x25\x24\x23\x22\x21", // how far the log reaches
            &[0; 4056],
        ];
        let expected = copy.concat().repeat(2);
        let superblock = Superblock {
            database: 0x0102_0304_0506_0708,
            created_seconds: 0x1112_1314_1516_1718,
            log_reaches: Lsn(0x2122_2324_2526_2728),
        };
        let directory = MemoryDirectory::new();
        superblock.create(&directory).unwrap();
        let file = directory.open("superblock", OpenMode::ReadWrite, false).unwrap();
        let mut written = vec![0; file.length().unwrap() as usize];
        file.read_at(&mut written, 0).unwrap();
        assert_eq!(written, expected);
        for damaged in [None, Some(0), Some(4096)] {
            file.write_at(&expected, 0).unwrap();
            damaged.into_iter().for_each(|copy| file.write_at(b"X", copy).unwrap());
            assert_eq!(Superblock::read(&directory).unwrap(), Some(superblock));
        }
    }
}
