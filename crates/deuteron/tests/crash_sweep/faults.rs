//! Every single operation of the device fails once, in every way that it can: those that say so, and those that nobody is told of.

use crate::machine::{Halt, On, Reached, Workload};
use crate::parallel::{in_parallel, lock, without_panic};
use crate::{SEED, stages_on};
use deuteron::Error;
use deuteron::device::simulated::{Sweep, effort};
use deuteron::device::{CrashPolicy, FaultKind, FaultPlan, Operation, SimulatedDisk, with_causes};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How an operation can fail with an error.
fn failures(operation: Operation) -> &'static [FaultKind] {
    match operation {
        Operation::Write | Operation::Sync | Operation::SyncDirectory => {
            &[FaultKind::Refuse, FaultKind::Full, FaultKind::Partial, FaultKind::Lose]
        }
        // A file system may need room for each of them.
        Operation::Open | Operation::Allocate | Operation::Rename | Operation::Remove => {
            &[FaultKind::Refuse, FaultKind::Full]
        }
        _ => &[FaultKind::Refuse],
    }
}

/// How an operation can fail and claim that it has not.
fn lies(operation: Operation) -> &'static [FaultKind] {
    match operation {
        Operation::Write => &[FaultKind::Forget, FaultKind::Misdirect, FaultKind::Short, FaultKind::Rot],
        Operation::Sync | Operation::SyncDirectory => &[FaultKind::Forget],
        Operation::Read => &[FaultKind::Stale, FaultKind::Rot],
        _ => &[],
    }
}

/// An operation of a stage that is to fail.
struct Fault {
    stage: u64,
    /// The disk as it is when the stage begins, and what its randomness is then.
    start: Arc<SimulatedDisk>,
    seed: u64,
    operation: Operation,
    nth: u64,
    kind: FaultKind,
}

impl Fault {
    fn place(&self) -> String {
        let Fault { stage, operation, nth, kind, .. } = self;
        format!("stage {stage}, {kind:?} of {operation} number {nth}")
    }

    /// A disk on which it will happen.
    fn disk(&self) -> SimulatedDisk {
        let disk = self.start.fork(self.seed);
        disk.set_faults(FaultPlan::new().fail(self.operation, self.nth, self.kind));
        disk
    }
}

/// Calls `sink` with every fault of every stage; in the smallest sweep with some of them. Only with that which `DEUTERON_FAULT` names as a
/// failure does, if there is such a variable.
fn faults(workload: &Workload, kinds: fn(Operation) -> &'static [FaultKind], sink: impl Fn(Fault)) {
    let asked = std::env::var("DEUTERON_FAULT").ok();
    let disk = SimulatedDisk::new(SEED);
    let mut seed = 0;
    for stage in 0..workload.stages {
        let start = Arc::new(disk.fork(stage));
        let did = workload.run_stage(&disk, stage, &Reached::before(stage)).expect("nothing fails");
        for (operation, count) in did.operations {
            for (nth, &kind) in
                (0..count).flat_map(|nth| kinds(operation).iter().map(move |kind| (nth, kind)))
            {
                seed += 1;
                let fault = Fault { stage, start: Arc::clone(&start), seed, operation, nth, kind };
                let is_asked = asked.as_ref().is_none_or(|asked| *asked == fault.place());
                if is_asked && (effort() > 1 || seed % 7 == 0) {
                    sink(fault);
                }
            }
        }
    }
}

#[test]
fn a_single_failed_operation_is_reported_and_loses_nothing() {
    On::ALL.into_iter().for_each(sweep_of_failures);
}

fn sweep_of_failures(on: On) {
    let workload = Workload::new(on, stages_on(on));
    let (sweep, verdicts) = (Mutex::new(Sweep::default()), Mutex::new(HashMap::new()));
    in_parallel(
        |sink| faults(&workload, failures, sink),
        |fault| {
            lock(&sweep).point();
            let reached = Reached::before(fault.stage);
            let disk = fault.disk();
            let run = without_panic(|| workload.run_stage(&disk, fault.stage, &reached).map(drop));
            match run {
                Err(panic) => lock(&sweep).failed(fault.place(), panic),
                Ok(Err(Halt::Wrong(problem))) => lock(&sweep).failed(fault.place(), problem),
                Ok(Err(Halt::Error(error))) if !fits(&error) => {
                    lock(&sweep).failed(fault.place(), format!("is told as: {}", with_causes(&error)));
                }
                Ok(_) => {}
            }
            // The process is started again; or the power is cut.
            let (restarted, cut) = (disk.fork(1), disk.fork(2));
            cut.crash(CrashPolicy::LoseAll);
            let contents = (restarted.contents(), cut.contents());
            for (disk, after) in [(restarted, "restarted"), (cut, "cut off")] {
                if after == "restarted" && shows_names_for_ever(&fault) {
                    continue;
                }
                // What is on the disk decides: reads that fail between the same writes leave the same.
                let known = lock(&verdicts).get(&(contents, after)).copied();
                let verdict = match known {
                    Some(commits) if reached.possible().contains(&commits) => Ok(commits),
                    _ => without_panic(|| workload.verify(&disk, reached.possible(), true)).flatten(),
                };
                if let Ok(commits) = verdict {
                    lock(&verdicts).insert((contents, after), commits);
                }
                lock(&sweep).recovered(format!("{}, {after}", fault.place()), verdict.map(drop));
            }
        },
    );
    lock(&sweep).report(&on.name("fault sweep"));
}

/// Whether the machine goes on to show names of files that no crash will leave, however often its directory is synced from now on: there
/// is nothing that a process on it could do. (File systems that fail so can only be read from then on.)
fn shows_names_for_ever(fault: &Fault) -> bool {
    (fault.operation, fault.kind) == (Operation::SyncDirectory, FaultKind::Lose)
}

/// Whether an error says that the device failed, and not something else.
fn fits(error: &Error) -> bool {
    match error {
        Error::DurabilityUnknown { cause: Some(cause), .. } => fits(cause),
        error => matches!(error, Error::Device { .. } | Error::DiskFull { .. } | Error::Poisoned { .. }),
    }
}

#[test]
fn a_device_that_lies_is_found_out_or_has_no_effect() {
    On::ALL.into_iter().for_each(sweep_of_lies);
}

/// Nobody can know of a last write that was confirmed and never done: commits at the end of the log may be lost with it. All
/// else is, or there is an error that names the damage.
fn sweep_of_lies(on: On) {
    // There are two for every read, most of which go on to the end.
    let workload = Workload::new(on, stages_on(on).div_ceil(4));
    let (sweep, lost, named) = (Mutex::new(Sweep::default()), AtomicU64::new(0), AtomicU64::new(0));
    in_parallel(
        |sink| faults(&workload, lies, sink),
        |fault| {
            lock(&sweep).point();
            let reached = Reached::before(fault.stage);
            let disk = fault.disk();
            let run = without_panic(|| workload.run_stage(&disk, fault.stage, &reached).map(drop));
            let problem = match run {
                Err(panic) => return lock(&sweep).failed(fault.place(), panic),
                Ok(Err(Halt::Wrong(problem))) => Some(problem),
                Ok(Err(Halt::Error(error))) if !names_damage(&with_causes(&error)) => {
                    Some(format!("is told as: {}", with_causes(&error)))
                }
                Ok(_) => None,
            };
            disk.crash(CrashPolicy::LoseAll);
            let possible = reached.possible();
            let verdict = match without_panic(|| workload.verify(&disk, 0..=*possible.end(), false)) {
                Err(panic) => return lock(&sweep).failed(fault.place(), panic),
                Ok(verdict) => verdict,
            };
            let unnamed = verdict.as_ref().err().filter(|problem| !names_damage(problem));
            let problems: Vec<&String> = problem.iter().chain(unnamed).collect();
            if problems.is_empty() {
                named.fetch_add(u64::from(verdict.is_err()), Ordering::Relaxed);
                let is_lost = verdict.is_ok_and(|commits| !possible.contains(&commits));
                lost.fetch_add(u64::from(is_lost), Ordering::Relaxed);
            } else if workload.has_lost(&fault.disk(), fault.stage) {
                // What the stage did then was done to another state than it meant.
                lost.fetch_add(1, Ordering::Relaxed);
            } else {
                problems.iter().for_each(|problem| lock(&sweep).failed(fault.place(), problem));
            }
            lock(&sweep).recovered(fault.place(), Ok(()));
        },
    );
    let (lost, named) = (lost.into_inner(), named.into_inner());
    eprintln!("{named} databases said what is damaged, {lost} had lost commits with the end of the log");
    lock(&sweep).report(&on.name("lies"));
}

/// Whether a text names damage.
fn names_damage(text: &str) -> bool {
    ["corrupt ", "expected ", "unexpected end of file", " is damaged"]
        .iter()
        .any(|words| text.contains(words))
}
