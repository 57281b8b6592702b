//! [`MemoryDc`]: the data component that is an ordered map.
//!
//! It is the reference of the contract: small enough to be seen to be right, and the stand-in for a real
//! component in the tests of the transaction component and of the proxy. It models durability without a disk:
//! applied operations are *volatile* until [`DataComponent::redo_scan_start_point`] has passed them, and
//! [`MemoryDc::crash`] returns the component that a restart would find.
//!
//! Invariants:
//!
//! - **M1** `current` is the merge (by C2) of `durable` and of every operation in `volatile`.
//! - **M2** `volatile` holds exactly the applied operations that no redo scan start point has passed.
//! - **M3** A tombstone leaves the maps only when C3 permits it: its LSN, and the end of stable log at its first
//!   arrival, are both at or below the redo scan start point.

use crate::{
    DataComponent, DcError, DcStatistics, Direction, Lsn, Operation, Record, ScanBatch, ScanRequest, TableId,
    Timestamp,
};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The longest key that a [`MemoryDc`] takes unless told otherwise, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// The longest value that a [`MemoryDc`] takes unless told otherwise, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// A version of one key, with what C2 and C3 compare.
#[derive(Clone, Debug)]
struct Version {
    value: Option<Vec<u8>>,
    timestamp: Timestamp,
    lsn: Lsn,
    /// The end of stable log when the version first arrived: its commit record lies below.
    settled: Lsn,
}

type Tables = BTreeMap<TableId, BTreeMap<Vec<u8>, Version>>;

/// An applied operation that is not durable yet.
struct Volatile {
    table: TableId,
    key: Vec<u8>,
    version: Version,
}

#[derive(Default)]
struct State {
    current: Tables,
    durable: Tables,
    volatile: Vec<Volatile>,
    end_of_stable_log: Lsn,
    redo_scan_start_point: Lsn,
}

/// A data component in memory, with modelled durability.
///
/// ```
/// use deuteron_contract::{DataComponent, Lsn, MemoryDc, Operation, TableId, Timestamp};
/// # fn main() -> Result<(), deuteron_contract::DcError> {
/// let dc = MemoryDc::new();
/// let operation = Operation {
///     table: TableId(1), key: b"k", value: Some(b"v"), timestamp: Timestamp(7), lsn: Lsn(64),
/// };
/// dc.end_of_stable_log(Lsn(4096));
/// dc.apply(&[operation])?;
/// assert_eq!(dc.get(TableId(1), b"k")?.unwrap().timestamp, Timestamp(7));
///
/// // Nothing has made the operation durable yet; the log still holds it.
/// assert!(dc.crash(|_| false).get(TableId(1), b"k")?.is_none());
/// dc.redo_scan_start_point(Lsn(4096))?;
/// assert!(dc.crash(|_| false).get(TableId(1), b"k")?.is_some());
/// # Ok(()) }
/// ```
pub struct MemoryDc {
    state: RwLock<State>,
    key_bytes_max: usize,
    value_bytes_max: usize,
}

impl Default for MemoryDc {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryDc {
    /// An empty component with the default limits.
    pub fn new() -> Self {
        Self::with_limits(KEY_BYTES_MAX, VALUE_BYTES_MAX)
    }

    /// An empty component that takes keys and values of at most so many bytes.
    pub fn with_limits(key_bytes_max: usize, value_bytes_max: usize) -> Self {
        MemoryDc { state: RwLock::default(), key_bytes_max, value_bytes_max }
    }

    /// What a restart would find if the machine stopped now: everything below the last completed redo scan
    /// start point, and of the rest those operations below the end of stable log for which `survives` says so
    /// (a real component writes pages whenever it likes).
    ///
    /// The component itself is left as it is, so that a test can crash at many points of one run.
    pub fn crash(&self, mut survives: impl FnMut(&Operation<'_>) -> bool) -> MemoryDc {
        let state = self.read();
        let mut durable = state.durable.clone();
        for Volatile { table, key, version } in &state.volatile {
            let operation = Operation {
                table: *table,
                key,
                value: version.value.as_deref(),
                timestamp: version.timestamp,
                lsn: version.lsn,
            };
            if version.lsn < state.end_of_stable_log && survives(&operation) {
                merge(&mut durable, *table, key, version);
            }
        }
        let recovered = State {
            current: durable.clone(),
            durable,
            volatile: Vec::new(),
            // What is durable lies below it (C5).
            end_of_stable_log: state.end_of_stable_log,
            redo_scan_start_point: state.redo_scan_start_point,
        };
        MemoryDc { state: RwLock::new(recovered), ..*self }
    }

    /// Every record that the component knows, in order of table and key, tombstones included.
    pub fn contents(&self) -> Vec<(TableId, Record)> {
        let state = self.read();
        let rows = state.current.iter().flat_map(|(table, rows)| rows.iter().map(move |row| (*table, row)));
        rows.map(|(table, (key, version))| (table, version.record(key.clone()))).collect()
    }

    fn check_sizes(&self, operation: &Operation<'_>) -> Result<(), DcError> {
        let key_bytes = operation.key.len();
        if key_bytes == 0 || key_bytes > self.key_bytes_max {
            return Err(DcError::KeySize { found: key_bytes, limit: self.key_bytes_max });
        }
        match operation.value {
            Some(value) if value.len() > self.value_bytes_max => {
                Err(DcError::ValueSize { found: value.len(), limit: self.value_bytes_max })
            }
            _ => Ok(()),
        }
    }

    // A panic under the lock can only be an allocation failure, after which the map is still an ordered map.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DataComponent for MemoryDc {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Record>, DcError> {
        let state = self.read();
        let version = state.current.get(&table).and_then(|rows| rows.get(key));
        Ok(version.map(|version| version.record(Vec::new())))
    }

    fn scan_into(&self, request: &ScanRequest<'_>, batch: &mut ScanBatch) -> Result<(), DcError> {
        batch.clear();
        let state = self.read();
        let rows = state.current.get(&request.table).filter(|_| !request.is_crossed());
        let Some(rows) = rows else {
            batch.set_complete(true);
            return Ok(());
        };
        let range = rows.range::<[u8], _>((request.lower, request.upper));
        match request.direction {
            Direction::Forward => fill(batch, range, request),
            Direction::Reverse => fill(batch, range.rev(), request),
        }
        Ok(())
    }

    fn apply(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
        operations.iter().try_for_each(|operation| self.check_sizes(operation))?;
        let mut state = self.write();
        for operation in operations {
            let version = Version {
                value: operation.value.map(<[u8]>::to_vec),
                timestamp: operation.timestamp,
                lsn: operation.lsn,
                settled: state.end_of_stable_log.max(Lsn(operation.lsn.0 + 1)),
            };
            merge(&mut state.current, operation.table, operation.key, &version);
            state.volatile.push(Volatile { table: operation.table, key: operation.key.to_vec(), version });
        }
        Ok(())
    }

    fn end_of_stable_log(&self, lsn: Lsn) {
        let mut state = self.write();
        state.end_of_stable_log = state.end_of_stable_log.max(lsn);
    }

    fn redo_scan_start_point(&self, lsn: Lsn) -> Result<(), DcError> {
        let mut state = self.write();
        let state = &mut *state;
        if lsn <= state.redo_scan_start_point {
            return Ok(());
        }
        state.redo_scan_start_point = lsn;
        let durable = &mut state.durable;
        state.volatile.retain(|Volatile { table, key, version }| {
            let stays = version.lsn >= lsn;
            if !stays {
                merge(durable, *table, key, version);
            }
            stays
        });
        for rows in state.durable.values_mut().chain(state.current.values_mut()) {
            rows.retain(|_, version| version.value.is_some() || version.lsn >= lsn || version.settled > lsn);
        }
        Ok(())
    }

    fn recovered_redo_scan_start_point(&self) -> Lsn {
        self.read().redo_scan_start_point
    }

    fn recovered_end_of_stable_log(&self) -> Lsn {
        self.read().end_of_stable_log
    }

    fn recovered_newest_timestamp(&self) -> Timestamp {
        let state = self.read();
        let versions = state.durable.values().flat_map(BTreeMap::values);
        versions.map(|version| version.timestamp).max().unwrap_or(Timestamp(0))
    }

    fn statistics(&self) -> DcStatistics {
        let state = self.read();
        let rows = state.current.values().flatten();
        let bytes = rows.map(|(key, version)| key.len() + version.value.as_ref().map_or(0, Vec::len));
        DcStatistics {
            memory_bytes: bytes.sum::<usize>() as u64,
            counters: vec![
                ("records", state.current.values().map(BTreeMap::len).sum::<usize>() as u64),
                ("volatile_operations", state.volatile.len() as u64),
            ],
            ..DcStatistics::default()
        }
    }
}

impl Version {
    fn record(&self, key: Vec<u8>) -> Record {
        Record { key, value: self.value.clone(), timestamp: self.timestamp }
    }
}

/// C2. An operation that arrives again leaves the version that is there, with its earlier `settled`.
fn merge(tables: &mut Tables, table: TableId, key: &[u8], version: &Version) {
    let rows = tables.entry(table).or_default();
    match rows.get_mut(key) {
        Some(old) if (old.timestamp, old.lsn) >= (version.timestamp, version.lsn) => {}
        Some(old) => *old = version.clone(),
        None => drop(rows.insert(key.to_vec(), version.clone())),
    }
}

fn fill<'a>(
    batch: &mut ScanBatch,
    rows: impl Iterator<Item = (&'a Vec<u8>, &'a Version)>,
    request: &ScanRequest<'_>,
) {
    let (mut bytes, mut there) = (0, 0);
    for (key, version) in rows {
        if !batch.is_empty() && (bytes >= request.bytes_max || there >= request.records_max) {
            return;
        }
        bytes += key.len() + version.value.as_ref().map_or(0, Vec::len);
        there += usize::from(version.value.is_some());
        batch.push(key, version.value.as_deref(), version.timestamp);
    }
    batch.set_complete(true);
}
