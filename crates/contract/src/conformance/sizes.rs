//! Keys and values at and over the limits.

use super::execute::scan_in_batches;
use super::{Broken, Harness};
use crate::{DataComponent, DcError, Direction, Lsn, Operation, ScanRequest, TableId, Timestamp};
use std::ops::Bound;

const TABLE: TableId = TableId(3);

fn put<'a>(key: &'a [u8], value: &'a [u8], lsn: u64) -> Operation<'a> {
    Operation { table: TABLE, key, value: Some(value), timestamp: Timestamp(lsn), lsn: Lsn(lsn) }
}

pub(super) fn check(harness: &dyn Harness) -> Result<(), Broken> {
    let limits = harness.limits();
    let instance = harness.open();
    let component = instance.component();
    component.end_of_stable_log(Lsn(4096));
    let (key, value) = (vec![0x6b; limits.key_bytes_max + 1], vec![0x76; limits.value_bytes_max + 1]);
    let (longest_key, longest_value) = (&key[1..], &value[1..]);

    applies(component, "a record", &[put(b"old", b"1", 8)])?;
    refuses(component, "an empty key", put(b"", b"x", 16))?;
    refuses(component, "a key over the limit", put(&key, b"x", 24))?;
    refuses(component, "a value over the limit", put(b"big", &value, 32))?;
    expect(component, b"old", Some(b"1"))?;

    // The rest of a refused batch can be applied by itself.
    let mixed = [put(b"one", b"2", 40), put(b"big", &value, 48), put(b"two", b"3", 56)];
    if component.apply(&mixed).is_ok() {
        return Err(Broken::new("size", "a batch with a value over the limit was accepted"));
    }
    applies(component, "the rest of a refused batch", &[mixed[0], mixed[2]])?;
    expect(component, b"one", Some(b"2"))?;
    expect(component, b"two", Some(b"3"))?;
    expect(component, b"big", None)?;

    let longest = [put(longest_key, longest_value, 64), put(b"e", b"", 72)];
    applies(component, "the longest key and value, and an empty value", &longest)?;
    instance.maintain(1);
    expect(instance.component(), longest_key, Some(longest_value))?;
    let done = instance.component().redo_scan_start_point(Lsn(4096));
    done.map_err(|error| Broken::error("redo_scan_start_point", &error))?;

    let instance = instance.crash(1);
    let component = instance.component();
    let expected: [(&[u8], &[u8]); 5] =
        [(b"old", b"1"), (b"one", b"2"), (b"two", b"3"), (longest_key, longest_value), (b"e", b"")];
    expected.iter().try_for_each(|(key, value)| expect(component, key, Some(value)))?;
    let request = ScanRequest {
        table: TABLE,
        lower: Bound::Unbounded,
        upper: Bound::Unbounded,
        direction: Direction::Forward,
        bytes_max: 16,
        records_max: usize::MAX,
    };
    let found = scan_in_batches(component, request)?.len();
    if found != expected.len() {
        return Err(Broken::new(
            "size",
            format!("{found} records in the table, expected {}", expected.len()),
        ));
    }
    // A reader may ask for anything.
    match component.get(TABLE, &key) {
        Ok(None) | Err(DcError::KeySize { .. }) => Ok(()),
        other => Err(Broken::new("size", format!("a get of a key over the limit gives {other:?}"))),
    }
}

fn applies(component: &dyn DataComponent, what: &str, operations: &[Operation<'_>]) -> Result<(), Broken> {
    component.apply(operations).map_err(|error| Broken::error(&format!("apply of {what}"), &error))
}

fn refuses(component: &dyn DataComponent, what: &str, operation: Operation<'_>) -> Result<(), Broken> {
    let long_key = operation.value.is_some_and(|value| value.len() == 1);
    match component.apply(&[operation]) {
        Err(DcError::KeySize { found, .. }) if long_key && found == operation.key.len() => Ok(()),
        Err(DcError::ValueSize { .. }) if !long_key => Ok(()),
        other => Err(Broken::new("size", format!("{what} gives {other:?}, expected a typed error"))),
    }
}

fn expect(component: &dyn DataComponent, key: &[u8], value: Option<&[u8]>) -> Result<(), Broken> {
    let found = component.get(TABLE, key).map_err(|error| Broken::error("get", &error))?;
    if found.as_ref().and_then(|record| record.value.as_deref()) == value {
        return Ok(());
    }
    let what = format!("the record with a key of {} bytes is lost or changed", key.len());
    Err(Broken::new("size", what))
}
