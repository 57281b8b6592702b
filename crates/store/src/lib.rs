//! An embeddable ordered key-value store: the data component with a face of its own, for people who want records and
//! no transactions (the first of the paper's deployments).
//!
//! ```
//! # let scratch = tempfile::tempdir()?;
//! # let path = scratch.path().join("readings");
//! use deuteron_store::{Batch, Store};
//!
//! let store = Store::open(&path)?;                       // Options::new().memory(1 << 30).open(path)
//! let readings = store.table("readings")?;               // Clone + Send + Sync
//! readings.upsert(b"cellar/08:00", b"11.5")?;            // blind: reads nothing, whatever is there
//! readings.delete(b"attic/07:00")?;
//! assert_eq!(readings.get(b"cellar/08:00")?.as_deref(), Some(&b"11.5"[..]));
//!
//! let mut batch = Batch::new();                          // many records, cheaper than one by one
//! batch.upsert(&readings, b"cellar/09:00", b"11.7").upsert(&readings, b"hall/09:00", b"19.0");
//! store.apply(&batch)?;
//!
//! for entry in readings.scan(&b"cellar/"[..]..&b"cellar0"[..]) {  // also .rev(); memory is one batch
//!     let (key, value) = entry?;
//!     println!("{} {}", key.escape_ascii(), value.escape_ascii());
//! }
//! store.persist()?;                                      // everything written so far is durable
//! store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is durable when
//!
//! There is no log. What a write has returned for is visible to everybody, and durable
//!
//! - when a [`Store::persist`] that began later has returned,
//! - or after about [`Options::persist_every`] by itself,
//! - or when [`Store::close`] has returned.
//!
//! A crash leaves everything that was durable, and of what was written later *some*: each record as it was after one of its
//! writes, not before the durable one. It does not leave a prefix of the writes, and it may leave one part of a batch. Who
//! needs that takes the crate `deuteron`, which adds a log and transactions to the same component.
//!
//! # What this crate is not
//!
//! It has no transactions, no snapshots and no log, and it is no server. Pages, trees and files are in the crates below it;
//! this one adds names, numbers for the writes, and the thread for the background work, which `deuteron-dc` does not start.
#![forbid(unsafe_code)]

mod backup;
mod batch;
mod catalogue;
mod engine;
mod error;
mod keeper;
mod load;
mod options;
mod scan;
mod stamps;
mod statistics;
mod store;
mod sync;
mod table;
mod turns;
mod under_way;

pub use backup::{BackupReport, restore, restore_in};
pub use batch::Batch;
pub use deuteron_contract::{KeyBounds, KeyRange};
pub use deuteron_dc::{Compaction, SPACE_AMPLIFICATION_PERCENT_MIN};
pub use deuteron_histogram::Distribution;
pub use error::Error;
pub use load::TableLoad;
pub use options::{MEMORY_BYTES_MIN, Options};
pub use scan::{Entry, LentEntry, Scan};
pub use statistics::{CheckReport, Stats};
pub use store::Store;
pub use table::Table;

/// Storage devices: for stores in memory, on the simulated disk, or on a device of one's own.
pub mod device {
    pub use deuteron_device::*;
}
