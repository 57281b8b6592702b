//! [`Stats`]: what the database says of itself.

use deuteron_contract::DcStatistics;
use deuteron_histogram::{Distribution, Histogram};
use deuteron_log::LogStatistics;
use deuteron_proxy::ProxyStatistics;
use deuteron_tc::{ConflictCause, TcError, TcStatistics};
use std::sync::atomic::{AtomicU64, Ordering};

/// Sizes in bytes, the counters of every mechanism, and how long it took, since the database was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Memory that the components account for: log buffers, versions, pages, garbage not yet freed.
    pub memory_bytes: u64,
    /// The budget that it was opened with.
    pub memory_budget_bytes: u64,
    /// Bytes on disk: the log's segments and the store's.
    pub disk_bytes: u64,
    /// Bytes written to the recovery log, padding included.
    pub bytes_written_log: u64,
    /// Bytes written to the store.
    pub bytes_written_store: u64,
    /// What became of the transactions.
    pub transactions: TransactionStats,
    /// The counters of every mechanism, named `component.counter`, in a fixed order.
    pub counters: Vec<(String, u64)>,
    /// How long, or how much, named `component.distribution` with the unit last, in a fixed order: the times of what does I/O or waits, and a few lengths and shares.
    pub distributions: Vec<(String, Distribution)>,
}

/// What became of the transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransactionStats {
    /// Committed.
    pub commits: u64,
    /// Aborted, by conflicts, by other errors and by their callers.
    pub aborts: u64,
    /// Aborts by cause: conflicts, named as [`crate::ConflictCause::name`] does; other errors (`memory-exhausted`, `transaction-too-large`,
    /// `deadline-exceeded`, `change`, `not-retained`, `device`, `stopped`); and `caller` for the rest.
    pub aborts_by_cause: Vec<(&'static str, u64)>,
}

impl Stats {
    /// The counter of that name; `None` if there is none. Looks through all of them.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// assert!(db.stats().counter("log.flushes").is_some_and(|count| count > 0), "the clock has been logged");
    /// assert_eq!(db.stats().counter("dc.wishes"), None);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// The distribution of that name; `None` if there is none. Looks through all of them.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stats = db.stats();
    /// let writes = stats.distribution("log.write_nanoseconds").expect("there is one");
    /// println!("{} writes, of which 99 of 100 took {} ns at most", writes.count(), writes.quantile(0.99));
    /// # assert!(writes.count() > 0);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn distribution(&self, name: &str) -> Option<&Distribution> {
        self.distributions.iter().find(|(known, _)| known == name).map(|(_, distribution)| distribution)
    }

    /// The components' figures put together.
    pub(crate) fn of(
        log: &LogStatistics,
        write_times: Distribution,
        tc: &TcStatistics,
        waits: &Waits,
        proxy: &ProxyStatistics,
        dc: DcStatistics,
    ) -> Stats {
        let named = |component: &str, counters: &[(&str, u64)]| -> Vec<(String, u64)> {
            counters.iter().map(|(name, value)| (format!("{component}.{name}"), *value)).collect()
        };
        let of_dc = dc.distributions.into_iter().map(|(name, found)| (format!("dc.{name}"), found));
        let distributions = [
            ("tc.room_wait_nanoseconds", waits.room.read()),
            ("tc.writer_wait_nanoseconds", waits.writer.read()),
            ("tc.turn_wait_nanoseconds", waits.turn.read()),
            ("log.write_nanoseconds", write_times),
            ("log.stable_wait_nanoseconds", waits.stable.read()),
        ];
        let distributions =
            distributions.map(|(name, found)| (name.to_owned(), found)).into_iter().chain(of_dc).collect();
        let mut counters = named(
            "tc",
            &[
                ("refreshed_commits", tc.refreshed_commits),
                ("reads", tc.reads),
                ("misses", tc.misses),
                ("read_cache_hits", tc.read_cache_hits),
                ("read_cache_fills", tc.read_cache_fills),
                ("read_cache_evictions", tc.read_cache_evictions),
                ("read_cache_bytes", tc.read_cache_bytes),
                ("writes", tc.writes),
                ("scan_batches", tc.scan_batches),
                ("scans_shortened", tc.scans_shortened),
                ("stalls", tc.stalls),
                ("waits", tc.waits),
                ("moves", tc.moves),
                ("horizon_forced", tc.horizon_forced),
                ("evictions", tc.evictions),
                ("versions_dropped", tc.versions_dropped),
                ("settled", tc.settled),
                ("collection_microseconds", tc.collection_nanoseconds / 1000),
                ("memory_bytes", tc.memory_bytes),
                ("memory_target_bytes", tc.memory_target_bytes),
                ("memory_budget_bytes", tc.memory_budget_bytes),
                ("clock", tc.clock),
                ("oldest_active_lag", tc.oldest_active_lag),
                ("buckets_lost", tc.buckets_lost),
                ("versions_lost", tc.versions_lost),
                ("read_timestamps_lost", tc.read_timestamps_lost),
                ("statuses_lost", tc.statuses_lost),
                ("queues_lost", tc.queues_lost),
                ("ranges_lost", tc.ranges_lost),
                ("workspaces_lost", tc.workspaces_lost),
                ("turnstile_lost", tc.turnstile_lost),
            ],
        );
        counters.extend(named(
            "log",
            &[
                ("start", log.start.0),
                ("stable", log.stable.0),
                ("tail", log.tail.0),
                ("record_bytes_written", log.record_bytes_written),
                ("bytes_filled", log.bytes_filled),
                ("flushes", log.flushes),
                ("sealed_full", log.sealed_full),
                ("sealed_on_request", log.sealed_on_request),
                ("append_full", log.append_full),
                ("opening_lost", log.opening_lost),
                ("reservations_lost", log.reservations_lost),
                ("ring_used_bytes", log.ring_used_bytes),
                ("version_cache_bytes", log.version_cache_bytes),
                ("disk_bytes", log.disk_bytes),
                ("segments_created", log.segments_created),
                ("segments_recycled", log.segments_recycled),
            ],
        ));
        counters.extend(named(
            "proxy",
            &[
                ("buffers_scanned", proxy.buffers_scanned),
                ("buffers_posted", proxy.buffers_posted),
                ("operations_posted", proxy.operations_posted),
                ("operations_superseded", proxy.operations_superseded),
                ("operations_undecided", proxy.operations_undecided),
                ("operations_waited", proxy.operations_waited),
                ("operations_aborted", proxy.operations_aborted),
                ("operations_read_back", proxy.operations_read_back),
                ("batches", proxy.batches),
                ("stalls", proxy.stalls),
                ("side_buffer_bytes", proxy.side_buffer_bytes),
                ("waiting_list_bytes", proxy.waiting_list_bytes),
            ],
        ));
        counters.extend(named("dc", &dc.counters));
        let ring_bytes = log.ring_used_bytes.max(log.version_cache_bytes);
        Stats {
            memory_bytes: ring_bytes
                + tc.memory_bytes
                + proxy.side_buffer_bytes
                + proxy.waiting_list_bytes
                + dc.memory_bytes,
            memory_budget_bytes: 0,
            disk_bytes: log.disk_bytes + dc.disk_bytes,
            bytes_written_log: log.bytes_written,
            bytes_written_store: dc.bytes_written,
            transactions: TransactionStats {
                commits: tc.commits,
                aborts: tc.aborts,
                aborts_by_cause: Vec::new(),
            },
            counters,
            distributions,
        }
    }
}

/// How long callers have waited, by what for.
#[derive(Default)]
pub(crate) struct Waits {
    /// Each stall for room in the log or in memory, or for timestamps. What the caller does itself meanwhile counts, too.
    pub(crate) room: Histogram,
    /// Each turn that was left to the writer before.
    pub(crate) writer: Histogram,
    /// Each sleep of a transaction that meets others too often to begin at once.
    pub(crate) turn: Histogram,
    /// For what was not yet durable, until it was, or never will be.
    pub(crate) stable: Histogram,
}

/// The causes of conflicts, in the order in which they are reported.
const CAUSES: [ConflictCause; 11] = [
    ConflictCause::WriteWrite,
    ConflictCause::ReadChanged,
    ConflictCause::RangeChanged,
    ConflictCause::SnapshotTooOld,
    ConflictCause::ReadsForgotten,
    ConflictCause::PushedTooOften,
    ConflictCause::LogPinned,
    ConflictCause::MemoryShort,
    ConflictCause::TimestampOrder,
    ConflictCause::TableDropped,
    ConflictCause::TableLoaded,
];

/// Why transactions have been aborted that met no other, in the order in which they are reported.
#[derive(Clone, Copy)]
enum OtherCause {
    MemoryExhausted,
    TransactionTooLarge,
    DeadlineExceeded,
    Change,
    NotRetained,
    Device,
    Stopped,
}

/// Their words.
const OTHER_CAUSES: [(OtherCause, &str); 7] = [
    (OtherCause::MemoryExhausted, "memory-exhausted"),
    (OtherCause::TransactionTooLarge, "transaction-too-large"),
    (OtherCause::DeadlineExceeded, "deadline-exceeded"),
    (OtherCause::Change, "change"),
    (OtherCause::NotRetained, "not-retained"),
    (OtherCause::Device, "device"),
    (OtherCause::Stopped, "stopped"),
];

impl OtherCause {
    /// Of an error that has aborted its transaction.
    fn of(error: &TcError) -> Option<OtherCause> {
        match error {
            TcError::MemoryExhausted => Some(OtherCause::MemoryExhausted),
            TcError::TransactionTooLarge { .. } => Some(OtherCause::TransactionTooLarge),
            TcError::Change { .. } => Some(OtherCause::Change),
            TcError::NotRetained { .. } => Some(OtherCause::NotRetained),
            TcError::Append(_) | TcError::Log(_) | TcError::DataComponent(_) => Some(OtherCause::Device),
            TcError::Stopped { .. } => Some(OtherCause::Stopped),
            _ => None,
        }
    }
}

/// How often each cause of an abort has occurred: conflicts and others.
#[derive(Default)]
pub(crate) struct AbortCounters {
    conflicts: [AtomicU64; CAUSES.len()],
    others: [AtomicU64; OTHER_CAUSES.len()],
}

impl AbortCounters {
    /// One more, if the error is one that aborts. A cause that these lists do not know yet is left to the total.
    pub(crate) fn count(&self, error: &TcError) {
        if let TcError::Conflict(conflict) = error {
            if let Some(index) = CAUSES.iter().position(|known| *known == conflict.cause) {
                self.conflicts[index].fetch_add(1, Ordering::Relaxed);
            }
        } else if let Some(cause) = OtherCause::of(error) {
            self.count_other(cause);
        }
    }

    /// One more that its deadline has ended.
    pub(crate) fn count_deadline(&self) {
        self.count_other(OtherCause::DeadlineExceeded);
    }

    fn count_other(&self, cause: OtherCause) {
        self.others[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts by name; what `aborts` has in excess of them was the callers' wish.
    pub(crate) fn by_cause(&self, aborts: u64) -> Vec<(&'static str, u64)> {
        let names = CAUSES.iter().map(|cause| cause.name()).chain(OTHER_CAUSES.iter().map(|(_, name)| *name));
        let counts = self.conflicts.iter().chain(&self.others).map(|count| count.load(Ordering::Relaxed));
        let mut counts: Vec<_> = names.zip(counts).collect();
        let known: u64 = counts.iter().map(|(_, count)| count).sum();
        counts.push(("caller", aborts.saturating_sub(known)));
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_contract::{TableId, Timestamp};
    use deuteron_log::AppendError;
    use deuteron_tc::{ChangeError, Conflict, ConflictPlace};

    #[test]
    fn each_abort_is_counted_under_its_cause_and_the_rest_are_the_callers() {
        let counters = AbortCounters::default();
        let (table, place, own) = (TableId(1), ConflictPlace::Transaction, Timestamp(2));
        for cause in CAUSES {
            let conflict = Conflict { table, place: place.clone(), cause, own, other: None };
            counters.count(&TcError::Conflict(Box::new(conflict)));
        }
        let cause = ChangeError::NotAnInteger { found: 1 };
        let errors = [
            TcError::MemoryExhausted,
            TcError::TransactionTooLarge { found: 2, limit: 1 },
            TcError::Change { table, key: Vec::new(), cause },
            TcError::NotRetained { wanted: own, oldest: own, newest: own },
            TcError::Append(AppendError::Full),
            TcError::Stopped { reason: String::new() },
            // The transaction lives on, or was aborted before.
            TcError::ReadOnly,
            TcError::TableDropped { table },
            TcError::Aborted,
        ];
        errors.iter().for_each(|error| counters.count(error));
        counters.count_deadline();
        let counts = counters.by_cause(22);
        let names: std::collections::BTreeSet<_> = counts.iter().map(|(name, _)| name).collect();
        assert_eq!((names.len(), counts.len()), (CAUSES.len() + OTHER_CAUSES.len() + 1, names.len()));
        assert!(
            counts.iter().all(|(name, count)| *count == if *name == "caller" { 4 } else { 1 }),
            "{counts:?}"
        );
        assert!(OTHER_CAUSES.iter().enumerate().all(|(index, (cause, _))| *cause as usize == index));
    }
}
