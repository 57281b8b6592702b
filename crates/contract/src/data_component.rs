//! The contract of a data component (paper 4.2 and 4.3).
//!
//! Invariants that every implementation keeps (and that [the conformance suite](crate::conformance) checks):
//!
//! - **C1** Operations are blind and idempotent: applying one needs no earlier read, and applying it again
//!   changes nothing.
//! - **C2** The highest timestamp wins among versions of a key, whatever the order of arrival; between equal
//!   timestamps the higher LSN wins (one transaction wrote the key twice).
//! - **C3** A delete is a tombstone with a timestamp until no later arrival and no replay can bring the key back:
//!   until [`DataComponent::redo_scan_start_point`] has passed both its LSN *and* the end of stable log as of its
//!   first arrival. The LSN alone is not enough, because LSN order is not version order: see below.
//! - **C4** After a crash the component holds every operation below the last completed redo scan start point,
//!   and possibly more.
//! - **C5** After a crash it knows how much of the log it depends on: every operation that it holds lies below
//!   [`DataComponent::recovered_end_of_stable_log`], which had been announced. So a log that has lost its end is found out, rather
//!   than joined with a component that holds some of what was in it.
//! - **C6** After a crash it knows how far the clock has come: every operation that it holds has a timestamp of at most
//!   [`DataComponent::recovered_newest_timestamp`]. So a transaction component whose log has lost its end does not give out
//!   timestamps again, whose operations would lose against older ones (C2).
//!
//! # Why a tombstone outlives the redo scan start point
//!
//! Two transactions may append to the log in one order and install their versions in the other. Let `T` delete
//! a key (LSN 100, timestamp 20) and let `S` have written it (LSN 200, timestamp 10). A redo scan start point of 150 has passed
//! the tombstone, yet the older version at 200 is still to come, now or in a replay from 150, and must lose. What
//! holds is that `S` has committed before `T` could install its delete, so `S`'s records lie below `T`'s commit
//! record, and that is stable before the delete is posted: once redo starts at or above the end of stable log of
//! that moment, nothing older can arrive any more.
//!
//! A component need not keep that LSN per tombstone. It can note, at a redo scan start point `r`, the end of stable
//! log `e`; when a later one reaches `e`, tombstones with LSNs below `r` may go.

use crate::{DcError, Lsn, ScanBatch, TableId, Timestamp};
use deuteron_histogram::Distribution;
use std::ops::Bound;

/// One blind upsert or delete, as the proxy posts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<'a> {
    /// The table; a table comes into being with its first operation.
    pub table: TableId,
    /// The key, at least one byte and at most the component's limit.
    pub key: &'a [u8],
    /// The new value, or `None` for a delete.
    pub value: Option<&'a [u8]>,
    /// The final (commit) timestamp of the transaction.
    pub timestamp: Timestamp,
    /// Where the redo record lies in the recovery log.
    pub lsn: Lsn,
}

/// A record as a data component returns it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Record {
    /// The key. Empty in the answer to a `get`, whose caller knows it.
    pub key: Vec<u8>,
    /// The value, or `None` where the newest version is a delete that is still remembered.
    pub value: Option<Vec<u8>>,
    /// The commit timestamp of this version.
    pub timestamp: Timestamp,
}

impl Record {
    /// How long the value is; 0 if there is none.
    ///
    /// ```
    /// # use deuteron_contract::{Record, Timestamp};
    /// let record = Record { key: b"apples".to_vec(), value: Some(b"12".to_vec()), timestamp: Timestamp(5) };
    /// assert_eq!(record.value_bytes(), 2);
    /// ```
    pub fn value_bytes(&self) -> usize {
        self.value.as_ref().map_or(0, Vec::len)
    }
}

/// The order in which a scan returns keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Direction {
    /// From the lowest key up.
    #[default]
    Forward,
    /// From the highest key down.
    Reverse,
}

/// A request for one batch of a range scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanRequest<'a> {
    /// The table.
    pub table: TableId,
    /// The lower end of the range.
    pub lower: Bound<&'a [u8]>,
    /// The upper end of the range.
    pub upper: Bound<&'a [u8]>,
    /// Lowest first, or highest first.
    pub direction: Direction,
    /// Stop after about this many bytes of keys and values. At least one record is returned if there is one.
    pub bytes_max: usize,
    /// Stop after this many records that are there; tombstones do not count. At least one is returned if there is one.
    pub records_max: usize,
}

impl ScanRequest<'_> {
    /// Whether the bounds alone say that no key can be in the range (which ordered maps tend to panic on).
    ///
    /// ```
    /// use deuteron_contract::{Direction, ScanRequest, TableId};
    /// use std::ops::Bound::{Excluded, Included, Unbounded};
    /// let request = |lower, upper| ScanRequest {
    ///     table: TableId(1), lower, upper, direction: Direction::Forward, bytes_max: 4096, records_max: 100,
    /// };
    /// assert!(!request(Included(b"a".as_slice()), Included(b"a")).is_crossed());
    /// assert!(request(Included(b"a".as_slice()), Excluded(b"a")).is_crossed());
    /// assert!(request(Excluded(b"b".as_slice()), Included(b"a")).is_crossed());
    /// assert!(!request(Unbounded, Excluded(b"a".as_slice())).is_crossed());
    /// ```
    pub fn is_crossed(&self) -> bool {
        match (self.lower, self.upper) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
            (
                Bound::Included(lower) | Bound::Excluded(lower),
                Bound::Included(upper) | Bound::Excluded(upper),
            ) => lower >= upper,
        }
    }
}

/// What a data component can say of itself, in bytes and counts. Zero where it does not apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DcStatistics {
    /// Bytes of memory that the component holds for pages and indexes.
    pub memory_bytes: u64,
    /// Bytes of disk that the component occupies.
    pub disk_bytes: u64,
    /// Bytes written to disk since it was opened.
    pub bytes_written: u64,
    /// Named counters of every mechanism, in a fixed order.
    pub counters: Vec<(&'static str, u64)>,
    /// How long, or how much: of what does I/O, waits, or happens seldom. Named, with the unit last, in a fixed order.
    pub distributions: Vec<(&'static str, Distribution)>,
}

/// A data component: an atomic record store with tables, fed by blind upserts.
///
/// All methods take `&self` and may be called from any number of threads. Methods may block on storage; none
/// keeps a latch while it does.
pub trait DataComponent: Send + Sync {
    /// The newest version of `key` that has been applied, a tombstone included, or `None` if the component
    /// knows nothing of the key. The returned record's `key` is empty.
    ///
    /// # Errors
    /// [`DcError`] if the device fails or a page is corrupt.
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Record>, DcError>;

    /// As [`DataComponent::get`] of each of `keys`, in their order: of the first, if there is one, and of as many behind it as their
    /// values have `bytes_max` bytes in all. What has to be read for them can be read together. Each record is as of a moment of its own during the call.
    ///
    /// # Errors
    /// As [`DataComponent::get`], if any of them fails.
    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
        bytes_max: usize,
    ) -> Result<Vec<Option<Record>>, DcError> {
        let (mut records, mut bytes) = (Vec::with_capacity(keys.len()), 0usize);
        for key in keys {
            let record = self.get(table, key)?;
            bytes = bytes.saturating_add(record.as_ref().map_or(0, Record::value_bytes));
            if bytes > bytes_max && !records.is_empty() {
                break;
            }
            records.push(record);
        }
        Ok(records)
    }

    /// One batch of a range scan. Every operation applied before the call is seen; one applied during it may be.
    ///
    /// # Errors
    /// [`DcError`] if the device fails or a page is corrupt.
    fn scan(&self, request: &ScanRequest<'_>) -> Result<ScanBatch, DcError> {
        let mut batch = ScanBatch::new();
        self.scan_into(request, &mut batch)?;
        Ok(batch)
    }

    /// As [`DataComponent::scan`], in the memory of `batch`, whatever is in it. After an error nobody knows what is.
    ///
    /// # Errors
    /// As [`DataComponent::scan`].
    fn scan_into(&self, request: &ScanRequest<'_>, batch: &mut ScanBatch) -> Result<(), DcError>;

    /// Applies a batch, in any order. When it returns, every operation is visible to [`DataComponent::get`];
    /// it is durable only after [`DataComponent::redo_scan_start_point`]. May be repeated after an error; until
    /// then any part of the batch may have been applied.
    ///
    /// The caller has announced an [end of stable log](DataComponent::end_of_stable_log) above the operations
    /// and above the commit records of their transactions before.
    ///
    /// # Errors
    /// [`DcError`] if the device fails or a key or value is over the component's limit.
    fn apply(&self, operations: &[Operation<'_>]) -> Result<(), DcError>;

    /// EOSL: the recovery log is stable up to `lsn` (exclusive); operations below it may be made durable.
    fn end_of_stable_log(&self, lsn: Lsn);

    /// RSSP: makes every applied operation below `lsn` durable, and remembers `lsn` durably (a checkpoint). The
    /// caller has applied every such operation before. When it returns the log below `lsn` is not needed any
    /// more.
    ///
    /// # Errors
    /// [`DcError`] if the device fails; the earlier checkpoint then stands.
    fn redo_scan_start_point(&self, lsn: Lsn) -> Result<(), DcError>;

    /// The `lsn` of the last completed [`DataComponent::redo_scan_start_point`]: where redo starts after a crash.
    fn recovered_redo_scan_start_point(&self) -> Lsn;

    /// How far the recovery log must reach for what the component holds durably: an end of stable log that has been announced, in
    /// this life or an earlier one, above every operation that a crash would leave. `Lsn(0)` if none ever was. A log that ends before it has lost what had been stable.
    fn recovered_end_of_stable_log(&self) -> Lsn;

    /// A timestamp at or above those of all that the component holds durably, an upper bound. `Timestamp(0)` if nothing was ever applied.
    fn recovered_newest_timestamp(&self) -> Timestamp;

    /// What the component says of itself.
    fn statistics(&self) -> DcStatistics;
}
