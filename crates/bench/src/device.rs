//! What the device under a directory can do, so that other figures can be stated as a share of it.

use crate::error::BenchError;
use crate::random::Random;
use deuteron::device::{AlignedBuffer, BLOCK_BYTES, Directory, File, OpenMode, OsDirectory, ReadRequest};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The file that is written and read. It must not exist before, and does not afterwards.
const FILE: &str = "deuteron-bench-device.tmp";
/// Bytes written at once.
const WRITE_BYTES: usize = 1 << 20;
/// The numbers of reads in flight that are measured.
const DEPTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// A measurement of the device under a directory: sequential writes, then random reads of 4 KiB. Around the page cache, where
/// the file system lets us; a cache in the device or below it is measured with it.
///
/// ```
/// use deuteron_bench::DeviceBench;
/// use std::time::Duration;
/// # let scratch = tempfile::tempdir().unwrap();
/// # let path = scratch.path();
/// let bench = DeviceBench { seconds: Duration::from_millis(5), file_bytes: 4 << 20, ..DeviceBench::new(path) };
/// let report = bench.run(&mut |progress| println!("{} of {}", progress.done, progress.total))?;
/// assert!(report.write_bytes_per_second > 0.0);
/// assert_eq!(report.reads[0].depth, 1);
/// # Ok::<(), deuteron_bench::BenchError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeviceBench {
    /// The directory; created if it is missing.
    pub directory: PathBuf,
    /// The size of the file that is written and read, in bytes: a multiple of 1 MiB.
    pub file_bytes: u64,
    /// How long each figure is measured. The file is written once in any case.
    pub seconds: Duration,
    /// Sets which blocks are read.
    pub seed: u64,
    /// Whether several reads at once go through io_uring, where the kernel has it; else threads do them.
    pub io_uring: bool,
}

/// How far a [`DeviceBench`] is.
#[derive(Clone, Copy, Debug)]
pub struct DeviceProgress {
    /// Figures measured.
    pub done: u64,
    /// Figures in all.
    pub total: u64,
}

/// What a [`DeviceBench`] has found. The names of the fields are the names in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// The directory.
    pub directory: String,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Whether the page cache was bypassed. If it was not, these are figures of memory.
    pub direct: bool,
    /// How many reads one thread can have in flight; 16 without io_uring.
    pub reads_at_once: u64,
    /// Bytes written a second, in order, 1 MiB at a time, and synced at the end.
    pub write_bytes_per_second: f64,
    /// Random reads of 4 KiB.
    pub reads: Vec<ReadFigure>,
}

/// How many random reads of 4 KiB a second, with so many in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadFigure {
    /// Reads in flight.
    pub depth: u64,
    /// Reads a second by one thread that asks for `depth` blocks at once and waits for all, again and again: as a
    /// database reads pages that it needs together.
    pub together_per_second: f64,
    /// Reads a second by `depth` threads that ask for one block each, again and again.
    pub threads_per_second: f64,
}

impl DeviceBench {
    /// Two seconds for each figure, over half a gibibyte.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            file_bytes: 512 << 20,
            seconds: Duration::from_secs(2),
            seed: 1,
            io_uring: true,
        }
    }

    /// Measures, and calls `progress` at the beginning and after each figure.
    ///
    /// # Errors
    /// [`BenchError::Settings`] for an impossible size; [`BenchError::Store`] if the device fails. The file is removed all
    /// the same.
    pub fn run(&self, progress: &mut dyn FnMut(DeviceProgress)) -> Result<DeviceReport, BenchError> {
        if self.file_bytes == 0 || !self.file_bytes.is_multiple_of(WRITE_BYTES as u64) {
            return Err(BenchError::Settings("the size of the file must be a multiple of 1 MiB".into()));
        }
        let directory =
            OsDirectory::open_or_create(&self.directory).map_err(BenchError::store("open the directory"))?;
        let directory = if self.io_uring { directory } else { directory.without_io_uring() };
        let file = directory
            .open(FILE, OpenMode::CreateNew, true)
            .map_err(BenchError::store("create the file to measure with"))?;
        let removed = Removed(&directory);
        let total = 1 + 2 * DEPTHS.len() as u64;
        let mut done = 0;
        progress(DeviceProgress { done, total });
        let mut step = || {
            done += 1;
            progress(DeviceProgress { done, total });
        };
        let write_bytes_per_second = self.write(&*file).map_err(BenchError::store("write the file"))?;
        step();
        let mut reads = Vec::new();
        for depth in DEPTHS {
            let failed = BenchError::store("read the file");
            let together = self.read_together(&directory, &*file, depth).map_err(failed)?;
            step();
            let failed = BenchError::store("read the file");
            let threads = self.read_by_threads(&*file, depth).map_err(failed)?;
            step();
            reads.push(ReadFigure {
                depth: depth as u64,
                together_per_second: together,
                threads_per_second: threads,
            });
        }
        drop(removed);
        Ok(DeviceReport {
            directory: directory.name(),
            file_bytes: self.file_bytes,
            direct: !directory.direct_refused(),
            reads_at_once: directory.reads_at_once() as u64,
            write_bytes_per_second,
            reads,
        })
    }

    /// Writes the file once, and from its beginning again until the time is over.
    fn write(&self, file: &dyn File) -> Result<f64, deuteron::device::DeviceError> {
        file.allocate(self.file_bytes)?;
        file.sync()?;
        let mut buffer = AlignedBuffer::zeroed(WRITE_BYTES);
        let mut random = Random::new(self.seed);
        // Bytes that nothing below can compress.
        for word in buffer.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        let begin = Instant::now();
        let mut written = 0;
        while written < self.file_bytes || begin.elapsed() < self.seconds {
            file.write_at(&buffer, written % self.file_bytes)?;
            written += WRITE_BYTES as u64;
        }
        file.sync()?;
        Ok(written as f64 / begin.elapsed().as_secs_f64())
    }

    fn block(&self, random: &mut Random) -> u64 {
        random.below(self.file_bytes / BLOCK_BYTES as u64) * BLOCK_BYTES as u64
    }

    fn read_together(
        &self,
        directory: &dyn Directory,
        file: &(dyn File + 'static),
        depth: usize,
    ) -> Result<f64, deuteron::device::DeviceError> {
        let mut random = Random::new(self.seed ^ depth as u64);
        let mut buffer = AlignedBuffer::zeroed(depth * BLOCK_BYTES);
        let begin = Instant::now();
        let mut count = 0;
        while count == 0 || begin.elapsed() < self.seconds {
            let blocks = buffer.chunks_exact_mut(BLOCK_BYTES);
            let mut reads: Vec<_> =
                blocks.map(|block| ReadRequest::new(file, self.block(&mut random), block)).collect();
            directory.read_many(&mut reads);
            reads.into_iter().try_for_each(|read| read.outcome)?;
            count += depth;
        }
        Ok(count as f64 / begin.elapsed().as_secs_f64())
    }

    fn read_by_threads(&self, file: &dyn File, depth: usize) -> Result<f64, deuteron::device::DeviceError> {
        let begin = Instant::now();
        let read = |thread: usize| {
            let mut random = Random::new(self.seed ^ (thread as u64 + 1) << 32);
            let mut buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
            let mut count = 0u64;
            while count == 0 || begin.elapsed() < self.seconds {
                file.read_at(&mut buffer, self.block(&mut random))?;
                count += 1;
            }
            Ok(count)
        };
        let count = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..depth).map(|thread| scope.spawn(move || read(thread))).collect();
            // A thread that panics takes the measurement with it.
            let counts = threads.into_iter().map(|thread| thread.join().expect("a reading thread panicked"));
            counts.sum::<Result<u64, _>>()
        })?;
        Ok(count as f64 / begin.elapsed().as_secs_f64())
    }
}

/// Removes the file when the measurement ends, however it does.
struct Removed<'d>(&'d OsDirectory);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        // It holds nothing; whoever is told that it is there next time can remove it.
        let _ = self.0.remove(FILE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(directory: &std::path::Path) -> DeviceBench {
        DeviceBench { file_bytes: 2 << 20, seconds: Duration::from_millis(2), ..DeviceBench::new(directory) }
    }

    #[test]
    fn a_measurement_gives_every_figure_and_leaves_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let mut expected = 0;
        let report = small(scratch.path())
            .run(&mut |progress| {
                assert_eq!((progress.done, progress.total), (expected, 13));
                expected += 1;
            })
            .unwrap();
        assert_eq!(expected, 14);
        assert_eq!(report.reads.iter().map(|read| read.depth).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32]);
        assert!(report.write_bytes_per_second > 0.0);
        assert!(
            report.reads.iter().all(|read| read.together_per_second > 0.0 && read.threads_per_second > 0.0)
        );
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_is_refused_and_what_is_there_is_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        for file_bytes in [0, 1000, (1 << 20) + 4096] {
            let bench = DeviceBench { file_bytes, ..small(scratch.path()) };
            assert!(matches!(bench.run(&mut |_| {}), Err(BenchError::Settings(_))));
        }
        std::fs::write(scratch.path().join(FILE), "precious").unwrap();
        assert!(matches!(small(scratch.path()).run(&mut |_| {}), Err(BenchError::Store { .. })));
        assert_eq!(std::fs::read(scratch.path().join(FILE)).unwrap(), b"precious");
    }
}
