//! A client: random transactions, and notes of what they saw.

use super::HistoryReport;
use crate::Random;
use deuteron::{Db, Error, Isolation, Savepoint, Table, Timestamp, Transaction, TransactionOptions};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

/// A value is known by its number, from which its bytes follow.
pub type Number = u64;

/// What a transaction wrote: `None` for a delete.
pub type Writes = BTreeMap<u32, Option<Number>>;

/// Where among the transactions of one timestamp a note belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The reads of a transaction under snapshot isolation, before its writes.
    Before,
    /// A transaction at its own timestamp.
    At,
    /// A read-only transaction that shares the timestamp of a writer.
    After,
}

/// What a transaction saw and did at one timestamp.
#[derive(Clone, Debug)]
pub struct Note {
    pub at: Timestamp,
    pub place: Place,
    /// In the order of all begins and ends; 0 and the maximum for the past, which is in no real time.
    pub began: u64,
    pub ended: u64,
    pub reads: Vec<(u32, Option<Number>)>,
    pub scans: Vec<Scanned>,
    pub writes: Writes,
}

/// A scan and what it returned.
#[derive(Clone, Debug)]
pub struct Scanned {
    pub lower: u32,
    pub upper: u32,
    pub reverse: bool,
    pub limit: usize,
    /// What the transaction had written by then, which lies over what was there.
    pub own: Writes,
    pub found: Vec<(u32, Number)>,
}

/// The key of a number.
pub fn key_bytes(key: u32) -> [u8; 4] {
    key.to_be_bytes()
}

/// The number of a key.
pub fn key_of(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// The bytes of a value: 8 to 263 of them, all of which follow from the number.
pub fn value_bytes(number: Number) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize(8 + (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize, number as u8);
    bytes
}

/// The number of a value, if its bytes are those.
pub fn number_of(bytes: &[u8]) -> Option<Number> {
    let number = Number::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
    (value_bytes(number) == bytes).then_some(number)
}

/// See the [module](self).
pub struct Client<'d> {
    db: &'d Db,
    table: &'d Table,
    events: &'d AtomicU64,
    keys: u32,
    random: Random,
    /// The next value, different from those of all clients.
    next: Number,
    notes: Vec<Note>,
    /// Nobody looks further back.
    round_start: Timestamp,
    tally: HistoryReport,
}

/// How a transaction is begun, and where its notes belong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Serializable,
    Snapshot,
    ReadOnly,
    Past,
}

/// A transaction and its notes so far.
struct Attempt {
    transaction: Transaction,
    reads: Vec<(u32, Option<Number>)>,
    scans: Vec<Scanned>,
    writes: Writes,
    /// With what was written by then.
    savepoints: Vec<(Savepoint, Writes)>,
}

impl<'d> Client<'d> {
    pub fn new(
        db: &'d Db,
        table: &'d Table,
        events: &'d AtomicU64,
        keys: u32,
        seed: u64,
        thread: u32,
    ) -> Self {
        let random = Random::new(seed.wrapping_mul(1009).wrapping_add(u64::from(thread)));
        let next = u64::from(thread) << 40;
        let (notes, tally) = (Vec::new(), HistoryReport::default());
        let round_start = db.timestamp();
        Self { db, table, events, keys: keys.max(1), random, next, notes, round_start, tally }
    }

    /// The notes of the transactions since the last call; their counts go to `report`.
    pub fn take(&mut self, report: &mut HistoryReport) -> Vec<Note> {
        let tally = std::mem::take(&mut self.tally);
        report.transactions += tally.transactions;
        report.committed += tally.committed;
        report.conflicts += tally.conflicts;
        report.given_up += tally.given_up;
        report.not_retained += tally.not_retained;
        report.problems.extend(tally.problems);
        std::mem::take(&mut self.notes)
    }

    /// Runs so many transactions, none of which looks further back than `round_start`.
    pub fn run(&mut self, transactions: u64, round_start: Timestamp) -> Result<(), Error> {
        self.round_start = round_start;
        for _ in 0..transactions {
            self.tally.transactions += 1;
            match self.one() {
                Ok(()) => {}
                Err(Error::NotRetained { .. }) => self.tally.not_retained += 1,
                Err(error) if error.is_retryable() => self.tally.conflicts += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn event(&self) -> u64 {
        self.events.fetch_add(1, Ordering::SeqCst)
    }

    fn one(&mut self) -> Result<(), Error> {
        let (kind, options) = self.kind();
        let began = if kind == Kind::Past { 0 } else { self.event() };
        let transaction = self.db.begin_with(options)?;
        let begin = transaction.timestamp();
        let mut attempt = Attempt {
            transaction,
            reads: Vec::new(),
            scans: Vec::new(),
            writes: Writes::new(),
            savepoints: Vec::new(),
        };
        for _ in 0..1 + self.random.below(8) {
            self.operate(&mut attempt, matches!(kind, Kind::ReadOnly | Kind::Past))?;
        }
        if self.random.below(16) == 0 {
            self.tally.given_up += 1;
            attempt.transaction.abort();
            return Ok(());
        }
        let at = attempt.transaction.commit_async()?.timestamp();
        let ended = if kind == Kind::Past { u64::MAX } else { self.event() };
        self.tally.committed += 1;
        let Attempt { reads, scans, writes, .. } = attempt;
        let place = if matches!(kind, Kind::ReadOnly | Kind::Past) { Place::After } else { Place::At };
        let note = Note { at, place, began, ended, reads, scans, writes };
        if kind == Kind::Snapshot {
            let writes = Note { reads: Vec::new(), scans: Vec::new(), ..note.clone() };
            self.notes.push(Note { at: begin, place: Place::Before, writes: Writes::new(), ..note });
            self.notes.push(writes);
        } else {
            self.notes.push(note);
        }
        Ok(())
    }

    fn kind(&mut self) -> (Kind, TransactionOptions) {
        let options = TransactionOptions::new();
        match self.random.below(20) {
            0..3 => (Kind::ReadOnly, options.read_only(true)),
            3..6 => (Kind::Snapshot, options.isolation(Isolation::Snapshot)),
            6 if self.db.retained_from().is_some() => {
                let now = self.db.timestamp();
                let span = now.0 - self.round_start.0;
                (Kind::Past, options.as_of(Timestamp(now.0 - self.random.below(span.min(2_000) + 1))))
            }
            _ => (Kind::Serializable, options),
        }
    }

    fn key(&mut self) -> u32 {
        let among = if self.random.below(2) == 0 { self.keys } else { self.keys.div_ceil(16) };
        self.random.below(u64::from(among)) as u32
    }

    fn operate(&mut self, attempt: &mut Attempt, only_reads: bool) -> Result<(), Error> {
        let key = self.key();
        match self.random.below(if only_reads { 6 } else { 19 }) {
            0..4 => drop(self.get(attempt, key)?),
            4 => {
                // The whole table now and then.
                let width = if self.random.below(16) == 0 { u64::from(self.keys) } else { 24 };
                let upper = key.saturating_add(self.random.below(width) as u32);
                let reverse = self.random.below(2) == 0;
                self.scan(
                    attempt,
                    Scanned {
                        lower: key,
                        upper,
                        reverse,
                        limit: usize::MAX,
                        own: Writes::new(),
                        found: Vec::new(),
                    },
                )?;
            }
            5 => {
                let (reverse, limit) = (self.random.below(2) == 0, 1 + self.random.below(5) as usize);
                let (lower, upper) = if reverse { (0, key) } else { (key, self.keys) };
                self.scan(
                    attempt,
                    Scanned { lower, upper, reverse, limit, own: Writes::new(), found: Vec::new() },
                )?;
            }
            6..10 => self.put(attempt, key)?,
            10..12 => {
                self.get(attempt, key)?;
                self.put(attempt, key)?;
            }
            12 => {
                let found = attempt.transaction.get_for_update(self.table, &key_bytes(key))?;
                self.note_read(attempt, key, found.as_deref().map(number_of));
                // It counts as written.
                let number = found.as_deref().and_then(number_of);
                attempt.writes.insert(key, number);
                self.put(attempt, key)?;
            }
            13 => attempt.savepoints.push((attempt.transaction.savepoint()?, attempt.writes.clone())),
            14 if !attempt.savepoints.is_empty() => {
                let kept = 1 + self.random.below(attempt.savepoints.len() as u64) as usize;
                attempt.savepoints.truncate(kept);
                if let Some((savepoint, then)) = attempt.savepoints.last() {
                    attempt.transaction.rollback_to(savepoint)?;
                    attempt.writes = then.clone();
                }
            }
            _ => {
                attempt.transaction.delete(self.table, &key_bytes(key))?;
                attempt.writes.insert(key, None);
            }
        }
        Ok(())
    }

    fn get(&mut self, attempt: &mut Attempt, key: u32) -> Result<(), Error> {
        let found = attempt.transaction.get_with(self.table, &key_bytes(key), number_of)?;
        self.note_read(attempt, key, found);
        Ok(())
    }

    /// Notes what a read found: nothing, or bytes, and their number if they have one.
    fn note_read(&mut self, attempt: &mut Attempt, key: u32, found: Option<Option<Number>>) {
        let number = match found {
            Some(None) => {
                self.tally.problems.push(format!("key {key} has a value that nobody wrote"));
                return;
            }
            Some(number) => number,
            None => None,
        };
        match attempt.writes.get(&key) {
            Some(own) if *own != number => {
                let problem = format!("a transaction wrote {own:?} to key {key} and read {number:?}");
                self.tally.problems.push(problem);
            }
            Some(_) => {}
            None => attempt.reads.push((key, number)),
        }
    }

    fn put(&mut self, attempt: &mut Attempt, key: u32) -> Result<(), Error> {
        self.next += 1;
        attempt.transaction.put(self.table, &key_bytes(key), &value_bytes(self.next))?;
        attempt.writes.insert(key, Some(self.next));
        Ok(())
    }

    fn scan(&mut self, attempt: &mut Attempt, mut scanned: Scanned) -> Result<(), Error> {
        scanned.own = attempt.writes.clone();
        let (lower, upper) = (key_bytes(scanned.lower), key_bytes(scanned.upper));
        let scan = attempt
            .transaction
            .scan(self.table, (Bound::Included(&lower[..]), Bound::Excluded(&upper[..])))?;
        let mut take = |entry: Result<(Vec<u8>, Vec<u8>), Error>| -> Result<(), Error> {
            let (key, value) = entry?;
            match (key_of(&key), number_of(&value)) {
                (Some(key), Some(number)) => scanned.found.push((key, number)),
                _ => self.tally.problems.push(format!("a scan returned {key:?}, which nobody wrote")),
            }
            Ok(())
        };
        if scanned.reverse {
            scan.rev().take(scanned.limit).try_for_each(&mut take)?;
        } else {
            scan.take(scanned.limit).try_for_each(&mut take)?;
        }
        attempt.scans.push(scanned);
        Ok(())
    }
}
