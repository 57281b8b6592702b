//! The transaction component (TC): timestamps, versions, commit, conflicts.
//!
//! It decides who may see what, and nothing else: where records lie is the business of a data component, which it knows
//! through `deuteron-contract` only. Writes go into the recovery log, which is also the cache of recent versions; a proxy
//! posts them from there.
//!
//! ```text
//!   Transaction ── read ─── MVCC table ── miss ──► data component
//!        │                    │    ▲                     ▲
//!        │ write              │    └─ versions           │ blind upserts, below the horizon
//!        ▼                    ▼                          │
//!   recovery log (ring) ── value of a version          proxy ── progress ──► collector
//!        └────────────── stable buffers ─────────────────┘
//! ```
//!
//! | module | what |
//! |---|---|
//! | `component`, `transaction`, `scan` | what the facade uses: [`TransactionComponent`], [`Transaction`], [`Scan`], [`ScanCursor`] |
//! | `read`, `write`, `update`, `change`, `savepoint`, `commit`, `collect` | the rules |
//! | `core`, `active_timestamps` | what transactions share: the horizon, who reads as of when, stalls, making room |
//! | `fence`, `retention` | read-only transactions, now and in the past |
//! | `clock`, `status`, `transaction_table`, `announcements`, `chunks`, `workspace` | timestamps; transactions |
//! | `mvcc_table`, `newest`, `record`, `version`, `linked`, `recycler`, `superseded` | the latch-free hash table of records and their versions, which lie in the pool |
//! | `segment`, `entries`, `range_timestamps`, `empty_ranges`, `ordered_index`, `skip_list` | what scans need |
//! | `version_manager` | where values are, and what has been applied |
//! | `memory`, `statistics`, `zeroed_array` | accounts |
//! | `planted`, `schedule`, `counted` | for the tests |
//!
//! `docs/design/transactions.md` states the rules R1 to R26 that the code cites, and proves them.
//!
//! What this crate is not: it starts no threads and never sleeps ([`Host`] waits for it); it stores nothing; it does not
//! retry. It holds no epoch guard while anything waits, and none while the user's code runs.
//!
//! Source: *High Performance Transactions in Deuteronomy* (CIDR 2015), sections 2, 3 and 4.4.
//!
//! ```
//! use deuteron_contract::{Lsn, MemoryDc, TableId};
//! use deuteron_device::MemoryDirectory;
//! use deuteron_epoch::Epochs;
//! use deuteron_log::{Log, LogOptions};
//! use deuteron_tc::{Host, Stall, TcOptions, TransactionComponent};
//! use std::sync::Arc;
//!
//! /// Flushes the log when an operation waits for it.
//! struct Flusher(Arc<Log>);
//!
//! impl Host for Flusher {
//!     fn stalled(&self, _: Stall) -> Result<(), String> {
//!         self.0.flush_step().map(drop).map_err(|error| error.to_string())
//!     }
//! }
//!
//! let epochs = Epochs::new();
//! let directory = Arc::new(MemoryDirectory::new());
//! let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs.clone(), Lsn(0)..Lsn(0))?;
//! let log = Arc::new(log);
//! let host = Arc::new(Flusher(log.clone()));
//! let dc = Arc::new(MemoryDc::new());
//! let tc = TransactionComponent::open(TcOptions::tiny_for_tests(), log, dc, epochs, host)?;
//!
//! let table = TableId(1);
//! let mut tx = tc.begin();
//! tx.put(table, b"apples", b"12")?;
//! let committed = tx.commit()?;
//! assert!(committed.durable_at.is_some());
//!
//! let mut tx = tc.begin();
//! assert_eq!(tx.get(table, b"apples")?.as_deref(), Some(&b"12"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod active_timestamps;
mod ahead;
mod announcements;
mod change;
mod chunks;
mod clock;
mod collect;
mod commit;
mod component;
mod core;
#[cfg(all(test, not(loom)))]
mod counted;
mod dropped_tables;
mod empty_ranges;
mod entries;
mod error;
mod fence;
mod held;
mod host;
mod linked;
mod lookahead;
mod memory;
mod mvcc_table;
mod newest;
mod options;
mod ordered_index;
mod planted;
mod range_timestamps;
mod read;
mod record;
mod recycler;
mod remembered;
mod retention;
mod savepoint;
mod scan;
mod schedule;
mod segment;
mod skip_list;
mod statistics;
mod status;
mod superseded;
mod sync;
mod transaction;
mod transaction_table;
mod turnstile;
mod update;
mod version;
mod version_manager;
mod workspace;
mod write;
mod zeroed_array;

pub use component::TransactionComponent;
pub use entries::Entries;
pub use error::{ChangeError, Conflict, ConflictCause, ConflictPlace, TcError};
pub use host::{Host, Stall};
pub use lookahead::Lookahead;
pub use options::{BeginOptions, ConcurrencyControl, Isolation, TcOptions};
pub use savepoint::Savepoint;
pub use scan::{Entry, Scan, ScanCursor};
pub use statistics::TcStatistics;
pub use transaction::{Committed, Transaction};

#[cfg(all(test, not(loom)))]
mod change_tests;
#[cfg(all(test, not(loom)))]
mod collect_tests;
#[cfg(all(test, not(loom)))]
mod isolation_tests;
#[cfg(all(test, not(loom)))]
mod memory_tests;
#[cfg(all(test, not(loom)))]
mod model_tests;
#[cfg(all(test, not(loom)))]
mod read_tests;
#[cfg(all(test, not(loom)))]
mod scan_tests;
#[cfg(all(test, not(loom)))]
mod scenario_tests;
#[cfg(all(test, not(loom)))]
mod schedule_tests;
#[cfg(all(test, not(any(loom, shuttle))))]
mod shared_line_tests;
#[cfg(all(test, not(loom)))]
mod stress_tests;
#[cfg(all(test, not(loom)))]
mod test_bed;
#[cfg(all(test, not(loom)))]
mod transaction_tests;
/// Meters what is taken and given back.
#[cfg(all(test, not(any(loom, shuttle))))]
#[global_allocator]
static METER: deuteron_fuzz::Meter = deuteron_fuzz::Meter;
// The bed speaks of the component by its name, as tests and examples outside include it too.
#[cfg(all(test, not(loom)))]
extern crate self as deuteron_tc;
