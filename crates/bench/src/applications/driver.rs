//! Loads an application into a store, drives it, and has it check what is there afterwards.

use super::{
    Access, Application, ApplicationReport, ApplicationStore, Client, Interruption, TransactionFigure,
};
use crate::driver::{COUNTING, LiveCounts, OVER, WARMUP, Watcher};
use crate::report::latency_histogram;
use crate::{BenchError, Driver, Latency, Progress, Random};
use deuteron::RetryPolicy;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Rows in one transaction of the load.
const BATCH_ROWS: usize = 500;

/// What a run is at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ApplicationProgress {
    /// So many rows are loaded.
    Loading(u64),
    /// It is measured.
    Running(Progress),
    /// Its conditions are checked.
    Checking,
}

/// Loads `application` into the empty tables of `store`, drives it, and checks its conditions; a condition that is violated is in
/// the report, not an error. Commits in flight ([`Driver::in_flight`]) there are none: each thread waits for each.
///
/// # Errors
/// [`BenchError::Store`] if the store fails, [`BenchError::Settings`] for no thread.
///
/// ```
/// use deuteron::Durability;
/// use deuteron_bench::{Driver, EmbeddedApplicationStore, Voter, run_application};
/// use std::time::Duration;
/// # let scratch = tempfile::tempdir()?;
/// let voter = Voter::new(6);
/// let options = deuteron::Options::new().memory(64 << 20);
/// let store = EmbeddedApplicationStore::open(options, scratch.path(), Durability::None, &voter)?;
/// let driver = Driver { threads: 2, seconds: Duration::from_millis(50), ..Driver::default() };
/// let report = run_application(&voter, &store, &driver, &mut |_| {})?;
/// assert!(report.commits > 0 && report.holds());
/// # store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_application(
    application: &dyn Application,
    store: &dyn ApplicationStore,
    driver: &Driver,
    progress: &mut dyn FnMut(&ApplicationProgress),
) -> Result<ApplicationReport, BenchError> {
    if driver.threads == 0 {
        return Err(BenchError::Settings("threads are at least one".into()));
    }
    let begin = Instant::now();
    let rows = load(application, store, &mut |rows| progress(&ApplicationProgress::Loading(rows)))?;
    let load_seconds = begin.elapsed().as_secs_f64();
    let report = drive(application, store, driver, &mut |running| {
        progress(&ApplicationProgress::Running(*running));
    })?;
    progress(&ApplicationProgress::Checking);
    let conditions = application.check(store)?;
    Ok(ApplicationReport { rows, load_seconds, conditions, ..report })
}

/// Writes all rows, in batches; returns how many, once they are durable.
pub(super) fn load(
    application: &dyn Application,
    store: &dyn ApplicationStore,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, BenchError> {
    let mut batch: Vec<(usize, Vec<u8>, Vec<u8>)> = Vec::with_capacity(BATCH_ROWS);
    let mut rows = 0;
    application.rows(&mut |table, key, value| {
        batch.push((table, key.to_vec(), value.to_vec()));
        if batch.len() == BATCH_ROWS {
            write(store, &batch)?;
            rows += batch.len() as u64;
            batch.clear();
            progress(rows);
        }
        Ok(())
    })?;
    write(store, &batch)?;
    store.settle()?;
    Ok(rows + batch.len() as u64)
}

fn write(store: &dyn ApplicationStore, batch: &[(usize, Vec<u8>, Vec<u8>)]) -> Result<(), BenchError> {
    let mut tries = 1;
    loop {
        let written = store.transact(Access::Load, &mut |tx| {
            batch.iter().try_for_each(|(table, key, value)| tx.put(*table, key, value))
        });
        match written {
            Ok(()) => return Ok(()),
            // Nobody else is there, but an engine may want the memory of a transaction back first.
            Err(Interruption::Conflict(cause) | Interruption::RolledBack(cause)) => {
                tries += 1;
                if tries > RetryPolicy::default().attempts_max {
                    return Err(BenchError::store("load the rows")(cause));
                }
                RetryPolicy::default().pause(tries);
            }
            Err(Interruption::Failed(error)) => return Err(error),
        }
    }
}

/// Drives what is loaded; the report lacks the load and the conditions.
pub(super) fn drive(
    application: &dyn Application,
    store: &dyn ApplicationStore,
    driver: &Driver,
    progress: &mut dyn FnMut(&Progress),
) -> Result<ApplicationReport, BenchError> {
    let kinds = application.transactions();
    let phase = AtomicU8::new(WARMUP);
    let live: Vec<LiveCounts> = (0..driver.threads).map(|_| LiveCounts::default()).collect();
    let failure: Mutex<Option<BenchError>> = Mutex::new(None);
    let mut seeds = Random::new(driver.seed);
    let mut outcome = Outcome::new(kinds.len());
    let mut counted = Duration::ZERO;
    let mut processor = 0.0;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, live) in live.iter().enumerate() {
            let mut client = application.client(seeds.next_u64());
            let (phase, failure) = (&phase, &failure);
            threads.push(scope.spawn(move || {
                let mut outcome = Outcome::new(kinds.len());
                let ran = driver
                    .pin_thread(number)
                    .and_then(|()| run_thread(store, client.as_mut(), phase, live, &mut outcome));
                if let Err(error) = ran {
                    failure.lock().unwrap_or_else(|poison| poison.into_inner()).get_or_insert(error);
                    phase.store(OVER, Ordering::Relaxed);
                }
                outcome
            }));
        }
        let mut watcher = Watcher::new(&live, driver);
        watcher.watch_until(driver.warmup, &phase, progress);
        processor = crate::processor_seconds();
        let begin = Instant::now();
        // A thread that failed has ended the run already.
        let _ = phase.compare_exchange(WARMUP, COUNTING, Ordering::Relaxed, Ordering::Relaxed);
        watcher.watch_until(driver.warmup + driver.seconds, &phase, progress);
        phase.store(OVER, Ordering::Relaxed);
        counted = begin.elapsed();
        processor = crate::processor_seconds() - processor;
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
    let transactions: Vec<TransactionFigure> =
        kinds.iter().zip(&outcome.kinds).map(|((name, _), kind)| kind.figure(name)).collect();
    let sum = |of: fn(&TransactionFigure) -> u64| transactions.iter().map(of).sum::<u64>();
    let (commits, rolled_back) = (sum(|kind| kind.commits), sum(|kind| kind.rolled_back));
    let aborts = sum(|kind| kind.aborts);
    let mut latencies = latency_histogram();
    for kind in &outcome.kinds {
        latencies.add(&kind.latencies).expect("equal bounds");
    }
    Ok(ApplicationReport {
        application: application.name().into(),
        scale: application.scale(),
        engine: store.name().into(),
        isolation: store.isolation().into(),
        durability: store.durability().into(),
        threads: driver.threads,
        transactions_per_second: (commits + rolled_back) as f64 / counted.as_secs_f64(),
        commits_per_second: commits as f64 / counted.as_secs_f64(),
        commits,
        rolled_back,
        aborts,
        abort_rate: aborts as f64 / (commits + rolled_back + aborts).max(1) as f64,
        abort_causes: outcome.causes.iter().map(|(&cause, &count)| (cause.to_owned(), count)).collect(),
        latency_us: Latency::of_nanoseconds(&latencies),
        transactions,
        processor_seconds: processor,
        peak_rss_bytes: crate::peak_rss_bytes(),
        disk_bytes: store.figures().disk_bytes,
        ..ApplicationReport::default()
    })
}

/// What one thread counted.
struct Outcome {
    kinds: Vec<KindOutcome>,
    causes: BTreeMap<&'static str, u64>,
}

/// What it counted of one kind of transaction.
struct KindOutcome {
    commits: u64,
    rolled_back: u64,
    aborts: u64,
    latencies: Histogram<u64>,
}

impl Outcome {
    fn new(kinds: usize) -> Self {
        let kind = || KindOutcome { commits: 0, rolled_back: 0, aborts: 0, latencies: latency_histogram() };
        Self { kinds: std::iter::repeat_with(kind).take(kinds).collect(), causes: BTreeMap::new() }
    }

    fn add(&mut self, other: &Outcome) {
        for (kind, other) in self.kinds.iter_mut().zip(&other.kinds) {
            kind.commits += other.commits;
            kind.rolled_back += other.rolled_back;
            kind.aborts += other.aborts;
            // All histograms have the same constant bounds.
            kind.latencies.add(&other.latencies).expect("equal bounds");
        }
        for (cause, count) in &other.causes {
            *self.causes.entry(cause).or_default() += count;
        }
    }
}

impl KindOutcome {
    fn figure(&self, name: &str) -> TransactionFigure {
        let &Self { commits, rolled_back, aborts, ref latencies } = self;
        let latency_us = Latency::of_nanoseconds(latencies);
        TransactionFigure { name: name.into(), commits, rolled_back, aborts, latency_us }
    }
}

/// The loop of one thread.
fn run_thread(
    store: &dyn ApplicationStore,
    client: &mut dyn Client,
    phase: &AtomicU8,
    live: &LiveCounts,
    outcome: &mut Outcome,
) -> Result<(), BenchError> {
    let back_off = RetryPolicy::default();
    let (mut ended, mut aborts) = (0, 0);
    let mut begin = Instant::now();
    loop {
        let current = phase.load(Ordering::Relaxed);
        if current == OVER {
            return Ok(());
        }
        let counting = current == COUNTING;
        let number = client.draw();
        let kind = &mut outcome.kinds[number];
        let mut tries = 1;
        let committed = loop {
            match client.attempt(store) {
                Ok(()) => break true,
                Err(Interruption::RolledBack(_)) => break false,
                Err(Interruption::Conflict(cause)) => {
                    aborts += 1;
                    live.aborts.store(aborts, Ordering::Relaxed);
                    if counting {
                        kind.aborts += 1;
                        *outcome.causes.entry(cause).or_default() += 1;
                    }
                    if phase.load(Ordering::Relaxed) == OVER {
                        return Ok(());
                    }
                    tries += 1;
                    back_off.pause(tries);
                }
                Err(Interruption::Failed(error)) => return Err(error),
            }
        };
        let now = Instant::now();
        if counting {
            if committed {
                kind.commits += 1;
            } else {
                kind.rolled_back += 1;
            }
            kind.latencies.saturating_record((now - begin).as_nanos() as u64);
        }
        begin = now;
        ended += 1;
        live.commits.store(ended, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreFigures;
    use crate::applications::{ApplicationTransaction, Body, Condition, Emit, Order};
    use std::ops::Range;
    use std::sync::atomic::AtomicU64;

    /// Two kinds, in turns; the second is rolled back. Each is aborted once before.
    struct InTurns;

    struct Turns(usize, bool);

    impl Application for InTurns {
        fn name(&self) -> &'static str {
            "turns"
        }
        fn scale(&self) -> String {
            "two rows".into()
        }
        fn tables(&self) -> &'static [&'static str] {
            &["only"]
        }
        fn transactions(&self) -> &'static [(&'static str, u32)] {
            &[("kept", 50), ("given-up", 50)]
        }
        fn rows(&self, emit: Emit<'_>) -> Result<(), BenchError> {
            emit(0, b"a", b"1")?;
            emit(0, b"b", b"2")
        }
        fn client(&self, _: u64) -> Box<dyn Client + '_> {
            Box::new(Turns(0, false))
        }
        fn check(&self, _: &dyn ApplicationStore) -> Result<Vec<Condition>, BenchError> {
            Ok(vec![Condition { name: "order".into(), holds: false, found: "chaos".into() }])
        }
    }

    impl Client for Turns {
        fn draw(&mut self) -> usize {
            self.0 = 1 - self.0;
            self.0
        }
        fn attempt(&mut self, store: &dyn ApplicationStore) -> Result<(), Interruption> {
            self.1 = !self.1;
            let (aborts, gives_up) = (self.1, self.0 == 1);
            store.transact(Access::Write, &mut |_| match (aborts, gives_up) {
                (true, _) => Err(Interruption::Conflict("met")),
                (false, true) => Err(Interruption::RolledBack("funds")),
                (false, false) => Ok(()),
            })
        }
    }

    /// Counts what is put, and fails after so many transactions.
    struct Counting {
        puts: AtomicU64,
        left: AtomicU64,
    }

    struct Put<'a>(&'a AtomicU64);

    impl ApplicationTransaction for Put<'_> {
        fn get(&mut self, _: usize, _: &[u8], _: &mut dyn FnMut(&[u8])) -> Result<(), Interruption> {
            Ok(())
        }
        fn get_for_update(
            &mut self,
            _: usize,
            _: &[u8],
            _: &mut dyn FnMut(&[u8]),
        ) -> Result<(), Interruption> {
            Ok(())
        }
        fn put(&mut self, _: usize, _: &[u8], _: &[u8]) -> Result<(), Interruption> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        fn delete(&mut self, _: usize, _: &[u8]) -> Result<(), Interruption> {
            Ok(())
        }
        fn scan(
            &mut self,
            _: usize,
            _: Range<&[u8]>,
            _: Order,
            _: &mut dyn FnMut(&[u8], &[u8]) -> bool,
        ) -> Result<(), Interruption> {
            Ok(())
        }
    }

    impl ApplicationStore for Counting {
        fn name(&self) -> &'static str {
            "counting"
        }
        fn isolation(&self) -> &'static str {
            "none"
        }
        fn durability(&self) -> &'static str {
            "none"
        }
        fn transact(&self, _: Access, body: Body<'_>) -> Result<(), Interruption> {
            let enough = |left: u64| left.checked_sub(1);
            if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough).is_err() {
                return Err(BenchError::store("commit")("the disk is gone").into());
            }
            body(&mut Put(&self.puts))
        }
        fn settle(&self) -> Result<(), BenchError> {
            Ok(())
        }
        fn figures(&self) -> StoreFigures {
            StoreFigures { disk_bytes: 17, ..StoreFigures::default() }
        }
    }

    #[test]
    fn commits_rollbacks_and_aborts_are_told_apart_by_kind() {
        let store = Counting { puts: AtomicU64::new(0), left: AtomicU64::new(u64::MAX) };
        let driver = Driver { threads: 1, seconds: Duration::from_millis(50), ..Driver::default() };
        let once = || run_application(&InTurns, &store, &driver, &mut |_| {}).unwrap();
        // A busy machine may leave the thread without a turn for a while.
        let report = std::iter::repeat_with(once).find(|report| report.commits > 2).unwrap();
        let [kept, given_up] = &report.transactions[..] else { panic!("{report:?}") };
        assert_eq!((kept.rolled_back, given_up.commits), (0, 0));
        assert!(kept.commits.abs_diff(given_up.rolled_back) <= 1, "{report:?}");
        assert!(
            kept.aborts.abs_diff(kept.commits) <= 1 && given_up.aborts.abs_diff(given_up.rolled_back) <= 1
        );
        assert_eq!((report.commits, report.rolled_back), (kept.commits, given_up.rolled_back));
        assert_eq!(report.abort_causes["met"], report.aborts);
        assert!((0.4..0.6).contains(&report.abort_rate), "{report:?}");
        assert!(report.transactions_per_second > report.commits_per_second);
        assert_eq!((report.rows, report.disk_bytes, report.engine.as_str()), (2, 17, "counting"));
        assert!(!report.holds(), "the conditions are in the report");
    }

    #[test]
    fn a_failing_store_ends_the_run_with_its_error() {
        let store = Counting { puts: AtomicU64::new(0), left: AtomicU64::new(100) };
        let driver = Driver { seconds: Duration::from_secs(3600), ..Driver::default() };
        let error = run_application(&InTurns, &store, &driver, &mut |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "cannot commit");
        assert_eq!(store.puts.into_inner(), 2);
        let none = Driver { threads: 0, ..driver };
        let store = Counting { puts: AtomicU64::new(0), left: AtomicU64::new(1) };
        assert!(run_application(&InTurns, &store, &none, &mut |_| {}).is_err());
    }
}
