//! [`InFlight`]: that writes are in flight in a directory, for whoever opens it next to wait for.
//!
//! A process that is killed leaves what the kernel has begun for it through a ring in flight, and its end does not wait for that: a device that is held back writes it seconds later. So the
//! directory itself is locked, shared, for as long as anything is, through a file that is registered with the ring, and with that lives until the last write has ended. Whoever takes
//! the lock of the directory [waits for that](await_none) first.

use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

/// How many writes are in flight, and, as long as any are, a lock of the directory that says so.
pub(super) struct InFlight {
    count: usize,
    directory: OwnedFd,
}

impl InFlight {
    /// None yet.
    pub(super) fn new(directory: &OwnedFd) -> Result<InFlight, Errno> {
        Ok(InFlight { count: 0, directory: reopen(directory)? })
    }

    /// What is to be registered with the ring.
    pub(super) fn descriptor(&self) -> RawFd {
        self.directory.as_raw_fd()
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// One more. `false`, and none, if the lock is not to be had: the file system may not lock directories.
    pub(super) fn enter(&mut self) -> bool {
        let lock = || rustix::fs::flock(self.directory.as_fd(), FlockOperation::NonBlockingLockShared);
        let is_said = self.count > 0 || retry_on_intr(lock).is_ok();
        self.count += usize::from(is_said);
        is_said
    }

    /// One has ended, or never began.
    pub(super) fn leave(&mut self) {
        self.count -= 1;
        if self.count == 0 {
            self.unlock();
        }
    }

    /// Others need not wait for the kernel to give the registered file up, which takes it some milliseconds.
    fn unlock(&self) {
        let _ = retry_on_intr(|| rustix::fs::flock(self.directory.as_fd(), FlockOperation::Unlock));
    }
}

impl Drop for InFlight {
    /// A ring is given up with what never began.
    fn drop(&mut self) {
        if self.count > 0 {
            self.unlock();
        }
    }
}

/// The directory, as a file of its own: locks are that file's, not the process's.
fn reopen(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(directory, c".", flags, Mode::empty()))
}

/// Waits for the end of what others have in flight in the directory through a ring: those that hold its lock no more.
pub(super) fn await_none(directory: &OwnedFd) -> Result<(), Errno> {
    let directory = reopen(directory)?;
    match retry_on_intr(|| rustix::fs::flock(directory.as_fd(), FlockOperation::LockExclusive)) {
        // Where directories cannot be locked nobody writes through a ring.
        Ok(()) | Err(Errno::BADF | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => Ok(()),
        Err(error) => Err(error),
    }
}
