//! [`ReadBuffer`]: memory that a fragment is read into, used again by the thread that reads the next.

use deuteron_device::{AlignedBuffer, BLOCK_BYTES};
use std::cell::RefCell;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffers of these sizes are kept, and how many of each by a thread at most. The first is for a fragment of
/// deltas, the second for one of a page of the usual size, wherever it begins in its block.
const KEPT: [(usize, usize); 2] = [(BLOCK_BYTES, 64), (3 * BLOCK_BYTES, 16)];
/// The same of longer ones, by all threads together: what is read of neighbours.
const SHARED: [(usize, usize); 3] = [(8 * BLOCK_BYTES, 64), (24 * BLOCK_BYTES, 24), (64 * BLOCK_BYTES, 16)];

type Buffers<const CLASSES: usize> = [Vec<AlignedBuffer>; CLASSES];

thread_local! {
    static OWN: RefCell<Buffers<2>> = const { RefCell::new([const { Vec::new() }; 2]) };
}
static COMMON: Mutex<Buffers<3>> = Mutex::new([const { Vec::new() }; 3]);

/// Where buffers of a length are kept.
enum Class {
    Own(usize),
    Common(usize),
    Nowhere,
}

fn class(length: usize) -> Class {
    let own = KEPT.iter().position(|&(bytes, _)| length <= bytes).map(Class::Own);
    let common = || SHARED.iter().position(|&(bytes, _)| length <= bytes).map(Class::Common);
    own.or_else(common).unwrap_or(Class::Nowhere)
}

fn common() -> MutexGuard<'static, Buffers<3>> {
    COMMON.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Aligned bytes whose contents are arbitrary at first.
pub(crate) struct ReadBuffer {
    buffer: AlignedBuffer,
    length: usize,
}

impl ReadBuffer {
    pub(crate) fn new(length: usize) -> ReadBuffer {
        let (bytes, kept) = match class(length) {
            // A thread that is ending keeps nothing any more.
            Class::Own(class) => {
                (KEPT[class].0, OWN.try_with(|own| own.borrow_mut()[class].pop()).ok().flatten())
            }
            Class::Common(class) => (SHARED[class].0, common()[class].pop()),
            Class::Nowhere => (length, None),
        };
        ReadBuffer { buffer: kept.unwrap_or_else(|| AlignedBuffer::zeroed(bytes)), length }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        let buffer = mem::replace(&mut self.buffer, AlignedBuffer::zeroed(0));
        let keep = |kept: &mut Vec<AlignedBuffer>, most, buffer| {
            if kept.len() < most {
                kept.push(buffer);
            }
        };
        match class(buffer.len()) {
            Class::Own(class) => {
                let _ = OWN.try_with(|own| keep(&mut own.borrow_mut()[class], KEPT[class].1, buffer));
            }
            Class::Common(class) => keep(&mut common()[class], SHARED[class].1, buffer),
            Class::Nowhere => {}
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
        let (address, large) = (first.as_ptr(), ReadBuffer::new(SHARED[2].0 + BLOCK_BYTES));
        assert_eq!((first.len(), large.len()), (3 * BLOCK_BYTES, SHARED[2].0 + BLOCK_BYTES));
        drop((first, large));
        let again = ReadBuffer::new(2 * BLOCK_BYTES);
        assert_eq!((again.as_ptr(), again.len()), (address, 2 * BLOCK_BYTES));
        assert_eq!(again.as_ptr().addr() % BLOCK_BYTES, 0);
        // More than are kept, and all apart.
        let use_many = |(bytes, kept): (usize, usize)| {
            drop((0..2 * kept).map(|_| ReadBuffer::new(bytes - 10)).collect::<Vec<_>>());
            (bytes, kept)
        };
        let kept = |buffers: &[Vec<AlignedBuffer>]| -> Vec<_> {
            buffers.iter().map(|of_class| (of_class[0].len(), of_class.len())).collect()
        };
        assert_eq!(KEPT.map(use_many)[..], OWN.with(|own| kept(&*own.borrow())));
        // Other tests take and bring some.
        for ((bytes, most), (kept_bytes, count)) in SHARED.map(use_many).into_iter().zip(kept(&*common())) {
            assert!(kept_bytes == bytes && (1..=most).contains(&count), "{bytes} {count}");
        }
    }
}
