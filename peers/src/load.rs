//! How fast an engine is filled from records in key order, and what it takes on disk then.
//!
//! `load` measures one engine: the time from before the database is created until every record is durable (how, `bulk` says), the space
//! once the database is closed, and then, unmeasured, whether the records are there. `compare-load` measures several, in turns, each in a process of its own.

use crate::Engine;
use crate::bulk::{self, Outcome, Records};
use crate::compare::{Spread, name, report_of};
use crate::engines::{self, Database, Task, Use};
use crate::peer::Settings;
use clap::Args;
use deuteron_bench::{Ahead, Random, directory_bytes, peak_rss_bytes};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// What is loaded, and with what.
#[derive(Args, Clone)]
pub struct LoadWork {
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// Memory of the engine, in bytes.
    #[arg(long, default_value_t = 1 << 30)]
    memory: usize,
    /// Where the databases are put; a temporary directory if left out.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// Measures one engine.
pub fn measure(engine: Engine, work: &LoadWork) -> Outcome<Value> {
    let scratch = crate::scratch(work.dir.as_deref())?;
    let settings = Settings {
        directory: scratch.path().to_owned(),
        sync: false,
        memory: work.memory,
        beyond_memory: false,
    };
    let begin = Instant::now();
    let durable = bulk::load(engine, &settings, Records::new(work.records, work.value_bytes))?;
    let seconds = (durable - begin).as_secs_f64();
    let (disk_bytes, peak_rss_bytes) = (directory_bytes(&settings.directory), peak_rss_bytes());
    let how = Use { threads: 1, in_flight: 1, ahead: Ahead::Nothing };
    engines::with(engine, settings, &how, Check { records: work.records, value_bytes: work.value_bytes })?;
    let payload = work.records as f64 * (8 + work.value_bytes) as f64;
    Ok(json!({
        "engine": name(engine),
        "seconds": seconds,
        "records_per_second": work.records as f64 / seconds,
        "disk_bytes": disk_bytes,
        "space_amplification": disk_bytes as f64 / payload,
        "peak_rss_bytes": peak_rss_bytes,
    }))
}

/// Whether what was loaded is there: the first record, the last, some of the others, and none behind the last.
pub struct Check {
    pub records: u64,
    pub value_bytes: usize,
}

impl Task for Check {
    type Outcome = ();

    fn run<S: Database>(self, store: &S) -> Outcome<()> {
        let mut random = Random::new(1);
        let some = (0..self.records.min(1_000)).map(|_| random.below(self.records));
        let mut expected = vec![0; self.value_bytes];
        for number in [0, self.records - 1].into_iter().chain(some) {
            bulk::fill(number, &mut expected);
            if store.value(number)?.as_ref() != Some(&expected) {
                return Err(format!("record {number} is not what was loaded").into());
            }
        }
        match store.value(self.records)? {
            None => Ok(()),
            Some(_) => Err("there is a record that was not loaded".into()),
        }
    }
}

/// Measures several engines, in turns, and prints medians.
pub fn compare(engines: &[Engine], rounds: usize, work: &LoadWork, as_json: bool) -> Outcome<()> {
    let mut reports = vec![Vec::new(); engines.len()];
    for round in 1..=rounds {
        for (&engine, reports) in engines.iter().zip(&mut reports) {
            let report = child(engine, work)?;
            eprintln!("round {round} of {rounds}: {:<20} {report}", name(engine));
            reports.push(report);
        }
    }
    let rows: Vec<Value> =
        engines.iter().zip(&reports).map(|(&engine, reports)| row(engine, reports)).collect();
    if as_json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!(
        "{:<20} {:>12} {:>25} {:>10} {:>14} {:>10}",
        "engine", "records/s", "(lowest to highest)", "disk MiB", "disk / records", "peak MiB"
    );
    for row in &rows {
        let number = |field: &str| row[field].as_f64().unwrap_or_default();
        println!(
            "{:<20} {:>12.0} {:>12.0} {:>12.0} {:>10.0} {:>14.2} {:>10.0}",
            row["engine"].as_str().unwrap_or_default(),
            number("records_per_second"),
            number("lowest"),
            number("highest"),
            number("disk_bytes") / f64::from(1 << 20),
            number("space_amplification"),
            number("peak_rss_bytes") / f64::from(1 << 20),
        );
    }
    Ok(())
}

fn row(engine: Engine, reports: &[Value]) -> Value {
    let rates = Spread::of(reports, "records_per_second");
    let median = |field: &str| Spread::of(reports, field).median;
    json!({
        "engine": name(engine),
        "records_per_second": rates.median,
        "lowest": rates.lowest,
        "highest": rates.highest,
        "disk_bytes": median("disk_bytes"),
        "space_amplification": median("space_amplification"),
        "peak_rss_bytes": median("peak_rss_bytes"),
    })
}

fn child(engine: Engine, work: &LoadWork) -> Outcome<Value> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["load", "--engine", &name(engine), "--records", &work.records.to_string()]);
    command.args(["--value-bytes", &work.value_bytes.to_string(), "--memory", &work.memory.to_string()]);
    if let Some(directory) = &work.dir {
        command.arg("--dir").arg(directory);
    }
    report_of(command, &name(engine)).map_err(|error| error as _)
}
