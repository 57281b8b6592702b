//! [`Report`]: what is wrong with a history, in words.

use crate::checker::{Found, History, NOTHING};
use crate::graph::{Edge, EdgeKind};
use crate::{Kind, Level};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Anomalies of one kind that are kept; the others are counted.
const KEPT_MAX: usize = 8;

/// Something that the level forbids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// What kind it is.
    pub kind: Kind,
    /// Whether it takes the order of time to see it: without that, the transactions could have run so.
    pub real_time: bool,
    /// The transactions in it, by their lines; those of a cycle in its order.
    pub transactions: Vec<u64>,
    /// Why it is one: in a cycle, a sentence for each step.
    pub steps: Vec<String>,
}

impl Anomaly {
    /// The field's name for it, such as `G-single`, with `-realtime` if it violates real time only.
    ///
    /// ```
    /// use deuteron_history::{Anomaly, Kind};
    /// let anomaly = Anomaly { kind: Kind::G0, real_time: true, transactions: vec![], steps: vec![] };
    /// assert_eq!(anomaly.name(), "G0-realtime");
    /// ```
    pub fn name(&self) -> String {
        format!("{}{}", self.kind.name(), if self.real_time { "-realtime" } else { "" })
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.name(), self.kind.meaning())?;
        if self.real_time {
            write!(formatter, ", by the order of time")?;
        }
        for step in &self.steps {
            write!(formatter, "\n  {step}")?;
        }
        if self.steps.len() > 1 {
            write!(
                formatter,
                "\n  so each of them would have to come before the other{}",
                if self.steps.len() > 2 { "s" } else { "" }
            )?;
        }
        Ok(())
    }
}

/// What came of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What the history was held against.
    pub level: Level,
    /// Transactions in all.
    pub transactions: u64,
    /// Of these, committed.
    pub committed: u64,
    /// Aborted.
    pub aborted: u64,
    /// With an outcome that nobody knows.
    pub unknown: u64,
    /// Of the unknown, those whose writes were seen.
    pub unknown_happened: u64,
    /// Reads of keys, those in ranges included, of what the transaction had not written itself.
    pub reads: u64,
    /// Writes and appends.
    pub writes: u64,
    /// Reads of ranges.
    pub ranges: u64,
    /// Keys.
    pub keys: u64,
    /// Keys that say nothing: they were changed in ways that a history cannot tell.
    pub keys_unchecked: u64,
    /// Reads that say nothing: the value was written by several.
    pub reads_unresolved: u64,
    /// How often one transaction must come before another because of what they read and wrote.
    pub dependencies: u64,
    /// Groups of transactions that lie on cycles with each other.
    pub components: u64,
    /// Whether the last line was left out since it ends too early.
    pub cut: bool,
    /// By name, how many anomalies were met; of those of a cycle's kind only some are looked for.
    pub counts: BTreeMap<String, u64>,
    /// The anomalies, a few of each kind.
    pub anomalies: Vec<Anomaly>,
}

/// Anomalies as they are found.
pub struct Findings {
    level: Level,
    met: BTreeSet<(Kind, bool, Vec<u64>)>,
    counts: BTreeMap<(Kind, bool), u64>,
    anomalies: Vec<Anomaly>,
}

impl Findings {
    pub fn new(level: Level) -> Self {
        Self { level, met: BTreeSet::new(), counts: BTreeMap::new(), anomalies: Vec::new() }
    }

    /// An anomaly, unless the level allows it or it has been met.
    pub fn add(
        &mut self,
        kind: Kind,
        real_time: bool,
        transactions: Vec<u64>,
        steps: impl FnOnce() -> Vec<String>,
    ) {
        if !self.level.forbids(kind) || real_time && self.level != Level::StrictSerializable {
            return;
        }
        let count = self.counts.entry((kind, real_time)).or_default();
        if *count >= KEPT_MAX as u64 {
            *count += 1;
            return;
        }
        let mut members = transactions.clone();
        members.sort_unstable();
        if self.met.insert((kind, real_time, members)) {
            *count += 1;
            self.anomalies.push(Anomaly { kind, real_time, transactions, steps: steps() });
        }
    }

    /// The anomalies, gravest first, and how many there are by name.
    pub fn take(mut self) -> (Vec<Anomaly>, BTreeMap<String, u64>) {
        self.anomalies.sort_by_key(|anomaly| (anomaly.real_time, anomaly.kind));
        let name =
            |(kind, real_time)| Anomaly { kind, real_time, transactions: vec![], steps: vec![] }.name();
        let counts = self.counts.into_iter().filter(|(_, count)| *count > 0);
        (self.anomalies, counts.map(|(key, count)| (name(key), count)).collect())
    }
}

impl History {
    /// A value as text.
    pub fn text(&self, value: u64) -> String {
        match value {
            NOTHING => "nothing".into(),
            value if value >> 63 == 0 => value.to_string(),
            value => self
                .texts
                .get(&value)
                .map_or_else(|| format!("a text (hash {value:016x})"), |text| format!("{text:?}")),
        }
    }
}

/// Says why one transaction comes before another.
pub struct Words<'h>(&'h History);

impl<'h> Words<'h> {
    pub fn new(history: &'h History) -> Self {
        Self(history)
    }

    /// A sentence for each step of a cycle.
    pub fn steps(&self, cycle: &[Edge]) -> Vec<String> {
        cycle.iter().map(|edge| self.step(edge)).collect()
    }

    fn step(&self, edge: &Edge) -> String {
        let history = self.0;
        let [from, to] = [edge.from, edge.to].map(|number| &history.entries[number as usize]);
        let (a, b) = (format!("T{}", from.line), format!("T{}", to.line));
        let because = match edge.kind() {
            EdgeKind::WriteWrite => {
                let write = history.writes[edge.cause() as usize];
                let name = &history.names[write.key as usize];
                let (before, after) = (self.written(edge.from, write.key), history.text(write.value));
                let verb = if history.uses[write.key as usize].appended { "appended" } else { "wrote" };
                format!("{a} {verb} {before} to {name:?}, and {b} {verb} {after} after it")
            }
            EdgeKind::WriteRead => {
                let read = history.reads[edge.cause() as usize];
                let name = &history.names[read.key as usize];
                format!("{b} read {name:?} = {}, which {a} had written", self.found(read.key, read.found))
            }
            EdgeKind::ReadWrite | EdgeKind::RangeWrite => {
                let read = history.reads[edge.cause() as usize];
                let (name, value) = (&history.names[read.key as usize], self.written(edge.to, read.key));
                match edge.kind() {
                    EdgeKind::RangeWrite => {
                        format!(
                            "{a} read a range and did not find {name:?} in it, and {b} wrote {value} there"
                        )
                    }
                    _ => {
                        let found = self.found(read.key, read.found);
                        format!("{a} read {name:?} = {found}, and {b} wrote {value} after that")
                    }
                }
            }
            EdgeKind::RealTime | EdgeKind::Free => {
                let (end, begin) = (from.end, to.begin);
                return format!("{a} comes before {b}: {a} had ended at {end} when {b} began at {begin}");
            }
        };
        let how = if edge.is_timed() { " (by the order of time)" } else { "" };
        format!("{a} comes before {b}: {because}{how}")
    }

    /// What a transaction wrote to a key last, or appended first.
    fn written(&self, transaction: u32, key: u32) -> String {
        let writes = &self.0.writes[self.0.writes_of(transaction)];
        let write = writes.iter().find(|write| write.key == key && write.last);
        write.map_or_else(|| "something".into(), |write| self.0.text(write.value))
    }

    fn found(&self, key: u32, found: Found) -> String {
        match found {
            Found::Value(NOTHING) => "nothing".into(),
            Found::Value(value) => self.0.text(value),
            Found::Elements(0) => "[]".into(),
            Found::Elements(count) => {
                let last = self.0.longest[key as usize].elements.get(count as usize - 1);
                let last = last.map_or_else(|| "?".into(), |last| self.0.text(*last));
                format!("a list of {count}, the last {last}")
            }
        }
    }
}
