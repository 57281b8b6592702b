//! The crash sweep: a workload that uses everything, on the simulated disk, stopped before and in the middle of every single I/O;
//! what survives is recovered and compared with the model. Recovery itself is stopped at every I/O, too, and every I/O fails once,
//! in every way that the disk knows. Allocations fail, too, on the files of a real directory.
//!
//! One thread does everything, so that the state of the database after `k` commits is known for every `k`, and the
//! run repeats exactly up to the crash. The recovered state must be that after some `k` that lies between the commits
//! acknowledged and those begun: nothing acknowledged lost, nothing half applied, no order changed.
//!
//! `DEUTERON_EFFORT` sets the size: 1 is for every test run and leaves points out; with 17 and more the workload has over a
//! thousand transactions, and every crash twenty random subsets of what was not synced.

mod allocations;
mod crashes;
mod faults;
mod machine;
mod parallel;
mod script;

use deuteron::Options;
use deuteron::device::simulated::effort;
use deuteron::device::{CrashPolicy, SimulatedDisk};
use deuteron::sizes::Sizes;
use machine::{On, Reached, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;

#[global_allocator]
static METER: deuteron_fuzz::Meter = deuteron_fuzz::Meter;

const SEED: u64 = 7;

/// How many stages the workload has: over a thousand actions in the largest.
fn stages() -> u64 {
    (2 * effort()).min(34)
}

/// The same on files that lie on the disk in some way.
fn stages_on(on: On) -> u64 {
    match on {
        On::TheDisk => stages(),
        // It is the same engine; what differs shows in a quarter of it.
        On::EncryptedFiles => stages().div_ceil(4),
    }
}

/// A proxy that posts at once leaves a replay no round to wait for.
#[test]
fn a_proxy_without_lag_replays_the_log() {
    let mut sizes = Sizes::tiny();
    sizes.proxy.lag_bytes = 0;
    let options = || Options::tiny_for_tests().sizes(sizes.clone());
    let disk = SimulatedDisk::new(1);
    let db = options().open_in(Arc::new(disk.directory())).unwrap();
    let table = db.table("t").unwrap();
    for number in 0..50u32 {
        db.transact(|tx| tx.put(&table, &number.to_be_bytes(), &[1; 100])).unwrap();
    }
    let db = options().open_in(Arc::new(disk.crash(CrashPolicy::LoseAll))).unwrap();
    let table = db.table("t").unwrap();
    assert_eq!(db.begin().scan(&table, ..).unwrap().count(), 50);
    db.close().unwrap();
}

/// A sweep is worth what its workload does.
#[test]
fn the_workload_does_everything_that_a_database_does() {
    let workload = Workload::new(On::TheDisk, 12);
    let disk = SimulatedDisk::new(SEED);
    let mut counts = BTreeMap::new();
    for stage in 0..workload.stages {
        let did = workload.run_stage(&disk, stage, &Reached::before(stage)).expect("nothing fails");
        let operations = did.operations.map(|(operation, count)| (operation.to_string(), count));
        for (name, count) in did.counters.into_iter().chain(operations) {
            *counts.entry(name).or_insert(0) += count;
        }
    }
    let did = |name: &str| counts.get(name).copied().unwrap_or(0);
    for name in [
        "open",
        "read",
        "write",
        "sync",
        "allocate space for",
        "ask the length of",
        "list",
        "remove",
        "rename",
        "sync the directory of",
        "lock",
        "dc.checkpoints",
        "dc.pages_evicted",
        "dc.pages_relocated",
        "dc.segments_cleaned",
        "dc.segments_removed",
        "dc.leaf_splits",
        "dc.leaf_merges",
        "dc.inner_merges",
        "dc.large_values_written",
        "dc.large_values_removed",
        "dc.blind_deltas",
        "log.segments_created",
        "log.segments_recycled",
        "log.append_full",
        "proxy.operations_read_back",
        "tc.misses",
        "tc.stalls",
    ] {
        assert!(did(name) > 0, "{name}: {counts:?}");
    }
}
