//! The transaction component: isolation, histories, contention, memory, many commits in flight.

use super::{Figure, Point, Quick};
use crate::workspace::{cargo, displayed, output, release_binary, scratch};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The points of the slug `transaction-component`.
pub const POINTS: &[Point] = &[
    Point { name: "hermitage", bar: "10 of 10 at strict serializable", run: hermitage },
    Point {
        name: "random-histories",
        bar: "10 M transactions, every read equal to the model's",
        run: random_histories,
    },
    Point {
        name: "contention",
        bar: "at least 1.5 times pure timestamp order where that aborts over 10 %, elsewhere 0.9",
        run: contention,
    },
    Point { name: "read-only", bar: "0 aborts and 0 shared stores", run: read_only },
    Point {
        name: "version-memory",
        bar: "under the hard watermark, at least 0.9 of the first minute's throughput",
        run: version_memory,
    },
    Point { name: "in-flight", bar: "10 000 in flight at least 20 times one at a time", run: in_flight },
    Point {
        name: "cache-effectiveness",
        bar: "the paper's Figure 8: 92 % by the TC, 2.4 us and 11 us",
        run: cache_effectiveness,
    },
];

/// Runs one test of a crate in release mode, and returns what it printed.
fn test(package: &str, target: &[&str], name: &str) -> Result<String, String> {
    let mut test = cargo();
    test.args(["test", "--quiet", "--locked", "--release", "--package", package]).args(target);
    test.args(["--", "--nocapture", "--exact", name]);
    eprintln!("+ {}", displayed(&test));
    output(&mut test)
}

/// The ten anomalies at every level.
fn hermitage(_quick: Quick) -> Result<Figure, String> {
    let said = test("deuteron", &["--test", "hermitage"], "each_level_prevents_what_it_should_and_no_more")?;
    let table = read_hermitage(&said)?;
    for (level, anomalies) in &table {
        let words: Vec<_> = anomalies
            .iter()
            .map(|(anomaly, prevented)| format!("{anomaly} {}", if *prevented { "-" } else { "occurs" }))
            .collect();
        eprintln!("  {level}: {}", words.join(", "));
    }
    Ok(hermitage_figure(&table))
}

/// Level, anomaly, whether it was prevented.
type Hermitage = BTreeMap<String, Vec<(String, bool)>>;

/// Reads the lines `hermitage: ANOMALY LEVEL occurs|prevented`.
fn read_hermitage(said: &str) -> Result<Hermitage, String> {
    let mut table = Hermitage::new();
    for line in said.lines() {
        let Some((_, rest)) = line.split_once("hermitage: ") else { continue };
        let words: Vec<&str> = rest.split(' ').collect();
        let [anomaly, level, found] = words[..] else { return Err(format!("cannot read \"{line}\"")) };
        table.entry(level.to_owned()).or_default().push((anomaly.to_owned(), found == "prevented"));
    }
    if table.is_empty() { Err("the test printed no table".into()) } else { Ok(table) }
}

fn hermitage_figure(table: &Hermitage) -> Figure {
    let count = |level: &str| {
        table.get(level).map_or(0, |anomalies| anomalies.iter().filter(|(_, prevented)| *prevented).count())
    };
    let counts: Vec<_> = ["strict-serializable", "snapshot", "read-committed"]
        .iter()
        .map(|level| format!("{level} {} of 10", count(level)))
        .collect();
    Figure { figure: counts.join(", "), ok: count("strict-serializable") == 10 }
}

/// Random transactions, half of them with memory enough and half with hardly any.
fn random_histories(quick: Quick) -> Result<Figure, String> {
    let directory = scratch()?;
    let (mut totals, mut problems, mut pace) = ([0.0; 4], Vec::new(), Vec::new());
    // With hardly any memory every other read comes from a page that is not there: the files are in memory, so that the
    // time goes into transactions and not into the disk.
    for (name, more) in [("roomy", &["--memory", "64M"][..]), ("tiny", &["--tiny", "--in-memory"])] {
        let mut histories = Command::new(release_binary()?);
        histories.args(["histories", "--json", "--transactions", quick.pick("50000", "5000000"), "--dir"]);
        // The bar is drawn on standard error.
        histories.arg(directory.path().join(name)).args(more).stderr(Stdio::inherit());
        eprintln!("+ {}", displayed(&histories));
        let begin = Instant::now();
        // A problem makes the command fail, but it has reported all the same.
        let said =
            histories.output().map_err(|error| format!("cannot run {}: {error}", displayed(&histories)))?;
        let seconds = begin.elapsed().as_secs_f64();
        let report: Value = serde_json::from_slice(&said.stdout).map_err(|_| format!("{name}: no report"))?;
        let mut numbers = [0.0; 4];
        for (number, field) in numbers.iter_mut().zip(["transactions", "committed", "reads", "scans"]) {
            let found = report.get(field).and_then(Value::as_f64);
            *number = found.ok_or_else(|| format!("the report has no number {field}"))?;
        }
        pace.push(format!("{name} {:.0} s", seconds / numbers[0] * 1e6));
        totals.iter_mut().zip(numbers).for_each(|(total, number)| *total += number);
        let found = report.get("problems").and_then(Value::as_array).ok_or("the report has no problems")?;
        problems.extend(found.iter().map(|problem| format!("{name}: {problem}")));
    }
    problems.iter().for_each(|problem| eprintln!("  {problem}"));
    let [transactions, committed, reads, scans] = totals;
    let figure = format!(
        "{transactions} transactions, {committed} committed, {reads} reads and {scans} scans compared, {} wrong; a million takes {}",
        problems.len(),
        pace.join(", ")
    );
    Ok(Figure { figure, ok: problems.is_empty() && transactions >= quick.pick(1e5, 1e7) })
}

/// Transactions that meet: commits a second against pure timestamp order, in the same run.
fn contention(quick: Quick) -> Result<Figure, String> {
    let mut rows = Vec::new();
    for more in [&[][..], &["--interleave"]] {
        let figures = bench(
            &[
                &["contention", "--seconds", quick.pick("0.5", "5"), "--rounds", quick.pick("1", "3")][..],
                &["--warmup-seconds", quick.pick("0.2", "2"), "--threads", quick.pick("2,16", "2,4,8,16")],
                more,
            ]
            .concat(),
        )?;
        let figures = figures.as_array().ok_or("the figures are not a list")?;
        rows.extend(figures.chunks(2).map(Meeting::read).collect::<Result<Vec<_>, _>>()?);
    }
    rows.iter().for_each(|row| eprintln!("  {row}"));
    Ok(contention_figure(&rows))
}

/// One case and number of threads under both controls.
struct Meeting {
    name: String,
    ours: f64,
    in_order: f64,
    aborted: f64,
    aborted_in_order: f64,
}

impl Meeting {
    fn read(pair: &[Value]) -> Result<Meeting, String> {
        let [ours, in_order] = pair else { return Err("an engine is missing".into()) };
        let number = |row: &Value, field: &str| {
            row.get(field).and_then(Value::as_f64).ok_or_else(|| format!("a row has no {field}"))
        };
        if in_order.get("engine").and_then(Value::as_str) != Some("deuteron-timestamp-order") {
            return Err("the second engine is not pure timestamp order".into());
        }
        let case = ours.get("case").and_then(Value::as_str).ok_or("a row has no case")?;
        let interleaved =
            ours.get("interleaved").and_then(Value::as_bool).ok_or("a row has no interleaved")?;
        let how = if interleaved { " interleaved" } else { "" };
        Ok(Meeting {
            name: format!("{case}{how} {} threads", number(ours, "threads")?),
            ours: number(ours, "commits_per_second")?,
            in_order: number(in_order, "commits_per_second")?,
            aborted: number(ours, "abort_rate")?,
            aborted_in_order: number(in_order, "abort_rate")?,
        })
    }

    fn ratio(&self) -> f64 {
        self.ours / self.in_order
    }
}

impl std::fmt::Display for Meeting {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Meeting { name, ours, in_order, aborted, aborted_in_order } = self;
        write!(formatter, "{name}: {ours:.0} commits/s with {:.1} % aborted, ", 100.0 * aborted)?;
        write!(formatter, "in timestamp order {in_order:.0} with {:.1} %: ", 100.0 * aborted_in_order)?;
        write!(formatter, "{:.2} times", self.ratio())
    }
}

fn contention_figure(rows: &[Meeting]) -> Figure {
    let least = |rows: &mut dyn Iterator<Item = &Meeting>| {
        rows.min_by(|one, other| one.ratio().total_cmp(&other.ratio()))
            .map_or("none".to_owned(), |row| format!("{:.2} ({})", row.ratio(), row.name))
    };
    let contended = |row: &&Meeting| row.aborted_in_order > 0.1;
    let figure = format!(
        "least ratio {}, of those over 10 % {}",
        least(&mut rows.iter()),
        least(&mut rows.iter().filter(contended))
    );
    // Where hardly anything meets, the two do the same: a tenth is noise.
    let ok = |row: &Meeting| row.ratio() >= if contended(&row) { 1.5 } else { 0.9 };
    Figure { figure, ok: !rows.is_empty() && rows.iter().all(ok) }
}

/// Runs `deuteron bench` and reads its report.
fn bench(arguments: &[&str]) -> Result<Value, String> {
    let mut bench = Command::new(release_binary()?);
    bench.args(["bench", "--json"]).args(arguments);
    eprintln!("+ {}", displayed(&bench));
    serde_json::from_str(&output(&mut bench)?).map_err(|error| format!("the report is not JSON: {error}"))
}

fn number(report: &Value, path: &str) -> Result<f64, String> {
    report.pointer(path).and_then(Value::as_f64).ok_or_else(|| format!("the report has no number {path}"))
}

/// Ten minutes of updates beside a reader that holds its snapshot and does nothing.
fn version_memory(quick: Quick) -> Result<Figure, String> {
    // The first tenth is to be longer than the ring of the log takes to fill, which is free of the proxy's pace.
    let (records, seconds) = quick.pick(("20000", "20"), ("1000000", "600"));
    let memory = quick.pick("64M", "1G");
    let sizes = ["--records", records, "--seconds", seconds, "--warmup-seconds", "0", "--memory", memory];
    version_memory_figure(&bench(&[&["version-memory"][..], &sizes].concat())?)
}

fn version_memory_figure(report: &Value) -> Result<Figure, String> {
    let [most, watermark] = ["/version_bytes_max", "/watermark_bytes"].map(|path| number(report, path));
    let [first, steady] = ["/first_per_second", "/steady_per_second"].map(|path| number(report, path));
    let (most, watermark, ratio) = (most?, watermark?, steady? / first?);
    let reader = report.get("reader").and_then(Value::as_str).ok_or("the report has no reader")?;
    let figure = format!(
        "{:.0} of {:.0} MB, {ratio:.2} of the first tenth's throughput, the reader got {reader}",
        most / 1e6,
        watermark / 1e6
    );
    Ok(Figure { figure, ok: most <= watermark && ratio >= 0.9 && reader != "wrong" })
}

/// One thread, durable updates: many in flight, and one at a time.
fn in_flight(quick: Quick) -> Result<Figure, String> {
    let mut rates = [0.0; 2];
    for (rate, in_flight) in rates.iter_mut().zip(["10000", "1"]) {
        let report = bench(
            &[
                &["ycsb", "--records", "100000", "--ops-per-txn", "1", "--read-ratio", "0", "--threads", "1"]
                    [..],
                &["--durability", "sync", "--memory", "1G", "--in-flight", in_flight],
                &["--seconds", quick.pick("2", "20"), "--warmup-seconds", quick.pick("0.5", "3")],
            ]
            .concat(),
        )?;
        *rate = number(&report, "/throughput_tps")?;
    }
    let [many, one] = rates;
    let figure = format!("{many:.0} commits/s against {one:.0}: {:.1} times", many / one);
    Ok(Figure { figure, ok: many >= 20.0 * one })
}

/// The paper's workload, every read timed, with more data than the transaction component has memory for.
fn cache_effectiveness(quick: Quick) -> Result<Figure, String> {
    let (records, seconds) = quick.pick(("400000", "3"), ("5000000", "30"));
    let (memory, warmup) = quick.pick(("352M", "3"), ("2560M", "10"));
    let sizes = ["--records", records, "--memory", memory];
    let times = ["--seconds", seconds, "--warmup-seconds", warmup];
    cache_figure(&bench(&[&["cache"][..], &sizes, &times].concat())?)
}

fn cache_figure(report: &Value) -> Result<Figure, String> {
    let share = number(report, "/served_by_tc")?;
    let cached = number(report, "/served_by_read_cache")?;
    let gets = number(report, "/dc_gets_count")?;
    let [here, here_p99] = ["/tc_reads/mean_us", "/tc_reads/p99_us"].map(|path| number(report, path));
    let [there, there_p99] = ["/dc_gets/mean_us", "/dc_gets/p99_us"].map(|path| number(report, path));
    let (here, there) = (here?, there?);
    let figure = format!(
        "{:.1} % by the TC ({:.1} % by its read cache), its reads {here:.2} us (p99 {:.1}), {gets} gets of the DC {there:.1} us (p99 {:.1})",
        100.0 * share,
        100.0 * cached,
        here_p99?,
        there_p99?
    );
    // Without gets nothing has been compared.
    Ok(Figure { figure, ok: gets > 0.0 && share >= 0.92 && here <= 2.4 && there <= 11.0 })
}

/// Declared read-only transactions beside writers; and the count of what they store.
fn read_only(_quick: Quick) -> Result<Figure, String> {
    let counted = "isolation_tests::a_declared_read_only_transaction_stores_nothing_on_its_read_path";
    let said = test("deuteron-tc", &["--lib"], counted)?;
    let stores = word_after(&said, "read-only stores: ").ok_or("the test did not say what it counted")?;
    let said = test("deuteron", &["--test", "read_only"], "declared_readers_beside_writers_never_abort")?;
    let transactions = word_after(&said, "read-only transactions: ").ok_or("the test printed no count")?;
    let aborts = word_after(&said, "read-only aborts: ").ok_or("the test printed no aborts")?;
    let figure = format!("{transactions} transactions beside writers, {aborts} aborts, {stores} stores");
    Ok(Figure { figure, ok: aborts == 0 && stores == 0 && transactions > 0 })
}

/// The number behind some words.
fn word_after(said: &str, words: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once(words)?.1.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_and_counted() {
        let lines = |level: &str, prevented: usize| -> String {
            let word = |index| if index < prevented { "prevented" } else { "occurs" };
            (0..10).map(|index| format!("hermitage: A{index} {level} {}\n", word(index))).collect()
        };
        let said = lines("strict-serializable", 10) + &lines("snapshot", 8) + &lines("read-committed", 5);
        let figure = hermitage_figure(&read_hermitage(&said).unwrap());
        let text = "strict-serializable 10 of 10, snapshot 8 of 10, read-committed 5 of 10";
        assert_eq!(figure, Figure { figure: text.into(), ok: true });
        assert!(!hermitage_figure(&read_hermitage(&lines("strict-serializable", 9)).unwrap()).ok);
        assert!(read_hermitage("running 1 test").is_err());
        assert!(read_hermitage("hermitage: G0 prevented").is_err());
    }

    #[test]
    fn contention_is_judged_by_the_aborts_of_timestamp_order() {
        let row = |engine: &str, rate: f64, aborted: f64| {
            serde_json::json!({
                "case": "hot", "engine": engine, "threads": 8, "interleaved": true,
                "commits_per_second": rate, "abort_rate": aborted,
            })
        };
        let meeting = |ratio: f64, aborted: f64| {
            Meeting::read(&[
                row("deuteron", 100.0 * ratio, 0.0),
                row("deuteron-timestamp-order", 100.0, aborted),
            ])
        };
        let judge = |ratio, aborted| contention_figure(&[meeting(ratio, aborted).unwrap()]);
        let text = "least ratio 1.60 (hot interleaved 8 threads), of those over 10 % 1.60 (hot interleaved 8 threads)";
        assert_eq!(judge(1.6, 0.2), Figure { figure: text.into(), ok: true });
        assert!(!judge(1.4, 0.2).ok && judge(1.0, 0.05).ok && !judge(0.8, 0.05).ok);
        assert!(!contention_figure(&[]).ok);
        assert!(Meeting::read(&[row("deuteron", 1.0, 0.0)]).is_err());
        assert!(Meeting::read(&[row("deuteron", 1.0, 0.0), row("deuteron", 1.0, 0.0)]).is_err());
    }

    #[test]
    fn version_memory_and_the_cache_are_judged_by_their_reports() {
        let report = |most: u64, steady: f64, reader: &str| {
            serde_json::json!({
                "version_bytes_max": most, "watermark_bytes": 50_000_000u64, "reader": reader,
                "first_per_second": 100.0, "steady_per_second": steady,
            })
        };
        let judge = |most, steady, reader| version_memory_figure(&report(most, steady, reader)).unwrap();
        let text = "40 of 50 MB, 0.95 of the first tenth's throughput, the reader got value";
        assert_eq!(judge(40_000_000, 95.0, "value"), Figure { figure: text.into(), ok: true });
        assert!(judge(40_000_000, 95.0, "snapshot-too-old").ok);
        assert!(!judge(60_000_000, 95.0, "value").ok && !judge(1, 89.0, "value").ok);
        assert!(!judge(1, 100.0, "wrong").ok && version_memory_figure(&Value::Null).is_err());
        let times = |mean: f64| serde_json::json!({ "mean_us": mean, "p99_us": 3.0 });
        let cache = |share: f64, here: f64, gets: u64| {
            cache_figure(&serde_json::json!({
                "served_by_tc": share, "tc_reads": times(here), "dc_gets": times(9.0),
                "served_by_read_cache": 0.7, "dc_gets_count": gets,
            }))
        };
        let text = "93.0 % by the TC (70.0 % by its read cache), its reads 1.00 us (p99 3.0), 7 gets of the DC 9.0 us (p99 3.0)";
        assert_eq!(cache(0.93, 1.0, 7), Ok(Figure { figure: text.into(), ok: true }));
        assert!(
            !cache(0.9, 1.0, 7).unwrap().ok
                && !cache(0.93, 3.0, 7).unwrap().ok
                && !cache(1.0, 1.0, 0).unwrap().ok
        );
        assert!(cache_figure(&Value::Null).is_err());
    }

    #[test]
    fn numbers_are_found_behind_their_words() {
        assert_eq!(word_after("a\nx: read-only aborts: 3 of 4\n", "read-only aborts: "), Some(3));
        assert_eq!(word_after("nothing", "read-only aborts: "), None);
    }
}
