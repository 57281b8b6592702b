//! [`Batch`]: many writes in one call.

use crate::catalogue::TableInfo;
use crate::{Error, Table};
use deuteron_contract::TableId;
use std::sync::Arc;

/// Writes to be [applied](crate::Store::apply) in one call, to any tables of one store. Of two writes to a key the later counts.
///
/// It is a matter of speed: neighbours of a page become one change of it. It is not atomic.
///
/// ```
/// # let store = deuteron_store::Options::tiny_for_tests()
/// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
/// use deuteron_store::Batch;
/// let table = store.table("t")?;
/// let mut batch = Batch::new();
/// batch.upsert(&table, b"a", b"1").delete(&table, b"b");
/// assert_eq!(batch.len(), 2);
/// store.apply(&batch)?;
/// # store.close()?;
/// # Ok::<(), deuteron_store::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Keys and values, one behind the other.
    bytes: Vec<u8>,
    writes: Vec<Write>,
    /// The tables that are written to.
    tables: Vec<Arc<TableInfo>>,
    /// The store that all tables are of.
    pub(crate) store: Option<u64>,
    /// A table of another store, if one was used.
    pub(crate) foreign: Option<String>,
}

/// Where a write lies in the bytes.
#[derive(Clone, Copy, Debug)]
struct Write {
    /// Which of the tables.
    table: usize,
    key_at: usize,
    value_at: usize,
    /// `None`: a delete.
    end: Option<usize>,
}

impl Batch {
    /// An empty batch.
    ///
    /// ```
    /// assert!(deuteron_store::Batch::new().is_empty());
    /// ```
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds an upsert. The key and the value are copied; their lengths are checked by [`crate::Store::apply`].
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// # let table = store.table("t")?;
    /// let mut batch = deuteron_store::Batch::new();
    /// batch.upsert(&table, b"a", b"1");
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn upsert(&mut self, table: &Table, key: &[u8], value: &[u8]) -> &mut Batch {
        self.push(table, key, Some(value))
    }

    /// Adds a delete.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// # let table = store.table("t")?;
    /// let mut batch = deuteron_store::Batch::new();
    /// batch.delete(&table, b"a");
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn delete(&mut self, table: &Table, key: &[u8]) -> &mut Batch {
        self.push(table, key, None)
    }

    fn push(&mut self, table: &Table, key: &[u8], value: Option<&[u8]>) -> &mut Batch {
        if *self.store.get_or_insert(table.store_number()) != table.store_number() {
            self.foreign.get_or_insert_with(|| table.name().to_owned());
        }
        let is_same = |known: &Arc<TableInfo>| Arc::ptr_eq(known, table.info());
        // Most likely the one before.
        let at = self.tables.iter().rposition(is_same).unwrap_or_else(|| {
            self.tables.push(Arc::clone(table.info()));
            self.tables.len() - 1
        });
        let key_at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let value_at = self.bytes.len();
        self.bytes.extend_from_slice(value.unwrap_or(&[]));
        let end = value.map(|_| self.bytes.len());
        self.writes.push(Write { table: at, key_at, value_at, end });
        self
    }

    /// How many writes.
    ///
    /// ```
    /// assert_eq!(deuteron_store::Batch::new().len(), 0);
    /// ```
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether there is none.
    ///
    /// ```
    /// assert!(deuteron_store::Batch::new().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Takes all writes out; the memory stays for the next ones, to the same store or to another.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// # let table = store.table("t")?;
    /// let mut batch = deuteron_store::Batch::new();
    /// batch.delete(&table, b"a").clear();
    /// assert!(batch.is_empty());
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.writes.clear();
        self.tables.clear();
        (self.store, self.foreign) = (None, None);
    }

    /// An error if one of the tables was dropped.
    pub(crate) fn tables_alive(&self) -> Result<(), Error> {
        self.tables.iter().try_for_each(|table| table.alive())
    }

    /// The writes in order: table, key, value or delete.
    pub(crate) fn writes(&self) -> impl Iterator<Item = (TableId, &[u8], Option<&[u8]>)> {
        self.writes.iter().map(|write| {
            let value = write.end.map(|end| &self.bytes[write.value_at..end]);
            (self.tables[write.table].id, &self.bytes[write.key_at..write.value_at], value)
        })
    }
}
