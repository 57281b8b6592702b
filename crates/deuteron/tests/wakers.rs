//! What a waker of a ticket does holds nobody up: it may use the database, and take its time.

use deuteron::device::MemoryDirectory;
use deuteron::{Background, Db, Error, Options, Table};
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

fn open(directory: &Arc<MemoryDirectory>) -> (Db, Table) {
    let options = || Options::tiny_for_tests().background(Background::Threads);
    let db = loop {
        match options().open_in(Arc::<MemoryDirectory>::clone(directory)) {
            Ok(db) => break db,
            // The thread that a waker has closed it on still ends.
            Err(Error::InUse { .. }) => thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    };
    let table = db.table("table").unwrap();
    (db, table)
}

fn put(db: &Db, table: &Table, key: &[u8]) {
    db.transact(|tx| tx.put(table, key, b"value")).unwrap();
}

/// Does `work` once, when it is woken.
struct Works<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send + 'static> Wake for Works<F> {
    fn wake(self: Arc<Self>) {
        let work = self.0.lock().unwrap().take();
        work.into_iter().for_each(|work| work());
    }
}

/// Has a thread of the database do `work`, as soon as a commit has become durable for which a task waits.
fn when_woken(db: &Db, table: &Table, work: impl FnOnce() + Send + 'static) {
    let waker = Waker::from(Arc::new(Works(Mutex::new(Some(work)))));
    loop {
        let mut tx = db.begin();
        tx.put(table, b"awaited", b"").unwrap();
        let mut ticket = tx.commit_async().unwrap();
        // Unless it was durable before anybody waited for it.
        if Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)).is_pending() {
            return;
        }
    }
}

/// A waker that goes on when the first is dropped, and says on the second that it has been called.
fn hold() -> (Sender<()>, Receiver<()>, impl FnOnce() + Send + 'static) {
    let ((called, calls), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
    let work = move || {
        called.send(()).expect("is awaited");
        let _ = released.recv();
    };
    (release, calls, work)
}

#[test]
fn others_commit_while_a_waker_takes_its_time() {
    let directory = Arc::new(MemoryDirectory::new());
    let (db, table) = open(&directory);
    let (release, calls, work) = hold();
    when_woken(&db, &table, work);
    calls.recv().unwrap();
    (0u32..100).for_each(|number| put(&db, &table, &number.to_be_bytes()));
    db.checkpoint().unwrap();
    drop(release);
    db.close().unwrap();
    let (db, table) = open(&directory);
    assert_eq!(db.begin().scan(&table, ..).unwrap().count(), 101);
    db.close().unwrap();
}

#[test]
fn a_waker_waits_for_its_own_commits_and_checkpoints_and_closes() {
    let directory = Arc::new(MemoryDirectory::new());
    let (db, table) = open(&directory);
    let (done, is_done) = mpsc::channel();
    let (its, handle) = (db.clone(), table.clone());
    when_woken(&db, &table, move || {
        (0u32..100).for_each(|number| put(&its, &handle, &number.to_be_bytes()));
        its.checkpoint().unwrap();
        let mut tx = its.begin();
        tx.put(&handle, b"last", b"").unwrap();
        tx.commit_async().unwrap().wait().unwrap();
        its.close().unwrap();
        done.send(()).unwrap();
    });
    is_done.recv().unwrap();
    drop((db, table));
    let (db, table) = open(&directory);
    assert_eq!(db.begin().scan(&table, ..).unwrap().count(), 102);
    db.close().unwrap();
}

/// Their executors would keep them for ever.
#[test]
fn tasks_that_wait_when_the_database_closes_are_woken() {
    for _ in 0..20 {
        let (db, table) = open(&Arc::new(MemoryDirectory::new()));
        let (called, calls) = mpsc::channel();
        // The first keeps the thread that would wake the others.
        let (release, held, work) = hold();
        when_woken(&db, &table, work);
        held.recv().unwrap();
        for number in 0..40 {
            let called = called.clone();
            when_woken(&db, &table, move || called.send(number).unwrap());
        }
        thread::scope(|scope| {
            scope.spawn(|| db.close().unwrap());
            drop(release);
        });
        let mut woken: Vec<i32> = calls.try_iter().collect();
        woken.sort_unstable();
        assert_eq!(woken, (0..40).collect::<Vec<_>>());
    }
}
