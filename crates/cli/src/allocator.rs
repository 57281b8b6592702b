//! The allocator of the program, and how it is suited to the memory that the database may use.
//!
//! Nodes and versions are many and small, and freed by other threads than those that made them: what mimalloc is good at.
//! A library never chooses an allocator; this program does.
//!
//! By default mimalloc asks for huge pages and is slow to give memory back. With much memory that is right: a first touch
//! costs one page fault for 2 MiB instead of 512, and the processor remembers the addresses of a larger working set.
//! With little memory the half-empty huge pages are more than the database itself, and `--memory` would promise too
//! much.

#![allow(unsafe_code)]

use libmimalloc_sys::{mi_option_set, mi_option_t};
#[cfg(not(test))]
use mimalloc::MiMalloc;

#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Of the tests, which meter what is allocated.
#[cfg(test)]
#[global_allocator]
static METER: deuteron_fuzz::Meter = deuteron_fuzz::Meter;

// Of `mi_option_e` in mimalloc.h, where it has had this number since version 2.1; the bindings do not name it.
const PURGE_DELAY: mi_option_t = 15;

/// Below this budget, in bytes, memory is worth more than the time that it takes to give it back.
const LITTLE_BYTES: usize = 1 << 30;

/// With more, what is freed is kept this long for the next to allocate: nodes come and go all the time, and a page fault costs
/// more than any of them.
const PATIENCE_MILLISECONDS: std::ffi::c_long = 5_000;

/// To be called before a database with this budget is opened.
pub fn suit(budget_bytes: usize) {
    if budget_bytes < LITTLE_BYTES {
        // SAFETY: the option exists; it is a number in a table of the allocator's that is written and read atomically.
        unsafe { mi_option_set(PURGE_DELAY, 0) };
        // Without effect where the system knows no huge pages: then there is nothing to switch off.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
    } else {
        // SAFETY: as above.
        unsafe { mi_option_set(PURGE_DELAY, PATIENCE_MILLISECONDS) };
    }
}
