//! The thread index: a small number that no two live threads share, by which each [`Epochs`](crate::Epochs)
//! finds the thread's slot without a search.
//!
//! It is process-wide, so that a thread that uses ten instances needs one number, and given back when the thread
//! exits, so that slots stay as few as the threads that ever lived at the same time.
//!
//! # Invariants
//!
//! - **T1** While a thread has a guard (of any instance), its index belongs to no other thread.
//! - **T2** Handing an index from one thread to the next goes through the mutex of [`FREE`], hence everything the
//!   old owner did with its slots happens before everything the new owner does.
//!
//! Destructors of other thread-locals may pin, or drop a guard, after this module's own destructor has run.
//! Therefore the state itself has no destructor (it stays readable to the very end), and an index whose thread is
//! past that point goes back with the last guard instead.

use crate::sync::thread_local;
use std::cell::Cell;
#[cfg(not(loom))]
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Mutex, PoisonError},
};

/// The indexes given back, and the lowest number never used.
#[cfg(not(loom))]
static FREE: Mutex<FreeIndexes> = Mutex::new(FreeIndexes::new());

// Loom runs the destructors of thread-locals too late for a mutex of its own, and a plain one would hand indexes on
// without loom knowing of the order. So its models, which start anew each time, do not recycle.
#[cfg(loom)]
loom::lazy_static! {
    static ref NEXT: loom::sync::atomic::AtomicU32 = loom::sync::atomic::AtomicU32::new(0);
}

#[cfg(not(loom))]
struct FreeIndexes {
    returned: BinaryHeap<Reverse<u32>>,
    next: u32,
}

#[cfg(not(loom))]
impl FreeIndexes {
    const fn new() -> FreeIndexes {
        FreeIndexes { returned: BinaryHeap::new(), next: 0 }
    }
}

const UNASSIGNED: u32 = u32::MAX;

/// What a thread knows about itself. Only its own thread ever touches it.
struct Local {
    index: Cell<u32>,
    /// Outermost guards of all instances that are alive on this thread.
    pins: Cell<u32>,
    /// The thread-local destructors are running: nobody but the last guard will give the index back.
    exiting: Cell<bool>,
    /// The thread is freeing garbage; a second collection inside would only recurse.
    collecting: Cell<bool>,
}

impl Local {
    const fn new() -> Local {
        Local {
            index: Cell::new(UNASSIGNED),
            pins: Cell::new(0),
            exiting: Cell::new(false),
            collecting: Cell::new(false),
        }
    }

    fn give_back(&self) {
        #[cfg(not(loom))]
        self.recycle();
    }

    #[cfg(not(loom))]
    fn recycle(&self) {
        let index = self.index.replace(UNASSIGNED);
        if index != UNASSIGNED {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).returned.push(Reverse(index));
        }
    }
}

#[cfg(not(loom))]
thread_local! {
    static LOCAL: Local = const { Local::new() };
}

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    static RECYCLER: Recycler = const { Recycler };
}

#[cfg(loom)]
thread_local! {
    static LOCAL: Local = Local::new();
}

/// Shuttle destroys every thread-local of a thread that exits, whether it needs it or not.
#[cfg(shuttle)]
impl Drop for Local {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Exists for its destructor, which runs when the thread exits.
#[cfg(not(any(loom, shuttle)))]
struct Recycler;

#[cfg(not(any(loom, shuttle)))]
impl Drop for Recycler {
    fn drop(&mut self) {
        LOCAL.with(|local| {
            local.exiting.set(true);
            if local.pins.get() == 0 {
                local.give_back();
            }
        });
    }
}

#[cold]
fn assign(local: &Local) -> u32 {
    let index = new_index();
    local.index.set(index);
    #[cfg(not(any(loom, shuttle)))]
    if RECYCLER.try_with(|_| ()).is_err() {
        local.exiting.set(true);
    }
    index
}

#[cfg(loom)]
fn new_index() -> u32 {
    NEXT.fetch_add(1, loom::sync::atomic::Ordering::Relaxed)
}

#[cfg(not(loom))]
fn new_index() -> u32 {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    match free.returned.pop() {
        Some(Reverse(index)) => index,
        None => {
            let index = free.next;
            free.next += 1;
            index
        }
    }
}

/// The index of this thread, assigned at first use. Only between [`enter`] and [`leave`] does it surely stay the
/// thread's.
#[inline]
pub(crate) fn index() -> u32 {
    LOCAL.with(|local| match local.index.get() {
        UNASSIGNED => assign(local),
        index => index,
    })
}

/// Begins a use of the [`index`] (T1). Exactly one [`leave`] must follow, on the same thread.
#[inline]
pub(crate) fn enter() {
    LOCAL.with(|local| local.pins.set(local.pins.get() + 1));
}

/// Ends the use begun by [`enter`]. The index may belong to another thread afterwards.
#[inline]
pub(crate) fn leave() {
    LOCAL.with(|local| {
        let pins = local.pins.get() - 1;
        local.pins.set(pins);
        if pins == 0 && local.exiting.get() {
            local.give_back();
        }
    });
}

/// The exclusive right of this thread to run a collection, so that what a collection frees may itself retire.
pub(crate) struct Collecting(());

impl Collecting {
    /// `None` if this thread is already collecting. Lazily: one that is made and dropped would end what it was refused for.
    pub(crate) fn begin() -> Option<Collecting> {
        LOCAL.with(|local| !local.collecting.replace(true)).then(|| Collecting(()))
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        LOCAL.with(|local| local.collecting.set(false));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn live_threads_never_share_an_index_and_exited_ones_give_it_back() {
        let mine = index();
        enter();
        let mut seen = Vec::new();
        for _ in 0..64 {
            seen.push(
                std::thread::spawn(|| {
                    enter();
                    let index = index();
                    leave();
                    index
                })
                .join()
                .unwrap(),
            );
        }
        assert!(!seen.contains(&mine));
        seen.sort_unstable();
        seen.dedup();
        // Other tests run in this process too, so a few indexes come and go; 64 would mean no recycling.
        assert!(seen.len() < 32, "{seen:?}");
        leave();
    }

    #[test]
    fn a_collection_inside_a_collection_is_refused() {
        let outer = Collecting::begin();
        assert!(outer.is_some());
        // The first refusal ends nothing.
        assert!(Collecting::begin().is_none());
        assert!(Collecting::begin().is_none());
        drop(outer);
        assert!(Collecting::begin().is_some());
    }
}
