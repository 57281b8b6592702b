//! Fuzzing: the tests that damage valid bytes and decode them, run for longer.

use super::{Figure, Quick};
use crate::workspace::{cargo, displayed};
use std::process::Stdio;

/// The crates with decoders.
const PACKAGES: [&str; 7] = [
    "deuteron-log",
    "deuteron-llama",
    "deuteron-bwtree",
    "deuteron-dc",
    "deuteron-history",
    "deuteron-cli",
    "deuteron",
];

/// What was done to one decoder.
#[derive(Debug, PartialEq, Eq)]
struct Decoder {
    name: String,
    executions: u64,
}

/// Every decoder, with debug assertions; a decoder that panics or allocates too much fails its test.
pub fn fuzz(quick: Quick) -> Result<Figure, String> {
    let mut decoders = Vec::new();
    let mut failed = Vec::new();
    for package in PACKAGES {
        let mut test = cargo();
        test.args(["test", "--quiet", "--locked", "--package", package, "fuzz", "--", "--nocapture"]);
        test.env("DEUTERON_EFFORT", quick.pick("1", "50")).stderr(Stdio::inherit());
        eprintln!("+ {}", displayed(&test));
        let said = test.output().map_err(|error| format!("cannot run {}: {error}", displayed(&test)))?;
        let lines = String::from_utf8_lossy(&said.stdout).into_owned();
        lines.lines().filter(|line| line.contains("fuzz: ")).for_each(|line| eprintln!("  {line}"));
        decoders.extend(lines.lines().filter_map(read_line));
        if !said.status.success() {
            failed.push(package);
        }
    }
    Ok(figure(&decoders, &failed))
}

/// Reads `fuzz: NAME N executions, …`, which the test's own output may precede.
fn read_line(line: &str) -> Option<Decoder> {
    let (_, rest) = line.split_once("fuzz: ")?;
    let (name, rest) = rest.split_once(' ')?;
    let executions = rest.split_once(" executions")?.0.parse().ok()?;
    Some(Decoder { name: name.to_owned(), executions })
}

fn figure(decoders: &[Decoder], failed: &[&str]) -> Figure {
    let each: Vec<_> =
        decoders.iter().map(|decoder| format!("{} {}", decoder.name, decoder.executions)).collect();
    let total: u64 = decoders.iter().map(|decoder| decoder.executions).sum();
    let crashes = match failed {
        [] => "0 crashes".to_owned(),
        failed => format!("crashes in {}", failed.join(", ")),
    };
    let figure = format!("{total} executions ({}), {crashes}", each.join(", "));
    // One decoder at least for each crate has been run.
    Figure { figure, ok: failed.is_empty() && decoders.len() >= PACKAGES.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_are_read_from_what_tests_print() {
        let line = "test a ... fuzz: log-record 100000 executions, 5 accepted, at most 70 bytes";
        assert_eq!(read_line(line), Some(Decoder { name: "log-record".into(), executions: 100_000 }));
        assert_eq!(read_line("fuzz: log-record panicked: seed 1"), None);
    }

    #[test]
    fn a_crash_or_a_missing_decoder_is_short() {
        let decoders =
            || (0..8).map(|n| Decoder { name: format!("d{n}"), executions: 10 }).collect::<Vec<_>>();
        assert!(figure(&decoders(), &[]).ok);
        assert!(!figure(&decoders(), &["deuteron-log"]).ok);
        assert!(!figure(&decoders()[..3], &[]).ok);
    }
}
