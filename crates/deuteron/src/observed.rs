//! A data component around another, which tells an observer how long calls take. Only a database that is opened with an observer has
//! it ([`crate::Options::observe_data_component`]); in all others calls go straight to the component.

use deuteron_contract::{
    DataComponent, DcError, DcStatistics, Lsn, Operation, Record, ScanBatch, ScanRequest, TableId, Timestamp,
};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of the operations that are posted one in so many is also applied, and timed, by itself.
const ALONE_ONE_IN: usize = 64;

/// Is told how long the data component takes for what the transaction component and the proxy ask of it. Called by whoever has asked, when
/// the answer is there; it should be quick.
pub trait DataComponentObserver: Debug + Send + Sync {
    /// A get of one key.
    fn got(&self, time: Duration);

    /// An upsert or delete, applied by itself, which is done with one in 64: as a rule they come in batches.
    fn upserted(&self, time: Duration);

    /// A batch of so many upserts and deletes.
    fn posted(&self, operations: usize, time: Duration);
}

/// See the [module](self).
pub struct Observed {
    component: Arc<dyn DataComponent>,
    observer: Arc<dyn DataComponentObserver>,
}

impl Observed {
    pub fn new(component: Arc<dyn DataComponent>, observer: Arc<dyn DataComponentObserver>) -> Self {
        Self { component, observer }
    }
}

/// What `call` returns, and how long it took.
fn timed<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let begin = Instant::now();
    (call(), begin.elapsed())
}

impl DataComponent for Observed {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Record>, DcError> {
        let (found, time) = timed(|| self.component.get(table, key));
        self.observer.got(time);
        found
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
        bytes_max: usize,
    ) -> Result<Vec<Option<Record>>, DcError> {
        self.component.get_many(table, keys, bytes_max)
    }

    fn scan_into(&self, request: &ScanRequest<'_>, batch: &mut ScanBatch) -> Result<(), DcError> {
        self.component.scan_into(request, batch)
    }

    /// The batch is applied whole, those that were applied alone again: that changes nothing (C1).
    fn apply(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
        for alone in operations.chunks(ALONE_ONE_IN).map(|some| &some[some.len() / 2..=some.len() / 2]) {
            let (applied, time) = timed(|| self.component.apply(alone));
            applied?;
            self.observer.upserted(time);
        }
        let (applied, time) = timed(|| self.component.apply(operations));
        self.observer.posted(operations.len(), time);
        applied
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
    use crate::Options;
    use deuteron_device::MemoryDirectory;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Debug, Default)]
    struct Counted {
        gets: AtomicUsize,
        alone: AtomicUsize,
        posted: AtomicUsize,
    }

    impl DataComponentObserver for Counted {
        fn got(&self, _: Duration) {
            self.gets.fetch_add(1, Ordering::Relaxed);
        }
        fn upserted(&self, _: Duration) {
            self.alone.fetch_add(1, Ordering::Relaxed);
        }
        fn posted(&self, operations: usize, _: Duration) {
            self.posted.fetch_add(operations, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_observer_is_told_of_misses_and_of_what_is_posted_and_nothing_is_different() {
        let directory = Arc::new(MemoryDirectory::new());
        let counted = Arc::new(Counted::default());
        let options = || Options::tiny_for_tests().observe_data_component(Arc::clone(&counted) as _);
        let db = options().open_in(directory.clone()).unwrap();
        let table = db.table("t").unwrap();
        for key in 0..200u32 {
            db.transact(|tx| tx.put(&table, &key.to_be_bytes(), b"value")).unwrap();
        }
        db.close().unwrap();
        let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
        assert!(count(&counted.posted) >= 200, "{counted:?}");
        assert!(count(&counted.alone) >= count(&counted.posted).div_ceil(ALONE_ONE_IN), "{counted:?}");
        let gets = count(&counted.gets);
        let db = options().open_in(directory).unwrap();
        let table = db.table("t").unwrap();
        for key in 0..200u32 {
            let found = db.transact(|tx| tx.get(&table, &key.to_be_bytes())).unwrap();
            assert_eq!(found.as_deref(), Some(&b"value"[..]));
        }
        assert!(count(&counted.gets) >= gets + 200, "nothing is in memory yet: {counted:?}");
        db.close().unwrap();
    }
}
