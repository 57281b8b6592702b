//! [`TableLoad`]: a new table from records in key order.

use crate::engine::Engine;
use crate::store::Closer;
use crate::{Error, Table};
use deuteron_contract::{Lsn, TableId, Timestamp};
use std::sync::Arc;

/// A table being loaded, see [`crate::Store::load_table`]. Dropped before [`TableLoad::finish`], nothing is left of it; the space of large
/// values is given back by the background work.
pub struct TableLoad {
    name: String,
    id: TableId,
    /// The number of all its records: what is written to the table later has a higher one.
    stamp: u64,
    load: deuteron_dc::TableLoad,
    engine: Arc<Engine>,
    closer: Arc<Closer>,
}

impl TableLoad {
    pub(crate) fn begin(engine: &Arc<Engine>, closer: &Arc<Closer>, name: &str) -> Result<TableLoad, Error> {
        let _call = engine.writable()?;
        let id = engine.catalogue().reserve(engine, name)?;
        let load = engine.component().load_table(id)?;
        Ok(TableLoad {
            name: name.to_owned(),
            id,
            stamp: engine.take_stamps(1, false)?,
            load,
            engine: Arc::clone(engine),
            closer: Arc::clone(closer),
        })
    }

    /// Adds a record. Its key must be greater than the one before. What is in memory is a page, and the first keys of the others.
    ///
    /// # Errors
    /// [`Error::OutOfOrder`], [`Error::KeySize`], [`Error::ValueSize`]: the record was not added, the load may go on;
    /// [`Error::DiskFull`]: likewise, make room and push the record again; [`Error::Device`], [`Error::Closed`], [`Error::Poisoned`]: the load
    /// cannot go on.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let mut load = store.load_table("words")?;
    /// load.push(b"apple", b"a fruit")?;
    /// assert!(matches!(load.push(b"aardvark", b""), Err(deuteron_store::Error::OutOfOrder { record: 2, .. })));
    /// # drop(load);
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let _call = self.engine.writable()?;
        let pushed = self.load.push(key, value, Timestamp(self.stamp), Lsn(self.stamp));
        pushed.map_err(|error| self.engine.failed(error.into()))
    }

    /// Makes the records durable and gives the table its name.
    ///
    /// # Errors
    /// [`Error::TableExists`] if another has taken the name meanwhile; what [`crate::Store::persist`] may return. There is no
    /// table then, and the space is given back; where even that could not be made durable, at the next opening.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// let mut load = store.load_table("words")?;
    /// load.push(b"apple", b"a fruit")?;
    /// let words = load.finish()?;
    /// assert_eq!(words.get(b"apple")?.as_deref(), Some(&b"a fruit"[..]));
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn finish(self) -> Result<Table, Error> {
        let TableLoad { name, id, load, engine, closer, .. } = self;
        let info = {
            // It ends before the last handle goes, which waits for it.
            let _call = engine.writable()?;
            let loaded = load.finish().map_err(|error| engine.failed(error.into()));
            let published = loaded.and_then(|_| engine.catalogue().publish(&engine, &name, id));
            published.inspect_err(|_| engine.catalogue().give_up(&engine, &name, id))?
        };
        Ok(Table::new(info, engine, closer))
    }
}
