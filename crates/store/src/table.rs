//! [`Table`]: a key space of a store, and its operations.

use crate::catalogue::TableInfo;
use crate::engine::Engine;
use crate::store::Closer;
use crate::{Error, KeyRange, Scan};
use deuteron_contract::TableId;
use std::fmt;
use std::sync::Arc;

/// A key space of its own in a store. Cheap to clone, sent and shared freely; it keeps the store open. Valid as long as the store
/// is open and the table is not [dropped](crate::Store::drop_table).
///
/// Keys have 1 to 4096 bytes and are ordered bytewise.
///
/// ```
/// # let store = deuteron_store::Options::tiny_for_tests()
/// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
/// let table = store.table("planets")?;
/// table.upsert(b"mars", b"2 moons")?;
/// let in_thread = table.clone();
/// std::thread::spawn(move || in_thread.get(b"mars")).join().expect("no panic")?;
/// # store.close()?;
/// # Ok::<(), deuteron_store::Error>(())
/// ```
#[derive(Clone)]
pub struct Table {
    info: Arc<TableInfo>,
    engine: Arc<Engine>,
    _closer: Arc<Closer>,
}

impl Table {
    pub(crate) fn new(info: Arc<TableInfo>, engine: Arc<Engine>, closer: Arc<Closer>) -> Table {
        Table { info, engine, _closer: closer }
    }

    /// The identifier, or an error if the table was dropped.
    #[inline]
    pub(crate) fn id(&self) -> Result<TableId, Error> {
        self.info.alive()?;
        Ok(self.info.id)
    }

    pub(crate) fn info(&self) -> &Arc<TableInfo> {
        &self.info
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn store_number(&self) -> u64 {
        self.engine.number()
    }

    /// The name.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// assert_eq!(store.table("planets")?.name(), "planets");
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// The value of `key`, if there is one: none if it is no key, as empty or too long. Logarithmic in the number of records; at most a few reads of the device.
    ///
    /// # Errors
    /// [`Error::TableDropped`], [`Error::Closed`], [`Error::Corrupt`], [`Error::Device`].
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let table = store.table("planets")?;
    /// assert_eq!(table.get(b"vulcan")?, None);
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.engine.get(self.id()?, key)
    }

    /// As [`Table::get`], with the value put into a buffer of the caller's, whose former contents go; whether there is a
    /// value. With a buffer that is used again and again no read allocates memory.
    ///
    /// # Errors
    /// As [`Table::get`]; the buffer is empty then.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let table = store.table("planets")?;
    /// table.upsert(b"mars", b"2 moons")?;
    /// let mut value = Vec::new();
    /// assert!(table.get_into(b"mars", &mut value)?);
    /// assert_eq!(value, b"2 moons");
    /// assert!(!table.get_into(b"vulcan", &mut value)? && value.is_empty());
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    #[inline]
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        value.clear();
        self.engine.get_into(self.id()?, key, value)
    }

    /// The values of `keys`, in their order, read together: what of them is not in memory is read with up to 64 reads in
    /// flight at once. Each record is as of a moment of its own, as with [`Table::get`].
    ///
    /// # Errors
    /// As [`Table::get`].
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let table = store.table("planets")?;
    /// table.upsert(b"mars", b"2 moons")?;
    /// assert_eq!(table.get_many(&["vulcan", "mars"])?, [None, Some(b"2 moons".to_vec())]);
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn get_many(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.engine.get_many(self.id()?, &keys)
    }

    /// Sets the value of `key`, whether or not there was one. Blind: it reads nothing from the device, unless very many
    /// writes to the page have not been read yet. For what is durable when, see the [crate](crate).
    ///
    /// # Errors
    /// [`Error::KeySize`], [`Error::ValueSize`], [`Error::TableDropped`]; [`Error::DiskFull`] if memory is short and the disk full: nothing is lost,
    /// make room and repeat; [`Error::Closed`], [`Error::Poisoned`], [`Error::Device`].
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let table = store.table("planets")?;
    /// table.upsert(b"earth", b"1 moon")?;
    /// assert_eq!(table.get(b"earth")?.as_deref(), Some(&b"1 moon"[..]));
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.engine.write(self.id()?, key, Some(value))
    }

    /// Deletes `key`, whether or not it is there. Blind like [`Table::upsert`].
    ///
    /// # Errors
    /// As [`Table::upsert`].
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let table = store.table("planets")?;
    /// table.upsert(b"pluto", b"5 moons")?;
    /// table.delete(b"pluto")?;
    /// assert_eq!(table.get(b"pluto")?, None);
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn delete(&self, key: &[u8]) -> Result<(), Error> {
        self.engine.write(self.id()?, key, None)
    }

    /// The records of a range in key order; in reverse with [`Iterator::rev`]. Memory is a batch of 64 KiB at most
    /// (or of one record), however long the range.
    ///
    /// It is no snapshot: each record is as of some moment since the batch that holds it was read. What is there throughout is
    /// returned, once.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let table = store.table("planets")?;
    /// for name in [b"earth", b"pluto", b"venus"] {
    ///     table.upsert(name, b"")?;
    /// }
    /// let last = table.scan(..).next_back().expect("three records")?;
    /// assert_eq!(last.0, b"venus");
    /// assert_eq!(table.scan(b"e"..b"q").count(), 2);
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn scan(&self, range: impl KeyRange) -> Scan {
        Scan::new(self.clone(), range.key_bounds())
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Table").field("name", &self.info.name).field("id", &self.info.id).finish()
    }
}
