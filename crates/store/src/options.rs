//! How a store is opened.

use crate::engine::Engine;
use crate::{Error, Store};
use deuteron_dc::DcOptions;
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
    /// bytes for each such page. Without a thread of its own the store does so only when asked.
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
        if self.memory_bytes < MEMORY_BYTES_MIN {
            return Err(Error::InvalidOption {
                option: "memory",
                reason: format!("{} bytes is under the least, {MEMORY_BYTES_MIN}", self.memory_bytes),
            });
        }
        if self.persist_every.is_zero() {
            return Err(Error::InvalidOption { option: "persist_every", reason: "it is zero".into() });
        }
        Engine::open(directory, self).map(Store::new)
    }

    pub(crate) fn component(&self) -> DcOptions {
        if self.tiny {
            return DcOptions { compress: self.compress, ..DcOptions::tiny_for_tests() };
        }
        // The component counts nodes and indexes by their slots, and what the pool keeps free. What it does not count is buffers, lists of
        // pages, and what the allocator adds to those; with seven eighths the process exceeded what is
        // allowed it by a hundredth under the fastest updates.
        DcOptions {
            memory_bytes: (self.memory_bytes / 16 * 13) as u64,
            compress: self.compress,
            ..DcOptions::default()
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}
