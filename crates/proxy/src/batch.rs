//! [`Batch`]: operations on their way to the data component, sorted and without superseded ones.

use crate::order::{Place, Rank, sort};
use crate::statistics::ProxyStatistics;
use crate::{ProxyError, ProxyHost};
use deuteron_contract::{DataComponent, Operation};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

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
pub(crate) const CHUNK: usize = 4096;

/// After so many chunks the host is asked anew by how many threads: some tens of milliseconds of one.
const CHUNKS_OF_SECTION: usize = 32;

/// Where batches go.
#[derive(Clone, Copy)]
pub(crate) struct Destination<'p> {
    pub dc: &'p dyn DataComponent,
    pub host: &'p dyn ProxyHost,
}

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
        to: Destination<'_>,
        statistics: &mut ProxyStatistics,
    ) -> Result<(), ProxyError> {
        let index = self.operations.len() as u32;
        self.buffers.places.push(Place::new(Rank::of(&operation), index));
        self.operations.push(operation);
        if self.operations.len() >= self.operations_max { self.apply(to, statistics) } else { Ok(()) }
    }

    /// Applies what there is, by the threads that the host has for it. After an error the batch is empty and the caller starts over with
    /// its operations.
    pub fn apply(&mut self, to: Destination<'_>, statistics: &mut ProxyStatistics) -> Result<(), ProxyError> {
        if self.operations.is_empty() {
            return Ok(());
        }
        let operations = &self.operations;
        let places = &mut self.buffers.places;
        sort(places, |index| &operations[index]);
        let mut sections = places.chunks(CHUNKS_OF_SECTION * CHUNK);
        let posted = sections.try_for_each(|section| post_section(section, operations, to, statistics));
        if posted.is_ok() {
            statistics.operations_superseded += (operations.len() - places.len()) as u64;
        }
        self.operations.clear();
        self.buffers.places.clear();
        posted
    }

    /// Gives the memory back for the next batch.
    pub fn finish(self) -> Buffers {
        Buffers { operations: recycle(self.operations), ..self.buffers }
    }
}

/// Hands over the operations at `section`, a chunk at a time, by the threads of the host: each takes the next chunk. Chunks have no key
/// in common, so their order is of no matter.
fn post_section(
    section: &[Place],
    operations: &[Operation<'_>],
    to: Destination<'_>,
    statistics: &mut ProxyStatistics,
) -> Result<(), ProxyError> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new((statistics, Ok(())));
    to.host.on_threads(&|| {
        let mut counted = ProxyStatistics::default();
        let mut chunk = Vec::with_capacity(CHUNK.min(section.len()));
        let mut posted = Ok(());
        while posted.is_ok() {
            // Relaxed: what a chunk holds does not depend on who has taken another.
            let start = next.fetch_add(CHUNK, Ordering::Relaxed);
            let Some(places) = section.get(start..).filter(|places| !places.is_empty()) else { break };
            let places = &places[..places.len().min(CHUNK)];
            chunk.clear();
            chunk.extend(places.iter().map(|place| operations[place.index()]));
            posted = post_chunk(&chunk, to.dc, &mut counted);
        }
        let (statistics, outcome) = &mut *all.lock().unwrap_or_else(PoisonError::into_inner);
        statistics.batches += counted.batches;
        statistics.operations_posted += counted.operations_posted;
        if posted.is_err() {
            // The others need not go on.
            next.store(section.len(), Ordering::Relaxed);
            *outcome = posted;
        }
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner).1
}

fn post_chunk(
    chunk: &[Operation<'_>],
    dc: &dyn DataComponent,
    statistics: &mut ProxyStatistics,
) -> Result<(), ProxyError> {
    dc.apply(chunk).map_err(|source| {
        let lowest = chunk.iter().map(|operation| operation.lsn).min().unwrap_or_default();
        ProxyError::Apply { operations: chunk.len(), lsn: lowest, source }
    })?;
    statistics.batches += 1;
    statistics.operations_posted += chunk.len() as u64;
    Ok(())
}

/// Hands operations over, which are sorted by table and key; those that have been are counted.
pub(crate) fn post<'a>(
    operations: impl IntoIterator<Item = Operation<'a>>,
    dc: &dyn DataComponent,
    statistics: &mut ProxyStatistics,
) -> Result<(), ProxyError> {
    let mut operations = operations.into_iter();
    let mut chunk = Vec::with_capacity(CHUNK);
    loop {
        chunk.clear();
        chunk.extend(operations.by_ref().take(CHUNK));
        if chunk.is_empty() {
            return Ok(());
        }
        post_chunk(&chunk, dc, statistics)?;
    }
}

/// An empty vector with the memory of another. (The standard library collects in place where the sizes agree; if it should
/// not, this costs an allocation.)
fn recycle<'b>(mut operations: Vec<Operation<'_>>) -> Vec<Operation<'b>> {
    operations.clear();
    operations.into_iter().map(|operation| Operation { key: &[], value: None, ..operation }).collect()
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
        fn scan_into(&self, _: &ScanRequest<'_>, batch: &mut ScanBatch) -> Result<(), DcError> {
            batch.clear();
            batch.set_complete(true);
            Ok(())
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

    struct Threads(usize);

    impl ProxyHost for Threads {
        fn horizon(&self) -> Timestamp {
            Timestamp::MAX
        }
        fn force_horizon(&self, _: Timestamp) {}
        fn progress(&self, _: crate::Progress) {}
        fn on_threads(&self, work: &(dyn Fn() + Sync)) {
            std::thread::scope(|scope| (0..self.0).for_each(|_| drop(scope.spawn(work))));
        }
    }

    /// `count` operations on different keys, from the last to the first.
    fn backwards(keys: &[[u8; 4]]) -> impl Iterator<Item = Operation<'_>> {
        keys.iter().enumerate().rev().map(|(at, key)| {
            let at = at as u64 + 1;
            let (timestamp, lsn) = (Timestamp(at), Lsn(8 * at));
            Operation { table: TableId(1), key, value: Some(b"v"), timestamp, lsn }
        })
    }

    #[test]
    fn several_threads_post_each_operation_once() {
        let keys: Vec<_> =
            (0..(CHUNKS_OF_SECTION * CHUNK + 2 * CHUNK + 7) as u32).map(u32::to_be_bytes).collect();
        for threads in [1, 2, 3] {
            let dc = Recorder::default();
            let to = Destination { dc: &dc, host: &Threads(threads) };
            let mut statistics = ProxyStatistics::default();
            let mut batch = Batch::new(usize::MAX, Buffers::default());
            backwards(&keys).for_each(|operation| batch.push(operation, to, &mut statistics).unwrap());
            batch.apply(to, &mut statistics).unwrap();
            let mut applied = dc.applied.into_inner().unwrap();
            assert!(applied.iter().all(|chunk| chunk.len() <= CHUNK && chunk.is_sorted_by_key(|row| row.2)));
            assert_eq!(
                (statistics.batches, statistics.operations_posted),
                (applied.len() as u64, keys.len() as u64)
            );
            applied.sort();
            assert!(applied.concat().iter().map(|row| &row.1).eq(&keys));
        }
    }

    #[test]
    fn what_one_of_several_threads_cannot_post_is_told() {
        let keys: Vec<_> = (0..(20 * CHUNK) as u32).map(u32::to_be_bytes).collect();
        for threads in [1, 2, 3] {
            // In the sixth chunk.
            let refused = Lsn(8 * (5 * CHUNK as u64 + 9));
            let dc = Recorder { refuses: Some(refused), ..Recorder::default() };
            let to = Destination { dc: &dc, host: &Threads(threads) };
            let mut statistics = ProxyStatistics::default();
            let mut batch = Batch::new(usize::MAX, Buffers::default());
            backwards(&keys).for_each(|operation| batch.push(operation, to, &mut statistics).unwrap());
            let failed = batch.apply(to, &mut statistics).unwrap_err();
            let is_it = matches!(failed, ProxyError::Apply { operations: CHUNK, lsn, .. } if lsn.0 == 8 * (5 * CHUNK as u64 + 1));
            assert!(is_it, "{failed}");
            assert_eq!(statistics.operations_superseded, 0);
            let applied: usize = dc.applied.into_inner().unwrap().iter().map(Vec::len).sum();
            assert_eq!(statistics.operations_posted, applied as u64);
            assert!(applied < keys.len());
        }
    }

    #[test]
    fn a_batch_is_sorted_and_holds_the_newest_of_each_key() {
        let dc = Recorder::default();
        let to = Destination { dc: &dc, host: &Threads(1) };
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
            batch.push(operation, to, &mut statistics).unwrap();
        }
        batch.apply(to, &mut statistics).unwrap();
        batch.apply(to, &mut statistics).unwrap();
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
