//! ThreadSanitizer and Miri over the tests that share memory. Both need the nightly toolchain; without it they are skipped, and say so.

use crate::workspace::{displayed, root, target_directory};
use clap::ValueEnum;
use std::process::{Command, Stdio};

/// What watches the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sanitizer {
    /// ThreadSanitizer: data races of threads that really run, in the stress and concurrency tests, with the standard library built
    /// anew.
    Thread,
    /// Miri: undefined behaviour, under tree borrows, in the unit tests of the crates that have unsafe code.
    Miri,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The toolchain lacks something: what is missing.
    Skipped(String),
    /// Test programs run, reports of the sanitizer, and the commands that failed.
    Ran { programs: u64, reports: u64, failed: Vec<String> },
}

/// A package, which of its tests, and of those the ones whose names hold one of the words (all, if there is none).
struct Tests {
    package: &'static str,
    target: &'static [&'static str],
    words: &'static [&'static str],
}

const fn tests(
    package: &'static str,
    target: &'static [&'static str],
    words: &'static [&'static str],
) -> Tests {
    Tests { package, target, words }
}

/// Tests in which threads meet.
const THREADED: [Tests; 8] = [
    tests("deuteron-epoch", &["--lib", "--tests"], &[]),
    tests("deuteron-log", &["--test", "threads"], &[]),
    tests("deuteron-llama", &["--test", "stress"], &[]),
    tests("deuteron-bwtree", &["--lib"], &[]),
    tests("deuteron-dc", &["--test", "conformance"], &[]),
    tests("deuteron-tc", &["--lib"], &["stress_tests"]),
    tests("deuteron", &["--test", "operations"], &[]),
    tests("deuteron", &["--test", "read_only"], &[]),
];

/// Tests of unsafe code that Miri, a thousand times slower than a processor, ends in minutes.
const SMALL: [Tests; 6] = [
    tests("deuteron-epoch", &["--lib"], &["limbo", "slots"]),
    tests("deuteron-pool", &["--lib"], &[]),
    tests(
        "deuteron-log",
        &["--lib"],
        &["buffers::tests", "ring::", "memory_window::", "buffer_view::", "condition::"],
    ),
    tests("deuteron-llama", &["--lib"], &["node::", "mapping_table::"]),
    tests("deuteron-bwtree", &["--lib"], &["page::key::", "page::model_tests::a_"]),
    tests(
        "deuteron-tc",
        &["--lib"],
        &[
            "mvcc_table::",
            "ordered_index::",
            "version::tests",
            "record::tests",
            "range_timestamps::",
            "transaction_table::",
        ],
    ),
];

/// Runs all tests of one sanitizer; true if it reports nothing, or cannot run here.
pub fn run(sanitizer: Sanitizer) -> Result<bool, String> {
    match sanitize(sanitizer)? {
        Outcome::Skipped(why) => {
            println!("skipped: {why}");
            Ok(true)
        }
        Outcome::Ran { programs, reports, failed } => {
            println!("{programs} test programs, {reports} reports");
            failed.iter().for_each(|command| println!("FAILED: {command}"));
            Ok(reports == 0 && failed.is_empty())
        }
    }
}

/// As [`run`], for whoever counts.
pub fn sanitize(sanitizer: Sanitizer) -> Result<Outcome, String> {
    if let Some(why) = missing(sanitizer) {
        return Ok(Outcome::Skipped(why));
    }
    let all: &[Tests] = match sanitizer {
        Sanitizer::Thread => &THREADED,
        Sanitizer::Miri => &SMALL,
    };
    let (mut programs, mut reports, mut failed) = (0, 0, Vec::new());
    for tests in all {
        let mut command = command(sanitizer, tests);
        eprintln!("+ {}", displayed(&command));
        let said =
            command.output().map_err(|error| format!("cannot run {}: {error}", displayed(&command)))?;
        let text = [said.stdout, said.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let of_this = count_reports(&text);
        programs += text.lines().filter(|line| line.starts_with("test result:")).count() as u64;
        reports += of_this;
        if of_this > 0 || !said.status.success() {
            eprintln!("{text}");
            failed.push(displayed(&command));
        }
    }
    Ok(Outcome::Ran { programs, reports, failed })
}

fn count_reports(text: &str) -> u64 {
    let is_report = |line: &&str| {
        line.contains("WARNING: ThreadSanitizer") || line.starts_with("error: Undefined Behavior")
    };
    text.lines().filter(is_report).count() as u64
}

fn nightly(words: &[&str]) -> Command {
    // Through rustup, as the cargo that started us is one toolchain's.
    let mut command = Command::new("rustup");
    command.args(["run", "nightly"]).args(words).current_dir(root());
    command
}

fn command(sanitizer: Sanitizer, tests: &Tests) -> Command {
    let mut command = nightly(&["cargo"]);
    match sanitizer {
        Sanitizer::Thread => command
            .args(["test", "--release", "--locked", "-Zbuild-std", "--target", TARGET])
            .env("RUSTFLAGS", "-Zsanitizer=thread")
            .env("CARGO_PROFILE_RELEASE_LTO", "off"),
        Sanitizer::Miri => command
            .args(["miri", "test", "--locked"])
            .env(
                "MIRIFLAGS",
                // Tree borrows: values lie behind their headers, where a reference to a header reaches under these rules only. Pages are
                // known by their addresses in places, hence the last.
                "-Zmiri-tree-borrows -Zmiri-disable-isolation -Zmiri-permissive-provenance",
            )
            // Of tests with random cases, a few.
            .env("PROPTEST_CASES", "4"),
    };
    let directory = target_directory().join(match sanitizer {
        Sanitizer::Thread => "tsan",
        Sanitizer::Miri => "miri",
    });
    command.args(["--package", tests.package]).args(tests.target).arg("--").args(tests.words);
    command.env("CARGO_TARGET_DIR", directory).stdin(Stdio::null());
    command
}

/// ThreadSanitizer's tests name it, as a build without a target would instrument build scripts, too.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What the toolchain lacks.
fn missing(sanitizer: Sanitizer) -> Option<String> {
    let answers = |words: &[&str]| {
        let said = nightly(words).stdin(Stdio::null()).output();
        said.ok()
            .filter(|said| said.status.success())
            .map(|said| String::from_utf8_lossy(&said.stdout).into_owned())
    };
    match sanitizer {
        Sanitizer::Thread => {
            let Some(sysroot) = answers(&["rustc", "--print", "sysroot"]) else {
                return Some("there is no nightly toolchain (rustup toolchain install nightly)".into());
            };
            if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
                return Some(format!("only for {TARGET}"));
            }
            let source = std::path::Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
            let add =
                "the nightly toolchain has no source (rustup component add rust-src --toolchain nightly)";
            (!source.is_dir()).then(|| add.to_owned())
        }
        Sanitizer::Miri => {
            let add = "the nightly toolchain has no Miri (rustup component add miri --toolchain nightly)";
            answers(&["cargo", "miri", "--version"]).is_none().then(|| add.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_both_are_counted() {
        let text =
            "test a ... ok\nWARNING: ThreadSanitizer: data race (pid=1)\nerror: Undefined Behavior: x\n";
        assert_eq!(count_reports(text), 2);
        assert_eq!(count_reports("test result: ok. 3 passed"), 0);
    }

    #[test]
    fn each_test_program_is_built_apart_from_the_ordinary_ones() {
        for sanitizer in [Sanitizer::Thread, Sanitizer::Miri] {
            let command = command(sanitizer, &SMALL[0]);
            let shown = displayed(&command);
            assert!(
                shown.contains("rustup run nightly cargo") && shown.contains("CARGO_TARGET_DIR="),
                "{shown}"
            );
            assert!(shown.ends_with("--package deuteron-epoch --lib -- limbo slots"), "{shown}");
        }
    }
}
