//! Seeds, and that a seed is one run, in this process and in another.

use deuteron::device::simulated::effort;
use deuteron_simulation::{Configuration, fresh_seed, run, silence_panics};
use std::io::Write;
use std::process::Command;

#[test]
fn seeds_find_nothing_wrong() {
    silence_panics();
    let (first, seeds) = (fresh_seed(), 20 * effort());
    // Past the capture of the tests' output: also of a run that does not end one wants to know which it was.
    writeln!(std::io::stderr(), "simulation: seeds {first} to {}", first + seeds - 1).unwrap();
    let mut failures = Vec::new();
    for seed in first..first + seeds {
        let configuration = Configuration::of(seed);
        if let Some(problem) = run(&configuration).problem {
            failures.push(format!("{problem}\n{}", configuration.command()));
        }
    }
    println!("simulation: {seeds} seeds, {} failures", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_seed_is_one_run_in_every_process() {
    for seed in [3, 36, 50] {
        let trace = run(&Configuration::of(seed)).trace;
        assert_eq!(run(&Configuration::of(seed)).trace, trace);
        let mut other = Command::new(env!("CARGO_BIN_EXE_deuteron-simulation"));
        let said = other.args(["--seed", &seed.to_string()]).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        assert!(said.contains(&format!("trace {trace:016x}")), "{trace:016x}, but {said}");
    }
}

/// Runs that have found something once, as small as they could be made.
#[test]
fn what_was_found_once_is_not_found_again() {
    // The log was cut between the abort of what a savepoint had given up and the second logging of the rest.
    let between = (167, 397);
    // A writer that was aborted because it kept the log from being cut read its own writes there.
    let aborted = (5988184018134493995, 1359);
    for (seed, steps) in [between, aborted] {
        let found = run(&Configuration { steps, ..Configuration::of(seed) }).problem;
        assert!(found.is_none(), "{found:?}");
    }
}
