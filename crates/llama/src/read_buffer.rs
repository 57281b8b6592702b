//! [`ReadBuffer`]: memory that fragments are read into, used again by whoever reads the next.

use deuteron_device::{AlignedBuffer, BLOCK_BYTES};
use std::cell::RefCell;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// Buffers of these sizes are kept, so many of each: the first three by each thread, for what a reader waits for; the others for all of them, for rows of pages
/// and for what is asked for together. Fresh memory would have to be zeroed, and given back.
const KEPT: [(usize, usize); CLASSES] = [
    (BLOCK_BYTES, 2),
    (4 * BLOCK_BYTES, 2),
    (16 * BLOCK_BYTES, 2),
    (64 * BLOCK_BYTES, 4),
    (READ_BYTES_MAX, 4),
];
const CLASSES: usize = 5;
const CLASSES_OF_THREAD: usize = 3;

/// The largest buffer that is kept.
pub(crate) const READ_BYTES_MAX: usize = 256 * BLOCK_BYTES;

type Kept<const N: usize> = [Vec<AlignedBuffer>; N];

thread_local! {
    static OWN: RefCell<Kept<CLASSES_OF_THREAD>> = const { RefCell::new([const { Vec::new() }; CLASSES_OF_THREAD]) };
}
static SHARED: Mutex<Kept<{ CLASSES - CLASSES_OF_THREAD }>> =
    Mutex::new([const { Vec::new() }; CLASSES - CLASSES_OF_THREAD]);

/// What `work` makes of the buffers of a class that are kept; nothing in a thread that is ending, which has none any more.
fn with_kept<T>(class: usize, work: impl FnOnce(&mut Vec<AlignedBuffer>) -> T) -> Option<T> {
    match class.checked_sub(CLASSES_OF_THREAD) {
        None => OWN.try_with(|own| work(&mut own.borrow_mut()[class])).ok(),
        Some(shared) => Some(work(&mut SHARED.lock().unwrap_or_else(PoisonError::into_inner)[shared])),
    }
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
        let kept = with_kept(class, Vec::pop).flatten();
        let buffer = kept.unwrap_or_else(|| AlignedBuffer::zeroed(KEPT[class].0));
        ReadBuffer { buffer, length }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        if let Some(class) = KEPT.iter().position(|&(bytes, _)| self.buffer.len() == bytes) {
            let buffer = mem::replace(&mut self.buffer, AlignedBuffer::zeroed(0));
            let left = with_kept(class, |kept| {
                if kept.len() < KEPT[class].1 {
                    kept.push(buffer);
                    return None;
                }
                Some(buffer)
            });
            // Not under a lock.
            drop(left);
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
        let (address, large) = (first.as_ptr(), ReadBuffer::new(READ_BYTES_MAX + BLOCK_BYTES));
        assert_eq!((first.len(), large.len()), (3 * BLOCK_BYTES, READ_BYTES_MAX + BLOCK_BYTES));
        drop((first, large));
        let again = ReadBuffer::new(2 * BLOCK_BYTES);
        assert_eq!((again.as_ptr(), again.len()), (address, 2 * BLOCK_BYTES));
        assert_eq!(again.as_ptr().addr() % BLOCK_BYTES, 0);
        // More than are kept, and all apart. Those of all threads may be in use by other tests.
        for (class, (bytes, most)) in KEPT.into_iter().enumerate() {
            let many: Vec<_> = (0..2 * most).map(|_| ReadBuffer::new(bytes - 10)).collect();
            drop(many);
            let kept = with_kept(class, |kept| kept.len()).unwrap();
            assert!(if class < CLASSES_OF_THREAD { kept == most } else { kept <= most }, "{kept}");
        }
    }
}
