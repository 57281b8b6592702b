//! A line as a transaction: what a file holds is taken for nothing but text until it has been understood.

use crate::{LINE_BYTES_MAX, Operation, Outcome, Range, Seen, Transaction, Value};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::io::BufRead;

/// Why a history cannot be read.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A line is not a transaction.
    #[error("line {line} is not a transaction: {reason}")]
    Line {
        /// Its number, from 1 on.
        line: u64,
        /// Why not.
        reason: String,
    },
    /// The history holds more than can be numbered.
    #[error("line {line}: a history holds at most {limit} operations")]
    TooLarge {
        /// Where that shows.
        line: u64,
        /// The most.
        limit: u64,
    },
    /// The source could not be read.
    #[error("cannot read the history")]
    Input(#[source] std::io::Error),
}

impl Transaction {
    /// The transaction of a line.
    ///
    /// # Errors
    /// What is wrong with the line, in words.
    ///
    /// ```
    /// use deuteron_history::{Outcome, Transaction};
    /// let line = r#"{"process":1,"begin":2,"end":3,"outcome":"unknown","ops":[]}"#;
    /// assert_eq!(Transaction::from_line(line.as_bytes())?.outcome, Outcome::Unknown);
    /// assert!(Transaction::from_line(b"{}").is_err());
    /// # Ok::<(), String>(())
    /// ```
    pub fn from_line(line: &[u8]) -> Result<Self, String> {
        let line: Line = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let Line { process, begin, end, outcome, ops } = line;
        if outcome == Outcome::Committed && end < begin {
            return Err(format!("it ends at {end}, before it begins at {begin}"));
        }
        Ok(Self { process, begin, end, outcome, operations: ops })
    }
}

/// Calls `each` on the transactions of a history with the number of its line, from 1 on, and with the line. Empty lines are none. A
/// last line without a line feed is left out if it is no transaction: its writer was stopped. Whether one was left out.
///
/// # Errors
/// [`HistoryError`]; what `each` returned.
///
/// ```
/// let mut count = 0;
/// let text = "{\"process\":1,\"begin\":2,\"end\":3,\"outcome\":\"aborted\",\"ops\":[]}\n{\"proc";
/// let cut = deuteron_history::read_lines(text.as_bytes(), |_, _, _| { count += 1; Ok(()) })?;
/// assert_eq!((count, cut), (1, true));
/// # Ok::<(), deuteron_history::HistoryError>(())
/// ```
pub fn read_lines(
    mut source: impl BufRead,
    mut each: impl FnMut(u64, &[u8], Transaction) -> Result<(), HistoryError>,
) -> Result<bool, HistoryError> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let limited = &mut std::io::Read::take(&mut source, LINE_BYTES_MAX as u64 + 1);
        if limited.read_until(b'\n', &mut line).map_err(HistoryError::Input)? == 0 {
            break;
        }
        if line.len() > LINE_BYTES_MAX {
            let reason = format!("it is longer than {LINE_BYTES_MAX} bytes");
            return Err(HistoryError::Line { line: number, reason });
        }
        let whole = line.last() == Some(&b'\n');
        let text = line.trim_ascii();
        if text.is_empty() {
            continue;
        }
        match Transaction::from_line(text) {
            Ok(transaction) => each(number, text, transaction)?,
            Err(_) if !whole => return Ok(true),
            Err(reason) => return Err(HistoryError::Line { line: number, reason }),
        }
    }
    Ok(false)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    process: u64,
    begin: u64,
    end: u64,
    #[serde(deserialize_with = "outcome")]
    outcome: Outcome,
    ops: Vec<Operation>,
}

fn outcome<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Outcome, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Word {
        Committed,
        Aborted,
        Unknown,
    }
    Ok(match Word::deserialize(deserializer)? {
        Word::Committed => Outcome::Committed,
        Word::Aborted => Outcome::Aborted,
        Word::Unknown => Outcome::Unknown,
    })
}

impl<'de> Deserialize<'de> for Operation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Form {
            Append(String, Value),
            Write(String, Option<Value>),
            Read(String, Seen),
            Range(RangeForm),
            Change(String),
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct RangeForm {
            from: String,
            to: String,
            found: Vec<(String, Seen)>,
        }
        Ok(match Form::deserialize(deserializer)? {
            Form::Append(key, value) => Operation::Append(key, value),
            Form::Write(key, value) => Operation::Write(key, value),
            Form::Read(key, seen) => Operation::Read(key, seen),
            Form::Range(RangeForm { from, to, found }) => {
                if let Some((key, _)) = found.iter().find(|(key, _)| *key < from || *key >= to) {
                    return Err(D::Error::custom(format!("the range found {key:?}, which it does not hold")));
                }
                Operation::Range(Range { from, to, found })
            }
            Form::Change(key) => Operation::Change(key),
        })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl Visitor<'_> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an integer from 0 to 2^63 - 1, or a string")
    }

    fn visit_u64<E: Error>(self, integer: u64) -> Result<Value, E> {
        match i64::try_from(integer) {
            Ok(_) => Ok(Value::Integer(integer)),
            Err(_) => Err(E::invalid_value(serde::de::Unexpected::Unsigned(integer), &self)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Seen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SeenVisitor)
    }
}

struct SeenVisitor;

impl<'de> Visitor<'de> for SeenVisitor {
    type Value = Seen;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("null, a value, or a list of values")
    }

    fn visit_unit<E: Error>(self) -> Result<Seen, E> {
        Ok(Seen::Nothing)
    }

    fn visit_u64<E: Error>(self, integer: u64) -> Result<Seen, E> {
        ValueVisitor.visit_u64(integer).map(Seen::Value)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Seen, E> {
        ValueVisitor.visit_str(text).map(Seen::Value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Seen, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            list.push(element);
        }
        Ok(Seen::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Seen, A::Error> {
        Err(A::Error::invalid_type(serde::de::Unexpected::Map, &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![(0..=u64::MAX >> 1).prop_map(Value::Integer), any::<String>().prop_map(Value::Text)]
    }

    fn seen() -> impl Strategy<Value = Seen> {
        prop_oneof![
            Just(Seen::Nothing),
            value().prop_map(Seen::Value),
            prop::collection::vec(value(), 0..4).prop_map(Seen::List)
        ]
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            (any::<String>(), value()).prop_map(|(key, value)| Operation::Append(key, value)),
            (any::<String>(), prop::option::of(value()))
                .prop_map(|(key, value)| Operation::Write(key, value)),
            (any::<String>(), seen()).prop_map(|(key, seen)| Operation::Read(key, seen)),
            any::<String>().prop_map(Operation::Change),
            prop::collection::vec(("b[a-z]{0,4}", seen()), 0..4).prop_map(|found| Operation::Range(Range {
                from: "b".into(),
                to: "c\u{e9}".into(),
                found
            })),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            process in any::<u64>(),
            times in any::<(u64, u64)>(),
            outcome in prop::sample::select(vec![Outcome::Committed, Outcome::Aborted, Outcome::Unknown]),
            operations in prop::collection::vec(operation(), 0..6),
        ) {
            let (begin, end) = (times.0.min(times.1), times.0.max(times.1));
            let transaction = Transaction { process, begin, end, outcome, operations };
            let mut line = String::new();
            transaction.write_line(&mut line);
            prop_assert_eq!(line.find('\n'), Some(line.len() - 1));
            prop_assert_eq!(Transaction::from_line(line.as_bytes()), Ok(transaction));
        }
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        let wrong = [
            (r#"{"process":1,"begin":5,"end":3,"outcome":"committed","ops":[]}"#, "before it begins"),
            (r#"{"process":1,"begin":2,"end":3,"outcome":"done","ops":[]}"#, "unknown variant `done`"),
            (r#"{"process":1,"begin":2,"end":3,"outcome":"aborted"}"#, "missing field `ops`"),
            (
                r#"{"process":1,"begin":2,"end":3,"outcome":"aborted","ops":[{"write":["x",-1]}]}"#,
                "from 0 to 2^63 - 1",
            ),
            (
                r#"{"process":1,"begin":2,"end":3,"outcome":"aborted","ops":[{"range":{"from":"a","to":"b","found":[["b",1]]}}]}"#,
                "does not hold",
            ),
        ];
        for (line, reason) in wrong {
            let error = Transaction::from_line(line.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let error = read_lines(&b"\n{}\n"[..], |_, _, _| Ok(())).unwrap_err();
        assert!(matches!(error, HistoryError::Line { line: 2, .. }), "{error}");
    }
}
