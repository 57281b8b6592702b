//! The ring: one contiguous piece of memory, addressed by LSN.
//!
//! The byte at LSN `l` is at `l % bytes`. No range that is asked for crosses the end of the ring, because no buffer
//! does. Who may touch what, and when, is the business of [`memory_window`](crate::memory_window) (for reuse) and of
//! [`buffer_word`](crate::buffer_word) (for writing); this file only makes slices of it.

use deuteron_device::BLOCK_BYTES;
use deuteron_epoch::{prefetch, prefetch_for_write};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A redo record of a hundred bytes or so begins anywhere in the first of them.
const PREFETCH_LINES: usize = 3;
/// How far ahead of an append memory is asked for: what some records take.
const AHEAD_BYTES: u64 = 512;

/// See the module document.
pub(crate) struct Ring {
    start: NonNull<u8>,
    bytes: usize,
    allocation: NonNull<u8>,
}

// SAFETY: plain memory; all access goes through unsafe methods that leave exclusion to the caller.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Zeroed memory of `bytes`, a power of two of at least a block.
    pub(crate) fn new(bytes: usize) -> Ring {
        assert!(bytes.is_power_of_two() && bytes >= BLOCK_BYTES);
        let layout = Self::layout(bytes);
        // SAFETY: the layout's size is not zero.
        let allocation = unsafe { alloc_zeroed(layout) };
        let Some(allocation) = NonNull::new(allocation) else { handle_alloc_error(layout) };
        let before = allocation.align_offset(Self::align(bytes));
        // SAFETY: the layout has room for that and `bytes` behind it.
        Ring { start: unsafe { allocation.add(before) }, bytes, allocation }
    }

    /// Aligned for direct I/O, and if it is large, for huge pages.
    fn align(bytes: usize) -> usize {
        if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { BLOCK_BYTES }
    }

    /// Of the ring and what is before it. An allocator that is asked for zeros with such an alignment may write them all; without it they
    /// are the system's, page by page as they are touched.
    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes + Self::align(bytes), 8).expect("a ring smaller than the address space")
    }

    /// Where the byte at `lsn` is.
    #[inline]
    pub(crate) fn at(&self, lsn: u64) -> *mut u8 {
        // SAFETY: the offset is inside the allocation.
        unsafe { self.start.as_ptr().add(lsn as usize & (self.bytes - 1)) }
    }

    /// Asks the processor for the [`PREFETCH_LINES`] from `lsn` on.
    #[inline]
    pub(crate) fn prefetch(&self, lsn: u64) {
        self.lines(lsn, PREFETCH_LINES).for_each(prefetch);
    }

    /// Asks the processor for what appends will soon write to, if they go on from `lsn`.
    #[inline]
    pub(crate) fn prefetch_ahead(&self, lsn: u64) {
        self.lines(lsn + AHEAD_BYTES, 2).for_each(prefetch_for_write);
    }

    #[inline]
    fn lines(&self, lsn: u64, lines: usize) -> impl Iterator<Item = *const u8> {
        let first = self.at(lsn).cast_const();
        (0..lines).map(move |line| first.wrapping_add(64 * line))
    }

    /// How many bytes follow `lsn` in memory without a break.
    #[inline]
    pub(crate) fn contiguous(&self, lsn: u64) -> usize {
        self.bytes - (lsn as usize & (self.bytes - 1))
    }

    /// The bytes from `lsn` on.
    ///
    /// # Safety
    /// Nobody writes to the range as long as the slice lives.
    #[inline]
    pub(crate) unsafe fn slice(&self, lsn: u64, bytes: usize) -> &[u8] {
        assert!(bytes <= self.contiguous(lsn), "a range over the end of the ring");
        // SAFETY: inside the allocation, initialised from the start; exclusion is the caller's contract.
        unsafe { std::slice::from_raw_parts(self.at(lsn), bytes) }
    }

    /// The bytes from `lsn` on, to write.
    ///
    /// # Safety
    /// Nobody else reads or writes the range as long as the slice lives.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "raw memory; the caller has the range for itself")]
    pub(crate) unsafe fn slice_mut(&self, lsn: u64, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.contiguous(lsn), "a range over the end of the ring");
        // SAFETY: inside the allocation, initialised from the start; exclusion is the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.at(lsn), bytes) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; views borrow the log, so none is left.
        unsafe { dealloc(self.allocation.as_ptr(), Self::layout(self.bytes)) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_wrap() {
        let ring = Ring::new(8192);
        // SAFETY: one thread, no overlap.
        unsafe {
            ring.slice_mut(8192 * 5 + 4096, 4).copy_from_slice(b"abcd");
            assert_eq!(ring.slice(4096, 5), b"abcd\0");
        }
        assert_eq!(ring.contiguous(8192 * 3 + 8), 8184);
        assert!(ring.at(0).addr().is_multiple_of(BLOCK_BYTES));
    }
}
