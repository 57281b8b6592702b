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
//! - **I3** If an image is not completed, what it has taken is lost: the next one is whole. What it was still to take stays noted: a whole
//!   image does not find pages that are gone, and their identifiers will be used again.
//! - **I4** Of a page that no image names the place is noted when its first fragment is written.
//! - **I5** When the places have become too many, those of pages that count are forgotten, and the next image is whole: it finds
//!   them in the indexes, as a page counts only after it has come into one. Nothing is forgotten from the scan start of an image
//!   on until it is complete.

use crate::mapping_table::MappingTable;
use crate::page_id::PageId;
use deuteron_device::BLOCK_BYTES;
use std::collections::HashMap;

/// A page's tree and low key.
type Place = (u32, Box<[u8]>);

/// About what the map takes for a page besides its low key: the entry, as much again that is free, and what an allocation costs.
const PLACE_BYTES: u64 = 2 * size_of::<(PageId, Place)>() as u64 + 16;

/// About what is taken for a page with this low key.
fn place_bytes(low_key: &[u8]) -> u64 {
    PLACE_BYTES + low_key.len() as u64
}

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
    places: HashMap<PageId, Place>,
    /// About what they take.
    places_bytes: u64,
    places_bytes_max: u64,
    /// Of these, what was left by the last image, or when places were last forgotten.
    kept_bytes: u64,
    /// Places have been forgotten, and there was no whole image since (I5).
    is_forgetful: bool,
    /// There is a scan start for an image that is not complete; it may have been given up.
    is_begun: bool,
    /// An image has begun to take notes and was not completed (I3).
    incomplete: bool,
}

impl Images {
    /// Begins with image `number`, which is whole, as [`Images::completed`]. Places may take about `places_bytes_max`.
    pub(crate) fn new(number: u64, written: Written, places_bytes_max: u64) -> Images {
        Images {
            numbers: vec![number],
            whole_bytes: written.bytes,
            whole_pages: written.pages,
            changes_bytes: 0,
            gone_pages: 0,
            changed: Vec::new(),
            places: HashMap::new(),
            places_bytes: 0,
            places_bytes_max,
            kept_bytes: 0,
            is_forgetful: false,
            is_begun: false,
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

    /// The next image is to be whole.
    pub(crate) fn renew(&mut self) {
        self.incomplete = true;
    }

    /// A checkpoint begins: an image that has been begun is given up.
    pub(crate) fn give_up(&mut self) {
        self.is_begun = false;
    }

    /// An image gets its scan start (I5). Whether it is to be whole.
    pub(crate) fn begin(&mut self) -> bool {
        self.is_begun = true;
        // A few small ones beside a small whole one are no matter.
        let few = 8 * BLOCK_BYTES as u64;
        let is_shrunk = self.whole_bytes > few && 2 * self.gone_pages > self.whole_pages;
        self.incomplete || self.is_forgetful || is_shrunk || self.changes_bytes > self.whole_bytes + few
    }

    /// Notes a page (I1).
    pub(crate) fn note(&mut self, table: &MappingTable, page: PageId) {
        if table.set_changed(page) {
            self.changed.push(page);
        }
    }

    /// Notes the place of a page (I4, I5).
    pub(crate) fn note_place(&mut self, table: &MappingTable, page: PageId, tree: u32, low_key: &[u8]) {
        self.take_place(page);
        self.places_bytes += place_bytes(low_key);
        self.places.insert(page, (tree, low_key.into()));
        if !self.is_begun && self.places_bytes > self.places_bytes_max.max(2 * self.kept_bytes) {
            let mut forgotten = 0;
            self.places.retain(|&page, (_, low_key)| {
                let is_kept = !table.is_adopted(page);
                forgotten += if is_kept { 0 } else { place_bytes(low_key) };
                is_kept
            });
            self.places_bytes -= forgotten;
            self.is_forgetful = true;
            self.keep_places();
        }
    }

    /// About the bytes of memory that the places take.
    pub(crate) fn places_bytes(&self) -> u64 {
        self.places_bytes
    }

    /// Whether places will have to be forgotten, unless an image takes them.
    pub(crate) fn are_places_many(&self) -> bool {
        self.places_bytes > self.places_bytes_max / 2 + 2 * self.kept_bytes
    }

    fn keep_places(&mut self) {
        self.places.shrink_to_fit();
        self.kept_bytes = self.places_bytes;
    }

    /// The image takes notes.
    pub(crate) fn begin_to_take(&mut self) {
        self.incomplete = true;
    }

    /// The pages that are noted, and some that were; for an image that is not whole.
    pub(crate) fn take_changed(&mut self) -> Vec<PageId> {
        std::mem::take(&mut self.changed)
    }

    /// An image has failed before it had taken the notes of all of these.
    pub(crate) fn put_back(&mut self, changed: Vec<PageId>) {
        self.changed.extend(changed);
    }

    /// The place of a page that no image has named. It is named now, or nobody will ask for it.
    pub(crate) fn take_place(&mut self, page: PageId) -> Option<(u32, Vec<u8>)> {
        let (tree, low_key) = self.places.remove(&page)?;
        self.places_bytes -= place_bytes(&low_key);
        Some((tree, low_key.into_vec()))
    }

    /// Image `number` is durable.
    pub(crate) fn completed(&mut self, table: &MappingTable, number: u64, is_whole: bool, written: Written) {
        (self.incomplete, self.is_begun) = (false, false);
        self.keep_places();
        if !is_whole {
            return self.build_on(number, written);
        }
        self.numbers = vec![number];
        (self.whole_bytes, self.whole_pages) = (written.bytes, written.pages);
        (self.changes_bytes, self.gone_pages) = (0, 0);
        self.is_forgetful = false;
        // It has taken notes without this list.
        self.changed.retain(|&page| table.is_changed(page));
        self.changed.sort_unstable();
        self.changed.dedup();
    }

    /// Image `number`, which is not whole, follows those that there are.
    pub(crate) fn build_on(&mut self, number: u64, written: Written) {
        self.changes_bytes += written.bytes;
        self.gone_pages += written.gone;
        self.numbers.push(number);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FEW: u64 = 8 * BLOCK_BYTES as u64;
    const ONE: u64 = PLACE_BYTES + 8;

    fn written(bytes: u64, pages: u64, gone: u64) -> Written {
        Written { bytes, pages, gone }
    }

    fn table(pages: u64) -> MappingTable {
        let table = MappingTable::new();
        (0..=pages).for_each(|page| table.reserve(PageId(page)));
        table
    }

    /// Images with room for ten places, and a table in which all pages count but for the first eight.
    fn ten() -> (Images, MappingTable) {
        let table = table(40);
        (9..=40).for_each(|page| table.set_adopted(PageId(page)));
        (Images::new(0, written(100, 0, 0), 10 * ONE), table)
    }

    fn note(images: &mut Images, table: &MappingTable, pages: std::ops::RangeInclusive<u64>) {
        for page in pages {
            images.note_place(table, PageId(page), 7, &page.to_be_bytes());
        }
        let places = images.places.values().map(|(_, low_key)| place_bytes(low_key));
        assert_eq!(images.places_bytes(), places.sum::<u64>());
    }

    #[test]
    fn the_next_image_is_whole_when_those_behind_it_are_as_long_or_half_of_its_pages_are_gone() {
        let is_whole = |whole: Written, changes: &[Written]| {
            let mut images = Images::new(3, whole, 1 << 20);
            (4..).zip(changes).for_each(|(number, &written)| images.build_on(number, written));
            assert_eq!(images.newest(), 3 + changes.len() as u64);
            assert_eq!(images.numbers(), (3..=images.newest()).collect::<Vec<_>>());
            images.begin()
        };
        let half = [written(10, 0, 3), written(10, 0, 2)];
        assert!(!is_whole(written(FEW + 1, 10, 0), &half));
        assert!(is_whole(written(FEW + 1, 10, 0), &[half[0], half[0]]));
        // A few small ones beside a small whole one are no matter.
        assert!(!is_whole(written(FEW, 10, 0), &[half[0], half[0]]));
        assert!(!is_whole(written(100, 10, 0), &[written(100, 1, 0), written(FEW, 1, 0)]));
        assert!(is_whole(written(100, 10, 0), &[written(101, 1, 0), written(FEW, 1, 0)]));
    }

    #[test]
    fn what_an_image_has_taken_and_lost_makes_the_next_whole() {
        let table = table(3);
        let mut images = Images::new(0, written(100, 1, 0), 1 << 20);
        assert!(!images.begin());
        images.renew();
        assert!(images.begin());
        images.completed(&table, 1, true, written(200, 1, 0));
        assert!(!images.begin());
        images.begin_to_take();
        assert!(images.begin());
        images.completed(&table, 2, false, written(100 + FEW, 1, 0));
        assert_eq!(images.numbers(), [1, 2]);
        assert!(!images.begin());
        images.build_on(3, written(101, 0, 0));
        assert!(images.begin());
        images.completed(&table, 4, true, written(50, 1, 0));
        assert_eq!(images.numbers(), [4]);
        assert!(!images.begin());
    }

    #[test]
    fn a_page_is_noted_once_until_its_note_is_taken() {
        let table = table(5);
        let mut images = Images::new(0, written(100, 1, 0), 1 << 20);
        for page in [3, 1, 3, 2, 1] {
            images.note(&table, PageId(page));
        }
        assert_eq!(images.take_changed(), [3, 1, 2].map(PageId));
        assert!(images.take_changed().is_empty());
        // A whole image takes notes without the list: what is noted since stays in it, once.
        for page in [4, 5, 4] {
            images.note(&table, PageId(page));
            assert!(table.take_changed(PageId(page)));
        }
        images.note(&table, PageId(4));
        images.completed(&table, 1, true, written(100, 1, 0));
        assert_eq!(images.take_changed(), [PageId(4)]);
    }

    #[test]
    fn a_place_is_given_out_once_and_counted_until_then() {
        let (mut images, table) = ten();
        images.note_place(&table, PageId(1), 7, b"");
        // The entry and as much again, and an allocation.
        let entry = size_of::<(PageId, Place)>() as u64;
        assert!((2 * entry..4 * entry).contains(&images.places_bytes()));
        images.note_place(&table, PageId(1), 8, b"low");
        images.note_place(&table, PageId(2), 9, b"other");
        assert_eq!(images.places_bytes(), 2 * PLACE_BYTES + 8);
        assert_eq!(images.take_place(PageId(1)), Some((8, b"low".to_vec())));
        assert_eq!((images.take_place(PageId(1)), images.places_bytes()), (None, PLACE_BYTES + 5));
        assert_eq!(images.take_place(PageId(2)), Some((9, b"other".to_vec())));
        assert_eq!(images.places_bytes(), 0);
    }

    #[test]
    fn places_that_are_too_many_are_forgotten_but_for_those_of_pages_that_do_not_count() {
        let (mut images, table) = ten();
        note(&mut images, &table, 1..=10);
        assert_eq!(images.places_bytes(), 10 * ONE);
        assert!(!images.begin());
        // Not from the scan start of an image on.
        note(&mut images, &table, 11..=15);
        assert_eq!(images.places_bytes(), 15 * ONE);
        images.give_up();
        note(&mut images, &table, 16..=16);
        assert_eq!(images.places_bytes(), 8 * ONE);
        assert!(images.begin(), "what was forgotten is found by a whole one");
        images.give_up();
        // Twice as much as was kept, and no more.
        note(&mut images, &table, 9..=16);
        assert_eq!(images.places_bytes(), 16 * ONE);
        note(&mut images, &table, 17..=17);
        assert_eq!(images.places_bytes(), 8 * ONE);
        images.completed(&table, 1, true, written(100, 1, 0));
        assert!(!images.begin());
    }

    #[test]
    fn an_image_is_wanted_at_half_of_the_places_beside_those_that_stay() {
        let (mut images, table) = ten();
        note(&mut images, &table, 1..=5);
        assert!(!images.are_places_many());
        note(&mut images, &table, 6..=6);
        assert!(images.are_places_many());
        note(&mut images, &table, 7..=8);
        // An image has left these.
        images.completed(&table, 1, false, written(100, 1, 0));
        assert!(!images.begin());
        note(&mut images, &table, 9..=21);
        assert!(!images.are_places_many());
        note(&mut images, &table, 22..=22);
        assert!(images.are_places_many());
    }
}
