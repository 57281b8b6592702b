//! Histories of transactions, as their clients saw them, and a checker that says which isolation they had.
//!
//! A *history* is a file of lines, one transaction each: when it began and ended, what it did, what it saw, whether it
//! committed ([`Transaction`]; the format is in `docs/history.md`). The [`Checker`] infers from the values alone which
//! transaction must come before which, and looks for cycles, after Adya (*Weak Consistency*, 1999) and Kingsbury and
//! Alvaro (*Elle*, VLDB 2020). It knows nothing of any engine: no timestamp of one goes into a history.
//!
//! ```
//! use deuteron_history::{Level, check};
//! // Two transactions read both accounts and write one each.
//! let history = r#"
//! {"process":1,"begin":10,"end":40,"outcome":"committed","ops":[{"read":["x",null]},{"read":["y",null]},{"write":["x",1]}]}
//! {"process":2,"begin":20,"end":50,"outcome":"committed","ops":[{"read":["x",null]},{"read":["y",null]},{"write":["y",2]}]}
//! "#;
//! let report = check(history.as_bytes(), Level::Serializable)?;
//! assert_eq!(report.anomalies[0].name(), "G2-item");
//! assert!(check(history.as_bytes(), Level::Snapshot)?.anomalies.is_empty());
//! # Ok::<(), deuteron_history::HistoryError>(())
//! ```
//!
//! | module | what |
//! |---|---|
//! | `transaction` | what a history consists of |
//! | `write` | a transaction as a line |
//! | `read` | a line as a transaction |
//! | `level` | isolation levels, and what each forbids |
//! | `checker` | takes transactions one by one, keeps what counts |
//! | `outcomes` | which transactions of unknown outcome happened |
//! | `lists`, `registers` | the order of a key's versions, and the edges that follow |
//! | `graph` | nodes, edges, real time, strongly connected components |
//! | `cycles` | the shortest cycle of each kind |
//! | `report` | anomalies in words |
//!
//! What it is not: no generator of workloads, no recorder (`deuteron` has one), and no proof. A history without an anomaly
//! is one in which none can be inferred; where each value is written once and read at last, that is as good.
#![forbid(unsafe_code)]

#[cfg(feature = "check")]
mod checker;
#[cfg(feature = "check")]
mod cycles;
#[cfg(feature = "check")]
mod graph;
#[cfg(feature = "check")]
mod level;
#[cfg(feature = "check")]
mod lists;
#[cfg(feature = "check")]
mod outcomes;
#[cfg(feature = "check")]
mod read;
#[cfg(feature = "check")]
mod registers;
#[cfg(feature = "check")]
mod report;
mod transaction;
mod write;

#[cfg(feature = "check")]
pub use checker::{Checker, check};
#[cfg(feature = "check")]
pub use level::{Kind, Level};
#[cfg(feature = "check")]
pub use read::{HistoryError, read_lines};
#[cfg(feature = "check")]
pub use report::{Anomaly, Report};
pub use transaction::{Operation, Outcome, Range, Seen, Transaction, Value};
pub use write::LINE_BYTES_MAX;
