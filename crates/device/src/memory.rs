//! A directory in memory: nothing survives the process, and nothing ever fails for want of a disk.

use crate::checks::{self, Opened};
use crate::image::Image;
use crate::{DeviceError, Directory, File, OpenMode, Operation};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// A directory whose files are in memory. Clones are handles of the same directory, so that a database closed on one
/// finds its files when opened on another.
///
/// ```
/// use deuteron_device::{Directory, File, MemoryDirectory, OpenMode};
/// let directory = MemoryDirectory::new();
/// directory.open("a", OpenMode::CreateNew, false)?.write_at(b"kept", 0)?;
/// assert_eq!(directory.clone().list()?, ["a"]);
/// # Ok::<(), deuteron_device::DeviceError>(())
/// ```
#[derive(Clone, Default)]
pub struct MemoryDirectory {
    shared: Arc<Shared>,
}

type Content = Arc<RwLock<Image>>;

#[derive(Default)]
struct Shared {
    entries: Mutex<BTreeMap<String, Content>>,
    locked: Arc<AtomicBool>,
}

impl MemoryDirectory {
    /// A new, empty directory.
    pub fn new() -> MemoryDirectory {
        MemoryDirectory::default()
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Content>> {
        // No code here panics between two changes that belong together.
        self.shared.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory for MemoryDirectory {
    fn open(&self, name: &str, mode: OpenMode, direct: bool) -> Result<Arc<dyn File>, DeviceError> {
        checks::name(Operation::Open, name)?;
        let mut entries = self.entries();
        let content = match (entries.get(name), mode) {
            (Some(content), OpenMode::Read | OpenMode::ReadWrite) => Arc::clone(content),
            (None, OpenMode::CreateNew) => Arc::clone(entries.entry(name.to_owned()).or_default()),
            (Some(_), OpenMode::CreateNew) => {
                return Err(DeviceError::new(Operation::Open, name, 0, io::ErrorKind::AlreadyExists));
            }
            (None, _) => return Err(DeviceError::new(Operation::Open, name, 0, io::ErrorKind::NotFound)),
        };
        Ok(Arc::new(MemoryFile { opened: Opened::new(name, mode, direct), content }))
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        Ok(self.entries().keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        checks::name(Operation::Remove, name)?;
        match self.entries().remove(name) {
            Some(_) => Ok(()),
            None => Err(DeviceError::new(Operation::Remove, name, 0, io::ErrorKind::NotFound)),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        checks::name(Operation::Rename, from)?;
        checks::name(Operation::Rename, to)?;
        let mut entries = self.entries();
        match entries.remove(from) {
            Some(content) => {
                entries.insert(to.to_owned(), content);
                Ok(())
            }
            None => Err(DeviceError::new(Operation::Rename, from, 0, io::ErrorKind::NotFound)),
        }
    }

    fn sync(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        if self.shared.locked.swap(true, Ordering::AcqRel) {
            return Err(DeviceError::new(Operation::Lock, checks::LOCK_NAME, 0, io::ErrorKind::WouldBlock));
        }
        Ok(Box::new(Locked(Arc::clone(&self.shared.locked))))
    }

    fn name(&self) -> String {
        "memory".to_owned()
    }
}

struct Locked(Arc<AtomicBool>);

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

struct MemoryFile {
    opened: Opened,
    content: Content,
}

impl MemoryFile {
    fn write(&self, buffer: &[u8], offset: u64) {
        self.content.write().unwrap_or_else(PoisonError::into_inner).write(buffer, offset);
    }
}

impl File for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), DeviceError> {
        self.opened.readable(buffer, offset)?;
        if !self.content.read().unwrap_or_else(PoisonError::into_inner).read(buffer, offset) {
            return Err(self.opened.error(Operation::Read, offset, io::ErrorKind::UnexpectedEof));
        }
        Ok(())
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.opened.writable(buffer, offset)?;
        self.write(buffer, offset);
        Ok(())
    }

    fn write_durable_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.write_at(buffer, offset)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn allocate(&self, length: u64) -> Result<(), DeviceError> {
        self.opened.changeable(Operation::Allocate)?;
        self.content.write().unwrap_or_else(PoisonError::into_inner).extend(length);
        Ok(())
    }

    fn shorten(&self, length: u64) -> Result<(), DeviceError> {
        self.opened.changeable(Operation::Shorten)?;
        self.content.write().unwrap_or_else(PoisonError::into_inner).shorten(length);
        Ok(())
    }

    fn length(&self) -> Result<u64, DeviceError> {
        Ok(self.content.read().unwrap_or_else(PoisonError::into_inner).length())
    }
}
