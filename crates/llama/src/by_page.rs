//! [`ByPage`]: something for each of many pages, by their identifiers.

use crate::page_id::PageId;

/// A map from page identifiers. They are given out without gaps, so it is an array: what is done for all pages one after the other
/// goes through memory in order.
#[derive(Debug)]
pub(crate) struct ByPage<T> {
    values: Vec<Option<T>>,
}

impl<T> ByPage<T> {
    /// Of nothing, with room for the first `count` identifiers.
    pub(crate) fn with_capacity(count: usize) -> ByPage<T> {
        ByPage { values: Vec::with_capacity(count + 1) }
    }

    pub(crate) fn get(&self, page: PageId) -> Option<&T> {
        self.values.get(page.0 as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, page: PageId) -> Option<&mut T> {
        self.values.get_mut(page.0 as usize)?.as_mut()
    }

    /// What is there, or what `make` makes.
    pub(crate) fn get_or_insert_with(&mut self, page: PageId, make: impl FnOnce() -> T) -> &mut T {
        self.slot(page).get_or_insert_with(make)
    }

    pub(crate) fn insert(&mut self, page: PageId, value: T) {
        *self.slot(page) = Some(value);
    }

    pub(crate) fn remove(&mut self, page: PageId) -> Option<T> {
        self.values.get_mut(page.0 as usize)?.take()
    }

    /// In the order of the identifiers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PageId, &T)> {
        let numbered = self.values.iter().enumerate();
        numbered.filter_map(|(number, value)| Some((PageId(number as u64), value.as_ref()?)))
    }

    /// In the order of the identifiers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (PageId, &mut T)> {
        let numbered = self.values.iter_mut().enumerate();
        numbered.filter_map(|(number, value)| Some((PageId(number as u64), value.as_mut()?)))
    }

    fn slot(&mut self, page: PageId) -> &mut Option<T> {
        let number = page.0 as usize;
        if number >= self.values.len() {
            self.values.resize_with(number + 1, || None);
        }
        &mut self.values[number]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    proptest::proptest! {
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0u64..20, 0u8..4), 0..100)) {
            let (mut map, mut model) = (ByPage::with_capacity(7), BTreeMap::new());
            for (at, (number, step)) in steps.into_iter().enumerate() {
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
