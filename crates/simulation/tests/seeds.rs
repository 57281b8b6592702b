//! Seeds, and that a seed is one run, in this process and in another.

use deuteron::device::simulated::effort;
use deuteron_simulation::{Configuration, run, silence_panics};
use std::process::Command;

#[test]
fn seeds_find_nothing_wrong() {
    silence_panics();
    let seeds = 20 * effort();
    let mut failures = Vec::new();
    for seed in 1..=seeds {
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
