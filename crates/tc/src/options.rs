//! Options of the component and of a transaction.

use crate::error::TcError;
use deuteron_contract::Timestamp;

/// Options of a [`TransactionComponent`](crate::TransactionComponent); validated when it is opened.
///
/// ```
/// use deuteron_tc::TcOptions;
/// let options = TcOptions { memory_bytes: 256 << 20, ..TcOptions::default() };
/// assert!(options.key_bytes_max >= 4096);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcOptions {
    /// The budget for the MVCC table with its records, versions and cached values. The log's ring is not part of it.
    pub memory_bytes: usize,
    /// Of the hash of keys. Nothing persistent depends on it; one seed makes runs repeatable.
    pub hash_seed: u64,
    /// The longest key. Not 0.
    pub key_bytes_max: usize,
    /// The longest value. What does not fit into one record of the log is logged in pieces.
    pub value_bytes_max: usize,
    /// The clock starts above it: the ceiling that recovery found.
    pub clock_start: Timestamp,
    /// Who keeps the log from being cut is aborted sooner or later (see
    /// [`TransactionComponent::abort_writers_before`](crate::TransactionComponent::abort_writers_before)): a transaction that has logged
    /// about so many bytes itself by then is too large, and running it again does not help.
    pub log_bytes_max: u64,
    /// How many timestamps are leased at a time: from 1 to 2^40. A restart skips up to so many.
    pub clock_lease: u64,
    /// Ranges whose read timestamps are kept apart.
    pub range_timestamps: usize,
    /// A transaction that has read more than this many keys and scans, or such that they take more than half of the budget, forgets
    /// them, and cannot commit if it must do so later than it began.
    pub reads_max: usize,
    /// The first batch of a scan reads about so much from the data component, from 1 byte to 1 GiB; later ones up to 64 times as much.
    pub scan_batch_bytes: usize,
    /// A batch of a scan looks at so many records of this component at most, and not at none. The first ends with the sixteenth that is there, later ones with up to
    /// 64 times as many.
    pub scan_batch_records_max: usize,
    /// A scan that passes so many records that are not there, before the first that is, notes that the range up to that one is empty (rule R25).
    pub empty_records_min: usize,
    /// A transaction gives up after so many refreshes (rule R7).
    pub refreshes_max: usize,
    /// How often a transaction lets others have a turn, in all, for the sake of writers before it (rule R19).
    pub patience: u32,
    /// Whether versions are kept for transactions in the past, from
    /// [`TransactionComponent::retain_from`](crate::TransactionComponent::retain_from) on.
    pub retains: bool,
    /// What a transaction does that would come too late.
    pub concurrency_control: ConcurrencyControl,
}

impl Default for TcOptions {
    fn default() -> TcOptions {
        TcOptions {
            memory_bytes: 256 << 20,
            hash_seed: 0x0D15_EA5E,
            key_bytes_max: 4096,
            value_bytes_max: 64 << 20,
            log_bytes_max: u64::MAX,
            clock_start: Timestamp(0),
            clock_lease: 1 << 32,
            range_timestamps: 256,
            reads_max: usize::MAX,
            scan_batch_bytes: 4 << 10,
            scan_batch_records_max: 512,
            empty_records_min: 8,
            refreshes_max: 16,
            patience: 64,
            retains: false,
            concurrency_control: ConcurrencyControl::Pushes,
        }
    }
}

impl TcOptions {
    /// So small that every rare path is common.
    ///
    /// ```
    /// assert!(deuteron_tc::TcOptions::tiny_for_tests().memory_bytes < 100_000);
    /// ```
    pub fn tiny_for_tests() -> TcOptions {
        TcOptions {
            memory_bytes: 64 << 10,
            key_bytes_max: 256,
            value_bytes_max: 128 << 10,
            clock_lease: 256,
            range_timestamps: 2,
            reads_max: 64,
            scan_batch_bytes: 32,
            scan_batch_records_max: 2,
            empty_records_min: 1,
            ..TcOptions::default()
        }
    }

    /// An error that names the setting with which no transaction would come to its end.
    pub(crate) fn validate(&self) -> Result<(), TcError> {
        let wrong = |option, problem| Err(TcError::Options { option, problem });
        if self.key_bytes_max == 0 {
            return wrong("key_bytes_max", "there is no key of 0 bytes");
        }
        if !(1..=1 << 40).contains(&self.clock_lease) {
            return wrong("clock_lease", "not from 1 to 2^40 timestamps");
        }
        if !(1..=1 << 30).contains(&self.scan_batch_bytes) {
            return wrong("scan_batch_bytes", "not from 1 byte to 1 GiB");
        }
        if self.scan_batch_records_max == 0 {
            return wrong("scan_batch_records_max", "a batch of no records is none");
        }
        Ok(())
    }

    /// Buckets of the hash table: an eighth of the budget, and about one for each 128 bytes of it.
    pub(crate) fn buckets(&self) -> usize {
        ((self.memory_bytes / 64).max(2).next_power_of_two() / 2).min(1 << 31)
    }
}

/// What becomes of a strictly serializable transaction whose place in the order of timestamps is taken: a later one has read
/// what it writes, or wants to read what it has written and not committed.
///
/// ```
/// assert_eq!(deuteron_tc::ConcurrencyControl::default(), deuteron_tc::ConcurrencyControl::Pushes);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ConcurrencyControl {
    /// The writer is pushed: it commits later, if what it has read is the same then (rules R2, R5, R7).
    #[default]
    Pushes,
    /// Pure timestamp order, as in section 2 of the paper: a writer that finds a later reader gives way, and so does a reader
    /// that finds an earlier writer uncommitted (rule R18). Every transaction commits at its begin, and none looks at its
    /// reads again. It is here to be compared with.
    TimestampOrder,
}

/// How far a transaction is kept apart from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Isolation {
    /// Strictly serializable.
    #[default]
    Serializable,
    /// All reads as of the begin, no lost updates; write skew is possible. Reads are never looked at again.
    Snapshot,
    /// Each operation reads what was committed when it began (a scan: when its batch began). Nothing is protected from
    /// changing afterwards, and no version is kept for the transaction.
    ReadCommitted,
}

/// Options of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BeginOptions {
    /// How far it is kept apart from the others.
    pub isolation: Isolation,
    /// It will not write; a write is an error. Its reads store nothing that others look at (rule R15), it waits for
    /// nobody, and it aborts only if its versions are given up for want of memory.
    pub read_only: bool,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn settings_with_which_nothing_would_come_to_its_end_are_refused() {
        let tiny = TcOptions::tiny_for_tests;
        assert!(tiny().validate().is_ok() && TcOptions::default().validate().is_ok());
        for (name, options) in [
            ("key_bytes_max", TcOptions { key_bytes_max: 0, ..tiny() }),
            ("clock_lease", TcOptions { clock_lease: 0, ..tiny() }),
            ("clock_lease", TcOptions { clock_lease: u64::MAX, ..tiny() }),
            ("scan_batch_bytes", TcOptions { scan_batch_bytes: 0, ..tiny() }),
            ("scan_batch_bytes", TcOptions { scan_batch_bytes: usize::MAX, ..tiny() }),
            ("scan_batch_records_max", TcOptions { scan_batch_records_max: 0, ..tiny() }),
        ] {
            assert!(matches!(options.validate(), Err(TcError::Options { option, .. }) if option == name));
        }
    }

    #[test]
    fn an_eighth_of_the_memory_is_for_buckets() {
        let buckets = |memory_bytes| TcOptions { memory_bytes, ..TcOptions::default() }.buckets();
        assert_eq!([0, 128, 64 << 10, 1 << 20, 3 << 20].map(buckets), [1, 1, 512, 8 << 10, 32 << 10]);
        assert_eq!(buckets(256 << 20) * 8, (256 << 20) / 16, "pointers, a sixteenth to an eighth of it");
        assert_eq!(buckets(1 << 60), 1 << 31);
    }
}
