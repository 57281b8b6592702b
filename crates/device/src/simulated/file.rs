//! A handle of a simulated file.

use super::entries::InodeNumber;
use super::state::{Shared, lock};
use super::watch::change;
use crate::checks::Opened;
use crate::{DeviceError, File, Operation};

pub(super) struct SimulatedFile {
    shared: Shared,
    incarnation: u64,
    inode: InodeNumber,
    opened: Opened,
}

impl SimulatedFile {
    pub(super) fn new(shared: Shared, incarnation: u64, inode: InodeNumber, opened: Opened) -> SimulatedFile {
        SimulatedFile { shared, incarnation, inode, opened }
    }

    /// The file by number, and by the name under which it was opened, to which faults refer.
    fn id(&self) -> (InodeNumber, &str) {
        (self.inode, &self.opened.name)
    }

    fn write(&self, buffer: &[u8], offset: u64, durable: bool) -> Result<(), DeviceError> {
        self.opened.writable(buffer, offset)?;
        let write = (Operation::Write, self.id().1);
        change(&self.shared, write, |disk| disk.write(self.incarnation, self.id(), buffer, offset, durable))
            .map_err(|source| self.opened.error(Operation::Write, offset, source))
    }
}

impl File for SimulatedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), DeviceError> {
        self.opened.readable(buffer, offset)?;
        lock(&self.shared)
            .read(self.incarnation, self.id(), buffer, offset)
            .map_err(|source| self.opened.error(Operation::Read, offset, source))
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.write(buffer, offset, false)
    }

    fn write_durable_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.write(buffer, offset, true)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        change(&self.shared, (Operation::Sync, self.id().1), |disk| disk.sync(self.incarnation, self.id()))
            .map_err(|source| self.opened.error(Operation::Sync, 0, source))
    }

    fn allocate(&self, length: u64) -> Result<(), DeviceError> {
        self.opened.changeable(Operation::Allocate)?;
        let allocate = (Operation::Allocate, self.id().1);
        change(&self.shared, allocate, |disk| disk.allocate(self.incarnation, self.id(), length))
            .map_err(|source| self.opened.error(Operation::Allocate, length, source))
    }

    fn shorten(&self, length: u64) -> Result<(), DeviceError> {
        self.opened.changeable(Operation::Shorten)?;
        let shorten = (Operation::Shorten, self.id().1);
        change(&self.shared, shorten, |disk| disk.shorten(self.incarnation, self.id(), length))
            .map_err(|source| self.opened.error(Operation::Shorten, length, source))
    }

    fn length(&self) -> Result<u64, DeviceError> {
        lock(&self.shared)
            .length(self.incarnation, self.id())
            .map_err(|source| self.opened.error(Operation::Length, 0, source))
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        lock(&self.shared).close(self.incarnation, self.inode);
    }
}
