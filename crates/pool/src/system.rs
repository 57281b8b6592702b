//! Chunks from the operating system: 2 MiB each, aligned to that, in a huge page where the system gives one.

use super::span::CHUNK_BYTES;
use std::ptr::NonNull;

/// A new chunk, zeroed; `None` if there is no memory.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) fn map() -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let map = |bytes| {
        // SAFETY: a new mapping, wherever the system likes.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        NonNull::new(start.ok()?.cast::<u8>())
    };
    let mut chunk = map(CHUNK_BYTES)?;
    if !chunk.addr().get().is_multiple_of(CHUNK_BYTES) {
        // SAFETY: the mapping just made.
        let _ = unsafe { munmap(chunk.as_ptr().cast(), CHUNK_BYTES) };
        // An aligned one is somewhere in one of twice the size; what is before and behind goes back.
        let wide = map(2 * CHUNK_BYTES)?;
        let before = wide.addr().get().next_multiple_of(CHUNK_BYTES) - wide.addr().get();
        // SAFETY: both pieces are of the mapping just made, outside of the chunk.
        unsafe {
            chunk = wide.add(before);
            if before > 0 {
                let _ = munmap(wide.as_ptr().cast(), before);
            }
            let _ = munmap(chunk.add(CHUNK_BYTES).as_ptr().cast(), CHUNK_BYTES - before);
        }
    }
    // SAFETY: the mapping just made.
    unsafe { advise(chunk, Pages::Huge) };
    Some(chunk)
}

/// Gives a chunk back.
///
/// # Safety
/// It came from [`map`], and nobody uses it any more.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) unsafe fn unmap(chunk: NonNull<u8>) {
    // SAFETY: our own contract.
    let _ = unsafe { rustix::mm::munmap(chunk.as_ptr().cast(), CHUNK_BYTES) };
}

/// What pages a chunk should be in.
#[derive(Clone, Copy)]
pub(super) enum Pages {
    Huge,
    Small,
}

/// Says what pages a chunk should be in. It is only advice; others do as well.
///
/// # Safety
/// It came from [`map`].
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) unsafe fn advise(chunk: NonNull<u8>, pages: Pages) {
    use rustix::mm::{Advice, madvise};
    let advice = match pages {
        Pages::Huge => Advice::LinuxHugepage,
        Pages::Small => Advice::LinuxNoHugepage,
    };
    // SAFETY: our own contract.
    let _ = unsafe { madvise(chunk.as_ptr().cast(), CHUNK_BYTES, advice) };
}

/// Nobody asks elsewhere.
///
/// # Safety
/// None.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) unsafe fn advise(_chunk: NonNull<u8>, _pages: Pages) {}

/// Lets the system have the memory of a part of a chunk, which stays mapped and is zeros when it is touched again.
///
/// # Safety
/// It is whole pages of a chunk that came from [`map`], which nobody uses.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) unsafe fn strip(part: NonNull<u8>, bytes: usize) {
    // SAFETY: our own contract. If it fails the memory stays.
    let _ = unsafe { rustix::mm::madvise(part.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxDontNeed) };
}

/// Elsewhere the memory stays.
///
/// # Safety
/// None.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) unsafe fn strip(_part: NonNull<u8>, _bytes: usize) {}

#[cfg(not(all(target_os = "linux", not(miri))))]
const LAYOUT: std::alloc::Layout = match std::alloc::Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

/// A new chunk, zeroed; `None` if there is no memory.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) fn map() -> Option<NonNull<u8>> {
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(LAYOUT) })
}

/// Gives a chunk back.
///
/// # Safety
/// It came from [`map`], and nobody uses it any more.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) unsafe fn unmap(chunk: NonNull<u8>) {
    // SAFETY: our own contract.
    unsafe { std::alloc::dealloc(chunk.as_ptr(), LAYOUT) };
}
