//! Point reads.

use crate::chain::{self, Lookup, base_of};
use crate::error::Miss;
use crate::interruption::{Moment, strike};
use crate::merging::Heir;
use crate::page::key::KeyParts;
use crate::page::run::RecordRef;
use crate::search::compare;
use crate::{BwTreeError, Tree};
use deuteron_epoch::Guard;
use deuteron_llama::{Excerpt, NodeRef, PageId, PageState, Snapshot};

impl Tree {
    /// Finds the newest version of `key`, a tombstone included, without allocating or waiting. What is found lives
    /// as long as the guard.
    ///
    /// # Errors
    /// [`Miss`] if the page must be loaded first: drop the guard, [`Tree::load`] the page, try again.
    #[inline]
    pub fn try_get<'g>(&self, key: &[u8], guard: &'g Guard<'_>) -> Result<Option<RecordRef<'g>>, Miss> {
        self.try_get_from(self.index.find(key, guard), key, guard)
    }

    /// As [`Tree::try_get`], where the index has named this page.
    #[inline]
    pub(crate) fn try_get_from<'g>(
        &self,
        mut page: PageId,
        key: &[u8],
        guard: &'g Guard<'_>,
    ) -> Result<Option<RecordRef<'g>>, Miss> {
        loop {
            let Some(head) = self.resident(page, guard)? else {
                page = self.index.find(key, guard);
                continue;
            };
            strike(Moment::Step);
            let mut found = chain::lookup(head, key);
            if matches!(found, Lookup::Sealed) {
                match self.heir_of(page, head, guard)? {
                    Heir::Unmerged(..) => {
                        found = chain::lookup(head.next().expect("a seal lies on a chain"), key)
                    }
                    Heir::Merged(heir) => {
                        page = heir;
                        continue;
                    }
                }
            }
            match found {
                Lookup::Found(record) => return Ok(record),
                Lookup::Missing => return Err(Miss(page)),
                Lookup::Right { separator, page: right } => {
                    page = self.go_right(page, separator, right, guard)?
                }
                Lookup::Sealed => unreachable!("there is one seal on a page"),
            }
        }
    }

    /// Finds the newest version of `key`, loading its page if need be, and gives it to `read`, which should only copy
    /// out what it wants: no memory is reclaimed while it runs.
    ///
    /// # Errors
    /// [`BwTreeError::Load`] if the page cannot be loaded.
    ///
    /// ```
    /// # use deuteron_bwtree::{Options, Tree, Upsert};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
    /// tree.upsert(&[Upsert { key: b"one", value: Some(b"1"), stamp: 1, lsn: 1 }])?;
    /// let length = tree.get(b"one", |record| record.and_then(|found| found.value).map(<[u8]>::len))?;
    /// assert_eq!(length, Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(Option<RecordRef<'_>>) -> R,
    ) -> Result<R, BwTreeError> {
        loop {
            let missing = {
                let guard = self.llama.pin();
                match self.try_get(key, &guard) {
                    Ok(found) => return Ok(read(found)),
                    Err(Miss(page)) => page,
                }
            };
            self.load(missing)?;
        }
    }

    /// As [`Tree::get`] after a [`Miss`], past the cache: only that of the page is read which may hold `key`, and the page is not loaded. `None` if it is better loaded, or
    /// that cannot be said without: see [`deuteron_llama::Llama::excerpt`]. Blocks on the device; to be called without a guard.
    ///
    /// ```
    /// # use deuteron_bwtree::{Options, Tree, Upsert};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
    /// tree.upsert(&[Upsert { key: b"one", value: Some(b"1"), stamp: 1, lsn: 1 }])?;
    /// while tree.llama().flush_step()? != deuteron_llama::FlushProgress::Nothing {}
    /// while tree.llama().memory_bytes() > 0 {
    ///     tree.llama().evict_step(u64::MAX);
    /// }
    /// let miss = tree.try_get(b"one", &tree.llama().pin()).err().expect("nothing is in memory");
    /// // There is room for it.
    /// assert!(tree.get_unloaded(&miss, b"one", |_| ()).is_none());
    /// tree.load(miss.0)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_unloaded<R>(
        &self,
        miss: &Miss,
        key: &[u8],
        read: impl FnOnce(Option<RecordRef<'_>>) -> R,
    ) -> Option<R> {
        let find = |excerpt: &Excerpt<'_>| self.find_in_excerpt(excerpt, key).map(read);
        self.llama.excerpt(miss.0, KeyParts::whole(key).filter(), find)?
    }

    /// What an excerpt of a page says of `key`, unless that is not the page of the key.
    pub(crate) fn find_in_excerpt<'e>(
        &self,
        excerpt: &'e Excerpt<'_>,
        key: &[u8],
    ) -> Option<Option<RecordRef<'e>>> {
        // The identifier may have gone to another page since the miss, or the page have lost this key to its right sibling.
        let descriptor = excerpt.descriptor();
        if descriptor.tree != self.id || compare(key, descriptor.low_key).is_lt() {
            return None;
        }
        match chain::lookup_in(excerpt.payloads(), key) {
            Lookup::Found(record) => Some(record),
            Lookup::Right { .. } | Lookup::Missing | Lookup::Sealed => None,
        }
    }

    /// The newest node of a page of this tree; `None` if it was merged and freed since the index was asked: ask again.
    #[inline]
    pub(crate) fn resident<'g>(
        &self,
        page: PageId,
        guard: &'g Guard<'_>,
    ) -> Result<Option<NodeRef<'g>>, Miss> {
        Self::resident_head(page, self.llama.snapshot(page, guard))
    }

    /// The same of a snapshot of it.
    #[inline]
    pub(crate) fn resident_head(page: PageId, snapshot: Snapshot<'_>) -> Result<Option<NodeRef<'_>>, Miss> {
        match snapshot.state() {
            PageState::Resident(head) => {
                head.touch();
                Ok(Some(head))
            }
            PageState::Stored(_) => Err(Miss(page)),
            PageState::Free => Ok(None),
        }
    }

    /// Finishes the split of `left` that was met: posts the separator, so that nobody has to come this way again. The hold
    /// on the left page is released by the thread that split it.
    ///
    /// # Errors
    /// [`Miss`] of `left`, if there is no such page as `right`: [`Tree::load`] says that the tree is damaged.
    #[cold]
    pub(crate) fn go_right(
        &self,
        left: PageId,
        separator: &[u8],
        right: PageId,
        guard: &Guard<'_>,
    ) -> Result<PageId, Miss> {
        if self.missing_sibling(left, guard).is_some() {
            return Err(Miss(left));
        }
        self.counters.separators_helped.add(1);
        strike(Moment::Step);
        self.post(separator, right, guard);
        Ok(right)
    }

    /// The right sibling that a page in memory names, if there is no such page. A merge does not leave that behind: before a page is freed
    /// its left neighbour is another, or sealed.
    pub(crate) fn missing_sibling(&self, page: PageId, guard: &Guard<'_>) -> Option<PageId> {
        let sibling = || match self.llama.snapshot(page, guard).state() {
            PageState::Resident(head) if !head.is_sealed() => base_of(head).map(|base| base.right()),
            _ => None,
        };
        let right = sibling().filter(|right| !right.is_none())?;
        let is_free = matches!(self.llama.snapshot(right, guard).state(), PageState::Free);
        // Asked after that: it may have been merged a moment ago.
        (is_free && sibling() == Some(right)).then_some(right)
    }

    /// Posts a separator, unless its page has been merged meanwhile.
    pub(crate) fn post(&self, separator: &[u8], page: PageId, guard: &Guard<'_>) {
        self.index.post_if(separator, page, &|| self.is_alive(page, guard), guard);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::interruption::Bed;
    use crate::{BwTreeError, Cursor, Upsert};
    use std::ops::Bound;

    /// No operation looks for it for ever.
    #[test]
    fn a_page_that_is_missing_is_told_by_whoever_needs_it() {
        let bed = Bed::new(200);
        (0..200).for_each(|key| bed.write(key));
        let tree = &bed.tree;
        let mut leaves = Vec::new();
        tree.some_leaves(&[], |low, page| leaves.push((low.to_vec(), page)));
        let (left, (low, lost)) = (leaves[0].1, leaves[1].clone());
        {
            let guard = tree.llama.pin();
            tree.llama.free_page(lost, tree.llama.snapshot(lost, &guard), &guard).unwrap();
            assert!(tree.index.remove(&low, lost, &guard));
        }
        let told = |result: Result<(), BwTreeError>| match result {
            Err(BwTreeError::Structure { page, found, .. }) => {
                assert_eq!(page, left);
                assert!(found.contains(&lost.to_string()), "{found}");
            }
            other => panic!("{other:?}"),
        };
        told(tree.get(&low, |_| ()));
        told(tree.upsert(&[Upsert { key: &low, value: Some(b"new"), stamp: 1000, lsn: 1000 }]));
        told(tree.scan(&mut Cursor::new(Bound::Unbounded, Bound::Unbounded, false, usize::MAX), |_| {}));
        let before = Bound::Excluded(&leaves[2].0[..]);
        told(tree.scan(&mut Cursor::new(Bound::Unbounded, before, true, usize::MAX), |_| {}));
        told(tree.check().map(drop));
        tree.get(&leaves[2].0, |found| assert!(found.is_some())).unwrap();
    }
}
