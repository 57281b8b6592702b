//! [`TableLoad`]: a new table from records in order, past the deltas: full pages at once.

use crate::stored_value::{self, ValueNumber, chunk_tree};
use crate::{BwTreeDc, error};
use deuteron_bwtree::{BulkLoad, Upsert};
use deuteron_contract::{DataComponent, DcError, Lsn, TableId, Timestamp};
use std::sync::{Arc, PoisonError};

/// Why a load was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A key is not greater than the one before it. What was pushed before stays pushed.
    #[error("record {record} is out of order: its key {} is not greater than {}, the one before", key.escape_ascii(), previous.escape_ascii())]
    OutOfOrder {
        /// Which record, from 1.
        record: u64,
        /// Its key.
        key: Vec<u8>,
        /// The key before it.
        previous: Vec<u8>,
    },
    /// The table has been written to before.
    #[error("table {table} is not new")]
    NotNew {
        /// The table.
        table: TableId,
    },
    /// The component's own errors.
    #[error(transparent)]
    Component(#[from] DcError),
}

/// A table being loaded. Dropped before [`TableLoad::finish`], nothing is left of it.
pub struct TableLoad {
    component: Arc<BwTreeDc>,
    table: TableId,
    load: BulkLoad,
    last: Vec<u8>,
    records: u64,
}

impl BwTreeDc {
    /// Begins to load a table that nobody has written to, nor writes to meanwhile.
    ///
    /// # Errors
    /// [`LoadError::NotNew`].
    ///
    /// ```
    /// use deuteron_contract::{DataComponent, Lsn, TableId, Timestamp};
    /// use deuteron_dc::{BwTreeDc, DcOptions};
    /// let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// let mut load = dc.load_table(TableId(7))?;
    /// for number in 0..1000u32 {
    ///     load.push(&number.to_be_bytes(), b"value", Timestamp(1), Lsn(1))?;
    /// }
    /// assert_eq!(load.finish()?, 1000);
    /// assert!(dc.get(TableId(7), &999u32.to_be_bytes())?.is_some());
    /// # Ok::<(), deuteron_dc::LoadError>(())
    /// ```
    pub fn load_table(self: &Arc<BwTreeDc>, table: TableId) -> Result<TableLoad, LoadError> {
        // Of a load that was given up, chunks may be left.
        let is_known = [table, chunk_tree(table)].iter().any(|tree| self.tree_of(tree.0).is_some());
        if is_known || self.is_dropped(table) {
            return Err(LoadError::NotNew { table });
        }
        let load = BulkLoad::new(Arc::clone(self.llama()), table.0, self.options().tree.clone());
        Ok(TableLoad { component: Arc::clone(self), table, load, last: Vec::new(), records: 0 })
    }
}

impl TableLoad {
    /// Adds a record. Its key must be greater than the one before.
    ///
    /// # Errors
    /// [`LoadError::OutOfOrder`], [`DcError::KeySize`], [`DcError::ValueSize`]: the record was not added, and the load may go
    /// on; what the device may do.
    pub fn push(
        &mut self,
        key: &[u8],
        value: &[u8],
        timestamp: Timestamp,
        lsn: Lsn,
    ) -> Result<(), LoadError> {
        let (key_limit, value_limit) = (self.component.key_bytes_max(), self.component.value_bytes_max());
        if key.is_empty() || key.len() > key_limit {
            return Err(DcError::KeySize { found: key.len(), limit: key_limit }.into());
        }
        if value.len() > value_limit {
            return Err(DcError::ValueSize { found: value.len(), limit: value_limit }.into());
        }
        if key <= self.last.as_slice() {
            let (key, previous) = (key.to_vec(), self.last.clone());
            return Err(LoadError::OutOfOrder { record: self.records + 1, key, previous });
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        self.records += 1;
        let kept;
        let value = match self.component.is_special(value) {
            false => value,
            true => {
                kept = self.kept(key, value, timestamp)?;
                &kept
            }
        };
        let upsert = Upsert { key, value: Some(value), stamp: timestamp.0, lsn: lsn.0 };
        let completed = self.load.push(&upsert);
        if completed > 0 {
            self.component.loaded(completed as u64)?;
        }
        Ok(())
    }

    /// The value as the tree is to keep it.
    fn kept(&self, key: &[u8], value: &[u8], timestamp: Timestamp) -> Result<Vec<u8>, DcError> {
        if !self.component.is_large(value) {
            return Ok(stored_value::escape(value));
        }
        // Nobody removes it: a table without records is not swept.
        let number = ValueNumber::new(timestamp.0, self.records, key);
        let written = self.component.write_values(&[(self.table, number, key, value)])?;
        Ok(written[0].encode())
    }

    /// The records so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Makes the table durable and visible. Returns how many records it has.
    ///
    /// # Errors
    /// [`LoadError::NotNew`] if somebody has written to the table meanwhile: nothing is left of the load. What a checkpoint may
    /// return: the table is visible, and durable after the next one.
    pub fn finish(self) -> Result<u64, LoadError> {
        let TableLoad { component, table, load, records, .. } = self;
        component.publish_loaded(table, load)?;
        let _one_at_a_time = component.checkpointing().lock().unwrap_or_else(PoisonError::into_inner);
        // The second one moves the start of recovery's scan behind the pages, which were not adopted before.
        for _ in 0..2 {
            component.checkpoint(component.recovered_redo_scan_start_point().0)?;
        }
        Ok(records)
    }
}

impl BwTreeDc {
    fn publish_loaded(&self, table: TableId, load: BulkLoad) -> Result<(), LoadError> {
        let tree = || load.finish().map_err(|error| error::tree("load", error));
        match self.directory().insert_new(table.0, tree) {
            Some(inserted) => Ok(inserted?),
            None => Err(LoadError::NotNew { table }),
        }
    }
}
