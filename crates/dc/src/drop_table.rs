//! Dropping a table: remembered by a checkpoint, then its pages are emptied one by one and merged.
//!
//! | step | if the machine stops right after it |
//! |---|---|
//! | the table is marked: reads find nothing, what is applied to it is ignored | it is there, as if nothing had happened |
//! | an image remembers the mark, for ever, since identifiers are not used again and a replay may bring old operations | it is dropped; the rest is done after the next opening |
//! | a leaf is emptied, or an empty leaf merged (`drop_step`, and what follows from it) | the same, with less to do |
//!
//! No leaf is emptied before its mark is durable: others flush at any time, and the table may have to be there again, with all that it has
//! had. So likewise no large value is taken for one that nothing refers to because its table is marked ([`sweep`](crate::sweep)).
//!
//! The first leaf of the table stays, at about a hundred bytes; so does, until the next opening, the first leaf of each inner node.

use crate::stored_value::chunk_tree;
use crate::sync::{RwLockReadGuard, RwLockWriteGuard};
use crate::{BwTreeDc, error, user_data};
use deuteron_bwtree::Tree;
use deuteron_contract::{DcError, TableId};
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// Leaves that one step empties.
const STEP_LEAVES: usize = 16;

/// A dropped table.
#[derive(Debug)]
pub(crate) struct Dropped {
    /// Whether it is dropped after a crash, too.
    is_durable: bool,
    /// How far it is emptied: where the next leaf begins, or `None` when all are.
    next: Option<Vec<u8>>,
}

impl Dropped {
    /// A table that was just dropped, or is found to be.
    pub(crate) fn new(is_durable: bool) -> Dropped {
        Dropped { is_durable, next: Some(Vec::new()) }
    }
}

impl BwTreeDc {
    pub(crate) fn dropped(&self) -> RwLockReadGuard<'_, BTreeMap<u32, Dropped>> {
        // Every critical section leaves the map whole.
        self.dropped.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn dropped_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<u32, Dropped>> {
        self.dropped.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the table was dropped.
    ///
    /// ```
    /// # use deuteron_contract::TableId;
    /// # use deuteron_dc::{BwTreeDc, DcOptions};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// dc.drop_table(TableId(1))?;
    /// assert!(dc.is_dropped(TableId(1)) && !dc.is_dropped(TableId(2)));
    /// # Ok::<(), deuteron_contract::DcError>(())
    /// ```
    pub fn is_dropped(&self, table: TableId) -> bool {
        match self.tables.get(table.0) {
            Some(tree) => tree.is_given_up(),
            None => self.dropped().contains_key(&table.0),
        }
    }

    /// Drops a table, for good: its identifier can not be used again. Reads find nothing in it, and what is applied to it is
    /// ignored, from now on and after a crash. Takes a checkpoint. [`BwTreeDc::maintain_step`] gives the space back, a page
    /// at a time. Nothing happens if it was dropped before.
    ///
    /// # Errors
    /// [`DcError`] if the device fails; call it again, as the table may be there after a restart, whole. Its space is given back after the next
    /// checkpoint.
    ///
    /// ```
    /// use deuteron_contract::{DataComponent, Lsn, Operation, TableId, Timestamp};
    /// use deuteron_dc::{BwTreeDc, DcOptions};
    ///
    /// let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// let table = TableId(1);
    /// dc.apply(&[Operation { table, key: b"key", value: Some(b"value"), timestamp: Timestamp(1), lsn: Lsn(1) }])?;
    /// dc.drop_table(table)?;
    /// assert_eq!(dc.get(table, b"key")?, None);
    /// while dc.maintain_step()? {}
    /// # Ok::<(), deuteron_contract::DcError>(())
    /// ```
    pub fn drop_table(&self, table: TableId) -> Result<(), DcError> {
        // First the records: who finds that chunks are not taken any more must not find that a reference to them is.
        let trees = [table, chunk_tree(table)];
        for tree in trees {
            self.dropped_mut().entry(tree.0).or_insert_with(|| Dropped::new(false));
            self.tables.get(tree.0).into_iter().for_each(Tree::give_up);
        }
        // They may have come into being meanwhile; what comes from now on is born so.
        self.tables.await_creation();
        trees.iter().filter_map(|tree| self.tables.get(tree.0)).for_each(Tree::give_up);
        self.sweeps.end(table);
        self.settle()
    }

    /// An image is durable that remembers this: the tables that are dropped by it may be emptied.
    pub(crate) fn remembered(&self, promise: &[u8]) {
        let Ok((_, remembered)) = user_data::decode(promise) else { return };
        let mut dropped = self.dropped_mut();
        for table in remembered {
            if let Some(dropped) = dropped.get_mut(&table) {
                dropped.is_durable = true;
            }
        }
    }

    /// Empties a few leaves of a dropped table; whether there were any.
    pub(crate) fn drop_step(&self) -> Result<bool, DcError> {
        let mut worked = false;
        for _ in 0..STEP_LEAVES {
            if !self.drop_leaf()? {
                break;
            }
            worked = true;
        }
        Ok(worked)
    }

    fn drop_leaf(&self) -> Result<bool, DcError> {
        let next = self
            .dropped()
            .iter()
            .filter(|(_, dropped)| dropped.is_durable)
            .find_map(|(&table, dropped)| Some((table, dropped.next.clone()?)));
        let Some((table, from)) = next else { return Ok(false) };
        let next = match self.tables.get(table) {
            Some(tree) => tree.clear_step(&from).map_err(|error| error::tree("dropping a table", error))?,
            None => None,
        };
        if let Some(dropped) = self.dropped_mut().get_mut(&table) {
            dropped.next = next;
        }
        Ok(true)
    }
}
