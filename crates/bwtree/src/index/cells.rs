//! Cells: the places through which inner nodes are reached, so that a node can be replaced.
//!
//! A cell lives as long as its tree: cells are carved from chunks, each linked to the one before, and freed together. That keeps the
//! cells of a level close to each other (a thousand cells of a level are 8 KiB). Those of merged nodes are used again.

use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// Cells of a chunk.
#[cfg(not(loom))]
const CHUNK_CELLS: usize = 256;
#[cfg(loom)]
const CHUNK_CELLS: usize = 4;

/// A pointer to the words of the current version of one inner node.
pub(crate) type Cell = AtomicPtr<u64>;

struct Chunk {
    older: *mut Chunk,
    used: AtomicUsize,
    cells: [Cell; CHUNK_CELLS],
}

/// All cells of one tree.
pub(crate) struct Cells {
    newest: AtomicPtr<Chunk>,
    /// Addresses of cells that nobody can meet any more. A node is still in them.
    free: Arc<Mutex<Vec<usize>>>,
}

impl Cells {
    pub(crate) fn new() -> Cells {
        Cells { newest: AtomicPtr::new(ptr::null_mut()), free: Arc::default() }
    }

    /// What makes a cell free, to be run when nobody can meet it any more.
    pub(crate) fn give_back(&self, cell: &Cell) -> Box<dyn FnOnce() + Send> {
        let (free, address) = (Arc::clone(&self.free), ptr::from_ref(cell).expose_provenance());
        Box::new(move || free.lock().unwrap_or_else(PoisonError::into_inner).push(address))
    }

    /// A cell that nobody else uses; null, or with the node of its last use, which is the caller's now. It lives as long as `self`.
    pub(crate) fn allocate(&self) -> &Cell {
        if let Some(address) = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            // SAFETY: given back by `give_back`, and cells live as long as `self`.
            return unsafe { &*ptr::with_exposed_provenance::<Cell>(address) };
        }
        loop {
            // Acquire pairs with the release below: the chunk's contents.
            let newest = self.newest.load(Ordering::Acquire);
            if !newest.is_null() {
                // SAFETY: chunks are freed only with `self`.
                let chunk = unsafe { &*newest };
                let index = chunk.used.fetch_add(1, Ordering::Relaxed);
                if let Some(cell) = chunk.cells.get(index) {
                    return cell;
                }
            }
            let chunk = Box::into_raw(Box::new(Chunk {
                older: newest,
                used: AtomicUsize::new(0),
                cells: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            }));
            if self.newest.compare_exchange(newest, chunk, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: made above and not published.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }

    /// Calls `visit` for every cell ever allocated, and frees all.
    pub(crate) fn drain(&mut self, mut visit: impl FnMut(&Cell)) {
        let mut newest = self.newest.swap(ptr::null_mut(), Ordering::Acquire);
        while !newest.is_null() {
            // SAFETY: published by `allocate`, and nobody else can reach it: `self` is borrowed mutably.
            let chunk = unsafe { Box::from_raw(newest) };
            chunk.cells.iter().for_each(&mut visit);
            newest = chunk.older;
        }
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        self.drain(|_| ());
    }
}

// SAFETY: chunks are shared only through atomics; `older` is written before the chunk is published.
unsafe impl Send for Cells {}
// SAFETY: as above.
unsafe impl Sync for Cells {}
