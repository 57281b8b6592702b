//! How well versions in memory serve reads: the share of reads that the transaction component answers by itself, and how long
//! those take, and those that have to ask further (the paper's Figure 8).

use crate::times::{OperationTimes, ReadTimes};
use crate::{BenchError, Driver, EmbeddedStore, Loaded, Workload, run};
use serde::Serialize;
use std::time::Duration;

/// What a run of [`run_cache`] found. The names of the fields are the names in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CacheReport {
    /// Reads.
    pub reads: u64,
    /// The share of them that the transaction component answered from its memory, 0 to 1.
    pub served_by_tc: f64,
    /// The share of all reads that the read cache answered: versions that reads had brought. It is a part of the share before; the
    /// rest of that was answered by versions written not long ago.
    pub served_by_read_cache: f64,
    /// Those that the transaction component answered.
    pub tc_reads: ReadTimes,
    /// The others, which asked the data component, or the log on disk.
    pub dc_gets: ReadTimes,
    /// How many these were.
    pub dc_gets_count: u64,
    /// Bytes of versions in the read cache in the end.
    pub read_cache_bytes: u64,
    /// Versions that left it.
    pub read_cache_evictions: u64,
    /// Operations of committed transactions a second, with every read timed.
    pub throughput_ops: f64,
}

/// Runs `workload`, which has been loaded, and times each of its reads. The keys are not told ahead, so that a read's time is its
/// own.
///
/// # Errors
/// As [`run`].
///
/// ```
/// use deuteron::{Durability, Options};
/// use deuteron_bench::{Driver, EmbeddedStore, Workload, load, run_cache};
/// use std::time::Duration;
/// # let scratch = tempfile::tempdir()?;
/// let store = EmbeddedStore::open(Options::new().memory(64 << 20), scratch.path(), Durability::None, 1)?;
/// let driver = Driver { seconds: Duration::from_millis(200), ..Driver::default() };
/// let workload = Workload::paper(1_000);
/// load(&store, &workload, &driver, &mut |_| {})?;
/// let (store, report) = run_cache(store, &workload, &driver)?;
/// assert!((0.0..=1.0).contains(&report.served_by_tc));
/// assert!(report.served_by_read_cache <= report.served_by_tc);
/// # store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_cache(
    store: EmbeddedStore,
    workload: &Workload,
    driver: &Driver,
) -> Result<(EmbeddedStore, CacheReport), BenchError> {
    let store = store.with_ahead(crate::Ahead::Nothing).timing_operations();
    if !driver.warmup.is_zero() {
        let warmup = Driver { warmup: Duration::ZERO, seconds: driver.warmup, ..driver.clone() };
        run(&store, workload, &warmup, Loaded::default(), &mut |_| {})?;
        store.take_times();
    }
    let driver = Driver { warmup: Duration::ZERO, ..driver.clone() };
    let before = store.counters(COUNTERS);
    let ran = run(&store, workload, &driver, Loaded::default(), &mut |_| {})?;
    let after = store.counters(COUNTERS);
    let mut report = CacheReport::of(&store.take_times());
    report.throughput_ops = ran.throughput_ops;
    let since = |which: usize| after[which].saturating_sub(before[which]);
    report.served_by_read_cache = since(HITS) as f64 / report.reads.max(1) as f64;
    report.read_cache_evictions = since(EVICTIONS);
    report.read_cache_bytes = after[BYTES];
    Ok((store, report))
}

const COUNTERS: [&str; 3] = ["tc.read_cache_hits", "tc.read_cache_evictions", "tc.read_cache_bytes"];
const HITS: usize = 0;
const EVICTIONS: usize = 1;
const BYTES: usize = 2;

impl CacheReport {
    fn of(times: &OperationTimes) -> Self {
        let (here, elsewhere) = (times.reads_here.len(), times.reads_elsewhere.len());
        Self {
            reads: here + elsewhere,
            served_by_tc: here as f64 / (here + elsewhere).max(1) as f64,
            tc_reads: ReadTimes::of(&times.reads_here),
            dc_gets: ReadTimes::of(&times.reads_elsewhere),
            dc_gets_count: elsewhere,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_counted_where_they_were_answered() {
        let mut times = OperationTimes::new();
        let mut more = OperationTimes::new();
        for _ in 0..9 {
            times.note_read(false, Duration::from_micros(2));
        }
        more.note_read(true, Duration::from_micros(20));
        more.note_update(Duration::from_micros(7));
        times.add(&more);
        let report = CacheReport::of(&times);
        assert_eq!((report.reads, report.served_by_tc), (10, 0.9));
        assert!((report.tc_reads.mean_us - 2.0).abs() < 0.01 && (report.dc_gets.p99_us - 20.0).abs() < 0.1);
        assert_eq!(CacheReport::of(&OperationTimes::new()), CacheReport::default());
    }
}
