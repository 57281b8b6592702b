//! What many tests do with a store: flush all of it, put all of it out of memory, take a checkpoint.

use deuteron_llama::{CheckpointProgress, FlushProgress, Llama, PageId};

pub fn flush(llama: &Llama) {
    while llama.flush_step().unwrap() != FlushProgress::Nothing {}
}

pub fn evict(llama: &Llama) {
    while llama.memory_bytes() > 0 {
        llama.evict_step(u64::MAX);
    }
}

/// A checkpoint whose index holds these pages, of tree 1, each under its number.
pub fn checkpoint(llama: &Llama, pages: &[PageId]) {
    let mut checkpoint = llama.checkpoint_begin(b"").unwrap();
    while llama.checkpoint_flush_step(&mut checkpoint).unwrap() != CheckpointProgress::Done {}
    for &page in pages {
        llama.checkpoint_add(&mut checkpoint, 1, &page.0.to_be_bytes(), page).unwrap();
    }
    llama.checkpoint_finish(checkpoint).unwrap();
}
