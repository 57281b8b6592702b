//! Versions that may take little of the memory: everything is read back, from the pages.

use deuteron::device::MemoryDirectory;
use deuteron::{Db, Durability, Error, Options, VERSION_MEMORY_BYTES_MIN};
use std::sync::Arc;

const RECORDS: u64 = 40_000;

fn open() -> Db {
    let options = Options::new().memory(64 << 20).version_memory(VERSION_MEMORY_BYTES_MIN);
    let options = options.durability(Durability::None);
    options.open_in(Arc::new(MemoryDirectory::new())).expect("opens")
}

fn counter(db: &Db, name: &str) -> u64 {
    let stats = db.stats();
    stats.counters.iter().find(|(found, _)| found == name).expect("there is such a counter").1
}

#[test]
fn more_records_than_versions_have_memory_for_are_written_and_read() {
    let db = open();
    let table = db.table("t").expect("creates");
    let value = |number: u64| [number.to_le_bytes(); 16].concat();
    for round in 0..2 {
        for first in (0..RECORDS).step_by(100) {
            let write = |tx: &mut deuteron::Transaction| {
                (first..first + 100)
                    .try_for_each(|number| tx.put(&table, &number.to_be_bytes(), &value(number + round)))
            };
            db.transact(write).expect("commits");
        }
        assert_eq!(counter(&db, "tc.memory_budget_bytes"), VERSION_MEMORY_BYTES_MIN as u64);
    }
    assert!(counter(&db, "tc.evictions") > RECORDS / 2, "5 MB of values do not fit");
    for number in 0..RECORDS {
        let read = db.transact(|tx| tx.get(&table, &number.to_be_bytes())).expect("reads");
        assert!(read == Some(value(number + 1)), "record {number}");
    }
    db.close().expect("closes");
}

#[test]
fn a_value_has_half_of_it_at_most() {
    let db = open();
    let table = db.table("t").expect("creates");
    let most = VERSION_MEMORY_BYTES_MIN / 2;
    db.transact(|tx| tx.put(&table, b"key", &vec![7; most])).expect("commits");
    let refused = db.transact(|tx| tx.put(&table, b"key", &vec![8; most + 1]));
    assert!(matches!(refused, Err(Error::ValueSize { .. })), "{refused:?}");
    let read = db.transact(|tx| tx.get(&table, b"key")).expect("reads");
    assert!(read == Some(vec![7; most]));
    db.close().expect("closes");
}
