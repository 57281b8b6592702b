//! Isolation: one run of random transactions on a real database, checked twice, by replay in the order of its commit timestamps and by
//! a checker that sees no timestamps.

use super::{Figure, Quick};
use crate::workspace::{displayed, output, release_binary, scratch};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// The two opinions on a run.
struct Opinions {
    transactions: f64,
    committed: f64,
    /// Answers that the replay found wrong.
    wrong: usize,
    /// Anomalies that the checker found.
    anomalies: usize,
    /// How often one transaction must come before another.
    dependencies: f64,
    ranges: f64,
    /// Reads and keys that say nothing.
    silent: f64,
    seconds: f64,
}

/// Half of the transactions with memory enough, half with hardly any.
pub fn isolation(quick: Quick) -> Result<Figure, String> {
    catches()?;
    let mut all = Vec::new();
    for (name, more) in [("roomy", &["--memory", "256M"][..]), ("tiny", &["--tiny"])] {
        let directory = scratch()?;
        let opinions = run(directory.path(), quick.pick("20000", "500000"), more)?;
        eprintln!("  {name}: {} wrong by replay, {} anomalies", opinions.wrong, opinions.anomalies);
        all.push(opinions);
    }
    Ok(figure(&all, quick.pick(4e4, 1e6)))
}

fn run(directory: &Path, transactions: &str, more: &[&str]) -> Result<Opinions, String> {
    let binary = release_binary()?;
    let history = directory.join("history");
    let mut histories = Command::new(&binary);
    histories.args([
        "histories",
        "--json",
        "--keys",
        "256",
        "--threads",
        "4",
        "--transactions",
        transactions,
    ]);
    histories.args(more).arg("--dir").arg(directory).arg("--record").arg(&history);
    let replayed = report(&mut histories)?;
    let mut check = Command::new(&binary);
    check.args(["check-history", "--json"]).arg(&history);
    let checked = report(&mut check)?;
    let number = |report: &Value, field: &str| {
        report.get(field).and_then(Value::as_f64).ok_or_else(|| format!("the report has no number {field}"))
    };
    let list = |report: &Value, field: &str| match report.get(field).and_then(Value::as_array) {
        None => Err(format!("the report has no list {field}")),
        Some(list) => {
            list.iter().for_each(|problem| eprintln!("  {problem}"));
            Ok(list.len())
        }
    };
    let recorded = number(&checked, "transactions")?;
    if recorded < number(&replayed, "transactions")? {
        return Err(format!("only {recorded} transactions were recorded"));
    }
    Ok(Opinions {
        transactions: number(&replayed, "transactions")?,
        committed: number(&replayed, "committed")?,
        wrong: list(&replayed, "problems")?,
        anomalies: list(&checked, "anomalies")?,
        dependencies: number(&checked, "dependencies")?,
        ranges: number(&checked, "ranges")?,
        silent: number(&checked, "reads_unresolved")? + number(&checked, "keys_unchecked")?,
        seconds: number(&checked, "seconds")?,
    })
}

/// The report of a command, which may fail because of what it reports.
fn report(command: &mut Command) -> Result<Value, String> {
    eprintln!("+ {}", displayed(command));
    let said = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", displayed(command)))?;
    serde_json::from_slice(&said.stdout).map_err(|_| format!("{} gave no report", displayed(command)))
}

fn figure(all: &[Opinions], transactions_min: f64) -> Figure {
    let sum = |of: fn(&Opinions) -> f64| all.iter().map(of).sum::<f64>();
    let (wrong, anomalies) = (sum(|run| run.wrong as f64), sum(|run| run.anomalies as f64));
    let transactions = sum(|run| run.transactions);
    let figure = format!(
        "{transactions} transactions, {} committed, {} dependencies, {} ranges, {} reads or keys say nothing: {anomalies} anomalies in {:.0} s; {wrong} wrong by replay",
        sum(|run| run.committed),
        sum(|run| run.dependencies),
        sum(|run| run.ranges),
        sum(|run| run.silent),
        sum(|run| run.seconds),
    );
    // Without dependencies nothing has been checked.
    let ok = wrong == 0.0 && anomalies == 0.0 && transactions >= transactions_min;
    Figure { figure, ok: ok && sum(|run| run.dependencies) > transactions }
}

/// That the checker finds what weaker isolation allows: a test that says so.
fn catches() -> Result<(), String> {
    let mut test = crate::workspace::cargo();
    test.args([
        "test",
        "--quiet",
        "--locked",
        "--release",
        "--package",
        "deuteron",
        "--test",
        "recorded",
        "found",
    ]);
    eprintln!("+ {}", displayed(&test));
    output(&mut test).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opinions(wrong: usize, anomalies: usize, dependencies: f64) -> Opinions {
        let (transactions, committed, ranges, silent, seconds) = (1e6, 9e5, 1e5, 0.0, 9.0);
        Opinions { transactions, committed, wrong, anomalies, dependencies, ranges, silent, seconds }
    }

    #[test]
    fn both_opinions_count_and_nothing_checked_is_not_enough() {
        assert!(figure(&[opinions(0, 0, 5e6)], 1e6).ok);
        assert!(!figure(&[opinions(1, 0, 5e6)], 1e6).ok);
        assert!(!figure(&[opinions(0, 1, 5e6)], 1e6).ok);
        assert!(!figure(&[opinions(0, 0, 0.0)], 1e6).ok);
        assert!(!figure(&[opinions(0, 0, 5e6)], 2e6).ok);
    }
}
