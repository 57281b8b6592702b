//! Transactions that keep meeting others begin in turns, and a deadline holds while one waits for its turn.

use deuteron::device::MemoryDirectory;
use deuteron::{Error, Options, TransactionOptions};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// Two begin every four milliseconds if those before them stay: a tenth of a second for all.
const PATIENT: usize = 48;

#[test]
fn a_transaction_that_waits_for_its_turn_is_told_at_its_deadline_and_those_that_wait_begin() {
    let db = Options::new().memory(64 << 20).open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = db.table("t").expect("creates");
    // Everybody gives way to one that has written the key and stays.
    let mut writer = db.begin();
    writer.put(&table, b"k", b"1").expect("nobody else writes");
    let (all_have_met, all_have_ended, late_is_told) =
        (Barrier::new(PATIENT + 1), Barrier::new(PATIENT + 1), Barrier::new(PATIENT + 1));
    let begun = AtomicUsize::new(0);
    let meet = || {
        let mut tx = db.begin();
        let met = tx.put(&table, b"k", b"2");
        // Each in a workspace of its own, which counts as one that meets others.
        all_have_met.wait();
        drop(tx);
        all_have_ended.wait();
        assert!(matches!(met, Err(Error::Conflict(_))), "{met:?}");
    };
    thread::scope(|scope| {
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
        let mut late = db.begin_with(options).expect("is open");
        let told = late.get(&table, b"other");
        let before = begun.load(Ordering::SeqCst);
        late_is_told.wait();
        assert!(matches!(told, Err(Error::DeadlineExceeded)), "{told:?}");
        assert!(before < PATIENT * 3 / 4, "{before} have begun before it was told");
    });
    assert_eq!(begun.into_inner(), PATIENT);
    writer.commit().expect("nobody has changed what it has read");
    db.close().expect("closes");
}
