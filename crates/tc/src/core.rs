//! What all transactions share, and the small decisions that everything else is built of: appending with stalls, the horizon,
//! the clock's ceiling, making room.

use crate::clock::Clock;
use crate::error::TcError;
use crate::fence::Fence;
use crate::host::{Host, Stall};
use crate::memory::Account;
use crate::mvcc_table::MvccTable;
use crate::options::TcOptions;
use crate::ordered_index::OrderedIndex;
use crate::range_timestamps::RangeTimestamps;
use crate::record::{REMOVED, Record, VISITED_AHEAD, prefetch};
use crate::retention::Retention;
use crate::statistics::{Counter, Counters};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, Padded, lock};
use crate::transaction_table::TransactionTable;
use crate::turnstile::Turnstile;
use crate::version::{PRUNED, Version};
use crate::version_manager::VersionManager;
use crate::workspace::Pool;
use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};
use deuteron_epoch::Epochs;
use deuteron_log::{AppendError, Record as LogRecord};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Rounds of waiting for memory before an operation gives up.
const MEMORY_ROUNDS_MAX: usize = 10_000;
/// After so many of them the horizon is forced.
const MEMORY_ROUNDS_PATIENT: usize = 16;

/// A renewal of the clock's ceiling that is on its way to the disk.
struct Renewal {
    lsn: Lsn,
    ceiling: Timestamp,
}

/// See the [module](self).
pub(crate) struct Core {
    pub(crate) options: TcOptions,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) versions: VersionManager,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) clock: Clock,
    pub(crate) transactions: TransactionTable,
    pub(crate) table: MvccTable,
    pub(crate) index: OrderedIndex,
    pub(crate) ranges: RangeTimestamps,
    pub(crate) account: Arc<Account>,
    pub(crate) pool: Pool,
    pub(crate) counters: Counters,
    /// The oldest active transaction as it was computed last: a lower bound of what it is.
    oldest_active: Padded<AtomicU64>,
    /// R11: readers below it may find their versions gone.
    forced_horizon: AtomicU64,
    /// R15.
    pub(crate) fence: Fence,
    /// R17.
    pub(crate) retention: Retention,
    /// R23.
    pub(crate) turnstile: Turnstile,
    renewal: Mutex<Option<Renewal>>,
    /// Aborted transactions that the log has not been told of, for it was full.
    pub(crate) untold_aborts: Mutex<Vec<TransactionId>>,
    /// R24: tables that the data component has nothing of any more, whatever versions say.
    dropped_tables: Mutex<BTreeSet<TableId>>,
    /// The bits of their identifiers modulo 64.
    dropped_bits: Padded<AtomicU64>,
    /// Where the collector's sweep goes on.
    pub(crate) clock_hand: AtomicUsize,
}

impl Core {
    pub(crate) fn new(
        options: TcOptions,
        versions: VersionManager,
        epochs: Arc<Epochs>,
        host: Arc<dyn Host>,
    ) -> Core {
        // Lengths of keys are kept in 16 bits, here and in the log.
        let options =
            TcOptions { key_bytes_max: options.key_bytes_max.min(usize::from(u16::MAX)), ..options };
        let account = Arc::new(Account::new(options.memory_bytes as u64));
        let table = MvccTable::new(options.buckets(), options.hash_seed, Arc::clone(&account));
        account.add(table.fixed_bytes());
        Core {
            clock: Clock::new(options.clock_start),
            transactions: TransactionTable::new(),
            table,
            index: OrderedIndex::new(Arc::clone(&account)),
            ranges: RangeTimestamps::new(options.range_timestamps),
            account,
            pool: Pool::new(),
            counters: Counters::new(),
            oldest_active: Padded(AtomicU64::new(0)),
            forced_horizon: AtomicU64::new(0),
            fence: Fence::new(),
            retention: Retention::new(options.retains, options.clock_start),
            turnstile: Turnstile::new(),
            renewal: Mutex::new(None),
            untold_aborts: Mutex::new(Vec::new()),
            dropped_tables: Mutex::new(BTreeSet::new()),
            dropped_bits: Padded(AtomicU64::new(0)),
            clock_hand: AtomicUsize::new(0),
            options,
            epochs,
            versions,
            host,
        }
    }

    // ---- waiting --------------------------------------------------------------------------------------------

    /// Lets the host wait or work. Never under a guard.
    #[cold]
    pub(crate) fn stall(&self, reason: Stall) -> Result<(), TcError> {
        self.counters.add(Counter::Stalls, 1);
        self.host.stalled(reason).map_err(|reason| TcError::Stopped { reason })
    }

    /// Appends a record, waiting for room.
    #[inline]
    pub(crate) fn append(&self, record: &LogRecord<'_>) -> Result<Lsn, TcError> {
        loop {
            match self.versions.append(record) {
                Ok(lsn) => return Ok(lsn),
                Err(AppendError::Full) => self.stall(Stall::Log)?,
                Err(other) => return Err(TcError::Append(other)),
            }
        }
    }

    /// Makes sure that memory is left for an operation that takes some: helps the collector above the budget, waits far
    /// above it.
    #[inline]
    pub(crate) fn make_room(&self) -> Result<(), TcError> {
        if self.account.is_over_hard() { self.make_room_now() } else { Ok(()) }
    }

    #[cold]
    fn make_room_now(&self) -> Result<(), TcError> {
        self.sweep(64);
        let mut round = 0;
        while self.account.is_over_limit() {
            if self.collect_step() {
                continue;
            }
            round += 1;
            if round > MEMORY_ROUNDS_MAX {
                return Err(TcError::MemoryExhausted);
            }
            if round % MEMORY_ROUNDS_PATIENT == 0 {
                // Nothing can be collected: an old transaction may be what keeps it.
                self.force_horizon_some_way();
            }
            self.stall(Stall::Memory)?;
        }
        Ok(())
    }

    // ---- the horizon ----------------------------------------------------------------------------------------

    /// The oldest active transaction, looked up now; or the oldest that may still begin in the past (P1).
    pub(crate) fn find_oldest_active(&self) -> Timestamp {
        let retained = self.retention.from();
        let oldest = self.transactions.oldest_active(&self.clock).min(retained);
        Timestamp(self.oldest_active.0.fetch_max(oldest.0, Ordering::SeqCst).max(oldest.0))
    }

    /// The oldest active transaction as it was looked up last: a lower bound.
    pub(crate) fn known_oldest_active(&self) -> Timestamp {
        Timestamp(self.oldest_active.0.load(Ordering::SeqCst))
    }

    /// R11: versions with final timestamps below it may be posted: every reader sees them or something newer.
    pub(crate) fn horizon(&self) -> Timestamp {
        self.find_oldest_active().max(self.forced_horizon())
    }

    /// A lower bound of the horizon, without a look at the transactions.
    #[inline]
    pub(crate) fn known_horizon(&self) -> Timestamp {
        self.known_oldest_active().max(self.forced_horizon())
    }

    /// R24: the table is about to be dropped.
    pub(crate) fn drop_table(&self, table: TableId) {
        lock(&self.dropped_tables).insert(table);
        self.dropped_bits.0.fetch_or(Self::dropped_bit(table), Ordering::SeqCst);
    }

    fn dropped_bit(table: TableId) -> u64 {
        1 << (table.0 % 64)
    }

    /// R24: whether the table has been dropped. Says so to whoever has met what the data component did about it.
    #[inline]
    pub(crate) fn is_dropped(&self, table: TableId) -> bool {
        // Acquire: the drop comes before what the data component does, and that before whoever has met it.
        self.dropped_bits.0.load(Ordering::Acquire) & Self::dropped_bit(table) != 0
            && lock(&self.dropped_tables).contains(&table)
    }

    /// Readers below it must give up when they have read the data component (R11).
    #[inline]
    pub(crate) fn forced_horizon(&self) -> Timestamp {
        Timestamp(self.forced_horizon.load(Ordering::SeqCst))
    }

    /// R17: the earliest timestamp that can be read.
    pub(crate) fn retained_from(&self) -> Timestamp {
        self.retention.from().max(self.forced_horizon())
    }

    /// R16: a timestamp at which everything that is committed by now is visible, and nothing has been given up.
    #[inline]
    pub(crate) fn present(&self) -> Timestamp {
        self.clock.last().max(self.forced_horizon())
    }

    /// R11: moves the horizon to `at_least`, or to the present if that is earlier.
    pub(crate) fn force_horizon(&self, at_least: Timestamp) {
        // Not above one more than the clock, so that whoever pushes itself there can commit there (S1).
        let bound = self.clock.last().0 + 1;
        self.counters.add(Counter::HorizonForced, 1);
        self.forced_horizon.fetch_max(at_least.0.min(bound), Ordering::SeqCst);
    }

    /// Gives up on the older half of the time between the oldest active transaction and now.
    fn force_horizon_some_way(&self) {
        let oldest = self.horizon().0;
        let span = self.clock.last().0.saturating_sub(oldest);
        self.force_horizon(Timestamp(oldest + span / 2 + 1));
    }

    // ---- the clock's ceiling --------------------------------------------------------------------------------

    /// K2: waits until a restart would start above `timestamp`.
    #[inline]
    pub(crate) fn cover(&self, timestamp: Timestamp) -> Result<(), TcError> {
        if self.clock.is_covered(timestamp) { Ok(()) } else { self.cover_now(timestamp) }
    }

    #[cold]
    fn cover_now(&self, timestamp: Timestamp) -> Result<(), TcError> {
        loop {
            self.renew_ceiling()?;
            if self.clock.is_covered(timestamp) {
                return Ok(());
            }
            self.stall(Stall::Clock)?;
        }
    }

    /// Leases more timestamps when half of the last lease is used, and takes note when the log has them.
    pub(crate) fn renew_ceiling(&self) -> Result<bool, TcError> {
        let (last, ceiling) = (self.clock.last(), self.clock.ceiling());
        let lease = self.options.clock_lease;
        if last.0 + lease / 2 < ceiling.0 {
            return Ok(false);
        }
        let mut renewal = lock(&self.renewal);
        match &*renewal {
            Some(Renewal { lsn, ceiling }) if self.versions.stable_lsn() > *lsn => {
                self.clock.raise_ceiling(*ceiling);
                *renewal = None;
                Ok(true)
            }
            Some(_) => Ok(false),
            None => {
                let ceiling = Timestamp((last.0.max(ceiling.0) + lease).min(Timestamp::MAX.0));
                match self.versions.append(&LogRecord::ClockCeiling { timestamp: ceiling }) {
                    Ok(lsn) => {
                        *renewal = Some(Renewal { lsn, ceiling });
                        drop(renewal);
                        self.versions.request_flush(Lsn(lsn.0 + 1));
                        Ok(true)
                    }
                    Err(AppendError::Full) => Ok(false),
                    Err(other) => Err(TcError::Append(other)),
                }
            }
        }
    }

    /// Logs the ceiling once more, so that the log may be cut before the record that stated it.
    pub(crate) fn log_ceiling(&self) -> Result<Lsn, TcError> {
        let pending = lock(&self.renewal).as_ref().map_or(Timestamp(0), |renewal| renewal.ceiling);
        self.append(&LogRecord::ClockCeiling { timestamp: self.clock.ceiling().max(pending) })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.index.free_unlinked();
        let all = self.table.take_all();
        for (number, &record) in all.iter().enumerate() {
            all.get(number + VISITED_AHEAD)
                .into_iter()
                .for_each(|record| prefetch(record.cast_const().cast()));
            // SAFETY: nobody uses the component any more; records in the table are alive, and so are the versions in
            // their chains. What has been unlinked is with the epochs.
            unsafe {
                // Half-way it is here, and its version can be asked for.
                if let Some(&next) = all.get(number + VISITED_AHEAD / 2) {
                    prefetch((*next).head.load(Ordering::Relaxed).cast_const().cast());
                }
                let mut version = (*record).head.load(Ordering::Relaxed);
                while !version.is_null() && version != REMOVED && version != PRUNED {
                    let (next, bytes) = ((*version).next.load(Ordering::Relaxed), (*version).bytes());
                    if bytes > 0 {
                        Version::free(version.cast(), bytes);
                    }
                    version = next;
                }
                Record::free(record.cast(), (*record).bytes());
            }
        }
    }
}
