//! `check-history`: which isolation the transactions of a recorded history had.

use super::is_standard;
use crate::arguments::CheckHistoryArguments;
use crate::failure::{Failure, Kind, Outcome};
use crate::output;
use crate::progress::Progress;
use crate::quantity::count;
use deuteron_history::{HistoryError, Report, check};
use serde_json::json;
use std::fs::File;
use std::io::{BufReader, Read, stdin};
use std::time::Instant;

/// `deuteron check-history`.
pub fn run(arguments: &CheckHistoryArguments, json: bool) -> Outcome {
    let name = arguments.file.display().to_string();
    let begin = Instant::now();
    let source: Box<dyn Read> = match is_standard(&arguments.file) {
        true => Box::new(stdin().lock()),
        false => Box::new(File::open(&arguments.file).map_err(|error| {
            let mut failure = Failure::because(format!("cannot open {name}"), &error);
            if error.kind() == std::io::ErrorKind::NotFound {
                failure = Failure::new(Kind::NotFound, format!("there is no file {name}"));
            }
            failure
        })?),
    };
    let turning = Progress::turning("checking");
    let checked = check(BufReader::with_capacity(1 << 20, source), arguments.level);
    drop(turning);
    let report = checked.map_err(|error| failure(error).at(&name))?;
    let verdict = if report.anomalies.is_empty() {
        Ok(())
    } else {
        let found: Vec<_> = report.counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        Err(Failure::new(Kind::Anomaly, format!("{name} is not {}: {}", report.level, found.join(", "))))
    };
    verdict.and(print(&report, begin.elapsed().as_secs_f64(), json))
}

fn print(report: &Report, seconds: f64, json: bool) -> Outcome {
    if json {
        return output::json(&as_json(report, seconds));
    }
    report.anomalies.iter().try_for_each(|anomaly| output::text_line(&format!("{anomaly}\n")))?;
    output::table(&rows(report, seconds))
}

fn failure(error: HistoryError) -> Failure {
    match std::error::Error::source(&error) {
        Some(source) => Failure::because(error.to_string(), source),
        None => Failure::new(Kind::Failed, error.to_string()).hint("docs/history.md has the format"),
    }
}

fn as_json(report: &Report, seconds: f64) -> serde_json::Value {
    let anomalies: Vec<_> = report
        .anomalies
        .iter()
        .map(|anomaly| {
            json!({
                "name": anomaly.name(),
                "meaning": anomaly.kind.meaning(),
                "lines": anomaly.transactions,
                "steps": anomaly.steps,
            })
        })
        .collect();
    json!({
        "level": report.level.name(),
        "transactions": report.transactions,
        "committed": report.committed,
        "aborted": report.aborted,
        "unknown": report.unknown,
        "unknown_happened": report.unknown_happened,
        "reads": report.reads,
        "writes": report.writes,
        "ranges": report.ranges,
        "keys": report.keys,
        "keys_unchecked": report.keys_unchecked,
        "reads_unresolved": report.reads_unresolved,
        "dependencies": report.dependencies,
        "groups_in_cycles": report.components,
        "cut": report.cut,
        "counts": report.counts,
        "anomalies": anomalies,
        "seconds": seconds,
    })
}

fn rows(report: &Report, seconds: f64) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("level", report.level.to_string()),
        ("transactions", count(report.transactions)),
        ("committed", count(report.committed)),
        ("aborted", count(report.aborted)),
        (
            "of unknown outcome",
            format!("{}, of which happened {}", count(report.unknown), count(report.unknown_happened)),
        ),
        ("reads", count(report.reads)),
        ("reads that say nothing", count(report.reads_unresolved)),
        ("ranges read", count(report.ranges)),
        ("writes", count(report.writes)),
        ("keys", count(report.keys)),
        ("keys left out", count(report.keys_unchecked)),
        ("dependencies", count(report.dependencies)),
        ("groups in cycles", count(report.components)),
        ("anomalies", count(report.counts.values().sum())),
        ("time", format!("{seconds:.1} s")),
    ];
    if report.cut {
        rows.push(("last line", "cut short, left out".into()));
    }
    rows
}
