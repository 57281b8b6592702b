//! [`AdverseDirectory`]: another directory whose device begins to fail, or loses its power, at an operation of the caller's choice, or
//! has no more room.
//!
//! What the simulated disk does in memory this does to real files: it notes what every block was before it was written, until the
//! file is synced. When the power is cut, sectors of what was not synced go back to what they were, as chance will have it. Names and
//! lengths count as durable at once, which a file system need not promise; the simulated disk is stricter there.

use crate::simulated::Random;
use crate::{
    AlignedBuffer, BLOCK_BYTES, DeviceError, Directory, File, MachineStopped, OpenMode, Operation, simulated,
};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

const SECTOR_BYTES: usize = simulated::SECTOR_BYTES as usize;

/// What happens, and at which changing operation on files, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adversity {
    /// It and all writes and syncs after it fail; reads go on.
    Fails(u64),
    /// It is in doubt, like all that is not synced; then nothing works any more. The second number sets what survives.
    LosesPower(u64, u64),
    /// What makes the files longer by more than so many bytes in all is refused, as on a full disk. Removing gives room back.
    Fills(u64),
}

/// A directory over another, to be met by an [`Adversity`]. One operation is done at a time.
///
/// ```
/// use deuteron_device::{Adversity, AdverseDirectory, Directory, File, MemoryDirectory, OpenMode};
/// use std::sync::Arc;
/// let disk = Arc::new(MemoryDirectory::new());
/// let directory = AdverseDirectory::new(disk, Adversity::Fails(2)); // creating it is number 0
/// let file = directory.open("a", OpenMode::CreateNew, false)?;
/// file.write_at(b"kept", 0)?;
/// assert!(file.sync().is_err());
/// # Ok::<(), deuteron_device::DeviceError>(())
/// ```
pub struct AdverseDirectory {
    inner: Arc<dyn Directory>,
    shared: Arc<Mutex<State>>,
}

struct State {
    adversity: Adversity,
    operations: u64,
    stopped: bool,
    /// Bytes by which the files may still grow.
    room: u64,
    /// By name, what is not synced.
    files: HashMap<String, Unsynced>,
}

/// Blocks as they were when the file was last synced, and a handle to bring them back by.
type Unsynced = Arc<Mutex<Pending>>;

#[derive(Default)]
struct Pending {
    blocks: BTreeMap<u64, AlignedBuffer>,
    file: Option<Arc<dyn File>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What becomes of an operation.
enum Course {
    Succeeds,
    Fails,
    /// The power goes in the middle of it.
    Stops(Random),
}

impl State {
    fn begin(&mut self, changes: bool) -> io::Result<Course> {
        if self.stopped {
            return Err(MachineStopped.into());
        }
        if !changes {
            return Ok(Course::Succeeds);
        }
        let operation = self.operations;
        self.operations += 1;
        Ok(match self.adversity {
            Adversity::Fails(from) if operation >= from => Course::Fails,
            Adversity::LosesPower(at, seed) if operation >= at => {
                self.stopped = true;
                Course::Stops(Random::new(seed))
            }
            _ => Course::Succeeds,
        })
    }

    /// A file of `length` is to have `needed` bytes at least.
    fn grow(&mut self, length: u64, needed: u64) -> io::Result<()> {
        let growth = needed.saturating_sub(length);
        match self.room.checked_sub(growth) {
            Some(room) => self.room = room,
            None => return Err(io::ErrorKind::StorageFull.into()),
        }
        Ok(())
    }

    /// Gives sectors that were not synced back what they were, as chance will have it.
    fn cut(&mut self, random: &mut Random) {
        for unsynced in self.files.values() {
            let mut pending = lock(unsynced);
            let Some(file) = pending.file.take() else { continue };
            for (number, before) in std::mem::take(&mut pending.blocks) {
                let offset = number * BLOCK_BYTES as u64;
                let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
                if file.read_at(&mut block, offset).is_err() {
                    continue;
                }
                let sectors = block.chunks_mut(SECTOR_BYTES).zip(before.chunks(SECTOR_BYTES));
                sectors.filter(|_| random.coin()).for_each(|(sector, before)| sector.copy_from_slice(before));
                // The machine has no power: nobody is told.
                let _ = file.write_at(&block, offset);
            }
        }
    }
}

impl AdverseDirectory {
    /// `inner`, until the adversity comes.
    pub fn new(inner: Arc<dyn Directory>, adversity: Adversity) -> AdverseDirectory {
        let room = if let Adversity::Fills(room) = adversity { room } else { u64::MAX };
        let state = State { adversity, operations: 0, stopped: false, room, files: HashMap::new() };
        AdverseDirectory { inner, shared: Arc::new(Mutex::new(state)) }
    }

    fn begin(
        &self,
        operation: Operation,
        name: &str,
        changes: bool,
    ) -> Result<MutexGuard<'_, State>, DeviceError> {
        let mut state = lock(&self.shared);
        let error = |source| DeviceError { operation, file: name.to_owned(), offset: 0, source };
        match state.begin(changes).map_err(error)? {
            Course::Succeeds => Ok(state),
            Course::Fails => Err(error(failed())),
            Course::Stops(mut random) => {
                state.cut(&mut random);
                Err(error(MachineStopped.into()))
            }
        }
    }
}

fn failed() -> io::Error {
    io::Error::other("the device has failed")
}

impl Directory for AdverseDirectory {
    fn open(&self, name: &str, mode: OpenMode, direct: bool) -> Result<Arc<dyn File>, DeviceError> {
        let mut state = self.begin(Operation::Open, name, mode == OpenMode::CreateNew)?;
        let inner = self.inner.open(name, mode, direct)?;
        let unsynced = Arc::clone(state.files.entry(name.to_owned()).or_default());
        if mode != OpenMode::Read {
            lock(&unsynced).file = Some(Arc::clone(&inner));
        }
        Ok(Arc::new(AdverseFile { inner, name: name.to_owned(), unsynced, shared: Arc::clone(&self.shared) }))
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        let _state = self.begin(Operation::List, "", false)?;
        self.inner.list()
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        let mut state = self.begin(Operation::Remove, name, true)?;
        state.files.remove(name);
        let length = self.inner.open(name, OpenMode::Read, false).and_then(|file| file.length());
        self.inner.remove(name)?;
        state.room = state.room.saturating_add(length.unwrap_or(0));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        let mut state = self.begin(Operation::Rename, from, true)?;
        self.inner.rename(from, to)?;
        if let Some(unsynced) = state.files.remove(from) {
            state.files.insert(to.to_owned(), unsynced);
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), DeviceError> {
        let _state = self.begin(Operation::SyncDirectory, "", true)?;
        self.inner.sync()
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        self.inner.lock()
    }

    fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        self.inner.lock_to_read()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn system_time(&self) -> SystemTime {
        self.inner.system_time()
    }

    fn identifier(&self) -> u64 {
        self.inner.identifier()
    }
}

struct AdverseFile {
    inner: Arc<dyn File>,
    name: String,
    unsynced: Unsynced,
    shared: Arc<Mutex<State>>,
}

impl AdverseFile {
    fn error(&self, operation: Operation, offset: u64, source: io::Error) -> DeviceError {
        DeviceError { operation, file: self.name.clone(), offset, source }
    }

    /// Notes what the blocks are that are about to be written.
    fn note(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        if buffer.is_empty() {
            return Ok(());
        }
        let mut pending = lock(&self.unsynced);
        let block = BLOCK_BYTES as u64;
        let length = self.inner.length()?;
        for number in offset / block..=(offset + buffer.len() as u64 - 1) / block {
            if pending.blocks.contains_key(&number) {
                continue;
            }
            let mut before = AlignedBuffer::zeroed(BLOCK_BYTES);
            let known = length.saturating_sub(number * block).min(block) as usize;
            if known > 0 {
                self.inner.read_at(&mut before[..known], number * block)?;
            }
            pending.blocks.insert(number, before);
        }
        Ok(())
    }

    fn write(&self, buffer: &[u8], offset: u64, is_durable: bool) -> Result<(), DeviceError> {
        let mut state = lock(&self.shared);
        let course = state.begin(true).map_err(|source| self.error(Operation::Write, offset, source))?;
        state
            .grow(self.inner.length()?, offset + buffer.len() as u64)
            .map_err(|source| self.error(Operation::Write, offset, source))?;
        match course {
            Course::Fails => Err(self.error(Operation::Write, offset, failed())),
            Course::Stops(mut random) => {
                let _ = self.note(buffer, offset).and_then(|()| self.inner.write_at(buffer, offset));
                state.cut(&mut random);
                Err(self.error(Operation::Write, offset, MachineStopped.into()))
            }
            Course::Succeeds if is_durable => {
                self.inner.write_durable_at(buffer, offset)?;
                let block = BLOCK_BYTES as u64;
                let end = offset + buffer.len() as u64;
                // What else such a block held is on the disk now, too.
                lock(&self.unsynced)
                    .blocks
                    .retain(|&number, _| number * block >= end || (number + 1) * block <= offset);
                Ok(())
            }
            Course::Succeeds => {
                self.note(buffer, offset)?;
                self.inner.write_at(buffer, offset)
            }
        }
    }

    fn change(
        &self,
        operation: Operation,
        change: impl FnOnce(&mut State) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut state = lock(&self.shared);
        match state.begin(true).map_err(|source| self.error(operation, 0, source))? {
            Course::Succeeds => change(&mut state),
            Course::Fails => Err(self.error(operation, 0, failed())),
            Course::Stops(mut random) => {
                state.cut(&mut random);
                Err(self.error(operation, 0, MachineStopped.into()))
            }
        }
    }

    fn look(&self, operation: Operation) -> Result<(), DeviceError> {
        lock(&self.shared).begin(false).map(|_| ()).map_err(|source| self.error(operation, 0, source))
    }
}

impl File for AdverseFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), DeviceError> {
        self.look(Operation::Read)?;
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.write(buffer, offset, false)
    }

    fn write_durable_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.write(buffer, offset, true)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.change(Operation::Sync, |_| {
            self.inner.sync()?;
            lock(&self.unsynced).blocks.clear();
            Ok(())
        })
    }

    fn allocate(&self, length: u64) -> Result<(), DeviceError> {
        self.change(Operation::Allocate, |state| {
            state
                .grow(self.inner.length()?, length)
                .map_err(|source| self.error(Operation::Allocate, length, source))?;
            self.inner.allocate(length)
        })
    }

    fn shorten(&self, length: u64) -> Result<(), DeviceError> {
        self.change(Operation::Shorten, |state| {
            let before = self.inner.length()?;
            self.inner.shorten(length)?;
            state.room = state.room.saturating_add(before.saturating_sub(length));
            let is_kept = |number: u64| number * (BLOCK_BYTES as u64) < length;
            lock(&self.unsynced).blocks.retain(|&number, _| is_kept(number));
            Ok(())
        })
    }

    fn length(&self) -> Result<u64, DeviceError> {
        self.look(Operation::Length)?;
        self.inner.length()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OsDirectory;

    fn block(byte: u8) -> AlignedBuffer {
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        block.fill(byte);
        block
    }

    #[test]
    fn a_full_disk_takes_no_more_until_something_is_removed() {
        let directory =
            AdverseDirectory::new(Arc::new(crate::MemoryDirectory::new()), Adversity::Fills(8192));
        let file = directory.open("a", OpenMode::CreateNew, true).expect("creates");
        file.allocate(4096).expect("there is room");
        file.write_at(&block(1), 0).expect("needs none");
        let other = directory.open("b", OpenMode::CreateNew, true).expect("creates");
        other.write_durable_at(&block(2), 0).expect("there is room");
        assert!(other.write_at(&block(2), 4096).expect_err("there is none").is_full());
        assert!(file.allocate(4097).expect_err("there is none").is_full());
        assert_eq!((file.length().expect("is there"), other.length().expect("is there")), (4096, 4096));
        file.shorten(1000).expect("shortens");
        assert!(other.write_at(&block(2), 4096).expect_err("there is not enough").is_full());
        directory.remove("a").expect("removes");
        other.write_at(&block(2), 4096).expect("there is room again");
        other.shorten(4096).expect("shortens");
        other.write_at(&block(2), 4096).expect("there is room again");
    }

    #[test]
    fn what_was_synced_survives_and_the_rest_goes_by_sectors() {
        let (mut kept, mut lost) = (0, 0);
        for seed in 0..20 {
            let scratch = tempfile::tempdir().expect("a directory");
            let disk = Arc::new(OsDirectory::open_or_create(scratch.path()).expect("opens"));
            let directory = AdverseDirectory::new(disk.clone(), Adversity::LosesPower(6, seed));
            let file = directory.open("a", OpenMode::CreateNew, true).expect("creates");
            file.write_at(&block(1), 0).expect("writes");
            file.sync().expect("syncs");
            file.write_durable_at(&block(2), 4096).expect("writes");
            file.write_at(&block(3), 0).expect("writes");
            directory.rename("a", "b").expect("renames");
            assert!(file.write_durable_at(&block(4), 4096).expect_err("stops").is_stopped());
            assert!(file.read_at(&mut block(0), 0).is_err() && directory.list().is_err());
            let survivor = disk.open("b", OpenMode::Read, true).expect("is there");
            let mut read = AlignedBuffer::zeroed(2 * BLOCK_BYTES);
            survivor.read_at(&mut read, 0).expect("reads");
            let (first, second) = read.split_at(BLOCK_BYTES);
            for (bytes, old, new) in [(first, 1, 3), (second, 2, 4)] {
                for sector in bytes.chunks(SECTOR_BYTES) {
                    assert!([old, new].iter().any(|&byte| sector.iter().all(|&found| found == byte)));
                    *(if sector[0] == new { &mut kept } else { &mut lost }) += 1;
                }
            }
        }
        assert!(kept > 50 && lost > 50, "{kept} and {lost}");
    }
}
