//! How well versions in memory serve reads: the share of reads that the transaction component answers by itself, and how long
//! those take, and those that have to ask further (the paper's Figure 8).

use crate::report::latency_histogram;
use crate::{BenchError, Driver, EmbeddedStore, Loaded, Workload, run};
use hdrhistogram::Histogram;
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

/// How long reads took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReadTimes {
    /// On average.
    pub mean_us: f64,
    /// 99 of 100 took at most this.
    pub p99_us: f64,
}

/// The times of reads, answered here or elsewhere.
#[derive(Debug)]
pub(crate) struct TimedReads {
    here: Histogram<u64>,
    elsewhere: Histogram<u64>,
}

impl TimedReads {
    pub(crate) fn new() -> Self {
        Self { here: latency_histogram(), elsewhere: latency_histogram() }
    }

    #[inline]
    pub(crate) fn note(&mut self, missed: bool, time: Duration) {
        let times = if missed { &mut self.elsewhere } else { &mut self.here };
        times.saturating_record(time.as_nanos() as u64);
    }

    pub(crate) fn add(&mut self, other: &TimedReads) {
        // All histograms have the same constant bounds.
        self.here.add(&other.here).expect("equal bounds");
        self.elsewhere.add(&other.elsewhere).expect("equal bounds");
    }

    fn report(&self, throughput_ops: f64) -> CacheReport {
        let reads = self.here.len() + self.elsewhere.len();
        let times = |times: &Histogram<u64>| match times.is_empty() {
            true => ReadTimes::default(),
            false => ReadTimes {
                mean_us: times.mean() / 1000.0,
                p99_us: times.value_at_quantile(0.99) as f64 / 1000.0,
            },
        };
        CacheReport {
            reads,
            served_by_tc: self.here.len() as f64 / reads.max(1) as f64,
            tc_reads: times(&self.here),
            dc_gets: times(&self.elsewhere),
            dc_gets_count: self.elsewhere.len(),
            throughput_ops,
            ..CacheReport::default()
        }
    }
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
    let store = store.with_ahead(crate::Ahead::Nothing).timing_reads();
    if !driver.warmup.is_zero() {
        let warmup = Driver { warmup: Duration::ZERO, seconds: driver.warmup, ..driver.clone() };
        run(&store, workload, &warmup, Loaded::default(), &mut |_| {})?;
        store.take_timed_reads();
    }
    let driver = Driver { warmup: Duration::ZERO, ..driver.clone() };
    let before = counters(&store);
    let ran = run(&store, workload, &driver, Loaded::default(), &mut |_| {})?;
    let after = counters(&store);
    let mut report = store.take_timed_reads().report(ran.throughput_ops);
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

fn counters(store: &EmbeddedStore) -> [u64; 3] {
    let stats = store.db().stats();
    COUNTERS
        .map(|wanted| stats.counters.iter().find(|(name, _)| name == wanted).map_or(0, |(_, count)| *count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_counted_where_they_were_answered() {
        let mut times = TimedReads::new();
        let mut more = TimedReads::new();
        for _ in 0..9 {
            times.note(false, Duration::from_micros(2));
        }
        more.note(true, Duration::from_micros(20));
        times.add(&more);
        let report = times.report(1.0);
        assert_eq!((report.reads, report.served_by_tc), (10, 0.9));
        assert!((report.tc_reads.mean_us - 2.0).abs() < 0.01 && (report.dc_gets.p99_us - 20.0).abs() < 0.1);
        assert_eq!(TimedReads::new().report(0.0), CacheReport::default());
    }
}
