//! The recovery log: record format, latch-free buffers, segments on disk, reader.
//!
//! The log is at once the redo log, the queue of commits that wait for durability, the cache of recently written
//! versions, and the way by which updates travel to the data component (paper 2.3, 3.2, 4.1). One ring of memory serves
//! all four: a version is written into it once and never copied again.
//!
//! ```text
//!   transactions            append, reserve_commit                    read (version cache)
//!                                   │                                       ▲
//!                    ┌──────────────▼───────────────────────────────────────┴──────────┐
//!   ring of memory   │ recycled │ version cache │ lent to the proxy │ sealed │ open    │
//!                    └──────────┬───────────────┬───────────────────┬────────┬─────────┘
//!                          memory_start      released            stable     tail
//!                                                                   │ flush_step
//!   segments on disk    log-….seg  log-….seg  log-….seg ◄───────────┘
//! ```
//!
//! An LSN is a byte offset in the log and addresses memory (`LSN mod ring`) as well as disk (`LSN mod segment`).
//!
//! | module | what |
//! |---|---|
//! | [`record`] | [`Record`] and its bytes |
//! | `block` | the headers of buffers and segments |
//! | `buffer_word` | USERS and OFFSET in one word |
//! | `buffers` | opening, sealing and reusing buffers |
//! | `ring`, `memory_window` | the memory, and when it may be used again |
//! | `flusher`, `stable_waiters` | group commit without a timer |
//! | `segment`, `stable_index` | files; finding one record in them |
//! | `opening` | [`LogOpening`]: buffer by buffer to the torn tail, or to corruption |
//! | [`reader`] | buffers read back from disk |
//! | `salvage` | [`LogSalvage`]: what is left of a damaged log |
//! | `log` | [`Log`], the whole |
//! | `commit_reservation` | [`CommitReservation`]: the place of a commit record, and room before it |
//! | `stable_buffer`, `buffer_view` | [`StableBuffer`], [`BufferView`]: what the proxy gets |
//! | `counted` | for the tests |
//!
//! Who calls what: transactions append, read and wait; one thread (or several, they exclude each other) runs
//! [`Log::flush_step`]; the proxy walks with [`Log::next_stable`] and [`Log::release`]; a checkpoint ends with
//! [`Log::truncate`]. Nothing here starts a thread, sleeps or blocks on anything but the device ([`Log::wait_stable`]
//! parks, as it says).
//!
//! What this crate is not: it does not know what a transaction may do, applies nothing to any page, and never decides
//! what to truncate. The read cache for versions that are *not* recent (paper 3.3) is the transaction component's.
//!
//! Source: *High Performance Transactions in Deuteronomy* (CIDR 2015), sections 2.3, 3.2, 3.4, 4.1, 5.1. We differ in:
//! buffers cut from one ring instead of separate ones, so that a partial seal wastes little; group commit without
//! timer; the version cache's end known by one LSN. `docs/design/log.md` has the crash analysis.

mod block;
mod buffer_view;
mod buffer_word;
mod buffers;
mod commit_reservation;
mod condition;
#[cfg(all(test, not(any(loom, shuttle))))]
mod counted;
mod error;
mod flusher;
#[cfg(all(test, not(loom)))]
mod fuzz_tests;
mod log;
mod memory_window;
mod opening;
mod options;
mod read_memory;
pub mod reader;
pub mod record;
mod ring;
mod salvage;
mod segment;
#[cfg(all(test, not(any(loom, shuttle))))]
mod shared_line_tests;
mod stable_buffer;
mod stable_index;
mod stable_waiters;
mod statistics;
mod sync;

pub use buffer_view::{BufferView, CommitView};
pub use commit_reservation::CommitReservation;
pub use error::{AppendError, LogError, Poison};
pub use log::Log;
pub use opening::{LogOpening, Recovery};
pub use options::LogOptions;
pub use read_memory::ReadMemory;
pub use reader::{LogBuffer, SegmentReader};
pub use record::{OwnedRecord, Record, RecordError, RecordView};
pub use salvage::LogSalvage;
pub use stable_buffer::StableBuffer;
pub use statistics::LogStatistics;
