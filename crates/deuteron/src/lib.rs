//! Deuteron: a transactional record store. Serializable transactions over ordered tables of bytes, many writers at
//! once, durable, larger than memory.
//!
//! ```
//! # let scratch = tempfile::tempdir()?;
//! # let path = scratch.path().join("bank.db");
//! use deuteron::Db;
//!
//! let db = Db::open(&path)?;
//! let accounts = db.table("accounts")?;
//! db.transact(|tx| {                                     // retried on conflict, committed on Ok, durable on return
//!     let balance = tx.get(&accounts, b"alice")?;
//!     tx.put(&accounts, b"alice", b"90")?;
//!     tx.delete(&accounts, b"bob")?;
//!     Ok(balance)
//! })?;
//!
//! let mut tx = db.begin();                               // owned: no lifetime, Send
//! for entry in tx.scan(&accounts, &b"a"[..]..&b"b"[..])? {
//!     let (key, value) = entry?;
//!     assert_eq!((&key[..], &value[..]), (&b"alice"[..], &b"90"[..]));
//! }
//! let ticket = tx.commit_async()?;                       // committed in memory
//! ticket.wait()?;                                        // durable; also a Future
//! # db.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate wires the components together; what they are is in `ARCHITECTURE.md`. What it is not: it holds no
//! concurrency control (that is `deuteron-tc`), no page (`deuteron-dc`), no log format (`deuteron-log`), and it is
//! neither a server nor a query language.
#![forbid(unsafe_code)]

mod background;
mod backup;
mod cancellation;
mod catalogue;
mod check;
mod database;
mod deadline;
mod delay;
mod engine;
mod error;
mod handle;
mod history;
mod load;
mod lookahead;
mod observed;
mod operations;
mod options;
mod processors;
mod record;
mod recovery;
mod replay;
mod retry;
mod salvage;
mod scan;
mod shares;
mod signal;
pub mod sizes;
mod stall_host;
mod statistics;
mod superblock;
mod table;
mod ticket;
mod transaction;

pub use backup::{BackupReport, restore, restore_in, restore_into};
pub use cancellation::Cancellation;
pub use check::{CheckReport, check, check_fast, check_fast_in, check_in};
pub use database::Db;
pub use deuteron_contract::{KeyBounds, KeyRange, Lsn, Timestamp};
pub use deuteron_dc::{Compaction, SPACE_AMPLIFICATION_PERCENT_MIN};
pub use deuteron_histogram::Distribution;
pub use deuteron_tc::{ChangeError, ConcurrencyControl, ConflictCause, ConflictPlace, Isolation, Savepoint};
pub use error::{Conflict, Error};
pub use load::TableLoad;
pub use lookahead::Lookahead;
pub use observed::DataComponentObserver;
pub use options::{
    Background, Durability, Duty, MEMORY_BYTES_MIN, Options, VERSION_MEMORY_BYTES_MIN, WRITER_LOG_BYTES_MIN,
};
pub use processors::Processors;
pub use recovery::{RecoveryPlan, recovery_plan, recovery_plan_in};
pub use retry::RetryPolicy;
pub use salvage::{SalvageReport, Salvaged, SalvagedTable, salvage, salvage_in};
pub use scan::{Entry, LentEntry, Scan};
pub use statistics::{Stats, TransactionStats};
pub use superblock::FORMAT_VERSION;
pub use table::Table;
pub use ticket::Ticket;
pub use transaction::{Transaction, TransactionOptions};

/// Storage devices: for databases in memory, on the simulated disk, or on a device of one's own.
pub mod device {
    pub use deuteron_device::*;
}
