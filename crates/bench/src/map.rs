//! A bare sharded hash map: neither transactions nor durability nor order. The roof under which everything else
//! is measured.

use crate::random::splitmix64;
use crate::store::{consume, stamp};
use crate::{BenchError, Step, Store, StoreFigures, Submitted, Worker};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shards, a power of two; many more than threads, so that two seldom meet.
const SHARDS: usize = 1024;

/// A hash map in shards, each behind a mutex.
///
/// ```
/// use deuteron_bench::{MapStore, Step, Store, Worker};
/// let store = MapStore::new();
/// store.worker()?.submit(&[Step::Update(1), Step::Read(1)], &mut [0; 100])?;
/// # Ok::<(), deuteron_bench::BenchError>(())
/// ```
#[derive(Debug)]
pub struct MapStore {
    shards: Box<[Shard]>,
}

type Records = HashMap<u64, Box<[u8]>, BuildHasherDefault<NumberHasher>>;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(Mutex<Records>);

impl MapStore {
    /// An empty map.
    pub fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    #[inline]
    fn shard(&self, key: u64) -> MutexGuard<'_, Records> {
        let shard = splitmix64(&mut { key }) as usize % SHARDS;
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MapStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MapStore {
    type Worker<'a> = MapWorker<'a>;

    fn name(&self) -> &'static str {
        "map"
    }

    fn durability(&self) -> String {
        "none".into()
    }

    fn worker(&self) -> Result<MapWorker<'_>, BenchError> {
        Ok(MapWorker { store: self, writes: 0 })
    }

    fn loader(&self) -> Result<MapWorker<'_>, BenchError> {
        self.worker()
    }

    fn loaded(&self) -> Result<Option<(u64, usize)>, BenchError> {
        Ok(None)
    }

    fn settle(&self, _records: u64, _value_bytes: usize) -> Result<(), BenchError> {
        Ok(())
    }

    fn figures(&self) -> StoreFigures {
        StoreFigures::default()
    }
}

/// One thread's use of a [`MapStore`].
#[derive(Debug)]
pub struct MapWorker<'a> {
    store: &'a MapStore,
    writes: u64,
}

impl MapWorker<'_> {
    #[inline]
    fn write(&mut self, key: u64, value: &mut [u8]) {
        stamp(value, key, &mut self.writes);
        let mut shard = self.store.shard(key);
        match shard.get_mut(&key) {
            Some(old) if old.len() == value.len() => old.copy_from_slice(value),
            _ => {
                shard.insert(key, Box::from(&*value));
            }
        }
    }

    #[inline]
    fn read(&self, key: u64) {
        if let Some(value) = self.store.shard(key).get(&key) {
            consume(value);
        }
    }
}

impl Worker for MapWorker<'_> {
    type Pending = ();

    #[inline]
    fn submit(&mut self, steps: &[Step], value: &mut [u8]) -> Result<Submitted<()>, BenchError> {
        for &step in steps {
            match step {
                Step::Read(key) => self.read(key),
                Step::Update(key) | Step::Insert(key) => self.write(key, value),
                Step::ReadModifyWrite(key) => {
                    self.read(key);
                    self.write(key, value);
                }
                Step::Yield => std::thread::yield_now(),
                // A hash map has no order; consecutive numbers come closest.
                Step::Scan { key, count } => (key..key + u64::from(count)).for_each(|key| self.read(key)),
            }
        }
        Ok(Submitted::Acknowledged)
    }

    fn is_acknowledged(&self, _pending: &()) -> bool {
        true
    }

    fn wait(&mut self, _pending: ()) -> Result<(), BenchError> {
        Ok(())
    }
}

/// Hashes one number by mixing it; the keys are the benchmark's own, so that no adversary chooses them.
#[derive(Clone, Copy, Debug, Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // Another seed than the shard's, whose bits are equal for all keys of a shard.
        self.0 = splitmix64(&mut (self.0 ^ number.rotate_left(32) ^ 0xa076_1d64_78bd_642f));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_written() {
        let store = MapStore::new();
        let mut worker = store.worker().unwrap();
        let mut value = [7u8; 20];
        for key in 0..10_000 {
            worker.submit(&[Step::Insert(key)], &mut value).unwrap();
        }
        for key in 0..10_000u64 {
            assert_eq!(store.shard(key)[&key][..8], key.to_be_bytes());
        }
    }
}
