//! [`ReadRequest`]: one of several reads that are asked for at once.

use crate::{DeviceError, File};
use std::fmt;

/// One of the reads that [`Directory::read_many`](crate::Directory::read_many) does at once.
pub struct ReadRequest<'r> {
    /// What is read.
    pub file: &'r (dyn File + 'static),
    /// Where it begins, in bytes.
    pub offset: u64,
    /// What is filled; its length says how much is read. Its contents are arbitrary if the read fails.
    pub buffer: &'r mut [u8],
    /// What became of the read: that of [`File::read_at`].
    pub outcome: Result<(), DeviceError>,
}

impl<'r> ReadRequest<'r> {
    /// A read that has not been done yet.
    ///
    /// ```
    /// use deuteron_device::{Directory, File, MemoryDirectory, OpenMode, ReadRequest};
    /// let directory = MemoryDirectory::new();
    /// let file = directory.open("words", OpenMode::CreateNew, false)?;
    /// file.write_at(b"hello world", 0)?;
    /// let (mut first, mut second) = ([0; 5], [0; 5]);
    /// let mut reads = [ReadRequest::new(&*file, 0, &mut first), ReadRequest::new(&*file, 6, &mut second)];
    /// directory.read_many(&mut reads);
    /// assert!(reads.iter().all(|read| read.outcome.is_ok()));
    /// assert_eq!((&first, &second), (b"hello", b"world"));
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    pub fn new(file: &'r (dyn File + 'static), offset: u64, buffer: &'r mut [u8]) -> ReadRequest<'r> {
        ReadRequest { file, offset, buffer, outcome: Ok(()) }
    }

    /// Does this read alone.
    pub(crate) fn read(&mut self) {
        self.outcome = self.file.read_at(self.buffer, self.offset);
    }
}

impl fmt::Debug for ReadRequest<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReadRequest { offset, buffer, outcome, .. } = self;
        write!(formatter, "ReadRequest({} bytes at {offset}: {outcome:?})", buffer.len())
    }
}
