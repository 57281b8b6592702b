//! A directory of the operating system.

use super::file::{OsFile, Support};
use super::write_ring::WriteRing;
use super::{in_flight, ring, threads};
use crate::checks::{self, LOCK_NAME, Opened};
use crate::{DeviceError, Directory, DurableWrite, File, OpenMode, Operation, Reads, WriteInFlight};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Files are the owner's alone: they hold whatever users keep in the database.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const DIRECTORY_MODE: u32 = 0o700;

/// A directory of the operating system. All names are resolved relative to the directory that was opened, even if it is
/// moved meanwhile.
///
/// ```
/// use deuteron_device::{Directory, File, OpenMode, OsDirectory};
/// # let scratch = tempfile::tempdir().unwrap();
/// # let path = scratch.path().join("database");
/// let directory = OsDirectory::open_or_create(&path)?;
/// let _lock = directory.lock()?;
/// let file = directory.open("segment", OpenMode::CreateNew, false)?;
/// file.write_at(b"hello", 0)?;
/// file.sync()?;
/// directory.sync()?; // now the name is durable too
/// assert_eq!(directory.list()?, ["segment"]);
/// # Ok::<(), deuteron_device::DeviceError>(())
/// ```
#[derive(Debug)]
pub struct OsDirectory {
    path: PathBuf,
    descriptor: OwnedFd,
    support: Arc<Support>,
    /// Made with the first write.
    writes: OnceLock<Option<Arc<WriteRing>>>,
}

impl OsDirectory {
    /// Opens the directory at `path`, creating it (and missing parents) for the owner only.
    ///
    /// # Errors
    /// [`DeviceError`] if it can be neither opened nor created, or is no directory.
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<OsDirectory, DeviceError> {
        let path = path.as_ref();
        let context = path.display().to_string();
        if !path.is_dir() {
            create(path).map_err(|source| DeviceError::new(Operation::Open, &context, 0, source))?;
        }
        let descriptor =
            open_directory(path).map_err(|source| DeviceError::new(Operation::Open, &context, 0, source))?;
        Ok(OsDirectory::new(path, descriptor))
    }

    /// Opens the directory at `path`, which must exist.
    ///
    /// # Errors
    /// [`DeviceError`]; [`DeviceError::is_not_found`] tells that there is none.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<OsDirectory, DeviceError> {
        let path = path.as_ref();
        let descriptor = open_directory(path)
            .map_err(|source| DeviceError::new(Operation::Open, &path.display().to_string(), 0, source))?;
        Ok(OsDirectory::new(path, descriptor))
    }

    fn new(path: &Path, descriptor: OwnedFd) -> OsDirectory {
        let support = Arc::<Support>::default();
        if !ring::is_available() {
            support.refuse_ring();
        }
        OsDirectory { path: path.to_owned(), descriptor, support, writes: OnceLock::new() }
    }

    /// This directory without io_uring: [`Directory::read_many`] and [`Directory::begin_write`] have threads do it. For comparison, and where
    /// the use of io_uring is a crime that the kernel punishes rather than refuses.
    ///
    /// ```
    /// use deuteron_device::{Directory, OsDirectory};
    /// # let scratch = tempfile::tempdir().unwrap();
    /// # let path = scratch.path();
    /// assert_eq!(OsDirectory::open_or_create(path)?.without_io_uring().reads_at_once(), 16);
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    #[must_use]
    pub fn without_io_uring(self) -> OsDirectory {
        self.support.refuse_ring();
        self
    }

    /// Whether the file system has refused direct I/O to some file so far, which is buffered now.
    pub fn direct_refused(&self) -> bool {
        self.support.direct_refused()
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))
}

/// Creates the directory and makes its name durable: a database whose directory vanishes in a crash has lost
/// everything it had acknowledged.
fn create(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)?;
    for parent in path.ancestors().skip(1) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        match open_directory(parent).and_then(rustix::fs::fsync) {
            Ok(()) => {}
            // Parents that we may not read, or on file systems without such a sync, were not made by us.
            Err(Errno::ACCESS | Errno::PERM | Errno::INVAL | Errno::ROFS) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn lock_error(source: Errno) -> DeviceError {
    DeviceError::new(Operation::Lock, LOCK_NAME, 0, source)
}

impl OsDirectory {
    /// The file of the lock, opened so and locked.
    fn lock_file(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = retry_on_intr(|| rustix::fs::openat(&self.descriptor, LOCK_NAME, flags, FILE_MODE))?;
        // flock belongs to the open file, not to the process: a second handle in this process is refused too, and
        // the kernel gives it back with the last descriptor.
        retry_on_intr(|| rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive))?;
        // Whoever had it may have been killed.
        in_flight::await_none(&self.descriptor)?;
        Ok(file)
    }
}

impl Directory for OsDirectory {
    fn open(&self, name: &str, mode: OpenMode, direct: bool) -> Result<Arc<dyn File>, DeviceError> {
        checks::name(Operation::Open, name)?;
        // A link is no file of ours: whoever could put one here must not choose what we read or write.
        let flags = OFlags::CLOEXEC
            | OFlags::NOFOLLOW
            | match mode {
                OpenMode::Read => OFlags::RDONLY,
                OpenMode::ReadWrite => OFlags::RDWR,
                OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            };
        let open = |flags| retry_on_intr(|| rustix::fs::openat(&self.descriptor, name, flags, FILE_MODE));
        let error = |source: Errno| DeviceError::new(Operation::Open, name, 0, source);
        let opened = Opened::new(name, mode, direct);
        if direct && !self.support.direct_refused() {
            match open(flags | OFlags::DIRECT) {
                Ok(descriptor) => {
                    return Ok(Arc::new(OsFile::new(opened, descriptor, true, Arc::clone(&self.support))));
                }
                // The file system has no direct I/O. With EXCL the file may have been created all the same.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                    self.support.refuse_direct();
                    if mode == OpenMode::CreateNew {
                        let created = open(flags - OFlags::EXCL).map_err(error)?;
                        return Ok(Arc::new(OsFile::new(opened, created, false, Arc::clone(&self.support))));
                    }
                }
                Err(source) => return Err(error(source)),
            }
        }
        let descriptor = open(flags).map_err(error)?;
        Ok(Arc::new(OsFile::new(opened, descriptor, false, Arc::clone(&self.support))))
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        let error = |source: Errno| DeviceError::new(Operation::List, &self.name(), 0, source);
        let mut names = Vec::new();
        // A new descriptor: reading a directory moves the position of its descriptor.
        for entry in rustix::fs::Dir::read_from(&self.descriptor).map_err(error)? {
            let entry = entry.map_err(error)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if checks::name(Operation::List, name).is_err() {
                continue;
            }
            let is_file = match entry.file_type() {
                FileType::RegularFile => true,
                // Some file systems do not tell in the listing.
                FileType::Unknown => {
                    let stat = rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW);
                    match stat {
                        Ok(stat) => FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
                        Err(Errno::NOENT) => false,
                        Err(source) => return Err(error(source)),
                    }
                }
                _ => false,
            };
            if is_file {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        checks::name(Operation::Remove, name)?;
        rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty())
            .map_err(|source| DeviceError::new(Operation::Remove, name, 0, source))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        checks::name(Operation::Rename, from)?;
        checks::name(Operation::Rename, to)?;
        rustix::fs::renameat(&self.descriptor, from, &self.descriptor, to)
            .map_err(|source| DeviceError::new(Operation::Rename, from, 0, source))
    }

    fn sync(&self) -> Result<(), DeviceError> {
        // Not retried on EINTR: after a failed sync nobody knows what is durable.
        rustix::fs::fsync(&self.descriptor)
            .map_err(|source| DeviceError::new(Operation::SyncDirectory, &self.name(), 0, source))
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        Ok(Box::new(self.lock_file(OFlags::RDWR | OFlags::CREATE).map_err(lock_error)?))
    }

    fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        // For reading only where it cannot be had otherwise: some file systems lock exclusively only what can be written.
        let locked = match self.lock_file(OFlags::RDWR) {
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => self.lock_file(OFlags::RDONLY),
            locked => locked,
        };
        match locked {
            Ok(file) => Ok(Box::new(file)),
            Err(Errno::NOENT) => Ok(Box::new(())),
            Err(error) => Err(lock_error(error)),
        }
    }

    fn read_each<'r>(&self, reads: &mut dyn Reads<'r>) {
        let mut requests = Vec::new();
        let more = reads.next(&mut requests);
        match &mut requests[..] {
            // A single read is no faster through a ring.
            [read] if !more => {
                read.read();
                reads.done(0, read);
            }
            _ if self.support.ring_refused() => threads::read_each(reads, requests, more),
            _ => ring::read_each(reads, requests, more),
        }
    }

    fn reads_at_once(&self) -> usize {
        if self.support.ring_refused() { threads::READS } else { ring::ENTRIES }
    }

    fn begin_write(&self, write: DurableWrite) -> Box<dyn WriteInFlight> {
        let ring = match self.support.ring_refused() {
            true => None,
            false => self.writes.get_or_init(|| WriteRing::new(&self.descriptor)).as_ref(),
        };
        let begun = match ring {
            Some(ring) => ring.begin(write),
            None => Err(write),
        };
        match begun {
            Ok(begun) => Box::new(begun),
            Err(write) => threads::begin_write(write),
        }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}
