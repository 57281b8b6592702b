//! What the tests of the component share: opening, rows, scans as lists, counters.

#![allow(dead_code, reason = "each test uses a part")]

pub mod clock;

use deuteron_contract::{
    DataComponent, DcError, Direction, Lsn, Operation, Record, RecordView, ScanRequest, TableId, Timestamp,
};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::{Directory, MemoryDirectory, OsDirectory, SimulatedDisk};
use deuteron_epoch::Epochs;
use std::ops::Bound;
use std::sync::Arc;

pub fn open(directory: Arc<dyn Directory>, options: DcOptions) -> Result<Arc<BwTreeDc>, DcError> {
    BwTreeDc::open(directory, Epochs::with_threshold(16 << 10), options)
}

/// Does `test` with an empty directory of each kind: in memory, on the simulated disk, and of real files, with io_uring where the system has
/// it, and without.
pub fn on_all_directories(test: impl Fn(Arc<dyn Directory>)) {
    let scratch = tempfile::tempdir().expect("a directory");
    let real = |name| OsDirectory::open_or_create(scratch.path().join(name)).expect("opens");
    test(Arc::new(MemoryDirectory::new()));
    test(Arc::new(SimulatedDisk::new(1).directory()));
    test(Arc::new(real("ring")));
    test(Arc::new(real("threads").without_io_uring()));
}

/// Everything small, and memory for a few pages only.
pub fn tiny(memory_bytes: u64) -> DcOptions {
    DcOptions { memory_bytes, ..DcOptions::tiny_for_tests() }
}

/// Keys of neighbouring numbers are apart.
pub fn key(number: u64) -> [u8; 8] {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20).to_be_bytes()
}

/// A write whose number is its timestamp and its LSN.
pub fn row<'a>(table: TableId, key: &'a [u8], value: Option<&'a [u8]>, number: u64) -> Operation<'a> {
    Operation { table, key, value, timestamp: Timestamp(number), lsn: Lsn(number) }
}

/// A counter of the component.
pub fn counter(dc: &BwTreeDc, wanted: &str) -> u64 {
    let counters = dc.statistics().counters;
    counters.iter().find(|(name, _)| *name == wanted).expect("is counted").1
}

/// All between `lower` and `upper` in scans of about `bytes_max` bytes, tombstones included; must be in order.
pub fn scan(
    dc: &BwTreeDc,
    table: TableId,
    (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    direction: Direction,
    bytes_max: usize,
) -> Result<Vec<Record>, DcError> {
    let mut records: Vec<Record> = Vec::new();
    loop {
        let beyond = records.last().map(|last| Bound::Excluded(last.key.clone()));
        let beyond = beyond.as_ref().map(|bound| bound.as_ref().map(Vec::as_slice));
        let (lower, upper) = match direction {
            Direction::Forward => (beyond.unwrap_or(lower), upper),
            Direction::Reverse => (lower, beyond.unwrap_or(upper)),
        };
        let records_max = usize::MAX;
        let batch = dc.scan(&ScanRequest { table, lower, upper, direction, bytes_max, records_max })?;
        records.extend(batch.iter().map(RecordView::to_record));
        if batch.is_complete() {
            break;
        }
    }
    let in_order = records.is_sorted_by(|left, right| match direction {
        Direction::Forward => left.key < right.key,
        Direction::Reverse => left.key > right.key,
    });
    assert!(in_order, "a scan is out of order");
    Ok(records)
}

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// Every key and value of a table that is not deleted.
pub fn live(dc: &BwTreeDc, table: TableId) -> Result<Vec<Entry>, DcError> {
    let everything = (Bound::Unbounded, Bound::Unbounded);
    let records = scan(dc, table, everything, Direction::Forward, usize::MAX)?;
    Ok(records.into_iter().filter_map(|record| Some((record.key, record.value?))).collect())
}
