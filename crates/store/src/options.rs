//! How a store is opened.

use crate::engine::Engine;
use crate::{Error, Store};
use deuteron_dc::{DcOptions, SPACE_AMPLIFICATION_PERCENT_MIN};
use deuteron_device::{Directory, OsDirectory};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The least memory that a store can work in, in bytes.
pub const MEMORY_BYTES_MIN: usize = 4 << 20;

/// Options of a store; none is part of the format.
///
/// ```
/// use deuteron_store::Options;
/// # let scratch = tempfile::tempdir()?;
/// # let path = scratch.path().join("readings");
/// let store = Options::new().memory(64 << 20).open(&path)?;
/// # store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) memory_bytes: usize,
    pub(crate) persist_every: Duration,
    pub(crate) create_if_missing: bool,
    pub(crate) background: bool,
    pub(crate) compress: bool,
    pub(crate) space_amplification_percent: Option<u32>,
    tiny: bool,
}

impl Options {
    /// The defaults: 256 MiB of memory, durable within ten seconds, created if missing, a thread of its own.
    ///
    /// ```
    /// let options = deuteron_store::Options::new();
    /// # let _ = options;
    /// ```
    pub fn new() -> Options {
        Options {
            memory_bytes: 256 << 20,
            persist_every: Duration::from_secs(10),
            create_if_missing: true,
            background: true,
            compress: false,
            space_amplification_percent: None,
            tiny: false,
        }
    }

    /// The smallest buffers and pages that work and no thread, so that rare paths are common; for tests.
    ///
    /// ```
    /// let options = deuteron_store::Options::tiny_for_tests();
    /// # let _ = options;
    /// ```
    pub fn tiny_for_tests() -> Options {
        Options { background: false, tiny: true, ..Options::new() }
    }

    /// The memory that the store may hold in bytes, at least [`MEMORY_BYTES_MIN`]: pages, indexes, and what the allocator
    /// adds to them. Checked by [`Options::open`].
    ///
    /// ```
    /// let options = deuteron_store::Options::new().memory(1 << 30);
    /// # let _ = options;
    /// ```
    pub fn memory(mut self, bytes: usize) -> Options {
        self.memory_bytes = bytes;
        self
    }

    /// Within about what time a write becomes durable if nobody calls [`Store::persist`]: what a crash may take. Less costs more
    /// writing: each time, all pages written since are flushed, and an image of what has changed in the page table, some fifty
    /// bytes for each such page. Without a thread of its own the store does so only when asked. Not zero; checked by [`Options::open`].
    ///
    /// ```
    /// use std::time::Duration;
    /// let options = deuteron_store::Options::new().persist_every(Duration::from_secs(60));
    /// # let _ = options;
    /// ```
    pub fn persist_every(mut self, time: Duration) -> Options {
        self.persist_every = time;
        self
    }

    /// Whether pages are compressed on disk (LZ4) where that saves an eighth at least. It takes time where a page is written in full or
    /// read; off by default. May differ from one open to the next: what is on disk is read either way.
    ///
    /// ```
    /// let options = deuteron_store::Options::new().compression(true);
    /// # let _ = options;
    /// ```
    pub fn compression(mut self, compress: bool) -> Options {
        self.compress = compress;
        self
    }

    /// How much the files of pages may take, in percent of what is live in them, before sparse ones are emptied: 200 by default,
    /// [`SPACE_AMPLIFICATION_PERCENT_MIN`] at the least. What is live are records, and changes to them that no rewrite of their page has taken in yet. Less takes less disk and
    /// more writing: with 140 a store of ten times its memory took 1.95 times its records instead of 2.96 under random updates, of which it did 0.91 as many.
    /// When nothing has been written for a second or so, files are emptied down to 120 % in any case.
    ///
    /// ```
    /// let options = deuteron_store::Options::new().space_amplification_max(150);
    /// # let _ = options;
    /// ```
    pub fn space_amplification_max(mut self, percent: u32) -> Options {
        self.space_amplification_percent = Some(percent);
        self
    }

    /// Whether a store that does not exist is created (the default) or an error.
    ///
    /// ```
    /// let missing = deuteron_store::Options::new().create_if_missing(false).open("/nonexistent/store");
    /// assert!(missing.is_err());
    /// ```
    pub fn create_if_missing(mut self, create: bool) -> Options {
        self.create_if_missing = create;
        self
    }

    /// Whether the store has a thread for its background work (the default). Without it those who write do the work when memory
    /// runs short, and [`Store::step`] does a piece of it; with one calling thread, everything then happens in an order
    /// that repeats.
    ///
    /// ```
    /// let options = deuteron_store::Options::new().background(false);
    /// # let _ = options;
    /// ```
    pub fn background(mut self, background: bool) -> Options {
        self.background = background;
        self
    }

    /// Opens the store in the directory `path`, as the last time that it was made durable left it, or as later writes did.
    /// Reads no page: the time is that of reading the images of the page table and what was flushed since.
    ///
    /// # Errors
    /// [`Error::InUse`] if it is open already, [`Error::NotFound`] if it is missing and not to be created,
    /// [`Error::NotAStore`] for a foreign directory, [`Error::Corrupt`] for damage, [`Error::InvalidOption`],
    /// [`Error::DiskFull`], [`Error::Device`].
    ///
    /// ```
    /// # let scratch = tempfile::tempdir()?;
    /// let store = deuteron_store::Options::new().open(scratch.path().join("readings"))?;
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(self, path: impl AsRef<Path>) -> Result<Store, Error> {
        // Before there is a directory.
        self.check()?;
        let path = path.as_ref();
        if !self.create_if_missing && !path.is_dir() {
            return Err(Error::NotFound { path: path.display().to_string() });
        }
        let directory = OsDirectory::open_or_create(path).map_err(Error::device("open the directory"))?;
        self.open_in(Arc::new(directory))
    }

    /// Opens the store in a directory of the caller's making: memory, the simulated disk, or one's own.
    ///
    /// # Errors
    /// As [`Options::open`].
    ///
    /// ```
    /// use deuteron_store::{Options, device::MemoryDirectory};
    /// let store = Options::new().open_in(std::sync::Arc::new(MemoryDirectory::new()))?;
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn open_in(self, directory: Arc<dyn Directory>) -> Result<Store, Error> {
        self.check()?;
        Engine::open(directory, self).map(Store::new)
    }

    /// Whether a store works with them.
    fn check(&self) -> Result<(), Error> {
        if self.memory_bytes < MEMORY_BYTES_MIN {
            return Err(Error::InvalidOption {
                option: "memory",
                reason: format!("{} bytes is under the least, {MEMORY_BYTES_MIN}", self.memory_bytes),
            });
        }
        if let Some(percent) =
            self.space_amplification_percent.filter(|at| *at < SPACE_AMPLIFICATION_PERCENT_MIN)
        {
            let reason = format!("{percent} % is under the least, {SPACE_AMPLIFICATION_PERCENT_MIN}");
            return Err(Error::InvalidOption { option: "space_amplification_max", reason });
        }
        if self.persist_every.is_zero() {
            return Err(Error::InvalidOption { option: "persist_every", reason: "it is zero".into() });
        }
        Ok(())
    }

    pub(crate) fn component(&self) -> DcOptions {
        let defaults = if self.tiny { DcOptions::tiny_for_tests() } else { DcOptions::default() };
        let percent = self.space_amplification_percent.unwrap_or(defaults.space_amplification_percent_max);
        let options =
            DcOptions { compress: self.compress, space_amplification_percent_max: percent, ..defaults };
        if self.tiny {
            return options;
        }
        // The component counts nodes and indexes by their slots, and what the pool keeps free. What it does not count is buffers, lists of
        // pages, and what the allocator adds to those; with seven eighths the process exceeded what is
        // allowed it by a hundredth under the fastest updates.
        DcOptions { memory_bytes: (self.memory_bytes / 16 * 13) as u64, ..options }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}
