//! Merging inner nodes, and shrinking the root: what makes the index smaller.
//!
//! An underfull node, *right*, goes over into its left sibling, *left*, under the same parent. One merge at a time: the caller has the
//! tree's merge lock. Nobody waits for it; whoever has to change a frozen node finishes the merge.
//!
//! | step | what | from here on |
//! |---|---|---|
//! | 1 | right is *frozen*: replaced by the same node, marked | it does not change; nobody posts it above (it is not alive, X5) |
//! | 2 | the parent is replaced, by the same, if right is not its first child; else right is thawed, and that is all | the parent is not split at right (M2) |
//! | 3 | left is replaced by a node with the content of both | the merge is a fact |
//! | 4 | right's separator is taken out of the parent; its cell is given back | |
//!
//! A root with one child takes the child's content over in the same way: the child is frozen (1), the root replaced (3), the child's
//! cell given back (4).
//!
//! - **M1** A merge has happened if left's right sibling is another cell (the root's only child another cell, or none). Under a guard
//!   under which a cell was met it is not given out again, so this is exact.
//! - **M2** A parent is split at a child only after that was seen not frozen, and after the parent was read. Step 2 replaces the
//!   parent after step 1. So right is not made a first child after step 2, and step 4 takes it out.
//!   A belated helper looks once more, before step 3, whether the node is still the one that it saw frozen: one that was thawed is not.
//! - **M3** Who needs to know all separators posted so far ([`Index::exact`]) does not take a frozen node's word after step 3. Other
//!   searches may: what a frozen node holds leads to the right leaf, or to the left of it. Leaves that are taken out
//!   of the index later were still there when such a search met the way to the frozen node, which was before step 4; so its guard
//!   protects them.

use super::inner_node::{InnerNode, InnerParts};
use super::{Cell, Index, Place, cell_word};
use crate::sync::Ordering;
use deuteron_epoch::Guard;
use std::borrow::Cow;

impl Index {
    /// As `place`, which was read on the way to `key`, but with all that was posted before: past a merge that has happened (M3).
    /// Frozen still, if its merge has not happened. `None` if the level is gone.
    pub(super) fn exact<'c, 'g>(
        &'c self,
        mut place: Place<'c, 'g>,
        key: &[u8],
        guard: &'g Guard<'_>,
    ) -> Option<Place<'c, 'g>> {
        while place.node.is_frozen() && !self.is_unmerged(&place, guard) {
            let level = place.node.level();
            place = match place.node.low() {
                [] => self.place(key, level, guard)?,
                low => self.right_to(self.place_before(low, level, guard)?, key, guard),
            };
        }
        Some(place)
    }

    /// Whether the merge of a frozen node has not happened yet (M1).
    fn is_unmerged(&self, frozen: &Place<'_, '_>, guard: &Guard<'_>) -> bool {
        let word = cell_word(frozen.cell);
        match frozen.node.low() {
            [] => self.node(&self.root, guard).children() == [word],
            low => self
                .place_before(low, frozen.node.level(), guard)
                .is_some_and(|left| left.node.right() == word),
        }
    }

    /// The node of `level` that holds `key`, not frozen, so that it can be changed. Finishes merges. `None` if there is no
    /// such level.
    pub(super) fn open_place<'c, 'g>(
        &'c self,
        key: &[u8],
        level: u32,
        guard: &'g Guard<'_>,
    ) -> Option<Place<'c, 'g>> {
        let mut place = self.exact(self.place(key, level, guard)?, key, guard)?;
        while place.node.is_frozen() {
            self.finish(&place, guard);
            // Merged, thawed, or another thread has been faster at the left node.
            place = self.exact(self.place(key, level, guard)?, key, guard)?;
        }
        Some(place)
    }

    /// Steps 2 and 3 of a merge, as far as they are still to do; one attempt.
    fn finish(&self, frozen: &Place<'_, '_>, guard: &Guard<'_>) {
        let (node, word) = (frozen.node, cell_word(frozen.cell));
        let low = node.low();
        if low.is_empty() {
            let root = self.look(&self.root, guard);
            if root.node.children() == [word] {
                self.replace(&self.root, root.current, InnerNode::build(&node.parts()), guard);
            }
            return;
        }
        let Some(parent) = self.place(low, node.level() + 1, guard) else { return };
        // The parent is changed by those who hold the merge lock, and by splits of its children: no merge of its own is under way.
        if parent.node.child_at(low) == Some(word) {
            if parent.node.low() == low {
                self.replace(frozen.cell, frozen.current, InnerNode::build(&node.parts()), guard);
                return;
            }
            if !self.replace(parent.cell, parent.current, InnerNode::build(&parent.node.parts()), guard) {
                return;
            }
        }
        let Some(left) = self.place_before(low, node.level(), guard) else { return };
        // M2. If it is still the one that was seen, it has been all the time (X1), and step 2 came after step 1.
        let is_current = || frozen.cell.load(Ordering::Acquire) == frozen.current;
        if left.node.right() == word && !left.node.is_frozen() && is_current() {
            self.replace(left.cell, left.current, InnerNode::build(&joined(left.node, node)), guard);
        }
    }

    /// Makes the index smaller around `key`, where a separator has been removed: merges underfull nodes, from the top, and takes
    /// roots away that have one child. Where the nodes that are gone began. One thread at a time.
    pub(crate) fn tidy(&self, key: &[u8], guard: &Guard<'_>) -> Vec<Vec<u8>> {
        let mut merged = Vec::new();
        loop {
            let before = merged.len();
            for level in (1..self.node(&self.root, guard).level()).rev() {
                let Some(place) = self.place(key, level, guard) else { continue };
                // It may have become so small that its right neighbour fits in.
                let next = place.node.high().and_then(|high| self.merge(high, level, guard));
                merged.extend(next);
                merged.extend(self.merge(place.node.low(), level, guard));
            }
            if merged.len() == before && !self.shrink(guard) {
                return merged;
            }
        }
    }

    /// Merges the node of `level` that begins at `low` into its left sibling, if it is underfull and there is room. Where it began.
    fn merge(&self, low: &[u8], level: u32, guard: &Guard<'_>) -> Option<Vec<u8>> {
        let right = self.place(low, level, guard)?;
        let word = cell_word(right.cell);
        if low.is_empty()
            || right.node.low() != low
            || right.node.is_frozen()
            || !self.is_underfull(right.node)
        {
            return None;
        }
        let parent = self.place(low, level + 1, guard)?;
        if parent.node.child_at(low) != Some(word) || parent.node.low() == low {
            return None;
        }
        let left = self.place_before(low, level, guard)?;
        if left.node.right() != word || !self.has_room(left.node, right.node) {
            return None;
        }
        let frozen = self.freeze(&right, guard)?;
        // Step 2 may thaw it.
        while self.node(right.cell, guard).is_frozen() && self.is_unmerged(&frozen, guard) {
            self.finish(&frozen, guard);
        }
        if !self.node(right.cell, guard).is_frozen() {
            return None;
        }
        let removed = self.remove_at(level + 1, low, word, guard);
        debug_assert!(removed, "no parent was split at a frozen child (M2)");
        self.give_back(right.cell, guard);
        Some(low.to_vec())
    }

    /// Lets the root take over the content of its only child, if it has but one. Whether it did.
    fn shrink(&self, guard: &Guard<'_>) -> bool {
        let root = self.look(&self.root, guard);
        let &[only] = root.node.children() else { return false };
        if root.node.level() == 1 || root.node.right() != 0 {
            return false;
        }
        let child = self.look(self.cell(only), guard);
        // A sibling's separator is about to be posted.
        if child.node.right() != 0 || child.node.is_frozen() {
            return false;
        }
        let Some(frozen) = self.freeze(&child, guard) else { return false };
        while self.is_unmerged(&frozen, guard) {
            self.finish(&frozen, guard);
        }
        self.give_back(child.cell, guard);
        true
    }

    fn is_underfull(&self, node: InnerNode<'_>) -> bool {
        4 * node.children().len() <= self.entries_max
    }

    /// Whether both fit into three quarters of a node; of a single child it is enough that it fits.
    fn has_room(&self, left: InnerNode<'_>, right: InnerNode<'_>) -> bool {
        let separators = left.count() + 1 + right.count();
        separators <= if right.count() == 0 { self.entries_max - 1 } else { self.entries_max / 4 * 3 }
    }

    /// Step 1. `None` if the node has changed.
    fn freeze<'c, 'g>(&'c self, place: &Place<'c, 'g>, guard: &'g Guard<'_>) -> Option<Place<'c, 'g>> {
        let frozen = InnerNode::frozen(place.node);
        self.replace(place.cell, place.current, frozen, guard).then(|| self.look(place.cell, guard))
    }

    /// Whether the node in the cell is not about to be merged, nor has been.
    pub(super) fn is_open(&self, word: u64, guard: &Guard<'_>) -> bool {
        !self.node(self.cell(word), guard).is_frozen()
    }

    /// The frozen node stays in the cell until it is used again, which is after everybody has gone who has met it.
    fn give_back(&self, cell: &Cell, guard: &Guard<'_>) {
        self.merges.fetch_add(1, Ordering::Relaxed);
        guard.defer(0, self.cells.give_back(cell));
    }
}

/// One node with what two neighbours hold.
fn joined<'n>(left: InnerNode<'n>, right: InnerNode<'n>) -> InnerParts<'n> {
    let (mut parts, other) = (left.parts(), right.parts());
    parts.separators.push(Cow::Borrowed(other.low));
    parts.separators.extend(other.separators);
    parts.children.extend(other.children);
    InnerParts { high: other.high, right: other.right, ..parts }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use deuteron_epoch::Epochs;
    use deuteron_llama::PageId;

    /// Step 3 comes late, of a node that has been thawed and changed since, and is in the middle of its parent again.
    #[test]
    fn a_merge_is_not_finished_with_what_a_node_held_before_it_was_thawed() {
        let epochs = Epochs::new();
        let guard = epochs.pin();
        let key = |number: u64| if number == 0 { Vec::new() } else { number.to_be_bytes().to_vec() };
        let leaves: Vec<_> = (0..9).map(|number| (key(10 * number), PageId(number + 1))).collect();
        let index = Index::from_leaves(&leaves, 4);
        let right = index.place(&key(30), 1, &guard).unwrap();
        assert!(right.node.low() == key(30), "three leaves to a node");
        let frozen = index.freeze(&right, &guard).unwrap();
        assert!(index.replace(right.cell, frozen.current, InnerNode::build(&frozen.node.parts()), &guard));
        index.post_if(&key(35), PageId(20), &|| true, &guard);
        index.finish(&frozen, &guard);
        let mut found = Vec::new();
        let mut from = Some(Vec::new());
        while let Some(low) = from {
            from = index.some_leaves(&low, &guard, |_, page| found.push(page.0));
        }
        assert_eq!(found, [1, 2, 3, 4, 20, 5, 6, 7, 8, 9]);
    }
}
