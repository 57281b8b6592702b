//! A directory in memory of which somebody is told before something is done to it.

use crate::{DeviceError, Directory, File, MemoryDirectory, OpenMode, Reads};
use std::sync::{Arc, OnceLock};

/// What is about to be done to a [`WatchedDirectory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// A file is opened.
    Open(OpenMode),
    /// A file gets another name.
    Rename,
    /// Files are read ([`Directory::read_each`], [`Directory::read_many`]), but not one by itself ([`File::read_at`]).
    Read,
}

type Watcher = Box<dyn Fn(Doing, &str) + Send + Sync>;

/// A directory in memory for tests in which something has to happen, or to wait, at a certain moment.
///
/// ```
/// use deuteron_device::{Directory, Doing, MemoryDirectory, OpenMode, WatchedDirectory};
/// use std::sync::{Arc, Mutex};
///
/// let (directory, seen) = (WatchedDirectory::new(MemoryDirectory::new()), Arc::new(Mutex::new(Vec::new())));
/// directory.open("a", OpenMode::CreateNew, false)?;
/// let noted = Arc::clone(&seen);
/// directory.watch(move |doing, name| noted.lock().unwrap().push((doing, name.to_owned())));
/// directory.rename("a", "b")?;
/// assert_eq!(*seen.lock().unwrap(), [(Doing::Rename, "b".to_owned())]);
/// # Ok::<(), deuteron_device::DeviceError>(())
/// ```
#[derive(Default)]
pub struct WatchedDirectory {
    inner: MemoryDirectory,
    watcher: OnceLock<Watcher>,
}

impl WatchedDirectory {
    /// Nobody watches `inner` yet.
    ///
    /// ```
    /// use deuteron_device::{Directory, MemoryDirectory, WatchedDirectory};
    /// assert!(WatchedDirectory::new(MemoryDirectory::new()).list()?.is_empty());
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    pub fn new(inner: MemoryDirectory) -> WatchedDirectory {
        WatchedDirectory { inner, watcher: OnceLock::new() }
    }

    /// From now on `watcher` is told what is about to be done, on the thread that does it, and to which file: of a rename the new name, of reads
    /// none.
    ///
    /// # Panics
    /// If somebody watches already.
    ///
    /// ```
    /// use deuteron_device::{Directory, Doing, OpenMode, WatchedDirectory};
    /// let directory = WatchedDirectory::default();
    /// directory.watch(|doing, _| assert_eq!(doing, Doing::Open(OpenMode::CreateNew)));
    /// directory.open("a", OpenMode::CreateNew, false)?;
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    pub fn watch(&self, watcher: impl Fn(Doing, &str) + Send + Sync + 'static) {
        assert!(self.watcher.set(Box::new(watcher)).is_ok(), "watched by one");
    }

    fn tell(&self, doing: Doing, name: &str) {
        if let Some(watcher) = self.watcher.get() {
            watcher(doing, name);
        }
    }
}

impl Directory for WatchedDirectory {
    fn open(&self, name: &str, mode: OpenMode, direct: bool) -> Result<Arc<dyn File>, DeviceError> {
        self.tell(Doing::Open(mode), name);
        self.inner.open(name, mode, direct)
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        self.inner.list()
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        self.inner.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.tell(Doing::Rename, to);
        self.inner.rename(from, to)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.inner.sync()
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        self.inner.lock()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn read_each<'r>(&self, reads: &mut dyn Reads<'r>) {
        self.tell(Doing::Read, "");
        self.inner.read_each(reads);
    }
}
