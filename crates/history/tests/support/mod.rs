//! Short ways to write transactions down.
#![allow(dead_code, reason = "not every test that shares this module uses all of it")]

use deuteron_history::{Checker, Level, Operation, Outcome, Range, Report, Seen, Transaction};

/// A transaction from `begin` to `end` that commits.
pub fn t(begin: u64, end: u64) -> T {
    T(Transaction { process: 0, begin, end, outcome: Outcome::Committed, operations: Vec::new() })
}

#[derive(Clone, Debug)]
pub struct T(pub Transaction);

impl T {
    pub fn aborted(mut self) -> T {
        self.0.outcome = Outcome::Aborted;
        self
    }

    pub fn unknown(mut self) -> T {
        self.0.outcome = Outcome::Unknown;
        self
    }

    fn with(mut self, operation: Operation) -> T {
        self.0.operations.push(operation);
        self
    }

    /// Reads a register.
    pub fn r(self, key: &str, value: u64) -> T {
        self.with(Operation::Read(key.into(), Seen::Value(value.into())))
    }

    /// Reads nothing.
    pub fn n(self, key: &str) -> T {
        self.with(Operation::Read(key.into(), Seen::Nothing))
    }

    /// Reads a list.
    pub fn l(self, key: &str, elements: &[u64]) -> T {
        let elements = elements.iter().map(|element| (*element).into()).collect();
        self.with(Operation::Read(key.into(), Seen::List(elements)))
    }

    /// Writes a register.
    pub fn w(self, key: &str, value: u64) -> T {
        self.with(Operation::Write(key.into(), Some(value.into())))
    }

    /// Deletes a register.
    pub fn d(self, key: &str) -> T {
        self.with(Operation::Write(key.into(), None))
    }

    /// Appends.
    pub fn a(self, key: &str, element: u64) -> T {
        self.with(Operation::Append(key.into(), element.into()))
    }

    /// Reads a range of registers.
    pub fn g(self, from: &str, to: &str, found: &[(&str, u64)]) -> T {
        let found =
            found.iter().map(|(key, value)| ((*key).to_owned(), Seen::Value((*value).into()))).collect();
        self.with(Operation::Range(Range { from: from.into(), to: to.into(), found }))
    }
}

/// What is wrong with a history at a level. The first transaction is T1.
pub fn report(level: Level, history: &[T]) -> Report {
    let mut checker = Checker::new(level);
    for (line, transaction) in (1..).zip(history) {
        checker.add(line, &transaction.0).expect("is small");
    }
    checker.finish()
}

/// The names of what is wrong, sorted, each once.
pub fn names(level: Level, history: &[T]) -> Vec<String> {
    let mut names: Vec<String> =
        report(level, history).anomalies.iter().map(|anomaly| anomaly.name()).collect();
    names.sort();
    names.dedup();
    names
}
