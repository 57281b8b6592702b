//! A file of the operating system.

use super::transfer;
use crate::checks::Opened;
use crate::{AlignedBuffer, BLOCK_BYTES, DeviceError, File, Operation};
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the file system of a directory turned out not to support. Only ever changes from false to true.
#[derive(Debug, Default)]
pub(super) struct Support {
    direct_refused: AtomicBool,
    durable_write_refused: AtomicBool,
    /// No io_uring, or none wanted.
    ring_refused: AtomicBool,
}

impl Support {
    pub(super) fn direct_refused(&self) -> bool {
        self.direct_refused.load(Ordering::Relaxed)
    }

    pub(super) fn ring_refused(&self) -> bool {
        self.ring_refused.load(Ordering::Relaxed)
    }

    pub(super) fn refuse_ring(&self) {
        self.ring_refused.store(true, Ordering::Relaxed);
    }

    pub(super) fn refuse_direct(&self) {
        self.direct_refused.store(true, Ordering::Relaxed);
    }
}

pub(super) struct OsFile {
    opened: Opened,
    descriptor: Arc<OwnedFd>,
    /// The descriptor has `O_DIRECT`. Cleared for good if the first real transfer shows that it does not work.
    direct: AtomicBool,
    support: Arc<Support>,
}

/// Zeros are written in pieces of this size where `fallocate` does not work.
const ZEROS_BYTES: usize = 1 << 20;

impl OsFile {
    pub(super) fn new(opened: Opened, descriptor: OwnedFd, direct: bool, support: Arc<Support>) -> OsFile {
        OsFile { opened, descriptor: Arc::new(descriptor), direct: AtomicBool::new(direct), support }
    }

    /// The descriptor, for who may still use it when this file is closed.
    pub(super) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.descriptor)
    }

    /// The descriptor for a read that is done elsewhere, if it is one that could go well.
    pub(super) fn admit(&self, buffer: &[u8], offset: u64) -> Option<RawFd> {
        let fits = !buffer.is_empty() && self.opened.readable(buffer, offset).is_ok();
        fits.then(|| self.descriptor.as_raw_fd())
    }

    /// The descriptor for a durable write that is done elsewhere, if it is one that could go well.
    pub(super) fn admit_durable_write(&self, buffer: &[u8], offset: u64) -> Option<RawFd> {
        let fits = !buffer.is_empty() && self.opened.writable(buffer, offset).is_ok();
        let may_be_durable = !self.support.durable_write_refused.load(Ordering::Relaxed);
        (fits && may_be_durable).then(|| self.descriptor.as_raw_fd())
    }

    /// What is told of a write at `offset` that has failed.
    pub(super) fn write_error(&self, offset: u64, source: Errno) -> DeviceError {
        self.opened.error(Operation::Write, offset, source)
    }

    /// Some file systems accept `O_DIRECT` at open and refuse each transfer. An access that we know to be aligned
    /// and that is refused as invalid is repeated once without it.
    fn with_fallback(&self, mut access: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        // Before: another access may find out at the same time.
        let was_direct = self.direct.load(Ordering::Relaxed);
        match access() {
            Err(error) if is_invalid(&error) && was_direct => {
                let flags = rustix::fs::fcntl_getfl(&self.descriptor)?;
                rustix::fs::fcntl_setfl(&self.descriptor, flags - OFlags::DIRECT)?;
                self.direct.store(false, Ordering::Relaxed);
                self.support.refuse_direct();
                access()
            }
            result => result,
        }
    }

    fn write_with(&self, buffer: &[u8], offset: u64, flags: ReadWriteFlags) -> io::Result<()> {
        self.with_fallback(|| {
            transfer::write_all(buffer, offset, |piece, at| {
                rustix::io::pwritev2(&self.descriptor, &[IoSlice::new(piece)], at, flags)
            })
        })
    }

    fn synchronise(&self) -> io::Result<()> {
        // Not retried, not even on EINTR: after a failed sync the kernel may have dropped the pages.
        rustix::fs::fdatasync(&self.descriptor).map_err(io::Error::from)
    }

    fn length_now(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.descriptor)?.st_size as u64)
    }

    /// Extends the file by writing zeros, for file systems without `fallocate`.
    fn write_zeros(&self, length: u64) -> io::Result<()> {
        let zeros = AlignedBuffer::zeroed(ZEROS_BYTES);
        let mut end = self.length_now()?;
        while end < length {
            let count = (length - end).min(ZEROS_BYTES as u64) as usize;
            if self.direct.load(Ordering::Relaxed) && !(end as usize | count).is_multiple_of(BLOCK_BYTES) {
                // A length off the block boundary: let the file system cut it.
                return Ok(rustix::fs::ftruncate(&self.descriptor, length)?);
            }
            self.write_with(&zeros[..count], end, ReadWriteFlags::empty())?;
            end += count as u64;
        }
        Ok(())
    }
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

fn is_unsupported(error: &io::Error) -> bool {
    [Errno::OPNOTSUPP, Errno::NOSYS].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl File for OsFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), DeviceError> {
        self.opened.readable(buffer, offset)?;
        self.with_fallback(|| {
            transfer::read_all(
                buffer,
                offset,
                |piece, at| rustix::io::pread(&self.descriptor, piece, at),
                || self.length_now(),
            )
        })
        .map_err(|source| self.opened.error(Operation::Read, offset, source))
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.opened.writable(buffer, offset)?;
        self.write_with(buffer, offset, ReadWriteFlags::empty())
            .map_err(|source| self.opened.error(Operation::Write, offset, source))
    }

    fn write_durable_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.opened.writable(buffer, offset)?;
        let error = |source| self.opened.error(Operation::Write, offset, source);
        if !self.support.durable_write_refused.load(Ordering::Relaxed) {
            match self.write_with(buffer, offset, ReadWriteFlags::DSYNC) {
                Err(source) if is_unsupported(&source) => {
                    self.support.durable_write_refused.store(true, Ordering::Relaxed);
                }
                result => return result.map_err(error),
            }
        }
        self.write_with(buffer, offset, ReadWriteFlags::empty()).map_err(error)?;
        self.synchronise().map_err(|source| self.opened.error(Operation::Sync, offset, source))
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.synchronise().map_err(|source| self.opened.error(Operation::Sync, 0, source))
    }

    fn allocate(&self, length: u64) -> Result<(), DeviceError> {
        self.opened.changeable(Operation::Allocate)?;
        let allocated = match length {
            0 => Ok(()),
            _ => {
                retry_on_intr(|| rustix::fs::fallocate(&self.descriptor, FallocateFlags::empty(), 0, length))
                    .map_err(io::Error::from)
            }
        };
        match allocated {
            Err(source) if is_unsupported(&source) => self.write_zeros(length),
            result => result,
        }
        .map_err(|source| self.opened.error(Operation::Allocate, length, source))
    }

    fn shorten(&self, length: u64) -> Result<(), DeviceError> {
        self.opened.changeable(Operation::Shorten)?;
        let shortened = self.length_now().and_then(|before| match before > length {
            true => Ok(retry_on_intr(|| rustix::fs::ftruncate(&self.descriptor, length))?),
            false => Ok(()),
        });
        shortened.map_err(|source| self.opened.error(Operation::Shorten, length, source))
    }

    fn length(&self) -> Result<u64, DeviceError> {
        self.length_now().map_err(|source| self.opened.error(Operation::Length, 0, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenMode;

    #[test]
    fn two_accesses_that_find_out_at_once_that_there_is_no_direct_io_are_both_repeated() {
        let descriptor = OwnedFd::from(tempfile::tempfile().unwrap());
        let opened = Opened::new("file", OpenMode::ReadWrite, true);
        let file = OsFile::new(opened, descriptor, true, Arc::default());
        let refused = || Err(io::Error::from(Errno::INVAL));
        let mut attempts = 0;
        let twice = file.with_fallback(|| {
            attempts += 1;
            if attempts > 1 {
                return Ok(());
            }
            let mut refusals = 0;
            file.with_fallback(|| {
                refusals += 1;
                if refusals == 1 { refused() } else { Ok(()) }
            })?;
            refused()
        });
        assert!(twice.is_ok() && attempts == 2, "{twice:?} after {attempts}");
        // Now there is no reason to try again.
        assert!(file.with_fallback(refused).is_err());
    }
}
