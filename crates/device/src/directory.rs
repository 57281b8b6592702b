//! The traits: a directory of files, and a file.
//!
//! All offsets and lengths of [`File::read_at`] and [`File::write_at`] on files opened with `direct` are
//! multiples of [`BLOCK_BYTES`], and so is the address of the buffer (use `AlignedBuffer`). Implementations
//! check this with a typed error in every mode, so that a test on memory finds what a disk would refuse.

use crate::durable_write::Ended;
use crate::read_request::{Given, ask};
use crate::{DeviceError, DurableWrite, ReadRequest, Reads, WriteInFlight};
use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// The unit of direct I/O in bytes: offsets, lengths and buffer addresses are multiples of it.
pub const BLOCK_BYTES: usize = 4096;

/// How [`Directory::open`] opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist; it is opened for reading only.
    Read,
    /// The file must exist; it is opened for reading and writing.
    ReadWrite,
    /// The file must not exist; it is created, owner-only, empty.
    CreateNew,
}

/// A directory of files: the whole storage of one database.
pub trait Directory: Send + Sync {
    /// Opens or creates `name`. With `direct`, I/O bypasses the page cache where the file system can.
    ///
    /// A created file's *name* is durable only after [`Directory::sync`].
    ///
    /// # Errors
    /// [`DeviceError`] with the name and the cause; [`DeviceError::is_not_found`] tells a missing file.
    fn open(&self, name: &str, mode: OpenMode, direct: bool) -> Result<Arc<dyn File>, DeviceError>;

    /// The names of all files, sorted.
    ///
    /// # Errors
    /// [`DeviceError`] if the directory cannot be read.
    fn list(&self) -> Result<Vec<String>, DeviceError>;

    /// Removes `name`. Durable only after [`Directory::sync`].
    ///
    /// # Errors
    /// [`DeviceError`] with the name and the cause.
    fn remove(&self, name: &str) -> Result<(), DeviceError>;

    /// Removes `name`, whose handle `file` is, piece by piece: as long as the file is longer than `piece_bytes` it is cut back to the
    /// next lower multiple of that, durably, and what is left is removed. Where the file system tells the device at once what has become
    /// free (mounted with `discard`), others who use the device meanwhile wait for a piece and not for all of the file.
    ///
    /// A crash leaves all of the file, or whole pieces from its beginning on, or nothing. If somebody else has the handle, too,
    /// the file is removed at once, so that he may read on; and likewise if it cannot be cut.
    ///
    /// # Errors
    /// Those of [`Directory::remove`].
    ///
    /// # Panics
    /// If `piece_bytes` is 0.
    ///
    /// ```
    /// use deuteron_device::{Directory, File, OpenMode, Operation, SimulatedDisk};
    /// let disk = SimulatedDisk::new(1);
    /// let directory = disk.directory();
    /// let file = directory.open("long", OpenMode::CreateNew, false)?;
    /// file.allocate(9 << 20)?;
    /// directory.remove_in_pieces("long", file, 4 << 20)?;
    /// assert!(directory.list()?.is_empty());
    /// assert_eq!((disk.count(Operation::Shorten), disk.count(Operation::Sync)), (2, 2));
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    fn remove_in_pieces(
        &self,
        name: &str,
        mut file: Arc<dyn File>,
        piece_bytes: u64,
    ) -> Result<(), DeviceError> {
        if let Some(file) = Arc::get_mut(&mut file) {
            // Nobody relies on what is in it any more. So a cut or a sync that fails loses nothing, and nothing is done again.
            let _ = shorten_in_pieces(file, piece_bytes);
        }
        drop(file);
        self.remove(name)
    }

    /// Renames `from` to `to`, replacing `to` if it exists. Atomic; durable only after [`Directory::sync`].
    ///
    /// # Errors
    /// [`DeviceError`] with the name and the cause.
    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError>;

    /// Makes the entries (creations, removals, renames) durable.
    ///
    /// # Errors
    /// [`DeviceError`]. As with [`File::sync`], the caller must not retry.
    fn sync(&self) -> Result<(), DeviceError>;

    /// Takes the exclusive lock of the directory, which is given back when the returned value is dropped, and
    /// by the operating system when the process dies. What a process that has died had in flight ([`Directory::begin_write`]) is over when this returns: it waits for that.
    ///
    /// # Errors
    /// [`DeviceError`] with `Operation::Lock` if another process or another handle holds it.
    fn lock(&self) -> Result<Box<dyn Send + Sync>, DeviceError>;

    /// As [`Directory::lock`], for who only reads, and changes nothing: where the lock has no file yet nobody has it, and none is made.
    ///
    /// # Errors
    /// As [`Directory::lock`].
    ///
    /// ```
    /// use deuteron_device::{Directory, OsDirectory};
    /// # let scratch = tempfile::tempdir()?;
    /// let directory = OsDirectory::open_existing(scratch.path())?;
    /// drop(directory.lock_to_read()?);
    /// assert!(!scratch.path().join("lock").exists());
    /// let lock = directory.lock()?;
    /// assert!(directory.lock_to_read().is_err_and(|error| error.is_locked()));
    /// # drop(lock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        self.lock()
    }

    /// Does several reads, of any files of this directory, at the same time where the device can, and notes in each
    /// request what became of it. Blocks until all are done. No read hinders another.
    ///
    /// One after the other unless an implementation knows better.
    fn read_many(&self, reads: &mut [ReadRequest<'_>]) {
        self.read_each(&mut Given::new(reads));
    }

    /// As [`Directory::read_many`], telling of each read as soon as it is done, in whatever order they end, and asking for those that come later while the first are in flight: see
    /// [`Reads`].
    fn read_each<'r>(&self, reads: &mut dyn Reads<'r>) {
        let mut requests = Vec::new();
        let mut next = 0;
        loop {
            let more = ask(reads, &mut requests);
            for (index, read) in requests.iter_mut().enumerate().skip(next) {
                read.read();
                reads.done(index, read);
            }
            if !more {
                return;
            }
            next = requests.len();
        }
    }

    /// How many reads [`Directory::read_many`] has in flight at the same time: 1 if one after the other.
    fn reads_at_once(&self) -> usize {
        1
    }

    /// Begins a durable write, which goes on while whoever has begun it does something else, where the device can; else it has ended when this returns. In which order writes that
    /// are under way become durable nobody knows.
    ///
    /// ```
    /// # use deuteron_device::{AlignedBuffer, BLOCK_BYTES, Directory, DurableWrite, MemoryDirectory, OpenMode};
    /// # let directory = MemoryDirectory::new();
    /// let file = directory.open("words", OpenMode::CreateNew, true)?;
    /// let buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
    /// let write = directory.begin_write(DurableWrite { file, buffer, length: BLOCK_BYTES, offset: 0 });
    /// let (buffer, outcome) = write.wait();
    /// outcome?;
    /// assert_eq!(buffer.len(), BLOCK_BYTES);
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    fn begin_write(&self, write: DurableWrite) -> Box<dyn WriteInFlight> {
        Box::new(Ended::of(write))
    }

    /// Does one long read in pieces, at the same time where the device can: most devices need several requests at once to be as
    /// fast as they can be.
    ///
    /// # Errors
    /// Those of [`File::read_at`], of the first piece that fails. The contents of the buffer are arbitrary then.
    fn read_long(
        &self,
        file: &(dyn File + 'static),
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<(), DeviceError> {
        if buffer.len() <= PIECE_BYTES || self.reads_at_once() == 1 {
            return file.read_at(buffer, offset);
        }
        let pieces = (offset..).step_by(PIECE_BYTES).zip(buffer.chunks_mut(PIECE_BYTES));
        let mut reads: Vec<_> = pieces.map(|(offset, piece)| ReadRequest::new(file, offset, piece)).collect();
        self.read_many(&mut reads);
        reads.into_iter().try_for_each(|read| read.outcome)
    }

    /// What messages call this directory: a path, or a word such as `memory`.
    fn name(&self) -> String;

    /// The time on the machine that has the directory. A simulated machine has a clock of its own, which stands still
    /// unless it is told to go.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// The date and time of day on that machine.
    fn system_time(&self) -> SystemTime {
        SystemTime::now()
    }

    /// A number that hardly anything else has, to tell a new store or log from others: against mix-ups, not against malice. Of a
    /// simulated machine it follows from the seed.
    fn identifier(&self) -> u64 {
        // The keys of the standard library's hasher are drawn from the system, and counted up.
        RandomState::new().hash_one(std::process::id())
    }
}

/// A piece of a long read: about what one request brings at the full rate of a disk that has several in flight.
const PIECE_BYTES: usize = 1 << 20;

/// Cuts pieces off the end until one is left.
fn shorten_in_pieces(file: &dyn File, piece_bytes: u64) -> Result<(), DeviceError> {
    let mut pieces = file.length()?.div_ceil(piece_bytes);
    while pieces > 1 {
        pieces -= 1;
        file.shorten(pieces * piece_bytes)?;
        file.sync()?;
    }
    Ok(())
}

/// An open file. All methods may be called from any thread.
pub trait File: Any + Send + Sync {
    /// Fills `buffer` from `offset`. Bytes past the end of the file read as an error, not as zeros.
    ///
    /// # Errors
    /// [`DeviceError`]; a short file gives `UnexpectedEof` as its cause.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), DeviceError>;

    /// Writes all of `buffer` at `offset`, extending the file if needed. Not durable before [`File::sync`].
    ///
    /// # Errors
    /// [`DeviceError`]; [`DeviceError::is_full`] tells a full disk. After an error any part may have been
    /// written.
    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError>;

    /// Writes all of `buffer` at `offset` and makes it durable before returning (`RWF_DSYNC`, or a write and an
    /// `fdatasync`). Earlier writes to the file are *not* made durable by it.
    ///
    /// # Errors
    /// As [`File::write_at`] and [`File::sync`].
    fn write_durable_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError>;

    /// Makes all earlier writes durable, and the file's length.
    ///
    /// # Errors
    /// [`DeviceError`]. What was written since the last good sync may be lost; the caller must not retry.
    fn sync(&self) -> Result<(), DeviceError>;

    /// Gives the file at least `length` bytes of allocated space; new bytes read as zeros.
    ///
    /// # Errors
    /// [`DeviceError`]; [`DeviceError::is_full`] tells a full disk.
    fn allocate(&self, length: u64) -> Result<(), DeviceError>;

    /// Gives the file at most `length` bytes: what lies behind them goes, and its space becomes free. Durable after
    /// [`File::sync`].
    ///
    /// # Errors
    /// [`DeviceError`]; the file may be shorter or not.
    fn shorten(&self, length: u64) -> Result<(), DeviceError>;

    /// The length in bytes.
    ///
    /// # Errors
    /// [`DeviceError`] if the device fails.
    fn length(&self) -> Result<u64, DeviceError>;
}
