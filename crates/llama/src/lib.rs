//! Pages: mapping table, cache, flush, log-structured store, checkpoint.
//!
//! This is the lower half of the Bw-tree article's data component (LLAMA). A *page* is a name, a [`PageId`]; its
//! state is a chain of *nodes* in memory (a base and deltas over it), an address on flash, or deltas over a stub that
//! holds the address. Whoever changes a page makes an [`OwnedNode`] and [installs](Llama::install) it with one
//! compare-and-swap on the mapping table.
//!
//! What a payload means is the access method's business. This crate is no tree, knows no keys but a page's
//! immutable low key (which recovery hands back), and starts no threads: flushing, evicting, loading and cleaning
//! happen in steps that others call.

mod accounts;
mod checkpoint;
mod clean;
mod error;
mod evict;
mod flash_address;
mod flush;
mod flush_buffer;
mod fragment;
mod free_list;
mod image;
mod llama;
mod load;
mod mapping_table;
mod memory;
mod node;
mod options;
mod page_id;
mod recovery;
mod segments;
mod snapshot;
mod statistics;
mod store;
mod sync;

pub use checkpoint::{Checkpoint, CheckpointProgress};
pub use error::LlamaError;
pub use evict::Evicted;
pub use flash_address::FlashAddress;
pub use flush::{Consolidate, FlushProgress};
pub use llama::Llama;
pub use mapping_table::FRAGMENTS_MAX;
pub use node::{NodeKind, NodeRef, OwnedNode, PageDescriptor};
pub use options::Options;
pub use page_id::PageId;
pub use recovery::{Recovered, RecoveredPage};
pub use snapshot::{PageState, Snapshot};
pub use statistics::Statistics;
