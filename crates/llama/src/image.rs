//! Images: what a checkpoint writes, and where recovery begins.
//!
//! The image with the number `n` is the file `store-image-{n:016x}`, written as `….tmp` and renamed when it is
//! durable. It is *whole*, or holds what has changed since the image that it names as the *previous* one: the state is what
//! the row says from the last whole one on. An image is a row of blocks, each padded with zeros to a multiple of 4096 bytes
//! (little-endian):
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of bytes 4 to 40 + *bytes of records* |
//! | 4 | 4 | magic `DIMG` |
//! | 8 | 4 | format version, 8; 6 and 7 are read, too |
//! | 12 | 4 | number of the block, from 0 |
//! | 16 | 8 | store identifier |
//! | 24 | 8 | number of the image |
//! | 32 | 4 | bytes of records |
//! | 36 | 4 | 1 in the last block, else 0 |
//! | 40 | | records |
//!
//! Block 0 holds one record: scan start (an offset for each stream, 8 each; sequence 8, chain 4), incarnation 8, segment bytes 8, number of
//! the previous image 8 (its own: it is whole), two marks 16, user data
//! (length 4, bytes). The last block holds one record: number of records between 8, lowest page identifier never given out
//! 8. The blocks between hold one record per page: page 8, kind 4, and then
//!
//! | kind | | |
//! |---|---|---|
//! | 1 | a page | number of fragments 4, their addresses 8 each (oldest first), their [filters](Filter) 2 each, tree 4, low key length 4, low key |
//! | 2 | a page that an earlier image describes | number of fragments 4, their addresses 8 each, their filters 2 each |
//! | 3 | a page that does not count any more | |
//!
//! Version 6 has no filters: each fragment may hold anything.

use crate::error::LlamaError;
use crate::flash_address::{FlashAddress, OFFSETS_END};
use crate::flush_buffer::{COUNTS_END, MARKS, Position, STREAMS};
use crate::fragment::{read_u32, read_u64, write_u32, write_u64};
use crate::fragments::{ANYTHING, Filter, Fragments};
use crate::images::Written;
use crate::page_id::PageId;
use crate::segments::{SEGMENT_HEADER_BYTES, SegmentHeader};
use deuteron_device::{AlignedBuffer, BLOCK_BYTES, DeviceError, Directory, File, OpenMode};
use std::sync::Arc;

const MAGIC: u32 = u32::from_le_bytes(*b"DIMG");
/// The version of images. In the one before pages have fewer fragments at most.
const VERSION: u32 = 8;
/// The oldest that is read, which has no filters.
const WITHOUT_FILTERS: u32 = 6;
const HEADER_BYTES: usize = 40;
const LAST: u32 = 1;
/// A page of one fragment that an earlier image describes takes so many bytes.
const PAGE_BYTES_MIN: u64 = 26;
/// The kinds of records.
const DESCRIBED: u32 = 1;
const KNOWN: u32 = 2;
const GONE: u32 = 3;
/// A block is written once its records take this much.
const BLOCK_RECORD_BYTES: usize = 256 * 1024;

/// The name of image `number`.
pub(crate) fn image_name(number: u64) -> String {
    format!("store-image-{number:016x}")
}

/// The number of the image called `name`, if it is an image's name.
pub(crate) fn image_number(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix("store-image-")?, 16).ok()?;
    (image_name(number) == name).then_some(number)
}

/// Whether `name` is that of an image that was not completed.
pub(crate) fn is_unfinished_image(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|name| image_number(name).is_some())
}

/// What block 0 says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageStart {
    pub(crate) store: u64,
    pub(crate) number: u64,
    pub(crate) start: Position,
    pub(crate) incarnation: u64,
    pub(crate) segment_bytes: u64,
    /// The number of the image of which this one holds the changes; its own if it is whole.
    pub(crate) previous: u64,
    /// Those of no buffer before the scan start are higher.
    pub(crate) marks: [u64; MARKS],
    pub(crate) user_data: Vec<u8>,
}

impl ImageStart {
    pub(crate) fn is_whole(&self) -> bool {
        self.previous == self.number
    }
}

/// What an image says of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImagePage {
    pub(crate) page: PageId,
    /// None if it does not count any more.
    pub(crate) fragments: Fragments,
    /// Tree and low key; `None` if an earlier image says them, or it does not count.
    pub(crate) place: Option<(u32, Vec<u8>)>,
}

/// What an image says besides its pages.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) start: ImageStart,
    pub(crate) next_page: PageId,
    /// What it is made of.
    pub(crate) written: Written,
}

/// An image being written.
pub(crate) struct ImageWriter {
    directory: Arc<dyn Directory>,
    file: Arc<dyn File>,
    store: u64,
    number: u64,
    block: u32,
    offset: u64,
    records: Vec<u8>,
    pages: u64,
    gone: u64,
    is_published: bool,
}

impl Drop for ImageWriter {
    fn drop(&mut self) {
        if !self.is_published {
            // An image that was given up keeps no room, which there may be little of. What is left all the same the next image removes, or the next opening.
            let _ = self.directory.remove(&format!("{}.tmp", image_name(self.number)));
        }
    }
}

impl ImageWriter {
    /// Creates the file, with block 0.
    pub(crate) fn create(
        directory: &Arc<dyn Directory>,
        direct: bool,
        start: &ImageStart,
    ) -> Result<ImageWriter, DeviceError> {
        let name = format!("{}.tmp", image_name(start.number));
        match directory.remove(&name) {
            // Left by a checkpoint that was given up.
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        let mut writer = ImageWriter {
            directory: Arc::clone(directory),
            file: directory.open(&name, OpenMode::CreateNew, direct)?,
            store: start.store,
            number: start.number,
            block: 0,
            offset: 0,
            records: Vec::new(),
            pages: 0,
            gone: 0,
            is_published: false,
        };
        for offset in start.start.offsets {
            writer.records.extend_from_slice(&offset.to_le_bytes());
        }
        writer.records.extend_from_slice(&start.start.sequence.to_le_bytes());
        writer.records.extend_from_slice(&start.start.chain.to_le_bytes());
        writer.records.extend_from_slice(&start.incarnation.to_le_bytes());
        writer.records.extend_from_slice(&start.segment_bytes.to_le_bytes());
        writer.records.extend_from_slice(&start.previous.to_le_bytes());
        for mark in start.marks {
            writer.records.extend_from_slice(&mark.to_le_bytes());
        }
        writer.records.extend_from_slice(&(start.user_data.len() as u32).to_le_bytes());
        writer.records.extend_from_slice(&start.user_data);
        writer.write_block(0)?;
        Ok(writer)
    }

    /// Adds what is known of a page. Writes a block when enough have gathered.
    pub(crate) fn add(&mut self, record: &ImagePage) -> Result<(), DeviceError> {
        let ImagePage { page, fragments, place } = record;
        let kind = match (fragments.len(), place) {
            (0, _) => GONE,
            (_, Some(_)) => DESCRIBED,
            (_, None) => KNOWN,
        };
        self.records.extend_from_slice(&page.0.to_le_bytes());
        self.records.extend_from_slice(&kind.to_le_bytes());
        if kind != GONE {
            self.records.extend_from_slice(&(fragments.len() as u32).to_le_bytes());
            for address in fragments.iter() {
                self.records.extend_from_slice(&address.to_raw().to_le_bytes());
            }
            for (_, filter) in fragments.with_filters() {
                self.records.extend_from_slice(&filter.to_le_bytes());
            }
        }
        if let (DESCRIBED, Some((tree, low_key))) = (kind, place) {
            self.records.extend_from_slice(&tree.to_le_bytes());
            self.records.extend_from_slice(&(low_key.len() as u32).to_le_bytes());
            self.records.extend_from_slice(low_key);
        }
        self.pages += 1;
        self.gone += u64::from(kind == GONE);
        if self.records.len() >= BLOCK_RECORD_BYTES { self.write_block(0) } else { Ok(()) }
    }

    /// Writes what is left and makes the image durable under its temporary name.
    pub(crate) fn finish(&mut self, next_page: PageId) -> Result<Written, DeviceError> {
        if !self.records.is_empty() {
            self.write_block(0)?;
        }
        self.records.extend_from_slice(&self.pages.to_le_bytes());
        self.records.extend_from_slice(&next_page.0.to_le_bytes());
        self.write_block(LAST)?;
        self.file.sync()?;
        Ok(Written { bytes: self.offset, pages: self.pages - self.gone, gone: self.gone })
    }

    /// Gives the image its name, durably.
    pub(crate) fn publish(&mut self) -> Result<(), DeviceError> {
        let name = image_name(self.number);
        self.directory.rename(&format!("{name}.tmp"), &name)?;
        self.is_published = true;
        self.directory.sync()
    }

    fn write_block(&mut self, flags: u32) -> Result<(), DeviceError> {
        let used = HEADER_BYTES + self.records.len();
        let mut block = AlignedBuffer::zeroed(used.next_multiple_of(BLOCK_BYTES));
        write_u32(&mut block, 4, MAGIC);
        write_u32(&mut block, 8, VERSION);
        write_u32(&mut block, 12, self.block);
        write_u64(&mut block, 16, self.store);
        write_u64(&mut block, 24, self.number);
        write_u32(&mut block, 32, self.records.len() as u32);
        write_u32(&mut block, 36, flags);
        block[HEADER_BYTES..used].copy_from_slice(&self.records);
        let crc = crc32c::crc32c(&block[4..used]);
        write_u32(&mut block, 0, crc);
        self.file.write_at(&block, self.offset)?;
        self.offset += block.len() as u64;
        self.block += 1;
        self.records.clear();
        Ok(())
    }
}

/// Takes fields off the front of a block's records. Their checksum has been checked, so a record that ends too early
/// was written wrongly; it is reported all the same.
struct Records<'a> {
    bytes: &'a [u8],
    have_filters: bool,
}

impl<'a> Records<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| read_u32(bytes, 0))
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|bytes| read_u64(bytes, 0))
    }

    /// The fragments with these addresses, whose filters come next.
    fn fragments(&mut self, mut addresses: Records<'_>) -> Option<Fragments> {
        let mut fragments = Fragments::default();
        while !addresses.bytes.is_empty() {
            let address = FlashAddress::from_raw(addresses.u64()?)?;
            let filter: Filter = if self.have_filters { self.u16()? } else { ANYTHING };
            if !fragments.push_filtered(address, filter) {
                return None;
            }
        }
        Some(fragments)
    }

    fn page(&mut self) -> Option<ImagePage> {
        let page = PageId(self.u64()?);
        let kind = self.u32()?;
        let count = if kind == GONE { 0 } else { self.u32()? };
        let addresses = Records { bytes: self.take(8 * count as usize)?, ..*self };
        let fragments = self.fragments(addresses)?;
        let place = match kind {
            DESCRIBED => {
                let (tree, low_key_bytes) = (self.u32()?, self.u32()?);
                Some((tree, self.take(low_key_bytes as usize)?.to_vec()))
            }
            _ => None,
        };
        let is_sound = (DESCRIBED..=GONE).contains(&kind) && (kind == GONE) == (fragments.len() == 0);
        (page.can_be() && is_sound).then_some(ImagePage { page, fragments, place })
    }
}

struct Block {
    version: u32,
    index: u32,
    store: u64,
    number: u64,
    last: bool,
    records: Vec<u8>,
}

impl Block {
    fn records(&self) -> Records<'_> {
        Records { bytes: &self.records, have_filters: self.version > WITHOUT_FILTERS }
    }
}

/// An image that is read block by block.
struct ImageFile {
    name: String,
    file: Arc<dyn File>,
    length: u64,
    offset: u64,
}

impl ImageFile {
    fn corrupt(&self, at: u64, expected: impl ToString, found: impl ToString) -> LlamaError {
        LlamaError::Corrupt {
            file: self.name.clone(),
            offset: self.offset + at,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    fn block(&mut self) -> Result<Block, LlamaError> {
        let rest = self.length.saturating_sub(self.offset);
        if rest < BLOCK_BYTES as u64 {
            return Err(self.corrupt(0, "an image block", "the end of the file"));
        }
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        self.file.read_at(&mut block, self.offset).map_err(LlamaError::Device)?;
        if read_u32(&block, 4) != MAGIC {
            return Err(self.corrupt(4, "magic DIMG", format_args!("{:#010x}", read_u32(&block, 4))));
        }
        let used = HEADER_BYTES + read_u32(&block, 32) as usize;
        let padded = used.next_multiple_of(BLOCK_BYTES);
        if padded as u64 > rest {
            return Err(self.corrupt(32, format_args!("at most {rest} bytes"), used));
        }
        if padded > BLOCK_BYTES {
            block = AlignedBuffer::zeroed(padded);
            self.file.read_at(&mut block, self.offset).map_err(LlamaError::Device)?;
        }
        let crc = crc32c::crc32c(&block[4..used]);
        if read_u32(&block, 0) != crc {
            let expected = format!("checksum {:#010x}", read_u32(&block, 0));
            return Err(self.corrupt(0, expected, format_args!("checksum {crc:#010x}")));
        }
        let version = read_u32(&block, 8);
        if !(WITHOUT_FILTERS..=VERSION).contains(&version) {
            let file = self.name.clone();
            return Err(LlamaError::Version { file, found: version, supported: VERSION });
        }
        let block = Block {
            version,
            index: read_u32(&block, 12),
            store: read_u64(&block, 16),
            number: read_u64(&block, 24),
            last: read_u32(&block, 36) & LAST != 0,
            records: block[HEADER_BYTES..used].to_vec(),
        };
        self.offset += padded as u64;
        Ok(block)
    }

    /// The next block of an image that began with `start`.
    fn next(&mut self, start: &ImageStart, index: u32) -> Result<Block, LlamaError> {
        let block = self.block()?;
        if (block.index, block.number, block.store) != (index, start.number, start.store) {
            let found = format!("block {} of image {}", block.index, block.number);
            return Err(self.corrupt(0, format_args!("block {index} of image {}", start.number), found));
        }
        Ok(block)
    }
}

/// Opens image `number`, and reads how it begins.
fn begin_image(
    directory: &dyn Directory,
    number: u64,
    direct: bool,
) -> Result<(ImageFile, ImageStart), LlamaError> {
    let name = image_name(number);
    let file = directory.open(&name, OpenMode::Read, direct).map_err(LlamaError::Device)?;
    let length = file.length().map_err(LlamaError::Device)?;
    let mut reader = ImageFile { name, file, length, offset: 0 };

    let first = reader.block()?;
    if first.number != number || first.index != 0 {
        let found = format!("block {} of image {}", first.index, first.number);
        return Err(reader.corrupt(0, format_args!("block 0 of image {number}"), found));
    }
    let start =
        read_start(&first).ok_or_else(|| reader.corrupt(0, "the start of an image", "something else"))?;
    Ok((reader, start))
}

/// Checks the blocks of image `number`, though not what is in them; how many bytes it has.
pub(crate) fn verify_image(directory: &dyn Directory, number: u64, direct: bool) -> Result<u64, LlamaError> {
    let (mut reader, start) = begin_image(directory, number, direct)?;
    let mut index = 1;
    while !reader.next(&start, index)?.last {
        index += 1;
    }
    Ok(reader.offset)
}

/// How image `number` begins, and how many pages it names at most.
pub(crate) fn read_image_start(
    directory: &dyn Directory,
    number: u64,
    direct: bool,
) -> Result<(ImageStart, u64), LlamaError> {
    let (reader, start) = begin_image(directory, number, direct)?;
    Ok((start, reader.length / PAGE_BYTES_MIN))
}

/// Reads and checks image `number`. What it says of each page goes to `each` at once, before the rest of it is checked.
pub(crate) fn read_image(
    directory: &dyn Directory,
    number: u64,
    direct: bool,
    mut each: impl FnMut(ImagePage) -> Result<(), LlamaError>,
) -> Result<Image, LlamaError> {
    let (mut reader, start) = begin_image(directory, number, direct)?;
    let (mut written, mut last_page) = (Written { bytes: reader.length, pages: 0, gone: 0 }, None);
    let mut index = 1;
    loop {
        let block = reader.next(&start, index)?;
        index += 1;
        let mut records = block.records();
        if block.last {
            let (Some(count), Some(next_page)) = (records.u64(), records.u64()) else {
                return Err(reader.corrupt(0, "the end of an image", "too few bytes"));
            };
            if count != written.pages + written.gone {
                let found = written.pages + written.gone;
                return Err(reader.corrupt(0, format_args!("{count} pages"), found));
            }
            let next_page = PageId(next_page);
            if !next_page.can_be() {
                return Err(reader.corrupt(0, format_args!("identifiers below {}", PageId::END), next_page));
            }
            // None that was never given out; it would be asked for memory for all below it.
            if let Some(page) = last_page.filter(|&page| page >= next_page) {
                return Err(reader.corrupt(0, format_args!("identifiers below {next_page}"), page));
            }
            return Ok(Image { start, next_page, written });
        }
        while !records.bytes.is_empty() {
            let page = records.page().ok_or_else(|| reader.corrupt(0, "a page", "something else"))?;
            let is_gone = page.fragments.len() == 0;
            written.pages += u64::from(!is_gone);
            written.gone += u64::from(is_gone);
            last_page = last_page.max(Some(page.page));
            each(page)?;
        }
    }
}

fn read_start(block: &Block) -> Option<ImageStart> {
    let mut records = block.records();
    let offsets = [records.u64()?, records.u64()?];
    let (sequence, chain) = (records.u64()?, records.u32()?);
    let (incarnation, segment_bytes, previous) = (records.u64()?, records.u64()?, records.u64()?);
    let (marks, user_data_bytes) = ([records.u64()?, records.u64()?], records.u32()?);
    let user_data = records.take(user_data_bytes as usize)?.to_vec();
    let is_of_stream = |(stream, &offset): (usize, &u64)| {
        offset < OFFSETS_END
            && offset.is_multiple_of(BLOCK_BYTES as u64)
            && offset % segment_bytes >= SEGMENT_HEADER_BYTES
            && (offset / segment_bytes) % STREAMS as u64 == stream as u64
    };
    (previous <= block.number
        && block.number.max(sequence).max(incarnation) < COUNTS_END
        && SegmentHeader::may_have(segment_bytes)
        && offsets.iter().enumerate().all(is_of_stream))
    .then_some(ImageStart {
        store: block.store,
        number: block.number,
        start: Position { sequence, offsets, chain },
        incarnation,
        segment_bytes,
        previous,
        marks,
        user_data,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fragments::UNREADABLE_FRAGMENTS_MAX;
    use deuteron_device::MemoryDirectory;

    #[test]
    fn fuzz_images() {
        let valid = [0, 5, 300].map(|pages| {
            let directory = directory();
            write(&directory, pages);
            bytes(&directory)
        });
        let mend = |bytes: &mut Vec<u8>| {
            bytes.truncate(bytes.len() / BLOCK_BYTES * BLOCK_BYTES);
            let mut at = 0;
            while at < bytes.len() {
                write_u32(bytes, at + 4, MAGIC);
                let used =
                    HEADER_BYTES + read_u32(bytes, at + 32) as usize % (bytes.len() - at - HEADER_BYTES + 1);
                write_u32(bytes, at + 32, (used - HEADER_BYTES) as u32);
                let crc = crc32c::crc32c(&bytes[at + 4..at + used]);
                write_u32(bytes, at, crc);
                at += used.next_multiple_of(BLOCK_BYTES);
            }
        };
        let fuzz = deuteron_fuzz::Fuzz {
            allowed_bytes: 256 << 10,
            ..deuteron_fuzz::Fuzz::new("llama-image", &valid, 3000)
        };
        fuzz.run(mend, |bytes| {
            let directory = directory();
            directory.open(&image_name(3), OpenMode::CreateNew, false).unwrap().write_at(bytes, 0).unwrap();
            let verified = verify_image(&*directory, 3, false).is_ok();
            read_all(&*directory, 3, false).is_ok_and(|_| verified)
        });
    }

    /// All that an image says.
    #[derive(Debug, PartialEq, Eq)]
    struct Read {
        start: ImageStart,
        pages: Vec<ImagePage>,
        next_page: PageId,
        /// Bytes of the file.
        bytes: u64,
    }

    fn read_all(directory: &dyn Directory, number: u64, direct: bool) -> Result<Read, LlamaError> {
        let mut pages = Vec::new();
        let Image { start, next_page, written } = read_image(directory, number, direct, |page| {
            pages.push(page);
            Ok(())
        })?;
        let (begins, most) = read_image_start(directory, number, direct)?;
        assert_eq!(begins, start);
        let gone = pages.iter().filter(|page| page.fragments.len() == 0).count() as u64;
        assert_eq!((written.pages, written.gone), (pages.len() as u64 - gone, gone));
        assert!(written.pages <= most, "{most} at most");
        Ok(Read { start, pages, next_page, bytes: written.bytes })
    }

    fn write(directory: &Arc<dyn Directory>, pages: u64) -> Read {
        let start = ImageStart {
            store: 77,
            number: 3,
            start: Position { sequence: 9, offsets: [12288, 69632], chain: 0xabcd },
            incarnation: 2,
            segment_bytes: 1 << 16,
            previous: 2,
            marks: [4711, 17],
            user_data: b"remember".to_vec(),
        };
        let mut writer = ImageWriter::create(directory, true, &start).unwrap();
        let mut expected = Vec::new();
        for page in 1..=pages {
            let mut fragments = Fragments::default();
            assert!(fragments.push_filtered(FlashAddress::new(4096 * page, 128), page as Filter));
            let place = Some((5, page.to_be_bytes().to_vec()));
            let record = match page % 3 {
                0 => ImagePage { page: PageId(page), fragments: Fragments::default(), place: None },
                1 => ImagePage { page: PageId(page), fragments, place },
                _ => ImagePage { page: PageId(page), fragments, place: None },
            };
            writer.add(&record).unwrap();
            expected.push(record);
        }
        let bytes = writer.finish(PageId(pages + 1)).unwrap().bytes;
        writer.publish().unwrap();
        Read { start, pages: expected, next_page: PageId(pages + 1), bytes }
    }

    #[test]
    fn an_image_survives_the_way_to_disk_and_back() {
        for pages in [0, 1, 20_000] {
            let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
            let image = write(&directory, pages);
            assert_eq!(directory.list().unwrap(), ["store-image-0000000000000003"]);
            assert_eq!(read_all(&*directory, 3, true).unwrap(), image);
        }
    }

    #[test]
    fn an_image_names_no_page_that_it_says_was_never_given_out() {
        for (page, next_page, is_sound) in [(7, 8, true), (8, 8, false), (u64::from(u32::MAX), 8, false)] {
            let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
            let start = write(&directory, 0).start;
            directory.remove(&image_name(3)).unwrap();
            let mut writer = ImageWriter::create(&directory, true, &start).unwrap();
            let mut fragments = Fragments::default();
            assert!(fragments.push(FlashAddress::new(4096, 128)));
            writer.add(&ImagePage { page: PageId(page), fragments, place: None }).unwrap();
            writer.finish(PageId(next_page)).unwrap();
            writer.publish().unwrap();
            match read_all(&*directory, 3, true) {
                Ok(image) => assert!(is_sound && image.next_page == PageId(next_page)),
                Err(LlamaError::Corrupt { expected, found, .. }) => {
                    let told = ("identifiers below page 8".to_owned(), PageId(page).to_string());
                    assert!(!is_sound && (expected, found) == told);
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// An image byte for byte, of one version or another: they differ in the checksums of the blocks, in how many bytes the records of
    /// pages have, and in their filters.
    fn fixed(version: u8, checksums: [&[u8; 4]; 3], records_bytes: u8, filters: [&[u8]; 2]) -> Vec<u8> {
        let head = |block: u8, records_bytes: u8, last: u8| {
            let fields: [&[u8]; 7] = [
                b"DIMG",
                &[version, 0, 0, 0],
                &[block, 0, 0, 0],
                b"\x08\x07\x06\x05\x04\x03\x02\x01", // store
                b"\x18\x17\x16\x15\x14\x13\x12\x11", // image
                &[records_bytes, 0, 0, 0],
                &[last, 0, 0, 0],
            ];
            [checksums[block as usize], &fields.concat()[..]].concat()
        };
        let start: [&[u8]; 11] = [
            b"\0\x30\x16\x14\x13\x12\0\0",       // offset of the even stream
            b"\0\x40\x25\x24\x23\x22\0\0",       // offset of the odd stream
            b"\x38\x37\x36\x35\x34\x33\x32\x31", // sequence
            b"\x44\x43\x42\x41",                 // chain
            b"\x58\x57\x56\x55\x54\x53\x52\x01", // incarnation
            b"\0\0\x01\0\0\0\0\0",               // segment bytes
            b"\0\x17\x16\x15\x14\x13\x12\x11",   // previous image
            b"\x68\x67\x66\x65\x64\x63\x62\x61", // mark
            b"\x78\x77\x76\x75\x74\x73\x72\x71", // mark
            b"\x08\0\0\0",                       // bytes of user data
            b"remember",                         // user data
        ];
        let pages: [&[u8]; 17] = [
            b"\x04\x03\x02\x01\0\0\0\0",         // page
            b"\x01\0\0\0",                       // kind
            b"\x02\0\0\0",                       // fragments
            b"\x09\x40\x50\x4c\x48\x44\x40\0",   // address
            b"\x03\x91\x90\x8c\x88\x84\x80\0",   // address
            filters[0],                          // filters
            b"\x24\x23\x22\x21",                 // tree
            b"\x03\0\0\0",                       // bytes of the low key
            b"low",                              // low key
            b"\x08\x07\x06\x05\0\0\0\0",         // page
            b"\x02\0\0\0",                       // kind
            b"\x02\0\0\0",                       // fragments
            b"\x03\xe1\xd0\xcc\xc8\xc4\xc0\0",   // address
            b"\x03\x31\x11\x0d\x09\x05\x01\x01", // address
            filters[1],                          // filters
            b"\x0c\x0b\x0a\x09\0\0\0\0",         // page
            b"\x03\0\0\0",                       // kind
        ];
        let end: [&[u8]; 2] = [
            b"\x03\0\0\0\0\0\0\0",       // records
            b"\x10\x0f\x0e\x0d\0\0\0\0", // lowest page never given out
        ];
        let mut blocks = [
            [head(0, 0x50, 0), start.concat()].concat(),
            [head(1, records_bytes, 0), pages.concat()].concat(),
            [head(2, 0x10, 1), end.concat()].concat(),
        ];
        blocks.iter_mut().for_each(|block| block.resize(4096, 0));
        blocks.concat()
    }

    /// What is on disks must stay readable: as `docs/format.md` says, byte for byte.
    #[test]
    fn formats_stay_as_they_are() {
        let filters: [&[u8]; 2] = [b"\x82\x81\x92\x91", b"\xa2\xa1\xb2\xb1"];
        let checksums = [b"\x4c\x9e\xa6\xa9", b"\x76\x12\x8f\xbf", b"\x78\xb2\xa8\xe9"];
        let bytes = fixed(8, checksums, 0x5f, filters);
        let checksums = [b"\xad\x5d\x8d\x2e", b"\x4c\x07\x1f\x0c", b"\x44\x09\x3f\x5c"];
        let of_few_fragments = fixed(7, checksums, 0x5f, filters);
        let checksums = [b"\x9d\x41\x54\x04", b"\x10\x56\xb6\x49", b"\x40\x14\x16\x40"];
        let without_filters = fixed(6, checksums, 0x57, [b"", b""]);

        let image = |filters: [Filter; 4]| {
            let lengths = [0x40, 0x8100, 0x8_1000, 0x81_0000];
            let offsets = [0x1011_1213_1410, 0x2021_2223_2420, 0x3031_3233_3430, 0x4041_4243_4440];
            let two = |from: usize| {
                let mut fragments = Fragments::default();
                for which in from..from + 2 {
                    let address = FlashAddress::new(offsets[which], lengths[which]);
                    assert!(fragments.push_filtered(address, filters[which]));
                }
                fragments
            };
            let place = Some((0x2122_2324, b"low".to_vec()));
            let start = ImageStart {
                store: 0x0102_0304_0506_0708,
                number: 0x1112_1314_1516_1718,
                start: Position {
                    sequence: 0x3132_3334_3536_3738,
                    offsets: [0x1213_1416_3000, 0x2223_2425_4000],
                    chain: 0x4142_4344,
                },
                incarnation: 0x0152_5354_5556_5758,
                segment_bytes: 1 << 16,
                previous: 0x1112_1314_1516_1700,
                marks: [0x6162_6364_6566_6768, 0x7172_7374_7576_7778],
                user_data: b"remember".to_vec(),
            };
            let pages = vec![
                ImagePage { page: PageId(0x0102_0304), fragments: two(0), place },
                ImagePage { page: PageId(0x0506_0708), fragments: two(2), place: None },
                ImagePage { page: PageId(0x090a_0b0c), fragments: Fragments::default(), place: None },
            ];
            Read { start, pages, next_page: PageId(0x0d0e_0f10), bytes: 3 * 4096 }
        };
        const NAME: &str = "store-image-1112131415161718";
        let current = image([0x8182, 0x9192, 0xa1a2, 0xb1b2]);
        let directory = directory();
        let mut writer = ImageWriter::create(&directory, false, &current.start).unwrap();
        current.pages.iter().for_each(|page| writer.add(page).unwrap());
        writer.finish(current.next_page).unwrap();
        writer.publish().unwrap();
        let file = directory.open(NAME, OpenMode::Read, false).unwrap();
        let mut written = vec![0; file.length().unwrap() as usize];
        file.read_at(&mut written, 0).unwrap();
        assert_eq!(written, bytes);

        let same = image([0x8182, 0x9192, 0xa1a2, 0xb1b2]);
        for (bytes, image) in
            [(bytes, current), (of_few_fragments, same), (without_filters, image([ANYTHING; 4]))]
        {
            let directory = super::tests::directory();
            directory.open(NAME, OpenMode::CreateNew, false).unwrap().write_at(&bytes, 0).unwrap();
            assert_eq!(read_all(&*directory, image.start.number, false).unwrap(), image);
            assert_eq!(verify_image(&*directory, image.start.number, false).unwrap(), image.bytes);
        }
    }

    #[test]
    fn every_flipped_byte_that_matters_is_noticed() {
        let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
        let image = write(&directory, 3);
        let file = directory.open(&image_name(3), OpenMode::ReadWrite, false).unwrap();
        for offset in 0..file.length().unwrap() {
            let mut byte = [0];
            file.read_at(&mut byte, offset).unwrap();
            file.write_at(&[byte[0] ^ 0x10], offset).unwrap();
            match read_all(&*directory, 3, false) {
                Err(LlamaError::Corrupt { .. } | LlamaError::Version { .. }) => {}
                Ok(read) => assert_eq!(read, image, "padding at {offset}"),
                Err(other) => panic!("{other} at {offset}"),
            }
            file.write_at(&byte, offset).unwrap();
        }
        assert_eq!(image_number("store-image-3"), None);
        assert!(is_unfinished_image("store-image-0000000000000003.tmp"));
    }

    fn directory() -> Arc<dyn Directory> {
        Arc::new(MemoryDirectory::new())
    }

    fn bytes(directory: &Arc<dyn Directory>) -> Vec<u8> {
        let file = directory.open(&image_name(3), OpenMode::Read, false).unwrap();
        let mut bytes = vec![0; file.length().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// What is said of an image of these bytes: where, what was expected, and what was found.
    fn refused(bytes: &[u8]) -> (u64, String, String) {
        let directory = directory();
        directory.open(&image_name(3), OpenMode::CreateNew, false).unwrap().write_at(bytes, 0).unwrap();
        let verified = verify_image(&*directory, 3, false).err();
        match (read_all(&*directory, 3, false), verified) {
            (Err(LlamaError::Corrupt { offset, expected, found, .. }), Some(_)) => (offset, expected, found),
            other => panic!("{other:?}"),
        }
    }

    fn mend(block: &mut [u8]) {
        let used = HEADER_BYTES + read_u32(block, 32) as usize;
        let crc = crc32c::crc32c(&block[4..used]);
        write_u32(block, 0, crc);
    }

    #[test]
    fn an_image_is_as_long_as_its_records_and_says_how_many_there_are() {
        let directory = directory();
        let image = write(&directory, 20_000);
        let Written { bytes, pages, gone } = read_image(&*directory, 3, true, |_| Ok(())).unwrap().written;
        assert_eq!(bytes, image.bytes);
        assert_eq!((pages, gone), (13_334, 6666));
        let records = 6667 * 42 + 6667 * 26 + 6666 * 12;
        assert!((records..records + 6 * BLOCK_BYTES as u64).contains(&bytes), "{bytes}");
        assert_eq!(verify_image(&*directory, 3, true).unwrap(), bytes);
        assert_eq!(super::tests::bytes(&directory).len() as u64, bytes);
        let mut writer = ImageWriter::create(&directory, true, &image.start).unwrap();
        image.pages[..6].iter().for_each(|page| writer.add(page).unwrap());
        let Written { bytes, pages, gone } = writer.finish(PageId(7)).unwrap();
        assert_eq!((bytes, pages, gone), (3 * 4096, 4, 2));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let directory = directory();
        write(&directory, 3);
        let sound = bytes(&directory);
        assert_eq!(sound.len(), 3 * 4096);
        for block in 0..3 {
            let at = block * 4096;
            let mut bad = sound.clone();
            bad[at + 4] ^= 1;
            assert_eq!(refused(&bad).0, at as u64 + 4);
            let mut bad = sound.clone();
            write_u32(&mut bad, at + 32, 1 << 20);
            assert_eq!(refused(&bad).0, at as u64 + 32);
            let mut bad = sound.clone();
            bad[at + 41] ^= 1;
            assert_eq!(refused(&bad).0, at as u64);
            assert_eq!(refused(&sound[..at + 4095]).0, at as u64);
            assert_eq!(refused(&sound[..at]).2, "the end of the file");
            let mut newer = sound.clone();
            write_u32(&mut newer, at + 8, VERSION + 1);
            mend(&mut newer[at..at + 4096]);
            let other = super::tests::directory();
            other.open(&image_name(3), OpenMode::CreateNew, false).unwrap().write_at(&newer, 0).unwrap();
            let read = read_all(&*other, 3, false);
            assert!(matches!(read, Err(LlamaError::Version { found, .. }) if found == VERSION + 1));
        }
    }

    #[test]
    fn a_block_of_another_place_image_or_store_is_none_of_this_one() {
        let directory = directory();
        write(&directory, 3);
        let sound = bytes(&directory);
        // The number of the block, the store, the number of the image.
        for (block, field) in [(0, 12), (0, 24), (1, 12), (1, 16), (1, 24), (2, 12), (2, 16), (2, 24)] {
            let mut bad = sound.clone();
            bad[block * 4096 + field] ^= 4;
            mend(&mut bad[block * 4096..(block + 1) * 4096]);
            let (_, expected, _) = refused(&bad);
            assert_eq!(expected, format!("block {block} of image 3"), "{field}");
        }
    }

    #[test]
    fn a_start_that_cannot_be_is_none() {
        let sound = write(&directory(), 0).start;
        let read = |start: ImageStart| {
            let directory = directory();
            let mut writer = ImageWriter::create(&directory, false, &start).unwrap();
            writer.finish(PageId(1)).unwrap();
            writer.publish().unwrap();
            read_all(&*directory, start.number, false)
        };
        let of = |offsets| Position { offsets, ..sound.start };
        assert!(read(sound.clone()).is_ok_and(|image| !image.start.is_whole()));
        assert!(read(ImageStart { previous: 3, ..sound.clone() }).is_ok_and(|image| image.start.is_whole()));
        for start in [
            ImageStart { previous: 4, ..sound.clone() },
            ImageStart { start: of([0, 4096]), ..sound.clone() },
            ImageStart { start: of([4096, 0]), ..sound.clone() },
            ImageStart { segment_bytes: 0, ..sound.clone() },
            ImageStart { segment_bytes: 6000, ..sound.clone() },
            ImageStart { segment_bytes: 1 << 40, ..sound.clone() },
            ImageStart { start: of([OFFSETS_END + 4096, 69_632]), ..sound.clone() },
            ImageStart { start: of([u64::MAX - 4095, 69_632]), ..sound.clone() },
            ImageStart { start: of([69_632, 4096]), ..sound.clone() },
            ImageStart { start: of([1 << 17, 69_632]), ..sound.clone() },
            ImageStart { start: of([4097, 69_632]), ..sound.clone() },
            ImageStart { start: Position { sequence: u64::MAX, ..sound.start }, ..sound.clone() },
            ImageStart { incarnation: u64::MAX, ..sound.clone() },
        ] {
            let refused = read(start);
            assert!(
                matches!(&refused, Err(LlamaError::Corrupt { expected, .. }) if expected == "the start of an image"),
                "{refused:?}"
            );
        }
    }

    /// A record as it was in version 6, which has no filters, and as it is with these.
    fn record(page: u64, kind: u32, addresses: &[u64], filters: &[Filter]) -> Vec<u8> {
        let mut bytes = [&page.to_le_bytes()[..], &kind.to_le_bytes()].concat();
        bytes.extend_from_slice(&(addresses.len() as u32).to_le_bytes());
        addresses.iter().for_each(|address| bytes.extend_from_slice(&address.to_le_bytes()));
        filters.iter().for_each(|filter| bytes.extend_from_slice(&filter.to_le_bytes()));
        bytes.extend_from_slice(&[7, 0, 0, 0, 3, 0, 0, 0]);
        bytes.extend_from_slice(b"key");
        bytes
    }

    #[test]
    fn a_record_that_cannot_be_is_none() {
        let read = |bytes: &[u8]| Records { bytes, have_filters: true }.page();
        let address = FlashAddress::new(8192, 128).to_raw();
        let described = read(&record(5, DESCRIBED, &[address], &[9])).unwrap();
        assert_eq!((described.fragments.len(), described.place), (1, Some((7, b"key".to_vec()))));
        let known =
            read(&record(5, KNOWN, &[address; UNREADABLE_FRAGMENTS_MAX], &[9; UNREADABLE_FRAGMENTS_MAX]))
                .unwrap();
        assert_eq!(known.place, None);
        assert!(known.fragments.with_filters().all(|(_, filter)| filter == 9));
        assert_eq!(read(&record(5, GONE, &[], &[])).unwrap().fragments.len(), 0);
        for bad in [
            record(0, KNOWN, &[address], &[9]),
            record(1 << 32, KNOWN, &[address], &[9]),
            record(5, 0, &[address], &[9]),
            record(5, 4, &[address], &[9]),
            record(5, KNOWN, &[], &[]),
            record(5, DESCRIBED, &[], &[]),
            record(5, KNOWN, &[address; UNREADABLE_FRAGMENTS_MAX + 1], &[9; UNREADABLE_FRAGMENTS_MAX + 1]),
            record(5, KNOWN, &[0], &[9]),
        ] {
            assert_eq!(read(&bad), None, "{bad:?}");
        }
        let whole = record(5, DESCRIBED, &[address], &[9]);
        assert!((0..whole.len()).all(|bytes| read(&whole[..bytes]).is_none()));
    }

    #[test]
    fn of_an_image_without_filters_each_fragment_may_hold_anything() {
        let directory = directory();
        let image = write(&directory, 0);
        let mut writer = ImageWriter::create(&directory, false, &image.start).unwrap();
        let addresses: Vec<_> =
            (1..=5).map(|number| FlashAddress::new(4096 * number, 128).to_raw()).collect();
        writer.records = record(5, DESCRIBED, &addresses, &[]);
        writer.pages = 1;
        writer.finish(PageId(6)).unwrap();
        writer.publish().unwrap();
        let mut bytes = bytes(&directory);
        for block in bytes.chunks_mut(4096) {
            write_u32(block, 8, WITHOUT_FILTERS);
            mend(block);
        }
        directory.open(&image_name(3), OpenMode::ReadWrite, false).unwrap().write_at(&bytes, 0).unwrap();
        let read = read_all(&*directory, 3, false).unwrap();
        assert_eq!((&read.start, read.pages.len()), (&image.start, 1));
        let fragments: Vec<_> = read.pages[0].fragments.with_filters().collect();
        let expected = addresses.iter().map(|&raw| (FlashAddress::from_raw(raw).unwrap(), ANYTHING));
        assert_eq!(fragments, expected.collect::<Vec<_>>());
    }

    #[test]
    fn the_last_block_says_how_many_records_there_are() {
        let directory = directory();
        let start = write(&directory, 3).start;
        directory.remove(&image_name(3)).unwrap();
        let mut writer = ImageWriter::create(&directory, false, &start).unwrap();
        writer.pages += 1;
        writer.finish(PageId(4)).unwrap();
        writer.publish().unwrap();
        let read = read_all(&*directory, 3, false);
        assert!(
            matches!(&read, Err(LlamaError::Corrupt { expected, .. }) if expected == "1 pages"),
            "{read:?}"
        );
    }

    #[test]
    fn what_an_attempt_has_left_is_replaced_unless_it_cannot_be_removed() {
        use deuteron_device::{FaultKind, FaultPlan, Operation, SimulatedDisk};
        let disk = SimulatedDisk::new(1);
        let directory: Arc<dyn Directory> = Arc::new(disk.directory());
        let start = write(&directory, 3).start;
        // As if the machine had stopped.
        std::mem::forget(ImageWriter::create(&directory, false, &start).unwrap());
        let names = directory.list().unwrap();
        assert!(names.len() == 2 && is_unfinished_image(&names[1]) && !is_unfinished_image(&names[0]));
        assert!(!is_unfinished_image("store-image-3.tmp"));
        drop(ImageWriter::create(&directory, false, &start).unwrap());
        assert_eq!(directory.list().unwrap(), names[..1], "what is given up leaves nothing");
        disk.set_faults(FaultPlan::new().fail(Operation::Remove, 0, FaultKind::Refuse));
        assert!(ImageWriter::create(&directory, false, &start).is_err());
    }
}
