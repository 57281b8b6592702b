//! A transaction as a line of JSON, written by hand: a recorder needs no library for that.

use crate::{Operation, Outcome, Seen, Transaction, Value};
use std::fmt::Write;

/// The longest line that a history may have, in bytes.
pub const LINE_BYTES_MAX: usize = 64 << 20;

impl Transaction {
    /// Appends the transaction's line to `line`, with the line feed.
    ///
    /// ```
    /// use deuteron_history::{Operation, Outcome, Transaction};
    /// let operations = vec![Operation::Append("x".into(), 7.into())];
    /// let transaction = Transaction { process: 1, begin: 2, end: 3, outcome: Outcome::Committed, operations };
    /// let mut line = String::new();
    /// transaction.write_line(&mut line);
    /// assert_eq!(line, "{\"process\":1,\"begin\":2,\"end\":3,\"outcome\":\"committed\",\"ops\":[{\"append\":[\"x\",7]}]}\n");
    /// ```
    pub fn write_line(&self, line: &mut String) {
        let Self { process, begin, end, outcome, operations } = self;
        let outcome = match outcome {
            Outcome::Committed => "committed",
            Outcome::Aborted => "aborted",
            Outcome::Unknown => "unknown",
        };
        number(line, "{\"process\":", *process);
        number(line, ",\"begin\":", *begin);
        number(line, ",\"end\":", *end);
        line.push_str(",\"outcome\":\"");
        line.push_str(outcome);
        line.push_str("\",\"ops\":");
        list(line, operations, operation);
        line.push_str("}\n");
    }
}

fn operation(line: &mut String, operation: &Operation) {
    match operation {
        Operation::Append(key, element) => {
            opened(line, "{\"append\":[", key);
            value(line, element);
            line.push_str("]}");
        }
        Operation::Write(key, written) => {
            opened(line, "{\"write\":[", key);
            match written {
                Some(written) => value(line, written),
                None => line.push_str("null"),
            }
            line.push_str("]}");
        }
        Operation::Read(key, found) => {
            opened(line, "{\"read\":[", key);
            seen(line, found);
            line.push_str("]}");
        }
        Operation::Range(range) => {
            opened(line, "{\"range\":{\"from\":", &range.from);
            opened(line, "\"to\":", &range.to);
            line.push_str("\"found\":");
            list(line, &range.found, |line, (key, found)| {
                opened(line, "[", key);
                seen(line, found);
                line.push(']');
            });
            line.push_str("}}");
        }
        Operation::Change(key) => {
            line.push_str("{\"change\":");
            text(line, key);
            line.push('}');
        }
    }
}

/// What comes before a key, the key, and a comma.
fn opened(line: &mut String, before: &str, key: &str) {
    line.push_str(before);
    text(line, key);
    line.push(',');
}

fn seen(line: &mut String, seen: &Seen) {
    match seen {
        Seen::Nothing => line.push_str("null"),
        Seen::Value(found) => value(line, found),
        Seen::List(elements) => list(line, elements, value),
    }
}

fn value(line: &mut String, value: &Value) {
    match value {
        Value::Integer(integer) => number(line, "", *integer),
        Value::Text(string) => text(line, string),
    }
}

fn list<T>(line: &mut String, items: &[T], mut each: impl FnMut(&mut String, &T)) {
    line.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            line.push(',');
        }
        each(line, item);
    }
    line.push(']');
}

fn number(line: &mut String, before: &str, number: u64) {
    line.push_str(before);
    write!(line, "{number}").expect("a string takes everything");
}

fn text(line: &mut String, text: &str) {
    line.push('"');
    for character in text.chars() {
        match character {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' => {
                write!(line, "\\u{:04x}", u32::from(character)).expect("a string takes everything");
            }
            other => line.push(other),
        }
    }
    line.push('"');
}
