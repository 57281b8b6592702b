//! Who gives way for memory, and what counts in it: each test's name is the property.

use crate::test_bed::{TABLE, bed, cause, get, put, roomy, tiny};
use crate::{BeginOptions, ConflictCause, Isolation, TcError, TcOptions, Transaction};
use deuteron_contract::{Lsn, Operation, Timestamp};
use deuteron_log::LogOptions;
use std::sync::Arc;

#[test]
fn too_much_read_to_remember_matters_only_to_the_pushed() {
    let bed = tiny();
    let mut tx = bed.begin();
    for number in 0..100 {
        assert_eq!(get(&mut tx, &format!("{number}")), None);
    }
    put(&mut tx, "k", "1");
    tx.commit().unwrap();
    let mut tx = bed.begin();
    for number in 0..100 {
        assert_eq!(get(&mut tx, &format!("{number}")), None);
    }
    bed.put(b"k", b"2");
    put(&mut tx, "k", "1");
    assert_eq!(cause(tx.commit()), ConflictCause::ReadsForgotten);
}

#[test]
fn a_transaction_larger_than_memory_is_refused() {
    let bed = tiny();
    let mut tx = bed.begin();
    let error = (0..100_000)
        .find_map(|number: u32| tx.put(TABLE, &number.to_be_bytes(), b"").err())
        .expect("an error");
    assert!(matches!(error, TcError::TransactionTooLarge { .. }), "{error}");
    assert!(!error.is_retryable());
    drop(tx);
    bed.put(b"k", b"1");
}

#[test]
fn savepoints_that_take_all_of_the_memory_are_refused() {
    let bed = tiny();
    let budget = bed.tc().core.account.budget();
    let mut tx = bed.begin();
    put(&mut tx, "k", "1");
    let outer = tx.savepoint().unwrap();
    // Those that are given back count for nothing.
    for _ in 0..budget / 100 {
        (0..10).for_each(|_| assert_ne!(tx.savepoint().unwrap(), outer));
        tx.rollback_to(&outer).unwrap();
    }
    let mut count = 0;
    let error = loop {
        match tx.savepoint() {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, TcError::TransactionTooLarge { found: 2, limit: 1 }), "{error}");
    assert!(budget / 200 < count && count < budget / 40, "{count} of {budget} bytes");
    assert!(matches!(tx.savepoint(), Err(TcError::Aborted)));
    drop(tx);
    bed.put(b"k", b"2");
}

/// What lies beneath what it has written stays for as long as it may be aborted. It hears of that soon, and that to try again is no use.
#[test]
fn a_transaction_that_changes_more_than_memory_holds_is_refused_without_a_long_wait() {
    let log = LogOptions { ring_bytes: 8 << 20, ..LogOptions::default() };
    let options = TcOptions { memory_bytes: 1 << 20, ..TcOptions::default() };
    let bed = bed(options, &log, deuteron_proxy::Options::default());
    let key = |number: u32| number.to_be_bytes();
    (0..20_000).for_each(|number| bed.put(&key(number), &[7; 100]));
    bed.settle();
    let before = bed.tc().statistics().stalls;
    let mut tx = bed.begin();
    let change = |tx: &mut Transaction, number| {
        let value = tx.get(TABLE, &key(number))?.expect("is there");
        tx.put(TABLE, &key(number), &value)
    };
    let error = (0..20_000).find_map(|number| change(&mut tx, number).err()).expect("an error");
    assert!(matches!(error, TcError::TransactionTooLarge { found: 1000.., .. }), "{error}");
    let stalls = bed.tc().statistics().stalls - before;
    assert!(stalls < 1000, "{stalls} waits");
    // Half as many can be changed at once.
    let TcError::TransactionTooLarge { limit, .. } = error else { unreachable!("matched above") };
    let mut tx = bed.begin();
    (0..limit as u32 / 2).for_each(|number| change(&mut tx, number).unwrap());
    tx.commit().unwrap();
}

#[test]
fn what_reads_bring_stays_in_the_read_cache_until_memory_is_short() {
    let bed = bed(
        TcOptions { memory_bytes: 256 << 10, ..TcOptions::default() },
        &LogOptions::tiny_for_tests(),
        deuteron_proxy::Options::tiny_for_tests(),
    );
    let key = |number: u32| number.to_be_bytes();
    for number in 0..4_000 {
        bed.put(&key(number), &[7; 100]);
        bed.step();
    }
    bed.settle();
    let statistics = || bed.tc().statistics();
    assert!(statistics().evictions > 0 && statistics().read_cache_fills == 0);
    let cold = (0..4_000).find(|number| {
        let mut tx = bed.begin();
        assert!(tx.get(TABLE, &key(*number)).unwrap().is_some());
        tx.misses() == 1 && statistics().read_cache_fills == 1
    });
    let before = statistics();
    assert_eq!(before.read_cache_bytes, (size_of::<crate::version::Version>() + 100) as u64);
    for _ in 0..3 {
        assert!(bed.get(&key(cold.unwrap())).is_some());
    }
    let after = statistics();
    assert_eq!((after.misses, after.read_cache_hits), (before.misses, before.read_cache_hits + 3));
    // Superseded, then cut off; others are evicted.
    for round in 0..3 {
        for number in 0..4_000 {
            assert!(bed.get(&key(number)).is_some());
            bed.put(&key(number), &[round; 100]);
            bed.step();
        }
    }
    bed.settle();
    let after = statistics();
    assert!(after.read_cache_evictions > 0 && after.read_cache_evictions <= after.read_cache_fills);
    assert!(after.read_cache_bytes <= after.memory_bytes);
    assert!(after.memory_bytes <= after.memory_budget_bytes);
}

#[test]
fn of_several_that_have_written_much_the_earliest_goes_on_and_the_others_come_to_their_turns() {
    the_earliest_of_several_goes_on(|tx, key| tx.put(TABLE, key, b"value"));
}

#[test]
fn of_several_that_have_noted_much_the_earliest_goes_on_and_the_others_come_to_their_turns() {
    the_earliest_of_several_goes_on(|tx, key| tx.append(TABLE, key, b"value"));
}

fn the_earliest_of_several_goes_on(write_one: fn(&mut Transaction, &[u8]) -> Result<(), TcError>) {
    let log = LogOptions { ring_bytes: 8 << 20, ..LogOptions::default() };
    let options = TcOptions { memory_bytes: 1 << 20, ..TcOptions::default() };
    let bed = bed(options, &log, deuteron_proxy::Options::default());
    let (threads, budget) = (4u32, bed.tc().memory_budget() as usize);
    let write = |tx: &mut Transaction, thread: u32, enough: &dyn Fn(&Transaction) -> bool| {
        for number in 0u32.. {
            if enough(tx) {
                break;
            }
            write_one(tx, &[thread.to_be_bytes(), number.to_be_bytes()].concat())?;
        }
        Ok::<(), TcError>(())
    };
    // Together there is room for so much, and not for what comes.
    let begun = (0..threads).map(|thread| {
        let mut tx = bed.begin();
        let taken = u64::from(thread + 1) * budget as u64 * 28 / 100;
        write(&mut tx, thread, &|_| bed.tc().memory_bytes() > taken).expect("there is room for all");
        (thread, tx)
    });
    let begun: Vec<_> = begun.collect();
    let aborted: Vec<usize> = std::thread::scope(|scope| {
        let (bed, write) = (&bed, &write);
        let spawned = begun.into_iter().map(|(thread, mut tx)| {
            scope.spawn(move || {
                let mut aborted = 0;
                loop {
                    let enough = |tx: &Transaction| tx.workspace.written_bytes > budget * 45 / 100;
                    match write(&mut tx, thread, &enough).and_then(|()| tx.commit()) {
                        Ok(_) => return aborted,
                        Err(TcError::Conflict(conflict)) => {
                            assert_eq!(conflict.cause, ConflictCause::MemoryShort);
                            assert!(matches!(conflict.place, crate::ConflictPlace::Key(_)));
                            aborted += 1;
                        }
                        Err(error) => panic!("{error}"),
                    }
                    tx = bed.begin();
                }
            })
        });
        spawned.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(aborted[0], 0, "the earliest");
    assert!(aborted.iter().sum::<usize>() > 0, "{aborted:?}");
    bed.settle();
    for thread in 0..threads {
        let key = [thread.to_be_bytes(), [0; 4]].concat();
        assert!(bed.get(&key).is_some_and(|value| value.starts_with(b"value")));
    }
}

#[test]
fn one_that_has_written_much_is_not_aborted_for_those_that_have_written_little() {
    let bed = roomy();
    let mut large = bed.begin();
    let budget = bed.tc().memory_budget() as usize;
    for number in 0u32.. {
        if large.workspace.written_bytes > budget / 15 {
            break;
        }
        large.put(TABLE, &number.to_be_bytes(), b"value").unwrap();
    }
    let mut small = bed.begin();
    put(&mut small, "small", "1");
    assert!(!bed.tc().core.abort_youngest_large_writer());
    small.commit().unwrap();
    large.commit().unwrap();
}

/// Its records lie in the index before those of the others.
#[test]
fn others_write_as_much_as_they_like_beside_one_that_has_written_much_and_does_nothing() {
    for aborted in [false, true] {
        let log = LogOptions { ring_bytes: 8 << 20, ..LogOptions::default() };
        let options = TcOptions { memory_bytes: 32 << 20, ..TcOptions::default() };
        let bed = bed(options, &log, deuteron_proxy::Options::default());
        let budget = bed.tc().memory_budget() as usize;
        // As this it keeps nothing from being posted.
        let isolation = Isolation::ReadCommitted;
        let mut idle = bed.begin_with(BeginOptions { isolation, ..BeginOptions::default() });
        for number in 0u64.. {
            if idle.workspace.written_bytes > budget * 48 / 100 {
                break;
            }
            idle.put(TABLE, &number.to_be_bytes(), b"").unwrap();
        }
        assert!(idle.workspace.writes.len() > 90_000);
        assert!(!aborted || bed.tc().abort_writers_before(bed.log.tail_lsn()) == 1);
        let key = |number: u32| [&number.to_be_bytes()[..], &[7; 496]].concat();
        for number in 0..2 * budget as u32 / 500 {
            bed.put(&key(number), b"1");
            if number % 64 == 0 {
                bed.step();
            }
        }
        let statistics = bed.tc().statistics();
        assert!(statistics.evictions > budget as u64 / 500, "{}", statistics.evictions);
        assert!(statistics.stalls < 10 && statistics.horizon_forced == 0, "{statistics:?}");
        assert_eq!(idle.commit().is_err(), aborted);
    }
}

/// Whose slots do not say when they began.
#[test]
fn of_those_that_read_what_is_committed_the_one_that_began_last_is_aborted_for_its_memory() {
    let bed = roomy();
    let budget = bed.tc().memory_budget() as usize;
    let options = BeginOptions { isolation: Isolation::ReadCommitted, ..BeginOptions::default() };
    let earlier = bed.begin();
    let mut first = bed.begin_with(options);
    drop(earlier);
    let mut second = bed.begin_with(options);
    assert!(second.workspace.slot.0 < first.workspace.slot.0, "it is not their order that tells");
    for (tx, name) in [(&mut first, 1), (&mut second, 2)] {
        for number in 0u32.. {
            if tx.workspace.written_bytes > budget / 15 {
                break;
            }
            tx.put(TABLE, &[&[name], &number.to_be_bytes()[..]].concat(), b"value").unwrap();
        }
    }
    assert_eq!(get(&mut first, "nothing"), None, "nor when they have read");
    assert!(bed.tc().core.abort_youngest_large_writer());
    assert_eq!(cause(second.commit()), ConflictCause::MemoryShort);
    first.commit().unwrap();
}

/// Its record would lie behind the one that tells of the abort, and keep the log from being cut for as long as it does nothing.
#[test]
fn a_write_whose_transaction_was_aborted_while_it_waited_says_so() {
    let (options, log) =
        (TcOptions { memory_bytes: 16 << 20, ..TcOptions::default() }, LogOptions::tiny_for_tests());
    let stalled = |bed: &crate::test_bed::Bed| {
        bed.tc().abort_writers_before(bed.log.tail_lsn());
        bed.step();
        Ok(())
    };
    let (dc, proxy) =
        (Arc::new(deuteron_contract::MemoryDc::new()), deuteron_proxy::Options::tiny_for_tests());
    let bed = crate::test_bed::Bed::open(dc, options, &log, proxy, stalled).unwrap();
    let mut tx = bed.begin();
    let conflict = (0u32..10_000).find_map(|number| {
        let written = tx.put(TABLE, &number.to_be_bytes(), &[7; 300]);
        let is_active = || matches!(tx.workspace.slot().status.load(), crate::status::Status::Active(_));
        assert!(written.is_err() || is_active());
        written.err()
    });
    assert_eq!(cause::<()>(Err(conflict.expect("the ring is small"))), ConflictCause::LogPinned);
    // It is not told before it asks again; and yet:
    let end = bed.log.tail_lsn();
    bed.put(b"other", b"1");
    bed.settle();
    assert!(bed.proxy().redo_scan_start_point() >= end);
    drop(tx);
}

#[test]
fn keys_that_are_named_ahead_are_remembered_up_to_a_few_hundred() {
    let bed = roomy();
    let keys: Vec<_> = (0..100_000u32).map(u32::to_be_bytes).collect();
    let mut tx = bed.begin();
    tx.prefetch(TABLE, &keys, &[] as &[[u8; 4]]);
    assert!(tx.workspace.ahead.len() <= crate::ahead::AHEAD_KEYS_MAX);
    assert!(keys.iter().all(|key| tx.get(TABLE, key).unwrap().is_none()));
}

#[test]
fn what_was_read_ahead_counts_in_the_memory_for_as_long_as_it_waits() {
    let bed = roomy();
    let (keys, value) = ((0..200u8).map(|key| [key]).collect::<Vec<_>>(), [7; 1000]);
    for key in &keys {
        let (timestamp, lsn) = (Timestamp(0), Lsn(0));
        bed.dc.apply(&[Operation { table: TABLE, key, value: Some(&value), timestamp, lsn }]).unwrap();
    }
    let mut tx = bed.begin();
    let before = bed.tc().statistics().memory_bytes;
    tx.prefetch(TABLE, &keys, &[] as &[[u8; 1]]);
    // Which is told in steps.
    let waits = bed.tc().statistics().memory_bytes - before;
    assert!((100_000..220_000).contains(&waits), "{waits}");
    tx.commit().unwrap();
    drop(tx);
    assert_eq!(bed.tc().statistics().memory_bytes, before);
}

/// As when they were written with more memory, or loaded.
#[test]
fn values_that_there_is_no_memory_for_are_read_together_as_one_by_one() {
    let options = TcOptions { memory_bytes: 512 << 10, ..TcOptions::default() };
    let bed = bed(options, &LogOptions::tiny_for_tests(), deuteron_proxy::Options::tiny_for_tests());
    let keys = [b"a", b"b", b"c"];
    for key in keys {
        let (value, timestamp, lsn) = (vec![key[0]; 1 << 20], Timestamp(0), Lsn(0));
        bed.dc.apply(&[Operation { table: TABLE, key, value: Some(&value), timestamp, lsn }]).unwrap();
    }
    let is_whole = |key: &[u8], value: Option<&[u8]>| value == Some(&vec![key[0]; 1 << 20]);
    let mut tx = bed.begin();
    assert!(keys.iter().all(|key| is_whole(*key, tx.get(TABLE, *key).unwrap().as_deref())));
    tx.get_many(TABLE, &keys, |index, value| assert!(is_whole(keys[index], value))).unwrap();
    tx.prefetch(TABLE, &keys, &[]);
    bed.put(b"others", b"have room");
    tx.commit().unwrap();
}
