//! [`Batch`]: operations on their way to the data component, sorted and without superseded ones.

use crate::statistics::ProxyStatistics;
use crate::{ProxyError, ProxyHost};
use deuteron_contract::{DataComponent, Operation};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Collects operations, which borrow their bytes from a log buffer or from [`crate::held::Held`].
///
/// The data component takes any order; sorted, all operations of one page come together and can become one update
/// of it. Of several operations on one key only the newest goes on (C2 of the contract would have it win).
pub(crate) struct Batch<'a> {
    operations: Vec<Operation<'a>>,
    operations_max: usize,
    buffers: Buffers,
}

/// The memory of batches, kept from one to the next.
#[derive(Default)]
pub(crate) struct Buffers {
    operations: Vec<Operation<'static>>,
    places: Vec<Place>,
}

/// So many operations are handed over at a time: few enough that their keys and values stay in the second-level cache while
/// the data component goes over them.
const CHUNK: usize = 4096;

/// Fewer operations than this are not worth another thread.
const SHARE_MIN: usize = 512;

/// A batch has so many parts for each thread: they are not equally long, and who is through takes the next.
const PARTS_PER_THREAD: usize = 8;

impl<'a> Batch<'a> {
    /// An empty batch in the memory of an earlier one.
    pub fn new(operations_max: usize, mut buffers: Buffers) -> Self {
        let operations = std::mem::take(&mut buffers.operations);
        buffers.places.clear();
        Batch { operations, operations_max: operations_max.clamp(1, u32::MAX as usize), buffers }
    }

    /// Adds an operation and applies the batch if that makes it full.
    #[inline]
    pub fn push(
        &mut self,
        operation: Operation<'a>,
        dc: &dyn DataComponent,
        host: &dyn ProxyHost,
        statistics: &mut ProxyStatistics,
    ) -> Result<(), ProxyError> {
        let index = self.operations.len() as u32;
        self.buffers.places.push(Place::new(&operation, index));
        self.operations.push(operation);
        if self.operations.len() >= self.operations_max { self.apply(dc, host, statistics) } else { Ok(()) }
    }

    /// Applies what there is, by all threads of the host. After an error the batch is empty and the caller starts over with its
    /// operations.
    pub fn apply(
        &mut self,
        dc: &dyn DataComponent,
        host: &dyn ProxyHost,
        statistics: &mut ProxyStatistics,
    ) -> Result<(), ProxyError> {
        if self.operations.is_empty() {
            return Ok(());
        }
        let collected = self.operations.len() as u64;
        let threads = host.threads().min(collected as usize / SHARE_MIN);
        let result = match threads {
            0 | 1 => Parts::post(&self.operations, &mut self.buffers.places, dc),
            _ => Parts::new(&self.operations, &self.buffers.places, threads).post_all(dc, host),
        };
        self.operations.clear();
        self.buffers.places.clear();
        let posted = result?;
        statistics.batches += posted.batches;
        statistics.operations_posted += posted.operations;
        statistics.operations_superseded += collected - posted.operations;
        Ok(())
    }

    /// Gives the memory back for the next batch.
    pub fn finish(self) -> Buffers {
        Buffers { operations: recycle(self.operations), ..self.buffers }
    }
}

/// What has been handed over.
#[derive(Default)]
struct Posted {
    batches: u64,
    operations: u64,
}

/// A batch in ranges of keys, each of which can be sorted and posted by itself.
struct Parts<'b, 'a> {
    operations: &'b [Operation<'a>],
    places: &'b [Place],
    /// Where each part but the first begins; ascending.
    begins: Vec<u128>,
    next: AtomicUsize,
    posted: Mutex<Result<Posted, ProxyError>>,
}

impl<'b, 'a> Parts<'b, 'a> {
    fn new(operations: &'b [Operation<'a>], places: &'b [Place], threads: usize) -> Self {
        // By a sample: keys may lie anywhere.
        let parts = threads * PARTS_PER_THREAD;
        let step = (places.len() / (parts * 32)).max(1);
        let mut sample: Vec<_> = places.iter().step_by(step).map(Place::rank).collect();
        sample.sort_unstable();
        let mut begins: Vec<_> = (1..parts).map(|part| sample[part * sample.len() / parts]).collect();
        begins.dedup();
        Parts {
            operations,
            places,
            begins,
            next: AtomicUsize::new(0),
            posted: Mutex::new(Ok(Posted::default())),
        }
    }

    fn post_all(self, dc: &dyn DataComponent, host: &dyn ProxyHost) -> Result<Posted, ProxyError> {
        host.on_threads(&|| {
            let mut own = Vec::new();
            // Relaxed: what a part is does not depend on who has taken another.
            while let Some(part) =
                Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|&part| part <= self.begins.len())
            {
                if self.posted().is_err() {
                    return;
                }
                self.collect(part, &mut own);
                let result = Self::post(self.operations, &mut own, dc);
                let mut posted = self.posted();
                match (&mut *posted, result) {
                    (Ok(posted), Ok(part)) => {
                        posted.batches += part.batches;
                        posted.operations += part.operations;
                    }
                    (Ok(_), Err(error)) => *posted = Err(error),
                    (Err(_), _) => {}
                }
            }
        });
        self.posted.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn posted(&self) -> MutexGuard<'_, Result<Posted, ProxyError>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places of a part, in any order.
    fn collect(&self, part: usize, own: &mut Vec<Place>) {
        let from = part.checked_sub(1).map_or(0, |before| self.begins[before]);
        let until = self.begins.get(part).copied();
        own.clear();
        let is_own = |place: &&Place| place.rank() >= from && until.is_none_or(|until| place.rank() < until);
        own.extend(self.places.iter().filter(is_own).copied());
    }

    /// Sorts the operations at `places` and hands them over.
    fn post(
        operations: &[Operation<'a>],
        places: &mut Vec<Place>,
        dc: &dyn DataComponent,
    ) -> Result<Posted, ProxyError> {
        sort(operations, places);
        let mut posted = Posted::default();
        let mut chunk = Vec::with_capacity(places.len().min(CHUNK));
        for places in places.chunks(CHUNK) {
            chunk.clear();
            chunk.extend(places.iter().map(|place| operations[place.index()]));
            dc.apply(&chunk).map_err(|source| {
                let lowest = chunk.iter().map(|operation| operation.lsn).min().unwrap_or_default();
                ProxyError::Apply { operations: chunk.len(), lsn: lowest, source }
            })?;
            posted.batches += 1;
            posted.operations += chunk.len() as u64;
        }
        Ok(posted)
    }
}

/// An empty vector with the memory of another. (The standard library collects in place where the sizes agree; if it should
/// not, this costs an allocation.)
fn recycle<'b>(mut operations: Vec<Operation<'_>>) -> Vec<Operation<'b>> {
    operations.clear();
    operations.into_iter().map(|operation| Operation { key: &[], value: None, ..operation }).collect()
}

/// Orders `places` by table and key, and leaves of one key only the newest. The operations are looked at only where ranks are equal: they,
/// and their keys, lie all over the log.
fn sort(operations: &[Operation<'_>], places: &mut Vec<Place>) {
    places.sort_unstable();
    let of = |place: &Place| &operations[place.index()];
    let (mut kept, mut from) = (0, 0);
    while let Some(&first) = places.get(from) {
        let same = places[from..].iter().take_while(|place| place.rank() == first.rank()).count();
        let group = from..from + same;
        if same == 1 {
            places[kept] = first;
            kept += 1;
        } else {
            // The newest of each key comes first.
            places[group.clone()].sort_unstable_by(|one, other| {
                let (one, other) = (of(one), of(other));
                let by_age = || (other.timestamp, other.lsn).cmp(&(one.timestamp, one.lsn));
                one.key.cmp(other.key).then_with(by_age)
            });
            let mut last = None;
            for at in group {
                let place = places[at];
                if last.replace(of(&place).key) != Some(of(&place).key) {
                    places[kept] = place;
                    kept += 1;
                }
            }
        }
        from += same;
    }
    places.truncate(kept);
}

/// What decides the place of most operations in the order, and which it is: the table, the first bytes of the key, the index, as one
/// number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place(u128);

impl Place {
    fn new(operation: &Operation<'_>, index: u32) -> Place {
        let rank = u128::from(operation.table.0) << 64 | u128::from(prefix(operation.key));
        Place(rank << 32 | u128::from(index))
    }

    fn index(self) -> usize {
        self.0 as u32 as usize
    }

    /// Equal for keys of a table that begin alike.
    fn rank(&self) -> u128 {
        self.0 >> 32
    }
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
    use deuteron_contract::{DcError, DcStatistics, Lsn, Record, ScanBatch, ScanRequest, TableId, Timestamp};
    use std::sync::Mutex;

    type Row = (u32, Vec<u8>, u64, u64);

    /// Remembers what it is told to apply, but for a batch with an operation that it refuses.
    #[derive(Default)]
    struct Recorder {
        applied: Mutex<Vec<Vec<Row>>>,
        refuses: Option<Lsn>,
    }

    impl DataComponent for Recorder {
        fn get(&self, _: TableId, _: &[u8]) -> Result<Option<Record>, DcError> {
            Ok(None)
        }
        fn scan(&self, _: &ScanRequest<'_>) -> Result<ScanBatch, DcError> {
            Ok(ScanBatch { records: Vec::new(), complete: true })
        }
        fn apply(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
            if operations.iter().any(|operation| Some(operation.lsn) == self.refuses) {
                return Err(DcError::Device { context: "a test".into(), source: "refused".into() });
            }
            let row = |o: &Operation<'_>| (o.table.0, o.key.to_vec(), o.timestamp.0, o.lsn.0);
            self.applied.lock().unwrap().push(operations.iter().map(row).collect());
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

    /// A host of so many threads.
    struct Threads(usize);

    impl ProxyHost for Threads {
        fn horizon(&self) -> Timestamp {
            Timestamp::MAX
        }
        fn force_horizon(&self, _: Timestamp) {}
        fn progress(&self, _: crate::Progress) {}
        fn threads(&self) -> usize {
            self.0
        }
        fn on_threads(&self, work: &(dyn Fn() + Sync)) {
            std::thread::scope(|scope| (0..self.0).for_each(|_| drop(scope.spawn(work))));
        }
    }

    #[test]
    fn threads_post_what_one_posts() {
        let key_of = |number: u64| match number % 3 {
            0 => (number * 7919 % 501).to_be_bytes().to_vec(),
            // Many with one prefix.
            1 => [[7; 8], (number % 97).to_be_bytes()].concat(),
            _ => vec![9; number as usize % 11 + 1],
        };
        let keys: Vec<_> = (0..6000).map(key_of).collect();
        let post = |threads| {
            let dc = Recorder::default();
            let mut statistics = ProxyStatistics::default();
            let mut batch = Batch::new(keys.len() + 1, Buffers::default());
            for (lsn, key) in (1..).zip(&keys) {
                let table = TableId(lsn as u32 % 2 + 1);
                let operation =
                    Operation { table, key, value: None, timestamp: Timestamp(lsn / 4), lsn: Lsn(lsn) };
                batch.push(operation, &dc, &Threads(threads), &mut statistics).unwrap();
            }
            batch.apply(&dc, &Threads(threads), &mut statistics).unwrap();
            let applied = dc.applied.into_inner().unwrap();
            assert!(applied.iter().all(|chunk| chunk.is_sorted()));
            let mut all = applied.concat();
            all.sort();
            (all, statistics.operations_posted, statistics.operations_superseded)
        };
        let one = post(1);
        assert_eq!(one.1 + one.2, keys.len() as u64);
        for threads in [2, 3, 20] {
            assert_eq!(post(threads), one);
        }
    }

    #[test]
    fn a_part_that_fails_fails_the_batch() {
        let dc = Recorder { refuses: Some(Lsn(1234)), ..Recorder::default() };
        let keys: Vec<_> = (0..4000u64).map(u64::to_be_bytes).collect();
        let mut statistics = ProxyStatistics::default();
        let mut batch = Batch::new(keys.len() + 1, Buffers::default());
        for (lsn, key) in (0..).zip(&keys) {
            let operation =
                Operation { table: TableId(1), key, value: None, timestamp: Timestamp(1), lsn: Lsn(lsn) };
            batch.push(operation, &dc, &Threads(2), &mut statistics).unwrap();
        }
        let error = batch.apply(&dc, &Threads(2), &mut statistics).unwrap_err();
        assert!(matches!(error, ProxyError::Apply { .. }));
        assert_eq!(statistics, ProxyStatistics::default());
        batch.apply(&dc, &Threads(2), &mut statistics).expect("it is empty");
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
            let mut order: Vec<_> = (0..)
                .zip(&operations)
                .map(|(index, operation)| Place::new(operation, index))
                .collect();
            sort(&operations, &mut order);
            let found: Vec<_> = order.iter().map(|place| operations[place.index()]).collect();
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
            batch.push(operation, &dc, &Threads(1), &mut statistics).unwrap();
        }
        batch.apply(&dc, &Threads(1), &mut statistics).unwrap();
        batch.apply(&dc, &Threads(1), &mut statistics).unwrap();
        let applied = dc.applied.lock().unwrap();
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
