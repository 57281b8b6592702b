//! Schedules of an assembled component: a scenario run again and again with a switch of threads at any access to shared memory,
//! chosen by shuttle. There in builds with `--cfg shuttle` only.

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::collections::BTreeMap;
// Of std: no places to switch threads.
use std::sync::{Mutex, PoisonError};

/// What is counted over all schedules: that what should meet is there to meet.
#[derive(Debug, Default)]
pub struct Counts(Mutex<BTreeMap<&'static str, u64>>);

impl Counts {
    /// Nothing yet.
    pub const fn new() -> Counts {
        Counts(Mutex::new(BTreeMap::new()))
    }

    /// Adds what one schedule has counted.
    pub fn add(&self, name: &'static str, count: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(name).or_default() += count;
    }

    fn taken(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A scenario to be run under schedules.
#[derive(Clone, Copy, Debug)]
pub struct Schedules {
    /// Panics if something is wrong.
    pub scenario: fn(),
    /// Of one schedule: more are taken for one that does not end.
    pub steps_max: usize,
    /// Where a schedule that failed is kept, in a file that the failure names.
    pub directory: &'static str,
}

impl Schedules {
    /// Runs the schedule in the file that `DEUTERON_REPLAY` names, if it is set.
    pub fn replay(&self) {
        if let Ok(file) = std::env::var("DEUTERON_REPLAY") {
            self.run(ReplayScheduler::new_from_file(file).expect("a schedule"));
        }
    }

    /// Runs as many schedules as `DEUTERON_SCHEDULES` says (300) at random, and as many of either of two depths (PCT). Prints how
    /// many there were, and what they counted.
    ///
    /// # Panics
    /// If the scenario does, or if something has been counted of which there was none in any schedule.
    pub fn run_all(&self, counts: &Counts) {
        let each = std::env::var("DEUTERON_SCHEDULES").map_or(300, |count| count.parse().expect("a number"));
        let run = [
            self.run(RandomScheduler::new(each)),
            self.run(PctScheduler::new(3, each)),
            self.run(PctScheduler::new(30, each)),
        ];
        let counted = counts.taken().into_iter().map(|(name, count)| {
            assert!(count > 0, "no {name} in any schedule");
            format!("{count} {name}")
        });
        let counted: Vec<_> = counted.collect();
        println!("shuttle: {} schedules, {}, 0 failures", run.iter().sum::<usize>(), counted.join(", "));
    }

    fn run(&self, scheduler: impl Scheduler + 'static) -> usize {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config.max_steps = MaxSteps::FailAfter(self.steps_max);
        config.silence_warnings = true;
        config.failure_persistence = FailurePersistence::File(Some(self.directory.into()));
        Runner::new(scheduler, config).run(self.scenario)
    }
}
