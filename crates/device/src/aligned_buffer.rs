//! Memory that direct I/O accepts.

use crate::BLOCK_BYTES;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A fixed number of bytes, zero at first, whose address is a multiple of [`BLOCK_BYTES`].
///
/// ```
/// use deuteron_device::{AlignedBuffer, BLOCK_BYTES};
/// let mut buffer = AlignedBuffer::zeroed(2 * BLOCK_BYTES);
/// buffer[10] = 7;
/// assert_eq!(buffer.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 7);
/// assert_eq!(buffer.as_ptr().addr() % BLOCK_BYTES, 0);
/// ```
///
/// # Invariants
///
/// - **A1** `address` is that of `length` initialised bytes allocated with `AlignedBuffer::layout`, or dangling and
///   aligned if `length` is 0. They belong to this value alone.
pub struct AlignedBuffer {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: A1: it owns its bytes, as a Vec does.
unsafe impl Send for AlignedBuffer {}
// SAFETY: A1: shared references only read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `length` zero bytes. For direct I/O the length must be a multiple of [`BLOCK_BYTES`] too.
    ///
    /// # Panics
    /// If `length` exceeds what an allocation can hold. An allocator out of memory aborts, as with `Vec`.
    pub fn zeroed(length: usize) -> AlignedBuffer {
        let layout = AlignedBuffer::layout(length);
        if length == 0 {
            let address = NonNull::without_provenance(std::num::NonZero::new(BLOCK_BYTES).expect("not 0"));
            return AlignedBuffer { address, length };
        }
        // SAFETY: the layout's size is not 0.
        let address = unsafe { alloc_zeroed(layout) };
        match NonNull::new(address) {
            Some(address) => AlignedBuffer { address, length },
            None => handle_alloc_error(layout),
        }
    }

    /// The address of the bytes, for those who share them between threads and must not make a reference to all
    /// of them. Valid as long as the buffer lives.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn layout(length: usize) -> Layout {
        Layout::from_size_align(length, BLOCK_BYTES).expect("a buffer's length fits the address space")
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.length != 0 {
            // SAFETY: A1.
            unsafe { dealloc(self.address.as_ptr(), AlignedBuffer::layout(self.length)) };
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: A1.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: A1, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.length) }
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "AlignedBuffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_aligned_and_zero() {
        for length in [0, 1, 511, 4096, 100_000] {
            let buffer = AlignedBuffer::zeroed(length);
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % BLOCK_BYTES), (length, 0));
            assert!(buffer.iter().all(|&byte| byte == 0));
        }
    }
}
