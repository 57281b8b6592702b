//! What is read together: several keys, and the leaves that a scan will come to.

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

fn get_many(dc: &BwTreeDc, table: TableId, numbers: &[u64]) -> Result<Vec<Option<Vec<u8>>>, DcError> {
    let keys: Vec<_> = numbers.iter().map(|&number| key(number)).collect();
    let keys: Vec<_> = keys.iter().map(|key| &key[..]).collect();
    let found = dc.get_many(table, &keys, usize::MAX)?;
    Ok(found.into_iter().map(|record| record?.value).collect())
}

#[test]
fn keys_that_are_read_together_come_with_one_request() {
    let (disk, dc) = cold(&options());
    let numbers: Vec<u64> = (0..KEYS).step_by(97).collect();
    let expected: Vec<_> = numbers.iter().map(|&number| Some(vec![number as u8; 100])).collect();
    assert_eq!(get_many(&dc, TABLE, &numbers).unwrap(), expected);
    let loaded = dc.llama().statistics();
    assert_eq!((loaded.loads, loaded.loads_together), (numbers.len() as u64, 1));
    // All is there now.
    let reads = disk.count(DeviceOperation::Read);
    assert_eq!(get_many(&dc, TABLE, &numbers).unwrap(), expected);
    assert_eq!(disk.count(DeviceOperation::Read), reads);
    // And these are nowhere.
    assert_eq!(get_many(&dc, TABLE, &[]).unwrap(), []);
    assert_eq!(get_many(&dc, TableId(9), &[5, 1000]).unwrap(), [None, None]);
    assert_eq!(disk.count(DeviceOperation::Read), reads);
}

#[test]
fn more_than_the_memory_has_room_for_can_be_read_together() {
    let options = DcOptions { memory_bytes: 128 << 10, ..options() };
    let (_disk, dc) = cold(&options);
    let found = get_many(&dc, TABLE, &(0..KEYS).collect::<Vec<_>>()).unwrap();
    assert!(found.into_iter().eq((0..KEYS).map(|number| Some(vec![number as u8; 100]))));
    let statistics = dc.llama().statistics();
    assert!(statistics.memory_bytes <= 128 << 10, "{statistics:?}");
}

#[test]
fn a_failing_device_is_told() {
    let (disk, dc) = cold(&options());
    disk.set_faults(FaultPlan::new().fail_from(DeviceOperation::Read, 0, FaultKind::Refuse));
    assert!(matches!(get_many(&dc, TABLE, &[1, 1000]), Err(DcError::Device { .. })));
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
