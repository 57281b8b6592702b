//! `kill-rounds`: the workload, killed again and again at random moments, the recovery among them.

use super::WorkDirectory;
use crate::arguments::{AdversityName, KillRoundsArguments};
use crate::failure::{Failure, Kind, Outcome};
use crate::kill::expectation::{Expectation, Findings};
use crate::kill::parent::{ChildSettings, KillAt, Reported, loss, run_and_kill};
use crate::kill::room::{self, Ballast};
use crate::kill::{MARKER_TABLES, Shape};
use crate::output;
use crate::progress::Progress;
use crate::quantity::count;
use deuteron::Options;
use deuteron_bench::Random;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// The most recoveries that are killed between a round and its check.
const INTERRUPTED_RECOVERIES_MAX: u64 = 3;

/// A recovery is killed at most so long after its start.
const INTERRUPT_AFTER_MAX: Duration = Duration::from_millis(120);

/// What came of all rounds.
#[derive(Clone, Debug, Default, Serialize)]
struct RoundsReport {
    rounds: u32,
    acknowledged: u64,
    checked: u64,
    lost: u64,
    half_applied: u64,
    interrupted_recoveries: u64,
    /// Rounds in which the process died of its adversity before it was killed.
    ended_itself: u64,
    recovery_seconds_max: f64,
    seconds: f64,
    problems: Vec<String>,
}

/// `deuteron kill-rounds`.
pub fn run(arguments: &KillRoundsArguments, json: bool) -> Outcome {
    let begin = Instant::now();
    let directory = WorkDirectory::new(arguments.dir.as_deref())?;
    let database = directory.path().join("kill.db");
    if database.exists() {
        return Err(Failure::new(Kind::Usage, format!("{} exists already", database.display()))
            .hint("remove it, or give another --dir"));
    }
    let shape = Shape {
        records: arguments.records,
        value_bytes: 100,
        threads: arguments.threads,
        in_flight: 64,
        memory: arguments.memory,
        seed: arguments.seed,
    };
    let db = Options::new().memory(shape.memory).open(&database)?;
    let mut expectation = Expectation::load(&db, &shape, |_| {})?;
    db.close()?;
    let mut random = Random::new(arguments.seed);
    let mut report = RoundsReport::default();
    let progress = Progress::counting(u64::from(arguments.rounds), "kill", "rounds");
    for round in 1..=arguments.rounds {
        let findings = one_round(
            &database,
            &shape,
            &mut expectation,
            round,
            (arguments.seconds_max, arguments.adversity),
            &mut random,
            &mut report,
        )?;
        report.rounds = round;
        report.checked += findings.checked;
        report.lost += findings.lost;
        report.half_applied += findings.half_applied;
        report.problems.extend(findings.problems.iter().map(|problem| format!("round {round}: {problem}")));
        progress.set(u64::from(round));
        if !findings.is_clean() {
            // What comes after says no more.
            break;
        }
    }
    drop(progress);
    report.seconds = begin.elapsed().as_secs_f64();
    let findings = Findings { lost: report.lost, half_applied: report.half_applied, ..Findings::default() };
    let verdict = if findings.is_clean() { Ok(()) } else { Err(loss(&findings)) };
    verdict.and(print(&report, json))
}

fn print(report: &RoundsReport, json: bool) -> Outcome {
    if json {
        return output::json(report);
    }
    report.problems.iter().try_for_each(|problem| output::text_line(problem))?;
    output::table(&rows(report))
}

/// Runs and kills a child, kills some recoveries, recovers, and checks.
fn one_round(
    database: &Path,
    shape: &Shape,
    expectation: &mut Expectation,
    round: u32,
    (seconds_max, adversity): (Duration, Option<AdversityName>),
    random: &mut Random,
    report: &mut RoundsReport,
) -> Outcome<Findings> {
    let adversity = adversity.map(|name| (name, random.next_u64()));
    let settings =
        ChildSettings { database, shape, first: expectation.first(), round, idle: false, adversity };
    let kill_at = KillAt::AfterReady(random_time(random, seconds_max));
    let full = adversity.filter(|(name, _)| *name == AdversityName::Full);
    let ballast = match (full, database.parent()) {
        (Some(_), Some(beside)) if room::is_small(beside)? => {
            Some(Ballast::leaving(room::left(random), beside)?)
        }
        _ => None,
    };
    let Reported { acknowledged, acknowledged_count, ended_itself, .. } =
        run_and_kill(&settings, kill_at, |_| {})?;
    report.ended_itself += u64::from(ended_itself);
    report.acknowledged += acknowledged_count;
    // Half of the recoveries are undisturbed.
    let interruptions =
        (random.below(2 * INTERRUPTED_RECOVERIES_MAX + 1)).saturating_sub(INTERRUPTED_RECOVERIES_MAX);
    for _ in 0..interruptions {
        // Nobody makes room before the recovery knows that there is none.
        let settings = ChildSettings { database, shape, first: &[], round, idle: true, adversity: full };
        let interrupt_at = KillAt::AfterStart(random_time(random, INTERRUPT_AFTER_MAX));
        run_and_kill(&settings, interrupt_at, |_| {})?;
        report.interrupted_recoveries += 1;
    }
    drop(ballast);
    let begin = Instant::now();
    let db = Options::new().memory(shape.memory).create_if_missing(false).open(database)?;
    let marker = db.table(MARKER_TABLES[0])?;
    db.transact(|tx| tx.get(&marker, &0u32.to_be_bytes()))?;
    report.recovery_seconds_max = report.recovery_seconds_max.max(begin.elapsed().as_secs_f64());
    let findings = expectation.check(&db, round, &acknowledged, |_| {})?;
    db.close()?;
    Ok(findings)
}

/// A random time up to `max`.
fn random_time(random: &mut Random, max: Duration) -> Duration {
    max.mul_f64(random.unit())
}

fn rows(report: &RoundsReport) -> Vec<(&'static str, String)> {
    vec![
        ("rounds", report.rounds.to_string()),
        ("acknowledged commits", count(report.acknowledged)),
        ("committed and checked", count(report.checked)),
        ("lost", count(report.lost)),
        ("half-applied", count(report.half_applied)),
        ("interrupted recoveries", count(report.interrupted_recoveries)),
        ("longest recovery", format!("{:.3} s", report.recovery_seconds_max)),
        ("time", format!("{:.1} s", report.seconds)),
    ]
}
