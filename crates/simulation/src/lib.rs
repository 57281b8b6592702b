//! Deterministic simulation: the whole engine on a simulated machine, one seed, one run.
//!
//! One thread does everything. Which client acts next and what it does, when the background duties have a turn, what the clock says, what the
//! device loses, tears, refuses and lies about, when the power fails and how often recovery is cut short: all of it follows
//! from the seed. So a run that fails can be repeated, and made smaller.
//!
//! | module | what |
//! |---|---|
//! | `features`, `configuration` | what a seed's run is made of (swarm testing) |
//! | `run` | its steps |
//! | `client` | transactions and notes of what they saw |
//! | `machine` | faults, power cuts, openings |
//! | `history`, `effect` | what should be there; replay in the order of commit timestamps |
//! | `smaller` | makes a failing run smaller |
//!
//! `docs/design/simulation.md` says what is checked, and what is not.
//!
//! ```
//! use deuteron_simulation::{Configuration, run};
//! let configuration = Configuration::of(1);
//! let outcome = run(&configuration);
//! assert_eq!(outcome.problem, None, "{}", configuration.command());
//! assert_eq!(outcome.trace, run(&configuration).trace);
//! ```

mod client;
mod configuration;
mod effect;
mod features;
mod history;
mod machine;
mod report;
mod run;
mod smaller;
mod world;

pub use configuration::{Configuration, Shape, fresh_seed};
pub use features::{Feature, Features};
pub use report::Report;
pub use run::{Outcome, run, silence_panics};
pub use smaller::smaller;
