//! Operations on records as the trees keep them, with the loads that they need.

use crate::dc::assert_stable;
use crate::stored_value;
use crate::{BwTreeDc, error};
use deuteron_bwtree::{Miss, RecordRef, Tree, Upsert, compare_keys};
use deuteron_contract::{DataComponent, DcError, Lsn, Operation, Record, TableId, Timestamp};
use deuteron_epoch::Guard;
use std::cmp::Ordering;

/// The operation as its tree takes it.
fn upsert_of<'a>(operation: &Operation<'a>) -> Upsert<'a> {
    Upsert { key: operation.key, value: operation.value, stamp: operation.timestamp.0, lsn: operation.lsn.0 }
}

/// The record as it is told, without its key, with its value as the tree keeps it.
fn record_of(record: RecordRef<'_>) -> Record {
    Record { key: Vec::new(), value: record.value.map(<[u8]>::to_vec), timestamp: Timestamp(record.stamp) }
}

/// By table and key; older versions of a key first: a delete is not to be forgotten before what it deletes has come.
fn by_place(left: &Operation<'_>, right: &Operation<'_>) -> Ordering {
    let by_age = || (left.timestamp, left.lsn).cmp(&(right.timestamp, right.lsn));
    left.table.cmp(&right.table).then_with(|| compare_keys(left.key, right.key)).then_with(by_age)
}

impl BwTreeDc {
    /// Applies operations whose values are as the trees keep them.
    pub(crate) fn apply_stored(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
        let bytes =
            operations.iter().map(|operation| operation.key.len() + operation.value.map_or(0, <[u8]>::len));
        self.applied_bytes.change(bytes.sum(), 0);
        // One write, without an allocation.
        if let [operation] = operations {
            return self.upsert_live(operation.table, &[upsert_of(operation)]);
        }
        if operations.is_sorted_by(|left, right| by_place(left, right).is_le()) {
            return self.apply_sorted(operations);
        }
        let mut sorted = operations.to_vec();
        sorted.sort_unstable_by(by_place);
        self.apply_sorted(&sorted)
    }

    /// Applies operations that are in order, table by table.
    fn apply_sorted(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
        let mut upserts = Vec::with_capacity(operations.len());
        for group in operations.chunk_by(|left, right| left.table == right.table) {
            upserts.clear();
            upserts.extend(group.iter().map(upsert_of));
            self.upsert_live(group[0].table, &upserts)?;
        }
        Ok(())
    }

    /// Applies upserts, which are sorted by key, to a table, unless it was dropped.
    fn upsert_live(&self, table: TableId, upserts: &[Upsert<'_>]) -> Result<(), DcError> {
        let Some(tree) = self.tree_to_write(table) else { return Ok(()) };
        self.upsert_all(tree, upserts)?;
        self.sweeps.note(table, upserts.len());
        Ok(())
    }

    /// Applies upserts, which are sorted by key, to a tree.
    pub(crate) fn upsert_all(&self, tree: &Tree, upserts: &[Upsert<'_>]) -> Result<(), DcError> {
        let mut rest = upserts;
        if rest.is_empty() {
            return Ok(());
        }
        self.change_until_done(tree, |guard| {
            rest = &rest[tree.try_upsert(rest, guard)?..];
            Ok(rest.is_empty())
        })
    }

    /// Takes one step of a change after the other, each under a guard of its own, until one says that it was the last; loads what a step misses, and helps with the memory that they take.
    #[inline]
    fn change_until_done(
        &self,
        tree: &Tree,
        mut step: impl FnMut(&Guard<'_>) -> Result<bool, Miss>,
    ) -> Result<(), DcError> {
        if self.is_stuck() {
            // Refused before it is applied, unless there is room by now: else each attempt would take more memory.
            self.relieve(true)?;
        }
        let mut unread = None;
        // Whether a step has been done for the memory that this takes.
        let mut has_helped = false;
        loop {
            let stepped = step(&self.llama.pin());
            let is_done = match stepped {
                Ok(is_done) => is_done,
                Err(miss) => {
                    // Room is made before the load. Behind it, the page just loaded might be what goes.
                    self.make_room_for_reads();
                    tree.load_or_go_on(miss, &mut unread)
                        .map_err(|error| error::tree("apply operations", error))?;
                    continue;
                }
            };
            if self.llama.over_budget() && (!has_helped || self.is_far_over_budget()) {
                self.relieve(true)?;
                has_helped = true;
            }
            if is_done {
                return Ok(());
            }
        }
    }

    /// One write of a store without a log: `value` to `key`, or `None` to delete it. Its number, which is its timestamp and its LSN, is asked for as late as can be: `number` is told an upper
    /// bound of the numbers of what lies beside the key, or `None` if that is not known, gives a higher one, and may be asked again ([`Tree::try_write`]). Whether it has given one:
    /// otherwise nothing is written.
    ///
    /// # Errors
    /// As [`DataComponent::apply`].
    ///
    /// ```
    /// # use deuteron_contract::{DataComponent, TableId, Timestamp};
    /// # use deuteron_dc::{BwTreeDc, DcOptions};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// let after = |above: Option<Timestamp>| Some(Timestamp(above?.0 + 1));
    /// assert!(dc.write(TableId(1), b"one", Some(b"1"), after)?);
    /// assert!(dc.write(TableId(1), b"one", Some(b"2"), after)?);
    /// let found = dc.get(TableId(1), b"one")?.ok_or("it is there")?;
    /// assert_eq!((found.timestamp, found.value), (Timestamp(2), Some(b"2".to_vec())));
    /// assert!(!dc.write(TableId(1), b"one", None, |_| None)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn write(
        &self,
        table: TableId,
        key: &[u8],
        value: Option<&[u8]>,
        mut number: impl FnMut(Option<Timestamp>) -> Option<Timestamp>,
    ) -> Result<bool, DcError> {
        if self.check_write(table, key, value)? {
            let Some(timestamp) = number(None) else { return Ok(false) };
            let operation = Operation { table, key, value, timestamp, lsn: Lsn(timestamp.0) };
            return self.apply(&[operation]).map(|()| true);
        }
        let Some(tree) = self.tree_to_write(table) else { return Ok(true) };
        let mut is_numbered = false;
        self.change_until_done(tree, |guard| {
            let stamp = |above: Option<u64>| {
                let number = number(above.map(Timestamp))?;
                assert_stable(Lsn(number.0), self.end_of_log());
                self.note_newest(number);
                Some(number.0)
            };
            is_numbered = tree.try_write(key, value, stamp, guard)?;
            Ok(true)
        })?;
        if is_numbered {
            self.applied_bytes.change(key.len() + value.map_or(0, <[u8]>::len), 0);
            self.sweeps.note(table, 1);
        }
        Ok(is_numbered)
    }

    /// Gives the newest version of `key` to `read`, as the tree of `table` keeps it, if there is one.
    pub(crate) fn look_at<T>(
        &self,
        table: TableId,
        key: &[u8],
        read: impl FnMut(RecordRef<'_>) -> T,
    ) -> Result<Option<T>, DcError> {
        match self.live_tree(table) {
            Some(tree) => self.look_in(tree, key, read),
            None => Ok(None),
        }
    }

    /// The same of a tree.
    pub(crate) fn look_in<T>(
        &self,
        tree: &Tree,
        key: &[u8],
        mut read: impl FnMut(RecordRef<'_>) -> T,
    ) -> Result<Option<T>, DcError> {
        loop {
            let miss = match tree.try_get(key, &self.llama.pin()) {
                Ok(found) => return Ok(found.map(&mut read)),
                Err(miss) => miss,
            };
            if let Some(found) = tree.get_unloaded(&miss, key, |found| found.map(&mut read)) {
                return Ok(found);
            }
            self.llama.load_neighbours(miss.0);
            self.load(tree, miss, "get")?;
        }
    }

    /// As [`DataComponent::get`](deuteron_contract::DataComponent::get), with the value put into the caller's buffer, whose
    /// former contents go; it is empty if there is no value. The version's timestamp, and whether it is a value rather than a
    /// delete. No allocation, unless the buffer is too small or the value large.
    ///
    /// # Errors
    /// [`DcError`] if the device fails or a page is corrupt.
    ///
    /// ```
    /// # use deuteron_contract::{DataComponent, Lsn, Operation, TableId, Timestamp};
    /// # use deuteron_dc::{BwTreeDc, DcOptions};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// # let (table, timestamp, lsn) = (TableId(1), Timestamp(7), Lsn(7));
    /// dc.apply(&[Operation { table, key: b"one", value: Some(b"1"), timestamp, lsn }])?;
    /// let mut value = Vec::new();
    /// assert_eq!(dc.get_into(table, b"one", &mut value)?, Some((timestamp, true)));
    /// assert_eq!(value, b"1");
    /// assert_eq!(dc.get_into(table, b"two", &mut value)?, None);
    /// assert!(value.is_empty());
    /// # Ok::<(), deuteron_contract::DcError>(())
    /// ```
    pub fn get_into(
        &self,
        table: TableId,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<(Timestamp, bool)>, DcError> {
        value.clear();
        let found = self.look_at(table, key, |record| {
            value.extend_from_slice(record.value.unwrap_or(&[]));
            (Timestamp(record.stamp), record.value.is_some())
        })?;
        if !stored_value::is_marked(value) {
            return Ok(found);
        }
        value.clear();
        let Some(record) = self.get(table, key)? else { return Ok(None) };
        let is_value = record.value.is_some();
        *value = record.value.unwrap_or_default();
        Ok(Some((record.timestamp, is_value)))
    }

    /// As [`DataComponent::get`](deuteron_contract::DataComponent::get) of each of `keys`, which are few, read together; but their values are
    /// [as the tree keeps them](stored_value).
    pub(crate) fn get_together(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Record>>, DcError> {
        let mut found = vec![None; keys.len()];
        let Some(tree) = self.live_tree(table) else { return Ok(found) };
        self.make_room_for_reads();
        let left = tree.get_each(keys, &mut |place, record| found[place] = record.map(record_of));
        for place in left {
            found[place] = self.look_in(tree, keys[place], record_of)?;
        }
        Ok(found)
    }

    /// What the tree keeps of `key`, with its value if that is a large one.
    pub(crate) fn resolved(
        &self,
        table: TableId,
        key: &[u8],
        stored: Option<Record>,
    ) -> Result<Option<Record>, DcError> {
        match stored {
            Some(record) if record.value.as_deref().is_some_and(stored_value::is_marked) => {
                self.resolve(table, key, record)
            }
            stored => Ok(stored),
        }
    }

    /// The newest version of `key` as the tree keeps it.
    pub(crate) fn get_stored(&self, table: TableId, key: &[u8]) -> Result<Option<Record>, DcError> {
        self.look_at(table, key, record_of)
    }
}
