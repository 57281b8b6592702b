//! [`ReadBuffer`]: memory that a fragment is read into, used again by the thread that reads the next.

use deuteron_device::{AlignedBuffer, BLOCK_BYTES};
use std::cell::RefCell;
use std::mem;
use std::ops::{Deref, DerefMut};

/// Buffers of this size are kept: a fragment of a page of the usual size, wherever it begins in its block.
const KEPT_BYTES: usize = 3 * BLOCK_BYTES;
/// So many are kept by a thread at most: what is commonly read at once.
const KEPT_MAX: usize = 16;

thread_local! {
    static KEPT: RefCell<Vec<AlignedBuffer>> = const { RefCell::new(Vec::new()) };
}

/// Aligned bytes whose contents are arbitrary at first.
pub(crate) struct ReadBuffer {
    buffer: AlignedBuffer,
    length: usize,
}

impl ReadBuffer {
    pub(crate) fn new(length: usize) -> ReadBuffer {
        let kept = if length <= KEPT_BYTES {
            // A thread that is ending keeps nothing any more.
            KEPT.try_with(|kept| kept.borrow_mut().pop()).ok().flatten()
        } else {
            None
        };
        let buffer = kept.unwrap_or_else(|| AlignedBuffer::zeroed(length.max(KEPT_BYTES)));
        ReadBuffer { buffer, length }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        if self.buffer.len() == KEPT_BYTES {
            let buffer = mem::replace(&mut self.buffer, AlignedBuffer::zeroed(0));
            let _ = KEPT.try_with(|kept| {
                let mut kept = kept.borrow_mut();
                if kept.len() < KEPT_MAX {
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
        let mut first = ReadBuffer::new(BLOCK_BYTES);
        first.fill(7);
        let (address, large) = (first.as_ptr(), ReadBuffer::new(KEPT_BYTES + BLOCK_BYTES));
        assert_eq!((first.len(), large.len()), (BLOCK_BYTES, KEPT_BYTES + BLOCK_BYTES));
        drop((first, large));
        let again = ReadBuffer::new(2 * BLOCK_BYTES);
        assert_eq!((again.as_ptr(), again.len()), (address, 2 * BLOCK_BYTES));
        assert_eq!(again.as_ptr().addr() % BLOCK_BYTES, 0);
        // More than are kept, and all apart.
        let many: Vec<_> = (0..2 * KEPT_MAX).map(|_| ReadBuffer::new(10)).collect();
        drop(many);
        assert_eq!(KEPT.with(|kept| kept.borrow().len()), KEPT_MAX);
    }
}
