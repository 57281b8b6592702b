//! Mutants: a sample of small changes to `log`, `tc` and `llama`, of which the crates' tests must catch nearly all (`cargo mutants`).

use super::{Figure, Quick};
use crate::workspace::{displayed, last_line, output, root, scratch};
use serde_json::Value;
use std::process::{Command, Stdio};

const PACKAGES: [&str; 3] = ["deuteron-log", "deuteron-tc", "deuteron-llama"];

/// Sources that are tests themselves.
const TESTS: [&str; 5] =
    ["**/*_tests.rs", "**/test_bed.rs", "**/counted.rs", "**/schedule.rs", "**/planted.rs"];
/// Names of functions that are: those of tests, and of loom's variants.
const TEST_NAMES: &str = r"\btests::|loom|tiny_for_tests|shuttle";

fn mutants() -> Command {
    let mut command = Command::new("cargo");
    command.arg("mutants").current_dir(root());
    command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    command.args(TESTS.iter().flat_map(|file| ["--exclude", file]));
    command.args(["--exclude-re", TEST_NAMES]);
    command
}

/// A sample of 200 mutants, another one each time; a few of them in the small version.
pub fn sample(quick: Quick) -> Result<Figure, String> {
    let mut list = mutants();
    let all = output(list.arg("--list").stdin(Stdio::null()))
        .map_err(|error| format!("{error} (`cargo install cargo-mutants` installs it)"))?
        .lines()
        .count();
    let shards = all.div_ceil(quick.pick(10, 200));
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let shard = now as usize % shards.max(1);
    let directory = scratch()?;
    let mut run = mutants();
    // Each package's own tests. Every k-th mutant, so that all files have their part.
    run.args([
        "--sharding",
        "round-robin",
        "--shard",
        &format!("{shard}/{shards}"),
        "--test-workspace=false",
    ]);
    // The slowest of the crates' tests take half a minute beside other work: twice that is a mutant that hangs.
    run.args(["--timeout", "60", "--no-times", "--colors", "never", "--output"]).arg(directory.path());
    run.stdin(Stdio::null()).stderr(Stdio::inherit());
    eprintln!("+ {}", displayed(&run));
    // It fails if a mutant is missed.
    let said = run.output().map_err(|error| format!("cannot run {}: {error}", displayed(&run)))?;
    let said = String::from_utf8_lossy(&said.stdout);
    said.lines().filter(|line| line.starts_with("MISSED")).for_each(|line| eprintln!("  {line}"));
    let outcomes = directory.path().join("mutants.out/outcomes.json");
    let text = std::fs::read_to_string(&outcomes)
        .map_err(|error| format!("{}: {error}; {}", outcomes.display(), last_line(&said)))?;
    figure(&text, all)
}

fn figure(outcomes: &str, all: usize) -> Result<Figure, String> {
    let outcomes: Value = serde_json::from_str(outcomes).map_err(|error| format!("outcomes: {error}"))?;
    let count =
        |name: &str| outcomes.get(name).and_then(Value::as_u64).ok_or(format!("no {name} in the outcomes"));
    let (caught, missed, timeout) = (count("caught")?, count("missed")?, count("timeout")?);
    let unviable = count("unviable")?;
    let tested = caught + timeout + missed;
    let share = 100.0 * (caught + timeout) as f64 / tested.max(1) as f64;
    let figure = format!(
        "{share:.1} % of {tested} caught ({timeout} by their time; {unviable} more did not compile; of {all} in all)"
    );
    Ok(Figure { figure, ok: tested > 0 && share >= 90.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_that_hangs_is_caught_and_one_that_does_not_compile_is_none() {
        let figure = figure(r#"{"caught":8,"missed":1,"timeout":1,"unviable":4,"success":0}"#, 500).unwrap();
        assert!(figure.ok && figure.figure.starts_with("90.0 % of 10 caught"), "{}", figure.figure);
        assert!(super::figure("{}", 1).is_err());
    }
}
