//! [`Adoptees`]: how far a flush has come with a page that adopts many.
//!
//! Keys that descend all go to the first page of their tree, which adopts whatever has been split off since it was flushed last; and a flush writes all of that before it, one
//! after the other. It would look through all of the list for each, and pass those that it has just written.

use crate::flash_address::FlashAddress;
use crate::page_id::PageId;

/// Lists of fewer are looked through.
pub(crate) const MANY: usize = 64;

/// Of the page with a long list that was looked at last, how many of the first are known to have fragments.
///
/// As long as a page has got no further fragment its list only becomes longer, at its end (see [`Llama::install_base`](crate::Llama::install_base)); and no address of a fragment is used
/// twice. So what is known stays true for this life of the page, with whose end it is [forgotten](Adoptees::forget).
#[derive(Default)]
pub(crate) struct Adoptees {
    page: PageId,
    newest: Option<FlashAddress>,
    known: usize,
}

impl Adoptees {
    /// The first of the pages that `page`, whose newest fragment is this, `adopts`, that has no fragment.
    pub(crate) fn first_without_fragment(
        &mut self,
        page: PageId,
        newest: Option<FlashAddress>,
        adopts: &[PageId],
        mut has_fragment: impl FnMut(PageId) -> bool,
    ) -> Option<PageId> {
        if (self.page, self.newest) != (page, newest) {
            *self = Adoptees { page, newest, known: 0 };
        }
        let unknown = adopts.get(self.known..).unwrap_or_default();
        self.known += unknown.iter().take_while(|&&adoptee| has_fragment(adoptee)).count();
        adopts.get(self.known).copied()
    }

    /// The identifier of `page` may be given out again.
    pub(crate) fn forget(&mut self, page: PageId) {
        if self.page == page {
            *self = Adoptees::default();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn each_adoptee_is_looked_at_twice_at_most_however_many_there_are() {
        let adopts: Vec<PageId> = (10..1010).map(PageId).collect();
        let (mut adoptees, mut flushed, looks) = (Adoptees::default(), 0, Cell::new(0));
        let first = |adoptees: &mut Adoptees, newest, flushed: usize, adopts: &[PageId]| {
            adoptees.first_without_fragment(PageId(1), newest, adopts, |adoptee| {
                looks.set(looks.get() + 1);
                adopts.iter().position(|&each| each == adoptee) < Some(flushed)
            })
        };
        // It adopts more meanwhile.
        while let Some(next) = first(&mut adoptees, None, flushed, &adopts[..(501 + flushed / 2).min(1000)]) {
            assert_eq!(next, adopts[flushed]);
            flushed += 1;
        }
        assert_eq!(flushed, 1000);
        assert!(looks.get() <= 2 * flushed, "{} looks", looks.get());
        // Once it has been flushed, or lives again, it adopts others.
        let newest = Some(FlashAddress::new(4096, 64));
        assert_eq!(first(&mut adoptees, newest, 0, &adopts), Some(adopts[0]));
        assert_eq!(first(&mut adoptees, newest, 1000, &adopts), None);
        adoptees.forget(PageId(2));
        assert_eq!(first(&mut adoptees, newest, 0, &adopts), None);
        adoptees.forget(PageId(1));
        assert_eq!(first(&mut adoptees, newest, 0, &adopts), Some(adopts[0]));
    }
}
