//! Chunks from the operating system: 2 MiB each, aligned to that, in a huge page where the system gives one.

use super::span::CHUNK_BYTES;
use std::ptr::NonNull;

/// A new chunk, zeroed; `None` if there is no memory.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) fn map() -> Option<NonNull<u8>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
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
    // SAFETY: the mapping just made. It is only advice; small pages do as well.
    let _ = unsafe { madvise(chunk.as_ptr().cast(), CHUNK_BYTES, Advice::LinuxHugepage) };
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
