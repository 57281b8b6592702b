//! The version manager (paper 3): where the bytes of versions are, and what the data component has got.
//!
//! | a version's value | from |
//! |---|---|
//! | of a base version | the version itself |
//! | recently written | the log's ring in memory (the version cache) |
//! | in pieces, being too long for a record, and not applied yet | the ring and the log on disk, piece by piece |
//! | recycled from the ring and *applied* | the data component |
//! | recycled and not applied yet | the log on disk |
//!
//! What comes from the last two is kept beside its version from then on (the read cache).
//!
//! A version is applied when the proxy's last report covers it: its redo record, its commit record and its timestamp are
//! below the three bounds (paper 4.4 has two; the third is due to rule R11). Each bound only grows, and a report
//! covers everything below its three bounds; so bounds read one by one, at different times, are still covered by the latest
//! report among them.

use crate::sync::{AtomicU64, Ordering};
use deuteron_contract::{DataComponent, DcError, Lsn, Record, ScanBatch, ScanRequest, TableId, Timestamp};
use deuteron_epoch::Guard;
use deuteron_log::{AppendError, CommitReservation, Log, LogError, OwnedRecord, Record as LogRecord};
use std::sync::Arc;

/// See the [module](self).
pub(crate) struct VersionManager {
    log: Arc<Log>,
    data_component: Arc<dyn DataComponent>,
    /// T-LSN, O-LSN and the timestamp below which versions have been posted.
    t_lsn: AtomicU64,
    o_lsn: AtomicU64,
    posted: AtomicU64,
}

impl VersionManager {
    pub(crate) fn new(log: Arc<Log>, data_component: Arc<dyn DataComponent>) -> VersionManager {
        VersionManager {
            log,
            data_component,
            t_lsn: AtomicU64::new(0),
            o_lsn: AtomicU64::new(0),
            posted: AtomicU64::new(0),
        }
    }

    // ---- the log --------------------------------------------------------------------------------------------

    pub(crate) fn append(&self, record: &LogRecord<'_>) -> Result<Lsn, AppendError> {
        self.log.append(record)
    }

    /// With room for `bytes` of updates before it.
    pub(crate) fn reserve_commit(&self, bytes: usize) -> Result<CommitReservation<'_>, AppendError> {
        self.log.reserve_commit_behind(bytes)
    }

    /// What is appended from now on lies there or behind it.
    pub(crate) fn tail_lsn(&self) -> Lsn {
        self.log.tail_lsn()
    }

    pub(crate) fn stable_lsn(&self) -> Lsn {
        self.log.stable_lsn()
    }

    pub(crate) fn request_flush(&self, upto: Lsn) {
        self.log.request_flush(upto);
    }

    /// The most that is appended, or reserved, at once.
    pub(crate) fn record_bytes_max(&self) -> usize {
        self.log.record_bytes_max()
    }

    /// The longest value that one record takes under a key of `key_bytes`.
    pub(crate) fn value_bytes_max(&self, key_bytes: usize) -> usize {
        self.log.value_bytes_max(key_bytes)
    }

    /// The value of the version at `lsn`, while the log has it in memory.
    ///
    /// # Safety
    /// `lsn` was taken from a version that was reached under the guard: `append` returned it to the writer.
    #[inline]
    pub(crate) unsafe fn read_cached<'g>(&'g self, lsn: Lsn, guard: &'g Guard<'_>) -> Option<&'g [u8]> {
        // SAFETY: the caller's contract.
        match unsafe { self.log.read(lsn, guard) }? {
            LogRecord::Upsert { value, .. } => Some(value),
            other => {
                debug_assert!(false, "version refers to {other:?}");
                None
            }
        }
    }

    /// Says that the value of the version at `lsn` will be read next. A hint.
    #[inline]
    pub(crate) fn prefetch(&self, lsn: Lsn) {
        #[cfg(all(test, not(any(loom, shuttle))))]
        crate::counted::note_prefetch(lsn.0 as usize);
        self.log.prefetch(lsn);
    }

    /// The record at `lsn`, while the log has it in memory.
    ///
    /// # Safety
    /// As [`VersionManager::read_cached`].
    pub(crate) unsafe fn record_cached<'g>(
        &'g self,
        lsn: Lsn,
        guard: &'g Guard<'_>,
    ) -> Option<LogRecord<'g>> {
        // SAFETY: the caller's contract.
        unsafe { self.log.read(lsn, guard) }
    }

    /// The record at `lsn` from the log on disk.
    pub(crate) fn record_stable(&self, lsn: Lsn) -> Result<OwnedRecord, LogError> {
        self.log.read_stable(lsn)
    }

    /// How many bytes of a long value go into one record.
    pub(crate) fn piece_bytes(&self) -> usize {
        self.log.piece_bytes()
    }

    // ---- the data component ---------------------------------------------------------------------------------

    pub(crate) fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Record>, DcError> {
        self.data_component.get(table, key)
    }

    /// The first of `keys`, or all of them, together. Never under a guard.
    pub(crate) fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
        bytes_max: usize,
    ) -> Result<Vec<Option<Record>>, DcError> {
        self.data_component.get_many(table, keys, bytes_max)
    }

    pub(crate) fn scan_into(&self, request: &ScanRequest<'_>, batch: &mut ScanBatch) -> Result<(), DcError> {
        self.data_component.scan_into(request, batch)
    }

    // ---- progress -------------------------------------------------------------------------------------------

    /// The proxy's report: every operation with an LSN below `o_lsn`, a commit record below `t_lsn` and a final timestamp
    /// below `posted` is at the data component.
    pub(crate) fn report_progress(&self, t_lsn: Lsn, o_lsn: Lsn, posted: Timestamp) {
        self.t_lsn.fetch_max(t_lsn.0, Ordering::SeqCst);
        self.o_lsn.fetch_max(o_lsn.0, Ordering::SeqCst);
        self.posted.fetch_max(posted.0, Ordering::SeqCst);
    }

    /// Whether the data component has a version that was logged at `lsn` and committed at `at`, with its commit record at
    /// `commit_lsn`.
    pub(crate) fn is_applied(&self, lsn: Lsn, commit_lsn: Lsn, at: Timestamp) -> bool {
        lsn.0 < self.o_lsn.load(Ordering::SeqCst)
            && commit_lsn.0 < self.t_lsn.load(Ordering::SeqCst)
            && at.0 < self.posted.load(Ordering::SeqCst)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::test_bed::roomy;
    use deuteron_contract::{Lsn, Timestamp};

    #[test]
    fn a_version_is_applied_if_all_three_bounds_are_beyond_it() {
        let bed = roomy();
        let versions = &bed.tc().core.versions;
        let is_applied = |lsn, commit, at| versions.is_applied(Lsn(lsn), Lsn(commit), Timestamp(at));
        assert!(!is_applied(0, 0, 0));
        versions.report_progress(Lsn(20), Lsn(10), Timestamp(30));
        assert!(is_applied(9, 19, 29));
        assert!(!is_applied(10, 19, 29) && !is_applied(9, 20, 29) && !is_applied(9, 19, 30));
        // A late report takes nothing back.
        versions.report_progress(Lsn(5), Lsn(15), Timestamp(5));
        assert!(is_applied(14, 19, 29) && !is_applied(15, 19, 29) && !is_applied(14, 20, 29));
    }

    #[test]
    fn the_log_says_what_a_record_takes() {
        let bed = roomy();
        let versions = &bed.tc().core.versions;
        assert_eq!(versions.value_bytes_max(7), bed.log.value_bytes_max(7));
        assert!(versions.value_bytes_max(7) > versions.value_bytes_max(8));
        assert_eq!(versions.piece_bytes(), bed.log.piece_bytes());
        assert!(versions.piece_bytes() > 1);
        // A flush that nobody has asked for is none.
        while bed.log.flush_step().unwrap() {}
        let append = deuteron_log::Record::Abort { transaction: deuteron_contract::TransactionId(1) };
        let lsn = versions.append(&append).unwrap();
        assert!(!bed.log.flush_step().unwrap());
        versions.request_flush(Lsn(lsn.0 + 1));
        assert!(bed.log.flush_step().unwrap() && versions.stable_lsn() > lsn);
    }
}
