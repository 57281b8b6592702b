//! [`Checker`]: takes transactions one by one and keeps of each what counts, in columns; the answer comes at the end.
//!
//! Memory is some 100 bytes for each operation and the longest state of each list, however many transactions read it. Time
//! is linear in the operations and in the keys that range reads cover, apart from sorting.

use crate::cycles;
use crate::graph::{Edge, EdgeKind, Edges, Graph};
use crate::report::{Findings, Words};
use crate::{HistoryError, Kind, Level, Operation, Outcome, Report, Seen, Transaction, Value, lists};
use crate::{outcomes, read_lines, registers};
use foldhash::fast::FixedState;
use foldhash::{HashMap, HashMapExt};
use std::hash::BuildHasher;
use std::io::BufRead;
use std::sync::Arc;

/// The most operations; edges keep the number of one beside their kind.
const OPERATIONS_MAX: usize = 1 << 28;

/// Texts of values that are kept for the report.
const TEXTS_MAX: usize = 1 << 16;

/// Transactions that contradict themselves that are kept.
const CONTRADICTIONS_MAX: usize = 1 << 12;

/// The value of a key that is not there.
pub const NOTHING: u64 = u64::MAX;

/// A transaction without its operations. Its reads and writes lie from these on to those of the next.
#[derive(Clone, Debug)]
pub struct Entry {
    pub line: u64,
    pub begin: u64,
    /// The maximum if the outcome is unknown: it is over before nobody.
    pub end: u64,
    pub outcome: Outcome,
    pub reads_from: u32,
    pub writes_from: u32,
}

/// What a read found, of what others had written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A register's value, or [`NOTHING`]; as a list: an empty one.
    Value(u64),
    /// So many elements.
    Elements(u32),
}

#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub transaction: u32,
    pub key: u32,
    pub found: Found,
    /// A range was read, and the key was not in it.
    pub by_range: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Write {
    pub transaction: u32,
    pub key: u32,
    /// The value, [`NOTHING`] for a delete, or the element appended.
    pub value: u64,
    /// Not written over by the same transaction.
    pub last: bool,
}

/// A range that was read.
struct RangeRead {
    transaction: u32,
    from: String,
    to: String,
    /// The keys that were found, or that the transaction had written itself; sorted.
    accounted: Vec<u32>,
}

/// The longest state of a list that was read.
#[derive(Clone, Debug, Default)]
pub struct Longest {
    pub elements: Vec<u64>,
    /// Who read it.
    pub reader: u32,
}

/// What is done to a key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uses {
    pub appended: bool,
    pub written: bool,
    pub changed: bool,
}

impl Uses {
    /// Whether its versions can be told apart.
    pub fn is_checked(self) -> bool {
        !(self.changed || self.appended && self.written)
    }
}

/// What a transaction has done to a key so far.
#[derive(Default)]
struct Own {
    appended: Vec<u64>,
    /// The value, and the number of the write.
    written: Option<(u64, u32)>,
    found: Option<Found>,
}

/// Everything that was taken in.
#[derive(Default)]
pub struct History {
    pub entries: Vec<Entry>,
    pub reads: Vec<Read>,
    pub writes: Vec<Write>,
    pub names: Vec<Arc<str>>,
    pub uses: Vec<Uses>,
    pub longest: Vec<Longest>,
    /// Lists read by transactions of unknown outcome: the read, and what it found.
    pub undecided: Vec<(u32, Vec<u64>)>,
    pub texts: HashMap<u64, Box<str>>,
    /// Whether the transaction happened, as far as can be told in its favour.
    pub happened: Vec<bool>,
}

impl History {
    /// The numbers of a transaction's writes.
    pub fn writes_of(&self, transaction: u32) -> std::ops::Range<usize> {
        let next = self.entries.get(transaction as usize + 1);
        let end = next.map_or(self.writes.len(), |next| next.writes_from as usize);
        self.entries[transaction as usize].writes_from as usize..end
    }
}

/// Takes a history in, and says what is wrong with it.
///
/// ```
/// use deuteron_history::{Checker, Kind, Level, Operation, Outcome, Seen, Transaction};
/// let mut checker = Checker::new(Level::StrictSerializable);
/// let mut number = 0;
/// let mut one = |operation| {
///     number += 1;
///     let (begin, end) = (10 * number, 10 * number + 5);
///     let operations = vec![operation];
///     let transaction = Transaction { process: 1, begin, end, outcome: Outcome::Committed, operations };
///     checker.add(number, &transaction)
/// };
/// one(Operation::Append("x".into(), 1.into()))?;
/// one(Operation::Read("x".into(), Seen::Nothing))?;
/// let report = checker.finish();
/// assert_eq!(report.anomalies[0].name(), "G-single-realtime");
/// # Ok::<(), deuteron_history::HistoryError>(())
/// ```
pub struct Checker {
    level: Level,
    history: History,
    keys: HashMap<Arc<str>, u32>,
    ranges: Vec<RangeRead>,
    findings: Findings,
    own: HashMap<u32, Own>,
    /// Transactions that did not see their own writes, and what they did. It counts if they happened.
    contradictions: Vec<(u32, String)>,
}

/// Checks a history.
///
/// # Errors
/// [`HistoryError`]: that it cannot be read. What is wrong with its transactions is in the report.
///
/// ```
/// use deuteron_history::{Level, check};
/// let report = check(&b""[..], Level::StrictSerializable)?;
/// assert_eq!((report.transactions, report.anomalies.len()), (0, 0));
/// # Ok::<(), deuteron_history::HistoryError>(())
/// ```
pub fn check(source: impl BufRead, level: Level) -> Result<Report, HistoryError> {
    let mut checker = Checker::new(level);
    let cut = read_lines(source, |line, _, transaction| checker.add(line, &transaction))?;
    Ok(Report { cut, ..checker.finish() })
}

impl Checker {
    /// An empty history, to be held against `level`.
    ///
    /// ```
    /// let checker = deuteron_history::Checker::new(deuteron_history::Level::Snapshot);
    /// assert!(checker.finish().anomalies.is_empty());
    /// ```
    pub fn new(level: Level) -> Self {
        Self {
            level,
            history: History::default(),
            keys: HashMap::new(),
            ranges: Vec::new(),
            findings: Findings::new(level),
            own: HashMap::new(),
            contradictions: Vec::new(),
        }
    }

    /// Takes one transaction in; `line` is what the report will call it.
    ///
    /// # Errors
    /// [`HistoryError::TooLarge`].
    ///
    /// ```
    /// use deuteron_history::{Checker, Level, Outcome, Transaction};
    /// let mut checker = Checker::new(Level::Serializable);
    /// let outcome = Outcome::Aborted;
    /// checker.add(1, &Transaction { process: 1, begin: 1, end: 2, outcome, operations: Vec::new() })?;
    /// assert_eq!(checker.finish().aborted, 1);
    /// # Ok::<(), deuteron_history::HistoryError>(())
    /// ```
    pub fn add(&mut self, line: u64, transaction: &Transaction) -> Result<(), HistoryError> {
        let operations = self.history.reads.len() + self.history.writes.len() + self.history.entries.len();
        if operations + transaction.operations.len() >= OPERATIONS_MAX {
            return Err(HistoryError::TooLarge { line, limit: OPERATIONS_MAX as u64 });
        }
        let &Transaction { begin, end, outcome, ref operations, .. } = transaction;
        let number = self.history.entries.len() as u32;
        self.history.entries.push(Entry {
            line,
            begin,
            end: if outcome == Outcome::Unknown { u64::MAX } else { end },
            outcome,
            reads_from: self.history.reads.len() as u32,
            writes_from: self.history.writes.len() as u32,
        });
        self.own.clear();
        for operation in operations {
            self.operation(number, outcome, operation);
        }
        Ok(())
    }

    fn operation(&mut self, number: u32, outcome: Outcome, operation: &Operation) {
        match operation {
            Operation::Append(key, element) => {
                let (key, value) = (self.key(key), self.value(element));
                self.history.uses[key as usize].appended = true;
                self.own.entry(key).or_default().appended.push(value);
                self.history.writes.push(Write { transaction: number, key, value, last: true });
            }
            Operation::Write(key, written) => {
                let key = self.key(key);
                let value = written.as_ref().map_or(NOTHING, |value| self.value(value));
                self.history.uses[key as usize].written = true;
                let place = self.history.writes.len() as u32;
                let own = self.own.entry(key).or_default();
                if let Some((_, before)) = own.written.replace((value, place)) {
                    self.history.writes[before as usize].last = false;
                }
                self.history.writes.push(Write { transaction: number, key, value, last: true });
            }
            Operation::Change(key) => {
                let key = self.key(key);
                self.history.uses[key as usize].changed = true;
            }
            // What a transaction saw that never was is of no account.
            Operation::Read(..) | Operation::Range(_) if outcome == Outcome::Aborted => {}
            Operation::Read(key, seen) => {
                let key = self.key(key);
                self.read(number, outcome, key, seen);
            }
            Operation::Range(range) => {
                let mut accounted: Vec<u32> =
                    self.own.iter().filter(|(_, own)| own.is_write()).map(|(key, _)| *key).collect();
                for (key, seen) in &range.found {
                    let key = self.key(key);
                    self.read(number, outcome, key, seen);
                    accounted.push(key);
                }
                accounted.sort_unstable();
                let found =
                    |key: u32| range.found.iter().any(|(name, _)| self.keys.get(&**name) == Some(&key));
                let within = |key: u32| {
                    let name = &*self.history.names[key as usize];
                    (range.from.as_str()..range.to.as_str()).contains(&name)
                };
                let missed =
                    self.own.iter().find(|(key, own)| own.is_there() && within(**key) && !found(**key));
                if let Some((key, _)) = missed {
                    let name = Arc::clone(&self.history.names[*key as usize]);
                    let what =
                        format!("wrote {name:?}, then read a range that holds it, and did not find it");
                    self.contradicts_itself(number, what);
                }
                accounted.dedup();
                self.ranges.push(RangeRead {
                    transaction: number,
                    from: range.from.clone(),
                    to: range.to.clone(),
                    accounted,
                });
            }
        }
    }

    /// A read: what the transaction did itself is held against it and taken away.
    fn read(&mut self, number: u32, outcome: Outcome, key: u32, seen: &Seen) {
        let mut elements: Vec<u64> = Vec::new();
        let found = match seen {
            Seen::Nothing => Found::Value(NOTHING),
            Seen::Value(value) => Found::Value(self.value(value)),
            Seen::List(list) => {
                elements.extend(list.iter().map(|element| self.value(element)));
                Found::Elements(list.len() as u32)
            }
        };
        let own = self.own.entry(key).or_default();
        let own_written = own.written.map(|(value, _)| value);
        let mut agrees = own_written.is_none_or(|value| found == Found::Value(value));
        let mut found = found;
        if !own.appended.is_empty() {
            agrees &= elements.ends_with(&own.appended);
            elements.truncate(elements.len().saturating_sub(own.appended.len()));
            found = Found::Elements(elements.len() as u32);
        }
        let found_before = own.found.replace(found);
        if !agrees {
            let name = Arc::clone(&self.history.names[key as usize]);
            let what = format!("read {name:?} after it had written it, and did not see what it had written");
            self.contradicts_itself(number, what);
        }
        if !agrees || own_written.is_some() || found_before == Some(found) {
            return;
        }
        let place = self.history.reads.len() as u32;
        self.history.reads.push(Read { transaction: number, key, found, by_range: false });
        if let Found::Elements(_) = found {
            match outcome {
                Outcome::Unknown => self.history.undecided.push((place, elements)),
                _ => lists::extend(&mut self.history, key, number, &elements, &mut self.findings),
            }
        }
    }

    fn contradicts_itself(&mut self, number: u32, what: String) {
        if self.contradictions.len() < CONTRADICTIONS_MAX {
            self.contradictions.push((number, what));
        }
    }

    /// What is wrong with the history.
    ///
    /// ```
    /// use deuteron_history::{Checker, Level};
    /// assert_eq!(Checker::new(Level::Serializable).finish().level, Level::Serializable);
    /// ```
    pub fn finish(self) -> Report {
        let Self { level, mut history, keys, ranges, mut findings, contradictions, .. } = self;
        let writes_by_key = ByKey::of(history.names.len(), history.writes.iter().map(|write| write.key));
        let writes_by_key = writes_by_key.sorted_by(|write| history.writes[*write as usize].value);
        outcomes::decide(&mut history, &writes_by_key, &mut findings);
        for (number, what) in
            contradictions.into_iter().filter(|(number, _)| history.happened[*number as usize])
        {
            let line = history.entries[number as usize].line;
            findings.add(Kind::Internal, false, vec![line], || vec![format!("T{line} {what}")]);
        }
        let reads = history.reads.len() as u64;
        add_what_was_not_found(&mut history, keys, &ranges);
        let reads_by_key = ByKey::of(history.names.len(), history.reads.iter().map(|read| read.key));
        let mut edges = Edges::new(history.entries.len());
        let (mut unresolved, mut unchecked) = (0, 0);
        for key in 0..history.names.len() {
            let (writes, reads) = (writes_by_key.get(key), reads_by_key.get(key));
            let uses = history.uses[key];
            if !uses.is_checked() {
                unchecked += 1;
            } else if uses.appended || !uses.written && !history.longest[key].elements.is_empty() {
                unresolved += lists::edges(&history, key, writes, reads, &mut edges, &mut findings);
            } else {
                unresolved += registers::edges(&history, level, writes, reads, &mut edges, &mut findings);
            }
        }
        drop((writes_by_key, reads_by_key));
        if level < Level::Snapshot {
            edges.retain(|edge| !matches!(edge.kind(), EdgeKind::ReadWrite | EdgeKind::RangeWrite));
        }
        let dependencies = edges.len() as u64;
        let graph = match level {
            Level::StrictSerializable => Graph::in_real_time(edges, &history),
            _ => Graph::of(edges),
        };
        let words = Words::new(&history);
        let components = cycles::find(&graph, level, |cycle: &[Edge], real_time| {
            let kind = cycles::classify(cycle, &history);
            let lines = cycle.iter().map(|edge| history.entries[edge.from as usize].line).collect();
            findings.add(kind, real_time, lines, || words.steps(cycle));
        });
        let count =
            |wanted: Outcome| history.entries.iter().filter(|entry| entry.outcome == wanted).count() as u64;
        let happened = |(entry, happened): &(&Entry, &bool)| **happened && entry.outcome == Outcome::Unknown;
        let (anomalies, counts) = findings.take();
        Report {
            level,
            transactions: history.entries.len() as u64,
            committed: count(Outcome::Committed),
            aborted: count(Outcome::Aborted),
            unknown: count(Outcome::Unknown),
            unknown_happened: history.entries.iter().zip(&history.happened).filter(happened).count() as u64,
            reads,
            writes: history.writes.len() as u64,
            ranges: ranges.len() as u64,
            keys: history.names.len() as u64,
            keys_unchecked: unchecked,
            reads_unresolved: unresolved,
            dependencies,
            components,
            cut: false,
            counts,
            anomalies,
        }
    }

    fn key(&mut self, name: &str) -> u32 {
        if let Some(&key) = self.keys.get(name) {
            return key;
        }
        let (name, key) = (Arc::<str>::from(name), self.history.names.len() as u32);
        self.keys.insert(Arc::clone(&name), key);
        self.history.names.push(name);
        self.history.uses.push(Uses::default());
        self.history.longest.push(Longest::default());
        key
    }

    /// A value as a number: an integer as it is; a text by its hash, which collides once in 2³¹ histories of ten
    /// million values or so.
    fn value(&mut self, value: &Value) -> u64 {
        match value {
            Value::Integer(integer) => *integer & (u64::MAX >> 1),
            Value::Text(text) => {
                let hash = FixedState::with_seed(0).hash_one(text.as_str()) | 1 << 63;
                let number = hash.min(NOTHING - 1);
                if self.history.texts.len() < TEXTS_MAX {
                    self.history.texts.entry(number).or_insert_with(|| text.as_str().into());
                }
                number
            }
        }
    }
}

impl Own {
    fn is_write(&self) -> bool {
        self.written.is_some() || !self.appended.is_empty()
    }

    fn is_there(&self) -> bool {
        self.written.is_some_and(|(value, _)| value != NOTHING) || !self.appended.is_empty()
    }
}

/// Range reads of the transactions that happened, as reads of the keys that they did not find.
fn add_what_was_not_found(history: &mut History, keys: HashMap<Arc<str>, u32>, ranges: &[RangeRead]) {
    if ranges.is_empty() {
        return;
    }
    let mut keys: Vec<(Arc<str>, u32)> = keys.into_iter().collect();
    keys.sort_unstable();
    for range in ranges.iter().filter(|range| history.happened[range.transaction as usize]) {
        let first = keys.partition_point(|(name, _)| **name < *range.from);
        for (name, key) in &keys[first..] {
            if **name >= *range.to {
                break;
            }
            if range.accounted.binary_search(key).is_err() {
                let (transaction, found) = (range.transaction, Found::Value(NOTHING));
                history.reads.push(Read { transaction, key: *key, found, by_range: true });
            }
        }
    }
}

/// Numbers of reads or writes, by key.
pub struct ByKey {
    starts: Vec<u32>,
    items: Vec<u32>,
}

impl ByKey {
    fn of(keys: usize, of_items: impl Iterator<Item = u32> + Clone) -> Self {
        let mut starts = vec![0; keys + 1];
        for key in of_items.clone() {
            starts[key as usize + 1] += 1;
        }
        for key in 0..keys {
            starts[key + 1] += starts[key];
        }
        let mut next = starts.clone();
        let mut items = vec![0; starts[keys] as usize];
        for (item, key) in (0..).zip(of_items) {
            items[next[key as usize] as usize] = item;
            next[key as usize] += 1;
        }
        Self { starts, items }
    }

    fn sorted_by(mut self, value: impl Fn(&u32) -> u64) -> Self {
        for key in 0..self.starts.len() - 1 {
            let range = self.starts[key] as usize..self.starts[key + 1] as usize;
            self.items[range].sort_by_key(&value);
        }
        self
    }

    pub fn get(&self, key: usize) -> &[u32] {
        &self.items[self.starts[key] as usize..self.starts[key + 1] as usize]
    }
}

/// The writes of `value` among those of its key, which are sorted by it.
pub fn writers<'w>(history: &History, writes: &'w [u32], value: u64) -> &'w [u32] {
    let of = |write: &u32| history.writes[*write as usize].value;
    let from = writes.partition_point(|write| of(write) < value);
    let count = writes[from..].partition_point(|write| of(write) == value);
    &writes[from..from + count]
}
