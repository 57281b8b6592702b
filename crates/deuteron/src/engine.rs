//! The engine: transaction component, proxy and data component wired together, and the log between them.
//!
//! ```text
//!   Transaction ── tc ── log ── (stable buffers) ── proxy ── dc
//!                  └──────────── reads that miss ────────────┘
//! ```
//!
//! The engine owns the order of things that no component can know: recovery at open, the checkpoint that lets the
//! log be cut, waiting, poisoning, and closing.

use crate::background::{Signals, Threads};
use crate::backup::BackupReport;
use crate::catalogue::Catalogue;
use crate::delay::Delay;
use crate::history::History;
use crate::record::Recorder;
use crate::recovery::{Beside, RecoveryPlan};
use crate::shares::{Shares, Taken};
use crate::stall_host::StallHost;
use crate::statistics::{AbortCounters, Waits};
use crate::superblock::{self, Superblock};
use crate::{Background, Compaction, Durability, Duty, Error, Options, Stats, recovery};
use deuteron_archive::{ArchiveWriter, Beginning};
use deuteron_canary::{Canary, is_planted};
use deuteron_contract::{DataComponent, DcError, Lsn, Timestamp};
use deuteron_dc::{BwTreeDc, StoreFile};
use deuteron_device::{Directory, with_causes};
use deuteron_epoch::Epochs;
use deuteron_log::{Log, LogError};
use deuteron_pool::{Part, idle_bytes};
use deuteron_proxy::Proxy;
use deuteron_tc::{TcError, TransactionComponent};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// How long a stalled operation sleeps before it looks again by itself.
const STALL: Duration = Duration::from_millis(1);

/// While records are in the way of others, what is stable is posted as often as this.
const POST_UNTIDY: Duration = Duration::from_millis(500);

/// The number of the next opening.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// The parts of an open database. See the [module](self).
pub struct Engine {
    parts: Parts,
    options: Options,
    shares: Shares,
    /// When the proxy was last hurried for the sake of records that are in the way.
    hurried: Mutex<Option<Instant>>,
    recorder: Option<Arc<Recorder>>,
    catalogue: Catalogue,
    aborts: AbortCounters,
    signals: Arc<Signals>,
    delay: Delay,
    history: History,
    stopping: AtomicBool,
    halted: AtomicBool,
    /// Set once; why no more work is accepted.
    poison: OnceLock<String>,
    /// The log position of the last completed checkpoint.
    checkpoint: AtomicU64,
    /// One checkpoint at a time.
    checkpointing: Mutex<()>,
    /// One compaction at a time, and none behind the end.
    compacting: Mutex<()>,
    threads: Mutex<Threads>,
    directory: Arc<dyn Directory>,
    number: u64,
    /// Given back last.
    _lock: Box<dyn Send + Sync>,
}

/// What recovery hands over.
pub struct Parts {
    pub superblock: Superblock,
    pub epochs: Arc<Epochs>,
    pub log: Arc<Log>,
    pub tc: Arc<TransactionComponent>,
    pub proxy: Proxy,
    pub proxy_host: Arc<Beside>,
    pub dc: Arc<BwTreeDc>,
    pub host: Arc<StallHost>,
    pub recovery: RecoveryPlan,
}

/// Within this time a commit is written that nobody waits for yet. Long enough for a hundred others to be written with it where there are so
/// many; about what a device takes to write.
const TICKET_WINDOW: Duration = Duration::from_micros(500);

impl Engine {
    /// Takes the lock, creates or recovers, starts the background duties.
    pub fn open(directory: Arc<dyn Directory>, options: Options) -> Result<Arc<Engine>, Error> {
        // Before the lock, which would leave its file in a directory that is none of ours.
        if Superblock::read(directory.as_ref())?.is_none() && !options.create_if_missing {
            return Err(Error::NotFound { path: directory.name() });
        }
        let lock = directory.lock().map_err(|error| match error.is_locked() {
            true => Error::InUse { path: directory.name() },
            false => Error::device("lock the directory")(error),
        })?;
        if let Some(path) = options.history.as_deref().filter(|path| path.exists()) {
            return Err(Error::Exists { path: path.display().to_string() });
        }
        let signals = Arc::new(Signals::default());
        let parts = recovery::open(&directory, &options, &signals)?;
        let history = options.history.clone();
        let recorder = history.as_deref().map(Recorder::create).transpose()?;
        // One that is there already is refused: what fails from here on leaves none.
        Engine::start(directory, lock, options, signals, parts, recorder).inspect_err(|_| {
            let _ = history.map(std::fs::remove_file);
        })
    }

    fn start(
        directory: Arc<dyn Directory>,
        lock: Box<dyn Send + Sync>,
        options: Options,
        signals: Arc<Signals>,
        parts: Parts,
        recorder: Option<Arc<Recorder>>,
    ) -> Result<Arc<Engine>, Error> {
        let checkpoint = parts.dc.recovered_redo_scan_start_point();
        let engine = Arc::new(Engine {
            parts,
            catalogue: Catalogue::default(),
            aborts: AbortCounters::default(),
            signals,
            delay: Delay::new(directory.now()),
            history: History::new(options.retention),
            stopping: AtomicBool::new(false),
            halted: AtomicBool::new(false),
            poison: OnceLock::new(),
            checkpoint: AtomicU64::new(checkpoint.0),
            checkpointing: Mutex::default(),
            compacting: Mutex::default(),
            threads: Mutex::default(),
            directory,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            _lock: lock,
            shares: Shares::of(&options),
            hurried: Mutex::new(None),
            recorder,
            options,
        });
        engine.parts.host.attach(&engine);
        // Step 6: nothing is acknowledged before the clock's next ceiling is stable.
        engine.parts.tc.log_clock_ceiling().map_err(|error| engine.error(error))?;
        engine.flush_here()?;
        if engine.options.background == Background::Threads {
            let start = || Threads::start(&engine);
            *engine.threads() = match &engine.options.background_processors {
                None => start()?,
                // Threads inherit where they may run from who starts them.
                Some(processors) => processors.run(start)?,
            };
        }
        // What cannot be done now, for want of room say, is done at a later opening.
        let _ = Catalogue::finish_drops(&engine);
        Ok(engine)
    }

    /// Who takes down what transactions do, if somebody does.
    pub fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.recorder.as_ref()
    }

    /// The time on the machine that has the database.
    pub fn now(&self) -> Instant {
        self.directory.now()
    }

    /// An error if the database is closed or poisoned.
    pub fn usable(&self) -> Result<(), Error> {
        if let Some(reason) = self.poison.get() {
            return Err(Error::Poisoned { reason: reason.clone() });
        }
        if self.is_stopping() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Whether [`Engine::close`] has been called, or the engine was poisoned.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Tells the duties to end.
    pub fn halt(&self) {
        self.halted.store(true, Ordering::Release);
        self.signals.raise_all();
    }

    /// Whether the duties have been told to end: after [`Engine::is_stopping`], when nobody waits for them any more.
    pub fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Acquire)
    }

    /// Stops all work for good: `error` has made the state of the device unknown.
    pub fn poison(&self, error: &Error) {
        let reason = match error {
            Error::Poisoned { reason } => reason.clone(),
            other => with_causes(other),
        };
        drop(self.poison.set(reason));
        self.signals.raise_all();
    }

    pub fn tc(&self) -> &Arc<TransactionComponent> {
        &self.parts.tc
    }

    pub fn dc(&self) -> &Arc<BwTreeDc> {
        &self.parts.dc
    }

    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// The transaction component's error as the user's.
    pub fn error(&self, error: TcError) -> Error {
        self.aborts.count(&error);
        Error::from_tc(error, |table| self.catalogue.name_of(table))
    }

    /// A transaction has been aborted since its deadline has passed.
    pub fn note_deadline(&self) {
        self.aborts.count_deadline();
    }

    /// What recovery found and did when the database was opened.
    pub fn recovery(&self) -> &RecoveryPlan {
        &self.parts.recovery
    }

    /// How long callers have waited.
    pub fn waits(&self) -> &Waits {
        &self.parts.host.waits
    }

    /// Sizes, counters and times of all components.
    pub fn stats(&self) -> Stats {
        let Parts { epochs, log, tc, proxy, proxy_host, dc, .. } = &self.parts;
        let mut stats = Stats::of(
            &log.statistics(),
            log.write_times(),
            &tc.statistics(),
            self.waits(),
            &proxy.statistics(),
            dc.statistics(),
        );
        let helped = proxy_host.helped().as_micros() as u64;
        stats.counters.push(("proxy.helpers_microseconds".into(), helped));
        stats.memory_bytes += epochs.garbage_bytes();
        stats.memory_budget_bytes = self.options.memory_bytes as u64;
        stats.transactions.aborts_by_cause = self.aborts.by_cause(stats.transactions.aborts);
        stats
    }

    /// The number of this opening in the process: what tells its tables from others'. (A backup that was restored has the identity of what it is of, and tables
    /// that were dropped are known to those who were there.)
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn durability(&self) -> Durability {
        self.options.durability
    }

    /// The signal that the background duty `name` sleeps on.
    pub fn signal_of(&self, name: &str) -> &crate::signal::Signal {
        match name {
            "flusher" => &self.signals.flush,
            "waker" => &self.signals.wake,
            "proxy" => &self.signals.stable,
            "keeper" => &self.signals.keep,
            _ => &self.signals.checkpoint,
        }
    }

    // ---- durability -----------------------------------------------------------------------------------------

    /// Everything below this is on stable storage.
    pub fn stable_lsn(&self) -> Lsn {
        self.parts.log.stable_lsn()
    }

    /// A transaction has committed with its record at `record`: sees to it that it becomes durable as promised.
    pub fn committed(&self, record: Lsn, durability: Durability) {
        // As in `flushes_itself`: also without a promise all that has been acknowledged is written when the database is closed.
        fence(Ordering::SeqCst);
        if self.is_stopping() {
            // Nobody will look at a window any more. What fails is told to who waits, and to who opens the database again.
            drop(self.wait_stable(record));
            return;
        }
        let window = match durability {
            Durability::Sync if self.options.background == Background::Inline => return self.hurry(record),
            // Who waits for it will hurry it.
            Durability::Sync => TICKET_WINDOW,
            Durability::Delayed(window) => window,
            Durability::None => return,
        };
        if self.delay.open(window, || self.now()) {
            self.signals.flush.raise();
        }
    }

    /// Asks for `record` to be made durable as soon as the device is free.
    pub fn hurry(&self, record: Lsn) {
        self.parts.log.request_flush(Lsn(record.0 + 1));
        self.signals.flush.raise();
    }

    /// Asks for everything appended so far to be made durable.
    pub fn request_flush_of_all(&self) {
        self.parts.log.request_flush(self.parts.log.tail_lsn());
    }

    /// Blocks until `record` is stable.
    pub fn wait_stable(&self, record: Lsn) -> Result<(), Error> {
        if self.stable_lsn() > record {
            return Ok(());
        }
        let begun = self.now();
        let outcome = self.wait_unstable(record);
        self.waits().stable.record_time(self.now() - begun);
        outcome
    }

    fn wait_unstable(&self, record: Lsn) -> Result<(), Error> {
        self.hurry(record);
        self.poisoned()?;
        if self.flushes_itself() {
            return self.flush_to(Lsn(record.0 + 1));
        }
        self.parts.log.wait_stable(record).map_err(Error::from)
    }

    /// Whether who waits for the log has to write it: there are no threads that do it, or they end.
    ///
    /// Of one who appends and then asks here, and one who closes (says so, then writes what has been appended), one sees what the other has done.
    fn flushes_itself(&self) -> bool {
        fence(Ordering::SeqCst);
        self.options.background == Background::Inline || self.is_stopping()
    }

    /// The same for a future, whose `waker` the waker's thread calls.
    pub fn poll_stable(&self, record: Lsn, waker: &Waker) -> Poll<Result<(), Error>> {
        self.poll_stable_with(record, |log| log.poll_stable(record, waker))
    }

    /// The same for a thread that parks, and may give up waiting.
    pub fn poll_stable_parking(&self, record: Lsn) -> Poll<Result<(), Error>> {
        self.poll_stable_with(record, |log| log.poll_stable_parking(record))
    }

    fn poll_stable_with(
        &self,
        record: Lsn,
        poll: impl FnOnce(&Log) -> Poll<Result<(), LogError>>,
    ) -> Poll<Result<(), Error>> {
        if self.stable_lsn() > record {
            return Poll::Ready(Ok(()));
        }
        if self.flushes_itself() {
            return Poll::Ready(self.wait_stable(record));
        }
        self.hurry(record);
        poll(&self.parts.log).map_err(Error::from)
    }

    /// Makes everything appended so far durable.
    pub fn flush(&self) -> Result<(), Error> {
        let end = self.parts.log.tail_lsn();
        if self.stable_lsn() >= end {
            return Ok(());
        }
        self.wait_stable(Lsn(end.0 - 1))
    }

    fn poisoned(&self) -> Result<(), Error> {
        match self.poison.get() {
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    // ---- waiting --------------------------------------------------------------------------------------------

    /// Whether the duties have threads of their own, or are done by whoever waits.
    pub fn has_threads(&self) -> bool {
        self.options.background == Background::Threads
    }

    /// An operation cannot go on before something has been written, posted or freed.
    pub fn stalled(&self) -> Result<(), Error> {
        self.poisoned()?;
        // While the database closes, its threads are gone already.
        if self.options.background == Background::Inline || self.is_stopping() {
            self.request_flush_of_all();
            return self.step().map(drop);
        }
        let observed = self.signals.room.observe();
        self.request_flush_of_all();
        self.signals.flush.raise();
        self.signals.stable.raise();
        self.signals.keep.raise();
        // Where pages are short of memory, everything waits for flushes, and these for what they must read.
        if !self.step_or_poison(self.parts.dc.help_step().map_err(Error::from))? {
            self.signals.room.wait(observed, STALL);
        }
        self.poisoned()
    }

    // ---- background duties ----------------------------------------------------------------------------------

    /// One round of all duties on the calling thread.
    pub fn step(&self) -> Result<bool, Error> {
        let mut worked = false;
        for duty in Duty::ALL {
            worked |= self.step_of(duty)?;
        }
        Ok(worked)
    }

    /// One step of one duty on the calling thread.
    pub fn step_of(&self, duty: Duty) -> Result<bool, Error> {
        self.step_or_poison(match duty {
            Duty::Flush => {
                self.end_delay();
                self.flush_step()
            }
            Duty::Post => self.proxy_step(),
            Duty::Keep => self.keeper_step(),
            Duty::Checkpoint => self.checkpoint_step(),
        })
    }

    fn step_or_poison<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            self.poison(error);
        }
        result
    }

    /// Asks for everything to be written if the window of delayed commits has ended. How long until it will.
    pub fn end_delay(&self) -> Option<Duration> {
        let due = self.delay.due_in(self.now())?;
        if due.is_zero() {
            self.delay.restart();
            self.request_flush_of_all();
            return None;
        }
        Some(due)
    }

    /// Writes one log buffer if somebody asked for it or one is full.
    pub fn flush_step(&self) -> Result<bool, Error> {
        let worked = self.parts.log.flush_step()?;
        if worked {
            if self.parts.proxy.is_round_due(self.stable_lsn()) {
                self.signals.stable.raise();
            }
            self.signals.room.raise();
            if self.parts.log.has_tasks_to_wake() {
                self.signals.wake.raise();
            }
        }
        Ok(worked)
    }

    /// Wakes the tasks whose commits are durable by now, or never will be.
    pub fn wake_step(&self) -> bool {
        self.parts.log.wake_step()
    }

    /// Lets the proxy take one stable buffer, or post a round of them.
    pub fn proxy_step(&self) -> Result<bool, Error> {
        let worked = self.parts.proxy.step(self.parts.log.as_ref())?;
        if worked {
            self.signals.room.raise();
            if self.checkpoint_is_due() {
                self.signals.checkpoint.raise();
            }
        }
        Ok(worked)
    }

    /// One round of version collection, page flushing and eviction, and reclamation.
    pub fn keeper_step(&self) -> Result<bool, Error> {
        self.history.step(&self.parts.tc, || self.now());
        let mut worked = self.parts.dc.maintain_step()?;
        self.balance_memory();
        self.hurry_for_untidy();
        self.unpin_log();
        worked |= self.parts.tc.collect_step();
        worked |= self.parts.log.recycle_step();
        worked |= self.parts.epochs.collect() > 0;
        if worked {
            self.signals.room.raise();
        }
        Ok(worked)
    }

    /// Aborts writers that have kept the log from being cut for too long; they are told, and may try again.
    fn unpin_log(&self) {
        let tail = self.parts.log.tail_lsn().0;
        let limit = Lsn(tail.saturating_sub(self.options.writer_log_bytes_max()));
        if self.parts.proxy.redo_scan_start_point() < limit
            && self.parts.tc.oldest_writer().is_some_and(|first| first < limit)
        {
            self.parts.tc.abort_writers_before(limit);
        }
    }

    /// Lets pages have room whatever their tables take, partly of the transaction component's; and that, and what waits for its old readers, the memory that
    /// neither takes; and both what is seen to be left.
    fn balance_memory(&self) {
        if self.options.sizes.is_some() {
            return;
        }
        let tables = self.parts.dc.tables_bytes();
        let (tc, dc) = (self.parts.tc.memory_bytes(), self.parts.dc.memory_bytes() + tables);
        let proxy = self.parts.proxy.statistics();
        let waiting = proxy.waiting_list_bytes;
        let counted = tc + dc + waiting + proxy.side_buffer_bytes + self.parts.epochs.garbage_bytes();
        let idle = idle_bytes(Part::Records, tc) + idle_bytes(Part::Pages, dc);
        let taken = Taken {
            // What comes and goes leaves as much idle sooner or later.
            all: counted + idle.max(counted / 8),
            tc: self.parts.tc.memory_budget_taken(),
            dc: self.parts.dc.memory_budget_taken(),
            dc_wanted: self.parts.dc.memory_budget_wanted(),
        };
        self.shares.settle(taken, self.directory.now());
        self.parts.dc.set_memory_budget(self.shares.dc_budget(tables));
        self.parts.proxy.set_waiting_list_bytes_max(Shares::waiting(self.shares.tc_budget(dc, tables, 0)));
        self.parts.tc.set_memory_budget(self.shares.tc_budget(dc, tables, waiting));
    }

    /// Has what is stable posted sooner while records are in the way of others: what is not posted cannot leave, and lies in nearly every span.
    fn hurry_for_untidy(&self) {
        if self.parts.tc.is_untidy() {
            let now = self.directory.now();
            let mut hurried = self.hurried.lock().unwrap_or_else(PoisonError::into_inner);
            if hurried.is_none_or(|last| now >= last + POST_UNTIDY) {
                *hurried = Some(now);
                self.signals.stable.raise();
            }
        }
    }

    fn checkpoint_is_due(&self) -> bool {
        let applied = self.parts.proxy.redo_scan_start_point().0;
        applied.saturating_sub(self.checkpoint.load(Ordering::Acquire)) >= self.options.checkpoint_log_bytes
    }

    /// Takes a checkpoint if enough log lies behind the last one.
    pub fn checkpoint_step(&self) -> Result<bool, Error> {
        if !self.checkpoint_is_due() {
            return Ok(false);
        }
        // Who takes a checkpoint may have to wait for room in the log, and while it waits do all duties, on this very thread.
        let one_at_a_time = match self.checkpointing.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        self.step_or_poison(self.checkpoint_here(&one_at_a_time))?;
        Ok(true)
    }

    /// Takes a checkpoint now.
    pub fn checkpoint(&self) -> Result<(), Error> {
        let one_at_a_time = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
        self.step_or_poison(self.checkpoint_here(&one_at_a_time))
    }

    /// RSSP to the data component, then the log before it is cut.
    fn checkpoint_here(&self, _one_at_a_time: &MutexGuard<'_, ()>) -> Result<(), Error> {
        let start = self.parts.proxy.redo_scan_start_point();
        if start.0 <= self.checkpoint.load(Ordering::Acquire) {
            return Ok(());
        }
        // The clock's ceiling must survive the cut: it goes into the part of the log that stays.
        if !is_planted(Canary::CutCeiling) {
            self.parts.tc.log_clock_ceiling().map_err(|error| self.error(error))?;
        }
        match self.options.background {
            Background::Threads if !self.is_stopping() => self.flush()?,
            _ => self.flush_here()?,
        }
        self.parts.dc.redo_scan_start_point(start)?;
        self.checkpoint.store(start.0, Ordering::Release);
        self.parts.log.truncate(start)?;
        Ok(())
    }

    /// Runs `work`, which makes the store stable by itself, while no checkpoint and no backup goes on.
    pub fn without_checkpoints<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let _one_at_a_time = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
        work()
    }

    fn compacting(&self) -> MutexGuard<'_, ()> {
        self.compacting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings disk use down to what the live data need. Bytes of the files before and after.
    pub fn compact(&self) -> Result<Compaction, Error> {
        let disk_bytes = || self.stats().disk_bytes;
        let before_bytes = disk_bytes();
        // What has been deleted is to be forgotten where it may be.
        self.checkpoint()?;
        // Checkpoints go on: it takes long, and the log is to be cut meanwhile.
        let _one_at_a_time = self.compacting();
        self.usable()?;
        match self.parts.dc.compact() {
            // Pages that cannot be read: all else has been done. Or there was no room for more: nothing is lost, and what was done is done.
            Err(left @ (DcError::Corrupt { .. } | DcError::DiskFull { .. })) => return Err(left.into()),
            compacted => self.step_or_poison(compacted.map_err(Error::from))?,
        }
        Ok(Compaction { before_bytes, after_bytes: disk_bytes() })
    }

    // ---- backup ---------------------------------------------------------------------------------------------

    /// Copies the database as of a moment after the call into an archive. Writers go on; checkpoints wait, and so does what would
    /// remove files. The store is copied before the log: nothing is in the store whose log is not stable by then, so that the copy is
    /// what a crash would leave at the moment to which the log reaches. What is copied of the log is read and checked before.
    pub fn backup(&self, shelf: &dyn Directory, name: &str) -> Result<BackupReport, Error> {
        self.flush()?;
        let one_at_a_time = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut archive = ArchiveWriter::create(shelf, name)?;
        let hold = self.parts.dc.hold_files()?;
        for StoreFile { name, bytes, length } in hold.files().iter().cloned() {
            archive.copy(self.directory.as_ref(), &Beginning { name, bytes, length })?;
        }
        let start = self.parts.dc.recovered_redo_scan_start_point();
        let log_end = self.stable_lsn();
        // A log that has lost its end looks like one that never had it. What is lost on the way to the copy shows when that is opened.
        self.parts.log.verify(start)?;
        for (name, bytes, length) in self.parts.log.files(start) {
            archive.copy(self.directory.as_ref(), &Beginning { name, bytes, length })?;
        }
        drop((hold, one_at_a_time));
        // Last, as it says that the database is whole.
        let own = Superblock { log_reaches: log_end, ..self.parts.superblock };
        archive.add(superblock::FILE, &own.file())?;
        Ok(BackupReport::new(archive.finish()?, log_end))
    }

    // ---- closing --------------------------------------------------------------------------------------------

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flushes, posts everything, takes a checkpoint, stops. Only the first call does anything; those that come later wait for it, and hear if it
    /// has failed.
    pub fn close(&self) -> Result<(), Error> {
        let mut threads = self.threads();
        if self.stopping.swap(true, Ordering::AcqRel) {
            return self.poisoned();
        }
        fence(Ordering::SeqCst);
        self.signals.raise_all();
        threads.join(self);
        let _no_more = self.compacting();
        // Those who wait for the log wait for nothing else: neither for pages that cannot be written, nor in vain.
        let flushed = self.flush_here();
        self.wake_step();
        self.poisoned()?;
        flushed?;
        // From here on this thread does the duties' last rounds. Others only write what they append before they see that the database is closed.
        self.parts.tc.retain_from(Timestamp::MAX);
        while self.step_or_poison(self.proxy_step())? {}
        self.checkpoint()?;
        self.recorder.as_ref().map_or(Ok(()), |recorder| recorder.flush())
    }

    /// Makes everything appended so far durable on the calling thread.
    fn flush_here(&self) -> Result<(), Error> {
        self.flush_to(self.parts.log.tail_lsn())
    }

    /// Makes everything below `end` durable on the calling thread, or waits for another that is at it.
    fn flush_to(&self, end: Lsn) -> Result<(), Error> {
        self.parts.log.request_flush(end);
        while self.stable_lsn() < end {
            if !self.step_or_poison(self.flush_step())? {
                // Another does, or a writer has not finished yet.
                thread::yield_now();
            }
        }
        Ok(())
    }
}
