//! [`TableDirectory`]: from a table's identifier to its tree, without a lock for those who look.
//!
//! A radix tree of three levels over the 32 bits of the identifier. Nodes and trees are only ever added, so what a reader has
//! found stays good as long as the directory. Small identifiers, which is all that a catalogue hands out, share
//! their first two nodes, which are then in the cache.

use crate::sync::{Mutex, MutexGuard};
use deuteron_bwtree::Tree;
use std::ptr;
use std::sync::PoisonError;
// Shuttle's are too large for so many slots.
use std::sync::atomic::{AtomicPtr, Ordering};

const BITS: [u32; 3] = [10, 11, 11];

/// A node: its slots hold [`Node`]s or, on the last level, [`Tree`]s.
struct Node<T> {
    slots: Box<[AtomicPtr<T>]>,
}

impl<T> Node<T> {
    fn new(bits: u32) -> Node<T> {
        Node { slots: (0..1 << bits).map(|_| AtomicPtr::new(ptr::null_mut())).collect() }
    }

    fn get(&self, index: usize) -> Option<&T> {
        // Acquire pairs with the release in `set`.
        // SAFETY: a published child lives as long as its node, see `Drop`; D1.
        unsafe { self.slots[index].load(Ordering::Acquire).as_ref() }
    }

    /// Publishes a child in an empty slot. Only under the directory's lock.
    fn set(&self, index: usize, child: T) -> &T {
        let child = Box::into_raw(Box::new(child));
        let before = self.slots[index].swap(child, Ordering::AcqRel);
        assert!(before.is_null(), "a slot of the table directory is set once");
        // SAFETY: just published; D1.
        unsafe { &*child }
    }
}

impl<T> Drop for Node<T> {
    fn drop(&mut self) {
        for slot in &self.slots {
            let child = slot.load(Ordering::Acquire);
            if !child.is_null() {
                // SAFETY: from Box::into_raw in `set`, and nobody borrows the node any more (D1).
                drop(unsafe { Box::from_raw(child) });
            }
        }
    }
}

/// All tables. Invariant **D1**: a slot goes from null to a child once, and the child is freed with its node only.
pub(crate) struct TableDirectory {
    root: Node<Node<Node<Tree>>>,
    /// Held while a table comes into being, which is rare. The identifiers so far, in order.
    identifiers: Mutex<Vec<u32>>,
}

fn place(table: u32) -> [usize; 3] {
    let (high, low) = (BITS[1] + BITS[2], BITS[2]);
    [table >> high, table >> low & ((1 << BITS[1]) - 1), table & ((1 << BITS[2]) - 1)].map(|at| at as usize)
}

impl TableDirectory {
    pub(crate) fn new() -> TableDirectory {
        TableDirectory { root: Node::new(BITS[0]), identifiers: Mutex::default() }
    }

    fn identifiers(&self) -> MutexGuard<'_, Vec<u32>> {
        // What is done under the lock leaves the list whole.
        self.identifiers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tree of `table`, if there is one.
    #[inline]
    pub(crate) fn get(&self, table: u32) -> Option<&Tree> {
        let [first, second, third] = place(table);
        self.root.get(first)?.get(second)?.get(third)
    }

    /// The tree of `table`, made by `create` if there is none.
    pub(crate) fn get_or_create(&self, table: u32, create: impl FnOnce() -> Tree) -> &Tree {
        if let Some(tree) = self.get(table) {
            return tree;
        }
        let mut identifiers = self.identifiers();
        if let Some(tree) = self.get(table) {
            return tree;
        }
        self.put(&mut identifiers, table, create())
    }

    /// Returns when who was making a tree has put it in its place.
    pub(crate) fn await_creation(&self) {
        drop(self.identifiers());
    }

    /// Puts the tree that `create` makes in the place of `table`; `None`, and nothing made, if there is one.
    pub(crate) fn insert_new<E>(
        &self,
        table: u32,
        create: impl FnOnce() -> Result<Tree, E>,
    ) -> Option<Result<(), E>> {
        let mut identifiers = self.identifiers();
        if self.get(table).is_some() {
            return None;
        }
        let made = create();
        Some(made.map(|tree| {
            self.put(&mut identifiers, table, tree);
        }))
    }

    /// Puts a tree in its empty place. Under the lock of `identifiers`.
    fn put(&self, identifiers: &mut Vec<u32>, table: u32, tree: Tree) -> &Tree {
        let [first, second, third] = place(table);
        let node = match self.root.get(first) {
            Some(node) => node,
            None => self.root.set(first, Node::new(BITS[1])),
        };
        let leaf = match node.get(second) {
            Some(leaf) => leaf,
            None => node.set(second, Node::new(BITS[2])),
        };
        identifiers.insert(identifiers.partition_point(|&other| other < table), table);
        leaf.set(third, tree)
    }

    /// All trees, by identifier.
    pub(crate) fn all(&self) -> Vec<&Tree> {
        let identifiers = self.identifiers().clone();
        identifiers.into_iter().filter_map(|table| self.get(table)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_table_is_created_once_and_found_by_its_identifier() {
        let epochs = deuteron_epoch::Epochs::new();
        let directory = Arc::new(deuteron_device::MemoryDirectory::new());
        let (llama, _) = deuteron_llama::Llama::open(directory, Default::default(), epochs).unwrap();
        let llama = Arc::new(llama);
        let tables = TableDirectory::new();
        let identifiers = [0, 1, 2047, 2048, 1 << 22, u32::MAX];
        let create = |table| Tree::create(Arc::clone(&llama), table, Default::default());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for table in identifiers {
                        let tree = tables.get_or_create(table, || create(table));
                        assert_eq!(tree.id(), table);
                        assert!(ptr::eq(tree, tables.get(table).unwrap()));
                    }
                });
            }
        });
        assert!(tables.get(2).is_none());
        assert_eq!(tables.all().iter().map(|tree| tree.id()).collect::<Vec<_>>(), identifiers);
    }
}
