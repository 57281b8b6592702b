//! Segment files: the logical store cut into pieces of equal size.
//!
//! Byte `o` of the store lies in the file `store-{o / segment_bytes:016x}.seg` at `o % segment_bytes`. Segments of even
//! numbers are of one [stream](crate::flush_buffer::Stream), those of odd numbers of the other. A segment is allocated a
//! piece at a time as it fills. When nothing in it is needed its file is removed, or becomes that of a later segment ([`spares`](crate::spares)); its number is never
//! used again. The first 4096 bytes are its header (little-endian; hence no fragment has the address 0):
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of bytes 4 to 4096 |
//! | 4 | 4 | magic `DSEG` |
//! | 8 | 4 | format version, 6 |
//! | 12 | 4 | 0 |
//! | 16 | 8 | store identifier |
//! | 24 | 8 | number of the segment |
//! | 32 | 8 | bytes of a segment |
//! | 40 | | zeros |
//!
//! Flush buffers follow.

use crate::error::LlamaError;
use crate::flash_address::LENGTH_MAX;
use crate::flush_buffer::{FORMAT_VERSION, Position, STREAMS, is_known};
use crate::fragment::{Defect, read_u32, read_u64, write_u32, write_u64};
use crate::spares::Spares;
use crate::statistics::Counter;
use crate::sync::RwLock;
use deuteron_device::{AlignedBuffer, BLOCK_BYTES, DeviceError, Directory, File, OpenMode};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

const MAGIC: u32 = u32::from_le_bytes(*b"DSEG");
/// Bytes of a segment before its first flush buffer.
pub(crate) const SEGMENT_HEADER_BYTES: u64 = BLOCK_BYTES as u64;
/// A segment is allocated in so many pieces, so that one that has just been begun takes little room.
const PIECES: u64 = 16;
/// The longest piece in which a file is removed: others' reads wait behind the device while it is told what has become free, 1 ms for
/// this much where 64 MiB take 17.
const REMOVED_BYTES_MAX: u64 = 4 << 20;
/// The segment files of one store.
pub(crate) struct Segments {
    pub(crate) directory: Arc<dyn Directory>,
    /// Identifies the store, so that files of another one are not taken for its own.
    pub(crate) store: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) direct: bool,
    files: RwLock<HashMap<u64, Arc<dyn File>>>,
    pub(crate) spares: Spares,
    /// Reads of fragments, of neighbours together, and their bytes.
    pub(crate) reads: Counter,
    pub(crate) bytes_of_reads: Counter,
}

/// What the header of a segment says, for who has no store to hold it against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) store: u64,
    pub(crate) segment_bytes: u64,
}

impl SegmentHeader {
    /// Whether a segment can be so long.
    pub(crate) fn may_have(segment_bytes: u64) -> bool {
        (1..=1 << 30).contains(&segment_bytes) && segment_bytes.is_multiple_of(BLOCK_BYTES as u64)
    }

    /// The header of segment `index` in `block`, or why it is none.
    pub(crate) fn decode(block: &[u8], index: u64) -> Result<SegmentHeader, String> {
        let is_header = block.len() >= BLOCK_BYTES && read_u32(block, 4) == MAGIC;
        if !is_header || read_u32(block, 0) != crc32c::crc32c(&block[4..BLOCK_BYTES]) {
            return Err("the segment's header is damaged".to_owned());
        }
        let (version, number) = (read_u32(block, 8), read_u64(block, 24));
        let header = SegmentHeader { store: read_u64(block, 16), segment_bytes: read_u64(block, 32) };
        match (is_known(version), number == index && SegmentHeader::may_have(header.segment_bytes)) {
            (true, true) => Ok(header),
            (true, false) => Err(format!("the header of segment {number}")),
            (false, _) => Err(format!("a segment of format version {version}")),
        }
    }
}

/// The name of segment `index`.
pub(crate) fn segment_name(index: u64) -> String {
    format!("store-{index:016x}.seg")
}

/// The number of the segment called `name`, if it is a segment's name.
pub(crate) fn segment_index(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("store-")?.strip_suffix(".seg")?;
    let index = u64::from_str_radix(digits, 16).ok()?;
    (segment_name(index) == name).then_some(index)
}

impl Segments {
    pub(crate) fn new(
        directory: Arc<dyn Directory>,
        store: u64,
        segment_bytes: u64,
        direct: bool,
    ) -> Segments {
        Segments {
            directory,
            store,
            segment_bytes,
            direct,
            files: RwLock::default(),
            spares: Spares::default(),
            reads: Counter::default(),
            bytes_of_reads: Counter::default(),
        }
    }

    /// The segment that holds `offset`.
    pub(crate) fn index(&self, offset: u64) -> u64 {
        offset / self.segment_bytes
    }

    /// The stream of the segment that holds `offset`.
    pub(crate) fn stream(&self, offset: u64) -> usize {
        (self.index(offset) % STREAMS as u64) as usize
    }

    /// The segment that follows `index` in its stream.
    pub(crate) fn following(index: u64) -> u64 {
        index + STREAMS as u64
    }

    /// Where a new store begins.
    pub(crate) fn origin(&self) -> Position {
        Position { sequence: 1, offsets: std::array::from_fn(|stream| self.start(stream as u64)), chain: 0 }
    }

    /// Where the buffer behind one that ends at `end` and begins at `offset` would lie: at its end, or in the next segment of
    /// its stream if it fills its own to the last byte.
    pub(crate) fn behind(&self, offset: u64, end: u64) -> u64 {
        if end < self.end(offset) { end } else { self.start(Segments::following(self.index(offset))) }
    }

    /// For each stream, the segment that `position` lies in.
    pub(crate) fn indexes_at(&self, position: Position) -> [u64; STREAMS] {
        position.offsets.map(|offset| self.index(offset))
    }

    /// About how many bytes a recovery would scan from one position to a later one: what the segments between them can hold.
    pub(crate) fn bytes_between(&self, from: Position, to: Position) -> u64 {
        let written = |offset: u64| {
            self.index(offset) / STREAMS as u64 * self.segment_bytes + offset % self.segment_bytes
        };
        from.offsets
            .into_iter()
            .zip(to.offsets)
            .map(|(from, to)| written(to).saturating_sub(written(from)))
            .sum()
    }

    /// Whether what lies at `offset` was written before the buffer at `position`.
    pub(crate) fn is_before(&self, offset: u64, position: Position) -> bool {
        offset < position.offsets[self.stream(offset)]
    }

    /// The first byte behind the segment that holds `offset`.
    pub(crate) fn end(&self, offset: u64) -> u64 {
        (self.index(offset) + 1) * self.segment_bytes
    }

    /// Where the first buffer of segment `index` lies.
    pub(crate) fn start(&self, index: u64) -> u64 {
        index * self.segment_bytes + SEGMENT_HEADER_BYTES
    }

    /// The longest fragment that fits a segment, alone in its buffer.
    pub(crate) fn fragment_bytes_max(&self) -> u64 {
        LENGTH_MAX.min(self.segment_bytes - SEGMENT_HEADER_BYTES - BLOCK_BYTES as u64)
    }

    /// The file of a segment, if it is there.
    pub(crate) fn file(&self, index: u64) -> Option<Arc<dyn File>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).get(&index).cloned()
    }

    /// The numbers of all segments that are open, ascending.
    pub(crate) fn indexes(&self) -> Vec<u64> {
        let mut indexes: Vec<u64> =
            self.files.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        indexes.sort_unstable();
        indexes
    }

    /// Opens a segment that exists, without looking into it.
    pub(crate) fn open(&self, index: u64, mode: OpenMode) -> Result<Arc<dyn File>, DeviceError> {
        let file = self.directory.open(&segment_name(index), mode, self.direct)?;
        self.files.write().unwrap_or_else(PoisonError::into_inner).insert(index, Arc::clone(&file));
        Ok(file)
    }

    /// How long the file of the segment that holds `offset` is to be so that `bytes` fit at `offset`: whole pieces.
    fn pieces(&self, offset: u64, bytes: u64) -> u64 {
        (offset % self.segment_bytes + bytes).next_multiple_of(self.piece_bytes()).min(self.segment_bytes)
    }

    fn piece_bytes(&self) -> u64 {
        (self.segment_bytes / PIECES).next_multiple_of(BLOCK_BYTES as u64)
    }

    /// Allocates so much of a segment that `bytes` fit at `offset`, which lies in it, durably; the length of its file.
    pub(crate) fn extend(&self, offset: u64, bytes: u64) -> Result<u64, DeviceError> {
        let file = self.file(self.index(offset)).expect("a segment that is being filled is open");
        let length = self.pieces(offset, bytes).max(file.length()?);
        file.allocate(length)?;
        file.sync()?;
        Ok(length)
    }

    /// Creates a segment with its header, and room for `bytes` behind it, durably; the length of its file, which may be a [spare](crate::spares).
    pub(crate) fn create(&self, index: u64, bytes: u64) -> Result<u64, DeviceError> {
        let name = segment_name(index);
        match self.directory.remove(&name) {
            // Left by an attempt that failed.
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        let length = self.pieces(self.start(index), bytes);
        let made = match self.recycle(index, length) {
            Ok(None) => self.make(index, length),
            Ok(Some(length)) => Ok(length),
            Err(error) => Err(error),
        };
        made.and_then(|length| self.open(index, OpenMode::ReadWrite).map(|_| length)).inspect_err(|_| {
            // Gives the space back. If this fails too, the next attempt or the next opening does it.
            let _ = self.directory.remove(&name);
        })
    }

    /// Makes the file of a segment, of this length, durably.
    fn make(&self, index: u64, length: u64) -> Result<u64, DeviceError> {
        let file = self.directory.open(&segment_name(index), OpenMode::CreateNew, self.direct)?;
        file.allocate(length)?;
        file.write_durable_at(&self.header(index), 0)?;
        file.sync()?;
        self.directory.sync()?;
        Ok(length)
    }

    pub(crate) fn header(&self, index: u64) -> AlignedBuffer {
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        write_u32(&mut block, 4, MAGIC);
        write_u32(&mut block, 8, FORMAT_VERSION);
        write_u64(&mut block, 16, self.store);
        write_u64(&mut block, 24, index);
        write_u64(&mut block, 32, self.segment_bytes);
        let crc = crc32c::crc32c(&block[4..]);
        write_u32(&mut block, 0, crc);
        block
    }

    /// Whether an open segment has a whole header of another store.
    pub(crate) fn is_foreign(&self, index: u64) -> Result<bool, LlamaError> {
        let Some(file) = self.file(index) else { return Ok(false) };
        if file.length().map_err(LlamaError::Device)? < SEGMENT_HEADER_BYTES {
            return Ok(false);
        }
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        file.read_at(&mut block, 0).map_err(LlamaError::Device)?;
        let whole = read_u32(&block, 4) == MAGIC && read_u32(&block, 0) == crc32c::crc32c(&block[4..]);
        Ok(whole && read_u64(&block, 16) != self.store)
    }

    /// Checks the header of an open segment; the length of its file.
    pub(crate) fn check_header(&self, index: u64) -> Result<u64, LlamaError> {
        let name = segment_name(index);
        let corrupt = |offset, expected: String, found: String| {
            Err(LlamaError::Corrupt { file: name.clone(), offset, expected, found })
        };
        let Some(file) = self.file(index) else {
            return corrupt(0, "the segment".to_owned(), "no such file".to_owned());
        };
        let length = file.length().map_err(LlamaError::Device)?;
        if length < SEGMENT_HEADER_BYTES {
            return corrupt(length, "a segment header".to_owned(), format!("{length} bytes"));
        }
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        file.read_at(&mut block, 0).map_err(LlamaError::Device)?;
        let crc = crc32c::crc32c(&block[4..]);
        if read_u32(&block, 4) != MAGIC || read_u32(&block, 0) != crc {
            let expected = format!("a segment header with checksum {crc:#010x}");
            return corrupt(0, expected, format!("{:#010x}", read_u32(&block, 0)));
        }
        let version = read_u32(&block, 8);
        if !is_known(version) {
            return Err(LlamaError::Version { file: name, found: version, supported: FORMAT_VERSION });
        }
        for (offset, what, expected) in
            [(16, "store", self.store), (24, "segment", index), (32, "segment bytes", self.segment_bytes)]
        {
            let found = read_u64(&block, offset);
            if found != expected {
                return corrupt(offset as u64, format!("{what} {expected:#x}"), format!("{found:#x}"));
            }
        }
        Ok(length)
    }

    /// Removes a segment in which nothing is needed, piece by piece. Durable once the directory is synced.
    ///
    /// A crash may leave the first pieces of it, the header with them: a segment like one that was never filled, in which nothing is
    /// live either. Who is still reading what was live a moment ago holds the file, which is not cut then.
    pub(crate) fn remove(&self, index: u64) -> Result<(), DeviceError> {
        self.remove_taken(index, self.take_file(index))
    }

    /// The file of a segment, which is not to be found any more: nobody comes to hold it who does not.
    pub(crate) fn take_file(&self, index: u64) -> Option<Arc<dyn File>> {
        self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&index)
    }

    /// As [`Segments::remove`], of a segment whose file was taken.
    pub(crate) fn remove_taken(&self, index: u64, file: Option<Arc<dyn File>>) -> Result<(), DeviceError> {
        match self.remove_file(&segment_name(index), file) {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    }

    /// Removes a file piece by piece, unless it could not be opened, or somebody else has it.
    pub(crate) fn remove_file(&self, name: &str, file: Option<Arc<dyn File>>) -> Result<(), DeviceError> {
        match file {
            Some(file) => self.directory.remove_in_pieces(name, file, self.removed_bytes()),
            None => self.directory.remove(name),
        }
    }

    /// In what pieces files are removed: never less than a block, so that a header stays as long as there is a file.
    fn removed_bytes(&self) -> u64 {
        self.piece_bytes().min(REMOVED_BYTES_MAX)
    }

    /// The error for a defect in the bytes at `offset` of the store.
    pub(crate) fn corrupt(&self, offset: u64, defect: Defect) -> LlamaError {
        LlamaError::Corrupt {
            file: segment_name(self.index(offset)),
            offset: offset % self.segment_bytes + defect.offset,
            expected: defect.expected,
            found: defect.found,
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn only_segments_have_segment_names() {
        assert_eq!(segment_index(&segment_name(0)), Some(0));
        assert_eq!(segment_index(&segment_name(u64::MAX)), Some(u64::MAX));
        for name in ["store-1.seg", "store-000000000000000G.seg", "store-image-0000000000000000", "log-0.seg"]
        {
            assert_eq!(segment_index(name), None, "{name}");
        }
    }

    #[test]
    fn fuzz_segment_headers() {
        let corpus = [7, 8].map(|index| segments(MemoryDirectory::new(), 5).header(index).to_vec());
        let mend = |bytes: &mut Vec<u8>| {
            bytes.resize(BLOCK_BYTES, 0);
            write_u32(bytes, 4, MAGIC);
            let crc = crc32c::crc32c(&bytes[4..]);
            write_u32(bytes, 0, crc);
        };
        deuteron_fuzz::Fuzz::new("llama-segment", &corpus, 20_000).run(mend, |bytes| {
            let is_header = |index| SegmentHeader::decode(bytes, index).is_ok();
            let directory = MemoryDirectory::new();
            let file = directory.open(&segment_name(7), OpenMode::CreateNew, false).unwrap();
            file.write_at(bytes, 0).unwrap();
            let segments = segments(directory, 5);
            segments.open(7, OpenMode::Read).unwrap();
            // An error, or that it is one.
            let (checked, foreign) = (segments.check_header(7), segments.is_foreign(7));
            assert!(checked.is_err() || is_header(7) && !foreign.unwrap());
            is_header(7) || is_header(8)
        });
    }

    use deuteron_device::{FaultKind, FaultPlan, MemoryDirectory, Operation, SimulatedDisk};

    pub(crate) const SEGMENT: u64 = 64 << 10;
    pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

    pub(crate) fn segments(directory: impl Directory + 'static, store: u64) -> Segments {
        Segments::new(Arc::new(directory), store, SEGMENT, false)
    }

    /// A position of these offsets.
    fn at(offsets: [u64; STREAMS]) -> Position {
        Position { sequence: 9, offsets, chain: 5 }
    }

    #[test]
    fn a_store_is_cut_into_segments_of_two_streams() {
        let segments = segments(MemoryDirectory::new(), 7);
        assert_eq!([0, SEGMENT - 1, SEGMENT, 5 * SEGMENT].map(|offset| segments.index(offset)), [0, 0, 1, 5]);
        assert_eq!(
            [0, SEGMENT, 5 * SEGMENT, 6 * SEGMENT].map(|offset| segments.stream(offset)),
            [0, 1, 1, 0]
        );
        assert_eq!([0, 1, 6].map(Segments::following), [2, 3, 8]);
        assert_eq!([0, 3].map(|index| segments.start(index)), [BLOCK, 3 * SEGMENT + BLOCK]);
        assert_eq!([0, 3 * SEGMENT + 5].map(|offset| segments.end(offset)), [SEGMENT, 4 * SEGMENT]);
        assert_eq!(segments.origin(), Position { sequence: 1, offsets: [BLOCK, SEGMENT + BLOCK], chain: 0 });
        assert_eq!(segments.indexes_at(at([4 * SEGMENT + 8, 3 * SEGMENT])), [4, 3]);
        // A header and a block for that of the buffer are not for fragments.
        assert_eq!(segments.fragment_bytes_max(), 14 * BLOCK);
    }

    #[test]
    fn the_next_buffer_lies_behind_the_last_or_in_the_next_segment_of_its_stream() {
        let segments = segments(MemoryDirectory::new(), 7);
        let begin = 3 * SEGMENT + 8 * BLOCK;
        assert_eq!(segments.behind(begin, begin + BLOCK), begin + BLOCK);
        assert_eq!(segments.behind(begin, 4 * SEGMENT - BLOCK), 4 * SEGMENT - BLOCK);
        assert_eq!(segments.behind(begin, 4 * SEGMENT), 5 * SEGMENT + BLOCK);
    }

    #[test]
    fn what_lies_before_and_between_positions_is_told_by_stream() {
        let segments = segments(MemoryDirectory::new(), 7);
        let tail = at([4 * SEGMENT + 2 * BLOCK, 3 * SEGMENT + 3 * BLOCK]);
        for (offset, is_before) in [
            (tail.offsets[0] - 64, true),
            (tail.offsets[0], false),
            (3 * SEGMENT + 2 * BLOCK, true),
            (tail.offsets[1], false),
            (tail.offsets[1] + 64, false),
        ] {
            assert_eq!(segments.is_before(offset, tail), is_before, "{offset}");
        }
        // Of the first stream two segments and a block, of the other one and two.
        assert_eq!(
            segments.bytes_between(segments.origin(), tail),
            2 * SEGMENT + BLOCK + SEGMENT + 2 * BLOCK
        );
        assert_eq!(segments.bytes_between(at([SEGMENT * 4 + BLOCK, tail.offsets[1]]), tail), BLOCK);
        assert_eq!(segments.bytes_between(tail, segments.origin()), 0);
    }

    #[test]
    fn a_segment_grows_by_sixteenths_of_whole_blocks() {
        let small = segments(MemoryDirectory::new(), 7);
        assert_eq!(small.pieces(BLOCK, 1), 2 * BLOCK);
        assert_eq!(small.pieces(3 * SEGMENT + BLOCK, BLOCK), 2 * BLOCK);
        assert_eq!(small.pieces(SEGMENT - BLOCK, 3 * BLOCK), SEGMENT, "no further than its end");
        let large = Segments::new(Arc::new(MemoryDirectory::new()), 7, 16 * 5 * BLOCK, false);
        assert_eq!(large.pieces(large.start(2), 1), 5 * BLOCK);
        assert_eq!(large.pieces(large.start(2) + 4 * BLOCK, 1), 10 * BLOCK);
        assert_eq!(large.create(2, 6 * BLOCK).unwrap(), 10 * BLOCK);
        assert_eq!(large.extend(large.start(2) + 9 * BLOCK, BLOCK).unwrap(), 15 * BLOCK);
        // What is allocated already stays.
        assert_eq!(large.extend(large.start(2), 1).unwrap(), 15 * BLOCK);
        assert_eq!(large.file(2).unwrap().length().unwrap(), 15 * BLOCK);
    }

    #[test]
    fn a_header_is_of_its_store_its_number_and_its_length() {
        let ours = segments(MemoryDirectory::new(), 7);
        assert_eq!(ours.create(4, BLOCK).unwrap(), 2 * BLOCK);
        assert_eq!(ours.check_header(4).unwrap(), 2 * BLOCK);
        assert_eq!((ours.is_foreign(4).unwrap(), ours.is_foreign(6).unwrap()), (false, false));
        let Err(LlamaError::Corrupt { file, offset: 0, found, .. }) = ours.check_header(6) else { panic!() };
        assert_eq!((file, &found[..]), (segment_name(6), "no such file"));
        let header = |store, segment_bytes, index| {
            let directory = Arc::new(MemoryDirectory::new());
            Segments::new(directory, store, segment_bytes, false).header(index)
        };
        let mended = |change: &dyn Fn(&mut AlignedBuffer)| {
            let mut block = header(7, SEGMENT, 4);
            change(&mut block);
            let crc = crc32c::crc32c(&block[4..]);
            write_u32(&mut block, 0, crc);
            block
        };
        let mut torn = header(8, SEGMENT, 4);
        torn[100] ^= 1;
        // A header, where it is wrong, and whether it is a sound one of another store.
        let cases = [
            (header(8, SEGMENT, 4), Some(16), true),
            (header(7, SEGMENT, 5), Some(24), false),
            (header(7, 2 * SEGMENT, 4), Some(32), false),
            (mended(&|block| block[4] ^= 1), Some(0), false),
            (mended(&|block| (block[4], block[16]) = (0, 8)), Some(0), false),
            (torn, Some(0), false),
            (mended(&|block| block[8] += 1), None, false),
        ];
        let file = ours.file(4).unwrap();
        for (block, wrong, is_foreign) in &cases {
            file.write_at(block, 0).unwrap();
            match (ours.check_header(4), wrong) {
                (Err(LlamaError::Corrupt { offset, .. }), Some(wrong)) => assert_eq!(offset, *wrong),
                (Err(LlamaError::Version { found, .. }), None) => assert_eq!(found, FORMAT_VERSION + 1),
                other => panic!("{other:?}"),
            }
            assert_eq!(ours.is_foreign(4).unwrap(), *is_foreign);
        }
        // A file that is as long as a header, and one that is not.
        for (bytes, is_foreign) in [(BLOCK, true), (BLOCK - 1, false)] {
            let directory = MemoryDirectory::new();
            let file = directory.open(&segment_name(4), OpenMode::CreateNew, false).unwrap();
            file.write_at(&header(8, SEGMENT, 4)[..bytes as usize], 0).unwrap();
            let ours = segments(directory, 7);
            ours.open(4, OpenMode::ReadWrite).unwrap();
            assert_eq!(ours.is_foreign(4).unwrap(), is_foreign);
            let expected = if is_foreign { 16 } else { bytes };
            assert!(
                matches!(ours.check_header(4), Err(LlamaError::Corrupt { offset, .. }) if offset == expected)
            );
            assert_eq!(ours.indexes(), [4]);
        }
    }

    /// What is on disks must stay readable: as `docs/format.md` says, byte for byte.
    #[test]
    fn formats_stay_as_they_are() {
        const INDEX: u64 = 0x1112_1314_1516_1718;
        let expected: [&[u8]; 8] = [
            b"\xee\x5e\xb3\xa3", // checksum
            b"DSEG",             // magic
            b"\x06\0\0\0",       // version
            &[0; 4],
            b"\x08\x07\x06\x05\x04\x03\x02\x01", // store
            b"\x18\x17\x16\x15\x14\x13\x12\x11", // number
            b"\0\x20\x22\x21\0\0\0\0",           // bytes of a segment
            &[0; 4056],
        ];
        let header = SegmentHeader { store: 0x0102_0304_0506_0708, segment_bytes: 0x2122_2000 };
        let directory = MemoryDirectory::new();
        let file = directory.open("store-1112131415161718.seg", OpenMode::CreateNew, false).unwrap();
        file.write_at(&expected.concat(), 0).unwrap();
        let segments = Segments::new(Arc::new(directory), header.store, header.segment_bytes, false);
        assert_eq!(segments.header(INDEX)[..], expected.concat());
        assert_eq!(SegmentHeader::decode(&expected.concat(), INDEX), Ok(header));
        segments.open(INDEX, OpenMode::Read).unwrap();
        assert_eq!(segments.check_header(INDEX).unwrap(), BLOCK);
    }

    #[test]
    fn a_header_is_read_without_a_store_if_it_is_whole() {
        let of = |segment_bytes, index| {
            Segments::new(Arc::new(MemoryDirectory::new()), 7, segment_bytes, false).header(index)
        };
        let sound = of(SEGMENT, 4);
        let decoded = SegmentHeader { store: 7, segment_bytes: SEGMENT };
        assert_eq!(SegmentHeader::decode(&sound, 4), Ok(decoded));
        let reason = |block: &[u8], index| SegmentHeader::decode(block, index).unwrap_err();
        for short in [0, 4, 8, 100, BLOCK_BYTES - 1] {
            assert_eq!(reason(&sound[..short], 4), "the segment's header is damaged");
        }
        for (at, is_mended) in [(4, true), (100, false)] {
            let mut block = of(SEGMENT, 4);
            block[at] ^= 1;
            let crc = crc32c::crc32c(&block[4..]);
            if is_mended {
                write_u32(&mut block, 0, crc);
            }
            assert_eq!(reason(&block, 4), "the segment's header is damaged");
        }
        assert_eq!(reason(&sound, 5), "the header of segment 4");
        for impossible in [0, SEGMENT + 1, (1 << 30) + BLOCK] {
            assert!(!SegmentHeader::may_have(impossible));
        }
        assert!(SegmentHeader::may_have(BLOCK) && SegmentHeader::may_have(1 << 30));
        assert_eq!(reason(&of((1 << 30) + BLOCK, 4), 4), "the header of segment 4");
        let mut newer = of(SEGMENT, 4);
        newer[8] += 1;
        let crc = crc32c::crc32c(&newer[4..]);
        write_u32(&mut newer, 0, crc);
        assert_eq!(reason(&newer, 4), format!("a segment of format version {}", FORMAT_VERSION + 1));
    }

    #[test]
    fn a_segment_that_was_left_is_made_anew_and_one_that_is_gone_may_be_removed() {
        let disk = SimulatedDisk::new(1);
        let segments = segments(disk.directory(), 7);
        let left = segments.directory.open(&segment_name(2), OpenMode::CreateNew, false).unwrap();
        left.write_at(&[9; 9], 20_000).unwrap();
        assert_eq!(segments.create(2, BLOCK).unwrap(), 2 * BLOCK);
        assert_eq!(segments.check_header(2).unwrap(), 2 * BLOCK);
        segments.remove(2).unwrap();
        segments.remove(2).unwrap();
        assert!(segments.file(2).is_none() && disk.directory().list().unwrap().is_empty());
        // Another failure is told.
        for is_creating in [true, false] {
            disk.set_faults(FaultPlan::new().fail(Operation::Remove, 0, FaultKind::Refuse));
            let failed = if is_creating { segments.create(2, BLOCK).err() } else { segments.remove(2).err() };
            assert!(failed.is_some_and(|error| !error.is_not_found()));
        }
        // The space of one that could not be made is given back.
        disk.set_faults(FaultPlan::new().fail(Operation::Sync, 0, FaultKind::Refuse));
        assert!(segments.create(2, BLOCK).is_err());
        assert!(segments.file(2).is_none() && disk.directory().list().unwrap().is_empty());
    }

    #[test]
    fn a_segment_is_cut_a_sixteenth_at_a_time_unless_somebody_reads_it() {
        for is_read in [false, true] {
            let disk = SimulatedDisk::new(1);
            let segments = numbered(&disk);
            let reader = is_read.then(|| segments.file(1).unwrap());
            segments.remove(1).unwrap();
            assert!(segments.file(1).is_none());
            assert_eq!(disk.directory().list().unwrap(), [segment_name(0)]);
            assert_eq!(disk.count(Operation::Shorten), if is_read { 0 } else { PIECES - 1 });
            if let Some(reader) = reader {
                let mut last = [0; 64];
                reader.read_at(&mut last, SEGMENT - 64).unwrap();
                assert_eq!(last, [(100 + (SEGMENT - 64) / 64) as u8; 64]);
            }
            segments.remove(0).unwrap();
            assert_eq!(disk.used_bytes(), 0);
        }
        let large = Segments::new(Arc::new(MemoryDirectory::new()), 7, 1 << 30, false);
        assert_eq!((large.piece_bytes(), large.removed_bytes()), (64 << 20, REMOVED_BYTES_MAX));
        let small = segments(MemoryDirectory::new(), 7);
        assert_eq!((small.piece_bytes(), small.removed_bytes()), (BLOCK, BLOCK));
    }

    /// Two full segments; each byte tells where it lies.
    pub(crate) fn numbered(disk: &SimulatedDisk) -> Segments {
        let segments = segments(disk.directory(), 7);
        (0..2).for_each(|index| fill(&segments, index));
        segments
    }

    pub(crate) fn fill(segments: &Segments, index: u64) {
        segments.create(index, SEGMENT).unwrap();
        let bytes: Vec<u8> = (0..SEGMENT).map(|within| (index * 100 + within / 64) as u8).collect();
        segments.file(index).unwrap().write_at(&bytes, 0).unwrap();
    }
}
