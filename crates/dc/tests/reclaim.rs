//! Most of the data is deleted: the space comes back, in bytes, and a crash on the way loses nothing that was kept.

mod support;

use deuteron_contract::conformance::SplitMix;
use deuteron_contract::{DataComponent, DcError, Lsn, Operation, TableId, Timestamp};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::simulated::{Sweep, effort};
use deuteron_device::{CrashPolicy, Directory, FaultPlan, MemoryDirectory, SimulatedDisk};
use std::sync::Arc;
use support::{counter, key, open, row, tiny};

const TABLE: TableId = TableId(2);

/// Writes (or deletes) keys `numbers`, at ascending LSNs from `lsn` on; where they end.
fn write(
    dc: &BwTreeDc,
    numbers: impl Iterator<Item = u64>,
    value: Option<&[u8]>,
    mut lsn: u64,
) -> Result<u64, DcError> {
    for number in numbers {
        dc.apply(&[row(TABLE, &key(number), value, lsn)])?;
        lsn += 1;
    }
    Ok(lsn)
}

/// C3 of the contract: the log is not in the order of versions, and an older one may lie behind several redo scan start points.
#[test]
fn a_tombstone_stays_until_redo_starts_where_the_log_was_stable_up_to_when_it_came() {
    let dc = open(Arc::new(MemoryDirectory::new()), tiny(256 << 10)).unwrap();
    let version = |value, timestamp, lsn| {
        let (timestamp, lsn) = (Timestamp(timestamp), Lsn(lsn));
        dc.apply(&[Operation { table: TABLE, key: b"key", value, timestamp, lsn }]).unwrap();
    };
    let start_at = |lsn| {
        dc.redo_scan_start_point(Lsn(lsn)).unwrap();
        dc.compact().unwrap();
    };
    let remembered = || dc.get(TABLE, b"key").unwrap().map(|record| (record.timestamp.0, record.value));
    dc.end_of_stable_log(Lsn(300));
    version(None, 20, 100);
    for start in [150, 160, 170] {
        start_at(start);
        assert_eq!(remembered(), Some((20, None)), "redo starts at {start}");
    }
    version(Some(b"older"), 10, 200);
    assert_eq!(remembered(), Some((20, None)));
    start_at(300);
    assert_eq!(remembered(), None, "nothing older can come any more");
}

#[test]
fn after_most_records_are_deleted_the_disk_holds_less_than_twice_the_live_bytes() {
    let count = 60_000u64;
    let value = [5; 100];
    for compact in [true, false] {
        let directory = Arc::new(MemoryDirectory::new());
        let options = DcOptions {
            segment_bytes: 256 << 10,
            memory_bytes: 2 << 20,
            flush_buffer_bytes: 32 << 10,
            tree: deuteron_bwtree::Options {
                page_bytes_max: 1024,
                delta_bytes_max: 1024,
                ..Default::default()
            },
            ..DcOptions::default()
        };
        let dc = open(directory.clone(), options.clone()).unwrap();
        let mut lsn = write(&dc, 0..count, Some(&value), 1).unwrap();
        dc.redo_scan_start_point(Lsn(lsn)).unwrap();
        let full = dc.statistics().disk_bytes;
        lsn = write(&dc, (0..count).filter(|number| number % 10 != 0), None, lsn).unwrap();
        for _ in 0..2 {
            lsn += 1;
            dc.redo_scan_start_point(Lsn(lsn)).unwrap();
        }
        if compact {
            dc.compact().unwrap();
        } else {
            while dc.maintain_step().unwrap() {}
        }
        let report = dc.check().unwrap().trees;
        assert_eq!(report.records, count / 10);
        let live = report.record_bytes;
        let (disk, live_in_store) = (dc.statistics().disk_bytes, dc.llama().statistics().live_bytes);
        assert!(disk * 4 < full, "{full} bytes before, {disk} after");
        let on_disk: u64 = directory
            .list()
            .unwrap()
            .iter()
            .map(|name| {
                directory.open(name, deuteron_device::OpenMode::Read, false).unwrap().length().unwrap()
            })
            .sum();
        if compact {
            assert_eq!(report.tombstones, 0);
            assert!(disk < 2 * live, "{disk} bytes of segments for {live} live ones");
            assert!(on_disk < 2 * live, "{on_disk} bytes of files for {live} live ones");
        } else {
            assert!(disk < 3 * live_in_store, "{disk} bytes of segments for {live_in_store} live ones");
        }
        drop(dc);
        let dc = open(directory, options).unwrap();
        assert_eq!(dc.check().unwrap().trees.records, count / 10);
    }
}

#[test]
fn a_checkpoint_stands_for_a_round_of_flushing() {
    const MEMORY: u64 = 16 << 20;
    let options = DcOptions { memory_bytes: MEMORY, dirty_percent_max: 25, ..DcOptions::default() };
    let dc = open(Arc::new(MemoryDirectory::new()), options).unwrap();
    // Each time three sixteenths of the memory, where a round is due after four.
    let write = || write(&dc, 0..MEMORY * 3 / 16 / 108, Some(&[5; 100]), 1).unwrap();
    let maintain = || {
        let before = dc.statistics().bytes_written;
        while dc.maintain_step().unwrap() {}
        dc.statistics().bytes_written - before
    };
    write();
    assert_eq!(maintain(), 0);
    dc.redo_scan_start_point(Lsn(2)).unwrap();
    write();
    assert_eq!(maintain(), 0, "what was applied before the checkpoint does not count");
    write();
    assert!(maintain() > 0);
}

#[test]
fn disk_use_is_bounded_while_there_is_always_something_to_flush() {
    const COUNT: u64 = 40_000;
    let options = DcOptions {
        segment_bytes: 256 << 10,
        memory_bytes: 1 << 20,
        flush_buffer_bytes: 32 << 10,
        ..DcOptions::default()
    };
    let dc = open(Arc::new(MemoryDirectory::new()), options).unwrap();
    let mut lsn = write(&dc, 0..COUNT, Some(&[5; 100]), 1).unwrap();
    let mut random = SplitMix::new(7);
    for _ in 0..1500 {
        // Four of five to a tenth of the pages.
        let often = |number: u64| number / 600 * 600 + number % 60;
        let one = |random: &mut SplitMix| match random.below(5) {
            0 => random.below(COUNT),
            _ => often(random.below(COUNT)),
        };
        let numbers: Vec<u64> = (0..300).map(|_| one(&mut random)).collect();
        lsn = write(&dc, numbers.into_iter(), Some(&[6; 100]), lsn).unwrap();
        assert!(dc.maintain_step().unwrap());
    }
    let statistics = dc.llama().statistics();
    let (disk, live) = (statistics.disk_bytes, statistics.live_bytes);
    // Twice what is live, and what lies behind the newest image's scan start.
    assert!(disk < 5 * live / 2 + 8 * (256 << 10), "{disk} bytes of segments for {live} live ones");
    assert!(
        statistics.bytes_written > 5 * disk,
        "{} bytes written, {disk} on disk",
        statistics.bytes_written
    );
}

/// The history of the crash sweep: fill, delete most, let the tombstones go, merge, compact; what has been promised goes
/// into `safe`.
fn history(dc: &BwTreeDc, random: &mut SplitMix, safe: &mut u64) -> Result<(), DcError> {
    let mut lsn = write(dc, 0..COUNT, Some(&[5; 60]), 1)?;
    dc.redo_scan_start_point(Lsn(lsn))?;
    *safe = lsn;
    for number in (0..COUNT).filter(|number| number % 10 != 0) {
        lsn = write(dc, std::iter::once(number), None, lsn)?;
        if random.below(30) == 0 {
            dc.maintain_step()?;
        }
    }
    for _ in 0..3 {
        lsn += 1;
        dc.redo_scan_start_point(Lsn(lsn))?;
        *safe = lsn;
        for _ in 0..random.below(20) {
            dc.maintain_step()?;
        }
        dc.llama().flush_step().map_err(|_| DcError::Poisoned { reason: "flush".into() })?;
        // Some come again.
        let again = random.below(COUNT);
        lsn =
            write(dc, (again..COUNT.min(again + 8)).filter(|number| number % 10 == 0), Some(&[6; 60]), lsn)?;
    }
    dc.compact()?;
    Ok(())
}

const COUNT: u64 = 220;

fn verify(dc: &BwTreeDc, safe: u64) {
    let redo = dc.recovered_redo_scan_start_point().0;
    assert!(redo >= safe, "redo starts at {redo}, checkpoints were completed up to {safe}");
    dc.check().expect("a sound tree");
    for number in 0..COUNT {
        let found = dc.get(TABLE, &key(number)).expect("a sound disk").and_then(|found| found.value);
        let kept = number % 10 == 0;
        if redo > COUNT {
            assert!(!kept || found.is_some(), "key {number} is lost");
        }
        if redo > 2 * COUNT {
            assert_eq!(found.is_some(), kept, "key {number} has come back");
        }
    }
}

#[test]
fn a_crash_while_pages_are_merged_and_freed_loses_nothing() {
    let options = || tiny(16 << 10);
    let mut count = Sweep::default();
    for seed in 1..=3 * effort() {
        let disk = SimulatedDisk::new(seed);
        let dc = open(Arc::new(disk.directory()), options()).unwrap();
        history(&dc, &mut SplitMix::new(seed), &mut 0).unwrap();
        let operations = disk.operations();
        assert!(counter(&dc, "leaf_merges") > 10 && counter(&dc, "pages_freed") > 10);
        drop(dc);
        for crash_at in 0..operations {
            let disk = SimulatedDisk::new(seed + crash_at);
            disk.set_faults(FaultPlan::new().crash_after(crash_at));
            let mut safe = 0;
            if let Ok(dc) = open(Arc::new(disk.directory()), options()) {
                let stopped = history(&dc, &mut SplitMix::new(seed), &mut safe).is_err();
                assert!(stopped || !disk.is_stopped());
            }
            count.point();
            disk.crash(CrashPolicy::of(crash_at));
            let dc = open(Arc::new(disk.directory()), options())
                .unwrap_or_else(|error| panic!("after a crash at {crash_at}: {error:?}"));
            verify(&dc, safe);
            // It goes on from there, and once more.
            let redo = dc.recovered_redo_scan_start_point().0;
            dc.compact().unwrap();
            verify(&dc, redo);
            drop(dc);
            disk.crash(CrashPolicy::LoseAll);
            verify(&open(Arc::new(disk.directory()), options()).unwrap(), redo);
            count.recovered(crash_at, Ok(()));
        }
    }
    count.report("merges, cleaning, compaction");
}

/// Each page gets one delta, which makes it neither long nor due to be written in full.
#[test]
fn what_was_deleted_once_is_given_back_however_few_records_a_page_has() {
    // Records of 24 KiB, one to a page; of 1 KiB, a few; of 100 bytes, deleted in sorted batches. In memory, and beyond it.
    for (bytes, count, batch) in [(24 << 10, 200u64, 1), (1 << 10, 3_000, 1), (100, 20_000, 100)] {
        for (memory_bytes, is_reopened) in [(1 << 20, false), (64 << 20, false), (1 << 20, true)] {
            let directory = Arc::new(MemoryDirectory::new());
            let options = DcOptions {
                segment_bytes: 256 << 10,
                flush_buffer_bytes: 32 << 10,
                memory_bytes,
                ..DcOptions::default()
            };
            let mut dc = open(directory.clone(), options.clone()).unwrap();
            let ordered = |number: u64| number.to_be_bytes();
            let value = vec![5; bytes];
            for number in 0..count {
                dc.apply(&[row(TABLE, &ordered(number), Some(&value), number + 1)]).unwrap();
            }
            let mut lsn = count + 1;
            dc.redo_scan_start_point(Lsn(lsn)).unwrap();
            let full = dc.statistics().disk_bytes;
            if is_reopened {
                drop(dc);
                dc = open(directory, options).unwrap();
            }
            let numbers: Vec<u64> = (0..count).collect();
            for numbers in numbers.chunks(batch) {
                let keys: Vec<_> = numbers.iter().map(|&number| ordered(number)).collect();
                let rows: Vec<_> =
                    keys.iter().zip(lsn..).map(|(key, lsn)| row(TABLE, key, None, lsn)).collect();
                dc.apply(&rows).unwrap();
                lsn += batch as u64;
            }
            for _ in 0..3 {
                lsn += 1;
                dc.redo_scan_start_point(Lsn(lsn)).unwrap();
                while dc.maintain_step().unwrap() {}
            }
            let disk = dc.statistics().disk_bytes;
            assert!(disk * 4 < full, "{bytes}, {memory_bytes}: {full} bytes before, {disk} after");
            assert_eq!(dc.check().unwrap().trees.records, 0);
        }
    }
}
