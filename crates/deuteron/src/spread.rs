//! [`Spread`]: a data component that applies on several threads at once.

use deuteron_contract::{
    DataComponent, DcError, DcStatistics, Lsn, Operation, Record, ScanBatch, ScanRequest, TableId, Timestamp,
};
use std::sync::Arc;
use std::thread;

/// Fewer operations than this for each thread are not worth one.
const SHARE_MIN: usize = 512;

/// Hands batches to a component in parts, each on a thread of its own. They come sorted, so that the parts have hardly a page in
/// common; the order of arrival decides nothing (C2 of the contract).
pub struct Spread {
    component: Arc<dyn DataComponent>,
    threads: usize,
}

impl Spread {
    /// Over `component`, with as many threads as the machine runs at once.
    pub fn over(component: Arc<dyn DataComponent>) -> Self {
        Self { component, threads: thread::available_parallelism().map_or(1, usize::from) }
    }
}

impl DataComponent for Spread {
    fn apply(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
        let share = operations.len().div_ceil(self.threads).max(SHARE_MIN);
        let mut parts = operations.chunks(share);
        let own = parts.next().unwrap_or_default();
        thread::scope(|scope| {
            let others: Vec<_> = parts.map(|part| scope.spawn(|| self.component.apply(part))).collect();
            let mut applied = self.component.apply(own);
            for other in others {
                let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                applied = applied.and(other);
            }
            applied
        })
    }

    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Record>, DcError> {
        self.component.get(table, key)
    }

    fn scan(&self, request: &ScanRequest<'_>) -> Result<ScanBatch, DcError> {
        self.component.scan(request)
    }

    fn end_of_stable_log(&self, lsn: Lsn) {
        self.component.end_of_stable_log(lsn);
    }

    fn redo_scan_start_point(&self, lsn: Lsn) -> Result<(), DcError> {
        self.component.redo_scan_start_point(lsn)
    }

    fn recovered_redo_scan_start_point(&self) -> Lsn {
        self.component.recovered_redo_scan_start_point()
    }

    fn recovered_end_of_stable_log(&self) -> Lsn {
        self.component.recovered_end_of_stable_log()
    }

    fn recovered_newest_timestamp(&self) -> Timestamp {
        self.component.recovered_newest_timestamp()
    }

    fn statistics(&self) -> DcStatistics {
        self.component.statistics()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_contract::{MemoryDc, Timestamp};

    #[test]
    fn every_operation_arrives_whatever_their_number() {
        for count in [0, 1, 511, 512, 513, 5000] {
            let component = Arc::new(MemoryDc::new());
            let spread = Spread { component: Arc::clone(&component) as _, threads: 3 };
            let keys: Vec<_> = (0..count as u64).map(u64::to_be_bytes).collect();
            let operations: Vec<_> = (1..)
                .zip(&keys)
                .map(|(lsn, key)| Operation {
                    table: TableId(1),
                    key,
                    value: Some(key),
                    timestamp: Timestamp(lsn),
                    lsn: Lsn(lsn),
                })
                .collect();
            spread.end_of_stable_log(Lsn(count as u64 + 1));
            spread.apply(&operations).unwrap();
            for key in &keys {
                assert_eq!(component.get(TableId(1), key).unwrap().unwrap().value.unwrap(), key);
            }
        }
    }
}
