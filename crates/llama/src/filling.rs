//! [`Filling`]: the flush buffer that is being filled, by any number of threads at the same time.
//!
//! Whoever has pages to write *joins* it, with one try of the shared side of its lock, *reserves* room for one fragment after the other, by a
//! compare-and-swap, and copies each to where it has reserved. Nobody waits for anybody. Who finds no room, or has no more pages, *seals* it: nobody reserves any
//! more, and all leave. Then it is *closed*, under the flush lock and the exclusive side of its own, by who has sealed it or needs the flush lock before him.
//!
//! - **F1** A byte of the buffer is written by who has reserved it, and only as long as he has joined; all of it is read or written by who has the exclusive side.
//! - **F2** A seal is never taken away but under the exclusive side: what is reserved when a buffer is found sealed is all that it will hold.
//! - **F3** Rooms are reserved from the beginning to the end. So of two fragments of which one was reserved before the other was looked for, it lies before it:
//!   of those of one page, which are written under its claim, the older one, and an adoptee's before what adopts it.

use crate::flash_address::FlashAddress;
use crate::flush_buffer::HEADER_BYTES;
use crate::page_id::PageId;
use crate::sync::{AtomicU64, Mutex, Ordering};
use deuteron_device::{AlignedBuffer, BLOCK_BYTES};
use std::mem;
use std::slice;
use std::sync::PoisonError;

/// A fragment in the buffer, and what is to be noted of it under the flush lock.
pub(crate) struct Taken {
    pub(crate) page: PageId,
    pub(crate) address: FlashAddress,
    /// The fragment's checksum.
    pub(crate) crc: u32,
    /// The fragments of the page that are superseded by it.
    pub(crate) dead: Vec<FlashAddress>,
    /// Whether the page was updated since it was written last.
    pub(crate) has_changed: bool,
    /// The page's tree and low key, if nothing of it was written before.
    pub(crate) place: Option<(u32, Box<[u8]>)>,
    pub(crate) adopts: Vec<PageId>,
    pub(crate) disowns: Vec<PageId>,
    pub(crate) root: bool,
}

/// How much of a buffer is reserved, and whether it is sealed.
struct Reserved(AtomicU64);

/// Nothing more is reserved.
const SEALED: u64 = 1 << 63;

impl Reserved {
    /// The room from where the reserved one ends to where `end` says that a fragment that begins there ends; `None` if that is beyond `limit`, or the buffer sealed.
    fn reserve(&self, limit: u64, end: impl Fn(u64) -> u64) -> Option<(u64, u64)> {
        // Relaxed: what lies in the room is nobody else's business until the exclusive side of the lock is taken, which orders it.
        let mut from = self.0.load(Ordering::Relaxed);
        loop {
            let to = end(from & !SEALED);
            if from & SEALED != 0 || to > limit {
                return None;
            }
            match self.0.compare_exchange_weak(from, to, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some((from, to)),
                Err(now) => from = now,
            }
        }
    }

    /// Seals it; whether nobody had.
    fn seal(&self) -> bool {
        self.0.fetch_or(SEALED, Ordering::Relaxed) & SEALED == 0
    }

    fn is_sealed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & SEALED != 0
    }

    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & !SEALED
    }
}

/// See the module documentation.
pub(crate) struct Filling {
    buffer: AlignedBuffer,
    /// Which one it is, of those that were ever opened.
    number: u64,
    stream: usize,
    /// Only who has opened it fills it.
    is_alone: bool,
    /// Where it goes in the store.
    offset: u64,
    /// How much of it may be used.
    room: u64,
    reserved: Reserved,
    taken: Mutex<Vec<Taken>>,
}

/// Room for one fragment, and its address.
pub(crate) struct Room<'f> {
    pub(crate) address: FlashAddress,
    pub(crate) bytes: &'f mut [u8],
}

impl Filling {
    /// One that is closed, with a buffer of so many bytes.
    pub(crate) fn new(buffer_bytes: usize) -> Filling {
        Filling {
            buffer: AlignedBuffer::zeroed(buffer_bytes),
            number: 0,
            stream: 0,
            is_alone: false,
            offset: 0,
            room: 0,
            reserved: Reserved(AtomicU64::new(SEALED)),
            taken: Mutex::default(),
        }
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Which buffer it is, of those that were ever opened.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Takes fragments for `stream`, from now on, at `offset` of the store, as far as its `room` goes; from others than who opens it if it is not alone. Its number.
    pub(crate) fn open(&mut self, stream: usize, offset: u64, room: u64, is_alone: bool) -> u64 {
        debug_assert!(self.is_sealed() && self.is_empty());
        self.number += 1;
        (self.stream, self.offset, self.room, self.is_alone) = (stream, offset, room, is_alone);
        self.reserved = Reserved(AtomicU64::new(HEADER_BYTES as u64));
        self.number
    }

    /// Whether who wants to put pages of `stream` into it may: who has opened it, which is buffer `opened` then, and others unless one of both is `alone`.
    pub(crate) fn takes(&self, stream: usize, opened: Option<u64>, alone: bool) -> bool {
        let is_own = opened == Some(self.number);
        self.stream == stream && !self.is_sealed() && (is_own || !self.is_alone && !alone)
    }

    /// Bytes that are reserved, the header included.
    pub(crate) fn used(&self) -> u64 {
        self.reserved.bytes()
    }

    /// Reserves room for a fragment of `length` bytes, and for what is added to it so that it ends with a block if it nearly does. `None` if there is none any more.
    pub(crate) fn reserve(&self, length: u64) -> Option<Room<'_>> {
        let (from, to) = self.reserved.reserve(self.room, |from| from + length + padding(from, length))?;
        debug_assert!(to <= self.buffer.len() as u64);
        // SAFETY: inside the buffer, which lives as long as this. F1: nobody else has reserved these bytes, and as `self` is shared as long as they are used,
        // nobody has the exclusive side.
        let bytes = unsafe {
            slice::from_raw_parts_mut(self.buffer.address().as_ptr().add(from as usize), (to - from) as usize)
        };
        Some(Room { address: FlashAddress::new(self.offset + from, to - from), bytes })
    }

    /// Seals it; whether nobody had.
    pub(crate) fn seal(&self) -> bool {
        self.reserved.seal()
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.reserved.is_sealed()
    }

    /// Whether nothing is reserved of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.reserved.bytes() <= HEADER_BYTES as u64
    }

    /// Hands over what was put into it, before one leaves.
    pub(crate) fn note(&self, taken: &mut Vec<Taken>) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).append(taken);
    }

    /// Closes it, if it is not: its stream, its buffer, how much of that is used, and the fragments there in their order; `None` if nothing is in it.
    pub(crate) fn close(&mut self) -> Option<(usize, &mut AlignedBuffer, usize, Vec<Taken>)> {
        self.reserved.seal();
        if self.is_empty() {
            return None;
        }
        let used = mem::replace(&mut self.reserved, Reserved(AtomicU64::new(SEALED))).bytes();
        let mut taken = mem::take(self.taken.get_mut().unwrap_or_else(PoisonError::into_inner));
        taken.sort_unstable_by_key(|taken| taken.address.offset());
        Some((self.stream, &mut self.buffer, used as usize, taken))
    }

    /// Puts another buffer into the place of this one's, which is closed.
    pub(crate) fn replace_buffer(&mut self, buffer: AlignedBuffer) -> AlignedBuffer {
        debug_assert!(self.is_sealed() && self.is_empty());
        mem::replace(&mut self.buffer, buffer)
    }
}

/// What is added to a fragment of so many bytes that begins at `used`, so that the next begins with a block: nothing, if that is more than a
/// sixteenth. So pages that nearly fill a block lie in one each, and a cold read of such a page is one block, not two.
fn padding(used: u64, length: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    let end = used + length;
    let rest = end.next_multiple_of(block) - end;
    if length <= block && rest * 16 <= length { rest } else { 0 }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn open(room: u64) -> Filling {
        let mut filling = Filling::new(4 * BLOCK_BYTES);
        filling.open(1, 1 << 20, room, false);
        filling
    }

    fn taken(page: u64, address: FlashAddress) -> Taken {
        let (dead, adopts, disowns) = (Vec::new(), Vec::new(), Vec::new());
        Taken {
            page: PageId(page),
            address,
            crc: 0,
            dead,
            has_changed: true,
            place: None,
            adopts,
            disowns,
            root: false,
        }
    }

    #[test]
    fn rooms_follow_each_other_as_long_as_they_fit() {
        let mut filling = open(1024);
        assert!(filling.is_empty() && filling.close().is_none());
        let mut filling = open(1024);
        for (number, length) in [(1, 256), (2, 512)] {
            let room = filling.reserve(length).unwrap();
            room.bytes.fill(number);
            filling.note(&mut vec![taken(number.into(), room.address)]);
        }
        assert!(filling.reserve(256).is_none() && !filling.is_sealed());
        let last = filling.reserve(128).unwrap();
        assert_eq!(last.address, FlashAddress::new((1 << 20) + 128 + 256 + 512, 128));
        filling.note(&mut vec![taken(3, last.address)]);
        assert!(filling.seal() && !filling.seal() && filling.reserve(16).is_none());
        let (stream, buffer, used, taken) = filling.close().unwrap();
        assert_eq!((stream, used), (1, 1024));
        assert!(
            buffer[128..384].iter().all(|&byte| byte == 1) && buffer[384..896].iter().all(|&byte| byte == 2)
        );
        assert_eq!(taken.iter().map(|taken| taken.page.0).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(filling.close().is_none() && filling.is_empty());
    }

    #[test]
    fn what_is_put_into_a_buffer_is_noted_in_the_order_of_its_places() {
        let mut filling = open(4096);
        let rooms: [FlashAddress; 3] = std::array::from_fn(|_| filling.reserve(64).unwrap().address);
        filling.note(&mut vec![taken(2, rooms[1])]);
        filling.note(&mut vec![taken(1, rooms[0]), taken(3, rooms[2])]);
        let (.., taken) = filling.close().unwrap();
        assert_eq!(taken.iter().map(|taken| taken.page.0).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn a_buffer_takes_pages_of_its_stream_from_others_unless_it_is_filled_alone() {
        let mut filling = open(4096);
        assert!(
            filling.takes(1, None, false) && !filling.takes(0, None, false) && !filling.takes(1, None, true)
        );
        filling.close();
        assert!(!filling.takes(1, None, false));
        let own = filling.open(0, 0, 4096, true);
        assert!(filling.takes(0, Some(own), true));
        assert!(!filling.takes(0, None, false) && !filling.takes(0, Some(own - 1), true));
    }

    #[test]
    fn a_fragment_that_nearly_fills_its_block_is_lengthened_to_its_end() {
        let block = BLOCK_BYTES as u64;
        // A sixteenth of what it takes, and a step more.
        assert_eq!(padding(128, 3776), 192);
        assert_eq!(padding(64, 3776), 0);
        assert_eq!(padding(0, block), 0);
        assert_eq!(padding(block, block - 256), 0);
        assert_eq!(padding(block + 64, block - 256), 192);
        // Long ones are of many blocks in any case.
        assert_eq!(padding(128, 2 * block - 192), 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
