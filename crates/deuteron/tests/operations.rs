//! Operations made of others, the limits of a writer, and waiting that is given up: each test's name is the property.

use deuteron::device::{FaultKind, FaultPlan, MemoryDirectory, Operation, SimulatedDisk};
use deuteron::{
    Background, ConflictCause, Db, Durability, Error, Isolation, Options, RetryPolicy, Savepoint, Table,
    Transaction, TransactionOptions,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn open(options: Options) -> (Db, Table) {
    let db = options.open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = db.table("t").expect("creates");
    (db, table)
}

fn cause<T>(outcome: Result<T, Error>) -> ConflictCause {
    match outcome {
        Err(Error::Conflict(conflict)) => conflict.cause,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("no conflict"),
    }
}

#[test]
fn the_intent_to_write_is_a_write_to_the_others() {
    let (db, table) = open(Options::tiny_for_tests());
    db.transact(|tx| tx.put(&table, b"k", b"1")).expect("commits");
    let mut first = db.begin();
    assert_eq!(first.get_for_update(&table, b"k").expect("reads").as_deref(), Some(&b"1"[..]));
    assert_eq!(first.get_for_update(&table, b"absent").expect("reads"), None);
    let mut second = db.begin();
    assert_eq!(cause(second.get_for_update(&table, b"k")), ConflictCause::WriteWrite);
    assert_eq!(cause(db.begin().put(&table, b"absent", b"2")), ConflictCause::WriteWrite);
    // Who only reads is not in the way.
    assert_eq!(db.begin().get(&table, b"k").expect("reads").as_deref(), Some(&b"1"[..]));
    first.commit().expect("commits");
    let left: Vec<_> = db.transact(|tx| tx.scan(&table, ..)?.collect()).expect("scans");
    assert_eq!(left, [(b"k".to_vec(), b"1".to_vec())]);
}

#[test]
fn of_two_that_expect_the_same_one_succeeds() {
    let (db, table) = open(Options::tiny_for_tests().background(Background::Threads));
    let won = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u8)
            .map(|number| {
                let (db, table) = (&db, &table);
                scope.spawn(move || {
                    db.transact(|tx| tx.compare_and_set(table, b"leader", None, Some(&[number])))
                        .expect("commits")
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("runs")).collect::<Vec<_>>()
    });
    assert_eq!(won.iter().filter(|won| **won).count(), 1);
    let leader = db.transact(|tx| tx.get(&table, b"leader")).expect("reads").expect("is there");
    assert!(won[usize::from(leader[0])]);
    db.close().expect("closes");
}

#[test]
fn what_comes_into_a_deleted_range_is_a_conflict_or_comes_later() {
    let (db, table) = open(Options::tiny_for_tests());
    let fill = |keys: &[&str]| {
        db.transact(|tx| keys.iter().try_for_each(|key| tx.put(&table, key.as_bytes(), b"1")))
            .expect("commits");
    };
    fill(&["a", "b1", "b2", "b3", "c"]);
    let mut sweeper = db.begin();
    // Having read what the other writes, it must come before it; not having deleted what the other inserts, after it.
    assert_eq!(sweeper.get(&table, b"mark").expect("reads"), None);
    assert_eq!(sweeper.delete_range(&table, &b"b"[..]..&b"c"[..]).expect("deletes"), 3);
    let mut other = db.begin();
    assert_eq!(other.get(&table, b"b1").expect("reads").as_deref(), Some(&b"1"[..]), "not deleted yet");
    other.put(&table, b"b15", b"phantom").expect("writes");
    let (first, second) = (other.commit(), sweeper.commit());
    assert_eq!(first.is_ok(), second.is_err(), "one of the two");
    assert_eq!(cause(second), ConflictCause::RangeChanged);
    let deleted = db.transact(|tx| tx.delete_range(&table, &b"b"[..]..&b"c"[..])).expect("commits");
    assert_eq!(deleted, 4);
    let left: Vec<_> = db
        .transact(|tx| tx.scan(&table, ..)?.map(|entry| entry.map(|(key, _)| key)).collect())
        .expect("scans");
    assert_eq!(left, [b"a".to_vec(), b"c".to_vec()]);
    assert_eq!(db.transact(|tx| tx.delete_range(&table, &b"x"[..]..&b"b"[..])).expect("empty"), 0);
}

/// Whose writes are still there.
fn refuses(mut tx: Transaction, table: &Table, foreign: &Savepoint) {
    tx.put(table, b"k", b"kept").expect("writes");
    assert!(matches!(tx.rollback_to(foreign), Err(Error::NoSavepoint)));
    assert_eq!(tx.get(table, b"k").expect("reads").as_deref(), Some(&b"kept"[..]));
    tx.commit().expect("commits");
}

#[test]
fn a_savepoint_of_another_transaction_is_none_though_all_was_alike_until_then() {
    let (one, other) = (open(Options::tiny_for_tests()), open(Options::tiny_for_tests()));
    let begin = |(db, _): &(Db, Table)| {
        let mut tx = db.begin();
        let savepoint = tx.savepoint().expect("is active");
        (tx, savepoint)
    };
    let ((_first, foreign), (second, _own)) = (begin(&one), begin(&other));
    refuses(second, &other.1, &foreign);
    // A reader of the past, as of the moment at which a writer has begun.
    let (db, table) = open(Options::tiny_for_tests().retention(Duration::from_secs(3600)));
    let mut writer = db.begin();
    let past = TransactionOptions::new().as_of(writer.timestamp());
    let mut reader = db.begin_with(past).expect("is retained");
    let foreign = reader.savepoint().expect("is active");
    writer.savepoint().expect("is active");
    refuses(writer, &table, &foreign);
}

#[test]
fn a_writer_that_never_ends_does_not_pin_the_log() {
    let (db, table) = open(Options::tiny_for_tests().writer_log_max(64 << 10));
    let mut idle = db.begin();
    // Logged at once, as all deletes.
    idle.delete(&table, b"idle").expect("writes");
    let mut reader = db.begin();
    assert_eq!(reader.get(&table, b"idle").expect("reads"), None);
    for number in 0..2_000u32 {
        db.transact(|tx| tx.put(&table, &(number % 50).to_be_bytes(), &[7; 100])).expect("commits");
    }
    while db.step().expect("steps") {}
    let error = idle.commit().expect_err("it was aborted");
    assert!(error.is_retryable(), "{error}");
    assert_eq!(cause::<()>(Err(error)), ConflictCause::LogPinned);
    reader.commit().expect("who has not written pins nothing");
    db.transact(|tx| tx.put(&table, b"idle", b"2")).expect("the key is free");
    db.close().expect("closes");
}

#[test]
fn attempts_are_numbered_and_limited() {
    let (db, table) = open(Options::tiny_for_tests());
    let mut holder = db.begin();
    holder.put(&table, b"k", b"1").expect("writes");
    let mut attempts = Vec::new();
    let retry = RetryPolicy { attempts_max: 3, ..RetryPolicy::default() };
    let outcome = db.transact_with(TransactionOptions::new(), retry, |tx| {
        attempts.push(tx.attempt());
        tx.put(&table, b"k", b"2")
    });
    assert_eq!(cause(outcome), ConflictCause::WriteWrite);
    assert_eq!(attempts, [1, 2, 3]);
}

#[test]
fn waiting_that_is_given_up_decides_nothing() {
    let options = Options::new().memory(32 << 20).durability(Durability::None);
    let (db, table) = open(options);
    let mut tx = db.begin();
    tx.put(&table, b"k", b"1").expect("writes");
    let mut ticket = tx.commit_async().expect("commits in memory");
    // Perhaps durable by now, perhaps not; in either case committed.
    let early = ticket.wait_timeout(Duration::ZERO).expect("the log works");
    assert_eq!(db.transact(|tx| tx.get(&table, b"k")).expect("reads").as_deref(), Some(&b"1"[..]));
    assert!(!early || ticket.is_durable());
    assert!(ticket.wait_timeout(Duration::MAX).expect("the log works"));
    assert!(ticket.is_durable() && ticket.wait_timeout(Duration::ZERO).expect("the log works"));
    db.close().expect("closes");
}

#[test]
fn a_ticket_that_nobody_waits_for_becomes_durable_all_the_same() {
    let (db, table) = open(Options::new().memory(32 << 20).durability(Durability::Sync));
    let mut tickets = Vec::new();
    for number in 0..100u64 {
        let mut tx = db.begin();
        tx.put(&table, &number.to_be_bytes(), b"1").expect("writes");
        tickets.push(tx.commit_async().expect("commits in memory"));
    }
    while !tickets.iter().all(|ticket| ticket.is_durable()) {
        std::thread::yield_now();
    }
    db.close().expect("closes");
}

#[test]
fn after_its_deadline_a_transaction_is_over_and_its_keys_are_free() {
    let (db, table) = open(Options::tiny_for_tests());
    let far = TransactionOptions::new().deadline(Instant::now() + Duration::from_secs(3600));
    db.transact_with(far, RetryPolicy::default(), |tx| tx.put(&table, b"k", b"1")).expect("commits in time");
    let moment = Instant::now() + Duration::from_millis(20);
    let mut tx = db.begin_with(TransactionOptions::new().deadline(moment)).expect("is open");
    // In time, unless the machine is slow.
    drop(tx.put(&table, b"k", b"2"));
    while Instant::now() < moment {
        std::thread::yield_now();
    }
    assert!(matches!(tx.get(&table, b"k"), Err(Error::DeadlineExceeded)));
    assert!(matches!(tx.get(&table, b"k"), Err(Error::DeadlineExceeded | Error::Aborted)));
    db.transact(|tx| tx.put(&table, b"k", b"3")).expect("the key is free");
    assert!(matches!(tx.commit(), Err(Error::DeadlineExceeded)));
    assert_eq!(db.transact(|tx| tx.get(&table, b"k")).expect("reads").as_deref(), Some(&b"3"[..]));
    let past = TransactionOptions::new().deadline(Instant::now());
    let outcome = db.transact_with(past, RetryPolicy::default(), |tx| tx.get(&table, b"k"));
    assert!(matches!(outcome, Err(Error::DeadlineExceeded)), "and is not retried");
    db.close().expect("closes");
}

#[test]
fn aborts_are_counted_by_their_causes() {
    let (db, table) = open(Options::tiny_for_tests());
    let count = |cause: &str| {
        let transactions = db.stats().transactions;
        let sum: u64 = transactions.aborts_by_cause.iter().map(|(_, count)| count).sum();
        assert_eq!(sum, transactions.aborts);
        transactions.aborts_by_cause.iter().find(|(name, _)| *name == cause).expect("a known cause").1
    };
    let large = db.transact(|tx| {
        (0..10_000u32).try_for_each(|number| tx.put(&table, &number.to_be_bytes(), &[7; 100]))
    });
    assert!(matches!(large, Err(Error::TransactionTooLarge { .. })));
    assert_eq!(count("transaction-too-large"), 1);
    let mut late = db.begin_with(TransactionOptions::new().deadline(Instant::now())).expect("is open");
    for _ in 0..2 {
        assert!(matches!(late.get(&table, b"k"), Err(Error::DeadlineExceeded)));
    }
    drop(late);
    assert_eq!(count("deadline-exceeded"), 1);
    db.transact(|tx| tx.put(&table, b"k", b"no integer")).expect("commits");
    assert!(matches!(db.transact(|tx| tx.add(&table, b"k", 1)), Err(Error::Change { .. })));
    assert_eq!((count("change"), count("caller")), (1, 0));
    db.begin().abort();
    assert_eq!((count("caller"), count("write-write")), (1, 0));
    db.close().expect("closes");
}

#[test]
fn the_deadline_of_a_transaction_is_not_that_of_others_which_its_reader_uses() {
    let (db, table) = open(Options::tiny_for_tests());
    db.transact(|tx| tx.put(&table, b"k", b"1")).expect("commits");
    let moment = Instant::now() + Duration::from_millis(200);
    let mut tx = db.begin_with(TransactionOptions::new().deadline(moment)).expect("is open");
    let written = tx.get_with(&table, b"k", |_| {
        while Instant::now() < moment {
            std::thread::yield_now();
        }
        // With hardly any memory some of them wait for room.
        (0..500u32).try_for_each(|number| db.transact(|tx| tx.put(&table, &number.to_be_bytes(), &[7; 400])))
    });
    // In time to begin, unless the machine is slow.
    match written {
        Ok(written) => written.expect("it is there").expect("no deadline is theirs"),
        Err(error) => assert!(matches!(error, Error::DeadlineExceeded), "{error}"),
    }
    assert!(matches!(tx.get(&table, b"k"), Err(Error::DeadlineExceeded)));
    db.close().expect("closes");
}

/// With hardly any memory many operations wait for room, and do the background work while they do.
#[test]
fn a_deadline_ends_a_wait_for_room_and_stops_nothing_else() {
    let (db, table) = open(Options::tiny_for_tests());
    let mut ended = 0;
    for number in 0..3_000u32 {
        let options = TransactionOptions::new().deadline(Instant::now() + Duration::from_micros(200));
        let outcome = db.transact_with(options, RetryPolicy::default(), |tx| {
            (0..8u32).try_for_each(|key| tx.put(&table, &(number * 8 + key).to_be_bytes(), &[7; 150]))
        });
        match outcome {
            Ok(()) | Err(Error::DurabilityUnknown { .. }) => {}
            Err(Error::DeadlineExceeded) => ended += 1,
            Err(error) => panic!("{error}"),
        }
    }
    println!("{ended} of 3000 ended by their deadlines");
    // Whatever became of them: all of each, or nothing.
    let left = db.transact(|tx| {
        tx.scan(&table, ..)?.map(|entry| entry.map(|(key, _)| key)).collect::<Result<Vec<_>, _>>()
    });
    let left = left.expect("scans");
    assert_eq!(left.len() % 8, 0);
    assert!(left.len() as u32 <= (3_000 - ended) * 8);
    db.close().expect("closes, for nothing has stopped it");
}

#[test]
fn of_two_that_have_looked_at_the_same_one_changes_it_at_every_level() {
    let (db, table) = open(Options::tiny_for_tests());
    for isolation in [Isolation::Serializable, Isolation::Snapshot, Isolation::ReadCommitted] {
        for expected in [None, Some(&b"0"[..])] {
            db.transact(|tx| match expected {
                Some(value) => tx.put(&table, b"k", value),
                None => tx.delete(&table, b"k"),
            })
            .expect("commits");
            let mut first = db.begin_with(TransactionOptions::new().isolation(isolation)).expect("begins");
            let mut second = db.begin_with(TransactionOptions::new().isolation(isolation)).expect("begins");
            // The second goes on only when the first has ended, or is told that the first is in its way.
            let won = first.compare_and_set(&table, b"k", expected, Some(b"1")).expect("looks");
            let other = second.compare_and_set(&table, b"k", expected, Some(b"2"));
            first.commit().expect("commits");
            let other = other.and_then(|other| second.commit().map(|()| other));
            assert!(won && !matches!(other, Ok(true)), "{isolation:?}, {expected:?}: {other:?}");
            let found = db.transact(|tx| tx.get(&table, b"k")).expect("reads");
            assert_eq!(found.as_deref(), Some(&b"1"[..]), "{isolation:?}, {expected:?}");
            // Another who comes between the look and the write.
            let mut late = db.begin_with(TransactionOptions::new().isolation(isolation)).expect("begins");
            late.get(&table, b"unrelated").expect("reads");
            db.transact(|tx| tx.put(&table, b"k", b"3")).expect("commits");
            let late = late
                .compare_and_set(&table, b"k", Some(b"1"), Some(b"4"))
                .and_then(|won| late.commit().map(|()| won));
            assert!(!matches!(late, Ok(true)), "{isolation:?}: {late:?}");
            assert_eq!(db.transact(|tx| tx.get(&table, b"k")).expect("reads").as_deref(), Some(&b"3"[..]));
        }
    }
}

#[test]
fn what_several_have_changed_as_they_expected_adds_up_at_every_level() {
    for isolation in [Isolation::Serializable, Isolation::Snapshot, Isolation::ReadCommitted] {
        let (db, table) = open(Options::tiny_for_tests().background(Background::Threads));
        db.transact(|tx| tx.put(&table, b"k", &0u32.to_le_bytes())).expect("commits");
        let options = TransactionOptions::new().isolation(isolation).durability(Durability::None);
        let count = |tx: &mut Transaction| {
            let found = tx.get(&table, b"k")?.expect("is there");
            let next = u32::from_le_bytes(found[..].try_into().expect("4 bytes")) + 1;
            tx.compare_and_set(&table, b"k", Some(&found), Some(&next.to_le_bytes()))
        };
        let changed: u32 = std::thread::scope(|scope| {
            let work = || (0..2_000).map(|_| db.transact_with(options, RetryPolicy::default(), count));
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(move || {
                        work().map(|changed| u32::from(changed.expect("commits"))).sum::<u32>()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("runs")).sum()
        });
        let found = db.transact(|tx| tx.get(&table, b"k")).expect("reads").expect("is there");
        assert_eq!(found, changed.to_le_bytes(), "{isolation:?}");
        db.close().expect("closes");
    }
}

#[test]
fn a_reason_of_the_program_ends_a_transaction_and_comes_back() {
    #[derive(Debug, thiserror::Error)]
    #[error("{0} too few")]
    struct TooFew(u32);
    let (db, table) = open(Options::tiny_for_tests());
    let mut attempts = 0;
    let outcome = db.transact(|tx| {
        attempts += 1;
        tx.put(&table, b"k", b"1")?;
        Err::<(), _>(Error::other(TooFew(3)))
    });
    let Err(Error::Other(reason)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(reason.downcast_ref::<TooFew>().expect("what was given").0, 3);
    assert_eq!((attempts, db.transact(|tx| tx.get(&table, b"k")).expect("reads")), (1, None));
}

/// Who has committed is told so, and who has not gets the reason only.
#[test]
fn a_commit_whose_log_fails_has_committed_and_those_behind_it_have_not() {
    let disk = SimulatedDisk::new(1);
    let db = Options::tiny_for_tests()
        .durability(Durability::Sync)
        .open_in(Arc::new(disk.directory()))
        .expect("opens");
    let table = db.table("t").expect("creates");
    let mut others: Vec<_> = (0..3).map(|_| db.begin()).collect();
    others.iter_mut().zip(0u8..).for_each(|(tx, key)| tx.put(&table, &[key], b"1").expect("writes"));
    let mut others = others.into_iter();
    disk.set_faults(FaultPlan::new().fail_from(Operation::Write, 0, FaultKind::Refuse));
    let first = others.next().expect("three");
    let at = first.timestamp();
    match first.commit() {
        Err(Error::DurabilityUnknown { timestamp, cause: Some(cause) }) => {
            assert!(timestamp >= at && !matches!(*cause, Error::DurabilityUnknown { .. }), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    for tx in others {
        assert!(matches!(tx.commit(), Err(Error::Poisoned { .. })));
    }
}
