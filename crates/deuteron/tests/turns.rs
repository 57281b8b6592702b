//! Transactions that keep meeting others begin in turns, and a deadline holds while one waits for its turn.

use deuteron::device::MemoryDirectory;
use deuteron::{Db, Error, Options, Table, TransactionOptions};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// Two begin every four milliseconds if those before them stay: a tenth of a second for all.
const PATIENT: usize = 48;

/// The machine may be busy with something else, and a late comer find a place free: then it is done again.
const ROUNDS: usize = 20;

/// Has many wait for their turns, and one more with a deadline: what that one is told, and how many of the others have begun by then.
fn told_at_its_deadline(db: &Db, table: &Table) -> (Result<(), Error>, usize) {
    let (all_have_met, all_have_ended, late_is_told) =
        (Barrier::new(PATIENT + 1), Barrier::new(PATIENT + 1), Barrier::new(PATIENT + 1));
    let (begun, met) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let meet = || {
        let mut tx = db.begin();
        let meets = matches!(tx.put(table, b"k", b"2"), Err(Error::Conflict(_)));
        met.fetch_add(usize::from(meets), Ordering::SeqCst);
        // Each in a workspace of its own, which counts as one that meets others.
        all_have_met.wait();
        drop(tx);
        all_have_ended.wait();
    };
    let found = thread::scope(|scope| {
        for _ in 0..PATIENT {
            scope.spawn(|| {
                meet();
                let tx = db.begin();
                begun.fetch_add(1, Ordering::SeqCst);
                late_is_told.wait();
                drop(tx);
            });
        }
        meet();
        // The others are in the queue by then.
        thread::sleep(Duration::from_millis(3));
        let options = TransactionOptions::new().deadline(Instant::now() + Duration::from_millis(3));
        let told = db.begin_with(options).and_then(|mut late| late.get(table, b"other").map(drop));
        let before = begun.load(Ordering::SeqCst);
        late_is_told.wait();
        (told, before)
    });
    assert_eq!((begun.into_inner(), met.into_inner()), (PATIENT, PATIENT + 1), "all begin, all have met");
    found
}

#[test]
fn a_transaction_that_waits_for_its_turn_is_told_at_its_deadline_and_those_that_wait_begin() {
    let db = Options::new().memory(64 << 20).open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = db.table("t").expect("creates");
    // Everybody gives way to one that has written the key and stays.
    let mut writer = db.begin();
    writer.put(&table, b"k", b"1").expect("nobody else writes");
    let is_told_early = || match told_at_its_deadline(&db, &table) {
        (Err(Error::DeadlineExceeded), before) => before < PATIENT * 3 / 4,
        (told, _) => {
            assert!(told.is_ok(), "{told:?}");
            false
        }
    };
    assert!((0..ROUNDS).any(|_| is_told_early()), "it waits for those before it, whatever its deadline");
    writer.commit().expect("nobody has changed what it has read");
    db.close().expect("closes");
}
