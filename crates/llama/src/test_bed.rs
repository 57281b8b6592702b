//! What several unit tests begin with: a store in memory, pages in it, and all of them flushed.

use crate::flush::FlushProgress;
use crate::llama::Llama;
use crate::node::{OwnedNode, PageDescriptor};
use crate::options::Options;
use crate::page_id::PageId;
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use std::sync::Arc;

/// A new store.
pub(crate) fn open(options: Options) -> Llama {
    Llama::open(Arc::new(MemoryDirectory::new()), options, Epochs::new()).unwrap().0
}

/// Gives a page this payload; each is the first of its tree, with a low key of its own.
pub(crate) fn put(llama: &Llama, page: PageId, payload: &[u8]) {
    let guard = llama.pin();
    let descriptor = PageDescriptor { tree: 1, low_key: &page.0.to_be_bytes(), root: true };
    let base = OwnedNode::base(payload, descriptor, &[]);
    llama.install(page, llama.snapshot(page, &guard), base, &guard).unwrap();
}

/// A new page, alone in a flush buffer.
pub(crate) fn put_in_buffer(llama: &Llama, payload: impl FnOnce(PageId) -> Vec<u8>) {
    let page = llama.allocate();
    put(llama, page, &payload(page));
    assert!(matches!(llama.flush_step().unwrap(), FlushProgress::Wrote { pages: 1, .. }));
}

/// Writes what is dirty.
pub(crate) fn flush(llama: &Llama) {
    while llama.flush_step().unwrap() != FlushProgress::Nothing {}
}
