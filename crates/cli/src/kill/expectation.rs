//! What a database must hold after a round, and the comparison with what it holds.

use super::script::{Access, Script, Scripted};
use super::{
    LEDGER_TABLE, MARKER_TABLES, RECORDS_TABLE, Shape, Version, ledger_key, read_value, write_value,
};
use crate::failure::Outcome;
use crate::quoting::word;
use deuteron::{Db, Table, TransactionOptions};
use deuteron_bench::Random;
use std::collections::{BTreeMap, HashMap};

/// Records in one transaction of the load.
const LOAD_BATCH: u64 = 500;

/// Point reads that are compared with the scan.
const POINT_READS: u64 = 1_000;

/// Problems that are told in words; all are counted.
const PROBLEMS_TOLD: usize = 20;

/// What the database must hold.
pub struct Expectation {
    shape: Shape,
    /// The version of each record after the last check.
    records: Vec<Version>,
    /// The rows of the ledger by their keys.
    ledger: BTreeMap<[u8; 12], Version>,
    /// The last writer of each thread.
    markers: Vec<Option<Version>>,
    /// The first transaction of each thread in the next round.
    first: Vec<u64>,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Committed writers that were replayed and compared.
    pub checked: u64,
    /// Acknowledged commits, or effects of theirs, that are missing.
    pub lost: u64,
    /// Effects of transactions that did not commit, or of one that did only in part.
    pub half_applied: u64,
    /// The first of them in words.
    pub problems: Vec<String>,
}

impl Findings {
    fn lost(&mut self, count: u64, problem: String) {
        self.lost += count;
        self.tell(problem);
    }

    fn half_applied(&mut self, problem: String) {
        self.half_applied += 1;
        self.tell(problem);
    }

    fn tell(&mut self, problem: String) {
        if self.problems.len() < PROBLEMS_TOLD {
            self.problems.push(problem);
        }
    }

    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.half_applied == 0
    }
}

/// What the transactions of a round up to the markers did.
#[derive(Default)]
struct Replay {
    /// The last write of each thread to each record.
    writes: HashMap<u64, Vec<Version>>,
    writers: u64,
}

impl Expectation {
    /// Fills an empty database and expects what was written.
    pub fn load(db: &Db, shape: &Shape, mut progress: impl FnMut(u64)) -> Outcome<Self> {
        let records = db.table(RECORDS_TABLE)?;
        for name in MARKER_TABLES.into_iter().chain([LEDGER_TABLE]) {
            db.table(name)?;
        }
        let mut value = vec![0; shape.value_bytes];
        for begin in (0..shape.records).step_by(LOAD_BATCH as usize) {
            let end = shape.records.min(begin + LOAD_BATCH);
            db.transact(|tx| {
                for key in begin..end {
                    write_value(&mut value, Version::LOADED, key);
                    tx.put(&records, &key.to_be_bytes(), &value)?;
                }
                Ok(())
            })?;
            progress(end);
        }
        db.flush()?;
        let threads = shape.threads as usize;
        Ok(Self {
            shape: shape.clone(),
            records: vec![Version::LOADED; shape.records as usize],
            ledger: BTreeMap::new(),
            markers: vec![None; threads],
            first: vec![1; threads],
        })
    }

    /// The first transaction of each thread in the next round.
    pub fn first(&self) -> &[u64] {
        &self.first
    }

    /// Compares the database with what must be there after `round`, of which each thread's writers up to
    /// `acknowledged` were acknowledged; then expects what it found.
    pub fn check(
        &mut self,
        db: &Db,
        round: u32,
        acknowledged: &[Option<u64>],
        mut progress: impl FnMut(u64),
    ) -> Outcome<Findings> {
        let mut findings = Findings::default();
        let committed = self.check_markers(db, round, acknowledged, &mut findings)?;
        let replay = self.replay(round, &committed, &mut findings);
        findings.checked = replay.writers;
        self.check_records(db, round, &replay, &committed, &mut findings, &mut progress)?;
        self.check_ledger(db, &mut findings)?;
        for (first, committed) in self.first.iter_mut().zip(&committed) {
            *first = committed.map_or(*first, |committed| committed + 1);
        }
        Ok(findings)
    }

    /// The last committed writer of each thread in this round; K1 and half of K2.
    fn check_markers(
        &mut self,
        db: &Db,
        round: u32,
        acknowledged: &[Option<u64>],
        findings: &mut Findings,
    ) -> Outcome<Vec<Option<u64>>> {
        let [left, right] = MARKER_TABLES.map(|name| db.table(name));
        let tables = [left?, right?];
        let mut committed = vec![None; self.first.len()];
        for (thread, committed) in (0u32..).zip(&mut committed) {
            let index = thread as usize;
            let [left, right] = tables.each_ref().map(|table| marker(db, table, thread));
            let (left, right) = (left?, right?);
            if left != right {
                findings.half_applied(format!("thread {thread}: its markers differ: {left:?}, {right:?}"));
            }
            // Where they differ, the later one lets the check of the records say more.
            let found = left.max(right);
            match found {
                Some(Version { round: found_round, sequence, .. })
                    if found_round == round && sequence >= self.first[index] =>
                {
                    *committed = Some(sequence);
                }
                _ if found == self.markers[index] => {}
                _ => {
                    let before = self.markers[index];
                    findings
                        .lost(1, format!("thread {thread}: the marker went from {before:?} to {found:?}"));
                }
            }
            self.markers[index] = found;
            let acknowledged = acknowledged.get(index).copied().flatten();
            if let Some(last) =
                acknowledged.filter(|&last| committed.is_none_or(|committed| committed < last))
            {
                let from = committed.map_or(self.first[index], |committed| committed + 1);
                let lost = self.writers(round, thread, from, last);
                findings.lost(
                    lost,
                    format!(
                        "thread {thread}: acknowledged up to {last}, found up to {committed:?}: {lost} lost"
                    ),
                );
            }
        }
        Ok(committed)
    }

    /// How many of these transactions write.
    fn writers(&self, round: u32, thread: u32, from: u64, to: u64) -> u64 {
        let script = Script::new(&self.shape);
        let mut scripted = Scripted::default();
        (from..=to)
            .filter(|&sequence| {
                script.transaction(Version { round, thread, sequence }, &mut scripted);
                scripted.writer
            })
            .count() as u64
    }

    /// Replays the transactions up to the committed ones, the ledger included.
    fn replay(&mut self, round: u32, committed: &[Option<u64>], findings: &mut Findings) -> Replay {
        let script = Script::new(&self.shape);
        let mut scripted = Scripted::default();
        let mut replay = Replay::default();
        for (thread, committed) in (0u32..).zip(committed) {
            let Some(committed) = *committed else { continue };
            for sequence in self.first[thread as usize]..=committed {
                let version = Version { round, thread, sequence };
                script.transaction(version, &mut scripted);
                replay.writers += u64::from(scripted.writer);
                for &access in &scripted.accesses {
                    let Access::Write(key) = access else { continue };
                    let writes = replay.writes.entry(key).or_default();
                    match writes.iter_mut().find(|write| write.thread == thread) {
                        Some(write) => *write = version,
                        None => writes.push(version),
                    }
                }
                if let Some(entry) = scripted.ledger {
                    self.ledger.insert(ledger_key(thread, sequence), version);
                    entry.deletes.map(|deletes| self.ledger.remove(&ledger_key(thread, deletes)));
                }
            }
            if !scripted.writer {
                findings.half_applied(format!(
                    "thread {thread}: transaction {committed} left a marker but writes nothing"
                ));
            }
        }
        replay
    }

    /// K2, K3 and K5 on the records.
    fn check_records(
        &mut self,
        db: &Db,
        round: u32,
        replay: &Replay,
        committed: &[Option<u64>],
        findings: &mut Findings,
        progress: &mut impl FnMut(u64),
    ) -> Outcome {
        let table = db.table(RECORDS_TABLE)?;
        let mut tx = db.begin_with(TransactionOptions::new().read_only(true))?;
        let mut next = 0;
        for entry in tx.scan(&table, ..)? {
            let (key, value) = entry?;
            let Some(number) =
                number_of(&key).filter(|&number| number < self.shape.records && number >= next)
            else {
                findings.half_applied(format!("record {} should not be there", word(&key)));
                continue;
            };
            if number > next {
                findings.lost(number - next, format!("records {next} to {} are missing", number - 1));
            }
            next = number + 1;
            let found = read_value(&value, number, self.shape.value_bytes);
            let before = self.records[number as usize];
            let allowed = replay.writes.get(&number).map_or(std::slice::from_ref(&before), Vec::as_slice);
            match found {
                Some(version) if allowed.contains(&version) => self.records[number as usize] = version,
                Some(version) => {
                    let problem = format!("record {number} holds {version:?} instead of {allowed:?}");
                    let uncommitted = version.round == round
                        && committed
                            .get(version.thread as usize)
                            .is_none_or(|&committed| Some(version.sequence) > committed);
                    if uncommitted { findings.half_applied(problem) } else { findings.lost(1, problem) }
                }
                None => {
                    findings.lost(1, format!("record {number} holds what nobody wrote: {}", word(&value)))
                }
            }
            if number.is_multiple_of(1_000) {
                progress(number);
            }
        }
        if next < self.shape.records {
            findings.lost(
                self.shape.records - next,
                format!("records {next} to {} are missing", self.shape.records - 1),
            );
        }
        let mut random = Random::new(self.shape.seed ^ u64::from(round));
        for _ in 0..POINT_READS.min(self.shape.records) {
            let number = random.below(self.shape.records);
            let value = tx.get(&table, &number.to_be_bytes())?.unwrap_or_default();
            let found = read_value(&value, number, self.shape.value_bytes);
            // What the scan found wrong has been told.
            if findings.is_clean() && found != Some(self.records[number as usize]) {
                findings.lost(1, format!("record {number}: a read finds {found:?}, a scan did not"));
            }
        }
        Ok(tx.commit()?)
    }

    /// K4.
    fn check_ledger(&mut self, db: &Db, findings: &mut Findings) -> Outcome {
        let table = db.table(LEDGER_TABLE)?;
        let mut tx = db.begin_with(TransactionOptions::new().read_only(true))?;
        let mut found = BTreeMap::new();
        for entry in tx.scan(&table, ..)? {
            let (key, value) = entry?;
            match (<[u8; 12]>::try_from(&key[..]), Version::from_bytes(&value)) {
                (Ok(key), Some(version)) if value.len() == Version::BYTES => {
                    found.insert(key, version);
                }
                _ => findings.half_applied(format!("ledger row {} is not a row", word(&key))),
            }
        }
        tx.commit()?;
        for (key, version) in &self.ledger {
            if found.get(key) != Some(version) {
                findings.lost(1, format!("ledger row {version:?} is {:?}", found.get(key)));
            }
        }
        for (key, version) in &found {
            if !self.ledger.contains_key(key) {
                findings.half_applied(format!("ledger row {version:?} should not be there"));
            }
        }
        self.ledger = found;
        Ok(())
    }
}

/// The marker of a thread in one table.
fn marker(db: &Db, table: &Table, thread: u32) -> Outcome<Option<Version>> {
    let found = db.transact(|tx| tx.get(table, &thread.to_be_bytes()))?;
    Ok(found.and_then(|bytes| Version::from_bytes(&bytes)))
}

/// The number of a record's key.
fn number_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron::Options;

    fn shape() -> Shape {
        Shape { records: 500, value_bytes: 64, threads: 2, in_flight: 4, memory: 64 << 20, seed: 5 }
    }

    /// A database in which each thread has run its first `sequences` transactions of round 1.
    fn ran(db: &Db, sequences: u64) {
        let shape = shape();
        let script = Script::new(&shape);
        let mut scripted = Scripted::default();
        let table = |name: &str| db.table(name).unwrap();
        let mut value = vec![0; shape.value_bytes];
        for sequence in 1..=sequences {
            for thread in 0..shape.threads {
                let version = Version { round: 1, thread, sequence };
                script.transaction(version, &mut scripted);
                db.transact(|tx| {
                    for &access in &scripted.accesses {
                        if let Access::Write(key) = access {
                            write_value(&mut value, version, key);
                            tx.put(&table(RECORDS_TABLE), &key.to_be_bytes(), &value)?;
                        }
                    }
                    if scripted.writer {
                        for marker in MARKER_TABLES {
                            tx.put(&table(marker), &thread.to_be_bytes(), &version.to_bytes())?;
                        }
                    }
                    if let Some(entry) = scripted.ledger {
                        tx.put(&table(LEDGER_TABLE), &ledger_key(thread, sequence), &version.to_bytes())?;
                        if let Some(deletes) = entry.deletes {
                            tx.delete(&table(LEDGER_TABLE), &ledger_key(thread, deletes))?;
                        }
                    }
                    Ok(())
                })
                .unwrap();
            }
        }
    }

    /// The last writer of each thread among the first so many transactions.
    fn last_writers(sequences: u64) -> Vec<Option<u64>> {
        let shape = shape();
        let script = Script::new(&shape);
        let mut scripted = Scripted::default();
        (0..shape.threads)
            .map(|thread| {
                (1..=sequences).rev().find(|&sequence| {
                    script.transaction(Version { round: 1, thread, sequence }, &mut scripted);
                    scripted.writer
                })
            })
            .collect()
    }

    /// Runs 700 transactions a thread, changes the database, and returns what the check says of it.
    fn found_after(damage: impl FnOnce(&Db)) -> Findings {
        let scratch = tempfile::tempdir().unwrap();
        let options = Options::new().memory(64 << 20).durability(deuteron::Durability::None);
        let db = options.open(scratch.path().join("a.db")).unwrap();
        let mut expectation = Expectation::load(&db, &shape(), |_| {}).unwrap();
        assert!(expectation.check(&db, 1, &[None, None], |_| {}).unwrap().is_clean());
        ran(&db, 700);
        damage(&db);
        let findings = expectation.check(&db, 1, &last_writers(700), |_| {}).unwrap();
        db.close().unwrap();
        findings
    }

    fn put(db: &Db, table: &str, key: &[u8], value: &[u8]) {
        let table = db.table(table).unwrap();
        db.transact(|tx| tx.put(&table, key, value)).unwrap();
    }

    /// A record that thread 0 wrote last, and the versions of its last two writes.
    fn rewritten() -> (u64, [Version; 2]) {
        let shape = shape();
        let script = Script::new(&shape);
        let mut scripted = Scripted::default();
        let mut writes: HashMap<u64, Vec<Version>> = HashMap::new();
        for sequence in 1..=700 {
            for thread in 0..2 {
                let version = Version { round: 1, thread, sequence };
                script.transaction(version, &mut scripted);
                for &access in &scripted.accesses {
                    if let Access::Write(key) = access {
                        writes.entry(key).or_default().push(version);
                    }
                }
            }
        }
        let (key, versions) = writes
            .into_iter()
            .find(|(_, writes)| writes.len() >= 2 && writes.iter().all(|write| write.thread == 0))
            .expect("some record is written twice by thread 0 only");
        (key, [versions[versions.len() - 2], versions[versions.len() - 1]])
    }

    #[test]
    fn an_undamaged_database_passes() {
        let findings = found_after(|_| {});
        assert!(findings.is_clean(), "{findings:?}");
        assert!((600..800).contains(&findings.checked), "about half of 1400 write: {findings:?}");
    }

    #[test]
    fn a_stale_record_is_a_lost_commit() {
        let (key, [stale, _]) = rewritten();
        let findings = found_after(|db| {
            let mut value = vec![0; shape().value_bytes];
            write_value(&mut value, stale, key);
            put(db, RECORDS_TABLE, &key.to_be_bytes(), &value);
        });
        assert_eq!((findings.lost, findings.half_applied), (1, 0), "{findings:?}");
    }

    #[test]
    fn a_record_of_an_uncommitted_transaction_is_half_applied() {
        let findings = found_after(|db| {
            let mut value = vec![0; shape().value_bytes];
            write_value(&mut value, Version { round: 1, thread: 0, sequence: 9_999 }, 3);
            put(db, RECORDS_TABLE, &3u64.to_be_bytes(), &value);
        });
        assert_eq!((findings.lost, findings.half_applied), (0, 1), "{findings:?}");
    }

    #[test]
    fn a_garbled_and_a_missing_record_are_lost() {
        let findings = found_after(|db| {
            put(db, RECORDS_TABLE, &3u64.to_be_bytes(), b"garbage");
            let table = db.table(RECORDS_TABLE).unwrap();
            db.transact(|tx| tx.delete(&table, &499u64.to_be_bytes())).unwrap();
            db.transact(|tx| tx.delete(&table, &100u64.to_be_bytes())).unwrap();
        });
        assert_eq!((findings.lost, findings.half_applied), (3, 0), "{findings:?}");
    }

    #[test]
    fn a_record_that_nobody_wrote_is_found() {
        let findings = found_after(|db| put(db, RECORDS_TABLE, &500u64.to_be_bytes(), b"x"));
        assert_eq!(findings.half_applied, 1, "{findings:?}");
    }

    #[test]
    fn markers_that_differ_are_half_applied() {
        let findings = found_after(|db| {
            let old = Version { round: 1, thread: 1, sequence: 1 };
            put(db, MARKER_TABLES[1], &1u32.to_be_bytes(), &old.to_bytes());
        });
        assert_eq!((findings.lost, findings.half_applied), (0, 1), "{findings:?}");
    }

    #[test]
    fn a_marker_before_the_last_acknowledged_is_a_loss() {
        let findings = found_after(|db| {
            for marker in MARKER_TABLES {
                let table = db.table(marker).unwrap();
                db.transact(|tx| tx.delete(&table, &0u32.to_be_bytes())).unwrap();
            }
        });
        assert!(findings.lost > 300, "all writers of thread 0: {}", findings.lost);
    }

    #[test]
    fn the_ledger_is_compared_row_by_row() {
        let findings = found_after(|db| {
            put(
                db,
                LEDGER_TABLE,
                &ledger_key(0, 1),
                &Version { round: 1, thread: 0, sequence: 1 }.to_bytes(),
            );
            let table = db.table(LEDGER_TABLE).unwrap();
            db.transact(|tx| {
                let (key, _) = tx.scan(&table, ..)?.next_back().expect("a row")?;
                tx.delete(&table, &key)
            })
            .unwrap();
        });
        assert_eq!((findings.lost, findings.half_applied), (1, 1), "{findings:?}");
    }
}
