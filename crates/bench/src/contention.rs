//! Contention: how many transactions commit, and how many have to run again, where they meet.
//!
//! Three cases, each with a number of threads; the store is any [`Store`], so that every engine runs the same. A
//! transaction that is aborted runs again after the pause of [`deuteron::RetryPolicy`], until it commits.
//!
//! In one go, a transaction takes a few microseconds, and no more of them meet than there are cores, however many
//! threads there are. *Interleaved*, other threads have a turn after each operation, as they have where operations come from
//! clients: then as many transactions are under way as there are threads.

use crate::{BenchError, Driver, Latency, Loaded, Report, Skew, Store, Workload, run};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Where transactions meet.
///
/// ```
/// use deuteron_bench::ContentionCase;
/// assert_eq!(ContentionCase::Hot.to_string(), "hot");
/// assert_eq!(ContentionCase::Zipf.workload(false).records, 100_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentionCase {
    /// Four read-modify-writes on keys drawn by Zipf's law, 0.99, from 100,000.
    Zipf,
    /// Two read-modify-writes on keys from 10.
    Hot,
    /// Long and short transactions on four warehouses, see [`Workload::order_entry`].
    Mix,
}

impl ContentionCase {
    /// All of them.
    pub const ALL: [ContentionCase; 3] = [ContentionCase::Zipf, ContentionCase::Hot, ContentionCase::Mix];

    /// What is run; `interleaved` or in one go.
    ///
    /// ```
    /// assert_eq!(deuteron_bench::ContentionCase::Hot.workload(false).operations_per_transaction, 2);
    /// ```
    pub fn workload(self, interleaved: bool) -> Workload {
        let updates = |records, operations_per_transaction, skew| Workload {
            operations_per_transaction,
            skew,
            read: 0.0,
            update: 0.0,
            read_modify_write: 1.0,
            ..Workload::paper(records)
        };
        let workload = match self {
            ContentionCase::Zipf => updates(100_000, 4, Skew::Zipf(0.99)),
            ContentionCase::Hot => updates(10, 2, Skew::Uniform),
            ContentionCase::Mix => Workload::order_entry(4),
        };
        Workload { interleaved, ..workload }
    }
}

impl fmt::Display for ContentionCase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            ContentionCase::Zipf => "zipf",
            ContentionCase::Hot => "hot",
            ContentionCase::Mix => "mix",
        })
    }
}

/// The figures of one case, engine and number of threads. The names of the fields are the names in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContentionFigure {
    /// The case.
    pub case: String,
    /// The store.
    pub engine: String,
    /// Threads that ran transactions.
    pub threads: usize,
    /// Whether other threads had a turn after each operation.
    pub interleaved: bool,
    /// Commits a second.
    pub commits_per_second: f64,
    /// Aborted attempts among all attempts, 0 to 1.
    pub abort_rate: f64,
    /// Aborts by cause.
    pub abort_causes: BTreeMap<String, u64>,
    /// From the begin of the first attempt to the acknowledgement.
    pub latency_us: Latency,
}

impl ContentionFigure {
    fn of(case: ContentionCase, interleaved: bool, report: Report) -> Self {
        let attempts = (report.commits + report.aborts).max(1);
        Self {
            case: case.to_string(),
            engine: report.engine,
            threads: report.threads,
            interleaved,
            commits_per_second: report.throughput_tps,
            abort_rate: report.aborts as f64 / attempts as f64,
            abort_causes: report.abort_causes,
            latency_us: report.latency_us,
        }
    }
}

/// Runs one case on a store into which [`ContentionCase::workload`] has been loaded.
///
/// # Errors
/// As [`run`].
///
/// ```
/// use deuteron::Durability;
/// use deuteron_bench::{ContentionCase, Driver, EmbeddedStore, load, run_contention};
/// use std::time::Duration;
/// # let scratch = tempfile::tempdir()?;
/// let store = EmbeddedStore::open(deuteron::Options::new(), scratch.path(), Durability::None, 1)?;
/// let driver = Driver { seconds: Duration::from_millis(50), ..Driver::default() };
/// let case = ContentionCase::Hot;
/// load(&store, &case.workload(false), &driver, &mut |_| {})?;
/// let figure = run_contention(&store, case, false, &driver)?;
/// assert!(figure.commits_per_second > 0.0 && figure.abort_rate < 1.0);
/// # store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_contention<S: Store>(
    store: &S,
    case: ContentionCase,
    interleaved: bool,
    driver: &Driver,
) -> Result<ContentionFigure, BenchError> {
    let report = run(store, &case.workload(interleaved), driver, Loaded::default(), &mut |_| {})?;
    Ok(ContentionFigure::of(case, interleaved, report))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EmbeddedStore, load};
    use deuteron::{ConcurrencyControl, Durability, Options};
    use std::time::Duration;

    #[test]
    fn every_case_commits_under_either_control() {
        let driver = Driver { threads: 3, seconds: Duration::from_millis(60), ..Driver::default() };
        for control in [ConcurrencyControl::Pushes, ConcurrencyControl::TimestampOrder] {
            for case in ContentionCase::ALL {
                let scratch = tempfile::tempdir().unwrap();
                let options = Options::new().memory(64 << 20).concurrency_control(control);
                let store = EmbeddedStore::open(options, scratch.path(), Durability::None, 1).unwrap();
                load(&store, &case.workload(true), &driver, &mut |_| {}).unwrap();
                // A busy machine may leave the threads without a turn for a while.
                let figures = std::iter::repeat_with(|| run_contention(&store, case, true, &driver).unwrap());
                let figure = figures.into_iter().find(|figure| figure.commits_per_second > 0.0).unwrap();
                assert_eq!((figure.case.as_str(), figure.threads), (&*case.to_string(), 3));
                let in_order = ["timestamp-order"].map(|cause| figure.abort_causes.contains_key(cause));
                assert!(control == ConcurrencyControl::TimestampOrder || in_order == [false]);
                store.close().unwrap();
            }
        }
    }

    #[test]
    fn the_abort_rate_is_a_share_of_the_attempts() {
        let report = Report { commits: 30, aborts: 10, ..Report::default() };
        assert_eq!(ContentionFigure::of(ContentionCase::Mix, true, report).abort_rate, 0.25);
        assert_eq!(ContentionFigure::of(ContentionCase::Mix, true, Report::default()).abort_rate, 0.0);
    }
}
