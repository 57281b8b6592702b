//! [`Batch`]: operations on their way to the data component, sorted and without superseded ones.

use crate::ProxyError;
use crate::statistics::ProxyStatistics;
use deuteron_contract::{DataComponent, Operation, TableId};

/// Collects operations, which borrow their bytes from a log buffer or from [`crate::held::Held`].
///
/// The data component takes any order; sorted, all operations of one page come together and can become one update
/// of it. Of several operations on one key only the newest goes on (C2 of the contract would have it win).
pub(crate) struct Batch<'a> {
    operations: Vec<Operation<'a>>,
    operations_max: usize,
    order: Vec<Place>,
    sorted: Vec<Operation<'a>>,
}

impl<'a> Batch<'a> {
    /// An empty batch. What it allocates is allocated once, not per operation.
    pub fn new(operations_max: usize) -> Self {
        let operations_max = operations_max.clamp(1, u32::MAX as usize);
        Batch { operations: Vec::new(), operations_max, order: Vec::new(), sorted: Vec::new() }
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
        sort(&mut self.operations, &mut self.order, &mut self.sorted);
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

/// By table and key; of one key the newest first. The first bytes of the keys are brought together before, for the keys
/// themselves lie all over the log.
fn sort<'a>(operations: &mut Vec<Operation<'a>>, order: &mut Vec<Place>, sorted: &mut Vec<Operation<'a>>) {
    order.clear();
    order.extend((0..).zip(&*operations).map(|(index, operation)| Place {
        table: operation.table,
        prefix: prefix(operation.key),
        index,
    }));
    order.sort_unstable_by(|one, other| {
        (one.table, one.prefix).cmp(&(other.table, other.prefix)).then_with(|| {
            let [one, other] = [one, other].map(|place| &operations[place.index as usize]);
            let by_age = || (other.timestamp, other.lsn).cmp(&(one.timestamp, one.lsn));
            one.key.cmp(other.key).then_with(by_age)
        })
    });
    sorted.clear();
    sorted.extend(order.iter().map(|place| operations[place.index as usize]));
    std::mem::swap(operations, sorted);
}

/// What decides the place of most operations in the order, and which it is.
struct Place {
    prefix: u64,
    table: TableId,
    index: u32,
}

/// The first eight bytes, padded with zeros: keys are ordered as their prefixes are, where these differ.
fn prefix(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = key.len().min(8);
    bytes[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_contract::{DcError, DcStatistics, Lsn, Record, ScanBatch, ScanRequest, Timestamp};
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

    proptest::proptest! {
        #[test]
        fn the_order_is_that_of_the_keys(keys in proptest::collection::vec(
            (0u32..2, proptest::collection::vec(0u8..3, 1..12), 0u64..4), 0..60,
        )) {
            let mut operations: Vec<Operation<'_>> = (0..)
                .zip(&keys)
                .map(|(lsn, (table, key, timestamp))| Operation {
                    table: TableId(*table), key, value: None, timestamp: Timestamp(*timestamp), lsn: Lsn(lsn),
                })
                .collect();
            let mut expected = operations.clone();
            expected.sort_by_key(|operation| {
                (operation.table, operation.key, std::cmp::Reverse((operation.timestamp, operation.lsn)))
            });
            sort(&mut operations, &mut Vec::new(), &mut Vec::new());
            proptest::prop_assert_eq!(operations, expected);
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
