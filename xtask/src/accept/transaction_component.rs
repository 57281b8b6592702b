//! The transaction component: isolation, histories, contention, memory, many commits in flight.

use super::planned::planned;
use super::{Figure, Point, Quick};
use crate::workspace::{cargo, displayed, last_line, output, release_binary, scratch};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// The points of the slug `transaction-component`.
pub const POINTS: &[Point] = &[
    Point { name: "hermitage", bar: "10 of 10 at strict serializable", run: Some(hermitage) },
    Point {
        name: "random-histories",
        bar: "10 M transactions, every read equal to the model's",
        run: Some(random_histories),
    },
    planned("contention", "at least RocksDB's best, and 1.5 times pure timestamp order over 10 % aborts"),
    Point { name: "read-only", bar: "0 aborts and 0 shared stores", run: Some(read_only) },
    planned("version-memory", "under the hard watermark, at least 0.9 of the first minute's throughput"),
    planned("in-flight", "10 000 in flight at least 20 times one at a time"),
    planned("cache-effectiveness", "the paper's Figure 8: 92 % by the TC, 2.4 us and 11 us"),
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
    let (mut totals, mut problems) = ([0.0; 4], Vec::new());
    for (name, more) in [("roomy", &["--memory", "64M"][..]), ("tiny", &["--tiny"])] {
        let mut histories = Command::new(release_binary()?);
        histories.args(["histories", "--json", "--transactions", quick.pick("50000", "5000000"), "--dir"]);
        histories.arg(directory.path().join(name)).args(more);
        eprintln!("+ {}", displayed(&histories));
        // A problem makes the command fail, but it has reported all the same.
        let said =
            histories.output().map_err(|error| format!("cannot run {}: {error}", displayed(&histories)))?;
        let report: Value = serde_json::from_slice(&said.stdout)
            .map_err(|_| format!("no report: {}", last_line(&String::from_utf8_lossy(&said.stderr))))?;
        for (total, field) in totals.iter_mut().zip(["transactions", "committed", "reads", "scans"]) {
            let number = report.get(field).and_then(Value::as_f64);
            *total += number.ok_or_else(|| format!("the report has no number {field}"))?;
        }
        let found = report.get("problems").and_then(Value::as_array).ok_or("the report has no problems")?;
        problems.extend(found.iter().map(|problem| format!("{name}: {problem}")));
    }
    problems.iter().for_each(|problem| eprintln!("  {problem}"));
    let [transactions, committed, reads, scans] = totals;
    let figure = format!(
        "{transactions} transactions, {committed} committed, {reads} reads and {scans} scans compared, {} wrong",
        problems.len()
    );
    Ok(Figure { figure, ok: problems.is_empty() && transactions >= quick.pick(1e5, 1e7) })
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
    fn numbers_are_found_behind_their_words() {
        assert_eq!(word_after("a\nx: read-only aborts: 3 of 4\n", "read-only aborts: "), Some(3));
        assert_eq!(word_after("nothing", "read-only aborts: "), None);
    }
}
