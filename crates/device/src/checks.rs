//! What every implementation checks before it acts, so that tests on memory find what a disk would refuse.

use crate::{BLOCK_BYTES, DeviceError, MisalignedAccess, OpenMode, Operation};
use std::io;

/// The file that carries the operating system's lock. Reserved in every implementation, and never listed.
pub(crate) const LOCK_NAME: &str = "lock";

/// A name is one path component, and not the lock's.
pub(crate) fn name(operation: Operation, name: &str) -> Result<(), DeviceError> {
    let fits =
        !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']) && name != LOCK_NAME;
    if fits { Ok(()) } else { Err(DeviceError::new(operation, name, 0, io::ErrorKind::InvalidFilename)) }
}

/// How one file was opened: what each of its operations checks.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) name: String,
    pub(crate) writable: bool,
    pub(crate) direct: bool,
}

impl Opened {
    pub(crate) fn new(name: &str, mode: OpenMode, direct: bool) -> Opened {
        Opened { name: name.to_owned(), writable: mode != OpenMode::Read, direct }
    }

    pub(crate) fn error(
        &self,
        operation: Operation,
        offset: u64,
        source: impl Into<io::Error>,
    ) -> DeviceError {
        DeviceError::new(operation, &self.name, offset, source)
    }

    pub(crate) fn readable(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.aligned(Operation::Read, buffer, offset)
    }

    pub(crate) fn writable(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.changeable(Operation::Write)?;
        self.aligned(Operation::Write, buffer, offset)?;
        // The last byte's offset must fit what file systems count in.
        match offset.checked_add(buffer.len() as u64) {
            Some(end) if end <= i64::MAX as u64 => Ok(()),
            _ => Err(self.error(Operation::Write, offset, io::ErrorKind::FileTooLarge)),
        }
    }

    pub(crate) fn changeable(&self, operation: Operation) -> Result<(), DeviceError> {
        if self.writable { Ok(()) } else { Err(self.error(operation, 0, io::ErrorKind::PermissionDenied)) }
    }

    fn aligned(&self, operation: Operation, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        let (address, length) = (buffer.as_ptr().addr(), buffer.len());
        if self.direct && !(address | length | offset as usize).is_multiple_of(BLOCK_BYTES) {
            return Err(self.error(operation, offset, MisalignedAccess { offset, length, address }));
        }
        Ok(())
    }
}
