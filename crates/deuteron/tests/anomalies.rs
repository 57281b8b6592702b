//! The classic anomalies, each shown impossible with point reads and with scans. Two transactions take turns on one
//! thread; whoever would complete the anomaly must conflict, or the other must not have been seen.
//!
//! A transaction that conflicts is retried by nobody here: the outcome itself is what is asserted.

use deuteron::device::MemoryDirectory;
use deuteron::{Db, Error, Options, Table, Transaction};
use std::sync::Arc;

struct World {
    db: Db,
    table: Table,
}

impl World {
    /// A database whose table holds `x` = `10` and `y` = `20`.
    fn new() -> Self {
        let db = Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new())).expect("opens");
        let table = db.table("t").expect("creates a table");
        db.transact(|tx| {
            tx.put(&table, b"x", b"10")?;
            tx.put(&table, b"y", b"20")
        })
        .expect("commits");
        Self { db, table }
    }

    fn committed(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.db.transact(|tx| tx.get(&self.table, key)).expect("reads")
    }
}

/// How a test reads: by key, or by a scan over just that key.
#[derive(Clone, Copy)]
enum Reader {
    Point,
    Scan,
}

impl Reader {
    fn read(self, tx: &mut Transaction, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Reader::Point => tx.get(table, key),
            Reader::Scan => {
                tx.scan(table, key..=key)?.next().transpose().map(|found| found.map(|(_, value)| value))
            }
        }
    }
}

const READERS: [Reader; 2] = [Reader::Point, Reader::Scan];

fn keys(tx: &mut Transaction, table: &Table) -> Result<Vec<Vec<u8>>, Error> {
    tx.scan(table, ..)?.map(|entry| entry.map(|(key, _)| key)).collect()
}

fn is_conflict<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(error) if error.is_retryable())
}

#[test]
fn an_uncommitted_write_is_never_read() {
    for reader in READERS {
        let world = World::new();
        let mut writer = world.db.begin();
        writer.put(&world.table, b"x", b"11").expect("writes");
        let mut other = world.db.begin();
        assert_eq!(reader.read(&mut other, &world.table, b"x").expect("reads").as_deref(), Some(&b"10"[..]));
        writer.abort();
        other.commit().expect("a reader commits");
        assert_eq!(world.committed(b"x").as_deref(), Some(&b"10"[..]));
    }
}

#[test]
fn an_intermediate_write_is_never_read() {
    for reader in READERS {
        let world = World::new();
        let mut writer = world.db.begin();
        writer.put(&world.table, b"x", b"11").expect("writes");
        let mut other = world.db.begin();
        let before = reader.read(&mut other, &world.table, b"x").expect("reads");
        writer.put(&world.table, b"x", b"12").expect("writes again");
        drop(writer.commit());
        let after = reader.read(&mut other, &world.table, b"x").expect("reads");
        assert_eq!(before, after, "a read repeats");
        assert_ne!(before.as_deref(), Some(&b"11"[..]));
    }
}

#[test]
fn no_update_is_lost() {
    for reader in READERS {
        let world = World::new();
        let (mut first, mut second) = (world.db.begin(), world.db.begin());
        reader.read(&mut first, &world.table, b"x").expect("reads");
        reader.read(&mut second, &world.table, b"x").expect("reads");
        let one = first.put(&world.table, b"x", b"11").and_then(|()| first.commit());
        let two = second.put(&world.table, b"x", b"12").and_then(|()| second.commit());
        assert!(is_conflict(&one) || is_conflict(&two), "both read 10 and both wrote");
        assert!(one.is_ok() || two.is_ok(), "one of them gets through");
    }
}

#[test]
fn reads_of_one_transaction_belong_together() {
    for reader in READERS {
        let world = World::new();
        let mut tx = world.db.begin();
        let x = reader.read(&mut tx, &world.table, b"x").expect("reads");
        world
            .db
            .transact(|other| {
                other.put(&world.table, b"x", b"11")?;
                other.put(&world.table, b"y", b"21")
            })
            .expect("commits");
        let y = reader.read(&mut tx, &world.table, b"y").expect("reads");
        assert_eq!((x.as_deref(), y.as_deref()), (Some(&b"10"[..]), Some(&b"20"[..])));
        tx.commit().expect("a reader commits");
    }
}

#[test]
fn write_skew_is_impossible() {
    for reader in READERS {
        let world = World::new();
        let (mut first, mut second) = (world.db.begin(), world.db.begin());
        for tx in [&mut first, &mut second] {
            reader.read(tx, &world.table, b"x").expect("reads");
            reader.read(tx, &world.table, b"y").expect("reads");
        }
        let one = first.put(&world.table, b"x", b"0").and_then(|()| first.commit());
        let two = second.put(&world.table, b"y", b"0").and_then(|()| second.commit());
        assert!(is_conflict(&one) != is_conflict(&two), "exactly one commits");
    }
}

#[test]
fn a_phantom_by_insert_is_impossible() {
    for order in [[0, 1], [1, 0]] {
        let world = World::new();
        let mut transactions = [world.db.begin(), world.db.begin()];
        for tx in &mut transactions {
            assert_eq!(keys(tx, &world.table).expect("scans").len(), 2);
        }
        let mut outcomes = Vec::new();
        let mut transactions = transactions.map(Some);
        for index in order {
            let mut tx = transactions[index].take().expect("each once");
            let key = [b'a' + index as u8];
            outcomes.push(tx.put(&world.table, &key, b"new").and_then(|()| tx.commit()));
        }
        assert_eq!(outcomes.iter().filter(|outcome| is_conflict(outcome)).count(), 1, "exactly one commits");
    }
}

#[test]
fn a_phantom_by_delete_is_impossible() {
    let world = World::new();
    let (mut first, mut second) = (world.db.begin(), world.db.begin());
    // Each deletes one of two records, provided that both are there.
    assert_eq!(keys(&mut first, &world.table).expect("scans").len(), 2);
    assert_eq!(keys(&mut second, &world.table).expect("scans").len(), 2);
    let one = first.delete(&world.table, b"x").and_then(|()| first.commit());
    let two = second.delete(&world.table, b"y").and_then(|()| second.commit());
    assert!(is_conflict(&one) != is_conflict(&two), "exactly one commits");
    let left = world.db.transact(|tx| keys(tx, &world.table)).expect("scans");
    assert_eq!(left.len(), 1);
}

#[test]
fn an_absent_key_that_was_read_is_protected() {
    for reader in READERS {
        let world = World::new();
        let (mut first, mut second) = (world.db.begin(), world.db.begin());
        assert_eq!(reader.read(&mut first, &world.table, b"p").expect("reads"), None);
        assert_eq!(reader.read(&mut second, &world.table, b"q").expect("reads"), None);
        let one = first.put(&world.table, b"q", b"1").and_then(|()| first.commit());
        let two = second.put(&world.table, b"p", b"1").and_then(|()| second.commit());
        assert!(is_conflict(&one) != is_conflict(&two), "exactly one commits");
    }
}

#[test]
fn a_read_only_transaction_never_sees_half_of_another() {
    // Fekete's read-only anomaly: two writers and a reader whose view fits no serial order under snapshot isolation.
    let world = World::new();
    let mut deposit = world.db.begin();
    let mut withdraw = world.db.begin();
    withdraw.get(&world.table, b"x").expect("reads");
    withdraw.get(&world.table, b"y").expect("reads");
    deposit.get(&world.table, b"y").expect("reads");
    let deposited = deposit.put(&world.table, b"y", b"40").and_then(|()| deposit.commit());
    let mut report = world.db.begin();
    let seen =
        (report.get(&world.table, b"x").expect("reads"), report.get(&world.table, b"y").expect("reads"));
    let reported = report.commit();
    let withdrawn = withdraw.put(&world.table, b"x", b"-11").and_then(|()| withdraw.commit());
    if deposited.is_ok() && reported.is_ok() && seen.1.as_deref() == Some(b"40") {
        // The report puts the deposit first; the withdrawal read the balance before it, so it must not commit.
        assert!(is_conflict(&withdrawn));
    }
}

#[test]
fn a_transaction_sees_its_own_writes_in_scans_both_ways() {
    let world = World::new();
    let mut tx = world.db.begin();
    tx.put(&world.table, b"w", b"1").expect("writes");
    tx.delete(&world.table, b"x").expect("deletes");
    tx.put(&world.table, b"y", b"21").expect("writes");
    let forward: Vec<_> =
        tx.scan(&world.table, ..).expect("scans").collect::<Result<_, _>>().expect("no error");
    assert_eq!(forward, [(b"w".to_vec(), b"1".to_vec()), (b"y".to_vec(), b"21".to_vec())]);
    let mut backward: Vec<_> =
        tx.scan(&world.table, ..).expect("scans").rev().collect::<Result<_, _>>().expect("no error");
    backward.reverse();
    assert_eq!(forward, backward);
    tx.commit().expect("commits");
}

#[test]
fn a_conflict_names_table_key_cause_and_timestamps() {
    let world = World::new();
    let (mut first, mut second) = (world.db.begin(), world.db.begin());
    first.put(&world.table, b"x", b"11").expect("writes");
    let Err(Error::Conflict(conflict)) = second.put(&world.table, b"x", b"12") else {
        panic!("two uncommitted writes on one key");
    };
    assert_eq!(conflict.table, "t");
    assert_eq!(conflict.place, deuteron::ConflictPlace::Key(b"x".to_vec()));
    assert_eq!(conflict.cause, deuteron::ConflictCause::WriteWrite);
    assert_eq!((conflict.own, conflict.other), (second.timestamp(), Some(first.timestamp())));
    assert!(matches!(second.get(&world.table, b"y"), Err(Error::Aborted)), "the loser is over");
    first.commit().expect("the winner commits");
}

/// Write skew, where the record under which the later reader had left its timestamp is long gone (rule R12).
#[test]
fn a_read_counts_even_if_its_record_was_evicted() {
    let World { db, table } = World::new();
    let others: Vec<_> = (0..600).map(|number| format!("other/{number:03}").into_bytes()).collect();
    for key in &others {
        db.transact(|tx| tx.put(&table, key, &[7; 100])).expect("commits");
    }
    let evictions = || {
        let counters = db.stats().counters;
        counters.into_iter().find_map(|(name, count)| (name == "tc.evictions").then_some(count))
    };
    let read_others = || {
        let before = evictions().expect("is counted");
        // Twice, as what was used since it was last looked at is spared once.
        for key in others.iter().chain(&others) {
            db.transact(|tx| tx.get(&table, key)).expect("reads");
            db.step().expect("works");
        }
        let evicted = evictions().expect("is counted") - before;
        assert!(evicted > others.len() as u64, "{evicted} records were evicted");
    };
    while db.step().expect("works") {}
    read_others();
    // Several, as a read of another key may stand in for one of them (R13).
    let skewed: Vec<_> = (0..40).map(|number| format!("skewed/{number:02}").into_bytes()).collect();
    let mut earlier: Vec<_> = skewed.iter().map(|_| db.begin()).collect();
    for early in &mut earlier {
        assert!(early.get(&table, b"x").expect("reads").is_some());
    }
    let mut late = db.begin();
    for key in &skewed {
        assert!(late.get(&table, key).expect("reads").is_none());
    }
    late.put(&table, b"x", b"late").expect("writes");
    late.commit().expect("commits");
    read_others();
    for (key, mut early) in skewed.iter().zip(earlier) {
        let wrote = early.put(&table, key, b"early").and_then(|()| early.commit());
        assert!(is_conflict(&wrote), "{}: {wrote:?}", key.escape_ascii());
    }
}
