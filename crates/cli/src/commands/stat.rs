//! `stat`: sizes, memory, counters, times.

use super::records::for_each_record;
use super::with_database;
use crate::arguments::StatArguments;
use crate::failure::Outcome;
use crate::output;
use crate::progress::Progress;
use crate::quantity::{bytes, count, microseconds};
use deuteron::{Db, Distribution, Stats};
use deuteron_bench::{directory_bytes, peak_rss_bytes};
use serde_json::{Map, Value, json};
use std::ops::Bound;
use std::path::Path;
use std::time::Instant;

/// `deuteron stat`.
pub fn run(arguments: &StatArguments, json: bool) -> Outcome {
    let begin = Instant::now();
    with_database(&arguments.database, false, |db| {
        let open_seconds = begin.elapsed().as_secs_f64();
        let tables = tables(db, arguments.records)?;
        let stats = db.stats();
        let files_bytes = directory_bytes(&arguments.database.database);
        if json {
            output::json(&as_json(&stats, &tables, &arguments.database.database, files_bytes, open_seconds))
        } else {
            let mut rows = vec![
                ("database".to_owned(), arguments.database.database.display().to_string()),
                ("files on disk".into(), bytes(files_bytes)),
                ("opened in".into(), format!("{open_seconds:.3} s")),
            ];
            rows.extend(as_rows(&stats, &tables));
            output::table(&rows)
        }
    })
}

/// The names of the tables, and their records if asked for.
fn tables(db: &Db, count_records: bool) -> Outcome<Vec<(String, Option<u64>)>> {
    let mut tables = Vec::new();
    for name in db.tables()? {
        let mut records = 0;
        if count_records {
            let progress = Progress::open_ended("count", "records");
            for_each_record(db, &name, (Bound::Unbounded, Bound::Unbounded), false, None, |_, _| {
                records += 1;
                progress.set(records);
                Ok(())
            })?;
        }
        tables.push((name, count_records.then_some(records)));
    }
    Ok(tables)
}

/// The statistics as lines for people; the shell prints them too.
pub fn as_rows(stats: &Stats, tables: &[(String, Option<u64>)]) -> Vec<(String, String)> {
    let mut rows = vec![
        ("memory accounted".to_owned(), bytes(stats.memory_bytes)),
        ("memory budget".into(), bytes(stats.memory_budget_bytes)),
        ("log and store".into(), bytes(stats.disk_bytes)),
        ("written to the log".into(), bytes(stats.bytes_written_log)),
        ("written to the store".into(), bytes(stats.bytes_written_store)),
        ("commits".into(), count(stats.transactions.commits)),
        ("aborts".into(), count(stats.transactions.aborts)),
    ];
    for (cause, aborts) in &stats.transactions.aborts_by_cause {
        rows.push((format!("  {cause}"), count(*aborts)));
    }
    for (name, records) in tables {
        rows.push((
            format!("table {name}"),
            records.map_or(String::new(), |records| count(records) + " records"),
        ));
    }
    rows.extend(stats.counters.iter().map(|(name, value)| (name.clone(), count(*value))));
    rows.extend(stats.distributions.iter().map(|(name, found)| (name.clone(), distribution(name, found))));
    rows
}

/// Which quantiles are shown, and what they are called.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

/// The values of a distribution that are shown, with their names.
fn shown(found: &Distribution) -> impl Iterator<Item = (&'static str, u64)> {
    let quantiles = QUANTILES.map(|(name, quantile)| (name, found.quantile(quantile)));
    quantiles.into_iter().chain([("max", found.max())])
}

/// How many values, and which, in the unit that the name ends with.
fn distribution(name: &str, found: &Distribution) -> String {
    let quantity = |value| match name.rsplit('_').next() {
        Some("nanoseconds") => microseconds(value as f64 / 1e3),
        Some("percent") => format!("{value} %"),
        _ => count(value),
    };
    match found.count() {
        0 => "0".to_owned(),
        values => {
            let shown: Vec<String> =
                shown(found).map(|(name, value)| format!("{name} {}", quantity(value))).collect();
            format!("{}: {}", count(values), shown.join(", "))
        }
    }
}

fn as_json(
    stats: &Stats,
    tables: &[(String, Option<u64>)],
    database: &Path,
    files_bytes: u64,
    open_seconds: f64,
) -> Value {
    let causes: Map<String, Value> = stats
        .transactions
        .aborts_by_cause
        .iter()
        .map(|(cause, count)| ((*cause).into(), json!(count)))
        .collect();
    let counters: Map<String, Value> =
        stats.counters.iter().map(|(name, count)| (name.clone(), json!(count))).collect();
    let distributions: Map<String, Value> = stats
        .distributions
        .iter()
        .map(|(name, found)| {
            let shown = [("count", found.count())].into_iter().chain(shown(found));
            let values: Map<String, Value> = shown.map(|(name, value)| (name.into(), json!(value))).collect();
            (name.clone(), values.into())
        })
        .collect();
    let tables: Vec<Value> =
        tables.iter().map(|(name, records)| json!({ "name": name, "records": records })).collect();
    json!({
        "database": database.display().to_string(),
        "open_seconds": open_seconds,
        "files_bytes": files_bytes,
        "memory_bytes": stats.memory_bytes,
        "memory_budget_bytes": stats.memory_budget_bytes,
        "peak_rss_bytes": peak_rss_bytes(),
        "disk_bytes": stats.disk_bytes,
        "bytes_written_log": stats.bytes_written_log,
        "bytes_written_store": stats.bytes_written_store,
        "commits": stats.transactions.commits,
        "aborts": stats.transactions.aborts,
        "abort_causes": causes,
        "tables": tables,
        "counters": counters,
        "distributions": distributions,
    })
}
