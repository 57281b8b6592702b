//! How long one operation takes that finds its record in memory: by itself within a transaction, as the paper counts it (Figure 8),
//! and as a transaction of its own, begin and commit included.

use crate::{BenchError, Driver, EmbeddedStore, Latency, Loaded, Workload, run};
use serde::Serialize;
use std::time::{Duration, Instant};

/// What [`run_latency`] found. The names of the fields are the names in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LatencyReport {
    /// A read within a transaction, of a record in memory.
    pub read_us: Latency,
    /// A blind update within a transaction.
    pub update_us: Latency,
    /// A transaction of one read.
    pub read_transaction_us: Latency,
    /// A transaction of one blind update, acknowledged as the durability of the store demands.
    pub update_transaction_us: Latency,
    /// What reading the clock adds to each operation, in microseconds. It is in all figures.
    pub clock_us: f64,
}

/// Times the operations of `workload`, which has been loaded, a third of the time each: within its transactions, then as
/// transactions of one read, then of one update. Keys are not told ahead.
///
/// # Errors
/// As [`run`].
///
/// ```
/// use deuteron::{Durability, Options};
/// use deuteron_bench::{Driver, EmbeddedStore, Workload, load, run_latency};
/// use std::time::Duration;
/// # let scratch = tempfile::tempdir()?;
/// let durability = Durability::Delayed(Duration::from_millis(10));
/// let store = EmbeddedStore::open(Options::new().memory(64 << 20), scratch.path(), durability, 1)?;
/// let driver = Driver { threads: 1, seconds: Duration::from_millis(300), ..Driver::default() };
/// let workload = Workload::paper(1_000);
/// load(&store, &workload, &driver, &mut |_| {})?;
/// let (store, report) = run_latency(store, &workload, &driver)?;
/// assert!(report.read_us.p50 <= report.read_us.p99);
/// # store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_latency(
    store: EmbeddedStore,
    workload: &Workload,
    driver: &Driver,
) -> Result<(EmbeddedStore, LatencyReport), BenchError> {
    let store = store.with_ahead(crate::Ahead::Nothing).timing_operations();
    let third = Driver { seconds: driver.seconds / 3, warmup: driver.warmup / 3, ..driver.clone() };
    if !third.warmup.is_zero() {
        let warmup = Driver { warmup: Duration::ZERO, seconds: third.warmup, ..third.clone() };
        run(&store, workload, &warmup, Loaded::default(), &mut |_| {})?;
        store.take_times();
    }
    let within = Driver { warmup: Duration::ZERO, ..third.clone() };
    run(&store, workload, &within, Loaded::default(), &mut |_| {})?;
    let times = store.take_times();
    let store = store.untimed();
    let alone = |read: f64| {
        let alone = Workload { operations_per_transaction: 1, ..workload.clone().with_read_ratio(read) };
        run(&store, &alone, &third, Loaded::default(), &mut |_| {}).map(|report| report.latency_us)
    };
    let report = LatencyReport {
        read_us: Latency::of_nanoseconds(&times.reads_here),
        update_us: Latency::of_nanoseconds(&times.updates),
        read_transaction_us: alone(1.0)?,
        update_transaction_us: alone(0.0)?,
        clock_us: clock_us(),
    };
    Ok((store, report))
}

/// What it takes to look at the clock.
fn clock_us() -> f64 {
    const LOOKS: u32 = 100_000;
    let begin = Instant::now();
    for _ in 0..LOOKS {
        std::hint::black_box(Instant::now());
    }
    begin.elapsed().as_nanos() as f64 / f64::from(LOOKS) / 1000.0
}
