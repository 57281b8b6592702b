//! Loading pages before they are needed: several at once, so that the device has more than one read to do.

use crate::error::Miss;
use crate::index::FIND_EACH_MAX;
use crate::page::key::KeyParts;
use crate::page::run::RecordRef;
use crate::{BwTreeError, Cursor, Tree};
use deuteron_epoch::Guard;
use deuteron_llama::{Excerpt, ExcerptReads, Filter, PageId, PageState};
use std::ops::Bound;

/// So many keys are looked at before reads are begun, if there are some to begin: the others are looked at while these are under way.
const READ_FIRST: usize = 4;

impl Tree {
    /// The pages that must be loaded before `keys` can be read, each once, at most `pages_max`. Meanwhile the processor is
    /// asked for those that are in memory.
    ///
    /// ```
    /// # use deuteron_bwtree::{Options, Tree, Upsert};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
    /// tree.upsert(&[Upsert { key: b"one", value: Some(b"1"), stamp: 1, lsn: 1 }])?;
    /// assert!(tree.missing_pages(&[b"one", b"two"], 64).is_empty());
    /// while tree.llama().flush_step()? != deuteron_llama::FlushProgress::Nothing {}
    /// while tree.llama().memory_bytes() > 0 {
    ///     tree.llama().evict_step(u64::MAX);
    /// }
    /// assert_eq!(tree.missing_pages(&[b"one", b"two"], 64).len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn missing_pages(&self, keys: &[&[u8]], pages_max: usize) -> Vec<PageId> {
        let guard = self.llama.pin();
        let mut missing = Vec::new();
        for keys in keys.chunks(FIND_EACH_MAX) {
            let pages = self.index.find_each(keys, &guard);
            pages.iter().take(keys.len()).for_each(|&page| self.llama.prefetch(page));
            for (key, &page) in keys.iter().zip(&pages) {
                if missing.len() >= pages_max {
                    return missing;
                }
                let page = match self.llama.snapshot(page, &guard).state() {
                    // The deltas that are there may have the key.
                    PageState::Resident(head) if head.is_partial() => match self.try_get(key, &guard) {
                        Ok(_) => continue,
                        Err(Miss(page)) => page,
                    },
                    PageState::Resident(head) => {
                        head.prefetch(0..4);
                        continue;
                    }
                    PageState::Stored(_) => page,
                    // Between a look at the index and one at the page it has gone: another page has the key.
                    PageState::Free => continue,
                };
                if !missing.contains(&page) {
                    missing.push(page);
                }
            }
        }
        missing
    }

    /// Finds the newest version of each of `keys`, and tells `each` of it with the place of the key: of those that are in memory, and, as they come, of those
    /// that can be read past the cache, with all reads in flight at once, the first while the other keys are being looked at. Returns the places of the others, most of whose pages have been loaded: they are read one by one.
    /// Blocks on the device; to be called without a guard. `each` should only copy out what it wants.
    ///
    /// ```
    /// # use deuteron_bwtree::{Options, Tree, Upsert};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
    /// tree.upsert(&[Upsert { key: b"one", value: Some(b"1"), stamp: 1, lsn: 1 }])?;
    /// let mut found = [false; 2];
    /// let left = tree.get_each(&[b"one", b"two"], &mut |place, record| found[place] = record.is_some());
    /// assert_eq!((found, left.len()), ([true, false], 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_each(&self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<RecordRef<'_>>)) -> Vec<usize> {
        let mut gets = Gets { tree: self, keys, next: 0, each, missed: Vec::new(), missed_first: 0 };
        // Where some will be missed the device is to have something to do early.
        let mut count = if self.llama.has_room() { FIND_EACH_MAX } else { READ_FIRST };
        while gets.missed.is_empty() && gets.next < keys.len() {
            gets.look_at(count);
            count = FIND_EACH_MAX;
        }
        if gets.missed.is_empty() {
            return Vec::new();
        }
        gets.missed.sort_unstable();
        gets.missed_first = gets.missed.len();
        let first: Vec<_> = gets.missed.iter().map(|missed| (missed.page, missed.bits)).collect();
        self.llama.excerpts(&first, &mut gets);
        gets.missed.iter().filter(|missed| !missed.is_found).map(|missed| missed.place).collect()
    }

    /// The pages among the `leaves` next ones that a scan comes to which are not in memory, in its order. The first is the
    /// one in which the cursor stands. As far as is easily known: in reverse there may be fewer.
    pub fn missing_leaves(&self, cursor: &Cursor, leaves: usize) -> Vec<PageId> {
        let guard = self.llama.pin();
        let ahead = if cursor.is_reverse() {
            self.leaves_before(cursor, leaves, &guard)
        } else {
            self.leaves_from(cursor, leaves, &guard)
        };
        let is_missing = |page: &PageId| match self.llama.snapshot(*page, &guard).state() {
            PageState::Resident(head) => head.is_partial(),
            PageState::Stored(_) => true,
            PageState::Free => false,
        };
        ahead.into_iter().filter(is_missing).collect()
    }

    fn leaves_from(&self, cursor: &Cursor, leaves: usize, guard: &Guard<'_>) -> Vec<PageId> {
        let (lower, upper) = cursor.bounds();
        let mut from = match lower {
            Bound::Included(key) | Bound::Excluded(key) => key.to_vec(),
            Bound::Unbounded => Vec::new(),
        };
        let mut found = Vec::with_capacity(leaves);
        while found.len() < leaves {
            let next = self.index.route(&from, guard);
            found.push(next.0);
            match next.1 {
                Some(until) if is_below(&until, upper) => from = until.into_owned(),
                _ => break,
            }
        }
        found
    }

    /// Those that the same node of the index knows: from one node to its left neighbour there is no way.
    fn leaves_before(&self, cursor: &Cursor, leaves: usize, guard: &Guard<'_>) -> Vec<PageId> {
        let (lower, upper) = cursor.bounds();
        let (Bound::Included(end) | Bound::Excluded(end)) = upper else {
            return vec![self.index.find_before(None, guard)];
        };
        // A leaf that begins at an end that counts is where the scan begins.
        let mut found: Vec<(Vec<u8>, PageId)> = Vec::new();
        self.index.leaves_beside(end, guard, |low, page| {
            if is_below(low, upper) {
                found.push((low.to_vec(), page));
            }
        });
        if found.is_empty() {
            return vec![self.index.find_before(Some(end), guard)];
        }
        let above = |low: &[u8]| match lower {
            Bound::Included(key) | Bound::Excluded(key) => low > key,
            Bound::Unbounded => true,
        };
        // A leaf is in the range if the one to its right begins above the range's lower end.
        let mut pages = Vec::with_capacity(leaves);
        for (low, page) in found.iter().rev().take(leaves) {
            pages.push(*page);
            if !above(low) {
                break;
            }
        }
        pages
    }

    /// As [`Tree::load`] of each page, with the reads in flight at the same time.
    ///
    /// # Errors
    /// [`BwTreeError::Load`] of one of them, if any fails; the others are loaded all the same.
    pub fn load_many(&self, pages: &[PageId]) -> Result<(), BwTreeError> {
        self.llama.load_many(pages).map_err(|source| {
            let page = pages.first().copied().unwrap_or(PageId::NONE);
            BwTreeError::Load { page, source }
        })
    }
}

/// Keys that are read together.
struct Gets<'g> {
    tree: &'g Tree,
    keys: &'g [&'g [u8]],
    /// Which is looked at next.
    next: usize,
    each: &'g mut dyn FnMut(usize, Option<RecordRef<'_>>),
    /// Those whose page is not in memory: some in its order, and behind them the others in its order.
    missed: Vec<Missed>,
    /// How many the first are.
    missed_first: usize,
}

/// A key whose page is not in memory.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Missed {
    page: PageId,
    place: usize,
    bits: Filter,
    is_found: bool,
}

impl Gets<'_> {
    /// Looks at the next `count` keys, of which those in memory are found.
    fn look_at(&mut self, count: usize) {
        let Gets { tree, next, .. } = *self;
        let keys = &self.keys[next..self.keys.len().min(next + count)];
        self.next += keys.len();
        let guard = tree.llama.pin();
        let pages = tree.index.find_each(keys, &guard);
        let pages = &pages[..keys.len()];
        pages.iter().for_each(|&page| tree.llama.prefetch(page));
        for &page in pages {
            if let Some(head) = tree.llama.snapshot(page, &guard).head() {
                head.prefetch(0..4);
            }
        }
        for ((place, key), &page) in (next..).zip(keys).zip(pages) {
            match tree.try_get_from(page, key, &guard) {
                Ok(found) => (self.each)(place, found),
                Err(Miss(page)) => {
                    let bits = KeyParts::whole(key).filter();
                    self.missed.push(Missed { page, place, bits, is_found: false });
                }
            }
        }
    }
}

impl ExcerptReads for Gets<'_> {
    fn more(&mut self) -> Vec<(PageId, Filter)> {
        while self.next < self.keys.len() {
            self.look_at(FIND_EACH_MAX);
        }
        let (first, others) = self.missed.split_at_mut(self.missed_first);
        // Those of one page together.
        others.sort_unstable();
        // A page that is being read already may say all there is to know.
        let is_being_read = |page| {
            let at = first.binary_search_by_key(&page, |missed| missed.page);
            at.is_ok_and(|at| !first[at].is_found)
        };
        let others = others.iter().filter(|missed| !is_being_read(missed.page));
        others.map(|missed| (missed.page, missed.bits)).collect()
    }

    fn take(&mut self, page: PageId, excerpt: &Excerpt<'_>) {
        let (first, others) = self.missed.split_at_mut(self.missed_first);
        for missed in [first, others] {
            let start = missed.partition_point(|missed| missed.page < page);
            for missed in missed[start..].iter_mut().take_while(|missed| missed.page == page) {
                if !excerpt.covers(missed.bits) {
                    continue;
                }
                if let Some(found) = self.tree.find_in_excerpt(excerpt, self.keys[missed.place]) {
                    (self.each)(missed.place, found);
                    missed.is_found = true;
                }
            }
        }
    }
}

fn is_below(key: &[u8], upper: Bound<&[u8]>) -> bool {
    match upper {
        Bound::Included(upper) => key <= upper,
        Bound::Excluded(upper) => key < upper,
        Bound::Unbounded => true,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Options, Upsert};
    use deuteron_device::MemoryDirectory;
    use deuteron_epoch::Epochs;
    use deuteron_llama::{FlushProgress, Llama};
    use std::sync::Arc;

    /// A tree of even numbers, of which nothing is in memory.
    fn cold_tree() -> Tree {
        let options = deuteron_llama::Options::default();
        let (llama, _) = Llama::open(Arc::new(MemoryDirectory::new()), options, Epochs::new()).unwrap();
        let tree = Tree::create(Arc::new(llama), 1, Options::tiny_for_tests());
        for number in (0..1000u64).step_by(2) {
            let key = number.to_be_bytes();
            tree.upsert(&[Upsert { key: &key, value: Some(&[7; 20]), stamp: 1, lsn: 1 }]).unwrap();
        }
        evict(&tree);
        tree
    }

    fn evict(tree: &Tree) {
        while tree.llama.flush_step().unwrap() != FlushProgress::Nothing {}
        while tree.llama.memory_bytes() > 0 {
            tree.llama.evict_step(u64::MAX);
        }
    }

    /// The leaves in the order in which a scan misses them.
    fn leaves_of(tree: &Tree, mut cursor: Cursor) -> Vec<PageId> {
        let mut leaves = Vec::new();
        while !cursor.is_done() {
            let scanned = tree.try_scan_leaves(&mut cursor, &tree.llama.pin(), |_| {});
            if let Err(Miss(page)) = scanned {
                leaves.push(page);
                tree.load(page).unwrap();
            }
        }
        evict(tree);
        leaves
    }

    #[test]
    fn leaves_ahead_are_those_that_the_scan_comes_to() {
        let tree = cold_tree();
        let keys: Vec<_> = [0u64, 1, 300, 301, 302, 700, 998, 2000].map(u64::to_be_bytes).to_vec();
        let mut bounds = vec![Bound::Unbounded];
        bounds.extend(keys.iter().map(|key| Bound::Included(&key[..])));
        bounds.extend(keys.iter().map(|key| Bound::Excluded(&key[..])));
        let mut longest_reverse = 0;
        for &lower in &bounds {
            for &upper in &bounds {
                for reverse in [false, true] {
                    let cursor = || Cursor::new(lower, upper, reverse, usize::MAX);
                    if cursor().is_done() {
                        continue;
                    }
                    let expected = leaves_of(&tree, cursor());
                    for count in [1, 2, 5, 1000] {
                        let found = tree.missing_leaves(&cursor(), count);
                        let about = format!("{lower:?} {upper:?} {reverse} {count}");
                        let most = expected.len().min(count);
                        if reverse {
                            assert!((1..=most).contains(&found.len()), "{about}: {found:?}, {expected:?}");
                            longest_reverse = longest_reverse.max(found.len());
                        } else {
                            assert_eq!(found.len(), most, "{about}");
                        }
                        assert_eq!(found, expected[..found.len()], "{about}");
                    }
                }
            }
        }
        assert!(longest_reverse > 1);
        // What is in memory is left out.
        let whole = || Cursor::new(Bound::Unbounded, Bound::Unbounded, false, usize::MAX);
        let leaves = tree.missing_leaves(&whole(), 3);
        tree.load_many(&leaves[..2]).unwrap();
        assert_eq!(tree.missing_leaves(&whole(), 3), leaves[2..]);
    }

    #[test]
    fn missing_pages_are_those_that_reads_miss() {
        let tree = cold_tree();
        let keys: Vec<_> = [0u64, 1, 400, 401, 402, 998, 5000].map(u64::to_be_bytes).to_vec();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let missing = tree.missing_pages(&keys, 100);
        assert_eq!(tree.missing_pages(&keys, 2), missing[..2]);
        tree.load_many(&missing).unwrap();
        assert!(tree.missing_pages(&keys, 100).is_empty());
        let guard = tree.llama.pin();
        assert!(keys.iter().all(|key| tree.try_get(key, &guard).is_ok()));
        drop(guard);
        // A delta that holds the key is enough; of another key it is not.
        evict(&tree);
        let key = 400u64.to_be_bytes();
        tree.upsert(&[Upsert { key: &key, value: Some(b"new"), stamp: 9, lsn: 9 }]).unwrap();
        assert_eq!(
            tree.missing_pages(&[&key], 9),
            tree.try_get(&key, &tree.llama.pin()).err().map(|miss| miss.0).as_slice()
        );
        assert_eq!(tree.missing_pages(&[&402u64.to_be_bytes()], 9).len(), 1);
    }
}
