//! [`Batch`]: operations on their way to the data component, sorted and without superseded ones.

use crate::ProxyError;
use crate::statistics::ProxyStatistics;
use deuteron_contract::{DataComponent, Operation};
use std::cmp::Reverse;

/// Collects operations, which borrow their bytes from a log buffer or from [`crate::held::Held`].
///
/// The data component takes any order; sorted, all operations of one page come together and can become one update
/// of it. Of several operations on one key only the newest goes on (C2 of the contract would have it win).
pub(crate) struct Batch<'a> {
    operations: Vec<Operation<'a>>,
    operations_max: usize,
}

impl<'a> Batch<'a> {
    /// An empty batch. What it allocates is allocated once, not per operation.
    pub fn new(operations_max: usize) -> Self {
        Batch { operations: Vec::new(), operations_max: operations_max.max(1) }
    }

    /// Adds an operation and applies the batch if that makes it full.
    #[inline]
    pub fn push(
        &mut self,
        operation: Operation<'a>,
        dc: &dyn DataComponent,
        statistics: &mut ProxyStatistics,
    ) -> Result<(), ProxyError> {
        self.operations.push(operation);
        if self.operations.len() >= self.operations_max { self.apply(dc, statistics) } else { Ok(()) }
    }

    /// Applies what there is. After an error the batch is empty and the caller starts over with its operations.
    pub fn apply(
        &mut self,
        dc: &dyn DataComponent,
        statistics: &mut ProxyStatistics,
    ) -> Result<(), ProxyError> {
        if self.operations.is_empty() {
            return Ok(());
        }
        let collected = self.operations.len();
        sort(&mut self.operations);
        // The newest of each key comes first.
        self.operations.dedup_by(|later, first| (later.table, later.key) == (first.table, first.key));
        let operations = self.operations.len();
        let applied = dc.apply(&self.operations);
        let lowest = self.operations.iter().map(|operation| operation.lsn).min().unwrap_or_default();
        self.operations.clear();
        applied.map_err(|source| ProxyError::Apply { operations, lsn: lowest, source })?;
        statistics.batches += 1;
        statistics.operations_posted += operations as u64;
        statistics.operations_superseded += (collected - operations) as u64;
        Ok(())
    }
}

/// By table and key; of one key the newest first.
fn sort(operations: &mut [Operation<'_>]) {
    let by_key_and_age = |operation: &Operation<'_>| (Reverse(operation.timestamp), Reverse(operation.lsn));
    operations.sort_unstable_by(|one, other| {
        let by_key = (one.table, one.key).cmp(&(other.table, other.key));
        by_key.then_with(|| by_key_and_age(one).cmp(&by_key_and_age(other)))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_contract::{DcError, DcStatistics, Lsn, Record, ScanBatch, ScanRequest, TableId, Timestamp};
    use std::sync::Mutex;

    type Row = (u32, Vec<u8>, u64, u64);

    /// Remembers what it is told to apply.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<Vec<Row>>>);

    impl DataComponent for Recorder {
        fn get(&self, _: TableId, _: &[u8]) -> Result<Option<Record>, DcError> {
            Ok(None)
        }
        fn scan(&self, _: &ScanRequest<'_>) -> Result<ScanBatch, DcError> {
            Ok(ScanBatch { records: Vec::new(), complete: true })
        }
        fn apply(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
            let row = |o: &Operation<'_>| (o.table.0, o.key.to_vec(), o.timestamp.0, o.lsn.0);
            self.0.lock().unwrap().push(operations.iter().map(row).collect());
            Ok(())
        }
        fn end_of_stable_log(&self, _: Lsn) {}
        fn redo_scan_start_point(&self, _: Lsn) -> Result<(), DcError> {
            Ok(())
        }
        fn recovered_redo_scan_start_point(&self) -> Lsn {
            Lsn(0)
        }
        fn statistics(&self) -> DcStatistics {
            DcStatistics::default()
        }
    }

    #[test]
    fn a_batch_is_sorted_and_holds_the_newest_of_each_key() {
        let dc = Recorder::default();
        let mut statistics = ProxyStatistics::default();
        let mut batch = Batch::new(5);
        let operations: [(u32, &[u8], u64, u64); 6] = [
            (2, b"a", 5, 8),
            (1, b"b", 5, 16),
            (1, b"a", 7, 24),
            (1, b"a", 6, 32),
            (1, b"b", 5, 40),
            (1, b"z", 1, 48),
        ];
        for (table, key, timestamp, lsn) in operations {
            let operation = Operation {
                table: TableId(table),
                key,
                value: None,
                timestamp: Timestamp(timestamp),
                lsn: Lsn(lsn),
            };
            batch.push(operation, &dc, &mut statistics).unwrap();
        }
        batch.apply(&dc, &mut statistics).unwrap();
        batch.apply(&dc, &mut statistics).unwrap();
        let applied = dc.0.lock().unwrap();
        assert_eq!(
            applied[0],
            [(1, b"a".to_vec(), 7, 24), (1, b"b".to_vec(), 5, 40), (2, b"a".to_vec(), 5, 8)]
        );
        assert_eq!(applied[1], [(1, b"z".to_vec(), 1, 48)]);
        assert_eq!(applied.len(), 2);
        assert_eq!(
            (statistics.batches, statistics.operations_posted, statistics.operations_superseded),
            (2, 4, 2)
        );
    }
}
