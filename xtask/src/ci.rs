//! The gate, in stages from fast to slow, each a command that can be typed.

use crate::workspace::{cargo, commit, displayed, root, succeeds, target_directory};
use std::process::Command;
use std::time::{Duration, Instant};

/// One stage: its name, and the commands that it runs.
struct Stage {
    name: &'static str,
    commands: Vec<Command>,
}

/// Runs the stages asked for, or all. Stops at the first that fails unless told to go on.
pub fn run(asked: &[String], keep_going: bool) -> Result<bool, String> {
    let stages = stages()?;
    if let Some(unknown) = asked.iter().find(|asked| !stages.iter().any(|stage| stage.name == **asked)) {
        let names: Vec<_> = stages.iter().map(|stage| stage.name).collect();
        return Err(format!("there is no stage {unknown}; the stages are {}", names.join(", ")));
    }
    let mut results: Vec<(&str, bool, Duration)> = Vec::new();
    for stage in stages {
        if !asked.is_empty() && !asked.iter().any(|asked| asked == stage.name) {
            continue;
        }
        println!("\n=== {}", stage.name);
        let begin = Instant::now();
        let ok = run_stage(stage.commands)?;
        results.push((stage.name, ok, begin.elapsed()));
        println!("=== {}: {} in {:.0?}", stage.name, if ok { "ok" } else { "FAILED" }, begin.elapsed());
        if !ok && !keep_going {
            break;
        }
    }
    println!();
    for (name, ok, time) in &results {
        println!("{name:8} {:7.1} s  {}", time.as_secs_f64(), if *ok { "ok" } else { "FAILED" });
    }
    let total: Duration = results.iter().map(|(_, _, time)| *time).sum();
    println!("{:8} {:7.1} s", "total", total.as_secs_f64());
    Ok(results.iter().all(|(_, ok, _)| *ok))
}

fn run_stage(commands: Vec<Command>) -> Result<bool, String> {
    for mut command in commands {
        println!("+ {}", displayed(&command));
        let begin = Instant::now();
        if !succeeds(&mut command)? {
            return Ok(false);
        }
        println!("  took {:.1} s", begin.elapsed().as_secs_f64());
    }
    Ok(true)
}

fn stages() -> Result<Vec<Stage>, String> {
    let cargo_with = |words: &str| {
        let mut command = cargo();
        command.args(words.split(' '));
        command
    };
    let mut docs = cargo_with("doc --workspace --no-deps --locked");
    docs.env("RUSTDOCFLAGS", "-D warnings");
    Ok(vec![
        Stage { name: "format", commands: vec![cargo_with("fmt --all --check")] },
        Stage { name: "tidy", commands: vec![cargo_with("xtask tidy")] },
        Stage {
            name: "clippy",
            commands: vec![cargo_with("clippy --workspace --all-targets --locked -- -D warnings")],
        },
        Stage { name: "docs", commands: vec![docs] },
        // The README's command; doctests included.
        Stage { name: "test", commands: vec![cargo_with("test --workspace --locked")] },
        Stage { name: "loom", commands: loom_commands()? },
        Stage { name: "shuttle", commands: shuttle_commands([1_000, 5_000], Some(1)) },
        Stage {
            name: "simulation",
            commands: vec![cargo_with(&format!(
                "run --release --locked --package deuteron-simulation -- --first {} --seeds 2000 --twice 100",
                seed_of(&commit("HEAD").unwrap_or_default())
            ))],
        },
        Stage { name: "canaries", commands: vec![cargo_with("xtask accept safety canaries")] },
        // Skipped where there is no valgrind.
        Stage { name: "regressions", commands: vec![cargo_with("xtask regressions")] },
        Stage { name: "kill", commands: vec![cargo_with("xtask accept end-to-end kill --quick")] },
    ])
}

/// The first of the simulation's seeds: others for each commit, that nobody has seen, and the same whenever that commit is tested again.
/// Where there is no commit they begin with 0.
fn seed_of(commit: &str) -> u64 {
    commit.get(..12).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// One command for each crate that has loom models.
pub fn loom_commands() -> Result<Vec<Command>, String> {
    let crates = root().join("crates");
    let entries =
        std::fs::read_dir(&crates).map_err(|error| format!("cannot list {}: {error}", crates.display()))?;
    let mut modelled = Vec::new();
    for entry in entries.flatten() {
        if has_loom_models(&entry.path().join("src")) {
            modelled.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    modelled.sort();
    Ok(modelled
        .into_iter()
        .map(|name| {
            let package = if name == "deuteron" { name } else { format!("deuteron-{name}") };
            let mut command = cargo();
            command
                .args(["test", "--locked", "--release", "--lib", "--package", &package, "loom"])
                // Other flags are another build: in a directory of its own it does not throw out the first. The
                // models are small, so that linking them with optimization costs more than it spares.
                .env("RUSTFLAGS", "--cfg loom")
                .env("CARGO_TARGET_DIR", target_directory().join("loom"))
                .env("CARGO_PROFILE_RELEASE_LTO", "off");
            command
        })
        .collect())
}

/// Random schedules of the assembled data component, and of the assembled transaction component: so many for each kind of scheduler and each scenario. With a
/// `seed` they are the same every time.
pub fn shuttle_commands(schedules: [u64; 2], seed: Option<u64>) -> Vec<Command> {
    let command = |(package, schedules): (&str, u64)| {
        let mut command = cargo();
        command
            .args(["test", "--locked", "--release", "--package", package, "--test", "shuttle"])
            .env("DEUTERON_SCHEDULES", schedules.to_string())
            .env("RUSTFLAGS", "--cfg shuttle")
            .env("CARGO_TARGET_DIR", target_directory().join("shuttle"))
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .envs(seed.map(|seed| ("SHUTTLE_RANDOM_SEED", seed.to_string())));
        command
    };
    ["deuteron-dc", "deuteron-tc"].into_iter().zip(schedules).map(command).collect()
}

/// Whether a source file under `directory` has a module of loom models.
fn has_loom_models(directory: &std::path::Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    entries.flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return has_loom_models(&path);
        }
        std::fs::read_to_string(&path).is_ok_and(|text| text.contains("cfg(all(test, loom))"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readmes_test_command_is_a_stage() {
        let stages = stages().unwrap();
        let test = stages.iter().find(|stage| stage.name == "test").unwrap();
        assert!(displayed(&test.commands[0]).starts_with("cargo test --workspace"));
    }

    #[test]
    fn each_commit_has_seeds_of_its_own() {
        assert_eq!(seed_of("0000000000ff96e975a"), 0xff);
        assert_eq!((seed_of(""), seed_of("not a commit")), (0, 0));
    }

    #[test]
    fn an_unknown_stage_is_an_error() {
        let error = run(&["fmt".to_owned()], false).unwrap_err();
        assert!(error.contains("the stages are format, tidy"), "{error}");
    }
}
