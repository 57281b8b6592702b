//! Tables that have been dropped since the component was opened (rule R24): a bit for each, in a tree that grows where bits are set and
//! never shrinks, so that whoever reads takes no latch and writes nothing.
//!
//! Numbers of tables are handed out one after the other: two kilobytes do for sixteen thousand neighbours.

use crate::sync::{AtomicU64, Ordering};
use deuteron_contract::TableId;
use std::array::from_fn;
use std::sync::OnceLock;

/// Bits of a number that choose a branch of the root, and a leaf of that; the others choose a bit of the leaf.
const ROOT_BITS: u32 = 9;
const BRANCH_BITS: u32 = 9;
const LEAF_BITS: u32 = u32::BITS - ROOT_BITS - BRANCH_BITS;

/// Made by whoever comes first. Of std also for loom and shuttle: nothing of theirs happens while one is made.
type Lazy<T> = OnceLock<Box<T>>;
type Leaf = [AtomicU64; (1 << LEAF_BITS) / u64::BITS as usize];
type Branch = [Lazy<Leaf>; 1 << BRANCH_BITS];
type Root = [Lazy<Branch>; 1 << ROOT_BITS];

/// See the [module](self).
pub(crate) struct DroppedTables(Lazy<Root>);

/// Where the bit of a table is: in the root, in the branch, in the leaf, and in its word.
fn place(table: TableId) -> (usize, usize, usize, u64) {
    let number = table.0;
    let root = number >> (BRANCH_BITS + LEAF_BITS);
    let branch = number >> LEAF_BITS & ((1 << BRANCH_BITS) - 1);
    let bit = number & ((1 << LEAF_BITS) - 1);
    (root as usize, branch as usize, (bit / u64::BITS) as usize, 1 << (bit % u64::BITS))
}

impl DroppedTables {
    pub(crate) fn new() -> DroppedTables {
        DroppedTables(OnceLock::new())
    }

    /// From now on the table is dropped. To be called before the data component drops it.
    pub(crate) fn insert(&self, table: TableId) {
        let (root, branch, word, bit) = place(table);
        let root = &self.0.get_or_init(|| Box::new(from_fn(|_| OnceLock::new())))[root];
        let branch = &root.get_or_init(|| Box::new(from_fn(|_| OnceLock::new())))[branch];
        let leaf = branch.get_or_init(|| Box::new(from_fn(|_| AtomicU64::new(0))));
        leaf[word].fetch_or(bit, Ordering::SeqCst);
    }

    /// Whether the table has been dropped. Says so to whoever has met what the data component did about it.
    #[inline]
    pub(crate) fn contains(&self, table: TableId) -> bool {
        match self.0.get() {
            None => false,
            Some(root) => Self::is_in(root, table),
        }
    }

    fn is_in(root: &Root, table: TableId) -> bool {
        let (in_root, in_branch, word, bit) = place(table);
        let leaf = root[in_root].get().and_then(|branch| branch[in_branch].get());
        // Acquire: the drop comes before what the data component does, and that before whoever has met it.
        leaf.is_some_and(|leaf| leaf[word].load(Ordering::Acquire) & bit != 0)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::counted::stores;
    use std::collections::BTreeSet;

    #[test]
    fn what_was_dropped_is_in_it_and_nothing_else() {
        let dropped = DroppedTables::new();
        let chosen: BTreeSet<u32> =
            [0, 1, 63, 64, 127, (1 << 14) - 1, 1 << 14, 1 << 20, (1 << 23) - 1, 1 << 23, 1 << 31, u32::MAX]
                .into();
        assert!(chosen.iter().all(|number| !dropped.contains(TableId(*number))));
        for number in &chosen {
            dropped.insert(TableId(*number));
        }
        let near = chosen.iter().flat_map(|number| [number.wrapping_sub(1), *number, number.wrapping_add(1)]);
        for number in near.chain(0..5000).chain((0..32).map(|bit| 1 << bit)) {
            assert_eq!(dropped.contains(TableId(number)), chosen.contains(&number), "{number}");
        }
    }

    #[test]
    fn to_look_writes_nothing_however_many_there_are() {
        let dropped = DroppedTables::new();
        (0..200).for_each(|number| dropped.insert(TableId(number)));
        let before = stores();
        assert!((0..400).all(|number| dropped.contains(TableId(number)) == (number < 200)));
        assert_eq!(stores(), before);
    }
}
