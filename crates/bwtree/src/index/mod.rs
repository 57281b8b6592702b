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
//! - **X2** A cell is not used again before its epoch has passed, and its node's *low* key never changes: nodes are split to the right, and
//!   merged to the left. So a route read from an outdated node leads to the right child or to the left of it, never too far. The
//!   root's cell stays; its node is of another level when the tree has grown or shrunk.
//! - **X3** A key behind a node's high key is found by following `right`. So a split is complete, for searches, with the
//!   compare-and-swap that installs the left half; posting the separator above only makes the way shorter.
//! - **X4** Once a separator is posted, every later [`Index::route`] respects it, until its leaf is merged and it is
//!   [removed](Index::remove). Inner nodes get smaller by that, and are [merged](Index::tidy) (M1 to M3 in `merge`).
//! - **X5** A separator is posted only after its leaf was seen alive, and after the node that takes it was read; removing it
//!   replaces the node in any case. As a leaf does not live again, no belated thread brings the separator back.
//! - **X6** A leaf that is about to be taken out is not made the first child of a node ([`Index::begin_removal`]): its separator could not
//!   be removed then.
//!
//! Nobody waits for an unfinished split or merge: searches go right, and a thread that must post above a level that
//! does not exist yet makes it.

mod cells;
mod inner_node;
mod merge;

#[cfg(all(test, loom))]
mod loom_tests;

use crate::counters::Counter;
use crate::interruption::{Moment, strike};
use crate::sync::{AtomicU64, Ordering};
use cells::{Cell, Cells};
use deuteron_epoch::{Guard, prefetch};
use deuteron_llama::{PageId, words_charge};
use inner_node::{InnerNode, InnerParts, Separator};
use std::borrow::Cow;
use std::ptr::NonNull;

/// Keys that [`Index::find_each`] looks for at once: about as many lines as a processor waits for at the same time.
pub(crate) const FIND_EACH_MAX: usize = 16;

/// The index of one tree.
pub(crate) struct Index {
    /// The cell of the root node.
    root: Cell,
    cells: Cells,
    entries_max: usize,
    /// The leaf that is about to be taken out (X6), or 0.
    leaving: AtomicU64,
    bytes: AtomicU64,
    splits: AtomicU64,
    merges: AtomicU64,
    lost: Counter,
}

/// A node, and where it was met.
#[derive(Clone, Copy)]
struct Place<'c, 'g> {
    cell: &'c Cell,
    /// What the cell held.
    current: *mut u64,
    node: InnerNode<'g>,
}

/// Where the index leads for a key.
#[derive(Clone, Copy)]
pub(crate) struct Leaf<'g> {
    pub(crate) page: PageId,
    node: InnerNode<'g>,
    rank: usize,
}

impl Leaf<'_> {
    /// Whether the index leads to the same for `key`, which is not less. Where it is not easily told, `false`.
    #[inline]
    pub(crate) fn surely_holds(&self, key: &[u8]) -> bool {
        self.node.surely_holds(self.rank, key)
    }
}

/// A node in the making, or one that is not published.
type Words = Box<[u64]>;

/// Puts a node where it will be read: in the pool, where it leaves no hole that fits nothing else.
#[expect(clippy::needless_pass_by_value, reason = "it is in the pool from now on")]
fn into_raw(words: Words) -> *mut u64 {
    deuteron_llama::put_words(&words).as_ptr()
}

/// # Safety
/// `node` comes from [`into_raw`], has `bytes` bytes, and is freed once.
unsafe fn free_node(node: *mut u8, bytes: usize) {
    let node = NonNull::new(node.cast::<u64>()).expect("a node is not null");
    // SAFETY: the contract.
    unsafe { deuteron_llama::free_words(node, bytes / 8) };
}

/// Asks the processor for the header of a node, and for what a search looks at first.
#[inline]
fn prefetch_node(node: *const u64) {
    (0..3).for_each(|line| prefetch(node.wrapping_add(8 * line)));
}

/// # Safety
/// `node` is a published node that lives for `'g` (X1).
#[inline]
unsafe fn deref<'g>(node: *const u64) -> InnerNode<'g> {
    // The header is waited for anyway; what is behind it comes along.
    prefetch_node(node);
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
            root: Cell::new(std::ptr::null_mut()),
            cells: Cells::new(),
            entries_max,
            leaving: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            merges: AtomicU64::new(0),
            lost: Counter::default(),
        };
        let mut children: Vec<(&[u8], u64)> = leaves.iter().map(|(low, page)| (&low[..], page.0)).collect();
        let mut level = 1;
        loop {
            children = index.build_level(level, &children);
            level += 1;
            if let [(_, only)] = children[..] {
                let root = index.cell(only).swap(std::ptr::null_mut(), Ordering::Relaxed);
                index.root.store(root, Ordering::Release);
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
                separators: group[1..].iter().map(|child| Cow::Borrowed(child.0)).collect(),
                children: group.iter().map(|child| child.1).collect(),
            });
            self.count_bytes(node.len());
            cells[at].store(into_raw(node), Ordering::Release);
        }
        groups.iter().zip(cells).map(|(group, cell)| (group[0].0, cell_word(cell))).collect()
    }

    fn count_bytes(&self, words: usize) {
        self.bytes.fetch_add(words_charge(words) as u64, Ordering::Relaxed);
    }

    /// Takes a node of so many bytes off the count.
    fn discount_bytes(&self, bytes: usize) {
        self.bytes.fetch_sub(words_charge(bytes / 8) as u64, Ordering::Relaxed);
    }

    /// Memory of the inner nodes in bytes, by the slots in which they lie.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many inner nodes have been split.
    pub(crate) fn splits(&self) -> u64 {
        self.splits.load(Ordering::Relaxed)
    }

    /// How many inner nodes have been merged, or taken over by the root.
    pub(crate) fn merges(&self) -> u64 {
        self.merges.load(Ordering::Relaxed)
    }

    /// How many compare-and-swaps of nodes were lost to another thread.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// The cell behind a child word above level 1, or behind a right sibling.
    #[inline]
    fn cell(&self, word: u64) -> &Cell {
        debug_assert_ne!(word, 0);
        // SAFETY: such words are addresses of cells, exposed by `cell_word`, which live as long as the index.
        unsafe { &*std::ptr::with_exposed_provenance(word as usize) }
    }

    #[inline]
    fn node<'g>(&self, cell: &Cell, _guard: &'g Guard<'_>) -> InnerNode<'g> {
        // Acquire pairs with the release that published the node.
        // SAFETY: a cell in use holds a published node; X1.
        unsafe { deref(cell.load(Ordering::Acquire)) }
    }

    /// What is in a cell.
    #[inline]
    fn look<'c, 'g>(&self, cell: &'c Cell, _guard: &'g Guard<'_>) -> Place<'c, 'g> {
        // Acquire pairs with the release that published the node.
        let current = cell.load(Ordering::Acquire);
        // SAFETY: a cell in use holds a published node; X1.
        Place { cell, current, node: unsafe { deref(current) } }
    }

    /// The number of inner levels.
    #[cfg(test)]
    pub(crate) fn height(&self, guard: &Guard<'_>) -> u32 {
        self.node(&self.root, guard).level()
    }

    /// The leaf that holds `key`, or one to the left of it from which it is reached by going right; the latter also where
    /// [`Index::route`] knows better, while inner nodes are merged.
    #[inline]
    pub(crate) fn find(&self, key: &[u8], guard: &Guard<'_>) -> PageId {
        let mut node = self.node(&self.root, guard);
        loop {
            node = match node.child(key) {
                None => self.node(self.cell(node.right()), guard),
                Some(child) if node.level() == 1 => return PageId(child),
                Some(child) => self.node(self.cell(child), guard),
            };
        }
    }

    /// As [`Index::find`] of each of `keys`, at most [`FIND_EACH_MAX`], in their order; none behind them. All go down together, level by level: what is
    /// not in the processor's caches is waited for at the same time.
    pub(crate) fn find_each(&self, keys: &[&[u8]], guard: &Guard<'_>) -> [PageId; FIND_EACH_MAX] {
        let mut cells = [&self.root; FIND_EACH_MAX];
        let mut found = [PageId::NONE; FIND_EACH_MAX];
        let mut on_the_way = keys.len();
        while on_the_way > 0 {
            for (cell, _) in cells.iter().zip(&found).take(keys.len()).filter(|(_, found)| found.is_none()) {
                // Relaxed: it is not looked into.
                prefetch_node(cell.load(Ordering::Relaxed));
            }
            for ((cell, key), _) in cells.iter().zip(keys).zip(&found).filter(|(_, found)| found.is_none()) {
                self.node(cell, guard).prefetch_place(key);
            }
            for ((cell, key), found) in cells.iter_mut().zip(keys).zip(&mut found) {
                if found.is_none() {
                    let node = self.node(cell, guard);
                    *cell = match node.child(key) {
                        None => self.cell(node.right()),
                        Some(child) if node.level() > 1 => self.cell(child),
                        Some(leaf) => {
                            *found = PageId(leaf);
                            on_the_way -= 1;
                            continue;
                        }
                    };
                    prefetch(*cell);
                }
            }
        }
        found
    }

    /// As [`Index::find`], with the node that knows more of where the leaf ends.
    #[inline]
    pub(crate) fn find_leaf<'g>(&self, key: &[u8], guard: &'g Guard<'_>) -> Leaf<'g> {
        let mut node = self.node(&self.root, guard);
        loop {
            node = match node.child_rank(key) {
                None => self.node(self.cell(node.right()), guard),
                Some(rank) => match node.children()[rank] {
                    child if node.level() == 1 => return Leaf { page: PageId(child), node, rank },
                    child => self.node(self.cell(child), guard),
                },
            };
        }
    }

    /// As [`Index::find`], and the key (exclusive) up to which the index knows of no other leaf.
    pub(crate) fn route<'g>(&self, key: &[u8], guard: &'g Guard<'_>) -> (PageId, Option<Separator<'g>>) {
        let node = self.bottom(key, guard);
        let route = node.route(key).expect("the node holds the key");
        (PageId(route.child), route.until)
    }

    /// The node just above the leaves that holds `key`, with all that was posted before.
    fn bottom<'g>(&self, key: &[u8], guard: &'g Guard<'_>) -> InnerNode<'g> {
        let place = self.place(key, 1, guard).and_then(|place| self.exact(place, key, guard));
        place.expect("there always is a level 1").node
    }

    /// As [`Index::route`], and where the leaf begins.
    pub(crate) fn bounds<'g>(
        &self,
        key: &[u8],
        guard: &'g Guard<'_>,
    ) -> (Separator<'g>, PageId, Option<Separator<'g>>) {
        let node = self.bottom(key, guard);
        let route = node.route(key).expect("the node holds the key");
        (node.child_low(key), PageId(route.child), route.until)
    }

    /// The leaf that holds the greatest keys below `key` (of all keys, if `None`), or one to the left of it.
    pub(crate) fn find_before(&self, key: Option<&[u8]>, guard: &Guard<'_>) -> PageId {
        let mut node = self.node(&self.root, guard);
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

    /// The node of `level` that holds `key`, as the way down shows it. `None` if there is no such level.
    fn place<'c, 'g>(&'c self, key: &[u8], level: u32, guard: &'g Guard<'_>) -> Option<Place<'c, 'g>> {
        let mut place = self.look(&self.root, guard);
        while place.node.level() > level {
            let next = place.node.child(key).unwrap_or(place.node.right());
            place = self.look(self.cell(next), guard);
        }
        (place.node.level() == level).then(|| self.right_to(place, key, guard))
    }

    /// Goes right to the node that holds `key`.
    fn right_to<'c, 'g>(
        &'c self,
        mut place: Place<'c, 'g>,
        key: &[u8],
        guard: &'g Guard<'_>,
    ) -> Place<'c, 'g> {
        while place.node.high().is_some_and(|high| key >= high) {
            place = self.look(self.cell(place.node.right()), guard);
        }
        place
    }

    /// The node of `level` that holds the keys just below `key`. `None` if there is no such level.
    fn place_before<'c, 'g>(&'c self, key: &[u8], level: u32, guard: &'g Guard<'_>) -> Option<Place<'c, 'g>> {
        let mut place = self.look(&self.root, guard);
        while place.node.level() > level {
            let next = place.node.child_before(key).unwrap_or(place.node.right());
            place = self.look(self.cell(next), guard);
        }
        if place.node.level() != level {
            return None;
        }
        while place.node.high().is_some_and(|high| key > high) {
            place = self.look(self.cell(place.node.right()), guard);
        }
        Some(place)
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
        self.bottom(low, guard).low() == low
    }

    /// Keeps `page`, which begins at `low`, from becoming the first child of its node, until [`Index::end_removal`] (X6). `false`, and
    /// nothing is done, if it is that already. For one leaf at a time.
    pub(crate) fn begin_removal(&self, low: &[u8], page: PageId, guard: &Guard<'_>) -> bool {
        self.leaving.store(page.0, Ordering::Relaxed);
        while let Some(Place { cell, current, node }) = self.open_place(low, 1, guard) {
            if node.low() == low {
                break;
            }
            // Whoever splits the node has read it, or one that replaced it, and so sees the note; who has read it before fails.
            if self.replace(cell, current, InnerNode::build(&node.parts()), guard) {
                return true;
            }
        }
        self.end_removal();
        false
    }

    /// The leaf has been taken out, or stays.
    pub(crate) fn end_removal(&self) {
        self.leaving.store(0, Ordering::Relaxed);
    }

    /// Takes out the separator of `page`, which is merged and does not live any more. `false`, and nothing is done, if it is
    /// the first child of its inner node, which begins with it; that is not so after [`Index::begin_removal`].
    pub(crate) fn remove(&self, separator: &[u8], page: PageId, guard: &Guard<'_>) -> bool {
        self.remove_at(1, separator, page.0, guard)
    }

    fn remove_at(&self, level: u32, separator: &[u8], child: u64, guard: &Guard<'_>) -> bool {
        while let Some(Place { cell, current, node }) = self.open_place(separator, level, guard) {
            let mut parts = node.parts();
            if node.child_at(separator) == Some(child) {
                let Some(index) = node.rank_of_new(separator).checked_sub(1) else { return false };
                parts.separators.remove(index);
                parts.children.remove(index + 1);
            }
            // Replaced even if there is nothing to take out (X5).
            if self.replace(cell, current, InnerNode::build(&parts), guard) {
                return true;
            }
        }
        // The level is gone, and what it held.
        true
    }

    fn post_at(&self, level: u32, separator: &[u8], child: u64, alive: &dyn Fn() -> bool, guard: &Guard<'_>) {
        loop {
            let Some(Place { cell, current, node }) = self.open_place(separator, level, guard) else {
                self.grow(level, guard);
                continue;
            };
            let found = node.child_at(separator);
            if found == Some(child) || !alive() {
                return;
            }
            let rank = node.rank_of_new(separator);
            if found.is_some() {
                // An earlier child that began here has been merged, and its separator not been removed yet.
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
            parts.separators.insert(rank, Cow::Borrowed(separator));
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
        strike(Moment::Step);
        let words = new.len();
        let new = into_raw(new);
        // Release publishes the node; pairs with the acquiring loads of cells.
        if cell.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.lost.add(1);
            // SAFETY: made above and not published.
            unsafe { free_node(new.cast(), 8 * words) };
            return false;
        }
        self.count_bytes(words);
        // SAFETY: it was published, so its first word is its size.
        let bytes = 8 * unsafe { *current } as usize;
        self.discount_bytes(bytes);
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
        let mut middle = if inserted + 1 == count && parts.right == 0 { count - 1 } else { count / 2 };
        let first = parts.children[middle + 1];
        let is_leaving = match parts.level {
            1 => self.leaving.load(Ordering::Relaxed) == first,
            _ => !self.is_open(first, guard),
        };
        if is_leaving {
            // That one is about to be merged, and must not become a first child (X6, M2). One is merged at a time.
            middle -= 1;
        }
        let separator = &*parts.separators[middle];
        let right = InnerNode::build(&InnerParts {
            level: parts.level,
            low: separator,
            high: parts.high,
            right: parts.right,
            separators: parts.separators[middle + 1..].to_vec(),
            children: parts.children[middle + 1..].to_vec(),
        });
        let right_words = right.len();
        let right_cell = self.cell_with(right);
        let left = InnerNode::build(&InnerParts {
            level: parts.level,
            low: parts.low,
            high: Some(separator),
            right: cell_word(right_cell),
            separators: parts.separators[..middle].to_vec(),
            children: parts.children[..=middle].to_vec(),
        });
        if !self.replace(cell, current, left, guard) {
            self.unused(right_cell, guard);
            return false;
        }
        self.count_bytes(right_words);
        self.splits.fetch_add(1, Ordering::Relaxed);
        let word = cell_word(right_cell);
        strike(Moment::Step);
        self.post_at(parts.level + 1, separator, word, &|| self.is_open(word, guard), guard);
        true
    }

    /// A cell that holds `node`, of which nobody knows.
    fn cell_with(&self, node: Words) -> &Cell {
        let cell = self.cells.allocate();
        let before = cell.swap(into_raw(node), Ordering::AcqRel);
        if !before.is_null() {
            // SAFETY: the node of a cell that is used again is the caller's; its first word is its size.
            let bytes = 8 * unsafe { *before } as usize;
            self.discount_bytes(bytes);
            // SAFETY: as above, and it is freed once: it has been swapped out.
            unsafe { free_node(before.cast(), bytes) };
        }
        cell
    }

    /// Gives back a cell of which nobody has learnt, whose node is not counted.
    fn unused(&self, cell: &Cell, guard: &Guard<'_>) {
        // SAFETY: a published node's first word is its size.
        self.count_bytes(unsafe { *cell.load(Ordering::Relaxed) } as usize);
        guard.defer(0, self.cells.give_back(cell));
    }

    /// Moves the root's node to a cell of its own and puts a node with that one child into its place, unless there is such a level
    /// already. The separators of the splits below are posted into it as into any node.
    fn grow(&self, level: u32, guard: &Guard<'_>) {
        let Place { current, node, .. } = self.look(&self.root, guard);
        if node.level() >= level {
            return;
        }
        let below = self.cell_with(node.copy());
        let new = InnerNode::build(&InnerParts {
            level: node.level() + 1,
            low: &[],
            high: None,
            right: 0,
            separators: Vec::new(),
            children: vec![cell_word(below)],
        });
        let words = node.words();
        // Release publishes the cell's content along with the cell.
        if self.replace(&self.root, current, new, guard) {
            self.count_bytes(words);
        } else {
            self.unused(below, guard);
        }
    }

    /// Calls `visit` for the (low key, leaf) of the bottom node that holds `from` which begin at `from` or behind; returns where the
    /// next node begins. A leaf that is being split may be missing its right part; that is then reached by going right.
    pub(crate) fn some_leaves(
        &self,
        from: &[u8],
        guard: &Guard<'_>,
        mut visit: impl FnMut(&[u8], PageId),
    ) -> Option<Vec<u8>> {
        self.leaves_beside(from, guard, |low, page| {
            if low >= from {
                visit(low, page);
            }
        })
    }

    /// As [`Index::some_leaves`], but all of the node.
    pub(crate) fn leaves_beside(
        &self,
        key: &[u8],
        guard: &Guard<'_>,
        mut visit: impl FnMut(&[u8], PageId),
    ) -> Option<Vec<u8>> {
        let node = self.bottom(key, guard);
        visit(node.low(), PageId(node.children()[0]));
        for (at, child) in node.children()[1..].iter().enumerate() {
            visit(&node.separator(at), PageId(*child));
        }
        node.high().map(<[u8]>::to_vec)
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let free = |cell: &Cell| {
            let node = cell.load(Ordering::Acquire);
            if !node.is_null() {
                // SAFETY: a node in a cell is not retired (X1), and nobody reads any more: `self` is borrowed
                // mutably, and guards of readers borrow it too. The first word is the size.
                unsafe { free_node(node.cast(), 8 * *node as usize) };
            }
        };
        free(&self.root);
        self.cells.drain(free);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use deuteron_epoch::Epochs;
    use std::collections::BTreeMap;

    const LONG: &str = "a beginning that is longer than what is kept with every separator of an inner node/";

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
            assert_eq!(until.as_deref(), next);
            if let Some((_, before)) = model.range(..low.clone()).next_back() {
                assert_eq!(index.find_before(Some(low), guard), *before);
            }
        }
        assert_eq!(index.find_before(None, guard), *model.last_key_value().unwrap().1);
        // Groups of each length.
        let lows: Vec<&[u8]> = model.keys().map(Vec::as_slice).collect();
        let (mut left, mut pages) = (&lows[..], model.values());
        for length in (1..=FIND_EACH_MAX).cycle() {
            let (group, behind) = left.split_at(length.min(left.len()));
            let found = index.find_each(group, guard);
            assert!(found[..group.len()].iter().eq(pages.by_ref().take(group.len())));
            assert!(found[group.len()..].iter().all(|page| page.is_none()));
            if behind.is_empty() {
                break;
            }
            left = behind;
        }
    }

    #[test]
    fn posting_in_any_order_gives_the_same_index() {
        // The keys of every second step share more than a node repeats.
        for (step, stem) in [(1u64, ""), (7, LONG), (389, ""), (999, LONG)] {
            let epochs = Epochs::new();
            let guard = epochs.pin();
            let index = Index::new(PageId(1), 4);
            let mut model = BTreeMap::from([(Vec::new(), PageId(1))]);
            for number in 0..1000u64 {
                let key = format!("{stem}{:05}", number * step % 1000).into_bytes();
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
    fn a_leaf_that_is_leaving_is_not_made_a_first_child() {
        for entries_max in [2, 3, 4, 5, 16] {
            for leaving in 1..30u64 {
                let epochs = Epochs::new();
                let guard = epochs.pin();
                let key = |number: u64, part: u64| [number, part].map(u64::to_be_bytes).concat();
                let leaves: Vec<_> = (0..30)
                    .map(|number| (if number == 0 { Vec::new() } else { key(number, 0) }, PageId(number + 1)))
                    .collect();
                let index = Index::from_leaves(&leaves, entries_max);
                let (low, page) = &leaves[leaving as usize];
                if !index.begin_removal(low, *page, &guard) {
                    assert!(index.begins_node(low, &guard));
                    assert!(!index.remove(low, *page, &guard));
                    continue;
                }
                // Nodes around it are split at each of their children.
                for part in 0..20 {
                    for number in [leaving, leaving - 1] {
                        let at = key(number, 100 - part);
                        index.post(&at, PageId(100 + 2 * part + leaving - number), &guard);
                        assert!(!index.begins_node(low, &guard), "{entries_max} {leaving} {part}");
                    }
                }
                assert!(index.remove(low, *page, &guard));
                index.end_removal();
                assert_ne!(index.route(low, &guard).0, *page);
            }
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

    /// A generator that repeats itself after a while, which is enough.
    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % below
    }

    #[test]
    fn separators_that_come_and_go_leave_what_a_sorted_map_holds_and_an_emptied_index_is_one_node() {
        let mut merges = 0;
        for seed in 0..40 {
            let epochs = Epochs::with_threshold(4096);
            let index = Index::new(PageId(1), [4, 5, 16][seed as usize % 3]);
            let mut model = BTreeMap::from([(Vec::new(), PageId(1))]);
            // Those that should be taken out, and are first children still.
            let mut kept = BTreeMap::new();
            let (mut state, mut pages) = (seed, 1);
            for step in 0..1500 {
                let key = random(&mut state, 400).to_be_bytes().to_vec();
                let guard = epochs.pin();
                let grows = (step / 300) % 2 == 0 && step < 1200;
                if grows && !model.contains_key(&key) {
                    pages += 1;
                    kept.remove(&key);
                    index.post(&key, PageId(pages), &guard);
                    model.insert(key, PageId(pages));
                } else if !grows && model.len() > 1 {
                    let key = model.range(key..).next().or(model.last_key_value()).unwrap().0.clone();
                    if !key.is_empty() {
                        kept.insert(key.clone(), model.remove(&key).unwrap());
                    }
                    let mut tidied = vec![key];
                    while let Some(low) = tidied.pop() {
                        if let Some(&page) = kept.get(&low)
                            && index.remove(&low, page, &guard)
                        {
                            kept.remove(&low);
                        }
                        tidied.extend(index.tidy(&low, &guard));
                    }
                }
                if step % 50 == 0 {
                    let mut all = model.clone();
                    all.extend(kept.clone());
                    check(&index, &all, &guard);
                }
            }
            merges += index.merges();
            let guard = epochs.pin();
            while let Some((key, page)) = model.pop_last().filter(|(key, _)| !key.is_empty()) {
                kept.insert(key, page);
            }
            while let Some(low) =
                kept.iter().find_map(|(low, &page)| index.remove(low, page, &guard).then(|| low.clone()))
            {
                kept.remove(&low);
                index.tidy(&low, &guard);
            }
            assert_eq!(kept, BTreeMap::new(), "seed {seed}");
            assert_eq!(index.height(&guard), 1, "seed {seed}");
            check(&index, &BTreeMap::from([(Vec::new(), PageId(1))]), &guard);
        }
        assert!(merges > 1000, "only {merges} merges");
    }

    /// Each poster knows which of its leaves are in the index; one thread removes and merges.
    #[test]
    fn threads_post_and_route_while_nodes_are_merged() {
        let epochs = Epochs::with_threshold(4096);
        let index = Index::new(PageId(1), 4);
        let (send, dead) = std::sync::mpsc::channel::<(Vec<u8>, PageId)>();
        let live = std::sync::Mutex::new(BTreeMap::from([(Vec::new(), PageId(1))]));
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (epochs, index, live, send) = (&epochs, &index, &live, send.clone());
                scope.spawn(move || {
                    let mut state = thread;
                    let mut own = BTreeMap::new();
                    for number in 0..6000u64 {
                        let guard = epochs.pin();
                        // Each key is used once: a page does not live again.
                        let key =
                            [random(&mut state, 300), number * 2 + thread].map(u64::to_be_bytes).concat();
                        let page = PageId(2 + number * 2 + thread);
                        index.post(&key, page, &guard);
                        own.insert(key, page);
                        let probe = random(&mut state, 300).to_be_bytes();
                        if let Some((key, page)) = own.range(probe.to_vec()..).next() {
                            assert_eq!(index.route(key, &guard).0, *page);
                        }
                        while own.len() > 40 + 400 * (number as usize / 1000 % 2) {
                            send.send(own.pop_first().unwrap()).unwrap();
                        }
                    }
                    live.lock().unwrap().extend(own);
                });
            }
            drop(send);
            scope.spawn(|| {
                let mut kept: BTreeMap<Vec<u8>, PageId> = BTreeMap::new();
                for (low, page) in dead {
                    let guard = epochs.pin();
                    kept.insert(low.clone(), page);
                    let mut tidied = vec![low];
                    while let Some(low) = tidied.pop() {
                        if let Some(&page) = kept.get(&low)
                            && index.remove(&low, page, &guard)
                        {
                            kept.remove(&low);
                        }
                        tidied.extend(index.tidy(&low, &guard));
                    }
                }
                live.lock().unwrap().extend(kept);
            });
        });
        assert!(index.merges() > 100, "{} merges", index.merges());
        check(&index, &live.lock().unwrap(), &epochs.pin());
    }
}
