//! What is brought to memory before it is read: by a hint, and by scans.

use deuteron_contract::{DataComponent, DcError, Direction, Lsn, Operation, ScanRequest, TableId, Timestamp};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::{CrashPolicy, FaultKind, FaultPlan, Operation as DeviceOperation, SimulatedDisk};
use deuteron_epoch::Epochs;
use std::ops::Bound;
use std::sync::Arc;

const TABLE: TableId = TableId(3);
const KEYS: u64 = 2_000;

fn options() -> DcOptions {
    DcOptions {
        memory_bytes: 1 << 20,
        segment_bytes: 1 << 20,
        tree: deuteron_bwtree::Options { page_bytes_max: 2048, ..Default::default() },
        ..DcOptions::default()
    }
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// A component on a disk, freshly opened: it holds `KEYS` records, and nothing of them is in memory.
fn cold(options: &DcOptions) -> (SimulatedDisk, Arc<BwTreeDc>) {
    let disk = SimulatedDisk::new(1);
    let dc = BwTreeDc::open(Arc::new(disk.directory()), Epochs::new(), options.clone()).unwrap();
    for number in 0..KEYS {
        let value = [number as u8; 100];
        let (key, value) = (&key(number)[..], Some(&value[..]));
        dc.apply(&[Operation { table: TABLE, key, value, timestamp: Timestamp(1), lsn: Lsn(number) }])
            .unwrap();
    }
    dc.redo_scan_start_point(Lsn(KEYS)).unwrap();
    drop(dc);
    let directory = disk.crash(CrashPolicy::LoseAll);
    let dc = BwTreeDc::open(Arc::new(directory), Epochs::new(), options.clone()).unwrap();
    assert_eq!(dc.llama().memory_bytes(), 0);
    (disk, dc)
}

fn prefetch(dc: &BwTreeDc, table: TableId, numbers: &[u64]) {
    let keys: Vec<_> = numbers.iter().map(|&number| key(number)).collect();
    dc.prefetch(table, &keys.iter().map(|key| &key[..]).collect::<Vec<_>>());
}

#[test]
fn what_was_prefetched_is_read_without_the_device() {
    let (disk, dc) = cold(&options());
    let numbers: Vec<u64> = (0..KEYS).step_by(97).collect();
    prefetch(&dc, TABLE, &numbers);
    let loaded = dc.llama().statistics();
    assert_eq!((loaded.loads, loaded.loads_together), (numbers.len() as u64, 1));
    let reads = disk.count(DeviceOperation::Read);
    for &number in &numbers {
        let found = dc.get(TABLE, &key(number)).unwrap().unwrap();
        assert_eq!(found.value.unwrap(), [number as u8; 100]);
    }
    assert_eq!(disk.count(DeviceOperation::Read), reads);
    // All is there already.
    prefetch(&dc, TABLE, &numbers);
    assert_eq!(disk.count(DeviceOperation::Read), reads);
}

#[test]
fn a_hint_that_helps_nobody_reads_nothing() {
    let (disk, dc) = cold(&options());
    let reads = disk.count(DeviceOperation::Read);
    prefetch(&dc, TABLE, &[]);
    prefetch(&dc, TABLE, &[5]);
    prefetch(&dc, TABLE, &[5, 5]);
    prefetch(&dc, TableId(9), &[5, 1000]);
    assert_eq!(disk.count(DeviceOperation::Read), reads);
}

#[test]
fn a_hint_too_large_for_the_memory_is_followed_in_part() {
    let options = DcOptions { memory_bytes: 128 << 10, ..options() };
    let (_disk, dc) = cold(&options);
    prefetch(&dc, TABLE, &(0..KEYS).collect::<Vec<_>>());
    let statistics = dc.llama().statistics();
    assert_eq!(statistics.loads, (128 << 10) / 8 / 2048);
    assert!(statistics.memory_bytes <= 128 << 10, "{statistics:?}");
    for number in 0..KEYS {
        assert!(dc.get(TABLE, &key(number)).unwrap().is_some());
    }
}

#[test]
fn a_failing_device_is_told_by_the_read_and_not_by_the_hint() {
    let (disk, dc) = cold(&options());
    disk.set_faults(FaultPlan::new().fail_from(DeviceOperation::Read, 0, FaultKind::Refuse));
    prefetch(&dc, TABLE, &[1, 1000]);
    assert!(matches!(dc.get(TABLE, &key(1)), Err(DcError::Device { .. })));
    let request = ScanRequest {
        table: TABLE,
        lower: Bound::Unbounded,
        upper: Bound::Unbounded,
        direction: Direction::Forward,
        bytes_max: usize::MAX,
        records_max: usize::MAX,
    };
    assert!(matches!(dc.scan(&request), Err(DcError::Device { .. })));
    disk.set_faults(FaultPlan::new());
    assert_eq!(dc.scan(&request).unwrap().len() as u64, KEYS);
}

#[test]
fn scans_load_ahead_in_both_directions_and_not_beyond_what_is_asked_for() {
    for direction in [Direction::Forward, Direction::Reverse] {
        let scan = |dc: &BwTreeDc, lower, upper, bytes_max| {
            let request =
                ScanRequest { table: TABLE, lower, upper, direction, bytes_max, records_max: usize::MAX };
            let batch = dc.scan(&request).unwrap();
            let mut numbers: Vec<u64> =
                batch.iter().map(|record| u64::from_be_bytes(record.key.try_into().unwrap())).collect();
            if direction == Direction::Reverse {
                numbers.reverse();
            }
            numbers
        };
        // All of it: every page once.
        let (_disk, dc) = cold(&options());
        assert_eq!(scan(&dc, Bound::Unbounded, Bound::Unbounded, usize::MAX), (0..KEYS).collect::<Vec<_>>());
        let statistics = dc.llama().statistics();
        assert_eq!(statistics.loads, statistics.page_ids);
        assert!(statistics.loads_together > 5, "{direction:?} {statistics:?}");
        // One record: one page.
        let (_disk, dc) = cold(&options());
        assert_eq!(scan(&dc, Bound::Unbounded, Bound::Unbounded, 1).len(), 1);
        assert_eq!(dc.llama().statistics().loads, 1);
        // A short range: its pages, and perhaps the neighbours of its ends.
        let (_disk, dc) = cold(&options());
        let (low, high) = (key(500), key(600));
        let found = scan(&dc, Bound::Included(&low[..]), Bound::Excluded(&high[..]), usize::MAX);
        assert_eq!(found, (500..600).collect::<Vec<_>>());
        let loads = dc.llama().statistics().loads;
        assert!((5..=20).contains(&loads), "{direction:?} {loads}");
    }
}
