//! Version memory: writers that only update, beside one reader that holds its snapshot and does nothing.
//!
//! Every version that the reader might still want has to be kept, or given up when memory runs out; either way the memory of
//! versions must stay under its hard watermark, and writers must go on as in the beginning. In the end the reader asks
//! for a record: it gets the value of its time, or is told that its snapshot is too old.

use crate::{BenchError, Driver, EmbeddedStore, Loaded, Workload, run};
use deuteron::{Error, TransactionOptions};
use serde::Serialize;

/// What a run of [`run_version_memory`] found. The names of the fields are the names in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VersionMemoryReport {
    /// Commits.
    pub commits: u64,
    /// Commits a second in the first tenth of the time.
    pub first_per_second: f64,
    /// Commits a second in the last half of it.
    pub steady_per_second: f64,
    /// The most memory that versions took at any look, in bytes.
    pub version_bytes_max: u64,
    /// The hard watermark then: their budget, in bytes.
    pub watermark_bytes: u64,
    /// What the reader got in the end: `value`, `snapshot-too-old`, or `wrong`.
    pub reader: String,
}

/// Updates the records of `workload`, which have been loaded, for as long as `driver` says, beside an idle reader.
///
/// # Errors
/// As [`run`].
///
/// ```
/// use deuteron::{Durability, Options};
/// use deuteron_bench::{Driver, EmbeddedStore, Workload, load, run_version_memory};
/// use std::time::Duration;
/// # let scratch = tempfile::tempdir()?;
/// let store = EmbeddedStore::open(Options::new().memory(64 << 20), scratch.path(), Durability::None, 1)?;
/// let driver = Driver { seconds: Duration::from_millis(300), ..Driver::default() };
/// let workload = Workload::paper(1_000);
/// load(&store, &workload, &driver, &mut |_| {})?;
/// let report = run_version_memory(&store, &workload, &driver)?;
/// assert!(["value", "snapshot-too-old"].contains(&report.reader.as_str()));
/// # store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_version_memory(
    store: &EmbeddedStore,
    workload: &Workload,
    driver: &Driver,
) -> Result<VersionMemoryReport, BenchError> {
    let workload = workload.clone().with_read_ratio(0.0);
    let failed = BenchError::store("read beside the writers");
    let mut reader = store.db().begin_with(TransactionOptions::new().read_only(true)).map_err(failed)?;
    // What the reader must see in the end, whatever happens meanwhile.
    let key = 0u64.to_be_bytes();
    let read = |reader: &mut deuteron::Transaction| reader.get(store.table(), &key);
    let wanted = read(&mut store.db().begin()).map_err(BenchError::store("read before the writers"))?;
    let mut report = VersionMemoryReport::default();
    let (mut first, mut steady) = ((0u64, 0.0), (0u64, 0.0));
    let run = run(store, &workload, driver, Loaded::default(), &mut |progress| {
        let [bytes, budget] = store.counters(["tc.memory_bytes", "tc.memory_budget_bytes"]);
        report.version_bytes_max = report.version_bytes_max.max(bytes);
        report.watermark_bytes = report.watermark_bytes.max(budget);
        let part = progress.elapsed.as_secs_f64() / progress.total.as_secs_f64();
        for (sum, within) in [(&mut first, part <= 0.1), (&mut steady, part > 0.5)] {
            if within {
                sum.0 += progress.commits;
                sum.1 += progress.interval.as_secs_f64();
            }
        }
    })?;
    let rate = |(commits, seconds): (u64, f64)| if seconds > 0.0 { commits as f64 / seconds } else { 0.0 };
    report.commits = run.commits;
    (report.first_per_second, report.steady_per_second) = (rate(first), rate(steady));
    report.reader = match read(&mut reader) {
        Ok(found) if found == wanted => "value",
        Ok(_) => "wrong",
        Err(Error::Conflict(conflict)) => conflict.cause.name(),
        Err(error) => return Err(BenchError::store("read beside the writers")(error)),
    }
    .into();
    Ok(report)
}
