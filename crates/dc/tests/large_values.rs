//! Values in chunks: read back whole whatever happens, and gone when nothing refers to them.

use deuteron_contract::conformance::SplitMix;
use deuteron_contract::{DataComponent, DcError, Direction, Lsn, Operation, ScanRequest, TableId, Timestamp};
use deuteron_dc::{BwTreeDc, DcOptions, LoadError};
use deuteron_device::{
    CrashPolicy, Directory, FaultKind, FaultPlan, MemoryDirectory, Operation as Io, SimulatedDisk,
};
use deuteron_epoch::Epochs;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const TABLE: TableId = TableId(1);
/// Of `DcOptions::tiny_for_tests`.
const CHUNK: usize = 1 << 10;

fn open_in(directory: Arc<dyn Directory>) -> Result<Arc<BwTreeDc>, DcError> {
    open_with(directory, 64 << 10)
}

fn open_with(directory: Arc<dyn Directory>, memory_bytes: u64) -> Result<Arc<BwTreeDc>, DcError> {
    let options = DcOptions { memory_bytes, ..DcOptions::tiny_for_tests() };
    BwTreeDc::open(directory, Epochs::with_threshold(16 << 10), options)
}

fn in_memory() -> Arc<BwTreeDc> {
    open_in(Arc::new(MemoryDirectory::new())).expect("opens")
}

/// Bytes that tell which value they are of and where in it.
fn value(seed: u64, length: usize) -> Vec<u8> {
    let mut random = SplitMix::new(seed);
    let mut bytes: Vec<u8> = (0..length / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    bytes.resize(length, seed as u8);
    bytes
}

fn write(dc: &BwTreeDc, key: &[u8], value: Option<&[u8]>, number: u64) -> Result<(), DcError> {
    dc.apply(&[operation(key, value, number)])
}

fn operation<'a>(key: &'a [u8], value: Option<&'a [u8]>, number: u64) -> Operation<'a> {
    Operation { table: TABLE, key, value, timestamp: Timestamp(number), lsn: Lsn(number) }
}

fn read(dc: &BwTreeDc, key: &[u8]) -> Option<Vec<u8>> {
    dc.get(TABLE, key).expect("reads").and_then(|record| record.value)
}

fn scan(dc: &BwTreeDc, bytes_max: usize, direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let (mut lower, mut upper) = (Bound::Unbounded, Bound::Unbounded);
    loop {
        let request = ScanRequest {
            table: TABLE,
            lower: lower.as_ref().map(Vec::as_slice),
            upper: upper.as_ref().map(Vec::as_slice),
            direction,
            bytes_max,
            records_max: usize::MAX,
        };
        let batch = dc.scan(&request).expect("scans");
        let largest = batch.iter().map(|record| record.value.map_or(0, <[u8]>::len)).max();
        let bytes: usize = batch.iter().map(|record| record.value.map_or(0, <[u8]>::len)).sum();
        assert!(bytes <= bytes_max + largest.unwrap_or(0), "a batch is bounded");
        let last = batch.last_key().map(<[u8]>::to_vec);
        found.extend(batch.iter().filter_map(|record| Some((record.key.to_vec(), record.value?.to_vec()))));
        match last {
            Some(last) if !batch.is_complete() => match direction {
                Direction::Forward => lower = Bound::Excluded(last),
                Direction::Reverse => upper = Bound::Excluded(last),
            },
            _ => return found,
        }
    }
}

fn counter(dc: &BwTreeDc, name: &str) -> u64 {
    let counters = dc.statistics().counters;
    counters.iter().find(|(known, _)| *known == name).expect("a counter").1
}

fn live_values(dc: &BwTreeDc) -> u64 {
    counter(dc, "large_values_written") - counter(dc, "large_values_removed")
}

fn settle(dc: &BwTreeDc, mut number: u64) {
    for _ in 0..3 {
        while dc.maintain_step().expect("works") {}
        number += 1;
        dc.redo_scan_start_point(Lsn(number)).expect("persists");
    }
    dc.compact().expect("compacts");
}

#[test]
fn values_of_every_length_come_back_also_those_that_look_like_references() {
    let directory = Arc::new(MemoryDirectory::new());
    let dc = open_in(directory.clone()).expect("opens");
    let mark = b"\xf1\x9cDeuteron\x03large";
    let mut expected = BTreeMap::new();
    let lengths = [0, 1, 15, 16, 17, 45, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1, 64 << 10];
    for (number, length) in (1..).zip(lengths) {
        expected.insert(format!("plain {length:06}").into_bytes(), value(number, length));
        let mut marked = value(number, length);
        marked.iter_mut().zip(mark).for_each(|(byte, mark)| *byte = *mark);
        expected.insert(format!("marked {length:06}").into_bytes(), marked);
    }
    for (number, (key, value)) in (1..).zip(&expected) {
        write(&dc, key, Some(value), number).expect("writes");
    }
    let verify = |dc: &BwTreeDc| {
        for (key, value) in &expected {
            assert_eq!(read(dc, key).as_ref(), Some(value), "{}", key.escape_ascii());
        }
        let whole: Vec<_> = expected.clone().into_iter().collect();
        for bytes_max in [1, 3000, 1 << 20] {
            assert_eq!(scan(dc, bytes_max, Direction::Forward), whole);
        }
        assert!(scan(dc, 3000, Direction::Reverse).into_iter().rev().eq(whole));
        assert_eq!(dc.check().expect("sound").trees.records, expected.len() as u64);
        assert_eq!(dc.tables(), [TABLE]);
    };
    verify(&dc);
    dc.redo_scan_start_point(Lsn(1000)).expect("persists");
    drop(dc);
    let dc = open_in(directory).expect("opens again");
    verify(&dc);
    settle(&dc, 1000);
    verify(&dc);
    let long = vec![0; dc.value_bytes_max() + 1];
    assert!(
        matches!(write(&dc, b"x", Some(&long), 2000), Err(DcError::ValueSize { limit, .. }) if limit == 64 << 10)
    );
}

#[test]
fn what_is_overwritten_or_deleted_gives_its_space_back() {
    let dc = in_memory();
    let mut number = 0;
    for round in 0..6 {
        for key in 0..10u64 {
            number += 1;
            write(&dc, &key.to_be_bytes(), Some(&value(round * 10 + key, 40_000)), number).expect("writes");
            while dc.maintain_step().expect("works") {}
        }
    }
    // Without anybody's asking: half as much garbage as is live, at most, and one step.
    assert!(live_values(&dc) <= 16, "{}", live_values(&dc));
    for key in 0..10u64 {
        assert_eq!(read(&dc, &key.to_be_bytes()), Some(value(50 + key, 40_000)));
    }
    for key in 1..10u64 {
        number += 1;
        // Deleted, or replaced by something short.
        write(&dc, &key.to_be_bytes(), (key % 2 == 0).then_some(&b"short"[..]), number).expect("writes");
    }
    settle(&dc, number);
    assert_eq!(live_values(&dc), 1);
    assert_eq!(read(&dc, &0u64.to_be_bytes()), Some(value(50, 40_000)));
    let disk = dc.statistics().disk_bytes;
    // Tiny inner nodes, each of which keeps a leaf, are many, and two segments are being filled; 2.4 MB have been written.
    assert!(disk < 13 * (64 << 10), "{disk} bytes for one value of 40000");
    dc.check().expect("sound");
}

#[test]
fn a_dropped_table_takes_its_large_values_along() {
    let directory = Arc::new(MemoryDirectory::new());
    let dc = open_in(directory.clone()).expect("opens");
    for key in 0..20u64 {
        write(&dc, &key.to_be_bytes(), Some(&value(key, 30_000)), key + 1).expect("writes");
    }
    dc.redo_scan_start_point(Lsn(100)).expect("persists");
    dc.drop_table(TABLE).expect("drops");
    assert_eq!(read(&dc, &1u64.to_be_bytes()), None);
    // A replay brings one again.
    write(&dc, b"late", Some(&value(1, 30_000)), 50).expect("is ignored");
    settle(&dc, 100);
    assert!(dc.statistics().disk_bytes < 6 * (64 << 10), "{}", dc.statistics().disk_bytes);
    drop(dc);
    let dc = open_in(directory).expect("opens again");
    assert!(dc.tables().is_empty());
    dc.check().expect("sound");
}

#[test]
fn a_loaded_table_has_its_large_values() {
    let directory = Arc::new(MemoryDirectory::new());
    let dc = open_in(directory.clone()).expect("opens");
    let mut load = dc.load_table(TABLE).expect("a new table");
    for key in 0..12u64 {
        load.push(&key.to_be_bytes(), &value(key, key as usize * 5000), Timestamp(0), Lsn(0))
            .expect("in order");
        while dc.maintain_step().expect("works") {}
    }
    load.finish().expect("loads");
    settle(&dc, 1);
    drop(dc);
    let dc = open_in(directory).expect("opens again");
    for key in 0..12u64 {
        assert_eq!(read(&dc, &key.to_be_bytes()), Some(value(key, key as usize * 5000)));
    }
    dc.check().expect("sound");
    // Given up half-way, its number is used up.
    let mut load = dc.load_table(TableId(2)).expect("a new table");
    load.push(b"a", &value(1, 5000), Timestamp(0), Lsn(0)).expect("in order");
    drop(load);
    assert!(dc.load_table(TableId(2)).is_err());
}

#[test]
fn a_load_that_is_given_up_gives_its_large_values_back_and_one_that_goes_on_does_not() {
    for restarted in [false, true] {
        let disk = SimulatedDisk::new(1);
        let dc = open_in(Arc::new(disk.directory())).expect("opens");
        let begin = |table| {
            let mut load = dc.load_table(TableId(table)).expect("a new table");
            for key in 0..40u64 {
                load.push(&key.to_be_bytes(), &value(key, 20_000), Timestamp(1), Lsn(0)).expect("in order");
                while dc.maintain_step().expect("works") {}
            }
            load
        };
        let (goes_on, given_up) = (begin(2), begin(3));
        assert!(dc.statistics().disk_bytes > 2 * 40 * 20_000);
        if restarted {
            drop(goes_on);
            // The machine stops before anything could be removed.
            std::mem::forget(given_up);
        } else {
            drop(given_up);
            settle(&dc, 2);
            goes_on.finish().expect("loads");
            for key in 0..40u64 {
                let found = dc.get(TableId(2), &key.to_be_bytes()).expect("reads");
                assert_eq!(found.and_then(|record| record.value), Some(value(key, 20_000)));
            }
            assert_eq!(dc.check().expect("sound").chunks, 40 * (1 + 20_000u64.div_ceil(CHUNK as u64)));
            continue;
        }
        disk.crash(CrashPolicy::KeepAll);
        let dc = open_in(Arc::new(disk.directory())).expect("opens again");
        settle(&dc, 2);
        assert_eq!(dc.check().expect("sound").chunks, 0);
        assert!(dc.statistics().disk_bytes < 400_000, "{}", dc.statistics().disk_bytes);
    }
}

#[test]
fn a_large_value_of_a_load_that_met_a_full_disk_may_come_again_or_not() {
    let disk = SimulatedDisk::new(1);
    let dc = open_in(Arc::new(disk.directory())).expect("opens");
    let mut load = dc.load_table(TABLE).expect("a new table");
    let (mut refused, mut expected) = (0, Vec::new());
    for key in 0..30u64 {
        disk.set_capacity(Some(disk.used_bytes() + key % 4 * 20_000));
        let mut again = value(key, 30_000);
        while let Err(error) = load.push(&key.to_be_bytes(), &again, Timestamp(1), Lsn(0)) {
            assert!(matches!(error, LoadError::Component(DcError::DiskFull { .. })), "{error:?}");
            refused += 1;
            disk.set_capacity(None);
            match key % 3 {
                0 => {}
                1 => again = value(key, 5000),
                _ => again.clear(),
            }
            if again.is_empty() {
                break;
            }
        }
        if !again.is_empty() {
            expected.push((key.to_be_bytes().to_vec(), again));
        }
    }
    disk.set_capacity(None);
    assert!(refused > 3 && expected.len() > 10, "{refused} refused");
    assert_eq!(load.finish().expect("loads"), expected.len() as u64);
    settle(&dc, 2);
    let chunks = expected.iter().map(|(_, value)| 1 + value.len().div_ceil(CHUNK) as u64).sum::<u64>();
    assert!(scan(&dc, 100_000, Direction::Forward) == expected);
    assert_eq!(dc.check().expect("sound").chunks, chunks, "what came to nothing is gone");
}

#[test]
fn an_operation_posted_again_after_a_failure_is_whole() {
    for fail_at in 0..60 {
        let disk = SimulatedDisk::new(fail_at);
        let dc = open_in(Arc::new(disk.directory())).expect("opens");
        write(&dc, b"key", Some(&value(1, 20_000)), 1).expect("writes");
        // The disk is full for a while, at some point of the operation.
        disk.set_faults(FaultPlan::new().fail(Io::Allocate, fail_at % 4, FaultKind::Full));
        for attempt in 0..50 {
            // Each attempt may find that the sweep has removed what the one before has left.
            if write(&dc, b"key", Some(&value(2, 60_000)), 2).is_ok() {
                break;
            }
            assert!(attempt < 49, "the disk is full once");
            while dc.maintain_step().unwrap_or(false) {}
        }
        disk.set_faults(FaultPlan::new());
        // And once more, as a replay would.
        write(&dc, b"key", Some(&value(2, 60_000)), 2).expect("is superseded");
        assert_eq!(read(&dc, b"key"), Some(value(2, 60_000)));
        settle(&dc, 2);
        assert_eq!(read(&dc, b"key"), Some(value(2, 60_000)));
        dc.check().expect("sound");
    }
}

#[test]
fn an_attempt_that_was_given_up_is_removed_and_may_be_made_again() {
    // The reference never came: as after a crash between the chunks and the reference.
    let disk = SimulatedDisk::new(7);
    let dc = open_in(Arc::new(disk.directory())).expect("opens");
    write(&dc, b"other", Some(&value(9, 3000)), 9).expect("writes");
    dc.redo_scan_start_point(Lsn(1)).expect("persists");
    for crash_at in 0..40 {
        let disk = SimulatedDisk::new(crash_at);
        let dc = open_in(Arc::new(disk.directory())).expect("opens");
        disk.set_faults(FaultPlan::new().crash_after(disk.operations() + crash_at));
        let _ = write(&dc, b"key", Some(&value(2, 50_000)), 2);
        drop(dc);
        disk.crash(CrashPolicy::KeepAll);
        let dc = open_in(Arc::new(disk.directory())).expect("opens again");
        // Swept, or kept, before the log brings it again.
        while dc.maintain_step().expect("works") {}
        write(&dc, b"key", Some(&value(2, 50_000)), 2).expect("writes");
        assert_eq!(read(&dc, b"key"), Some(value(2, 50_000)), "after {crash_at}");
        settle(&dc, 10);
        assert_eq!(read(&dc, b"key"), Some(value(2, 50_000)), "after {crash_at}");
        dc.check().expect("sound");
    }
    drop(dc);
}

#[test]
fn readers_see_whole_values_while_they_are_overwritten() {
    let dc = in_memory();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(1));
    write(&dc, b"key", Some(&value(1, 20_000)), 1).expect("writes");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let least = written.load(Ordering::SeqCst);
                    for found in
                        [read(&dc, b"key"), scan(&dc, 1000, Direction::Forward).pop().map(|found| found.1)]
                    {
                        let found = found.expect("there is always one");
                        let most = written.load(Ordering::SeqCst) + 1;
                        assert!(
                            (least..=most).any(|number| found == value(number, 20_000)),
                            "{least} to {most}"
                        );
                    }
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                dc.maintain_step().expect("works");
            }
        });
        for number in 2..200 {
            write(&dc, b"key", Some(&value(number, 20_000)), number).expect("writes");
            written.store(number, Ordering::SeqCst);
        }
        stop.store(true, Ordering::Relaxed);
    });
    while dc.maintain_step().expect("works") {}
    assert!(counter(&dc, "large_values_removed") > 150);
    dc.check().expect("sound");
}

/// Writes, deletes and maintains; `allowed` is what each key may hold after a crash.
fn history(
    disk: &SimulatedDisk,
    numbers: std::ops::Range<u64>,
    allowed: &mut BTreeMap<u64, Vec<Option<Vec<u8>>>>,
) -> Result<(), DcError> {
    let dc = open_with(Arc::new(disk.directory()), 512 << 10)?;
    for number in numbers {
        let mut random = SplitMix::new(number);
        let key = random.below(5);
        let bytes = match random.below(4) {
            0 => None,
            1 => Some(value(number, random.index(200))),
            _ => Some(value(number, CHUNK + 1 + random.index(9 * CHUNK))),
        };
        allowed.entry(key).or_insert_with(|| vec![None]).push(bytes.clone());
        write(&dc, &key.to_be_bytes(), bytes.as_deref(), number)?;
        // So that a flush of everything takes several buffers.
        let others: Vec<_> = (0..40).map(|_| (random.below(300).to_be_bytes(), value(number, 250))).collect();
        let other = |(key, value)| Operation { table: TableId(2), ..operation(key, Some(value), number) };
        dc.apply(&others.iter().map(|(key, value)| other((key, value))).collect::<Vec<_>>())?;
        for _ in 0..3 {
            dc.maintain_step()?;
        }
        if number % 9 == 8 {
            dc.redo_scan_start_point(Lsn(number + 1))?;
            allowed.values_mut().for_each(|values| drop(values.drain(..values.len() - 1)));
        }
    }
    Ok(())
}

#[test]
fn a_crash_anywhere_leaves_whole_values_and_no_garbage_for_ever() {
    let disk = SimulatedDisk::new(1);
    history(&disk, 1..30, &mut BTreeMap::new()).expect("works");
    let mut points = 0;
    for crash_at in 0..disk.operations() {
        for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Random] {
            let disk = SimulatedDisk::new(crash_at);
            disk.set_faults(FaultPlan::new().crash_after(crash_at));
            let mut allowed = BTreeMap::new();
            let ended = history(&disk, 1..30, &mut allowed);
            assert!(ended.is_err() || !disk.is_stopped());
            disk.crash(policy);
            let context = format!("after {crash_at} {policy:?}");
            let dc =
                open_in(Arc::new(disk.directory())).unwrap_or_else(|error| panic!("{context}: {error:?}"));
            let mut chunks = 0;
            for (key, values) in &allowed {
                let found = read(&dc, &key.to_be_bytes());
                assert!(values.contains(&found), "{context}: key {key}");
                if let Some(found) = found.filter(|found| found.len() > CHUNK) {
                    chunks += 1 + found.len().div_ceil(CHUNK) as u64;
                }
            }
            dc.check().unwrap_or_else(|error| panic!("{context}: {error:?}"));
            settle(&dc, 100);
            for (key, values) in &allowed {
                assert!(values.contains(&read(&dc, &key.to_be_bytes())), "{context}: key {key}, swept");
            }
            let report = dc.check().unwrap_or_else(|error| panic!("{context}: {error:?}"));
            assert_eq!(report.chunks, chunks, "{context}: what is referred to is there, and nothing else");
            points += 1;
        }
    }
    println!("large values: {points} points, 0 failures");
    assert!(points > 200, "only {points} points");
}

#[test]
fn a_value_of_64_mib_passes_through_a_memory_of_8() {
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = Arc::new(deuteron_device::OsDirectory::open_or_create(scratch.path()).expect("opens"));
    let options = DcOptions { memory_bytes: 8 << 20, ..DcOptions::default() };
    let dc = BwTreeDc::open(directory, Epochs::new(), options).expect("opens");
    let bytes = value(1, 64 << 20);
    write(&dc, b"large", Some(&bytes), 1).expect("writes");
    write(&dc, b"small", Some(b"1"), 2).expect("writes");
    assert!(dc.memory_bytes() <= 9 << 20, "{}", dc.memory_bytes());
    assert!(read(&dc, b"large") == Some(bytes));
    assert!(dc.memory_bytes() <= 9 << 20, "{}", dc.memory_bytes());
    let full = dc.statistics().disk_bytes;
    write(&dc, b"large", None, 3).expect("deletes");
    settle(&dc, 3);
    let after = dc.statistics().disk_bytes;
    assert!(after <= full / 2, "{full} {after}");
    assert_eq!(scan(&dc, 1000, Direction::Forward), [(b"small".to_vec(), b"1".to_vec())]);
}

#[test]
fn of_several_keys_as_many_are_answered_as_their_values_fit_and_a_large_one_beyond_is_not_read() {
    let disk = SimulatedDisk::new(1);
    let dc = open_in(Arc::new(disk.directory())).unwrap();
    let values = [value(1, 20 * CHUNK), value(2, 10), value(3, 20 * CHUNK)];
    for (number, value) in (1..).zip(&values) {
        write(&dc, &[number], Some(value), number.into()).unwrap();
    }
    dc.redo_scan_start_point(Lsn(10)).unwrap();
    let dc = open_in(Arc::new(disk.crash(CrashPolicy::LoseAll))).unwrap();
    let get_many = |bytes_max| {
        let before = dc.llama().statistics().bytes_read;
        let found = dc.get_many(TABLE, &[&[1], &[9], &[2], &[3]], bytes_max).unwrap();
        let found: Vec<_> = found.into_iter().map(|record| record.and_then(|record| record.value)).collect();
        (found, dc.llama().statistics().bytes_read - before)
    };
    let [first, second, third] = values.map(Some);
    let all = [first.clone(), None, second.clone(), third];
    assert!(get_many(0).0 == all[..1]);
    assert!(get_many(20 * CHUNK + 9).0 == all[..2]);
    let (found, read) = get_many(40 * CHUNK + 9);
    assert!(found == all[..3]);
    let (found, read_all) = get_many(40 * CHUNK + 10);
    assert!(found == all);
    assert!(read_all > read, "{read_all} bytes, {read} of them before the last");
}
