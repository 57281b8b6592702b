//! [`TableLoad`]: a new table from records in key order, past the log.
//!
//! The records go to the data component at once, in full pages, with the timestamp before every transaction. They belong to a table that
//! nobody can name: its identifier is taken from the catalogue, durably, before the first record; its name is put there, by a
//! serializable transaction, when all of it is durable. That commit is the load's. A crash before the last page is durable leaves
//! nothing; one between that and the commit leaves pages without a name, whose space is lost.

use crate::catalogue::Catalogue;
use crate::engine::Engine;
use crate::{Error, Table};
use deuteron_contract::{Lsn, TableId, Timestamp};
use std::sync::Arc;

/// A table being loaded, see [`crate::Db::load_table`]. Dropped before [`TableLoad::finish`], nothing is left of it.
pub struct TableLoad {
    engine: Arc<Engine>,
    name: String,
    id: TableId,
    load: deuteron_dc::TableLoad,
}

impl TableLoad {
    pub(crate) fn begin(engine: &Arc<Engine>, name: &str) -> Result<TableLoad, Error> {
        let id = Catalogue::reserve(engine, name)?;
        let load = engine.dc().load_table(id)?;
        Ok(TableLoad { engine: Arc::clone(engine), name: name.to_owned(), id, load })
    }

    /// Adds a record. Its key must be greater than the one before.
    ///
    /// # Errors
    /// [`Error::OutOfOrder`], [`Error::KeySize`], [`Error::ValueSize`]: the record was not added, the load may go on;
    /// [`Error::DiskFull`], [`Error::Device`], [`Error::Closed`], [`Error::Poisoned`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let mut load = db.load_table("words")?;
    /// load.push(b"apple", b"a fruit")?;
    /// assert!(matches!(load.push(b"aardvark", b""), Err(deuteron::Error::OutOfOrder { record: 2, .. })));
    /// # drop(load);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.engine.usable()?;
        Ok(self.load.push(key, value, Timestamp(0), Lsn(0))?)
    }

    /// Makes the records durable and gives the table its name.
    ///
    /// # Errors
    /// [`Error::TableExists`] if another has taken the name meanwhile; what a checkpoint and a commit may return. There is no
    /// table then.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let mut load = db.load_table("words")?;
    /// load.push(b"apple", b"a fruit")?;
    /// let words = load.finish()?;
    /// assert_eq!(db.transact(|tx| tx.get(&words, b"apple"))?.as_deref(), Some(&b"a fruit"[..]));
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn finish(self) -> Result<Table, Error> {
        let TableLoad { engine, name, id, load } = self;
        engine.usable()?;
        engine.without_checkpoints(|| Ok(load.finish()?))?;
        Catalogue::publish(&engine, &name, id)?;
        engine.catalogue().table(&engine, &name)
    }
}
