//! Coverage: the share of the engine's lines that its tests reach, by `cargo llvm-cov`; the tests' own lines do not count.

use super::{Figure, Quick};
use crate::workspace::{displayed, output, root, scratch, target_directory};
use std::collections::BTreeMap;
use std::process::Command;

/// The crates of the engine.
const ENGINE: [&str; 13] = [
    "contract", "epoch", "pool", "device", "log", "proxy", "tc", "llama", "bwtree", "dc", "archive", "store",
    "deuteron",
];

/// Lines reached and lines, by crate.
type Lines = BTreeMap<String, (u64, u64)>;

/// Runs the workspace's tests with counters in them.
pub fn coverage(_: Quick) -> Result<Figure, String> {
    let directory = scratch()?;
    let report = directory.path().join("lines.lcov");
    let mut tests = Command::new("cargo");
    tests
        .args(["llvm-cov", "--workspace", "--locked", "--lcov", "--ignore-run-fail", "--output-path"])
        .arg(&report)
        // A build of its own, which does not throw out the ordinary one.
        .env("CARGO_TARGET_DIR", target_directory().join("coverage"))
        .current_dir(root());
    eprintln!("+ {}", displayed(&tests));
    let said = output(&mut tests).map_err(|error| {
        format!("{error}; cargo llvm-cov is installed by `cargo install cargo-llvm-cov` and `rustup component add llvm-tools`")
    })?;
    let failed = said.lines().filter(|line| line.starts_with("test result: FAILED")).count();
    let text = std::fs::read_to_string(&report).map_err(|error| format!("{}: {error}", report.display()))?;
    let lines = count(&text, |file| std::fs::read_to_string(file).ok());
    for (name, (reached, all)) in &lines {
        eprintln!("  {name:9} {reached:6} of {all:6} lines, {:.1} %", percent(*reached, *all));
    }
    Ok(figure(&lines, failed))
}

fn percent(reached: u64, all: u64) -> f64 {
    100.0 * reached as f64 / all.max(1) as f64
}

/// Lines that a failing test reaches are no sign of anything.
fn figure(lines: &Lines, failed: usize) -> Figure {
    let sum = |of: fn(&(u64, u64)) -> u64| lines.values().map(of).sum::<u64>();
    let (reached, all) = (sum(|lines| lines.0), sum(|lines| lines.1));
    let share = percent(reached, all);
    let failures = if failed > 0 { format!(", {failed} test programs FAILED") } else { String::new() };
    let ok = all > 0 && share >= 95.0 && failed == 0;
    Figure { figure: format!("{share:.1} % of {all} lines{failures}"), ok }
}

/// Reads LCOV's `SF:file` and `DA:line,count`. `source` returns a file, whose tests are left out.
fn count(report: &str, source: impl Fn(&str) -> Option<String>) -> Lines {
    let mut lines = Lines::new();
    let mut here: Option<(String, u64)> = None;
    for line in report.lines() {
        if let Some(file) = line.strip_prefix("SF:") {
            here = engine_crate(file)
                .map(|name| (name, source(file).map_or(u64::MAX, |text| tests_begin(&text))));
        } else if let Some((name, end)) = &here
            && let Some((number, count)) = line.strip_prefix("DA:").and_then(|line| line.split_once(','))
            && number.parse::<u64>().is_ok_and(|number| number < *end)
        {
            let sums = lines.entry(name.clone()).or_default();
            sums.0 += u64::from(count != "0");
            sums.1 += 1;
        }
    }
    lines
}

/// The crate of the engine that a file of code (not of tests) belongs to.
fn engine_crate(file: &str) -> Option<String> {
    let (_, inside) = file.rsplit_once("crates/")?;
    let (name, path) = inside.split_once("/src/")?;
    let is_code = !path.ends_with("_tests.rs") && !["test_bed.rs", "counted.rs"].contains(&path);
    (ENGINE.contains(&name) && is_code).then(|| name.to_owned())
}

/// The line with which the tests begin at the end of a file.
fn tests_begin(text: &str) -> u64 {
    let mut lines = (1..).zip(text.lines()).peekable();
    while let Some((number, line)) = lines.next() {
        let is_test = line == "#[cfg(test)]" || line.starts_with("#[cfg(all(test, ");
        if is_test && lines.peek().is_some_and(|(_, next)| next.starts_with("mod ") && next.ends_with('{')) {
            return number;
        }
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_engine_count_and_those_of_tests_do_not() {
        let report = "SF:/x/crates/log/src/ring.rs\nDA:1,5\nDA:2,0\nDA:4,7\nend_of_record\n\
                      SF:/x/crates/log/src/fuzz_tests.rs\nDA:1,1\nend_of_record\n\
                      SF:/x/crates/cli/src/main.rs\nDA:1,0\nend_of_record\n";
        let source = |_: &str| Some("fn a() {}\n\n#[cfg(all(test, not(loom)))]\nmod tests {\n}\n".to_owned());
        let lines = count(report, source);
        assert_eq!(lines, Lines::from([("log".to_owned(), (1, 2))]));
        assert!(!figure(&lines, 0).ok);
        assert_eq!(figure(&lines, 0).figure, "50.0 % of 2 lines");
        let all = Lines::from([("log".to_owned(), (2, 2))]);
        assert!(figure(&all, 0).ok && !figure(&all, 1).ok);
    }

    #[test]
    fn a_module_of_tests_in_a_file_of_its_own_ends_nothing() {
        assert_eq!(tests_begin("#[cfg(test)]\nmod model_tests;\nfn a() {}\n"), u64::MAX);
        assert_eq!(tests_begin("fn a() {}\n#[cfg(test)]\nmod tests {\n}\n"), 2);
    }
}
