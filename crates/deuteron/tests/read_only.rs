//! Declared read-only transactions, in the present and in the past, beside writers on threads.

use deuteron::device::{CrashPolicy, MemoryDirectory, SimulatedDisk};
use deuteron::{
    Background, Db, Durability, Error, Isolation, Options, RetryPolicy, Table, Timestamp, Transaction,
    TransactionOptions,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

const ACCOUNTS: u64 = 32;
const DEPOSIT: u64 = 1000;
const TOTAL: u64 = ACCOUNTS * DEPOSIT;

fn open(options: Options) -> (Db, Table) {
    let db = options
        .background(Background::Threads)
        .durability(Durability::None)
        .open_in(Arc::new(MemoryDirectory::new()))
        .expect("opens");
    let table = db.table("accounts").expect("creates a table");
    db.transact(|tx| {
        (0..ACCOUNTS).try_for_each(|account| tx.put(&table, &account.to_be_bytes(), &DEPOSIT.to_be_bytes()))
    })
    .expect("commits");
    (db, table)
}

fn amount(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

fn transfer(db: &Db, table: &Table, random: &mut u64) {
    let mut next = |bound: u64| {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*random >> 33) % bound
    };
    let (from, to) = (next(ACCOUNTS), next(ACCOUNTS));
    if from == to {
        return;
    }
    db.transact(|tx| {
        let mut balance = |account: u64| {
            tx.get(table, &account.to_be_bytes()).map(|value| amount(&value.expect("it is there")))
        };
        let (have, there) = (balance(from)?, balance(to)?);
        let moved = have.min(7);
        tx.put(table, &from.to_be_bytes(), &(have - moved).to_be_bytes())?;
        tx.put(table, &to.to_be_bytes(), &(there + moved).to_be_bytes())
    })
    .expect("commits in the end");
}

fn total(tx: &mut Transaction, table: &Table, by_scan: bool) -> Result<u64, Error> {
    if by_scan {
        return tx.scan(table, ..)?.map(|entry| entry.map(|(_, value)| amount(&value))).sum();
    }
    (0..ACCOUNTS).map(|account| Ok(amount(&tx.get(table, &account.to_be_bytes())?.expect("is there")))).sum()
}

/// Two writers beside a reader, until it is done or they have made so many transfers.
fn beside_writers(db: &Db, table: &Table, transfers_max: u64, reader: impl FnOnce()) {
    struct Done<'d>(&'d AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also if the reader panics.
        let _done = Done(&done);
        for seed in 1..=2u64 {
            let done = &done;
            scope.spawn(move || {
                let mut random = seed;
                for _ in 0..transfers_max {
                    transfer(db, table, &mut random);
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        reader();
    });
}

#[test]
fn declared_readers_beside_writers_never_abort() {
    let (db, table) = open(Options::new().memory(1 << 30));
    let options = TransactionOptions::new().read_only(true);
    let (mut transactions, mut aborts) = (0u64, 0u64);
    beside_writers(&db, &table, u64::MAX, || {
        for round in 0..20_000u64 {
            let mut tx = db.begin_with(options).expect("is open");
            let found = total(&mut tx, &table, round % 2 == 0).and_then(|sum| tx.commit().map(|()| sum));
            transactions += 1;
            match found {
                Ok(sum) => assert_eq!(sum, TOTAL, "half of a transfer"),
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    println!("aborted: {error}");
                    aborts += 1;
                }
            }
        }
    });
    println!("read-only transactions: {transactions}");
    println!("read-only aborts: {aborts}");
    assert_eq!(aborts, 0);
    db.close().expect("closes");
}

#[test]
fn the_past_is_what_it_was_when_it_was_the_present() {
    let (db, table) = open(Options::new().memory(256 << 20).retention(Duration::from_secs(120)));
    let snapshot = |tx: &mut Transaction| -> Entries {
        tx.scan(&table, ..).expect("scans").collect::<Result<_, _>>().expect("no error")
    };
    let mut moments: Vec<(Timestamp, Entries)> = Vec::new();
    beside_writers(&db, &table, 5_000, || {
        for _ in 0..200 {
            let mut present = db.begin_with(TransactionOptions::new().read_only(true)).expect("is open");
            moments.push((present.timestamp(), snapshot(&mut present)));
            let (moment, seen) = &moments[moments.len() / 2];
            let mut past = db.begin_with(TransactionOptions::new().as_of(*moment)).expect("is kept");
            assert_eq!(&snapshot(&mut past), seen);
        }
    });
    db.checkpoint().expect("takes a checkpoint");
    for (moment, seen) in &moments {
        let mut past = db.begin_with(TransactionOptions::new().as_of(*moment)).expect("is kept");
        assert_eq!(&snapshot(&mut past), seen);
    }
    db.close().expect("closes, and does not wait for the past to pass");
}

#[test]
fn a_past_that_is_gone_or_yet_to_come_is_a_typed_error() {
    let db = Options::tiny_for_tests()
        .retention(Duration::from_millis(1))
        .open_in(Arc::new(MemoryDirectory::new()))
        .expect("opens");
    let table = db.table("t").expect("creates");
    db.transact(|tx| tx.put(&table, b"k", b"1")).expect("commits");
    let then = db.timestamp();
    let future = Timestamp(then.0 + 1_000_000);
    let refused = |at| match db.begin_with(TransactionOptions::new().as_of(at)) {
        Err(error @ Error::NotRetained { .. }) => {
            assert!(!error.is_retryable());
            error.to_string()
        }
        Err(other) => panic!("{other}"),
        Ok(_) => String::new(),
    };
    assert!(refused(future).contains("cannot be read"));
    // The keeper moves on as time passes.
    db.transact(|tx| tx.put(&table, b"k", b"2")).expect("commits");
    while refused(then).is_empty() {
        db.step().expect("steps");
        std::thread::yield_now();
    }
    assert!(db.retained_from().expect("some past is kept") > then);
    db.close().expect("closes");

    let db = Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let Err(Error::NotRetained { oldest, .. }) =
        db.begin_with(TransactionOptions::new().as_of(db.timestamp()))
    else {
        panic!("no past is kept");
    };
    assert_eq!(oldest, None);
    db.close().expect("closes");
}

/// It was the last timestamp handed out, of which the next opening may know nothing.
#[test]
fn a_moment_that_was_kept_is_no_other_one_after_a_crash() {
    let disk = SimulatedDisk::new(1);
    let options = || Options::tiny_for_tests().retention(Duration::from_secs(60));
    let db = options().open_in(Arc::new(disk.directory())).expect("opens");
    let table = db.table("t").expect("creates");
    db.transact(|tx| tx.put(&table, b"k", b"1")).expect("commits");
    // Far more than the clock has leased; nothing runs in the background.
    (0..10_000).for_each(|_| drop(db.begin()));
    let then = db.timestamp();
    let left = disk.crash(CrashPolicy::LoseAll);
    std::mem::forget(db);
    let db = options().open_in(Arc::new(left)).expect("opens");
    let table = db.table("t").expect("is there");
    let written = db.begin();
    assert!(written.timestamp() > then, "{} comes again", written.timestamp());
    drop(written);
    (0..20_000).for_each(|_| drop(db.begin()));
    db.transact(|tx| tx.put(&table, b"k", b"2")).expect("commits");
    let past = db.begin_with(TransactionOptions::new().as_of(then));
    assert!(matches!(past, Err(Error::NotRetained { .. })));
    db.close().expect("closes");
}

#[test]
fn a_database_that_is_opened_again_has_no_past() {
    let directory = Arc::new(MemoryDirectory::new());
    let open = || {
        let options = Options::tiny_for_tests().retention(Duration::from_secs(60));
        options.open_in(Arc::<MemoryDirectory>::clone(&directory)).expect("opens")
    };
    let db = open();
    let table = db.table("t").expect("creates");
    db.transact(|tx| tx.put(&table, b"k", b"1")).expect("commits");
    let then = db.timestamp();
    db.close().expect("closes");
    let db = open();
    let table = db.table("t").expect("is there");
    let past = db.begin_with(TransactionOptions::new().as_of(then));
    assert!(matches!(past, Err(Error::NotRetained { .. })));
    assert_eq!(db.transact(|tx| tx.get(&table, b"k")).expect("reads").as_deref(), Some(&b"1"[..]));
    db.close().expect("closes");
}

#[test]
fn levels_are_chosen_by_transaction_and_retried_alike() {
    let (db, table) = open(Options::tiny_for_tests());
    for isolation in [Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable] {
        let options = TransactionOptions::new().isolation(isolation);
        let sum = db
            .transact_with(options, RetryPolicy::default(), |tx| {
                tx.put(&table, &0u64.to_be_bytes(), &DEPOSIT.to_be_bytes())?;
                total(tx, &table, true)
            })
            .expect("commits");
        assert_eq!(sum, TOTAL);
    }
    let options = TransactionOptions::new().isolation(Isolation::ReadCommitted).read_only(true);
    let mut tx = db.begin_with(options).expect("is open");
    assert!(matches!(tx.put(&table, b"k", b"v"), Err(Error::ReadOnly)));
    assert_eq!(total(&mut tx, &table, false).expect("reads"), TOTAL);
    db.close().expect("closes");
}

#[test]
fn an_old_reader_keeps_its_snapshot_while_memory_lasts() {
    let directory = Arc::new(MemoryDirectory::new());
    let options = || Options::new().memory(256 << 20).durability(Durability::None);
    let open_again =
        || options().background(Background::Threads).open_in(Arc::clone(&directory) as _).expect("opens");
    let db = open_again();
    let table = db.table("accounts").expect("creates a table");
    for account in 0..ACCOUNTS {
        let (key, deposit) = (account.to_be_bytes(), DEPOSIT.to_be_bytes());
        db.transact(|tx| tx.put(&table, &key, &deposit)).expect("commits");
    }
    db.transact(|tx| tx.put(&table, b"never read before", b"value")).expect("commits");
    db.close().expect("closes");
    // Nothing is in memory: what nobody has asked for comes from the data component, which has one version of it.
    let db = open_again();
    let table = db.table("accounts").expect("is there");
    let mut reader = db.begin_with(TransactionOptions::new().read_only(true)).expect("is open");
    // 200,000 updates take some 16 MB of what waits for the reader, and as much of versions.
    let mut random = 1;
    for _ in 0..100_000 {
        transfer(&db, &table, &mut random);
    }
    assert_eq!(total(&mut reader, &table, false).expect("is kept"), TOTAL);
    let value = reader.get(&table, b"never read before").expect("nobody has forced it out");
    assert_eq!(value.as_deref(), Some(&b"value"[..]));
    reader.commit().expect("ends");
    db.close().expect("closes");
}

#[test]
fn a_reader_that_outlasts_the_memory_is_told_so_and_harms_nobody() {
    let (db, table) = open(Options::new().memory(16 << 20));
    let mut reader = db.begin_with(TransactionOptions::new().read_only(true)).expect("is open");
    let mut random = 1;
    for _ in 0..300_000 {
        transfer(&db, &table, &mut random);
    }
    match total(&mut reader, &table, true) {
        Ok(sum) => assert_eq!(sum, TOTAL, "half of a transfer"),
        Err(error) => assert!(error.is_retryable(), "{error}"),
    }
    drop(reader);
    let mut again = db.begin_with(TransactionOptions::new().read_only(true)).expect("is open");
    assert_eq!(total(&mut again, &table, true).expect("reads the present"), TOTAL);
    drop(again);
    db.close().expect("closes");
}
