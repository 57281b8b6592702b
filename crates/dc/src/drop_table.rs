//! Dropping a table: remembered by a checkpoint, then its pages are emptied one by one and merged.
//!
//! | step | if the machine stops right after it |
//! |---|---|
//! | the table is marked: reads find nothing, what is applied to it is ignored | it is there, as if nothing had happened |
//! | a checkpoint remembers the mark, for ever, since identifiers are not used again and a replay may bring old operations | it is dropped; the rest is done after the next opening |
//! | a leaf is emptied, or an empty leaf merged (`drop_step`, and what follows from it) | the same, with less to do |
//!
//! The first leaf of the table stays, at about a hundred bytes; so does, until the next opening, the first leaf of each inner node.

use crate::stored_value::chunk_tree;
use crate::sync::{RwLockReadGuard, RwLockWriteGuard};
use crate::{BwTreeDc, error};
use deuteron_bwtree::Tree;
use deuteron_contract::{DcError, TableId};
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// Leaves that one step empties.
const STEP_LEAVES: usize = 16;

/// How far a dropped table is emptied: where the next leaf begins, or `None` when all are.
#[derive(Debug)]
pub(crate) struct Dropped {
    next: Option<Vec<u8>>,
}

impl Default for Dropped {
    fn default() -> Dropped {
        Dropped { next: Some(Vec::new()) }
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
    pub(crate) fn is_dropped(&self, table: TableId) -> bool {
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
    /// [`DcError`] if the device fails; call it again, as the table may be there after a restart.
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
        let trees = [table, chunk_tree(table)];
        for tree in trees {
            self.dropped_mut().entry(tree.0).or_default();
        }
        let give_up = || trees.iter().filter_map(|tree| self.tables.get(tree.0)).for_each(Tree::give_up);
        give_up();
        self.sweeps.end(table);
        self.settle()?;
        // It may have come into being meanwhile.
        give_up();
        Ok(())
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
        let next = self.dropped().iter().find_map(|(&table, dropped)| Some((table, dropped.next.clone()?)));
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
