//! What should be in the database: a map, the commits in their order, and notes of what transactions saw.
//!
//! Three things are known of each run of the machine. The *entries* are the commits in the order in which they were made, which
//! is the order of the log: a crash leaves some first part of them, with all that were acknowledged. The *present* is what they make
//! together. The *notes* say what each transaction read and at which timestamp it committed: replayed in the order of
//! timestamps, every read must return what the map has at its place, and the order must agree with real time.

use crate::effect::{Effect, Value, shown};
use deuteron::Timestamp;
use std::collections::{BTreeMap, VecDeque};

/// Which table: a name that is used again means another one.
pub type Generation = u32;
/// A key of a table.
pub type Key = (Generation, Vec<u8>);
/// What a transaction did, by key.
pub type Writes = BTreeMap<Key, Effect>;
/// What is found in a database: tables by name.
pub type Found = BTreeMap<String, BTreeMap<Vec<u8>, Value>>;

/// What there is.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The tables.
    pub names: BTreeMap<String, Generation>,
    /// Their records.
    pub records: BTreeMap<Key, Value>,
}

/// One commit.
#[derive(Clone, Debug)]
pub enum Entry {
    /// Of a transaction.
    Writes(Writes),
    /// A table was created, with these records if it was loaded.
    Create(String, Generation, BTreeMap<Vec<u8>, Value>),
    /// A table was dropped.
    Drop(String),
}

impl State {
    /// Applies a commit.
    fn apply(&mut self, entry: &Entry) -> Result<(), String> {
        match entry {
            Entry::Writes(writes) => return self.write(writes),
            Entry::Create(name, generation, records) => {
                self.names.insert(name.clone(), *generation);
                self.records
                    .extend(records.iter().map(|(key, value)| ((*generation, key.clone()), value.clone())));
            }
            Entry::Drop(name) => drop(self.names.remove(name)),
        }
        Ok(())
    }

    fn write(&mut self, writes: &Writes) -> Result<(), String> {
        for (key, effect) in writes {
            let after = match effect.on(self.records.get(key)) {
                // What is changed in a table that has been dropped counts from nothing (R24), and nobody sees it.
                Err(_) if !self.has(key.0) => None,
                after => after?,
            };
            match after {
                Some(value) => self.records.insert(key.clone(), value),
                None => self.records.remove(key),
            };
        }
        Ok(())
    }

    /// Whether the table has not been dropped.
    fn has(&self, generation: Generation) -> bool {
        self.names.values().any(|named| *named == generation)
    }

    /// The records of a table from `lower` on and below `upper`.
    fn range(&self, table: Generation, lower: &[u8], upper: Option<&[u8]>) -> BTreeMap<Vec<u8>, Value> {
        let end = upper.map_or((table + 1, Vec::new()), |upper| (table, upper.to_vec()));
        let start = (table, lower.to_vec());
        if start >= end {
            return BTreeMap::new();
        }
        self.records.range(start..end).map(|((_, key), value)| (key.clone(), value.clone())).collect()
    }

    /// Whether this is what was found.
    pub fn is(&self, found: &Found) -> bool {
        self.names.len() == found.len()
            && self.names.iter().all(|(name, generation)| {
                let Some(table) = found.get(name) else { return false };
                let start = (*generation, Vec::new());
                let there = self.records.range(start..(*generation + 1, Vec::new()));
                table.iter().eq(there.map(|((_, key), value)| (key, value)))
            })
    }

    /// Where the first difference to what was found is.
    pub fn difference(&self, found: &Found) -> String {
        let (here, there): (Vec<_>, Vec<_>) = (self.names.keys().collect(), found.keys().collect());
        if here != there {
            return format!("tables {here:?} expected, {there:?} found");
        }
        for (name, generation) in &self.names {
            let (expected, found) = (self.range(*generation, &[], None), &found[name]);
            for key in expected.keys().chain(found.keys()) {
                let (one, other) = (expected.get(key), found.get(key));
                if one != other {
                    let key = key.escape_ascii();
                    return format!("{name} \"{key}\": {} expected, {} found", shown(one), shown(other));
                }
            }
        }
        "none".into()
    }
}

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
    /// The timestamp.
    pub at: Timestamp,
    /// The place among those of the same.
    pub place: Place,
    /// In the order of all begins and ends; 0 and the maximum for the past, which is in no real time.
    pub began: u64,
    /// As `began`.
    pub ended: u64,
    /// What it saw.
    pub observations: Vec<Observation>,
    /// What it did.
    pub writes: Writes,
}

/// A read and what it returned; what the transaction had written by then lies over what was there.
#[derive(Clone, Debug)]
pub enum Observation {
    /// Of a key.
    Read { key: Key, own: Option<Effect>, found: Option<Value> },
    /// Whether a key had a value.
    Compared { key: Key, own: Option<Effect>, expected: Option<Value>, equal: bool },
    /// Of a range.
    Scanned(Scanned),
}

/// A scan of a table from `lower` on and below `upper`.
#[derive(Clone, Debug)]
pub struct Scanned {
    pub table: Generation,
    pub lower: Vec<u8>,
    pub upper: Option<Vec<u8>>,
    pub reverse: bool,
    pub limit: usize,
    pub own: Writes,
    pub found: Vec<(Vec<u8>, Value)>,
}

impl Observation {
    /// What is wrong with it, if this was the state.
    pub fn check(&self, state: &State) -> Result<(), String> {
        let value_of = |key: &Key, own: &Option<Effect>| {
            let there = state.records.get(key);
            own.as_ref().map_or(Ok(there.cloned()), |own| own.on(there))
        };
        match self {
            Observation::Read { key, own, found } => {
                let wanted = value_of(key, own)?;
                if wanted != *found {
                    let (key, table) = (key.1.escape_ascii(), key.0);
                    let (found, wanted) = (shown(found.as_ref()), shown(wanted.as_ref()));
                    return Err(format!("read of \"{key}\" in table {table} returned {found}, not {wanted}"));
                }
            }
            Observation::Compared { key, own, expected, equal } => {
                let there = value_of(key, own)?;
                if (there == *expected) != *equal {
                    let (there, expected) = (shown(there.as_ref()), shown(expected.as_ref()));
                    return Err(format!("comparing {there} with {expected} returned {equal}"));
                }
            }
            Observation::Scanned(scanned) => scanned.check(state)?,
        }
        Ok(())
    }
}

impl Scanned {
    fn check(&self, state: &State) -> Result<(), String> {
        let mut wanted = state.range(self.table, &self.lower, self.upper.as_deref());
        for ((table, key), effect) in &self.own {
            if *table == self.table
                && *key >= self.lower
                && self.upper.as_ref().is_none_or(|upper| key < upper)
            {
                match effect.on(wanted.get(key))? {
                    Some(value) => wanted.insert(key.clone(), value),
                    None => wanted.remove(key),
                };
            }
        }
        let mut wanted: Vec<_> = wanted.into_iter().collect();
        if self.reverse {
            wanted.reverse();
        }
        wanted.truncate(self.limit);
        if wanted == self.found {
            return Ok(());
        }
        let at = wanted.iter().zip(&self.found).take_while(|(one, other)| one == other).count();
        let entry = |entries: &[(Vec<u8>, Value)]| match entries.get(at) {
            Some((key, value)) => format!("\"{}\" {}", key.escape_ascii(), shown(Some(value))),
            None => "its end".into(),
        };
        let (found, expected) = (entry(&self.found), entry(&wanted));
        Err(format!("scan of table {} found {found} as entry {at}, not {expected}", self.table))
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct History {
    base: State,
    present: State,
    entries: Vec<Entry>,
    acknowledged: usize,
    notes: Vec<Note>,
    /// When tables were loaded.
    loaded: BTreeMap<Generation, Timestamp>,
}

impl History {
    /// What there is now.
    pub fn present(&self) -> &State {
        &self.present
    }

    /// A commit has been made; its number, from 1.
    pub fn committed(&mut self, entry: Entry) -> Result<usize, String> {
        self.present.apply(&entry)?;
        self.entries.push(entry);
        Ok(self.entries.len())
    }

    /// A commit has failed so that it may have been made or not. Nothing more can happen before the next opening.
    pub fn doubtful(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Commit `number`, and so all before it, is durable.
    pub fn acknowledge(&mut self, number: usize) {
        self.acknowledged = self.acknowledged.max(number);
    }

    /// A table was loaded, at this time or a little before, and since whoever begins sees it.
    pub fn loaded(&mut self, table: Generation, at: Timestamp) {
        self.loaded.insert(table, at);
    }

    /// All commits are durable.
    pub fn acknowledge_all(&mut self) {
        self.acknowledged = self.entries.len();
    }

    /// A transaction has ended.
    pub fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// Replays all notes in the order of timestamps.
    pub fn replay(&mut self) -> Result<(), String> {
        let mut notes = std::mem::take(&mut self.notes);
        // Readers that share a timestamp see the same, and go in the order of their begins.
        notes.sort_by_key(|note| (note.at, note.place, note.began));
        let mut state = self.base.clone();
        // Whoever has seen a table that was dropped comes before that; and whoever has begun before it was loaded finds nothing in it.
        let mut loads = VecDeque::new();
        for entry in &self.entries {
            match entry {
                Entry::Writes(_) => {}
                Entry::Create(name, generation, records) if self.loaded.contains_key(generation) => {
                    state.names.insert(name.clone(), *generation);
                    loads.push_back((self.loaded[generation], *generation, records));
                }
                entry => state.apply(entry)?,
            }
        }
        let mut latest_begin = 0;
        for note in &notes {
            if note.ended < latest_begin {
                return Err(format!("the place of {} contradicts real time", note.at));
            }
            latest_begin = latest_begin.max(note.began);
            while let Some((_, table, records)) = loads.pop_front_if(|(at, ..)| *at <= note.at) {
                let records = records.iter().map(|(key, value)| ((table, key.clone()), value.clone()));
                state.records.extend(records);
            }
            for observation in &note.observations {
                observation.check(&state).map_err(|problem| format!("at {}: {problem}", note.at))?;
            }
            state.write(&note.writes).map_err(|problem| format!("at {}: {problem}", note.at))?;
        }
        Ok(())
    }

    /// Goes on from what was found after a restart: it must be what a first part of the commits makes, with those that were
    /// acknowledged in it, or with any number of them if `trusted` is not. How many acknowledged commits were lost.
    pub fn restart(&mut self, found: &Found, trusted: bool) -> Result<usize, String> {
        let mut state = std::mem::take(&mut self.base);
        let mut number = 0;
        let least = if trusted { self.acknowledged } else { 0 };
        let mut first = None;
        let found_at = loop {
            if number >= least {
                if state.is(found) {
                    break Some(number);
                }
                first.get_or_insert_with(|| state.difference(found));
            }
            let Some(entry) = self.entries.get(number) else { break None };
            // One in doubt that cannot have been made was not made.
            if state.apply(entry).is_err() {
                break None;
            }
            number += 1;
        };
        let all = self.entries.len();
        let Some(number) = found_at else {
            let (first, last) = (first.unwrap_or_default(), state.difference(found));
            return Err(format!(
                "what was found is not the state after any of {least} to {all} commits; differs after {least}: {first}; after {all}: {last}"
            ));
        };
        let lost = self.acknowledged.saturating_sub(number);
        *self = History { base: state.clone(), present: state, ..History::default() };
        Ok(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(number: u8) -> Value {
        [number].as_slice().into()
    }

    fn writes(key: u8, number: u8) -> Writes {
        Writes::from([((1, vec![key]), Effect::Set(Some(value(number))))])
    }

    fn history() -> History {
        let mut history = History::default();
        history.committed(Entry::Create("one".into(), 1, BTreeMap::new())).unwrap();
        for number in 1..4 {
            history.committed(Entry::Writes(writes(7, number))).unwrap();
        }
        history
    }

    fn found(number: u8) -> Found {
        Found::from([("one".into(), BTreeMap::from([(vec![7], value(number))]))])
    }

    #[test]
    fn a_first_part_of_the_commits_survives() {
        let mut history = history();
        history.acknowledge(2);
        history.doubtful(Entry::Writes(writes(7, 4)));
        assert_eq!(history.restart(&found(4), true), Ok(0));
    }

    #[test]
    fn what_is_changed_in_a_table_that_is_dropped_counts_from_nothing() {
        let add = Writes::from([((1, vec![7]), Effect::Add(1))]);
        assert!(history().committed(Entry::Writes(add.clone())).is_err(), "one byte is no integer");
        let mut history = history();
        history.committed(Entry::Drop("one".into())).unwrap();
        history.committed(Entry::Writes(add.clone())).unwrap();
        history.note(Note { writes: writes(7, 1), ..note(2, 1, 2) });
        history.note(Note { writes: add, ..note(3, 3, 4) });
        assert_eq!(history.replay(), Ok(()));
    }

    #[test]
    fn what_is_no_first_part_or_lacks_what_was_acknowledged_is_a_problem() {
        let mut one = history();
        assert!(one.restart(&found(9), true).is_err());
        let mut one = history();
        one.acknowledge(4);
        assert!(one.restart(&found(2), true).is_err());
        let mut one = history();
        one.acknowledge(4);
        assert_eq!(one.restart(&found(2), false), Ok(1), "unless nobody can know");
        assert!(history().restart(&Found::new(), true).is_ok(), "nothing was acknowledged");
    }

    fn note(at: u64, began: u64, ended: u64) -> Note {
        let (observations, writes) = (Vec::new(), Writes::new());
        Note { at: Timestamp(at), place: Place::At, began, ended, observations, writes }
    }

    fn read(number: Option<u8>) -> Observation {
        Observation::Read { key: (1, vec![7]), own: None, found: number.map(value) }
    }

    #[test]
    fn a_replay_finds_what_is_no_serial_order() {
        let replay = |notes: Vec<Note>| History { notes, ..History::default() }.replay();
        let writer = Note { writes: writes(7, 1), ..note(2, 1, 2) };
        let reader = |number| Note { observations: vec![read(number)], ..note(3, 3, 4) };
        assert!(replay(vec![reader(Some(1)), writer.clone()]).is_ok());
        assert!(replay(vec![reader(None), writer]).is_err());
        assert!(replay(vec![note(2, 7, 8), note(3, 3, 4)]).is_err(), "over before the other began");
    }

    #[test]
    fn a_scan_sees_what_is_there_under_what_is_its_own() {
        let state = State { names: BTreeMap::new(), records: BTreeMap::from([((1, vec![7]), value(1))]) };
        let scanned = |own: Writes, found: &[(Vec<u8>, Value)]| {
            let (lower, upper, found) = (vec![], None, found.to_vec());
            Scanned { table: 1, lower, upper, reverse: false, limit: 9, own, found }.check(&state).is_ok()
        };
        assert!(scanned(Writes::new(), &[(vec![7], value(1))]));
        assert!(scanned(writes(8, 2), &[(vec![7], value(1)), (vec![8], value(2))]));
        assert!(!scanned(writes(8, 2), &[(vec![7], value(1))]));
    }
}
