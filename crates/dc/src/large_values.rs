//! Values too large for a page among others: kept in chunks, each on a page of its own.
//!
//! # Model
//!
//! A large value is cut into chunks, which are records of the table's chunk tree (keys in
//! [`stored_value`](crate::stored_value)); the record of the table holds a reference. It is written in this order, `|` being a
//! flush of everything that is dirty:
//!
//! ```text
//! header | chunks | reference
//! ```
//!
//! and removed, when nothing refers to it any more ([`sweep`](crate::sweep)), in this one:
//!
//! ```text
//! what refers to something else | no chunks | no header
//! ```
//!
//! # Invariants
//!
//! - **L1** A durable reference has durable chunks, so a crash leaves the whole value or the one before it, log or no log.
//! - **L2** Durable chunks have a durable header: what a crash leaves of a value that nothing refers to is found, and removed.
//! - **L3** Who writes a value and who removes it hold a *claim* on its number, all that one call needs at once. So a value
//!   that is posted again is not removed while it is written, nor written while it is removed.
//! - **L4** A value is removed only if its record, looked at under the claim, does not refer to it. Since the highest version wins, no
//!   reference to it can come then but by its own operation, posted again, which writes all of the value anew.
//! - **L5** What is written anew counts above all that earlier attempts have written and removed: each attempt's records have an LSN that
//!   is two above that of the header it finds, and removals one above that of the header. (The header is the first to come and the last to go. Where
//!   even its tombstone is forgotten, the operation cannot come again.)
//!
//! A reader that finds a reference and then misses a chunk has met a removal: it reads the record again, which is newer now. If it is
//! the same, the chunk is lost, and that is an error.

use crate::options::VALUE_BYTES_MAX;
use crate::stored_value::{self, CHUNK_KEY_BYTES, LargeValue, StoredValue, ValueNumber, chunk_tree};
use crate::sync::{Mutex, MutexGuard, Ordering, yield_now};
use crate::{BwTreeDc, error};
use deuteron_bwtree::{Tree, Upsert};
use deuteron_contract::{DcError, Operation, Record, ScanBatch, ScanRequest, TableId};
use deuteron_llama::CheckpointProgress;
use std::collections::BTreeSet;
use std::sync::PoisonError;

/// Chunks that are read ahead at once.
const CHUNKS_AHEAD: usize = 16;
/// So much room is made at once for what a reference says that there is.
const VALUE_BYTES_BELIEVED: u64 = 16 << 20;

/// L3: the values that somebody writes or removes.
#[derive(Default)]
pub(crate) struct Claims {
    taken: Mutex<BTreeSet<(TableId, ValueNumber)>>,
}

/// Gives its claims back when it is dropped.
pub(crate) struct Claim<'c> {
    claims: &'c Claims,
    values: Vec<(TableId, ValueNumber)>,
}

impl Claims {
    fn taken(&self) -> MutexGuard<'_, BTreeSet<(TableId, ValueNumber)>> {
        // Every critical section leaves the set whole.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims all of `values`, or none if somebody has one of them.
    pub(crate) fn try_claim(&self, values: &[(TableId, ValueNumber)]) -> Option<Claim<'_>> {
        let mut taken = self.taken();
        if values.iter().any(|value| taken.contains(value)) {
            return None;
        }
        taken.extend(values);
        Some(Claim { claims: self, values: values.to_vec() })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut taken = self.claims.taken();
        for value in &self.values {
            taken.remove(value);
        }
    }
}

/// What is written to the chunk tree for a value, or removed there (L5).
#[derive(Clone, Copy)]
struct Attempt {
    table: TableId,
    number: ValueNumber,
    lsn: u64,
}

fn number_of(operation: &Operation<'_>) -> ValueNumber {
    ValueNumber::new(operation.timestamp.0, operation.lsn.0, operation.key)
}

impl BwTreeDc {
    /// How long a value may be to be kept with its record.
    pub(crate) fn is_large(&self, value: &[u8]) -> bool {
        value.len() > self.chunk_bytes
    }

    /// Whether a value must be kept otherwise than it is.
    #[inline]
    pub(crate) fn is_special(&self, value: &[u8]) -> bool {
        self.is_large(value) || stored_value::is_marked(value)
    }

    // ---- writing --------------------------------------------------------------------------------------------

    /// [`apply`](deuteron_contract::DataComponent::apply) of operations that bring large values, or some that look like references.
    #[cold]
    pub(crate) fn apply_special(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
        let mut large: Vec<&Operation<'_>> = operations
            .iter()
            .filter(|operation| operation.value.is_some_and(|value| self.is_large(value)))
            .filter(|operation| !self.is_dropped(operation.table))
            .collect();
        large.sort_unstable_by_key(|operation| (operation.table, number_of(operation)));
        // The same operation, given twice.
        large.dedup_by_key(|operation| (operation.table, number_of(operation)));
        let numbers: Vec<_> = large.iter().map(|operation| (operation.table, number_of(operation))).collect();
        let _claim = loop {
            match self.claims.try_claim(&numbers) {
                Some(claim) => break claim,
                // Somebody brings the same operation, or is about to remove what an earlier attempt has left.
                None => yield_now(),
            }
        };
        let mut needed = Vec::new();
        for operation in large {
            if !self.is_superseded(operation)? {
                needed.push((operation.table, number_of(operation), operation));
            }
        }
        let values: Vec<_> = needed
            .iter()
            .map(|&(table, number, operation)| {
                (table, number, operation.key, operation.value.unwrap_or_default())
            })
            .collect();
        let references = self.write_values(&values)?;
        // As the record's tree is to keep them; what is superseded is left out.
        let kept: Vec<Option<Vec<u8>>> = operations
            .iter()
            .map(|operation| match operation.value {
                Some(value) if self.is_large(value) => {
                    let number = (operation.table, number_of(operation));
                    let at =
                        needed.binary_search_by_key(&number, |&(table, number, _)| (table, number)).ok()?;
                    Some(references[at].encode())
                }
                Some(value) if stored_value::is_marked(value) => Some(stored_value::escape(value)),
                _ => None,
            })
            .collect();
        let stored: Vec<Operation<'_>> = operations
            .iter()
            .zip(&kept)
            .filter(|(operation, kept)| {
                kept.is_some() || !operation.value.is_some_and(|value| self.is_special(value))
            })
            .map(|(operation, kept)| Operation { value: kept.as_deref().or(operation.value), ..*operation })
            .collect();
        self.apply_stored(&stored)
    }

    /// Whether the record has this version already, or a newer one.
    fn is_superseded(&self, operation: &Operation<'_>) -> Result<bool, DcError> {
        let found = self.look_at(operation.table, operation.key, |record| (record.stamp, record.lsn))?;
        Ok(found.is_some_and(|version| version >= (operation.timestamp.0, operation.lsn.0)))
    }

    /// Writes values (table, number, key, bytes) in chunks; when it returns they are durable (L1, L2). The caller has claimed their
    /// numbers.
    pub(crate) fn write_values(
        &self,
        values: &[(TableId, ValueNumber, &[u8], &[u8])],
    ) -> Result<Vec<LargeValue>, DcError> {
        if values.is_empty() {
            return Ok(Vec::new());
        }
        let chunk_bytes = self.chunk_bytes as u32;
        let references: Vec<LargeValue> = values
            .iter()
            .map(|&(_, number, _, bytes)| LargeValue { number, length: bytes.len() as u64, chunk_bytes })
            .collect();
        let mut attempts = Vec::with_capacity(values.len());
        for (&(table, number, key, _), reference) in values.iter().zip(&references) {
            let header_key = number.header_key();
            let before = self.look_at(chunk_tree(table), &header_key, |header| header.lsn)?;
            let attempt = Attempt { table, number, lsn: before.map_or(number.lsn, |lsn| lsn + 2) };
            self.put(attempt, &header_key, Some(&reference.header(key)))?;
            attempts.push(attempt);
        }
        self.flush_dirty()?;
        for (&(table, number, _, bytes), &attempt) in values.iter().zip(&attempts) {
            for (chunk, bytes) in (0..).zip(bytes.chunks(self.chunk_bytes)) {
                self.put(attempt, &number.chunk_key(chunk), Some(bytes))?;
            }
            self.note_large_value(table, bytes.len() as u64);
        }
        self.flush_dirty()?;
        Ok(references)
    }

    /// Gives a key of the chunk tree a value, or takes it away.
    fn put(&self, attempt: Attempt, key: &[u8], value: Option<&[u8]>) -> Result<(), DcError> {
        let Some(tree) = self.tree_to_write(chunk_tree(attempt.table)) else { return Ok(()) };
        let bytes = key.len() + value.map_or(0, <[u8]>::len);
        self.applied_bytes.change(bytes, 0);
        let upsert = Upsert { key, value, stamp: attempt.number.stamp, lsn: attempt.lsn };
        self.upsert_all(tree, &[upsert])
    }

    /// Makes durable everything that has been applied so far, without a checkpoint.
    pub(crate) fn flush_dirty(&self) -> Result<(), DcError> {
        let failed = |error| error::store("flush a large value", error);
        let mut round = self.llama.flush_round().map_err(failed)?;
        loop {
            match self.llama.flush_round_step(&mut round).map_err(failed)? {
                CheckpointProgress::Wrote { .. } => {}
                // Held by splits that other threads are about to finish.
                CheckpointProgress::Blocked { .. } => yield_now(),
                CheckpointProgress::Done => return Ok(()),
            }
        }
    }

    // ---- reading --------------------------------------------------------------------------------------------

    /// The record as it is to be returned, from what the tree keeps. `None` if it was removed meanwhile.
    #[cold]
    pub(crate) fn resolve(
        &self,
        table: TableId,
        key: &[u8],
        mut record: Record,
    ) -> Result<Option<Record>, DcError> {
        while let Some(kept) = &record.value {
            let large = match stored_value::decode(kept) {
                Some(StoredValue::Plain(value)) => {
                    record.value = Some(value.to_vec());
                    break;
                }
                Some(StoredValue::Large(large)) if large.length <= VALUE_BYTES_MAX as u64 => large,
                _ => return Err(corrupt(table, key, "a value or a reference", "other bytes".into())),
            };
            if let Some(value) = self.read_value(table, &large)? {
                record.value = Some(value);
                break;
            }
            let again = self.get_stored(table, key)?;
            match again {
                Some(again) if again.value == record.value => {
                    let expected = format!("{} chunks of the large value", large.chunks());
                    return Err(corrupt(table, key, &expected, "some are missing".into()));
                }
                Some(again) => record = Record { key: record.key, ..again },
                None => return Ok(None),
            }
        }
        Ok(Some(record))
    }

    /// The records of a scan as they are to be returned: as many as the request wants bytes, one at least.
    #[cold]
    pub(crate) fn resolve_batch(
        &self,
        request: &ScanRequest<'_>,
        batch: &mut ScanBatch,
    ) -> Result<(), DcError> {
        let stored = std::mem::take(batch);
        let (mut bytes, mut last) = (0, 0);
        for (at, record) in stored.iter().enumerate() {
            match record.value {
                Some(value) if stored_value::is_marked(value) => {
                    // Without one it has been deleted since, which is forgotten already.
                    let resolved = self.resolve(request.table, record.key, record.to_record())?;
                    let (value, timestamp) = resolved
                        .map_or((None, record.timestamp), |resolved| (resolved.value, resolved.timestamp));
                    bytes += value.as_ref().map_or(0, Vec::len);
                    batch.push(record.key, value.as_deref(), timestamp);
                }
                value => {
                    bytes += value.map_or(0, <[u8]>::len);
                    batch.push(record.key, value, record.timestamp);
                }
            }
            bytes += record.key.len();
            last = at + 1;
            if bytes >= request.bytes_max {
                break;
            }
        }
        batch.set_complete(stored.is_complete() && last == stored.len());
        Ok(())
    }

    /// Reads a large value; `None` if a chunk is missing.
    fn read_value(&self, table: TableId, large: &LargeValue) -> Result<Option<Vec<u8>>, DcError> {
        let Some(tree) = self.live_tree(chunk_tree(table)) else { return Ok(None) };
        // What a reference says is believed as far as there are chunks.
        let mut value = Vec::with_capacity(large.length.min(VALUE_BYTES_BELIEVED) as usize);
        let ahead =
            (self.options.memory_bytes as usize / 8 / large.chunk_bytes as usize).clamp(1, CHUNKS_AHEAD);
        let chunks = large.chunks();
        for first in (0..chunks).step_by(ahead) {
            let group: Vec<_> =
                (first..chunks).take(ahead).map(|chunk| large.number.chunk_key(chunk)).collect();
            let wanted: Vec<&[u8]> = group.iter().map(<[u8; CHUNK_KEY_BYTES]>::as_slice).collect();
            let missing = tree.missing_pages(&wanted, ahead);
            if missing.len() > 1 {
                self.load_ahead(tree, &missing);
            }
            for key in &group {
                let found = self.look_in(tree, key, |record| {
                    record.value.map(|bytes| value.extend_from_slice(bytes)).is_some()
                })?;
                if found != Some(true) {
                    return Ok(None);
                }
            }
        }
        Ok((value.len() as u64 == large.length).then_some(value))
    }

    // ---- removing -------------------------------------------------------------------------------------------

    /// Removes values to which nothing refers, and nothing durable will once all that is dirty is flushed; each with the LSN of its header.
    /// The caller has claimed their numbers. Those of which a part cannot be read stay, which is told at the end.
    pub(crate) fn remove_values(&self, table: TableId, values: &[(LargeValue, u64)]) -> Result<(), DcError> {
        let Some(tree) = self.live_tree(chunk_tree(table)) else { return Ok(()) };
        let removal = |large: &LargeValue, header_lsn: u64| Attempt {
            table,
            number: large.number,
            lsn: header_lsn + 1,
        };
        // What refers to something else.
        self.flush_dirty()?;
        let mut damage = Ok(());
        let mut removed = Vec::with_capacity(values.len());
        for (large, header_lsn) in values {
            match self.remove_chunks(tree, large, removal(large, *header_lsn)) {
                // The others go all the same. Its header stays, and leads here again.
                corrupt @ Err(DcError::Corrupt { .. }) => damage = damage.and(corrupt),
                done => {
                    done?;
                    removed.push((large, header_lsn));
                }
            }
        }
        self.flush_dirty()?;
        for (large, header_lsn) in removed {
            self.put(removal(large, *header_lsn), &large.number.header_key(), None)?;
            self.sweeps.removed.fetch_add(1, Ordering::Relaxed);
        }
        damage
    }

    /// Most chunks are alone on their pages, which are emptied without being read.
    fn remove_chunks(&self, tree: &Tree, large: &LargeValue, removal: Attempt) -> Result<(), DcError> {
        let (number, chunks) = (large.number, large.chunks());
        let (first, end) = (number.chunk_key(0), number.chunk_key(chunks));
        let mut chunk = 0;
        while chunk < chunks {
            if self.llama.over_budget() {
                let _ = self.relieve(false);
            }
            let key = number.chunk_key(chunk);
            let cleared = tree
                .clear_within(&key, &first, &end)
                .map_err(|error| error::tree("remove a large value", error))?;
            let is_beyond = |next: &[u8], chunk: u32| number.chunk_key(chunk).as_slice() >= next;
            // The chunks up to where the page ends.
            let next = match &cleared.next {
                Some(next) => (chunk..chunks).find(|&chunk| is_beyond(next, chunk)).unwrap_or(chunks),
                None => chunks,
            };
            if !cleared.done {
                for chunk in chunk..next {
                    self.put(removal, &number.chunk_key(chunk), None)?;
                }
                // Else what was removed would stay on disk until somebody writes or reads the page.
                self.look_in(tree, &key, |_| ())?;
                tree.consolidate(&key, &self.llama.pin());
            }
            chunk = next;
        }
        Ok(())
    }
}

fn corrupt(table: TableId, key: &[u8], expected: &str, found: String) -> DcError {
    DcError::Corrupt {
        file: format!("table {table}, key \"{}\"", key.escape_ascii()),
        offset: 0,
        expected: expected.to_owned(),
        found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DcOptions;
    use deuteron_contract::{DataComponent, Lsn, Timestamp};
    use deuteron_device::MemoryDirectory;
    use deuteron_epoch::Epochs;
    use std::sync::Arc;

    #[test]
    fn no_room_is_made_for_chunks_that_a_reference_only_tells_of() {
        let open =
            || BwTreeDc::open(Arc::new(MemoryDirectory::new()), Epochs::new(), DcOptions::tiny_for_tests());
        let (dc, table) = (open().unwrap(), TableId(1));
        let number = ValueNumber::new(1, 1, b"key");
        let large = LargeValue { number, length: VALUE_BYTES_MAX as u64, chunk_bytes: 1 }.encode();
        let put = |table, key: &[u8], value: &[u8]| {
            let (timestamp, lsn) = (Timestamp(1), Lsn(1));
            dc.apply_stored(&[Operation { table, key, value: Some(value), timestamp, lsn }]).unwrap();
        };
        put(table, b"key", &large);
        (0..3).for_each(|chunk| put(chunk_tree(table), &number.chunk_key(chunk), b"1"));
        deuteron_fuzz::Meter::begin();
        let read = dc.get(table, b"key");
        assert!(matches!(read, Err(DcError::Corrupt { .. })), "{read:?}");
        assert!(deuteron_fuzz::Meter::peak() < 64 << 20);
    }

    #[test]
    fn claims_are_taken_together_and_given_back() {
        let claims = Claims::default();
        let value = |lsn| (TableId(1), ValueNumber::new(1, lsn, b"key"));
        let first = claims.try_claim(&[value(1), value(2)]).expect("free");
        assert!(claims.try_claim(&[value(3), value(2)]).is_none());
        let second = claims.try_claim(&[value(3), value(4)]).expect("the failed attempt has taken nothing");
        drop(first);
        assert!(claims.try_claim(&[value(2)]).is_some());
        assert!(claims.try_claim(&[value(4)]).is_none());
        drop(second);
        assert!(claims.try_claim(&[value(4)]).is_some());
    }
}
