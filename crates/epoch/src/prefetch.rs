//! Hints: what memory will be read or written soon. The processor begins to fetch it, and nobody waits.
//!
//! They are here because whoever follows shared pointers has this crate, and wants them.

/// Asks the processor for the cache line at `address`, which may be any, without waiting for it. A hint.
///
/// ```
/// let values = [1, 2, 3];
/// deuteron_epoch::prefetch(&raw const values[2]);
/// ```
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch accesses nothing in the sense of the language, and faults on no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// As [`prefetch`] of a line that will be written: the other processors give it up now. Else the write would ask each of them a
/// second time, after the line has come. For lines that are only read it would take them away in vain.
///
/// ```
/// let number = std::sync::atomic::AtomicU64::new(1);
/// deuteron_epoch::prefetch_for_write(number.as_ptr());
/// ```
#[inline(always)]
pub fn prefetch_for_write<T>(address: *const T) {
    // `_MM_HINT_ET0` becomes the hint for a read unless the compiler is told of a processor that has this instruction. Those without
    // it, of before 2006, take it for nothing.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
