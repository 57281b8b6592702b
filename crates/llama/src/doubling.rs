//! [`Doubling`]: chunks of elements, each with twice as many as the one before, so that what grows is never copied, and a reference to an element stays
//! good. And zeroed memory for them, which costs nothing until it is touched.
//!
//! Called by `mapping_table`; calls nothing.
//!
//! ## Invariants
//!
//! - **D1** A place for a chunk goes from null to a chunk, made by [`Box`], once; the chunk is freed with the whole only.
//! - **D2** Bytes of zeros are a value of what is [`Zero`], its default, where atomics are the machine's.

use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use std::ptr;

/// Elements of the first chunk.
#[cfg(not(any(loom, shuttle)))]
pub(crate) const FIRST: u64 = 1024;
#[cfg(any(loom, shuttle))]
pub(crate) const FIRST: u64 = 64;
/// Enough for 2^42 elements.
#[cfg(not(loom))]
const CHUNKS: usize = 32;
#[cfg(loom)]
const CHUNKS: usize = 1;

/// Chunks `C`, each of twice as many elements as the one before.
pub(crate) struct Doubling<C> {
    chunks: [AtomicPtr<C>; CHUNKS],
}

/// Where an element is: chunk, and index within it.
#[inline]
fn place(index: u64) -> (usize, usize) {
    let biased = index + FIRST;
    let chunk = (biased.ilog2() - FIRST.ilog2()) as usize;
    (chunk, (biased - (FIRST << chunk)) as usize)
}

impl<C> Doubling<C> {
    pub(crate) fn new() -> Doubling<C> {
        Doubling { chunks: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())) }
    }

    /// Makes room for the element `index`, in a chunk that `new` makes for so many.
    ///
    /// # Panics
    /// If there can be no element of that index.
    pub(crate) fn reserve(&self, index: u64, new: impl FnOnce(u64) -> C) {
        let (chunk, _) = place(index);
        assert!(chunk < CHUNKS, "element {index} of a table is beyond its end");
        if !self.chunks[chunk].load(Ordering::Acquire).is_null() {
            return;
        }
        let made = Box::into_raw(Box::new(new(FIRST << chunk)));
        let won =
            self.chunks[chunk].compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        if won.is_err() {
            // SAFETY: D1: made above and not published, as the compare-and-swap failed.
            drop(unsafe { Box::from_raw(made) });
        }
    }

    /// The chunk of the element `index`, and the index within it; `None` if no room was made for it.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<(&C, usize)> {
        let (chunk, slot) = place(index);
        // Acquire pairs with the publication in `reserve`.
        let chunk = self.chunks[chunk].load(Ordering::Acquire);
        // SAFETY: D1: a published chunk lives as long as `self`.
        unsafe { chunk.as_ref() }.map(|chunk| (chunk, slot))
    }
}

impl<C> Drop for Doubling<C> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            let chunk = chunk.load(Ordering::Acquire);
            if !chunk.is_null() {
                // SAFETY: D1: published once by `reserve`, and nobody borrows it any more.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}

/// What [`zeros`] makes.
///
/// # Safety
/// D2.
pub(crate) unsafe trait Zero: Default {}

// SAFETY: D2: its default is the number 0.
unsafe impl Zero for AtomicU64 {}
// SAFETY: D2, as its elements are.
unsafe impl<T: Zero, const N: usize> Zero for [T; N] where [T; N]: Default {}

/// So many elements with the default value. The memory comes from the operating system zeroed, page by page as it is touched, so that a large chunk
/// costs nothing until it is used.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn zeros<T: Zero>(elements: u64) -> Box<[T]> {
    // SAFETY: D2.
    unsafe { Box::new_zeroed_slice(elements as usize).assume_init() }
}

/// The same where atomics have a past, so that zeros are none. Loom counts every atomic; its models use two elements only.
#[cfg(any(loom, shuttle))]
pub(crate) fn zeros<T: Zero>(elements: u64) -> Box<[T]> {
    let elements = if cfg!(loom) { elements.min(2) } else { elements };
    (0..elements).map(|_| T::default()).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn places_are_dense_and_in_order() {
        let mut expected = (0, 0);
        for index in 0..10 * FIRST {
            assert_eq!(place(index), expected);
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
    }

    #[test]
    fn there_is_room_where_it_was_made_and_nowhere_else() {
        let numbers = Doubling::new();
        assert!(numbers.get(0).is_none());
        numbers.reserve(FIRST, zeros::<AtomicU64>);
        numbers.reserve(3 * FIRST - 1, |_| unreachable!("the chunk is there"));
        assert!(numbers.get(FIRST - 1).is_none() && numbers.get(3 * FIRST).is_none());
        let (chunk, slot) = numbers.get(3 * FIRST - 1).unwrap();
        assert_eq!((chunk.len() as u64, slot as u64), (2 * FIRST, 2 * FIRST - 1));
        assert!(chunk.iter().all(|number| number.load(Ordering::Relaxed) == 0));
    }

    #[test]
    #[should_panic(expected = "beyond its end")]
    fn there_is_an_end() {
        Doubling::<()>::new().reserve(1 << 60, |_| ());
    }
}
