//! The plan of faults: which operations fail, how, and when the machine stops.

use crate::Operation;
use std::io;

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// An error, and nothing is done.
    Refuse,
    /// An error that says that the disk is full, and nothing is done.
    Full,
    /// An error after a part is done: the first half of a write's bytes, some of what a sync should make durable.
    /// Other operations do nothing.
    Partial,
    /// An error, after which reads show data that no crash will leave: a failed sync (of a file or the directory)
    /// has dropped all that was pending, a failed write will never reach the disk. Later syncs succeed and do not
    /// bring it back. Other operations do nothing.
    Lose,
    /// Success is reported and nothing is done: a write that is lost, a sync that lies. Only writes and syncs.
    Forget,
    /// Success is reported, but the bytes go to another block of the same file. Only writes.
    Misdirect,
    /// Success is reported, but only the first half of the bytes, in whole sectors, is written. Only writes.
    Short,
    /// Success is reported, with the bytes that were there before the last write to the place. Only reads.
    Stale,
    /// Success is reported, and a bit is wrong from now on: of what is written, or of what is read.
    Rot,
    /// All is well, after a second of the machine's clock.
    Slow,
}

impl FaultKind {
    /// Whether the device says nothing of it.
    ///
    /// ```
    /// use deuteron_device::FaultKind;
    /// assert!(FaultKind::Misdirect.is_silent() && !FaultKind::Refuse.is_silent());
    /// ```
    pub fn is_silent(self) -> bool {
        !matches!(self, FaultKind::Refuse | FaultKind::Full | FaultKind::Partial | FaultKind::Lose)
    }
}

/// The cause of an error that a plan asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("injected fault: {0:?}")]
pub struct InjectedFault(
    /// How the operation failed.
    pub FaultKind,
);

impl From<InjectedFault> for io::Error {
    fn from(fault: InjectedFault) -> io::Error {
        match fault.0 {
            FaultKind::Full => io::Error::new(io::ErrorKind::StorageFull, fault),
            _ => io::Error::other(fault),
        }
    }
}

#[derive(Clone, Debug)]
struct Fault {
    operation: Operation,
    file: Option<String>,
    /// Matching operations still to succeed.
    remaining: u64,
    kind: FaultKind,
    forever: bool,
    spent: bool,
}

/// Which operations are to fail. Ordinals count from 0, from the moment at which the plan is set.
///
/// ```
/// use deuteron_device::{Directory, File, FaultKind, FaultPlan, OpenMode, Operation, SimulatedDisk};
///
/// let disk = SimulatedDisk::new(7);
/// let file = disk.directory().open("log", OpenMode::CreateNew, false)?;
/// disk.set_faults(FaultPlan::new().fail(Operation::Sync, 1, FaultKind::Lose));
/// file.sync()?;
/// assert!(file.sync().is_err());
/// assert_eq!(disk.faults_fired(), 1);
/// # Ok::<(), deuteron_device::DeviceError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    faults: Vec<Fault>,
    crash_after: Option<u64>,
}

impl FaultPlan {
    /// Nothing fails.
    pub fn new() -> FaultPlan {
        FaultPlan::default()
    }

    /// The `nth` operation of this kind fails, once. A durable write is a [`Operation::Write`].
    #[must_use]
    pub fn fail(self, operation: Operation, nth: u64, kind: FaultKind) -> FaultPlan {
        self.with(operation, None, nth, kind, false)
    }

    /// The `nth` operation of this kind on `file` fails, once.
    #[must_use]
    pub fn fail_in(self, file: &str, operation: Operation, nth: u64, kind: FaultKind) -> FaultPlan {
        self.with(operation, Some(file.to_owned()), nth, kind, false)
    }

    /// All operations of this kind fail from the `nth` on.
    #[must_use]
    pub fn fail_from(self, operation: Operation, nth: u64, kind: FaultKind) -> FaultPlan {
        self.with(operation, None, nth, kind, true)
    }

    /// The machine stops when [`SimulatedDisk::operations`](super::SimulatedDisk::operations) is `count`: that
    /// many operations succeed, the next one is in doubt (what it would have changed is pending, and so may or may
    /// not survive), and everything fails from there on, reading included.
    #[must_use]
    pub fn crash_after(mut self, count: u64) -> FaultPlan {
        self.crash_after = Some(count);
        self
    }

    fn with(
        mut self,
        operation: Operation,
        file: Option<String>,
        nth: u64,
        kind: FaultKind,
        forever: bool,
    ) -> FaultPlan {
        self.faults.push(Fault { operation, file, remaining: nth, kind, forever, spent: false });
        self
    }

    pub(super) fn crashes_at(&self, operations: u64) -> bool {
        self.crash_after.is_some_and(|count| operations >= count)
    }

    /// Notes that an operation happens, and says how it fails.
    pub(super) fn strike(&mut self, operation: Operation, file: &str) -> Option<FaultKind> {
        let mut struck = None;
        let matching = self.faults.iter_mut().filter(|fault| {
            !fault.spent
                && fault.operation == operation
                && fault.file.as_deref().is_none_or(|wanted| wanted == file)
        });
        for fault in matching {
            if fault.remaining > 0 {
                fault.remaining -= 1;
            } else {
                fault.spent = !fault.forever;
                struck = struck.or(Some(fault.kind));
            }
        }
        struck
    }
}
