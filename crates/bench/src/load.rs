//! Filling a store before it is measured.

use crate::{BenchError, Driver, Random, Step, Store, Submitted, Worker, Workload};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Records in one transaction of the load.
const BATCH_RECORDS: u64 = 256;

/// Transactions that a loading thread lets run ahead of their acknowledgement.
const IN_FLIGHT: usize = 64;

/// How far a load is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadProgress {
    /// Records written.
    pub records: u64,
    /// Records to write in all.
    pub total: u64,
    /// Since the beginning.
    pub elapsed: Duration,
}

/// The outcome of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loaded {
    /// How long it took until everything was durable; 0 if the records were there already.
    pub seconds: f64,
    /// Records written; 0 if they were there already.
    pub records: u64,
}

/// Writes the records of the workload in key order, in batches, each thread its own stretch of the keys; returns
/// once they are durable. Does nothing if the store remembers the same load.
///
/// # Errors
/// [`BenchError::Store`]; [`BenchError::Settings`] if the store holds a load of another shape.
///
/// ```
/// use deuteron_bench::{Driver, MapStore, Workload, load};
/// let loaded = load(&MapStore::new(), &Workload::paper(5_000), &Driver::default(), &mut |_| {})?;
/// assert_eq!(loaded.records, 5_000);
/// # Ok::<(), deuteron_bench::BenchError>(())
/// ```
pub fn load<S: Store>(
    store: &S,
    workload: &Workload,
    driver: &Driver,
    progress: &mut dyn FnMut(&LoadProgress),
) -> Result<Loaded, BenchError> {
    let (records, value_bytes) = (workload.records, workload.value_bytes);
    if records == 0 {
        return Err(BenchError::Settings("a workload needs at least one record".into()));
    }
    match store.loaded()? {
        Some(found) if found == (records, value_bytes) => return Ok(Loaded::default()),
        Some((found, found_bytes)) => {
            return Err(BenchError::Settings(format!(
                "the store holds {found} records of {found_bytes} bytes, not {records} of {value_bytes}; \
                 ask for those or give another directory"
            )));
        }
        None => {}
    }
    let begin = Instant::now();
    let threads = driver.threads.max(1) as u64;
    let written = AtomicU64::new(0);
    let running = AtomicU64::new(threads);
    let failed = AtomicBool::new(false);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (written, running, failed, failure) = (&written, &running, &failed, &failure);
            let keys = records * thread / threads..records * (thread + 1) / threads;
            scope.spawn(move || {
                if let Err(error) = load_keys(store, keys, value_bytes, written, failed) {
                    failed.store(true, Ordering::Relaxed);
                    failure.lock().unwrap_or_else(|poison| poison.into_inner()).get_or_insert(error);
                }
                running.fetch_sub(1, Ordering::Release);
            });
        }
        while running.load(Ordering::Acquire) > 0 {
            std::thread::sleep(Duration::from_millis(10));
            let records = written.load(Ordering::Relaxed);
            progress(&LoadProgress { records, total: workload.records, elapsed: begin.elapsed() });
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(|poison| poison.into_inner()) {
        return Err(error);
    }
    store.settle(records, value_bytes)?;
    Ok(Loaded { seconds: begin.elapsed().as_secs_f64(), records })
}

/// One thread's stretch of the keys.
fn load_keys<S: Store>(
    store: &S,
    keys: std::ops::Range<u64>,
    value_bytes: usize,
    written: &AtomicU64,
    failed: &AtomicBool,
) -> Result<(), BenchError> {
    let mut worker = store.loader()?;
    let mut value = vec![0; value_bytes];
    Random::new(keys.start).fill(&mut value);
    let mut steps = Vec::with_capacity(BATCH_RECORDS as usize);
    let mut pending = VecDeque::with_capacity(IN_FLIGHT);
    let mut next = keys.start;
    while next < keys.end && !failed.load(Ordering::Relaxed) {
        let end = keys.end.min(next + BATCH_RECORDS);
        steps.clear();
        steps.extend((next..end).map(Step::Insert));
        match worker.submit(&steps, &mut value)? {
            Submitted::Acknowledged => {}
            Submitted::Pending(commit) => pending.push_back(commit),
            Submitted::Aborted(_) => continue,
        }
        if pending.len() >= IN_FLIGHT
            && let Some(commit) = pending.pop_front()
        {
            worker.wait(commit)?;
        }
        written.fetch_add(end - next, Ordering::Relaxed);
        next = end;
    }
    pending.into_iter().try_for_each(|commit| worker.wait(commit))
}
