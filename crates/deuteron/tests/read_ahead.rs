//! Keys that are named together come from the disk together.

use deuteron::device::{CrashPolicy, Directory, SimulatedDisk};
use deuteron::{Db, Options};
use std::sync::Arc;

fn counter(db: &Db, name: &str) -> u64 {
    db.stats().counters.iter().find(|(known, _)| known == name).expect("such a counter").1
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// A database of 5000 records on a disk, opened again so that nothing of it is in memory.
fn cold() -> Db {
    let disk = SimulatedDisk::new(1);
    let open = |directory: Arc<dyn Directory>| Options::new().memory(32 << 20).open_in(directory).unwrap();
    let db = open(Arc::new(disk.directory()));
    let table = db.table("t").unwrap();
    for start in (0..5000).step_by(500) {
        db.transact(|tx| {
            (start..start + 500).try_for_each(|number| tx.put(&table, &key(number), &[number as u8; 100]))
        })
        .unwrap();
    }
    db.close().unwrap();
    open(Arc::new(disk.crash(CrashPolicy::KeepAll)))
}

#[test]
fn get_many_loads_the_pages_of_its_keys_at_once() {
    let db = cold();
    let table = db.table("t").unwrap();
    let keys: Vec<_> = (0..6000).step_by(50).map(key).collect();
    let before = counter(&db, "dc.loads_together");
    let mut tx = db.begin();
    let values = tx.get_many(&table, &keys).unwrap();
    for (index, value) in values.into_iter().enumerate() {
        let number = index as u32 * 50;
        assert_eq!(value, (number < 5000).then(|| vec![number as u8; 100]));
    }
    // In two groups.
    assert_eq!(counter(&db, "dc.loads_together") - before, 2);
    drop(tx);
    db.close().unwrap();
}

#[test]
fn prefetch_loads_what_will_be_read_and_not_what_will_be_written() {
    let db = cold();
    let table = db.table("t").unwrap();
    let loads = || counter(&db, "dc.loads");
    let mut tx = db.begin();
    let before = loads();
    tx.prefetch(&table, &[], &[key(4500), key(4800)]);
    tx.prefetch(&table, &[key(4500)], &[]);
    assert_eq!(loads(), before, "a single one is read no later by the read itself");
    tx.prefetch(&table, &[key(1), key(2000)], &[key(4500)]);
    let loaded = loads();
    assert_eq!(loaded, before + 2);
    assert_eq!(tx.get(&table, &key(1)).unwrap().unwrap(), [1; 100]);
    assert_eq!(tx.get(&table, &key(2000)).unwrap().unwrap(), [2000u32 as u8; 100]);
    assert_eq!(loads(), loaded);
    // What this component has a record of is not asked for.
    tx.prefetch(&table, &[key(1), key(2000)], &[]);
    assert_eq!(loads(), loaded);
    drop(tx);
    db.close().unwrap();
}
