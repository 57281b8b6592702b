//! The two blocks that frame the log on disk: a buffer's header and a segment file's header.
//!
//! # Buffer
//!
//! A buffer starts at a multiple of 4096 bytes of LSN space, with this header of 64 bytes, little-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `DEULOGB1` |
//! | 8 | 4 | format version, 1 |
//! | 12 | 4 | CRC-32C of header and records, this field taken as 0 |
//! | 16 | 8 | base: LSN of this header |
//! | 24 | 4 | distance to the next buffer's base, a multiple of 4096 |
//! | 28 | 4 | bytes of records, which follow the header without gaps |
//! | 32 | 4 | offset of the commit record that heads the chain, 0 if there is none |
//! | 36 | 4 | the previous buffer's CRC-32C, 0 if not known |
//! | 40 | 8 | incarnation: how often the log had been opened |
//! | 48 | 8 | identity of the log, drawn when it was created |
//! | 56 | 8 | 0 |
//!
//! What is written is header and records, filled up with zeros to a multiple of 4096. The distance may be greater:
//! the LSNs between do not exist, and their place on disk holds whatever it held.
//!
//! # Segment
//!
//! A segment file is one block, of which this header is the start, and then the segment's LSNs:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `DEULOGS1` |
//! | 8 | 4 | format version, 1 |
//! | 12 | 4 | CRC-32C of these 64 bytes, this field taken as 0 |
//! | 16 | 8 | base: LSN of the first byte after the block |
//! | 24 | 8 | bytes of LSN space |
//! | 32 | 8 | identity of the log |
//! | 40 | 8 | incarnation that prepared the file |
//! | 48 | 16 | 0 |

use deuteron_device::BLOCK_BYTES;

/// Bytes of a buffer's header, and of the part of a segment's header block that is used.
pub(crate) const HEADER_BYTES: usize = 64;
/// The unit of everything on disk.
pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;
const BUFFER_MAGIC: [u8; 8] = *b"DEULOGB1";
const SEGMENT_MAGIC: [u8; 8] = *b"DEULOGS1";
const FORMAT_VERSION: u32 = 1;

/// Rounds up to whole blocks.
pub(crate) const fn block_up(bytes: u64) -> u64 {
    (bytes + (BLOCK - 1)) & !(BLOCK - 1)
}

/// A buffer's header; see the module document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferHeader {
    pub crc: u32,
    pub base: u64,
    pub distance: u32,
    pub record_bytes: u32,
    pub last_commit: u32,
    pub previous_crc: u32,
    pub incarnation: u64,
    pub identity: u64,
}

impl BufferHeader {
    /// Computes the checksum over header and records.
    pub(crate) fn seal(mut self, records: &[u8]) -> BufferHeader {
        debug_assert_eq!(records.len(), self.record_bytes as usize);
        self.crc = 0;
        self.crc = crc32c::crc32c_append(crc32c::crc32c(&self.to_bytes()), records);
        self
    }

    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&BUFFER_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.crc.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.base.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.distance.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.record_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.last_commit.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.previous_crc.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.identity.to_le_bytes());
        bytes
    }

    /// Reads the header at the start of `block` if it claims to be one of the log `identity` at `base`, and fits
    /// into the `room` bytes from there to the segment's end. Says nothing of the checksum.
    pub(crate) fn read(block: &[u8], base: u64, room: u64, identity: u64) -> Result<BufferHeader, Mismatch> {
        let header = Self::fields(block)?;
        expect("buffer base", base, header.base)?;
        expect("log identity", identity, header.identity)?;
        let distance = u64::from(header.distance);
        let written = header.written_bytes();
        if !distance.is_multiple_of(BLOCK) || distance < written || distance > room {
            return Err(Mismatch::new("a buffer inside its segment", format!("{distance} bytes")));
        }
        if !header.record_bytes.is_multiple_of(8) {
            return Err(Mismatch::new("whole records", format!("{} bytes", header.record_bytes)));
        }
        Ok(header)
    }

    /// Whether `block` starts like a buffer. A quick look for those who search.
    pub(crate) fn is_magic(block: &[u8]) -> bool {
        block.starts_with(&BUFFER_MAGIC)
    }

    /// Reads the fields, and checks no more of them than magic and version.
    pub(crate) fn fields(block: &[u8]) -> Result<BufferHeader, Mismatch> {
        let bytes = checked_head(block, &BUFFER_MAGIC)?;
        Ok(BufferHeader {
            crc: u32_at(bytes, 12),
            base: u64_at(bytes, 16),
            distance: u32_at(bytes, 24),
            record_bytes: u32_at(bytes, 28),
            last_commit: u32_at(bytes, 32),
            previous_crc: u32_at(bytes, 36),
            incarnation: u64_at(bytes, 40),
            identity: u64_at(bytes, 48),
        })
    }

    /// The bytes of the buffer that are on disk.
    pub(crate) fn written_bytes(&self) -> u64 {
        block_up(HEADER_BYTES as u64 + u64::from(self.record_bytes))
    }

    /// Compares the checksum with that of `buffer`, which holds header and records.
    pub(crate) fn verify(&self, buffer: &[u8]) -> Result<(), Mismatch> {
        let records = &buffer[HEADER_BYTES..HEADER_BYTES + self.record_bytes as usize];
        expect_crc(self.crc, self.seal(records).crc)
    }
}

/// A segment file's header; see the module document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub base: u64,
    pub segment_bytes: u64,
    pub identity: u64,
    pub incarnation: u64,
}

impl SegmentHeader {
    /// Writes the header over `block`, a whole block.
    pub(crate) fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        block[0..8].copy_from_slice(&SEGMENT_MAGIC);
        block[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        block[16..24].copy_from_slice(&self.base.to_le_bytes());
        block[24..32].copy_from_slice(&self.segment_bytes.to_le_bytes());
        block[32..40].copy_from_slice(&self.identity.to_le_bytes());
        block[40..48].copy_from_slice(&self.incarnation.to_le_bytes());
        let crc = crc32c::crc32c(&block[..HEADER_BYTES]);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads and checks the header at the start of `block`.
    pub(crate) fn decode(block: &[u8]) -> Result<SegmentHeader, Mismatch> {
        let bytes = checked_head(block, &SEGMENT_MAGIC)?;
        let mut zeroed = *bytes;
        zeroed[12..16].fill(0);
        let crc = crc32c::crc32c(&zeroed);
        expect_crc(u32_at(bytes, 12), crc)?;
        let header = SegmentHeader {
            base: u64_at(bytes, 16),
            segment_bytes: u64_at(bytes, 24),
            identity: u64_at(bytes, 32),
            incarnation: u64_at(bytes, 40),
        };
        if !header.segment_bytes.is_power_of_two() || header.segment_bytes < 2 * BLOCK {
            return Err(Mismatch::new(
                "a power of two",
                format!("segment of {} bytes", header.segment_bytes),
            ));
        }
        expect("base on a segment boundary", 0, header.base % header.segment_bytes)?;
        Ok(header)
    }
}

/// What a block should have held and what it held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub expected: String,
    pub found: String,
}

impl Mismatch {
    pub(crate) fn new(expected: impl Into<String>, found: impl Into<String>) -> Mismatch {
        Mismatch { expected: expected.into(), found: found.into() }
    }
}

fn expect<T: PartialEq + std::fmt::Display>(what: &str, expected: T, found: T) -> Result<(), Mismatch> {
    if expected == found {
        Ok(())
    } else {
        Err(Mismatch::new(format!("{what} {expected}"), found.to_string()))
    }
}

fn expect_crc(expected: u32, found: u32) -> Result<(), Mismatch> {
    if expected == found {
        Ok(())
    } else {
        Err(Mismatch::new(format!("checksum {expected:08x}"), format!("{found:08x}")))
    }
}

fn checked_head<'a>(block: &'a [u8], magic: &[u8; 8]) -> Result<&'a [u8; HEADER_BYTES], Mismatch> {
    let Some(bytes) = block.first_chunk::<HEADER_BYTES>() else {
        return Err(Mismatch::new("a header", format!("{} bytes", block.len())));
    };
    if bytes[..8] != magic[..] {
        let magic = String::from_utf8_lossy(magic);
        return Err(Mismatch::new(format!("magic {magic}"), format!("{:02x?}", &bytes[..8])));
    }
    expect("format version", FORMAT_VERSION, u32_at(bytes, 8))?;
    Ok(bytes)
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    let mut array = [0; 4];
    array.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(array)
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut array = [0; 8];
    array.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(array)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(record_bytes: u32) -> BufferHeader {
        BufferHeader {
            crc: 0,
            base: 8192,
            distance: 8192,
            record_bytes,
            last_commit: 64,
            previous_crc: 5,
            incarnation: 3,
            identity: 77,
        }
    }

    fn sealed(bytes: usize) -> Vec<u8> {
        let mut buffer = vec![7; bytes];
        let header = header(96).seal(&buffer[HEADER_BYTES..HEADER_BYTES + 96]);
        buffer[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        buffer
    }

    #[test]
    fn buffer_header_round_trips() {
        let buffer = sealed(8192);
        let read = BufferHeader::read(&buffer, 8192, 8192, 77).unwrap();
        assert_eq!(read, BufferHeader { crc: read.crc, ..header(96) });
        read.verify(&buffer).unwrap();
        assert_eq!(read.written_bytes(), 4096);
        assert!(BufferHeader::read(&buffer, 4096, 8192, 77).is_err(), "another base");
        assert!(BufferHeader::read(&buffer, 8192, 4096, 77).is_err(), "over the segment's end");
        assert!(BufferHeader::read(&buffer, 8192, 8192, 78).is_err(), "another log");
    }

    #[test]
    fn segment_header_round_trips() {
        let header = SegmentHeader { base: 1 << 20, segment_bytes: 1 << 16, identity: 4, incarnation: 2 };
        let mut block = vec![1; BLOCK_BYTES];
        header.encode(&mut block);
        assert_eq!(SegmentHeader::decode(&block), Ok(header));
        block[20] ^= 1;
        assert!(SegmentHeader::decode(&block).is_err());
    }

    /// What is on disks must stay readable: as `docs/format.md` says, byte for byte.
    #[test]
    fn formats_stay_as_they_are() {
        let segment: [&[u8]; 8] = [
            b"DEULOGS1",                         // magic
            b"\x01\0\0\0",                       // version
            b"\x8f\xa9\xa8\x1f",                 // checksum
            b"\0\0\x06\x05\x04\x03\x02\x01",     // base
            b"\0\0\x01\0\0\0\0\0",               // bytes of a segment
            b"\x28\x27\x26\x25\x24\x23\x22\x21", // identity
            b"\x38\x37\x36\x35\x34\x33\x32\x31", // incarnation
            &[0; 4048],
        ];
        let header = SegmentHeader {
            base: 0x0102_0304_0506_0000,
            segment_bytes: 1 << 16,
            identity: 0x2122_2324_2526_2728,
            incarnation: 0x3132_3334_3536_3738,
        };
        let mut block = vec![1; BLOCK_BYTES];
        header.encode(&mut block);
        assert_eq!(block, segment.concat());
        assert_eq!(SegmentHeader::decode(&segment.concat()), Ok(header));

        let records = b"\x04\0\0\0\0\0\0\0\x68\x67\x66\x65\x64\x63\x62\x61";
        let buffer: [&[u8]; 12] = [
            b"DEULOGB1",                         // magic
            b"\x01\0\0\0",                       // version
            b"\x6a\xaa\x79\xd3",                 // checksum
            b"\0\0\x06\x05\x04\x03\x02\x01",     // base
            b"\0\x20\0\0",                       // distance
            b"\x10\0\0\0",                       // bytes of records
            b"\x44\x43\x42\x41",                 // the head of the chain
            b"\x54\x53\x52\x51",                 // checksum of the previous buffer
            b"\x38\x37\x36\x35\x34\x33\x32\x31", // incarnation
            b"\x28\x27\x26\x25\x24\x23\x22\x21", // identity
            &[0; 8],
            records,
        ];
        let header = BufferHeader {
            crc: 0,
            base: 0x0102_0304_0506_0000,
            distance: 0x2000,
            record_bytes: 16,
            last_commit: 0x4142_4344,
            previous_crc: 0x5152_5354,
            incarnation: 0x3132_3334_3536_3738,
            identity: 0x2122_2324_2526_2728,
        };
        let header = header.seal(records);
        assert_eq!([&header.to_bytes()[..], records].concat(), buffer.concat());
        let read = BufferHeader::read(&buffer.concat(), header.base, 0x2000, header.identity);
        assert_eq!(read, Ok(header));
        header.verify(&buffer.concat()).unwrap();
    }

    #[test]
    fn a_segment_has_at_least_two_blocks_and_a_power_of_two() {
        for (blocks, is_good) in [(1, false), (2, true), (3, false), (4, true), (0, false)] {
            let header =
                SegmentHeader { base: 0, segment_bytes: blocks * BLOCK, identity: 4, incarnation: 2 };
            let mut block = vec![0; BLOCK_BYTES];
            header.encode(&mut block);
            assert_eq!(SegmentHeader::decode(&block).is_ok(), is_good, "{blocks}");
        }
    }

    proptest! {
        #[test]
        fn every_flipped_bit_is_noticed(at in 0..160usize, bit in 0..8u8) {
            let mut buffer = sealed(8192);
            buffer[at] ^= 1 << bit;
            let verified = BufferHeader::read(&buffer, 8192, 8192, 77).and_then(|header| header.verify(&buffer));
            // The last eight bytes of the header are not looked at; they are written as zeros and covered as such.
            prop_assert_eq!(verified.is_ok(), (56..64).contains(&at));
        }

        #[test]
        fn decoders_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = BufferHeader::fields(&bytes);
            let _ = SegmentHeader::decode(&bytes);
            let mut bytes = bytes;
            if bytes.len() > 16 {
                bytes[..8].copy_from_slice(&BUFFER_MAGIC);
                bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
                let _ = BufferHeader::fields(&bytes).map(|header| header.written_bytes());
            }
        }
    }
}
