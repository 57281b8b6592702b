//! Bulk loads: what is loaded is there, in full pages; what is out of order is refused; a crash leaves all or nothing.

mod support;

use deuteron_contract::{DataComponent, DcError, Lsn, Operation, TableId, Timestamp};
use deuteron_dc::{BwTreeDc, DcOptions, LoadError};
use deuteron_device::simulated::{Sweep, effort};
use deuteron_device::{CrashPolicy, FaultPlan, MemoryDirectory, SimulatedDisk};
use deuteron_epoch::Epochs;
use deuteron_llama::FlushProgress;
use std::sync::Arc;

const TABLE: TableId = TableId(3);
const OTHER: TableId = TableId(4);

fn key(number: u32) -> Vec<u8> {
    format!("some common beginning/{:05}/{}", number / 3, "x".repeat(number as usize % 3)).into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; (number % 60) as usize]
}

fn load(dc: &Arc<BwTreeDc>, count: u32) -> Result<u64, LoadError> {
    let mut load = dc.load_table(TABLE)?;
    for number in 0..count {
        load.push(&key(number), &value(number), Timestamp(1), Lsn(0))?;
        if number % 16 == 0 {
            dc.maintain_step()?;
        }
    }
    load.finish()
}

fn records(dc: &BwTreeDc, table: TableId) -> Vec<(Vec<u8>, Vec<u8>)> {
    support::live(dc, table).expect("reads")
}

fn expected(count: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..count).map(|number| (key(number), value(number))).collect()
}

fn open(disk: &SimulatedDisk) -> Arc<BwTreeDc> {
    support::open(Arc::new(disk.directory()), support::tiny(16 << 10)).expect("opens")
}

#[test]
fn a_loaded_table_reads_and_writes_like_any_other_and_survives() {
    for count in [0, 1, 2, 7, 100, 2000] {
        let disk = SimulatedDisk::new(1);
        let dc = open(&disk);
        assert_eq!(load(&dc, count).expect("loads"), u64::from(count));
        assert_eq!(records(&dc, TABLE), expected(count));
        dc.check().expect("sound");
        drop(dc);
        disk.crash(CrashPolicy::LoseAll);
        let dc = open(&disk);
        assert_eq!(records(&dc, TABLE), expected(count), "durable");
        // Splits, consolidations and evictions of loaded pages.
        for number in 0..count {
            let operation =
                |key, value, timestamp| Operation { table: TABLE, key, value, timestamp, lsn: Lsn(9) };
            let (own, more) = (key(number), [&key(number)[..], b"+"].concat());
            let values =
                [operation(&own, Some(b"new"), Timestamp(2)), operation(&more, Some(b"more"), Timestamp(3))];
            dc.apply(&values).expect("applies");
            dc.maintain_step().expect("works");
        }
        assert_eq!(records(&dc, TABLE).len() as u32, 2 * count);
        dc.check().expect("sound");
    }
}

#[test]
fn pages_are_full() {
    let dc =
        BwTreeDc::open(Arc::new(MemoryDirectory::new()), Epochs::new(), DcOptions::default()).expect("opens");
    let mut load = dc.load_table(TABLE).expect("is new");
    for number in 0..50_000u32 {
        load.push(&number.to_be_bytes(), &[7; 100], Timestamp(1), Lsn(0)).expect("in order");
    }
    load.finish().expect("loads");
    let report = dc.check().expect("sound");
    // 134 bytes a record, 4 KiB a page, filled to 95 %.
    assert!(report.trees.leaves < 50_000 / 27, "{report:?}");
}

#[test]
fn records_out_of_order_are_refused_by_number_and_an_abandoned_load_leaves_nothing() {
    let disk = SimulatedDisk::new(1);
    let dc = open(&disk);
    for _ in 0..3 {
        let mut load = dc.load_table(TABLE).expect("is new");
        for number in 0..500 {
            load.push(&key(number), &value(number), Timestamp(1), Lsn(0)).expect("in order");
        }
        for (again, name) in [(499, "a duplicate"), (3, "a smaller one")] {
            match load.push(&key(again), b"", Timestamp(1), Lsn(0)) {
                Err(LoadError::OutOfOrder { record: 501, key: found, previous }) => {
                    assert_eq!((found, previous), (key(again), key(499)), "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(matches!(load.push(b"", b"", Timestamp(1), Lsn(0)), Err(LoadError::Component(_))));
        drop(load);
        assert_eq!(dc.get(TABLE, &key(1)).expect("reads"), None);
        for _ in 0..20 {
            dc.maintain_step().expect("works");
        }
    }
    let page_ids = dc.llama().statistics().page_ids;
    assert!(page_ids < 3 * 500 / 3, "identifiers are given out again: {page_ids}");
    assert_eq!(load(&dc, 300).expect("loads"), 300);
    assert!(matches!(dc.load_table(TABLE), Err(LoadError::NotNew { table: TABLE })));
    dc.check().expect("sound");
}

#[test]
fn a_record_that_a_full_disk_has_refused_is_loaded_once_when_it_is_pushed_again() {
    let disk = SimulatedDisk::new(1);
    let dc = open(&disk);
    let mut load = dc.load_table(TABLE).expect("is new");
    let (mut refused, mut expected) = (0, Vec::new());
    disk.set_capacity(Some(disk.used_bytes()));
    for number in 0..3000 {
        loop {
            match load.push(&key(number), &value(number), Timestamp(1), Lsn(0)) {
                Ok(()) => break expected.push((key(number), value(number))),
                Err(LoadError::Component(DcError::DiskFull { .. })) => {}
                other => panic!("{other:?}"),
            }
            refused += 1;
            assert_eq!(load.records(), expected.len() as u64);
            if refused % 3 == 0 {
                disk.set_capacity(Some(disk.used_bytes() + (64 << 10)));
            }
            // Whoever leaves it out may do so.
            if refused % 7 == 0 {
                break;
            }
        }
    }
    assert!(refused > 3 && expected.len() < 3000, "{refused} refused");
    disk.set_capacity(None);
    assert_eq!(load.finish().expect("loads"), expected.len() as u64);
    drop(dc);
    disk.crash(CrashPolicy::LoseAll);
    let dc = open(&disk);
    assert!(records(&dc, TABLE) == expected);
    dc.check().expect("sound");
}

#[test]
fn a_table_that_is_written_to_meanwhile_stays_as_it_was_written() {
    let disk = SimulatedDisk::new(1);
    let dc = open(&disk);
    let mut load = dc.load_table(TABLE).expect("is new");
    load.push(&key(1), b"loaded", Timestamp(1), Lsn(0)).expect("in order");
    let (table, lsn) = (TABLE, Lsn(1));
    dc.apply(&[Operation { table, key: b"k", value: Some(b"written"), timestamp: Timestamp(1), lsn }])
        .expect("applies");
    assert!(matches!(load.finish(), Err(LoadError::NotNew { .. })));
    assert_eq!(records(&dc, TABLE), [(b"k".to_vec(), b"written".to_vec())]);
}

#[test]
fn a_crash_leaves_all_of_a_load_or_nothing_and_other_tables_as_they_were() {
    const COUNT: u32 = 500;
    let prepare = |disk: &SimulatedDisk| {
        let dc = open(disk);
        let write =
            Operation { table: OTHER, key: b"k", value: Some(b"v"), timestamp: Timestamp(1), lsn: Lsn(1) };
        dc.apply(&[write]).expect("applies");
        dc.redo_scan_start_point(Lsn(2)).expect("checkpoint");
    };
    let disk = SimulatedDisk::new(1);
    prepare(&disk);
    let begin = disk.operations();
    load(&open(&disk), COUNT).expect("loads");
    let operations = disk.operations();
    let (mut all, mut nothing, mut count) = (0, 0, Sweep::default());
    for (round, crash_at) in (0..effort()).flat_map(|round| (begin..operations).map(move |at| (round, at))) {
        for policy in CrashPolicy::ALL {
            count.point();
            let disk = SimulatedDisk::new(round * operations + crash_at);
            prepare(&disk);
            disk.set_faults(FaultPlan::new().crash_after(crash_at));
            let opened = support::open(Arc::new(disk.directory()), support::tiny(16 << 10));
            let loaded = opened.is_ok_and(|dc| load(&dc, COUNT).is_ok());
            disk.crash(policy);
            let dc = open(&disk);
            dc.check().unwrap_or_else(|error| panic!("after {crash_at}: {error:?}"));
            assert_eq!(records(&dc, OTHER), [(b"k".to_vec(), b"v".to_vec())]);
            let found = records(&dc, TABLE);
            if found.is_empty() {
                assert!(!loaded, "after {crash_at} {policy:?}");
                nothing += 1;
                // And it can be loaded again, over what is left of the first attempt.
                if crash_at % 5 == 0 {
                    load(&dc, COUNT).expect("loads");
                    drop(dc);
                    disk.crash(CrashPolicy::LoseAll);
                    assert_eq!(records(&open(&disk), TABLE), expected(COUNT));
                }
            } else {
                assert_eq!(found, expected(COUNT), "after {crash_at} {policy:?}");
                all += 1;
            }
            count.recovered(crash_at, Ok(()));
        }
    }
    count.report("bulk loads");
    assert!(all > 0 && nothing > 20, "{all} {nothing}");
}

/// Some of its pages have adopted others, and their identifiers are given out again before a recovery would no longer find that.
#[test]
fn a_load_that_was_given_up_does_not_come_back_through_recycled_identifiers() {
    let disk = SimulatedDisk::new(1);
    let epochs = Epochs::with_threshold(16 << 10);
    let options = || support::tiny(1 << 20);
    let dc = BwTreeDc::open(Arc::new(disk.directory()), epochs.clone(), options()).expect("opens");
    let mut given_up = dc.load_table(TABLE).expect("is new");
    for number in 0..500 {
        given_up.push(&key(number), &value(number), Timestamp(1), Lsn(0)).expect("in order");
    }
    let flush = || while dc.llama().flush_step().expect("flushes") != FlushProgress::Nothing {};
    flush();
    drop(given_up);
    // No image is written.
    for number in 0..2_000u32 {
        let (key, lsn) = (number.wrapping_mul(0x9e37_79b9).to_be_bytes(), u64::from(number) + 1);
        dc.apply(&[support::row(OTHER, &key, Some(&[7; 20]), lsn)]).expect("applies");
        if number % 100 == 99 {
            while epochs.collect() > 0 {}
            flush();
        }
    }
    let expected = records(&dc, OTHER);
    drop(dc);
    disk.crash(CrashPolicy::LoseAll);
    let dc = open(&disk);
    assert_eq!(records(&dc, OTHER), expected);
    assert_eq!(records(&dc, TABLE), []);
    dc.check().expect("sound");
    assert_eq!(load(&dc, 500).expect("loads"), 500);
}

#[test]
fn a_table_is_loaded_by_one_and_not_after_it_was_dropped() {
    let disk = SimulatedDisk::new(1);
    let dc = open(&disk);
    let large = vec![7; 20_000];
    let mut load = dc.load_table(TABLE).expect("is new");
    load.push(b"large", &large, Timestamp(1), Lsn(0)).expect("loads");
    assert!(matches!(dc.load_table(TABLE), Err(LoadError::NotNew { table: TABLE })));
    while dc.maintain_step().expect("no I/O fails") {}
    load.finish().expect("finishes");
    while dc.maintain_step().expect("no I/O fails") {}
    assert_eq!(dc.get(TABLE, b"large").expect("reads").and_then(|record| record.value), Some(large));

    let mut load = dc.load_table(OTHER).expect("is new");
    load.push(b"key", b"value", Timestamp(1), Lsn(0)).expect("loads");
    dc.drop_table(OTHER).expect("drops");
    assert!(matches!(load.finish(), Err(LoadError::NotNew { table: OTHER })));
    assert!(dc.is_dropped(OTHER) && dc.get(OTHER, b"key").expect("reads").is_none());
    drop(dc);
    let dc = open(&disk);
    assert!(dc.is_dropped(OTHER));
    dc.check().expect("sound");
}
