//! What the tests of the tree share: trees in memory, and scans as lists.

#![allow(dead_code, unused_imports, reason = "each test uses a part")]

use deuteron_bwtree::{Cursor, Options, Tree, Upsert};
pub use deuteron_device::simulated::Random;
use deuteron_device::{Directory, MemoryDirectory};
use deuteron_epoch::Epochs;
use deuteron_llama::{CheckpointProgress, FlushProgress, Llama};
use std::ops::Bound;
use std::sync::Arc;

/// A new tree in a roomy store.
pub fn tree(options: Options) -> Tree {
    let directory = Arc::new(MemoryDirectory::new());
    let epochs = Epochs::with_threshold(16 << 10);
    let (llama, _) = Llama::open(directory, deuteron_llama::Options::default(), epochs).unwrap();
    Tree::create(Arc::new(llama), 1, options)
}

/// The tree in `directory`, or a new one, in a store with tiny segments and buffers.
pub fn tree_in(directory: &Arc<impl Directory + 'static>, options: Options) -> Tree {
    let store =
        deuteron_llama::Options { memory_bytes: 1 << 20, ..deuteron_llama::Options::tiny_for_tests() };
    tree_in_store(directory, store, options)
}

/// The same with a store as it is set.
pub fn tree_in_store(
    directory: &Arc<impl Directory + 'static>,
    store: deuteron_llama::Options,
    options: Options,
) -> Tree {
    let epochs = Epochs::with_threshold(4 << 10);
    let (llama, found) = Llama::open(directory.clone(), store, epochs).unwrap();
    if found.pages.is_empty() {
        return Tree::create(Arc::new(llama), 1, options);
    }
    let leaves: Vec<_> = found.pages.into_iter().map(|page| (page.low_key, page.page)).collect();
    Tree::recover(Arc::new(llama), 1, &leaves, options).unwrap()
}

/// Writes one version of a key, or its tombstone.
pub fn put(tree: &Tree, key: u64, value: Option<&[u8]>, version: u64) {
    tree.upsert(&[Upsert { key: &key.to_be_bytes(), value, stamp: version, lsn: version }]).unwrap();
}

pub fn flush(tree: &Tree) {
    while tree.llama().flush_step().unwrap() != FlushProgress::Nothing {}
}

pub fn checkpoint(tree: &Tree) {
    let Ok(mut checkpoint) = tree.llama().checkpoint_begin(b"") else { return };
    while tree.llama().checkpoint_flush_step(&mut checkpoint).unwrap() != CheckpointProgress::Done {
        std::thread::yield_now();
    }
    let mut from = Some(Vec::new());
    while let Some(low) = from {
        let mut leaves = Vec::new();
        from = tree.some_leaves(&low, |low, page| leaves.push((low.to_vec(), page)));
        for (low, page) in leaves {
            tree.llama().checkpoint_add(&mut checkpoint, 1, &low, page).unwrap();
        }
    }
    tree.llama().checkpoint_finish(checkpoint).unwrap();
}

/// The live records, by a scan in one direction: keys and versions.
pub fn scan(tree: &Tree, reverse: bool) -> Vec<(u64, u64)> {
    let mut cursor = Cursor::new(Bound::Unbounded, Bound::Unbounded, reverse, usize::MAX);
    let mut found = Vec::new();
    tree.scan(&mut cursor, |record| {
        let mut key = Vec::new();
        record.append_key_to(&mut key);
        if record.value.is_some() {
            found.push((u64::from_be_bytes(key.try_into().unwrap()), record.stamp));
        }
    })
    .unwrap();
    assert!(found.is_sorted_by(|left, right| if reverse { left.0 > right.0 } else { left.0 < right.0 }));
    found
}
