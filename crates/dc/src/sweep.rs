//! Large values that nothing refers to any more: found by their headers, and removed.
//!
//! A table's record is overwritten and deleted blindly, so nobody knows at that moment whether a large value goes with it. Instead
//! the headers are gone through in *sweeps*, each looked up in the table. A sweep is due when so much has been written
//! to the table since the last one that it pays: as many operations as it has large values, or half as many bytes of large
//! values as it has. So a write causes about two lookups, and the garbage stays below half of what is live; and after an
//! opening, which may find what a crash has left. A table without a tree is swept, too: of one whose load was given up all values go.

use crate::BwTreeDc;
use crate::large_values::Claim;
use crate::stored_value::{self, LargeValue, StoredValue, ValueNumber, chunk_tree, is_table};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};
use deuteron_bwtree::{Cursor, RecordRef};
use deuteron_contract::{DcError, TableId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::PoisonError;

/// About how many bytes of headers a step goes through.
const STEP_BYTES: usize = 4 << 10;
/// Headers are the keys from here to there.
const HEADERS: (&[u8], &[u8]) = (b"h", b"i");

/// The sweeps of all tables with large values.
#[derive(Default)]
pub(crate) struct Sweeps {
    /// Whether there is any such table.
    any: AtomicBool,
    tables: Mutex<BTreeMap<TableId, Sweep>>,
    /// Tables that somebody is loading.
    loads: Mutex<BTreeSet<TableId>>,
    /// The table that was swept last.
    last: AtomicU32,
    pub(crate) written: AtomicU64,
    pub(crate) removed: AtomicU64,
}

/// How far the sweep of a table is, and what has happened since it began.
#[derive(Clone, Debug, Default)]
struct Sweep {
    /// The last header that the present one has looked at; `None` between sweeps.
    at: Option<Vec<u8>>,
    /// What the last one has found.
    live: Amount,
    /// What the present one has found so far.
    found: Amount,
    operations: u64,
    bytes: u64,
    due: bool,
    /// The table is being loaded: it has no records yet, and what they will refer to.
    is_loading: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    values: u64,
    bytes: u64,
}

impl Sweep {
    fn is_due(&self) -> bool {
        let is_begun = self.at.is_some() || self.due;
        let has_many = self.operations > 0 && self.operations >= self.live.values;
        let has_much = self.bytes > 0 && self.bytes >= self.live.bytes / 2;
        (is_begun || has_many || has_much) && !self.is_loading
    }
}

impl Sweeps {
    fn tables(&self) -> MutexGuard<'_, BTreeMap<TableId, Sweep>> {
        // Every critical section leaves the map whole.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A table has large values.
    pub(crate) fn begin(&self, table: TableId) {
        self.tables().entry(table).or_default().due = true;
        self.any.store(true, Ordering::Release);
    }

    fn loads(&self) -> MutexGuard<'_, BTreeSet<TableId>> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A load of a table begins; `false` if another has, and not ended.
    pub(crate) fn claim_load(&self, table: TableId) -> bool {
        self.loads().insert(table)
    }

    /// A load of a table has large values.
    pub(crate) fn begin_load(&self, table: TableId) {
        self.tables().entry(table).or_default().is_loading = true;
    }

    /// A load has ended, and the records are there or will never be.
    pub(crate) fn end_load(&self, table: TableId) {
        self.loads().remove(&table);
        if let Some(sweep) = self.tables().get_mut(&table).filter(|sweep| sweep.is_loading) {
            (sweep.is_loading, sweep.due) = (false, true);
            self.any.store(true, Ordering::Release);
        }
    }

    /// A table was dropped.
    pub(crate) fn end(&self, table: TableId) {
        self.tables().remove(&table);
    }

    /// So many operations have been applied to a table.
    #[inline]
    pub(crate) fn note(&self, table: TableId, operations: usize) {
        if self.any.load(Ordering::Acquire)
            && let Some(sweep) = self.tables().get_mut(&table)
        {
            sweep.operations += operations as u64;
        }
    }
}

/// A header as the chunk tree keeps it.
struct Header {
    number: ValueNumber,
    lsn: u64,
    value: Vec<u8>,
}

impl BwTreeDc {
    /// A large value of so many bytes has been written.
    pub(crate) fn note_large_value(&self, table: TableId, bytes: u64) {
        self.sweeps.written.fetch_add(1, Ordering::Relaxed);
        self.sweeps.tables().entry(table).or_default().bytes += bytes;
        self.sweeps.any.store(true, Ordering::Release);
    }

    /// Finds the tables with large values, at opening.
    pub(crate) fn recover_sweeps(&self) {
        let trees = self.directory().all().into_iter().filter(|tree| !tree.is_given_up());
        for tree in trees.filter(|tree| !is_table(tree.id())) {
            self.sweeps.begin(TableId(tree.id() & (stored_value::TABLES_END - 1)));
        }
    }

    /// Goes through some headers of a table whose sweep is due. Whether there was one.
    pub(crate) fn sweep_step(&self) -> Result<bool, DcError> {
        if !self.sweeps.any.load(Ordering::Acquire) {
            return Ok(false);
        }
        let due = {
            let tables = self.sweeps.tables();
            // In turns: one of them may always be due, because of damage.
            let last = TableId(self.sweeps.last.load(Ordering::Relaxed));
            let behind = tables.range((Bound::Excluded(last), Bound::Unbounded));
            let mut in_turn = behind.chain(tables.range(..=last));
            in_turn.find(|(_, sweep)| sweep.is_due()).map(|(&table, _)| table)
        };
        match due {
            Some(table) => {
                self.sweeps.last.store(table.0, Ordering::Relaxed);
                self.sweep_some(table).map(|()| true)
            }
            None => Ok(false),
        }
    }

    /// Removes all large values to which nothing refers now. Damage in one table does not keep it from the others.
    pub(crate) fn sweep_all(&self) -> Result<(), DcError> {
        let tables: Vec<TableId> = self.sweeps.tables().keys().copied().collect();
        let mut damage = Ok(());
        for table in tables {
            match self.sweep_table(table) {
                corrupt @ Err(DcError::Corrupt { .. }) => damage = damage.and(corrupt),
                swept => swept?,
            }
        }
        damage
    }

    fn sweep_table(&self, table: TableId) -> Result<(), DcError> {
        // Once round, whatever is written meanwhile.
        match self.sweeps.tables().get_mut(&table).filter(|sweep| !sweep.is_loading) {
            Some(sweep) => sweep.at = None,
            None => return Ok(()),
        }
        let mut damage = Ok(());
        loop {
            match self.sweep_some(table) {
                corrupt @ Err(DcError::Corrupt { .. }) => damage = damage.and(corrupt),
                swept => swept?,
            }
            if self.sweeps.tables().get(&table).is_none_or(|sweep| sweep.at.is_none()) {
                return damage;
            }
        }
    }

    fn sweep_some(&self, table: TableId) -> Result<(), DcError> {
        let after = {
            let mut tables = self.sweeps.tables();
            let Some(sweep) = tables.get_mut(&table).filter(|sweep| !sweep.is_loading) else { return Ok(()) };
            if sweep.at.is_none() {
                // It begins: what is written from now on is the next one's.
                *sweep = Sweep { live: sweep.live, at: Some(Vec::new()), ..Sweep::default() };
            }
            sweep.at.clone().unwrap_or_default()
        };
        let headers = match self.headers_after(table, &after) {
            Err(damage @ DcError::Corrupt { .. }) => {
                // The headers behind it wait until it can be read. Other tables do not.
                if let Some(sweep) = self.sweeps.tables().get_mut(&table) {
                    *sweep = Sweep { live: sweep.live, ..Sweep::default() };
                }
                return Err(damage);
            }
            headers => headers?,
        };
        let mut found = Amount::default();
        let mut damage = Ok(());
        let mut dead: Vec<((LargeValue, u64), Claim<'_>)> = Vec::new();
        for Header { number, lsn, value } in &headers {
            let Some((large, key)) = LargeValue::of_header(*number, value) else { continue };
            // Who has it claimed is about to write it.
            let claim = self.claims.try_claim(&[(table, *number)]);
            let is_referred_to = match claim.is_some().then(|| self.is_referred_to(table, key, &large)) {
                // Of what cannot be read nobody knows what it refers to.
                Some(Err(corrupt @ DcError::Corrupt { .. })) => {
                    damage = damage.and(Err(corrupt));
                    true
                }
                Some(referred) => referred?,
                None => true,
            };
            match claim {
                Some(claim) if !is_referred_to => dead.push(((large, *lsn), claim)),
                _ => {
                    found.values += 1;
                    found.bytes += large.length;
                }
            }
        }
        if !dead.is_empty() {
            let values: Vec<_> = dead.iter().map(|(value, _)| *value).collect();
            match self.remove_values(table, &values) {
                corrupt @ Err(DcError::Corrupt { .. }) => damage = damage.and(corrupt),
                removed => removed?,
            }
        }
        drop(dead);
        let mut tables = self.sweeps.tables();
        if let Some(sweep) = tables.get_mut(&table) {
            sweep.found.values += found.values;
            sweep.found.bytes += found.bytes;
            sweep.at = headers.last().map(|header| header.number.header_key().to_vec());
            if sweep.at.is_none() {
                sweep.live = std::mem::take(&mut sweep.found);
            }
        }
        damage
    }

    /// Some headers behind the key `after`; none at the end.
    fn headers_after(&self, table: TableId, after: &[u8]) -> Result<Vec<Header>, DcError> {
        let Some(tree) = self.live_tree(chunk_tree(table)) else { return Ok(Vec::new()) };
        let mut headers = Vec::new();
        let mut after = if after.is_empty() { HEADERS.0.to_vec() } else { after.to_vec() };
        loop {
            let (lower, upper) = (Bound::Excluded(after.as_slice()), Bound::Excluded(HEADERS.1));
            let mut cursor = Cursor::new(lower, upper, false, STEP_BYTES);
            let mut last = None;
            while !cursor.is_done() {
                let mut note = |record: &RecordRef<'_>| {
                    let mut key = Vec::new();
                    record.append_key_to(&mut key);
                    if let (Some(number), Some(value)) = (ValueNumber::of_header(&key), record.value) {
                        headers.push(Header { number, lsn: record.lsn, value: value.to_vec() });
                    }
                    last = Some(key);
                };
                let scanned = tree.try_scan_leaves(&mut cursor, &self.llama.pin(), |stretch| {
                    stretch.visit(&mut note);
                });
                if let Err(miss) = scanned {
                    self.load(tree, miss, "sweep")?;
                }
            }
            let complete = cursor.is_complete();
            match last {
                // Tombstones alone are no end.
                Some(last) if headers.is_empty() && !complete => after = last,
                _ => return Ok(headers),
            }
        }
    }

    /// L4: whether the record `key` holds a reference to this value.
    fn is_referred_to(&self, table: TableId, key: &[u8], large: &LargeValue) -> Result<bool, DcError> {
        // If the table was dropped, in what it holds still: it may be there again.
        let Some(tree) = self.tree_of(table.0) else { return Ok(false) };
        let found = self.look_in(tree, key, |record| {
            let kept = record.value.and_then(stored_value::decode);
            matches!(kept, Some(StoredValue::Large(other)) if other.number == large.number)
        })?;
        Ok(found == Some(true))
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

    /// A sweep may have begun before the table was marked, and the machine may stop before the mark is durable.
    #[test]
    fn large_values_of_a_table_that_is_being_dropped_stay_until_the_drop_is_durable() {
        let directory = Arc::new(MemoryDirectory::new());
        let open = || BwTreeDc::open(directory.clone(), Epochs::new(), DcOptions::tiny_for_tests()).unwrap();
        let (dc, table, value) = (open(), TableId(1), [7; 20_000]);
        let (timestamp, lsn) = (Timestamp(1), Lsn(1));
        dc.apply(&[Operation { table, key: b"key", value: Some(&value), timestamp, lsn }]).unwrap();
        dc.redo_scan_start_point(Lsn(2)).unwrap();
        // What a drop does first.
        dc.tree_of(table.0).unwrap().give_up();
        dc.sweep_table(table).unwrap();
        dc.flush_dirty().unwrap();
        assert_eq!(dc.sweeps.removed.load(Ordering::Relaxed), 0);
        drop(dc);
        let found = open().get(table, b"key").unwrap().and_then(|record| record.value);
        assert!(found.as_deref() == Some(&value[..]));
    }
}
