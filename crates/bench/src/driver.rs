//! The closed loop: threads that each keep a number of transactions in flight.
//!
//! A thread begins a transaction as soon as it may, commits it, and goes on; when as many commits as allowed
//! await their acknowledgement, it waits for the oldest. Latency runs from the begin of a transaction, repeats
//! after aborts included, to its acknowledgement. Counting starts after the warm-up; a transaction counts in the
//! phase in which it is acknowledged.

use crate::report::latency_histogram;
use crate::{
    BenchError, Generator, Latency, Loaded, Random, Report, Step, Store, Submitted, Worker, Workload,
};
use deuteron::{Processors, RetryPolicy};
use hdrhistogram::Histogram;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a workload is driven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Threads that run transactions.
    pub threads: usize,
    /// Commits of one thread that may await their acknowledgement.
    pub in_flight: usize,
    /// Runs this long before it counts.
    pub warmup: Duration,
    /// Counts this long.
    pub seconds: Duration,
    /// Sets all choices of keys and operations.
    pub seed: u64,
    /// Each thread runs on one of these processors; where the system puts it if there are none.
    pub pin: Option<Processors>,
}

impl Driver {
    /// Puts the calling thread, the one of this number, where it is to run.
    pub(crate) fn pin_thread(&self, number: usize) -> Result<(), BenchError> {
        let place = self.pin.as_ref().map(|processors| processors.nth(number));
        place
            .map_or(Ok(()), |place| place.pin_current_thread())
            .map_err(BenchError::store("pin a thread to a processor"))
    }
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            threads: 2,
            in_flight: 1,
            warmup: Duration::ZERO,
            seconds: Duration::from_secs(10),
            seed: 1,
            pin: None,
        }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Whether it still warms up.
    pub warming_up: bool,
    /// Since the beginning of the warm-up.
    pub elapsed: Duration,
    /// Warm-up and counted time together.
    pub total: Duration,
    /// Commits acknowledged since the last report.
    pub commits: u64,
    /// The time since the last report.
    pub interval: Duration,
    /// Aborts since the beginning.
    pub aborts: u64,
}

pub(crate) const WARMUP: u8 = 0;
pub(crate) const COUNTING: u8 = 1;
pub(crate) const OVER: u8 = 2;

/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// What a thread tells the others while it runs, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LiveCounts {
    pub commits: AtomicU64,
    pub aborts: AtomicU64,
}

/// Drives the workload and reports.
///
/// # Errors
/// [`BenchError::Store`] if the store fails, [`BenchError::Settings`] for impossible settings.
///
/// ```
/// use deuteron_bench::{Driver, Loaded, MapStore, Workload, run};
/// use std::time::Duration;
/// let driver = Driver { seconds: Duration::from_millis(20), ..Driver::default() };
/// let report = run(&MapStore::new(), &Workload::paper(100), &driver, Loaded::default(), &mut |_| {})?;
/// assert_eq!(report.engine, "map");
/// # Ok::<(), deuteron_bench::BenchError>(())
/// ```
pub fn run<S: Store>(
    store: &S,
    workload: &Workload,
    driver: &Driver,
    loaded: Loaded,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    if workload.records == 0 || workload.operations_per_transaction == 0 || driver.threads == 0 {
        return Err(BenchError::Settings("records, operations and threads are at least one".into()));
    }
    let phase = AtomicU8::new(WARMUP);
    let present = AtomicU64::new(workload.records);
    let live: Vec<LiveCounts> = (0..driver.threads).map(|_| LiveCounts::default()).collect();
    let failure: Mutex<Option<BenchError>> = Mutex::new(None);
    let mut seeds = Random::new(driver.seed);
    let mut outcome = ThreadOutcome::new();
    let mut counted = Duration::ZERO;
    let (mut processor, mut idle) = (0.0, 0.0);
    let mut written = (store.figures(), store.figures());
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, live) in live.iter().enumerate() {
            let generator = Generator::new(workload, &present, seeds.next_u64());
            let (phase, failure) = (&phase, &failure);
            threads.push(scope.spawn(move || {
                let mut thread = ThreadOutcome::new();
                let outcome = driver
                    .pin_thread(number)
                    .and_then(|()| run_thread(store, workload, driver, generator, phase, live, &mut thread));
                if let Err(error) = outcome {
                    failure.lock().unwrap_or_else(|poison| poison.into_inner()).get_or_insert(error);
                    phase.store(OVER, Ordering::Relaxed);
                }
                thread
            }));
        }
        let mut watcher = Watcher::new(&live, driver);
        watcher.watch_until(driver.warmup, &phase, progress);
        written.0 = store.figures();
        processor = crate::processor_seconds();
        idle = crate::idle_seconds();
        let begin = Instant::now();
        // A thread that failed has ended the run already.
        let _ = phase.compare_exchange(WARMUP, COUNTING, Ordering::Relaxed, Ordering::Relaxed);
        watcher.watch_until(driver.warmup + driver.seconds, &phase, progress);
        phase.store(OVER, Ordering::Relaxed);
        counted = begin.elapsed();
        processor = crate::processor_seconds() - processor;
        idle = crate::idle_seconds() - idle;
        written.1 = store.figures();
        for thread in threads {
            match thread.join() {
                Ok(thread) => outcome.add(&thread),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(|poison| poison.into_inner()) {
        return Err(error);
    }
    let rate = outcome.commits as f64 / counted.as_secs_f64();
    Ok(Report {
        engine: store.name().into(),
        records: workload.records,
        threads: driver.threads,
        durability: store.durability(),
        throughput_tps: rate,
        throughput_ops: outcome.operations as f64 / counted.as_secs_f64(),
        commits: outcome.commits,
        aborts: outcome.aborts.values().sum(),
        abort_causes: outcome.aborts.iter().map(|(&cause, &count)| (cause.to_owned(), count)).collect(),
        latency_us: Latency::of_nanoseconds(&outcome.latencies),
        processor_seconds: processor,
        transaction_seconds: outcome.processor_seconds,
        idle_seconds: idle,
        peak_rss_bytes: crate::peak_rss_bytes(),
        disk_bytes: written.1.disk_bytes,
        load_seconds: loaded.seconds,
        bytes_written_log: written.1.bytes_written_log - written.0.bytes_written_log,
        bytes_written_store: written.1.bytes_written_store - written.0.bytes_written_store,
        checkpoints: written.1.checkpoints - written.0.checkpoints,
    })
}

/// What one thread counted.
#[derive(Debug)]
struct ThreadOutcome {
    commits: u64,
    /// Of the transactions begun in the counted time.
    operations: u64,
    aborts: BTreeMap<&'static str, u64>,
    latencies: Histogram<u64>,
    /// Its processor time of the counted time.
    processor_seconds: f64,
}

impl ThreadOutcome {
    fn new() -> Self {
        Self {
            commits: 0,
            operations: 0,
            aborts: BTreeMap::new(),
            latencies: latency_histogram(),
            processor_seconds: 0.0,
        }
    }

    #[inline]
    fn commit(&mut self, latency: Duration) {
        self.commits += 1;
        self.latencies.saturating_record(latency.as_nanos() as u64);
    }

    fn add(&mut self, other: &ThreadOutcome) {
        self.commits += other.commits;
        self.operations += other.operations;
        self.processor_seconds += other.processor_seconds;
        for (cause, count) in &other.aborts {
            *self.aborts.entry(cause).or_default() += count;
        }
        // Both histograms have the same constant bounds.
        self.latencies.add(&other.latencies).expect("equal bounds");
    }
}

/// The loop of one thread.
fn run_thread<S: Store>(
    store: &S,
    workload: &Workload,
    driver: &Driver,
    mut generator: Generator<'_>,
    phase: &AtomicU8,
    live: &LiveCounts,
    outcome: &mut ThreadOutcome,
) -> Result<(), BenchError> {
    let mut worker = store.worker()?;
    let lookahead = worker.lookahead();
    let mut upcoming: VecDeque<Vec<Step>> = VecDeque::with_capacity(lookahead + 1);
    let mut steps: Vec<Step> = Vec::with_capacity(workload.operations_per_transaction);
    let mut value = vec![0; workload.value_bytes];
    Random::new(driver.seed).fill(&mut value);
    let mut pending = VecDeque::with_capacity(driver.in_flight);
    let (mut commits, mut aborts) = (0, 0);
    let back_off = RetryPolicy::default();
    let mut now = Instant::now();
    let mut counted_from = None;
    loop {
        let current = phase.load(Ordering::Relaxed);
        if current == OVER {
            break;
        }
        let counting = current == COUNTING;
        if counting && counted_from.is_none() {
            counted_from = Some(crate::own_seconds());
        }
        let begin = now;
        generator.transaction(&mut steps);
        if lookahead > 0 {
            worker.announce(&steps);
            upcoming.push_back(std::mem::take(&mut steps));
            if upcoming.len() <= lookahead {
                continue;
            }
            steps = upcoming.pop_front().expect("more than none");
        }
        let mut tries = 1;
        let commit = loop {
            match worker.submit(&steps, &mut value)? {
                Submitted::Acknowledged => break None,
                Submitted::Pending(commit) => break Some(commit),
                Submitted::Aborted(cause) => {
                    aborts += 1;
                    live.aborts.store(aborts, Ordering::Relaxed);
                    if counting {
                        *outcome.aborts.entry(cause).or_default() += 1;
                    }
                    if phase.load(Ordering::Relaxed) == OVER {
                        return drain(&mut worker, pending);
                    }
                    tries += 1;
                    back_off.pause(tries);
                }
            }
        };
        if counting {
            outcome.operations += steps.iter().filter(|step| **step != Step::Yield).count() as u64;
        }
        now = Instant::now();
        let mut acknowledged = |begin: Instant, now: Instant| {
            commits += 1;
            if counting {
                outcome.commit(now - begin);
            }
        };
        match commit {
            None => acknowledged(begin, now),
            Some(commit) => {
                pending.push_back((begin, commit));
                if pending.len() >= driver.in_flight.max(1)
                    && let Some((begin, commit)) = pending.pop_front()
                {
                    worker.wait(commit)?;
                    now = Instant::now();
                    acknowledged(begin, now);
                }
                // Commits become durable in order: whatever else is acknowledged is at the front.
                while let Some((begin, commit)) =
                    pending.pop_front_if(|(_, commit)| worker.is_acknowledged(commit))
                {
                    worker.wait(commit)?;
                    acknowledged(begin, now);
                }
            }
        }
        live.commits.store(commits, Ordering::Relaxed);
    }
    outcome.processor_seconds = counted_from.map_or(0.0, |before| crate::own_seconds() - before);
    drain(&mut worker, pending)
}

/// Waits for what is still in flight, uncounted.
fn drain<W: Worker>(worker: &mut W, pending: VecDeque<(Instant, W::Pending)>) -> Result<(), BenchError> {
    pending.into_iter().try_for_each(|(_, commit)| worker.wait(commit))
}

/// Looks at the live counts now and then.
pub(crate) struct Watcher<'a> {
    live: &'a [LiveCounts],
    begin: Instant,
    warmup: Duration,
    total: Duration,
    last: (Instant, u64),
}

impl<'a> Watcher<'a> {
    pub fn new(live: &'a [LiveCounts], driver: &Driver) -> Self {
        let begin = Instant::now();
        Self { live, begin, warmup: driver.warmup, total: driver.warmup + driver.seconds, last: (begin, 0) }
    }

    /// Reports until `end` after the beginning, or until a thread has ended the run.
    pub fn watch_until(&mut self, end: Duration, phase: &AtomicU8, progress: &mut dyn FnMut(&Progress)) {
        loop {
            let left = end.saturating_sub(self.begin.elapsed());
            if left.is_zero() || phase.load(Ordering::Relaxed) == OVER {
                return;
            }
            std::thread::sleep(left.min(PROGRESS_INTERVAL));
            let sum = |of: fn(&LiveCounts) -> &AtomicU64| {
                self.live.iter().map(|live| of(live).load(Ordering::Relaxed)).sum::<u64>()
            };
            let (now, commits) = (Instant::now(), sum(|live| &live.commits));
            progress(&Progress {
                warming_up: self.begin.elapsed() < self.warmup,
                elapsed: now - self.begin,
                total: self.total,
                commits: commits - self.last.1,
                interval: now - self.last.0,
                aborts: sum(|live| &live.aborts),
            });
            self.last = (now, commits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MapStore, StoreFigures};

    fn quick() -> Driver {
        Driver { seconds: Duration::from_millis(100), ..Driver::default() }
    }

    #[test]
    fn counts_and_times_what_it_drives() {
        let store = MapStore::new();
        let workload = Workload::paper(1_000);
        let mut seen = 0;
        let driver = Driver { warmup: Duration::from_millis(50), ..quick() };
        let report = run(&store, &workload, &driver, Loaded::default(), &mut |progress| {
            seen += 1;
            assert!(progress.total == Duration::from_millis(150));
        })
        .unwrap();
        assert!(seen >= 2);
        assert!(report.commits > 1_000, "{report:?}");
        assert!((report.throughput_ops / report.throughput_tps - 4.0).abs() < 1e-9);
        assert!(report.latency_us.p50 > 0.0 && report.latency_us.p50 <= report.latency_us.p99);
        assert!(report.latency_us.p999 <= report.latency_us.max);
        assert_eq!((report.threads, report.records), (2, 1_000));
        assert!(!cfg!(target_os = "linux") || report.transaction_seconds > 0.0, "{report:?}");
    }

    /// Acknowledges commits only when asked to wait, aborts every third transaction once, fails on demand.
    #[derive(Default)]
    struct Scripted {
        fail_after: u64,
        most_in_flight: AtomicU64,
        /// Where the workers were made.
        places: Mutex<Vec<Processors>>,
    }

    struct ScriptedWorker<'a> {
        store: &'a Scripted,
        submitted: u64,
        in_flight: u64,
    }

    impl Store for Scripted {
        type Worker<'a> = ScriptedWorker<'a>;
        fn name(&self) -> &'static str {
            "scripted"
        }
        fn durability(&self) -> String {
            "sync".into()
        }
        fn worker(&self) -> Result<ScriptedWorker<'_>, BenchError> {
            self.places.lock().unwrap().push(Processors::available().unwrap());
            Ok(ScriptedWorker { store: self, submitted: 0, in_flight: 0 })
        }
        fn loader(&self) -> Result<ScriptedWorker<'_>, BenchError> {
            self.worker()
        }
        fn loaded(&self) -> Result<Option<(u64, usize)>, BenchError> {
            Ok(Some((10, 100)))
        }
        fn settle(&self, _: u64, _: usize) -> Result<(), BenchError> {
            Ok(())
        }
        fn figures(&self) -> StoreFigures {
            StoreFigures::default()
        }
    }

    impl Worker for ScriptedWorker<'_> {
        type Pending = ();
        fn submit(&mut self, _: &[Step], _: &mut [u8]) -> Result<Submitted<()>, BenchError> {
            self.submitted += 1;
            if self.submitted > self.store.fail_after {
                return Err(BenchError::store("commit")("the disk is gone"));
            }
            if self.submitted.is_multiple_of(3) {
                return Ok(Submitted::Aborted("write-write"));
            }
            self.in_flight += 1;
            self.store.most_in_flight.fetch_max(self.in_flight, Ordering::Relaxed);
            Ok(Submitted::Pending(()))
        }
        fn is_acknowledged(&self, (): &()) -> bool {
            false
        }
        fn wait(&mut self, (): ()) -> Result<(), BenchError> {
            self.in_flight -= 1;
            Ok(())
        }
    }

    #[test]
    fn keeps_as_many_in_flight_as_asked_and_counts_aborts_by_cause() {
        let store = Scripted { fail_after: u64::MAX, ..Scripted::default() };
        let driver = Driver { in_flight: 16, ..quick() };
        let once = || run(&store, &Workload::paper(10), &driver, Loaded::default(), &mut |_| {}).unwrap();
        // A busy machine may leave the threads without a turn for a while.
        let mut reports = std::iter::repeat_with(once);
        let report = reports.find(|_| store.most_in_flight.load(Ordering::Relaxed) >= 16).unwrap();
        assert_eq!(store.most_in_flight.into_inner(), 16);
        let aborted = report.abort_causes["write-write"];
        assert_eq!(aborted, report.aborts);
        // Two commits to each abort, but for those in flight at either end.
        assert!((report.commits as i64 - 2 * aborted as i64).abs() < 100, "{report:?}");
    }

    #[test]
    fn threads_run_on_the_processors_that_they_are_given_each_on_one() {
        let pin = Processors::available().unwrap();
        let driver = Driver { threads: 3, pin: Some(pin.clone()), ..quick() };
        let store = Scripted { fail_after: u64::MAX, ..Scripted::default() };
        run(&store, &Workload::paper(10), &driver, Loaded::default(), &mut |_| {}).unwrap();
        let mut places = store.places.into_inner().unwrap();
        let mut expected: Vec<_> = (0..3).map(|number| pin.nth(number)).collect();
        places.sort_by_key(|place| place.numbers().to_vec());
        expected.sort_by_key(|place| place.numbers().to_vec());
        assert_eq!(places, expected);
        let nowhere = Driver { pin: Some([].into_iter().collect()), ..driver };
        let error = run(&MapStore::new(), &Workload::paper(10), &nowhere, Loaded::default(), &mut |_| {});
        assert!(error.unwrap_err().to_string().contains("pin a thread"));
    }

    #[test]
    fn a_failing_store_ends_the_run_with_its_error() {
        let store = Scripted { fail_after: 100, ..Scripted::default() };
        let driver = Driver { seconds: Duration::from_secs(3600), ..quick() };
        let error = run(&store, &Workload::paper(10), &driver, Loaded::default(), &mut |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "cannot commit");
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the disk is gone");
    }

    #[test]
    fn a_load_of_another_shape_is_refused_and_the_same_is_not_repeated() {
        let store = Scripted::default();
        let loaded = crate::load(&store, &Workload::paper(10), &quick(), &mut |_| {}).unwrap();
        assert_eq!(loaded.records, 0);
        let error = crate::load(&store, &Workload::paper(11), &quick(), &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("holds 10 records"), "{error}");
    }
}
