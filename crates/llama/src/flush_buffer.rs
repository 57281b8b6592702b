//! Flush buffers: the unit in which fragments are written.
//!
//! A buffer lies in one segment, starts and ends at multiples of 4096 bytes, and is written by one durable write.
//! There are two [streams](Stream) of segments, so the next buffer lies behind the last one of either, or, where its
//! segment has too little room left, at the start of that stream's next segment. The sequence number says which is next.
//! Integers are little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of bytes 4 to 128 |
//! | 4 | 4 | magic `DBUF` |
//! | 8 | 4 | format version, 6 |
//! | 12 | 4 | number of fragments, at least 1 |
//! | 16 | 8 | store identifier |
//! | 24 | 8 | sequence number: one more than the previous buffer's |
//! | 32 | 8 | incarnation: grows with every opening of the store |
//! | 40 | 8 | own offset in the logical store |
//! | 48 | 8 | length, a multiple of 4096 |
//! | 56 | 4 | chain: the previous buffer's CRC at offset 0 |
//! | 60 | 4 | CRC-32C of the fragments' CRCs, in order |
//! | 64 | 16 | the two marks, as the user of the store had [raised](crate::Llama::raise_mark) them |
//! | 80 | | zeros |
//! | 128 | | fragments, one behind the other, then zeros |

use crate::fragment::{Defect, Fragment, read_u32, read_u64, write_u32, write_u64};

const MAGIC: u32 = u32::from_le_bytes(*b"DBUF");
/// The version of buffers and segments. Version 4 had one mark, version 3 none, version 2 a single stream.
pub(crate) const FORMAT_VERSION: u32 = 6;

/// Whether this release reads `version`.
pub(crate) fn is_known(version: u32) -> bool {
    version == FORMAT_VERSION
}

/// Sequence numbers, incarnations and numbers of images are below: they only grow, by one at a time.
pub(crate) const COUNTS_END: u64 = 1 << 62;

/// How many [marks](crate::Llama::raise_mark) a store has.
pub const MARKS: usize = 2;

/// How many streams there are.
pub(crate) const STREAMS: usize = 2;

/// Where a buffer goes: what changes often and what does not are kept in segments of their own, so that the former are
/// soon empty, and the latter need not be cleaned. A segment's number says its stream: `number % 2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Pages that have changed, or are likely to change soon.
    Fresh = 0,
    /// Pages that the cleaner moves and that have not changed for long.
    Moved = 1,
}

/// Bytes of the header: a multiple of 16, as fragments begin at such.
pub(crate) const HEADER_BYTES: usize = 128;

/// The header of a flush buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferHeader {
    pub(crate) store: u64,
    pub(crate) sequence: u64,
    pub(crate) incarnation: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) fragments: u32,
    pub(crate) chain: u32,
    pub(crate) body_crc: u32,
    pub(crate) marks: [u64; MARKS],
}

impl BufferHeader {
    /// Writes the header; returns its checksum, which the next buffer chains to.
    pub(crate) fn encode(&self, out: &mut [u8]) -> u32 {
        write_u32(out, 4, MAGIC);
        write_u32(out, 8, FORMAT_VERSION);
        write_u32(out, 12, self.fragments);
        write_u64(out, 16, self.store);
        write_u64(out, 24, self.sequence);
        write_u64(out, 32, self.incarnation);
        write_u64(out, 40, self.offset);
        write_u64(out, 48, self.length);
        write_u32(out, 56, self.chain);
        write_u32(out, 60, self.body_crc);
        for (which, mark) in self.marks.into_iter().enumerate() {
            write_u64(out, 64 + 8 * which, mark);
        }
        out[64 + 8 * MARKS..HEADER_BYTES].fill(0);
        let crc = crc32c::crc32c(&out[4..HEADER_BYTES]);
        write_u32(out, 0, crc);
        crc
    }

    /// The header and its checksum, if there is one at the start of `bytes`, which lie at `offset` of `store`, and
    /// the buffer ends at or before `limit`.
    pub(crate) fn decode(bytes: &[u8], store: u64, offset: u64, limit: u64) -> Option<(BufferHeader, u32)> {
        if bytes.len() < HEADER_BYTES || read_u32(bytes, 4) != MAGIC || !is_known(read_u32(bytes, 8)) {
            return None;
        }
        let crc = crc32c::crc32c(&bytes[4..HEADER_BYTES]);
        let header = BufferHeader {
            store: read_u64(bytes, 16),
            sequence: read_u64(bytes, 24),
            incarnation: read_u64(bytes, 32),
            offset: read_u64(bytes, 40),
            length: read_u64(bytes, 48),
            fragments: read_u32(bytes, 12),
            chain: read_u32(bytes, 56),
            body_crc: read_u32(bytes, 60),
            marks: std::array::from_fn(|which| read_u64(bytes, 64 + 8 * which)),
        };
        let good = read_u32(bytes, 0) == crc
            && header.store == store
            && header.offset == offset
            && header.length > 0
            && header.sequence.max(header.incarnation) < COUNTS_END
            && header.length.is_multiple_of(deuteron_device::BLOCK_BYTES as u64)
            && offset.checked_add(header.length).is_some_and(|end| end <= limit);
        good.then_some((header, crc))
    }

    /// Whether all of the buffer in `bytes` is what somebody has written, whatever that is: it is not torn.
    pub(crate) fn is_whole(&self, bytes: &[u8]) -> bool {
        let (mut at, mut body_crc) = (HEADER_BYTES, 0);
        for _ in 0..self.fragments {
            let rest = bytes.get(at..).unwrap_or_default();
            let Ok(fragment) = Fragment::written(rest, self.offset + at as u64) else { return false };
            body_crc = crc32c::crc32c_append(body_crc, &fragment[..4]);
            at += fragment.len();
        }
        body_crc == self.body_crc
    }

    /// Checks all fragments of the buffer in `bytes` and hands them out.
    pub(crate) fn fragments<'a>(&self, bytes: &'a [u8]) -> Result<Vec<Fragment<'a>>, Defect> {
        let mut fragments = Vec::new();
        let mut at = HEADER_BYTES;
        let mut body_crc = 0;
        for _ in 0..self.fragments {
            let rest = bytes.get(at..).unwrap_or_default();
            let fragment = Fragment::decode(rest, self.offset + at as u64)
                .map_err(|defect| Defect { offset: at as u64 + defect.offset, ..defect })?;
            body_crc = crc32c::crc32c_append(body_crc, &fragment.crc().to_le_bytes());
            at += fragment.address().length() as usize;
            fragments.push(fragment);
        }
        if body_crc != self.body_crc {
            let found = format!("fragments {body_crc:#010x}");
            return Err(Defect::new(60, format_args!("fragments {:#010x}", self.body_crc), found));
        }
        Ok(fragments)
    }
}

/// Where a buffer starts, and what the buffers before it lead one to expect there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// Ordered by this: both offsets grow with it.
    pub(crate) sequence: u64,
    /// Where the buffer would be, for each stream.
    pub(crate) offsets: [u64; STREAMS],
    pub(crate) chain: u32,
}

impl Position {
    /// The position behind a buffer of `stream` that ends at `end`.
    pub(crate) fn next(self, stream: usize, end: u64, chain: u32) -> Position {
        let mut offsets = self.offsets;
        offsets[stream] = end;
        Position { sequence: self.sequence + 1, offsets, chain }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::fragment::Marshal;
    use crate::node::{OwnedNode, PageDescriptor};
    use crate::page_id::PageId;

    const STORE: u64 = 7;
    const OFFSET: u64 = 3 << 20;
    const LENGTH: u64 = 8192;

    fn header() -> BufferHeader {
        BufferHeader {
            store: STORE,
            sequence: 11,
            incarnation: 12,
            offset: OFFSET,
            length: LENGTH,
            fragments: 13,
            chain: 14,
            body_crc: 15,
            marks: [u64::MAX - 16, u64::MAX - 17],
        }
    }

    fn encoded(header: BufferHeader) -> [u8; HEADER_BYTES] {
        let mut bytes = [0xee; HEADER_BYTES];
        header.encode(&mut bytes);
        bytes
    }

    fn decoded(bytes: &[u8]) -> Option<BufferHeader> {
        let (header, crc) = BufferHeader::decode(bytes, STORE, OFFSET, OFFSET + LENGTH)?;
        assert_eq!(crc, read_u32(bytes, 0));
        Some(header)
    }

    #[test]
    fn a_header_says_what_it_was_given() {
        let bytes = encoded(header());
        assert_eq!(decoded(&bytes), Some(header()));
        assert!(bytes[80..].iter().all(|&byte| byte == 0));
        assert!((0..HEADER_BYTES).all(|length| decoded(&bytes[..length]).is_none()));
    }

    /// What is on disks must stay readable: as `docs/format.md` says, byte for byte.
    #[test]
    fn formats_stay_as_they_are() {
        const OFFSET: u64 = 0x1112_1314_4000;
        let expected: [&[u8]; 35] = [
            b"\xa7\xde\xd7\x26",                 // checksum
            b"DBUF",                             // magic
            b"\x06\0\0\0",                       // version
            b"\x02\0\0\0",                       // fragments
            b"\x08\x07\x06\x05\x04\x03\x02\x01", // store
            b"\x28\x27\x26\x25\x24\x23\x22\x21", // sequence number
            b"\x38\x37\x36\x35\x34\x33\x32\x31", // incarnation
            b"\0\x40\x14\x13\x12\x11\0\0",       // own offset
            b"\0\x20\0\0\0\0\0\0",               // length
            b"\x44\x43\x42\x41",                 // the previous buffer's checksum
            b"\x15\xc3\x0a\x9a",                 // checksum of the fragments' checksums
            b"\x58\x57\x56\x55\x54\x53\x52\x51", // mark
            b"\x68\x67\x66\x65\x64\x63\x62\x61", // mark
            &[0; 48],
            b"\xa6\xee\xa8\xd1",             // checksum
            b"DFRG",                         // magic
            b"\x30\0\0\0",                   // length
            b"\x01\0\0\0",                   // nodes
            b"\x01\0\0\0\0\0\0\0",           // page
            b"\x80\x40\x14\x13\x12\x11\0\0", // own offset
            b"\x09\0\x40\0\0\0\0\0",         // the fragment below
            b"\x03\0\0\0",                   // bytes of a payload
            b"one",                          // a payload
            &[0; 1],
            b"\xed\x28\x63\xe1",             // checksum
            b"DFRG",                         // magic
            b"\x30\0\0\0",                   // length
            b"\x01\0\0\0",                   // nodes
            b"\x02\0\0\0\0\0\0\0",           // page
            b"\xb0\x40\x14\x13\x12\x11\0\0", // own offset
            b"\x09\0\x80\0\0\0\0\0",         // the fragment below
            b"\x03\0\0\0",                   // bytes of a payload
            b"two",                          // a payload
            &[0; 1],
            &[0; 7968],
        ];
        let (mut bytes, mut at, mut body_crc) = (vec![0; LENGTH as usize], HEADER_BYTES, 0);
        for (page, payload) in [(1, b"one"), (2, b"two")] {
            let delta = OwnedNode::delta(payload);
            let previous = Some(crate::flash_address::FlashAddress::new(page << 12, 64));
            let nodes = [delta.as_ref()];
            let marshal = Marshal { page: PageId(page), nodes: &nodes, previous, packed: None };
            let length = marshal.length().unwrap() as usize;
            let crc = marshal.encode(OFFSET + at as u64, &mut bytes[at..at + length]);
            body_crc = crc32c::crc32c_append(body_crc, &crc.to_le_bytes());
            at += length;
        }
        let header = BufferHeader {
            store: 0x0102_0304_0506_0708,
            sequence: 0x2122_2324_2526_2728,
            incarnation: 0x3132_3334_3536_3738,
            offset: OFFSET,
            length: LENGTH,
            fragments: 2,
            chain: 0x4142_4344,
            body_crc,
            marks: [0x5152_5354_5556_5758, 0x6162_6364_6566_6768],
        };
        let crc = header.encode(&mut bytes);
        assert_eq!(bytes, expected.concat());
        let bytes = expected.concat();
        let decoded = BufferHeader::decode(&bytes, header.store, OFFSET, OFFSET + LENGTH);
        assert_eq!(decoded, Some((header, crc)));
        let fragments = header.fragments(&bytes).unwrap();
        let pages: Vec<_> = fragments.iter().map(|fragment| fragment.page()).collect();
        assert_eq!(pages, [PageId(1), PageId(2)]);
    }

    #[test]
    fn a_header_is_of_its_store_its_place_and_of_whole_blocks_that_fit() {
        let wrong = [
            BufferHeader { store: STORE + 1, ..header() },
            BufferHeader { offset: OFFSET + 4096, length: 4096, ..header() },
            BufferHeader { length: 0, ..header() },
            BufferHeader { length: 4096 + 64, ..header() },
            BufferHeader { length: LENGTH + 4096, ..header() },
            BufferHeader { sequence: COUNTS_END, ..header() },
            BufferHeader { incarnation: u64::MAX, ..header() },
            BufferHeader { length: u64::MAX / 4096 * 4096, ..header() },
        ];
        for wrong in wrong {
            assert_eq!(decoded(&encoded(wrong)), None, "{wrong:?}");
        }
        let shorter = BufferHeader { length: 4096, ..header() };
        assert_eq!(decoded(&encoded(shorter)), Some(shorter));
    }

    #[test]
    fn a_header_of_another_kind_or_version_is_none_though_its_checksum_is_right() {
        for (at, is_mended) in [(4, true), (8, true), (100, false)] {
            let mut bytes = encoded(header());
            bytes[at] ^= 1;
            if is_mended {
                let crc = crc32c::crc32c(&bytes[4..]);
                write_u32(&mut bytes, 0, crc);
            }
            assert_eq!(decoded(&bytes), None, "{at}");
        }
    }

    #[test]
    fn fuzz_flush_buffers() {
        let base =
            OwnedNode::base(&[7; 300], PageDescriptor { tree: 1, low_key: b"k", root: true }, &[PageId(9)]);
        let delta = OwnedNode::delta(b"delta");
        let corpus = [1, 2, 5].map(|fragments| {
            let (mut bytes, mut at, mut body_crc) = (vec![0; LENGTH as usize], HEADER_BYTES, 0);
            for number in 0..fragments {
                let nodes = [if number % 2 == 0 { base.as_ref() } else { delta.as_ref() }];
                let previous = (number % 2 == 1).then(|| crate::flash_address::FlashAddress::new(8192, 128));
                let marshal = Marshal { page: PageId(number + 1), nodes: &nodes, previous, packed: None };
                let length = marshal.length().unwrap() as usize;
                let crc = marshal.encode(OFFSET + at as u64, &mut bytes[at..at + length]);
                body_crc = crc32c::crc32c_append(body_crc, &crc.to_le_bytes());
                at += length;
            }
            BufferHeader { fragments: fragments as u32, body_crc, ..header() }.encode(&mut bytes);
            bytes
        });
        // As if a faulty writer had written it: all checksums are right, as far as one comes.
        let mend = |bytes: &mut Vec<u8>| {
            if bytes.len() < HEADER_BYTES {
                return;
            }
            let (mut at, mut body_crc) = (HEADER_BYTES, 0);
            while at + 40 <= bytes.len() {
                let length = read_u32(bytes, at + 8) as usize;
                if !(40..=bytes.len() - at).contains(&length) {
                    break;
                }
                write_u64(bytes, at + 24, OFFSET + at as u64);
                let crc = crc32c::crc32c(&bytes[at + 4..at + length]);
                write_u32(bytes, at, crc);
                body_crc = crc32c::crc32c_append(body_crc, &crc.to_le_bytes());
                at += length;
            }
            write_u32(bytes, 4, MAGIC);
            write_u32(bytes, 8, FORMAT_VERSION);
            write_u64(bytes, 16, STORE);
            write_u64(bytes, 40, OFFSET);
            write_u32(bytes, 60, body_crc);
            let crc = crc32c::crc32c(&bytes[4..HEADER_BYTES]);
            write_u32(bytes, 0, crc);
        };
        deuteron_fuzz::Fuzz::new("llama-buffer", &corpus, 50_000).run(mend, |bytes| {
            let decoded = BufferHeader::decode(bytes, STORE, OFFSET, OFFSET + bytes.len() as u64);
            decoded.is_some_and(|(header, _)| {
                let position =
                    Position { sequence: header.sequence, offsets: [0, OFFSET], chain: header.chain };
                let _ = position.next(1, OFFSET + header.length, 0);
                header.fragments(bytes).is_ok_and(|fragments| {
                    let adopted = fragments.iter().map(|fragment| fragment.adopts().count());
                    adopted.sum::<usize>() <= bytes.len()
                })
            })
        });
    }

    #[test]
    fn positions_follow_each_other_by_stream() {
        let first = Position { sequence: 5, offsets: [4096, 8192], chain: 1 };
        assert_eq!(first.next(1, 12_288, 2), Position { sequence: 6, offsets: [4096, 12_288], chain: 2 });
        assert_eq!(first.next(0, 12_288, 3), Position { sequence: 6, offsets: [12_288, 8192], chain: 3 });
    }

    #[test]
    fn fragments_lie_one_behind_the_other_and_a_defect_is_told_of_where_it_is() {
        let base = OwnedNode::base(b"base", PageDescriptor { tree: 1, low_key: b"k", root: true }, &[]);
        let nodes = [base.as_ref()];
        let (mut bytes, mut body_crc) = (vec![0; HEADER_BYTES + 2 * 128], 0);
        for (number, at) in [(1, HEADER_BYTES), (2, HEADER_BYTES + 128)] {
            let marshal = Marshal { page: PageId(number), nodes: &nodes, previous: None, packed: None };
            let crc = marshal.encode(OFFSET + at as u64, &mut bytes[at..at + 128]);
            body_crc = crc32c::crc32c_append(body_crc, &crc.to_le_bytes());
        }
        let header = BufferHeader { fragments: 2, body_crc, ..header() };
        let pages: Vec<_> =
            header.fragments(&bytes).unwrap().iter().map(|fragment| fragment.page().0).collect();
        assert_eq!(pages, [1, 2]);
        let other = BufferHeader { body_crc: body_crc ^ 1, ..header };
        assert_eq!(other.fragments(&bytes).unwrap_err().offset, 60);
        let more = BufferHeader { fragments: 3, ..header };
        assert_eq!(more.fragments(&bytes).unwrap_err().offset, bytes.len() as u64);
        // The second one's magic.
        bytes[HEADER_BYTES + 128 + 4] ^= 1;
        assert_eq!(header.fragments(&bytes).unwrap_err().offset, HEADER_BYTES as u64 + 128 + 4);
    }
}
