//! A run: steps, one after the other, each chosen by the seed.

use crate::configuration::Configuration;
use crate::effect::{Value, key_bytes, value_bytes};
use crate::features::Feature;
use crate::history::Entry;
use crate::report::Report;
use crate::world::{Halt, World, problem};
use deuteron::{Duty, Error};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What became of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The hash of all I/O and all results.
    pub trace: u64,
    /// What was done.
    pub report: Report,
    /// What is wrong, if anything is.
    pub problem: Option<String>,
}

/// Runs a seed: a machine, a database on it, clients; faults and power cuts; and looks whether all is as it should be.
pub fn run(configuration: &Configuration) -> Outcome {
    let mut world = World::new(configuration);
    let ended = QUIET.with(|quiet| {
        quiet.set(quiet.get() + 1);
        let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
        quiet.set(quiet.get() - 1);
        ended
    });
    let problem = match ended {
        Ok(Ok(())) => None,
        Ok(Err(Halt::Detected)) => {
            world.report.damage_named += 1;
            None
        }
        Ok(Err(Halt::Problem(text))) => Some(text),
        Ok(Err(Halt::Error(error))) => {
            Some(format!("an error that nobody expected: {}", deuteron::device::with_causes(&error)))
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Some(format!("a panic: {}", text.unwrap_or_default()))
        }
    };
    let outcome = Outcome { trace: world.trace(), report: std::mem::take(&mut world.report), problem };
    if outcome.problem.as_ref().is_some_and(|text| text.starts_with("a panic")) {
        // What a panic has left half done is not to be dropped.
        std::mem::forget(world);
    }
    outcome
}

std::thread_local! {
    /// Whether panics of this thread are reported by the run instead of being printed.
    static QUIET: Cell<u32> = const { Cell::new(0) };
}

/// Keeps panics that a run reports from being printed.
pub fn silence_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if QUIET.with(Cell::get) == 0 {
            usual(info);
        }
    }));
}

impl World<'_> {
    fn run(&mut self) -> Result<(), Halt> {
        self.handled(World::reopen)?;
        while self.report.steps < u64::from(self.configuration.steps) {
            self.report.steps += 1;
            self.handled(World::step)?;
        }
        // In the end all is well, closed, and as it should be.
        self.calm();
        self.handled(World::close_all)?;
        self.calm();
        self.handled(World::reopen)?;
        self.calm();
        self.handled(|world| {
            world.replay()?;
            world.check()
        })
    }

    /// Does something; if that fails for a reason, starts the machine again.
    fn handled(&mut self, action: impl FnOnce(&mut Self) -> Result<(), Halt>) -> Result<(), Halt> {
        let mut outcome = action(self);
        while let Err(Halt::Error(error)) = outcome {
            self.notice_lies();
            self.judge(&error)?;
            outcome = self.restart();
        }
        outcome
    }

    fn close_all(&mut self) -> Result<(), Halt> {
        self.end_clients();
        self.db().check()?;
        Ok(())
    }

    fn step(&mut self) -> Result<(), Halt> {
        match self.random.below(24) {
            0..16 => {
                let index = self.random.below(self.clients.len() as u64) as usize;
                self.client_step(index)
            }
            16..19 => self.duty(),
            19 => self.tickets(),
            20 => {
                self.advance();
                Ok(())
            }
            21 if self.has(Feature::Whole) => {
                if self.once_in(4) {
                    self.end_clients();
                }
                self.whole()
            }
            _ => self.administer(),
        }
    }

    /// What happens between the batches of a scan.
    pub fn step_within(&mut self) -> Result<(), Halt> {
        match self.random.below(3) {
            0 => self.duty(),
            _ => {
                let index = self.random.below(self.clients.len() as u64) as usize;
                match self.clients[index].is_some() {
                    true => self.client_step(index),
                    false => Ok(()),
                }
            }
        }
    }

    /// Background work.
    fn duty(&mut self) -> Result<(), Halt> {
        if !self.has(Feature::Duties) {
            self.db().step()?;
            return Ok(());
        }
        let duty = Duty::ALL[self.random.below(4) as usize];
        let times = 1 + self.random.below(4);
        for _ in 0..times {
            let worked = self.db().step_of(duty)?;
            self.saw(u64::from(worked));
        }
        Ok(())
    }

    /// Asks for the durability of commits that were not waited for.
    fn tickets(&mut self) -> Result<(), Halt> {
        let now = deuteron::device::Directory::now(&self.disk.directory());
        // Whoever flushes after a window has ended makes its commits durable.
        if self.once_in(4) {
            while self.db().step_of(Duty::Flush)? {}
            let late =
                self.due.iter().find(|due| due.by.is_some_and(|by| by <= now) && !due.ticket.is_durable());
            if late.is_some() {
                return problem("a delayed commit is not durable in its time");
            }
        }
        if self.due.is_empty() {
            return Ok(());
        }
        let index = self.random.below(self.due.len() as u64) as usize;
        let mut due = self.due.swap_remove(index);
        match self.random.below(3) {
            0 => due.ticket.wait()?,
            1 => {
                let durable = due.ticket.wait_timeout(std::time::Duration::from_millis(1))?;
                if !durable {
                    return problem("nobody else works, and yet a commit did not become durable");
                }
            }
            _ if !due.ticket.is_durable() => {
                self.due.push(due);
                return Ok(());
            }
            _ => {}
        }
        self.history.acknowledge(due.entry);
        Ok(())
    }

    /// What no client does.
    fn administer(&mut self) -> Result<(), Halt> {
        match self.random.below(40) {
            0..10 => self.create_table(),
            10..12 if self.has(Feature::LoadTable) => self.load_table(),
            12..14 if self.has(Feature::DropTable) => self.drop_table(),
            // The fewer tables, the more is done to each while it is dropped.
            29..35 if self.has(Feature::DropTable) && self.slots.len() < 3 => self.drop_table(),
            14 if self.has(Feature::Backup) => self.backup(),
            15 if self.has(Feature::Compact) => Ok(self.db().compact().map(drop)?),
            16..20 if self.has(Feature::Checkpoint) => {
                self.db().checkpoint()?;
                self.history.acknowledge_all();
                Ok(())
            }
            20..22 => {
                self.db().flush()?;
                self.history.acknowledge_all();
                Ok(())
            }
            22 if self.has(Feature::Check) => self.check(),
            23 | 24 if self.has(Feature::Reopen) => self.reopen(),
            25 if self.has(Feature::Crashes) => self.restart(),
            26 if self.has(Feature::Lies) => {
                self.rot();
                Ok(())
            }
            27 => {
                let names = self.db().tables()?;
                match names.iter().eq(self.history.present().names.keys()) {
                    true => Ok(()),
                    false => problem(format!("tables {names:?}")),
                }
            }
            28 => {
                let stats = self.db().stats();
                self.saw(stats.transactions.commits);
                Ok(())
            }
            _ => self.create_table(),
        }
    }

    /// The check finds nothing, if the device has not lied.
    fn check(&mut self) -> Result<(), Halt> {
        let report = self.db().check()?;
        self.notice_lies();
        match report.problems.first() {
            Some(text) if !self.lied => problem(format!("the check says: {text}")),
            _ => Ok(()),
        }
    }

    fn free_slot(&mut self) -> Option<usize> {
        (0..self.slots.len()).find(|index| self.slots[*index].table.is_none())
    }

    fn create_table(&mut self) -> Result<(), Halt> {
        let Some(index) = self.free_slot() else { return self.duty() };
        self.generations += 1;
        let (name, generation) = (self.slots[index].name.clone(), self.generations);
        let entry = Entry::Create(name.clone(), generation, BTreeMap::new());
        let created = self.db().table(&name);
        let table = self.changed_catalogue(entry, created)?;
        self.slots[index].table = Some((generation, table));
        Ok(())
    }

    fn load_table(&mut self) -> Result<(), Halt> {
        let Some(index) = self.free_slot() else { return Ok(()) };
        let mut records = BTreeMap::new();
        for key in 0..self.random.below(u64::from(self.configuration.keys)) {
            self.number += 1;
            let length = self.random.below(self.configuration.value_bytes as u64 + 1) as usize;
            let value: Value = value_bytes(self.number, length);
            records.insert(key_bytes(self.configuration.shape, key as u32), value);
        }
        let name = self.slots[index].name.clone();
        let mut load = self.db().load_table(&name)?;
        for (key, value) in &records {
            load.push(key, value)?;
        }
        self.generations += 1;
        let generation = self.generations;
        let loaded = load.finish();
        let table = self.changed_catalogue(Entry::Create(name, generation, records), loaded)?;
        let now = self.db().timestamp();
        self.history.loaded(generation, now);
        self.slots[index].table = Some((generation, table));
        Ok(())
    }

    fn drop_table(&mut self) -> Result<(), Halt> {
        let index = self.random.below(self.slots.len() as u64) as usize;
        let name = self.slots[index].name.clone();
        let Some((_, table)) = self.slots[index].table.take() else {
            return match self.db().drop_table(&name) {
                Err(Error::NoSuchTable { .. }) => Ok(()),
                // Because of what has happened before.
                Err(error @ (Error::Poisoned { .. } | Error::Closed)) => Err(error.into()),
                other => problem(format!("dropping no table returned {other:?}")),
            };
        };
        let dropped = self.db().drop_table(&name);
        self.dropped = Some(table);
        self.changed_catalogue(Entry::Drop(name), dropped)
    }

    /// A change of the catalogue is durable when it returns, or in doubt if it fails.
    fn changed_catalogue<T>(&mut self, entry: Entry, outcome: Result<T, Error>) -> Result<T, Halt> {
        match outcome {
            Ok(value) => {
                self.committed(entry)?;
                self.history.acknowledge_all();
                Ok(value)
            }
            Err(error) => {
                self.history.doubtful(entry);
                Err(error.into())
            }
        }
    }
}
