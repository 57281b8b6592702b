//! The conformance suite: what every data component is tested with.
//!
//! A component's tests implement [`Harness`] and call [`run`]. The suite delivers generated operations in random
//! order, repeated and interrupted, crashes and replays, and compares every answer with a model of the contract.
//! A failing history is shrunk and printed; the seed makes it come again. That the suite catches what it should
//! is tested with components that each break one rule (`tests/planted_bugs.rs`).
//!
//! | rule | checked |
//! |---|---|
//! | C1, C2 | shuffled, repeated and interrupted delivery ends as delivery in order; ties go to the higher LSN |
//! | C3 | tombstones are returned, beat late arrivals, and may vanish only below the redo scan start point |
//! | C4 | after a crash nothing below the redo scan start point is missing; replay from it restores the rest |
//! | C5 | after a crash the end of stable log that the component states was announced, and is above all that survived |
//! | C6 | after a crash nothing has a timestamp above the one that the component states |
//! | get | the newest version with its timestamp, of one key or of several together; the answer's key is empty; tables are apart |
//! | prefetch | changes nothing that can be seen, whatever the keys |
//! | scan | both directions, every kind of bound, crossed bounds, batches that resume |
//! | size | a key or value over the limit is a typed error and loses nothing; the limits themselves work |
//! | concurrency | reads beside writers see whole versions that never go back |
//!
//! ```
//! use deuteron_contract::conformance::{self, Harness, Instance, Limits};
//! use deuteron_contract::{DataComponent, MemoryDc};
//!
//! struct Memory;
//! struct Opened(MemoryDc);
//!
//! impl Instance for Opened {
//!     fn component(&self) -> &dyn DataComponent {
//!         &self.0
//!     }
//!     fn crash(self: Box<Self>, seed: u64) -> Box<dyn Instance> {
//!         // Which of the operations that need not survive do so is up to the seed.
//!         Box::new(Opened(self.0.crash(|operation| (operation.lsn.0 >> 3 ^ seed) & 1 == 0)))
//!     }
//! }
//! impl Harness for Memory {
//!     fn open(&self) -> Box<dyn Instance> {
//!         Box::new(Opened(MemoryDc::with_limits(64, 256)))
//!     }
//!     fn limits(&self) -> Limits {
//!         Limits { key_bytes_max: 64, value_bytes_max: 256 }
//!     }
//! }
//!
//! conformance::check(&Memory, &conformance::Effort::quick()).unwrap();
//! ```

mod concurrency;
mod execute;
mod history;
mod random;
#[cfg(shuttle)]
mod schedules;
mod shrink;
mod sizes;

pub use random::SplitMix;
#[cfg(shuttle)]
pub use schedules::{Counts, Schedules};

use crate::DataComponent;
use history::Profile;
use std::fmt;

/// The component under test, as the suite opens it.
pub trait Harness {
    /// A fresh component that holds nothing.
    fn open(&self) -> Box<dyn Instance>;

    /// What the component takes. The suite wants keys of at least 8 bytes and values of at least 16.
    fn limits(&self) -> Limits;
}

/// One opened component, together with whatever it stands on (a simulated disk, say).
pub trait Instance {
    /// The component.
    fn component(&self) -> &dyn DataComponent;

    /// Does a little of the work that a component has in the background (consolidate, split, flush, evict, clean),
    /// chosen by `seed`. The suite calls this between operations and beside them.
    fn maintain(&self, seed: u64) {
        let _ = seed;
    }

    /// Stops the machine and restarts the component from what is durable. `seed` decides what else survives.
    fn crash(self: Box<Self>, seed: u64) -> Box<dyn Instance>;
}

/// The sizes that a component takes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest key in bytes.
    pub key_bytes_max: usize,
    /// The longest value in bytes.
    pub value_bytes_max: usize,
}

/// How much the suite does.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Random histories per profile.
    pub histories: u64,
    /// The first history's seed; the others follow.
    pub first_seed: u64,
    /// Rounds of writing in the test of concurrency.
    pub rounds: u64,
    /// How often a failing history may be run again to make it smaller.
    pub shrink_runs_max: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Effort { histories: 60, first_seed: 1, rounds: 300, shrink_runs_max: 400 }
    }
}

impl Effort {
    /// Little enough for a test that runs at every save.
    pub fn quick() -> Self {
        Effort { histories: 8, rounds: 50, ..Effort::default() }
    }
}

/// A rule that the component broke, and the smallest history found that shows it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The rule, as in the table of the [module](self).
    pub rule: &'static str,
    /// What was expected and what was found.
    pub what: String,
    /// The history that shows it, one step a line.
    pub history: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the data component breaks rule {}: {}\n{}", self.rule, self.what, self.history)
    }
}

impl std::error::Error for Violation {}

/// Runs the whole suite.
///
/// # Panics
/// If the component breaks a rule, with the [`Violation`] as the message.
pub fn run(harness: &dyn Harness) {
    if let Err(violation) = check(harness, &Effort::default()) {
        panic!("{violation}");
    }
}

/// Runs the whole suite with the given effort.
///
/// # Errors
/// The first [`Violation`] found, shrunk.
pub fn check(harness: &dyn Harness, effort: &Effort) -> Result<(), Box<Violation>> {
    let limits = harness.limits();
    for profile in Profile::ALL {
        for seed in effort.first_seed..effort.first_seed + profile.share(effort.histories) {
            let history = history::generate(&profile, seed, limits);
            if let Err(broken) = execute::execute_caught(harness, &history) {
                let (history, broken) = shrink::shrink(harness, history, broken, effort.shrink_runs_max);
                let title = format!("seed {seed}, profile \"{}\":\n{history}", profile.name);
                return Err(broken.with_history(title));
            }
        }
    }
    sizes::check(harness)
        .and_then(|()| concurrency::check(harness, effort.rounds))
        .map_err(|broken| broken.with_history(String::new()))
}

/// A broken rule before its history has been shrunk.
#[derive(Debug)]
struct Broken {
    rule: &'static str,
    what: String,
}

impl Broken {
    fn new(rule: &'static str, what: impl fmt::Display) -> Self {
        Broken { rule, what: what.to_string() }
    }

    fn error(doing: &str, error: &crate::DcError) -> Self {
        Broken::new("error", format!("{doing} failed: {error}"))
    }

    fn with_history(self, history: String) -> Box<Violation> {
        Box::new(Violation { rule: self.rule, what: self.what, history })
    }
}
