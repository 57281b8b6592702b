//! The machine stops at every operation of the device, under every crash policy, also while it recovers from the
//! stop before: what comes back is a prefix with everything that was said to be durable, and the log goes on.
#![cfg(not(loom))]

mod harness;
mod lives;

use deuteron_device::{CrashPolicy, Directory, FaultPlan, SimulatedDisk};
use lives::{End, Known, live};

const POLICIES: [CrashPolicy; 5] = [
    CrashPolicy::LoseAll,
    CrashPolicy::KeepAll,
    CrashPolicy::Random,
    CrashPolicy::Random,
    CrashPolicy::Random,
];

#[test]
fn every_stop_is_survived() {
    for count in 0.. {
        let disk = SimulatedDisk::new(count);
        disk.set_faults(FaultPlan::new().crash_after(count));
        let mut known = Known::default();
        let end = live(disk.directory(), &mut known);
        if !disk.is_stopped() {
            assert!(matches!(end, End::Old));
            break;
        }
        for (seed, policy) in (0..).zip(POLICIES) {
            let disk = disk.fork(1000 * count + seed);
            let mut known = known.clone();
            // A second life, which the machine does not survive either: at its beginning, so that recovery is stopped,
            // or later.
            let directory = disk.crash(policy);
            let second = if seed % 2 == 0 { count % 7 } else { count * 11 % 60 };
            disk.set_faults(FaultPlan::new().crash_after(second));
            live(directory, &mut known);
            let end = live(disk.crash(policy), &mut known);
            assert!(matches!(end, End::Old), "stop at {count}, then at {second}, {policy:?}");
        }
    }
}

/// The check is worth something: a log that loses its last acknowledged buffer does not pass.
#[test]
#[should_panic(expected = "acknowledged")]
fn lost_buffer_is_noticed() {
    let disk = SimulatedDisk::new(1);
    let mut known = Known::default();
    assert!(matches!(live(disk.directory(), &mut known), End::Old));
    let last = disk.directory().list().unwrap().into_iter().rfind(|name| name.ends_with(".seg")).unwrap();
    let base = u64::from_str_radix(&last[4..20], 16).unwrap();
    // The acknowledged end is in this segment; no segment ever written there is as good as an empty one.
    assert!(base < known.acknowledged.0);
    for block in 1..17 {
        let _ = disk.flip_bits(&last, block * 4096, 0xff);
    }
    live(disk.directory(), &mut known);
}
