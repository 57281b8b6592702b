//! The canaries: every planted bug of the engine must be caught by the harness, which must find nothing where none is planted.

use super::{Figure, Quick};
use crate::workspace::{cargo, displayed, succeeds, target_directory};
use deuteron_canary::{Canary, VARIABLE};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// By what a canary is caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Catcher {
    /// Seeds of the simulation, from 1 on.
    Simulation,
    /// A test of a crate.
    Test { package: &'static str, target: &'static [&'static str], name: &'static str, loom: bool },
}

/// So many seeds of the simulation must be enough for every canary.
const SEEDS_MAX: u64 = 1000;

/// The test that the data component keeps the contract, whatever the order in which operations come.
const CONFORMANCE: Catcher = Catcher::Test {
    package: "deuteron-dc",
    target: &["--test", "conformance"],
    name: "a_tiny_component_keeps_the_contract",
    loom: false,
};

/// The test that reads of a page only what may hold the key.
const EXCERPTS: Catcher = Catcher::Test {
    package: "deuteron-dc",
    target: &["--test", "excerpts"],
    name: "every_read_finds_what_was_written_last_though_little_of_the_page_is_read",
    loom: false,
};

/// The loom model of reclamation.
const RECLAMATION: Catcher = Catcher::Test {
    package: "deuteron-epoch",
    target: &["--lib"],
    name: "loom_tests::a_reader_never_sees_freed_memory",
    loom: true,
};

/// The test that a log which has lost its end is not joined with pages that have not.
const LOST_LOG: Catcher = Catcher::Test {
    package: "deuteron",
    target: &["--test", "lost_log"],
    name: "a_log_that_has_lost_its_end_is_told_where_the_pages_have_it",
    loom: false,
};

/// The test that a read counts whose record was evicted.
const EVICTED: Catcher = Catcher::Test {
    package: "deuteron",
    target: &["--test", "anomalies"],
    name: "a_read_counts_even_if_its_record_was_evicted",
    loom: false,
};

/// The test that who has read a table that is dropped meanwhile comes before the drop.
const DROPPED: Catcher = Catcher::Test {
    package: "deuteron",
    target: &["--test", "drop_table"],
    name: "who_has_read_what_is_dropped_meanwhile_commits_at_its_begin_or_not_at_all",
    loom: false,
};

fn catcher(canary: Canary) -> Catcher {
    match canary {
        // Of the simulation's seeds one in a thousand or some thousands has a table dropped under a transaction that commits late.
        Canary::SkipDropCheck => DROPPED,
        // Of the simulation's seeds one in some thousands writes below a read whose record was evicted.
        Canary::DropReadTimestamp => EVICTED,
        // A device takes the end of the log and nothing else in few of the simulation's seeds.
        Canary::IgnoreLostEnd => LOST_LOG,
        // On one thread each key's operations come in the order of their timestamps.
        Canary::ApplyByLsn => CONFORMANCE,
        // The memory of the simulation's machine has room for its pages as a rule.
        Canary::ForgetKey => EXCERPTS,
        // On one thread nobody else is reading.
        Canary::FreeEarly => RECLAMATION,
        _ => Catcher::Simulation,
    }
}

/// What came of a run of the harness.
struct Outcome {
    /// The first line of its failure, if it failed.
    failure: Option<String>,
    /// Seeds that were run.
    seeds: u64,
    took: Duration,
}

/// Builds the harness with canaries, looks that it finds nothing where none is planted, and that it catches each.
pub fn canaries(_: Quick) -> Result<Figure, String> {
    build()?;
    let mut escaped = Vec::new();
    let (mut seeds, mut slowest) = (1, Duration::ZERO);
    for &canary in Canary::ALL {
        let outcome = catcher(canary).run(Some(canary), SEEDS_MAX)?;
        let seconds = outcome.took.as_secs_f64();
        let by = match catcher(canary) {
            Catcher::Simulation => format!("the simulation, {} seeds", outcome.seeds),
            Catcher::Test { name, .. } => name.to_owned(),
        };
        match outcome.failure {
            Some(line) => {
                eprintln!("{:24} caught in {seconds:5.1} s by {by}\n    {line}", canary.name());
                seeds = seeds.max(outcome.seeds);
                slowest = slowest.max(outcome.took);
            }
            None => {
                eprintln!("{:24} NOT CAUGHT in {seconds:5.1} s by {by}", canary.name());
                escaped.push(canary.name());
            }
        }
    }
    for (what, catcher) in [
        ("the simulation", Catcher::Simulation),
        ("conformance", CONFORMANCE),
        ("the excerpts", EXCERPTS),
        ("reclamation", RECLAMATION),
        ("the lost log", LOST_LOG),
        ("the evicted read", EVICTED),
        ("the dropped table", DROPPED),
    ] {
        let outcome = catcher.run(None, seeds)?;
        match outcome.failure {
            None => eprintln!("{:24} finds nothing without a canary", what),
            Some(line) => return Err(format!("{what} fails without a canary: {line}")),
        }
    }
    let all = Canary::ALL.len();
    let caught = all - escaped.len();
    let mut figure = format!("{caught} of {all} caught, the slowest in {:.1} s", slowest.as_secs_f64());
    if !escaped.is_empty() {
        figure.push_str(&format!("; not {}", escaped.join(", ")));
    }
    Ok(Figure { figure, ok: escaped.is_empty() })
}

/// A command of cargo's for a build with canaries, in a directory of its own.
fn cargo_with_canaries(loom: bool) -> Command {
    let (flags, directory) = match loom {
        true => ("--cfg canary --cfg loom", "canary-loom"),
        false => ("--cfg canary", "canary"),
    };
    let mut command = cargo();
    command
        .env("RUSTFLAGS", flags)
        .env("CARGO_TARGET_DIR", target_directory().join(directory))
        // The runs are short: linking with optimization costs more than it spares.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env_remove(VARIABLE);
    command
}

/// So that a time to catch is none to compile, and an error in the code is not taken for a catch.
fn build() -> Result<(), String> {
    let mut simulation = cargo_with_canaries(false);
    simulation.args(["build", "--quiet", "--locked", "--release", "--package", "deuteron-simulation"]);
    let mut commands = vec![simulation];
    for catcher in [CONFORMANCE, RECLAMATION, LOST_LOG, EVICTED, DROPPED] {
        let mut test = catcher.command();
        test.arg("--no-run");
        commands.push(test);
    }
    for mut command in commands {
        eprintln!("+ {}", displayed(&command));
        if !succeeds(command.stdout(Stdio::null()))? {
            return Err(format!("{} failed", displayed(&command)));
        }
    }
    Ok(())
}

impl Catcher {
    /// The program of the simulation, or the test's command, without the test's own arguments.
    fn command(self) -> Command {
        match self {
            Catcher::Simulation => {
                Command::new(target_directory().join("canary").join("release").join("deuteron-simulation"))
            }
            Catcher::Test { package, target, loom, .. } => {
                let mut command = cargo_with_canaries(loom);
                command.args(["test", "--quiet", "--locked", "--release", "--package", package]);
                command.args(target);
                command
            }
        }
    }

    /// Runs it with a canary or with none, `seeds` of the simulation at most.
    fn run(self, canary: Option<Canary>, seeds: u64) -> Result<Outcome, String> {
        let mut command = self.command();
        match self {
            Catcher::Simulation => {
                let seeds = seeds.to_string();
                command.args(["--first", "1", "--seeds", &seeds, "--until-failure", "--as-it-is"]);
            }
            Catcher::Test { name, .. } => drop(command.args(["--", "--exact", name])),
        }
        command.env_remove(VARIABLE).envs(canary.map(|canary| (VARIABLE, canary.name())));
        let begin = Instant::now();
        let output =
            command.output().map_err(|error| format!("cannot run {}: {error}", displayed(&command)))?;
        let took = begin.elapsed();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let (failure, seeds) = self.judge(&said, output.status.success())?;
        Ok(Outcome { failure, seeds, took })
    }

    /// What a run has said: the first line of its failure, if it failed, and how many seeds it ran.
    fn judge(self, said: &str, success: bool) -> Result<(Option<String>, u64), String> {
        let silent = || format!("{self:?} did not say what it did: {said}");
        match self {
            Catcher::Simulation => {
                let ran = said.lines().find_map(|line| line.strip_prefix("simulation: "));
                let seeds = ran.and_then(|ran| ran.split_once(" seeds, ")?.0.parse().ok());
                let failure = said.lines().find_map(|line| line.strip_prefix("FAILED: "));
                match (success, seeds, failure) {
                    (true, Some(seeds), None) => Ok((None, seeds)),
                    (false, seeds, Some(line)) => Ok((Some(shortened(line)), seeds.unwrap_or_default())),
                    _ => Err(silent()),
                }
            }
            Catcher::Test { .. } => {
                let mut lines = said.lines().skip_while(|line| !line.contains("panicked at")).skip(1);
                match success {
                    true if said.contains("1 passed") => Ok((None, 0)),
                    false if said.contains("1 failed") => {
                        Ok((Some(shortened(lines.next().unwrap_or_default())), 0))
                    }
                    _ => Err(silent()),
                }
            }
        }
    }
}

/// A line as it can be read at once.
fn shortened(line: &str) -> String {
    match line.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    #[test]
    fn every_canary_has_its_row_in_the_document() {
        let path = root().join("docs/design/simulation.md");
        let document = std::fs::read_to_string(path).unwrap();
        for canary in Canary::ALL {
            let name = canary.name();
            assert!(document.contains(&format!("| `{name}` |")), "docs/design/simulation.md has no {name}");
        }
    }

    #[test]
    fn the_tests_that_catch_are_there() {
        let text = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
        let files = [
            (CONFORMANCE, text("crates/dc/tests/conformance.rs")),
            (RECLAMATION, text("crates/epoch/src/loom_tests.rs")),
            (LOST_LOG, text("crates/deuteron/tests/lost_log.rs")),
            (EVICTED, text("crates/deuteron/tests/anomalies.rs")),
            (DROPPED, text("crates/deuteron/tests/drop_table.rs")),
        ];
        for (catcher, text) in files {
            let Catcher::Test { name, .. } = catcher else { panic!("{catcher:?} is a test") };
            let function = name.rsplit("::").next().unwrap();
            assert!(text.contains(&format!("fn {function}()")), "{name}");
        }
    }

    #[test]
    fn a_failure_is_told_from_a_run_that_did_not_happen() {
        let caught = Catcher::Simulation.judge("FAILED: a read\nsimulation: 7 seeds, 1 failures\n", false);
        assert_eq!(caught, Ok((Some("a read".into()), 7)));
        let fine = Catcher::Simulation.judge("simulation: 9 seeds, 0 failures\n", true);
        assert_eq!(fine, Ok((None, 9)));
        assert!(Catcher::Simulation.judge("", false).is_err(), "a crash is no catch");
        let caught = "thread 'a' panicked at b.rs:1:2:\nbroken\ntest result: FAILED. 0 passed; 1 failed";
        assert_eq!(RECLAMATION.judge(caught, false), Ok((Some("broken".into()), 0)));
        assert!(RECLAMATION.judge("test result: ok. 0 passed", true).is_err(), "no such test");
        assert!(RECLAMATION.judge("error: could not compile", false).is_err());
    }
}
