//! A device without room: what is applied is refused before it takes memory, until there is room.

mod support;

use deuteron_contract::{DataComponent, DcError, Lsn, Operation, TableId, Timestamp};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::{Operation as Access, SimulatedDisk};
use deuteron_llama::FlushProgress;
use std::sync::Arc;

const TABLE: TableId = TableId(1);

fn put(dc: &BwTreeDc, key: u64, version: u64) -> Result<(), DcError> {
    let (key, value) = (key.to_be_bytes(), [version as u8; 300]);
    let (timestamp, lsn) = (Timestamp(version), Lsn(version));
    dc.apply(&[Operation { table: TABLE, key: &key, value: Some(&value), timestamp, lsn }])
}

#[test]
fn writers_that_try_again_take_no_memory_and_go_on_once_there_is_room() {
    let disk = SimulatedDisk::new(1);
    let dc = support::open(Arc::new(disk.directory()), support::tiny(256 << 10)).unwrap();
    (0..500).for_each(|key| put(&dc, key, 1).unwrap());
    disk.set_capacity(Some(disk.used_bytes() + (64 << 10)));
    let first = (0..100_000).find(|key| put(&dc, *key, 2).is_err()).expect("the device is full");
    // A few more find room that pages had in themselves and have given back.
    let mut packed = 2_000_000..2_000_100;
    while packed.any(|key| put(&dc, key, 2).is_ok()) {}
    let before = dc.memory_bytes();
    for key in 0..5000 {
        let refused = put(&dc, 1_000_000 + key, 3);
        assert!(matches!(refused, Err(DcError::DiskFull { .. })), "{refused:?}");
    }
    assert!(dc.memory_bytes() <= before, "{} and {before}", dc.memory_bytes());
    // It was refused before it was applied.
    assert_eq!(dc.get(TABLE, &1_000_000u64.to_be_bytes()).unwrap(), None);
    disk.set_capacity(None);
    (0..=first).for_each(|key| put(&dc, key, 4).unwrap());
    (0..=first).for_each(|key| assert!(dc.get(TABLE, &key.to_be_bytes()).unwrap().is_some()));
}

/// A flush that fails for want of room was in the way of what gives some.
#[test]
fn dead_segments_are_given_back_on_a_full_device() {
    for room in [36, 38, 40] {
        let disk = SimulatedDisk::new(1);
        let options = DcOptions { flush_buffer_bytes: 32 << 10, ..support::tiny(256 << 10) };
        let dc = support::open(Arc::new(disk.directory()), options).unwrap();
        let maintain = || while dc.maintain_step().is_ok_and(|worked| worked) {};
        (0..1000).for_each(|key| put(&dc, key, 1).unwrap());
        dc.redo_scan_start_point(Lsn(1)).unwrap();
        maintain();
        disk.set_capacity(Some(disk.used_bytes() + (room << 14)));
        let is_refused = |number: u64| {
            if number.is_multiple_of(40) {
                maintain();
            }
            let is_refused = || put(&dc, number % 1000, 2 + number / 1000).is_err();
            is_refused() && {
                maintain();
                is_refused()
            }
        };
        assert!((0..100_000).any(is_refused), "the device is full");
        assert_eq!(support::counter(&dc, "dead_segments"), 0);
    }
}

/// Each attempt would write as much as there is room for, and give it back.
#[test]
fn an_image_for_which_there_is_no_room_is_not_begun_again_and_again() {
    let disk = SimulatedDisk::new(1);
    let dc = support::open(Arc::new(disk.directory()), support::tiny(1 << 20)).unwrap();
    let mut version = 0;
    while !dc.llama().is_image_due() {
        version += 1;
        (0..5).for_each(|key| put(&dc, key, version).unwrap());
        while let FlushProgress::Wrote { .. } = dc.llama().flush_step().unwrap() {}
    }
    disk.set_capacity(Some(0));
    let opened = disk.count(Access::Open);
    for _ in 0..1000 {
        dc.maintain_step().expect("nothing is lost without an image");
    }
    let attempts = disk.count(Access::Open) - opened;
    assert!((2..=12).contains(&attempts), "{attempts}");
    disk.set_capacity(None);
    assert!((0..1000).any(|_| {
        dc.maintain_step().unwrap();
        !dc.llama().is_image_due()
    }));
}
