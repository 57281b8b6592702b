//! Opening: create or recover. `docs/design/recovery.md` has the crash analysis of each step.

use crate::background::Signals;
use crate::engine::Parts;
use crate::observed::Observed;
use crate::replay::{replay, round_bytes_max};
use crate::shares::Shares;
use crate::stall_host::{self, StallHost};
use crate::superblock::Superblock;
use crate::{Background, Error, Options};
use deuteron_contract::{DataComponent, DcError, Lsn, Timestamp};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::{Directory, OsDirectory, OverlayDirectory};
use deuteron_epoch::Epochs;
use deuteron_log::{LogError, LogOpening, LogOptions, LogSalvage, ReadMemory};
use deuteron_proxy::{Progress, Proxy, ProxyHost};
use deuteron_tc::{TcOptions, TransactionComponent};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// What recovery found, and did (or, as the answer of [`recovery_plan`], would do).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryPlan {
    /// Where redo starts: the log position up to which the data component was stable.
    pub redo_start: Lsn,
    /// Where the valid log ends.
    pub log_end: Lsn,
    /// Log buffers replayed.
    pub buffers: u64,
    /// Records in them.
    pub records: u64,
    /// Committed transactions in them.
    pub transactions_committed: u64,
    /// Operations posted to the data component.
    pub operations_posted: u64,
    /// Operations dropped, because their transactions did not commit.
    pub operations_dropped: u64,
    /// How long it took, from the lock to the first transaction.
    pub duration: Duration,
}

/// Steps 2 to 7 of opening; the caller holds the lock.
pub fn open(
    directory: &Arc<dyn Directory>,
    options: &Options,
    signals: &Arc<Signals>,
) -> Result<Parts, Error> {
    let begin = directory.now();
    let superblock = match Superblock::read(directory.as_ref())? {
        Some(superblock) => {
            refuse_without_store(directory)?;
            superblock
        }
        None if options.create_if_missing => {
            let superblock = Superblock::new(directory.as_ref());
            superblock.create(directory.as_ref())?;
            superblock
        }
        None => return Err(Error::NotFound { path: directory.name() }),
    };
    let shares = Shares::of(options);
    let epochs = Epochs::new();
    let sizes = match &options.sizes {
        Some(sizes) => sizes.dc.clone(),
        None => DcOptions { memory_bytes: shares.dc(), ..DcOptions::default() },
    };
    let percent = options.space_amplification_percent.unwrap_or(sizes.space_amplification_percent_max);
    let dc_options =
        DcOptions { compress: options.compress, space_amplification_percent_max: percent, ..sizes };
    let log_options = match &options.sizes {
        Some(sizes) => sizes.log.clone(),
        None => LogOptions {
            ring_bytes: shares.log(),
            buffer_bytes_max: LogOptions::default().buffer_bytes_max.min(shares.log() / 4),
            ..LogOptions::default()
        },
    };
    // What is as small as possible is so here, too.
    let replay_bytes = if options.sizes.is_some() { 0 } else { shares.replay_bytes() };
    let open_dc = || BwTreeDc::open(Arc::clone(directory), Arc::clone(&epochs), dc_options);
    let (dc, read_memory) = match options.background {
        Background::Inline => (open_dc()?, None),
        Background::Threads => open_beside(open_dc, directory.as_ref(), &log_options, replay_bytes)?,
    };
    let redo_start = dc.recovered_redo_scan_start_point();
    // What the pages depend on must be there, or transactions would be there in part; and all that a backup had.
    let needed = redo_start..dc.recovered_end_of_stable_log().max(superblock.log_reaches);
    let mut opening = LogOpening::new(Arc::clone(directory), &log_options, needed)?;
    if let Some(memory) = read_memory {
        opening.read_into(memory);
    }
    let dc_for_proxy: Arc<dyn DataComponent> = Arc::clone(&dc) as _;
    let proxy_options = proxy_options(options, &shares);
    let (log, recovery, mut report) =
        replay(opening, Arc::clone(&epochs), &dc_for_proxy, options, proxy_options.clone(), replay_bytes)?;
    let dc_for_proxy = match &options.observer {
        None => dc_for_proxy,
        Some(observer) => Arc::new(Observed::new(dc_for_proxy, Arc::clone(observer))),
    };
    let log = Arc::new(log);
    let host = Arc::new(StallHost::new(Arc::clone(signals)));
    let tc_options = match &options.sizes {
        Some(sizes) => sizes.tc.clone(),
        None => {
            TcOptions { memory_bytes: shares.tc_budget(shares.dc(), 0, 0) as usize, ..TcOptions::default() }
        }
    };
    let tc_options = TcOptions {
        // What the data component does not take is not to be committed: neither it nor what comes behind it could ever be posted.
        key_bytes_max: tc_options.key_bytes_max.min(dc.key_bytes_max()),
        value_bytes_max: dc.value_bytes_max().min(options.value_bytes_max()),
        log_bytes_max: options.writer_log_bytes_max(),
        // The log may have lost its end, and with it how far the clock had come.
        clock_start: recovery.latest().max(dc.recovered_newest_timestamp()),
        retains: !options.retention.is_zero(),
        concurrency_control: options.concurrency_control,
        ..tc_options
    };
    let tc = TransactionComponent::open(
        tc_options,
        Arc::clone(&log),
        Arc::clone(&dc_for_proxy),
        Arc::clone(&epochs),
        Arc::clone(&host) as _,
    )
    .map_err(|error| Error::from_tc(error, |table| table.to_string()))?;
    let tc = Arc::new(tc);
    let processors = match options.background {
        Background::Inline => 1,
        Background::Threads => thread::available_parallelism().map_or(1, usize::from),
    };
    let proxy_host = Arc::new(Beside {
        tc: Arc::clone(&tc),
        signals: Arc::clone(signals),
        processors,
        helped_nanoseconds: AtomicU64::new(0),
    });
    let proxy = Proxy::new(dc_for_proxy, Arc::clone(&proxy_host) as _, proxy_options, recovery.tail());
    report.duration = directory.now() - begin;
    Ok(Parts { superblock, epochs, log, tc, proxy, proxy_host, dc, host, recovery: report })
}

/// The store is made before the log and has an image from then on. Where there is none, but a log, it is lost, and a new one would have nothing of what the log
/// no longer holds, or never has, as tables that were loaded.
fn refuse_without_store(directory: &Arc<dyn Directory>) -> Result<(), Error> {
    let names = directory.list().map_err(Error::device("list the directory"))?;
    let is_left = |name: &String| !name.ends_with(".spare") && !name.ends_with(".tmp");
    let mut left = names.iter().filter(|name| name.starts_with("store-") && is_left(name));
    if left.next().is_some() || !names.iter().any(|name| name.starts_with("log-")) {
        return Ok(());
    }
    let log = LogSalvage::scan(Arc::clone(directory))?;
    match log.buffers() {
        0 => Ok(()),
        buffers => Err(Error::Corrupt {
            file: "store-image".into(),
            offset: 0,
            expected: "an image of the store beside the log".into(),
            found: format!("no file of a store, and {buffers} buffers of the log"),
        }),
    }
}

/// Opens the data component, which one processor does, and takes memory meanwhile into which the log will be read, if it is long.
fn open_beside(
    open_dc: impl FnOnce() -> Result<Arc<BwTreeDc>, DcError>,
    directory: &dyn Directory,
    log_options: &LogOptions,
    replay_bytes: u64,
) -> Result<(Arc<BwTreeDc>, Option<ReadMemory>), Error> {
    let is_open = AtomicBool::new(false);
    thread::scope(|scope| {
        let memory = thread::Builder::new().spawn_scoped(scope, || {
            let mut memory = ReadMemory::new(directory, log_options, 2 * round_bytes_max(replay_bytes))?;
            while memory.grow() {
                // Relaxed: a hint.
                if is_open.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok::<_, LogError>(memory)
        });
        let dc = open_dc();
        is_open.store(true, Ordering::Relaxed);
        // Where the system gives no thread the log is read into memory that is taken then.
        let Ok(memory) = memory else { return Ok((dc?, None)) };
        let memory = memory.join().unwrap_or_else(|panic| resume_unwind(panic));
        Ok((dc?, Some(memory?)))
    })
}

/// More operations a batch does not profit by, and each takes seventy bytes that nobody counts.
const BATCH_OPERATIONS_MAX: usize = 1 << 20;

fn proxy_options(options: &Options, shares: &Shares) -> deuteron_proxy::Options {
    if let Some(sizes) = &options.sizes {
        return sizes.proxy.clone();
    }
    let side = options.memory_bytes / 64;
    // The more comes at once, the more operations share a page, and the more are superseded. But what is not posted yet cannot leave the
    // ring, and while a round is posted appenders need the other half.
    let lag_bytes = shares.log() / 2;
    let batch_operations_max = deuteron_proxy::Options::default().batch_operations_max;
    deuteron_proxy::Options {
        side_buffer_bytes_max: side.min(64 << 20),
        waiting_list_bytes_max: Shares::waiting(shares.tc_budget(shares.dc(), 0, 0)),
        waiting_log_bytes_max: options.writer_log_bytes_max(),
        lag_bytes: lag_bytes as u64,
        // A round is one batch, unless its operations are shorter than is common.
        batch_operations_max: batch_operations_max.max((lag_bytes / 64).min(BATCH_OPERATIONS_MAX)),
    }
}

/// What recovering the database in `path` would find and do. Nothing is changed: the recovery is done for real, over a
/// copy in memory of every block that it writes.
///
/// # Errors
/// As [`Options::open`].
///
/// ```
/// # let scratch = tempfile::tempdir()?;
/// # let path = scratch.path().join("a.db");
/// deuteron::Db::open(&path)?.close()?;
/// let plan = deuteron::recovery_plan(&path)?;
/// assert_eq!(plan.operations_posted, 0, "it was closed cleanly");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn recovery_plan(path: impl AsRef<Path>) -> Result<RecoveryPlan, Error> {
    let engine = open_overlay(path.as_ref())?;
    Ok(engine.recovery().clone())
}

/// [`recovery_plan`] of a directory of the caller's making.
///
/// # Errors
/// As [`Options::open`].
///
/// ```
/// use deuteron::{Options, device::MemoryDirectory, recovery_plan_in};
/// use std::sync::Arc;
/// let directory = Arc::new(MemoryDirectory::new());
/// Options::new().memory(32 << 20).open_in(directory.clone())?.close()?;
/// assert_eq!(recovery_plan_in(directory)?.operations_posted, 0);
/// # Ok::<(), deuteron::Error>(())
/// ```
pub fn recovery_plan_in(directory: Arc<dyn Directory>) -> Result<RecoveryPlan, Error> {
    Ok(open_overlay_in(directory)?.recovery().clone())
}

/// Opens the database in `path` over an overlay: the files are only read.
pub fn open_overlay(path: &Path) -> Result<Arc<crate::engine::Engine>, Error> {
    if !path.is_dir() {
        return Err(Error::NotFound { path: path.display().to_string() });
    }
    let real = OsDirectory::open_existing(path).map_err(Error::device("open the directory"))?;
    open_overlay_in(Arc::new(real))
}

/// The same of a directory of the caller's making.
pub fn open_overlay_in(directory: Arc<dyn Directory>) -> Result<Arc<crate::engine::Engine>, Error> {
    let overlay = OverlayDirectory::new(directory);
    let options = Options::new().create_if_missing(false).background(Background::Inline);
    crate::engine::Engine::open(Arc::new(overlay), options)
}

/// The proxy's host where TC and DC are in one process: the transaction component itself.
pub struct Beside {
    tc: Arc<TransactionComponent>,
    signals: Arc<Signals>,
    /// Of the database's own threads at most so many post; 1 if it has none.
    processors: usize,
    /// The processors' time of those who have helped the proxy's own thread.
    helped_nanoseconds: AtomicU64,
}

impl Beside {
    /// How long threads beside the proxy's own have had a processor for posting.
    pub fn helped(&self) -> Duration {
        Duration::from_nanos(self.helped_nanoseconds.load(Ordering::Relaxed))
    }
}

impl ProxyHost for Beside {
    fn horizon(&self) -> Timestamp {
        self.tc.horizon()
    }

    fn force_horizon(&self, at_least: Timestamp) {
        self.tc.force_horizon(at_least);
    }

    fn progress(&self, progress: Progress) {
        self.tc.report_progress(progress.t_lsn, progress.o_lsn, progress.posted);
    }

    /// The proxy's own, and one for each that waits for room meanwhile: its processor has nothing else to do.
    fn threads(&self) -> usize {
        (1 + self.signals.room.sleepers()).min(self.processors)
    }

    fn on_threads(&self, work: &(dyn Fn() + Sync)) {
        let help = || {
            work();
            // The thread has done nothing else.
            let time = stall_host::processor_time().unwrap_or_default();
            self.helped_nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        };
        thread::scope(|scope| {
            // Where the system gives no thread, there is one less.
            (1..self.threads()).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, help)));
            work();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_room_has_the_proxy_post_by_one_thread_more() {
        let directory: Arc<dyn Directory> = Arc::new(deuteron_device::MemoryDirectory::new());
        let signals = Arc::new(Signals::default());
        let parts = open(&directory, &Options::new().memory(16 << 20), &signals).unwrap();
        let beside = Beside {
            tc: parts.tc,
            signals: Arc::clone(&signals),
            processors: 3,
            helped_nanoseconds: AtomicU64::new(0),
        };
        let threads = || {
            let met = std::sync::Mutex::new(std::collections::HashSet::new());
            beside.on_threads(&|| assert!(met.lock().unwrap().insert(thread::current().id())));
            met.into_inner().unwrap().len()
        };
        assert_eq!(threads(), 1);
        let observed = signals.room.observe();
        let wait = || signals.room.wait(observed, Duration::from_secs(60));
        thread::scope(|scope| {
            for waiting in 1..4 {
                scope.spawn(wait);
                while signals.room.sleepers() < waiting {
                    thread::yield_now();
                }
                assert_eq!(threads(), (1 + waiting).min(3));
            }
            // A sleeper that is counted may not sleep yet.
            signals.room.raise();
        });
        assert_eq!((threads(), signals.room.sleepers()), (1, 0));
        assert!(beside.helped() > Duration::ZERO);
    }
}
