//! [`Images`]: the row of images from which a recovery would start, and what they do not say yet.
//!
//! A *whole* image names every page. The images after it hold only what has changed: for a page that is new since
//! then its place and its fragments, for others their fragments, or that they do not count any more. So a checkpoint
//! writes in proportion to what was changed, not to the size of the store, and its image is whole only once the row
//! after the last whole one has become longer than that, or half of its pages are gone: what whole images cost is at
//! most what the others do.
//!
//! - **I1** When a page's fragments change, or whether it counts, the page is noted here, under the flush lock.
//! - **I2** An image takes the note away when it reads what the page is, under that lock. So what changes later is
//!   noted for the next one.
//! - **I3** If an image is not completed, what it has taken is lost: the next one is whole.
//! - **I4** Of a page that no image names the place is noted when its first fragment is written.

use crate::mapping_table::MappingTable;
use crate::page_id::PageId;
use deuteron_device::BLOCK_BYTES;
use std::collections::HashMap;

/// What an image is made of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub(crate) bytes: u64,
    /// Pages that count.
    pub(crate) pages: u64,
    /// Pages that do not count any more.
    pub(crate) gone: u64,
}

/// Under the flush lock.
pub(crate) struct Images {
    /// The numbers of the images, from the last whole one on.
    numbers: Vec<u64>,
    whole_bytes: u64,
    /// Pages in it.
    whole_pages: u64,
    /// Bytes of those behind it.
    changes_bytes: u64,
    /// Pages that they say are gone.
    gone_pages: u64,
    /// Pages that are noted (I1), and some of which the note was taken since; perhaps twice.
    changed: Vec<PageId>,
    /// Tree and low key of pages that no image names (I4).
    places: HashMap<PageId, (u32, Vec<u8>)>,
    /// An image has begun to take notes and was not completed (I3).
    incomplete: bool,
}

impl Images {
    /// Begins with image `number`, which is whole, as [`Images::completed`].
    pub(crate) fn new(number: u64, written: Written) -> Images {
        Images {
            numbers: vec![number],
            whole_bytes: written.bytes,
            whole_pages: written.pages,
            changes_bytes: 0,
            gone_pages: 0,
            changed: Vec::new(),
            places: HashMap::new(),
            incomplete: false,
        }
    }

    /// The images that a recovery would read.
    pub(crate) fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    pub(crate) fn newest(&self) -> u64 {
        *self.numbers.last().expect("a store has an image")
    }

    /// Whether the next image is to be whole.
    pub(crate) fn is_whole_due(&self) -> bool {
        // A few small ones beside a small whole one are no matter.
        let few = 8 * BLOCK_BYTES as u64;
        let is_shrunk = self.whole_bytes > few && 2 * self.gone_pages > self.whole_pages;
        self.incomplete || is_shrunk || self.changes_bytes > self.whole_bytes + few
    }

    /// Notes a page (I1).
    pub(crate) fn note(&mut self, table: &MappingTable, page: PageId) {
        if table.set_changed(page) {
            self.changed.push(page);
        }
    }

    /// Notes the place of a page (I4).
    pub(crate) fn note_place(&mut self, page: PageId, tree: u32, low_key: &[u8]) {
        self.places.insert(page, (tree, low_key.to_vec()));
    }

    /// An image begins to take notes.
    pub(crate) fn begin(&mut self) {
        self.incomplete = true;
    }

    /// The pages that are noted, and some that were; for an image that is not whole.
    pub(crate) fn take_changed(&mut self) -> Vec<PageId> {
        std::mem::take(&mut self.changed)
    }

    /// The place of a page that no image has named. It is named now, or nobody will ask for it.
    pub(crate) fn take_place(&mut self, page: PageId) -> Option<(u32, Vec<u8>)> {
        self.places.remove(&page)
    }

    /// Image `number` is durable.
    pub(crate) fn completed(&mut self, number: u64, is_whole: bool, written: Written) {
        self.incomplete = false;
        if is_whole {
            self.numbers.clear();
            (self.whole_bytes, self.whole_pages) = (written.bytes, written.pages);
            (self.changes_bytes, self.gone_pages) = (0, 0);
        } else {
            self.changes_bytes += written.bytes;
            self.gone_pages += written.gone;
        }
        self.numbers.push(number);
    }
}
