//! How a database is opened.
//!
//! *Format* options are persisted in the superblock when the database is created and checked at every open;
//! *runtime* options may differ from one open to the next.

use crate::sizes::Sizes;
use crate::{ConcurrencyControl, DataComponentObserver, Db, Error, Processors, engine};
use deuteron_dc::SPACE_AMPLIFICATION_PERCENT_MIN;
use deuteron_device::{Directory, OsDirectory};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// When a commit is acknowledged, and what a crash may take.
///
/// The order of commits is the same under all of them: a crash loses a suffix of the commits, never one from
/// the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledged when the commit record is on stable storage. A crash loses nothing acknowledged.
    Sync,
    /// Acknowledged when committed in memory; on stable storage within about this time. A crash loses at most
    /// the commits of that window.
    Delayed(Duration),
    /// Acknowledged when committed in memory; written when a log buffer fills or the database is closed.
    None,
}

/// Who does the work that belongs to no operation: writing the log, posting to the data component, cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Threads of the database's own. The default.
    Threads,
    /// Nobody but the callers: an operation that has to wait does the work itself, and [`Db::step`] does a
    /// round of all of it. With one calling thread, everything happens in an order that repeats.
    Inline,
}

/// The kinds of background work, for whoever schedules them alone: [`Db::step_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Writes a log buffer that is full or asked for.
    Flush,
    /// Posts what is stable and committed to the data component.
    Post,
    /// Collects versions, writes and evicts pages, reclaims memory and segments.
    Keep,
    /// Takes a checkpoint, if one is due.
    Checkpoint,
}

impl Duty {
    /// All of them, in the order of [`Db::step`].
    pub const ALL: [Duty; 4] = [Duty::Flush, Duty::Post, Duty::Keep, Duty::Checkpoint];
}

/// Options of a database.
///
/// ```
/// use deuteron::{Durability, Options};
/// # let scratch = tempfile::tempdir()?;
/// # let path = scratch.path().join("bank.db");
/// let db = Options::new().memory(64 << 20).durability(Durability::Sync).open(&path)?;
/// # db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) memory_bytes: usize,
    pub(crate) version_memory_bytes: Option<usize>,
    pub(crate) durability: Durability,
    pub(crate) create_if_missing: bool,
    pub(crate) background: Background,
    pub(crate) background_processors: Option<Processors>,
    pub(crate) checkpoint_log_bytes: u64,
    pub(crate) retention: Duration,
    pub(crate) writer_log_bytes: Option<u64>,
    pub(crate) concurrency_control: ConcurrencyControl,
    pub(crate) compress: bool,
    pub(crate) space_amplification_percent: Option<u32>,
    pub(crate) history: Option<PathBuf>,
    pub(crate) observer: Option<Arc<dyn DataComponentObserver>>,
    pub(crate) sizes: Option<Box<Sizes>>,
}

/// The least memory that a database can work in, in bytes.
pub const MEMORY_BYTES_MIN: usize = 16 << 20;

/// The least that can be set by [`Options::version_memory`], in bytes.
pub const VERSION_MEMORY_BYTES_MIN: usize = 2 << 20;

/// The least that can be set by [`Options::writer_log_max`], in bytes: room for the longest key with a value of half of it.
pub const WRITER_LOG_BYTES_MIN: u64 = 16 << 10;

impl Options {
    /// The defaults: 1 GiB of memory, durable commits, created if missing, threads of its own.
    ///
    /// ```
    /// let options = deuteron::Options::new();
    /// # let _ = options;
    /// ```
    pub fn new() -> Self {
        Self {
            memory_bytes: 1 << 30,
            version_memory_bytes: None,
            durability: Durability::Sync,
            create_if_missing: true,
            background: Background::Threads,
            background_processors: None,
            checkpoint_log_bytes: 512 << 20,
            retention: Duration::ZERO,
            writer_log_bytes: None,
            concurrency_control: ConcurrencyControl::Pushes,
            compress: false,
            space_amplification_percent: None,
            history: None,
            observer: None,
            sizes: None,
        }
    }

    /// The smallest buffers and pages that work, so that rare paths are common; for tests.
    ///
    /// ```
    /// let options = deuteron::Options::tiny_for_tests();
    /// # let _ = options;
    /// ```
    pub fn tiny_for_tests() -> Self {
        Self {
            memory_bytes: MEMORY_BYTES_MIN,
            background: Background::Inline,
            checkpoint_log_bytes: 64 << 10,
            sizes: Some(Box::new(Sizes::tiny())),
            ..Self::new()
        }
    }

    /// The sizes of everything in the components, instead of those that follow from [`Options::memory`]; for tests.
    ///
    /// ```
    /// use deuteron::{Options, sizes::Sizes};
    /// let mut sizes = Sizes::tiny();
    /// sizes.dc.tree.page_bytes_max = 1024;
    /// let options = Options::tiny_for_tests().sizes(sizes);
    /// # let _ = options;
    /// ```
    pub fn sizes(mut self, sizes: Sizes) -> Self {
        self.sizes = Some(Box::new(sizes));
        self
    }

    /// The memory that the database may hold, in bytes: log buffers, versions and pages together.
    ///
    /// At least [`MEMORY_BYTES_MIN`]; checked by [`Options::open`].
    ///
    /// ```
    /// let options = deuteron::Options::new().memory(256 << 20);
    /// # let _ = options;
    /// ```
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// The most of this memory that records and their versions may take in the transaction component: the hard watermark of the
    /// paper's section 6.5. By default they have what pages and their tables leave. The larger it is, the more is read without the data component. Nothing else
    /// gets larger when it is made smaller.
    ///
    /// At least [`VERSION_MEMORY_BYTES_MIN`]; checked by [`Options::open`]. The longest value has half of it at most.
    ///
    /// ```
    /// let options = deuteron::Options::new().memory(1 << 30).version_memory(128 << 20);
    /// # let _ = options;
    /// ```
    pub fn version_memory(mut self, bytes: usize) -> Self {
        self.version_memory_bytes = Some(bytes);
        self
    }

    /// The durability of transactions that do not choose their own. The default is [`Durability::Sync`].
    ///
    /// ```
    /// use std::time::Duration;
    /// let options = deuteron::Options::new()
    ///     .durability(deuteron::Durability::Delayed(Duration::from_millis(10)));
    /// # let _ = options;
    /// ```
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Whether a database that does not exist is created (the default) or an error.
    ///
    /// ```
    /// let missing = deuteron::Options::new().create_if_missing(false).open("/nonexistent/bank.db");
    /// assert!(missing.is_err());
    /// ```
    pub fn create_if_missing(mut self, create: bool) -> Self {
        self.create_if_missing = create;
        self
    }

    /// Who does the background work.
    ///
    /// ```
    /// let options = deuteron::Options::new().background(deuteron::Background::Inline);
    /// # let _ = options;
    /// ```
    pub fn background(mut self, background: Background) -> Self {
        self.background = background;
        self
    }

    /// The database's own threads run on these processors only: all of them on each, as the system finds best. It leaves the others to
    /// threads that the caller has [pinned](Processors::pin_current_thread) there, or keeps the database to one socket. By default
    /// threads run where the system puts them. No effect without [threads](Background::Threads).
    ///
    /// On a machine of several memory nodes, memory lies with the thread that touches it first: versions and the log's buffers with those
    /// that run transactions, pages with the background threads, which post to them. A database that runs on all nodes is better off under
    /// `numactl --interleave=all`, and one that fits into a node under `numactl --cpunodebind=0 --membind=0` (`docs/design/scaling.md`).
    ///
    /// ```
    /// use deuteron::{Options, Processors};
    /// # let scratch = tempfile::tempdir()?;
    /// let last = *Processors::available()?.numbers().last().expect("this thread runs somewhere");
    /// let options = Options::new().memory(32 << 20).pin_background([last].into_iter().collect());
    /// let db = options.open(scratch.path().join("a.db"))?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pin_background(mut self, processors: Processors) -> Self {
        self.background_processors = Some(processors);
        self
    }

    /// Whether pages are compressed on disk (LZ4) where that saves an eighth at least. It takes time where a page is written in full or
    /// read; off by default. May differ from one open to the next: what is on disk is read either way.
    ///
    /// ```
    /// let options = deuteron::Options::new().compression(true);
    /// # let _ = options;
    /// ```
    pub fn compression(mut self, compress: bool) -> Self {
        self.compress = compress;
        self
    }

    /// How much the files of pages may take, in percent of what is live in them, before sparse ones are emptied: 200 by default,
    /// [`SPACE_AMPLIFICATION_PERCENT_MIN`] at the least. What is live are records, and changes to them that no rewrite of their page has taken in yet. Less takes less disk and
    /// more writing: with 140 a store of ten times its memory took 1.95 times its records instead of 2.96 under random updates, of which it did 0.91 as many.
    /// When nothing has been written for a second or so, files are emptied down to 120 % in any case. The log comes on top ([`Options::checkpoint_every`]).
    ///
    /// ```
    /// let options = deuteron::Options::new().space_amplification_max(150);
    /// # let _ = options;
    /// ```
    pub fn space_amplification_max(mut self, percent: u32) -> Self {
        self.space_amplification_percent = Some(percent);
        self
    }

    /// Asks the data component for a checkpoint whenever this many bytes of log lie behind the last. It bounds
    /// both the log on disk and the time that recovery takes. However few bytes are said, transactions are bounded by
    /// [`WRITER_LOG_BYTES_MIN`] at the least ([`Options::writer_log_max`]).
    ///
    /// ```
    /// let options = deuteron::Options::new().checkpoint_every(256 << 20);
    /// # let _ = options;
    /// ```
    pub fn checkpoint_every(mut self, log_bytes: u64) -> Self {
        self.checkpoint_log_bytes = log_bytes.max(1);
        self
    }

    /// Aborts a transaction once this many bytes of log have been written since its own first record there, by anybody: the log
    /// cannot be cut before that, so that a writer that never ends would make it grow without bound. (What a small transaction puts is logged
    /// with its commit. A delete, a value of more than 512 bytes and what goes beyond 8 KiB are logged at once.) The transaction is told
    /// so with a conflict ([`crate::ConflictCause::LogPinned`]), which a retry may help, or, if nearly all of it is what it has
    /// written itself, with [`crate::Error::TransactionTooLarge`]. A reader for whose sake more than that cannot be cut loses its
    /// snapshot ([`crate::ConflictCause::SnapshotTooOld`]), and so does the past that [`Options::retention`] keeps. The default is
    /// four times what [`Options::checkpoint_every`] says, and not under the least.
    ///
    /// At least [`WRITER_LOG_BYTES_MIN`]; checked by [`Options::open`]. The longest value has half of it.
    ///
    /// ```
    /// let options = deuteron::Options::new().writer_log_max(1 << 30);
    /// # let _ = options;
    /// ```
    pub fn writer_log_max(mut self, log_bytes: u64) -> Self {
        self.writer_log_bytes = Some(log_bytes);
        self
    }

    /// The longest value for which there is memory, of which the proxy has one at a time and a reader another, and log.
    pub(crate) fn value_bytes_max(&self) -> usize {
        let memory = (self.memory_bytes / 4).min(self.version_memory_bytes.unwrap_or(usize::MAX) / 2);
        memory.min((self.writer_log_bytes_max() / 2) as usize)
    }

    pub(crate) fn writer_log_bytes_max(&self) -> u64 {
        self.writer_log_bytes
            .unwrap_or_else(|| self.checkpoint_log_bytes.saturating_mul(4).max(WRITER_LOG_BYTES_MIN))
    }

    /// Keeps what the database was for this long, so that [`TransactionOptions::as_of`] can read it; not at all by
    /// default. What is kept is neither posted nor cut from the log, and takes its share of the memory (what waits to be posted may
    /// have half of what the transaction component has); where that is short the past is given up earlier. It does not outlast the handle.
    ///
    /// ```
    /// use std::time::Duration;
    /// let options = deuteron::Options::new().retention(Duration::from_secs(10));
    /// # let _ = options;
    /// ```
    ///
    /// [`TransactionOptions::as_of`]: crate::TransactionOptions::as_of
    pub fn retention(mut self, window: Duration) -> Self {
        self.retention = window;
        self
    }

    /// What becomes of a transaction that would come too late. The default is [`ConcurrencyControl::Pushes`]; the other is
    /// there to be compared with.
    ///
    /// ```
    /// use deuteron::{ConcurrencyControl, Options};
    /// let options = Options::new().concurrency_control(ConcurrencyControl::TimestampOrder);
    /// # let _ = options;
    /// ```
    pub fn concurrency_control(mut self, concurrency_control: ConcurrencyControl) -> Self {
        self.concurrency_control = concurrency_control;
        self
    }

    /// Tells `observer` how long the data component takes, for a measurement: of one in 64 upserts also by itself, which costs the
    /// proxy a little. Without an observer nothing is timed, and nobody asks whether there is one.
    ///
    /// ```
    /// use deuteron::{DataComponentObserver, Options};
    /// use std::{sync::Arc, time::Duration};
    /// #[derive(Debug)]
    /// struct Printed;
    /// impl DataComponentObserver for Printed {
    ///     fn got(&self, time: Duration) {
    ///         println!("get {time:?}");
    ///     }
    ///     fn upserted(&self, time: Duration) {
    ///         println!("upsert {time:?}");
    ///     }
    ///     fn posted(&self, operations: usize, time: Duration) {
    ///         println!("{operations} upserts {time:?}");
    ///     }
    /// }
    /// let options = Options::new().observe_data_component(Arc::new(Printed));
    /// # let _ = options;
    /// ```
    pub fn observe_data_component(mut self, observer: Arc<dyn DataComponentObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Records what every transaction does and sees to a new file, a line each, until the database is closed: for
    /// `deuteron check-history`, which says whether they were isolated from each other. The format is in `docs/history.md`.
    /// Transactions [in the past](crate::TransactionOptions::as_of) are left out. What is in the tables before, the check takes for nobody's: record from
    /// an empty table on. It says most if no key is given the same value twice.
    ///
    /// A recording copies all keys and values that are read and written, and its end waits for the file now and then. Of a transaction whose line would be
    /// longer than a history may have (64 MiB) the reads are left out. If that is not enough, or the file
    /// cannot be written, nothing more is recorded, and [`Db::close`] says so. A database without one asks once an operation whether
    /// it has one.
    ///
    /// ```
    /// use deuteron_history::{Level, check};
    /// # let scratch = tempfile::tempdir()?;
    /// let history = scratch.path().join("history");
    /// let db = deuteron::Options::new().memory(32 << 20).record_history(&history).open(scratch.path().join("a.db"))?;
    /// let table = db.table("stock")?;
    /// db.transact(|tx| tx.put(&table, b"apples", b"12"))?;
    /// db.transact(|tx| tx.get(&table, b"apples"))?;
    /// db.close()?;
    /// let report = check(std::io::BufReader::new(std::fs::File::open(history)?), Level::StrictSerializable)?;
    /// assert_eq!((report.committed, report.anomalies.len()), (2, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_history(mut self, path: impl AsRef<Path>) -> Self {
        self.history = Some(path.as_ref().to_owned());
        self
    }

    /// Opens the database in the directory `path`, recovering it if it was not closed.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process has it open, [`Error::NotFound`] if it is missing and not to be
    /// created, [`Error::NotADatabase`] for a foreign directory, [`Error::Encrypted`], [`Error::UnknownFormat`] for a newer version,
    /// [`Error::Corrupt`] for damage, [`Error::Device`] for a refusing device, [`Error::InvalidOption`]; [`Error::Exists`] if
    /// there is a file where a history is to be recorded.
    ///
    /// ```
    /// # let scratch = tempfile::tempdir()?;
    /// let db = deuteron::Options::new().memory(32 << 20).open(scratch.path().join("a.db"))?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(self, path: impl AsRef<Path>) -> Result<Db, Error> {
        self.check()?;
        let path = path.as_ref();
        if !self.create_if_missing && !path.is_dir() {
            return Err(Error::NotFound { path: path.display().to_string() });
        }
        let directory = OsDirectory::open_or_create(path).map_err(Error::device("open the directory"))?;
        self.open_in(Arc::new(directory))
    }

    /// Opens the database in a directory of the caller's making: memory, the simulated disk, or one's own.
    ///
    /// # Errors
    /// As [`Options::open`].
    ///
    /// ```
    /// use deuteron::device::MemoryDirectory;
    /// use std::sync::Arc;
    /// let db = deuteron::Options::new().memory(32 << 20).open_in(Arc::new(MemoryDirectory::new()))?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn open_in(self, directory: Arc<dyn Directory>) -> Result<Db, Error> {
        self.check()?;
        if let Some(processors) = &self.background_processors {
            // Now, and not after a long recovery.
            processors.run(|| Ok(()))?;
        }
        engine::Engine::open(directory, self).map(Db::from_engine)
    }

    /// Whether a database works with them.
    fn check(&self) -> Result<(), Error> {
        let versions = self.version_memory_bytes.map(|bytes| bytes as u64);
        let space = self.space_amplification_percent.map(u64::from);
        for (option, value, least, unit) in [
            ("memory", Some(self.memory_bytes as u64), MEMORY_BYTES_MIN as u64, "bytes"),
            ("version_memory", versions, VERSION_MEMORY_BYTES_MIN as u64, "bytes"),
            ("writer_log_max", self.writer_log_bytes, WRITER_LOG_BYTES_MIN, "bytes"),
            ("space_amplification_max", space, SPACE_AMPLIFICATION_PERCENT_MIN.into(), "%"),
        ] {
            if let Some(value) = value.filter(|value| *value < least) {
                let reason = format!("{value} {unit} is under the least, {least}");
                return Err(Error::InvalidOption { option, reason });
            }
        }
        Ok(())
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
