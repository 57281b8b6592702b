//! The index: the inner levels of the tree, always in memory.
//!
//! Inner nodes change seldom and are small, so they are reached by direct pointers and replaced as a whole, which
//! saves the mapping table's indirection on every level but the last. The index is not durable: it is rebuilt at
//! recovery from the low keys of the leaves ([`Index::from_leaves`]).
//!
//! ```text
//!   root ──▶ cell ──▶ node (level 2) ──child──▶ cell ──▶ node (level 1) ──child──▶ page identifier
//!                                                 │ right          │ right
//!                                                 ▼                ▼
//!                                                cell ──▶ node (level 1)
//! ```
//!
//! Invariants:
//!
//! - **X1** A node is immutable. It is published by a compare-and-swap on its cell (or on `root`), and retired
//!   through the epochs by whoever's compare-and-swap replaced it. So a node read under a guard stays good as long
//!   as the guard.
//! - **X2** A cell lives as long as the index, and its node's *low* key never changes: nodes are split, never
//!   merged. So a route read from an outdated node leads to the right child or to the left of it, never too far.
//! - **X3** A key behind a node's high key is found by following `right`. So a split is complete, for searches, with the
//!   compare-and-swap that installs the left half; posting the separator above only makes the way shorter.
//! - **X4** Once a separator is posted, every later [`Index::route`] respects it, until its leaf is merged and it is
//!   [removed](Index::remove). Inner nodes get smaller by that, but stay, or X2 would not hold.
//! - **X5** A separator is posted only after its leaf was seen alive, and after the node that takes it was read; removing it
//!   replaces the node in any case. As a leaf does not live again, no belated thread brings the separator back.
//!
//! Nobody waits for an unfinished split: searches go right, and a thread that must post above a level that
//! does not exist yet makes it.

mod cells;
mod inner_node;

#[cfg(all(test, loom))]
mod loom_tests;

use crate::search::prefetch;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use cells::{Cell, Cells};
use deuteron_epoch::Guard;
use deuteron_llama::PageId;
use inner_node::{InnerNode, InnerParts};

/// The index of one tree.
pub(crate) struct Index {
    /// The cell of the root node.
    root: AtomicPtr<Cell>,
    cells: Cells,
    entries_max: usize,
    bytes: AtomicU64,
    splits: AtomicU64,
}

/// A node in the making, or one that is not published.
type Words = Box<[u64]>;

fn into_raw(words: Words) -> *mut u64 {
    Box::into_raw(words).cast()
}

/// # Safety
/// `node` comes from [`into_raw`], has `bytes` bytes, and is freed once.
unsafe fn free_node(node: *mut u8, bytes: usize) {
    // SAFETY: the contract.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(node.cast::<u64>(), bytes / 8)) });
}

/// # Safety
/// `node` is a published node that lives for `'g` (X1).
#[inline]
unsafe fn deref<'g>(node: *const u64) -> InnerNode<'g> {
    // The header is waited for anyway; what is behind it comes along.
    prefetch(node.wrapping_add(8));
    prefetch(node.wrapping_add(16));
    // SAFETY: a node's first word says how many words it has.
    InnerNode::new(unsafe { std::slice::from_raw_parts(node, *node as usize) })
}

fn cell_word(cell: &Cell) -> u64 {
    std::ptr::from_ref(cell).expose_provenance() as u64
}

impl Index {
    /// The index of a tree with one leaf.
    pub(crate) fn new(leaf: PageId, entries_max: usize) -> Index {
        Index::from_leaves(&[(Vec::new(), leaf)], entries_max)
    }

    /// The index over `leaves`: low keys, ascending, the first of them empty.
    pub(crate) fn from_leaves(leaves: &[(Vec<u8>, PageId)], entries_max: usize) -> Index {
        let index = Index {
            root: AtomicPtr::new(std::ptr::null_mut()),
            cells: Cells::new(),
            entries_max,
            bytes: AtomicU64::new(0),
            splits: AtomicU64::new(0),
        };
        let mut children: Vec<(&[u8], u64)> = leaves.iter().map(|(low, page)| (&low[..], page.0)).collect();
        let mut level = 1;
        loop {
            children = index.build_level(level, &children);
            level += 1;
            if let [(_, only)] = children[..] {
                index.root.store(std::ptr::with_exposed_provenance_mut(only as usize), Ordering::Release);
                return index;
            }
        }
    }

    /// Builds the nodes of one level over `children`; returns them with their low keys. Nodes are filled to three quarters.
    fn build_level<'k>(&self, level: u32, children: &[(&'k [u8], u64)]) -> Vec<(&'k [u8], u64)> {
        let groups: Vec<_> = children.chunks((self.entries_max * 3 / 4).max(2)).collect();
        let cells: Vec<_> = groups.iter().map(|_| self.cells.allocate()).collect();
        for (at, group) in groups.iter().enumerate() {
            let node = InnerNode::build(&InnerParts {
                level,
                low: group[0].0,
                high: groups.get(at + 1).map(|next| next[0].0),
                right: cells.get(at + 1).map_or(0, |right| cell_word(right)),
                separators: group[1..].iter().map(|child| child.0).collect(),
                children: group.iter().map(|child| child.1).collect(),
            });
            self.count_bytes(node.len());
            cells[at].store(into_raw(node), Ordering::Release);
        }
        groups.iter().zip(cells).map(|(group, cell)| (group[0].0, cell_word(cell))).collect()
    }

    fn count_bytes(&self, words: usize) {
        self.bytes.fetch_add(8 * words as u64, Ordering::Relaxed);
    }

    /// Memory of the inner nodes in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many inner nodes have been split.
    pub(crate) fn splits(&self) -> u64 {
        self.splits.load(Ordering::Relaxed)
    }

    /// The cell behind a child word above level 1, or behind a right sibling.
    #[inline]
    fn cell(&self, word: u64) -> &Cell {
        debug_assert_ne!(word, 0);
        // SAFETY: such words are addresses of cells, exposed by `cell_word`, which live as long as the index (X2).
        unsafe { &*std::ptr::with_exposed_provenance(word as usize) }
    }

    #[inline]
    fn node<'g>(&self, cell: &Cell, _guard: &'g Guard<'_>) -> InnerNode<'g> {
        // Acquire pairs with the release that published the node.
        // SAFETY: a cell in use holds a published node; X1.
        unsafe { deref(cell.load(Ordering::Acquire)) }
    }

    #[inline]
    fn root(&self) -> &Cell {
        // SAFETY: the root word always holds a cell (X2). Acquire pairs with the publication of a new root.
        unsafe { &*self.root.load(Ordering::Acquire) }
    }

    /// The number of inner levels.
    #[cfg(test)]
    pub(crate) fn height(&self, guard: &Guard<'_>) -> u32 {
        self.node(self.root(), guard).level()
    }

    /// The leaf that holds `key`, or one to the left of it from which it is reached by going right.
    #[inline]
    pub(crate) fn find(&self, key: &[u8], guard: &Guard<'_>) -> PageId {
        let mut node = self.node(self.root(), guard);
        loop {
            node = match node.child(key) {
                None => self.node(self.cell(node.right()), guard),
                Some(child) if node.level() == 1 => return PageId(child),
                Some(child) => self.node(self.cell(child), guard),
            };
        }
    }

    /// As [`Index::find`], and the key (exclusive) up to which the index knows of no other leaf.
    pub(crate) fn route<'g>(&self, key: &[u8], guard: &'g Guard<'_>) -> (PageId, Option<&'g [u8]>) {
        let node = self.node(self.cell_for(key, 1, guard), guard);
        let mut node = node;
        loop {
            match node.route(key) {
                Some(route) => return (PageId(route.child), route.until),
                None => node = self.node(self.cell(node.right()), guard),
            }
        }
    }

    /// As [`Index::route`], and where the leaf begins.
    pub(crate) fn bounds<'g>(
        &self,
        key: &[u8],
        guard: &'g Guard<'_>,
    ) -> (&'g [u8], PageId, Option<&'g [u8]>) {
        let mut node = self.node(self.cell_for(key, 1, guard), guard);
        loop {
            match node.route(key) {
                Some(route) => return (node.child_low(key), PageId(route.child), route.until),
                None => node = self.node(self.cell(node.right()), guard),
            }
        }
    }

    /// The leaf that holds the greatest keys below `key` (of all keys, if `None`), or one to the left of it.
    pub(crate) fn find_before(&self, key: Option<&[u8]>, guard: &Guard<'_>) -> PageId {
        let mut node = self.node(self.root(), guard);
        loop {
            let child = match key {
                Some(key) => node.child_before(key),
                None if node.right() != 0 => None,
                None => node.children().last().copied(),
            };
            node = match child {
                None => self.node(self.cell(node.right()), guard),
                Some(child) if node.level() == 1 => return PageId(child),
                Some(child) => self.node(self.cell(child), guard),
            };
        }
    }

    /// The cell of the node of `level` that holds `key`, or one to the left of it. The level exists.
    fn cell_for(&self, key: &[u8], level: u32, guard: &Guard<'_>) -> &Cell {
        let mut cell = self.root();
        loop {
            let node = self.node(cell, guard);
            if node.level() == level {
                return cell;
            }
            cell = self.cell(node.child(key).unwrap_or(node.right()));
        }
    }

    /// Posts the separator of a leaf split: keys from `separator` on are in `page`. Does nothing if it is there
    /// already, so anybody who meets the unfinished split may call it; nor if `page` is not `alive` (X5).
    pub(crate) fn post_if(
        &self,
        separator: &[u8],
        page: PageId,
        alive: &dyn Fn() -> bool,
        guard: &Guard<'_>,
    ) {
        self.post_at(1, separator, page.0, alive, guard);
    }

    #[cfg(test)]
    pub(crate) fn post(&self, separator: &[u8], page: PageId, guard: &Guard<'_>) {
        self.post_if(separator, page, &|| true, guard);
    }

    /// Whether the leaf that begins at `low` is the first child of its inner node.
    pub(crate) fn begins_node(&self, low: &[u8], guard: &Guard<'_>) -> bool {
        let mut node = self.node(self.cell_for(low, 1, guard), guard);
        while node.high().is_some_and(|high| low >= high) {
            node = self.node(self.cell(node.right()), guard);
        }
        node.low() == low
    }

    /// Takes out the separator of `page`, which is merged and does not live any more. `false`, and nothing is done, if it is
    /// the first child of its inner node, which begins with it.
    pub(crate) fn remove(&self, separator: &[u8], page: PageId, guard: &Guard<'_>) -> bool {
        let mut cell = self.cell_for(separator, 1, guard);
        loop {
            let current = cell.load(Ordering::Acquire);
            // SAFETY: a cell in use holds a published node, and we hold a guard (X1).
            let node = unsafe { deref(current) };
            if node.high().is_some_and(|high| separator >= high) {
                cell = self.cell(node.right());
                continue;
            }
            let mut parts = node.parts();
            if node.child_at(separator) == Some(page.0) {
                let Some(index) = node.rank_of_new(separator).checked_sub(1) else { return false };
                parts.separators.remove(index);
                parts.children.remove(index + 1);
            }
            // Replaced even if there is nothing to take out (X5).
            if self.replace(cell, current, InnerNode::build(&parts), guard) {
                return true;
            }
        }
    }

    fn post_at(&self, level: u32, separator: &[u8], child: u64, alive: &dyn Fn() -> bool, guard: &Guard<'_>) {
        while self.node(self.root(), guard).level() < level {
            self.grow(guard);
        }
        let mut cell = self.cell_for(separator, level, guard);
        loop {
            let current = cell.load(Ordering::Acquire);
            // SAFETY: a cell in use holds a published node, and we hold a guard (X1).
            let node = unsafe { deref(current) };
            if node.high().is_some_and(|high| separator >= high) {
                cell = self.cell(node.right());
                continue;
            }
            let found = node.child_at(separator);
            if found == Some(child) || !alive() {
                return;
            }
            let rank = node.rank_of_new(separator);
            if found.is_some() {
                // An earlier leaf that began here has been merged, and its separator not been removed yet.
                let mut parts = node.parts();
                parts.children[rank] = child;
                if self.replace(cell, current, InnerNode::build(&parts), guard) {
                    return;
                }
                continue;
            }
            if node.count() + 1 < self.entries_max
                && let Some(new) = node.with_separator(rank, separator, child)
            {
                if self.replace(cell, current, new, guard) {
                    return;
                }
                continue;
            }
            let mut parts = node.parts();
            parts.separators.insert(rank, separator);
            parts.children.insert(rank + 1, child);
            let done = if parts.separators.len() < self.entries_max {
                self.replace(cell, current, InnerNode::build(&parts), guard)
            } else {
                self.split(cell, current, parts, rank, guard)
            };
            if done {
                return;
            }
        }
    }

    /// Replaces the node of `cell` by `new` if it is still `current`.
    fn replace(&self, cell: &Cell, current: *mut u64, new: Words, guard: &Guard<'_>) -> bool {
        let words = new.len();
        let new = into_raw(new);
        // Release publishes the node; pairs with the acquiring loads of cells.
        if cell.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: made above and not published.
            unsafe { free_node(new.cast(), 8 * words) };
            return false;
        }
        self.count_bytes(words);
        // SAFETY: it was published, so its first word is its size.
        let bytes = 8 * unsafe { *current } as usize;
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        // SAFETY: the compare-and-swap unlinked it, and only its winner retires it (X1).
        unsafe { guard.retire(current.cast(), bytes, free_node) };
        true
    }

    /// Installs `parts`, which are too many for one node, as two; then posts the separator between them above.
    fn split(
        &self,
        cell: &Cell,
        current: *mut u64,
        parts: InnerParts<'_>,
        inserted: usize,
        guard: &Guard<'_>,
    ) -> bool {
        let count = parts.separators.len();
        // Under an ascending load nobody will add to the left node again, so it keeps all but the last.
        let middle = if inserted + 1 == count && parts.right == 0 { count - 1 } else { count / 2 };
        let separator = parts.separators[middle];
        let right = InnerNode::build(&InnerParts {
            level: parts.level,
            low: separator,
            high: parts.high,
            right: parts.right,
            separators: parts.separators[middle + 1..].to_vec(),
            children: parts.children[middle + 1..].to_vec(),
        });
        let right_words = right.len();
        let right_cell = self.cells.allocate();
        right_cell.store(into_raw(right), Ordering::Release);
        let left = InnerNode::build(&InnerParts {
            level: parts.level,
            low: parts.low,
            high: Some(separator),
            right: cell_word(right_cell),
            separators: parts.separators[..middle].to_vec(),
            children: parts.children[..=middle].to_vec(),
        });
        if !self.replace(cell, current, left, guard) {
            let unused = right_cell.swap(std::ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: nobody has learnt of the cell, as its left neighbour was not published.
            unsafe { free_node(unused.cast(), 8 * right_words) };
            return false;
        }
        self.count_bytes(right_words);
        self.splits.fetch_add(1, Ordering::Relaxed);
        self.post_at(parts.level + 1, separator, cell_word(right_cell), &|| true, guard);
        true
    }

    /// Puts a root with one child above the present root, unless another thread has just done so. The separators of
    /// the splits below are posted into it as into any node.
    fn grow(&self, guard: &Guard<'_>) {
        let root = self.root.load(Ordering::Acquire);
        // SAFETY: the root word always holds a cell (X2).
        let root_cell = unsafe { &*root };
        let level = self.node(root_cell, guard).level() + 1;
        let node = InnerNode::build(&InnerParts {
            level,
            low: &[],
            high: None,
            right: 0,
            separators: Vec::new(),
            children: vec![cell_word(root_cell)],
        });
        let words = node.len();
        let cell = self.cells.allocate();
        cell.store(into_raw(node), Ordering::Release);
        let new = std::ptr::from_ref(cell).cast_mut();
        // Release publishes the cell's content along with the cell.
        if self.root.compare_exchange(root, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.count_bytes(words);
        } else {
            let unused = cell.swap(std::ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: nobody has learnt of the cell.
            unsafe { free_node(unused.cast(), 8 * words) };
        }
    }

    /// Calls `visit` for every (low key, leaf) of the bottom node that holds `from`; returns where the next node
    /// begins. A leaf that is being split may be missing its right part; that is then reached by going right.
    pub(crate) fn some_leaves(
        &self,
        from: &[u8],
        guard: &Guard<'_>,
        mut visit: impl FnMut(&[u8], PageId),
    ) -> Option<Vec<u8>> {
        let mut node = self.node(self.cell_for(from, 1, guard), guard);
        while node.high().is_some_and(|high| from >= high) {
            node = self.node(self.cell(node.right()), guard);
        }
        visit(node.low(), PageId(node.children()[0]));
        for (at, child) in node.children()[1..].iter().enumerate() {
            visit(node.separator(at), PageId(*child));
        }
        node.high().map(<[u8]>::to_vec)
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.cells.drain(|cell| {
            let node = cell.load(Ordering::Acquire);
            if !node.is_null() {
                // SAFETY: a node in a cell is not retired (X1), and nobody reads any more: `self` is borrowed
                // mutably, and guards of readers borrow it too. The first word is the size.
                unsafe { free_node(node.cast(), 8 * *node as usize) };
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use deuteron_epoch::Epochs;
    use std::collections::BTreeMap;

    fn leaves(index: &Index, guard: &Guard<'_>) -> Vec<(Vec<u8>, PageId)> {
        let mut found = Vec::new();
        let mut from = Some(Vec::new());
        while let Some(low) = from {
            from = index.some_leaves(&low, guard, |low, page| found.push((low.to_vec(), page)));
        }
        found
    }

    fn check(index: &Index, model: &BTreeMap<Vec<u8>, PageId>, guard: &Guard<'_>) {
        assert!(leaves(index, guard) == model.clone().into_iter().collect::<Vec<_>>());
        for (low, page) in model {
            assert_eq!(index.find(low, guard), *page);
            let next =
                model.range::<[u8], _>((std::ops::Bound::Excluded(&low[..]), std::ops::Bound::Unbounded));
            let next = next.map(|(key, _)| key.as_slice()).next();
            let (found, until) = index.route(low, guard);
            assert_eq!(found, *page);
            assert_eq!(until, next);
            if let Some((_, before)) = model.range(..low.clone()).next_back() {
                assert_eq!(index.find_before(Some(low), guard), *before);
            }
        }
        assert_eq!(index.find_before(None, guard), *model.last_key_value().unwrap().1);
    }

    #[test]
    fn posting_in_any_order_gives_the_same_index() {
        for step in [1u64, 7, 389, 999] {
            let epochs = Epochs::new();
            let guard = epochs.pin();
            let index = Index::new(PageId(1), 4);
            let mut model = BTreeMap::from([(Vec::new(), PageId(1))]);
            for number in 0..1000u64 {
                let key = format!("{:05}", number * step % 1000).into_bytes();
                index.post(&key, PageId(number + 2), &guard);
                index.post(&key, PageId(number + 2), &guard);
                model.insert(key, PageId(number + 2));
                if number % 100 == 0 || number < 20 {
                    check(&index, &model, &guard);
                }
            }
            check(&index, &model, &guard);
            assert!(index.height(&guard) > 4 && index.splits() > 100);
            let list: Vec<_> = model.clone().into_iter().collect();
            let rebuilt = Index::from_leaves(&list, 4);
            check(&rebuilt, &model, &guard);
        }
    }

    #[test]
    fn threads_post_and_search_at_once() {
        let epochs = Epochs::with_threshold(4096);
        let index = Index::new(PageId(1), 4);
        let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (epochs, index) = (&epochs, &index);
                scope.spawn(move || {
                    // Neighbours post overlapping separators, as helpers do.
                    for number in thread * 1000..thread * 1000 + 2000 {
                        let guard = epochs.pin();
                        index.post(&key(number), PageId(number + 2), &guard);
                        assert_eq!(index.find(&key(number), &guard), PageId(number + 2));
                        assert_eq!(index.route(&key(number), &guard).0, PageId(number + 2));
                    }
                });
            }
        });
        let model: BTreeMap<_, _> = std::iter::once((Vec::new(), PageId(1)))
            .chain((0..4000).map(|number| (key(number).to_vec(), PageId(number + 2))))
            .collect();
        check(&index, &model, &epochs.pin());
    }
}
