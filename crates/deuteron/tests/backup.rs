//! Backups: what is restored is the database as of one moment, whatever went on meanwhile; damage is found; the source comes to
//! no harm.

use deuteron::device::{
    AlignedBuffer, BLOCK_BYTES, CrashPolicy, Directory, FaultKind, FaultPlan, MemoryDirectory, OpenMode,
    Operation, SimulatedDisk,
};
use deuteron::{
    Background, Db, Durability, Error, MEMORY_BYTES_MIN, Options, RetryPolicy, TransactionOptions, restore,
    restore_in,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn records(db: &Db, table: &str) -> Records {
    let table = db.table(table).expect("opens the table");
    db.transact(|tx| tx.scan(&table, ..)?.collect()).expect("reads")
}

struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("eight bytes"))
}

/// Transfers between accounts, and a counter for each thread of the transfers that were acknowledged.
#[test]
fn backups_under_concurrent_writers_are_of_one_moment_and_hold_what_was_acknowledged() {
    const THREADS: usize = 2;
    const ACCOUNTS: u64 = 200;
    let directory = Arc::new(MemoryDirectory::new());
    let options = || Options::tiny_for_tests().background(Background::Threads);
    let db = options().open_in(Arc::clone(&directory) as _).expect("opens");
    let accounts = db.table("accounts").expect("creates");
    let counters = db.table("counters").expect("creates");
    db.transact(|tx| {
        (0..ACCOUNTS)
            .try_for_each(|account| tx.put(&accounts, &account.to_be_bytes(), &1000u64.to_le_bytes()))
    })
    .expect("fills");
    let done = AtomicBool::new(false);
    let acknowledged: [AtomicU64; THREADS] = Default::default();
    let shelf = MemoryDirectory::new();
    std::thread::scope(|scope| {
        for (thread, acknowledged) in acknowledged.iter().enumerate() {
            let (db, accounts, counters, done) = (&db, &accounts, &counters, &done);
            scope.spawn(move || {
                let mut random = thread as u64 + 1;
                for count in 1.. {
                    if done.load(Ordering::Acquire) {
                        return;
                    }
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let (from, to) = ((random >> 33) % ACCOUNTS, (random >> 45) % ACCOUNTS);
                    // What was acknowledged only in memory counts, too.
                    let durability = if count % 3 == 0 { Durability::Sync } else { Durability::None };
                    let options = TransactionOptions::new().durability(durability);
                    let moved = db.transact_with(options, RetryPolicy::default(), |tx| {
                        let balance = |found: Option<Vec<u8>>| number(&found.expect("an account"));
                        let left = balance(tx.get(accounts, &from.to_be_bytes())?);
                        if left > 0 && from != to {
                            let right = balance(tx.get(accounts, &to.to_be_bytes())?);
                            tx.put(accounts, &from.to_be_bytes(), &(left - 1).to_le_bytes())?;
                            tx.put(accounts, &to.to_be_bytes(), &(right + 1).to_le_bytes())?;
                        }
                        tx.put(counters, &[thread as u8], &u64::to_le_bytes(count))
                    });
                    match moved {
                        Ok(()) => acknowledged.store(count, Ordering::Release),
                        Err(error) if error.is_retryable() => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        // A failure shall not leave the writers running.
        let _stop = SetAtEnd(&done);
        for round in 0..12u32 {
            let before: Vec<u64> = acknowledged.iter().map(|count| count.load(Ordering::Acquire)).collect();
            let name = format!("backup {round}");
            let report = db.backup_in(&shelf, &name).expect("backs up");
            assert!(report.files >= 2 && report.bytes < report.archive_bytes);
            let target = Arc::new(MemoryDirectory::new());
            restore_in(&shelf, &name, target.as_ref()).expect("restores");
            let restored = Options::tiny_for_tests().create_if_missing(false).open_in(target).expect("opens");
            assert!(restored.check().expect("checks").problems.is_empty());
            let sum: u64 = records(&restored, "accounts").values().map(|value| number(value)).sum();
            assert_eq!(sum, ACCOUNTS * 1000, "round {round}");
            let counters = records(&restored, "counters");
            for (thread, before) in before.into_iter().enumerate() {
                let held = counters.get(&vec![thread as u8]).map_or(0, |value| number(value));
                assert!(held >= before, "round {round}: {held} of {before} transfers of thread {thread}");
            }
            restored.close().expect("closes");
            // With a checkpoint now and then, so that logs and images differ.
            if round % 4 == 3 {
                db.checkpoint().expect("takes a checkpoint");
            }
        }
    });
    db.close().expect("closes");
}

/// Pages were flushed because memory ran short, and there has been no checkpoint yet.
#[test]
fn a_backup_before_the_first_checkpoint_opens() {
    let options = || Options::new().memory(MEMORY_BYTES_MIN).background(Background::Inline);
    let db = options().open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = db.table("t").expect("creates");
    let (mut model, mut written) = (Records::new(), 0u64);
    while db.stats().bytes_written_store == 0 {
        let keys: Vec<[u8; 8]> = (written..written + 64).map(u64::to_be_bytes).collect();
        db.transact(|tx| keys.iter().try_for_each(|key| tx.put(&table, key, &[7; 1000]))).expect("commits");
        model.extend(keys.into_iter().map(|key| (key.to_vec(), vec![7; 1000])));
        written += 64;
        db.step().expect("steps");
    }
    let (shelf, target) = (MemoryDirectory::new(), Arc::new(MemoryDirectory::new()));
    db.backup_in(&shelf, "early").expect("backs up");
    restore_in(&shelf, "early", target.as_ref()).expect("restores");
    let restored = options().create_if_missing(false).open_in(target).expect("opens");
    assert_eq!(records(&restored, "t"), model);
    restored.close().expect("closes");
    db.close().expect("closes");
}

/// One calling thread: the backup holds exactly what is there.
#[test]
fn a_backup_at_any_point_of_a_history_holds_exactly_its_state() {
    let db = Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = db.table("t").expect("creates");
    let mut model = Records::new();
    let shelf = MemoryDirectory::new();
    for step in 0..120u32 {
        db.transact(|tx| {
            for write in 0..6u32 {
                let key = (step * 7 + write * 13) % 90;
                if (step + write) % 5 == 0 {
                    tx.delete(&table, &key.to_be_bytes())?;
                } else {
                    tx.put(&table, &key.to_be_bytes(), &vec![step as u8; (write * 30) as usize])?;
                }
            }
            Ok(())
        })
        .expect("commits");
        for write in 0..6u32 {
            let key = ((step * 7 + write * 13) % 90).to_be_bytes().to_vec();
            match (step + write) % 5 {
                0 => drop(model.remove(&key)),
                _ => drop(model.insert(key, vec![step as u8; (write * 30) as usize])),
            }
        }
        if step % 11 == 0 {
            db.checkpoint().expect("takes a checkpoint");
        }
        if step % 3 == 0 {
            db.step().expect("works");
        }
        if step % 4 == 0 {
            let name = step.to_string();
            db.backup_in(&shelf, &name).expect("backs up");
            let target = Arc::new(MemoryDirectory::new());
            restore_in(&shelf, &name, target.as_ref()).expect("restores");
            let restored = Options::tiny_for_tests().open_in(target).expect("opens");
            assert_eq!(records(&restored, "t"), model, "after step {step}");
            // It is a database like any other.
            let table = restored.table("t").expect("is there");
            restored.transact(|tx| tx.put(&table, b"new", b"1")).expect("commits");
            restored.close().expect("closes");
        }
    }
    db.close().expect("closes");
}

fn small_database() -> (Db, MemoryDirectory) {
    let db = Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = db.table("t").expect("creates");
    for key in 0..50u32 {
        db.transact(|tx| tx.put(&table, &key.to_be_bytes(), &[7; 100])).expect("commits");
    }
    db.checkpoint().expect("takes a checkpoint");
    let shelf = MemoryDirectory::new();
    db.backup_in(&shelf, "backup").expect("backs up");
    (db, shelf)
}

fn copy_of(shelf: &MemoryDirectory) -> Vec<u8> {
    let file = shelf.open("backup", OpenMode::Read, false).expect("opens");
    let mut bytes = vec![0; file.length().expect("has a length") as usize];
    file.read_at(&mut bytes, 0).expect("reads");
    bytes
}

fn shelf_with(bytes: &[u8]) -> MemoryDirectory {
    let shelf = MemoryDirectory::new();
    let file = shelf.open("backup", OpenMode::CreateNew, false).expect("creates");
    file.write_at(bytes, 0).expect("writes");
    shelf
}

#[test]
fn damage_anywhere_is_refused_with_its_place_and_leaves_nothing() {
    let (_db, shelf) = small_database();
    let whole = copy_of(&shelf);
    let mut places = 0;
    for at in (0..whole.len()).step_by(509) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        let target = MemoryDirectory::new();
        match restore_in(&shelf_with(&damaged), "backup", &target) {
            Err(Error::Corrupt { file, offset, .. }) => {
                assert_eq!(file, "backup");
                // The block with the damage: a header, or the data behind it.
                assert!(offset <= at as u64 && at as u64 - offset < 4096 + (1 << 20), "{at}: {offset}");
                places += 1;
            }
            other => panic!("damage at {at}: {other:?}"),
        }
        assert!(target.list().expect("lists").iter().all(|name| name == "lock"));
    }
    assert!(places > 100);
    for length in [0, 1, 4096, whole.len() / 2 / 4096 * 4096, whole.len() - 4096, whole.len() - 1] {
        let cut = restore_in(&shelf_with(&whole[..length]), "backup", &MemoryDirectory::new());
        assert!(matches!(cut, Err(Error::Corrupt { .. })), "cut at {length}: {cut:?}");
    }
    // Blocks of another backup of the same database.
    let (_other, other_shelf) = small_database();
    let other = copy_of(&other_shelf);
    let mixed: Vec<u8> = whole[..whole.len() / 2 / 4096 * 4096]
        .iter()
        .chain(&other[(whole.len() / 2 / 4096 * 4096).min(other.len())..])
        .copied()
        .collect();
    assert!(matches!(
        restore_in(&shelf_with(&mixed), "backup", &MemoryDirectory::new()),
        Err(Error::Corrupt { .. })
    ));
}

fn five_records_on(disk: &SimulatedDisk) -> Db {
    let db = Options::tiny_for_tests().open_in(Arc::new(disk.directory())).expect("opens");
    let table = db.table("t").expect("creates");
    for number in 0..5_u8 {
        db.transact(|tx| tx.put(&table, &[b'k', number], &[number; 100])).expect("commits");
    }
    db
}

/// A lying device has lost what was written last: the copy would look as if that had never been.
#[test]
fn a_log_that_has_lost_its_end_is_not_backed_up() {
    let disk = SimulatedDisk::new(3);
    let db = five_records_on(&disk);
    let mut segments = disk.directory().list().expect("lists");
    segments.retain(|name| name.starts_with("log-") && name.ends_with(".seg"));
    let last = segments.iter().max().expect("there is a log");
    let file = disk.directory().open(last, OpenMode::ReadWrite, false).expect("opens");
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    let mut at = file.length().expect("has a length");
    while block.iter().all(|byte| *byte == 0) {
        at -= BLOCK_BYTES as u64;
        file.read_at(&mut block, at).expect("reads");
    }
    file.write_at(&AlignedBuffer::zeroed(BLOCK_BYTES), at).expect("writes");
    let shelf = MemoryDirectory::new();
    match db.backup_in(&shelf, "backup") {
        Err(Error::Corrupt { file, .. }) => assert_eq!(file, *last),
        other => panic!("{other:?}"),
    }
    assert_eq!(shelf.list().expect("lists"), [""; 0]);
    // Pages have it all; with them the log is not needed.
    while db.step().expect("works") {}
    db.checkpoint().expect("takes a checkpoint");
    db.backup_in(&shelf, "backup").expect("backs up");
    let target = Arc::new(MemoryDirectory::new());
    restore_in(&shelf, "backup", &*target).expect("restores");
    let restored = Options::tiny_for_tests().open_in(target).expect("opens");
    assert_eq!(records(&restored, "t"), records(&db, "t"));
}

/// Reads that show what was there before: each once, while the database is copied.
#[test]
fn a_backup_that_was_read_from_a_lying_device_is_the_present_or_says_so() {
    let disk = SimulatedDisk::new(3);
    let db = five_records_on(&disk);
    let expected = records(&db, "t");
    let (mut told, mut unharmed) = (0, 0);
    for nth in 0.. {
        let shelf = MemoryDirectory::new();
        disk.set_faults(FaultPlan::new().fail(Operation::Read, nth, FaultKind::Stale));
        let backup = db.backup_in(&shelf, "backup");
        let lied = disk.faults_fired() > 0;
        disk.set_faults(FaultPlan::new());
        if !lied {
            backup.expect("backs up");
            break;
        }
        let target = Arc::new(MemoryDirectory::new());
        let restored = backup
            .and_then(|_| restore_in(&shelf, "backup", &*target))
            .and_then(|_| Options::tiny_for_tests().create_if_missing(false).open_in(target));
        match restored {
            Ok(restored) => {
                assert_eq!(records(&restored, "t"), expected, "read {nth}");
                unharmed += 1;
            }
            Err(Error::Corrupt { .. }) => told += 1,
            Err(other) => panic!("read {nth}: {other:?}"),
        }
    }
    assert!(told > 1 && unharmed > 1, "{told} and {unharmed}");
}

#[test]
fn what_exists_is_not_overwritten() {
    let scratch = tempfile::tempdir().expect("a directory");
    let at = |name: &str| scratch.path().join(name);
    let db = Options::new().memory(32 << 20).open(at("db")).expect("opens");
    std::fs::write(at("taken"), b"precious").expect("writes");
    assert!(matches!(db.backup(at("taken")), Err(Error::Exists { .. })));
    assert_eq!(std::fs::read(at("taken")).expect("reads"), b"precious");
    // Also what is no file, and before anything is written.
    std::fs::create_dir(at("shelf")).expect("creates");
    std::os::unix::fs::symlink("nowhere", at("link")).expect("links");
    for taken in ["shelf", "link"] {
        let log_before = db.stats().bytes_written_log;
        let refused = db.backup(at(taken));
        assert!(matches!(&refused, Err(Error::Exists { path }) if path.ends_with(taken)), "{refused:?}");
        assert!(!at(&format!("{taken}.part")).exists() && db.stats().bytes_written_log == log_before);
    }
    assert!(at("link").is_symlink());
    assert!(matches!(db.backup(at("no such directory/backup")), Err(Error::NothingAt { .. })));
    db.backup(at("backup")).expect("backs up");
    assert!(matches!(restore(at("backup"), at("db")), Err(Error::Exists { .. } | Error::InUse { .. })));
    assert!(matches!(restore(at("missing"), at("new")), Err(Error::NothingAt { .. })));
    assert!(!at("new").exists());
    restore(at("backup"), at("new")).expect("restores");
    assert!(matches!(restore(at("backup"), at("new")), Err(Error::Exists { .. })));
    db.close().expect("closes");
}

#[test]
fn a_full_disk_leaves_no_backup_and_the_database_unharmed() {
    let (db, whole) = small_database();
    let bytes = copy_of(&whole).len() as u64;
    for capacity in (0..bytes).step_by(8192) {
        let disk = SimulatedDisk::new(1);
        disk.set_capacity(Some(capacity));
        let shelf = disk.directory();
        assert!(matches!(db.backup_in(&shelf, "backup"), Err(Error::DiskFull { .. })), "{capacity}");
        assert!(shelf.list().expect("lists").is_empty());
    }
    let table = db.table("t").expect("is there");
    db.transact(|tx| tx.put(&table, b"after", b"1")).expect("commits");
    db.checkpoint().expect("checkpoints are not held any more");
    db.close().expect("closes");
}

#[test]
fn a_restore_that_is_stopped_anywhere_is_no_database_and_can_be_repeated() {
    let (_db, shelf) = small_database();
    let disk = SimulatedDisk::new(1);
    restore_in(&shelf, "backup", &disk.directory()).expect("restores");
    let operations = disk.operations();
    for crash_at in 0..operations {
        for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Random] {
            let disk = SimulatedDisk::new(crash_at);
            disk.set_faults(FaultPlan::new().crash_after(crash_at));
            let restored = restore_in(&shelf, "backup", &disk.directory());
            assert!(restored.is_err() || !disk.is_stopped());
            let directory = Arc::new(disk.crash(policy));
            let options = Options::tiny_for_tests().create_if_missing(false);
            match options.open_in(Arc::clone(&directory) as _) {
                Ok(db) => assert_eq!(records(&db, "t").len(), 50, "whole after {crash_at} {policy:?}"),
                Err(Error::NotADatabase { .. } | Error::NotFound { .. }) => {}
                Err(other) => panic!("after {crash_at} {policy:?}: {other:?}"),
            }
        }
    }
    assert!(operations > 10);
}
