//! Values that no log record holds: read by their writer and by others, after a crash, from a backup; and gone when they are deleted.

use deuteron::device::{CrashPolicy, Directory, FaultPlan, MemoryDirectory, SimulatedDisk};
use deuteron::{Db, Error, Options, restore_in};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

fn open(directory: Arc<dyn Directory>) -> Result<Db, Error> {
    Options::tiny_for_tests().open_in(directory)
}

/// Bytes that tell which value they are of and where in it.
fn value(seed: u64, length: usize) -> Vec<u8> {
    let word = |at: u64| (seed << 32 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let mut bytes: Vec<u8> = (0..length as u64 / 8).flat_map(word).collect();
    bytes.resize(length, seed as u8);
    bytes
}

fn read(db: &Db, key: &[u8]) -> Option<Vec<u8>> {
    let table = db.table("t").expect("is there");
    db.transact(|tx| tx.get(&table, key)).expect("reads")
}

fn scan(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    let table = db.table("t").expect("is there");
    db.transact(|tx| tx.scan(&table, ..)?.collect()).expect("scans")
}

fn settle(db: &Db) {
    for _ in 0..3 {
        while db.step().expect("works") {}
        db.checkpoint().expect("takes a checkpoint");
    }
}

#[test]
fn a_large_value_is_seen_by_its_writer_by_others_and_after_a_crash() {
    let disk = SimulatedDisk::new(1);
    let db = open(Arc::new(disk.directory())).expect("opens");
    let table = db.table("t").expect("creates");
    let lengths = [10_000, 16_000, 17_000, 40_000, 64 << 10];
    for (seed, length) in (1..).zip(lengths) {
        let key = format!("{length:06}").into_bytes();
        let mut tx = db.begin();
        tx.put(&table, &key, b"first something short").expect("writes");
        tx.put(&table, &key, &value(seed, length)).expect("writes");
        assert!(tx.get(&table, &key).expect("reads its own") == Some(value(seed, length)));
        assert_eq!(tx.scan(&table, ..).expect("scans").count(), seed as usize);
        assert_eq!(read(&db, &key), None, "nobody else does");
        tx.commit().expect("commits");
        assert!(read(&db, &key) == Some(value(seed, length)));
        db.step().expect("works");
    }
    let expected: Vec<_> = (1..)
        .zip(lengths)
        .map(|(seed, length)| (format!("{length:06}").into_bytes(), value(seed, length)))
        .collect();
    assert!(scan(&db) == expected);
    let mut reverse: Vec<_> =
        db.transact(|tx| tx.scan(&table, ..)?.rev().collect::<Result<Vec<_>, _>>()).expect("scans");
    reverse.reverse();
    assert!(reverse == expected);
    let too_long = vec![0; (64 << 10) + 1];
    let refused = db.transact(|tx| tx.put(&table, b"x", &too_long));
    assert!(matches!(refused, Err(Error::ValueSize { limit, .. }) if limit == 64 << 10));

    // From the log alone, from the log and pages, and from pages alone.
    drop((db, table));
    disk.crash(CrashPolicy::LoseAll);
    let db = open(Arc::new(disk.directory())).expect("opens again");
    assert!(scan(&db) == expected);
    settle(&db);
    assert!(scan(&db) == expected);
    assert!(db.check().expect("checks").problems.is_empty());
    let shelf = MemoryDirectory::new();
    db.backup_in(&shelf, "monday").expect("backs up");
    drop(db);
    disk.crash(CrashPolicy::Random);
    let db = open(Arc::new(disk.directory())).expect("opens again");
    assert!(scan(&db) == expected);
    let target = Arc::new(MemoryDirectory::new());
    restore_in(&shelf, "monday", target.as_ref()).expect("restores");
    assert!(scan(&open(target).expect("opens")) == expected);
}

#[test]
fn what_is_aborted_overwritten_or_deleted_gives_its_space_back() {
    let db = open(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = db.table("t").expect("creates");
    for round in 0..20 {
        let mut aborted = db.begin();
        aborted.put(&table, b"aborted", &value(round, 50_000)).expect("writes");
        aborted.put(&table, b"short", b"never").expect("writes");
        drop(aborted);
        db.transact(|tx| {
            tx.put(&table, b"short", &round.to_le_bytes())?;
            tx.put(&table, b"large", &value(round, 50_000))?;
            tx.put(&table, b"other", &value(round + 100, 30_000))
        })
        .expect("commits");
        assert!(read(&db, b"large") == Some(value(round, 50_000)));
        while db.step().expect("works") {}
    }
    db.transact(|tx| tx.delete(&table, b"other")).expect("deletes");
    settle(&db);
    db.compact().expect("compacts");
    assert!(
        scan(&db)
            == [(b"large".to_vec(), value(19, 50_000)), (b"short".to_vec(), 19u64.to_le_bytes().to_vec())]
    );
    let disk_bytes = db.stats().disk_bytes;
    assert!(disk_bytes < 24 * (64 << 10), "{disk_bytes}");
    db.close().expect("closes");
}

/// Says how many transactions have been acknowledged.
fn history(disk: &SimulatedDisk, acknowledged: &mut u64) -> Result<(), Error> {
    let db = open(Arc::new(disk.directory()))?;
    let table = db.table("t")?;
    for round in 1..=12 {
        let mut aborted = db.begin();
        aborted.put(&table, b"aborted", &value(round, 20_000))?;
        db.transact(|tx| {
            tx.put(&table, b"a", &value(round, 30_000))?;
            tx.put(&table, b"b", &round.to_le_bytes())?;
            tx.put(&table, b"c", &value(round + 1000, if round % 3 == 0 { 100 } else { 20_000 }))
        })?;
        *acknowledged = round;
        drop(aborted);
        db.step()?;
        if round % 5 == 0 {
            db.checkpoint()?;
        }
    }
    db.close()
}

#[test]
fn a_crash_anywhere_keeps_what_was_acknowledged_whole() {
    let disk = SimulatedDisk::new(5);
    history(&disk, &mut 0).expect("works");
    let mut points = 0;
    for crash_at in 0..disk.operations() {
        let policy = [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Random][crash_at as usize % 3];
        let disk = SimulatedDisk::new(crash_at);
        disk.set_faults(FaultPlan::new().crash_after(crash_at));
        let mut acknowledged = 0;
        let ended = history(&disk, &mut acknowledged);
        assert!(ended.is_err() || !disk.is_stopped());
        disk.crash(policy);
        let context = format!("after {crash_at} {policy:?}");
        for life in 0..2 {
            let db = open(Arc::new(disk.directory())).unwrap_or_else(|error| panic!("{context}: {error:?}"));
            let found = scan(&db);
            let round = match &found[..] {
                [] => 0,
                [a, b, c] => {
                    let round = u64::from_le_bytes(b.1[..].try_into().expect("eight bytes"));
                    let length = if round % 3 == 0 { 100 } else { 20_000 };
                    assert!(a.1 == value(round, 30_000) && c.1 == value(round + 1000, length), "{context}");
                    round
                }
                other => panic!("{context}: {} records", other.len()),
            };
            assert!(round >= acknowledged && round <= acknowledged + 1, "{context}: {round} {acknowledged}");
            assert!(db.check().expect("checks").problems.is_empty(), "{context}");
            if life == 0 {
                drop(db);
                disk.crash(policy);
            }
        }
        points += 1;
    }
    println!("large values: {points} points, 0 failures");
    assert!(points > 50, "only {points} points");
}

#[test]
fn a_value_of_64_mib_is_written_read_and_recovered_and_a_small_memory_says_what_it_takes() {
    let scratch = tempfile::tempdir().expect("a directory");
    let at = |name: &str| scratch.path().join(name);
    let options = || Options::new().memory(256 << 20);
    let db = options().open(at("a.db")).expect("opens");
    let table = db.table("t").expect("creates");
    let bytes = value(7, 64 << 20);
    let mut tx = db.begin();
    tx.put(&table, b"large", &bytes).expect("writes");
    assert!(tx.get(&table, b"large").expect("reads its own").as_ref() == Some(&bytes));
    tx.commit().expect("commits");
    assert!(read(&db, b"large").as_ref() == Some(&bytes));
    assert!(scan(&db) == [(b"large".to_vec(), bytes.clone())]);
    db.backup(at("backup")).expect("backs up");
    db.close().expect("closes");
    let db = options().open(at("a.db")).expect("opens again");
    assert!(read(&db, b"large").as_ref() == Some(&bytes));
    db.close().expect("closes");
    deuteron::restore(at("backup"), at("b.db")).expect("restores");
    let db = options().open(at("b.db")).expect("opens the copy");
    assert!(read(&db, b"large").as_ref() == Some(&bytes));
    db.close().expect("closes");

    let db = Options::new().memory(16 << 20).open(at("small.db")).expect("opens");
    let table = db.table("t").expect("creates");
    let refused = db.transact(|tx| tx.put(&table, b"large", &bytes));
    assert!(matches!(refused, Err(Error::ValueSize { limit, .. }) if limit == 4 << 20), "{refused:?}");
    db.transact(|tx| tx.put(&table, b"large", &bytes[..4 << 20])).expect("commits");
    assert!(read(&db, b"large").as_deref() == Some(&bytes[..4 << 20]));
    db.close().expect("closes");
}

/// The redo start is that of a small write which lies among the pieces of a large one that has committed.
#[test]
fn a_database_opens_though_a_long_value_begins_before_its_redo_start() {
    for round in 0..12u64 {
        let directory = Arc::new(MemoryDirectory::new());
        let open =
            || Options::new().memory(64 << 20).open_in(Arc::<MemoryDirectory>::clone(&directory)).unwrap();
        let db = open();
        let table = db.table("table").unwrap();
        let value: Vec<u8> = (0..6u32 << 20).map(|byte| (byte / 1000) as u8).collect();
        let begun = AtomicBool::new(false);
        let small = thread::scope(|scope| {
            scope.spawn(|| {
                let mut large = db.begin();
                begun.store(true, Ordering::SeqCst);
                large.put(&table, b"large", &value).unwrap();
                large.commit().unwrap();
            });
            while !begun.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            thread::sleep(Duration::from_micros(150 * round));
            let mut small = db.begin();
            small.put(&table, b"small", b"1").unwrap();
            small
        });
        db.checkpoint().unwrap();
        db.close().unwrap();
        drop((small, table));
        let db = open();
        let table = db.table("table").unwrap();
        assert!(db.begin().get(&table, b"large").unwrap() == Some(value), "{round}");
        assert_eq!(db.begin().get(&table, b"small").unwrap(), None);
        db.close().unwrap();
    }
}
