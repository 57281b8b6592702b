//! [`Transaction`]: what one transaction did and saw.

/// A value: an integer, or text. The two are never equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// At most 2⁶³ − 1.
    Integer(u64),
    /// Any text.
    Text(String),
}

impl From<u64> for Value {
    fn from(integer: u64) -> Self {
        Self::Integer(integer)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// What a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No record: never written, or deleted. Of a list: it is empty.
    Nothing,
    /// The value of a register.
    Value(Value),
    /// The elements of a list, first appended first.
    List(Vec<Value>),
}

/// A read of all keys from `from` on and below `to`, by the order of their text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first key that the range holds.
    pub from: String,
    /// The first key behind it.
    pub to: String,
    /// The records found, in any order: every key of the range that is not among them was not there.
    pub found: Vec<(String, Seen)>,
}

/// One operation of a transaction. A key is written to or appended to, not both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Puts one element behind a list.
    Append(String, Value),
    /// Gives a register a value, or deletes it (`None`).
    Write(String, Option<Value>),
    /// Reads a key.
    Read(String, Seen),
    /// Reads a range of keys.
    Range(Range),
    /// Changes a key in a way that a history cannot tell, such as adding to a number. The checker leaves the key out.
    Change(String),
}

/// Whether a transaction happened, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It did, by its end.
    Committed,
    /// It did not, and will not.
    Aborted,
    /// Nobody told: it may have happened, or happen later, or never.
    Unknown,
}

/// A transaction of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Who ran it: a thread, a client.
    pub process: u64,
    /// When it began, before its first operation: nanoseconds of a clock that only rises and is the same for all processes.
    pub begin: u64,
    /// When its end was known, on the same clock. Without meaning if the outcome is unknown.
    pub end: u64,
    /// Whether it happened.
    pub outcome: Outcome,
    /// What it did, in order.
    pub operations: Vec<Operation>,
}
