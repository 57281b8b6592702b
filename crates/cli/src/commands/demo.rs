//! `demo`: the paper's workload, killed half-way, and what is left of it.

use super::WorkDirectory;
use crate::arguments::DemoArguments;
use crate::failure::{Failure, Kind, Outcome};
use crate::kill::expectation::{Expectation, Findings};
use crate::kill::parent::{ChildSettings, KillAt, Reported, loss, run_and_kill};
use crate::kill::script::Script;
use crate::kill::{RECORDS_TABLE, Shape};
use crate::output;
use crate::progress::Progress;
use crate::quantity::{count, microseconds};
use deuteron::{Db, Options};
use deuteron_bench::directory_bytes;
use serde_json::json;
use std::cell::Cell;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// Memory of the demonstration's database.
const MEMORY: usize = 256 << 20;

/// Durable commits that each thread keeps in flight.
const IN_FLIGHT: usize = 256;

/// `deuteron demo`.
pub fn run(arguments: &DemoArguments, json: bool) -> Outcome {
    let begin = Instant::now();
    let directory = WorkDirectory::new(arguments.dir.as_deref())?;
    let database = directory.path().join("demo.db");
    if database.exists() {
        return Err(Failure::new(Kind::Usage, format!("{} exists already", database.display()))
            .hint("remove it, or give another --dir"));
    }
    let shape = Shape {
        records: arguments.records,
        value_bytes: 100,
        threads: arguments.threads,
        in_flight: IN_FLIGHT,
        memory: MEMORY,
        seed: 1,
    };
    let speak = |line: String| if json { Ok(()) } else { output::text_line(&line) };

    speak(format!("database {}", database.display()))?;
    speak(format!("1. load {} records of {} bytes", count(shape.records), shape.value_bytes))?;
    let (mut expectation, load_seconds) = load(&database, &shape)?;
    speak(format!("   {load_seconds:.1} s"))?;

    let half = arguments.seconds / 2;
    speak(format!(
        "2. run the paper's workload in another process, serializable, every commit durable: {} operations a \
         transaction, 84 % reads, 20 % of the keys get 80 % of the accesses, {} threads, {IN_FLIGHT} commits each in \
         flight",
        Script::operations(),
        shape.threads,
    ))?;
    let settings = ChildSettings {
        database: &database,
        shape: &shape,
        first: expectation.first(),
        round: 1,
        idle: false,
        adversity: None,
    };
    let reported = watch(&settings, half, json)?;
    let stats = reported.stats;
    let tps = stats.commits as f64 / stats.seconds.max(1e-9);
    let ops = tps * Script::operations() as f64;
    speak(format!(
        "   {} transactions/s = {} operations/s; latency until durable p50 {}, p99 {}",
        count(tps as u64),
        count(ops as u64),
        microseconds(stats.latency_us.p50),
        microseconds(stats.latency_us.p99),
    ))?;
    speak(format!(
        "3. kill -9 after {:.1} s, with {} commits of writers acknowledged as durable",
        half.as_secs_f64(),
        count(reported.acknowledged_count),
    ))?;

    speak("4. open the database again".into())?;
    let (db, recovery_seconds) = recover(&database, &shape)?;
    speak(format!("   recovered in {recovery_seconds:.3} s, first read included"))?;
    speak("5. check every acknowledged commit, and that none is half there".into())?;
    let (findings, check_seconds) = check(&db, &mut expectation, &reported, &shape)?;
    let disk_bytes = directory_bytes(&database);
    db.close()?;
    let seconds = begin.elapsed().as_secs_f64();
    let verdict = if findings.is_clean() { Ok(()) } else { Err(loss(&findings)) };
    if json {
        return verdict.and(output::json(&json!({
            "records": shape.records,
            "threads": shape.threads,
            "load_seconds": load_seconds,
            "throughput_tps": tps,
            "throughput_ops": ops,
            "commits": stats.commits,
            "aborts": stats.aborts,
            "latency_us": stats.latency_us,
            "acknowledged": reported.acknowledged_count,
            "recovery_seconds": recovery_seconds,
            "check_seconds": check_seconds,
            "checked": findings.checked,
            "lost": findings.lost,
            "half_applied": findings.half_applied,
            "problems": findings.problems,
            "disk_bytes": disk_bytes,
            "seconds": seconds,
        })));
    }
    let mut lines: Vec<String> = findings.problems.iter().map(|problem| format!("   {problem}")).collect();
    lines.push(format!(
        "   {} committed writers replayed and compared with {} records: {} lost, {} half-applied",
        count(findings.checked),
        count(shape.records),
        findings.lost,
        findings.half_applied,
    ));
    let found = if findings.is_clean() { "every acknowledged commit is there" } else { "COMMITS ARE LOST" };
    lines.push(format!("{found}; the demo took {seconds:.1} s"));
    verdict.and(lines.iter().try_for_each(|line| output::text_line(line)))
}

fn load(database: &Path, shape: &Shape) -> Outcome<(Expectation, f64)> {
    let begin = Instant::now();
    let db = Options::new().memory(shape.memory).open(database)?;
    let progress = Progress::counting(shape.records, "load", "records");
    let expectation = Expectation::load(&db, shape, |records| progress.set(records))?;
    db.close()?;
    Ok((expectation, begin.elapsed().as_secs_f64()))
}

/// Runs the child with a view of what it does, and kills it.
fn watch(settings: &ChildSettings<'_>, time: Duration, json: bool) -> Outcome<Reported> {
    let view = Progress::of_text();
    let terminal = std::io::stderr().is_terminal();
    let last = Cell::new((0.0, 0, f64::NEG_INFINITY));
    run_and_kill(settings, KillAt::AfterReady(time), |reported| {
        let stats = &reported.stats;
        let (seconds, commits, told) = last.get();
        if stats.seconds <= seconds {
            return;
        }
        let rate = (stats.commits - commits) as f64 / (stats.seconds - seconds);
        let line = format!(
            "{:4.1} of {:.0} s  {} transactions/s  {} acknowledged  p50 {}  p99 {}",
            stats.seconds,
            2.0 * time.as_secs_f64(),
            count(rate as u64),
            count(stats.commits),
            microseconds(stats.latency_us.p50),
            microseconds(stats.latency_us.p99),
        );
        // Without a terminal the view is a line a second.
        let tell = !terminal && !json && stats.seconds >= told + 1.0;
        if tell {
            output::note(&format!("   {line}"));
        }
        last.set((stats.seconds, stats.commits, if tell { stats.seconds } else { told }));
        view.text(line);
    })
}

/// Opens the database and reads a record.
fn recover(database: &Path, shape: &Shape) -> Outcome<(Db, f64)> {
    let begin = Instant::now();
    let turning = Progress::turning("recovering");
    let db = Options::new().memory(shape.memory).create_if_missing(false).open(database)?;
    let table = db.table(RECORDS_TABLE)?;
    db.transact(|tx| tx.get(&table, &0u64.to_be_bytes()))?;
    drop(turning);
    Ok((db, begin.elapsed().as_secs_f64()))
}

fn check(
    db: &Db,
    expectation: &mut Expectation,
    reported: &Reported,
    shape: &Shape,
) -> Outcome<(Findings, f64)> {
    let begin = Instant::now();
    let progress = Progress::counting(shape.records, "check", "records");
    let findings = expectation.check(db, 1, &reported.acknowledged, |records| progress.set(records))?;
    Ok((findings, begin.elapsed().as_secs_f64()))
}
