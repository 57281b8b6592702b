//! [`TableLoad`]: a new table from records in key order, past the log.
//!
//! The records go to the data component at once, in full pages, with the timestamp before every transaction. They belong to a table that
//! nobody can name: its identifier is taken from the catalogue, durably, before the first record; its name is put there, by a
//! serializable transaction, when all of it is durable. That commit is the load's. Until then the catalogue has the table down as dropped, so
//! that the next opening gives back what a crash has left of it.

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
    /// [`Error::OutOfOrder`], [`Error::KeySize`], [`Error::ValueSize`]: the record was not added, the load may go on; so it may after
    /// [`Error::DiskFull`], if there is room again: push the record again. [`Error::Device`], [`Error::Closed`], [`Error::Poisoned`].
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
    /// table then; what was loaded is given back in the background, at the latest after the next opening. With [`Error::DurabilityUnknown`] the table is there, and
    /// whether it still is after the next opening is not known.
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
        engine.catalogue().publish(&engine, &name, id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_contract::DataComponent;
    use deuteron_device::MemoryDirectory;

    #[test]
    fn a_load_whose_table_got_no_name_is_given_back_at_the_next_opening() {
        let directory = Arc::new(MemoryDirectory::new());
        let open =
            || crate::Options::tiny_for_tests().open_in(Arc::<MemoryDirectory>::clone(&directory)).unwrap();
        let db = open();
        let mut load = db.load_table("words").unwrap();
        load.push(b"apple", b"a fruit").unwrap();
        let TableLoad { engine, id, load, .. } = load;
        engine.without_checkpoints(|| Ok(load.finish()?)).unwrap();
        assert!(engine.dc().get(id, b"apple").unwrap().is_some());
        drop((engine, db));
        let db = open();
        let engine = db.load_table("words").unwrap().engine;
        assert_eq!(engine.dc().get(id, b"apple").unwrap(), None);
        assert!(db.tables().unwrap().is_empty());
        db.close().unwrap();
    }

    #[test]
    fn a_name_that_was_taken_meanwhile_gives_the_load_back() {
        let db = crate::Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new())).unwrap();
        let mut load = db.load_table("words").unwrap();
        load.push(b"apple", b"a fruit").unwrap();
        let (engine, id) = (Arc::clone(&load.engine), load.id);
        db.table("words").unwrap();
        assert!(matches!(load.finish(), Err(Error::TableExists { .. })));
        assert_eq!(engine.dc().get(id, b"apple").unwrap(), None);
        db.close().unwrap();
    }
}
