//! The machine that does the workload: in stages, between which the database is closed or the power cut. What survives is
//! opened, compared with the states that may be, checked, written to, and opened once more.

use crate::script::{Action, Change, LASTING, State, action, difference, states};
use deuteron::device::simulated::Random;
use deuteron::device::{CrashPolicy, Directory, FaultPlan, Operation, SimulatedDisk, with_causes};
use deuteron::sizes::{Sizes, TcOptions};
use deuteron::{Db, Durability, Duty, Error, Options, RetryPolicy, Table, Transaction, TransactionOptions};
use deuteron_encryption::{EncryptedDirectory, Key, Keys};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// So many actions are done by one opening of the database.
pub const STAGE: u64 = 32;

/// What the database lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    TheDisk,
    /// The same with everything encrypted.
    EncryptedFiles,
}

impl On {
    pub const ALL: [On; 2] = [On::TheDisk, On::EncryptedFiles];

    pub fn name(self, sweep: &str) -> String {
        match self {
            On::TheDisk => sweep.to_owned(),
            On::EncryptedFiles => format!("{sweep}, encrypted"),
        }
    }
}

/// Why the workload did not go on.
#[derive(Debug)]
pub enum Halt {
    Error(Error),
    /// Something is not as it should be.
    Wrong(String),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        Halt::Error(error)
    }
}

/// How far the workload came.
#[derive(Default)]
pub struct Reached {
    begun: AtomicU64,
    acknowledged: AtomicU64,
}

impl Reached {
    /// As far as the stages before `stage` go.
    pub fn before(stage: u64) -> Reached {
        Reached { begun: (stage * STAGE).into(), acknowledged: (stage * STAGE).into() }
    }

    /// How many commits may be found.
    pub fn possible(&self) -> RangeInclusive<u64> {
        self.acknowledged.load(Ordering::Acquire)..=self.begun.load(Ordering::Acquire)
    }

    fn acknowledge(&self, count: u64) {
        self.acknowledged.store(count, Ordering::Release);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Little,
    Enough,
}

/// What a stage has done.
pub struct Did {
    /// The database's counters.
    pub counters: Vec<(String, u64)>,
    pub operations: [(Operation, u64); Operation::ALL.len()],
}

/// The workload, and what it should lead to.
pub struct Workload {
    pub on: On,
    pub stages: u64,
    states: Vec<State>,
}

impl Workload {
    pub fn new(on: On, stages: u64) -> Workload {
        Workload { on, stages, states: states(stages * STAGE) }
    }

    /// Opens the database as the workload does.
    pub fn open(&self, directory: impl Directory + 'static) -> Result<Db, Error> {
        self.open_with(directory, Memory::Little)
    }

    /// Opens the database with the least memory that works, or with enough for all of it.
    fn open_with(&self, directory: impl Directory + 'static, memory: Memory) -> Result<Db, Error> {
        let disk: Arc<dyn Directory> = Arc::new(directory);
        let directory = match self.on {
            On::TheDisk => disk,
            On::EncryptedFiles => match EncryptedDirectory::new(disk, Keys::new(Key::from_bytes([7; 32]))) {
                Ok(encrypted) => Arc::new(encrypted),
                Err(error) => {
                    return Err(Error::Device { context: "decrypt".into(), source: Box::new(error) });
                }
            },
        };
        let mut sizes = Sizes::tiny();
        sizes.dc.memory_bytes = 128 << 10;
        if memory == Memory::Enough {
            sizes.dc.memory_bytes = 16 << 20;
            sizes.tc = TcOptions { memory_bytes: 1 << 20, ..TcOptions::default() };
        }
        Options::tiny_for_tests().checkpoint_every(256 << 10).sizes(sizes).open_in(directory)
    }

    /// Whether the database that a stage opens on `disk` has lost what earlier stages did last, and nothing else.
    pub fn has_lost(&self, disk: &SimulatedDisk, stage: u64) -> bool {
        let Ok(db) = self.open(disk.directory()) else { return false };
        disk.set_faults(FaultPlan::new());
        state_of(&db).is_ok_and(|found| self.states[..(stage * STAGE) as usize].contains(&found))
    }

    /// How many commits there are in all.
    pub fn commits_max(&self) -> u64 {
        self.stages * STAGE
    }

    /// Runs all stages on an empty disk.
    pub fn run(&self, disk: &SimulatedDisk, reached: &Reached) -> Result<(), Halt> {
        (0..self.stages).try_for_each(|stage| self.run_stage(disk, stage, reached).map(drop))
    }

    /// Runs a stage to its end, or until the machine stops.
    pub fn run_stage(&self, disk: &SimulatedDisk, stage: u64, reached: &Reached) -> Result<Did, Halt> {
        let db = self.open(disk.directory())?;
        self.work(&db, stage, reached, || disk.advance(Duration::from_millis(1)))?;
        let counters = db.stats().counters;
        let operations = || Operation::ALL.map(|operation| (operation, disk.count(operation)));
        let did;
        let all = (stage + 1) * STAGE;
        if stage.is_multiple_of(3) {
            db.close()?;
            reached.acknowledge(all);
            did = operations();
        } else {
            db.flush()?;
            reached.acknowledge(all);
            did = operations();
            // The handles fail from here on, so that dropping the database changes nothing.
            disk.crash(if stage % 3 == 1 { CrashPolicy::LoseAll } else { CrashPolicy::Random });
        }
        Ok(Did { counters, operations: did })
    }

    /// Does what a stage does with the database. `between` is called after each action.
    pub fn work(
        &self,
        db: &Db,
        stage: u64,
        reached: &Reached,
        mut between: impl FnMut(),
    ) -> Result<(), Halt> {
        let mut tables = Tables { db, known: BTreeMap::new() };
        for name in LASTING {
            tables.get(name)?;
        }
        for number in stage * STAGE..(stage + 1) * STAGE {
            reached.begun.store(number + 1, Ordering::Release);
            let durable = self.act(&mut tables, number)?;
            if durable {
                reached.acknowledge(number + 1);
            }
            between();
            maintain(db, number)?;
        }
        Ok(())
    }

    /// Does what the script says. Whether it is durable.
    fn act(&self, tables: &mut Tables<'_>, number: u64) -> Result<bool, Halt> {
        let durability = match number % 8 {
            3 => Durability::None,
            7 => Durability::Delayed(Duration::from_millis(3)),
            _ => Durability::Sync,
        };
        match action(number) {
            Action::Transaction(changes) => {
                let options = TransactionOptions::new().durability(durability);
                let mut wrong = None;
                tables.db.transact_with(options, RetryPolicy::default(), |tx| {
                    wrong = self.read(tx, tables, number)?;
                    changes.iter().try_for_each(|change| perform(tx, tables, change))
                })?;
                match wrong {
                    None => Ok(durability == Durability::Sync),
                    Some(wrong) => Err(Halt::Wrong(wrong)),
                }
            }
            Action::Create(name) => Ok(tables.get(&name).map(|_| true)?),
            Action::Drop(name) => {
                tables.known.remove(&name);
                tables.db.drop_table(&name)?;
                Ok(true)
            }
            Action::Load(name, rows) => {
                let mut load = tables.db.load_table(&name)?;
                rows.iter().try_for_each(|(key, value)| load.push(key, value))?;
                load.finish()?;
                Ok(true)
            }
        }
    }

    /// Reads something of every table, and says what is not as it should be.
    fn read(
        &self,
        tx: &mut Transaction,
        tables: &mut Tables<'_>,
        number: u64,
    ) -> Result<Option<String>, Error> {
        let mut random = Random::new(number ^ 0xbeef);
        for (name, rows) in &self.states[number as usize] {
            let table = tables.get(name)?;
            let lower = format!("key/{:03}", random.below(200)).into_bytes();
            let found = tx.get(&table, &lower)?;
            if found.as_deref() != rows.get(&lower).map(|value| &value[..]) {
                return Ok(Some(format!("{} in {name} is read wrongly", lower.escape_ascii())));
            }
            let upper = format!("key/{:03}", random.below(200)).into_bytes();
            let range = if lower < upper { lower..upper } else { upper..lower };
            let scan = tx.scan(&table, &range.start[..]..&range.end[..])?;
            let found: Vec<_> = match random.coin() {
                true => scan.take(5).collect::<Result<_, _>>()?,
                false => scan.rev().take(5).collect::<Result<_, _>>()?,
            };
            let wanted =
                |(key, value): &(Vec<u8>, Vec<u8>)| rows.get(key).is_some_and(|known| known[..] == value[..]);
            let count = rows.range(range).count().min(5);
            if found.len() != count || !found.iter().all(wanted) {
                return Ok(Some(format!("a range of {name} is read wrongly")));
            }
        }
        Ok(None)
    }

    /// Opens what is on the disk and says what is wrong with it, or after how many commits it is. A thorough verification is done
    /// with little memory, and opens what has been recovered once more, after a power cut.
    pub fn verify(
        &self,
        disk: &SimulatedDisk,
        possible: RangeInclusive<u64>,
        thorough: bool,
    ) -> Result<u64, String> {
        let memory = if thorough { Memory::Little } else { Memory::Enough };
        let db = self
            .open_with(disk.directory(), memory)
            .map_err(|error| format!("does not open: {}", with_causes(&error)))?;
        let commits = self.survey(&db, possible)?;
        let cut = thorough.then(|| disk.fork(commits));
        db.close().map_err(|error| format!("does not close: {}", with_causes(&error)))?;
        if let Some(cut) = cut {
            cut.crash(if commits.is_multiple_of(2) { CrashPolicy::LoseAll } else { CrashPolicy::Random });
            let again = |error: Error| format!("does not open again: {}", with_causes(&error));
            let mut found = self
                .open_with(cut.directory(), Memory::Enough)
                .and_then(|db| state_of(&db))
                .map_err(again)?;
            let rows = found.get_mut(LASTING[0]).map(Arc::make_mut).ok_or("a table is lost")?;
            if rows.remove(&b"after"[..]).is_none() {
                return Err("has lost what was written after the recovery".into());
            }
            self.commits(&found, commits..=commits).map_err(|problem| format!("opened again: {problem}"))?;
        }
        Ok(commits)
    }

    /// After how many commits a database is that has been opened, which still takes writes; or what is wrong with it.
    pub fn survey(&self, db: &Db, possible: RangeInclusive<u64>) -> Result<u64, String> {
        let found = state_of(db).map_err(|error| format!("cannot be read: {}", with_causes(&error)))?;
        let commits = self.commits(&found, possible)?;
        let report = db.check().map_err(|error| format!("cannot be checked: {}", with_causes(&error)))?;
        if let Some(problem) = report.problems.first() {
            return Err(format!("after {commits} commits: {problem}"));
        }
        let table = db.table(LASTING[0]);
        let written = table.and_then(|table| db.transact(|tx| tx.put(&table, b"after", b"1")));
        written.map_err(|error| format!("takes no writes: {}", with_causes(&error)))?;
        Ok(commits)
    }

    fn commits(&self, found: &State, possible: RangeInclusive<u64>) -> Result<u64, String> {
        let of = |commits: u64| &self.states[commits as usize];
        if let Some(commits) = possible.clone().find(|commits| of(*commits) == found) {
            return Ok(commits);
        }
        let known = self.states.iter().position(|state| state == found);
        let difference = difference(of(*possible.start()), found).unwrap_or_default();
        Err(format!("holds the state after {known:?} commits, not one of {possible:?}: {difference}"))
    }
}

/// The tables that have been opened.
struct Tables<'d> {
    db: &'d Db,
    known: BTreeMap<String, Table>,
}

impl Tables<'_> {
    fn get(&mut self, name: &str) -> Result<Table, Error> {
        if let Some(table) = self.known.get(name) {
            return Ok(table.clone());
        }
        let table = self.db.table(name)?;
        self.known.insert(name.to_owned(), table.clone());
        Ok(table)
    }
}

fn perform(tx: &mut Transaction, tables: &mut Tables<'_>, change: &Change) -> Result<(), Error> {
    match change {
        Change::Put { table, key, value } => tx.put(&tables.get(table)?, key, value),
        Change::Delete { table, key } => tx.delete(&tables.get(table)?, key),
        Change::DeleteRange { table, keys } => {
            tx.delete_range(&tables.get(table)?, &keys.start[..]..&keys.end[..]).map(drop)
        }
        Change::Add { table, key, delta } => tx.add(&tables.get(table)?, key, *delta),
        Change::Append { table, key, bytes } => tx.append(&tables.get(table)?, key, bytes),
        Change::Undone(changes) => {
            let savepoint = tx.savepoint()?;
            changes.iter().try_for_each(|change| perform(tx, tables, change))?;
            tx.rollback_to(&savepoint)
        }
    }
}

/// Background work, some of it; which, says the number.
fn maintain(db: &Db, number: u64) -> Result<(), Error> {
    match Random::new(!number).below(6) {
        0 => drop(db.step()?),
        1 => drop(db.step_of(Duty::Flush)?),
        2 => {
            db.step_of(Duty::Flush)?;
            db.step_of(Duty::Post)?;
        }
        3 => drop(db.step_of(Duty::Keep)?),
        4 => {
            db.step()?;
            db.step()?;
        }
        _ => {}
    }
    match number % 128 {
        24 | 88 => db.checkpoint(),
        120 => db.compact().map(drop),
        _ => Ok(()),
    }
}

/// Everything that is in the database; the lasting tables in any case.
fn state_of(db: &Db) -> Result<State, Error> {
    for name in LASTING {
        db.table(name)?;
    }
    let mut state = State::new();
    for name in db.tables()? {
        let table = db.table(&name)?;
        let rows = db.transact(|tx| {
            let scan = tx.scan(&table, ..)?;
            scan.map(|entry| entry.map(|(key, value)| (key, value.into()))).collect::<Result<_, _>>()
        })?;
        state.insert(name, Arc::new(rows));
    }
    Ok(state)
}
