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
    chunk: Vec<Operation<'a>>,
    buffers: Buffers,
}

/// The memory of batches, kept from one to the next.
#[derive(Default)]
pub(crate) struct Buffers {
    operations: Vec<Operation<'static>>,
    chunk: Vec<Operation<'static>>,
    order: Vec<Place>,
}

/// So many operations are handed over at a time: few enough that their keys and values stay in the second-level cache while
/// the data component goes over them.
const CHUNK: usize = 4096;

impl<'a> Batch<'a> {
    /// An empty batch in the memory of an earlier one.
    pub fn new(operations_max: usize, mut buffers: Buffers) -> Self {
        let [operations, chunk] = [&mut buffers.operations, &mut buffers.chunk].map(std::mem::take);
        Batch { operations, operations_max: operations_max.clamp(1, u32::MAX as usize), chunk, buffers }
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
        sort(&self.operations, &mut self.buffers.order);
        let mut posted = 0;
        let mut result = Ok(());
        for places in self.buffers.order.chunks(CHUNK) {
            self.chunk.clear();
            self.chunk.extend(places.iter().map(|place| self.operations[place.index as usize]));
            posted += self.chunk.len();
            result = dc.apply(&self.chunk).map_err(|source| {
                let lowest = self.chunk.iter().map(|operation| operation.lsn).min().unwrap_or_default();
                ProxyError::Apply { operations: self.chunk.len(), lsn: lowest, source }
            });
            if result.is_err() {
                break;
            }
            statistics.batches += 1;
            statistics.operations_posted += self.chunk.len() as u64;
        }
        self.operations.clear();
        if result.is_ok() {
            statistics.operations_superseded += (collected - posted) as u64;
        }
        result
    }

    /// Gives the memory back for the next batch.
    pub fn finish(self) -> Buffers {
        Buffers { operations: recycle(self.operations), chunk: recycle(self.chunk), ..self.buffers }
    }
}

/// An empty vector with the memory of another. (The standard library collects in place where the sizes agree; if it should
/// not, this costs an allocation.)
fn recycle<'b>(mut operations: Vec<Operation<'_>>) -> Vec<Operation<'b>> {
    operations.clear();
    operations.into_iter().map(|operation| Operation { key: &[], value: None, ..operation }).collect()
}

/// The order of `operations`: by table and key, and of one key only the newest. The first bytes of the keys are brought together
/// before, for the keys themselves lie all over the log.
fn sort(operations: &[Operation<'_>], order: &mut Vec<Place>) {
    order.clear();
    order.extend((0..).zip(operations).map(|(index, operation)| Place {
        table: operation.table,
        prefix: prefix(operation.key),
        index,
    }));
    let of = |place: &Place| &operations[place.index as usize];
    order.sort_unstable_by(|one, other| {
        (one.table, one.prefix).cmp(&(other.table, other.prefix)).then_with(|| {
            let (one, other) = (of(one), of(other));
            let by_age = || (other.timestamp, other.lsn).cmp(&(one.timestamp, one.lsn));
            one.key.cmp(other.key).then_with(by_age)
        })
    });
    // The newest of each key comes first.
    order.dedup_by(|later, first| {
        (later.table, later.prefix) == (first.table, first.prefix) && of(later).key == of(first).key
    });
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
        fn recovered_end_of_stable_log(&self) -> Lsn {
            Lsn(0)
        }
        fn recovered_newest_timestamp(&self) -> Timestamp {
            Timestamp(0)
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
            let mut order = Vec::new();
            sort(&operations, &mut order);
            let found: Vec<_> = order.iter().map(|place| operations[place.index as usize]).collect();
            operations.sort_by_key(|operation| {
                (operation.table, operation.key, std::cmp::Reverse((operation.timestamp, operation.lsn)))
            });
            operations.dedup_by_key(|operation| (operation.table, operation.key));
            proptest::prop_assert_eq!(found, operations);
        }
    }

    #[test]
    fn a_batch_is_sorted_and_holds_the_newest_of_each_key() {
        let dc = Recorder::default();
        let mut statistics = ProxyStatistics::default();
        let mut batch = Batch::new(5, Buffers::default());
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
