//! `histories`: random transactions, everything that they read replayed in the order of their commits.

use super::WorkDirectory;
use crate::arguments::HistoriesArguments;
use crate::failure::{Failure, Kind, Outcome};
use crate::output;
use crate::progress::Progress;
use crate::quantity::count;
use deuteron::device::MemoryDirectory;
use deuteron::{Background, Durability, Options};
use deuteron_bench::{HistoryOptions, HistoryReport, run_histories};
use std::sync::Arc;
use std::time::Duration;

/// How long the past is kept.
const RETENTION: Duration = Duration::from_millis(50);

/// `deuteron histories`.
pub fn run(arguments: &HistoriesArguments, json: bool) -> Outcome {
    let directory = WorkDirectory::new(arguments.dir.as_deref())?;
    let database = directory.path().join("histories.db");
    if database.exists() {
        return Err(Failure::new(Kind::Usage, format!("{} exists already", database.display()))
            .hint("remove it, or give another --dir"));
    }
    std::fs::create_dir_all(directory.path())
        .map_err(|error| Failure::because("cannot create the directory", &error))?;
    let options = match arguments.tiny {
        true => Options::tiny_for_tests().background(Background::Threads),
        false => Options::new().memory(arguments.memory).retention(RETENTION),
    };
    let mut options = options.durability(Durability::None);
    if let Some(path) = &arguments.record {
        options = options.record_history(path);
    }
    let db = match arguments.in_memory {
        true => options.open_in(Arc::new(MemoryDirectory::new()))?,
        false => options.open(&database)?,
    };
    let histories = HistoryOptions {
        transactions: arguments.transactions,
        threads: arguments.threads,
        keys: arguments.keys,
        seed: arguments.seed,
        recorded: arguments.record.is_some(),
        ..HistoryOptions::default()
    };
    let progress = Progress::counting(arguments.transactions, "run", "transactions");
    let report = run_histories(&db, &histories, |done| progress.set(done))?;
    drop(progress);
    db.close()?;
    let verdict = match report.problems.len() {
        0 => Ok(()),
        wrong => {
            Err(Failure::new(Kind::Damage, format!("{wrong} answers are not those of the serial order")))
        }
    };
    verdict.and(print(&report, json))
}

fn print(report: &HistoryReport, json: bool) -> Outcome {
    if json {
        return output::json(report);
    }
    report.problems.iter().try_for_each(|problem| output::text_line(problem))?;
    output::table(&rows(report))
}

fn rows(report: &HistoryReport) -> Vec<(&'static str, String)> {
    vec![
        ("transactions", count(report.transactions)),
        ("committed", count(report.committed)),
        ("conflicts", count(report.conflicts)),
        ("given up on purpose", count(report.given_up)),
        ("past no longer kept", count(report.not_retained)),
        ("reads compared", count(report.reads)),
        ("scans compared", count(report.scans)),
        ("records scanned", count(report.records_scanned)),
        ("wrong answers", report.problems.len().to_string()),
    ]
}
