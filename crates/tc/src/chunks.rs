//! An array that grows and never moves: chunk `k` holds `FIRST << k` elements, so an index finds its element with two instructions and no
//! lock.
//!
//! - **D1** The chunk of an index is there before [`Chunks::allocate`] returns the index, and stays as long as the array.
//! - **D2** Who goes over the elements misses none whose index was returned before that began, and of those that come later none whose owner
//!   can see, by sequentially consistent accesses, that it began before.

use crate::sync::{AtomicPtr, AtomicU32, Ordering, Padded};
use std::marker::PhantomData;
use std::ptr;

/// With two in the first, `2 << 26` elements: more than there are threads or transactions at a time.
const CHUNKS: usize = 26;

/// See the [module](self).
pub(crate) struct Chunks<T, const FIRST: u32> {
    chunks: [AtomicPtr<T>; CHUNKS],
    allocated: Padded<AtomicU32>,
    /// It owns its elements, and lends them to all threads.
    owned: PhantomData<T>,
}

impl<T: Default, const FIRST: u32> Chunks<T, FIRST> {
    pub(crate) fn new() -> Chunks<T, FIRST> {
        Chunks {
            chunks: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            allocated: Padded(AtomicU32::new(0)),
            owned: PhantomData,
        }
    }

    /// The index of an element that nobody has used before.
    pub(crate) fn allocate(&self) -> u32 {
        // SeqCst, like the installation of the chunk: D2.
        let index = self.allocated.0.fetch_add(1, Ordering::SeqCst);
        let (chunk, _) = Self::locate(index);
        if self.chunks[chunk].load(Ordering::Acquire).is_null() {
            let elements: Box<[T]> = (0..Self::chunk_len(chunk)).map(|_| T::default()).collect();
            let new = Box::into_raw(elements).cast::<T>();
            let installed = self.chunks[chunk].compare_exchange(
                ptr::null_mut(),
                new,
                Ordering::SeqCst,
                Ordering::Acquire,
            );
            if installed.is_err() {
                // SAFETY: `new` was never shared.
                unsafe { Self::free_chunk(new, chunk) };
            }
        }
        index
    }
}

impl<T, const FIRST: u32> Chunks<T, FIRST> {
    fn locate(index: u32) -> (usize, usize) {
        let chunk = (index / FIRST + 1).ilog2() as usize;
        (chunk, index as usize - Self::start_of(chunk))
    }

    /// The index of a chunk's first element.
    fn start_of(chunk: usize) -> usize {
        FIRST as usize * ((1 << chunk) - 1)
    }

    fn chunk_len(chunk: usize) -> usize {
        (FIRST as usize) << chunk
    }

    /// The element of an index that [`Chunks::allocate`] has returned.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> &T {
        let (chunk, offset) = Self::locate(index);
        let first = self.chunks[chunk].load(Ordering::Acquire);
        debug_assert!(!first.is_null());
        // SAFETY: the chunk is there and stays (D1), and `offset` is within its length.
        unsafe { &*first.add(offset) }
    }

    /// All elements whose indexes have been returned, and perhaps some whose will be next (D2).
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let allocated = self.allocated.0.load(Ordering::SeqCst) as usize;
        let chunks = self.chunks.iter().enumerate();
        chunks.take_while(move |(chunk, _)| Self::start_of(*chunk) < allocated).flat_map(
            move |(chunk, first)| {
                let first = first.load(Ordering::SeqCst);
                let in_use = Self::chunk_len(chunk).min(allocated - Self::start_of(chunk));
                let len = if first.is_null() { 0 } else { in_use };
                // SAFETY: as in `get`.
                (0..len).map(move |offset| unsafe { &*first.add(offset) })
            },
        )
    }

    /// Bytes of all chunks.
    pub(crate) fn bytes(&self) -> usize {
        let chunks = self.chunks.iter().enumerate();
        let there = chunks.filter(|(_, first)| !first.load(Ordering::Relaxed).is_null());
        there.map(|(chunk, _)| Self::chunk_len(chunk) * size_of::<T>()).sum()
    }

    /// # Safety
    /// `first` is a chunk that `allocate` made for `chunk`, and nobody uses it.
    unsafe fn free_chunk(first: *mut T, chunk: usize) {
        let elements = ptr::slice_from_raw_parts_mut(first, Self::chunk_len(chunk));
        // SAFETY: the caller's contract; it was a boxed slice of this length.
        drop(unsafe { Box::from_raw(elements) });
    }
}

impl<T, const FIRST: u32> Drop for Chunks<T, FIRST> {
    fn drop(&mut self) {
        for (chunk, first) in self.chunks.iter().enumerate() {
            let first = first.load(Ordering::Relaxed);
            if !first.is_null() {
                // SAFETY: installed by `allocate`; `&mut self` excludes users.
                unsafe { Self::free_chunk(first, chunk) };
            }
        }
    }
}

#[cfg(test)]
struct Element(crate::sync::AtomicU64);

#[cfg(test)]
impl Default for Element {
    fn default() -> Element {
        Element(crate::sync::AtomicU64::new(0))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const FIRST: u32 = 64;

    #[test]
    fn every_index_has_its_own_element_that_stays_where_it_is() {
        let chunks = Chunks::<Element, FIRST>::new();
        let place = |index: u32| {
            chunks.get(index).0.store(u64::from(index), Ordering::Relaxed);
            ptr::from_ref(chunks.get(index))
        };
        let places: Vec<_> = (0..1000).map(|index| (chunks.allocate() == index, place(index))).collect();
        assert!(places.iter().all(|(in_order, _)| *in_order));
        assert!(places.iter().enumerate().all(|(index, (_, before))| place(index as u32) == *before));
        assert_eq!(places.iter().map(|(_, place)| *place).collect::<HashSet<_>>().len(), 1000);
        assert!(chunks.iter().map(ptr::from_ref).eq(places.iter().map(|(_, place)| *place)));
        assert!(chunks.iter().map(|element| element.0.load(Ordering::Relaxed)).eq(0..1000));
    }

    #[test]
    fn chunks_double_and_their_bytes_count() {
        let chunks = Chunks::<Element, FIRST>::new();
        assert_eq!((chunks.bytes(), chunks.iter().count()), (0, 0));
        chunks.allocate();
        assert_eq!((chunks.bytes(), chunks.iter().count()), (FIRST as usize * size_of::<Element>(), 1));
        (0..FIRST).for_each(|_| _ = chunks.allocate());
        assert_eq!(
            (chunks.bytes(), chunks.iter().count()),
            (3 * FIRST as usize * size_of::<Element>(), FIRST as usize + 1)
        );
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    const FIRST: u32 = 2;

    /// D1, D2: of two that come to a new chunk one installs it, and each has an element of its own; who goes over them meets what is there.
    #[test]
    fn loom_who_comes_to_a_new_chunk_has_an_element_of_its_own() {
        loom::model(|| {
            let chunks = Arc::new(Chunks::<Element, FIRST>::new());
            (0..FIRST - 1).for_each(|_| _ = chunks.allocate());
            let take = |chunks: &Chunks<Element, FIRST>| {
                let index = chunks.allocate();
                // Relaxed: the join below orders it.
                chunks.get(index).0.fetch_add(1, Ordering::Relaxed);
                index
            };
            let other = Arc::clone(&chunks);
            let others = thread::spawn(move || [take(&other), take(&other)]);
            let mine = take(&chunks);
            let seen = chunks.iter().count();
            assert!((FIRST as usize..=FIRST as usize + 2).contains(&seen), "{seen}");
            let others = others.join().unwrap();
            assert!(!others.contains(&mine));
            let sum: u64 = chunks.iter().map(|element| element.0.load(Ordering::Relaxed)).sum();
            assert_eq!((chunks.iter().count(), sum), (FIRST as usize + 2, 3));
        });
    }
}
