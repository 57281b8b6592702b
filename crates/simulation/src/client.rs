//! A client: one transaction after the other, an operation a step, with notes of what it saw.

use crate::effect::{Effect, Value, key_bytes, value_bytes};
use crate::features::Feature;
use crate::history::{Entry, Generation, Key, Note, Observation, Place, Scanned, Writes};
use crate::world::{Due, Halt, World, problem};
use deuteron::{
    Cancellation, Durability, Error, Isolation, RetryPolicy, Savepoint, Table, Timestamp, Transaction,
    TransactionOptions,
};
use std::ops::Bound;
use std::time::{Duration, Instant};

/// How a transaction is begun, and where its notes belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Serializable,
    Snapshot,
    ReadCommitted,
    ReadOnly,
    Past,
}

impl Kind {
    fn only_reads(self) -> bool {
        matches!(self, Kind::ReadOnly | Kind::Past)
    }
}

/// Notes of a transaction that is under way.
pub struct Notes {
    pub kind: Kind,
    began: u64,
    begin: Timestamp,
    durability: Durability,
    deadline: Option<Instant>,
    observations: Vec<Observation>,
    writes: Writes,
    /// With what was written by then.
    savepoints: Vec<(Savepoint, Writes)>,
    /// Something was added or appended.
    changes: bool,
}

/// A transaction that is under way.
pub struct Open {
    transaction: Transaction,
    notes: Notes,
}

/// What becomes of a transaction after an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    GoesOn,
    IsOver,
}

impl World<'_> {
    /// The client `index` does something.
    pub fn client_step(&mut self, index: usize) -> Result<(), Halt> {
        let Some(mut open) = self.clients[index].take() else {
            self.clients[index] = self.begin()?;
            return Ok(());
        };
        if self.once_in(8) {
            return match self.once_in(8) {
                true => {
                    open.transaction.abort();
                    Ok(())
                }
                false => self.commit(open),
            };
        }
        let outcome = self.operate(&mut open.transaction, &mut open.notes);
        if self.outcome_of(outcome, &open.notes)? == After::GoesOn {
            self.clients[index] = Some(open);
        }
        Ok(())
    }

    /// Says what an operation's error means for its transaction.
    fn outcome_of(&mut self, outcome: Result<(), Halt>, notes: &Notes) -> Result<After, Halt> {
        let error = match outcome {
            Ok(()) => return Ok(After::GoesOn),
            Err(Halt::Error(error)) => error,
            Err(other) => return Err(other),
        };
        self.saw_bytes(error.to_string().as_bytes());
        if error.is_retryable() {
            if self.is_snapshot_too_old(&error) && self.counter("tc.horizon_forced") == 0 {
                return problem(format!(
                    "what it reads has been overwritten, and nobody allowed that: {error}"
                ));
            }
            if notes.kind.only_reads()
                && !matches!(error, Error::MemoryExhausted)
                && !self.is_snapshot_too_old(&error)
            {
                return problem(format!("a transaction that only reads met another: {error}"));
            }
            self.report.conflicts += 1;
            return Ok(After::IsOver);
        }
        self.report.refusals += 1;
        let fits = match &error {
            Error::DeadlineExceeded => {
                let now = deuteron::device::Directory::now(&self.disk.directory());
                notes.deadline.is_some_and(|deadline| now >= deadline)
            }
            Error::Change { .. } => notes.changes,
            Error::ValueSize { .. } => {
                self.has(Feature::LongValues) || self.has(Feature::WriterLimit) || notes.changes
            }
            Error::TransactionTooLarge { .. } => true,
            Error::TableDropped { .. } => return Ok(After::GoesOn),
            _ => return Err(Halt::Error(error)),
        };
        match fits {
            true => Ok(After::IsOver),
            false => problem(format!("an error without its cause: {error}")),
        }
    }

    fn is_snapshot_too_old(&self, error: &Error) -> bool {
        matches!(error, Error::Conflict(conflict) if conflict.cause == deuteron::ConflictCause::SnapshotTooOld)
    }

    /// What the database has counted since it was opened.
    fn counter(&self, name: &str) -> u64 {
        let counters = self.db().stats().counters;
        counters.iter().find(|(known, _)| known == name).expect("a counter of this name").1
    }

    fn begin(&mut self) -> Result<Option<Open>, Halt> {
        self.report.transactions += 1;
        let kind = match self.random.below(10) {
            0 if self.has(Feature::ReadOnly) => Kind::ReadOnly,
            1 | 2 if self.has(Feature::Snapshot) => Kind::Snapshot,
            3 if self.has(Feature::ReadCommitted) => Kind::ReadCommitted,
            4 if self.has(Feature::Past) && self.db().retained_from().is_some() => Kind::Past,
            _ => Kind::Serializable,
        };
        let mut options = TransactionOptions::new();
        options = match kind {
            Kind::Serializable => options,
            Kind::Snapshot => options.isolation(Isolation::Snapshot),
            Kind::ReadCommitted => options.isolation(Isolation::ReadCommitted),
            Kind::ReadOnly => options.read_only(true),
            Kind::Past => options.as_of(self.past()),
        };
        let durability = match self.random.below(4) {
            0 if self.has(Feature::Delayed) => Durability::Delayed(Duration::from_millis(5)),
            1 if self.has(Feature::NoDurability) => Durability::None,
            _ => Durability::Sync,
        };
        options = options.durability(durability);
        let mut deadline = None;
        if self.has(Feature::Deadlines) && self.once_in(4) {
            let directory = self.disk.directory();
            let at = deuteron::device::Directory::now(&directory)
                + Duration::from_micros(self.random.below(20_000));
            options = options.deadline(at);
            deadline = Some(at);
        }
        let began = if kind == Kind::Past { 0 } else { self.event() };
        let transaction = match self.db().begin_with(options) {
            Ok(transaction) => transaction,
            Err(Error::NotRetained { .. }) if kind == Kind::Past => {
                self.report.refusals += 1;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let begin = transaction.timestamp();
        self.saw(begin.0);
        let notes = Notes {
            kind,
            began,
            begin,
            durability,
            deadline,
            observations: Vec::new(),
            writes: Writes::new(),
            savepoints: Vec::new(),
            changes: false,
        };
        Ok(Some(Open { transaction, notes }))
    }

    /// A timestamp in the past, or a little in the future.
    fn past(&mut self) -> Timestamp {
        let now = self.db().timestamp().0;
        let from = self.db().retained_from().map_or(now, |from| from.0);
        let span = now.saturating_sub(from.saturating_sub(8)) + 8;
        let at = Timestamp((now + 4).saturating_sub(self.random.below(span)));
        let blurred = self.uncertain.iter().find(|(begin, end)| *begin <= at && at < *end);
        blurred.map_or(at, |(_, end)| *end)
    }

    fn commit(&mut self, open: Open) -> Result<(), Halt> {
        let Open { transaction, notes } = open;
        let cancelled = self.has(Feature::Cancellation) && self.once_in(8);
        if cancelled && self.random.coin() {
            let cancellation = Cancellation::new();
            cancellation.cancel();
            self.report.refusals += 1;
            return match transaction.commit_unless(&cancellation) {
                Err(Error::Cancelled) => Ok(()),
                other => problem(format!("a cancelled commit returned {other:?}")),
            };
        }
        match transaction.commit_async() {
            Ok(ticket) => {
                let ended = if notes.kind == Kind::Past { u64::MAX } else { self.event() };
                let at = ticket.timestamp();
                self.saw(at.0);
                let Notes { kind, durability, writes, observations, .. } = &notes;
                if *kind != Kind::Past && !(writes.is_empty() && observations.is_empty()) {
                    self.newest = self.newest.max(at);
                }
                let entry = match writes.is_empty() {
                    true => 0,
                    false => self.committed(Entry::Writes(writes.clone()))?,
                };
                let now = deuteron::device::Directory::now(&self.disk.directory());
                let by = match durability {
                    Durability::Delayed(window) => Some(now + *window),
                    _ => None,
                };
                let waits = *durability == Durability::Sync && self.random.coin();
                self.note(notes, at, ended);
                if waits {
                    ticket.wait()?;
                    self.history.acknowledge(entry);
                } else if !self.once_in(4) {
                    self.due.push(Due { entry, ticket, by });
                }
                Ok(())
            }
            Err(error) => {
                let doubtful =
                    !error.is_retryable() && !matches!(error, Error::Change { .. } | Error::DeadlineExceeded);
                let after = self.outcome_of(Err(Halt::Error(error)), &notes);
                if doubtful && !notes.writes.is_empty() && matches!(after, Err(Halt::Error(_))) {
                    self.history.doubtful(Entry::Writes(notes.writes));
                }
                after.map(drop)
            }
        }
    }

    /// A transaction has committed.
    fn note(&mut self, notes: Notes, at: Timestamp, ended: u64) {
        let Notes { kind, began, begin, observations, writes, .. } = notes;
        self.report.reads += observations.len() as u64;
        let place = if kind.only_reads() { Place::After } else { Place::At };
        match kind {
            Kind::Snapshot => {
                let reads = Note {
                    at: begin,
                    place: Place::Before,
                    began,
                    ended,
                    observations,
                    writes: Writes::new(),
                };
                self.history.note(reads);
                self.history.note(Note { at, place, began, ended, observations: Vec::new(), writes });
            }
            _ => self.history.note(Note { at, place, began, ended, observations, writes }),
        }
    }

    /// A whole transaction without others in between, by the calls that retry and wait by themselves.
    pub fn whole(&mut self) -> Result<(), Halt> {
        if self.clients.iter().any(Option::is_some) {
            return Ok(());
        }
        let Some(open) = self.begin()? else { return Ok(()) };
        let mut notes = open.notes;
        if notes.kind == Kind::Past || notes.deadline.is_some() {
            return Ok(());
        }
        let operations = 1 + self.random.below(6);
        let by_transact = self.random.coin() && notes.kind == Kind::Serializable;
        let outcome = if by_transact {
            open.transaction.abort();
            let policy = RetryPolicy { attempts_max: 3, ..RetryPolicy::default() };
            let options = TransactionOptions::new().durability(notes.durability);
            let db = self.db().clone();
            let mut halt = None;
            let outcome = db.transact_with(options, policy, |transaction| {
                (notes.begin, notes.changes) = (transaction.timestamp(), false);
                notes.observations.clear();
                notes.writes.clear();
                notes.savepoints.clear();
                for _ in 0..operations {
                    match self.operate(transaction, &mut notes) {
                        Ok(()) => {}
                        Err(Halt::Error(error)) => return Err(error),
                        Err(other) => {
                            halt = Some(other);
                            return Err(Error::Aborted);
                        }
                    }
                }
                Ok(())
            });
            if let Some(halt) = halt {
                return Err(halt);
            }
            outcome
        } else {
            let mut transaction = open.transaction;
            for _ in 0..operations {
                let outcome = self.operate(&mut transaction, &mut notes);
                if self.outcome_of(outcome, &notes)? == After::IsOver {
                    return Ok(());
                }
            }
            match self.random.coin() {
                true => transaction.commit(),
                false => transaction.commit_unless(&Cancellation::new()),
            }
        };
        match outcome {
            Ok(()) => {
                let ended = self.event();
                let at = self.db().timestamp();
                self.uncertain.push((notes.begin, at));
                let durable = notes.durability == Durability::Sync;
                if !notes.writes.is_empty() {
                    let entry = self.committed(Entry::Writes(notes.writes.clone()))?;
                    if durable {
                        self.history.acknowledge(entry);
                    }
                }
                self.note(notes, at, ended);
                Ok(())
            }
            Err(error) => {
                let after = self.outcome_of(Err(Halt::Error(error)), &notes);
                if matches!(after, Err(Halt::Error(_))) && !notes.writes.is_empty() {
                    self.history.doubtful(Entry::Writes(notes.writes));
                }
                after.map(drop)
            }
        }
    }

    /// One operation of a transaction.
    fn operate(&mut self, tx: &mut Transaction, notes: &mut Notes) -> Result<(), Halt> {
        let Some((generation, table)) = self.some_table() else { return Ok(()) };
        if let Some(dropped) = self.dropped.clone()
            && self.once_in(16)
        {
            return match tx.get(&dropped, b"key") {
                Err(Error::TableDropped { .. }) => Ok(()),
                other => problem(format!("a table that was dropped answered {other:?}")),
            };
        }
        let key = self.key(generation);
        if notes.kind.only_reads() && self.once_in(8) {
            return match tx.put(&table, &key.1, b"value") {
                Err(Error::ReadOnly) => Ok(()),
                Err(error) if matches!(error, Error::DeadlineExceeded | Error::Aborted) => Err(error.into()),
                other => problem(format!("a write of a transaction that only reads returned {other:?}")),
            };
        }
        let choice = self.random.below(if notes.kind.only_reads() { 6 } else { 24 });
        match choice {
            0 | 1 => self.get(tx, notes, &table, key)?,
            2 if self.has(Feature::GetMany) => self.get_many(tx, notes, &table, generation)?,
            3 if self.has(Feature::Prefetch) => {
                let other = self.key(generation);
                tx.prefetch(&table, &[&key.1], &[&other.1]);
            }
            3..6 if self.has(Feature::Scan) => self.scan(tx, notes, &table, generation)?,
            0..6 => self.get(tx, notes, &table, key)?,
            6..8 if self.has(Feature::ForUpdate) => {
                let found = tx.get_for_update(&table, &key.1)?.map(Value::from);
                self.observe(notes, key.clone(), found.clone())?;
                notes.writes.insert(key.clone(), Effect::Set(found));
                if self.random.coin() {
                    self.put(tx, notes, &table, key)?;
                }
            }
            8..11 if self.has(Feature::Delete) => {
                tx.delete(&table, &key.1)?;
                notes.writes.insert(key, Effect::Set(None));
            }
            11 if self.has(Feature::DeleteRange) => self.delete_range(tx, notes, &table, generation)?,
            12 | 13 if self.has(Feature::Add) => self.add(tx, notes, &table, key)?,
            14 if self.has(Feature::Append) => {
                self.number += 1;
                let bytes = self.number.to_le_bytes()[..1 + self.random.below(8) as usize].to_vec();
                notes.changes = true;
                tx.append(&table, &key.1, &bytes)?;
                change(notes, key, Effect::Append(bytes));
            }
            15 if self.has(Feature::CompareAndSet) => self.compare_and_set(tx, notes, &table, key)?,
            16 if self.has(Feature::Savepoints) => {
                notes.savepoints.push((tx.savepoint()?, notes.writes.clone()))
            }
            17 if self.has(Feature::Savepoints) && !notes.savepoints.is_empty() => {
                let kept = 1 + self.random.below(notes.savepoints.len() as u64) as usize;
                notes.savepoints.truncate(kept);
                if let Some((savepoint, then)) = notes.savepoints.last() {
                    tx.rollback_to(savepoint)?;
                    notes.writes = then.clone();
                }
            }
            18 => {
                self.get(tx, notes, &table, key.clone())?;
                self.put(tx, notes, &table, key)?;
            }
            _ => self.put(tx, notes, &table, key)?,
        }
        Ok(())
    }

    fn some_table(&mut self) -> Option<(Generation, Table)> {
        let index = self.random.below(self.slots.len() as u64) as usize;
        self.slots[index].table.clone()
    }

    /// Some key; the first few more often than the rest.
    fn key(&mut self, table: Generation) -> Key {
        let keys = u64::from(self.configuration.keys);
        let among = if self.random.coin() { keys } else { keys.div_ceil(16) };
        let mut key = self.random.below(among) as u32;
        // Integers and lists are changed under keys of their own, unless wrong values are wanted.
        if self.has(Feature::WrongValues) && self.once_in(8) {
            key += 1;
        }
        (table, key_bytes(self.configuration.shape, key))
    }

    /// A value that fits the key: every other key has integers, if anything is added.
    fn value(&mut self) -> Value {
        self.number += 1;
        let length = match self.random.below(16) {
            0 => 0,
            1 if self.has(Feature::LongValues) => {
                1 + self.random.below(self.configuration.effective_sizes().dc.value_bytes_max as u64)
            }
            2 | 3 => self.configuration.value_bytes as u64,
            _ => 8 + self.random.below(self.configuration.value_bytes as u64),
        };
        value_bytes(self.number, length as usize)
    }

    fn get(&mut self, tx: &mut Transaction, notes: &mut Notes, table: &Table, key: Key) -> Result<(), Halt> {
        #[allow(clippy::redundant_closure)] // The path is of one lifetime only.
        let found = match self.random.coin() {
            true => tx.get(table, &key.1)?.map(Value::from),
            false => tx.get_with(table, &key.1, |bytes| Value::from(bytes))?,
        };
        self.observe(notes, key, found)
    }

    fn get_many(
        &mut self,
        tx: &mut Transaction,
        notes: &mut Notes,
        table: &Table,
        generation: Generation,
    ) -> Result<(), Halt> {
        let keys: Vec<Key> = (0..1 + self.random.below(8)).map(|_| self.key(generation)).collect();
        let bytes: Vec<&[u8]> = keys.iter().map(|key| &key.1[..]).collect();
        let found = tx.get_many(table, &bytes)?;
        if found.len() != keys.len() {
            return problem(format!("{} keys were read, {} values returned", keys.len(), found.len()));
        }
        for (key, found) in keys.into_iter().zip(found) {
            self.observe(notes, key, found.map(Value::from))?;
        }
        Ok(())
    }

    /// Checks a read at once, or notes it for the replay.
    fn observe(&mut self, notes: &mut Notes, key: Key, found: Option<Value>) -> Result<(), Halt> {
        match &found {
            Some(value) => self.saw_bytes(&value.clone()),
            None => self.saw(0),
        }
        let own = notes.writes.get(&key).cloned();
        self.notice(notes, Observation::Read { key, own, found })
    }

    fn notice(&mut self, notes: &mut Notes, observation: Observation) -> Result<(), Halt> {
        if notes.kind == Kind::ReadCommitted {
            self.report.reads += 1;
            return observation.check(self.history.present()).map_err(Halt::Problem);
        }
        notes.observations.push(observation);
        Ok(())
    }

    fn put(&mut self, tx: &mut Transaction, notes: &mut Notes, table: &Table, key: Key) -> Result<(), Halt> {
        let value = self.value();
        tx.put(table, &key.1, &value)?;
        notes.writes.insert(key, Effect::Set(Some(value)));
        Ok(())
    }

    /// Adds to a key that has an integer, or (mostly) makes it one.
    fn add(&mut self, tx: &mut Transaction, notes: &mut Notes, table: &Table, key: Key) -> Result<(), Halt> {
        let delta = self.random.below(1000) as i64 - 500;
        notes.changes = true;
        let wrong = self.has(Feature::WrongValues) && self.once_in(4);
        let fits = self.history.present().records.get(&key).is_none_or(|value| value.len() == 8);
        if !fits && !wrong {
            let value: Value = delta.to_le_bytes().as_slice().into();
            tx.put(table, &key.1, &value)?;
            notes.writes.insert(key, Effect::Set(Some(value)));
            return Ok(());
        }
        if self.once_in(3) {
            let sum = tx.add_and_get(table, &key.1, delta)?;
            change(notes, key.clone(), Effect::Add(delta));
            return self.observe(notes, key, Some(sum.to_le_bytes().as_slice().into()));
        }
        tx.add(table, &key.1, delta)?;
        change(notes, key, Effect::Add(delta));
        Ok(())
    }

    fn compare_and_set(
        &mut self,
        tx: &mut Transaction,
        notes: &mut Notes,
        table: &Table,
        key: Key,
    ) -> Result<(), Halt> {
        let own = notes.writes.get(&key).cloned();
        let there = self.history.present().records.get(&key);
        let likely = own.as_ref().map_or(Ok(there.cloned()), |own| own.on(there)).unwrap_or_default();
        let expected = if self.once_in(4) { None } else { likely };
        let new = if self.once_in(4) { None } else { Some(self.value()) };
        let equal = tx.compare_and_set(table, &key.1, expected.as_deref(), new.as_deref())?;
        self.saw(u64::from(equal));
        self.notice(notes, Observation::Compared { key: key.clone(), own, expected, equal })?;
        if equal {
            notes.writes.insert(key, Effect::Set(new));
        }
        Ok(())
    }

    fn range(&mut self, generation: Generation) -> (Vec<u8>, Option<Vec<u8>>) {
        let lower = if self.once_in(4) { Vec::new() } else { self.key(generation).1 };
        let upper = if self.once_in(4) { None } else { Some(self.key(generation).1) };
        (lower, upper)
    }

    fn scan(
        &mut self,
        tx: &mut Transaction,
        notes: &mut Notes,
        table: &Table,
        generation: Generation,
    ) -> Result<(), Halt> {
        let (lower, upper) = self.range(generation);
        let limit = if self.random.coin() { usize::MAX } else { 1 + self.random.below(6) as usize };
        let reverse = self.random.coin();
        let own = notes.writes.clone();
        let mut scanned = Scanned { table: generation, lower, upper, reverse, limit, own, found: Vec::new() };
        let bounds = bounds(&scanned.lower, scanned.upper.as_deref());
        let mut scan = tx.scan(table, bounds)?;
        if limit.is_multiple_of(2) {
            // What is not wanted is neither read nor protected.
            scan = scan.limit(limit);
        }
        while scanned.found.len() < limit {
            let entry = if reverse { scan.next_back() } else { scan.next() };
            let Some(entry) = entry else { break };
            let (key, value) = entry?;
            self.saw_bytes(&key);
            self.saw_bytes(&value);
            scanned.found.push((key, value.into()));
            // What others do between the batches must not show.
            if notes.kind != Kind::ReadCommitted && self.depth == 0 && self.once_in(6) {
                self.depth += 1;
                let others = self.step_within();
                self.depth -= 1;
                others?;
            }
        }
        self.notice(notes, Observation::Scanned(scanned))
    }

    fn delete_range(
        &mut self,
        tx: &mut Transaction,
        notes: &mut Notes,
        table: &Table,
        generation: Generation,
    ) -> Result<(), Halt> {
        let (lower, upper) = self.range(generation);
        let found = tx.scan(table, bounds(&lower, upper.as_deref()))?.collect::<Result<Vec<_>, _>>()?;
        let found: Vec<_> = found.into_iter().map(|(key, value)| (key, Value::from(value))).collect();
        let keys: Vec<_> = found.iter().map(|(key, _)| key.clone()).collect();
        let own = notes.writes.clone();
        let (table_of, limit, bound) = (generation, usize::MAX, upper.clone());
        let scanned = Scanned {
            table: table_of,
            lower: lower.clone(),
            upper: bound,
            reverse: false,
            limit,
            own,
            found,
        };
        self.notice(notes, Observation::Scanned(scanned))?;
        // A part of them may be deleted before it fails; the transaction is over then.
        let deleted = tx.delete_range(table, bounds(&lower, upper.as_deref()))?;
        if deleted != keys.len() as u64 {
            return problem(format!("a range of {} records had {deleted} to delete", keys.len()));
        }
        notes.writes.extend(keys.into_iter().map(|key| ((generation, key), Effect::Set(None))));
        Ok(())
    }
}

fn change(notes: &mut Notes, key: Key, effect: Effect) {
    let effect = match notes.writes.remove(&key) {
        Some(before) => before.then(effect),
        None => effect,
    };
    notes.writes.insert(key, effect);
}

fn bounds<'b>(lower: &'b [u8], upper: Option<&'b [u8]>) -> (Bound<&'b [u8]>, Bound<&'b [u8]>) {
    let lower = if lower.is_empty() { Bound::Unbounded } else { Bound::Included(lower) };
    (lower, upper.map_or(Bound::Unbounded, Bound::Excluded))
}
