//! A dropped table is gone at once, its space soon, and a crash half-way changes neither.

mod support;

use deuteron_contract::{DataComponent, DcError, Lsn, TableId};
use deuteron_dc::BwTreeDc;
use deuteron_device::simulated::{Sweep, effort};
use deuteron_device::{CrashPolicy, Directory, FaultPlan, MemoryDirectory, SimulatedDisk};
use deuteron_llama::FlushProgress;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const KEPT: TableId = TableId(1);
const DROPPED: TableId = TableId(2);

fn open(directory: Arc<dyn Directory>) -> Result<Arc<BwTreeDc>, DcError> {
    support::open(directory, support::tiny(32 << 10))
}

fn fill(dc: &BwTreeDc, table: TableId, count: u64, lsn: u64) -> Result<(), DcError> {
    for number in 0..count {
        let (key, value) = (number.to_be_bytes(), [number as u8; 50]);
        dc.apply(&[support::row(table, &key, Some(&value), lsn + number)])?;
    }
    Ok(())
}

fn count(dc: &BwTreeDc, table: TableId) -> usize {
    support::live(dc, table).unwrap().len()
}

#[test]
fn a_dropped_table_is_gone_and_its_space_comes_back() {
    let directory = Arc::new(MemoryDirectory::new());
    let mut dc = open(directory.clone()).unwrap();
    fill(&dc, KEPT, 100, 1).unwrap();
    dc.redo_scan_start_point(Lsn(101)).unwrap();
    let before = dc.llama().statistics().live_bytes;
    fill(&dc, DROPPED, 5000, 101).unwrap();
    dc.redo_scan_start_point(Lsn(5101)).unwrap();
    let full = dc.llama().statistics();
    assert!(full.live_bytes > 10 * before);

    dc.drop_table(DROPPED).unwrap();
    assert_eq!(dc.tables(), [KEPT]);
    for again in [false, true] {
        if again {
            dc = open(directory.clone()).unwrap();
        }
        assert_eq!(dc.get(DROPPED, &7u64.to_be_bytes()).unwrap(), None);
        assert_eq!((count(&dc, DROPPED), count(&dc, KEPT)), (0, 100));
        // As a replay, or a proxy that is behind, may bring.
        fill(&dc, DROPPED, 5, 200).unwrap();
        assert_eq!(count(&dc, DROPPED), 0);
        while dc.maintain_step().unwrap() {}
        dc.drop_table(DROPPED).unwrap();
        dc.compact().unwrap();
        let left = dc.llama().statistics();
        assert!(left.live_bytes < full.live_bytes / 8, "{full:?} before, then {left:?}");
        assert!(left.disk_bytes < full.disk_bytes / 2, "{full:?} before, then {left:?}");
        assert_eq!(dc.tables(), [KEPT]);
        assert_eq!(dc.check().unwrap().trees.records, 100);
    }
}

/// Before each step others have read so much that something must leave memory, which comes first.
#[test]
fn a_dropped_table_gives_its_space_back_though_memory_is_always_short() {
    const RECORDS: u64 = 1000;
    let dc = open(Arc::new(MemoryDirectory::new())).unwrap();
    fill(&dc, KEPT, RECORDS, 1).unwrap();
    dc.redo_scan_start_point(Lsn(RECORDS + 1)).unwrap();
    let kept = dc.llama().statistics().live_bytes;
    fill(&dc, DROPPED, RECORDS, RECORDS + 1).unwrap();
    dc.redo_scan_start_point(Lsn(2 * RECORDS + 1)).unwrap();
    dc.drop_table(DROPPED).unwrap();
    let (llama, mut key) = (dc.llama(), 0u64);
    for _ in 0..8000 {
        while llama.memory_bytes() <= llama.high_water() {
            key = (key + 1237) % RECORDS;
            // What is read for the second time is loaded.
            (0..2).for_each(|_| assert!(dc.get(KEPT, &key.to_be_bytes()).unwrap().is_some()));
        }
        dc.maintain_step().unwrap();
    }
    let left = llama.statistics().live_bytes;
    assert!(left < kept + kept / 4, "{left} bytes are live, where {kept} were before");
}

#[test]
fn those_at_work_in_a_table_while_it_is_dropped_find_it_empty_and_go_on() {
    for seed in 0..5 {
        let dc = open(Arc::new(MemoryDirectory::new())).unwrap();
        fill(&dc, DROPPED, 1000, 1).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for worker in 0..2u64 {
                let (dc, stop) = (&dc, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        fill(dc, DROPPED, 300 + seed, 2000 + worker).unwrap();
                        count(dc, DROPPED);
                    }
                });
            }
            dc.redo_scan_start_point(Lsn(1001)).unwrap();
            dc.drop_table(DROPPED).unwrap();
            for _ in 0..3 {
                while dc.maintain_step().unwrap() {}
                dc.redo_scan_start_point(Lsn(1001)).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(count(&dc, DROPPED), 0);
    }
}

/// Drops the table, with as much background work as there is, and flushes, between the mark and the checkpoint that remembers it.
fn drop_with_maintenance(dc: &BwTreeDc) -> Result<(), DcError> {
    // No checkpoint as long as the files are held.
    let held = dc.hold_files()?;
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| dc.drop_table(DROPPED));
        while dc.tables().contains(&DROPPED) {
            std::thread::yield_now();
        }
        for _ in 0..12 {
            // What does not work any more, the drop will be told of.
            let _ = dc.maintain_step();
            let _ = dc.llama().flush_step();
        }
        drop(held);
        dropping.join().expect("no panic")
    })
}

/// Fills two tables, drops one, and gives its space back. How far that has been promised goes into `safe`.
fn history(dc: &BwTreeDc, safe: &mut u32) -> Result<(), DcError> {
    fill(dc, KEPT, 40, 1)?;
    fill(dc, DROPPED, 120, 41)?;
    dc.redo_scan_start_point(Lsn(161))?;
    *safe = 1;
    drop_with_maintenance(dc)?;
    *safe = 2;
    for _ in 0..12 {
        dc.maintain_step()?;
    }
    dc.redo_scan_start_point(Lsn(162))?;
    dc.compact()
}

#[test]
fn a_crash_at_any_operation_leaves_the_table_whole_or_dropped() {
    let mut sweep = Sweep::default();
    let disk = SimulatedDisk::new(1);
    history(&open(Arc::new(disk.directory())).unwrap(), &mut 0).unwrap();
    let operations = disk.operations();
    // One history; with each round a crash survives in another way.
    for point in 0..operations * effort() {
        let (crash_at, round) = (point % operations, point / operations);
        let disk = SimulatedDisk::new(point);
        disk.set_faults(FaultPlan::new().crash_after(crash_at));
        let mut safe = 0;
        if let Ok(dc) = open(Arc::new(disk.directory())) {
            assert!(history(&dc, &mut safe).is_err() || !disk.is_stopped());
        }
        sweep.point();
        disk.crash(CrashPolicy::of(crash_at + round));
        let dc = open(Arc::new(disk.directory()))
            .unwrap_or_else(|error| panic!("after a crash at {crash_at}: {error:?}"));
        dc.check().unwrap();
        let (kept, dropped) = (count(&dc, KEPT), count(&dc, DROPPED));
        if safe >= 1 {
            assert_eq!(kept, 40);
            assert!(dropped == 120 || dropped == 0, "{dropped} records after a crash at {crash_at}");
        }
        assert!(safe < 2 || dropped == 0, "the table is back after a crash at {crash_at}");
        // It goes on from there.
        dc.drop_table(DROPPED).unwrap();
        dc.compact().unwrap();
        drop(dc);
        disk.crash(CrashPolicy::LoseAll);
        let dc = open(Arc::new(disk.directory())).unwrap();
        assert_eq!((count(&dc, KEPT), count(&dc, DROPPED)), (kept, 0));
        dc.check().unwrap();
        sweep.recovered(crash_at, Ok(()));
    }
    sweep.report("dropped tables");
}

#[test]
fn a_table_whose_drop_met_a_full_disk_is_whole_after_a_restart_or_emptied_when_there_is_room() {
    for restarted in [true, false] {
        let disk = SimulatedDisk::new(1);
        let dc = open(Arc::new(disk.directory())).unwrap();
        fill(&dc, DROPPED, 2000, 1).unwrap();
        dc.redo_scan_start_point(Lsn(2001)).unwrap();
        let full = dc.llama().statistics().live_bytes;
        disk.set_capacity(Some(disk.used_bytes()));
        assert!(matches!(dc.drop_table(DROPPED), Err(DcError::DiskFull { .. })));
        while dc.maintain_step().unwrap_or(false) {}
        disk.set_capacity(None);
        assert_eq!(count(&dc, DROPPED), 0);
        if restarted {
            while dc.llama().flush_step().unwrap() != FlushProgress::Nothing {}
            drop(dc);
            disk.crash(CrashPolicy::KeepAll);
            assert_eq!(count(&open(Arc::new(disk.directory())).unwrap(), DROPPED), 2000);
        } else {
            for lsn in 2002..2005 {
                dc.redo_scan_start_point(Lsn(lsn)).unwrap();
                while dc.maintain_step().unwrap() {}
            }
            let left = dc.llama().statistics().live_bytes;
            assert!(left < full / 4, "{full} before, then {left}");
        }
    }
}
