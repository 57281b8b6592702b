//! Watching a disk: at every operation that changes something, a copy of it before, and one of it in the middle.

use super::state::{Shared, State, lock};
use super::{FaultPlan, SimulatedDisk};
use crate::Operation;
use std::io;
use std::sync::Arc;

/// A moment in a disk's life: an operation that changes something is about to be done. Both disks are
/// [forks](SimulatedDisk::fork), so that any number of crashes can be tried on each; a crash after the operation is one before
/// the next.
pub struct Moment {
    /// What is about to be done.
    pub operation: Operation,
    /// To which file, empty for the directory.
    pub file: String,
    /// The disk without it.
    pub before: SimulatedDisk,
    /// The disk with the operation in doubt: what it changes is pending, and so may or may not survive.
    pub during: SimulatedDisk,
}

pub(super) type Watcher = Arc<dyn Fn(Moment) + Send + Sync>;

/// Does what a handle asks for, after whoever watches the disk has been shown it.
pub(super) fn change<T>(
    shared: &Shared,
    (operation, file): (Operation, &str),
    change: impl Fn(&mut State) -> io::Result<T>,
) -> io::Result<T> {
    let mut state = lock(shared);
    if let Some(watcher) = state.watcher.clone() {
        let mut before = state.clone();
        before.watcher = None;
        let mut during = before.clone();
        during.set_plan(FaultPlan::new().crash_after(during.operations()));
        let _ = change(&mut during);
        // Unless it is a handle from before a crash, or of a machine that stands.
        if during.is_stopped() && !before.is_stopped() {
            before.restart();
            during.restart();
            watcher(Moment {
                operation,
                file: file.to_owned(),
                before: SimulatedDisk::of(before),
                during: SimulatedDisk::of(during),
            });
        }
    }
    change(&mut state)
}
