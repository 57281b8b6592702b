//! [`DurableWrite`]: a durable write that is begun, and goes on while whoever has begun it does something else.

use crate::{AlignedBuffer, DeviceError, File};
use std::fmt;
use std::mem;
use std::sync::Arc;

/// A write for [`Directory::begin_write`](crate::Directory::begin_write).
pub struct DurableWrite {
    /// The file that is written to.
    pub file: Arc<dyn File>,
    /// What is written, at its beginning.
    pub buffer: AlignedBuffer,
    /// How much of it is written.
    pub length: usize,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
}

impl DurableWrite {
    /// Does it, as [`File::write_durable_at`].
    ///
    /// # Errors
    /// As that.
    ///
    /// # Panics
    /// If the buffer is shorter than what is to be written.
    ///
    /// ```
    /// use deuteron_device::{AlignedBuffer, BLOCK_BYTES, Directory, DurableWrite, File, MemoryDirectory, OpenMode};
    /// let file = MemoryDirectory::new().open("words", OpenMode::CreateNew, false)?;
    /// let buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
    /// let write = DurableWrite { file, buffer, length: BLOCK_BYTES, offset: 0 };
    /// write.write()?;
    /// assert_eq!(write.file.length()?, BLOCK_BYTES as u64);
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    pub fn write(&self) -> Result<(), DeviceError> {
        self.file.write_durable_at(&self.buffer[..self.length], self.offset)
    }
}

impl fmt::Debug for DurableWrite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DurableWrite({} bytes at {})", self.length, self.offset)
    }
}

/// A write that was [begun](crate::Directory::begin_write). Dropping it waits for its end.
pub trait WriteInFlight: Send {
    /// Whether it has ended, so that [`WriteInFlight::wait`] does not wait. Does not block.
    fn is_done(&mut self) -> bool;

    /// Waits for its end. The buffer, and what became of the write: that of [`File::write_durable_at`].
    fn wait(self: Box<Self>) -> (AlignedBuffer, Result<(), DeviceError>);
}

/// A write that is done only when somebody looks whether it is: what is done meanwhile comes before it.
pub(crate) struct Deferred {
    write: DurableWrite,
    outcome: Option<Result<(), DeviceError>>,
}

impl Deferred {
    pub(crate) fn new(write: DurableWrite) -> Deferred {
        Deferred { write, outcome: None }
    }
}

impl WriteInFlight for Deferred {
    fn is_done(&mut self) -> bool {
        self.outcome.get_or_insert_with(|| self.write.write());
        true
    }

    fn wait(mut self: Box<Self>) -> (AlignedBuffer, Result<(), DeviceError>) {
        self.is_done();
        (
            mem::replace(&mut self.write.buffer, AlignedBuffer::zeroed(0)),
            self.outcome.take().expect("it is done"),
        )
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if !self.write.buffer.is_empty() {
            self.is_done();
        }
    }
}

/// A write that has ended.
pub(crate) struct Ended {
    buffer: AlignedBuffer,
    outcome: Result<(), DeviceError>,
}

impl Ended {
    /// Does the write.
    pub(crate) fn of(write: DurableWrite) -> Ended {
        let outcome = write.write();
        Ended { buffer: write.buffer, outcome }
    }
}

impl WriteInFlight for Ended {
    fn is_done(&mut self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> (AlignedBuffer, Result<(), DeviceError>) {
        (self.buffer, self.outcome)
    }
}
