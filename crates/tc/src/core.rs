//! What all transactions share, and the small decisions that everything else is built of: appending with stalls, the horizon,
//! the clock's ceiling, making room.

use crate::active_timestamps::{ActiveTimestamps, LastGathered};
use crate::announcements::Announcements;
use crate::clock::Clock;
use crate::dropped_tables::DroppedTables;
use crate::empty_ranges::EmptyRanges;
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
use crate::status::Status;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, Padded, lock};
use crate::transaction_table::{Slot, TransactionTable};
use crate::turnstile::Turnstile;
use crate::version::{PRUNED, Version};
use crate::version_manager::VersionManager;
use crate::workspace::Pool;
use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};
use deuteron_epoch::Epochs;
use deuteron_log::{AppendError, Record as LogRecord};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many records, and then how many buckets, an operation looks at to help the collector.
const HELPED: usize = 64;
/// Rounds of waiting for memory before an operation gives up.
const MEMORY_ROUNDS_MAX: usize = 10_000;
/// After so many of them the horizon is forced.
const MEMORY_ROUNDS_PATIENT: usize = 16;
/// After so many one that has written much gives way to an earlier one: when no more can be gained by the horizon.
const MEMORY_ROUNDS_BETWEEN_ABORTS: usize = 8 * MEMORY_ROUNDS_PATIENT;

/// Of the next component. An atomic of std's, also for loom and shuttle: all that counts is that no number comes twice.
static NEXT_SERIAL: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// A renewal of the clock's ceiling that is on its way to the disk.
struct Renewal {
    lsn: Lsn,
    ceiling: Timestamp,
}

/// See the [module](self).
pub(crate) struct Core {
    pub(crate) options: TcOptions,
    /// Different for each component of the process. Their transactions may have the same timestamps.
    pub(crate) serial: u64,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) versions: VersionManager,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) clock: Clock,
    pub(crate) transactions: TransactionTable,
    pub(crate) announcements: Announcements,
    pub(crate) table: MvccTable,
    pub(crate) index: OrderedIndex,
    pub(crate) ranges: RangeTimestamps,
    /// R25.
    pub(crate) empty: EmptyRanges,
    pub(crate) account: Arc<Account>,
    pub(crate) pool: Pool,
    pub(crate) counters: Counters,
    /// The oldest active transaction as it was computed last: a lower bound of what it is.
    oldest_active: Padded<AtomicU64>,
    /// R26.
    pub(crate) active: LastGathered,
    /// See [`crate::TcStatistics`].
    pub(crate) collection_nanoseconds: AtomicU64,
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
    dropped_tables: DroppedTables,
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
            announcements: Announcements::new(),
            table,
            index: OrderedIndex::new(Arc::clone(&account)),
            ranges: RangeTimestamps::new(options.range_timestamps),
            empty: EmptyRanges::new(),
            account,
            pool: Pool::new(),
            counters: Counters::new(),
            oldest_active: Padded(AtomicU64::new(0)),
            active: LastGathered::new(),
            collection_nanoseconds: AtomicU64::new(0),
            forced_horizon: AtomicU64::new(0),
            fence: Fence::new(),
            retention: Retention::new(options.retains, options.clock_start),
            turnstile: Turnstile::new(host.processors()),
            renewal: Mutex::new(None),
            untold_aborts: Mutex::new(Vec::new()),
            dropped_tables: DroppedTables::new(),
            clock_hand: AtomicUsize::new(0),
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
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

    /// Makes sure that memory is left for an operation of the transaction in `slot` that takes some: helps the collector above the budget, waits far
    /// above it, unless the transaction is found to be aborted, which is for the operation to say, or says that it `takes_all`, so that nobody else could make room.
    #[inline]
    pub(crate) fn make_room(
        &self,
        slot: &Slot,
        takes_all: impl Fn() -> Result<(), TcError>,
    ) -> Result<(), TcError> {
        if self.account.is_over_hard() { self.make_room_now(slot, &takes_all) } else { Ok(()) }
    }

    /// So much time went into collection.
    pub(crate) fn note_collection(&self, time: Duration) {
        self.collection_nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    #[cold]
    fn make_room_now(&self, slot: &Slot, takes_all: &dyn Fn() -> Result<(), TcError>) -> Result<(), TcError> {
        // The processor's own time would take longer to ask for.
        let begin = Instant::now();
        self.settle(HELPED);
        if !self.sweep(HELPED) {
            // Perhaps for want of a look at who is active.
            self.find_oldest_active();
        }
        self.note_collection(begin.elapsed());
        let mut round = 0;
        while self.account.is_over_limit() {
            if self.collect_step() {
                continue;
            }
            if slot.status.load() == Status::Aborted {
                return Ok(());
            }
            round += 1;
            if round > MEMORY_ROUNDS_MAX {
                return Err(TcError::MemoryExhausted);
            }
            if round % MEMORY_ROUNDS_PATIENT == 0 {
                // Nothing can be collected: an old transaction may be what keeps it.
                self.force_horizon_some_way();
            }
            if round % MEMORY_ROUNDS_BETWEEN_ABORTS == 0 {
                takes_all()?;
                self.abort_youngest_large_writer();
            }
            self.stall(Stall::Memory)?;
        }
        Ok(())
    }

    // ---- the horizon ----------------------------------------------------------------------------------------

    /// The oldest active transaction, looked up now; or the oldest that may still begin in the past (P1).
    pub(crate) fn find_oldest_active(&self) -> Timestamp {
        let retained = self.retention.from();
        self.note_oldest_active(self.announcements.oldest_active(&self.clock).min(retained))
    }

    fn note_oldest_active(&self, oldest: Timestamp) -> Timestamp {
        Timestamp(self.oldest_active.0.fetch_max(oldest.0, Ordering::SeqCst).max(oldest.0))
    }

    /// R26: takes note of when all active transactions read, the oldest among them.
    pub(crate) fn gather_active(&self) {
        let gathered = ActiveTimestamps::gather(&self.announcements, &self.clock, &self.retention);
        self.note_oldest_active(gathered.oldest());
        self.active.put(gathered, &self.epochs.pin());
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
        self.dropped_tables.insert(table);
    }

    /// R24: whether the table has been dropped. Says so to whoever has met what the data component did about it.
    #[inline]
    pub(crate) fn is_dropped(&self, table: TableId) -> bool {
        self.dropped_tables.contains(table)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::test_bed::{Bed, TABLE, bed, roomy};
    use crate::{BeginOptions, ConflictCause, Isolation};
    use deuteron_contract::{Direction, MemoryDc};
    use deuteron_log::LogOptions;

    /// A bed in which whoever has to wait is told that nobody works.
    fn stuck(options: TcOptions) -> Arc<Bed> {
        let stalled = |_: &Bed| Err("nobody works".to_string());
        let (log, proxy) = (LogOptions::tiny_for_tests(), deuteron_proxy::Options::tiny_for_tests());
        Bed::open(Arc::new(MemoryDc::new()), options, &log, proxy, stalled).expect("a new log")
    }

    fn leases(clock_lease: u64) -> Arc<Bed> {
        stuck(TcOptions { clock_lease, memory_bytes: 1 << 20, ..TcOptions::default() })
    }

    #[test]
    fn the_horizon_is_forced_to_the_present_at_most_and_never_back() {
        let bed = roomy();
        let core = &bed.tc().core;
        (0..9).for_each(|_| bed.begin().abort());
        core.force_horizon(Timestamp(4));
        assert_eq!(core.forced_horizon(), Timestamp(4));
        core.force_horizon(Timestamp(2));
        assert_eq!(core.forced_horizon(), Timestamp(4));
        core.force_horizon(Timestamp::MAX);
        assert_eq!(core.forced_horizon().0, core.clock.last().0 + 1, "whoever begins next is not too old");
        assert_eq!((core.present(), core.retained_from()), (core.forced_horizon(), Timestamp::MAX));
        assert_eq!(bed.tc().statistics().horizon_forced, 3);
        assert!(core.known_horizon() >= core.forced_horizon());
        assert_eq!(bed.begin().get(TABLE, b"k").unwrap(), None);
    }

    #[test]
    fn the_horizon_that_is_known_is_the_one_that_was_looked_up_last() {
        let bed = roomy();
        let core = &bed.tc().core;
        let tx = bed.begin();
        (0..9).for_each(|_| bed.begin().abort());
        assert_eq!(core.horizon(), tx.timestamp());
        assert_eq!((core.known_horizon(), core.known_oldest_active()), (tx.timestamp(), tx.timestamp()));
        drop(tx);
        assert!(core.known_horizon() < core.horizon(), "nobody has looked since");
        assert_eq!(core.known_horizon().0, core.clock.last().0 + 1);
    }

    #[test]
    fn what_an_old_transaction_holds_back_is_given_up_half_by_half() {
        let bed = roomy();
        let core = &bed.tc().core;
        let old = bed.begin();
        (0..100).for_each(|_| bed.begin().abort());
        let (from, to) = (old.timestamp().0, core.clock.last().0);
        for given_up in [50, 75, 88, 94] {
            core.force_horizon_some_way();
            let forced = core.forced_horizon().0;
            assert_eq!((forced - from, to), (given_up + 1, core.clock.last().0));
        }
        (0..10).for_each(|_| core.force_horizon_some_way());
        assert_eq!(core.forced_horizon().0, to + 1, "all of it, in the end");
    }

    #[test]
    fn whoever_finds_no_memory_is_patient_gives_up_old_readers_and_is_told_in_the_end() {
        let stalled = |_: &Bed| Ok(());
        let (log, proxy) = (LogOptions::default(), deuteron_proxy::Options::tiny_for_tests());
        let bed = Bed::open(Arc::new(MemoryDc::new()), TcOptions::tiny_for_tests(), &log, proxy, stalled);
        let bed = bed.expect("a new log");
        let tc = bed.tc();
        bed.settle();
        let start = tc.statistics().stalls;
        let slot = tc.core.transactions.slot(tc.core.transactions.allocate());
        slot.status.begin(tc.core.clock.tick());
        tc.core.account.add(1 << 20);
        assert!(matches!(tc.core.make_room(slot, || Ok(())), Err(TcError::MemoryExhausted)));
        let statistics = tc.statistics();
        assert_eq!(statistics.stalls - start, MEMORY_ROUNDS_MAX as u64);
        assert_eq!(statistics.horizon_forced, (MEMORY_ROUNDS_MAX / MEMORY_ROUNDS_PATIENT) as u64);
        tc.core.account.subtract(1 << 20);
        tc.core.make_room(slot, || Ok(())).expect("there is room");
        // Between the budget and the limit one helps, and goes on.
        tc.core.account.add((64 << 10) - (tc.core.account.used() as usize) + (8 << 10));
        assert!(tc.core.account.is_over_hard() && !tc.core.account.is_over_limit());
        tc.core.make_room(slot, || Ok(())).expect("there is room");
        assert_eq!(tc.statistics().stalls - start, MEMORY_ROUNDS_MAX as u64);
    }

    #[test]
    fn a_dropped_table_is_known_by_its_number_and_others_are_not_touched() {
        let bed = roomy();
        let core = &bed.tc().core;
        assert!(!core.is_dropped(TableId(3)));
        core.drop_table(TableId(3));
        assert!(core.is_dropped(TableId(3)));
        assert!(!core.is_dropped(TableId(67)) && !core.is_dropped(TableId(4)));
        core.drop_table(TableId(67));
        assert!(core.is_dropped(TableId(67)) && core.is_dropped(TableId(3)));
    }

    #[test]
    fn reads_of_a_dropped_table_fail_and_who_has_read_it_cannot_commit_later() {
        let bed = roomy();
        bed.put(b"k", b"1");
        for (scans, other) in [(false, TableId(2)), (true, TableId(3))] {
            bed.put(b"push", b"1");
            let mut tx = bed.begin();
            if scans {
                let (from, to) = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
                assert_eq!(tx.scan(other, from, to, Direction::Forward).count(), 0);
            } else {
                assert_eq!(tx.get(other, b"k").unwrap(), None);
            }
            bed.put(b"push", b"2");
            tx.put(TABLE, b"push", b"3").unwrap();
            bed.tc().drop_table(other);
            match tx.commit().unwrap_err() {
                TcError::Conflict(conflict) => {
                    assert_eq!((conflict.cause, conflict.table), (ConflictCause::TableDropped, other));
                }
                error => panic!("{error}"),
            }
        }
        let other = TableId(2);
        let mut tx = bed.begin();
        assert!(matches!(tx.get(other, b"k"), Err(TcError::TableDropped { table }) if table == other));
        let (from, to) = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let found = tx.scan(other, from, to, Direction::Reverse).next().expect("an error");
        assert!(matches!(found, Err(TcError::TableDropped { table }) if table == other));
        assert_eq!(tx.get(TABLE, b"k").unwrap().as_deref(), Some(&b"1"[..]), "it lives on");
        tx.put(TABLE, b"k", b"2").unwrap();
        tx.commit().unwrap();
    }

    #[test]
    fn timestamps_are_leased_when_half_of_the_last_lease_is_used_and_good_once_the_log_has_them() {
        let bed = leases(16);
        let core = &bed.tc().core;
        let renew = || core.renew_ceiling().expect("the log takes it");
        // Opening has asked for the first lease, and for a flush.
        assert_eq!((renew(), core.clock.ceiling()), (false, Timestamp(0)));
        assert!(bed.log.flush_step().unwrap());
        assert_eq!((renew(), core.clock.ceiling()), (true, Timestamp(16)));
        for _ in 0..7 {
            core.clock.tick();
            assert!(!renew());
        }
        core.clock.tick();
        assert!(renew(), "half of it is used");
        assert!(!renew(), "once");
        let mut late = 0;
        for _ in 0..20 {
            late = core.clock.tick().0;
        }
        assert_eq!(late, 28);
        assert!(!renew());
        assert!(bed.log.flush_step().unwrap());
        assert_eq!((renew(), core.clock.ceiling()), (true, Timestamp(32)));
        assert!(renew() && bed.log.flush_step().unwrap() && renew());
        assert_eq!(core.clock.ceiling(), Timestamp(48), "above what has been leased");
    }

    #[test]
    fn nobody_uses_a_timestamp_that_a_restart_might_hand_out_again() {
        let bed = leases(16);
        let core = &bed.tc().core;
        let mut early = bed.begin();
        assert!(matches!(early.put(TABLE, b"k", b"1"), Err(TcError::Stopped { .. })));
        assert!(matches!(core.cover(Timestamp(1)), Err(TcError::Stopped { .. })));
        bed.settle();
        assert!(core.cover(Timestamp(16)).is_ok());
        assert!(matches!(core.cover(Timestamp(17)), Err(TcError::Stopped { .. })));
        assert!(matches!(early.put(TABLE, b"k", b"1"), Err(TcError::Aborted)));
        let mut early = bed.begin();
        early.put(TABLE, b"k", b"1").unwrap();
        early.commit().unwrap();
        // A host that works lets it wait.
        let options = TcOptions { clock_lease: 16, ..TcOptions::default() };
        let bed = crate::test_bed::bed(options, &LogOptions::default(), deuteron_proxy::Options::default());
        (0..100).for_each(|round: u8| bed.put(b"k", &[round]));
        let core = &bed.tc().core;
        assert!(core.clock.ceiling() >= core.clock.last());
        assert!(bed.tc().statistics().stalls > 0);
    }

    /// K2, of timestamps that are drawn after the begin.
    #[test]
    fn neither_a_commit_nor_a_new_identity_is_beyond_the_lease() {
        let begin = |isolation| {
            let bed = leases(16);
            bed.settle();
            let mut tx = bed.begin_with(BeginOptions { isolation, ..BeginOptions::default() });
            tx.put(TABLE, b"k", b"1").unwrap();
            (bed, tx)
        };
        let use_up = |bed: &Bed| while bed.tc().core.clock.tick() < bed.tc().core.clock.ceiling() {};
        // It commits at a timestamp of its own.
        let (bed, mut tx) = begin(Isolation::ReadCommitted);
        use_up(&bed);
        assert!(matches!(tx.commit(), Err(TcError::Stopped { .. })));
        // It commits at its begin, and logs what is left under a new identity.
        let (bed, mut tx) = begin(Isolation::Serializable);
        let savepoint = tx.savepoint().unwrap();
        tx.delete(TABLE, b"l").unwrap();
        tx.rollback_to(&savepoint).unwrap();
        use_up(&bed);
        assert!(matches!(tx.commit(), Err(TcError::Stopped { .. })));
    }

    #[test]
    fn the_ceiling_is_stated_anew_with_what_has_been_asked_for_since() {
        let bed = leases(16);
        let states = |lsn: Lsn| {
            bed.settle();
            let record = bed.log.read_stable(lsn).unwrap();
            match record.view() {
                LogRecord::ClockCeiling { timestamp } => timestamp,
                other => panic!("{other:?}"),
            }
        };
        let tail = bed.log.tail_lsn();
        let lsn = bed.tc().log_clock_ceiling().unwrap();
        assert!(lsn >= tail);
        assert_eq!(states(lsn), Timestamp(16), "of the renewal on its way");
        assert_eq!(states(bed.tc().log_clock_ceiling().unwrap()), Timestamp(16), "of the one that counts");
    }

    #[test]
    fn the_budget_is_what_was_set_last() {
        let bed = roomy();
        assert_eq!(
            (bed.tc().memory_budget(), bed.tc().statistics().memory_budget_bytes),
            (16 << 20, 16 << 20)
        );
        bed.tc().set_memory_budget(1 << 20);
        assert_eq!((bed.tc().memory_budget(), bed.tc().statistics().memory_budget_bytes), (1 << 20, 1 << 20));
    }

    #[test]
    fn keys_are_as_long_as_their_lengths_fit() {
        let options = TcOptions { key_bytes_max: 1 << 20, memory_bytes: 1 << 20, ..TcOptions::default() };
        let bed = bed(options, &LogOptions::default(), deuteron_proxy::Options::default());
        let mut tx = bed.begin();
        tx.put(TABLE, &[7; 65_535], b"1").unwrap();
        assert!(matches!(
            tx.put(TABLE, &[7; 65_536], b"1"),
            Err(TcError::KeySize { found: 65_536, limit: 65_535 })
        ));
        tx.commit().unwrap();
        assert_eq!(bed.get(&[7; 65_535]).as_deref(), Some(&b"1"[..]));
    }

    /// Every field, by actions whose counts are known.
    #[test]
    fn statistics_count_what_was_done() {
        let bed = roomy();
        bed.settle();
        let statistics = || bed.tc().statistics();
        let start = statistics();
        assert_eq!((start.commits, start.reads, start.writes), (0, 0, 0));
        bed.put(b"a", b"1");
        bed.put(b"b", b"2");
        assert_eq!((statistics().commits, statistics().writes, statistics().aborts), (2, 2, 0));
        bed.begin().abort();
        assert_eq!((statistics().aborts, statistics().commits), (1, 2));
        // Reads: of what was written, of nothing, of the nothing that is known by now.
        let mut tx = bed.begin();
        tx.get(TABLE, b"a").unwrap();
        tx.get(TABLE, b"none").unwrap();
        assert_eq!(tx.misses(), 1);
        tx.get(TABLE, b"none").unwrap();
        assert_eq!((statistics().reads, statistics().misses), (0, 0), "counted when the transaction ends");
        tx.commit().unwrap();
        let now = statistics();
        assert_eq!((now.reads, now.misses, now.read_cache_hits, now.commits), (3, 1, 1, 3));
        assert_eq!((now.read_cache_fills, now.read_cache_evictions), (1, 0));
        assert_eq!(now.read_cache_bytes, size_of::<Version>() as u64);
        // A scan of one batch.
        let (from, to) = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        assert_eq!(bed.begin().scan(TABLE, from, to, Direction::Forward).count(), 2);
        assert_eq!((statistics().scan_batches, statistics().aborts), (1, 2));
        // A conflict, after all the patience.
        let mut first = bed.begin();
        first.put(TABLE, b"a", b"3").unwrap();
        let mut second = bed.begin();
        second.put(TABLE, b"a", b"4").unwrap_err();
        let patience = u64::from(TcOptions::default().patience);
        let now = statistics();
        assert_eq!((now.conflicts, now.aborts), (1, 3));
        assert_eq!((now.waits, now.stalls - start.stalls), (patience, patience));
        first.commit().unwrap();
        // A transaction that is pushed, and one that moves on.
        let (mut pushed, mut moved) = (bed.begin(), bed.begin());
        bed.put(b"b", b"5");
        pushed.put(TABLE, b"b", b"6").unwrap();
        pushed.commit().unwrap();
        moved.get_for_update(TABLE, b"b").unwrap();
        moved.commit().unwrap();
        let now = statistics();
        assert_eq!((now.refreshed_commits, now.moves), (2, 1));
        // Superseded versions are dropped, records settle and are evicted.
        bed.settle();
        let guard = bed.epochs.pin();
        let core = &bed.tc().core;
        for key in [b"a", b"b"] {
            let record = core.table.find(core.table.key(TABLE, key), &guard).unwrap();
            core.maintain(&record, core.horizon(), &guard);
            assert!(core.evict(&record, &guard));
        }
        let now = statistics();
        assert!(now.settled >= 2 && now.evictions == 2, "{now:?}");
        // Of a 1, 3, 4 (aborted by its writer before it was there) and b 2, 5, 6 and its intent.
        assert_eq!(now.versions_dropped, 1 + 3);
        assert_eq!(now.horizon_forced, 0);
        bed.tc().force_horizon(Timestamp(1));
        assert_eq!(statistics().horizon_forced, 1);
        // The clock, and how far behind it somebody is.
        assert_eq!(now.clock, bed.tc().now().0);
        assert_eq!(now.oldest_active_lag, 0);
        let old = bed.begin();
        (0..5).for_each(|_| bed.begin().abort());
        assert_eq!((statistics().oldest_active_lag, statistics().clock), (5, now.clock + 6));
        drop(old);
        assert_eq!(statistics().oldest_active_lag, 0);
        // Slots and announcements are memory, too, of which the first chunks are there from the start.
        let (slots, announcements) = (core.transactions.bytes(), core.announcements.bytes());
        assert!(slots >= 64 * 64 && announcements >= 8 * 128);
        assert_eq!(statistics().memory_bytes, core.account.used() + (slots + announcements) as u64);
    }

    #[test]
    fn only_what_may_have_to_be_looked_at_again_is_remembered() {
        let bed = roomy();
        let serializable = BeginOptions::default();
        let cases = [
            (serializable, true),
            (BeginOptions { isolation: Isolation::Snapshot, ..serializable }, false),
            (BeginOptions { isolation: Isolation::ReadCommitted, ..serializable }, false),
            (BeginOptions { read_only: true, ..serializable }, false),
        ];
        for (options, remembers) in cases {
            let mut tx = bed.begin_with(options);
            tx.get(TABLE, b"k").unwrap();
            let (from, to) = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
            assert_eq!(tx.scan(TABLE, from, to, Direction::Forward).count(), 0);
            let remembered = (tx.workspace.reads.len(), tx.workspace.scans.len());
            assert_eq!(remembered, if remembers { (1, 1) } else { (0, 0) }, "{options:?}");
        }
    }
}
