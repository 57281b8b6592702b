//! Scenarios: each test's name is the property.

use crate::collect_tests::versions;
use crate::schedule;
use crate::test_bed::{TABLE, all, bed, cause, get, keys, put, roomy, tiny};
use crate::{BeginOptions, ConflictCause, Isolation, TcError, TcOptions, Transaction};
use deuteron_contract::{Direction, Lsn};
use deuteron_log::LogOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

#[test]
fn a_transaction_sees_its_own_writes_and_nobody_else_does() {
    let bed = roomy();
    let (mut one, mut other) = (bed.begin(), bed.begin());
    put(&mut one, "k", "1");
    assert_eq!(get(&mut one, "k").as_deref(), Some("1"));
    assert_eq!(get(&mut other, "k"), None);
    put(&mut one, "k", "2");
    assert_eq!(get(&mut one, "k").as_deref(), Some("2"));
    one.delete(TABLE, b"k").unwrap();
    assert_eq!(get(&mut one, "k"), None);
    put(&mut one, "k", "3");
    one.commit().unwrap();
    // `other` began earlier: it still sees the state of then.
    assert_eq!(get(&mut other, "k"), None);
    assert_eq!(bed.get(b"k").as_deref(), Some(&b"3"[..]));
}

#[test]
fn a_dropped_transaction_leaves_nothing() {
    let bed = roomy();
    bed.put(b"k", b"old");
    let mut tx = bed.begin();
    put(&mut tx, "k", "new");
    put(&mut tx, "fresh", "new");
    drop(tx);
    assert_eq!(bed.get(b"k").as_deref(), Some(&b"old"[..]));
    assert_eq!(bed.get(b"fresh"), None);
    bed.settle();
    assert_eq!(bed.get(b"k").as_deref(), Some(&b"old"[..]));
    assert_eq!(bed.dc.get(TABLE, b"fresh").unwrap(), None);
}

#[test]
fn the_second_writer_of_a_key_gives_way() {
    let bed = roomy();
    let (mut first, mut second) = (bed.begin(), bed.begin());
    put(&mut first, "k", "1");
    let error = second.put(TABLE, b"k", b"2").unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(cause::<()>(Err(error)), ConflictCause::WriteWrite);
    assert!(matches!(second.get(TABLE, b"k"), Err(TcError::Aborted)));
    first.commit().unwrap();
}

#[test]
fn a_lost_update_is_refused() {
    let bed = roomy();
    bed.put(b"k", b"10");
    let (mut first, mut second) = (bed.begin(), bed.begin());
    assert_eq!(get(&mut first, "k"), get(&mut second, "k"));
    put(&mut second, "k", "11");
    second.commit().unwrap();
    assert_eq!(cause(first.put(TABLE, b"k", b"11")), ConflictCause::ReadChanged);
    // A blind write is late, too, but has read nothing: it commits later than it began.
    let (mut blind, mut other) = (bed.begin(), bed.begin());
    put(&mut other, "k", "12");
    let between = other.commit().unwrap().timestamp;
    put(&mut blind, "k", "13");
    assert!(blind.commit().unwrap().timestamp > between);
    assert_eq!(bed.get(b"k").as_deref(), Some(&b"13"[..]));
}

/// To look through all that was read, for each write, would take as long as that is.
#[test]
fn a_write_of_what_was_read_long_ago_finds_at_the_commit_that_it_has_changed() {
    for (reads, at_once) in [(255, true), (256, false)] {
        let bed = roomy();
        bed.put(b"k", b"1");
        let mut tx = bed.begin();
        assert_eq!(get(&mut tx, "k").as_deref(), Some("1"));
        for number in 0..reads {
            assert_eq!(get(&mut tx, &format!("{number}")), None);
        }
        bed.put(b"k", b"2");
        let written = tx.put(TABLE, b"k", b"3");
        assert_eq!(written.is_err(), at_once, "{reads}");
        let error = written.and_then(|()| tx.commit());
        assert_eq!(cause(error), ConflictCause::ReadChanged, "{reads}");
    }
}

#[test]
fn a_read_with_the_intent_to_write_sees_the_newest_version() {
    let bed = roomy();
    bed.put(b"k", b"10");
    bed.put(b"other", b"1");
    let mut first = bed.begin();
    assert_eq!(get(&mut first, "other").as_deref(), Some("1"));
    put(&mut first, "own", "1");
    bed.put(b"k", b"11");
    let now = bed.tc().now();
    assert_eq!(first.get_for_update(TABLE, b"k").unwrap().as_deref(), Some(&b"11"[..]));
    assert!(first.timestamp() > now, "it goes on from the present");
    put(&mut first, "k", "12");
    assert_eq!(first.commit().unwrap().timestamp.0, bed.tc().now().0, "and commits there, unvalidated");
    assert_eq!(bed.get(b"k").as_deref(), Some(&b"12"[..]));
    assert_eq!(bed.tc().statistics().moves, 1);
}

#[test]
fn who_has_moved_on_keeps_one_version_of_what_others_write() {
    let bed = roomy();
    bed.put(b"hot", b"0");
    let mut tx = bed.begin();
    assert_eq!(get(&mut tx, "hot").as_deref(), Some("0"));
    bed.put(b"k", b"1");
    assert_eq!(tx.get_for_update(TABLE, b"k").unwrap().as_deref(), Some(&b"1"[..]));
    for number in 1..1000 {
        bed.put(b"hot", number.to_string().as_bytes());
        bed.tc().collect_step();
    }
    assert!(versions(&bed, b"hot") <= 4, "{}", versions(&bed, b"hot"));
    assert_eq!(get(&mut tx, "hot").as_deref(), Some("0"));
    put(&mut tx, "k", "2");
    tx.commit().unwrap();
    assert_eq!(bed.tc().statistics().moves, 1);
}

#[test]
fn nobody_moves_on_from_reads_that_have_changed() {
    let bed = roomy();
    bed.put(b"k", b"10");
    let mut first = bed.begin();
    assert_eq!(get(&mut first, "other"), None);
    bed.put(b"other", b"1");
    bed.put(b"k", b"11");
    assert_eq!(cause(first.get_for_update(TABLE, b"k")), ConflictCause::ReadChanged);
    // Nor from a range.
    let mut second = bed.begin();
    assert_eq!(keys(&mut second, "n", "z"), ["other"]);
    bed.put(b"z", b"not in it");
    bed.put(b"k", b"12");
    assert_eq!(second.get_for_update(TABLE, b"k").unwrap().as_deref(), Some(&b"12"[..]));
    bed.put(b"p", b"in it");
    bed.put(b"l", b"1");
    assert_eq!(cause(second.get_for_update(TABLE, b"l")), ConflictCause::RangeChanged);
}

#[test]
fn a_writer_waits_for_the_one_before_and_never_in_a_circle() {
    let patient = TcOptions { memory_bytes: 16 << 20, patience: u32::MAX, ..TcOptions::default() };
    let bed = bed(patient, &LogOptions::default(), deuteron_proxy::Options::default());
    for circle in [false, true] {
        let mut first = bed.begin();
        put(&mut first, "a", "1");
        let before = bed.tc().statistics().stalls;
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let mut second = bed.begin();
                put(&mut second, "b", "2");
                second.get_for_update(TABLE, b"a")?;
                put(&mut second, "a", "2");
                second.commit()
            });
            while bed.tc().statistics().stalls == before {
                std::thread::yield_now();
            }
            let first =
                if circle { first.put(TABLE, b"b", b"1") } else { Ok(()) }.and_then(|()| first.commit());
            let failed: Vec<_> = [first, second.join().unwrap()].into_iter().filter(Result::is_err).collect();
            // Of two that wait for each other one gives way: the one that closed the circle.
            assert_eq!(failed.len(), usize::from(circle));
            assert!(failed.into_iter().all(|error| cause(error) == ConflictCause::WriteWrite));
        });
    }
}

#[test]
fn a_rollback_brings_back_what_the_transaction_had_written() {
    let bed = roomy();
    bed.put(b"old", b"0");
    let long = "l".repeat(700);
    let mut tx = bed.begin();
    for (key, value) in [("short", "1"), ("long", &*long), ("gone", "1")] {
        put(&mut tx, key, value);
    }
    tx.delete(TABLE, b"gone").unwrap();
    let first = tx.savepoint().unwrap();
    put(&mut tx, "short", &long);
    put(&mut tx, "long", "2");
    put(&mut tx, "gone", "2");
    put(&mut tx, "old", "2");
    tx.delete(TABLE, b"short").unwrap();
    let second = tx.savepoint().unwrap();
    put(&mut tx, "short", "3");
    put(&mut tx, "new", "3");
    tx.rollback_to(&second).unwrap();
    assert_eq!([get(&mut tx, "short"), get(&mut tx, "new")], [None, None]);
    assert_eq!(get(&mut tx, "old").as_deref(), Some("2"));
    tx.rollback_to(&first).unwrap();
    assert!(matches!(tx.rollback_to(&second), Err(TcError::NoSavepoint)), "it is gone");
    assert_eq!(get(&mut tx, "short").as_deref(), Some("1"));
    assert_eq!(get(&mut tx, "long").as_deref(), Some(&*long));
    assert_eq!([get(&mut tx, "gone"), get(&mut tx, "new")], [None, None]);
    assert_eq!(get(&mut tx, "old").as_deref(), Some("0"));
    // What is given up is free for others; what is not is not.
    bed.put(b"new", b"9");
    assert_eq!(cause(bed.begin().put(TABLE, b"short", b"9")), ConflictCause::WriteWrite);
    tx.rollback_to(&first).unwrap();
    put(&mut tx, "last", "4");
    tx.commit().unwrap();
    for settled in [false, true] {
        let found = ["short", "long", "gone", "old", "new", "last"].map(|key| bed.get(key.as_bytes()));
        let wanted = [Some("1"), Some(&*long), None, Some("0"), Some("9"), Some("4")];
        assert_eq!(found, wanted.map(|value| value.map(|value| value.as_bytes().to_vec())), "{settled}");
        bed.settle();
    }
    let stored = bed.dc.get(TABLE, b"short").unwrap().unwrap();
    assert_eq!(stored.value.as_deref(), Some(&b"1"[..]), "nor is it posted");
    assert_eq!(bed.dc.get(TABLE, b"old").unwrap().unwrap().value.as_deref(), Some(&b"0"[..]));
}

#[test]
fn a_rollback_brings_back_a_value_that_no_record_takes() {
    let options = TcOptions { memory_bytes: 16 << 20, ..TcOptions::default() };
    let bed = bed(options, &LogOptions::tiny_for_tests(), deuteron_proxy::Options::tiny_for_tests());
    let huge = vec![7u8; 40 << 10];
    let mut tx = bed.begin();
    tx.put(TABLE, b"huge", &huge).unwrap();
    let before = tx.savepoint().unwrap();
    put(&mut tx, "huge", "small");
    tx.put(TABLE, b"other", &huge).unwrap();
    tx.rollback_to(&before).unwrap();
    assert!(tx.get(TABLE, b"huge").unwrap().unwrap() == huge);
    tx.commit().unwrap();
    assert!(bed.get(b"huge").unwrap() == huge && bed.get(b"other").is_none());
    bed.settle();
    assert!(bed.dc.get(TABLE, b"huge").unwrap().unwrap().value.unwrap() == huge);
    assert!(bed.dc.get(TABLE, b"other").unwrap().is_none());
}

#[test]
fn a_transaction_that_rolled_everything_back_has_written_nothing() {
    let bed = tiny();
    let mut tx = bed.begin();
    let start = tx.savepoint().unwrap();
    for number in 0..20u8 {
        tx.put(TABLE, &[b'k', number], &[number; 50]).unwrap();
        tx.rollback_to(&start).unwrap();
    }
    assert_eq!((tx.versions_written(), tx.commit().unwrap().durable_at), (0, None));
    assert!(matches!(bed.begin().rollback_to(&start), Err(TcError::NoSavepoint)), "of another transaction");
    bed.settle();
    assert_eq!(all(&mut bed.begin(), Direction::Forward).unwrap(), []);
    assert!(bed.dc.get(TABLE, b"k\0").unwrap().is_none());
}

#[test]
fn what_was_read_before_a_rollback_counts_as_read() {
    let bed = roomy();
    bed.put(b"a", b"1");
    let mut tx = bed.begin();
    let start = tx.savepoint().unwrap();
    put(&mut tx, "b", "1");
    assert_eq!(get(&mut tx, "a").as_deref(), Some("1"));
    assert_eq!(keys(&mut tx, "a", "z"), ["a", "b"]);
    tx.rollback_to(&start).unwrap();
    put(&mut tx, "c", "1");
    // Pushed, it looks again: at `a`, and at a range in which nothing of its own is left.
    assert_eq!(bed.get(b"c"), None);
    let mut other = bed.begin();
    assert_eq!(get(&mut other, "b"), None);
    tx.commit().unwrap();
    let mut tx = bed.begin();
    let start = tx.savepoint().unwrap();
    assert_eq!(get(&mut tx, "a").as_deref(), Some("1"));
    tx.rollback_to(&start).unwrap();
    bed.put(b"a", b"2");
    put(&mut tx, "c", "2");
    assert_eq!(bed.get(b"c").as_deref(), Some(&b"1"[..]), "which pushes it");
    assert_eq!(cause(tx.commit()), ConflictCause::ReadChanged);
}

#[test]
fn write_skew_is_refused_and_permitted_under_snapshot_isolation() {
    for (isolation, permitted) in [(Isolation::Serializable, false), (Isolation::Snapshot, true)] {
        let bed = roomy();
        bed.put(b"a", b"1");
        bed.put(b"b", b"1");
        let options = BeginOptions { isolation, ..BeginOptions::default() };
        let (mut first, mut second) = (bed.begin_with(options), bed.begin_with(options));
        for tx in [&mut first, &mut second] {
            assert!(get(tx, "a").is_some() && get(tx, "b").is_some());
        }
        put(&mut first, "a", "0");
        put(&mut second, "b", "0");
        let outcomes = [first.commit(), second.commit()].map(|outcome| outcome.is_ok());
        assert_eq!(outcomes.iter().all(|ok| *ok), permitted, "{outcomes:?}");
        assert!(outcomes.iter().any(|ok| *ok));
    }
}

#[test]
fn snapshot_isolation_refuses_lost_updates() {
    let bed = roomy();
    bed.put(b"k", b"1");
    let options = BeginOptions { isolation: Isolation::Snapshot, ..BeginOptions::default() };
    let mut tx = bed.begin_with(options);
    assert!(get(&mut tx, "k").is_some());
    bed.put(b"k", b"2");
    assert_eq!(cause(tx.put(TABLE, b"k", b"3")), ConflictCause::WriteWrite);
}

#[test]
fn read_skew_does_not_happen() {
    let bed = roomy();
    bed.put(b"a", b"1");
    bed.put(b"b", b"1");
    let mut reader = bed.begin();
    assert_eq!(get(&mut reader, "a").as_deref(), Some("1"));
    let mut writer = bed.begin();
    put(&mut writer, "a", "2");
    put(&mut writer, "b", "2");
    writer.commit().unwrap();
    assert_eq!(get(&mut reader, "b").as_deref(), Some("1"));
    reader.commit().unwrap();
}

#[test]
fn a_reader_pushes_an_older_writer_and_sees_nothing_of_it() {
    let bed = roomy();
    bed.put(b"a", b"1");
    let mut writer = bed.begin();
    put(&mut writer, "a", "2");
    let mut reader = bed.begin();
    assert_eq!(get(&mut reader, "a").as_deref(), Some("1"));
    let committed = writer.commit().unwrap();
    assert!(committed.timestamp > reader.timestamp());
    assert_eq!(get(&mut reader, "a").as_deref(), Some("1"));
    assert_eq!(bed.tc().statistics().refreshed_commits, 1);
}

#[test]
fn an_unpushed_transaction_commits_when_it_began() {
    let bed = roomy();
    bed.put(b"a", b"1");
    let mut tx = bed.begin();
    assert!(get(&mut tx, "a").is_some());
    put(&mut tx, "a", "2");
    assert_eq!(keys(&mut tx, "a", "z"), ["a"]);
    put(&mut tx, "b", "2");
    // Its own reads and scans do not push it.
    let begin = tx.timestamp();
    assert_eq!(tx.commit().unwrap().timestamp, begin);
}

#[test]
fn an_insert_that_was_read_as_absent_is_a_conflict() {
    let bed = roomy();
    let (mut first, mut second) = (bed.begin(), bed.begin());
    assert_eq!(get(&mut first, "x"), None);
    assert_eq!(get(&mut second, "y"), None);
    put(&mut first, "y", "1");
    put(&mut second, "x", "1");
    let outcomes = [first.commit().is_ok(), second.commit().is_ok()];
    assert_ne!(outcomes[0], outcomes[1], "{outcomes:?}");
}

#[test]
fn limits_are_errors_that_leave_the_transaction_alive() {
    let bed = tiny();
    let mut tx = bed.begin();
    put(&mut tx, "k", "1");
    assert!(matches!(tx.get(TABLE, b""), Err(TcError::KeySize { found: 0, .. })));
    assert!(matches!(tx.put(TABLE, &[7; 257], b""), Err(TcError::KeySize { found: 257, limit: 256 })));
    let huge = vec![0; 1 << 20];
    assert!(matches!(tx.put(TABLE, b"k", &huge), Err(TcError::ValueSize { .. })));
    tx.commit().unwrap();
    assert!(matches!(tx.commit(), Err(TcError::Aborted)));
    let mut reader = bed.begin_with(BeginOptions { read_only: true, ..BeginOptions::default() });
    assert!(matches!(reader.put(TABLE, b"k", b"2"), Err(TcError::ReadOnly)));
    assert_eq!(get(&mut reader, "k").as_deref(), Some("1"));
}

#[test]
fn a_read_only_transaction_waits_for_what_it_read_to_be_durable() {
    let bed = roomy();
    let mut writer = bed.begin();
    put(&mut writer, "k", "1");
    let written = writer.commit().unwrap().durable_at;
    let mut reader = bed.begin();
    assert!(get(&mut reader, "k").is_some());
    assert_eq!(reader.commit().unwrap().durable_at, written);
    bed.settle();
    let mut reader = bed.begin();
    assert!(get(&mut reader, "k").is_some());
    assert_eq!(reader.commit().unwrap().durable_at, None);
    assert_eq!(bed.begin().commit().unwrap().durable_at, None);
}

#[test]
fn values_survive_the_recycling_of_the_log_and_eviction() {
    let bed = tiny();
    let value = |number: usize| vec![number as u8; 200];
    for number in 0..2000 {
        bed.put(format!("{:04}", number % 700).as_bytes(), &value(number));
    }
    for key in 0..700usize {
        let newest = if key < 600 { 1400 + key } else { 700 + key };
        assert_eq!(bed.get(format!("{key:04}").as_bytes()), Some(value(newest)), "{key}");
    }
    let statistics = bed.tc().statistics();
    assert!(statistics.evictions > 0 && statistics.misses > 0, "{statistics:?}");
    let budget = 64 << 10;
    assert!(statistics.memory_bytes < 2 * budget, "{statistics:?}");
}

#[test]
fn a_reader_that_is_too_old_is_told_and_never_lied_to() {
    let bed = tiny();
    for number in 0..50 {
        bed.put(format!("{number:02}").as_bytes(), b"old");
    }
    let mut reader = bed.begin();
    assert_eq!(get(&mut reader, "00").as_deref(), Some("old"));
    for number in 0..50 {
        bed.put(format!("{number:02}").as_bytes(), &[b'n'; 100]);
    }
    for number in 0..5000u32 {
        bed.put(&number.to_be_bytes(), &[b'n'; 100]);
    }
    let mut told = false;
    for number in 0..50 {
        match reader.get(TABLE, format!("{number:02}").as_bytes()) {
            Ok(value) => assert_eq!(value.as_deref(), Some(&b"old"[..])),
            Err(TcError::Aborted) => assert!(told),
            Err(error) => {
                assert_eq!(cause::<()>(Err(error)), ConflictCause::SnapshotTooOld);
                told = true;
            }
        }
    }
    assert!(told, "nothing was given up, although memory is small");
}

#[test]
fn a_reader_that_stays_keeps_its_snapshot_however_often_the_same_keys_are_written() {
    let bed = tiny();
    for number in 0..50 {
        bed.put(format!("{number:02}").as_bytes(), b"old");
    }
    let mut reader = bed.begin();
    for _ in 0..400 {
        for number in 0..50 {
            bed.put(format!("{number:02}").as_bytes(), &[b'n'; 100]);
        }
    }
    for number in 0..50 {
        assert_eq!(get(&mut reader, &format!("{number:02}")).as_deref(), Some("old"));
    }
}

#[test]
fn a_writer_that_pins_the_log_can_be_aborted_by_others() {
    let bed = roomy();
    bed.put(b"k", b"1");
    let mut tx = bed.begin();
    tx.delete(TABLE, b"k").unwrap();
    assert_eq!(bed.tc().abort_writers_before(Lsn(0)), 0);
    assert_eq!(bed.tc().abort_writers_before(bed.log.tail_lsn()), 1);
    // The key is free, and the one who lost it learns so at the end.
    bed.put(b"k", b"3");
    assert_eq!(cause(tx.commit()), ConflictCause::LogPinned);
    assert_eq!(bed.tc().oldest_writer(), None);
    assert_eq!(bed.get(b"k").as_deref(), Some(&b"3"[..]));
}

fn conflict<T: std::fmt::Debug>(result: Result<T, TcError>) -> crate::Conflict {
    match result.expect_err("a conflict") {
        TcError::Conflict(conflict) => *conflict,
        other => panic!("{other}"),
    }
}

#[test]
fn a_conflict_at_the_commit_says_with_whom_as_far_as_that_is_known() {
    let write = |bed: &crate::test_bed::Bed, value: Option<&[u8]>| {
        let mut tx = bed.begin();
        match value {
            Some(value) => tx.put(TABLE, b"kb", value).unwrap(),
            None => tx.delete(TABLE, b"kb").unwrap(),
        }
        tx.commit().unwrap().timestamp
    };
    // A range: something has come, has been changed, and has gone.
    for (before, after) in [(None, Some(&b"2"[..])), (Some(&b"1"[..]), Some(b"2")), (Some(b"1"), None)] {
        let bed = roomy();
        bed.put(b"ka", b"1");
        write(&bed, before);
        let mut tx = bed.begin();
        keys(&mut tx, "k", "l");
        let other = write(&bed, after);
        put(&mut tx, "pushed", "1");
        bed.get(b"pushed");
        let found = conflict(tx.commit());
        assert_eq!((found.cause, found.other), (ConflictCause::RangeChanged, Some(other)));
    }
    // Reads that were forgotten, and more pushes than are borne: by whom.
    for (reads_max, refreshes_max, expected) in
        [(1, 16, ConflictCause::ReadsForgotten), (16, 0, ConflictCause::PushedTooOften)]
    {
        let options = TcOptions { memory_bytes: 16 << 20, reads_max, refreshes_max, ..TcOptions::default() };
        let bed = bed(options, &LogOptions::tiny_for_tests(), deuteron_proxy::Options::default());
        let mut tx = bed.begin();
        ["a", "b"].iter().for_each(|key| drop(get(&mut tx, key)));
        put(&mut tx, "pushed", "1");
        let mut reader = bed.begin();
        get(&mut reader, "pushed");
        let found = conflict(tx.commit());
        assert_eq!((found.cause, found.other), (expected, Some(reader.timestamp())));
        let mut tx = bed.begin();
        ["a", "b"].iter().for_each(|key| drop(get(&mut tx, key)));
        put(&mut tx, "fenced", "1");
        let reader = bed.begin_with(BeginOptions { read_only: true, ..BeginOptions::default() });
        let found = conflict(tx.commit());
        assert_eq!((found.cause, found.other), (expected, Some(reader.timestamp())));
    }
    // Of one that has kept the log, what it wrote first.
    let bed = roomy();
    let mut tx = bed.begin();
    tx.delete(TABLE, b"first").unwrap();
    put(&mut tx, "second", "1");
    bed.tc().abort_writers_before(bed.log.tail_lsn());
    let found = conflict(tx.commit());
    assert_eq!((found.cause, found.table), (ConflictCause::LogPinned, TABLE));
    assert_eq!(found.place, crate::ConflictPlace::Key(b"first".to_vec()));
}

/// One that has logged its write and found another's in its way ends while somebody looks whom to abort.
#[test]
fn who_begins_where_a_writer_has_failed_is_not_aborted_in_its_place() {
    let bed = roomy();
    let mut other = bed.begin();
    let ((to_main, from_thread), (to_thread, from_main)) = (channel(), channel());
    let bed = &bed;
    std::thread::scope(|scope| {
        let young = scope.spawn(move || {
            let mut failed = bed.begin();
            let slot = failed.workspace.slot;
            let to_collector = to_main.clone();
            let from_main = std::sync::Mutex::new(from_main);
            schedule::set_hook(Some(Arc::new({
                let passed = AtomicUsize::new(0);
                move || {
                    // The first is behind the redo record; from the second on it is over.
                    if passed.fetch_add(1, Ordering::Relaxed) == 0 {
                        to_main.send(()).unwrap();
                        from_main.lock().unwrap().recv().unwrap();
                    }
                }
            })));
            assert_eq!(cause(failed.delete(TABLE, b"k")), ConflictCause::WriteWrite);
            schedule::set_hook(None);
            drop(failed);
            let mut young = bed.begin();
            let has_its_slot = young.workspace.slot == slot;
            put(&mut young, "other", "1");
            to_collector.send(()).unwrap();
            (young, has_its_slot)
        });
        from_thread.recv().unwrap();
        other.delete(TABLE, b"k").unwrap();
        let from_thread = std::sync::Mutex::new(from_thread);
        let is_first = AtomicBool::new(true);
        schedule::set_hook(Some(Arc::new(move || {
            if is_first.swap(false, Ordering::Relaxed) {
                to_thread.send(()).unwrap();
                from_thread.lock().unwrap().recv().unwrap();
            }
        })));
        // The other's first record lies behind it.
        let aborted = bed.tc().abort_writers_before(other.workspace.slot().first_lsn().unwrap());
        schedule::set_hook(None);
        let (mut young, has_its_slot) = young.join().unwrap();
        young.commit().unwrap();
        assert_eq!((aborted, has_its_slot), (0, false));
    });
    other.commit().unwrap();
}

#[test]
fn who_was_aborted_learns_that_though_its_own_values_are_no_longer_in_the_log() {
    let bed = tiny();
    let long = vec![7; 2000];
    let mut tx = bed.begin();
    tx.append(TABLE, b"k", b"1").unwrap();
    tx.put(TABLE, b"k", &long).unwrap();
    assert_eq!(bed.tc().abort_writers_before(bed.log.tail_lsn()), 1);
    for number in 0..500 {
        bed.put(format!("{number:02}").as_bytes(), &[b'n'; 100]);
    }
    bed.settle();
    bed.log.truncate(bed.log.stable_lsn()).unwrap();
    assert_eq!(cause(tx.commit()), ConflictCause::LogPinned);
    assert_eq!(bed.get(b"k"), None);
}

#[test]
fn the_component_goes_when_its_last_user_does() {
    let bed = roomy();
    let mut tx = bed.begin();
    put(&mut tx, "k", "1");
    drop(bed);
    // The transaction holds what it needs; its host is gone.
    assert!(tx.get(TABLE, b"k").is_ok());
    tx.commit().unwrap();
}

#[test]
fn transactions_move_between_threads() {
    let bed = roomy();
    let mut tx = bed.begin();
    put(&mut tx, "k", "1");
    std::thread::spawn(move || tx.commit().unwrap()).join().unwrap();
    assert!(bed.get(b"k").is_some());
}

#[test]
fn many_keys_are_read_as_one_by_one() {
    for bed in [roomy(), tiny()] {
        for number in (0..100).step_by(3) {
            bed.put(format!("{number:02}").as_bytes(), &[number; 50]);
        }
        let keys: Vec<String> = (0..100).map(|number| format!("{number:02}")).collect();
        let mut tx = bed.begin();
        let mut seen = Vec::new();
        tx.get_many(TABLE, &keys, |index, value| seen.push((index, value.map(<[u8]>::to_vec)))).unwrap();
        assert_eq!(seen.len(), 100);
        for (index, value) in seen {
            assert_eq!(value, (index % 3 == 0).then(|| vec![index as u8; 50]));
        }
        assert!(matches!(tx.get_many(TABLE, &["ok", ""], |_, _| {}), Err(TcError::KeySize { .. })));
    }
}

#[test]
fn a_long_value_that_the_log_has_no_longer_in_memory_is_read_from_disk_once() {
    let bed = bed(
        TcOptions { memory_bytes: 16 << 20, ..TcOptions::default() },
        &LogOptions::tiny_for_tests(),
        deuteron_proxy::Options {
            waiting_list_bytes_max: 16 << 20,
            ..deuteron_proxy::Options::tiny_for_tests()
        },
    );
    let mut old = bed.begin();
    assert_eq!(old.get(TABLE, b"other").unwrap(), None);
    // Not posted, for the old reader is in the way.
    bed.put(b"long", &[7; 1_000]);
    for number in 0..2_000u32 {
        bed.put(&number.to_be_bytes(), &[1; 100]);
        bed.step();
    }
    let read = || {
        let mut tx = bed.begin();
        assert_eq!(tx.get(TABLE, b"long").unwrap().as_deref(), Some(&[7; 1_000][..]));
        tx.misses()
    };
    assert!(bed.dc.get(TABLE, b"long").unwrap().is_none());
    assert_eq!((read(), read(), read()), (1, 0, 0));
    assert_eq!(old.get(TABLE, b"long").unwrap(), None);
    old.commit().unwrap();
    bed.settle();
    assert_eq!(bed.get(b"long").as_deref(), Some(&[7; 1_000][..]));
    assert!(bed.dc.get(TABLE, b"long").unwrap().is_some(), "it was posted all the same");
}

#[test]
fn a_read_with_the_intent_to_write_is_logged_once_and_counts_as_a_write() {
    let bed = roomy();
    bed.put(b"k", b"10");
    let logged = |work: &dyn Fn(&mut Transaction)| {
        let before = bed.log.tail_lsn().0;
        let mut tx = bed.begin();
        work(&mut tx);
        let at = tx.commit().unwrap().timestamp;
        (bed.log.tail_lsn().0 - before, at)
    };
    let intend = |tx: &mut Transaction| drop(tx.get_for_update(TABLE, b"k").unwrap());
    let (blind, _) = logged(&|tx| put(tx, "k", "11"));
    let (both, _) = logged(&|tx| {
        intend(tx);
        intend(tx);
        put(tx, "k", "12");
    });
    let (intent, at) = logged(&intend);
    assert_eq!((both, intent), (blind, blind));
    let stored = || {
        bed.settle();
        let record = bed.dc.get(TABLE, b"k").unwrap().unwrap();
        (record.timestamp, record.value.unwrap())
    };
    assert_eq!(stored(), (at, b"12".to_vec()));
    // What it was before it was written anew comes back, and is logged.
    let (_, at) = logged(&|tx| {
        intend(tx);
        let before = tx.savepoint().unwrap();
        put(tx, "k", "13");
        tx.rollback_to(&before).unwrap();
    });
    assert_eq!(stored(), (at, b"12".to_vec()));
    // An intent that was given up leaves nothing.
    let mut given_up = bed.begin();
    intend(&mut given_up);
    given_up.abort();
    assert_eq!(bed.get(b"k").as_deref(), Some(&b"12"[..]));
}

#[test]
fn what_was_read_to_be_changed_is_depended_on_though_the_change_is_given_up() {
    let bed = roomy();
    bed.put(b"k", &1i64.to_le_bytes());
    bed.settle();
    for isolation in [Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable] {
        let mut adder = bed.begin();
        adder.add(TABLE, b"k", 1).unwrap();
        let added = adder.commit().unwrap().durable_at;
        let mut tx = bed.begin_with(BeginOptions { isolation, ..BeginOptions::default() });
        let before = tx.savepoint().unwrap();
        tx.add_and_get(TABLE, b"k", 1).unwrap();
        tx.rollback_to(&before).unwrap();
        assert_eq!(tx.commit().unwrap().durable_at, added, "{isolation:?}");
        bed.settle();
    }
}

/// However many are open at a time: more than there are places for their workspaces.
#[test]
fn slots_of_writers_without_a_place_are_used_again() {
    let bed = roomy();
    for round in 0..100u32 {
        let begun = (0..100u32).map(|number| {
            let mut tx = bed.begin();
            tx.put(TABLE, &number.to_be_bytes(), &round.to_be_bytes()).unwrap();
            tx
        });
        for mut tx in begun.collect::<Vec<_>>() {
            tx.commit().unwrap();
        }
        bed.settle();
    }
    let count = bed.tc().core.transactions.slots().count();
    assert!(count < 1024, "{count}");
}
