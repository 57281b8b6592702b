//! The limbo list of a slot: what was retired there and is not yet freed, oldest epoch first.

use std::collections::VecDeque;

/// Something to be freed, or done, once its epoch has passed.
pub(crate) enum Reclaim {
    /// `free(pointer, bytes)`.
    Memory { pointer: *mut u8, bytes: usize, free: unsafe fn(*mut u8, usize) },
    /// A closure of the caller.
    Action(Box<dyn FnOnce() + Send>),
}

// SAFETY: the contract of `Guard::retire` makes `free` sound on `pointer` from any thread; actions are Send.
unsafe impl Send for Reclaim {}

impl Reclaim {
    /// Frees the memory or runs the action.
    ///
    /// # Safety
    /// No guard may be left that could reach what is freed.
    pub(crate) unsafe fn run(self) {
        match self {
            // SAFETY: the retirer vouched for `free` (contract of `Guard::retire`), our caller for the time.
            Reclaim::Memory { pointer, bytes, free } => unsafe { free(pointer, bytes) },
            Reclaim::Action(action) => action(),
        }
    }
}

struct Entry {
    epoch: u64,
    bytes: u64,
    reclaim: Reclaim,
}

/// What the list itself holds for each entry counts towards the threshold, though not as garbage.
const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

/// An emptied list keeps at most this much room, so that one burst does not hold memory for ever.
const KEPT_ENTRIES_MAX: usize = 4096;

/// A queue of retired things. Only the slot's owner pushes, and a thread sees the global epoch only grow, so the
/// epochs are sorted.
pub(crate) struct Limbo {
    entries: VecDeque<Entry>,
    bytes: u64,
    /// Size at which the owner should collect next.
    collect_at: u64,
}

impl Limbo {
    pub(crate) fn new() -> Limbo {
        Limbo { entries: VecDeque::new(), bytes: 0, collect_at: 0 }
    }

    /// Bytes of garbage, as stated by those who retired it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn size(&self) -> u64 {
        self.bytes + self.entries.len() as u64 * ENTRY_BYTES
    }

    /// Appends; true if the list has grown by `threshold` since it was last taken from.
    pub(crate) fn push(&mut self, epoch: u64, bytes: usize, reclaim: Reclaim, threshold: u64) -> bool {
        debug_assert!(self.entries.back().is_none_or(|last| last.epoch <= epoch));
        self.entries.push_back(Entry { epoch, bytes: bytes as u64, reclaim });
        self.bytes += bytes as u64;
        self.size() >= self.collect_at.max(threshold)
    }

    /// Takes out what was retired before `epoch`, as far as there is room in `taken`, to which it is appended; how much more room all of it
    /// needs. It neither allocates nor frees: the owner may be waiting for the list, and be pinned.
    ///
    /// What a long pin keeps back is not looked at again before another `threshold` of garbage: otherwise each
    /// further retirement would pay for a vain collection.
    pub(crate) fn take_before(&mut self, epoch: u64, threshold: u64, taken: &mut Vec<Reclaim>) -> usize {
        let old = self.entries.partition_point(|entry| entry.epoch < epoch);
        let count = old.min(taken.capacity() - taken.len());
        for entry in self.entries.drain(..count) {
            self.bytes -= entry.bytes;
            taken.push(entry.reclaim);
        }
        self.collect_at = self.size() + threshold;
        old - count
    }

    /// If the list is empty, the room that a burst has left in it.
    pub(crate) fn take_excess(&mut self) -> Option<impl Sized + use<>> {
        let has_excess = self.entries.is_empty() && self.entries.capacity() > KEPT_ENTRIES_MAX;
        has_excess.then(|| std::mem::take(&mut self.entries))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn nothing() -> Reclaim {
        Reclaim::Action(Box::new(|| ()))
    }

    #[test]
    fn only_what_is_older_is_taken() {
        let mut limbo = Limbo::new();
        for epoch in [1, 1, 2, 5] {
            limbo.push(epoch, 10, nothing(), u64::MAX);
        }
        let mut taken = Vec::with_capacity(4);
        assert_eq!(limbo.take_before(2, u64::MAX / 2, &mut taken), 0);
        assert_eq!((taken.len(), limbo.bytes()), (2, 20));
        assert_eq!(limbo.take_before(6, u64::MAX / 2, &mut taken), 0);
        assert_eq!((taken.len(), limbo.bytes()), (4, 0));
    }

    #[test]
    fn no_more_is_taken_than_there_is_room_for() {
        let mut limbo = Limbo::new();
        for _ in 0..10 {
            limbo.push(1, 10, nothing(), u64::MAX);
        }
        let mut taken = Vec::with_capacity(4);
        let room = taken.capacity();
        let more = limbo.take_before(2, 0, &mut taken);
        assert_eq!((taken.len(), more, limbo.bytes()), (room, 10 - room, 10 * more as u64));
        taken.reserve_exact(more);
        assert_eq!(limbo.take_before(2, 0, &mut taken), 0);
        assert_eq!((taken.len(), limbo.bytes()), (10, 0));
    }

    #[test]
    fn an_empty_list_gives_up_the_room_of_a_burst() {
        let mut limbo = Limbo::new();
        for _ in 0..2 * KEPT_ENTRIES_MAX {
            limbo.push(1, 0, nothing(), u64::MAX);
        }
        assert!(limbo.take_excess().is_none(), "it is not empty");
        limbo.take_before(2, 0, &mut Vec::with_capacity(2 * KEPT_ENTRIES_MAX));
        assert!(limbo.take_excess().is_some() && limbo.entries.capacity() == 0);
        limbo.push(1, 0, nothing(), u64::MAX);
        limbo.take_before(2, 0, &mut Vec::with_capacity(1));
        assert!(limbo.take_excess().is_none(), "it is small");
    }

    #[test]
    fn a_vain_collection_is_not_repeated_at_once() {
        let threshold = 1000;
        let mut limbo = Limbo::new();
        assert!(!limbo.push(1, 500, nothing(), threshold));
        assert!(limbo.push(1, 500, nothing(), threshold));
        limbo.take_before(1, threshold, &mut Vec::new());
        assert!(!limbo.push(1, 500, nothing(), threshold));
        assert!(limbo.push(1, 500, nothing(), threshold));
    }

    #[test]
    fn many_small_things_reach_the_threshold_too() {
        let mut limbo = Limbo::new();
        assert!((0..1000).any(|_| limbo.push(1, 0, nothing(), 1000)));
    }
}
