//! Transactions that write more than the memory of the database: values are in the log only until they are committed.

use deuteron::device::OsDirectory;
use deuteron::{Durability, Error, Options};
use std::sync::Arc;

const MEMORY: usize = 48 << 20;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Whose value it is, and of which version.
fn value(number: u32, version: u32, bytes: usize) -> Vec<u8> {
    [number, version].iter().flat_map(|word| word.to_le_bytes()).cycle().take(bytes).collect()
}

#[test]
fn one_transaction_writes_and_deletes_several_times_what_memory_holds() {
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = Arc::new(OsDirectory::open_or_create(scratch.path()).expect("opens"));
    let open = || {
        let options = Options::new().memory(MEMORY).writer_log_max(1 << 30).durability(Durability::Sync);
        options.open_in(Arc::<OsDirectory>::clone(&directory)).expect("opens")
    };
    // Long values, and short ones.
    for (count, bytes) in [(5_000, 24 << 10), (40_000, 2_000)] {
        let db = open();
        let name = format!("values of {bytes}");
        let table = db.table(&name).expect("a table");
        let written = count as usize * bytes;
        assert!(written > 3 * MEMORY / 2);
        let mut large = db.begin();
        for number in 0..count {
            large.put(&table, &key(number), &value(number, 1, bytes)).expect("writes");
            // Others work beside it, and see nothing of it.
            if number % 1000 == 0 {
                assert_eq!(db.transact(|tx| tx.get(&table, &key(number))).expect("reads"), None);
            }
        }
        // It sees its own, which it reads from the log.
        for number in (0..count).step_by(977) {
            let found = large.get(&table, &key(number)).expect("reads").expect("is there");
            assert_eq!(found, value(number, 1, bytes));
        }
        large.commit().expect("commits");
        let check = |db: &deuteron::Db| {
            let table = db.table(&name).expect("a table");
            // What it has written is on its way to the data component: an older reader may have to give way.
            let found = db.transact(|tx| {
                let (mut scan, mut next) = (tx.scan(&table, ..)?, 0);
                while let Some((found, content)) = scan.next_ref()? {
                    assert!(found == key(next) && content == value(next, 1, bytes), "{next}");
                    next += 1;
                }
                Ok(next)
            });
            assert_eq!(found.expect("reads"), count);
        };
        check(&db);
        db.close().expect("closes");
        let db = open();
        check(&db);
        let table = db.table(&name).expect("a table");
        assert_eq!(db.transact(|tx| tx.delete_range(&table, ..)).expect("deletes"), u64::from(count));
        assert!(db.transact(|tx| Ok(tx.scan(&table, ..)?.next().is_none())).expect("scans"));
        db.close().expect("closes");
    }
}

/// What bounds a transaction is the number of its records, of each of which something is in memory, and the log.
#[test]
fn one_that_writes_too_many_records_is_told_how_many_there_may_be() {
    let options = Options::new().memory(MEMORY).writer_log_max(1 << 30);
    let db = options.open_in(Arc::new(deuteron::device::MemoryDirectory::new())).expect("opens");
    let table = db.table("t").expect("a table");
    let mut tx = db.begin();
    let refused = (0..10_000_000u32).find_map(|number| tx.put(&table, &key(number), b"").err());
    let Some(Error::TransactionTooLarge { found, limit }) = refused else { panic!("{refused:?}") };
    assert!(found == limit + 1 && limit > MEMORY / 2000, "{found}, {limit}");
    drop(tx);
    let limit = limit as u32;
    db.transact(|tx| (0..limit / 2).try_for_each(|number| tx.put(&table, &key(number), b"")))
        .expect("half of it is none");
    db.close().expect("closes");
}
