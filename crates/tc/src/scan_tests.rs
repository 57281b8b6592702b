//! What scans see, conflict with and depend on, and cursors that go on: each test's name is the property.

use crate::test_bed::{TABLE, all, get, keys, put, roomy, tiny};
use crate::{BeginOptions, ScanCursor};
use deuteron_contract::{Direction, Timestamp};
use std::ops::Bound;

#[test]
fn phantoms_by_insert_and_by_delete_are_refused() {
    for delete in [false, true] {
        let bed = roomy();
        for key in ["b", "d"] {
            bed.put(key.as_bytes(), b"1");
        }
        let mut counter = bed.begin();
        assert_eq!(keys(&mut counter, "a", "e"), ["b", "d"]);
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
    let bed = roomy();
    for key in ["b", "d"] {
        bed.put(key.as_bytes(), b"1");
    }
    let mut counter = bed.begin();
    assert_eq!(keys(&mut counter, "a", "e"), ["b", "d"]);
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

/// Others may have deleted what lies before its first record, and a crash may undo that.
#[test]
fn a_scan_depends_on_those_who_have_emptied_what_it_does_not_look_into() {
    let bed = roomy();
    (0..9).for_each(|number| bed.put(format!("a{number}").as_bytes(), b"1"));
    bed.put(b"z", b"1");
    bed.settle();
    let mut deleter = bed.begin();
    (0..9).for_each(|number| deleter.delete(TABLE, format!("a{number}").as_bytes()).unwrap());
    let deleted = deleter.commit().unwrap().durable_at;
    assert!(deleted.is_some());
    let first = || {
        let mut tx = bed.begin();
        let mut scan = tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward);
        assert_eq!(scan.next().unwrap().unwrap().0, b"z");
        drop(scan);
        (tx.commit().unwrap().durable_at, bed.tc().statistics().scans_shortened)
    };
    // Noted, known, and known still when somebody has deleted what came next.
    assert_eq!(
        [first(), first(), first(), first()],
        [(deleted, 0), (deleted, 0), (deleted, 1), (deleted, 2)]
    );
    bed.settle();
    assert_eq!(first(), (None, 3));
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
