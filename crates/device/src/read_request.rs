//! [`Reads`]: several reads that are asked for at once. [`ReadRequest`]: one of them.

use crate::{DeviceError, File};
use std::{fmt, mem, slice};

/// Reads that [`Directory::read_each`](crate::Directory::read_each) has in flight at the same time: which they are, and what becomes of each. They come portion by
/// portion, so that the first are under way while the others are prepared.
///
/// ```
/// use deuteron_device::{Directory, File, MemoryDirectory, OpenMode, ReadRequest, Reads};
///
/// /// A letter a portion.
/// struct Letters<'r> {
///     file: &'r dyn File,
///     places: std::iter::Enumerate<std::slice::ChunksMut<'r, u8>>,
///     read: u64,
/// }
///
/// impl<'r> Reads<'r> for Letters<'r> {
///     fn next(&mut self, reads: &mut Vec<ReadRequest<'r>>) -> bool {
///         let next = self.places.next();
///         reads.extend(next.map(|(at, place)| ReadRequest::new(self.file, at as u64, place)));
///         self.places.len() > 0
///     }
///
///     fn done(&mut self, index: usize, read: &mut ReadRequest<'r>) {
///         assert_eq!((read.offset, read.outcome.is_ok()), (index as u64, true));
///         self.read += 1;
///     }
/// }
///
/// let directory = MemoryDirectory::new();
/// let file = directory.open("words", OpenMode::CreateNew, false)?;
/// file.write_at(b"hello", 0)?;
/// let mut room = [0; 5];
/// let mut letters = Letters { file: &*file, places: room.chunks_mut(1).enumerate(), read: 0 };
/// directory.read_each(&mut letters);
/// assert_eq!(letters.read, 5);
/// assert_eq!(&room, b"hello");
/// # Ok::<(), deuteron_device::DeviceError>(())
/// ```
pub trait Reads<'r> {
    /// Puts the next reads into `reads`, which is empty; whether there may be more. It should not take long: the device may be idle meanwhile.
    fn next(&mut self, reads: &mut Vec<ReadRequest<'r>>) -> bool;

    /// Is told of a read that has been done, by its place among all that were asked for, in the order of the portions. What this does, it does while others are in flight.
    fn done(&mut self, index: usize, read: &mut ReadRequest<'r>);
}

/// Asks for the next portion, and appends it to `requests`; whether there may be more. Those that are there already may be in flight: who is asked does not see them.
pub(crate) fn ask<'r>(reads: &mut dyn Reads<'r>, requests: &mut Vec<ReadRequest<'r>>) -> bool {
    let mut portion = Vec::new();
    let more = reads.next(&mut portion);
    requests.append(&mut portion);
    more
}

/// Reads that are all there from the beginning, each of which is told what became of it.
pub(crate) struct Given<'g, 'r> {
    reads: slice::IterMut<'g, ReadRequest<'r>>,
    outcomes: Vec<&'g mut Result<(), DeviceError>>,
}

impl<'g, 'r> Given<'g, 'r> {
    pub(crate) fn new(reads: &'g mut [ReadRequest<'r>]) -> Given<'g, 'r> {
        let outcomes = Vec::with_capacity(reads.len());
        Given { reads: reads.iter_mut(), outcomes }
    }
}

impl<'g> Reads<'g> for Given<'g, '_> {
    fn next(&mut self, reads: &mut Vec<ReadRequest<'g>>) -> bool {
        for ReadRequest { file, offset, buffer, outcome } in self.reads.by_ref() {
            reads.push(ReadRequest::new(*file, *offset, buffer));
            self.outcomes.push(outcome);
        }
        false
    }

    fn done(&mut self, index: usize, read: &mut ReadRequest<'g>) {
        *self.outcomes[index] = mem::replace(&mut read.outcome, Ok(()));
    }
}

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
