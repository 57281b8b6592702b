//! Operations on records as the trees keep them, with the loads that they need.

use crate::BwTreeDc;
use crate::sync::Ordering;
use deuteron_bwtree::{RecordRef, Tree, Upsert};
use deuteron_contract::{DcError, Operation, Record, TableId, Timestamp};

impl BwTreeDc {
    /// Applies operations whose values are as the trees keep them.
    pub(crate) fn apply_stored(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
        let mut bytes = 0;
        let mut sorted: Vec<_> = operations
            .iter()
            .map(|operation| {
                bytes += (operation.key.len() + operation.value.map_or(0, <[u8]>::len)) as u64;
                let upsert = Upsert {
                    key: operation.key,
                    value: operation.value,
                    stamp: operation.timestamp.0,
                    lsn: operation.lsn.0,
                };
                (operation.table, upsert)
            })
            .collect();
        let by_place = |left: &(TableId, Upsert<'_>), right: &(TableId, Upsert<'_>)| {
            // Older versions of a key first: a delete is not to be forgotten before what it deletes has come.
            let by_age = || (left.1.stamp, left.1.lsn).cmp(&(right.1.stamp, right.1.lsn));
            (left.0, left.1.key).cmp(&(right.0, right.1.key)).then_with(by_age)
        };
        if !sorted.is_sorted_by(|left, right| by_place(left, right).is_le()) {
            sorted.sort_unstable_by(by_place);
        }
        self.applied_bytes.fetch_add(bytes, Ordering::Relaxed);

        let mut upserts = Vec::with_capacity(sorted.len());
        for group in sorted.chunk_by(|left, right| left.0 == right.0) {
            let table = group[0].0;
            upserts.clear();
            upserts.extend(group.iter().map(|(_, upsert)| *upsert));
            if self.is_dropped(table) {
                // Nobody can ask for it any more. A replay may bring it.
                continue;
            }
            self.upsert_all(self.tree(table), &upserts)?;
            self.sweeps.note(table, group.len());
        }
        Ok(())
    }

    /// Applies upserts, which are sorted by key, to a tree.
    pub(crate) fn upsert_all(&self, tree: &Tree, upserts: &[Upsert<'_>]) -> Result<(), DcError> {
        let mut rest = upserts;
        let mut ahead = 0;
        while !rest.is_empty() {
            tree.fetch_ahead(rest, &mut ahead);
            let applied = tree.try_upsert(rest, &self.llama.pin());
            match applied {
                Ok(count) => {
                    rest = &rest[count..];
                    ahead = ahead.saturating_sub(count);
                }
                Err(miss) => {
                    // Room is made before the load. Behind it, the page just loaded might be what goes.
                    self.load(tree, miss, "apply")?;
                    continue;
                }
            }
            if self.llama.over_budget() {
                self.relieve(true)?;
            }
        }
        Ok(())
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
            self.load(tree, miss, "get")?;
        }
    }

    /// The newest version of `key` as the tree keeps it.
    pub(crate) fn get_stored(&self, table: TableId, key: &[u8]) -> Result<Option<Record>, DcError> {
        self.look_at(table, key, |record| Record {
            key: Vec::new(),
            value: record.value.map(<[u8]>::to_vec),
            timestamp: Timestamp(record.stamp),
        })
    }
}
