//! Pages: mapping table, cache, flush, log-structured store, checkpoint.
//!
//! This is the lower half of the Bw-tree article's data component (LLAMA). A *page* is a name, a [`PageId`]; its
//! state is a chain of *nodes* in memory (a base and deltas over it), an address on flash, or deltas the last of which
//! holds the address. Whoever changes a page makes an [`OwnedNode`] and [installs](Llama::install) it with one
//! compare-and-swap on the mapping table.
//!
//! What a payload means is the access method's business. This crate is no tree, knows no keys but a page's
//! immutable low key (which recovery hands back), and starts no threads: flushing, evicting, loading and cleaning
//! happen in steps that others call. Its design and crash analysis are in `docs/design/llama.md`.
//!
//! | module | what |
//! |---|---|
//! | `llama`, `snapshot`, `node` | pages in memory: look, install; what a chain consists of |
//! | `budget` | what memory pages may have, and when it is short |
//! | `mapping_table`, `doubling`, `fragments`, `page_id`, `free_list` | what is known of each page, and which identifiers are free |
//! | `load`, `loading`, `page_reader`, `reading`, `read_buffer` | from flash into memory, once and together |
//! | `excerpt` | of a page what may hold one key, past the cache |
//! | `flush`, `fetched`, `filling`, `writing`, `flush_buffer`, `fragment`, `flash_address` | from memory to flash: pages are taken, put into a buffer, written |
//! | `rows` | what must be read before it can be flushed, read ahead and together |
//! | `unreadable` | pages that cannot be read, and are flushed as what is known of them |
//! | `unadopted` | what is durable and does not count yet |
//! | `evict`, `pack`, `memory` | out of memory, within the budget, and closer together |
//! | `seal` | giving a page up |
//! | `store`, `segments`, `spares`, `accounts`, `clean` | the files, what lives in each, and emptying them |
//! | `checkpoint`, `image`, `images`, `recovery`, `stretch` | images of the mapping table, and the way back from them |
//! | `files` | the files as of a moment, for a copy |
//! | `salvage` | every readable fragment of a damaged store |
//! | `statistics` | counters |
//!
//! ```
//! use deuteron_device::MemoryDirectory;
//! use deuteron_epoch::Epochs;
//! use deuteron_llama::{CheckpointProgress, FlushProgress, Llama, Options, OwnedNode, PageDescriptor, PageState};
//! use std::sync::Arc;
//!
//! let directory = Arc::new(MemoryDirectory::new());
//! let open = || Llama::open(directory.clone(), Options::default(), Epochs::new());
//! let (llama, _) = open()?;
//!
//! // A page, and a change of it.
//! let page = llama.allocate();
//! {
//!     let guard = llama.pin();
//!     let root = OwnedNode::base(b"base", PageDescriptor { tree: 1, low_key: b"", root: true }, &[]);
//!     let installed = llama.install(page, llama.snapshot(page, &guard), root, &guard).unwrap();
//!     llama.install(page, installed, OwnedNode::delta(b"change"), &guard).unwrap();
//! }
//!
//! // To flash, out of memory, changed blindly, and back.
//! assert!(matches!(llama.flush_step()?, FlushProgress::Wrote { pages: 1, .. }));
//! while llama.evict_step(u64::MAX).pages == 0 {}
//! assert_eq!(llama.memory_bytes(), 0);
//! {
//!     let guard = llama.pin();
//!     let stored = llama.snapshot(page, &guard);
//!     assert!(matches!(stored.state(), PageState::Stored(_)));
//!     let blind = llama.install(page, stored, OwnedNode::delta(b"blind"), &guard).unwrap();
//!     assert!(blind.head().unwrap().is_partial());
//! }
//! llama.load(page)?;
//! let payloads = || {
//!     let guard = llama.pin();
//!     let nodes = std::iter::successors(llama.snapshot(page, &guard).head(), |node| node.next());
//!     nodes.map(|node| node.payload().to_vec()).collect::<Vec<_>>()
//! };
//! assert_eq!(payloads(), [b"blind".to_vec(), b"change".to_vec(), b"base".to_vec()]);
//!
//! // A checkpoint, and recovery.
//! let mut checkpoint = llama.checkpoint_begin(b"remember me")?;
//! while llama.checkpoint_flush_step(&mut checkpoint)? != CheckpointProgress::Done {}
//! llama.checkpoint_add(&mut checkpoint, 1, b"", page)?;
//! llama.checkpoint_finish(checkpoint)?;
//! drop(llama);
//! let (_, recovered) = open()?;
//! assert_eq!(recovered.user_data, b"remember me");
//! assert_eq!(recovered.pages[0].page, page);
//! # Ok::<(), deuteron_llama::LlamaError>(())
//! ```

/// Meters what fuzzed decoders allocate.
#[cfg(all(test, not(loom)))]
#[global_allocator]
static METER: deuteron_fuzz::Meter = deuteron_fuzz::Meter;

mod accounts;
mod budget;
mod by_page;
mod checkpoint;
mod clean;
mod doubling;
mod error;
mod evict;
mod excerpt;
mod fetched;
mod files;
mod filling;
mod flash_address;
mod flush;
mod flush_buffer;
mod fragment;
mod fragments;
mod free_list;
mod image;
mod images;
mod llama;
mod load;
mod loading;
mod mapping_table;
mod memory;
mod node;
mod options;
mod pack;
mod page_id;
mod page_reader;
mod read_buffer;
mod reading;
mod recovery;
mod rows;
mod salvage;
mod seal;
mod segments;
mod snapshot;
mod spares;
mod statistics;
mod store;
mod stretch;
mod sync;
#[cfg(all(test, not(any(loom, shuttle))))]
mod test_bed;
mod unadopted;
mod unreadable;
mod words;
mod writing;

pub use checkpoint::{Checkpoint, CheckpointProgress, FlushRound};
pub use error::LlamaError;
pub use evict::Evicted;
pub use excerpt::{Excerpt, ExcerptReads};
pub use files::{FileHold, StoreFile};
pub use flash_address::FlashAddress;
pub use flush::{AccessMethod, FlushProgress};
pub use flush_buffer::MARKS;
pub use fragments::{FRAGMENTS_MAX, Filter};
pub use llama::{Hurry, Llama};
pub use memory::ByteCounter;
pub use node::{NodeKind, NodeRef, OwnedNode, PageDescriptor, SLACK_BYTES_MAX};
pub use options::{Options, SPACE_AMPLIFICATION_PERCENT_MIN};
pub use page_id::PageId;
pub use recovery::{Recovered, RecoveredPage};
pub use salvage::{FragmentPlace, FragmentReader, ImagedPage, Order, Salvage, SalvagedFragment, salvage};
pub use snapshot::{PageState, Snapshot};
pub use statistics::Statistics;
pub use words::{free_words, put_words, words_charge};
