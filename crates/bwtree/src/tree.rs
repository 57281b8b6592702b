//! [`Tree`]: the parts together.

use crate::consolidate::Consolidation;
use crate::counters::{Counters, TreeStatistics};
use crate::index::Index;
use crate::marks::Marks;
use crate::page;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use crate::{BwTreeError, Options};
use deuteron_epoch::Guard;
use deuteron_histogram::{Distribution, Histogram};
use deuteron_llama::{Llama, OwnedNode, PageDescriptor, PageId};
use std::sync::Arc;

/// The longest key in bytes.
pub const KEY_BYTES_MAX: usize = 4096;
/// The longest value in bytes, if the store's segments are large enough ([`Tree::value_bytes_max`]).
pub const VALUE_BYTES_MAX: usize = 16 << 20;

/// Longer chains are counted as if they had so many deltas.
const COUNTED_LENGTH_MAX: u64 = 127;

/// An ordered set of records in a [`Llama`] store. All methods may be called from any thread.
///
/// Dropping a tree frees its index; its pages belong to the store.
pub struct Tree {
    pub(crate) id: u32,
    pub(crate) llama: Arc<Llama>,
    pub(crate) index: Index,
    pub(crate) options: Options,
    pub(crate) counters: Counters,
    pub(crate) chain_lengths: Histogram,
    /// Tombstones with an LSN below may be forgotten.
    forget_below: AtomicU64,
    /// Pages to be merged, or rewritten without their tombstones.
    pub(crate) marks: Marks,
    /// Held by the thread that merges pages.
    pub(crate) merging: Mutex<()>,
    /// The page that is about to take another one over, and is not split meanwhile; 0 if there is none.
    pub(crate) heir: AtomicU64,
    /// About how many bytes a record takes in a page, of a page that was looked at lately.
    pub(crate) record_bytes: AtomicU64,
    /// Nobody wants the records any more.
    pub(crate) given_up: AtomicBool,
}

impl Tree {
    /// A new, empty tree. `id` goes into its pages, and recovery gives it back. The options must be valid.
    pub fn create(llama: Arc<Llama>, id: u32, options: Options) -> Tree {
        let page = llama.allocate();
        {
            let guard = llama.pin();
            let descriptor = PageDescriptor { tree: id, low_key: &[], root: true };
            let base = OwnedNode::base(&page::empty_base(), descriptor, &[]);
            let free = llama.snapshot(page, &guard);
            llama.install(page, free, base, &guard).expect("nobody else knows the new page");
        }
        let index = Index::new(page, options.inner_entries_max);
        Tree::assemble(llama, id, index, options)
    }

    /// A tree as recovery found it: the low keys of its pages in order, the first of them empty. The index is
    /// built anew; no page is read.
    ///
    /// # Errors
    /// [`BwTreeError::Structure`] if the pages do not begin with an empty low key or are not in order.
    pub fn recover(
        llama: Arc<Llama>,
        id: u32,
        leaves: &[(Vec<u8>, PageId)],
        options: Options,
    ) -> Result<Tree, BwTreeError> {
        let refuse =
            |page, found: &str| Err(BwTreeError::Structure { tree: id, page, found: found.to_owned() });
        match leaves.first() {
            None => return refuse(PageId::NONE, "no pages"),
            Some((low, page)) if !low.is_empty() => return refuse(*page, "the leftmost page is missing"),
            Some(_) => {}
        }
        if let Some(pair) = leaves.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return refuse(pair[1].1, "pages are not in key order");
        }
        let index = Index::from_leaves(leaves, options.inner_entries_max);
        Ok(Tree::assemble(llama, id, index, options))
    }

    fn assemble(llama: Arc<Llama>, id: u32, index: Index, options: Options) -> Tree {
        let (counters, forget_below) = (Counters::default(), AtomicU64::new(0));
        let chain_lengths = Histogram::up_to(COUNTED_LENGTH_MAX);
        let (marks, merging, heir) = (Marks::default(), Mutex::default(), AtomicU64::new(0));
        let given_up = AtomicBool::new(false);
        // As long as none was looked at: a page for one that need not be looked at costs less than one that nobody looks at again.
        let record_bytes = u64::MAX;
        Tree {
            id,
            llama,
            index,
            options,
            counters,
            chain_lengths,
            forget_below,
            marks,
            merging,
            heir,
            record_bytes: AtomicU64::new(record_bytes),
            given_up,
        }
    }

    /// The identifier given at creation.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The longest value in bytes.
    pub fn value_bytes_max(&self) -> usize {
        self.options.value_bytes_max(self.llama.page_bytes_max())
    }

    /// The store.
    pub fn llama(&self) -> &Arc<Llama> {
        &self.llama
    }

    /// Lets tombstones with an LSN below `lsn` be forgotten when their page is next consolidated: the caller knows
    /// that no operation with an LSN below `lsn` will ever come again.
    pub fn forget_tombstones_below(&self, lsn: u64) {
        self.forget_below.fetch_max(lsn, Ordering::Relaxed);
    }

    pub(crate) fn forget_below(&self) -> u64 {
        self.forget_below.load(Ordering::Relaxed)
    }

    /// What the tree has done since it was opened.
    pub fn statistics(&self) -> TreeStatistics {
        TreeStatistics {
            index_bytes: self.index.bytes(),
            inner_splits: self.index.splits(),
            inner_merges: self.index.merges(),
            index_lost: self.index.lost(),
            ..self.counters.read()
        }
    }

    /// How many deltas the chains had that were consolidated.
    ///
    /// ```
    /// # use deuteron_bwtree::{Options, Tree};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
    /// assert_eq!(tree.chain_lengths().count(), tree.statistics().consolidations);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn chain_lengths(&self) -> Distribution {
        self.chain_lengths.read()
    }

    /// Bytes that the index takes.
    ///
    /// ```
    /// # use deuteron_bwtree::{Options, Tree};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
    /// assert!((1..1000).contains(&tree.index_bytes()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn index_bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// About how many bytes the marks take of pages that are to be looked at, or have tombstones.
    ///
    /// ```
    /// # use deuteron_bwtree::{Options, Tree};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
    /// assert_eq!(tree.marks_bytes(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn marks_bytes(&self) -> u64 {
        self.marks.bytes()
    }

    /// Loads `page`, as a [`Miss`](crate::Miss) asks for. To be called without a guard: it blocks on the device.
    ///
    /// # Errors
    /// [`BwTreeError::Load`]; [`BwTreeError::Structure`] if there is no such page as its right sibling.
    pub fn load(&self, page: PageId) -> Result<(), BwTreeError> {
        self.llama.load(page).map_err(|source| BwTreeError::Load { page, source })?;
        match self.missing_sibling(page, &self.llama.pin()) {
            None => Ok(()),
            Some(right) => Err(BwTreeError::Structure {
                tree: self.id,
                page,
                found: format!("{right} as the right sibling, which does not exist"),
            }),
        }
    }

    /// Calls `visit` for the low key and the page of some leaves that the index knows, in key order from the first one that
    /// begins at `from` or behind, with a fresh guard; returns where to go on, or `None` at the end. A few hundred leaves at a time.
    pub fn some_leaves(&self, from: &[u8], visit: impl FnMut(&[u8], PageId)) -> Option<Vec<u8>> {
        self.index.some_leaves(from, &self.llama.pin(), visit)
    }

    /// Consolidates the page that holds `key`, whatever the length of its chain; whether it was done. For tests
    /// and for callers that know a page will be read often.
    pub fn consolidate(&self, key: &[u8], guard: &Guard<'_>) -> bool {
        let Ok(target) = self.target(key, guard) else { return false };
        self.consolidate_page(target.page, target.snapshot, guard) == Consolidation::Done
    }
}
