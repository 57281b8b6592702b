//! What happens to the machine: faults, power cuts, and what is found after them.

use crate::features::Feature;
use crate::history::Found;
use crate::world::{Halt, World, problem};
use deuteron::device::{CrashPolicy, FaultKind, FaultPlan, Operation, SimulatedDirectory};
use deuteron::{Db, Error};
use std::sync::Arc;

/// So many openings in a row are disturbed at most.
const DEPTH_MAX: u32 = 3;

const CHANGES: [Operation; 6] = [
    Operation::Write,
    Operation::Sync,
    Operation::SyncDirectory,
    Operation::Allocate,
    Operation::Remove,
    Operation::Rename,
];

impl World<'_> {
    /// Plans what will befall the machine from here to its next stop. In a recovery (`depth` over 0) it comes soon.
    fn plan(&mut self, depth: u32) {
        let mut plan = FaultPlan::new();
        self.fails = false;
        self.disk.set_capacity(None);
        let recovers = depth > 0;
        let random = &mut self.random;
        let span = if recovers { 40 } else { 1 + 6 * u64::from(self.configuration.steps.min(200)) };
        let (cut, failed, full, lie, slow) =
            (random.below(4), random.below(4), random.below(4), random.below(6), random.below(4));
        let at =
            [random.below(span), random.below(span / 2 + 1), random.below(span / 2 + 1), random.below(8)];
        if (!recovers && cut > 0 && self.configuration.has(Feature::Crashes))
            || (recovers && cut > 1 && self.configuration.has(Feature::RecoveryCrashes))
        {
            plan = plan.crash_after(self.disk.operations() + at[0]);
        }
        if failed < 2 && self.configuration.has(Feature::Errors) {
            let kinds = [FaultKind::Refuse, FaultKind::Full, FaultKind::Partial, FaultKind::Lose];
            let kind = kinds[random.below(4) as usize];
            let operation = match random.below(8) {
                0 => Operation::Read,
                1 => Operation::Open,
                other => CHANGES[other as usize - 2],
            };
            // Soon as well as late: of some operations there are few between two stops.
            let at = at[1] >> at[3];
            plan = match random.coin() {
                true => plan.fail(operation, at, kind),
                false => plan.fail_from(operation, at, kind),
            };
            self.fails = true;
        }
        if full == 0 && self.configuration.has(Feature::FullDisk) {
            let more = random.below(400) * 1024;
            self.disk.set_capacity(Some(self.disk.used_bytes() + more));
            self.fails = true;
        }
        if lie == 0 && self.configuration.has(Feature::Lies) {
            let (operation, kind) = match random.below(7) {
                0 => (Operation::Write, FaultKind::Forget),
                1 => (Operation::Write, FaultKind::Misdirect),
                2 => (Operation::Write, FaultKind::Short),
                3 => (Operation::Write, FaultKind::Rot),
                4 => (Operation::Read, FaultKind::Stale),
                5 => (Operation::Read, FaultKind::Rot),
                _ => (Operation::Sync, FaultKind::Forget),
            };
            plan = plan.fail(operation, at[2], kind);
        }
        if slow == 0 && self.configuration.has(Feature::Slow) {
            plan = plan.fail_from(Operation::Write, at[3], FaultKind::Slow);
        }
        self.disk.set_faults(plan);
    }

    /// Whether the plan of the machine that runs has made the device lie.
    pub fn notice_lies(&mut self) {
        self.lied |= self.disk.lies_told() > 0;
    }

    /// Flips a bit of some file, or takes a byte out of its middle.
    pub fn rot(&mut self) {
        let files = self.disk.files();
        let Some((name, length)) = files.get(self.random.below(files.len().max(1) as u64) as usize) else {
            return;
        };
        if *length > 0 {
            let (at, mask) = (self.random.below(*length), 1 << self.random.below(8));
            self.lied |= self.disk.flip_bits(name, at, mask).is_ok();
        }
    }

    /// Cuts the power, and starts the machine and the database again, several times perhaps.
    pub fn restart(&mut self) -> Result<(), Halt> {
        self.replay()?;
        let mut depth = 0;
        loop {
            self.notice_lies();
            self.report.faults += self.disk.faults_fired();
            let policy = CrashPolicy::of(self.random.below(3));
            // The handles of the old machine fail from here on, so that dropping them changes nothing.
            let directory = self.disk.crash(policy);
            self.forget_handles();
            if depth < DEPTH_MAX && (depth > 0 || self.random.coin()) {
                self.plan(depth + 1);
            } else {
                self.plan_nothing();
            }
            depth += 1;
            self.report.recoveries += 1;
            self.options = self.configuration.options(&mut self.random);
            let found = self.open(directory);
            match found {
                Ok((db, found)) => {
                    self.db = Some(db);
                    let same = self.compare(&found);
                    self.notice_lies();
                    self.report.faults += self.disk.faults_fired();
                    // What has failed in the recovery may show later.
                    let fails = self.fails;
                    self.plan(0);
                    self.fails |= fails;
                    return same;
                }
                Err(Halt::Error(error)) => {
                    self.report.broken_recoveries += 1;
                    self.judge(&error)?;
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Opens the database, and reads all that is in it.
    fn open(&mut self, directory: SimulatedDirectory) -> Result<(Db, Found), Halt> {
        let opened = self.options.clone().open_in(Arc::new(directory)).map_err(Halt::from);
        let found = opened.and_then(|db| {
            if db.timestamp() < self.newest && !self.lied {
                let (now, newest) = (db.timestamp(), self.newest);
                return problem(format!(
                    "the clock says {now} after an opening, and transactions had come to {newest}"
                ));
            }
            let found = find(&db)?;
            Ok((db, found))
        });
        self.notice_lies();
        found
    }

    /// Closes the database and opens it again; or only opens it, if it is the first time.
    pub fn reopen(&mut self) -> Result<(), Halt> {
        if let Some(db) = self.db.take() {
            self.end_clients();
            let closed = db.close();
            if let Err(error) = closed {
                self.judge(&error)?;
                return self.restart();
            }
            self.history.acknowledge_all();
            self.replay()?;
            self.report.faults += self.disk.faults_fired();
            self.notice_lies();
            self.forget_handles();
        }
        self.report.reopenings += 1;
        self.options = self.configuration.options(&mut self.random);
        self.plan(0);
        match self.open(self.disk.directory()) {
            Ok((db, found)) => {
                self.db = Some(db);
                self.compare(&found)
            }
            Err(Halt::Error(error)) => {
                self.judge(&error)?;
                self.restart()
            }
            Err(other) => Err(other),
        }
    }

    fn plan_nothing(&mut self) {
        self.fails = false;
        self.disk.set_capacity(None);
        self.disk.set_faults(FaultPlan::new());
    }

    /// No fault any more.
    pub fn calm(&mut self) {
        self.notice_lies();
        self.report.faults += self.disk.faults_fired();
        // What has failed before may show later.
        let fails = self.fails;
        self.plan_nothing();
        self.fails = fails;
    }

    pub fn end_clients(&mut self) {
        self.clients.iter_mut().for_each(|client| *client = None);
        self.due.clear();
    }

    fn forget_handles(&mut self) {
        self.end_clients();
        self.dropped = None;
        self.uncertain.clear();
        self.slots.iter_mut().for_each(|slot| slot.table = None);
        self.db = None;
    }

    /// Replays what transactions have seen.
    pub fn replay(&mut self) -> Result<(), Halt> {
        self.history.replay().map_err(Halt::Problem)
    }

    /// What was found must be what should be there.
    fn compare(&mut self, found: &Found) -> Result<(), Halt> {
        for (name, table) in found {
            self.saw_bytes(name.as_bytes());
            table.iter().for_each(|(key, value)| {
                self.saw_bytes(key);
                self.saw_bytes(value);
            });
        }
        let lost = self.history.restart(found, !self.lied).map_err(Halt::Problem)?;
        self.report.lost_to_lies += lost as u64;
        // The tables' handles, under the generations that they have.
        for index in 0..self.slots.len() {
            let name = self.slots[index].name.clone();
            let generation = self.history.present().names.get(&name).copied();
            if let Some(generation) = generation {
                match self.db().table(&name) {
                    Ok(table) => self.slots[index].table = Some((generation, table)),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// The state of a backup, restored on another machine.
    pub fn backup(&mut self) -> Result<(), Halt> {
        let shelf = deuteron::device::SimulatedDisk::new(self.random.next());
        let other = deuteron::device::SimulatedDisk::new(self.random.next());
        self.db().backup_in(&shelf.directory(), "backup")?;
        self.notice_lies();
        let restored = deuteron::restore_in(&shelf.directory(), "backup", &other.directory())
            .and_then(|_| self.options.clone().open_in(Arc::new(other.directory())));
        let found = restored.map_err(Halt::from).and_then(|db| find(&db));
        match found {
            Ok(found) => {
                self.report.backups += 1;
                let present = self.history.present();
                match present.is(&found) {
                    true => Ok(()),
                    false => problem(format!("the backup differs: {}", present.difference(&found))),
                }
            }
            Err(Halt::Error(error)) if self.lied => Err(Halt::Error(error)),
            Err(Halt::Error(error)) => {
                problem(format!("the backup cannot be read: {}", deuteron::device::with_causes(&error)))
            }
            Err(other) => Err(other),
        }
    }
}

/// Everything in a database.
pub fn find(db: &Db) -> Result<Found, Halt> {
    let mut found = Found::new();
    for name in db.tables()? {
        let table = db.table(&name)?;
        let records = db.transact(|tx| {
            let scan = tx.scan(&table, ..)?;
            scan.map(|entry| entry.map(|(key, value)| (key, value.into()))).collect::<Result<_, Error>>()
        })?;
        found.insert(name, records);
    }
    Ok(found)
}
