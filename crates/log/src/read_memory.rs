//! [`ReadMemory`]: memory for the reading of a log, taken before the log can be read.

use crate::segment::parse_name;
use crate::{LogError, LogOptions};
use deuteron_device::{AlignedBuffer, Directory};

/// Memory into which a log will be [read](crate::LogOpening::read_into).
///
/// Memory that is new to the process costs more than what is read into it, and a log can be opened only when it is known from where on. So who has
/// an idle processor takes some memory meanwhile.
pub struct ReadMemory {
    chunk_bytes: usize,
    bytes_max: u64,
    chunks: Vec<AlignedBuffer>,
}

impl ReadMemory {
    /// None yet. It will not grow beyond what the log in `directory` is long, about, nor beyond `bytes_max`.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// ```
    /// use deuteron_log::{LogOptions, ReadMemory};
    /// let directory = deuteron_device::MemoryDirectory::new();
    /// let mut memory = ReadMemory::new(&directory, &LogOptions::default(), 64 << 20)?;
    /// assert!(!memory.grow(), "there is no log");
    /// # Ok::<(), deuteron_log::LogError>(())
    /// ```
    pub fn new(
        directory: &dyn Directory,
        options: &LogOptions,
        bytes_max: u64,
    ) -> Result<ReadMemory, LogError> {
        let names = directory.list().map_err(LogError::device("list its files"))?;
        let segments = names.iter().filter(|name| parse_name(name, ".seg").is_some()).count() as u64;
        // The last is mostly empty, and the one before has been written in part.
        let log_bytes = segments.saturating_sub(2) * options.segment_bytes;
        let chunk_bytes = read_bytes(options.buffer_bytes_max as u64) as usize;
        Ok(ReadMemory { chunk_bytes, bytes_max: bytes_max.min(log_bytes), chunks: Vec::new() })
    }

    /// Takes some more; false if there is enough.
    pub fn grow(&mut self) -> bool {
        let bytes = (self.chunks.len() * self.chunk_bytes) as u64;
        let grows = bytes + self.chunk_bytes as u64 <= self.bytes_max;
        if grows {
            self.chunks.push(AlignedBuffer::zeroed(self.chunk_bytes));
        }
        grows
    }

    pub(crate) fn into_chunks(self) -> Vec<AlignedBuffer> {
        self.chunks
    }
}

/// How much is read at once where all of a log is: two of the longest buffers.
pub(crate) fn read_bytes(buffer_bytes_max: u64) -> u64 {
    (1 << 20).max(2 * buffer_bytes_max)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use deuteron_device::{MemoryDirectory, OpenMode};

    #[test]
    fn it_grows_as_far_as_the_log_is_long_and_no_further_than_allowed() {
        let directory = MemoryDirectory::new();
        let options =
            LogOptions { segment_bytes: 8 << 20, buffer_bytes_max: 1 << 20, ..LogOptions::default() };
        for base in 0..5u64 {
            drop(
                directory
                    .open(&crate::segment::segment_name(base << 23), OpenMode::CreateNew, false)
                    .unwrap(),
            );
        }
        for (bytes_max, chunks) in [(0, 0), (5 << 20, 2), (1 << 30, 12)] {
            let mut memory = ReadMemory::new(&directory, &options, bytes_max).unwrap();
            while memory.grow() {}
            let taken = memory.into_chunks();
            assert_eq!((taken.len(), taken.iter().all(|chunk| chunk.len() == 2 << 20)), (chunks, true));
        }
    }
}
