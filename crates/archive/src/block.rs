//! The header of a block (little-endian). Its data follow, filled up with zeros to a multiple of 4096.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of bytes 4 to 4096 |
//! | 4 | 4 | magic `DARC` |
//! | 8 | 4 | format version, 1 |
//! | 12 | 4 | kind: 1 data, 2 end |
//! | 16 | 8 | number of the block, from 0 |
//! | 24 | 4 | checksum (offset 0) of the block before; of block 0 a number drawn for the archive |
//! | 28 | 4 | CRC-32C of the data |
//! | 32 | 8 | offset of the data in the file; of the end the number of files |
//! | 40 | 8 | length of the file when it is extracted; of the end all bytes of data |
//! | 48 | 4 | bytes of data, at most 1 MiB |
//! | 52 | 4 | bytes of the file's name |
//! | 56 | | name; zeros |

use deuteron_device::BLOCK_BYTES;

pub(crate) const FORMAT_VERSION: u32 = 1;
/// The most data of one block.
pub(crate) const DATA_BYTES_MAX: usize = 1 << 20;
const MAGIC: u32 = u32::from_le_bytes(*b"DARC");
const NAME_AT: usize = 56;
/// The longest name of a file.
pub(crate) const NAME_BYTES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Data = 1,
    End = 2,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) chain: u32,
    pub(crate) data_crc: u32,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) data_bytes: usize,
    pub(crate) name: String,
}

/// Why bytes are no header.
pub(crate) enum Defect {
    Version(u32),
    Corrupt { offset: u64, expected: String, found: String },
}

fn read_u32(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"))
}

fn read_u64(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"))
}

impl Header {
    /// Writes the header over a block; returns its checksum.
    pub(crate) fn encode(&self, block: &mut [u8]) -> u32 {
        block[..BLOCK_BYTES].fill(0);
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(4, &MAGIC.to_le_bytes());
        put(8, &FORMAT_VERSION.to_le_bytes());
        put(12, &(self.kind as u32).to_le_bytes());
        put(16, &self.number.to_le_bytes());
        put(24, &self.chain.to_le_bytes());
        put(28, &self.data_crc.to_le_bytes());
        put(32, &self.offset.to_le_bytes());
        put(40, &self.length.to_le_bytes());
        put(48, &(self.data_bytes as u32).to_le_bytes());
        put(52, &(self.name.len() as u32).to_le_bytes());
        put(NAME_AT, self.name.as_bytes());
        let crc = crc32c::crc32c(&block[4..BLOCK_BYTES]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
        crc
    }

    /// The header and its checksum.
    pub(crate) fn decode(block: &[u8]) -> Result<(Header, u32), Defect> {
        let corrupt =
            |offset, expected: String, found: String| Err(Defect::Corrupt { offset, expected, found });
        let magic = read_u32(block, 4);
        if magic != MAGIC {
            return corrupt(4, "the magic DARC".into(), format!("{magic:#010x}"));
        }
        let (stored, computed) = (read_u32(block, 0), crc32c::crc32c(&block[4..BLOCK_BYTES]));
        if stored != computed {
            return corrupt(0, format!("checksum {stored:#010x}"), format!("{computed:#010x}"));
        }
        if read_u32(block, 8) != FORMAT_VERSION {
            return Err(Defect::Version(read_u32(block, 8)));
        }
        let kind = match read_u32(block, 12) {
            1 => Kind::Data,
            2 => Kind::End,
            other => return corrupt(12, "kind 1 or 2".into(), other.to_string()),
        };
        let (data_bytes, name_bytes) = (read_u32(block, 48) as usize, read_u32(block, 52) as usize);
        if data_bytes > DATA_BYTES_MAX || name_bytes > NAME_BYTES_MAX {
            let found = format!("{data_bytes} and {name_bytes}");
            return corrupt(48, "lengths within the limits".into(), found);
        }
        let Ok(name) = std::str::from_utf8(&block[NAME_AT..NAME_AT + name_bytes]) else {
            return corrupt(NAME_AT as u64, "a name in UTF-8".into(), "other bytes".into());
        };
        let header = Header {
            kind,
            number: read_u64(block, 16),
            chain: read_u32(block, 24),
            data_crc: read_u32(block, 28),
            offset: read_u64(block, 32),
            length: read_u64(block, 40),
            data_bytes,
            name: name.to_owned(),
        };
        Ok((header, stored))
    }
}
