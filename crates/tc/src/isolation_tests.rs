//! What the isolation levels, declared read-only transactions and transactions in the past promise: each test's name is the
//! property.

use crate::collect_tests::versions;
use crate::counted::stores;
use crate::schedule;
use crate::test_bed::{Bed, TABLE, all, bed, get, roomy, tiny};
use crate::{BeginOptions, ConflictCause, Isolation, TcError, TcOptions, Transaction};
use deuteron_contract::{Direction, TableId, Timestamp};
use deuteron_log::LogOptions;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const READ_ONLY: BeginOptions = BeginOptions { isolation: Isolation::Serializable, read_only: true };
const SNAPSHOT: BeginOptions = BeginOptions { isolation: Isolation::Snapshot, read_only: false };
const READ_COMMITTED: BeginOptions = BeginOptions { isolation: Isolation::ReadCommitted, read_only: false };

fn retaining(options: TcOptions) -> Arc<Bed> {
    bed(
        TcOptions { retains: true, ..options },
        &LogOptions::tiny_for_tests(),
        deuteron_proxy::Options::default(),
    )
}

/// Everything that transactions share goes through the counted atomics and mutexes of `sync`.
#[test]
fn a_declared_read_only_transaction_stores_nothing_on_its_read_path() {
    let bed = roomy();
    let keys: Vec<String> = (0..1000).map(|number| format!("{number:04}")).collect();
    for key in keys.iter().step_by(2) {
        bed.put(key.as_bytes(), b"stored");
    }
    bed.settle();
    // Some are at the data component only, some here as well; some are absent, with and without a record that says so.
    for key in &keys[..500] {
        bed.get(key.as_bytes());
    }
    for key in &keys[..100] {
        bed.put(key.as_bytes(), b"fresh");
    }
    // The first scan puts the fresh records in order; a younger writer and one that has ended are in the way of nobody.
    all(&mut bed.begin(), Direction::Forward).unwrap();
    let mut reader = bed.begin_with(READ_ONLY);
    let mut younger = bed.begin();
    younger.put(TABLE, b"0000", b"younger").unwrap();
    let before = stores();
    for key in &keys[..500] {
        reader.get_with(TABLE, key.as_bytes(), <[u8]>::len).unwrap();
    }
    reader.get_many(TABLE, &keys[..500], |_, _| {}).unwrap();
    reader.prefetch(TABLE, &keys, &[]);
    for direction in [Direction::Forward, Direction::Reverse] {
        // Nothing has been written since the records were ordered but what the scan need not see.
        let bounds = (Bound::Included(&b"0100"[..]), Bound::Unbounded);
        reader.scan(TABLE, bounds.0, bounds.1, direction).for_each(|entry| drop(entry.unwrap()));
    }
    let scanned = stores() - before;
    reader.commit().unwrap();
    println!("read-only stores: {scanned}");
    assert_eq!(scanned, 0, "stores on the read path");
    // The same reads of a transaction that might write do store.
    let mut writer = bed.begin();
    let before = stores();
    writer.get(TABLE, b"0000").unwrap();
    assert!(stores() > before, "the count counts");
}

#[test]
fn tables_that_are_dropped_take_no_latch_from_who_reads_others() {
    let bed = roomy();
    bed.put(b"k", b"1");
    // Which puts it in the order of the index.
    all(&mut bed.begin(), Direction::Forward).unwrap();
    // Of every number modulo whatever, and none of them the table.
    (2..200).for_each(|number| bed.tc().drop_table(TableId(number)));
    let mut reader = bed.begin_with(READ_ONLY);
    let before = stores();
    reader.get_with(TABLE, b"k", <[u8]>::len).unwrap();
    reader
        .scan(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward)
        .for_each(|entry| drop(entry.unwrap()));
    assert_eq!(stores(), before);
    assert!(matches!(reader.get(TableId(66), b"k"), Err(TcError::TableDropped { table: TableId(66) })));
}

#[test]
fn a_declared_reader_makes_an_older_writer_commit_later_without_touching_what_it_reads() {
    let bed = roomy();
    bed.put(b"k", b"old");
    let mut writer = bed.begin();
    let mut reader = bed.begin_with(READ_ONLY);
    assert_eq!(get(&mut reader, "k").as_deref(), Some("old"));
    assert_eq!(get(&mut reader, "absent"), None);
    // Installed after the read, which has left no mark on the record.
    writer.put(TABLE, b"k", b"new").unwrap();
    writer.put(TABLE, b"absent", b"new").unwrap();
    let committed = writer.commit().unwrap();
    assert!(committed.timestamp > reader.timestamp());
    assert_eq!(get(&mut reader, "k").as_deref(), Some("old"));
    assert_eq!(get(&mut reader, "absent"), None);
    assert_eq!(all(&mut reader, Direction::Forward).unwrap().len(), 1);
    reader.commit().unwrap();
}

#[test]
fn a_declared_reader_sees_every_commit_before_its_begin() {
    let bed = roomy();
    for number in 0..100u32 {
        bed.put(b"k", &number.to_be_bytes());
        let mut reader = bed.begin_with(READ_ONLY);
        assert_eq!(reader.get(TABLE, b"k").unwrap().as_deref(), Some(&number.to_be_bytes()[..]));
    }
}

#[test]
fn a_writer_that_had_read_what_changed_since_gives_way_to_the_fence() {
    let bed = roomy();
    bed.put(b"a", b"1");
    let mut writer = bed.begin();
    assert!(get(&mut writer, "a").is_some());
    bed.put(b"a", b"2");
    let mut reader = bed.begin_with(READ_ONLY);
    assert_eq!((get(&mut reader, "a").as_deref(), get(&mut reader, "b")), (Some("2"), None));
    // Before the reader it cannot come, for the reader has not seen its write; after it neither, for it read the old value.
    writer.put(TABLE, b"b", b"1").unwrap();
    let Err(TcError::Conflict(conflict)) = writer.commit() else { panic!("no serial order") };
    assert_eq!(conflict.cause, ConflictCause::ReadChanged);
}

#[test]
fn declared_readers_get_along_with_a_forced_horizon() {
    let bed = tiny();
    bed.put(b"k", b"1");
    bed.settle();
    bed.tc().force_horizon(Timestamp::MAX);
    let mut reader = bed.begin_with(READ_ONLY);
    for key in ["k", "nothing", "nothing else"] {
        reader.get(TABLE, key.as_bytes()).expect("it began after the horizon was forced");
    }
}

#[test]
fn read_committed_reads_what_is_committed_now() {
    let bed = roomy();
    bed.put(b"k", b"1");
    let mut tx = bed.begin_with(READ_COMMITTED);
    assert_eq!(get(&mut tx, "k").as_deref(), Some("1"));
    let mut other = bed.begin();
    other.put(TABLE, b"k", b"2").unwrap();
    assert_eq!(get(&mut tx, "k").as_deref(), Some("1"), "not committed");
    other.commit().unwrap();
    assert_eq!(get(&mut tx, "k").as_deref(), Some("2"));
    assert_eq!(all(&mut tx, Direction::Reverse).unwrap()[0].1, b"2");
    // A lost update, which the level permits; and the order of the versions is that of the commits.
    bed.put(b"k", b"3");
    tx.put(TABLE, b"k", b"2+1").unwrap();
    assert_eq!(get(&mut tx, "k").as_deref(), Some("2+1"));
    let later = bed.begin().timestamp();
    assert!(tx.commit().unwrap().timestamp > later, "it commits after everything it has seen");
    assert_eq!(bed.get(b"k").as_deref(), Some(&b"2+1"[..]));
}

#[test]
fn read_committed_pushes_nobody_and_keeps_no_versions() {
    let bed = tiny();
    bed.put(b"k", b"1");
    let mut tx = bed.begin_with(READ_COMMITTED);
    assert_eq!(get(&mut tx, "k").as_deref(), Some("1"));
    let mut writer = bed.begin();
    writer.put(TABLE, b"k", b"2").unwrap();
    assert_eq!(get(&mut tx, "k").as_deref(), Some("1"));
    assert_eq!(writer.commit().unwrap().timestamp, writer.timestamp(), "nobody has pushed it");
    for number in 0..5000u32 {
        bed.put(b"other", &[number as u8; 100]);
        if number % 100 == 0 {
            assert_eq!(get(&mut tx, "k").as_deref(), Some("2"));
        }
    }
    assert!(bed.tc().statistics().oldest_active_lag < 200);
    tx.commit().unwrap();
}

#[test]
fn read_committed_keeps_no_versions_between_operations() {
    let bed = roomy();
    let mut tx = bed.begin_with(READ_COMMITTED);
    let mut reader = bed.begin_with(BeginOptions { read_only: true, ..READ_COMMITTED });
    tx.put(TABLE, b"own", b"1").unwrap();
    for tx in [&mut tx, &mut reader] {
        assert_eq!(
            (get(tx, "k"), all(tx, Direction::Forward).unwrap().len()),
            (None, usize::from(!tx.options.read_only))
        );
    }
    for number in 0..5000u32 {
        bed.put(b"k", &number.to_be_bytes());
        bed.tc().collect_step();
    }
    assert!(versions(&bed, b"k") <= 3, "{}", versions(&bed, b"k"));
    bed.settle();
    assert_eq!(bed.proxy().statistics().waiting_list_bytes, 0);
    assert_eq!(bed.tc().statistics().horizon_forced, 0);
    for tx in [&mut tx, &mut reader] {
        assert_eq!(tx.get(TABLE, b"k").unwrap().as_deref(), Some(&4999u32.to_be_bytes()[..]));
    }
    assert_eq!(get(&mut tx, "own").as_deref(), Some("1"));
    reader.commit().unwrap();
    tx.commit().unwrap();
    assert_eq!(bed.get(b"own").as_deref(), Some(&b"1"[..]));
}

#[test]
fn the_past_is_read_as_it_was() {
    let bed = retaining(TcOptions { memory_bytes: 4 << 20, ..TcOptions::tiny_for_tests() });
    let mut moments = Vec::new();
    for number in 0..50u32 {
        bed.put(b"k", &number.to_be_bytes());
        bed.put(&number.to_be_bytes(), b"1");
        if number > 0 {
            let mut tx = bed.begin();
            tx.delete(TABLE, &(number - 1).to_be_bytes()).unwrap();
            tx.commit().unwrap();
        }
        moments.push((bed.tc().now(), number));
        bed.step();
    }
    bed.settle();
    for (moment, number) in moments {
        let mut past = bed.tc().begin_as_of(moment).expect("it is kept");
        assert_eq!(past.timestamp(), moment);
        assert_eq!(past.get(TABLE, b"k").unwrap().as_deref(), Some(&number.to_be_bytes()[..]));
        let found: Vec<_> =
            all(&mut past, Direction::Forward).unwrap().into_iter().map(|(key, _)| key).collect();
        assert_eq!(found, [number.to_be_bytes().to_vec(), b"k".to_vec()]);
        assert!(matches!(past.put(TABLE, b"k", b""), Err(TcError::ReadOnly)));
    }
}

#[test]
fn a_past_that_is_not_kept_is_refused_with_what_is() {
    let bed = retaining(TcOptions { memory_bytes: 4 << 20, ..TcOptions::tiny_for_tests() });
    bed.put(b"k", b"1");
    let first = bed.tc().now();
    bed.put(b"k", b"2");
    let second = bed.tc().now();
    bed.tc().retain_from(second);
    let future = Timestamp(second.0 + 1);
    for wanted in [first, future] {
        let Err(TcError::NotRetained { wanted: told, oldest, newest }) = bed.tc().begin_as_of(wanted) else {
            panic!("{wanted} cannot be read");
        };
        assert_eq!((told, oldest, newest), (wanted, second, second));
    }
    bed.settle();
    assert_eq!(get(&mut bed.tc().begin_as_of(second).unwrap(), "k").as_deref(), Some("2"));
    // Whoever is there already stays, whatever is given up.
    let mut past = bed.tc().begin_as_of(second).unwrap();
    bed.tc().retain_from(Timestamp::MAX);
    bed.put(b"k", b"3");
    bed.settle();
    assert_eq!(get(&mut past, "k").as_deref(), Some("2"));
    assert!(matches!(bed.tc().begin_as_of(second), Err(TcError::NotRetained { .. })));
    // Without retention there is no past at all.
    assert!(roomy().tc().begin_as_of(Timestamp(0)).is_err());
}

#[test]
fn a_past_that_memory_cannot_hold_is_given_up_and_nobody_is_lied_to() {
    let bed = retaining(TcOptions::tiny_for_tests());
    for number in 0..50 {
        bed.put(format!("{number:02}").as_bytes(), b"old");
    }
    let moment = bed.tc().now();
    let mut held = bed.tc().begin_as_of(moment).unwrap();
    for _ in 0..100 {
        for number in 0..50 {
            bed.put(format!("{number:02}").as_bytes(), &[b'n'; 100]);
        }
    }
    assert!(bed.tc().retained_from() > moment, "memory is small");
    assert!(matches!(bed.tc().begin_as_of(moment), Err(TcError::NotRetained { .. })));
    for number in 0..50 {
        match held.get(TABLE, format!("{number:02}").as_bytes()) {
            Ok(value) => assert_eq!(value.as_deref(), Some(&b"old"[..])),
            Err(TcError::Conflict(conflict)) => assert_eq!(conflict.cause, ConflictCause::SnapshotTooOld),
            Err(error) => assert!(matches!(error, TcError::Aborted), "{error}"),
        }
    }
}

/// Posts everything and takes the key out of the table.
fn evict(bed: &Bed, key: &[u8]) {
    bed.settle();
    let (core, guard) = (&bed.tc().core, bed.epochs.pin());
    let record = core.table.find(core.table.key(TABLE, key), &guard).expect("it was written");
    core.maintain(&record, core.horizon(), &guard);
    assert!(core.evict(&record, &guard));
}

#[test]
fn a_snapshot_writer_below_the_forced_horizon_loses_no_update_that_has_left_the_table() {
    let bed = roomy();
    bed.put(b"k", b"1");
    evict(&bed, b"k");
    let mut late = bed.begin_with(SNAPSHOT);
    assert_eq!(get(&mut late, "k").as_deref(), Some("1"));
    bed.put(b"k", b"2");
    bed.tc().force_horizon(Timestamp::MAX);
    evict(&bed, b"k");
    match late.put(TABLE, b"k", b"1 and more") {
        Err(TcError::Conflict(conflict)) => assert_eq!(conflict.cause, ConflictCause::SnapshotTooOld),
        other => panic!("{other:?}"),
    }
    assert_eq!(bed.get(b"k").as_deref(), Some(&b"2"[..]));
    // What lies beneath is known again, and who is not below the horizon need not know.
    let mut late = bed.begin_with(SNAPSHOT);
    late.put(TABLE, b"k", b"3").unwrap();
    late.commit().unwrap();
    let mut young = bed.begin_with(SNAPSHOT);
    young.put(TABLE, b"fresh", b"1").unwrap();
    young.commit().unwrap();
}

/// Has `other` done once, at the `number`th point that `work` passes; whether it passes so many.
fn meanwhile(number: usize, other: impl Fn() + Send + Sync + 'static, work: impl FnOnce()) -> bool {
    let (passed, done) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let is_done = Arc::clone(&done);
    schedule::set_hook(Some(Arc::new(move || {
        if passed.fetch_add(1, Ordering::Relaxed) == number && !is_done.swap(true, Ordering::Relaxed) {
            other();
        }
    })));
    work();
    schedule::set_hook(None);
    done.load(Ordering::Relaxed)
}

/// Takes out of `k` what nobody sees.
fn prune(bed: &Bed) {
    let (core, guard) = (&bed.tc().core, bed.epochs.pin());
    core.gather_active();
    let record = core.table.find(core.table.key(TABLE, b"k"), &guard).expect("it was written");
    core.maintain(&record, core.horizon(), &guard);
}

/// R26 beside R7, R20: `later` reads again at a timestamp that others do not know.
fn who_reads_again_meets_what_has_changed(later: impl Fn(&mut Transaction) -> Result<(), TcError>) {
    let mut number = 0;
    loop {
        let bed = roomy();
        bed.put(b"k", b"0");
        let mut tx = bed.begin();
        assert_eq!(get(&mut tx, "k").as_deref(), Some("0"));
        tx.put(TABLE, b"own", b"1").unwrap();
        bed.put(b"k", b"1");
        bed.put(b"other", b"1");
        // It is pushed.
        assert_eq!(get(&mut bed.begin(), "own"), None);
        let other = Arc::clone(&bed);
        let meanwhile = meanwhile(
            number,
            move || {
                other.put(b"k", b"2");
                prune(&other);
            },
            || match later(&mut tx) {
                Err(TcError::Conflict(conflict)) => assert_eq!(conflict.cause, ConflictCause::ReadChanged),
                other => panic!("at point {number}: {other:?}"),
            },
        );
        if !meanwhile {
            assert!(number > 2, "{number} points");
            return;
        }
        number += 1;
    }
}

#[test]
fn a_refresh_sees_what_was_written_between_though_nobody_else_does() {
    who_reads_again_meets_what_has_changed(|tx| tx.commit().map(drop));
}

#[test]
fn who_moves_on_sees_what_was_written_between_though_nobody_else_does() {
    who_reads_again_meets_what_has_changed(|tx| tx.get_for_update(TABLE, b"other").map(drop));
}

#[test]
fn under_read_committed_what_is_read_is_not_taken_out() {
    for options in [READ_COMMITTED, BeginOptions { read_only: true, ..READ_COMMITTED }] {
        let mut number = 0;
        loop {
            let bed = roomy();
            bed.put(b"k", b"0");
            let mut tx = bed.begin_with(options);
            bed.put(b"k", b"1");
            bed.put(b"k", b"2");
            let other = Arc::clone(&bed);
            let write = move || {
                other.put(b"k", b"3");
                prune(&other);
            };
            let read = || assert!(matches!(get(&mut tx, "k").as_deref(), Some("2" | "3")));
            if !meanwhile(number, write, read) {
                break;
            }
            number += 1;
        }
        assert!(number > 1, "{number} points");
    }
}

#[test]
fn who_reads_to_write_loses_no_update_of_others_under_any_level() {
    type Update = fn(&mut Transaction) -> Result<(), TcError>;
    let one = 1i64.to_le_bytes();
    let updates: [Update; 3] = [
        |tx| tx.get_for_update(TABLE, b"k").map(drop),
        |tx| tx.add_and_get(TABLE, b"k", 0).map(drop),
        |tx| tx.add(TABLE, b"k", 0).and_then(|()| tx.get(TABLE, b"k")).map(drop),
    ];
    for options in [BeginOptions::default(), SNAPSHOT, READ_COMMITTED] {
        for update in updates {
            let mut number = 0;
            loop {
                let bed = roomy();
                bed.put(b"k", &[0; 8]);
                let (writer, committed) = (Arc::clone(&bed), Arc::new(AtomicBool::new(false)));
                let has_committed = Arc::clone(&committed);
                let other = move || {
                    let mut tx = writer.begin();
                    let put = tx.put(TABLE, b"k", &one).and_then(|()| tx.commit());
                    has_committed.store(put.is_ok(), Ordering::Relaxed);
                };
                let reached = meanwhile(number, other, || {
                    let mut tx = bed.begin_with(options);
                    _ = update(&mut tx).and_then(|()| tx.commit());
                });
                let expected = if committed.load(Ordering::Relaxed) { one } else { [0; 8] };
                assert_eq!(bed.get(b"k").as_deref(), Some(&expected[..]), "{options:?} at {number}");
                if !reached {
                    assert!(number > 3);
                    break;
                }
                number += 1;
            }
        }
    }
}
