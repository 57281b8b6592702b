//! The slots: one cache-line pair for each thread, in chunks that are added and never move.
//!
//! Chunk `k` holds `FIRST << k` slots, so a dozen pointers reach any thread, an index finds its slot with two
//! instructions, and a scan meets at most twice as many slots as threads that lived at the same time.

use crate::limbo::Limbo;
use crate::sync::{AtomicPtr, AtomicU64, Mutex, Ordering};
use std::cell::Cell;
use std::ptr;

#[cfg(not(any(loom, shuttle)))]
const FIRST: usize = 16;
#[cfg(any(loom, shuttle))]
const FIRST: usize = 2;
/// 16 << 20 threads: more than a kernel can number.
#[cfg(not(loom))]
const CHUNKS: usize = 20;
#[cfg(loom)]
const CHUNKS: usize = 2;

/// [`Slot::epoch`] of a thread that is not pinned. Epochs start above it.
pub(crate) const IDLE: u64 = 0;

/// What one thread shares with the others. 128 bytes, since the prefetcher fetches lines in pairs.
///
/// # Invariants
///
/// - **S1** `nesting` and `collect_due` are touched by the owner of the thread index only (see `thread`, T1, T2).
/// - **S2** `epoch` is written by the owner only: [`IDLE`] when `nesting` is 0, else an epoch that was current
///   when the outermost guard was made.
#[repr(align(128))]
pub(crate) struct Slot {
    /// The epoch in which the thread is pinned, or [`IDLE`].
    pub(crate) epoch: AtomicU64,
    /// The bytes in `limbo`, written under its mutex, so that they can be summed up without it.
    pub(crate) garbage_bytes: AtomicU64,
    /// Guards alive on the thread.
    pub(crate) nesting: Cell<u32>,
    /// The limbo list has reached the threshold: collect when the outermost guard is dropped.
    pub(crate) collect_due: Cell<bool>,
    /// The mutex is all but uncontended: others only try it, when they collect. In return the garbage of an
    /// idle or exited thread is anybody's to free.
    pub(crate) limbo: Mutex<Limbo>,
}

// SAFETY: the two cells are touched by one thread at a time (S1); the rest is Sync by itself.
unsafe impl Sync for Slot {}

impl Slot {
    fn new() -> Slot {
        Slot {
            epoch: AtomicU64::new(IDLE),
            garbage_bytes: AtomicU64::new(0),
            nesting: Cell::new(0),
            collect_due: Cell::new(false),
            limbo: Mutex::new(Limbo::new()),
        }
    }
}

/// A growing array of [`Slot`]s whose addresses are stable.
pub(crate) struct Slots {
    /// **S3** Each is null, or a leaked boxed slice of `FIRST << k` slots that lives as long as `self`.
    chunks: [AtomicPtr<Slot>; CHUNKS],
}

impl Slots {
    pub(crate) fn new() -> Slots {
        Slots { chunks: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())) }
    }

    /// The slot of thread `index`.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> &Slot {
        let position = index as usize + FIRST;
        let chunk = (position / FIRST).ilog2() as usize;
        let mut slots = self.chunks[chunk].load(Ordering::Acquire);
        if slots.is_null() {
            slots = self.grow(chunk);
        }
        // SAFETY: S3: the chunk has `FIRST << chunk` slots, and position < FIRST << (chunk + 1).
        unsafe { &*slots.add(position - (FIRST << chunk)) }
    }

    #[cold]
    fn grow(&self, chunk: usize) -> *mut Slot {
        let slots: Box<[Slot]> = (0..FIRST << chunk).map(|_| Slot::new()).collect();
        let new = Box::into_raw(slots).cast::<Slot>();
        match self.chunks[chunk].compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(winner) => {
                // SAFETY: made above with this length, and published to nobody.
                drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(new, FIRST << chunk)) });
                winner
            }
        }
    }

    /// All slots there are. A chunk added meanwhile may be missed; see `epochs` for why that is sound.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.chunks.iter().enumerate().flat_map(|(chunk, slots)| {
            let slots = slots.load(Ordering::Acquire);
            let length = if slots.is_null() { 0 } else { FIRST << chunk };
            // SAFETY: S3; a null chunk is not dereferenced, since its length is 0.
            (0..length).map(move |offset| unsafe { &*slots.add(offset) })
        })
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for (chunk, slots) in self.chunks.iter_mut().enumerate() {
            let slots = slots.load(Ordering::Relaxed);
            if !slots.is_null() {
                // SAFETY: S3, and `&mut self` says that nobody borrows a slot any more.
                drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(slots, FIRST << chunk)) });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_keep_their_address_and_are_distinct() {
        let slots = Slots::new();
        let first: Vec<*const Slot> = (0..200).map(|index| ptr::from_ref(slots.get(index))).collect();
        slots.get(5000);
        let again: Vec<*const Slot> = (0..200).map(|index| ptr::from_ref(slots.get(index))).collect();
        assert_eq!(first, again);
        let mut distinct = first.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 200);
    }

    #[test]
    fn a_scan_meets_every_slot_in_use() {
        let slots = Slots::new();
        for index in [0, 15, 16, 47, 48, 1000] {
            slots.get(index).epoch.store(u64::from(index) + 1, Ordering::Relaxed);
        }
        let met: Vec<u64> = slots
            .iter()
            .map(|slot| slot.epoch.load(Ordering::Relaxed))
            .filter(|&epoch| epoch != IDLE)
            .collect();
        assert_eq!(met, [1, 16, 17, 48, 49, 1001]);
    }
}
