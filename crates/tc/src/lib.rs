//! The transaction component: timestamps, versions, commit, conflicts.
#![warn(missing_docs)]

mod clock;
mod collect;
mod commit;
mod component;
mod core;
mod error;
mod host;
mod memory;
mod mvcc_table;
mod options;
mod ordered_index;
mod planted;
mod range_timestamps;
mod read;
mod record;
mod scan;
mod schedule;
mod skip_list;
mod statistics;
mod status;
mod sync;
mod transaction;
mod transaction_table;
mod version;
mod version_manager;
mod workspace;
mod write;
mod zeroed_array;

pub use component::TransactionComponent;
pub use error::{Conflict, ConflictCause, ConflictPlace, TcError};
pub use host::{Host, Stall};
pub use options::{BeginOptions, Isolation, TcOptions};
pub use scan::{Entry, Scan, ScanCursor};
pub use statistics::TcStatistics;
pub use transaction::{Committed, Transaction};

#[cfg(all(test, not(loom)))]
mod model_tests;
#[cfg(all(test, not(loom)))]
mod scenario_tests;
#[cfg(all(test, not(loom)))]
mod schedule_tests;
#[cfg(all(test, not(loom)))]
mod stress_tests;
#[cfg(all(test, not(loom)))]
mod test_bed;
