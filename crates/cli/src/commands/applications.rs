//! `bench tatp`, `bench small-bank`, `bench tpcc` and `bench voter`: application benchmarks, whose conditions are checked after
//! the run. One that does not hold makes the command fail, after its report.

use super::bench::options;
use crate::arguments::{
    ApplicationArguments, SmallBankArguments, TatpArguments, TpccArguments, VoterArguments,
};
use crate::failure::{Failure, Kind, Outcome};
use crate::output;
use crate::progress::Progress;
use crate::quantity::{bytes, count, microseconds};
use deuteron_bench::{
    Application, ApplicationProgress, ApplicationReport, Driver, EmbeddedApplicationStore, Latency,
    SmallBank, Tatp, Tpcc, Voter, run_application,
};
use std::fs;

pub fn tatp(arguments: &TatpArguments, json: bool) -> Outcome {
    run(&Tatp::new(arguments.subscribers), &arguments.run, json)
}

pub fn small_bank(arguments: &SmallBankArguments, json: bool) -> Outcome {
    let bank = SmallBank::new(arguments.accounts);
    let bank = match arguments.hot_accounts {
        Some(hot) => bank.with_hotspot(hot, arguments.hot_share),
        None => bank,
    };
    run(&bank, &arguments.run, json)
}

pub fn tpcc(arguments: &TpccArguments, json: bool) -> Outcome {
    run(&Tpcc::new(arguments.warehouses).shrunk(arguments.shrink), &arguments.run, json)
}

pub fn voter(arguments: &VoterArguments, json: bool) -> Outcome {
    run(&Voter::new(arguments.contestants).with_telephones(arguments.telephones), &arguments.run, json)
}

fn run(application: &dyn Application, arguments: &ApplicationArguments, json: bool) -> Outcome {
    let driver = Driver {
        threads: arguments.threads as usize,
        in_flight: 1,
        warmup: arguments.warmup_seconds,
        seconds: arguments.seconds,
        seed: arguments.seed,
        pin: arguments.pin.pin.clone(),
    };
    let mut place = tempfile::Builder::new();
    place.prefix("deuteron-");
    let directory = match &arguments.dir {
        Some(parent) => fs::create_dir_all(parent).and_then(|()| place.tempdir_in(parent)),
        None => place.tempdir(),
    };
    let directory = directory.map_err(|error| {
        Failure::because("cannot create a directory for the database", &error)
            .hint("give another place with --dir")
    })?;
    crate::allocator::suit(arguments.memory);
    let options = options(arguments.memory, &arguments.pin);
    let store = EmbeddedApplicationStore::open(options, directory.path(), arguments.durability, application)?;
    let line = Progress::of_text();
    let report = run_application(application, &store, &driver, &mut |progress| line.text(told(progress)))?;
    drop(line);
    store.close()?;
    verdict(&report).and(if json { output::json(&report) } else { output::table(&rows(&report)) })
}

fn told(progress: &ApplicationProgress) -> String {
    match progress {
        ApplicationProgress::Loading(rows) => format!("load: {} rows", count(*rows)),
        ApplicationProgress::Running(progress) => {
            let rate = progress.commits as f64 / progress.interval.as_secs_f64().max(1e-9);
            format!(
                "{} {:.0} of {:.0} s: {} transactions/s, {} aborts",
                if progress.warming_up { "warm-up" } else { "run" },
                progress.elapsed.as_secs_f64(),
                progress.total.as_secs_f64(),
                count(rate as u64),
                count(progress.aborts),
            )
        }
        ApplicationProgress::Checking => "check".into(),
    }
}

/// A failure that names the conditions that do not hold.
fn verdict(report: &ApplicationReport) -> Outcome {
    let mut violated = report.conditions.iter().filter(|condition| !condition.holds);
    match violated.next() {
        None => Ok(()),
        Some(first) => {
            let more = match violated.count() {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            let message = format!("a condition does not hold: {}: {}{more}", first.name, first.found);
            Err(Failure::new(Kind::Anomaly, message).hint("this is a bug of the store: please report it"))
        }
    }
}

fn rows(report: &ApplicationReport) -> Vec<(String, String)> {
    let percentiles =
        |latency: &Latency| format!("p50 {}, p99 {}", microseconds(latency.p50), microseconds(latency.p99));
    let mut rows = vec![
        ("application".to_owned(), format!("{}, {}", report.application, report.scale)),
        ("engine".into(), report.engine.clone()),
        ("isolation".into(), report.isolation.clone()),
        ("durability".into(), report.durability.clone()),
        ("threads".into(), report.threads.to_string()),
        ("transactions/s".into(), count(report.transactions_per_second as u64)),
        ("commits/s".into(), count(report.commits_per_second as u64)),
        ("rolled back by its rules".into(), count(report.rolled_back)),
        (
            "aborts".into(),
            format!("{}, {:.2} % of attempts", count(report.aborts), 100.0 * report.abort_rate),
        ),
    ];
    rows.extend(report.abort_causes.iter().map(|(cause, aborts)| (format!("  {cause}"), count(*aborts))));
    rows.push(("latency".into(), percentiles(&report.latency_us)));
    rows.extend(report.transactions.iter().map(|kind| {
        let ends = format!("{} commits, {} rolled back", count(kind.commits), count(kind.rolled_back));
        (format!("  {}", kind.name), format!("{}, {ends}", percentiles(&kind.latency_us)))
    }));
    rows.extend([
        ("load".to_owned(), format!("{} rows in {:.1} s", count(report.rows), report.load_seconds)),
        ("processor time".into(), format!("{:.1} s", report.processor_seconds)),
        ("peak memory".into(), bytes(report.peak_rss_bytes)),
        ("disk".into(), bytes(report.disk_bytes)),
    ]);
    rows.extend(report.conditions.iter().map(|condition| {
        let holds = if condition.holds { "holds" } else { "DOES NOT HOLD" };
        (holds.to_owned(), format!("{} ({})", condition.name, condition.found))
    }));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_bench::Condition;

    #[test]
    fn a_condition_that_does_not_hold_is_named_and_fails_the_command() {
        let condition = |name: &str, holds| Condition { name: name.into(), holds, found: "3 missing".into() };
        let conditions = vec![condition("order", true), condition("money", false), condition("limit", false)];
        let report = ApplicationReport { conditions, ..ApplicationReport::default() };
        let failure = verdict(&report).unwrap_err();
        assert_eq!(failure.exit_code(), std::process::ExitCode::from(6));
        assert!(format!("{failure:?}").contains("money: 3 missing, and 1 more"), "{failure:?}");
        assert!(rows(&report).iter().any(|(name, what)| name == "DOES NOT HOLD" && what.contains("money")));
        assert!(verdict(&ApplicationReport::default()).is_ok());
    }
}
