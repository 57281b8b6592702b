//! Fragments: the pieces of a page on flash.
//!
//! A fragment holds consecutive nodes of a page, newest first: either up to and including the base (a *full*
//! fragment), or only deltas, and then `previous` is the address of the fragment with what is below. A page is its
//! newest fragment and, by the links, at most [`FRAGMENTS_MAX`](crate::FRAGMENTS_MAX) in all, or some
//! more if some of them cannot be read.
//!
//! Integers are little-endian. A fragment starts at a multiple of 16 bytes. The header of one that is not full ends with `previous`.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of the rest, padding included |
//! | 4 | 4 | magic `DFRG` |
//! | 8 | 4 | length, padding included, as [`FlashAddress`] rounds it |
//! | 12 | 4 | number of nodes, at least 1 |
//! | 16 | 8 | page identifier |
//! | 24 | 8 | own offset in the logical store, so that a misplaced block does not pass |
//! | 32 | 8 | previous fragment's address; 0 in a full fragment |
//! | 40 | 4 | *full:* number of adoptions |
//! | 44 | 4 | *full:* bytes of the low key |
//! | 48 | 4 | *full:* tree |
//! | 52 | 4 | *full:* flags: 1 = first page of its tree |
//! | 56 | 4 | *full:* number of disowned pages |
//! | 60 | 4 | *full:* bytes of the payloads as they lie here, compressed; 0 if they are not |
//! | 40, *full:* 64 | 4 each | payload bytes of the nodes |
//! | | 8 each | adopted page identifiers |
//! | | 8 each | disowned page identifiers |
//! | | | low key, then the payloads, one behind the other, compressed together by LZ4 (block format) or as they are |
//! | | | zeros up to the length |

use crate::flash_address::{FlashAddress, LENGTH_MAX};
use crate::node::{NodeKind, NodeRef, PageDescriptor};
use crate::page_id::PageId;
use deuteron_canary::{Canary, is_planted};

const MAGIC: u32 = u32::from_le_bytes(*b"DFRG");
/// Bytes of the header of a full fragment.
const HEADER_BYTES: usize = 64;
/// The same of one that is not.
pub(crate) const SHORT_HEADER_BYTES: usize = 40;
const ROOT: u32 = 1;
/// Compression is worth the work of reading if it saves the so-manieth part.
const WORTH: usize = 8;
/// So many bytes come out of one that is compressed, at most: a property of the format.
const EXPANSION_MAX: u64 = 255;

/// The payloads of a fragment take less than this: each is a node in memory, which says its length in 32 bits.
const PLAIN_BYTES_MAX: u64 = 1 << 31;

/// Bytes of a fragment's header.
fn header_bytes(is_full: bool) -> usize {
    if is_full { HEADER_BYTES } else { SHORT_HEADER_BYTES }
}

/// Why bytes are not what they should be; the caller knows the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Defect {
    /// Relative to the bytes that were given.
    pub(crate) offset: u64,
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl Defect {
    pub(crate) fn new(offset: u64, expected: impl ToString, found: impl ToString) -> Defect {
        Defect { offset, expected: expected.to_string(), found: found.to_string() }
    }
}

pub(crate) fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

pub(crate) fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

pub(crate) fn write_u32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn write_u64(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

/// Nodes about to be written as one fragment.
pub(crate) struct Marshal<'a, 'g> {
    pub(crate) page: PageId,
    /// Newest first; the last is the base if `previous` is `None`.
    pub(crate) nodes: &'a [NodeRef<'g>],
    pub(crate) previous: Option<FlashAddress>,
    /// The payloads, compressed, if they are to be written so.
    pub(crate) packed: Option<Vec<u8>>,
}

impl<'g> Marshal<'_, 'g> {
    fn base(&self) -> Option<NodeRef<'g>> {
        self.nodes.last().copied().filter(|node| node.kind() == NodeKind::Base)
    }

    /// The base, if no fragment has held it yet. Its kin are told of once: said again later, after an identifier has
    /// begun another life, it would be untrue.
    fn new_base(&self) -> Option<NodeRef<'g>> {
        self.base().filter(|base| base.flash().is_none())
    }

    /// The pages that the fragment adopts.
    pub(crate) fn adopts(&self) -> &'g [PageId] {
        self.new_base().map_or(&[], NodeRef::adopts)
    }

    /// The pages that the fragment disowns.
    pub(crate) fn disowns(&self) -> &'g [PageId] {
        self.new_base().map_or(&[], NodeRef::disowns)
    }

    /// Whether the fragment begins a tree.
    pub(crate) fn is_root(&self) -> bool {
        self.base().and_then(NodeRef::descriptor).is_some_and(|descriptor| descriptor.root)
    }

    fn header_bytes(&self) -> usize {
        header_bytes(self.previous.is_none())
    }

    fn payload_bytes(&self) -> usize {
        self.nodes.iter().map(|node| node.payload().len()).sum()
    }

    /// Compresses the payloads of a full fragment, if that saves enough to be worth the work of reading them; how much.
    pub(crate) fn pack(&mut self) -> Option<usize> {
        self.base()?;
        let plain_bytes = self.payload_bytes();
        let mut plain = Vec::with_capacity(plain_bytes);
        self.nodes.iter().for_each(|node| plain.extend_from_slice(node.payload()));
        let packed = lz4_flex::block::compress(&plain);
        let saved = plain_bytes.checked_sub(packed.len())?;
        if saved == 0 || saved < plain_bytes / WORTH {
            return None;
        }
        self.packed = Some(packed);
        Some(saved)
    }

    /// The length on flash, or the excessive length if no address can hold it.
    pub(crate) fn length(&self) -> Result<u64, u64> {
        let base =
            self.base().map_or(0, |base| base.descriptor().map_or(0, |descriptor| descriptor.low_key.len()));
        let kin = size_of_val(self.adopts()) + size_of_val(self.disowns());
        let payloads = self.packed.as_ref().map_or_else(|| self.payload_bytes(), Vec::len);
        let parts = self.header_bytes() + base + kin + 4 * self.nodes.len() + payloads;
        let length = FlashAddress::padded_length(parts as u64);
        if length <= LENGTH_MAX { Ok(length) } else { Err(length) }
    }

    /// Writes the fragment into `out`, which is as long as [`Marshal::length`] says, as it will lie at `offset`.
    /// Returns its checksum.
    pub(crate) fn encode(&self, offset: u64, out: &mut [u8]) -> u32 {
        debug_assert_eq!(self.base().is_some(), self.previous.is_none());
        let descriptor = self.base().and_then(NodeRef::descriptor);
        let descriptor = descriptor.unwrap_or(PageDescriptor { tree: 0, low_key: &[], root: false });
        write_u32(out, 4, MAGIC);
        write_u32(out, 8, out.len() as u32);
        write_u32(out, 12, self.nodes.len() as u32);
        write_u64(out, 16, self.page.0);
        write_u64(out, 24, offset);
        write_u64(out, 32, self.previous.map_or(0, FlashAddress::to_raw));
        let mut at = self.header_bytes();
        if at == HEADER_BYTES {
            write_u32(out, 40, self.adopts().len() as u32);
            write_u32(out, 44, descriptor.low_key.len() as u32);
            write_u32(out, 48, descriptor.tree);
            write_u32(out, 52, if descriptor.root { ROOT } else { 0 });
            write_u32(out, 56, self.disowns().len() as u32);
            write_u32(out, 60, self.packed.as_ref().map_or(0, |packed| packed.len() as u32));
        }
        for node in self.nodes {
            write_u32(out, at, node.payload().len() as u32);
            at += 4;
        }
        for page in self.adopts().iter().chain(self.disowns()) {
            write_u64(out, at, page.0);
            at += 8;
        }
        let plain = self.nodes.iter().map(|node| node.payload()).filter(|_| self.packed.is_none());
        for bytes in std::iter::once(descriptor.low_key).chain(self.packed.as_deref()).chain(plain) {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        out[at..].fill(0);
        let crc = crc32c::crc32c(&out[4..]);
        write_u32(out, 0, crc);
        crc
    }
}

/// A fragment that has been read and checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment<'a> {
    bytes: &'a [u8],
    /// Where the node lengths end, which follow the header.
    adopts_at: usize,
    disowns_at: usize,
    low_key_at: usize,
    payloads_at: usize,
}

/// Where the parts of a fragment that has been checked lie in its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    length: usize,
    adopts_at: usize,
    disowns_at: usize,
    low_key_at: usize,
    payloads_at: usize,
}

impl<'a> Fragment<'a> {
    pub(crate) fn layout(&self) -> Layout {
        let &Fragment { bytes, adopts_at, disowns_at, low_key_at, payloads_at } = self;
        Layout { length: bytes.len(), adopts_at, disowns_at, low_key_at, payloads_at }
    }

    /// The fragment in the bytes in which it was checked before.
    pub(crate) fn checked(bytes: &'a [u8], layout: Layout) -> Fragment<'a> {
        let Layout { length, adopts_at, disowns_at, low_key_at, payloads_at } = layout;
        Fragment { bytes: &bytes[..length], adopts_at, disowns_at, low_key_at, payloads_at }
    }

    /// The bytes of the fragment at the start of `bytes`, which lies at `offset` of the store, and may be followed by other bytes: all that somebody has written there,
    /// whatever that is.
    pub(crate) fn written(bytes: &'a [u8], offset: u64) -> Result<&'a [u8], Defect> {
        if bytes.len() < SHORT_HEADER_BYTES {
            return Err(Defect::new(0, "a fragment", format_args!("{} bytes", bytes.len())));
        }
        if read_u32(bytes, 4) != MAGIC {
            return Err(Defect::new(4, "magic DFRG", format_args!("{:#010x}", read_u32(bytes, 4))));
        }
        let length = read_u32(bytes, 8) as usize;
        if length < SHORT_HEADER_BYTES
            || length > bytes.len()
            || length as u64 > LENGTH_MAX
            || FlashAddress::padded_length(length as u64) != length as u64
        {
            return Err(Defect::new(8, format_args!("a length up to {}", bytes.len()), length));
        }
        let bytes = &bytes[..length];
        let crc = crc32c::crc32c(&bytes[4..]);
        if read_u32(bytes, 0) != crc && !is_planted(Canary::TrustFragments) {
            let found = format!("checksum {crc:#010x}");
            return Err(Defect::new(0, format_args!("checksum {:#010x}", read_u32(bytes, 0)), found));
        }
        if read_u64(bytes, 24) != offset {
            let found = format!("the fragment of {:#x}", read_u64(bytes, 24));
            return Err(Defect::new(24, format_args!("the fragment of {offset:#x}"), found));
        }
        Ok(bytes)
    }

    /// Checks the fragment at the start of `bytes`, which lies at `offset` of the store, and may be followed by
    /// other bytes. Nothing that it says is believed before its checksum is right.
    pub(crate) fn decode(bytes: &'a [u8], offset: u64) -> Result<Fragment<'a>, Defect> {
        let bytes = Fragment::written(bytes, offset)?;
        let length = bytes.len();
        // From here on a defect means that a fragment was written wrongly.
        let page = PageId(read_u64(bytes, 16));
        if !page.can_be() {
            return Err(Defect::new(16, "a page", page));
        }
        let nodes = u64::from(read_u32(bytes, 12));
        let previous = read_u64(bytes, 32);
        if previous == 0 && length < HEADER_BYTES {
            return Err(Defect::new(8, "a full fragment", format_args!("{length} bytes")));
        }
        let counted = |at| if previous == 0 { u64::from(read_u32(bytes, at)) } else { 0 };
        let adopts_at = header_bytes(previous == 0) as u64 + 4 * nodes;
        let disowns_at = adopts_at + 8 * counted(40);
        let low_key_at = disowns_at + 8 * counted(56);
        let payloads_at = low_key_at + counted(44);
        if nodes == 0
            || payloads_at > length as u64
            || (previous != 0 && FlashAddress::from_raw(previous).is_none())
        {
            return Err(Defect::new(12, "counts that fit the length", format_args!("{nodes} nodes")));
        }
        let fragment = Fragment {
            bytes,
            adopts_at: adopts_at as usize,
            disowns_at: disowns_at as usize,
            low_key_at: low_key_at as usize,
            payloads_at: payloads_at as usize,
        };
        let plain = fragment.plain_bytes();
        let payloads = fragment.packed_bytes().map_or(plain, |packed| packed as u64);
        if payloads_at + payloads > length as u64 || plain > (payloads * EXPANSION_MAX).min(PLAIN_BYTES_MAX) {
            return Err(Defect::new(64, "payloads that fit the length", format_args!("{payloads} bytes")));
        }
        Ok(fragment)
    }

    /// Bytes of the payloads as they lie here, if they are compressed.
    fn packed_bytes(&self) -> Option<usize> {
        let is_full = self.previous().is_none();
        is_full.then(|| read_u32(self.bytes, 60) as usize).filter(|&packed| packed > 0)
    }

    /// Bytes of the payloads, uncompressed.
    fn plain_bytes(&self) -> u64 {
        self.lengths().map(|length| length as u64).sum()
    }

    /// The payloads one behind the other, if they are compressed here.
    pub(crate) fn unpack(&self) -> Result<Option<Vec<u8>>, Defect> {
        let Some(packed) = self.packed_bytes() else { return Ok(None) };
        let packed = &self.bytes[self.payloads_at..self.payloads_at + packed];
        let length = self.plain_bytes() as usize;
        let expected = || format!("{length} bytes, compressed");
        let mut plain = vec![0; length];
        match lz4_flex::block::decompress_into(packed, &mut plain) {
            Ok(bytes) if bytes == length => Ok(Some(plain)),
            Ok(bytes) => Err(Defect::new(60, expected(), bytes)),
            Err(error) => Err(Defect::new(60, expected(), error)),
        }
    }

    pub(crate) fn page(&self) -> PageId {
        PageId(read_u64(self.bytes, 16))
    }

    pub(crate) fn crc(&self) -> u32 {
        read_u32(self.bytes, 0)
    }

    pub(crate) fn address(&self) -> FlashAddress {
        FlashAddress::new(read_u64(self.bytes, 24), self.bytes.len() as u64)
    }

    /// The fragment with what is below; `None` if this one is full.
    pub(crate) fn previous(&self) -> Option<FlashAddress> {
        FlashAddress::from_raw(read_u64(self.bytes, 32))
    }

    /// What a full fragment says of its page.
    pub(crate) fn descriptor(&self) -> Option<PageDescriptor<'a>> {
        self.previous().is_none().then(|| PageDescriptor {
            tree: read_u32(self.bytes, 48),
            low_key: &self.bytes[self.low_key_at..self.payloads_at],
            root: read_u32(self.bytes, 52) & ROOT != 0,
        })
    }

    pub(crate) fn adopts(&self) -> impl Iterator<Item = PageId> + 'a {
        self.pages(self.adopts_at..self.disowns_at)
    }

    pub(crate) fn disowns(&self) -> impl Iterator<Item = PageId> + 'a {
        self.pages(self.disowns_at..self.low_key_at)
    }

    fn pages(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = PageId> + 'a {
        self.bytes[range].chunks_exact(8).map(|page| PageId(read_u64(page, 0)))
    }

    fn lengths(&self) -> impl Iterator<Item = usize> + use<'a> {
        let bytes = self.bytes;
        bytes[header_bytes(self.previous().is_none())..self.adopts_at]
            .chunks_exact(4)
            .map(|length| read_u32(length, 0) as usize)
    }

    /// The payloads, newest first, with what [`Fragment::unpack`] has given.
    pub(crate) fn payloads<'p>(self, unpacked: Option<&'p [u8]>) -> impl Iterator<Item = &'p [u8]>
    where
        'a: 'p,
    {
        let bytes: &'p [u8] = unpacked.unwrap_or_else(|| &self.bytes[self.payloads_at..]);
        let mut at = 0;
        self.lengths().map(move |length| {
            at += length;
            &bytes[at - length..at]
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::node::OwnedNode;

    fn encode(marshal: &Marshal<'_, '_>, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0xee; marshal.length().unwrap() as usize];
        let crc = marshal.encode(offset, &mut bytes);
        assert_eq!(crc, read_u32(&bytes, 0));
        bytes
    }

    #[test]
    fn a_fragment_survives_the_way_to_flash_and_back() {
        let descriptor = PageDescriptor { tree: 7, low_key: b"low", root: true };
        let base = OwnedNode::heir(b"base payload", descriptor, &[PageId(5), PageId(6)], &[PageId(7)]);
        let delta = OwnedNode::delta(b"delta");
        let nodes = [delta.as_ref(), base.as_ref()];
        let marshal = Marshal { page: PageId(3), nodes: &nodes, previous: None, packed: None };
        let bytes = encode(&marshal, 8192);
        let fragment = Fragment::decode(&bytes, 8192).unwrap();
        assert_eq!(fragment.page(), PageId(3));
        assert_eq!(fragment.previous(), None);
        assert_eq!(fragment.descriptor(), Some(descriptor));
        assert_eq!(fragment.adopts().collect::<Vec<_>>(), [PageId(5), PageId(6)]);
        assert_eq!(fragment.disowns().collect::<Vec<_>>(), [PageId(7)]);
        assert_eq!(fragment.unpack(), Ok(None));
        assert_eq!(fragment.payloads(None).collect::<Vec<_>>(), [b"delta".as_slice(), b"base payload"]);
        assert_eq!(fragment.address(), FlashAddress::new(8192, bytes.len() as u64));

        // Written a second time, the base says nothing of its kin.
        base.as_ref().set_flash(FlashAddress::new(8192, 128));
        let bytes = encode(&marshal, 16384);
        let fragment = Fragment::decode(&bytes, 16384).unwrap();
        assert_eq!((fragment.adopts().count(), fragment.disowns().count()), (0, 0));
        assert_eq!(fragment.payloads(None).count(), 2);

        let previous = Some(FlashAddress::new(4096, 128));
        let marshal = Marshal { page: PageId(3), nodes: &nodes[..1], previous, packed: None };
        let bytes = encode(&marshal, 8192);
        let fragment = Fragment::decode(&bytes, 8192).unwrap();
        assert_eq!((fragment.previous(), fragment.descriptor()), (previous, None));
    }

    /// What is on disks must stay readable: as `docs/format.md` says, byte for byte.
    #[test]
    fn formats_stay_as_they_are() {
        const OFFSET: u64 = 0x1112_1314_1510;
        let page = PageId(0x0102_0304);
        let full: [&[u8]; 22] = [
            b"\x24\x65\xa3\x07",             // checksum
            b"DFRG",                         // magic
            b"\x80\0\0\0",                   // length
            b"\x02\0\0\0",                   // nodes
            b"\x04\x03\x02\x01\0\0\0\0",     // page
            b"\x10\x15\x14\x13\x12\x11\0\0", // own offset
            b"\0\0\0\0\0\0\0\0",             // the fragment below
            b"\x02\0\0\0",                   // adopted pages
            b"\x03\0\0\0",                   // bytes of the low key
            b"\x24\x23\x22\x21",             // tree
            b"\x01\0\0\0",                   // first of its tree
            b"\x01\0\0\0",                   // disowned pages
            b"\0\0\0\0",                     // compressed bytes
            b"\x05\0\0\0",                   // bytes of a payload
            b"\x0c\0\0\0",                   // bytes of a payload
            b"\x34\x33\x32\x31\0\0\0\0",     // adopted
            b"\x38\x37\x36\x35\0\0\0\0",     // adopted
            b"\x44\x43\x42\x41\0\0\0\0",     // disowned
            b"low",                          // low key
            b"delta",                        // a payload
            b"base payload",                 // a payload
            &[0; 12],
        ];
        let compressed: [&[u8]; 17] = [
            b"\x92\xcb\x61\x83",             // checksum
            b"DFRG",                         // magic
            b"\x60\0\0\0",                   // length
            b"\x02\0\0\0",                   // nodes
            b"\x04\x03\x02\x01\0\0\0\0",     // page
            b"\x10\x15\x14\x13\x12\x11\0\0", // own offset
            b"\0\0\0\0\0\0\0\0",             // the fragment below
            b"\0\0\0\0",                     // adopted pages
            b"\0\0\0\0",                     // bytes of the low key
            b"\x24\x23\x22\x21",             // tree
            b"\0\0\0\0",                     // first of its tree
            b"\0\0\0\0",                     // disowned pages
            b"\x0b\0\0\0",                   // compressed bytes
            b"\x04\0\0\0",                   // bytes of a payload
            b"\x10\0\0\0",                   // bytes of a payload
            b"\x29ab\x02\0\x50babab",        // the payloads
            &[0; 13],
        ];
        let deltas: [&[u8]; 11] = [
            b"\x2d\x2d\x47\xfb",                 // checksum
            b"DFRG",                             // magic
            b"\x40\0\0\0",                       // length
            b"\x02\0\0\0",                       // nodes
            b"\x04\x03\x02\x01\0\0\0\0",         // page
            b"\x10\x15\x14\x13\x12\x11\0\0",     // own offset
            b"\x03\x51\x55\x51\x4d\x49\x45\x01", // the fragment below
            b"\x05\0\0\0",                       // bytes of a payload
            b"\x0b\0\0\0",                       // bytes of a payload
            b"newer",                            // a payload
            b"older delta",                      // a payload
        ];

        let descriptor = PageDescriptor { tree: 0x2122_2324, low_key: b"low", root: true };
        let adopts = [PageId(0x3132_3334), PageId(0x3536_3738)];
        let base = OwnedNode::heir(b"base payload", descriptor, &adopts, &[PageId(0x4142_4344)]);
        let delta = OwnedNode::delta(b"delta");
        let nodes = [delta.as_ref(), base.as_ref()];
        let marshal = Marshal { page, nodes: &nodes, previous: None, packed: None };
        assert_eq!(encode(&marshal, OFFSET), full.concat());
        let bytes = full.concat();
        let fragment = Fragment::decode(&bytes, OFFSET).unwrap();
        assert_eq!((fragment.page(), fragment.address()), (page, FlashAddress::new(OFFSET, 128)));
        assert_eq!((fragment.previous(), fragment.descriptor()), (None, Some(descriptor)));
        assert_eq!(fragment.adopts().collect::<Vec<_>>(), adopts);
        assert_eq!(fragment.disowns().collect::<Vec<_>>(), [PageId(0x4142_4344)]);
        assert_eq!(fragment.unpack(), Ok(None));
        assert_eq!(fragment.payloads(None).collect::<Vec<_>>(), [&b"delta"[..], b"base payload"]);

        // Another compressor may do it otherwise; what it has done comes out as it went in.
        let descriptor = PageDescriptor { tree: 0x2122_2324, low_key: b"", root: false };
        let base = OwnedNode::base(b"abababababababab", descriptor, &[]);
        let delta = OwnedNode::delta(b"abab");
        let nodes = [delta.as_ref(), base.as_ref()];
        let packed = Some(b"\x29ab\x02\0\x50babab".to_vec());
        let marshal = Marshal { page, nodes: &nodes, previous: None, packed };
        assert_eq!(encode(&marshal, OFFSET), compressed.concat());
        let bytes = compressed.concat();
        let fragment = Fragment::decode(&bytes, OFFSET).unwrap();
        assert_eq!((fragment.page(), fragment.descriptor()), (page, Some(descriptor)));
        assert_eq!((fragment.adopts().count(), fragment.disowns().count()), (0, 0));
        let unpacked = fragment.unpack().unwrap();
        let payloads: Vec<_> = fragment.payloads(unpacked.as_deref()).collect();
        assert_eq!(payloads, [&b"abab"[..], b"abababababababab"]);

        let [newer, older] = [&b"newer"[..], b"older delta"].map(OwnedNode::delta);
        let nodes = [newer.as_ref(), older.as_ref()];
        let previous = Some(FlashAddress::new(0x5152_5354_5550, 0x8100));
        let marshal = Marshal { page, nodes: &nodes, previous, packed: None };
        assert_eq!(encode(&marshal, OFFSET), deltas.concat());
        let bytes = deltas.concat();
        let fragment = Fragment::decode(&bytes, OFFSET).unwrap();
        assert_eq!((fragment.page(), fragment.address()), (page, FlashAddress::new(OFFSET, 64)));
        assert_eq!((fragment.previous(), fragment.descriptor()), (previous, None));
        assert_eq!(fragment.payloads(None).collect::<Vec<_>>(), [&b"newer"[..], b"older delta"]);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let base =
            OwnedNode::base(b"payload", PageDescriptor { tree: 1, low_key: b"k", root: false }, &[PageId(9)]);
        let nodes = [base.as_ref()];
        let marshal = Marshal { page: PageId(1), nodes: &nodes, previous: None, packed: None };
        let bytes = encode(&marshal, 4096);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Fragment::decode(&bad, 4096).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(Fragment::decode(&bytes[..length], 4096).is_err(), "length {length}");
        }
        assert!(Fragment::decode(&bytes, 8192).is_err(), "misplaced");
    }

    #[test]
    fn payloads_are_compressed_where_that_saves_something() {
        let descriptor = PageDescriptor { tree: 7, low_key: b"low", root: false };
        let base = OwnedNode::base(&[7; 3000], descriptor, &[PageId(5)]);
        let delta = OwnedNode::delta(&[8; 500]);
        let nodes = [delta.as_ref(), base.as_ref()];
        let mut marshal = Marshal { page: PageId(3), nodes: &nodes, previous: None, packed: None };
        let plain = marshal.length().unwrap();
        let saved = marshal.pack().unwrap() as u64;
        assert!(saved > 3000 && marshal.length().unwrap() < plain - saved + 64);
        let bytes = encode(&marshal, 8192);
        let fragment = Fragment::decode(&bytes, 8192).unwrap();
        assert_eq!((fragment.descriptor(), fragment.adopts().count()), (Some(descriptor), 1));
        let unpacked = fragment.unpack().unwrap().unwrap();
        assert_eq!(fragment.payloads(Some(&unpacked)).collect::<Vec<_>>(), [&[8; 500][..], &[7; 3000]]);

        // What says too much or too little, with a checksum that is right, is an error.
        for wrong in [3001, 2999] {
            let mut bytes = bytes.clone();
            write_u32(&mut bytes, 68, wrong);
            let crc = crc32c::crc32c(&bytes[4..]);
            write_u32(&mut bytes, 0, crc);
            assert!(Fragment::decode(&bytes, 8192).unwrap().unpack().is_err(), "{wrong}");
        }

        // Neither a delta fragment nor what looks random.
        let mut random = 1u64;
        let noise = std::iter::repeat_with(|| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 56) as u8
        });
        let noise: Vec<u8> = noise.take(3000).collect();
        let base = OwnedNode::base(&noise, descriptor, &[]);
        let nodes = [base.as_ref()];
        assert_eq!(Marshal { page: PageId(3), nodes: &nodes, previous: None, packed: None }.pack(), None);
        let (nodes, previous) = ([delta.as_ref()], Some(FlashAddress::new(4096, 128)));
        assert_eq!(Marshal { page: PageId(3), nodes: &nodes, previous, packed: None }.pack(), None);
    }

    #[test]
    fn a_fragment_is_as_long_as_its_parts() {
        for (payload, low_key, kin, nodes) in
            [(60, 0, 0, 1), (0, 60, 0, 1), (61, 0, 0, 1), (100, 7, 3, 2), (9, 1, 1, 3)]
        {
            let low_key = vec![b'k'; low_key];
            let pages: Vec<_> = (1..=2 * kin).map(PageId).collect();
            let (adopts, disowns) = pages.split_at(kin as usize);
            let descriptor = PageDescriptor { tree: 7, low_key: &low_key, root: false };
            let base = OwnedNode::heir(&vec![1; payload], descriptor, adopts, disowns);
            let deltas: Vec<_> = (1..nodes).map(|_| OwnedNode::delta(b"delta")).collect();
            let all: Vec<_> = deltas.iter().chain([&base]).map(OwnedNode::as_ref).collect();
            let marshal = Marshal { page: PageId(3), nodes: &all, previous: None, packed: None };
            let parts = 64 + 4 * nodes + low_key.len() + 16 * kin as usize + payload + 5 * (nodes - 1);
            assert_eq!(marshal.length(), Ok(parts.next_multiple_of(16) as u64));
            let bytes = encode(&marshal, 8192);
            let fragment = Fragment::decode(&bytes, 8192).unwrap();
            assert_eq!(fragment.payloads(None).map(<[u8]>::len).sum::<usize>(), payload + 5 * (nodes - 1));
            assert_eq!(
                (fragment.adopts().count(), fragment.disowns().count()),
                (adopts.len(), disowns.len())
            );
            assert_eq!(fragment.descriptor(), Some(descriptor));
        }
    }

    #[test]
    fn what_saves_less_than_an_eighth_is_not_compressed() {
        let mut random = 1u64;
        let mut noise = || {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 56) as u8
        };
        let descriptor = PageDescriptor { tree: 7, low_key: b"low", root: false };
        for (plain, same, is_packed) in [(2000, 100, false), (2000, 200, false), (2000, 320, true)] {
            let payload: Vec<u8> = (0..plain).map(|at| if at < same { 7 } else { noise() }).collect();
            let base = OwnedNode::base(&payload, descriptor, &[]);
            let nodes = [base.as_ref()];
            let mut marshal = Marshal { page: PageId(3), nodes: &nodes, previous: None, packed: None };
            let saved = marshal.pack();
            assert_eq!(saved.is_some(), is_packed, "{same} of {plain} are the same");
            assert!(saved.is_none_or(|saved| plain - saved == marshal.packed.unwrap().len()));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_though_the_checksum_is_right() {
        let refused = |fields: &[(usize, u32)], length: usize| {
            let mut bytes = vec![0; 128];
            for &(offset, value) in [(4, MAGIC), (8, 128), (12, 1), (16, 7), (24, 4096)].iter().chain(fields)
            {
                write_u32(&mut bytes, offset, value);
            }
            let crc = crc32c::crc32c(&bytes[4..length]);
            write_u32(&mut bytes, 0, crc);
            Fragment::decode(&bytes, 4096).err().map(|defect| defect.offset)
        };
        assert_eq!(refused(&[], 128), None);
        // A length that no address says, and none at all.
        assert_eq!(refused(&[(8, 100)], 100), Some(8));
        assert_eq!(refused(&[(8, 0)], 128), Some(8));
        assert_eq!(refused(&[(12, 0)], 128), Some(12));
        // No page has such identifiers.
        assert_eq!((refused(&[(16, 0)], 128), refused(&[(20, 1)], 128)), (Some(16), Some(16)));
        assert_eq!(refused(&[(16, u32::MAX)], 128), None);
        // Nodes, adopted pages, disowned pages and a low key that fill it, and a little more.
        for (fill, more) in [
            ([(12, 16), (40, 0), (56, 0), (44, 0)], (12, 17)),
            ([(12, 2), (40, 7), (56, 0), (44, 0)], (40, 8)),
            ([(12, 2), (40, 0), (56, 7), (44, 0)], (56, 8)),
            ([(12, 1), (40, 0), (56, 0), (44, 60)], (44, 61)),
            ([(12, 2), (40, 3), (56, 3), (44, 8)], (44, 9)),
        ] {
            assert_eq!(refused(&fill, 128), None, "{fill:?}");
            assert_eq!(refused(&[&fill[..], &[more]].concat(), 128), Some(12), "{more:?}");
        }
        // A fragment below that is no address, and one that is.
        assert_eq!(refused(&[(32, 2)], 128), Some(12));
        let below = FlashAddress::new(1 << 20, 64).to_raw();
        assert_eq!(refused(&[(32, below as u32), (36, (below >> 32) as u32)], 128), None);
        // Payloads as long as the rest, and a byte more; and compressed ones, which become at most 255 times as long.
        assert_eq!((refused(&[(64, 60)], 128), refused(&[(64, 61)], 128)), (None, Some(64)));
        assert_eq!((refused(&[(60, 60), (64, 61)], 128), refused(&[(60, 61)], 128)), (None, Some(64)));
        assert_eq!(refused(&[(60, 4), (64, 1020)], 128), None);
        assert_eq!(refused(&[(60, 4), (64, 1021)], 128), Some(64));
    }

    #[test]
    fn fuzz_fragments() {
        let descriptor = PageDescriptor { tree: 7, low_key: b"low", root: true };
        let base = OwnedNode::heir(&[7; 900], descriptor, &[PageId(5), PageId(6)], &[PageId(7)]);
        let delta = OwnedNode::delta(b"delta");
        let (full, part) = ([delta.as_ref(), base.as_ref()], [delta.as_ref()]);
        let mut packed = Marshal { page: PageId(3), nodes: &full, previous: None, packed: None };
        packed.pack();
        let previous = Some(FlashAddress::new(8192, 128));
        let corpus = [
            encode(&Marshal { page: PageId(3), nodes: &full, previous: None, packed: None }, 4096),
            encode(&packed, 4096),
            encode(&Marshal { page: PageId(4), nodes: &part, previous, packed: None }, 4096),
        ];
        let mend = |bytes: &mut Vec<u8>| {
            let length = bytes.len() / 64 * 64;
            if length >= HEADER_BYTES {
                bytes.truncate(length);
                write_u32(bytes, 4, MAGIC);
                write_u32(bytes, 8, length as u32);
                write_u64(bytes, 24, 4096);
                let crc = crc32c::crc32c(&bytes[4..]);
                write_u32(bytes, 0, crc);
            }
        };
        // What is compressed may become so many times as long, and no more.
        let allowed_per_byte = EXPANSION_MAX as usize + 32;
        let fuzz = deuteron_fuzz::Fuzz {
            allowed_per_byte,
            ..deuteron_fuzz::Fuzz::new("llama-fragment", &corpus, 100_000)
        };
        fuzz.run(mend, |bytes| match Fragment::decode(bytes, 4096) {
            Ok(fragment) => fragment.unpack().is_ok_and(|unpacked| {
                let _ = (fragment.adopts().count(), fragment.disowns().count(), fragment.descriptor());
                fragment.payloads(unpacked.as_deref()).map(<[u8]>::len).sum::<usize>() > 0
            }),
            Err(_) => false,
        });
    }

    proptest::proptest! {
        /// Bytes with a right checksum, as a faulty writer might leave them: an error or a fragment, never a panic.
        #[test]
        fn decoding_never_panics(
            mut bytes in proptest::collection::vec(0u8..4, 0..512),
            counts in proptest::collection::vec(0u32..70, 7),
        ) {
            bytes.resize(bytes.len().next_multiple_of(64).max(64), 0);
            let length = bytes.len() as u32;
            write_u32(&mut bytes, 4, MAGIC);
            write_u32(&mut bytes, 8, length);
            write_u64(&mut bytes, 24, 4096);
            for (offset, count) in [12, 40, 44, 56, 60, 64, 68].into_iter().zip(counts) {
                if offset + 4 <= bytes.len() {
                    write_u32(&mut bytes, offset, count);
                }
            }
            let crc = crc32c::crc32c(&bytes[4..]);
            write_u32(&mut bytes, 0, crc);
            if let Ok(fragment) = Fragment::decode(&bytes, 4096) {
                if let Ok(unpacked) = fragment.unpack() {
                    let _ = fragment.payloads(unpacked.as_deref()).count();
                }
                let _ = (fragment.adopts().count(), fragment.disowns().count(), fragment.descriptor());
            }
        }
    }
}
