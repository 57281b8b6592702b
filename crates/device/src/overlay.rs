//! [`OverlayDirectory`]: another directory with writes kept in memory.
//!
//! What would happen, without its happening: a recovery or a check runs over the overlay as it would over the real
//! directory, and the real one is only read. The overlay holds a block of memory for every block written through it.

use crate::{BLOCK_BYTES, DeviceError, Directory, File, OpenMode, Operation};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A directory whose files are read from another directory and written to memory: a recovery or a check runs over it as
/// it would over the real one, which is only read. It holds a block of memory for every block written through it.
///
/// ```
/// use deuteron_device::{Directory, MemoryDirectory, OpenMode, OverlayDirectory};
/// use std::sync::Arc;
/// let real = Arc::new(MemoryDirectory::new());
/// let overlay = OverlayDirectory::new(Arc::clone(&real) as Arc<dyn Directory>);
/// overlay.open("draft", OpenMode::CreateNew, false)?.write_at(b"words", 0)?;
/// assert_eq!(overlay.list()?, ["draft"]);
/// assert!(real.list()?.is_empty());
/// # Ok::<(), deuteron_device::DeviceError>(())
/// ```
pub struct OverlayDirectory {
    base: Arc<dyn Directory>,
    /// What differs from the base: a file that was opened, created or renamed here, or `None` for a removed one.
    changed: Mutex<BTreeMap<String, Option<Arc<OverlayFile>>>>,
}

impl OverlayDirectory {
    /// An overlay over `base`, as yet without differences.
    ///
    /// ```
    /// use deuteron_device::{Directory, MemoryDirectory, OverlayDirectory};
    /// let overlay = OverlayDirectory::new(std::sync::Arc::new(MemoryDirectory::new()));
    /// assert!(overlay.list()?.is_empty());
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    pub fn new(base: Arc<dyn Directory>) -> Self {
        Self { base, changed: Mutex::default() }
    }

    fn changed(&self) -> MutexGuard<'_, BTreeMap<String, Option<Arc<OverlayFile>>>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file `name` as it is now, or `None` if there is none.
    fn current(&self, name: &str, direct: bool) -> Result<Option<Arc<OverlayFile>>, DeviceError> {
        if let Some(known) = self.changed().get(name) {
            return Ok(known.clone());
        }
        match self.base.open(name, OpenMode::Read, direct) {
            Ok(base) => {
                let length = base.length()?;
                let file = Arc::new(OverlayFile {
                    name: name.to_owned(),
                    base: Some(base),
                    state: Mutex::new(State { blocks: BTreeMap::new(), length, base_bytes: length }),
                });
                self.changed().insert(name.to_owned(), Some(Arc::clone(&file)));
                Ok(Some(file))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn failure(operation: Operation, file: &str, offset: u64, kind: io::ErrorKind) -> DeviceError {
    DeviceError { operation, file: file.to_owned(), offset, source: kind.into() }
}

impl Directory for OverlayDirectory {
    fn open(&self, name: &str, mode: OpenMode, direct: bool) -> Result<Arc<dyn File>, DeviceError> {
        match (mode, self.current(name, direct)?) {
            (OpenMode::CreateNew, Some(_)) => {
                Err(failure(Operation::Open, name, 0, io::ErrorKind::AlreadyExists))
            }
            (OpenMode::CreateNew, None) => {
                let file =
                    Arc::new(OverlayFile { name: name.to_owned(), base: None, state: Mutex::default() });
                self.changed().insert(name.to_owned(), Some(Arc::clone(&file)));
                Ok(file)
            }
            (_, Some(file)) => Ok(file),
            (_, None) => Err(failure(Operation::Open, name, 0, io::ErrorKind::NotFound)),
        }
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        let changed = self.changed();
        let mut names: Vec<String> =
            self.base.list()?.into_iter().filter(|name| !changed.contains_key(name)).collect();
        names.extend(changed.iter().filter(|(_, file)| file.is_some()).map(|(name, _)| name.clone()));
        names.sort();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        match self.current(name, false) {
            Ok(None) => return Err(failure(Operation::Remove, name, 0, io::ErrorKind::NotFound)),
            // What is there and cannot be opened is removed all the same.
            Err(error) if !self.list()?.iter().any(|there| there == name) => return Err(error),
            _ => {}
        }
        self.changed().insert(name.to_owned(), None);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        match self.current(from, false)? {
            Some(file) => {
                let mut changed = self.changed();
                changed.insert(from.to_owned(), None);
                changed.insert(to.to_owned(), Some(file));
                Ok(())
            }
            None => Err(failure(Operation::Rename, from, 0, io::ErrorKind::NotFound)),
        }
    }

    fn sync(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        self.base.lock_to_read()
    }

    fn now(&self) -> std::time::Instant {
        self.base.now()
    }

    fn system_time(&self) -> std::time::SystemTime {
        self.base.system_time()
    }

    fn identifier(&self) -> u64 {
        self.base.identifier()
    }

    fn name(&self) -> String {
        self.base.name()
    }
}

/// A file of the overlay.
struct OverlayFile {
    name: String,
    /// The file below.
    base: Option<Arc<dyn File>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The blocks that differ from the base, by number.
    blocks: BTreeMap<u64, Box<[u8; BLOCK_BYTES]>>,
    length: u64,
    /// So much of the file below shows through: its length when it was opened, or what it was shortened to.
    base_bytes: u64,
}

impl OverlayFile {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block `number` of the first `base_bytes` of the base, zeros beyond them.
    fn base_block(&self, number: u64, base_bytes: u64) -> Result<Box<[u8; BLOCK_BYTES]>, DeviceError> {
        let mut aligned = crate::AlignedBuffer::zeroed(BLOCK_BYTES);
        let offset = number * BLOCK_BYTES as u64;
        if let Some(base) = &self.base
            && offset < base_bytes
        {
            let count = (base_bytes - offset).min(BLOCK_BYTES as u64) as usize;
            base.read_at(&mut aligned[..count], offset)?;
        }
        let mut block = Box::new([0; BLOCK_BYTES]);
        block.copy_from_slice(&aligned);
        Ok(block)
    }
}

/// The parts of `length` bytes at `offset` block by block: block number, range within it, position in the buffer.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % BLOCK_BYTES as u64) as usize;
        let count = (BLOCK_BYTES - within).min(length - done);
        let part = (at / BLOCK_BYTES as u64, within..within + count, done);
        done += count;
        Some(part)
    })
}

impl File for OverlayFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), DeviceError> {
        let state = self.state();
        if offset + buffer.len() as u64 > state.length {
            return Err(failure(Operation::Read, &self.name, offset, io::ErrorKind::UnexpectedEof));
        }
        for (number, range, at) in parts(offset, buffer.len()) {
            let count = range.len();
            match state.blocks.get(&number) {
                Some(block) => buffer[at..at + count].copy_from_slice(&block[range]),
                None => {
                    buffer[at..at + count].copy_from_slice(&self.base_block(number, state.base_bytes)?[range])
                }
            }
        }
        Ok(())
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        let mut state = self.state();
        let base_bytes = state.base_bytes;
        for (number, range, at) in parts(offset, buffer.len()) {
            let count = range.len();
            let block = match state.blocks.entry(number) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(self.base_block(number, base_bytes)?),
            };
            block[range].copy_from_slice(&buffer[at..at + count]);
        }
        state.length = state.length.max(offset + buffer.len() as u64);
        Ok(())
    }

    fn write_durable_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.write_at(buffer, offset)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn allocate(&self, length: u64) -> Result<(), DeviceError> {
        let mut state = self.state();
        state.length = state.length.max(length);
        Ok(())
    }

    fn shorten(&self, length: u64) -> Result<(), DeviceError> {
        let mut state = self.state();
        if length < state.length {
            (state.length, state.base_bytes) = (length, state.base_bytes.min(length));
            let block = BLOCK_BYTES as u64;
            state.blocks.retain(|&number, _| number * block < length);
            if let Some(last) = state.blocks.get_mut(&(length / block)) {
                last[(length % block) as usize..].fill(0);
            }
        }
        Ok(())
    }

    fn length(&self) -> Result<u64, DeviceError> {
        Ok(self.state().length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultKind, FaultPlan, MemoryDirectory, SimulatedDisk};

    fn base_with(name: &str, bytes: &[u8]) -> Arc<MemoryDirectory> {
        let base = Arc::new(MemoryDirectory::new());
        base.open(name, OpenMode::CreateNew, false).expect("creates").write_at(bytes, 0).expect("writes");
        base
    }

    fn contents(directory: &dyn Directory, name: &str) -> Vec<u8> {
        let file = directory.open(name, OpenMode::Read, false).expect("opens");
        let mut bytes = vec![0; file.length().expect("has a length") as usize];
        file.read_at(&mut bytes, 0).expect("reads");
        bytes
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_removed_above_and_stays_below() {
        let disk = SimulatedDisk::new(1);
        let base: Arc<dyn Directory> = Arc::new(disk.directory());
        base.open("data", OpenMode::CreateNew, false).expect("creates");
        disk.set_faults(FaultPlan::new().fail(Operation::Open, 0, FaultKind::Refuse));
        let overlay = OverlayDirectory::new(Arc::clone(&base));
        overlay.remove("data").expect("removes");
        assert_eq!(disk.faults_fired(), 1);
        assert!(overlay.list().expect("lists").is_empty() && base.list().expect("lists") == ["data"]);
    }

    #[test]
    fn a_file_that_is_shortened_above_is_as_long_as_it_was_below() {
        let original: Vec<u8> = (0..10_000u32).map(|number| (number / 7) as u8).collect();
        let base = base_with("data", &original);
        let overlay = OverlayDirectory::new(Arc::clone(&base) as Arc<dyn Directory>);
        let file = overlay.open("data", OpenMode::ReadWrite, false).expect("opens");
        file.write_at(&[0xff; 3000], 4000).expect("writes");
        let mut expected = original.clone();
        expected[4000..7000].fill(0xff);
        for length in [9000, 6000, 4096, 100] {
            file.shorten(length).expect("shortens");
            expected.truncate(length as usize);
            assert_eq!(contents(&overlay, "data"), expected);
        }
        file.shorten(101).expect("shortens");
        file.allocate(9999).expect("lengthens");
        expected.resize(9999, 0);
        assert_eq!(contents(&overlay, "data"), expected);
        assert_eq!(contents(base.as_ref(), "data"), original);
    }

    #[test]
    fn writes_are_seen_above_and_never_reach_the_base() {
        let original: Vec<u8> = (0..10_000u32).map(|number| number as u8).collect();
        let base = base_with("data", &original);
        let overlay = OverlayDirectory::new(Arc::clone(&base) as Arc<dyn Directory>);
        let file = overlay.open("data", OpenMode::ReadWrite, false).expect("opens");
        file.write_at(&[0xff; 5000], 3000).expect("writes");
        let mut expected = original.clone();
        expected[3000..8000].fill(0xff);
        assert_eq!(contents(&overlay, "data"), expected);
        assert_eq!(contents(base.as_ref(), "data"), original);
    }

    #[test]
    fn removing_renaming_and_growing_stay_above() {
        let base = base_with("old", b"words");
        let overlay = OverlayDirectory::new(Arc::clone(&base) as Arc<dyn Directory>);
        overlay.rename("old", "new").expect("renames");
        overlay.open("new", OpenMode::ReadWrite, false).expect("opens").allocate(8).expect("grows");
        assert_eq!(contents(&overlay, "new"), b"words\0\0\0");
        assert_eq!(overlay.list().expect("lists"), ["new"]);
        overlay.remove("new").expect("removes");
        assert!(overlay.list().expect("lists").is_empty());
        let missing = overlay.open("new", OpenMode::Read, false).err().expect("is gone");
        assert!(missing.is_not_found());
        assert_eq!(base.list().expect("lists"), ["old"]);
    }
}
