//! The simulated directory: what the code under test is given.

use super::file::SimulatedFile;
use super::state::{Shared, lock};
use super::watch::change;
use crate::checks::{self, LOCK_NAME, Opened};
use crate::durable_write::Deferred;
use crate::{DeviceError, Directory, DurableWrite, File, OpenMode, Operation, WriteInFlight};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// The directory of a [`SimulatedDisk`](super::SimulatedDisk), as one run of its machine sees it. Clones are handles
/// of the same run.
#[derive(Clone)]
pub struct SimulatedDirectory {
    shared: Shared,
    incarnation: u64,
}

impl SimulatedDirectory {
    pub(super) fn new(shared: Shared, incarnation: u64) -> SimulatedDirectory {
        SimulatedDirectory { shared, incarnation }
    }
}

impl Directory for SimulatedDirectory {
    fn open(&self, name: &str, mode: OpenMode, direct: bool) -> Result<Arc<dyn File>, DeviceError> {
        checks::name(Operation::Open, name)?;
        let inode =
            change(&self.shared, (Operation::Open, name), |disk| disk.open(self.incarnation, name, mode))
                .map_err(|source| DeviceError::new(Operation::Open, name, 0, source))?;
        let opened = Opened::new(name, mode, direct);
        Ok(Arc::new(SimulatedFile::new(Arc::clone(&self.shared), self.incarnation, inode, opened)))
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        lock(&self.shared)
            .list(self.incarnation)
            .map_err(|source| DeviceError::new(Operation::List, &self.name(), 0, source))
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        checks::name(Operation::Remove, name)?;
        change(&self.shared, (Operation::Remove, name), |disk| disk.remove(self.incarnation, name))
            .map_err(|source| DeviceError::new(Operation::Remove, name, 0, source))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        checks::name(Operation::Rename, from)?;
        checks::name(Operation::Rename, to)?;
        change(&self.shared, (Operation::Rename, from), |disk| disk.rename(self.incarnation, from, to))
            .map_err(|source| DeviceError::new(Operation::Rename, from, 0, source))
    }

    fn sync(&self) -> Result<(), DeviceError> {
        change(&self.shared, (Operation::SyncDirectory, ""), |disk| disk.sync_entries(self.incarnation))
            .map_err(|source| DeviceError::new(Operation::SyncDirectory, &self.name(), 0, source))
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        lock(&self.shared)
            .take_lock(self.incarnation, LOCK_NAME)
            .map_err(|source| DeviceError::new(Operation::Lock, LOCK_NAME, 0, source))?;
        Ok(Box::new(Locked(self.clone())))
    }

    /// It is done when somebody looks whether it is: what is done meanwhile comes before it.
    fn begin_write(&self, write: DurableWrite) -> Box<dyn WriteInFlight> {
        Box::new(Deferred::new(write))
    }

    fn name(&self) -> String {
        "simulated disk".to_owned()
    }

    fn now(&self) -> Instant {
        lock(&self.shared).now()
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + lock(&self.shared).uptime()
    }

    fn identifier(&self) -> u64 {
        lock(&self.shared).identifier()
    }
}

struct Locked(SimulatedDirectory);

impl Drop for Locked {
    fn drop(&mut self) {
        lock(&self.0.shared).give_back_lock(self.0.incarnation);
    }
}
