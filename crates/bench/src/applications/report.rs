//! The outcome of an application's run.

use crate::Latency;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The figures of one run. The names of the fields are the names in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApplicationReport {
    /// The benchmark.
    pub application: String,
    /// How large it was.
    pub scale: String,
    /// The store.
    pub engine: String,
    /// The isolation of its transactions.
    pub isolation: String,
    /// When commits were acknowledged: `sync`, `delayed` or `none`.
    pub durability: String,
    /// Threads that ran transactions.
    pub threads: usize,
    /// Transactions that came to their end a second: committed, or rolled back by the application's rules.
    pub transactions_per_second: f64,
    /// Commits a second.
    pub commits_per_second: f64,
    /// Acknowledged commits.
    pub commits: u64,
    /// Transactions that the application's rules rolled back.
    pub rolled_back: u64,
    /// Attempts that met another transaction; each was run again.
    pub aborts: u64,
    /// Aborted attempts among all attempts, 0 to 1.
    pub abort_rate: f64,
    /// Aborts by cause.
    pub abort_causes: BTreeMap<String, u64>,
    /// From the begin of the first attempt to the acknowledgement, or to the end of what was rolled back.
    pub latency_us: Latency,
    /// The same by kind of transaction.
    pub transactions: Vec<TransactionFigure>,
    /// Rows loaded.
    pub rows: u64,
    /// How long the load took, until it was durable.
    pub load_seconds: f64,
    /// Processor time of the measured time, of all threads of the process.
    pub processor_seconds: f64,
    /// The most memory resident since the process began, the load included.
    pub peak_rss_bytes: u64,
    /// Disk space at the end.
    pub disk_bytes: u64,
    /// What was checked after the run.
    pub conditions: Vec<Condition>,
}

impl ApplicationReport {
    /// Whether all conditions hold.
    ///
    /// ```
    /// use deuteron_bench::{ApplicationReport, Condition};
    /// let violated = Condition { name: "money".into(), holds: false, found: "3 missing".into() };
    /// assert!(ApplicationReport::default().holds());
    /// assert!(!ApplicationReport { conditions: vec![violated], ..ApplicationReport::default() }.holds());
    /// ```
    pub fn holds(&self) -> bool {
        self.conditions.iter().all(|condition| condition.holds)
    }
}

/// One kind of transaction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TransactionFigure {
    /// Its name.
    pub name: String,
    /// Acknowledged commits.
    pub commits: u64,
    /// How many the application's rules rolled back.
    pub rolled_back: u64,
    /// Attempts that were run again.
    pub aborts: u64,
    /// As that of the whole.
    pub latency_us: Latency,
}

/// Something that holds after transactions that were isolated and complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// What should hold, in words.
    pub name: String,
    /// Whether it does.
    pub holds: bool,
    /// What was found: how much was looked at, or the first that violates it.
    pub found: String,
}

/// A condition that is looked at many times: keeps count, and the first violation.
pub(super) struct Examination {
    name: &'static str,
    looked_at: u64,
    violations: u64,
    first: Option<String>,
}

impl Examination {
    /// Of a condition of this name.
    pub fn new(name: &'static str) -> Self {
        Self { name, looked_at: 0, violations: 0, first: None }
    }

    /// One look; if it does not hold, `found` says what was found.
    pub fn expect(&mut self, holds: bool, found: impl FnOnce() -> String) {
        self.looked_at += 1;
        if !holds {
            self.violations += 1;
            self.first.get_or_insert_with(found);
        }
    }

    /// What came of it.
    pub fn conclude(self) -> Condition {
        let (looked_at, violations) = (self.looked_at, self.violations);
        let found = match self.first {
            None => format!("{looked_at} looked at"),
            Some(first) => format!("{violations} of {looked_at} violate it; the first: {first}"),
        };
        Condition { name: self.name.into(), holds: violations == 0, found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violated_condition_names_the_first_violation() {
        let mut examination = Examination::new("all are even");
        for number in 1..=4 {
            examination.expect(number % 2 == 0, || format!("{number} is odd"));
        }
        let condition = examination.conclude();
        assert!(!condition.holds);
        assert_eq!(condition.found, "2 of 4 violate it; the first: 1 is odd");
        let mut examination = Examination::new("all are even");
        examination.expect(true, String::new);
        assert_eq!(examination.conclude().found, "1 looked at");
    }

    #[test]
    fn the_json_comes_back() {
        let report = ApplicationReport {
            transactions: vec![TransactionFigure { name: "vote".into(), ..Default::default() }],
            conditions: vec![Condition { name: "limit".into(), holds: true, found: "3 looked at".into() }],
            ..Default::default()
        };
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["transactions"][0]["latency_us"]["p50"], 0.0);
        assert_eq!(serde_json::from_value::<ApplicationReport>(json).unwrap(), report);
    }
}
