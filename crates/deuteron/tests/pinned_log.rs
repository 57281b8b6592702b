//! Writers that keep the log from being cut are aborted, and nobody else is.

use deuteron::device::MemoryDirectory;
use deuteron::{Db, Error, Isolation, Options, Table, TransactionOptions};
use std::sync::Arc;

/// More than a writer may pin, and less than the memory for the log, so that nobody is aborted yet.
fn fill_log(db: &Db, table: &Table) -> Result<(), Error> {
    for number in 0..10u32 {
        db.transact(|tx| tx.put(table, &number.to_be_bytes(), &[1; 1000]))?;
    }
    Ok(())
}

/// A writer whose reads move on is aborted under the number that it logs by, which may not be where its reads are: another
/// transaction may have begun there.
fn others_commit_when_a_writer_is_aborted(options: TransactionOptions, moves: bool) {
    let directory = Arc::new(MemoryDirectory::new());
    let open = || {
        let options = Options::tiny_for_tests().writer_log_max(32 << 10);
        options.open_in(Arc::<MemoryDirectory>::clone(&directory)).unwrap()
    };
    let db = open();
    let (table, filler) = (db.table("table").unwrap(), db.table("filler").unwrap());
    let mut pinned = db.begin_with(options).unwrap();
    // Too long to wait for the commit to be logged.
    let long = [1; 600];
    pinned.put(&table, b"pinned", &long).unwrap();
    fill_log(&db, &filler).unwrap();
    let mut other = db.begin();
    other.put(&table, b"other", &long).unwrap();
    db.flush().unwrap();
    // The rest of what the pinned one does is as of the present.
    match moves {
        true => drop(pinned.get_for_update(&table, b"third")),
        false => drop(pinned.get(&table, b"third")),
    }
    while db.step().unwrap() {}
    // What has become of it is posted while the other is undecided.
    db.transact(|tx| tx.put(&filler, b"more", &[1; 1000])).unwrap();
    while db.step().unwrap() {}
    let ended = pinned.commit();
    assert!(matches!(&ended, Err(error) if error.is_retryable()), "{ended:?}");
    other.put(&table, b"also", b"1").unwrap();
    other.commit().unwrap();
    db.close().unwrap();

    let db = open();
    let table = db.table("table").unwrap();
    let found: Vec<_> = db.transact(|tx| tx.scan(&table, ..)?.map(|entry| Ok(entry?.0)).collect()).unwrap();
    assert_eq!(found, [b"also".to_vec(), b"other".to_vec()]);
    db.close().unwrap();
}

#[test]
fn a_pinned_writer_under_read_committed_takes_nobody_with_it() {
    let options = TransactionOptions::new().isolation(Isolation::ReadCommitted);
    others_commit_when_a_writer_is_aborted(options, false);
}

#[test]
fn a_pinned_writer_that_has_moved_on_takes_nobody_with_it() {
    others_commit_when_a_writer_is_aborted(TransactionOptions::new(), true);
}

#[test]
fn a_pinned_writer_that_stands_still_takes_nobody_with_it() {
    others_commit_when_a_writer_is_aborted(TransactionOptions::new(), false);
}

#[test]
fn a_writer_whose_own_log_is_too_long_is_told_that_a_retry_does_not_help() {
    let options = Options::tiny_for_tests().writer_log_max(32 << 10);
    let db = options.open_in(Arc::new(MemoryDirectory::new())).unwrap();
    let table = db.table("table").unwrap();
    let mut attempts = 0;
    let outcome = db.transact(|tx| {
        attempts += 1;
        (0..200).try_for_each(|_| {
            db.step()?;
            tx.put(&table, b"k", &[1; 1000])
        })
    });
    assert!(
        matches!(&outcome, Err(Error::TransactionTooLarge { found, limit }) if found > limit),
        "{outcome:?}"
    );
    assert_eq!(attempts, 1);
    // Others may have had their share in it.
    db.transact(|tx| (0..10).try_for_each(|_| tx.put(&table, b"k", &[1; 1000]))).unwrap();
    db.close().unwrap();
}
