//! [`Unadopted`]: durable pages that no durable page has adopted.

use crate::flush_buffer::Position;
use crate::page_id::PageId;
use std::collections::{BTreeMap, HashMap};

/// Room for so many pages is not given back.
const CAPACITY_KEPT: usize = 4096;

/// So many are no matter.
const MANY: usize = 8192;

/// Durable pages that are not adopted, each with the buffer of its first fragment. The first of the buffers is known without a look at the
/// pages: after a load there are many.
pub(crate) struct Unadopted {
    buffers: HashMap<PageId, Position>,
    /// When there are so many somebody is told.
    many: usize,
    /// Of how many pages each buffer is that of the first fragment.
    pages: BTreeMap<Position, usize>,
}

impl Default for Unadopted {
    fn default() -> Unadopted {
        Unadopted { buffers: HashMap::new(), many: MANY, pages: BTreeMap::new() }
    }
}

impl Unadopted {
    /// Whether there are many, and twice as many as when that was last asked and so: what would adopt them should be flushed. Each takes
    /// memory, and has the scan of a recovery begin early.
    pub(crate) fn have_become_many(&mut self) -> bool {
        let have = self.buffers.len() >= self.many;
        if have {
            self.many = 2 * self.buffers.len();
        }
        have
    }

    /// Notes that a fragment of `page` lies in `buffer`; an earlier one counts.
    pub(crate) fn note(&mut self, page: PageId, buffer: Position) {
        self.buffers.entry(page).or_insert_with(|| {
            *self.pages.entry(buffer).or_default() += 1;
            buffer
        });
    }

    /// The page is adopted, or gone.
    pub(crate) fn remove(&mut self, page: PageId) {
        let Some(buffer) = self.buffers.remove(&page) else { return };
        self.many = self.many.min(MANY.max(2 * self.buffers.len()));
        if self.buffers.capacity() > CAPACITY_KEPT && self.buffers.len() * 4 < self.buffers.capacity() {
            // After a load there were as many as pages; else that would be kept for ever.
            self.buffers.shrink_to(self.buffers.len() * 2);
        }
        if let Some(pages) = self.pages.get_mut(&buffer) {
            *pages -= 1;
            if *pages == 0 {
                self.pages.remove(&buffer);
            }
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.buffers.len()
    }

    /// The first buffer that holds a first fragment.
    pub(crate) fn first(&self) -> Option<Position> {
        self.pages.first_key_value().map(|(buffer, _)| *buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flush_buffer::STREAMS;
    use proptest::prelude::*;

    #[test]
    fn the_room_of_many_is_given_back() {
        let mut unadopted = Unadopted::default();
        let buffer = Position { sequence: 1, offsets: [0; STREAMS], chain: 0 };
        let pages = || (0..100_000).map(PageId);
        pages().for_each(|page| unadopted.note(page, buffer));
        assert!(unadopted.buffers.capacity() >= 100_000);
        pages().for_each(|page| unadopted.remove(page));
        assert!(unadopted.buffers.capacity() <= 2 * CAPACITY_KEPT, "{}", unadopted.buffers.capacity());
        assert_eq!(unadopted.first(), None);
    }

    #[test]
    fn whether_they_are_many_is_told_again_when_they_are_twice_as_many() {
        let mut unadopted = Unadopted::default();
        let buffer = Position { sequence: 1, offsets: [0; STREAMS], chain: 0 };
        let mut told = Vec::new();
        for page in 1..=5 * MANY as u64 {
            unadopted.note(PageId(page), buffer);
            if unadopted.have_become_many() {
                told.push(page as usize / MANY);
            }
        }
        assert_eq!(told, [1, 2, 4]);
        (1..=5 * MANY as u64).for_each(|page| unadopted.remove(PageId(page)));
        assert!(!unadopted.have_become_many());
        (1..=MANY as u64).for_each(|page| unadopted.note(PageId(page), buffer));
        assert!(unadopted.have_become_many() && !unadopted.have_become_many());
    }

    proptest! {
        #[test]
        fn the_first_is_the_least_of_all(steps in prop::collection::vec((0_u64..20, 0_u64..8, any::<bool>()), 0..200)) {
            let (mut unadopted, mut model) = (Unadopted::default(), HashMap::new());
            for (page, buffer, removed) in steps {
                let (page, buffer) = (PageId(page), Position { sequence: buffer, offsets: [0; STREAMS], chain: 0 });
                if removed {
                    unadopted.remove(page);
                    model.remove(&page);
                } else {
                    unadopted.note(page, buffer);
                    model.entry(page).or_insert(buffer);
                }
                prop_assert_eq!(unadopted.first(), model.values().min().copied());
            }
        }
    }
}
