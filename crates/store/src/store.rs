//! [`Store`]: an open store.

use crate::engine::Engine;
use crate::{BackupReport, Batch, CheckReport, Compaction, Error, Options, Stats, Table, TableLoad};
use deuteron_device::Directory;
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
        let _call = self.engine.usable()?;
        let info = self.engine.catalogue().table(&self.engine, name)?;
        Ok(Table::new(info, Arc::clone(&self.engine), Arc::clone(&self.closer)))
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
        let _call = self.engine.usable()?;
        Ok(self.engine.catalogue().names())
    }

    /// Drops the table `name`, durably: its handles get [`Error::TableDropped`] from then on, and its space is given back a page at a
    /// time by the background work. A table of the same name that is created later is another one.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::TableName`], [`Error::Closed`], and what [`Store::persist`] may return: either the table is as it was,
    /// and can be dropped again, or it is gone, but may be there again after the next opening.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let table = store.table("readings")?;
    /// store.drop_table("readings")?;
    /// assert!(matches!(table.get(b"cellar"), Err(deuteron_store::Error::TableDropped { .. })));
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        let _call = self.engine.writable()?;
        self.engine.catalogue().drop_table(&self.engine, name)
    }

    /// Begins to load a new table from records in ascending key order: full pages are written at once, in one pass.
    /// Nobody sees the table before [`TableLoad::finish`] has returned, and a crash before leaves no table.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::TableName`], [`Error::Closed`], and what [`Store::persist`] may return.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let mut load = store.load_table("squares")?;
    /// for number in 0..1000u32 {
    ///     load.push(&number.to_be_bytes(), &(number * number).to_le_bytes())?;
    /// }
    /// let squares = load.finish()?;
    /// assert_eq!(squares.get(&7u32.to_be_bytes())?, Some(49u32.to_le_bytes().to_vec()));
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn load_table(&self, name: &str) -> Result<TableLoad, Error> {
        TableLoad::begin(&self.engine, &self.closer, name)
    }

    /// Applies all writes of a batch, in about the time of one change for each page that they fall on. When it returns all are
    /// visible; others may see some of them before, and a crash may leave some.
    ///
    /// # Errors
    /// As [`Table::upsert`], and [`Error::ForeignTable`]. A dropped table, a key or value that is too long is found before anything is
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
        let _call = self.engine.usable()?;
        self.engine.persist()
    }

    /// Writes a backup to the file `target` while the store works: one file, every block with its checksum, for
    /// [`crate::restore`]. It holds what a crash at one moment after the call would leave: every write that returned before the
    /// call, and some of those that came while it began. Writers and readers go on; persists wait.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is a file of that name; [`Error::NotFound`] if there is no such directory; [`Error::InvalidOption`] if it is the
    /// store's own, in which no other files may be, or the file is named as none can be, or `lock`; [`Error::DiskFull`], [`Error::Device`]: there is no backup then, and the store goes on; [`Error::Closed`], [`Error::Poisoned`].
    ///
    /// ```
    /// # let scratch = tempfile::tempdir()?;
    /// # let at = |name: &str| scratch.path().join(name);
    /// let store = deuteron_store::Store::open(at("readings"))?;
    /// let readings = store.table("readings")?;
    /// readings.upsert(b"cellar", b"11.5")?;
    /// store.backup(at("monday"))?;
    /// readings.delete(b"cellar")?;
    /// store.close()?;
    ///
    /// deuteron_store::restore(at("monday"), at("again"))?;
    /// let store = deuteron_store::Store::open(at("again"))?;
    /// assert_eq!(store.table("readings")?.get(b"cellar")?.as_deref(), Some(&b"11.5"[..]));
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup(&self, target: impl AsRef<Path>) -> Result<BackupReport, Error> {
        let (shelf, name) = deuteron_archive::place(target.as_ref())?;
        self.backup_in(&shelf, &name)
    }

    /// [`Store::backup`] to the file `name` in a directory of the caller's making.
    ///
    /// # Errors
    /// As [`Store::backup`].
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let shelf = deuteron_store::device::MemoryDirectory::new();
    /// assert!(store.backup_in(&shelf, "monday")?.archive_bytes > 0);
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn backup_in(&self, shelf: &dyn Directory, name: &str) -> Result<BackupReport, Error> {
        self.engine.backup(shelf, name)
    }

    /// Brings disk use down to about what the live records need: deletes are forgotten, underfull pages merged, sparse segments
    /// emptied. Reads and writes everything once or twice while others go on.
    ///
    /// # Errors
    /// What [`Store::persist`] may return; [`Error::Corrupt`] if there are pages that cannot be read, after all else has been compacted: it names them.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let compaction = store.compact()?;
    /// assert!(compaction.after_bytes <= compaction.before_bytes + (1 << 20));
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn compact(&self) -> Result<Compaction, Error> {
        self.engine.compact()
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
        let _call = self.engine.writable()?;
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

    /// Makes everything durable and stops. Other handles, tables, scans and loads get [`Error::Closed`] from then on. Calls that are under
    /// way on other threads are waited for, a backup or a compaction, too; a write among them may or may not be in. When this returns, nothing
    /// is written any more, and the directory may be opened again. To close it once more by another handle is harmless: it waits for the
    /// first, and says [`Error::Poisoned`] if that has failed.
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
