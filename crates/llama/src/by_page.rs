//! [`ByPage`]: something for each of many pages, by their identifiers.

use crate::page_id::PageId;

use std::collections::BTreeMap;

/// The array has so many places for each page that there is, and some more.
const PLACES_PER_PAGE: u64 = 8;
const PLACES_MORE: u64 = 1 << 12;

/// A map from page identifiers. They are given out without gaps, so it is an array: what is done for all pages one after the other
/// goes through memory in order. But what was read may say anything, and most pages may be gone: those whose identifiers are far beyond the number of pages lie in a tree.
#[derive(Debug)]
pub(crate) struct ByPage<T> {
    values: Vec<Option<T>>,
    /// How many pages there are at least, or will be.
    count: u64,
    /// Those beyond the array.
    far: BTreeMap<u64, T>,
}

impl<T> ByPage<T> {
    /// Of nothing yet; about `count` pages will come.
    pub(crate) fn expecting(count: u64) -> ByPage<T> {
        ByPage { values: Vec::new(), count, far: BTreeMap::new() }
    }

    pub(crate) fn get(&self, page: PageId) -> Option<&T> {
        match self.values.get(page.0 as usize) {
            Some(value) => value.as_ref(),
            None => self.far.get(&page.0),
        }
    }

    pub(crate) fn get_mut(&mut self, page: PageId) -> Option<&mut T> {
        match self.values.get_mut(page.0 as usize) {
            Some(value) => value.as_mut(),
            None => self.far.get_mut(&page.0),
        }
    }

    /// What is there, or what `make` makes.
    pub(crate) fn get_or_insert_with(&mut self, page: PageId, make: impl FnOnce() -> T) -> &mut T {
        match self.slot(page) {
            Some(_) => self.values[page.0 as usize].get_or_insert_with(make),
            None => self.far.entry(page.0).or_insert_with(make),
        }
    }

    pub(crate) fn insert(&mut self, page: PageId, value: T) {
        match self.slot(page) {
            Some(slot) => *slot = Some(value),
            None => drop(self.far.insert(page.0, value)),
        }
    }

    pub(crate) fn remove(&mut self, page: PageId) -> Option<T> {
        match self.values.get_mut(page.0 as usize) {
            Some(value) => value.take(),
            None => self.far.remove(&page.0),
        }
    }

    /// In the order of the identifiers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PageId, &T)> {
        let numbered = self.values.iter().enumerate();
        let near = numbered.filter_map(|(number, value)| Some((PageId(number as u64), value.as_ref()?)));
        near.chain(self.far.iter().map(|(&number, value)| (PageId(number), value)))
    }

    /// In the order of the identifiers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (PageId, &mut T)> {
        let numbered = self.values.iter_mut().enumerate();
        let near = numbered.filter_map(|(number, value)| Some((PageId(number as u64), value.as_mut()?)));
        near.chain(self.far.iter_mut().map(|(&number, value)| (PageId(number), value)))
    }

    /// The place in the array of a page that is there or about to be; `None` if it lies beyond.
    fn slot(&mut self, page: PageId) -> Option<&mut Option<T>> {
        if page.0 >= self.values.len() as u64 {
            self.count = self.count.max(self.values.len() as u64 / PLACES_PER_PAGE) + 1;
            if page.0 > PLACES_PER_PAGE * self.count + PLACES_MORE {
                return None;
            }
            let end = page.0 + 1;
            self.values.resize_with(end as usize, || None);
            let beyond = self.far.split_off(&end);
            for (number, value) in std::mem::replace(&mut self.far, beyond) {
                self.values[number as usize] = Some(value);
            }
        }
        self.values.get_mut(page.0 as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0u64..20, 0u8..4, 0u32..4), 0..100)) {
            let (mut map, mut model) = (ByPage::expecting(7), BTreeMap::new());
            for (at, (number, step, far)) in steps.into_iter().enumerate() {
                // Some just beyond the first array, and some far beyond any.
                let number = number + [0, 4090, 4120, 1 << 40][far as usize];
                let page = PageId(number);
                match step {
                    0 => {
                        map.insert(page, at);
                        model.insert(page, at);
                    }
                    1 => assert_eq!(map.remove(page), model.remove(&page)),
                    2 => assert_eq!(map.get_or_insert_with(page, || at), model.entry(page).or_insert(at)),
                    _ => assert_eq!(map.get_mut(page), model.get_mut(&page)),
                }
                assert_eq!(map.get(page), model.get(&page));
            }
            assert!(map.iter().map(|(page, &at)| (page, at)).eq(model.clone()));
            assert!(map.iter_mut().map(|(page, at)| (page, *at)).eq(model));
        }
    }
}
