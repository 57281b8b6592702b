//! What the transaction component (TC), its proxy and a data component (DC) tell each other.
//!
//! The TC never sees a page; the DC never sees a transaction. Everything that passes between them is in this
//! crate, and all of it could be a wire: owned bytes, integers, no shared pointers.
//!
//! | module | what |
//! |---|---|
//! | [`identifiers`] | [`Lsn`], [`Timestamp`], [`TableId`], [`TransactionId`] |
//! | [`data_component`] | the [`DataComponent`] trait, [`Operation`], [`ScanRequest`] |
//! | [`scan_batch`] | [`ScanBatch`]: the records that a scan returns, in one piece of memory |
//! | [`key_range`] | [`KeyRange`]: any of Rust's range expressions over byte strings |
//! | [`catalogue`] | what table 0 holds: the names of the others |
//! | [`error`] | [`DcError`] |
//! | [`memory_dc`] | [`MemoryDc`]: the contract over an ordered map, with modelled durability, for tests |
//! | [`conformance`] | the suite that every component passes |
//!
//! What this crate is not: it holds no logic of either side, and it knows neither files nor pages. The suite is the
//! only part of it that starts threads.
//!
//! Source: *High Performance Transactions in Deuteronomy* (CIDR 2015), sections 1.3 and 4.2.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod conformance;
pub mod data_component;
pub mod error;
pub mod identifiers;
pub mod key_range;
pub mod memory_dc;
pub mod scan_batch;

pub use data_component::{DataComponent, DcStatistics, Direction, Operation, Record, ScanRequest};
pub use error::DcError;
pub use identifiers::{Lsn, TableId, Timestamp, TransactionId};
pub use key_range::{KeyBounds, KeyRange};
pub use memory_dc::MemoryDc;
pub use scan_batch::{BlockEntry, KEYS_SLACK, KeyLengths, RecordView, ScanBatch};
