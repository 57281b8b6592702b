//! End to end: the newcomer's two commands, throughput, memory, kills, crashes, dependencies.

use super::sweeps::sweep;
use super::{Figure, Point, Quick};
use crate::workspace::{cargo, displayed, last_line, output, release_binary, root, scratch};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

/// The points of the slug `end-to-end`.
pub const POINTS: &[Point] = &[
    Point { name: "newcomer", bar: "both commands succeed, the demo under 60 s", run: newcomer },
    Point { name: "ycsb-delayed", bar: "at least 1.0 M operations/s", run: ycsb_delayed },
    Point { name: "ycsb-sync", bar: "at least 1.0 M operations/s", run: ycsb_sync },
    Point { name: "memory-fifth", bar: "completes, peak at most 1.25 of the budget", run: memory_fifth },
    Point { name: "kill", bar: "0 lost, 0 half-applied", run: kill },
    Point { name: "crash-sweep", bar: "0 failures", run: crash_sweep },
    Point { name: "dependencies", bar: "each with its reason in docs/dependencies.md", run: dependencies },
];

/// A clean clone with an empty build directory, and the README's two commands.
fn newcomer(quick: Quick) -> Result<Figure, String> {
    let scratch =
        tempfile::tempdir().map_err(|error| format!("cannot create a scratch directory: {error}"))?;
    let clone = scratch.path().join("deuteron");
    let mut git = Command::new("git");
    git.args(["clone", "--quiet"]).arg(root()).arg(&clone);
    output(&mut git)?;
    let timed = |words: &str| -> Result<(String, f64), String> {
        let mut command = cargo();
        // A relative build directory, or flags, would not be the newcomer's.
        command.args(words.split(' ')).current_dir(&clone).env("CARGO_TARGET_DIR", clone.join("target"));
        command.env_remove("RUSTFLAGS").env_remove("RUSTDOCFLAGS");
        eprintln!("+ {words}");
        let begin = Instant::now();
        Ok((output(&mut command)?, begin.elapsed().as_secs_f64()))
    };
    let (said, demo_seconds) = timed("run --release -- demo")?;
    let own_seconds = demo_own_seconds(&said).ok_or("the demo did not say how long it took")?;
    let mut figure = format!(
        "cargo run --release -- demo: {demo_seconds:.0} s with its build, {own_seconds:.1} s without"
    );
    if !quick.0 {
        let (_, test_seconds) = timed("test --workspace")?;
        figure += &format!("; cargo test --workspace: {test_seconds:.0} s");
    }
    Ok(Figure { figure, ok: own_seconds < 60.0 })
}

/// Reads the demo's last words, `the demo took 31.4 s`.
fn demo_own_seconds(said: &str) -> Option<f64> {
    said.lines().find_map(|line| line.split_once("the demo took ")?.1.split(' ').next()?.parse().ok())
}

/// The paper's workload: 5 M records of 100 bytes, 4 operations a transaction, 84 % reads, 80-20, 2 threads.
fn ycsb(quick: Quick, records: u64, more: &[&str]) -> Result<Value, String> {
    let directory = scratch()?;
    let mut bench = Command::new(release_binary()?);
    bench.args(["bench", "ycsb", "--json", "--value-bytes", "100", "--ops-per-txn", "4"]);
    bench.args(["--read-ratio", "0.84", "--skew", "80-20", "--threads", "2"]);
    bench.args(["--records", &records.to_string(), "--seconds", quick.pick("3", "10")]);
    bench.args(["--warmup-seconds", quick.pick("1", "5")]).args(more);
    bench.arg("--dir").arg(directory.path().join("ycsb.db"));
    eprintln!("+ {}", displayed(&bench));
    serde_json::from_str(&output(&mut bench)?).map_err(|error| format!("the report is not JSON: {error}"))
}

/// The records of the paper's workload here.
const RECORDS: u64 = 5_000_000;

fn throughput(report: &Value) -> Result<Figure, String> {
    let rate = number(report, "throughput_ops")?;
    let latency = report.get("latency_us").ok_or("the report has no latency_us")?;
    let figure = format!(
        "{:.2} M operations/s, p50 {:.0} us, p99 {:.0} us, {:.2} % aborts, {:.1} s load, {:.0} MiB peak",
        rate / 1e6,
        number(latency, "p50")?,
        number(latency, "p99")?,
        100.0 * number(report, "aborts")? / number(report, "commits")?.max(1.0),
        number(report, "load_seconds")?,
        number(report, "peak_rss_bytes")? / f64::from(1 << 20),
    );
    Ok(Figure { figure, ok: rate >= 1e6 })
}

fn ycsb_delayed(quick: Quick) -> Result<Figure, String> {
    throughput(&ycsb(quick, quick.pick(500_000, RECORDS), &["--durability", "delayed"])?)
}

fn ycsb_sync(quick: Quick) -> Result<Figure, String> {
    let options = ["--durability", "sync", "--in-flight", "512"];
    throughput(&ycsb(quick, quick.pick(500_000, RECORDS), &options)?)
}

/// The same with memory for a fifth of the keys and values. The quick version is only shorter: with fewer records the
/// budget would be less than the program itself.
fn memory_fifth(quick: Quick) -> Result<Figure, String> {
    let budget = RECORDS * (8 + 100) / 5;
    let report = ycsb(quick, RECORDS, &["--durability", "delayed", "--memory", &budget.to_string()])?;
    let peak = number(&report, "peak_rss_bytes")?;
    let share = peak / budget as f64;
    let figure = format!(
        "peak {:.0} MiB = {share:.2} of the budget of {:.0} MiB, {:.2} M operations/s",
        peak / f64::from(1 << 20),
        budget as f64 / f64::from(1 << 20),
        number(&report, "throughput_ops")? / 1e6,
    );
    Ok(Figure { figure, ok: share <= 1.25 })
}

/// Rounds of SIGKILL during the workload.
fn kill(quick: Quick) -> Result<Figure, String> {
    let directory = scratch()?;
    let mut rounds = Command::new(release_binary()?);
    rounds.args(["kill-rounds", "--json", "--rounds", quick.pick("5", "50")]);
    rounds.arg("--dir").arg(directory.path().join("kill.db"));
    eprintln!("+ {}", displayed(&rounds));
    // A loss makes the command fail, but it has reported all the same.
    let said = rounds.output().map_err(|error| format!("cannot run {}: {error}", displayed(&rounds)))?;
    let report: Value = serde_json::from_slice(&said.stdout)
        .map_err(|_| format!("no report: {}", last_line(&String::from_utf8_lossy(&said.stderr))))?;
    let (lost, half) = (number(&report, "lost")?, number(&report, "half_applied")?);
    let figure = format!(
        "{} rounds, {} acknowledged commits, {lost} lost, {half} half-applied, recovery at most {:.0} ms",
        number(&report, "rounds")?,
        number(&report, "acknowledged")?,
        number(&report, "recovery_seconds_max")? * 1e3,
    );
    Ok(Figure { figure, ok: said.status.success() && lost + half == 0.0 })
}

/// Every I/O of a short workload as the last one.
fn crash_sweep(_quick: Quick) -> Result<Figure, String> {
    sweep(1, &["deuteron"], &["crash_sweep"])
}

/// What the library pulls in, and whether each has its reason.
fn dependencies(_quick: Quick) -> Result<Figure, String> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--package", "deuteron", "--edges", "normal,build"]);
    tree.args(["--prefix", "none", "--format", "{p}"]);
    let all = external_crates(&output(&mut tree)?);
    let reasons = std::fs::read_to_string(root().join("docs/dependencies.md")).unwrap_or_default();
    let unexplained: Vec<_> = all.iter().filter(|name| !reasons.contains(&format!("`{name}`"))).collect();
    let names = all.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let mut figure = format!("{} crates of others: {names}", all.len());
    if !unexplained.is_empty() {
        figure += &format!("; without a reason: {unexplained:?}");
    }
    Ok(Figure { figure, ok: unexplained.is_empty() })
}

/// The names in a `cargo tree` without indentation, our own left out: those have a path in parentheses.
fn external_crates(tree: &str) -> BTreeSet<String> {
    tree.lines()
        .filter(|line| !line.contains("(/"))
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

fn number(report: &Value, field: &str) -> Result<f64, String> {
    report.get(field).and_then(Value::as_f64).ok_or_else(|| format!("the report has no number {field}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demos_time_is_read() {
        assert_eq!(demo_own_seconds("a\nno commit was lost; the demo took 31.4 s\n"), Some(31.4));
        assert_eq!(demo_own_seconds("nothing"), None);
    }

    #[test]
    fn own_crates_are_not_dependencies() {
        let tree = "deuteron v0.1.0 (/home/x/crates/deuteron)\ncrc32c v0.6.9\nthiserror v2.0.21\n\
                    thiserror-impl v2.0.21 (proc-macro)\ncrc32c v0.6.9 (*)\n";
        let names: Vec<_> = external_crates(tree).into_iter().collect();
        assert_eq!(names, ["crc32c", "thiserror", "thiserror-impl"]);
    }

    #[test]
    fn throughput_is_held_against_a_million() {
        let report = |rate: f64| {
            serde_json::json!({"throughput_ops": rate, "latency_us": {"p50": 1.0, "p99": 2.0}, "aborts": 1,
                "commits": 100, "load_seconds": 1.5, "peak_rss_bytes": 1 << 30})
        };
        let figure = throughput(&report(1.5e6)).unwrap();
        assert!(figure.ok && figure.figure.starts_with("1.50 M operations/s"), "{figure:?}");
        assert!(!throughput(&report(0.9e6)).unwrap().ok);
        assert!(throughput(&serde_json::json!({})).is_err());
    }
}
