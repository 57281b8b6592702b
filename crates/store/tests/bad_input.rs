//! Bad input, misuse and a failing device: each gets a typed error, and nothing durable is lost.

use deuteron_store::device::{FaultKind, FaultPlan, MemoryDirectory, Operation, SimulatedDisk};
use deuteron_store::{Batch, Entry, Error, Options, SPACE_AMPLIFICATION_PERCENT_MIN, Store};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

fn in_memory() -> Store {
    Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new())).expect("opens")
}

#[test]
fn keys_and_values_over_the_limits_are_refused_and_a_batch_is_refused_whole() {
    let store = in_memory();
    let table = store.table("t").expect("creates");
    assert!(matches!(table.upsert(b"", b"1"), Err(Error::KeySize { found: 0, .. })));
    assert!(matches!(table.delete(&[1; 4097]), Err(Error::KeySize { found: 4097, limit: 4096 })));
    let limit = store.value_bytes_max();
    let mut batch = Batch::new();
    batch.upsert(&table, b"good", b"1").upsert(&table, b"bad", &vec![0; limit + 1]);
    assert!(matches!(store.apply(&batch), Err(Error::ValueSize { .. })));
    assert_eq!(table.get(b"good").expect("reads"), None);
    table.upsert(b"good", &vec![7; limit]).expect("the longest value");
    assert_eq!(table.get(b"good").expect("reads"), Some(vec![7; limit]));
    assert_eq!(
        Options::new().open_in(Arc::new(MemoryDirectory::new())).expect("opens").value_bytes_max(),
        64 << 20
    );
}

#[test]
fn names_are_checked_and_tables_of_other_stores_refused() {
    let (store, other) = (in_memory(), in_memory());
    assert!(matches!(store.table(""), Err(Error::TableName { found: 0, .. })));
    assert!(matches!(store.table(&"x".repeat(256)), Err(Error::TableName { found: 256, limit: 255 })));
    let (own, foreign) = (store.table("own").expect("creates"), other.table("foreign").expect("creates"));
    let mut batch = Batch::new();
    batch.upsert(&own, b"a", b"1").upsert(&foreign, b"b", b"2");
    assert!(matches!(store.apply(&batch), Err(Error::ForeignTable { table }) if table == "foreign"));
    batch.clear();
    batch.upsert(&foreign, b"b", b"2");
    assert!(matches!(store.apply(&batch), Err(Error::ForeignTable { .. })));
    assert_eq!(own.get(b"a").expect("reads"), None);
}

#[test]
fn two_handles_on_one_directory_are_refused_and_a_closed_store_says_so() {
    let scratch = tempfile::tempdir().expect("a directory");
    let store = Store::open(scratch.path()).expect("opens");
    assert!(matches!(Store::open(scratch.path()), Err(Error::InUse { .. })));
    let table = store.table("t").expect("creates");
    table.upsert(b"a", b"1").expect("writes");
    let other = store.clone();
    store.close().expect("closes");
    assert!(matches!(table.upsert(b"a", b"2"), Err(Error::Closed)));
    assert!(matches!(table.scan(..).next(), Some(Err(Error::Closed))));
    assert!(matches!(other.persist(), Err(Error::Closed)));
    other.close().expect("closing twice is harmless");
    let store = Store::open(scratch.path()).expect("the lock was given back");
    assert_eq!(store.table("t").expect("is there").get(b"a").expect("reads").as_deref(), Some(&b"1"[..]));
}

#[test]
fn foreign_and_missing_directories_are_refused_and_left_alone() {
    let scratch = tempfile::tempdir().expect("a directory");
    let missing = scratch.path().join("missing");
    let refused = Options::new().create_if_missing(false).open(&missing);
    assert!(matches!(refused, Err(Error::NotFound { .. })));
    assert!(!missing.exists());
    std::fs::write(scratch.path().join("superblock"), b"a database").expect("writes");
    let Err(Error::NotAStore { file, .. }) = Store::open(scratch.path()) else { panic!("not a store") };
    assert_eq!(file, "superblock");
    assert_eq!(std::fs::read_dir(scratch.path()).expect("lists").count(), 1, "not even a lock");
    assert!(matches!(Options::new().memory(1).open(&missing), Err(Error::InvalidOption { .. })));
    let crammed = Options::new().space_amplification_max(SPACE_AMPLIFICATION_PERCENT_MIN - 1).open(&missing);
    assert!(matches!(crammed, Err(Error::InvalidOption { option: "space_amplification_max", .. })));
    let always = Options::new().persist_every(Duration::ZERO).open(&missing);
    assert!(matches!(always, Err(Error::InvalidOption { option: "persist_every", .. })));
    assert!(!missing.exists(), "what is refused is refused before there is a directory");
}

#[test]
fn what_can_be_no_key_has_no_value_and_any_bounds_are_a_range() {
    let store = in_memory();
    let table = store.table("t").expect("creates");
    let keys: Vec<Vec<u8>> = vec![vec![0], vec![0; 4096], b"m".to_vec(), vec![0xff], vec![0xff; 4096]];
    for key in &keys {
        table.upsert(key, b"value").expect("writes");
    }
    for _ in 0..2 {
        for key in [&b""[..], &[0; 4097], &[0xff; 100_000]] {
            assert_eq!(table.get(key).expect("reads"), None);
            assert_eq!(table.get_many(&[key, b"m"]).expect("reads"), [None, Some(b"value".to_vec())]);
        }
        let ends = [&b""[..], &[0], &[0; 5000], b"m", &[0xff], &[0xff; 5000]];
        let bounds = ends.iter().flat_map(|end| [Bound::Included(*end), Bound::Excluded(*end)]);
        let bounds: Vec<_> = bounds.chain([Bound::Unbounded]).collect();
        for range in bounds.iter().flat_map(|lower| bounds.iter().map(move |upper| (*lower, *upper))) {
            let expected: Vec<_> =
                keys.iter().filter(|key| range.contains(&key.as_slice())).cloned().collect();
            let keys = |entry: Result<Entry, Error>| entry.expect("reads").0;
            assert_eq!(table.scan(range).map(keys).collect::<Vec<_>>(), expected, "{range:?}");
            let mut reverse: Vec<_> = table.scan(range).rev().map(keys).collect();
            reverse.reverse();
            assert_eq!(reverse, expected, "{range:?}");
        }
        store.compact().expect("compacts");
    }
}

#[test]
fn whoever_closes_hears_that_it_has_failed() {
    for full in [false, true] {
        let disk = SimulatedDisk::new(1);
        let store = Options::tiny_for_tests().open_in(Arc::new(disk.directory())).expect("opens");
        let table = store.table("t").expect("creates");
        table.upsert(b"a", &[1; 1000]).expect("writes");
        if full {
            disk.set_capacity(Some(disk.used_bytes()));
        } else {
            disk.set_faults(FaultPlan::new().fail_from(Operation::Write, 0, FaultKind::Refuse));
        }
        let others = [store.clone(), store.clone()];
        assert!(matches!(store.close(), Err(Error::DiskFull { .. } | Error::Device { .. })));
        for other in others {
            assert!(matches!(other.close(), Err(Error::Poisoned { .. })));
        }
        assert!(matches!(table.get(b"a"), Err(Error::Closed)));
    }
}

#[test]
fn a_full_disk_is_an_error_that_passes() {
    let disk = SimulatedDisk::new(1);
    let store = Options::tiny_for_tests().open_in(Arc::new(disk.directory())).expect("opens");
    let table = store.table("t").expect("creates");
    disk.set_capacity(Some(disk.used_bytes() + (256 << 10)));
    let mut refused = 0;
    for number in 0..2000u32 {
        match table.upsert(&number.to_be_bytes(), &[1; 100]) {
            Ok(()) => {}
            Err(Error::DiskFull { .. }) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(refused > 0, "the disk was full for a while");
    assert!(matches!(store.persist(), Err(Error::DiskFull { .. })));
    disk.set_capacity(None);
    store.persist().expect("there is room again");
    store.check().expect("sound");
}

#[test]
fn after_a_failed_write_reads_go_on_and_writes_are_refused() {
    let disk = SimulatedDisk::new(1);
    let store = Options::tiny_for_tests().open_in(Arc::new(disk.directory())).expect("opens");
    let table = store.table("t").expect("creates");
    table.upsert(b"a", b"durable").expect("writes");
    store.persist().expect("persists");
    table.upsert(b"a", b"lost").expect("writes");
    disk.set_faults(FaultPlan::new().fail_from(Operation::Write, 0, FaultKind::Refuse));
    assert!(matches!(store.persist(), Err(Error::Device { .. } | Error::Poisoned { .. })));
    assert!(matches!(table.upsert(b"a", b"more"), Err(Error::Poisoned { .. })));
    assert!(matches!(store.persist(), Err(Error::Poisoned { .. })));
    assert_eq!(table.get(b"a").expect("reads").as_deref(), Some(&b"lost"[..]));
    drop((table, store));
    disk.set_faults(FaultPlan::new());
    let store = Options::tiny_for_tests().open_in(Arc::new(disk.directory())).expect("opens again");
    let found = store.table("t").expect("is there").get(b"a").expect("reads");
    assert!([Some(&b"durable"[..]), Some(b"lost")].contains(&found.as_deref()), "{found:?}");
}
