//! Data ten times as large as the memory, through one thread and through several, on all kinds of directories.

mod support;

use deuteron_contract::conformance::SplitMix;
use deuteron_contract::{DataComponent, Direction, Lsn, Operation, ScanRequest, TableId, Timestamp};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::{Directory, MemoryDirectory};
use deuteron_epoch::Epochs;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const TABLE: TableId = TableId(3);

fn in_memory() -> Arc<dyn Directory> {
    Arc::new(MemoryDirectory::new())
}

fn open(directory: &Arc<dyn Directory>, options: DcOptions) -> Arc<BwTreeDc> {
    BwTreeDc::open(directory.clone(), Epochs::with_threshold(64 << 10), options).unwrap()
}

fn options() -> DcOptions {
    DcOptions {
        memory_bytes: 512 << 10,
        segment_bytes: 1 << 20,
        flush_buffer_bytes: 64 << 10,
        tree: deuteron_bwtree::Options { page_bytes_max: 2048, ..Default::default() },
        ..DcOptions::default()
    }
}

fn key(number: u64) -> [u8; 8] {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20).to_be_bytes()
}

fn value(number: u64, version: u64) -> Vec<u8> {
    let mut value = vec![number as u8; 84];
    value.extend_from_slice(&number.to_le_bytes());
    value.extend_from_slice(&version.to_le_bytes());
    value
}

#[test]
fn ten_times_the_memory_fits_and_the_budget_holds() {
    support::on_all_directories(ten_times_the_memory);
}

fn ten_times_the_memory(directory: Arc<dyn Directory>) {
    let dc = open(&directory, options());
    let count = 40_000u64;
    let mut peak = 0;
    for start in (0..count).step_by(100) {
        let rows: Vec<_> = (start..start + 100).map(|number| (key(number), value(number, 1))).collect();
        let operations: Vec<_> = rows
            .iter()
            .map(|(key, value)| Operation {
                table: TABLE,
                key,
                value: Some(value),
                timestamp: Timestamp(1),
                lsn: Lsn(start),
            })
            .collect();
        dc.apply(&operations).unwrap();
        peak = peak.max(dc.llama().memory_bytes());
    }
    assert!(peak <= (512 << 10) * 9 / 8, "memory rose to {peak}");
    let mut random = SplitMix::new(1);
    for _ in 0..4000 {
        let number = random.below(count);
        let found = dc.get(TABLE, &key(number)).unwrap().expect("present");
        assert_eq!(found.value.unwrap(), value(number, 1));
    }
    assert!(dc.llama().memory_bytes() <= (512 << 10) * 9 / 8);
    let statistics = dc.llama().statistics();
    assert!(statistics.pages_evicted > 1000 && statistics.loads > 1000, "{statistics:?}");
    assert_eq!(dc.check().unwrap().trees.records, count);
    dc.redo_scan_start_point(Lsn(count)).unwrap();
    drop(dc);
    let dc = open(&directory, options());
    assert_eq!(dc.check().unwrap().trees.records, count);
}

#[test]
fn who_waits_for_room_reads_what_flushes_would_have_to_read_as_long_as_memory_is_short() {
    let dc = open(&in_memory(), options());
    let apply = |version: u64, numbers: std::ops::Range<u64>| {
        for number in numbers {
            let (key, value) = (key(number), value(number, version));
            let (timestamp, lsn) = (Timestamp(version), Lsn(version * 1_000_000 + number));
            dc.apply(&[Operation { table: TABLE, key: &key, value: Some(&value), timestamp, lsn }]).unwrap();
        }
    };
    // So often that pages have several fragments, and are read before they are flushed.
    (1..4).for_each(|version| apply(version, 0..10_000));
    let prepared = || dc.llama().statistics().rows_prepared;
    dc.set_memory_budget(64 << 20);
    let before = prepared();
    assert!(!dc.help_step().unwrap() && prepared() == before, "there is room");
    apply(4, 0..2_000);
    dc.set_memory_budget(256 << 10);
    let helped = (0..1_000).find(|_| !dc.help_step().unwrap());
    assert!(helped.is_some_and(|helped| helped > 0), "{helped:?}: some, until enough wait");
    assert!(prepared() > before);
    // What it has read is flushed next, and nothing has changed.
    while dc.maintain_step().unwrap() {}
    for number in 0..10_000 {
        let found = dc.get(TABLE, &key(number)).unwrap().expect("present");
        assert_eq!(found.value.unwrap(), value(number, if number < 2_000 { 4 } else { 3 }));
    }
    assert_eq!(dc.check().unwrap().trees.records, 10_000);
}

#[test]
fn the_mapping_table_and_the_indexes_take_their_memory_from_the_pages() {
    // Also while background work is held up, as by a long checkpoint.
    for maintained in [true, false] {
        let dc = open(&in_memory(), options());
        let budget = dc.llama().options().memory_bytes;
        assert_eq!(dc.llama().pages_bytes_max(), budget);
        for number in 0..40_000u64 {
            let (key, value) = (key(number), value(number, 1));
            let (timestamp, lsn) = (Timestamp(1), Lsn(number));
            dc.apply(&[Operation { table: TABLE, key: &key, value: Some(&value), timestamp, lsn }]).unwrap();
            if maintained && number % 1000 == 0 {
                while dc.maintain_step().unwrap() {}
            }
        }
        let index = dc.statistics().memory_bytes - dc.memory_bytes();
        // 80 bytes an entry.
        let beside = index + dc.llama().statistics().page_ids * 80;
        assert!(beside > budget / 3, "{beside} bytes besides the pages");
        let all = dc.memory_bytes() + beside;
        assert!(
            all <= budget * 9 / 8,
            "{all} bytes in all, of a budget of {budget}, maintained: {maintained}"
        );
    }
}

#[test]
fn large_values_come_and_go_like_others() {
    support::on_all_directories(large_values_come_and_go);
}

fn large_values_come_and_go(directory: Arc<dyn Directory>) {
    let options = || DcOptions {
        segment_bytes: 16 << 20,
        memory_bytes: 4 << 20,
        value_bytes_max: 1 << 20,
        chunk_bytes: 1 << 20,
        ..DcOptions::tiny_for_tests()
    };
    let dc = open(&directory, options());
    let large = |number: u64| vec![number as u8; (1 << 20) - number as usize];
    for version in 1..3 {
        for number in 0..12u64 {
            let (key, small, value) = (key(number), key(number + 1000), large(number + version));
            let row = |key, value, lsn| Operation {
                table: TABLE,
                key,
                value: Some(value),
                timestamp: Timestamp(version),
                lsn: Lsn(lsn),
            };
            dc.apply(&[row(&key, &value, 1), row(&small, &key, 2)]).unwrap();
        }
    }
    dc.redo_scan_start_point(Lsn(3)).unwrap();
    for dc in [dc, open(&directory, options())] {
        for number in 0..12 {
            assert!(dc.get(TABLE, &key(number)).unwrap().unwrap().value.unwrap() == large(number + 2));
            assert_eq!(dc.get(TABLE, &key(number + 1000)).unwrap().unwrap().value.unwrap(), key(number));
        }
        let statistics = dc.llama().statistics();
        assert!(statistics.loads + statistics.excerpts > 10, "{statistics:?}");
        assert_eq!(dc.check().unwrap().trees.records, 24);
    }
}

#[test]
fn the_disk_does_not_fill_with_what_was_overwritten() {
    let directory = in_memory();
    let dc = open(&directory, DcOptions { segment_bytes: 256 << 10, ..options() });
    let (count, mut largest) = (5000u64, 0);
    for round in 1..=12u64 {
        for start in (0..count).step_by(50) {
            let rows: Vec<_> =
                (start..start + 50).map(|number| (key(number * 7), value(number, round))).collect();
            let operations: Vec<_> = rows
                .iter()
                .map(|(key, value)| Operation {
                    table: TABLE,
                    key,
                    value: Some(value),
                    timestamp: Timestamp(round),
                    lsn: Lsn(round),
                })
                .collect();
            dc.apply(&operations).unwrap();
            dc.maintain_step().unwrap();
        }
        dc.redo_scan_start_point(Lsn(round + 1)).unwrap();
        for _ in 0..200 {
            if !dc.maintain_step().unwrap() {
                break;
            }
        }
        dc.redo_scan_start_point(Lsn(round + 1)).unwrap();
        if round > 4 {
            largest = largest.max(dc.statistics().disk_bytes);
        }
    }
    let live = dc.llama().statistics().live_bytes;
    assert!(largest < 4 * live, "{largest} bytes of disk for {live} live ones");
    assert_eq!(dc.check().unwrap().trees.records, count);
}

#[test]
fn updates_of_evicted_pages_do_not_read_them() {
    let directory = in_memory();
    let dc = open(&directory, DcOptions { memory_bytes: 8 << 20, ..options() });
    let apply = |numbers: std::ops::Range<u64>, version: u64| {
        let rows: Vec<_> = numbers.map(|number| (key(number), value(number, version))).collect();
        let operation = |(key, value): &'_ ([u8; 8], Vec<u8>)| (key.to_vec(), value.clone());
        for (key, value) in rows.iter().map(operation) {
            let timestamp = Timestamp(version);
            dc.apply(&[Operation {
                table: TABLE,
                key: &key,
                value: Some(&value),
                timestamp,
                lsn: Lsn(version),
            }])
            .unwrap();
        }
    };
    apply(0..5000, 1);
    dc.redo_scan_start_point(Lsn(2)).unwrap();
    while dc.llama().evict_step(u64::MAX).bytes > 0 {}
    let before = dc.llama().statistics().loads;
    apply(0..300, 2);
    let deltas = dc.statistics().counters.iter().find(|(name, _)| *name == "blind_deltas").unwrap().1;
    assert!(deltas >= 300, "{deltas} blind deltas");
    assert_eq!(dc.llama().statistics().loads, before);
    for number in 0..300 {
        assert_eq!(dc.get(TABLE, &key(number)).unwrap().unwrap().value.unwrap(), value(number, 2));
    }
    dc.check().unwrap();
}

#[test]
fn a_scan_of_everything_leaves_the_hot_set_in_memory() {
    let directory = in_memory();
    let count = 40_000u64;
    // As much again for the mapping table and the index as for pages.
    let dc = open(&directory, DcOptions { memory_bytes: 896 << 10, ..options() });
    for start in (0..count).step_by(100) {
        let rows: Vec<_> = (start..start + 100).map(|number| (key(number), value(number, 1))).collect();
        let operation = |(key, value)| Operation {
            table: TABLE,
            key,
            value: Some(value),
            timestamp: Timestamp(1),
            lsn: Lsn(start),
        };
        dc.apply(&rows.iter().map(|(key, value)| operation((&key[..], &value[..]))).collect::<Vec<_>>())
            .unwrap();
    }
    dc.redo_scan_start_point(Lsn(count)).unwrap();
    // Some fifty pages of two thousand, of which memory holds two hundred.
    let hot: Vec<_> = (0..50).map(|number| key(number * 797)).collect();
    let loads_of_hot = || {
        let before = dc.llama().statistics().loads;
        hot.iter().for_each(|key| assert!(dc.get(TABLE, key).unwrap().is_some()));
        dc.llama().statistics().loads - before
    };
    // A page is loaded when it is read again; some are forgotten before that.
    for _ in 0..8 {
        loads_of_hot();
    }
    let excerpts = dc.llama().statistics().excerpts;
    let evicted = dc.llama().statistics().pages_evicted;
    let (mut last, mut scanned, mut loaded): (Option<Vec<u8>>, _, _) = (None, 0, 0);
    loop {
        let request = ScanRequest {
            table: TABLE,
            lower: last.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
            upper: Bound::Unbounded,
            direction: Direction::Forward,
            bytes_max: 60_000,
            records_max: usize::MAX,
        };
        let batch = dc.scan(&request).unwrap();
        scanned += batch.len() as u64;
        // The hot set is in use meanwhile.
        loaded += loads_of_hot();
        if batch.is_complete() {
            break;
        }
        last = batch.last_key().map(<[u8]>::to_vec);
    }
    assert_eq!(scanned, count);
    assert!(dc.llama().statistics().pages_evicted - evicted > 1000, "the scan was larger than memory");
    let missed = loaded + dc.llama().statistics().excerpts - excerpts;
    assert!(missed < 10, "the hot pages were read {missed} times");
}

/// What has not happened yet of all that is to meet.
fn missing(dc: &BwTreeDc) -> Option<&'static str> {
    let counters = dc.statistics().counters;
    let count = |wanted| counters.iter().find(|(name, _)| *name == wanted).expect("a counter").1;
    let names = ["leaf_splits", "consolidations", "loads", "pages_evicted", "checkpoints"];
    names.into_iter().find(|&name| count(name) == 0)
}

#[test]
fn threads_write_read_scan_flush_evict_and_checkpoint_at_once() {
    support::on_all_directories(|directory| threads_at_once(directory, 1, options()));
    let tiny = || DcOptions { memory_bytes: 48 << 10, ..DcOptions::tiny_for_tests() };
    support::on_all_directories(|directory| threads_at_once(directory, 2, tiny()));
}

fn threads_at_once(directory: Arc<dyn Directory>, seed: u64, options: DcOptions) {
    let dc = open(&directory, options.clone());
    let count = 400u64;
    // The newest version of each key that is known to be applied; one writer per key.
    let known: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let (dc, known) = (&dc, &known);
                scope.spawn(move || {
                    let mut random = SplitMix::new(seed * 10 + writer);
                    for version in 1..1500u64 {
                        let numbers: Vec<_> = (0..5).map(|_| random.below(count / 2) * 2 + writer).collect();
                        let rows: Vec<_> = numbers.iter().map(|n| (key(*n), value(*n, version))).collect();
                        let operations: Vec<_> = rows
                            .iter()
                            .map(|(key, value)| Operation {
                                table: TABLE,
                                key,
                                value: Some(value),
                                timestamp: Timestamp(version),
                                lsn: Lsn(version),
                            })
                            .collect();
                        dc.apply(&operations).unwrap();
                        for number in numbers {
                            known[number as usize].fetch_max(version, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut random = SplitMix::new(seed + 77);
            while !stop.load(Ordering::Relaxed) {
                let number = random.below(count);
                let least = known[number as usize].load(Ordering::SeqCst);
                match dc.get(TABLE, &key(number)).unwrap() {
                    None => assert_eq!(least, 0),
                    Some(found) => {
                        assert!(found.timestamp.0 >= least, "key {number} went back");
                        assert_eq!(found.value.unwrap(), value(number, found.timestamp.0));
                    }
                }
            }
        });
        scope.spawn(|| {
            let mut reverse = false;
            while !stop.load(Ordering::Relaxed) {
                let least: Vec<_> = known.iter().map(|version| version.load(Ordering::SeqCst)).collect();
                reverse = !reverse;
                let mut found = std::collections::HashMap::new();
                let mut last: Option<Vec<u8>> = None;
                loop {
                    let bound = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                    let batch = dc
                        .scan(&ScanRequest {
                            table: TABLE,
                            lower: if reverse { Bound::Unbounded } else { bound },
                            upper: if reverse { bound } else { Bound::Unbounded },
                            direction: if reverse { Direction::Reverse } else { Direction::Forward },
                            bytes_max: 3000,
                            records_max: usize::MAX,
                        })
                        .unwrap();
                    last = batch.last_key().map(<[u8]>::to_vec);
                    for record in batch.iter() {
                        assert!(found.insert(record.key.to_vec(), record.timestamp.0).is_none());
                    }
                    if batch.is_complete() {
                        break;
                    }
                }
                for (number, least) in least.into_iter().enumerate().filter(|(_, least)| *least > 0) {
                    let version = found.get(&key(number as u64)[..]).copied().unwrap_or(0);
                    assert!(version >= least, "scan saw {version} of key {number}, not {least}");
                }
            }
        });
        scope.spawn(|| {
            let mut random = SplitMix::new(seed + 5);
            while !stop.load(Ordering::Relaxed) {
                match random.below(5) {
                    0 => drop(dc.llama().evict_step(random.below(64 << 10))),
                    1 => drop(dc.llama().flush_step().unwrap()),
                    2 => drop(dc.maintain_step().unwrap()),
                    3 => dc.redo_scan_start_point(Lsn(0)).unwrap(),
                    _ => std::thread::yield_now(),
                }
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        // The others may have had few turns so far.
        for _ in 0..10_000 {
            if missing(&dc).is_none() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(missing(&dc), None, "in setting {seed}");
    let report = dc.check().unwrap();
    assert!(report.trees.leaves > 10, "{report:?}");
    dc.redo_scan_start_point(Lsn(2000)).unwrap();
    drop(dc);
    let dc = open(&directory, options);
    dc.check().unwrap();
    for (number, version) in known.iter().enumerate() {
        let version = version.load(Ordering::SeqCst);
        let found = dc.get(TABLE, &key(number as u64)).unwrap();
        assert_eq!(found.map_or(0, |found| found.timestamp.0), version);
    }
}

#[test]
fn what_is_remembered_of_tombstones_takes_its_memory_from_the_pages() {
    let memory_bytes = 8 << 20;
    let dc = open(
        &(Arc::new(MemoryDirectory::new()) as Arc<dyn Directory>),
        DcOptions { memory_bytes, ..options() },
    );
    let long = |number: u64| [&[b'k'; 200][..], &key(number)].concat();
    for value in [Some(&[7; 100][..]), None] {
        for number in 0..10_000u64 {
            let (timestamp, lsn) = (Timestamp(1 + u64::from(value.is_none())), Lsn(number));
            dc.apply(&[Operation { table: TABLE, key: &long(number), value, timestamp, lsn }]).unwrap();
        }
    }
    let budget = dc.llama().pages_bytes_max();
    // But for what is always there.
    let beside = || {
        dc.set_memory_budget(memory_bytes);
        budget - dc.llama().pages_bytes_max() - dc.tables_bytes()
    };
    let before = beside();
    for lsn in 10_000..10_003 {
        dc.redo_scan_start_point(Lsn(lsn)).unwrap();
    }
    while dc.maintain_step().unwrap() {}
    let after = beside();
    assert!(before > after + (128 << 10), "{before} {after}");
}
