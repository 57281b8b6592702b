//! [`Store`]: an open store.

use crate::engine::Engine;
use crate::{Batch, CheckReport, Error, Options, Stats, Table};
use std::path::Path;
use std::sync::Arc;

/// An open store. Clones are handles of the same one; it closes when [`Store::close`] is called or the last handle, table
/// and scan is gone. All methods may be called from any thread.
///
/// ```
/// # let scratch = tempfile::tempdir()?;
/// # let path = scratch.path().join("readings");
/// use deuteron_store::Store;
/// let store = Store::open(&path)?;
/// store.table("readings")?.upsert(b"cellar", b"11.5")?;
/// store.close()?;
///
/// let store = Store::open(&path)?;
/// assert_eq!(store.table("readings")?.get(b"cellar")?.as_deref(), Some(&b"11.5"[..]));
/// # store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Store {
    engine: Arc<Engine>,
    // Dropped with the last handle; the thread holds the engine, but not this.
    closer: Arc<Closer>,
}

/// Closes the engine when the last handle goes.
pub(crate) struct Closer(Arc<Engine>);

impl Drop for Closer {
    fn drop(&mut self) {
        // Nobody is left to tell. What was durable is durable.
        drop(self.0.close());
    }
}

impl Store {
    pub(crate) fn new(engine: Arc<Engine>) -> Store {
        Store { closer: Arc::new(Closer(Arc::clone(&engine))), engine }
    }

    /// Opens (or creates) the store in the directory `path` with the default [`Options`].
    ///
    /// # Errors
    /// As [`Options::open`].
    ///
    /// ```
    /// # let scratch = tempfile::tempdir()?;
    /// let store = deuteron_store::Store::open(scratch.path().join("readings"))?;
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Store, Error> {
        Options::new().open(path)
    }

    /// The table `name`, created (durably) if it does not exist. A name has 1 to 255 bytes.
    ///
    /// # Errors
    /// [`Error::TableName`], [`Error::Closed`], and what [`Store::persist`] may return.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// assert_eq!(store.table("readings")?.name(), "readings");
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn table(&self, name: &str) -> Result<Table, Error> {
        self.engine.usable()?;
        let (id, name) = self.engine.catalogue().table(&self.engine, name)?;
        Ok(Table::new(id, name, Arc::clone(&self.engine), Arc::clone(&self.closer)))
    }

    /// The names of all tables, sorted.
    ///
    /// # Errors
    /// [`Error::Closed`].
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// store.table("readings")?;
    /// assert_eq!(store.tables()?, ["readings"]);
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn tables(&self) -> Result<Vec<String>, Error> {
        self.engine.usable()?;
        Ok(self.engine.catalogue().names())
    }

    /// Applies all writes of a batch, in about the time of one change for each page that they fall on. When it returns all are
    /// visible; others may see some of them before, and a crash may leave some.
    ///
    /// # Errors
    /// As [`Table::upsert`], and [`Error::ForeignTable`]. A key or value that is too long is found before anything is
    /// written; after another error any part may have been written, and repeating is harmless.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let table = store.table("readings")?;
    /// let mut batch = deuteron_store::Batch::new();
    /// batch.upsert(&table, b"cellar", b"11.5").delete(&table, b"attic");
    /// store.apply(&batch)?;
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn apply(&self, batch: &Batch) -> Result<(), Error> {
        self.engine.apply_batch(batch)
    }

    /// Makes durable everything whose write returned before this call: flushes what is not flushed and writes an image of the
    /// page table. Writers and readers go on meanwhile. Returns at once if nothing has been written since the last time.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: the earlier state stands, what was written stays readable, and it may be repeated;
    /// [`Error::Poisoned`], [`Error::Device`]: the store takes no more writes.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// store.table("readings")?.upsert(b"cellar", b"11.5")?;
    /// store.persist()?;
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn persist(&self) -> Result<(), Error> {
        self.engine.usable()?;
        self.engine.persist()
    }

    /// Does one piece of background work, if there is any: evicts, flushes, cleans. Whether it did. For stores without a
    /// [thread](Options::background); harmless beside it.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Poisoned`], [`Error::Device`].
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// while store.step()? {}
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn step(&self) -> Result<bool, Error> {
        self.engine.writable()?;
        self.engine.step()
    }

    /// Sizes, memory, and the counters of every mechanism.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// assert_eq!(store.stats().counter("fragments_read"), Some(0));
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Reads everything and verifies it: checksums, formats, bounds, order, links. Changes nothing; others go on meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first defect found, its file and offset; [`Error::Closed`], [`Error::Device`].
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// store.table("readings")?.upsert(b"cellar", b"11.5")?;
    /// assert!(store.check()?.records >= 1);
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn check(&self) -> Result<CheckReport, Error> {
        self.engine.check()
    }

    /// The longest value in bytes.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// assert!(store.value_bytes_max() > 1000);
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn value_bytes_max(&self) -> usize {
        self.engine.value_bytes_max()
    }

    /// Makes everything durable and stops. Other handles and tables get [`Error::Closed`] from then on. A write that runs at the
    /// same time may or may not be in.
    ///
    /// # Errors
    /// As [`Store::persist`]; the store is closed all the same.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let table = store.table("readings")?;
    /// store.close()?;
    /// assert!(matches!(table.get(b"cellar"), Err(deuteron_store::Error::Closed)));
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn close(self) -> Result<(), Error> {
        self.engine.close()
    }
}
