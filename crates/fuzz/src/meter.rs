//! [`Meter`]: the system's allocator, and how much of it the calling thread holds.
//!
//! Invariants:
//! - M1: what a caller asks of the meter it asks of the system's allocator, unchanged, and gets what that answers.
//! - M2: counting does not allocate: the counters are constants of the thread without a destructor.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that the thread has allocated and not freed since [`Meter::begin`]; it may free others' and be below 0.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// To be the `#[global_allocator]` of a test binary that fuzzes.
#[derive(Clone, Copy, Debug)]
pub struct Meter;

impl Meter {
    /// Counts from here, for the calling thread.
    ///
    /// ```
    /// deuteron_fuzz::Meter::begin();
    /// assert_eq!(deuteron_fuzz::Meter::peak(), 0);
    /// ```
    pub fn begin() {
        HELD.set(0);
        PEAK.set(0);
    }

    /// The most bytes that the calling thread has held at a time since [`Meter::begin`]; 0 if the meter is not the allocator.
    ///
    /// ```
    /// assert_eq!(deuteron_fuzz::Meter::peak(), 0);
    /// ```
    pub fn peak() -> usize {
        usize::try_from(PEAK.get()).unwrap_or(0)
    }

    fn count(bytes: isize) {
        let held = HELD.get().saturating_add(bytes);
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
    }
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

// SAFETY: M1 and M2: it is the system's allocator, which keeps the trait's contract.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(signed(layout.size()));
        // SAFETY: M1.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(signed(layout.size()));
        // SAFETY: M1.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::count(-signed(layout.size()));
        // SAFETY: M1.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count(signed(size) - signed(layout.size()));
        // SAFETY: M1.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
