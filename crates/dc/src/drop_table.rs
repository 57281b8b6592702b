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

/// The tables that were dropped, ever.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    /// All of them, and whether each is dropped after a crash, too.
    tables: BTreeMap<u32, bool>,
    /// Those that are and have leaves left, and how far each is emptied: where the next leaf begins. Apart, as nobody should look for them among those
    /// that were dropped long ago.
    unemptied: BTreeMap<u32, Vec<u8>>,
}

impl Dropped {
    /// As an image remembers them.
    pub(crate) fn remembered(tables: &[u32]) -> Dropped {
        let mut dropped = Dropped::default();
        dropped.tables.extend(tables.iter().map(|&table| (table, false)));
        dropped.remember(tables);
        dropped
    }

    pub(crate) fn contains(&self, table: u32) -> bool {
        self.tables.contains_key(&table)
    }

    /// All of them, ascending.
    pub(crate) fn tables(&self) -> impl Iterator<Item = u32> {
        self.tables.keys().copied()
    }

    /// These are dropped after a crash, too.
    fn remember(&mut self, tables: &[u32]) {
        for &table in tables {
            if let Some(is_durable) = self.tables.get_mut(&table).filter(|is_durable| !**is_durable) {
                *is_durable = true;
                self.unemptied.insert(table, Vec::new());
            }
        }
    }
}

impl BwTreeDc {
    pub(crate) fn dropped(&self) -> RwLockReadGuard<'_, Dropped> {
        // Every critical section leaves the maps whole.
        self.dropped.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn dropped_mut(&self) -> RwLockWriteGuard<'_, Dropped> {
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
            None => self.dropped().contains(table.0),
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
            self.dropped_mut().tables.entry(tree.0).or_insert(false);
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
        self.dropped_mut().remember(&remembered);
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
        let first = self.dropped().unemptied.first_key_value().map(|(&table, from)| (table, from.clone()));
        let Some((table, from)) = first else { return Ok(false) };
        let next = match self.tables.get(table) {
            Some(tree) => tree.clear_step(&from).map_err(|error| error::tree("drop a table", error))?,
            None => None,
        };
        let mut dropped = self.dropped_mut();
        match next {
            // Unless another thread is done with it.
            Some(next) => drop(dropped.unemptied.entry(table).and_modify(|from| *from = next)),
            None => drop(dropped.unemptied.remove(&table)),
        }
        Ok(true)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::DcOptions;
    use deuteron_contract::{DataComponent, Lsn, Operation, Timestamp};
    use deuteron_device::MemoryDirectory;
    use deuteron_epoch::Epochs;
    use std::sync::Arc;

    /// All that had ever been dropped were searched for each leaf, and by each step that found nothing to do.
    #[test]
    fn a_table_that_is_emptied_is_not_looked_at_again() {
        const TABLES: u32 = 50;
        let directory = Arc::new(MemoryDirectory::new());
        let open = || BwTreeDc::open(directory.clone(), Epochs::new(), DcOptions::tiny_for_tests()).unwrap();
        let dc = open();
        let unemptied = |dc: &BwTreeDc| dc.dropped().unemptied.len();
        for table in (1..=TABLES).map(TableId) {
            let (key, lsn) = (b"key", u64::from(table.0));
            let row =
                Operation { table, key, value: Some(b"value"), timestamp: Timestamp(lsn), lsn: Lsn(lsn) };
            dc.apply(&[row]).unwrap();
            dc.drop_table(table).unwrap();
            assert_eq!(unemptied(&dc), 2, "the table and its chunks");
            while dc.drop_leaf().unwrap() {}
            assert_eq!(unemptied(&dc), 0);
        }
        drop(dc);
        let dc = open();
        let all = 2 * TABLES as usize;
        assert_eq!((dc.dropped().tables().count(), unemptied(&dc)), (all, all));
        // A leaf each, the first, which stays.
        for left in (0..all).rev() {
            assert!(dc.drop_leaf().unwrap());
            assert_eq!(unemptied(&dc), left);
        }
        assert!(!dc.drop_leaf().unwrap());
    }
}
