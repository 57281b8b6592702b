//! Who waits for whom: closing for the calls that are under way, writers for no backup, and nobody for who has panicked.

use deuteron_store::device::{Directory, Doing, MemoryDirectory, OpenMode, WatchedDirectory};
use deuteron_store::{Error, Options, Store};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

type Call = fn(&Store) -> Result<(), Error>;

/// A file is about to be read from its beginning.
const READ: Doing = Doing::Open(OpenMode::Read);

fn open(directory: Arc<dyn Directory>) -> Result<Store, Error> {
    Options::tiny_for_tests().open_in(directory)
}

fn fill(store: &Store, name: &str, count: u32) -> Result<(), Error> {
    let table = store.table(name)?;
    (0..count).try_for_each(|number| table.upsert(&number.to_be_bytes(), &[7; 40]))
}

fn load(store: &Store) -> Result<(), Error> {
    let mut load = store.load_table("loaded")?;
    (0..200u32).try_for_each(|number| load.push(&number.to_be_bytes(), &[8; 40]))?;
    load.finish().map(drop)
}

/// Closes the store while a call is in the middle of its image number `at`; whether the call came so far. The directory is nobody
/// else's before the call has ended.
fn close_during(call: Call, at: usize) -> bool {
    let inner = MemoryDirectory::new();
    let directory = Arc::new(WatchedDirectory::new(inner.clone()));
    let store = open(directory.clone()).expect("opens");
    fill(&store, "kept", 300).expect("writes");
    fill(&store, "gone", 300).expect("writes");
    store.persist().expect("persists");
    let (images, is_inside) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let (arrived, arrival) = mpsc::channel();
    let arrived = Mutex::new(Some(arrived));
    let (of_watcher, inside) = (inner.clone(), Arc::clone(&is_inside));
    directory.watch(move |doing, _| {
        if doing != Doing::Rename || images.fetch_add(1, Ordering::SeqCst) != at {
            return;
        }
        inside.store(true, Ordering::SeqCst);
        let arrived = arrived.lock().expect("no panic").take().expect("one arrives");
        arrived.send(()).expect("is awaited");
        // As long as closing would take if it did not wait.
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            assert!(matches!(open(Arc::new(of_watcher.clone())), Err(Error::InUse { .. })), "two are at it");
        }
        inside.store(false, Ordering::SeqCst);
    });
    let came_so_far = std::thread::scope(|scope| {
        let calling = store.clone();
        let ended = scope.spawn(move || call(&calling));
        let came_so_far = loop {
            if arrival.try_recv().is_ok() {
                store.close().expect("closes");
                assert!(!is_inside.load(Ordering::SeqCst), "what was under way has ended");
                break true;
            }
            if ended.is_finished() {
                break false;
            }
            std::thread::yield_now();
        };
        let outcome = ended.join().expect("no panic");
        assert!(matches!(outcome, Ok(()) | Err(Error::Closed)), "{outcome:?}");
        came_so_far
    });
    if came_so_far {
        let store = open(Arc::new(inner)).expect("the lock was given back");
        for name in store.tables().expect("lists") {
            let expected = if name == "loaded" { 200 } else { 300 };
            let found = store.table(&name).expect("is there").scan(..).filter(Result::is_ok).count();
            assert_eq!(found, expected, "{name}");
        }
        store.check().expect("sound");
    }
    came_so_far
}

#[test]
fn the_directory_is_nobody_elses_before_the_calls_under_way_have_ended() {
    let calls: [(&str, Call); 3] = [
        ("a load", load),
        ("a compaction", |store| store.compact().map(drop)),
        ("a drop", |store| store.drop_table("gone")),
    ];
    for (name, call) in calls {
        let images = (0..).take_while(|&at| close_during(call, at)).count();
        assert!(images > 1, "{name}: {images} images");
    }
}

/// Backs up a store that was just opened; `first` says when somebody writes to it for the first time.
fn write_during_backup(first: Doing) {
    let directory = Arc::new(WatchedDirectory::default());
    let store = open(directory.clone()).expect("opens");
    fill(&store, "t", 300).expect("writes");
    store.close().expect("closes");
    let store = open(directory.clone()).expect("opens again");
    let table = store.table("t").expect("is there");
    let (written, is_written) = mpsc::channel();
    let (is_written, writer) = (Mutex::new(is_written), Mutex::new(Some((table, written))));
    directory.watch(move |doing, _| {
        if doing == first
            && let Some((table, written)) = writer.lock().expect("no panic").take()
        {
            std::thread::spawn(move || {
                table.upsert(b"new", b"1").expect("writes");
                written.send(()).expect("is awaited");
            });
            if doing == Doing::Rename {
                // So that it waits already.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        if doing == READ
            && writer.lock().expect("no panic").is_none()
            && let Err(mpsc::RecvTimeoutError::Timeout) =
                is_written.lock().expect("no panic").recv_timeout(Duration::from_secs(10))
        {
            panic!("the writer waits for the copy");
        }
    });
    let shelf = MemoryDirectory::new();
    store.backup_in(&shelf, "backup").expect("backs up");
    let table = store.table("t").expect("is there");
    assert_eq!(table.get(b"new").expect("reads").as_deref(), Some(&b"1"[..]));
}

#[test]
fn the_first_write_after_an_opening_does_not_wait_for_the_copy_of_a_backup() {
    // It comes during the copy, or while the backup makes durable what was written before.
    write_during_backup(READ);
    write_during_backup(Doing::Rename);
}

#[test]
fn what_a_panic_has_kept_from_becoming_durable_is_not_taken_for_durable() {
    let directory = Arc::new(WatchedDirectory::default());
    let store = open(directory.clone()).expect("opens");
    fill(&store, "t", 300).expect("writes");
    let images = Arc::new(AtomicUsize::new(0));
    let begun = Arc::clone(&images);
    directory.watch(move |doing, _| {
        let panics = doing == Doing::Rename && begun.fetch_add(1, Ordering::SeqCst) == 0;
        assert!(!panics, "as the test wants it");
    });
    catch_unwind(AssertUnwindSafe(|| store.persist())).expect_err("it has panicked");
    assert_eq!(images.load(Ordering::SeqCst), 1);
    let persisted = store.persist();
    assert!(
        persisted.is_err() || images.load(Ordering::SeqCst) > 1,
        "nothing was done, and that is called durable"
    );
}
