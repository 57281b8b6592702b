//! [`DamagedFile`]: a file that is read as far as it can be; what cannot be read is noted, and reads as zeros.

use crate::{BLOCK_BYTES, DeviceError, Directory, File, OpenMode, with_causes};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Bytes that were written once and cannot be had any more: where, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loss {
    /// The file within its directory.
    pub file: String,
    /// Where in it.
    pub offset: u64,
    /// How many bytes; 0 if that is not known.
    pub bytes: u64,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss { file, offset, bytes, reason } = self;
        write!(formatter, "{file} at byte {offset}, {bytes} bytes: {reason}")
    }
}

/// Bytes that are read at once by who reads from front to back.
const AHEAD_BYTES: usize = 4 << 20;

/// A file for those who look for what is left in it: read through a window of memory, a block alone where a longer read fails.
///
/// ```
/// use deuteron_device::{DamagedFile, Directory, File, MemoryDirectory, OpenMode};
/// let directory = MemoryDirectory::new();
/// directory.open("words", OpenMode::CreateNew, false)?.write_at(b"hello world", 0)?;
/// let mut file = DamagedFile::open(&directory, "words")?;
/// assert_eq!(file.bytes(6, 100), b"world"); // shorter at the end
/// assert!(file.losses().is_empty());
/// # Ok::<(), deuteron_device::DeviceError>(())
/// ```
pub struct DamagedFile {
    name: String,
    file: Arc<dyn File>,
    length: u64,
    /// Where the window begins.
    start: u64,
    window: Vec<u8>,
    /// The least that is read at once.
    least: usize,
    /// The blocks that could not be read, by offset.
    unreadable: BTreeMap<u64, Loss>,
}

impl DamagedFile {
    /// Opens `name` for reading from front to back: 4 MiB at once.
    ///
    /// # Errors
    /// [`DeviceError`] if it cannot be opened, or its length is not told.
    pub fn open(directory: &dyn Directory, name: &str) -> Result<DamagedFile, DeviceError> {
        let file = directory.open(name, OpenMode::Read, false)?;
        let length = file.length()?;
        let (start, window, least, unreadable) = (0, Vec::new(), AHEAD_BYTES, BTreeMap::new());
        Ok(DamagedFile { name: name.to_owned(), file, length, start, window, least, unreadable })
    }

    /// The same for who reads here and there: not much more is read than asked for.
    ///
    /// ```
    /// # use deuteron_device::{DamagedFile, Directory, File, MemoryDirectory, OpenMode};
    /// # let directory = MemoryDirectory::new();
    /// # directory.open("words", OpenMode::CreateNew, false)?.write_at(b"hello world", 0)?;
    /// let mut file = DamagedFile::open(&directory, "words")?.at_random();
    /// assert_eq!(file.bytes(0, 5), b"hello");
    /// # Ok::<(), deuteron_device::DeviceError>(())
    /// ```
    #[must_use]
    pub fn at_random(mut self) -> DamagedFile {
        self.least = 0;
        self
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `count` bytes from `at` on, fewer at the end of the file. Memory for that many is taken, and no more than the file is long.
    pub fn bytes(&mut self, at: u64, count: usize) -> &[u8] {
        let count = self.length.saturating_sub(at).min(count as u64) as usize;
        if count == 0 {
            return &[];
        }
        let held = self.start + self.window.len() as u64;
        if at < self.start || at + count as u64 > held {
            self.fill(at, count);
        }
        let from = (at - self.start) as usize;
        &self.window[from..from + count]
    }

    fn fill(&mut self, at: u64, count: usize) {
        let block = BLOCK_BYTES as u64;
        self.start = at / block * block;
        let wanted = (at - self.start + count as u64).max(self.least as u64);
        let bytes = wanted.next_multiple_of(block).min(self.length - self.start) as usize;
        self.window.clear();
        self.window.resize(bytes, 0);
        if self.file.read_at(&mut self.window, self.start).is_ok() {
            return;
        }
        for (number, piece) in (0..).zip(self.window.chunks_mut(BLOCK_BYTES)) {
            let offset = self.start + number * block;
            if let Err(error) = self.file.read_at(piece, offset) {
                piece.fill(0);
                let reason = with_causes(&error);
                let loss = Loss { file: self.name.clone(), offset, bytes: piece.len() as u64, reason };
                self.unreadable.insert(offset, loss);
            }
        }
    }

    /// The blocks that could not be read so far.
    pub fn losses(&self) -> Vec<Loss> {
        self.unreadable.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultKind, FaultPlan, Operation, SimulatedDisk};

    #[test]
    fn what_cannot_be_read_is_noted_and_zero() {
        let disk = SimulatedDisk::new(1);
        let directory = disk.directory();
        let file = directory.open("a", OpenMode::CreateNew, false).expect("creates");
        file.write_at(&[7; 3 * BLOCK_BYTES + 10], 0).expect("writes");
        // The long read fails, and of those of a block the second.
        let refuse = |plan: FaultPlan, nth| plan.fail(Operation::Read, nth, FaultKind::Refuse);
        disk.set_faults(refuse(refuse(FaultPlan::new(), 0), 2));
        let mut damaged = DamagedFile::open(&directory, "a").expect("opens");
        let bytes = damaged.bytes(BLOCK_BYTES as u64 - 1, 3 * BLOCK_BYTES).to_vec();
        assert_eq!(bytes.len(), 2 * BLOCK_BYTES + 11);
        let zeros = bytes.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at);
        assert_eq!(zeros.collect::<Vec<_>>(), (1..=BLOCK_BYTES).collect::<Vec<_>>());
        let losses = damaged.losses();
        assert_eq!((losses.len(), losses[0].offset, losses[0].bytes), (1, 4096, 4096));
        assert!(damaged.bytes(1 << 40, 10).is_empty());
    }
}
