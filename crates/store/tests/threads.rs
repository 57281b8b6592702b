//! Real files, with io_uring and without, real threads, more data than memory: nothing is lost, and the thread makes things durable by itself.

use deuteron_store::device::{Directory, OsDirectory};
use deuteron_store::{Batch, Options, Store};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn key(thread: u64, number: u64) -> Vec<u8> {
    // Neighbours in time are apart in order.
    [number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), thread.to_be_bytes()].concat()
}

#[test]
fn writers_and_scans_at_once_with_four_times_more_data_than_memory() {
    let scratch = tempfile::tempdir().expect("a directory");
    let real = |name| OsDirectory::open_or_create(scratch.path().join(name)).expect("opens");
    writers_and_scans(Arc::new(real("ring")));
    writers_and_scans(Arc::new(real("threads").without_io_uring()));
}

fn writers_and_scans(directory: Arc<dyn Directory>) {
    const THREADS: u64 = 3;
    const RECORDS: u64 = 16_000;
    let options = || Options::new().memory(4 << 20).persist_every(Duration::from_millis(50));
    let store = options().open_in(Arc::clone(&directory)).expect("opens");
    let table = store.table("t").expect("creates");
    let value = |thread: u64, number: u64| vec![(thread + number) as u8; 300];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (store, table) = (&store, &table);
                scope.spawn(move || {
                    let mut batch = Batch::new();
                    for number in 0..RECORDS {
                        batch.upsert(table, &key(thread, number), &value(thread, number));
                        if number % 100 == 99 {
                            store.apply(&batch).expect("applies");
                            batch.clear();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let mut last = Vec::new();
                for entry in table.scan(..) {
                    let (key, value) = entry.expect("reads");
                    assert!(key > last && value.len() == 300);
                    last = key;
                }
            }
        });
        for writer in writers {
            writer.join().expect("no panic");
        }
        done.store(true, Ordering::Release);
    });
    let stats = store.stats();
    assert!(stats.counter("pages_evicted").is_some_and(|pages| pages > 100), "{stats:?}");
    store.close().expect("closes");

    let store = options().open_in(directory).expect("opens again");
    let table = store.table("t").expect("is there");
    assert_eq!(table.scan(..).filter(Result::is_ok).count() as u64, THREADS * RECORDS);
    assert_eq!(table.scan(..).rev().filter(Result::is_ok).count() as u64, THREADS * RECORDS);
    for number in (0..RECORDS).step_by(97) {
        assert_eq!(table.get(&key(1, number)).expect("reads"), Some(value(1, number)));
    }
    store.check().expect("sound");
}

#[test]
fn the_thread_makes_writes_durable_without_being_asked() {
    let scratch = tempfile::tempdir().expect("a directory");
    let store = Options::new().persist_every(Duration::from_millis(1)).open(scratch.path()).expect("opens");
    let table = store.table("t").expect("creates");
    let before = store.stats().counter("checkpoints");
    table.upsert(b"a", b"1").expect("writes");
    // As long as it takes: the test is that it happens at all.
    while store.stats().counter("checkpoints") <= before {
        std::thread::yield_now();
    }
}

#[test]
fn every_write_that_has_returned_when_the_store_is_closed_under_its_writers_is_there() {
    let scratch = tempfile::tempdir().expect("a directory");
    let options = || Options::new().memory(4 << 20);
    let mut written = [0; 3];
    for _ in 0..4 {
        let store = options().open(scratch.path()).expect("the lock was given back");
        let table = store.table("t").expect("creates");
        for (thread, &written) in (0..).zip(&written) {
            for number in 0..written {
                assert!(table.get(&key(thread, number)).expect("reads").is_some(), "{thread} {number}");
            }
        }
        written = std::thread::scope(|scope| {
            let writers = [0, 1, 2].map(|thread| {
                let (table, from) = (table.clone(), written[thread as usize]);
                scope.spawn(move || {
                    // How many there are when the first is refused.
                    (from..).find(|&number| table.upsert(&key(thread, number), &[1; 600]).is_err())
                })
            });
            std::thread::sleep(Duration::from_millis(200));
            store.close().expect("closes");
            writers.map(|writer| writer.join().expect("no panic").expect("is refused in the end"))
        });
    }
    let store = options().open(scratch.path()).expect("opens");
    store.check().expect("sound");
}

/// Each key is written by all threads, one at a time, while its page is in memory, is not, or is read again: the last write is what is there, whatever stock its number came from.
#[test]
fn the_later_of_two_writes_wins_whoever_makes_them() {
    const THREADS: u64 = 4;
    const KEYS: u64 = 16_000;
    let scratch = tempfile::tempdir().expect("a directory");
    let options = || Options::new().memory(4 << 20).persist_every(Duration::from_millis(20));
    let store = options().open(scratch.path()).expect("opens");
    let table = store.table("t").expect("creates");
    let last: Vec<_> = (0..KEYS).map(|_| Mutex::new(None)).collect();
    let value = |number: u64| number.to_be_bytes().repeat(64);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, last) = (&table, &last);
            scope.spawn(move || {
                for step in 0..20_000 {
                    let number = step * THREADS + thread;
                    // Some keys again and again, the others by all of a small page's neighbours.
                    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                    let index = if step % 4 == 0 { spread % 8 } else { spread % KEYS };
                    let key = key(0, index);
                    let mut last = last[index as usize].lock().expect("no panic");
                    *last = match number % 16 {
                        0 => {
                            table.delete(&key).expect("writes");
                            None
                        }
                        _ => {
                            table.upsert(&key, &value(number)).expect("writes");
                            Some(value(number))
                        }
                    };
                    if step % 3 == 0 {
                        assert_eq!(table.get(&key).expect("reads"), *last, "key {index} at {number}");
                    }
                }
            });
        }
    });
    let stats = store.stats();
    assert!(stats.counter("pages_evicted").is_some_and(|pages| pages > 1000), "{stats:?}");
    assert!(stats.counter("blind_deltas").is_some_and(|deltas| deltas > 1000), "{stats:?}");
    let as_written = |store: &Store| {
        let table = store.table("t").expect("is there");
        for (index, last) in last.iter().enumerate() {
            let found = table.get(&key(0, index as u64)).expect("reads");
            assert_eq!(found, *last.lock().expect("no panic"), "key {index}");
        }
    };
    as_written(&store);
    store.close().expect("closes");
    as_written(&options().open(scratch.path()).expect("opens again"));
}
