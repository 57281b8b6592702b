//! Speed: ratios, each taken in one run, against the peers and against what the machine can do.

use super::measured::{Report, bench, in_turns, median, papers_records, ycsb};
use super::{Figure, Point, Quick, machine};
use crate::workspace::{cargo, displayed, output, root, scratch};
use serde_json::Value;
use std::process::Command;

/// The points of the slug `speed`.
pub const POINTS: &[Point] = &[
    Point {
        name: "papers-mix",
        bar: "at least 5 times RocksDB's better engine and LMDB, 0.4 of the map",
        run: papers_mix,
    },
    Point {
        name: "papers-mix-durable",
        bar: "at least 0.9 of delayed, 10 times RocksDB with sync",
        run: papers_mix_durable,
    },
    Point { name: "read-only", bar: "at least 1.5 times LMDB and 0.5 of the map", run: read_only },
    Point {
        name: "write-only",
        bar: "at least 85 % of the device's sequential bandwidth, or the processors are busy",
        run: machine::write_only,
    },
    Point {
        name: "latency",
        bar: "read p50 at most 0.5 us, update p50 at most 1.5 us",
        run: machine::latency,
    },
    Point {
        name: "per-core",
        bar: "at least 2.7 M lookups and 1.9 M updates a second in transactions of 10 000",
        run: machine::per_core,
    },
    Point {
        name: "checkpoint-cost",
        bar: "at most 2 % on the mix, 8 % write-only",
        run: machine::checkpoint_cost,
    },
    Point { name: "version-collection", bar: "at most 10 %", run: machine::version_collection },
    Point { name: "multi-get", bar: "at least 1.5 times one at a time", run: multi_get },
    Point { name: "two-threads", bar: "at least 1.8 times one", run: two_threads },
    Point {
        name: "scaling",
        bar: "at 16 threads, compare-and-swaps lost to fewer than 1 % of the operations of each mix; the figures",
        run: scaling,
    },
    Point {
        name: "larger-than-memory",
        bar: "ahead of every peer on reads and on updates",
        run: larger_than_memory,
    },
    Point { name: "replay", bar: "at least 0.5 GB of log a second", run: replay },
];

/// The records of the paper's workload here.
const RECORDS: u64 = 5_000_000;

/// The engines that ours is compared with: all with transactions, on disk.
const PEERS: &str = "rocksdb-optimistic,rocksdb-pessimistic,lmdb,redb,fjall,sqlite,surrealkv";

/// Operations a second, by engine.
type Rates = Vec<(String, f64)>;

/// A command of the `peers` workspace.
pub fn peers(arguments: &[&str]) -> Command {
    let mut peers = cargo();
    peers.args(["run", "--quiet", "--release", "--manifest-path"]).arg(root().join("peers/Cargo.toml"));
    peers.arg("--").args(arguments);
    peers
}

/// Runs the comparison of the `peers` workspace in five rounds; the medians in operations a second, by engine.
fn compare(quick: Quick, engines: &str, records: u64, more: &[&str]) -> Result<Rates, String> {
    compare_rounds(quick.pick("1", "5"), quick, engines, records, more)
}

/// One round of it.
fn compare_once(quick: Quick, engines: &str, records: u64, more: &[&str]) -> Result<Rates, String> {
    compare_rounds("1", quick, engines, records, more)
}

fn compare_rounds(
    rounds: &str,
    quick: Quick,
    engines: &str,
    records: u64,
    more: &[&str],
) -> Result<Rates, String> {
    let directory = scratch()?;
    let mut peers = peers(&["compare", "--json", "--engines", engines]);
    peers.args(["--rounds", rounds, "--seconds", quick.pick("3", "10")]);
    peers.args(["--records", &quick.pick(records / 10, records).to_string()]).args(more);
    peers.arg("--dir").arg(directory.path());
    eprintln!("+ {}", displayed(&peers));
    let rows: Vec<Value> = serde_json::from_str(&output(&mut peers)?)
        .map_err(|error| format!("the comparison is not JSON: {error}"))?;
    rows.iter()
        .map(|row| {
            let engine = row.get("engine").and_then(Value::as_str);
            let rate = row.get("operations_per_second").and_then(Value::as_f64);
            engine.zip(rate).map(|(engine, rate)| (engine.to_owned(), rate))
        })
        .collect::<Option<_>>()
        .ok_or_else(|| "a row has no engine or no rate".into())
}

fn rate(rates: &[(String, f64)], engine: &str) -> Result<f64, String> {
    let found = rates.iter().find(|(name, _)| name == engine).map(|(_, rate)| *rate);
    found.ok_or_else(|| format!("{engine} was not measured"))
}

fn listed(rates: &[(String, f64)]) -> String {
    let each = |(engine, rate): &(String, f64)| format!("{engine} {:.2} M", rate / 1e6);
    rates.iter().map(each).collect::<Vec<_>>().join(", ")
}

/// The fastest of the peers.
fn best_peer(rates: &[(String, f64)]) -> Result<&(String, f64), String> {
    let peers = rates.iter().filter(|(engine, _)| !matches!(engine.as_str(), "deuteron" | "map"));
    peers.max_by(|(_, a), (_, b)| a.total_cmp(b)).ok_or_else(|| "no peer was measured".into())
}

fn papers_mix(quick: Quick) -> Result<Figure, String> {
    let rates = compare(quick, &format!("deuteron,{PEERS},map"), RECORDS, &["--durability", "delayed"])?;
    let rocksdb = rate(&rates, "rocksdb-optimistic")?.max(rate(&rates, "rocksdb-pessimistic")?);
    let (ours, lmdb, map) = (rate(&rates, "deuteron")?, rate(&rates, "lmdb")?, rate(&rates, "map")?);
    let (best, best_rate) = best_peer(&rates)?;
    let figure = format!(
        "{:.1} times RocksDB, {:.1} times LMDB, {:.1} times the best peer, {best}, {:.2} of the map ({} operations/s)",
        ours / rocksdb,
        ours / lmdb,
        ours / best_rate,
        ours / map,
        listed(&rates)
    );
    Ok(Figure { figure, ok: ours >= 5.0 * rocksdb.max(lmdb) && ours >= 0.4 * map })
}

/// Each round has durable commits and delayed ones of ours, so that what slows the machine down for a while slows both down.
fn papers_mix_durable(quick: Quick) -> Result<Figure, String> {
    const ENGINES: [&str; 3] = ["deuteron", "rocksdb-optimistic", "rocksdb-pessimistic"];
    let mut durable = [const { Vec::new() }; ENGINES.len()];
    let mut delayed = Vec::new();
    for _ in 0..quick.pick(1, 5) {
        let round = compare_once(quick, &ENGINES.join(","), RECORDS, &["--durability", "sync"])?;
        for (engine, rates) in ENGINES.iter().zip(&mut durable) {
            rates.push(rate(&round, engine)?);
        }
        let round = compare_once(quick, "deuteron", RECORDS, &["--durability", "delayed"])?;
        delayed.push(rate(&round, "deuteron")?);
    }
    let [ours, optimistic, pessimistic] = durable.map(median);
    let (delayed, rocksdb) = (median(delayed), optimistic.max(pessimistic));
    let figure = format!(
        "{:.2} of delayed, {:.1} times RocksDB with 64 threads (ours {:.2} M operations/s, delayed {:.2} M, RocksDB {:.2} M)",
        ours / delayed,
        ours / rocksdb,
        ours / 1e6,
        delayed / 1e6,
        rocksdb / 1e6
    );
    Ok(Figure { figure, ok: ours >= 0.9 * delayed && ours >= 10.0 * rocksdb })
}

fn read_only(quick: Quick) -> Result<Figure, String> {
    let rates = compare(quick, "deuteron,lmdb,map", RECORDS / 5, &["--read-ratio", "1.0"])?;
    let (ours, lmdb, map) = (rate(&rates, "deuteron")?, rate(&rates, "lmdb")?, rate(&rates, "map")?);
    let figure = format!(
        "{:.2} times LMDB, {:.2} of the map ({} operations/s)",
        ours / lmdb,
        ours / map,
        listed(&rates)
    );
    Ok(Figure { figure, ok: ours >= 1.5 * lmdb && ours >= 0.5 * map })
}

/// The records take ten times the memory that an engine is told to use, more or less: a key and a value, and what any engine puts to them. Most
/// engines have the system's page cache besides, so each process has a bound for everything. There are three times as many as elsewhere, so
/// that a tenth of them, as a quick run has it, leaves as much memory as Deuteron opens with.
fn larger_than_memory(quick: Quick) -> Result<Figure, String> {
    const RECORD_BYTES: u64 = 120;
    const BESIDE_BYTES: u64 = 256 << 20;
    let records = 3 * RECORDS;
    let memory = quick.pick(records / 10, records) * RECORD_BYTES / 10;
    let (limit, memory) = ((memory + BESIDE_BYTES).to_string(), memory.to_string());
    let engines = format!("deuteron,{PEERS}");
    let mut figures = Vec::new();
    let mut ok = true;
    for (what, ratio) in [("reads", "1.0"), ("updates", "0.0")] {
        let more = ["--memory", &memory, "--limit", &limit, "--read-ratio", ratio, "--skew", "uniform"];
        let rates = compare(quick, &engines, records, &more)?;
        let ours = rate(&rates, "deuteron")?;
        let (best, best_rate) = best_peer(&rates)?;
        ok &= ours > *best_rate;
        figures.push(format!(
            "{what} {:.2} times the best peer, {best} ({})",
            ours / best_rate,
            listed(&rates)
        ));
    }
    Ok(Figure { figure: figures.join("; "), ok })
}

/// The rate of one run of the paper's mix of ours, just loaded, hence in memory.
fn mix(quick: Quick, more: &[&str]) -> Result<f64, String> {
    ycsb(quick.pick("2", "5"), &[&papers_records(quick)[..], more].concat())?.number("throughput_ops")
}

fn multi_get(quick: Quick) -> Result<Figure, String> {
    // Keys of a transaction told when it begins; those of the next few, whose reads are under way beside those of this one; nothing told.
    let ahead = ["keys", "transactions", "nothing"];
    let rates = in_turns(quick, ahead, |ahead| mix(quick, &["--read-ratio", "1.0", "--ahead", ahead]))?;
    let [keys, transactions, alone] = rates;
    let figure = format!(
        "{:.2} times with the four keys of a transaction told before, {:.2} with those of the next transactions, too \
         ({:.2}, {:.2} and {:.2} M reads/s)",
        keys / alone,
        transactions / alone,
        keys / 1e6,
        transactions / 1e6,
        alone / 1e6
    );
    Ok(Figure { figure, ok: keys.min(transactions) >= 1.5 * alone })
}

fn two_threads(quick: Quick) -> Result<Figure, String> {
    let mix_of = ["--read-ratio", "0.84", "--threads"];
    let ways = ["2", "1"].map(|threads| [&mix_of[..], &[threads]].concat());
    let [two, one] = in_turns(quick, [&ways[0], &ways[1]], |way| mix(quick, way))?;
    let ratio = two / one;
    let figure = format!("{ratio:.2} times ({:.2} M and {:.2} M operations/s)", two / 1e6, one / 1e6);
    Ok(Figure { figure, ok: ratio >= 1.8 })
}

/// By one thread to sixteen: how many more would show on a larger machine is argued from where they meet.
fn scaling(quick: Quick) -> Result<Figure, String> {
    let size = ["--records", quick.pick("200000", "2000000"), "--memory", quick.pick("1G", "4G")];
    let time = ["--seconds", quick.pick("1", "5"), "--warmup-seconds", quick.pick("0.5", "2")];
    let report = bench(&[&["scaling", "--threads", "1,2,4,8,16"][..], &size, &time].concat())?;
    let points: Result<Vec<_>, String> = report.rows()?.iter().map(ScalingPoint::of).collect();
    judged_scaling(&points?)
}

/// One mix by a number of threads.
struct ScalingPoint {
    mix: String,
    threads: f64,
    per_thread: f64,
    /// Compare-and-swaps, for a million operations.
    lost: f64,
    /// Writes of a transaction to clock and log.
    shared: f64,
}

impl ScalingPoint {
    fn of(row: &Report) -> Result<ScalingPoint, String> {
        let shared = |line| row.number(&format!("shared_writes_per_transaction.{line}"));
        Ok(ScalingPoint {
            mix: row.text("mix")?,
            threads: row.number("threads")?,
            per_thread: row.number("operations_per_second_per_thread")?,
            lost: row.number("lost_per_million_sum")?,
            shared: shared("clock")? + shared("log")?,
        })
    }
}

/// All mixes must have been run by sixteen threads.
fn judged_scaling(points: &[ScalingPoint]) -> Result<Figure, String> {
    const LOST_MAX: f64 = 1e6 / 100.0;
    let mut figures = Vec::new();
    let mut ok = true;
    for mix in points.chunk_by(|one, next| one.mix == next.mix) {
        let most = mix.last().filter(|most| most.threads == 16.0);
        let most = most.ok_or_else(|| format!("{} was not run by 16 threads", mix[0].mix))?;
        ok &= most.lost < LOST_MAX;
        let rates: Vec<_> =
            mix.iter().map(|point| format!("{} {:.2}", point.threads, point.per_thread / 1e6)).collect();
        figures.push(format!(
            "{} lost {:.0} for a million, {:.1} writes to shared lines a transaction, M operations/s a thread by threads {}",
            most.mix,
            most.lost,
            most.shared,
            rates.join(", "),
        ));
    }
    if figures.is_empty() {
        return Err("nothing was run".into());
    }
    Ok(Figure { figure: figures.join("; "), ok })
}

/// Opens what a process has left that ended with so much log behind its last checkpoint.
fn replay(quick: Quick) -> Result<Figure, String> {
    let directory = scratch()?;
    let path = directory.path().join("replay.db");
    let example = |arguments: &[&str]| -> Result<String, String> {
        let mut run = cargo();
        run.args(["run", "--quiet", "--release", "--locked", "--package", "deuteron"]);
        run.args(["--example", "replay", "--"]);
        run.arg(arguments[0]).arg(&path).args(&arguments[1..]);
        eprintln!("+ {}", displayed(&run));
        output(&mut run)
    };
    let (records, log) = quick.pick(("500000", "200000000"), ("5000000", "1500000000"));
    let (mut rates, mut took) = (Vec::new(), Vec::new());
    let mut last = (0.0, 0.0);
    for _ in 0..quick.pick(1, 5) {
        example(&["write", records, log])?;
        let report = Report::read(&example(&["open"])?)?;
        let (bytes, seconds) = (report.number("log_bytes")?, report.number("seconds")?);
        rates.push(bytes / seconds / 1e9);
        took.push(seconds);
        last = (bytes / 1e9, report.number("operations")? / seconds / 1e6);
        std::fs::remove_dir_all(&path)
            .map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
    }
    let (rate, seconds, (bytes, operations)) = (median(rates), median(took), last);
    let figure = format!(
        "{rate:.2} GB/s ({bytes:.1} GB in {seconds:.1} s, {operations:.2} M operations/s, opening included)"
    );
    Ok(Figure { figure, ok: rate >= 0.5 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_found_by_engine() {
        let rates = [("deuteron".to_owned(), 2.5e6), ("lmdb".to_owned(), 6e5)];
        assert_eq!(rate(&rates, "lmdb"), Ok(6e5));
        assert!(rate(&rates, "redb").is_err());
        assert_eq!(listed(&rates), "deuteron 2.50 M, lmdb 0.60 M");
    }

    #[test]
    fn the_best_peer_is_neither_ours_nor_the_limit() {
        let named = |rates: &[(&str, f64)]| -> Vec<(String, f64)> {
            rates.iter().map(|(engine, rate)| (engine.to_string(), *rate)).collect()
        };
        let rates = named(&[("deuteron", 9.0), ("redb", 2.0), ("sqlite", 3.0), ("lmdb", 1.0), ("map", 99.0)]);
        assert_eq!(best_peer(&rates).map(|(engine, _)| engine.as_str()), Ok("sqlite"));
        assert!(best_peer(&named(&[("deuteron", 9.0), ("map", 99.0)])).is_err());
    }

    #[test]
    fn every_mix_must_lose_little_at_sixteen_threads() {
        let point = |mix: &str, threads, lost| ScalingPoint {
            mix: mix.into(),
            threads,
            per_thread: 1e6 / threads,
            lost,
            shared: 3.75,
        };
        let judged =
            |points: &[ScalingPoint]| judged_scaling(points).map(|figure| (figure.ok, figure.figure));
        let (ok, figure) =
            judged(&[point("paper", 1.0, 2e4), point("paper", 16.0, 9_999.0), point("reads", 16.0, 0.0)])
                .unwrap();
        assert!(ok, "what fewer threads lose does not count: {figure}");
        assert!(
            figure.contains("paper lost 9999 for a million, 3.8 writes")
                && figure.contains("1 1.00, 16 0.06")
        );
        assert!(!judged(&[point("paper", 16.0, 0.0), point("writes", 16.0, 10_000.0)]).unwrap().0);
        assert!(judged(&[point("paper", 16.0, 0.0), point("writes", 8.0, 0.0)]).is_err());
        assert!(judged(&[]).is_err());
    }
}
