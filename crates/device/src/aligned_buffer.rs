//! Memory that direct I/O accepts.

use crate::BLOCK_BYTES;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Buffers of this size and more are aligned to it, and in huge pages if the system has some.
const HUGE_PAGE_BYTES: usize = 2 << 20;

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
        let address = unsafe {
            if length < HUGE_PAGE_BYTES || cfg!(miri) {
                alloc_zeroed(layout)
            } else {
                alloc_in_huge_pages(layout)
            }
        };
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
        let align = if length < HUGE_PAGE_BYTES { BLOCK_BYTES } else { HUGE_PAGE_BYTES };
        Layout::from_size_align(length, align).expect("a buffer's length fits the address space")
    }
}

/// Zeroed memory that asks for huge pages before it is touched: a fault for each, and not for each small page.
///
/// # Safety
/// As of [`alloc_zeroed`].
unsafe fn alloc_in_huge_pages(layout: Layout) -> *mut u8 {
    use rustix::mm::{Advice, madvise};
    // SAFETY: the caller's.
    let address = unsafe { alloc(layout) };
    if !address.is_null() {
        let whole = layout.size() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        // SAFETY: part of the allocation just made. It is only advice; small pages do as well.
        let _ = unsafe { madvise(address.cast(), whole, Advice::LinuxHugepage) };
        // SAFETY: the allocation just made.
        unsafe { address.write_bytes(0, layout.size()) };
    }
    address
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
