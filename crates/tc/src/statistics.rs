//! Counters, gathered by transactions on the side and added up when they end.

use crate::memory::shard_of_thread;
use crate::sync::{AtomicU64, Ordering, Padded};

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident, $field:ident;)*) => {
        /// What is counted.
        #[derive(Clone, Copy)]
        pub(crate) enum Counter { $($variant),* }

        const COUNTERS: usize = [$(Counter::$variant),*].len();

        /// What the component says of itself.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct TcStatistics {
            $($(#[$doc])* pub $field: u64,)*
            /// Bytes in use of the budget.
            pub memory_bytes: u64,
            /// Above so many the collector evicts: the soft watermark.
            pub memory_target_bytes: u64,
            /// The budget, in bytes: the hard watermark.
            pub memory_budget_bytes: u64,
            /// Nanoseconds that went into collection: of the processor, where [`crate::Host`] can tell, in steps; by the clock, of operations
            /// that helped.
            pub collection_nanoseconds: u64,
            /// Timestamps handed out so far.
            pub clock: u64,
            /// By how many timestamps the oldest active transaction is behind.
            pub oldest_active_lag: u64,
            /// Compare-and-swaps that were lost to another thread, mostly to be tried again: where records enter and leave
            /// buckets.
            pub buckets_lost: u64,
            /// Where versions enter and leave records.
            pub versions_lost: u64,
            /// Of the read timestamps of records.
            pub read_timestamps_lost: u64,
            /// Of the status words of transactions: those that pushed, committed or aborted one that had changed.
            pub statuses_lost: u64,
            /// Where records are queued for the ordered index.
            pub queues_lost: u64,
            /// Of the places of published ranges.
            pub ranges_lost: u64,
            /// Of the places of idle workspaces: another's was there.
            pub workspaces_lost: u64,
            /// Of the places of the turnstile.
            pub turnstile_lost: u64,
        }

        impl TcStatistics {
            fn set(&mut self, counter: usize, value: u64) {
                $(if counter == Counter::$variant as usize { self.$field = value; })*
            }
        }
    };
}

counters! {
    /// Transactions that committed.
    Commits, commits;
    /// Of these, those that had been pushed and were refreshed.
    RefreshedCommits, refreshed_commits;
    /// Transactions that aborted, for whatever reason.
    Aborts, aborts;
    /// Conflicts.
    Conflicts, conflicts;
    /// Reads of keys.
    Reads, reads;
    /// Reads that had to ask the data component or the log on disk.
    Misses, misses;
    /// Reads answered by the read cache: by versions that earlier reads have brought from the data component, or from the log on
    /// disk. What is neither a hit of it nor a miss was answered by a version that was written not long ago.
    ReadCacheHits, read_cache_hits;
    /// Versions that reads have put into the read cache.
    ReadCacheFills, read_cache_fills;
    /// Versions that have left the read cache, evicted or superseded.
    ReadCacheEvictions, read_cache_evictions;
    /// Bytes of versions in the read cache.
    ReadCacheBytes, read_cache_bytes;
    /// Versions written.
    Writes, writes;
    /// Batches of scans.
    ScanBatches, scan_batches;
    /// Of these, those that began behind a range that was known to be empty.
    ScansShortened, scans_shortened;
    /// Operations that had to wait.
    Stalls, stalls;
    /// Turns that writers left to writers before them.
    Waits, waits;
    /// Transactions that went on from a later timestamp.
    Moves, moves;
    /// Times that the horizon was forced: who is older may be told to begin again.
    HorizonForced, horizon_forced;
    /// Records evicted from the table.
    Evictions, evictions;
    /// Versions dropped: superseded and visible to nobody, or aborted.
    VersionsDropped, versions_dropped;
    /// Records that left the ordered index and its queues.
    Settled, settled;
}

#[cfg(not(any(loom, shuttle)))]
const SHARDS: usize = 16;
#[cfg(any(loom, shuttle))]
const SHARDS: usize = 1;

/// Counters of one transaction.
#[derive(Default)]
pub(crate) struct Counts([u32; COUNTERS]);

impl Counts {
    #[inline]
    pub(crate) fn add(&mut self, counter: Counter) {
        self.0[counter as usize] += 1;
    }

    #[inline]
    pub(crate) fn of(&self, counter: Counter) -> u32 {
        self.0[counter as usize]
    }
}

/// The sums.
pub(crate) struct Counters([Padded<[AtomicU64; COUNTERS]>; SHARDS]);

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters(std::array::from_fn(|_| Padded(std::array::from_fn(|_| AtomicU64::new(0)))))
    }

    pub(crate) fn add(&self, counter: Counter, count: u64) {
        let shard = &self.0[shard_of_thread() % SHARDS].0;
        shard[counter as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, counter: Counter, count: u64) {
        let shard = &self.0[shard_of_thread() % SHARDS].0;
        shard[counter as usize].fetch_sub(count, Ordering::Relaxed);
    }

    /// Adds the counts of a transaction that has ended.
    pub(crate) fn take(&self, counts: &mut Counts) {
        let shard = &self.0[shard_of_thread() % SHARDS].0;
        for (count, sum) in counts.0.iter_mut().zip(shard) {
            if *count != 0 {
                sum.fetch_add(u64::from(*count), Ordering::Relaxed);
                *count = 0;
            }
        }
    }

    pub(crate) fn statistics(&self) -> TcStatistics {
        let mut statistics = TcStatistics::default();
        for counter in 0..COUNTERS {
            // What one shard has added another may have subtracted; the sum is none the less right, if not of one moment.
            let shards = self.0.iter().map(|shard| shard.0[counter].load(Ordering::Relaxed));
            let sum = shards.fold(0, u64::wrapping_add) as i64;
            statistics.set(counter, sum.max(0) as u64);
        }
        statistics
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_sums_are_right_whichever_threads_add_and_subtract() {
        let counters = Counters::new();
        for _ in 0..300 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    counters.add(Counter::Stalls, 3);
                    counters.subtract(Counter::Stalls, 1);
                    let mut counts = Counts::default();
                    counts.add(Counter::Reads);
                    counts.add(Counter::Reads);
                    counts.add(Counter::Commits);
                    assert_eq!((counts.of(Counter::Reads), counts.of(Counter::Commits)), (2, 1));
                    counters.take(&mut counts);
                    counters.take(&mut counts);
                });
            });
        }
        let expected = TcStatistics { stalls: 600, reads: 600, commits: 300, ..TcStatistics::default() };
        assert_eq!(counters.statistics(), expected);
        // Taken one after the other, they may be of different moments: never less than nothing.
        counters.subtract(Counter::Stalls, 1000);
        assert_eq!(counters.statistics().stalls, 0);
    }
}
