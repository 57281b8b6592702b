//! Scaling: what one thread more brings, what threads lose to each other, and who is busy besides.
//!
//! Two processors say little of the throughput of sixty. What can be seen on them is *where* threads meet: how many compare-and-swaps are
//! lost, how often a transaction writes to a line that every other transaction writes to, and how much processor time of
//! threads of which there is one only an operation takes. `docs/design/scaling.md` argues from these.

use crate::{BenchError, Driver, EmbeddedStore, Loaded, Workload, run, thread_seconds};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What is run.
///
/// ```
/// use deuteron_bench::ScalingMix;
/// assert_eq!(ScalingMix::Reads.workload(1_000).read, 1.0);
/// assert_eq!(ScalingMix::Paper.to_string(), "paper");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalingMix {
    /// The paper's: 84 % reads, 16 % updates.
    Paper,
    /// Reads only.
    Reads,
    /// Updates only.
    Writes,
}

impl ScalingMix {
    /// All of them.
    pub const ALL: [ScalingMix; 3] = [ScalingMix::Paper, ScalingMix::Reads, ScalingMix::Writes];

    /// The paper's transactions of four, of which so many are reads.
    ///
    /// ```
    /// assert_eq!(deuteron_bench::ScalingMix::Writes.workload(1_000).update, 1.0);
    /// ```
    pub fn workload(self, records: u64) -> Workload {
        let workload = Workload::paper(records);
        match self {
            ScalingMix::Paper => workload,
            ScalingMix::Reads => workload.with_read_ratio(1.0),
            ScalingMix::Writes => workload.with_read_ratio(0.0),
        }
    }
}

impl fmt::Display for ScalingMix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            ScalingMix::Paper => "paper",
            ScalingMix::Reads => "reads",
            ScalingMix::Writes => "writes",
        })
    }
}

/// Where compare-and-swaps are lost: what it is called here, and the counter of [`deuteron::Stats::counters`].
const PLACES: [(&str, &str); 12] = [
    ("buckets", "tc.buckets_lost"),
    ("versions", "tc.versions_lost"),
    ("read timestamps", "tc.read_timestamps_lost"),
    ("status words", "tc.statuses_lost"),
    ("index queues", "tc.queues_lost"),
    ("ranges", "tc.ranges_lost"),
    ("workspaces", "tc.workspaces_lost"),
    ("turnstile", "tc.turnstile_lost"),
    ("log reservations", "log.reservations_lost"),
    ("log openings", "log.opening_lost"),
    ("mapping table", "dc.mapping_lost"),
    ("inner nodes", "dc.index_lost"),
];

/// Threads of which a database has one each.
const ALONE: [&str; 5] = ["flusher", "waker", "proxy", "keeper", "checkpointer"];

/// Writes to the line of the open log buffer: what a transaction has written takes its place as a whole, the commit record goes into the buffer's chain of
/// commits, and all of it is complete.
const LOG_WRITES_PER_COMMIT: f64 = 3.0;

/// How often a transaction writes to lines that all transactions write to. The line's owner changes each time, if others are as fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SharedWrites {
    /// To the clock, counted: one at the begin, one for each refresh.
    pub clock: f64,
    /// To the descriptor of the open log buffer: three for the commit of a transaction that writes, of which the workload says how many there
    /// are. That it is three is what a test of the log counts.
    pub log: f64,
}

/// The figures of one mix and number of threads. The names of the fields are the names in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScalingFigure {
    /// The mix.
    pub mix: String,
    /// Threads that ran transactions.
    pub threads: usize,
    /// Operations of committed transactions a second, of all threads.
    pub operations_per_second: f64,
    /// The same of one thread.
    pub operations_per_second_per_thread: f64,
    /// Aborted attempts among all attempts, 0 to 1.
    pub abort_rate: f64,
    /// Compare-and-swaps lost for a million operations, by place. Places that lost none are left out.
    pub lost_per_million: BTreeMap<String, f64>,
    /// All of them together.
    pub lost_per_million_sum: f64,
    /// Writes of a transaction to lines that all transactions write to.
    pub shared_writes_per_transaction: SharedWrites,
    /// Processor seconds for a million operations of the database's own threads, by duty: its inverse, in millions a second, is
    /// what a processor of its own would let the duty keep up with.
    pub background_seconds_per_million: BTreeMap<String, f64>,
}

/// What is counted before and after.
struct Snapshot {
    lost: Vec<u64>,
    clock: u64,
    seconds: [f64; ALONE.len()],
}

impl Snapshot {
    fn of(store: &EmbeddedStore) -> Self {
        let [clock] = store.counters(["tc.clock"]);
        Self {
            lost: store.counters(PLACES.map(|(_, counter)| counter)).to_vec(),
            clock,
            seconds: ALONE.map(|duty| thread_seconds(&format!("deuteron-{duty}"))),
        }
    }
}

/// Runs `mix` on a store into which its workload has been loaded, after `driver`'s warm-up, which is not counted.
///
/// # Errors
/// As [`run`].
///
/// ```
/// use deuteron::Options;
/// use deuteron_bench::{DELAYED, Driver, EmbeddedStore, ScalingMix, load, run_scaling};
/// use std::time::Duration;
/// # let scratch = tempfile::tempdir()?;
/// let store = EmbeddedStore::open(Options::new().memory(64 << 20), scratch.path(), DELAYED, 1)?;
/// let driver = Driver { threads: 3, seconds: Duration::from_millis(50), ..Driver::default() };
/// load(&store, &ScalingMix::Paper.workload(1_000), &driver, &mut |_| {})?;
/// let figure = run_scaling(&store, ScalingMix::Paper, 1_000, &driver)?;
/// assert!(figure.operations_per_second >= figure.operations_per_second_per_thread);
/// # store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_scaling(
    store: &EmbeddedStore,
    mix: ScalingMix,
    records: u64,
    driver: &Driver,
) -> Result<ScalingFigure, BenchError> {
    let workload = mix.workload(records);
    let drive = |seconds| {
        let driver = Driver { warmup: Duration::ZERO, seconds, ..driver.clone() };
        run(store, &workload, &driver, Loaded::default(), &mut |_| {})
    };
    if !driver.warmup.is_zero() {
        drive(driver.warmup)?;
    }
    let before = Snapshot::of(store);
    let report = drive(driver.seconds)?;
    let after = Snapshot::of(store);
    let commits = report.commits.max(1) as f64;
    let millions = commits * workload.operations_per_transaction as f64 / 1e6;
    let lost: BTreeMap<String, f64> = PLACES
        .iter()
        .zip(before.lost.iter().zip(&after.lost))
        .filter(|(_, (before, after))| after > before)
        .map(|((place, _), (before, after))| ((*place).to_owned(), (after - before) as f64 / millions))
        .collect();
    let seconds = ALONE.iter().zip(before.seconds.iter().zip(&after.seconds));
    Ok(ScalingFigure {
        mix: mix.to_string(),
        threads: driver.threads,
        operations_per_second: report.throughput_ops,
        operations_per_second_per_thread: report.throughput_ops / driver.threads as f64,
        abort_rate: report.aborts as f64 / (report.commits + report.aborts).max(1) as f64,
        // A sum of nothing is -0.
        lost_per_million_sum: lost.values().sum::<f64>() + 0.0,
        lost_per_million: lost,
        shared_writes_per_transaction: SharedWrites {
            clock: (after.clock - before.clock) as f64 / commits,
            log: LOG_WRITES_PER_COMMIT * writing_share(&workload),
        },
        background_seconds_per_million: seconds
            .map(|(duty, (before, after))| ((*duty).to_owned(), (after - before) / millions))
            .collect(),
    })
}

/// The share of transactions of reads and updates that write.
fn writing_share(workload: &Workload) -> f64 {
    1.0 - workload.read.powi(workload.operations_per_transaction as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DELAYED, load};
    use deuteron::Options;

    #[test]
    fn a_transaction_of_four_writes_in_half_of_the_cases() {
        assert_eq!(
            ScalingMix::ALL.map(|mix| (writing_share(&mix.workload(10)) * 100.0) as u32),
            [50, 0, 100]
        );
    }

    /// The figures of each mix, of threads that meet on a few records.
    #[test]
    fn every_mix_says_what_its_transactions_write_that_all_write() {
        for (mix, log) in [(ScalingMix::Paper, 1.5), (ScalingMix::Reads, 0.0), (ScalingMix::Writes, 3.0)] {
            let scratch = tempfile::tempdir().unwrap();
            let store =
                EmbeddedStore::open(Options::new().memory(64 << 20), scratch.path(), DELAYED, 1).unwrap();
            let driver = Driver {
                threads: 4,
                warmup: Duration::from_millis(20),
                seconds: Duration::from_millis(150),
                ..Driver::default()
            };
            load(&store, &mix.workload(100), &driver, &mut |_| {}).unwrap();
            // A busy machine may leave the threads without a turn for a while.
            let mut figures = std::iter::repeat_with(|| run_scaling(&store, mix, 100, &driver).unwrap());
            let figure = figures.find(|figure| figure.operations_per_second > 0.0).unwrap();
            store.close().unwrap();
            assert_eq!((figure.mix.as_str(), figure.threads), (&*mix.to_string(), 4));
            let SharedWrites { clock, log: found } = figure.shared_writes_per_transaction;
            // Those that abort begin, too.
            assert!((0.9..3.0).contains(&clock), "{figure:?}");
            assert!((found - log).abs() < 0.05, "{figure:?}");
            assert_eq!(figure.lost_per_million.values().sum::<f64>(), figure.lost_per_million_sum);
            assert!(figure.lost_per_million.values().all(|lost| *lost > 0.0));
            assert_eq!(figure.background_seconds_per_million.len(), ALONE.len());
        }
    }
}
