//! What the transaction component (TC), its proxy and a data component (DC) tell each other.
//!
//! The TC never sees a page; the DC never sees a transaction. Everything that passes between them is in this
//! crate, and all of it could be a wire: owned bytes, integers, no shared pointers.
//!
//! | module | what |
//! |---|---|
//! | [`identifiers`] | [`Lsn`], [`Timestamp`], [`TableId`], [`TransactionId`] |
//! | [`data_component`] | the [`DataComponent`] trait, [`Operation`], [`ScanRequest`], [`ScanBatch`] |
//! | [`error`] | [`DcError`] |
//!
//! What this crate is not: it holds no logic of either side, and it knows neither files nor threads.
//!
//! Source: *High Performance Transactions in Deuteronomy* (CIDR 2015), sections 1.3 and 4.2.
#![forbid(unsafe_code)]

pub mod data_component;
pub mod error;
pub mod identifiers;

pub use data_component::{DataComponent, DcStatistics, Direction, Operation, Record, ScanBatch, ScanRequest};
pub use error::DcError;
pub use identifiers::{Lsn, TableId, Timestamp, TransactionId};
