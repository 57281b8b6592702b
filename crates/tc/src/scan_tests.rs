//! What scans see, conflict with and depend on, and cursors that go on: each test's name is the property.

use crate::schedule;
use crate::test_bed::{Bed, TABLE, all, get, keys, put, roomy, tiny};
use crate::{BeginOptions, Isolation, ScanCursor, Transaction};
use deuteron_contract::{Direction, Lsn, Timestamp};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

const DIRECTIONS: [Direction; 2] = [Direction::Forward, Direction::Reverse];
const READ_ONLY: BeginOptions = BeginOptions { isolation: Isolation::Serializable, read_only: true };
const READ_COMMITTED: BeginOptions = BeginOptions { isolation: Isolation::ReadCommitted, read_only: false };

/// Two records, and a transaction that has scanned a range with both.
fn counted() -> (Arc<Bed>, Transaction) {
    let bed = roomy();
    for key in ["b", "d"] {
        bed.put(key.as_bytes(), b"1");
    }
    let mut counter = bed.begin();
    assert_eq!(keys(&mut counter, "a", "e"), ["b", "d"]);
    (bed, counter)
}

#[test]
fn phantoms_by_insert_and_by_delete_are_refused() {
    for delete in [false, true] {
        let (bed, mut counter) = counted();
        let mut other = bed.begin();
        assert!(get(&mut other, "total").is_none());
        if delete {
            other.delete(TABLE, b"b").unwrap();
        } else {
            put(&mut other, "c", "1");
        }
        put(&mut counter, "total", "2");
        // Both orders are impossible: `counter` did not see the change, `other` did not see the total.
        let outcomes =
            [other.commit(), counter.commit()].map(|outcome| outcome.map_err(|error| error.to_string()));
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    }
}

#[test]
fn a_change_beside_a_scanned_range_is_no_conflict() {
    let (bed, mut counter) = counted();
    let mut other = bed.begin();
    put(&mut other, "e", "1");
    other.commit().unwrap();
    put(&mut counter, "e", "2");
    let committed = counter.commit().unwrap();
    assert!(committed.timestamp > Timestamp(0));
    assert_eq!(bed.get(b"e").as_deref(), Some(&b"2"[..]));
}

#[test]
fn a_scan_shows_own_writes_and_survives_a_refresh_over_them() {
    let bed = roomy();
    for key in ["a", "b", "c", "d"] {
        bed.put(key.as_bytes(), b"1");
    }
    let mut tx = bed.begin();
    tx.delete(TABLE, b"b").unwrap();
    put(&mut tx, "bb", "own");
    assert_eq!(keys(&mut tx, "a", "d"), ["a", "bb", "c"]);
    // Scanned, then overwritten by itself.
    put(&mut tx, "c", "own");
    // Somebody makes it commit later, without touching the range.
    bed.put(b"z", b"1");
    put(&mut tx, "z", "own");
    assert!(tx.commit().unwrap().timestamp > Timestamp(0));
    assert_eq!(keys(&mut bed.begin(), "a", "zz"), ["a", "bb", "c", "d", "z"]);
    assert_eq!(bed.tc().statistics().refreshed_commits, 1);
}

#[test]
fn scans_merge_both_components_in_both_directions() {
    for bed in [roomy(), tiny()] {
        let names: Vec<String> = (0..40).map(|number| format!("{number:02}")).collect();
        for name in names.iter().step_by(2) {
            bed.put(name.as_bytes(), b"stored");
        }
        bed.settle();
        for name in names.iter().skip(1).step_by(2) {
            bed.put(name.as_bytes(), b"fresh");
        }
        let mut tx = bed.begin();
        tx.delete(TABLE, b"00").unwrap();
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut found: Vec<String> = all(&mut tx, direction)
                .unwrap()
                .into_iter()
                .map(|(key, _)| String::from_utf8(key).unwrap())
                .collect();
            if direction == Direction::Reverse {
                found.reverse();
            }
            assert_eq!(found, names[1..]);
        }
        assert!(keys(&mut tx, "5", "1").is_empty());
    }
}

/// A bed in which nine keys between "a" and "z" have been deleted, and that one of the two which scans in `direction` come to first; the other one, and the commit record of
/// who has deleted them.
fn emptied(direction: Direction) -> (Arc<Bed>, &'static [u8], Option<Lsn>) {
    let bed = roomy();
    (0..9).for_each(|number| bed.put(format!("m{number}").as_bytes(), b"1"));
    let (near, left) = match direction {
        Direction::Forward => (b"a", b"z"),
        Direction::Reverse => (b"z", b"a"),
    };
    bed.put(near, b"1");
    bed.put(left, b"1");
    bed.settle();
    let mut deleter = bed.begin();
    (0..9).for_each(|number| deleter.delete(TABLE, format!("m{number}").as_bytes()).unwrap());
    deleter.delete(TABLE, near).unwrap();
    let deleted = deleter.commit().unwrap().durable_at;
    assert!(deleted.is_some());
    (bed, left, deleted)
}

/// The first key of everything, and on which commit record that depends; and how many scans have begun behind an empty range by then.
fn first(bed: &Bed, mut tx: Transaction, direction: Direction) -> (Vec<u8>, Option<Lsn>, u64) {
    let mut scan = tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, direction);
    let (key, _) = scan.next().unwrap().unwrap();
    drop(scan);
    (key, tx.commit().unwrap().durable_at, bed.tc().statistics().scans_shortened)
}

/// Others may have deleted what lies before its first record, and a crash may undo that.
#[test]
fn a_scan_depends_on_those_who_have_emptied_what_it_does_not_look_into() {
    for direction in DIRECTIONS {
        let (bed, key, deleted) = emptied(direction);
        let first = |options| first(&bed, bed.begin_with(options), direction);
        let found = |durable_at, shortened| (key.to_vec(), durable_at, shortened);
        // Noted, known, and known still when somebody has deleted what came next.
        for shortened in [0, 0, 1, 2] {
            assert_eq!(first(BeginOptions::default()), found(deleted, shortened));
        }
        assert_eq!(first(READ_ONLY), found(deleted, 3));
        assert_eq!(first(READ_COMMITTED), found(deleted, 4));
        bed.settle();
        assert_eq!(first(BeginOptions::default()), found(None, 5));
    }
}

#[test]
fn a_reader_begins_behind_what_is_known_to_be_empty_as_of_its_timestamp_or_an_earlier_one() {
    for direction in DIRECTIONS {
        let (bed, key, _) = emptied(direction);
        let first = |tx| first(&bed, tx, direction);
        let reader = bed.begin_with(READ_ONLY);
        // Those who remember nothing do not make it known, however often they look.
        for options in [READ_ONLY, READ_COMMITTED, READ_ONLY, READ_COMMITTED] {
            assert_eq!(first(bed.begin_with(options)).2, 0);
        }
        (0..2).for_each(|_| _ = first(bed.begin()));
        assert_eq!(first(reader).2, 0, "it is known as of a later timestamp");
        assert_eq!(first(bed.begin_with(READ_ONLY)).2, 1);
        let reader = bed.begin_with(READ_ONLY);
        bed.put(b"m5", b"2");
        for (tx, expected) in [(bed.begin(), &b"m5"[..]), (bed.begin_with(READ_ONLY), b"m5"), (reader, key)] {
            let (found, _, shortened) = first(tx);
            assert_eq!((&found[..], shortened), (expected, 1), "it is known no longer");
        }
    }
}

/// R15 and R25: who writes into what a declared reader did not look into comes after it.
#[test]
fn a_declared_reader_that_did_not_look_into_an_empty_range_comes_before_whoever_writes_into_it() {
    for direction in DIRECTIONS {
        let (bed, key, _) = emptied(direction);
        let first = |tx| first(&bed, tx, direction);
        (0..2).for_each(|_| _ = first(bed.begin()));
        let mut writer = bed.begin();
        let reader = bed.begin_with(READ_ONLY);
        let at = reader.timestamp();
        let (found, _, shortened) = first(reader);
        assert_eq!((&found[..], shortened), (key, 1));
        put(&mut writer, "m5", "2");
        assert!(writer.commit().unwrap().timestamp > at);
    }
}

#[test]
fn at_read_committed_each_scan_sees_what_has_come_into_an_empty_range() {
    for direction in DIRECTIONS {
        let (bed, key, _) = emptied(direction);
        (0..2).for_each(|_| _ = first(&bed, bed.begin(), direction));
        let mut tx = bed.begin_with(READ_COMMITTED);
        let mut first = || {
            let mut scan = tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, direction);
            scan.next().unwrap().unwrap().0
        };
        assert_eq!(first(), key);
        bed.put(b"m5", b"2");
        assert_eq!(first(), b"m5");
        tx.commit().unwrap();
        assert_eq!(bed.tc().statistics().scans_shortened, 1);
    }
}

#[test]
fn a_clone_of_a_cursor_is_a_scan_of_its_own() {
    let bed = roomy();
    (0..10).for_each(|number| bed.put(format!("k{number}").as_bytes(), b"1"));
    let mut writer = bed.begin();
    let mut scanner = bed.begin();
    let mut cursor = ScanCursor::new(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    assert!(scanner.scan_next(&mut cursor, 1).unwrap());
    let mut clone = cursor.clone();
    assert!(scanner.scan_next(&mut cursor, 100).unwrap());
    assert!(scanner.scan_next(&mut clone, 1).unwrap());
    assert_eq!(scanner.scanned(Direction::Forward).get(0).0, b"k1");
    put(&mut writer, "k55", "2");
    assert!(writer.commit().unwrap().timestamp > scanner.timestamp(), "the whole range has been read");
    scanner.commit().unwrap();
}

#[test]
fn a_cursor_of_one_transaction_goes_on_in_another_of_the_same_timestamp() {
    let bed = roomy();
    (0..10).for_each(|number| bed.put(format!("k{number}").as_bytes(), b"1"));
    let mut writer = bed.begin();
    let mut reader = bed.begin_with(BeginOptions { read_only: true, ..BeginOptions::default() });
    assert_eq!(writer.timestamp(), reader.timestamp());
    let mut cursor = ScanCursor::new(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    assert!(writer.scan_next(&mut cursor, 1).unwrap());
    assert!(reader.scan_next(&mut cursor, 1).unwrap());
    assert!(writer.scan_next(&mut cursor, 1).unwrap());
    assert_eq!(writer.scanned(Direction::Forward).get(0).0, b"k2");
    reader.commit().unwrap();
    writer.commit().unwrap();
}

/// They have the same timestamps.
#[test]
fn a_cursor_goes_on_in_a_transaction_of_another_component_as_a_scan_of_its_own() {
    let beds = [roomy(), roomy()];
    for bed in &beds {
        (0..3).for_each(|key| bed.put(&[key], b"1"));
    }
    let mut txs = beds.each_ref().map(|bed| bed.begin());
    assert_eq!(txs[0].begin, txs[1].begin);
    let mut cursor = ScanCursor::new(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    for key in 0..3 {
        let tx = &mut txs[key % 2];
        assert!(tx.scan_next(&mut cursor, 1).unwrap());
        assert_eq!(tx.scanned(Direction::Forward).get(0).0, [key as u8]);
    }
    assert_eq!(txs.map(|tx| tx.workspace.scans.len()), [2, 1]);
}

/// What it published as of its begin holds nobody back any more, so that its place in the table is given to others.
#[test]
fn a_scan_that_goes_on_after_its_transaction_has_moved_on_leaves_the_ranges_of_others_alone() {
    let bed = tiny();
    ["a", "b", "c", "d"].iter().for_each(|key| bed.put(key.as_bytes(), b"1"));
    let mut moving = bed.begin();
    let (lower, upper) = (Bound::Included(b"a".to_vec()), Bound::Excluded(b"e".to_vec()));
    let mut cursor = ScanCursor::new(TABLE, lower, upper, Direction::Forward);
    assert_eq!(moving.scan_batch(&mut cursor).unwrap().map(|batch| batch.len()), Some(2));
    bed.put(b"k", b"1");
    assert!(moving.get_for_update(TABLE, b"k").unwrap().is_some());
    let (mut writer, mut scanning) = (bed.begin(), bed.begin());
    assert!(keys(&mut scanning, "m", "n").is_empty());
    assert_eq!(moving.scan_batch(&mut cursor).unwrap().map(|batch| batch.len()), Some(2));
    put(&mut writer, "mm", "1");
    let scanned = scanning.commit().unwrap().timestamp;
    assert!(writer.commit().unwrap().timestamp > scanned, "it was not there when the range was scanned");
    moving.commit().unwrap();
}

/// One that is stopped before the record is where scans look for it, and aborted there by somebody else.
#[test]
fn what_was_written_above_an_aborted_writer_is_found_by_scans_as_soon_as_it_is_committed() {
    let bed = roomy();
    bed.put(b"k", b"1");
    bed.settle();
    let ((to_main, from_thread), (to_thread, from_main)) = (channel(), channel());
    std::thread::scope(|scope| {
        let aborted = scope.spawn(|| {
            let mut tx = bed.begin();
            let (from_main, is_first) = (std::sync::Mutex::new(from_main), AtomicBool::new(true));
            let of_hook = Arc::clone(&bed);
            schedule::set_hook(Some(Arc::new(move || {
                let (core, guard) = (&of_hook.tc().core, of_hook.epochs.pin());
                let record = core.table.find(core.table.key(TABLE, b"k"), &guard);
                if record.is_some_and(|record| record.is_being_placed())
                    && is_first.swap(false, Ordering::Relaxed)
                {
                    to_main.send(()).unwrap();
                    from_main.lock().unwrap().recv().unwrap();
                }
            })));
            let written = tx.delete(TABLE, b"k");
            schedule::set_hook(None);
            written.and_then(|()| tx.commit())
        });
        from_thread.recv().unwrap();
        assert_eq!(bed.tc().abort_writers_before(bed.log.tail_lsn()), 1);
        // It goes on once the next one waits for it, which has no such number of points in its way.
        let (points, of_hook) = (AtomicUsize::new(0), to_thread.clone());
        schedule::set_hook(Some(Arc::new(move || {
            if points.fetch_add(1, Ordering::Relaxed) == 10_000 {
                of_hook.send(()).unwrap();
            }
        })));
        bed.put(b"k", b"3");
        schedule::set_hook(None);
        let found = [true, false].map(|read_only| {
            let mut tx = bed.begin_with(BeginOptions { read_only, ..BeginOptions::default() });
            all(&mut tx, Direction::Forward).unwrap()
        });
        // If it has not.
        let _ = to_thread.send(());
        assert!(aborted.join().unwrap().is_err());
        assert_eq!(found, [(); 2].map(|()| vec![(b"k".to_vec(), b"3".to_vec())]));
    });
}
