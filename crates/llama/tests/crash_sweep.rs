//! The machine stops at every device operation of a history, once each, and then again while it recovers.

mod harness;

use deuteron_device::simulated::{Sweep, effort};
use deuteron_device::{CrashPolicy, Directory, FaultPlan, SimulatedDisk};
use deuteron_llama::Options;
use harness::{Harness, Random};
use std::sync::Arc;

const ACTIONS: usize = 240;

/// Runs the history on `disk` until the machine stops, or to its end; whether it got to run at all.
fn history(disk: &SimulatedDisk, seed: u64, options: &Options) -> Option<Harness> {
    let mut random = Random::new(seed);
    let mut harness = Harness::create(Arc::new(disk.directory()), options).ok()?;
    for _ in 0..ACTIONS {
        let acted = harness.act(&mut random);
        assert!(acted.is_ok() || disk.is_stopped(), "{:?}", acted.err());
        if disk.is_stopped() {
            break;
        }
    }
    Some(harness)
}

/// How many pages the history frees, and how many segments of moved pages it begins.
fn sweep(seed: u64, options: &Options, count: &mut Sweep) -> (u64, u64) {
    let whole = SimulatedDisk::new(seed);
    let history_to_its_end = history(&whole, seed, options).unwrap();
    history_to_its_end.check_all().unwrap();
    let freed = history_to_its_end.llama.statistics().pages_freed;
    let begun = u64::from(moved_segment(&whole).is_some());
    for stop in 0..whole.operations() {
        let disk = SimulatedDisk::new(seed ^ stop);
        disk.set_faults(FaultPlan::new().crash_after(stop));
        let harness = history(&disk, seed, options);
        count.point();
        let directory = Arc::new(disk.crash(CrashPolicy::of(stop)));
        let Some(harness) = harness else {
            // It stopped while the store was made. Whatever is there, a store opens on it.
            Harness::create(directory, options).unwrap();
            count.recovered(stop, Ok(()));
            continue;
        };
        let ledger = harness.into_ledger();
        // Stops again during recovery, then recovers for good.
        disk.set_faults(FaultPlan::new().crash_after(disk.operations() + stop % 23));
        let again = Harness::reopen(&ledger, directory, options);
        assert!(again.is_ok() || disk.is_stopped(), "stop {stop}: {:?}", again.err());
        drop(again);
        disk.set_faults(FaultPlan::new());
        let directory = Arc::new(disk.crash(CrashPolicy::of(stop / 3)));
        let mut harness = Harness::reopen(&ledger, directory, options).unwrap();
        let mut random = Random::new(stop);
        for _ in 0..30 {
            harness.act(&mut random).unwrap();
        }
        harness.check_all().unwrap();
        count.recovered(stop, Ok(()));
    }
    (freed, begun)
}

/// A segment of pages that the cleaner has moved, if there is one.
fn moved_segment(disk: &SimulatedDisk) -> Option<String> {
    let is_odd =
        |name: &String| name.ends_with(".seg") && u64::from_str_radix(&name[6..22], 16).unwrap() % 2 == 1;
    disk.directory().list().unwrap().into_iter().find(is_odd)
}

#[test]
fn a_stop_at_any_operation_loses_nothing_durable_and_no_half_split_or_merge() {
    let tiny = Options::tiny_for_tests();
    let (mut freed, mut begun, mut count) = (0, 0, Sweep::default());
    for seed in (4..4 + 10 * effort()).chain([51]) {
        let (pages, segments) = sweep(seed, &tiny, &mut count);
        freed += pages;
        begun += segments;
    }
    sweep(2, &Options { fragments_max: 8, flush_buffer_bytes: 4096, ..tiny.clone() }, &mut count);
    sweep(3, &Options { fragments_max: 1, flush_buffer_bytes: 32 << 10, ..tiny }, &mut count);
    count.report("pages, and recovery");
    assert!(freed > 30, "only {freed} pages were freed");
    assert!(begun > 5, "only {begun} histories have moved pages");
}
