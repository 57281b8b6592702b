//! The disk, seen by whoever conducts the simulation.

use super::state::{Shared, State, lock};
use super::{CrashPolicy, FaultPlan, Moment, SimulatedDirectory};
use crate::{DeviceError, Operation};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A simulated disk and the switch of its machine; the [module](super) says how it behaves. Clones are handles of the
/// same disk.
///
/// A sweep of every crash point runs the workload once to learn [`operations`](Self::operations), and then again for
/// each number below it:
///
/// ```
/// use deuteron_device::{CrashPolicy, DeviceError, Directory, FaultPlan, File, OpenMode, SimulatedDirectory, SimulatedDisk};
///
/// fn workload(directory: &SimulatedDirectory) -> Result<(), DeviceError> {
///     directory.open("a", OpenMode::CreateNew, false)?.write_durable_at(b"safe", 0)?;
///     directory.sync()
/// }
///
/// let disk = SimulatedDisk::new(1);
/// workload(&disk.directory())?;
/// for count in 0..disk.operations() {
///     let disk = SimulatedDisk::new(1);
///     disk.set_faults(FaultPlan::new().crash_after(count));
///     assert!(workload(&disk.directory()).unwrap_err().is_stopped());
///     for seed in 0..5 {
///         let survivor = disk.fork(seed).crash(CrashPolicy::Random);
///         assert!(survivor.list()?.len() <= 1);
///     }
/// }
/// # Ok::<(), DeviceError>(())
/// ```
#[derive(Clone)]
pub struct SimulatedDisk {
    shared: Shared,
}

impl SimulatedDisk {
    /// An empty disk without limit. All its randomness comes from `seed`.
    pub fn new(seed: u64) -> SimulatedDisk {
        SimulatedDisk::of(State::new(seed))
    }

    pub(super) fn of(state: State) -> SimulatedDisk {
        SimulatedDisk { shared: Arc::new(Mutex::new(state)) }
    }

    /// The directory, as the machine that runs now sees it.
    pub fn directory(&self) -> SimulatedDirectory {
        SimulatedDirectory::new(Arc::clone(&self.shared), lock(&self.shared).incarnation())
    }

    /// Stops the machine and starts it anew: what was not synced suffers `policy`, older handles fail with
    /// [`MachineStopped`](crate::MachineStopped), locks are free, the fault plan is empty and the counters are 0.
    /// The capacity stays.
    pub fn crash(&self, policy: CrashPolicy) -> SimulatedDirectory {
        lock(&self.shared).crash(policy);
        self.directory()
    }

    /// A second disk in the state of this one, pending writes included, with randomness of its own; its machine
    /// has no handles, locks and faults. For trying many crashes of one moment.
    #[must_use]
    pub fn fork(&self, seed: u64) -> SimulatedDisk {
        let mut state = lock(&self.shared).clone();
        state.watcher = None;
        state.restart();
        state.set_seed(seed);
        SimulatedDisk::of(state)
    }

    /// Shows `watcher` every operation that changes something, just before it is done, until the disk is dropped: a sweep of every
    /// crash point in one run of the workload. The watcher must not use this disk.
    ///
    /// ```
    /// use deuteron_device::{CrashPolicy, Directory, File, OpenMode, SimulatedDisk};
    /// use std::sync::{Arc, Mutex};
    /// let disk = SimulatedDisk::new(1);
    /// let lengths = Arc::new(Mutex::new(Vec::new()));
    /// let watched = Arc::clone(&lengths);
    /// disk.watch(move |moment| {
    ///     for (disk, policy) in [(&moment.before, CrashPolicy::KeepAll), (&moment.during, CrashPolicy::KeepAll)] {
    ///         disk.fork(1).crash(policy);
    ///         watched.lock().unwrap().push(disk.used_bytes());
    ///     }
    /// });
    /// let file = disk.directory().open("a", OpenMode::CreateNew, false)?;
    /// file.write_at(b"12345", 0)?;
    /// assert_eq!(*lengths.lock().unwrap(), [0, 0, 0, 5]);
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    pub fn watch(&self, watcher: impl Fn(Moment) + Send + Sync + 'static) {
        lock(&self.shared).watcher = Some(Arc::new(watcher));
    }

    /// Replaces the plan of faults. Its ordinals count from here; the count of
    /// [`crash_after`](FaultPlan::crash_after) is compared with [`operations`](Self::operations).
    pub fn set_faults(&self, plan: FaultPlan) {
        lock(&self.shared).set_plan(plan);
    }

    /// How many faults have struck since the plan was set; the stop of the machine is none.
    pub fn faults_fired(&self) -> u64 {
        lock(&self.shared).fired()
    }

    /// How many of these faults nobody was told of ([`FaultKind::is_silent`](super::FaultKind::is_silent)), slowness apart.
    pub fn lies_told(&self) -> u64 {
        lock(&self.shared).lies()
    }

    /// Whether the machine has stopped by [`FaultPlan::crash_after`].
    pub fn is_stopped(&self) -> bool {
        lock(&self.shared).is_stopped()
    }

    /// Operations since the last start that change something, and so are points at which a crash differs: writes,
    /// syncs, allocations, creations, removals, renames. Reads and the like are not counted.
    pub fn operations(&self) -> u64 {
        lock(&self.shared).operations()
    }

    /// Operations of one kind since the last start, failed ones included.
    pub fn count(&self, operation: Operation) -> u64 {
        lock(&self.shared).count(operation)
    }

    /// Limits the sum of the files' lengths, or lifts the limit. What exceeds it already stays.
    ///
    /// ```
    /// use deuteron_device::{Directory, File, OpenMode, SimulatedDisk};
    /// let disk = SimulatedDisk::new(1);
    /// let file = disk.directory().open("a", OpenMode::CreateNew, false)?;
    /// disk.set_capacity(Some(1000));
    /// assert!(file.allocate(1001).unwrap_err().is_full());
    /// disk.set_capacity(Some(2000));
    /// file.allocate(1001)?;
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    pub fn set_capacity(&self, bytes: Option<u64>) {
        lock(&self.shared).set_capacity(bytes);
    }

    /// The sum of the files' lengths.
    pub fn used_bytes(&self) -> u64 {
        lock(&self.shared).used()
    }

    /// Lets the clock of the machine go on, which [`Directory::now`](crate::Directory::now) shows. It stands still otherwise,
    /// except that each operation takes 10 microseconds.
    ///
    /// ```
    /// use deuteron_device::{Directory, SimulatedDisk};
    /// use std::time::Duration;
    /// let disk = SimulatedDisk::new(1);
    /// let then = disk.directory().now();
    /// disk.advance(Duration::from_secs(60));
    /// assert_eq!(disk.directory().now() - then, Duration::from_secs(60));
    /// ```
    pub fn advance(&self, time: Duration) {
        lock(&self.shared).advance(time);
    }

    /// A hash of everything that was done to the disk so far, in its order, with what came of it: what was read and written and
    /// where, and every failure. Two runs that have the same trace have done the same.
    ///
    /// ```
    /// use deuteron_device::{Directory, OpenMode, SimulatedDisk};
    /// let run = |bytes: &[u8]| {
    ///     let disk = SimulatedDisk::new(1);
    ///     disk.directory().open("a", OpenMode::CreateNew, false)?.write_at(bytes, 0)?;
    ///     Ok::<_, deuteron_device::DeviceError>(disk.trace())
    /// };
    /// assert_eq!(run(b"one")?, run(b"one")?);
    /// assert_ne!(run(b"one")?, run(b"two")?);
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    pub fn trace(&self) -> u64 {
        lock(&self.shared).trace()
    }

    /// The names and lengths of all files, in the order of their names. Counts as no operation.
    ///
    /// ```
    /// use deuteron_device::{Directory, OpenMode, SimulatedDisk};
    /// let disk = SimulatedDisk::new(1);
    /// disk.directory().open("a", OpenMode::CreateNew, false)?.write_at(b"12345", 0)?;
    /// assert_eq!(disk.files(), [("a".to_owned(), 5)]);
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    pub fn files(&self) -> Vec<(String, u64)> {
        lock(&self.shared).files()
    }

    /// A hash of all files, their names and what a machine would read in them: of two disks that have the same, and on which nothing is
    /// pending, one tells as much as both. Counts as no operation.
    ///
    /// ```
    /// use deuteron_device::{CrashPolicy, Directory, OpenMode, SimulatedDisk};
    /// let disk = SimulatedDisk::new(1);
    /// disk.directory().open("a", OpenMode::CreateNew, false)?.write_at(b"12345", 0)?;
    /// let (kept, lost) = (disk.fork(1), disk.fork(2));
    /// kept.crash(CrashPolicy::KeepAll);
    /// lost.crash(CrashPolicy::LoseAll);
    /// assert_eq!(kept.contents(), disk.contents());
    /// assert_ne!(lost.contents(), disk.contents());
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    pub fn contents(&self) -> u64 {
        lock(&self.shared).contents()
    }

    /// Rots the byte of `file` at `offset`: the bits of `mask` are flipped, durably and at once.
    ///
    /// # Errors
    /// [`DeviceError`] if there is no such file or byte.
    pub fn flip_bits(&self, file: &str, offset: u64, mask: u8) -> Result<(), DeviceError> {
        lock(&self.shared)
            .flip(file, offset, mask)
            .map_err(|source| DeviceError::new(Operation::Write, file, offset, source))
    }
}
