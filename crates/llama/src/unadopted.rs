//! [`Unadopted`]: durable pages that no durable page has adopted.

use crate::flush_buffer::Position;
use crate::page_id::PageId;
use std::collections::{BTreeMap, HashMap};

/// Durable pages that are not adopted, each with the buffer of its first fragment. The first of the buffers is known without a look at the
/// pages: after a load there are many.
#[derive(Default)]
pub(crate) struct Unadopted {
    buffers: HashMap<PageId, Position>,
    /// Of how many pages each buffer is that of the first fragment.
    pages: BTreeMap<Position, usize>,
}

impl Unadopted {
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
        if let Some(pages) = self.pages.get_mut(&buffer) {
            *pages -= 1;
            if *pages == 0 {
                self.pages.remove(&buffer);
            }
        }
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
