//! A database that is closed while others commit: everybody is answered, and what was acknowledged is there afterwards.

use deuteron::device::{FaultKind, FaultPlan, MemoryDirectory, Operation, SimulatedDisk};
use deuteron::{DataComponentObserver, Db, Durability, Error, Options, Table, Transaction};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

const ROUNDS: u64 = 60;

/// Commits one record after the other until the database is closed; how many.
fn write_until_closed(
    db: &Db,
    table: &Table,
    writer: u8,
    commit: fn(Transaction) -> Result<(), Error>,
) -> u32 {
    for number in 0u32.. {
        let mut tx = db.begin();
        let key = [&[writer][..], &number.to_be_bytes()].concat();
        match tx.put(table, &key, b"value").and_then(|()| commit(tx)) {
            Ok(()) => {}
            Err(Error::Closed) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the database is closed before")
}

#[test]
fn who_commits_while_the_database_closes_is_answered() {
    let commits: [fn(Transaction) -> Result<(), Error>; 3] = [
        Transaction::commit,
        |tx| tx.commit_async()?.wait(),
        // Whoever is asked again and again instead.
        |tx| {
            let mut ticket = tx.commit_async()?;
            while !ticket.wait_timeout(Duration::from_secs(60))? {}
            Ok(())
        },
    ];
    for round in 0..ROUNDS {
        let directory = Arc::new(MemoryDirectory::new());
        let open = || {
            let options = Options::new().memory(64 << 20).durability(Durability::Sync);
            options.open_in(Arc::<MemoryDirectory>::clone(&directory)).unwrap()
        };
        let db = open();
        let table = db.table("table").unwrap();
        let acknowledged = thread::scope(|scope| {
            let write = |(writer, commit)| {
                let (db, table) = (&db, &table);
                scope.spawn(move || write_until_closed(db, table, writer, commit))
            };
            let writers: Vec<_> = (0..).zip(commits).map(write).collect();
            thread::sleep(Duration::from_micros(700 * (round % 7)));
            db.clone().close().unwrap();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
        });
        drop((db, table));
        let db = open();
        let table = db.table("table").unwrap();
        for (writer, count) in (0u8..).zip(acknowledged) {
            let found = db.begin().scan(&table, &[writer][..]..&[writer + 1][..]).unwrap().count();
            assert!(found >= count as usize, "{found} of {count} in round {round}");
        }
        db.close().unwrap();
    }
}

/// What a commit has to do before its record is in the log takes longer than the closing.
#[test]
fn a_long_commit_ends_though_the_database_has_closed_meanwhile() {
    for round in 0..10 {
        let directory = Arc::new(MemoryDirectory::new());
        let db = Options::new().memory(64 << 20).open_in(Arc::<MemoryDirectory>::clone(&directory)).unwrap();
        let table = db.table("table").unwrap();
        let begins = AtomicBool::new(false);
        let committed = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut tx = db.begin();
                (0..20_000u32).for_each(|number| tx.add(&table, &number.to_be_bytes(), 1).unwrap());
                begins.store(true, Ordering::Release);
                tx.commit()
            });
            while !begins.load(Ordering::Acquire) {
                thread::yield_now();
            }
            thread::sleep(Duration::from_micros(300 * round));
            db.clone().close().unwrap();
            writer.join().unwrap()
        });
        drop((db, table));
        let db = Options::new().memory(64 << 20).open_in(directory).unwrap();
        let table = db.table("table").unwrap();
        let found = db.begin().scan(&table, ..).unwrap().count();
        match committed {
            Ok(()) => assert_eq!(found, 20_000),
            Err(Error::Closed) => assert!(found == 0 || found == 20_000, "all or nothing: {found}"),
            Err(error) => panic!("{error}"),
        }
        db.close().unwrap();
    }
}

/// Drops what it owns when it is woken, or closes it.
struct Owner(Mutex<Option<Db>>, bool);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {
        match self.0.lock().unwrap().take() {
            Some(db) if self.1 => db.close().unwrap(),
            other => drop(other),
        }
    }
}

#[test]
fn who_wakes_a_task_that_owns_the_last_handle_closes_the_database() {
    for closes in [false, true].into_iter().cycle().take(40) {
        let directory = Arc::new(MemoryDirectory::new());
        let open = || Options::new().memory(64 << 20).open_in(Arc::<MemoryDirectory>::clone(&directory));
        let db = open().unwrap();
        let table = db.table("table").unwrap();
        let mut tx = db.begin();
        tx.put(&table, b"key", b"value").unwrap();
        let mut ticket = tx.commit_async().unwrap();
        let owner = Arc::new(Owner(Mutex::new(Some(db)), closes));
        let waker = Waker::from(Arc::clone(&owner));
        if Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)).is_ready() {
            // Durable already: nobody will wake it.
            Arc::clone(&owner).wake();
        }
        drop((ticket, table));
        // It closes in the background.
        let db = loop {
            match open() {
                Ok(db) => break db,
                Err(Error::InUse { .. }) => thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{error}"),
            }
        };
        let table = db.table("table").unwrap();
        assert_eq!(db.transact(|tx| tx.get(&table, b"key")).unwrap().as_deref(), Some(&b"value"[..]));
        db.close().unwrap();
    }
}

/// Closes a database when its data component has answered.
#[derive(Default)]
struct Closes(Mutex<Option<Db>>);

impl std::fmt::Debug for Closes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Closes")
    }
}

impl DataComponentObserver for Closes {
    fn got(&self, _: Duration) {
        let db = self.0.lock().unwrap().take();
        db.into_iter().for_each(|db| db.close().unwrap());
    }
    fn upserted(&self, _: Duration) {}
    fn posted(&self, _: usize, _: Duration) {}
}

/// In the middle of the commit all that was there has been written already.
#[test]
fn a_commit_that_a_close_has_overtaken_is_written_whatever_was_promised() {
    for durability in [Durability::None, Durability::Delayed(Duration::MAX), Durability::Sync] {
        let (directory, closes) = (Arc::new(MemoryDirectory::new()), Arc::new(Closes::default()));
        let open = || Options::tiny_for_tests().durability(durability);
        let observed = open().observe_data_component(Arc::<Closes>::clone(&closes));
        let db = observed.open_in(Arc::<MemoryDirectory>::clone(&directory)).unwrap();
        let table = db.table("table").unwrap();
        let mut tx = db.begin();
        tx.add(&table, b"count", 7).unwrap();
        *closes.0.lock().unwrap() = Some(db.clone());
        tx.commit_async().map(drop).unwrap();
        assert!(matches!(db.flush(), Err(Error::Closed)));
        drop(db);
        let db = open().open_in(directory).unwrap();
        let count = db.begin().get(&db.table("table").unwrap(), b"count").unwrap();
        assert_eq!(count, Some(7i64.to_le_bytes().to_vec()), "{durability:?}");
        db.close().unwrap();
    }
}

#[test]
fn whoever_closes_hears_that_it_has_failed() {
    let disk = SimulatedDisk::new(1);
    let options = || Options::tiny_for_tests().durability(Durability::None);
    let db = options().open_in(Arc::new(disk.directory())).unwrap();
    let table = db.table("table").unwrap();
    db.transact(|tx| tx.put(&table, b"key", b"value")).unwrap();
    let others = [db.clone(), db.clone()];
    disk.set_faults(FaultPlan::new().fail_from(Operation::Write, 0, FaultKind::Refuse));
    assert!(db.close().is_err());
    for other in others {
        assert!(matches!(other.close(), Err(Error::Poisoned { .. })));
    }
    disk.set_faults(FaultPlan::new());
    let db = options().open_in(Arc::new(disk.directory())).unwrap();
    let other = db.clone();
    db.close().unwrap();
    other.close().unwrap();
}
