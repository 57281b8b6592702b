//! The TC Proxy (paper, section 4): reads stable log buffers, decides outcomes, posts blind upserts, reports progress.
//!
//! The recovery log is the only channel from transactions to data. Once a log buffer is stable, the proxy goes over
//! it twice. The *eager pass* follows the linked commit records and learns which transactions have committed and at
//! what final timestamp. The *delayed pass*, some buffers behind, meets the operations: those of committed transactions
//! are posted to the data component straight from the buffer's memory, in sorted batches; those of transactions that
//! have not ended yet are copied to a *side buffer*; those of aborted ones are dropped. When it is through, the
//! buffer can be reused.
//!
//! ```text
//!   stable log   ├──────────────┼───────────────────┼───────────────────▶
//!                │ released     │ scanned, not yet  │ not seen
//!                │              │ posted (the lag)  │
//!                            O-LSN               T-LSN
//!
//!   side buffer:  operations below O-LSN of transactions without a commit record below T-LSN
//!   waiting list: operations below O-LSN of transactions that committed at or above the horizon
//! ```
//!
//! The data component holds one version per key, so a version is posted only once it is below the *horizon*: no
//! active transaction can need the version that it replaces. Committed versions at or above it wait.
//!
//! | module | what |
//! |---|---|
//! | [`proxy`] | [`Proxy`]: the passes, in steps |
//! | [`replay`] | [`Proxy::replay`]: the same after a crash, by all threads |
//! | [`host`] | [`ProxyHost`], [`Progress`]: what the proxy asks of and tells the transaction component |
//! | [`source`] | [`StableLog`], [`RecordSource`], [`Entry`]: what the proxy sees of the log |
//! | [`options`], [`error`], [`statistics`] | [`Options`], [`ProxyError`], [`ProxyStatistics`] |
//!
//! The same passes replay the log after a crash ([`Proxy::replay`]): a proxy *is* redo recovery that never stops.
//!
//! ```
//! use deuteron_contract::{DataComponent, Lsn, MemoryDc, TableId, Timestamp, TransactionId};
//! use deuteron_proxy::{Entry, Options, Progress, Proxy, ProxyHost, RecordSlice};
//! use std::sync::Arc;
//!
//! struct NobodyReads;
//! impl ProxyHost for NobodyReads {
//!     fn horizon(&self) -> Timestamp {
//!         Timestamp::MAX
//!     }
//!     fn force_horizon(&self, _: Timestamp) {}
//!     fn progress(&self, _: Progress) {}
//! }
//!
//! # fn main() -> Result<(), deuteron_proxy::ProxyError> {
//! let dc = Arc::new(MemoryDc::new());
//! let proxy = Proxy::new(dc.clone(), Arc::new(NobodyReads), Options::default(), Lsn(0));
//! let table = TableId(1);
//! let update = |transaction, value| Entry::Update { transaction, table, key: b"k", value: Some(value) };
//! let (winner, loser) = (TransactionId(5), TransactionId(6));
//! let entries = [
//!     (Lsn(64), update(winner, b"committed".as_slice())),
//!     (Lsn(96), update(loser, b"never committed")),
//!     (Lsn(128), Entry::Commit { transaction: winner, timestamp: Timestamp(9) }),
//! ];
//! let buffer = RecordSlice { start: Lsn(0), end: Lsn(4096), entries: &entries };
//! let mut pending = proxy.replay(&mut Default::default(), std::slice::from_ref(&buffer), &buffer)?;
//! let none: &[RecordSlice<'_>] = &[];
//! proxy.replay(&mut pending, none, &buffer)?; // the next round is the end of the log
//! proxy.finish_replay(Lsn(4096))?; // the loser cannot commit any more
//! assert_eq!(proxy.redo_scan_start_point(), Lsn(4096));
//!
//! let record = dc.get(table, b"k").unwrap().unwrap();
//! assert_eq!((record.value.unwrap(), record.timestamp), (b"committed".to_vec(), Timestamp(9)));
//! # Ok(()) }
//! ```
//!
//! What this crate is not: it takes no part in concurrency control, knows no page, starts no thread and does no I/O
//! of its own.
#![forbid(unsafe_code)]

mod batch;
pub mod error;
mod held;
pub mod host;
mod log_source;
pub mod options;
mod order;
mod outcomes;
pub mod proxy;
pub mod replay;
mod side_buffer;
pub mod source;
pub mod statistics;
mod waiting_list;

pub use error::ProxyError;
pub use host::{Progress, ProxyHost};
pub use options::Options;
pub use proxy::Proxy;
pub use replay::Pending;
pub use source::{Commit, Entry, ReadBack, RecordSlice, RecordSource, StableLog};
pub use statistics::ProxyStatistics;
