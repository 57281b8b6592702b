//! A client: random transactions, and notes of what they saw.

use super::values::{Class, Effect, Number, class_of, key_bytes, key_of, number_of, value_bytes};
use super::{HistoryOptions, HistoryReport};
use crate::Random;
use deuteron::{Db, Error, Isolation, Savepoint, Table, Timestamp, Transaction, TransactionOptions};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a transaction did, by key.
pub type Writes = BTreeMap<u32, Effect>;

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
    pub reads: Vec<Seen>,
    pub scans: Vec<Scanned>,
    pub writes: Writes,
}

/// A read of a key and what it returned.
#[derive(Clone, Debug)]
pub struct Seen {
    pub key: u32,
    /// What the transaction had added or appended by then, which lies over what was there.
    pub own: Option<Effect>,
    pub found: Option<Number>,
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

/// See the [module](self).
pub struct Client<'d> {
    db: &'d Db,
    table: &'d Table,
    events: &'d AtomicU64,
    keys: u32,
    recorded: bool,
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
    reads: Vec<Seen>,
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
        options: &HistoryOptions,
        thread: u32,
    ) -> Self {
        let &HistoryOptions { keys, seed, recorded, .. } = options;
        let random = Random::new(seed.wrapping_mul(1009).wrapping_add(u64::from(thread)));
        let next = u64::from(thread) << 40;
        let (notes, tally) = (Vec::new(), HistoryReport::default());
        let round_start = db.timestamp();
        Self { db, table, events, keys: keys.max(1), recorded, random, next, notes, round_start, tally }
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
        if self.random.below(4) == 0 {
            self.fetch_ahead(&mut attempt);
        }
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
            _ if self.recorded => (Kind::Serializable, options),
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
        self.window() + self.random.below(u64::from(among)) as u32
    }

    /// The first key of the window, which moves by one in so many transactions.
    fn window(&self) -> u32 {
        if self.recorded { (self.events.load(Ordering::Relaxed) / 16) as u32 } else { 0 }
    }

    fn operate(&mut self, attempt: &mut Attempt, only_reads: bool) -> Result<(), Error> {
        let key = self.key();
        match self.random.below(if only_reads { 6 } else { 22 }) {
            0..3 => drop(self.get(attempt, key)?),
            3 => self.get_many(attempt, key)?,
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
                let (start, end) = (self.window(), self.window() + self.keys);
                // What comes first, or last, of all, now and then.
                let near = match self.random.below(4) {
                    0 if reverse => end,
                    0 => start,
                    _ => key,
                };
                let (lower, upper) = if reverse { (0, near) } else { (near, end) };
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
                self.note_read(attempt, key, found.as_deref().map(|bytes| number_of(key, bytes)));
                // It counts as written.
                let number = found.as_deref().and_then(|bytes| number_of(key, bytes));
                attempt.writes.insert(key, Effect::Set(number));
                self.put(attempt, key)?;
            }
            13 => attempt.savepoints.push((attempt.transaction.savepoint()?, attempt.writes.clone())),
            14 if attempt.savepoints.is_empty() => self.put(attempt, key)?,
            14 => {
                let kept = 1 + self.random.below(attempt.savepoints.len() as u64) as usize;
                attempt.savepoints.truncate(kept);
                if let Some((savepoint, then)) = attempt.savepoints.last() {
                    attempt.transaction.rollback_to(savepoint)?;
                    attempt.writes = then.clone();
                }
            }
            // What is missing after a delete does not tell whose delete it is: only some keys are deleted.
            15..19 if self.recorded && key % 4 != 2 => drop(self.get(attempt, key)?),
            15..19 => {
                attempt.transaction.delete(self.table, &key_bytes(key))?;
                attempt.writes.insert(key, Effect::Set(None));
            }
            _ => self.change(attempt, key)?,
        }
        Ok(())
    }

    /// Adds or appends to a key near this one.
    fn change(&mut self, attempt: &mut Attempt, key: u32) -> Result<(), Error> {
        let key = key / 4 * 4 + self.random.below(2) as u32;
        let effect = match class_of(key) {
            _ if key >= self.window() + self.keys => return Ok(()),
            _ if self.recorded => return self.put(attempt, key),
            Class::Plain => return self.put(attempt, key),
            Class::Integer => {
                let delta = self.random.below(1000) as i64 - 500;
                match self.random.below(8) {
                    0 => {
                        let sum = attempt.transaction.add_and_get(self.table, &key_bytes(key), delta)?;
                        self.note_change(attempt, key, Effect::Add(delta));
                        self.note_read(attempt, key, Some(Some(sum as Number)));
                        return Ok(());
                    }
                    _ => attempt.transaction.add(self.table, &key_bytes(key), delta)?,
                }
                Effect::Add(delta)
            }
            Class::List => return self.append(attempt, key),
        };
        self.note_change(attempt, key, effect);
        Ok(())
    }

    fn append(&mut self, attempt: &mut Attempt, key: u32) -> Result<(), Error> {
        self.next += 1;
        attempt.transaction.append(self.table, &key_bytes(key), &self.next.to_le_bytes())?;
        self.note_change(attempt, key, Effect::Append(vec![self.next]));
        Ok(())
    }

    fn note_change(&self, attempt: &mut Attempt, key: u32, effect: Effect) {
        let before = attempt.writes.remove(&key);
        attempt.writes.insert(
            key,
            match before {
                Some(before) => before.then(effect),
                None => effect,
            },
        );
    }

    fn get(&mut self, attempt: &mut Attempt, key: u32) -> Result<(), Error> {
        let found =
            attempt.transaction.get_with(self.table, &key_bytes(key), |bytes| number_of(key, bytes))?;
        self.note_read(attempt, key, found);
        Ok(())
    }

    /// Has some keys fetched that the transaction may read or write; some of them will be evicted, written and evicted again until it does.
    fn fetch_ahead(&mut self, attempt: &mut Attempt) {
        let [reads, writes] = [(); 2].map(|()| {
            let count = self.random.below(6);
            (0..count).map(|_| key_bytes(self.key())).collect::<Vec<_>>()
        });
        attempt.transaction.prefetch(self.table, &reads, &writes);
    }

    /// Reads several keys near this one at once.
    fn get_many(&mut self, attempt: &mut Attempt, key: u32) -> Result<(), Error> {
        let keys: Vec<u32> = (key..key.saturating_add(1 + self.random.below(6) as u32)).collect();
        let bytes: Vec<_> = keys.iter().map(|&key| key_bytes(key)).collect();
        let found = attempt.transaction.get_many(self.table, &bytes)?;
        for (key, value) in keys.into_iter().zip(found) {
            self.note_read(attempt, key, value.as_deref().map(|bytes| number_of(key, bytes)));
        }
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
            Some(Effect::Set(own)) if *own == number => {}
            Some(Effect::Set(own)) => {
                let problem = format!("a transaction wrote {own:?} to key {key} and read {number:?}");
                self.tally.problems.push(problem);
            }
            own => attempt.reads.push(Seen { key, own: own.cloned(), found: number }),
        }
    }

    fn put(&mut self, attempt: &mut Attempt, key: u32) -> Result<(), Error> {
        if self.recorded && class_of(key) == Class::List {
            return self.append(attempt, key);
        }
        self.next += 1;
        let bytes = value_bytes(key, self.next);
        attempt.transaction.put(self.table, &key_bytes(key), &bytes)?;
        attempt.writes.insert(key, Effect::Set(number_of(key, &bytes)));
        Ok(())
    }

    fn scan(&mut self, attempt: &mut Attempt, mut scanned: Scanned) -> Result<(), Error> {
        scanned.own = attempt.writes.clone();
        let (lower, upper) = (key_bytes(scanned.lower), key_bytes(scanned.upper));
        let mut scan = attempt
            .transaction
            .scan(self.table, (Bound::Included(&lower[..]), Bound::Excluded(&upper[..])))?;
        if scanned.limit.is_multiple_of(2) {
            // What is not wanted is neither read nor protected.
            scan = scan.limit(scanned.limit);
        }
        let mut take = |entry: Result<(Vec<u8>, Vec<u8>), Error>| -> Result<(), Error> {
            let (key, value) = entry?;
            match key_of(&key).and_then(|key| Some((key, number_of(key, &value)?))) {
                Some(found) => scanned.found.push(found),
                None => self.tally.problems.push(format!("a scan returned {key:?}, which nobody wrote")),
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
