//! The latch-free ordered access method: a Bw-tree over the pages of [`deuteron_llama`].
//!
//! A [`Tree`] maps keys to versions of records. It is fed by *blind* upserts, each with a stamp; the highest stamp wins,
//! whatever the order of arrival. Nothing ever waits for another thread: every change is a compare-and-swap, on
//! the mapping table for leaves and on a cell of the index for inner nodes.
//!
//! | module | what |
//! |---|---|
//! | `tree` | the [`Tree`] and its life |
//! | `read`, `upsert`, `scan` | the operations |
//! | `ahead` | which pages must be loaded, before they are needed |
//! | `consolidate` | consolidation and splits |
//! | `merging` | underfull pages are merged into their left neighbours |
//! | `drop` | a tree is emptied for good |
//! | `marks` | which pages are worth a look |
//! | `bulk` | a tree from records in order |
//! | `chain` | reading the deltas and the base of a page |
//! | `page` | the format of leaf pages: flat bytes, no pointers, no unsafe code |
//! | `index` | the inner levels, always in memory |
//! | `check` | verifies a tree, and what is read of it |
//! | `page_run` | the records of a node, for those who read pages without a tree |
//! | `interruption` | moments between the steps of a change, at which a test does something else; nothing otherwise |
//!
//! What needs a page that is not in memory says so with a [`Miss`], after which the caller lets go of its guard, has
//! the page loaded, and begins anew; the methods without `try` do that by themselves.
//!
//! What this crate is not: it starts no threads, flushes and evicts nothing, and knows neither transactions nor tables.
//!
//! Source: Levandoski and Sengupta, *The Bw-Tree: A Latch-Free B-Tree for Log-Structured Flash Storage* (2013). Ours differs in that inner
//! nodes are copied on write and reached by direct pointers, and in that a split replaces the left page at once instead of
//! putting a split delta on it. `docs/design/bw-tree.md` says why.

/// Meters what fuzzed decoders allocate.
#[cfg(all(test, not(loom)))]
#[global_allocator]
static METER: deuteron_fuzz::Meter = deuteron_fuzz::Meter;

mod ahead;
mod bulk;
mod chain;
mod check;
mod consolidate;
mod counters;
mod drop;
mod error;
mod index;
mod interruption;
#[cfg(all(test, not(loom)))]
mod interruption_tests;
mod marks;
mod merging;
mod options;
mod page;
mod page_run;
mod read;
mod scan;
mod scratch;
mod search;
mod sync;
mod tree;
mod upsert;

pub use bulk::BulkLoad;
pub use check::{Check, TreeReport, check_base, check_delta};
pub use counters::TreeStatistics;
pub use drop::Cleared;
pub use error::{BwTreeError, Miss};
pub use options::Options;
pub use page::batch::{Upsert, unite_deltas};
pub use page::run::{Entry, RecordRef, filter_of_delta};
pub use page::stretch::{Collector, Stretch};
pub use page_run::PageRun;
pub use scan::Cursor;
pub use search::{compare as compare_keys, prefetch_bytes};
pub use tree::{KEY_BYTES_MAX, Tree, VALUE_BYTES_MAX};
