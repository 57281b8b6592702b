//! [`BulkLoad`]: a tree from records in order, built page by page from left to right.
//!
//! Pages are made full, each with its right sibling's identifier, and installed; nobody can reach them. The leftmost page is
//! installed last: it is the first of its tree, and what makes the others count on flash. So a crash before it is durable leaves
//! nothing of the load, and one after it everything, since adopted pages are flushed before those that adopt them.
//!
//! The leftmost page does not adopt every page itself, or it would not fit: every so many pages one, a *leader*, adopts those before
//! it, and the leftmost page adopts the leaders and the rest.

use crate::page::key::{common_prefix_bytes, separator};
use crate::page::layout::{Layout, Shape, Span};
use crate::page::run::RecordRef;
use crate::page::writer::{Bounds, Plan, RunWriter, base_bytes};
use crate::page::{empty_base, key::KeyParts};
use crate::{BwTreeError, Options, Tree, Upsert, scratch};
use deuteron_llama::{Llama, OwnedNode, PageDescriptor, PageId};
use std::sync::Arc;

/// How full a page is made, in percent of the page size: nobody will append to it, some may be changed.
const FILL_PERCENT: usize = 95;

/// A tree being loaded. Dropped before [`BulkLoad::finish`], its pages are freed.
pub struct BulkLoad {
    llama: Arc<Llama>,
    tree: u32,
    options: Options,
    /// The records of the page that is being filled.
    records: Vec<Loaded>,
    /// Their keys and values.
    bytes: Vec<u8>,
    /// Of the page's records.
    span: Span,
    layout: Layout,
    /// Their bytes if their keys share `prefix_bytes`.
    records_bytes: usize,
    prefix_bytes: usize,
    /// The low keys and pages so far, the one being filled included.
    leaves: Vec<(Vec<u8>, PageId)>,
    /// The leftmost page, until the end.
    first: Option<Vec<u8>>,
    /// Pages that nobody adopts yet: those since the last leader.
    group: Vec<PageId>,
    leaders: Vec<PageId>,
    finished: bool,
}

struct Loaded {
    key_at: usize,
    value_at: usize,
    end: usize,
    stamp: u64,
    lsn: u64,
}

impl BulkLoad {
    /// Begins tree `tree`, of which there may be no page. The options must be valid.
    pub fn new(llama: Arc<Llama>, tree: u32, options: Options) -> BulkLoad {
        let first = llama.allocate();
        BulkLoad {
            llama,
            tree,
            options,
            records: Vec::new(),
            bytes: Vec::new(),
            span: Span::NONE,
            layout: Span::NONE.layout(),
            records_bytes: 0,
            prefix_bytes: 0,
            leaves: vec![(Vec::new(), first)],
            first: None,
            group: Vec::new(),
            leaders: Vec::new(),
            finished: false,
        }
    }

    /// Adds a record, whose key must be greater than the last one's; a tombstone is left out. Returns the bytes of the page that has
    /// been completed by it, or 0.
    ///
    /// # Panics
    /// If the key is empty or not greater than the last one's, which the caller has checked with its limits.
    pub fn push(&mut self, record: &Upsert<'_>) -> usize {
        let Some(value) = record.value else { return 0 };
        let new = record.record();
        let mut completed = 0;
        if let Some(last) = self.records.last() {
            let last_key = &self.bytes[last.key_at..last.value_at];
            assert!(last_key < record.key, "the records of a load ascend");
            let prefix_bytes = common_prefix_bytes(&self.low()[..self.prefix_bytes], record.key);
            let records_bytes = |shape: Shape| {
                let before = match (shape, prefix_bytes) == (self.layout.shape, self.prefix_bytes) {
                    true => self.records_bytes,
                    false => self.sum(shape, prefix_bytes),
                };
                before + shape.bytes_of(&new, prefix_bytes)
            };
            let bounds = Bounds { low: self.low(), high: Some(record.key), right: PageId::NONE };
            // A page that is wide because it is long stays so.
            let layout = match self.layout.shape.is_wide() {
                true => Layout::WIDE,
                false => self.span.with(&new).layout(),
            };
            let (layout, bytes) = layout.fitting(|shape| base_bytes(shape, &bounds, records_bytes(shape)));
            let page_bytes_max = self.options.page_bytes_max;
            if bounds.counted(bytes, page_bytes_max) > page_bytes_max * FILL_PERCENT / 100 {
                let high = separator(last_key, record.key).to_vec();
                completed = self.complete(Some(high));
            } else {
                (self.records_bytes, self.layout) = (records_bytes(layout.shape), layout);
                self.prefix_bytes = prefix_bytes;
            }
        }
        self.span = self.span.with(&new);
        if self.records.is_empty() {
            self.layout = self.span.layout();
            self.prefix_bytes = common_prefix_bytes(self.low(), record.key);
            self.records_bytes = self.layout.shape.bytes_of(&new, self.prefix_bytes);
        }
        let key_at = self.bytes.len();
        self.bytes.extend_from_slice(record.key);
        let value_at = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let end = self.bytes.len();
        self.records.push(Loaded { key_at, value_at, end, stamp: record.stamp, lsn: record.lsn });
        completed
    }

    /// The low key of the page being filled.
    fn low(&self) -> &[u8] {
        self.leaves.last().map_or(&[], |(low, _)| low)
    }

    fn sum(&self, shape: Shape, prefix_bytes: usize) -> usize {
        let bytes_of = |record: &Loaded| {
            shape.record_bytes(record.value_at - record.key_at, record.end - record.value_at, prefix_bytes)
        };
        self.records.iter().map(bytes_of).sum()
    }

    /// Completes the page being filled, and begins the next one at `high` if there is one. Returns its bytes.
    fn complete(&mut self, high: Option<Vec<u8>>) -> usize {
        let right = if high.is_some() { self.llama.allocate() } else { PageId::NONE };
        let (low, page) = self.leaves.last().expect("there is a page being filled");
        let bounds = Bounds { low, high: high.as_deref(), right };
        let key = |record: &Loaded| KeyParts::whole(&self.bytes[record.key_at..record.value_at]);
        let ends = self.records.first().zip(self.records.last()).map(|(first, last)| [key(first), key(last)]);
        let plan = Plan::new(&bounds, self.layout, ends, |shape, prefix_bytes| self.sum(shape, prefix_bytes));
        let (page, is_first) = (*page, self.leaves.len() == 1);
        scratch::with(plan.bytes, |out| {
            let mut writer = RunWriter::base(out, plan, self.records.len(), &bounds);
            for record in &self.records {
                writer.push(&RecordRef {
                    key: key(record),
                    stamp: record.stamp,
                    lsn: record.lsn,
                    value: Some(&self.bytes[record.value_at..record.end]),
                });
            }
            writer.finish();
            if is_first {
                self.first = Some(out.to_vec());
                return;
            }
            let adopts = match self.group.len() < self.options.inner_entries_max {
                true => Vec::new(),
                false => std::mem::take(&mut self.group),
            };
            let descriptor = PageDescriptor { tree: self.tree, low_key: low, root: false };
            let node = OwnedNode::base(out, descriptor, &adopts);
            if adopts.is_empty() {
                self.group.push(page)
            } else {
                self.leaders.push(page)
            }
            install(&self.llama, page, node);
        });
        self.records.clear();
        self.bytes.clear();
        self.span = Span::NONE;
        self.leaves.extend(high.map(|high| (high, right)));
        plan.bytes
    }

    /// Completes the last page and installs the first: the tree. It is durable when all that is dirty now has been flushed.
    ///
    /// # Errors
    /// [`BwTreeError::Structure`], if the pages were not in order.
    pub fn finish(mut self) -> Result<Tree, BwTreeError> {
        if self.records.is_empty() {
            self.first = Some(empty_base());
        } else {
            self.complete(None);
        }
        let adopts = [std::mem::take(&mut self.leaders), std::mem::take(&mut self.group)].concat();
        let leaves = std::mem::take(&mut self.leaves);
        let descriptor = PageDescriptor { tree: self.tree, low_key: &[], root: true };
        let first = self.first.take().expect("the first page was completed first");
        install(&self.llama, leaves[0].1, OwnedNode::base(&first, descriptor, &adopts));
        self.finished = true;
        Tree::recover(Arc::clone(&self.llama), self.tree, &leaves, self.options.clone())
    }
}

fn install(llama: &Llama, page: PageId, node: OwnedNode) {
    let guard = llama.pin();
    let free = llama.snapshot(page, &guard);
    llama.install(page, free, node, &guard).expect("nobody else knows the new page");
}

impl Drop for BulkLoad {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // Those that adopt others go before these, as whoever flushes them looks for what they adopt.
        for (_, page) in self.leaves.iter().rev() {
            let guard = self.llama.pin();
            let mut expected = self.llama.snapshot(*page, &guard);
            // Flush or eviction may be at it.
            while let Err(changed) = self.llama.free_page(*page, expected, &guard) {
                expected = changed;
            }
        }
    }
}
