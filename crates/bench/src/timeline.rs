//! A run over time: throughput, memory of versions, and what their collection takes (the paper's Figure 9).

use crate::process::thread_seconds;
use crate::{BenchError, Driver, EmbeddedStore, Loaded, Workload, run};
use serde::Serialize;

/// What a run of [`run_timeline`] found. The names of the fields are the names in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// In the order of time; the warm-up is not among them.
    pub samples: Vec<TimelineSample>,
    /// Operations of committed transactions a second, over the whole of it.
    pub throughput_ops: f64,
    /// Records that were evicted from the table of versions meanwhile.
    pub evictions: u64,
    /// Superseded versions that were dropped meanwhile.
    pub versions_dropped: u64,
    /// The most memory that versions may take in the end, in bytes.
    pub watermark_bytes: u64,
}

/// A stretch of a [`Timeline`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimelineSample {
    /// Its end, since the beginning.
    pub seconds: f64,
    /// Commits a second.
    pub commits_per_second: f64,
    /// Memory of versions at its end, in bytes.
    pub version_bytes: u64,
    /// Above so many bytes versions are evicted: the soft watermark.
    pub soft_watermark_bytes: u64,
    /// The most that they may take: the hard watermark.
    pub hard_watermark_bytes: u64,
    /// The share of one processor that collecting versions took, by whichever thread, 0 to 1.
    pub collection_share: f64,
    /// The share of one processor that the thread took which collects versions and evicts pages, 0 to 1.
    pub keeper_share: f64,
}

/// Runs `workload`, which has been loaded, and looks at the database four times a second.
///
/// # Errors
/// As [`run`].
///
/// ```
/// use deuteron::{Durability, Options};
/// use deuteron_bench::{Driver, EmbeddedStore, Workload, load, run_timeline};
/// use std::time::Duration;
/// # let scratch = tempfile::tempdir()?;
/// let store = EmbeddedStore::open(Options::new().memory(64 << 20), scratch.path(), Durability::None, 1)?;
/// let driver = Driver { seconds: Duration::from_millis(600), ..Driver::default() };
/// let workload = Workload::paper(1_000);
/// load(&store, &workload, &driver, &mut |_| {})?;
/// let timeline = run_timeline(&store, &workload, &driver, &mut |_| {})?;
/// assert!(timeline.samples.iter().all(|sample| sample.version_bytes < timeline.watermark_bytes * 2));
/// # store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_timeline(
    store: &EmbeddedStore,
    workload: &Workload,
    driver: &Driver,
    progress: &mut dyn FnMut(&crate::Progress),
) -> Result<Timeline, BenchError> {
    let mut timeline = Timeline::default();
    let (mut keeper, mut before) = (keeper_seconds(), store.counters(COUNTERS));
    let mut collected = before[5];
    let report = run(store, workload, driver, Loaded::default(), &mut |now| {
        progress(now);
        let keeper_now = keeper_seconds();
        let counted = store.counters(COUNTERS);
        let [version_bytes, hard_watermark_bytes, _, _, soft_watermark_bytes, collection] = counted;
        if now.warming_up {
            before = counted;
        } else {
            let interval = now.interval.as_secs_f64().max(1e-9);
            timeline.samples.push(TimelineSample {
                seconds: (now.elapsed.saturating_sub(driver.warmup)).as_secs_f64(),
                commits_per_second: now.commits as f64 / interval,
                version_bytes,
                soft_watermark_bytes,
                hard_watermark_bytes,
                collection_share: collection.saturating_sub(collected) as f64 / 1e6 / interval,
                keeper_share: (keeper_now - keeper) / interval,
            });
        }
        (keeper, collected) = (keeper_now, collection);
    })?;
    let [_, budget, evictions, dropped, ..] = store.counters(COUNTERS);
    timeline.throughput_ops = report.throughput_ops;
    timeline.watermark_bytes = budget;
    timeline.evictions = evictions.saturating_sub(before[2]);
    timeline.versions_dropped = dropped.saturating_sub(before[3]);
    Ok(timeline)
}

/// Processor time of the thread that collects.
fn keeper_seconds() -> f64 {
    thread_seconds("deuteron-keeper")
}

const COUNTERS: [&str; 6] = [
    "tc.memory_bytes",
    "tc.memory_budget_bytes",
    "tc.evictions",
    "tc.versions_dropped",
    "tc.memory_target_bytes",
    "tc.collection_microseconds",
];
