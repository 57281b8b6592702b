//! [`ReadBuffer`]: memory that a fragment is read into, used again by the thread that reads the next.

use deuteron_device::{AlignedBuffer, BLOCK_BYTES};
use std::cell::RefCell;
use std::mem;
use std::ops::{Deref, DerefMut};

/// Buffers of these sizes are kept, and how many of each by a thread at most: what is commonly read at once. The first is for a fragment of
/// deltas, the second for one of a page of the usual size, wherever it begins in its block; the others for what is read of neighbours.
const KEPT: [(usize, usize); CLASSES] =
    [(BLOCK_BYTES, 64), (3 * BLOCK_BYTES, 16), (16 * BLOCK_BYTES, 8), (64 * BLOCK_BYTES, 4)];
const CLASSES: usize = 4;

thread_local! {
    static BUFFERS: RefCell<[Vec<AlignedBuffer>; CLASSES]> = const { RefCell::new([const { Vec::new() }; CLASSES]) };
}

/// Aligned bytes whose contents are arbitrary at first.
pub(crate) struct ReadBuffer {
    buffer: AlignedBuffer,
    length: usize,
}

impl ReadBuffer {
    pub(crate) fn new(length: usize) -> ReadBuffer {
        let Some(class) = KEPT.iter().position(|&(bytes, _)| length <= bytes) else {
            return ReadBuffer { buffer: AlignedBuffer::zeroed(length), length };
        };
        // A thread that is ending keeps nothing any more.
        let kept = BUFFERS.try_with(|buffers| buffers.borrow_mut()[class].pop()).ok().flatten();
        let buffer = kept.unwrap_or_else(|| AlignedBuffer::zeroed(KEPT[class].0));
        ReadBuffer { buffer, length }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        if let Some(class) = KEPT.iter().position(|&(bytes, _)| self.buffer.len() == bytes) {
            let buffer = mem::replace(&mut self.buffer, AlignedBuffer::zeroed(0));
            let _ = BUFFERS.try_with(|buffers| {
                let kept = &mut buffers.borrow_mut()[class];
                if kept.len() < KEPT[class].1 {
                    kept.push(buffer);
                }
            });
        }
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl DerefMut for ReadBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.length]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_their_length_and_are_used_again() {
        let mut first = ReadBuffer::new(3 * BLOCK_BYTES);
        first.fill(7);
        let (address, large) = (first.as_ptr(), ReadBuffer::new(KEPT[CLASSES - 1].0 + BLOCK_BYTES));
        assert_eq!((first.len(), large.len()), (3 * BLOCK_BYTES, KEPT[CLASSES - 1].0 + BLOCK_BYTES));
        drop((first, large));
        let again = ReadBuffer::new(2 * BLOCK_BYTES);
        assert_eq!((again.as_ptr(), again.len()), (address, 2 * BLOCK_BYTES));
        assert_eq!(again.as_ptr().addr() % BLOCK_BYTES, 0);
        // More than are kept, and all apart.
        for (class, (bytes, kept)) in KEPT.into_iter().enumerate() {
            let many: Vec<_> = (0..2 * kept).map(|_| ReadBuffer::new(bytes - 10)).collect();
            drop(many);
            assert_eq!(BUFFERS.with(|buffers| buffers.borrow()[class].len()), kept);
        }
    }
}
