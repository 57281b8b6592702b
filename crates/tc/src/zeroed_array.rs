//! A large array of zeros, in huge pages where the system gives them: a random access to it should miss a cache line, not
//! a page table entry as well (paper 6.2).

use crate::sync::AtomicGuess;
#[cfg(not(any(loom, shuttle)))]
use crate::sync::AtomicPtr;
use std::ops::Deref;
use std::ptr::NonNull;

/// See the [module](self).
pub(crate) struct ZeroedArray<T> {
    start: NonNull<T>,
    len: usize,
    /// Bytes mapped; 0 if the memory is a boxed slice.
    #[cfg_attr(any(loom, shuttle), expect(dead_code))]
    mapped_bytes: usize,
}

// SAFETY: it owns its elements, like a boxed slice.
unsafe impl<T: Send> Send for ZeroedArray<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for ZeroedArray<T> {}

#[cfg(not(any(loom, shuttle)))]
impl<T> ZeroedArray<AtomicPtr<T>> {
    /// So many null pointers. The system provides the pages as they are touched.
    pub(crate) fn new(len: usize) -> ZeroedArray<AtomicPtr<T>> {
        // SAFETY: all bits zero is a null pointer.
        unsafe { Self::zeroed(len) }
    }
}

impl ZeroedArray<AtomicGuess> {
    /// So many zeros, likewise.
    pub(crate) fn new(len: usize) -> ZeroedArray<AtomicGuess> {
        // SAFETY: all bits zero is a 0.
        unsafe { Self::zeroed(len) }
    }
}

impl<T> ZeroedArray<T> {
    /// # Safety
    /// All bits zero are a value of `T`, which needs no drop.
    unsafe fn zeroed(len: usize) -> ZeroedArray<T> {
        #[cfg(not(any(loom, shuttle)))]
        {
            /// Below this there is nothing to be gained.
            const MAPPED_BYTES_MIN: usize = 4 << 20;
            let bytes = len * size_of::<T>();
            if bytes >= MAPPED_BYTES_MIN
                && let Some(start) = map(bytes)
            {
                return ZeroedArray { start: start.cast(), len, mapped_bytes: bytes };
            }
        }
        let zeroed = Box::<[T]>::new_zeroed_slice(len);
        // SAFETY: our own contract.
        let zeroed = Box::into_raw(unsafe { zeroed.assume_init() });
        // SAFETY: a box is not null.
        ZeroedArray { start: unsafe { NonNull::new_unchecked(zeroed.cast()) }, len, mapped_bytes: 0 }
    }
}

/// Anonymous memory that asks for huge pages.
#[cfg(not(any(loom, shuttle)))]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    // SAFETY: a new mapping wherever the system likes.
    let start = unsafe {
        mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
            .ok()?
    };
    // SAFETY: the mapping just made. It is only advice; small pages do as well.
    let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
    NonNull::new(start.cast())
}

impl<T> Deref for ZeroedArray<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements that live as long as the array.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for ZeroedArray<T> {
    fn drop(&mut self) {
        #[cfg(not(any(loom, shuttle)))]
        if self.mapped_bytes > 0 {
            // SAFETY: mapped by `new`, not used any more, and elements need no drop.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.mapped_bytes) };
            return;
        }
        let slice = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len);
        // SAFETY: from `Box::into_raw` of a boxed slice of this length.
        drop(unsafe { Box::from_raw(slice) });
    }
}

/// Loom's and shuttle's atomics own memory, and zeros do not make one.
#[cfg(any(loom, shuttle))]
mod loom_elements {
    use super::{NonNull, ZeroedArray};
    use crate::sync::AtomicPtr;

    impl<T> ZeroedArray<AtomicPtr<T>> {
        pub(crate) fn new(len: usize) -> ZeroedArray<AtomicPtr<T>> {
            let elements: Box<[AtomicPtr<T>]> =
                (0..len).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect();
            // SAFETY: a box is not null.
            let start = unsafe { NonNull::new_unchecked(Box::into_raw(elements).cast()) };
            ZeroedArray { start, len, mapped_bytes: 0 }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::{AtomicPtr, Ordering};

    #[test]
    fn both_kinds_of_memory_start_as_zeros() {
        for len in [16, 1 << 20] {
            let array = ZeroedArray::<AtomicPtr<u8>>::new(len);
            assert_eq!(array.len(), len);
            assert!(array.iter().step_by(1000).all(|element| element.load(Ordering::Relaxed).is_null()));
            let array = ZeroedArray::<AtomicGuess>::new(len);
            assert!(array.iter().step_by(1000).all(|element| element.load(Ordering::Relaxed) == 0));
        }
    }
}
