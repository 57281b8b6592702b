//! The allocator of the program, and its two settings.
//!
//! Nodes and versions are many and small, and freed by other threads than those that made them: what mimalloc is good at.
//! A library never chooses an allocator; this program does.
//!
//! The settings make it give memory back to the system as soon as it is free, and take it only as it is used. Without
//! them the process holds up to twice what the database accounts for, and `--memory` would promise too much. mimalloc
//! reads them when it reserves its first memory, which is before `main`; so they are set by an initialiser that the
//! loader runs.

#![allow(unsafe_code)]

use libmimalloc_sys::{mi_option_set, mi_option_t};
use mimalloc::MiMalloc;

// Of `mi_option_e` in mimalloc.h, where they have had these numbers since version 2.1; the bindings do not name them.
const ARENA_EAGER_COMMIT: mi_option_t = 4;
const PURGE_DELAY: mi_option_t = 15;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

extern "C" fn keep_nothing_back() {
    // SAFETY: both options exist; they are numbers in a table of the allocator's, and no other thread runs yet.
    unsafe {
        mi_option_set(ARENA_EAGER_COMMIT, 0);
        mi_option_set(PURGE_DELAY, 0);
    }
}

// SAFETY: the section holds pointers to functions to be run before `main`; this one touches nothing that `main` prepares.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = keep_nothing_back;
