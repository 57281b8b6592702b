//! The machine stops at every operation of the device, under every crash policy, also while it recovers from the
//! stop before: what comes back is a prefix with everything that was said to be durable, and the log goes on.
#![cfg(not(loom))]

mod harness;
mod lives;

use deuteron_device::{CrashPolicy, FaultPlan, SimulatedDisk};
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
    let mut operations = 0;
    for count in 0.. {
        let disk = SimulatedDisk::new(count);
        disk.set_faults(FaultPlan::new().crash_after(count));
        let mut known = Known::default();
        let end = live(disk.directory(), &mut known);
        if !disk.is_stopped() {
            assert!(matches!(end, End::Old));
            break;
        }
        operations = count;
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
    assert!(operations > 40, "the life has {operations} operations");
}
