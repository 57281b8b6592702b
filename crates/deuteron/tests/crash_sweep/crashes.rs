//! The power goes, or the process dies, before and in the middle of every I/O: of the workload, and of what recovers it.

use crate::machine::{Halt, On, Reached, Workload};
use crate::parallel::{in_parallel, lock, without_panic};
use crate::{SEED, stages_on};
use deuteron::Error;
use deuteron::device::simulated::{Moment, Sweep, effort};
use deuteron::device::{CrashPolicy, SimulatedDisk, with_causes};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How many random subsets of what was not synced are tried at every crash.
fn subsets() -> u64 {
    (2 * effort()).min(20)
}

/// What can survive a crash, with a seed for each.
fn survivals() -> impl Iterator<Item = (u64, CrashPolicy)> {
    let random = (0..subsets()).map(|_| CrashPolicy::Random);
    (0..).zip([CrashPolicy::LoseAll, CrashPolicy::KeepAll].into_iter().chain(random))
}

/// A crash: what is on the disk, and how many commits may be found on it.
struct Crash {
    place: String,
    disk: SimulatedDisk,
    possible: RangeInclusive<u64>,
    number: u64,
}

/// A watcher that gives two crashes for every I/O of a disk. What happens after an I/O is what happens before the next.
fn crashes(
    place: String,
    reached: Arc<Reached>,
    sink: impl Fn(Crash) + Send + Sync,
) -> impl Fn(Moment) + Send + Sync {
    let count = AtomicU64::new(0);
    move |Moment { operation, file, before, during }| {
        let io = count.fetch_add(1, Ordering::Relaxed);
        let possible = reached.possible();
        for (number, when, disk) in [(2 * io, "before", before), (2 * io + 1, "during", during)] {
            let place = format!("{place}{when} I/O {io}, {operation} {file}");
            sink(Crash { place, disk, possible: possible.clone(), number });
        }
    }
}

/// What has been found out so far.
#[derive(Default)]
struct Findings {
    sweep: Sweep,
    /// By the contents of a disk, how many commits were found on it.
    verdicts: HashMap<u64, u64>,
}

/// Verifies what is left by a crash under `policy`. What has the same bytes as before leads to the same recovery, which is not
/// done twice.
fn verify(workload: &Workload, crash: &Crash, seed: u64, policy: CrashPolicy, findings: &Mutex<Findings>) {
    let survivor = crash.disk.fork(crash.number * 100 + seed);
    survivor.crash(policy);
    let contents = survivor.contents();
    let known = lock(findings).verdicts.get(&contents).copied();
    let verdict = match known {
        Some(commits) if crash.possible.contains(&commits) => Ok(commits),
        _ => without_panic(|| workload.verify(&survivor, crash.possible.clone(), contents.is_multiple_of(8)))
            .flatten(),
    };
    let mut findings = lock(findings);
    if let Ok(commits) = verdict {
        findings.verdicts.insert(contents, commits);
    }
    findings.sweep.recovered(format!("{}, {policy:?} {seed}", crash.place), verdict.map(drop));
}

fn report(findings: Mutex<Findings>, name: &str) {
    let Findings { sweep, verdicts } =
        findings.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    eprintln!("{name}: {} different states of the disk after a power cut", verdicts.len());
    sweep.report(name);
}

#[test]
fn nothing_acknowledged_is_lost_at_any_crash_point() {
    On::ALL.into_iter().for_each(sweep_of_crashes);
}

fn sweep_of_crashes(on: On) {
    let workload = Workload::new(on, stages_on(on));
    let findings = Mutex::new(Findings::default());
    in_parallel(
        |sink| {
            let disk = SimulatedDisk::new(SEED);
            let reached = Arc::new(Reached::default());
            disk.watch(crashes(String::new(), Arc::clone(&reached), sink));
            workload.run(&disk, &reached).expect("nothing fails");
        },
        |crash| {
            lock(&findings).sweep.point();
            for (seed, policy) in survivals() {
                verify(&workload, &crash, seed, policy, &findings);
            }
            // Only the process dies, and the power goes later: what it had not synced shows, and is still not synced.
            let killed = crash.disk.fork(crash.number);
            let verdict = without_panic(|| workload.verify(&killed, crash.possible.clone(), true)).flatten();
            let place = format!("{}, the process killed", crash.place);
            lock(&findings).sweep.recovered(place, verdict.map(drop));
        },
    );
    report(findings, &on.name("crash sweep"));
}

#[test]
fn a_crash_during_recovery_loses_nothing() {
    On::ALL.into_iter().for_each(sweep_of_recoveries);
}

fn sweep_of_recoveries(on: On) {
    let workload = Arc::new(Workload::new(on, stages_on(on)));
    let findings = Mutex::new(Findings::default());
    // Each needs a sweep of its own.
    let every = if effort() > 1 { 17 } else { 131 };
    in_parallel(
        |sink| {
            let sink: Arc<dyn Fn(Crash) + Send + Sync> = sink.into();
            let disk = SimulatedDisk::new(SEED);
            let reached = Arc::new(Reached::default());
            let (recovering, now) = (Arc::clone(&workload), Arc::clone(&reached));
            disk.watch(crashes(String::new(), Arc::clone(&reached), move |crash: Crash| {
                if crash.number % every != 3 {
                    return;
                }
                // One half after a power cut, the other after the death of the process.
                let disk = crash.disk.fork(crash.number);
                if crash.number.is_multiple_of(2) {
                    disk.crash(CrashPolicy::Random);
                }
                let sink = Arc::clone(&sink);
                let place = format!("{}, then in its recovery ", crash.place);
                disk.watch(crashes(place, Arc::clone(&now), move |crash| sink(crash)));
                drop(recovering.open(disk.directory()).expect("recovers"));
            }));
            workload.run(&disk, &reached).expect("nothing fails");
        },
        |crash| {
            lock(&findings).sweep.point();
            for (seed, policy) in (0..).zip([CrashPolicy::LoseAll, CrashPolicy::Random]) {
                verify(&workload, &crash, seed, policy, &findings);
            }
        },
    );
    report(findings, &on.name("crash sweep of recovery"));
}

#[test]
fn a_full_disk_in_the_middle_of_commits_loses_nothing_and_ends_when_there_is_room() {
    On::ALL.into_iter().for_each(sweep_of_full_disks);
}

fn sweep_of_full_disks(on: On) {
    let workload = Workload::new(on, 2);
    let mut sweep = Sweep::default();
    let disk = SimulatedDisk::new(SEED);
    workload.run(&disk, &Reached::default()).expect("nothing fails");
    let needed = disk.used_bytes();
    for percent in [5, 20, 40, 60, 80, 95] {
        sweep.point();
        let disk = SimulatedDisk::new(SEED);
        disk.set_capacity(Some(needed * percent / 100));
        let reached = Reached::default();
        match workload.run(&disk, &reached) {
            Ok(()) | Err(Halt::Error(Error::DiskFull { .. } | Error::Poisoned { .. })) => {}
            Err(Halt::Error(Error::DurabilityUnknown { cause: Some(cause), .. }))
                if matches!(*cause, Error::DiskFull { .. } | Error::Poisoned { .. }) => {}
            Err(Halt::Error(other)) => panic!("a full disk is named: {}", with_causes(&other)),
            Err(Halt::Wrong(problem)) => panic!("{problem}"),
        }
        disk.crash(CrashPolicy::KeepAll);
        disk.set_capacity(None);
        let verdict = workload.verify(&disk, reached.possible(), true);
        sweep.recovered(format!("{percent} % of the room"), verdict.map(drop));
    }
    sweep.report(&on.name("full disk"));
}
