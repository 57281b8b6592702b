//! Pages that cannot be read for a while take changes blindly, and lose none of them.

mod support;

use deuteron_bwtree::{Options, Tree};
use deuteron_device::{FaultKind, FaultPlan, Operation, SimulatedDisk};
use deuteron_llama::Evicted;
use std::sync::Arc;
use support::{flush, put, scan, tree_in_store};

/// A tree of one leaf, which is not in memory and could not be read when somebody tried.
fn unreadable() -> Tree {
    let disk = SimulatedDisk::new(1);
    let tree =
        tree_in_store(&Arc::new(disk.directory()), deuteron_llama::Options::default(), Options::default());
    [1, 2].into_iter().for_each(|key| put(&tree, key, Some(b"value"), 1));
    flush(&tree);
    while tree.llama().evict_step(u64::MAX) != Evicted::default() {}
    disk.set_faults(FaultPlan::new().fail_from(Operation::Read, 0, FaultKind::Refuse));
    assert!(tree.get(&1u64.to_be_bytes(), |_| ()).is_err());
    disk.set_faults(FaultPlan::new());
    tree
}

/// A node counts no more than 65,535 deltas; what lay below those was lost with the next consolidation.
#[test]
fn a_chain_of_any_length_is_read_and_consolidated_whole() {
    let tree = unreadable();
    put(&tree, 1, Some(b"value"), 2);
    let last = 70_000;
    for stamp in 2..=last {
        put(&tree, 2, Some(b"value"), stamp);
    }
    tree.get(&2u64.to_be_bytes(), |_| ()).unwrap();
    let expected = [(1, 2), (2, last)];
    assert_eq!(scan(&tree, false), expected);
    tree.consolidate(b"", &tree.llama().pin());
    assert_eq!(scan(&tree, false), expected);
}
