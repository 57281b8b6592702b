//! `cargo xtask soak`: for hours, in turn, what finds something new with every seed. Each turn has a log of its own; one that fails
//! does not end it, and at the end a summary says what was done.

use crate::workspace::{cargo, displayed, last_line, release_binary, scratch, target_directory};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What is done in a turn: some minutes of it.
struct Activity {
    name: &'static str,
    /// The commands of a turn, with a seed that nobody has used before, and a directory to work in.
    commands: fn(seed: u64, program: &Path, directory: &Path) -> Vec<Command>,
}

const ACTIVITIES: &[Activity] = &[
    Activity {
        name: "simulation",
        commands: |_, _, _| {
            let mut simulation = cargo();
            simulation.args([
                "run",
                "--quiet",
                "--release",
                "--locked",
                "--package",
                "deuteron-simulation",
                "--",
            ]);
            // Their seeds are new by themselves.
            simulation.args(["--seeds", "2000", "--twice", "20"]);
            vec![simulation]
        },
    },
    Activity {
        name: "kill",
        commands: |seed, program, directory| {
            let adversities = [None, Some("memory"), Some("device"), Some("power"), Some("full")];
            let rounds = |adversity: Option<&str>| {
                let mut command = Command::new(program);
                command.args(["kill-rounds", "--records", "2000", "--seed", &seed.to_string()]);
                let (rounds, longest) = if adversity.is_none() { ("300", "0.08") } else { ("60", "0.4") };
                command.args(["--rounds", rounds, "--seconds-max", longest]);
                command.args(adversity.into_iter().flat_map(|name| ["--adversity", name]));
                command.arg("--dir").arg(directory.join(adversity.unwrap_or("none")));
                command
            };
            adversities.map(rounds).into()
        },
    },
    Activity {
        name: "corruptions",
        commands: |seed, _, _| {
            let mut test = tests(seed, &["deuteron"], &["--test", "corruptions"]);
            test.env("DEUTERON_CORRUPTIONS", "100000");
            vec![test]
        },
    },
    Activity {
        name: "fuzz",
        commands: |seed, _, _| {
            let packages = ["deuteron-log", "deuteron-llama", "deuteron-bwtree", "deuteron-dc"];
            let mut test = tests(seed, &packages, &["--lib"]);
            test.env("DEUTERON_EFFORT", "20").arg("fuzz");
            let mut whole = tests(seed, &["deuteron"], &["--test", "fuzz"]);
            whole.env("DEUTERON_EFFORT", "5");
            vec![test, whole]
        },
    },
    Activity {
        name: "histories",
        commands: |seed, program, directory| {
            let run = |more: &[&str]| {
                let mut histories = Command::new(program);
                histories.args(["histories", "--transactions", "500000", "--seed", &seed.to_string()]);
                histories.args(more).arg("--dir").arg(directory.join("histories"));
                histories
            };
            vec![run(&["--tiny"]), run(&["--memory", "256M"])]
        },
    },
    Activity {
        name: "isolation",
        commands: |seed, program, directory| {
            let history = directory.join("history");
            let mut record = Command::new(program);
            record.args(["histories", "--tiny", "--transactions", "200000", "--keys", "256"]);
            record.args(["--seed", &seed.to_string()]).arg("--dir").arg(directory.join("recorded"));
            record.arg("--record").arg(&history);
            let mut check = Command::new(program);
            check.arg("check-history").arg(&history);
            vec![record, check]
        },
    },
];

fn tests(seed: u64, packages: &[&str], targets: &[&str]) -> Command {
    let mut test = cargo();
    test.args(["test", "--quiet", "--locked", "--release"]).env("DEUTERON_SEED", seed.to_string());
    test.args(packages.iter().flat_map(|package| ["--package", package])).args(targets);
    test.args(["--", "--nocapture"]);
    test
}

/// What came of an activity.
#[derive(Default)]
struct Summary {
    turns: u32,
    failed: u32,
    time: Duration,
    last: String,
}

/// Takes turns until so many hours have passed, one of each activity at least; a turn that has begun is finished. Whether none has
/// failed.
pub fn run(hours: f64, only: &[String], log: Option<PathBuf>) -> Result<bool, String> {
    let begin = Instant::now();
    let duration = Duration::try_from_secs_f64(hours * 3600.0).map_err(|_| "--hours must be positive")?;
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let log = log.unwrap_or_else(|| target_directory().join(format!("soak-{}", now().as_secs())));
    std::fs::create_dir_all(&log).map_err(|error| format!("cannot create {}: {error}", log.display()))?;
    let chosen = choose(only)?;
    let program = release_binary()?;
    println!("soak: {hours} hours, logs in {}", log.display());
    let mut summaries: Vec<Summary> = chosen.iter().map(|_| Summary::default()).collect();
    'soak: for turn in 1.. {
        for (activity, summary) in chosen.iter().zip(&mut summaries) {
            if turn > 1 && begin.elapsed() >= duration {
                break 'soak;
            }
            let seed = now().as_nanos() as u64 >> 10;
            let path = log.join(format!("{turn:04}-{}.log", activity.name));
            let (started, directory) = (Instant::now(), scratch()?);
            let ok = turn_of(activity, seed, &program, directory.path(), &path)?;
            summary.turns += 1;
            summary.failed += u32::from(!ok);
            summary.time += started.elapsed();
            let said = std::fs::read_to_string(&path).unwrap_or_default();
            summary.last = last_line(&said).to_owned();
            let verdict = if ok { "ok" } else { "FAILED" };
            println!("{turn:4} {:12} {:6.0} s  {verdict}", activity.name, started.elapsed().as_secs_f64());
        }
    }
    println!("\n{:12} {:>6} {:>7} {:>9}  its last words", "activity", "turns", "failed", "time");
    for (activity, summary) in chosen.iter().zip(&summaries) {
        let Summary { turns, failed, time, last } = summary;
        println!("{:12} {turns:6} {failed:7} {:7.0} s  {last}", activity.name, time.as_secs_f64());
    }
    let failed: u32 = summaries.iter().map(|summary| summary.failed).sum();
    let turns: u32 = summaries.iter().map(|summary| summary.turns).sum();
    println!("soak: {turns} turns in {:.2} hours, {failed} failed", begin.elapsed().as_secs_f64() / 3600.0);
    Ok(failed == 0)
}

fn choose(only: &[String]) -> Result<Vec<&'static Activity>, String> {
    let known = |name: &&String| ACTIVITIES.iter().any(|activity| activity.name == **name);
    if let Some(unknown) = only.iter().find(|name| !known(name)) {
        let names: Vec<_> = ACTIVITIES.iter().map(|activity| activity.name).collect();
        return Err(format!("there is no activity {unknown}; the activities are {}", names.join(", ")));
    }
    let wanted = |activity: &&Activity| only.is_empty() || only.iter().any(|name| name == activity.name);
    Ok(ACTIVITIES.iter().filter(wanted).collect())
}

/// Runs the commands of a turn, one after the other, until one fails; what they say goes to a file.
fn turn_of(
    activity: &Activity,
    seed: u64,
    program: &Path,
    directory: &Path,
    path: &Path,
) -> Result<bool, String> {
    let failed = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    let log = File::create(path).map_err(failed)?;
    for mut command in (activity.commands)(seed, program, directory) {
        use std::io::Write;
        writeln!(&log, "+ {}", displayed(&command)).map_err(failed)?;
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?);
        let status = command
            .stderr(log.try_clone().map_err(failed)?)
            .status()
            .map_err(|error| format!("cannot run {}: {error}", displayed(&command)))?;
        if !status.success() {
            writeln!(&log, "failed ({status}), seed {seed}: {}", displayed(&command)).map_err(failed)?;
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activities_are_chosen_by_name_in_their_order() {
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
            choose(&only).map(|chosen| chosen.iter().map(|activity| activity.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), ACTIVITIES.len());
        assert_eq!(names(&["isolation", "kill"]).unwrap(), ["kill", "isolation"]);
        assert!(names(&["walk"]).unwrap_err().contains("simulation, kill"));
    }

    #[test]
    fn a_turn_that_fails_says_what_failed_and_with_which_seed() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("log");
        let activity =
            Activity { name: "fails", commands: |_, _, _| vec![Command::new("true"), Command::new("false")] };
        assert_eq!(turn_of(&activity, 17, Path::new(""), scratch.path(), &path), Ok(false));
        let said = std::fs::read_to_string(&path).unwrap();
        assert!(said.starts_with("+ true\n+ false\nfailed") && said.contains("seed 17: false"), "{said}");
    }
}
