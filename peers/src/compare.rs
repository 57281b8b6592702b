//! Several engines in turns: what slows the machine down for a while slows all of them down.

use crate::engines::Promises;
use crate::limit::MemoryGroup;
use crate::{Engine, Work};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::error::Error;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

/// What was measured of one engine, one number a round.
#[derive(Default)]
struct Series {
    operations: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    aborted: Vec<f64>,
    peak_rss_bytes: Vec<f64>,
    disk_bytes: Vec<f64>,
    load_seconds: Vec<f64>,
    /// Rounds in which the system ended the process, which wanted more memory than it may have.
    killed: usize,
}

pub fn run(
    engines: &[Engine],
    rounds: usize,
    sync_threads: usize,
    limit: Option<u64>,
    work: &Work,
    as_json: bool,
) -> Result<(), Box<dyn Error>> {
    let mut all: Vec<Series> = engines.iter().map(|_| Series::default()).collect();
    for round in 1..=rounds {
        for (&engine, series) in engines.iter().zip(&mut all) {
            let waits = !matches!(engine, Engine::Deuteron | Engine::Map) && work.durability == "sync";
            let threads = if waits { sync_threads } else { work.threads };
            let Some(report) = child(engine, threads, limit, work)? else {
                eprintln!(
                    "round {round} of {rounds}: {:<20} killed: it took more memory than --limit",
                    name(engine)
                );
                series.operations.push(0.0);
                series.killed += 1;
                continue;
            };
            let number = |value: &Value| value.as_f64().unwrap_or_default();
            let operations = number(&report["throughput_ops"]);
            eprintln!("round {round} of {rounds}: {:<20} {:>12.0} operations/s", name(engine), operations);
            series.operations.push(operations);
            series.p50.push(number(&report["latency_us"]["p50"]));
            series.p99.push(number(&report["latency_us"]["p99"]));
            series.aborted.push(number(&report["aborts"]) / number(&report["commits"]).max(1.0));
            series.peak_rss_bytes.push(number(&report["peak_rss_bytes"]));
            series.disk_bytes.push(number(&report["disk_bytes"]));
            series.load_seconds.push(number(&report["load_seconds"]));
        }
    }
    let first = all.first().map(|series| median(&series.operations)).unwrap_or_default();
    let rows: Vec<Value> = engines
        .iter()
        .zip(&all)
        .map(|(&engine, series)| {
            let operations = median(&series.operations);
            let promises = Promises::of(engine, work.durability == "sync");
            json!({
                "engine": name(engine),
                "workload": work.workload.name(),
                "told_ahead": if engine == Engine::Deuteron { work.ahead.as_str() } else { "nothing" },
                "isolation": promises.isolation,
                "durability": promises.durability,
                "operations_per_second": operations,
                "lowest": series.operations.iter().copied().fold(f64::INFINITY, f64::min),
                "highest": series.operations.iter().copied().fold(0.0, f64::max),
                "first_is_times_as_fast": first / operations,
                "latency_us_p50": median(&series.p50),
                "latency_us_p99": median(&series.p99),
                "aborted_share": median(&series.aborted),
                "peak_rss_bytes": median(&series.peak_rss_bytes),
                "disk_bytes": median(&series.disk_bytes),
                "load_seconds": median(&series.load_seconds),
                "rounds_killed": series.killed,
            })
        })
        .collect();
    if as_json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!("Deuteron is told ahead: {} (--ahead); the peers have no call for that", work.ahead);
    println!(
        "{:<20} {:>12} {:>25} {:>8} {:>10} {:>10} {:>9} {:>10} {:>10}  {:<35} durability",
        "engine",
        "operations/s",
        "(lowest to highest)",
        "ratio",
        "p50 us",
        "p99 us",
        "aborts",
        "peak MiB",
        "disk MiB",
        "isolation"
    );
    for row in &rows {
        let number = |field: &str| row[field].as_f64().unwrap_or_default();
        let text = |field: &str| row[field].as_str().unwrap_or_default();
        println!(
            "{:<20} {:>12.0} {:>12.0} {:>12.0} {:>8.2} {:>10.1} {:>10.1} {:>8.2}% {:>10.0} {:>10.0}  {:<35} {}",
            text("engine"),
            number("operations_per_second"),
            number("lowest"),
            number("highest"),
            number("first_is_times_as_fast"),
            number("latency_us_p50"),
            number("latency_us_p99"),
            100.0 * number("aborted_share"),
            number("peak_rss_bytes") / f64::from(1 << 20),
            number("disk_bytes") / f64::from(1 << 20),
            text("isolation"),
            text("durability"),
        );
    }
    Ok(())
}

pub fn name(engine: Engine) -> String {
    engine.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Measures in a process of its own, so that memory is the engine's, and nothing is left from the one before. None if the system has killed it
/// at its limit.
fn child(
    engine: Engine,
    threads: usize,
    limit: Option<u64>,
    work: &Work,
) -> Result<Option<Value>, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["ycsb", "--engine", &name(engine), "--threads", &threads.to_string()]);
    command.args(["--records", &work.records.to_string(), "--value-bytes", &work.value_bytes.to_string()]);
    command.args(["--workload", &work.workload.name()]);
    if let Some(operations) = work.ops_per_txn {
        command.args(["--ops-per-txn", &operations.to_string()]);
    }
    if let Some(ratio) = work.read_ratio {
        command.args(["--read-ratio", &ratio.to_string()]);
    }
    if let Some(skew) = work.skew {
        command.args(["--skew", &skew.to_string()]);
    }
    command.args([
        "--seconds",
        &work.seconds.to_string(),
        "--warmup-seconds",
        &work.warmup_seconds.to_string(),
    ]);
    command.args(["--durability", &work.durability]);
    command.args(["--in-flight", &work.in_flight.to_string(), "--memory", &work.memory.to_string()]);
    suit_allocator(&mut command, work.memory);
    command.args(["--ahead", &work.ahead]);
    if let Some(directory) = &work.dir {
        command.arg("--dir").arg(directory);
    }
    let group = limit.map(MemoryGroup::new).transpose()?;
    let output = output_within(command, group.as_ref()).map_err(|error| error as Box<dyn Error>)?;
    if group.is_some() && output.status.signal() == Some(SIGKILL) {
        return Ok(None);
    }
    report_in(&output, &name(engine)).map(Some).map_err(|error| error as Box<dyn Error>)
}

/// With which the kernel ends a process of a control group that has no memory left.
const SIGKILL: i32 = 9;

/// Has the allocator keep what is freed for as long as `deuteron bench` does with so much memory, and use huge pages as that does. It concerns
/// the engines in Rust.
pub fn suit_allocator(command: &mut Command, memory: usize) {
    let (purge_milliseconds, huge_pages) = if memory < 1 << 30 { ("0", "0") } else { ("5000", "1") };
    command.env("MIMALLOC_PURGE_DELAY", purge_milliseconds).env("MIMALLOC_ALLOW_THP", huge_pages);
}

/// The report that a child process prints.
pub fn report_of(command: Command, engine: &str) -> Result<Value, Box<dyn Error + Send + Sync>> {
    report_in(&output_within(command, None)?, engine)
}

fn report_in(output: &Output, engine: &str) -> Result<Value, Box<dyn Error + Send + Sync>> {
    if !output.status.success() {
        return Err(format!("{engine} failed: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn output_within(
    mut command: Command,
    group: Option<&MemoryGroup>,
) -> Result<Output, Box<dyn Error + Send + Sync>> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    // It has hardly begun.
    let taken = group.map_or(Ok(()), |group| group.take(child.id()));
    if taken.is_err() {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    taken?;
    Ok(output)
}

/// What several rounds found of one number.
pub struct Spread {
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
}

impl Spread {
    /// Of a field of their reports.
    pub fn of(reports: &[Value], field: &str) -> Self {
        let series: Vec<f64> = reports.iter().filter_map(|report| report[field].as_f64()).collect();
        Self {
            median: median(&series),
            lowest: series.iter().copied().fold(f64::INFINITY, f64::min),
            highest: series.iter().copied().fold(0.0, f64::max),
        }
    }
}

pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[length / 2],
        length => (sorted[length / 2 - 1] + sorted[length / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn a_spread_is_of_the_rounds_that_have_the_field() {
        let reports = [json!({"seconds": 2.0}), json!({"seconds": 1.0}), json!({"seconds": 4.0}), json!({})];
        let spread = Spread::of(&reports, "seconds");
        assert_eq!((spread.median, spread.lowest, spread.highest), (2.0, 1.0, 4.0));
    }
}
