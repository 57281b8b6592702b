//! [`TransactionComponent`]: what the facade holds.

use crate::core::Core;
use crate::error::TcError;
use crate::host::Host;
use crate::lookahead::Lookahead;
use crate::options::{BeginOptions, TcOptions};
use crate::statistics::TcStatistics;
use crate::sync::Ordering;
use crate::transaction::Transaction;
use crate::version_manager::VersionManager;
use deuteron_contract::{DataComponent, Lsn, TableId, Timestamp};
use deuteron_epoch::Epochs;
use deuteron_log::Log;
use std::sync::Arc;

/// The transaction component. See the [crate](crate).
///
/// Dropping it leaves active transactions as they are; they can still be ended.
pub struct TransactionComponent {
    pub(crate) core: Arc<Core>,
}

impl TransactionComponent {
    /// A component over a log and a data component, with an empty table: everything before
    /// [`TcOptions::clock_start`] is at the data component, or in the log before its tail and will be posted before any
    /// transaction begins.
    ///
    /// # Errors
    /// [`TcError::Options`] for options with which no transaction would come to its end; [`TcError::Append`] if the log has stopped.
    pub fn open(
        options: TcOptions,
        log: Arc<Log>,
        data_component: Arc<dyn DataComponent>,
        epochs: Arc<Epochs>,
        host: Arc<dyn Host>,
    ) -> Result<TransactionComponent, TcError> {
        options.validate()?;
        let versions = VersionManager::new(log, data_component);
        let core = Arc::new(Core::new(options, versions, epochs, host));
        core.renew_ceiling()?;
        Ok(TransactionComponent { core })
    }

    /// Begins a strictly serializable transaction.
    #[inline]
    pub fn begin(&self) -> Transaction {
        self.begin_with(BeginOptions::default())
    }

    /// Begins a transaction.
    #[inline]
    pub fn begin_with(&self, options: BeginOptions) -> Transaction {
        Transaction::new(self.core.pool.take(&self.core), options)
    }

    /// A place to announce the keys of transactions to come, for one thread.
    pub fn lookahead(&self) -> Lookahead {
        Lookahead::new(&self.core)
    }

    /// Begins a read-only transaction that sees what was committed at `at` and before, and nothing later.
    ///
    /// # Errors
    /// [`TcError::NotRetained`] if `at` is in the future, or further back than versions are kept.
    ///
    /// ```
    /// # use deuteron_contract::{Lsn, MemoryDc, TableId, Timestamp};
    /// # use deuteron_device::MemoryDirectory;
    /// # use deuteron_epoch::Epochs;
    /// # use deuteron_log::{Log, LogOptions};
    /// # use deuteron_tc::{Host, Stall, TcError, TcOptions, TransactionComponent};
    /// # use std::sync::Arc;
    /// # struct Flusher(Arc<Log>);
    /// # impl Host for Flusher {
    /// #     fn stalled(&self, _: Stall) -> Result<(), String> {
    /// #         self.0.flush_step().map(drop).map_err(|error| error.to_string())
    /// #     }
    /// # }
    /// # let (epochs, directory) = (Epochs::new(), Arc::new(MemoryDirectory::new()));
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs.clone(), Lsn(0)..Lsn(0))?;
    /// # let log = Arc::new(log);
    /// # let (host, dc) = (Arc::new(Flusher(log.clone())), Arc::new(MemoryDc::new()));
    /// # let options = TcOptions { retains: true, ..TcOptions::tiny_for_tests() };
    /// # let tc = TransactionComponent::open(options, log, dc, epochs, host)?;
    /// # let table = TableId(1);
    /// let mut tx = tc.begin();
    /// tx.put(table, b"apples", b"12")?;
    /// tx.commit()?;
    /// let then = tc.now();
    /// let mut tx = tc.begin();
    /// tx.delete(table, b"apples")?;
    /// tx.commit()?;
    /// let mut past = tc.begin_as_of(then)?;
    /// assert_eq!(past.get(table, b"apples")?.as_deref(), Some(&b"12"[..]));
    /// assert!(matches!(tc.begin_as_of(Timestamp::MAX), Err(TcError::NotRetained { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_as_of(&self, at: Timestamp) -> Result<Transaction, TcError> {
        Transaction::new_as_of(self.core.pool.take(&self.core), at)
    }

    /// The clock's present: every commit so far is at or before it, and none after a restart.
    ///
    /// ```
    /// # use deuteron_contract::{Lsn, MemoryDc, TableId, Timestamp};
    /// # use deuteron_device::MemoryDirectory;
    /// # use deuteron_epoch::Epochs;
    /// # use deuteron_log::{Log, LogOptions};
    /// # use deuteron_tc::{Host, Stall, TcError, TcOptions, TransactionComponent};
    /// # use std::sync::Arc;
    /// # struct Flusher(Arc<Log>);
    /// # impl Host for Flusher {
    /// #     fn stalled(&self, _: Stall) -> Result<(), String> {
    /// #         self.0.flush_step().map(drop).map_err(|error| error.to_string())
    /// #     }
    /// # }
    /// # let (epochs, directory) = (Epochs::new(), Arc::new(MemoryDirectory::new()));
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs.clone(), Lsn(0)..Lsn(0))?;
    /// # let log = Arc::new(log);
    /// # let (host, dc) = (Arc::new(Flusher(log.clone())), Arc::new(MemoryDc::new()));
    /// # let options = TcOptions { retains: true, ..TcOptions::tiny_for_tests() };
    /// # let tc = TransactionComponent::open(options, log, dc, epochs, host)?;
    /// # let table = TableId(1);
    /// let mut tx = tc.begin();
    /// tx.put(table, b"apples", b"12")?;
    /// assert!(tx.commit()?.timestamp <= tc.now());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now(&self) -> Timestamp {
        self.core.clock.present()
    }

    /// The earliest timestamp at which [`TransactionComponent::begin_as_of`] reads; [`Timestamp::MAX`] if the past is not
    /// kept.
    ///
    /// ```
    /// # use deuteron_contract::{Lsn, MemoryDc, TableId, Timestamp};
    /// # use deuteron_device::MemoryDirectory;
    /// # use deuteron_epoch::Epochs;
    /// # use deuteron_log::{Log, LogOptions};
    /// # use deuteron_tc::{Host, Stall, TcError, TcOptions, TransactionComponent};
    /// # use std::sync::Arc;
    /// # struct Flusher(Arc<Log>);
    /// # impl Host for Flusher {
    /// #     fn stalled(&self, _: Stall) -> Result<(), String> {
    /// #         self.0.flush_step().map(drop).map_err(|error| error.to_string())
    /// #     }
    /// # }
    /// # let (epochs, directory) = (Epochs::new(), Arc::new(MemoryDirectory::new()));
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs.clone(), Lsn(0)..Lsn(0))?;
    /// # let log = Arc::new(log);
    /// # let (host, dc) = (Arc::new(Flusher(log.clone())), Arc::new(MemoryDc::new()));
    /// # let options = TcOptions { retains: true, ..TcOptions::tiny_for_tests() };
    /// # let tc = TransactionComponent::open(options, log, dc, epochs, host)?;
    /// # let table = TableId(1);
    /// assert!(tc.retained_from() <= tc.now());
    /// tc.retain_from(Timestamp::MAX);
    /// assert_eq!(tc.retained_from(), Timestamp::MAX, "nothing of the past");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retained_from(&self) -> Timestamp {
        self.core.retained_from()
    }

    /// Versions that are visible before `at` only need not be kept any longer for transactions in the past.
    /// [`Timestamp::MAX`] gives up all of the past, for good.
    ///
    /// ```
    /// # use deuteron_contract::{Lsn, MemoryDc, TableId, Timestamp};
    /// # use deuteron_device::MemoryDirectory;
    /// # use deuteron_epoch::Epochs;
    /// # use deuteron_log::{Log, LogOptions};
    /// # use deuteron_tc::{Host, Stall, TcError, TcOptions, TransactionComponent};
    /// # use std::sync::Arc;
    /// # struct Flusher(Arc<Log>);
    /// # impl Host for Flusher {
    /// #     fn stalled(&self, _: Stall) -> Result<(), String> {
    /// #         self.0.flush_step().map(drop).map_err(|error| error.to_string())
    /// #     }
    /// # }
    /// # let (epochs, directory) = (Epochs::new(), Arc::new(MemoryDirectory::new()));
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs.clone(), Lsn(0)..Lsn(0))?;
    /// # let log = Arc::new(log);
    /// # let (host, dc) = (Arc::new(Flusher(log.clone())), Arc::new(MemoryDc::new()));
    /// # let options = TcOptions { retains: true, ..TcOptions::tiny_for_tests() };
    /// # let tc = TransactionComponent::open(options, log, dc, epochs, host)?;
    /// # let table = TableId(1);
    /// let mut tx = tc.begin();
    /// tx.put(table, b"apples", b"12")?;
    /// tx.commit()?;
    /// let then = tc.now();
    /// tc.retain_from(Timestamp(then.0 + 1));
    /// assert!(matches!(tc.begin_as_of(then), Err(TcError::NotRetained { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retain_from(&self, at: Timestamp) {
        self.core.retention.raise(at);
    }

    /// Says that `table` is about to be dropped, for good. To be called before the data component drops it, which may then have less of
    /// the table than what has been posted: from now on reads of it fail with [`TcError::TableDropped`], and transactions that have read it
    /// and must commit later than they began with a conflict, [`ConflictCause::TableDropped`](crate::ConflictCause::TableDropped).
    ///
    /// ```
    /// # use deuteron_contract::{MemoryDc, TableId};
    /// # use deuteron_device::MemoryDirectory;
    /// # use deuteron_epoch::Epochs;
    /// # use deuteron_log::{Log, LogOptions};
    /// # use deuteron_tc::{Host, Stall, TcOptions, TransactionComponent};
    /// # use std::sync::Arc;
    /// # struct Nobody;
    /// # impl Host for Nobody {
    /// #     fn stalled(&self, _: Stall) -> Result<(), String> { Err("nobody works".into()) }
    /// # }
    /// # let epochs = Epochs::new();
    /// # let directory = Arc::new(MemoryDirectory::new());
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs.clone(), deuteron_contract::Lsn(0)..deuteron_contract::Lsn(0))?;
    /// # let dc = Arc::new(MemoryDc::new());
    /// # let options = TcOptions { clock_lease: 1 << 20, ..TcOptions::tiny_for_tests() };
    /// # let Ok(tc) = TransactionComponent::open(options, Arc::new(log), dc, epochs, Arc::new(Nobody)) else { return Ok(()) };
    /// tc.drop_table(TableId(7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drop_table(&self, table: TableId) {
        self.core.drop_table(table);
    }

    // ---- the proxy ------------------------------------------------------------------------------------------

    /// The proxy may post a version only if its final timestamp is below the horizon: then every transaction, active or yet to
    /// begin, sees it or something newer.
    pub fn horizon(&self) -> Timestamp {
        self.core.horizon()
    }

    /// The proxy's report: every operation with an LSN below `o_lsn`, a commit record below `t_lsn` and a final timestamp
    /// below `posted` has been applied.
    pub fn report_progress(&self, t_lsn: Lsn, o_lsn: Lsn, posted: Timestamp) {
        self.core.versions.report_progress(t_lsn, o_lsn, posted);
    }

    // ---- background duties ----------------------------------------------------------------------------------

    /// Changes the budget that [`TcOptions::memory_bytes`](crate::TcOptions) gave, and counts anew what lies idle among records and versions and is taken
    /// from it. What is above the new one is evicted by and by; the number of the hash table's buckets stays.
    pub fn set_memory_budget(&self, bytes: u64) {
        self.core.account.set_budget(bytes);
    }

    /// Bytes that records, versions and the index take.
    pub fn memory_bytes(&self) -> u64 {
        self.core.account.used()
    }

    /// The budget with which the collector would just have nothing to evict, in bytes: for what is in use, and what lies idle.
    pub fn memory_budget_taken(&self) -> u64 {
        self.core.account.budget_taken()
    }

    /// Whether records shall leave that are in the way of others, though there is room for as much. Those that wait to be posted cannot, and keep what lies around them from being
    /// of use to anybody else.
    ///
    /// ```
    /// # fn example(tc: &deuteron_tc::TransactionComponent) {
    /// if tc.is_untidy() {
    ///     // Have the proxy post what is stable, however little.
    /// }
    /// # }
    /// ```
    pub fn is_untidy(&self) -> bool {
        self.core.account.is_untidy()
    }

    /// The budget now, in bytes, but for what lies idle.
    pub fn memory_budget(&self) -> u64 {
        self.core.account.budget()
    }

    /// One unit of background work: leases timestamps, settles records that the data component has got, drops versions
    /// and evicts records when memory is short. Whether there was anything to do.
    pub fn collect_step(&self) -> bool {
        self.core.collect_step()
    }

    /// Moves the horizon to `at_least`, at most to the present, past transactions that are older, because what they hold back
    /// is too much. Their next read that has to ask the data component fails with
    /// [`crate::ConflictCause::SnapshotTooOld`].
    pub fn force_horizon(&self, at_least: Timestamp) {
        self.core.force_horizon(at_least);
    }

    /// Aborts every active transaction whose first log record lies before `lsn`, so that the log can be cut there; how many.
    pub fn abort_writers_before(&self, lsn: Lsn) -> usize {
        self.core.abort_writers_before(lsn)
    }

    /// The first log record of the transaction that has been writing for the longest, if any is writing.
    pub fn oldest_writer(&self) -> Option<Lsn> {
        self.core.transactions.slots().filter_map(|slot| slot.first_lsn()).min()
    }

    /// Logs the clock's ceiling anew. To be called, and the log flushed, before the log is cut: the record that stated the
    /// ceiling may be in what goes.
    ///
    /// # Errors
    /// [`TcError::Append`] if the log has stopped, [`TcError::Stopped`] if the host says so.
    pub fn log_clock_ceiling(&self) -> Result<Lsn, TcError> {
        self.core.log_ceiling()
    }

    // ---- looking on -----------------------------------------------------------------------------------------

    /// What the component says of itself.
    pub fn statistics(&self) -> TcStatistics {
        let mut statistics = self.core.counters.statistics();
        let clock = self.core.clock.last();
        let oldest = self.core.find_oldest_active();
        statistics.memory_bytes = self.core.account.used()
            + (self.core.transactions.bytes() + self.core.announcements.bytes()) as u64;
        statistics.memory_target_bytes = self.core.account.target();
        statistics.memory_budget_bytes = self.core.account.budget();
        statistics.collection_nanoseconds = self.core.collection_nanoseconds.load(Ordering::Relaxed);
        statistics.clock = clock.0;
        statistics.oldest_active_lag = clock.0.saturating_sub(oldest.0);
        let core = &self.core;
        statistics.buckets_lost = core.table.buckets_lost.count();
        statistics.versions_lost = core.table.versions_lost.count();
        statistics.read_timestamps_lost = core.table.read_timestamps_lost.count();
        statistics.statuses_lost = core.transactions.lost.count();
        statistics.queues_lost = core.index.lost.count();
        statistics.ranges_lost = core.ranges.lost.count();
        statistics.workspaces_lost = core.pool.lost.count();
        statistics.turnstile_lost = core.turnstile.lost.count();
        statistics
    }
}

impl Drop for TransactionComponent {
    fn drop(&mut self) {
        self.core.pool.close();
    }
}
