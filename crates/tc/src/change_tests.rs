//! Scenarios of commutative updates: who commits beside whom, and what the value is then (rule R22).

use crate::test_bed::{TABLE, all, bed, roomy, tiny};
use crate::{
    BeginOptions, ChangeError, ConcurrencyControl, ConflictCause, ConflictPlace, Isolation, TcError,
    TcOptions, Transaction,
};
use deuteron_contract::Direction;
use deuteron_log::LogOptions;

fn number(value: Option<Vec<u8>>) -> Option<i64> {
    value.map(|bytes| i64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

fn sum(tx: &mut Transaction, key: &[u8]) -> Option<i64> {
    number(tx.get(TABLE, key).expect("no conflict"))
}

#[test]
fn transactions_that_change_one_key_all_commit_in_any_order() {
    let bed = roomy();
    let mut open: Vec<Transaction> = (0..4).map(|_| bed.begin()).collect();
    for (tx, delta) in open.iter_mut().zip(1..) {
        tx.add(TABLE, b"n", delta).unwrap();
        tx.append(TABLE, b"s", &[b'0' + delta as u8]).unwrap();
    }
    // The last begun is the first to commit.
    for mut tx in open.into_iter().rev() {
        tx.commit().unwrap();
    }
    assert_eq!(number(bed.get(b"n")), Some(10));
    assert_eq!(bed.get(b"s").as_deref(), Some(&b"4321"[..]));
}

#[test]
fn a_reader_sees_the_changes_before_it_and_no_others() {
    let bed = roomy();
    let mut first = bed.begin();
    first.add(TABLE, b"n", 1).unwrap();
    first.commit().unwrap();
    let mut early = bed.begin();
    early.add(TABLE, b"n", 10).unwrap();
    let mut reader = bed.begin();
    assert_eq!(sum(&mut reader, b"n"), Some(1));
    // It began before the reader, and comes after it.
    early.commit().unwrap();
    assert_eq!(sum(&mut reader, b"n"), Some(1));
    reader.commit().unwrap();
    assert_eq!(number(bed.get(b"n")), Some(11));
}

#[test]
fn changes_meet_puts_and_deletes_in_the_order_of_the_transaction() {
    let bed = roomy();
    bed.put(b"n", &5i64.to_le_bytes());
    let mut tx = bed.begin();
    tx.add(TABLE, b"n", 1).unwrap();
    tx.delete(TABLE, b"n").unwrap();
    tx.add(TABLE, b"n", 2).unwrap();
    tx.append(TABLE, b"s", b"lost").unwrap();
    tx.put(TABLE, b"s", b"a").unwrap();
    tx.append(TABLE, b"s", b"b").unwrap();
    tx.append(TABLE, b"t", b"c").unwrap();
    assert_eq!(tx.get(TABLE, b"t").unwrap().as_deref(), Some(&b"c"[..]), "its own change");
    tx.append(TABLE, b"t", b"d").unwrap();
    let found = all(&mut tx, Direction::Forward).unwrap();
    tx.commit().unwrap();
    assert_eq!(found, all(&mut bed.begin(), Direction::Forward).unwrap());
    let wanted: [(&[u8], &[u8]); 3] = [(b"n", &2i64.to_le_bytes()), (b"s", b"ab"), (b"t", b"cd")];
    assert_eq!(found, wanted.map(|(key, value)| (key.to_vec(), value.to_vec())));
}

#[test]
fn a_scan_shows_changes_that_are_not_written_yet() {
    let bed = roomy();
    bed.put(b"b", b"1");
    let mut tx = bed.begin();
    for key in [b"a", b"b", b"c"] {
        tx.append(TABLE, key, b"x").unwrap();
    }
    for direction in [Direction::Forward, Direction::Reverse] {
        let mut found = all(&mut tx, direction).unwrap();
        found.sort();
        let values: Vec<_> = found.into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, [&b"x"[..], b"1x", b"x"]);
    }
    // It has looked at them: now they are reads and writes.
    let mut other = bed.begin();
    assert!(matches!(other.put(TABLE, b"c", b"y"), Err(TcError::Conflict(_))));
    tx.commit().unwrap();
}

#[test]
fn a_rollback_takes_changes_back_and_brings_them_back() {
    let bed = roomy();
    let mut tx = bed.begin();
    tx.add(TABLE, b"n", 1).unwrap();
    let savepoint = tx.savepoint().unwrap();
    tx.add(TABLE, b"n", 10).unwrap();
    tx.add(TABLE, b"m", 10).unwrap();
    tx.rollback_to(&savepoint).unwrap();
    assert_eq!(sum(&mut tx, b"m"), None);
    tx.put(TABLE, b"n", b"instead of 1").unwrap();
    tx.rollback_to(&savepoint).unwrap();
    tx.add(TABLE, b"n", 100).unwrap();
    assert_eq!(sum(&mut tx, b"n"), Some(101));
    tx.rollback_to(&savepoint).unwrap();
    tx.add(TABLE, b"n", 1000).unwrap();
    tx.commit().unwrap();
    assert_eq!((number(bed.get(b"n")), number(bed.get(b"m"))), (Some(1001), None));
    let mut tx = bed.begin();
    tx.add(TABLE, b"n", 1).unwrap();
    drop(tx);
    assert_eq!(number(bed.get(b"n")), Some(1001), "given up");
}

#[test]
fn values_that_do_not_fit_abort_the_transaction_with_the_reason() {
    let bed = roomy();
    bed.put(b"s", b"abc");
    bed.put(b"n", &(i64::MAX - 1).to_le_bytes());
    let cause = |tx: &mut Transaction| match tx.commit() {
        Err(TcError::Change { key, cause, .. }) => (key, cause),
        other => panic!("{other:?}"),
    };
    let mut tx = bed.begin();
    tx.add(TABLE, b"m", 1).unwrap();
    tx.add(TABLE, b"s", 1).unwrap();
    assert_eq!(cause(&mut tx), (b"s".to_vec(), ChangeError::NotAnInteger { found: 3 }));
    assert!(matches!(tx.get(TABLE, b"n"), Err(TcError::Aborted)));
    let mut tx = bed.begin();
    tx.add(TABLE, b"m", 1).unwrap();
    tx.add(TABLE, b"n", 2).unwrap();
    let overflow = ChangeError::Overflow { value: i64::MAX - 1, delta: 2 };
    assert_eq!(cause(&mut tx), (b"n".to_vec(), overflow.clone()));
    assert_eq!(bed.get(b"m"), None, "nothing of it has happened");
    // The same at once, where the value is looked at.
    let mut tx = bed.begin();
    assert!(
        matches!(tx.add_and_get(TABLE, b"n", 2), Err(TcError::Change { cause, .. }) if cause == overflow)
    );
    let mut tx = bed.begin_with(BeginOptions { read_only: true, ..BeginOptions::default() });
    assert!(matches!(tx.add(TABLE, b"n", 1), Err(TcError::ReadOnly)));
    let bed = tiny();
    let limit = TcOptions::tiny_for_tests().value_bytes_max;
    let mut tx = bed.begin();
    let found = limit + 1;
    assert!(matches!(tx.append(TABLE, b"s", &vec![0; found]), Err(TcError::ValueSize { .. })));
    tx.put(TABLE, b"s", b"it lives on").unwrap();
    tx.commit().unwrap();
    let mut tx = bed.begin();
    tx.append(TABLE, b"t", b"1").unwrap();
    tx.commit().unwrap();
    let options = TcOptions { value_bytes_max: 4, ..TcOptions::tiny_for_tests() };
    let log = LogOptions::tiny_for_tests();
    let bed = super::test_bed::bed(options, &log, deuteron_proxy::Options::tiny_for_tests());
    let mut tx = bed.begin();
    tx.append(TABLE, b"t", b"abcd").unwrap();
    tx.append(TABLE, b"t", b"e").unwrap();
    assert_eq!(cause(&mut tx), (b"t".to_vec(), ChangeError::TooLong { found: 5, limit: 4 }));
}

#[test]
fn what_was_committed_since_the_begin_is_in_no_ones_way_at_any_level() {
    for isolation in [Isolation::Serializable, Isolation::Snapshot, Isolation::ReadCommitted] {
        let bed = roomy();
        let mut tx = bed.begin_with(BeginOptions { isolation, ..BeginOptions::default() });
        assert_eq!(tx.get(TABLE, b"other").unwrap(), None);
        tx.add(TABLE, b"n", 1).unwrap();
        bed.put(b"n", &41i64.to_le_bytes());
        tx.commit().unwrap();
        assert_eq!(number(bed.get(b"n")), Some(42), "{isolation:?}");
    }
}

#[test]
fn whoever_looks_at_what_it_changes_reads_it() {
    let bed = roomy();
    let (mut one, mut other) = (bed.begin(), bed.begin());
    assert_eq!(one.add_and_get(TABLE, b"n", 1).unwrap(), 1);
    assert!(matches!(other.add_and_get(TABLE, b"n", 1), Err(TcError::Conflict(_))));
    one.commit().unwrap();
    // A read before the change is looked at again.
    let mut tx = bed.begin();
    assert_eq!(sum(&mut tx, b"n"), Some(1));
    tx.add(TABLE, b"n", 1).unwrap();
    bed.put(b"n", &7i64.to_le_bytes());
    match tx.commit() {
        Err(TcError::Conflict(conflict)) => assert_eq!(conflict.cause, ConflictCause::ReadChanged),
        other => panic!("{other:?}"),
    }
}

#[test]
fn changes_may_take_half_of_the_memory_and_no_more() {
    let bed = roomy();
    let mut tx = bed.begin();
    tx.append(TABLE, b"k0", b"1").unwrap();
    let each = tx.workspace.written_bytes;
    // As if it had written more before.
    let half = bed.tc().memory_budget() as usize / 2;
    tx.workspace.written_bytes = half - 2 * each;
    tx.append(TABLE, b"k1", b"1").unwrap();
    tx.append(TABLE, b"k2", b"1").unwrap();
    assert_eq!(tx.workspace.written_bytes, half, "just half of it");
    let error = tx.append(TABLE, b"k3", b"1").unwrap_err();
    assert!(matches!(error, TcError::TransactionTooLarge { .. }), "{error}");
}

#[test]
fn who_has_noted_much_gives_way_to_an_earlier_one_when_it_next_does_something() {
    type Step = fn(&mut Transaction) -> Result<(), TcError>;
    let next: [Step; 5] = [
        |tx| tx.append(TABLE, b"more", b"1"),
        |tx| tx.get(TABLE, b"other").map(drop),
        |tx| all(tx, Direction::Forward).map(drop),
        |tx| tx.put(TABLE, b"other", b"1"),
        |tx| tx.commit().map(drop),
    ];
    for next in next {
        let bed = roomy();
        let core = &bed.tc().core;
        let much = vec![7; bed.tc().memory_budget() as usize / 15];
        let (mut early, mut late, mut small) = (bed.begin(), bed.begin(), bed.begin());
        early.append(TABLE, b"k", &much).unwrap();
        small.append(TABLE, b"k", b"1").unwrap();
        assert!(!core.abort_youngest_large_writer(), "it is the only one");
        late.append(TABLE, b"k", &much).unwrap();
        assert_eq!(late.workspace.slot().log_id(), late.workspace.log_id, "the log is told of nobody else");
        assert!(core.abort_youngest_large_writer() && !core.abort_youngest_large_writer());
        match next(&mut late) {
            Err(TcError::Conflict(conflict)) => {
                assert_eq!((conflict.cause, conflict.table), (ConflictCause::MemoryShort, TABLE));
                assert!(matches!(conflict.place, ConflictPlace::Key(_)));
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(late.get(TABLE, b"k"), Err(TcError::Aborted)));
        drop(late);
        early.commit().unwrap();
        small.commit().unwrap();
        assert_eq!(bed.get(b"k").map(|value| value.len()), Some(much.len() + 1));
    }
}

/// Who aborts it may still be at it when the next transaction begins.
#[test]
fn the_slot_of_one_that_has_noted_much_is_not_the_next_ones() {
    let bed = roomy();
    let slot_after = |bytes: usize| {
        let mut tx = bed.begin();
        tx.append(TABLE, b"k", &vec![7; bytes]).unwrap();
        let slot = tx.workspace.slot;
        drop(tx);
        (slot, bed.begin().workspace.slot)
    };
    let much = bed.tc().memory_budget() as usize / 15;
    let (slot, next) = slot_after(much);
    assert_ne!(slot, next);
    let (slot, next) = slot_after(100);
    assert_eq!(slot, next, "nobody looks at it");
}

#[test]
fn pure_timestamp_order_gives_way_to_later_changes() {
    let options =
        TcOptions { concurrency_control: ConcurrencyControl::TimestampOrder, ..TcOptions::default() };
    let bed = bed(options, &LogOptions::tiny_for_tests(), deuteron_proxy::Options::tiny_for_tests());
    let (mut early, mut late) = (bed.begin(), bed.begin());
    early.add(TABLE, b"n", 1).unwrap();
    late.add(TABLE, b"n", 1).unwrap();
    late.commit().unwrap();
    match early.commit() {
        Err(TcError::Conflict(conflict)) => assert_eq!(conflict.cause, ConflictCause::TimestampOrder),
        other => panic!("{other:?}"),
    }
    assert_eq!(number(bed.get(b"n")), Some(1));
}

#[test]
fn changes_reach_values_that_have_left_the_memory() {
    let bed = tiny();
    // The tiny memory has evicted most of them by the time that they are changed.
    for round in 0..3u8 {
        for key in 0..200u8 {
            let mut tx = bed.begin();
            tx.add(TABLE, &[1, key], i64::from(key)).unwrap();
            tx.append(TABLE, &[2, key], &[round; 100]).unwrap();
            tx.commit().unwrap();
            bed.step();
        }
        bed.settle();
    }
    assert!(bed.tc().statistics().evictions > 0);
    for key in 0..200u8 {
        assert_eq!(number(bed.get(&[1, key])), Some(3 * i64::from(key)));
        assert_eq!(bed.get(&[2, key]), Some([[0; 100], [1; 100], [2; 100]].concat()));
        let stored = |table: u8| bed.dc.get(TABLE, &[table, key]).unwrap().and_then(|record| record.value);
        assert_eq!(number(stored(1)), Some(3 * i64::from(key)), "the data component has the sum");
    }
}

#[test]
fn a_value_in_pieces_is_appended_to() {
    let bed = tiny();
    for part in 0..3u8 {
        let mut tx = bed.begin();
        tx.append(TABLE, b"long", &vec![part; 20_000]).unwrap();
        tx.commit().unwrap();
        bed.settle();
    }
    assert_eq!(bed.get(b"long"), Some([vec![0; 20_000], vec![1; 20_000], vec![2; 20_000]].concat()));
}

#[test]
fn threads_that_change_one_key_lose_nothing() {
    let bed = roomy();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    loop {
                        let mut tx = bed.begin();
                        tx.add(TABLE, b"n", 1).unwrap();
                        tx.add(TABLE, b"m", -1).unwrap();
                        match tx.commit() {
                            Ok(_) => break,
                            Err(error) if error.is_retryable() => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    assert_eq!((number(bed.get(b"n")), number(bed.get(b"m"))), (Some(2000), Some(-2000)));
}
