//! [`Meter`]: the system's allocator, how much of it the calling thread holds, and how often it has asked; and it can refuse.
//!
//! Invariants:
//! - M1: what a caller asks of the meter it asks of the system's allocator, unchanged, and gets what that answers; or it is refused, by a
//!   null pointer, which an allocator may answer at any time.
//! - M2: counting does not allocate: the counters are constants of the thread without a destructor.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

thread_local! {
    /// Bytes that the thread has allocated and not freed since [`Meter::begin`]; it may free others' and be below 0.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// Allocations since [`Meter::begin`], and which of them is refused.
    static ASKED: Cell<u64> = const { Cell::new(0) };
    static REFUSED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// To be the `#[global_allocator]` of a test binary that fuzzes, or refuses memory.
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
        ASKED.set(0);
        REFUSED.set(None);
    }

    /// As [`Meter::begin`]; and the allocation with this number, from 0, will be refused.
    ///
    /// ```
    /// deuteron_fuzz::Meter::begin_refusing(7);
    /// assert_eq!(deuteron_fuzz::Meter::asked(), 0, "it is not the allocator here");
    /// ```
    pub fn begin_refusing(number: u64) {
        Self::begin();
        REFUSED.set(Some(number));
    }

    /// How many allocations the calling thread has asked for since [`Meter::begin`]; 0 if the meter is not the allocator.
    ///
    /// ```
    /// assert_eq!(deuteron_fuzz::Meter::asked(), 0);
    /// ```
    pub fn asked() -> u64 {
        ASKED.get()
    }

    /// The most bytes that the calling thread has held at a time since [`Meter::begin`]; 0 if the meter is not the allocator.
    ///
    /// ```
    /// assert_eq!(deuteron_fuzz::Meter::peak(), 0);
    /// ```
    pub fn peak() -> usize {
        usize::try_from(PEAK.get()).unwrap_or(0)
    }

    /// How many bytes the calling thread has allocated and not freed since [`Meter::begin`]; 0 if the meter is not the allocator.
    ///
    /// ```
    /// assert_eq!(deuteron_fuzz::Meter::held(), 0);
    /// ```
    pub fn held() -> isize {
        HELD.get()
    }

    /// Whether the allocation that is asked for is refused.
    fn refuses() -> bool {
        let number = ASKED.get();
        ASKED.set(number.wrapping_add(1));
        REFUSED.get() == Some(number)
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
        if Self::refuses() {
            return ptr::null_mut();
        }
        Self::count(signed(layout.size()));
        // SAFETY: M1.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if Self::refuses() {
            return ptr::null_mut();
        }
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
        if Self::refuses() {
            return ptr::null_mut();
        }
        Self::count(signed(size) - signed(layout.size()));
        // SAFETY: M1.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
