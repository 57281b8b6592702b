//! [`TableLoad`]: a new table from records in order, past the deltas: full pages at once.
//!
//! The pages of a load that is given up are forgotten at once: nothing adopts them. Its large values, which are durable in chunks, are removed by the
//! [sweep](crate::sweep), to which they are values that nothing refers to as soon as the load is none.

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

/// A table being loaded. Dropped before [`TableLoad::finish`], nothing is left of it; the space of its large values is given back by the background
/// work.
pub struct TableLoad {
    component: Arc<BwTreeDc>,
    table: TableId,
    /// `None` once it is finished.
    load: Option<BulkLoad>,
    last: Vec<u8>,
    records: u64,
    /// Large values that it was tried to write.
    large_values: u64,
    /// Whether a page has been made for which there may be no room.
    needs_room: bool,
}

impl BwTreeDc {
    /// Begins to load a table that nobody has written to, nor writes to meanwhile.
    ///
    /// # Errors
    /// [`LoadError::NotNew`]; also while somebody else loads the table, and after a load of it that had large values and was given up.
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
        // Before it is looked whether there is one: who has loaded it gives it back afterwards.
        if !self.sweeps.claim_load(table) {
            return Err(LoadError::NotNew { table });
        }
        let load = BulkLoad::new(Arc::clone(self.llama()), table.0, self.options().tree.clone());
        let load = TableLoad {
            component: Arc::clone(self),
            table,
            load: Some(load),
            last: Vec::new(),
            records: 0,
            large_values: 0,
            needs_room: false,
        };
        // Chunks of a load that was given up may be left, or their tombstones, which would count above the same number written anew.
        let is_known = [table, chunk_tree(table)].iter().any(|tree| self.tree_of(tree.0).is_some());
        if is_known || self.is_dropped(table) { Err(LoadError::NotNew { table }) } else { Ok(load) }
    }
}

impl TableLoad {
    /// Adds a record. Its key must be greater than the one before.
    ///
    /// # Errors
    /// [`LoadError::OutOfOrder`], [`DcError::KeySize`], [`DcError::ValueSize`]: the record was not added, and the load may go
    /// on; [`DcError::DiskFull`]: likewise, with the same record or another once there is room; [`DcError::Poisoned`],
    /// [`DcError::Device`], after which nothing can be loaded any more.
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
        self.make_room()?;
        let kept;
        let value = match self.component.is_special(value) {
            false => value,
            true => {
                kept = self.kept(key, value, timestamp)?;
                &kept
            }
        };
        let upsert = Upsert { key, value: Some(value), stamp: timestamp.0, lsn: lsn.0 };
        let completed = self.load.as_mut().map_or(0, |load| load.push(&upsert));
        // From here on nothing fails: either the record is among those loaded, or nothing has changed.
        self.last.clear();
        self.last.extend_from_slice(key);
        self.records += 1;
        if completed > 0 {
            self.component.applied_bytes.change(completed, 0);
            self.needs_room = true;
        }
        Ok(())
    }

    /// Makes room for the page that was made last.
    fn make_room(&mut self) -> Result<(), DcError> {
        if self.needs_room && self.component.llama().over_budget() {
            self.component.relieve(true)?;
        }
        self.needs_room = false;
        Ok(())
    }

    /// The value as the tree is to keep it.
    fn kept(&mut self, key: &[u8], value: &[u8], timestamp: Timestamp) -> Result<Vec<u8>, DcError> {
        if !self.component.is_large(value) {
            return Ok(stored_value::escape(value));
        }
        // Nobody removes it: a table that is being loaded is not swept.
        self.component.sweeps.begin_load(self.table);
        // After an error the same key may come with another value.
        self.large_values += 1;
        let number = ValueNumber::new(timestamp.0, self.large_values, key);
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
    /// [`LoadError::NotNew`] if somebody has written to the table meanwhile, or dropped it: nothing is left of the load. What a checkpoint may
    /// return: the table is visible, and durable after the next one.
    pub fn finish(mut self) -> Result<u64, LoadError> {
        let (component, records) = (Arc::clone(&self.component), self.records);
        if let Some(load) = self.load.take() {
            component.publish_loaded(self.table, load)?;
        }
        // What there is of large values is referred to now.
        drop(self);
        let _one_at_a_time = component.checkpointing().lock().unwrap_or_else(PoisonError::into_inner);
        // The second one moves the start of recovery's scan behind the pages, which were not adopted before.
        for _ in 0..2 {
            component.checkpoint(component.recovered_redo_scan_start_point().0)?;
        }
        Ok(records)
    }
}

impl Drop for TableLoad {
    fn drop(&mut self) {
        self.component.sweeps.end_load(self.table);
    }
}

impl BwTreeDc {
    fn publish_loaded(&self, table: TableId, load: BulkLoad) -> Result<(), LoadError> {
        let tree = || {
            // Who drops it from now on waits for this, and finds it.
            if self.dropped().contains(table.0) {
                return Err(LoadError::NotNew { table });
            }
            Ok(load.finish().map_err(|error| error::tree("load a table", error))?)
        };
        match self.directory().insert_new(table.0, tree) {
            Some(inserted) => inserted,
            None => Err(LoadError::NotNew { table }),
        }
    }
}
