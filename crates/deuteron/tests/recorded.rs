//! Recorded histories: what transactions did is checked by somebody who knows nothing of the engine, at each isolation level, and what
//! a level allows is found in histories of that level.

use deuteron::device::MemoryDirectory;
use deuteron::{Db, Error, Isolation, Options, Savepoint, Table, Transaction, TransactionOptions};
use deuteron_history::{Level, Report, check};
use std::path::Path;
use std::sync::Arc;

/// A small generator of numbers (xorshift), the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

struct Open {
    transaction: Transaction,
    savepoint: Option<Savepoint>,
    left: u64,
}

struct World {
    db: Db,
    registers: Table,
    lists: Table,
    random: Random,
    /// The next value, written once.
    next: u64,
    /// Below serializability a transaction that appends does not conflict with one whose append it has not seen: it comes after
    /// what it did not see, which no snapshot allows. So lists are read for update first there.
    appends_unread: bool,
}

impl World {
    fn key(&mut self) -> [u8; 2] {
        // A window that moves, so that records are missing, come, and are left alone again.
        ((self.next / 16 + self.random.below(6)) as u16).to_be_bytes()
    }

    /// A random operation of a transaction, on one of few keys.
    fn step(&mut self, open: &mut Open) -> Result<(), Error> {
        let (key, tx) = (self.key(), &mut open.transaction);
        self.next += 1;
        let value = format!("v{}", self.next);
        let value = value.as_bytes();
        match self.random.below(16) {
            0..3 => drop(tx.get(&self.registers, &key)?),
            3 => drop(tx.get_many(&self.lists, &[key, [0, 0]])?),
            4 | 5 => tx.put(&self.registers, &key, value)?,
            6 => {
                tx.get(&self.registers, &key)?;
                tx.put(&self.registers, &key, value)?;
            }
            7 => {
                tx.get_for_update(&self.registers, &key)?;
                tx.put(&self.registers, &key, value)?;
            }
            8 => drop(tx.compare_and_set(&self.registers, &key, None, Some(value))?),
            9 | 10 => {
                if !self.appends_unread {
                    tx.get_for_update(&self.lists, &key)?;
                }
                tx.append(&self.lists, &key, &self.next.to_le_bytes())?;
            }
            11 => drop(tx.get(&self.lists, &key)?),
            12 => {
                let upper = (u16::from_be_bytes(key) + self.random.below(8) as u16).to_be_bytes();
                let limit = self.random.below(8) as usize;
                let mut scan = tx.scan(&self.registers, key..=upper)?;
                for _ in 0..limit {
                    let entry = if self.random.below(2) == 0 { scan.next() } else { scan.next_back() };
                    entry.transpose()?;
                }
            }
            13 if self.random.below(4) == 0 => {
                tx.delete_range(&self.registers, key..(u16::from_be_bytes(key) + 1).to_be_bytes())?;
            }
            13 => tx.delete(&self.registers, &key)?,
            14 => open.savepoint = Some(tx.savepoint()?),
            _ => {
                if let Some(savepoint) = &open.savepoint {
                    tx.rollback_to(savepoint)?;
                }
            }
        }
        Ok(())
    }
}

/// Runs so many transactions at a level, several open at a time, taking turns at random, and records them.
fn run(isolation: Isolation, transactions: u64, seed: u64, path: &Path) {
    let options = Options::tiny_for_tests().record_history(path);
    let db = options.open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let (registers, lists) = (db.table("registers").expect("creates"), db.table("lists").expect("creates"));
    let appends_unread = isolation == Isolation::Serializable;
    let mut world = World { db, registers, lists, random: Random(seed | 1), next: 0, appends_unread };
    let mut open: Vec<Open> = Vec::new();
    let mut begun = 0;
    while begun < transactions || !open.is_empty() {
        if open.len() < 4 && begun < transactions {
            let read_only = isolation == Isolation::Serializable && world.random.below(10) == 0;
            let options = TransactionOptions::new().isolation(isolation).read_only(read_only);
            let transaction = world.db.begin_with(options).expect("is open");
            open.push(Open { transaction, savepoint: None, left: 1 + world.random.below(6) });
            begun += 1;
        }
        let turn = world.random.below(open.len() as u64) as usize;
        let mut mine = open.swap_remove(turn);
        let outcome = match mine.left {
            0 if world.random.below(12) == 0 => {
                mine.transaction.abort();
                continue;
            }
            0 => mine.transaction.commit_async().map(drop),
            _ => {
                mine.left -= 1;
                let outcome = world.step(&mut mine);
                match outcome {
                    // One that was declared to read only goes on without its write.
                    Ok(()) | Err(Error::ReadOnly) => {
                        open.push(mine);
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
        };
        if let Err(error) = outcome {
            assert!(error.is_retryable(), "{error}");
        }
    }
    world.db.close().expect("closes, and all is recorded");
}

fn checked(path: &Path, level: Level) -> Report {
    let file = std::fs::File::open(path).expect("was recorded");
    check(std::io::BufReader::new(file), level).expect("can be read")
}

fn names(report: &Report) -> Vec<&str> {
    report.counts.keys().map(String::as_str).collect()
}

/// So many times as much as `DEUTERON_EFFORT` says.
fn effort() -> u64 {
    std::env::var("DEUTERON_EFFORT").ok().and_then(|effort| effort.parse().ok()).unwrap_or(1)
}

#[test]
fn serializable_transactions_have_no_anomaly() {
    let scratch = tempfile::tempdir().expect("scratch");
    for seed in 1..=effort() {
        let path = scratch.path().join(seed.to_string());
        run(Isolation::Serializable, 2_000, seed, &path);
        let report = checked(&path, Level::StrictSerializable);
        assert!(report.anomalies.is_empty(), "seed {seed}: {:#?}", report.anomalies);
        assert_eq!((report.transactions, report.keys_unchecked, report.cut), (2_000, 0, false));
        assert!(report.committed > 700 && report.aborted > 100, "{report:?}");
        assert!(report.ranges > 300 && report.dependencies > 3_000, "{report:?}");
    }
}

#[test]
fn write_skew_and_phantoms_under_snapshot_isolation_are_found_and_nothing_graver() {
    let scratch = tempfile::tempdir().expect("scratch");
    let path = scratch.path().join("history");
    run(Isolation::Snapshot, 1_500, 2, &path);
    let report = checked(&path, Level::Snapshot);
    assert!(report.anomalies.is_empty(), "{:#?}", report.anomalies);
    let found = checked(&path, Level::Serializable);
    assert!(names(&found).contains(&"G2-item") && names(&found).contains(&"G2"), "{:?}", found.counts);
    let words = found.anomalies[0].to_string();
    assert!(words.contains(" comes before T") && words.contains("registers/"), "{words}");
}

#[test]
fn lost_updates_and_read_skew_under_read_committed_are_found_and_nothing_graver() {
    let scratch = tempfile::tempdir().expect("scratch");
    let path = scratch.path().join("history");
    run(Isolation::ReadCommitted, 1_500, 1, &path);
    let report = checked(&path, Level::ReadCommitted);
    assert!(report.anomalies.is_empty(), "{:#?}", report.anomalies);
    let found = checked(&path, Level::Snapshot);
    assert!(
        names(&found).contains(&"lost-update") && names(&found).contains(&"G-single"),
        "{:?}",
        found.counts
    );
}

#[test]
fn a_history_is_never_written_over() {
    let scratch = tempfile::tempdir().expect("scratch");
    let path = scratch.path().join("history");
    std::fs::write(&path, "mine").expect("writes");
    let opened = Options::tiny_for_tests().record_history(&path).open(scratch.path().join("a.db"));
    assert!(matches!(opened, Err(Error::Exists { .. })));
    assert_eq!(std::fs::read(&path).expect("is there"), b"mine");
}

#[test]
fn what_cannot_be_told_is_left_out_and_the_past_is_not_recorded() {
    let scratch = tempfile::tempdir().expect("scratch");
    let path = scratch.path().join("history");
    let options = Options::tiny_for_tests().retention(std::time::Duration::from_secs(60));
    let db = options.record_history(&path).open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = db.table("sums").expect("creates");
    let then = db.timestamp();
    db.transact(|tx| tx.add(&table, b"n", 1)).expect("adds");
    db.transact(|tx| tx.add_and_get(&table, b"n", 1)).expect("adds");
    db.transact(|tx| tx.append(&table, b"l", b"one")).expect("appends");
    db.transact(|tx| tx.append(&table, b"l", b"three")).expect("appends");
    let mut past = db.begin_with(TransactionOptions::new().as_of(then)).expect("is kept");
    assert_eq!(past.get(&table, b"n").expect("reads"), None);
    past.commit().expect("commits");
    db.close().expect("closes");
    let report = checked(&path, Level::StrictSerializable);
    assert_eq!((report.transactions, report.keys_unchecked), (4, 2), "{report:?}");
    assert!(report.anomalies.is_empty());
}
