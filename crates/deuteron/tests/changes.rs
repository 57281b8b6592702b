//! Commutative updates through the public interface: each test's name is the property.

use deuteron::device::MemoryDirectory;
use deuteron::{
    Background, ChangeError, Db, Durability, Error, Isolation, Options, Table, TransactionOptions,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn open(options: Options) -> (Db, Table) {
    let db = options.open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = db.table("t").expect("creates");
    (db, table)
}

fn number(db: &Db, table: &Table, key: &[u8]) -> i64 {
    let value = db.transact(|tx| tx.get(table, key)).expect("reads").expect("is there");
    i64::from_le_bytes(value.try_into().expect("8 bytes"))
}

/// Each thread of four counts on the same ten keys, in a transaction of four operations.
#[test]
fn what_threads_add_and_append_adds_up() {
    const THREADS: u8 = 4;
    const ROUNDS: u32 = 1_000;
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        let options = Options::new().memory(64 << 20).durability(Durability::None);
        let (db, table) = open(options.background(Background::Threads));
        let attempts = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (db, table, attempts) = (&db, &table, &attempts);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let options = TransactionOptions::new().isolation(isolation);
                        let work = |tx: &mut deuteron::Transaction| {
                            attempts.fetch_add(1, Ordering::Relaxed);
                            tx.add(table, &[b'n', (round % 10) as u8], 1)?;
                            tx.add(table, &[b'n', (round * 7 % 10) as u8], 2)?;
                            tx.append(table, &[b's', (round % 10) as u8, (round / 100) as u8], &[thread])
                        };
                        db.transact_with(options, deuteron::RetryPolicy::default(), work).expect("commits");
                    }
                });
            }
        });
        println!("{isolation:?}: {} attempts at {}", attempts.into_inner(), u32::from(THREADS) * ROUNDS);
        let sum: i64 = (0..10).map(|key| number(&db, &table, &[b'n', key])).sum();
        assert_eq!(sum, i64::from(THREADS) * i64::from(ROUNDS) * 3);
        let lists: Vec<_> =
            db.transact(|tx| tx.scan(&table, &b"s"[..]..)?.collect::<Result<Vec<_>, _>>()).expect("scans");
        for (key, list) in &lists {
            for thread in 0..THREADS {
                let count = list.iter().filter(|byte| **byte == thread).count();
                assert_eq!(count, 10, "{thread} in {key:?}");
            }
        }
        db.close().expect("closes");
    }
}

#[test]
fn a_value_that_cannot_be_changed_says_why_and_loses_nothing() {
    let (db, table) = open(Options::tiny_for_tests());
    db.transact(|tx| tx.put(&table, b"name", b"ada")).expect("commits");
    let failed = db.transact(|tx| {
        tx.put(&table, b"other", b"1")?;
        tx.add(&table, b"name", 1)
    });
    match failed {
        Err(Error::Change { table, key, cause }) => {
            assert_eq!(
                (table.as_str(), &key[..], cause),
                ("t", &b"name"[..], ChangeError::NotAnInteger { found: 3 })
            );
        }
        other => panic!("{other:?}"),
    }
    let text = db.transact(|tx| tx.add(&table, b"name", 1)).expect_err("no integer").to_string();
    let wanted = "cannot change key \"name\" in table t: the value has 3 bytes; an integer has 8; the transaction was aborted";
    assert_eq!(text, wanted);
    assert_eq!(db.transact(|tx| tx.get(&table, b"other")).expect("reads"), None);
    assert_eq!(db.transact(|tx| tx.get(&table, b"name")).expect("reads").as_deref(), Some(&b"ada"[..]));
    db.transact(|tx| tx.add(&table, b"low", i64::MIN)).expect("commits");
    let overflow = db.transact(|tx| tx.add_and_get(&table, b"low", -1));
    assert!(matches!(overflow, Err(Error::Change { cause: ChangeError::Overflow { .. }, .. })));
    assert!(!overflow.expect_err("overflows").is_retryable());
    assert_eq!(number(&db, &table, b"low"), i64::MIN);
    let mut tx = db.begin();
    assert!(matches!(tx.add(&table, b"", 1), Err(Error::KeySize { .. })));
    assert!(matches!(tx.append(&table, b"s", &vec![0; 65 << 20]), Err(Error::ValueSize { .. })));
    tx.append(&table, b"s", b"it lives on").expect("is noted");
    tx.commit().expect("commits");
    db.close().expect("closes");
}

#[test]
fn sums_are_there_after_a_restart() {
    let directory = Arc::new(MemoryDirectory::new());
    for round in 1..=3 {
        let db = Options::tiny_for_tests().open_in(Arc::<MemoryDirectory>::clone(&directory)).expect("opens");
        let table = db.table("t").expect("is there");
        for key in 0..300u32 {
            db.transact(|tx| tx.add(&table, &key.to_be_bytes(), i64::from(key))).expect("commits");
        }
        assert!((0..300u32).all(|key| number(&db, &table, &key.to_be_bytes()) == round * i64::from(key)));
        db.close().expect("closes");
    }
}
