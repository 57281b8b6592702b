//! The Bw-tree data component, and the stand-alone key-value store that it is.
//!
//! [`BwTreeDc`] implements the [`DataComponent`](deuteron_contract::DataComponent) contract: each table is a Bw-tree
//! (`deuteron-bwtree`) whose pages live in one store (`deuteron-llama`). It keeps a cache inside a budget, makes
//! what was applied durable at redo scan start points, and recovers to the last of them.
//!
//! | module | what |
//! |---|---|
//! | `dc` | the component: operations with their retry loops, checkpoints, maintenance, check |
//! | `operations` | operations on records as the trees keep them |
//! | `drop_table` | tables that are dropped, in steps |
//! | `reclaim` | space that is given back: merges, cleaning, compaction |
//! | `table_directory` | from a table's identifier to its tree |
//! | `bulk` | a new table from records in order |
//! | `files` | its files as of a moment, for backups |
//! | `stored_value` | what the value of a record is as a tree keeps it |
//! | `large_values` | values in chunks, each on a page of its own |
//! | `sweep` | large values that nothing refers to any more |
//! | `tombstones` | when a delete may be forgotten |
//! | `options` | what can be set |
//!
//! # As a key-value store
//!
//! The component stands alone, too: an atomic record store without transactions and without a log (the first of the paper's
//! deployments). `deuteron-store` makes a product of it; what follows is the component as it is. The caller numbers its writes; what was written is durable after a redo scan start point.
//!
//! ```
//! use deuteron_contract::{DataComponent, Lsn, Operation, TableId, Timestamp};
//! use deuteron_dc::{BwTreeDc, DcOptions};
//! use std::sync::Arc;
//!
//! let directory = Arc::new(deuteron_device::MemoryDirectory::new()); // or OsDirectory
//! let open = || BwTreeDc::open(directory.clone(), deuteron_epoch::Epochs::new(), DcOptions::default());
//! let table = TableId(1);
//! let write = |number, key, value| Operation {
//!     table, key, value, timestamp: Timestamp(number), lsn: Lsn(number),
//! };
//!
//! let store = open()?;
//! store.apply(&[write(1, b"one", Some(b"1")), write(2, b"two", Some(b"2"))])?;
//! store.apply(&[write(3, b"one", None)])?;
//! assert_eq!(store.get(table, b"two")?.unwrap().value.as_deref(), Some(&b"2"[..]));
//! assert_eq!(store.get(table, b"one")?.unwrap().value, None);
//!
//! store.redo_scan_start_point(Lsn(4))?; // everything below 4 is durable
//! drop(store);
//! let store = open()?;
//! assert_eq!(store.recovered_redo_scan_start_point(), Lsn(4)); // numbering goes on here
//! assert_eq!(store.get(table, b"two")?.unwrap().timestamp, Timestamp(2));
//! # Ok::<(), deuteron_contract::DcError>(())
//! ```
//!
//! What this crate is not: it knows no transactions, keeps no log, and starts no threads; somebody calls
//! [`BwTreeDc::maintain_step`], or else those who apply do its work when memory runs short.

/// Meters what fuzzed decoders allocate.
#[cfg(all(test, not(loom)))]
#[global_allocator]
static METER: deuteron_fuzz::Meter = deuteron_fuzz::Meter;

mod access_method;
mod bulk;
mod dc;
mod drop_table;
mod error;
mod files;
mod large_values;
mod operations;
mod options;
mod reclaim;
mod salvage;
mod scan;
mod stored_value;
mod sweep;
mod sync;
mod table_directory;
mod tombstones;
mod user_data;

pub use bulk::{LoadError, TableLoad};
pub use dc::{BwTreeDc, DcReport};
pub use deuteron_llama::{SPACE_AMPLIFICATION_PERCENT_MIN, StoreFile};
pub use files::HeldFiles;
pub use options::DcOptions;
pub use reclaim::Compaction;
pub use salvage::{FoundValue, LoggedVersion, StoreSalvage, TableFound, TakeRecord};
