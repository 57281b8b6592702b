//! Allocations are refused, one in each process: by the language's rules the process ends there and then, unless whoever asked knows
//! better. The workload is done by processes of their own, on real files; what they leave is recovered and compared.

use crate::machine::{Halt, On, Reached, Workload};
use crate::parallel::{in_parallel, lock, without_panic};
use deuteron::Error;
use deuteron::device::simulated::{Sweep, effort};
use deuteron::device::{OsDirectory, with_causes};
use deuteron_fuzz::Meter;
use std::ops::RangeInclusive;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

/// The sweep, and what its processes do in its place.
const TEST: &str = "allocations::a_refused_allocation_ends_the_process_at_worst_and_loses_nothing";
/// Where the process is told what to do: the stage, the number of the allocation to refuse, the directory.
const TOLD: &str = "DEUTERON_REFUSE";
const NONE: u64 = u64::MAX;
/// How a process ends that was refused memory.
const SIGABRT: i32 = 6;

fn stages() -> u64 {
    effort().min(34)
}

/// How many allocations of a stage are refused.
fn refusals() -> u64 {
    16 * effort().min(16)
}

#[test]
fn a_refused_allocation_ends_the_process_at_worst_and_loses_nothing() {
    match std::env::var(TOLD) {
        Ok(told) => do_as_told(&told),
        Err(_) => sweep_of_refusals(),
    }
}

fn sweep_of_refusals() {
    let workload = Workload::new(On::TheDisk, stages());
    let sweep = Mutex::new(Sweep::default());
    in_parallel(
        |sink| {
            let kept = tempfile::tempdir().expect("there is room");
            for stage in 0..workload.stages {
                // Where a stage begins, for each of its refusals.
                let before = tempfile::tempdir().expect("there is room");
                copy(kept.path(), before.path());
                let all = allocations(&run(stage, NONE, kept.path()));
                let before = std::sync::Arc::new(before);
                // Evenly, and not always at the same places of what is done again and again.
                for number in 0..refusals().min(all) {
                    let refused = (number * all + (number * 7919) % all) / refusals().min(all);
                    sink((stage, refused, std::sync::Arc::clone(&before)));
                }
            }
        },
        |(stage, refused, before)| {
            let directory = tempfile::tempdir().expect("there is room");
            copy(before.path(), directory.path());
            lock(&sweep).point();
            let place = format!("stage {stage}, allocation {refused}");
            let verdict = possible(stage, &run(stage, refused, directory.path())).and_then(|possible| {
                without_panic(|| verify(&workload, directory.path(), possible)).flatten()
            });
            lock(&sweep).recovered(place, verdict);
        },
    );
    lock(&sweep).report("refused allocations");
}

/// What is done in a process of its own.
fn do_as_told(told: &str) {
    let mut parts = told.splitn(3, ' ');
    let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok()).expect("a number");
    let (stage, refused) = (number(), number());
    let path = parts.next().expect("a directory");
    let (workload, reached) = (Workload::new(On::TheDisk, stage + 1), Reached::before(stage));
    println!("begins");
    Meter::begin_refusing(refused);
    let done = stage_of(&workload, stage, &reached, Path::new(path));
    let made = Meter::asked();
    Meter::begin();
    println!("\nallocations {made}");
    match done {
        Ok(()) => {}
        // Whoever was refused has said so, which is as good.
        Err(Halt::Error(error @ (Error::MemoryExhausted | Error::Device { .. }))) if refused < made => {
            println!("an error: {}", with_causes(&error));
        }
        Err(halt) => panic!("{halt:?}"),
    }
}

fn stage_of(workload: &Workload, stage: u64, reached: &Reached, path: &Path) -> Result<(), Halt> {
    let directory = OsDirectory::open_or_create(path)
        .map_err(|error| Error::Device { context: "the directory".into(), source: Box::new(error) })?;
    let db = workload.open(directory)?;
    workload.work(&db, stage, reached, || {
        let possible = reached.possible();
        println!("\ncommits {} {}", possible.start(), possible.end());
    })?;
    Ok(db.close()?)
}

/// Runs a stage in a process of its own.
fn run(stage: u64, refused: u64, directory: &Path) -> Output {
    let program = std::env::current_exe().expect("this program has a name");
    let mut process = Command::new(program);
    process.args([TEST, "--exact", "--nocapture", "--test-threads=1"]);
    process.env(TOLD, format!("{stage} {refused} {}", directory.display()));
    process.output().expect("it can be started")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// How many allocations a whole stage has made.
fn allocations(output: &Output) -> u64 {
    let said = said(output);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let made = said.lines().find_map(|line| line.strip_prefix("allocations "));
    made.and_then(|made| made.parse().ok()).expect("a process that ends says so")
}

/// How many commits there may be after a process has ended as it should.
fn possible(stage: u64, output: &Output) -> Result<RangeInclusive<u64>, String> {
    let errors = String::from_utf8_lossy(&output.stderr);
    let refused = output.status.signal() == Some(SIGABRT) && errors.contains("memory allocation of");
    if !refused && !output.status.success() {
        return Err(format!("the process ends with {}: {errors}", output.status));
    }
    let before = Reached::before(stage).possible();
    let said = said(output);
    let last = said.lines().rev().find_map(|line| line.strip_prefix("commits ")?.split_once(' '));
    let Some((acknowledged, begun)) = last else { return Ok(*before.start()..=*before.end() + 1) };
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("the process says {said}"));
    // It ends in the next at the latest, and says nothing of that.
    Ok(number(acknowledged)?..=number(begun)? + 1)
}

fn verify(workload: &Workload, path: &Path, possible: RangeInclusive<u64>) -> Result<(), String> {
    let directory = OsDirectory::open_existing(path).map_err(|error| with_causes(&error))?;
    let db = workload.open(directory).map_err(|error| format!("does not open: {}", with_causes(&error)))?;
    let end = (*possible.end()).min(workload.commits_max());
    workload.survey(&db, *possible.start()..=end)?;
    db.close().map_err(|error| format!("does not close: {}", with_causes(&error)))
}

/// Copies the files of a directory.
fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("is there") {
        let entry = entry.expect("can be read");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("there is room");
    }
}
