//! A buffer of each thread in which payloads are laid out. It is in the cache when a node is made of it; memory
//! fresh from the allocator is not, and would have to be zeroed for safe code to write into it.

use std::cell::RefCell;

/// A buffer that has grown beyond this is not kept.
const KEEP_BYTES: usize = 256 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with a buffer of `bytes` bytes, whose contents are arbitrary.
pub(crate) fn with<R>(bytes: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    // Taken out rather than borrowed, so that nothing breaks if `work` comes here again.
    let mut buffer = BUFFER.with(RefCell::take);
    if buffer.len() < bytes {
        buffer.resize(bytes, 0);
    }
    let result = work(&mut buffer[..bytes]);
    if buffer.len() <= KEEP_BYTES {
        BUFFER.set(buffer);
    }
    result
}
