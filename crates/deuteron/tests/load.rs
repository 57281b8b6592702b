//! Loads of new tables and compaction, as transactions meet them.

use deuteron::device::simulated::Random;
use deuteron::device::{
    CrashPolicy, Directory, Doing, FaultPlan, MemoryDirectory, SimulatedDisk, WatchedDirectory,
};
use deuteron::{
    Background, ConflictCause, Db, Durability, Error, Isolation, Options, RetryPolicy, Table,
    TransactionOptions,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

fn key(number: u32) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn load(db: &Db, count: u32) -> Result<Table, Error> {
    let mut load = db.load_table("loaded")?;
    for number in 0..count {
        load.push(&key(number), &number.to_le_bytes())?;
        if number % 50 == 0 {
            db.step()?;
        }
    }
    load.finish()
}

fn count(db: &Db, table: &Table) -> usize {
    db.transact(|tx| Ok(tx.scan(table, ..)?.count())).expect("scans")
}

#[test]
fn a_loaded_table_is_read_scanned_updated_and_recovered() {
    let disk = SimulatedDisk::new(1);
    let open = || Options::tiny_for_tests().open_in(Arc::new(disk.directory())).expect("opens");
    let db = open();
    // A transaction that began before does not see it.
    let mut earlier = db.begin();
    assert_eq!(db.tables().expect("lists"), Vec::<String>::new());
    let table = load(&db, 800).expect("loads");
    let refused = earlier.scan(&table, ..).map(drop);
    assert!(
        matches!(refused, Err(Error::Conflict(conflict)) if conflict.cause == ConflictCause::TableLoaded)
    );
    drop(earlier);
    assert_eq!(count(&db, &table), 800);
    db.transact(|tx| {
        assert_eq!(tx.get(&table, &key(7))?, Some(7u32.to_le_bytes().to_vec()));
        tx.put(&table, &key(7), b"new")?;
        tx.delete(&table, &key(8))?;
        tx.put(&table, b"another", b"1")
    })
    .expect("commits");
    assert_eq!(count(&db, &table), 800);
    drop((db, table));
    disk.crash(CrashPolicy::LoseAll);
    let db = open();
    let table = db.table("loaded").expect("is there");
    assert_eq!(count(&db, &table), 800);
    let seen = db.transact(|tx| Ok((tx.get(&table, &key(7))?, tx.get(&table, &key(8))?))).expect("reads");
    assert_eq!(seen, (Some(b"new".to_vec()), None));
    // The identifier of the load is not given to another table.
    let other = db.table("other").expect("creates");
    assert_eq!(count(&db, &other), 0);
    assert!(db.check().expect("checks").problems.is_empty());
}

#[test]
fn existing_tables_and_unsorted_records_are_refused_and_an_abandoned_load_leaves_nothing() {
    let db = Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    db.table("taken").expect("creates");
    assert!(matches!(db.load_table("taken"), Err(Error::TableExists { table }) if table == "taken"));
    assert!(matches!(db.load_table(""), Err(Error::TableName { found: 0, .. })));
    let mut load = db.load_table("new").expect("begins");
    for number in 0..300 {
        load.push(&key(number), b"1").expect("in order");
    }
    assert!(matches!(load.push(&key(299), b"2"), Err(Error::OutOfOrder { record: 301, .. })));
    drop(load);
    assert_eq!(db.tables().expect("lists"), ["taken"]);
    // Somebody creates the table while it is loaded.
    let load = db.load_table("new").expect("begins");
    let table = db.table("new").expect("creates");
    assert!(matches!(load.finish(), Err(Error::TableExists { .. })));
    assert_eq!(count(&db, &table), 0);
    db.close().expect("closes");
}

#[test]
fn a_crash_during_a_load_leaves_a_whole_table_or_none() {
    let disk = SimulatedDisk::new(1);
    let open = |disk: &SimulatedDisk| Options::tiny_for_tests().open_in(Arc::new(disk.directory()));
    load(&open(&disk).expect("opens"), 300).expect("loads");
    let operations = disk.operations();
    for crash_at in 0..operations {
        let disk = SimulatedDisk::new(crash_at);
        disk.set_faults(FaultPlan::new().crash_after(crash_at));
        let loaded = open(&disk).and_then(|db| load(&db, 300).map(|_| ())).is_ok();
        disk.crash([CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Random][crash_at as usize % 3]);
        let db = open(&disk).unwrap_or_else(|error| panic!("after {crash_at}: {error:?}"));
        match db.tables().expect("lists").as_slice() {
            [] => assert!(!loaded, "after {crash_at}"),
            [name] => assert_eq!(count(&db, &db.table(name).expect("opens")), 300, "after {crash_at}"),
            more => panic!("{more:?}"),
        }
        // What is left of the first attempt is in nobody's way.
        if db.tables().expect("lists").is_empty() {
            let table = load(&db, 200).unwrap_or_else(|error| panic!("after {crash_at}: {error:?}"));
            assert_eq!(count(&db, &table), 200);
        }
    }
}

#[test]
fn compaction_gives_back_what_deletes_have_left() {
    let db = Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = load(&db, 20_000).expect("loads");
    for chunk in 0..200u32 {
        db.transact(|tx| {
            (chunk * 100..chunk * 100 + 95).try_for_each(|number| tx.delete(&table, &key(number)))
        })
        .expect("commits");
    }
    for _ in 0..3 {
        db.transact(|tx| tx.put(&table, b"last", b"1")).expect("commits");
        while db.step().expect("works") {}
        db.checkpoint().expect("takes a checkpoint");
    }
    let compaction = db.compact().expect("compacts");
    assert!(compaction.after_bytes <= compaction.before_bytes, "{compaction:?}");
    assert_eq!(count(&db, &table), 1001);
    assert!(db.check().expect("checks").problems.is_empty());
    db.close().expect("closes");
}

/// It is what one does when space is short.
#[test]
fn a_compaction_for_which_there_is_no_room_harms_nothing() {
    let disk = SimulatedDisk::new(1);
    let db = Options::tiny_for_tests().open_in(Arc::new(disk.directory())).expect("opens");
    let table = load(&db, 20_000).expect("loads");
    for number in (0..20_000).filter(|number| number % 3 > 0) {
        db.transact(|tx| tx.delete(&table, &key(number))).expect("commits");
    }
    while db.step().expect("works") {}
    db.checkpoint().expect("takes a checkpoint");
    disk.set_capacity(Some(disk.used_bytes()));
    let full = db.compact();
    assert!(matches!(full, Err(Error::DiskFull { .. })), "{full:?}");
    disk.set_capacity(None);
    db.transact(|tx| tx.put(&table, b"last", b"1")).expect("goes on");
    db.compact().expect("compacts");
    assert_eq!(count(&db, &table), 6_668);
    assert!(db.check().expect("checks").problems.is_empty());
    db.close().expect("closes");
}

/// One checkpoint may have been on its way, and one is what a compaction begins with.
const STARTS: usize = 4;
const GIVE_UP: Duration = Duration::from_secs(60);

/// At how many places the log was seen to begin, by who waits.
#[derive(Default)]
struct Starts(Mutex<BTreeSet<String>>);

impl Starts {
    fn look(&self, directory: &MemoryDirectory) -> usize {
        let names = directory.list().expect("lists").into_iter();
        let start = names.filter(|name| name.starts_with("log-") && name.ends_with(".seg")).min();
        let mut starts = self.0.lock().expect("no panic");
        starts.extend(start);
        starts.len()
    }
}

/// It kept checkpoints out for its whole length, and went on for as long as others wrote.
#[test]
fn compaction_ends_though_others_write_and_the_log_is_cut_meanwhile() {
    const KEYS: u64 = 20_000;
    let (inner, starts) = (MemoryDirectory::new(), Arc::new(Starts::default()));
    let directory = Arc::new(WatchedDirectory::new(inner.clone()));
    let options = Options::tiny_for_tests().background(Background::Threads);
    let db = options.open_in(directory.clone()).expect("opens");
    let table = db.table("updated").expect("creates");
    let update = |random: &mut Random| {
        let options = TransactionOptions::new().durability(Durability::None);
        db.transact_with(options, RetryPolicy::default(), |tx| {
            (0..10).try_for_each(|_| tx.put(&table, &key(random.below(KEYS) as u32), &[7; 50]))
        })
        .expect("commits");
    };
    (0..KEYS / 10).for_each(|number| update(&mut Random::new(number)));
    let (is_done, gave_up_at) = (AtomicBool::new(false), Instant::now() + GIVE_UP);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (update, is_done) = (&update, &is_done);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                while !is_done.load(Ordering::Relaxed) && Instant::now() < gave_up_at {
                    update(&mut random);
                }
            });
        }
        // It reads the pages of the table one after the other, on this thread, and not until then: others need the very page.
        let (compacts, seen) = (thread::current().id(), Arc::clone(&starts));
        directory.watch(move |doing, _| {
            let is_it = doing == Doing::Read && thread::current().id() == compacts;
            if is_it && seen.look(&inner) < STARTS {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let compacted = db.compact();
        is_done.store(true, Ordering::Relaxed);
        compacted.expect("compacts");
        assert!(Instant::now() < gave_up_at, "it ended when they did");
        let starts = starts.0.lock().expect("no panic").len();
        assert!(starts >= STARTS, "the log began at {starts} places");
    });
    assert!(db.check().expect("checks").problems.is_empty());
    db.close().expect("closes");
}

/// Its records say that they have been there always: who began before it must not see them, or would have read the future.
#[test]
fn a_transaction_that_began_before_a_load_does_not_see_it() {
    let options = Options::tiny_for_tests().retention(std::time::Duration::from_secs(3600));
    let db = options.open_in(Arc::new(MemoryDirectory::new())).unwrap();
    let other = db.table("other").unwrap();
    let mut early = db.begin();
    assert_eq!(early.get(&other, b"x").unwrap(), None);
    let read_committed = TransactionOptions::new().isolation(Isolation::ReadCommitted);
    let mut committed = db.begin_with(read_committed).unwrap();
    let mut declared = db.begin_with(read_committed.read_only(true)).unwrap();
    let mut reader = db.begin_with(TransactionOptions::new().read_only(true)).unwrap();
    let then = db.timestamp();
    db.transact(|tx| tx.put(&other, b"x", b"1")).unwrap();
    let mut load = db.load_table("loaded").unwrap();
    load.push(b"k", b"v").unwrap();
    let loaded = load.finish().unwrap();
    let Err(Error::Conflict(conflict)) = early.get(&db.table("loaded").unwrap(), b"k") else {
        panic!("it has seen the future")
    };
    assert_eq!((conflict.cause, &conflict.table[..]), (ConflictCause::TableLoaded, "loaded"));
    assert!(matches!(early.get(&loaded, b"k"), Err(Error::Aborted)));
    assert!(matches!(early.commit(), Err(Error::Aborted | Error::Conflict(_))));
    let mut past = db.begin_with(TransactionOptions::new().as_of(then)).unwrap();
    // There was nothing in it.
    assert_eq!(past.get(&loaded, b"k").unwrap(), None);
    assert_eq!(past.get_many(&loaded, &[b"k"]).unwrap(), [None]);
    assert!(past.scan(&loaded, ..).unwrap().next().is_none());
    assert_eq!(past.get(&other, b"x").unwrap(), None);
    // Who reads what is committed sees what is.
    for tx in [&mut committed, &mut declared] {
        assert_eq!(tx.get(&loaded, b"k").unwrap().as_deref(), Some(&b"v"[..]));
    }
    assert_eq!(reader.get(&loaded, b"k").unwrap(), None);
    assert!(matches!(reader.delete_range(&loaded, ..), Err(Error::ReadOnly)));
    assert_eq!(db.begin().get(&loaded, b"k").unwrap().as_deref(), Some(&b"v"[..]));
    drop((past, committed, declared, reader));
    db.close().unwrap();
}

#[test]
fn a_table_that_is_dropped_while_its_load_ends_does_not_come_back() {
    for round in 0..60u64 {
        let db = Options::new().memory(64 << 20).open_in(Arc::new(MemoryDirectory::new())).unwrap();
        let mut load = db.load_table("t").unwrap();
        load.push(b"k", b"v").unwrap();
        let finished = std::thread::scope(|scope| {
            let finishing = scope.spawn(|| load.finish());
            std::thread::sleep(std::time::Duration::from_micros(10 * (round % 10)));
            while let Err(error) = db.drop_table("t") {
                assert!(matches!(error, Error::NoSuchTable { .. }), "{error}");
            }
            finishing.join().unwrap()
        });
        assert!(db.tables().unwrap().is_empty());
        let table = finished.unwrap();
        assert!(matches!(db.begin().get(&table, b"k"), Err(Error::TableDropped { .. })));
        db.close().unwrap();
    }
}
