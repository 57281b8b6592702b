//! Words in the pool: what an access method keeps in memory besides pages, such as the inner nodes of its indexes.
//!
//! They come and go one by one in sizes that differ a little, by the ten thousand while a tree grows; an allocator for everybody was seen to hold
//! three times what was in use after that. In the pool they lie in huge pages, and what they leave serves others.

use deuteron_pool::{self as pool, Part, charge};
use std::alloc::Layout;
use std::ptr::NonNull;

fn layout(count: usize) -> Layout {
    let layout = Layout::array::<u64>(count).and_then(|layout| layout.align_to(16));
    layout.expect("so many words are smaller than the address space")
}

/// What so many words are charged to the budget, in bytes: what the memory in which they lie takes.
///
/// ```
/// assert!((8000..9000).contains(&deuteron_llama::words_charge(1000)));
/// ```
pub fn words_charge(count: usize) -> usize {
    charge(layout(count))
}

/// A copy of `words`, which are not empty, in the pool; the caller's, until it [frees](free_words) them.
///
/// ```
/// let words = deuteron_llama::put_words(&[1, 2, 3]);
/// // SAFETY: the three words just put there, and not used any more after they are freed.
/// unsafe {
///     assert_eq!(words.add(2).read(), 3);
///     deuteron_llama::free_words(words, 3);
/// }
/// ```
///
/// # Panics
/// If `words` is empty.
pub fn put_words(words: &[u64]) -> NonNull<u64> {
    assert!(!words.is_empty());
    let layout = layout(words.len());
    let memory = pool::allocate(Part::Pages, layout).cast::<u64>();
    // SAFETY: as many words, aligned, and nobody else's.
    unsafe { memory.copy_from_nonoverlapping(NonNull::from(words).cast(), words.len()) };
    memory
}

/// Frees what [`put_words`] has given.
///
/// # Safety
/// They are `count` words, nobody uses them any more, and they are freed once.
pub unsafe fn free_words(words: NonNull<u64>, count: usize) {
    // SAFETY: our own contract; the layout is that of `put_words`.
    unsafe { pool::free(Part::Pages, words.cast(), layout(count)) };
}
