//! The crash sweep: a short workload on the simulated disk, stopped at every single I/O; what survives is recovered and
//! compared with the model. Recovery itself is stopped at every I/O, too.
//!
//! One thread does everything, so that the state of the database after `k` commits is known for every `k`, and the
//! run repeats exactly up to the crash. The recovered state must be that after some `k` that lies between the commits
//! acknowledged and those begun: nothing acknowledged lost, nothing half applied, no order changed.

use deuteron::device::simulated::{Random, Sweep};
use deuteron::device::{CrashPolicy, Directory, FaultPlan, SimulatedDirectory, SimulatedDisk};
use deuteron::sizes::Sizes;
use deuteron::{Db, Durability, Error, Options, RetryPolicy, Table, TransactionOptions};
use deuteron_encryption::{EncryptedDirectory, Key, Keys};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A proxy that posts at once leaves a replay no round to wait for.
#[test]
fn a_proxy_without_lag_replays_the_log() {
    let mut sizes = Sizes::tiny();
    sizes.proxy.lag_bytes = 0;
    let options = || Options::tiny_for_tests().sizes(sizes.clone());
    let disk = SimulatedDisk::new(1);
    let db = options().open_in(Arc::new(disk.directory())).unwrap();
    let table = db.table("t").unwrap();
    for number in 0..50u32 {
        db.transact(|tx| tx.put(&table, &number.to_be_bytes(), &[1; 100])).unwrap();
    }
    let db = options().open_in(Arc::new(disk.crash(CrashPolicy::LoseAll))).unwrap();
    let table = db.table("t").unwrap();
    assert_eq!(db.begin().scan(&table, ..).unwrap().count(), 50);
    db.close().unwrap();
}

type State = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

const TRANSACTIONS: u64 = 48;
const SEED: u64 = 7;

/// One write: table, key, value or delete.
type Write = (u8, Vec<u8>, Option<Vec<u8>>);

/// The writes of transaction `number`: several keys in two tables, some deleted, some rewritten within it.
fn writes(number: u64) -> Vec<Write> {
    let mut random = Random::new(number);
    (0..1 + random.below(6))
        .map(|_| {
            let key = format!("key/{:02}", random.below(40)).into_bytes();
            let value = (random.below(5) > 0).then(|| {
                let length = if random.below(8) == 0 { 1500 } else { random.below(120) as usize };
                let mut value = number.to_be_bytes().to_vec();
                value.resize(8 + length, number as u8);
                value
            });
            (random.below(2) as u8, key, value)
        })
        .collect()
}

/// The state after the first `k` transactions, for every `k`.
fn states() -> Vec<State> {
    let mut states = vec![State::new()];
    for number in 0..TRANSACTIONS {
        let mut state = states.last().expect("never empty").clone();
        for (table, key, value) in writes(number) {
            match value {
                Some(value) => drop(state.insert((table, key), value)),
                None => drop(state.remove(&(table, key))),
            }
        }
        let sum = (0..=number as i64).sum::<i64>();
        state.insert((0, b"sum".to_vec()), sum.to_le_bytes().to_vec());
        state.entry((1, b"list".to_vec())).or_default().push(number as u8);
        states.push(state);
    }
    states
}

/// What the database lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    TheDisk,
    /// The same with everything encrypted.
    EncryptedFiles,
}

impl On {
    fn name(self, sweep: &str) -> String {
        match self {
            On::TheDisk => sweep.to_owned(),
            On::EncryptedFiles => format!("{sweep}, encrypted"),
        }
    }
}

const ALL: [On; 2] = [On::TheDisk, On::EncryptedFiles];

fn open(directory: SimulatedDirectory, on: On) -> Result<Db, Error> {
    let disk: Arc<dyn Directory> = Arc::new(directory);
    let directory = match on {
        On::TheDisk => disk,
        On::EncryptedFiles => match EncryptedDirectory::new(disk, Keys::new(Key::from_bytes([7; 32]))) {
            Ok(encrypted) => Arc::new(encrypted),
            Err(error) => return Err(Error::Device { context: "decrypt".into(), source: Box::new(error) }),
        },
    };
    Options::tiny_for_tests().open_in(directory)
}

fn tables(db: &Db) -> Result<[Table; 2], Error> {
    Ok([db.table("zero")?, db.table("one")?])
}

/// How far the workload came.
#[derive(Default)]
struct Reached {
    begun: u64,
    acknowledged: u64,
}

/// Runs the workload until it ends or the machine stops.
fn run(disk: &SimulatedDisk, on: On, reached: &mut Reached) -> Result<(), Error> {
    let db = open(disk.directory(), on)?;
    let tables = tables(&db)?;
    for number in 0..TRANSACTIONS {
        reached.begun = number + 1;
        // Every fourth is acknowledged only with the next durable one, since the log is a prefix.
        let durable = number % 4 != 3;
        let durability = if durable { Durability::Sync } else { Durability::None };
        let options = TransactionOptions::new().durability(durability);
        db.transact_with(options, RetryPolicy::default(), |tx| {
            for (table, key, value) in writes(number) {
                let table = &tables[usize::from(table)];
                match &value {
                    Some(value) => tx.put(table, &key, value)?,
                    None => tx.delete(table, &key)?,
                }
            }
            // What is done twice, or not at all, shows in the sum.
            tx.add(&tables[0], b"sum", number as i64)?;
            tx.append(&tables[1], b"list", &[number as u8])
        })?;
        if durable {
            reached.acknowledged = number + 1;
        }
        db.step()?;
        if number % 16 == 15 {
            db.checkpoint()?;
        }
    }
    db.close()?;
    reached.acknowledged = TRANSACTIONS;
    Ok(())
}

fn state_of(db: &Db) -> Result<State, Error> {
    let mut state = State::new();
    for (number, table) in tables(db)?.iter().enumerate() {
        let entries: Vec<_> = db.transact(|tx| tx.scan(table, ..)?.collect())?;
        state.extend(entries.into_iter().map(|(key, value)| ((number as u8, key), value)));
    }
    Ok(state)
}

/// Opens what survived, and says what is wrong with it.
fn verify(directory: SimulatedDirectory, on: On, reached: &Reached, states: &[State]) -> Result<(), String> {
    let db = open(directory, on).map_err(|error| format!("does not open: {}", causes(&error)))?;
    let found = state_of(&db).map_err(|error| format!("cannot be read: {}", causes(&error)))?;
    let (low, high) = (reached.acknowledged as usize, reached.begun as usize);
    let Some(commits) = (low..=high).find(|commits| states[*commits] == found) else {
        let known = states.iter().position(|state| *state == found);
        return Err(format!("holds the state after {known:?} commits, not one of {low}..={high}"));
    };
    let report = db.check().map_err(|error| format!("cannot be checked: {}", causes(&error)))?;
    if let Some(problem) = report.problems.first() {
        return Err(format!("after {commits} commits: {problem}"));
    }
    // It still works.
    let table = db.table("zero").map_err(|error| causes(&error))?;
    db.transact(|tx| tx.put(&table, b"after", b"1"))
        .map_err(|error| format!("takes no writes: {}", causes(&error)))?;
    db.close().map_err(|error| format!("does not close: {}", causes(&error)))
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    message
}

const POLICIES: [CrashPolicy; 4] =
    [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Random, CrashPolicy::Random];

/// How many changing I/Os the whole workload does.
fn operations(seed: u64, on: On) -> u64 {
    let disk = SimulatedDisk::new(seed);
    let mut reached = Reached::default();
    run(&disk, on, &mut reached).expect("nothing fails");
    assert_eq!(reached.acknowledged, TRANSACTIONS);
    disk.operations()
}

#[test]
fn nothing_acknowledged_is_lost_at_any_crash_point() {
    ALL.into_iter().for_each(sweep_of_crashes);
}

fn sweep_of_crashes(on: On) {
    let states = states();
    let mut sweep = Sweep::default();
    for point in 0..operations(SEED, on) {
        sweep.point();
        let disk = SimulatedDisk::new(SEED);
        disk.set_faults(FaultPlan::new().crash_after(point));
        let mut reached = Reached::default();
        drop(run(&disk, on, &mut reached));
        for (try_, policy) in POLICIES.into_iter().enumerate() {
            let survivor = disk.fork(point * 10 + try_ as u64);
            let place = format!("crash after I/O {point}, {policy:?} {try_}");
            sweep.recovered(place, verify(survivor.crash(policy), on, &reached, &states));
        }
    }
    sweep.report(&on.name("crash sweep"));
}

#[test]
fn a_crash_during_recovery_loses_nothing() {
    ALL.into_iter().for_each(sweep_of_recoveries);
}

fn sweep_of_recoveries(on: On) {
    let states = states();
    let mut sweep = Sweep::default();
    let all = operations(SEED, on);
    // Every seventh point: each needs a sweep of its own.
    for point in (3..all).step_by(7) {
        let disk = SimulatedDisk::new(SEED);
        disk.set_faults(FaultPlan::new().crash_after(point));
        let mut reached = Reached::default();
        drop(run(&disk, on, &mut reached));
        let crashed = disk.fork(point);
        drop(crashed.crash(CrashPolicy::Random));
        for second in 0.. {
            let disk = crashed.fork(point * 100 + second);
            disk.set_faults(FaultPlan::new().crash_after(second));
            let opened = open(disk.directory(), on);
            let finished = opened.is_ok() && !disk.is_stopped();
            drop(opened);
            if finished {
                break;
            }
            sweep.point();
            let place = format!("crash after I/O {point}, then after I/O {second} of the recovery");
            sweep.recovered(place, verify(disk.crash(CrashPolicy::Random), on, &reached, &states));
        }
    }
    sweep.report(&on.name("crash sweep of recovery"));
}

#[test]
fn a_single_failed_operation_is_reported_and_loses_nothing() {
    ALL.into_iter().for_each(sweep_of_faults);
}

fn sweep_of_faults(on: On) {
    use deuteron::device::{FaultKind, Operation};
    let states = states();
    let mut sweep = Sweep::default();
    let kinds = [Operation::Write, Operation::Sync, Operation::Allocate, Operation::SyncDirectory];
    for operation in kinds {
        for kind in [FaultKind::Refuse, FaultKind::Full, FaultKind::Partial, FaultKind::Lose] {
            for nth in 0.. {
                let disk = SimulatedDisk::new(SEED);
                disk.set_faults(FaultPlan::new().fail(operation, nth, kind));
                let mut reached = Reached::default();
                let outcome = run(&disk, on, &mut reached);
                if disk.faults_fired() == 0 {
                    break;
                }
                sweep.point();
                let place = format!("{kind:?} of {operation} number {nth}");
                if let Err(error) = &outcome
                    && error.is_retryable()
                {
                    sweep.failed(&place, format!("a broken device looks like a conflict: {error}"));
                }
                let survivor = disk.crash(CrashPolicy::LoseAll);
                sweep.recovered(place, verify(survivor, on, &reached, &states));
            }
        }
    }
    sweep.report(&on.name("fault sweep"));
}

#[test]
fn a_full_disk_in_the_middle_of_commits_loses_nothing_and_ends_when_there_is_room() {
    ALL.into_iter().for_each(sweep_of_full_disks);
}

fn sweep_of_full_disks(on: On) {
    let states = states();
    let mut sweep = Sweep::default();
    let disk = SimulatedDisk::new(SEED);
    let mut reached = Reached::default();
    run(&disk, on, &mut reached).expect("nothing fails");
    let needed = disk.used_bytes();
    for percent in [5, 20, 40, 60, 80, 95] {
        sweep.point();
        let disk = SimulatedDisk::new(SEED);
        disk.set_capacity(Some(needed * percent / 100));
        let mut reached = Reached::default();
        let outcome = run(&disk, on, &mut reached);
        if let Err(error) = outcome {
            assert!(
                matches!(error, Error::DiskFull { .. } | Error::Poisoned { .. }),
                "a full disk is named: {}",
                causes(&error)
            );
        }
        let survivor = disk.crash(CrashPolicy::KeepAll);
        disk.set_capacity(None);
        sweep.recovered(format!("{percent} % of the room"), verify(survivor, on, &reached, &states));
    }
    sweep.report(&on.name("full disk"));
}
