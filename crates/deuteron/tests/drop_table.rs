//! Dropping a table through the database: names, handles, space, and a crash at every I/O.

use deuteron::device::{
    CrashPolicy, Directory, Doing, FaultPlan, MemoryDirectory, SimulatedDisk, WatchedDirectory,
};
use deuteron::{Background, ConflictCause, Db, Error, Options, Table, Transaction, TransactionOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

fn open(directory: Arc<dyn Directory>) -> Result<Db, Error> {
    Options::tiny_for_tests().open_in(directory)
}

fn fill(db: &Db, name: &str, count: u32) -> Result<(), Error> {
    let table = db.table(name)?;
    db.transact(|tx| (0..count).try_for_each(|number| tx.put(&table, &number.to_be_bytes(), &[7; 40])))
}

fn count(db: &Db, name: &str) -> Result<usize, Error> {
    let table = db.table(name)?;
    db.transact(|tx| tx.scan(&table, ..)?.try_fold(0, |count, entry| entry.map(|_| count + 1)))
}

#[test]
fn a_dropped_table_is_gone_and_its_handles_say_so() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = open(directory.clone()).unwrap();
    fill(&db, "kept", 30).unwrap();
    fill(&db, "gone", 30).unwrap();
    let (first, second) = (db.table("gone").unwrap(), db.table("gone").unwrap());
    let mut under_way = db.begin();
    under_way.put(&first, b"late", b"too late").unwrap();
    db.drop_table("gone").unwrap();

    assert_eq!(db.tables().unwrap(), ["kept"]);
    assert!(matches!(db.drop_table("gone"), Err(Error::NoSuchTable { table }) if table == "gone"));
    assert!(matches!(db.drop_table(""), Err(Error::TableName { found: 0, .. })));
    for handle in [&first, &second] {
        let mut tx = db.begin();
        assert!(matches!(tx.get(handle, b"1"), Err(Error::TableDropped { table }) if table == "gone"));
        assert!(matches!(tx.put(handle, b"1", b""), Err(Error::TableDropped { .. })));
        assert!(matches!(tx.delete(handle, b"1"), Err(Error::TableDropped { .. })));
        assert!(matches!(tx.scan(handle, ..), Err(Error::TableDropped { .. })));
    }
    under_way.commit().unwrap();

    // Another table of the same name.
    let again = db.table("gone").unwrap();
    assert_ne!(again, first);
    assert_eq!(count(&db, "gone").unwrap(), 0);
    fill(&db, "gone", 3).unwrap();
    db.checkpoint().unwrap();
    while db.step().unwrap() {}
    db.close().unwrap();
    let db = open(directory).unwrap();
    assert_eq!(db.tables().unwrap(), ["gone", "kept"]);
    assert_eq!((count(&db, "gone").unwrap(), count(&db, "kept").unwrap()), (3, 30));
    db.close().unwrap();
}

#[test]
fn a_transaction_that_changes_what_is_dropped_meanwhile_commits_the_rest() {
    let db = open(Arc::new(MemoryDirectory::new())).unwrap();
    let (kept, gone) = (db.table("kept").unwrap(), db.table("gone").unwrap());
    // Too long to be kept beside its version: it is in the log, and soon in the data component only.
    db.transact(|tx| tx.put(&gone, b"list", &[7; 1000])).unwrap();
    let mut under_way = db.begin();
    under_way.append(&gone, b"list", b"more").unwrap();
    under_way.add(&kept, b"sum", 5).unwrap();
    let mut reader = db.begin();
    for number in 0..100u32 {
        db.transact(|tx| tx.put(&kept, &number.to_be_bytes(), &[1; 1000])).unwrap();
        while db.step().unwrap() {}
    }
    db.drop_table("gone").unwrap();
    under_way.commit().unwrap();
    assert!(matches!(reader.get(&gone, b"list"), Err(Error::TableDropped { .. })));
    assert_eq!(reader.get(&kept, b"sum").unwrap(), None);
    drop(reader);
    assert_eq!(db.begin().get(&kept, b"sum").unwrap(), Some(5i64.to_le_bytes().to_vec()));
    db.close().unwrap();
}

/// A transaction that has read a table and must commit later than it began, and one that makes it so. In between the table is
/// dropped, if `drops`.
fn read_then_commit_late(db: &Db, drops: bool, read: fn(&mut Transaction, &Table)) -> Result<(), Error> {
    let (kept, gone) = (db.table("kept")?, db.table("gone")?);
    let mut late = db.begin();
    read(&mut late, &gone);
    if drops {
        // Not in the way of a read of another key; and then so much that it is at the data component only.
        db.transact(|tx| tx.put(&gone, b"written since", b""))?;
        for number in 0..100u32 {
            db.transact(|tx| tx.put(&kept, &number.to_be_bytes(), &[1; 1000]))?;
            while db.step()? {}
        }
        db.drop_table("gone")?;
    }
    late.put(&kept, b"key", b"late")?;
    // Reads the key at a later time, at which it must not come to be.
    assert_eq!(db.begin().get(&kept, b"key")?, None);
    late.commit()
}

#[test]
fn who_has_read_what_is_dropped_meanwhile_commits_at_its_begin_or_not_at_all() {
    let reads: [fn(&mut Transaction, &Table); 2] = [
        |tx, table| assert_eq!(tx.scan(table, ..).unwrap().count(), 0),
        |tx, table| assert_eq!(tx.get(table, b"nothing").unwrap(), None),
    ];
    for read in reads {
        let db = open(Arc::new(MemoryDirectory::new())).unwrap();
        read_then_commit_late(&db, false, read).unwrap();
        db.transact(|tx| tx.delete(&db.table("kept")?, b"key")).unwrap();
        match read_then_commit_late(&db, true, read) {
            Err(error @ Error::Conflict(_)) => {
                assert!(error.is_retryable() && error.to_string().contains("table gone"), "{error}");
                let Error::Conflict(conflict) = error else { unreachable!() };
                assert_eq!(conflict.cause, ConflictCause::TableDropped);
            }
            other => panic!("{other:?}"),
        }
        db.close().unwrap();
    }
    // At its begin the table was there.
    let db = open(Arc::new(MemoryDirectory::new())).unwrap();
    fill(&db, "gone", 3).unwrap();
    let (kept, gone) = (db.table("kept").unwrap(), db.table("gone").unwrap());
    let mut in_time = db.begin();
    assert_eq!(in_time.scan(&gone, ..).unwrap().count(), 3);
    in_time.put(&kept, b"key", b"in time").unwrap();
    db.drop_table("gone").unwrap();
    in_time.commit().unwrap();
    db.close().unwrap();
}

#[test]
fn a_scan_does_not_end_early_because_its_table_is_dropped() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = open(directory.clone()).unwrap();
    fill(&db, "gone", 300).unwrap();
    db.close().unwrap();
    let db = open(directory).unwrap();
    let gone = db.table("gone").unwrap();
    for reverse in [false, true] {
        let name = gone.name();
        let gone = db.table(name).unwrap();
        fill(&db, name, 300).unwrap();
        let (mut tx, mut found) = (db.begin(), 0);
        let mut scan = tx.scan(&gone, ..).unwrap();
        let end = loop {
            match if reverse { scan.next_back() } else { scan.next() } {
                Some(Ok(_)) => found += 1,
                end => break end,
            }
            if found == 1 {
                db.drop_table(name).unwrap();
                while db.step().unwrap() {}
            }
        };
        assert!(found < 300, "more than one batch");
        assert!(matches!(&end, Some(Err(Error::TableDropped { table })) if table == "gone"), "{end:?}");
        // The transaction lives on.
        tx.put(&db.table("kept").unwrap(), b"key", b"value").unwrap();
        tx.commit().unwrap();
    }
    db.close().unwrap();
}

#[test]
fn the_past_of_a_dropped_table_is_dropped_with_it() {
    let options = || Options::tiny_for_tests().retention(std::time::Duration::from_secs(3600));
    let db = options().open_in(Arc::new(MemoryDirectory::new())).unwrap();
    fill(&db, "gone", 3).unwrap();
    let (gone, then) = (db.table("gone").unwrap(), db.timestamp());
    let past = || db.begin_with(TransactionOptions::new().as_of(then)).unwrap();
    let mut begun_before = past();
    assert_eq!(begun_before.scan(&gone, ..).unwrap().count(), 3);
    db.drop_table("gone").unwrap();
    for mut tx in [begun_before, past()] {
        assert!(matches!(tx.get(&gone, &0u32.to_be_bytes()), Err(Error::TableDropped { .. })));
        assert!(matches!(tx.scan(&gone, ..), Err(Error::TableDropped { .. })));
        // Another table, which there was not then.
        assert_eq!(tx.scan(&db.table("gone").unwrap(), ..).unwrap().count(), 0);
    }
    db.close().unwrap();
}

/// While somebody holds it, the log gets no new segment.
#[derive(Default)]
struct Gate {
    held: Mutex<()>,
    is_awaited: AtomicBool,
}

impl Gate {
    fn pass(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
        drop(self.held.lock().expect("no panic"));
    }

    /// Nothing more becomes durable until what is returned is dropped.
    fn hold_log(&self, db: &Db, table: &Table) -> MutexGuard<'_, ()> {
        let held = self.held.lock().unwrap();
        self.is_awaited.store(false, Ordering::Relaxed);
        while !self.is_awaited.load(Ordering::Relaxed) {
            let mut tx = db.begin();
            tx.put(table, b"held", &[0; 500]).unwrap();
            tx.commit_async().unwrap().wait_timeout(Duration::from_millis(1)).unwrap();
        }
        held
    }
}

/// The drop has committed, and waits to be durable: whoever has been told that the table is gone must not be given it again.
#[test]
fn a_table_of_which_somebody_has_heard_that_it_is_gone_is_another_one() {
    let (directory, gate) = (Arc::new(WatchedDirectory::default()), Arc::new(Gate::default()));
    let of_log = Arc::clone(&gate);
    directory.watch(move |doing, name| {
        if doing == Doing::Rename && name.starts_with("log-") {
            of_log.pass();
        }
    });
    let options = || Options::tiny_for_tests().background(Background::Threads);
    let db = options().open_in(directory.clone()).unwrap();
    let (kept, old) = (db.table("kept").unwrap(), db.table("x").unwrap());
    db.transact(|tx| tx.put(&old, b"old", b"1")).unwrap();
    let release = gate.hold_log(&db, &kept);
    std::thread::scope(|scope| {
        let (returned, returns) = mpsc::channel();
        // One of them drops it. The other hears of that first, as it has nothing to wait for.
        for _ in 0..2 {
            let (db, returned) = (&db, returned.clone());
            scope.spawn(move || returned.send(db.drop_table("x")).unwrap());
        }
        assert!(matches!(returns.recv().unwrap(), Err(Error::NoSuchTable { table }) if table == "x"));
        let (opened, opens) = mpsc::channel();
        let another = &db;
        scope.spawn(move || opened.send(another.table("x")).unwrap());
        // A new table waits for the log.
        let early = opens.recv_timeout(Duration::from_millis(100));
        assert!(returns.try_recv().is_err(), "the drop is not durable yet");
        // What is written with the old handle would be lost with it.
        assert!(matches!(db.begin().put(&old, b"new", b"1"), Err(Error::TableDropped { .. })));
        drop(release);
        returns.recv().unwrap().unwrap();
        let new = early.or_else(|_| opens.recv()).unwrap().unwrap();
        assert_ne!(new, old);
        assert_eq!(count(&db, "x").unwrap(), 0);
        db.transact(|tx| tx.put(&new, b"new", b"2")).unwrap();
        assert!(matches!(db.begin().get(&old, b"old"), Err(Error::TableDropped { .. })));
        assert_eq!(db.table("x").unwrap(), new);
    });
    db.close().unwrap();
    let db = options().open_in(directory).unwrap();
    assert_eq!(count(&db, "x").unwrap(), 1);
    assert_eq!(db.begin().get(&db.table("x").unwrap(), b"new").unwrap().as_deref(), Some(&b"2"[..]));
    db.close().unwrap();
}

/// Says how far it came: 1 when the tables are filled, 2 when one is dropped.
fn history(disk: &SimulatedDisk, reached: &mut u32) -> Result<(), Error> {
    let db = open(Arc::new(disk.directory()))?;
    fill(&db, "kept", 10)?;
    fill(&db, "gone", 40)?;
    db.checkpoint()?;
    *reached = 1;
    db.drop_table("gone")?;
    *reached = 2;
    for _ in 0..10 {
        db.step()?;
    }
    db.checkpoint()?;
    db.close()
}

#[test]
fn a_crash_at_any_operation_leaves_the_table_or_not() {
    let whole = SimulatedDisk::new(3);
    history(&whole, &mut 0).unwrap();
    for crash_at in 0..whole.operations() {
        let disk = SimulatedDisk::new(3);
        disk.set_faults(FaultPlan::new().crash_after(crash_at));
        let mut reached = 0;
        let outcome = history(&disk, &mut reached);
        assert!(outcome.is_err() || !disk.is_stopped());
        let policy = [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Random];
        let directory = disk.crash(policy[(crash_at % 3) as usize]);
        let db = open(Arc::new(directory)).unwrap();
        let names = db.tables().unwrap();
        let there = names.iter().any(|name| name == "gone");
        assert!(there || reached != 1 || outcome.is_err(), "dropped by itself at {crash_at}");
        assert!(!there || reached < 2, "back after a crash at {crash_at}");
        if reached >= 1 {
            assert_eq!(count(&db, "kept").unwrap(), 10);
            assert_eq!(count(&db, "gone").unwrap(), if there { 40 } else { 0 }, "crash at {crash_at}");
        }
        while db.step().unwrap() {}
        db.close().unwrap();
    }
}
