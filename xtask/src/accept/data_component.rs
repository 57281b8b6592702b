//! The data component by itself: in memory, larger than memory, how soon it opens.

use super::measured::median;
use super::sweeps::sweep;
use super::{Figure, Point, Quick};
use crate::workspace::{cargo, displayed, output, release_binary, scratch, succeeds, target_directory};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The points of the slug `data-component`.
pub const POINTS: &[Point] = &[
    Point {
        name: "in-memory",
        bar: "lookups and inserts of 4 M keys at least 3 times crossbeam-skiplist's",
        run: in_memory,
    },
    Point {
        name: "larger-than-memory-reads",
        bar: "at least 0.8 of the device's random reads at the same depth",
        run: cold_reads,
    },
    Point {
        name: "larger-than-memory-upserts",
        bar: "at least 5 times redb's rate and RocksDB's own rate",
        run: cold_upsert_rate,
    },
    Point { name: "peak-memory", bar: "under budget plus 15 % plus 64 MiB", run: peak_memory },
    Point { name: "ycsb", bar: "A to F complete at ten times memory", run: ycsb },
    Point { name: "cold-upserts", bar: "0 page reads until the cap", run: cold_upserts },
    Point { name: "amplification", bar: "write and space next to RocksDB's", run: amplification },
    Point { name: "shrink", bar: "under twice the live bytes a minute after deleting 90 %", run: shrink },
    Point {
        name: "open",
        bar: "10 M records to the first read under 1 s, clean and after a crash",
        run: open,
    },
    Point { name: "latency-under-cleaning", bar: "read p99.9 within 3 times", run: latency },
    Point { name: "crash", bar: "0 failures", run: crash },
    Point { name: "churn", bar: "15 minutes, 0 differences from a sorted map", run: churn },
];

/// Builds the example that measures the store; its path.
fn example() -> Result<PathBuf, String> {
    let mut build = cargo();
    build.args(["build", "--quiet", "--release", "--locked", "--package", "deuteron-store"]);
    build.args(["--example", "acceptance"]);
    eprintln!("+ {}", displayed(&build));
    if !succeeds(build.stdout(Stdio::null()))? {
        return Err("the release build failed".into());
    }
    Ok(target_directory().join("release/examples/acceptance"))
}

fn run(command: &mut Command) -> Result<Value, String> {
    eprintln!("+ {}", displayed(command));
    serde_json::from_str(&output(command)?).map_err(|error| format!("the report is not JSON: {error}"))
}

fn number(report: &Value, field: &str) -> Result<f64, String> {
    report.get(field).and_then(Value::as_f64).ok_or_else(|| format!("the report has no number {field}"))
}

fn in_memory(quick: Quick) -> Result<Figure, String> {
    let records: u64 = quick.pick(400_000, 4_000_000);
    let program = example()?;
    // A process for each: what one run has left in the allocator would be the next one's.
    let mut runs = [Vec::new(), Vec::new()];
    for _ in 0..quick.pick(1, 5) {
        for (threads, runs) in ["1", "2"].into_iter().zip(&mut runs) {
            runs.push(run(Command::new(&program).arg("in-memory").arg(records.to_string()).arg(threads))?);
        }
    }
    ratios(&runs)
}

/// The medians of some runs by one thread and by two, and of the ratios within each.
fn ratios(runs: &[Vec<Value>; 2]) -> Result<Figure, String> {
    let mut parts = Vec::new();
    let mut least = f64::INFINITY;
    for (threads, runs) in (1..).zip(runs) {
        for what in ["inserts", "lookups"] {
            let (mut rates, mut ratios) = (Vec::new(), Vec::new());
            for report in runs {
                let own = number(report, what)?;
                rates.push(own / 1e6);
                ratios.push(own / number(report, &format!("skiplist_{what}"))?);
            }
            let (rate, ratio) = (median(rates), median(ratios));
            least = least.min(ratio);
            parts.push(format!("{what} with {threads}: {rate:.2} M/s = {ratio:.2} times"));
        }
    }
    let mut handovers =
        runs[1].iter().map(|report| number(report, "handover_nanos")).collect::<Result<Vec<_>, _>>()?;
    handovers.sort_by(f64::total_cmp);
    let handovers: Vec<_> = handovers.iter().map(|nanos| format!("{nanos:.0}")).collect();
    parts.push(format!("a line goes from one processor to the other in {} ns", handovers.join(", ")));
    Ok(Figure { figure: parts.join(", "), ok: least >= 3.0 })
}

fn peak_memory(quick: Quick) -> Result<Figure, String> {
    // 2 GiB of records of 8 and 100 bytes under 200 MiB; the quick version is a fifth of both.
    let records: u64 = quick.pick(4_000_000, 20_000_000);
    let budget: u64 = quick.pick(40 << 20, 200 << 20);
    let directory = scratch()?;
    let mut command = Command::new(example()?);
    command.arg("peak-memory").arg(directory.path().join("store"));
    let peak = number(&run(command.arg(records.to_string()).arg(budget.to_string()))?, "peak_bytes")?;
    let bound = budget as f64 * 1.15 + f64::from(64 << 20);
    let mebibytes = |bytes: f64| bytes / f64::from(1 << 20);
    let figure =
        format!("peak {:.0} MiB of {:.0} MiB allowed, {records} records", mebibytes(peak), mebibytes(bound));
    Ok(Figure { figure, ok: peak > 0.0 && peak < bound })
}

/// Random reads of ten times memory, by 16 threads and by one that asks for 16 keys at once, and in turns with them what the device does with 16
/// threads and with 16 requests at once.
fn cold_reads(quick: Quick) -> Result<Figure, String> {
    let records: u64 = quick.pick(4_000_000, 20_000_000);
    let budget: u64 = quick.pick(40 << 20, 200 << 20);
    let directory = scratch()?;
    let mut command = Command::new(example()?);
    command.arg("cold-reads").arg(directory.path()).arg(records.to_string());
    command.args([&budget.to_string(), "16"]).arg(quick.pick("2", "20"));
    let report = run(&mut command)?;
    let mut least = f64::INFINITY;
    let mut parts = Vec::new();
    for (way, field) in [("16 threads", "threads_per_second"), ("16 at once", "together_per_second")] {
        let (own, device) = (number(&report, field)?, number(&report, &format!("device_{field}"))?);
        least = least.min(own / device);
        parts.push(format!("{way}: {own:.0} reads/s = {:.2} of the device's {device:.0}", own / device));
    }
    Ok(Figure { figure: parts.join(", "), ok: least >= 0.8 })
}

/// Random updates of ten times memory, durable at the end, beside the same in the peers.
fn cold_upsert_rate(quick: Quick) -> Result<Figure, String> {
    let directory = scratch()?;
    let mut peers = super::speed::peers(&["compare-records", "--rounds", quick.pick("1", "3")]);
    peers.args(["--records", quick.pick("2000000", "20000000"), "--seconds", quick.pick("5", "30")]);
    peers.args(["--memory", quick.pick("20971520", "209715200")]).arg("--dir").arg(directory.path());
    let report = run(&mut peers)?;
    let figures = |engine: &str, field: &str| number(report.get(engine).unwrap_or(&Value::Null), field);
    let mut parts = Vec::new();
    for engine in ["store", "rocksdb", "redb", "fjall"] {
        parts.push(format!(
            "{engine} {:.2} M updates/s (written {:.1} times, on disk {:.2} times) and {:.0} reads/s",
            figures(engine, "updates_per_second")? / 1e6,
            figures(engine, "write_amplification")?,
            figures(engine, "space_amplification")?,
            figures(engine, "reads_per_second")?
        ));
    }
    let own = figures("store", "updates_per_second")?;
    let (rocksdb, redb) =
        (own / figures("rocksdb", "updates_per_second")?, own / figures("redb", "updates_per_second")?);
    let figure = format!("{rocksdb:.2} times RocksDB, {redb:.2} times redb: {}", parts.join(", "));
    Ok(Figure { figure, ok: rocksdb >= 1.0 && redb >= 5.0 })
}

/// YCSB A to F with memory for a tenth of the keys and values, through transactions.
fn ycsb(quick: Quick) -> Result<Figure, String> {
    let records: u64 = quick.pick(1_600_000, 10_000_000);
    let memory = (records * 108 / 10).max(16 << 20);
    let mut parts = Vec::new();
    for workload in ["a", "b", "c", "d", "e", "f"] {
        let directory = scratch()?;
        let mut bench = Command::new(release_binary()?);
        bench.args(["bench", "ycsb", "--json", "--workload", workload, "--value-bytes", "100"]);
        bench.args(["--threads", "2", "--durability", "delayed", "--warmup-seconds", "1"]);
        bench.args(["--records", &records.to_string(), "--memory", &memory.to_string()]);
        bench.args(["--seconds", quick.pick("2", "20")]).arg("--dir").arg(directory.path().join("ycsb.db"));
        let rate = number(&run(&mut bench)?, "throughput_ops")?;
        if rate <= 0.0 {
            return Err(format!("{workload} did nothing"));
        }
        parts.push(format!("{} {:.0}", workload.to_uppercase(), rate));
    }
    Ok(Figure { figure: format!("operations/s: {}", parts.join(", ")), ok: true })
}

/// Update-only, uniform, ten times memory. RocksDB's figures are to be set beside it.
fn amplification(quick: Quick) -> Result<Figure, String> {
    let records: u64 = quick.pick(2_000_000, 20_000_000);
    let report = in_space("amplification", &[records, records * 108 / 10])?;
    let part = |name| number(&report, name);
    let figure = format!(
        "{:.2} bytes written and {:.2} taken for each byte of records ({:.2} of the store's live bytes), {:.0} updates/s; \
         flushed {:.2}, rewritten {:.2}, cleaned {:.2} at a yield of {:.0} %, padding {:.2}, images {:.2}",
        part("write")?,
        part("space")?,
        part("space_of_store")?,
        part("rate")?,
        part("flushed")?,
        part("rewritten")?,
        part("cleaned")?,
        part("yield")? * 100.0,
        part("padded")?,
        part("of_images")?,
    );
    Ok(Figure { figure, ok: part("write")? > 0.0 && part("space")? > 0.0 })
}

fn shrink(quick: Quick) -> Result<Figure, String> {
    let records: u64 = quick.pick(2_000_000, 20_000_000);
    let report = in_space("shrink", &[records, records * 108 / 10])?;
    let (seconds, live) = (number(&report, "seconds")?, number(&report, "live")?);
    let times = |name| number(&report, name).map(|bytes| bytes / live);
    let figure = format!(
        "{:.2} times the live bytes after {seconds:.1} s, {:.2} before",
        times("least")?,
        times("full")?
    );
    Ok(Figure { figure, ok: seconds < 60.0 && times("least")? < 2.0 })
}

fn latency(quick: Quick) -> Result<Figure, String> {
    let records: u64 = quick.pick(1_000_000, 10_000_000);
    let report = in_space("latency", &[records, records * 108 / 5, quick.pick(8, 30)])?;
    let tail = |name| {
        let times = report.get(name).and_then(Value::as_array);
        times
            .and_then(|times| times.get(2)?.as_f64())
            .ok_or_else(|| format!("the report has no times {name}"))
    };
    let (calm, busy) = (tail("calm")?, tail("busy")?);
    let (cleaned, checkpoints) = (number(&report, "cleaned")?, number(&report, "checkpoints")?);
    let figure = format!(
        "p99.9 {busy:.0} µs while {cleaned:.0} segments are cleaned and {checkpoints:.0} checkpoints taken, {calm:.0} µs \
         without: {:.2} times",
        busy / calm
    );
    Ok(Figure { figure, ok: cleaned > 0.0 && checkpoints > 0.0 && busy <= 3.0 * calm })
}

/// Runs a mode of the example in a directory of its own.
fn in_space(mode: &str, numbers: &[u64]) -> Result<Value, String> {
    let directory = scratch()?;
    let mut command = Command::new(example()?);
    command.arg(mode).arg(directory.path().join("store"));
    run(command.args(numbers.iter().map(u64::to_string)))
}

fn cold_upserts(quick: Quick) -> Result<Figure, String> {
    let (records, upserts): (u64, u64) = quick.pick((1_000_000, 100_000), (10_000_000, 1_000_000));
    let directory = scratch()?;
    let mut command = Command::new(example()?);
    command.arg("cold-upserts").arg(directory.path().join("store"));
    let report = run(command.arg(records.to_string()).arg(upserts.to_string()))?;
    let (loads, reads) = (number(&report, "loads")?, number(&report, "reads")?);
    let capped = number(&report, "back_pressure")?;
    let figure = format!(
        "{upserts} upserts onto {records} records on disk: {loads} pages loaded, {reads} reads, {capped} times at the cap, {:.2} M/s",
        number(&report, "rate")? / 1e6
    );
    Ok(Figure { figure, ok: loads <= capped })
}

fn open(quick: Quick) -> Result<Figure, String> {
    let records = quick.pick(1_000_000u64, 10_000_000).to_string();
    let program = example()?;
    let directory = scratch()?;
    let path = directory.path().join("store");
    let first_read = || -> Result<f64, String> {
        let report = run(Command::new(&program).arg("first-read").arg(&path).arg(&records))?;
        match report.get("found") {
            Some(Value::Bool(true)) => number(&report, "seconds"),
            _ => Err("the record that was persisted is not there".into()),
        }
    };
    run(Command::new(&program).arg("fill").arg(&path).arg(&records))?;
    let clean = first_read()?;
    // The crash: the process is killed while it writes.
    let mut child = Command::new(&program);
    child.arg("fill").arg(&path).arg(&records).arg("stay").stdout(Stdio::piped());
    eprintln!("+ {}", displayed(&child));
    let mut child = child.spawn().map_err(|error| format!("cannot start the child: {error}"))?;
    let mut line = String::new();
    let told = child.stdout.take().map(|said| BufReader::new(said).read_line(&mut line));
    std::thread::sleep(std::time::Duration::from_secs(quick.pick(1, 5)));
    let killed = child.kill().and_then(|()| child.wait());
    if !matches!(told, Some(Ok(1..))) || killed.is_err() {
        return Err("the child that was to be killed has failed".into());
    }
    let crashed = first_read()?;
    let figure = format!("{records} records: {clean:.3} s after a clean close, {crashed:.3} s after a kill");
    Ok(Figure { figure, ok: clean < 1.0 && crashed < 1.0 })
}

/// Every I/O as the last one, of histories that flush, split, merge, drop, load, clean, take checkpoints and recover; and the
/// models' seeds.
fn crash(quick: Quick) -> Result<Figure, String> {
    let packages = ["deuteron-llama", "deuteron-bwtree", "deuteron-dc", "deuteron-store"];
    let targets = ["crash_sweep", "model", "merging", "reclaim", "drop_table", "bulk", "conformance"];
    sweep(quick.pick(1, 20), &packages, &targets)
}

/// Everything at once over ten times the memory, on files.
fn churn(quick: Quick) -> Result<Figure, String> {
    let seconds: u64 = quick.pick(20, 15 * 60);
    let mut test = cargo();
    test.args(["test", "--quiet", "--locked", "--release", "--package", "deuteron-dc", "--test", "churn"]);
    test.args(["--", "--nocapture"]).env("DEUTERON_CHURN_SECONDS", seconds.to_string());
    eprintln!("+ {}", displayed(&test));
    churn_figure(seconds, &output(&mut test)?)
}

/// Reads the line `churn: N operations, …, N differences`.
fn churn_figure(seconds: u64, said: &str) -> Result<Figure, String> {
    let counts = said.lines().find_map(|line| Some(line.split_once("churn: ")?.1));
    let counts = counts.ok_or("the test did not say what it did")?;
    let ok = counts.ends_with(", 0 differences") && !counts.starts_with("0 operations");
    Ok(Figure { figure: format!("{seconds} s: {counts}"), ok })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_churn_that_says_nothing_or_finds_a_difference_is_short() {
        assert!(churn_figure(1, "running\nchurn: 5 operations, 0 differences\n").unwrap().ok);
        assert!(!churn_figure(1, "churn: 0 operations, 0 differences").unwrap().ok);
        assert!(!churn_figure(1, "churn: 5 operations, 1 differences").unwrap().ok);
        assert!(churn_figure(1, "running 0 tests").is_err());
    }

    #[test]
    fn the_least_ratio_counts() {
        let report = |lookups: f64| {
            serde_json::json!({
                "inserts": 9e6, "skiplist_inserts": 1e6, "lookups": lookups, "skiplist_lookups": 1e6,
                "handover_nanos": 1e9 / lookups,
            })
        };
        let ok = |runs: &[f64]| {
            ratios(&[vec![report(9e6)], runs.iter().map(|run| report(*run)).collect()]).unwrap().ok
        };
        assert!(ok(&[3e6]) && !ok(&[2.9e6]));
        assert!(ok(&[3e6, 1e6, 9e6]), "the middle counts");
        assert!(ratios(&[vec![serde_json::json!({})], vec![report(9e6)]]).is_err());
        let told = ratios(&[vec![report(9e6)], vec![report(5e6), report(4e6)]]).unwrap().figure;
        assert!(told.ends_with("from one processor to the other in 200, 250 ns"), "{told}");
    }
}
