//! [`Refusing`]: the system's allocator, which can refuse.
//!
//! Invariants:
//! - A1: what is not refused is asked of the system's allocator, unchanged, and gets what that answers. A null pointer is an
//!   answer that an allocator may give at any time.
//! - A2: counting does not allocate: the counters are constants of the thread without a destructor.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

thread_local! {
    /// Allocations of the thread since [`Refusing::begin`].
    static MADE: Cell<u64> = const { Cell::new(0) };
    /// Which of them is refused.
    static REFUSED: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// The allocator of the test binary.
pub struct Refusing;

impl Refusing {
    /// Counts the calling thread's allocations from here, and refuses the one with this number, from 0.
    pub fn begin(refused: u64) {
        MADE.set(0);
        REFUSED.set(refused);
    }

    /// So many allocations has the calling thread asked for since [`Refusing::begin`].
    pub fn made() -> u64 {
        MADE.get()
    }

    fn refuses() -> bool {
        let number = MADE.get();
        MADE.set(number.wrapping_add(1));
        number == REFUSED.get()
    }
}

// SAFETY: A1 and A2: it is the system's allocator, which keeps the trait's contract.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Self::refuses() {
            return ptr::null_mut();
        }
        // SAFETY: A1.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if Self::refuses() {
            return ptr::null_mut();
        }
        // SAFETY: A1.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: A1.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if Self::refuses() {
            return ptr::null_mut();
        }
        // SAFETY: A1.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
