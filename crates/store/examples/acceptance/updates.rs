//! Updates and reads at random keys, far more records than memory holds, in batches, by two threads: how fast, and what each part of it
//! costs.

use crate::numbers::spread;
use deuteron_store::{Batch, Error, Options, Store, Table};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a value.
const VALUE_BYTES: usize = 100;
/// Updates given to the store at once.
const BATCH: u64 = 100;
const THREADS: u64 = 2;

/// A value that nothing compresses.
fn value(mut seed: u64) -> [u8; VALUE_BYTES] {
    let mut bytes = [0; VALUE_BYTES];
    for chunk in bytes.chunks_mut(8) {
        seed = spread(seed.wrapping_add(1));
        chunk.copy_from_slice(&seed.to_le_bytes()[..chunk.len()]);
    }
    bytes
}

fn apply(store: &Store, table: &Table, keys: impl Iterator<Item = u64>, seed: u64) -> Result<(), Error> {
    let mut batch = Batch::new();
    for (key, at) in keys.zip(0..) {
        batch.upsert(table, &key.to_be_bytes(), &value(seed + at));
    }
    store.apply(&batch)
}

fn counters(store: &Store) -> BTreeMap<&'static str, u64> {
    store.stats().counters.into_iter().collect()
}

/// Has `work` done by so many threads until the time is over; each call is told its number, and its duration is noted. The time that one
/// of two, of a hundred and of a thousand exceeds, in microseconds, and how many calls there were.
fn timed(threads: u64, from: u64, time: Duration, work: impl Fn(u64) + Sync) -> ([f64; 3], u64) {
    let done = AtomicU64::new(from);
    let begin = Instant::now();
    let mut times: Vec<u64> = std::thread::scope(|scope| {
        let run = || {
            let mut times = Vec::new();
            while begin.elapsed() < time {
                let number = done.fetch_add(1, Ordering::Relaxed);
                let start = Instant::now();
                work(number);
                times.push(start.elapsed().as_nanos() as u64);
            }
            times
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
    ([at(0.5), at(0.99), at(0.999)], times.len() as u64)
}

/// Fills in key order, updates `before` times the number of records, updates for `seconds`, reads beside updates for half as long, and
/// reads alone.
pub fn updates(path: &Path, records: u64, budget: usize, seconds: u64, before: f64) -> Result<(), Error> {
    let store = Options::new().memory(budget).open(path)?;
    let table = store.table("t")?;
    for first in (0..records).step_by(1000) {
        apply(&store, &table, first..records.min(first + 1000), first)?;
    }
    store.persist()?;
    let update = |number: u64| {
        let keys = (number * BATCH..(number + 1) * BATCH).map(|number| spread(number) % records);
        apply(&store, &table, keys, number).expect("writes");
    };
    let read = |number: u64| {
        let key = (spread(!number) % records).to_be_bytes();
        assert!(table.get(&key).expect("reads").is_some());
    };
    let batches = (before * records as f64) as u64 / BATCH;
    crate::numbers::rate(THREADS, batches, update);
    store.persist()?;
    let (found, time, begin) = (counters(&store), Duration::from_secs(seconds), Instant::now());
    let (batch_micros, count) = timed(THREADS, batches, time, update);
    store.persist()?;
    let rate = (count * BATCH) as f64 / begin.elapsed().as_secs_f64();
    let changed: BTreeMap<_, _> = counters(&store)
        .into_iter()
        .map(|(name, value)| (name, value.wrapping_sub(found.get(name).copied().unwrap_or(0)) as i64))
        .filter(|&(_, change)| change != 0)
        .collect();
    let from = AtomicU64::new(batches + count);
    let stop = AtomicU64::new(0);
    let (beside_micros, beside) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while stop.load(Ordering::Relaxed) == 0 {
                update(from.fetch_add(1, Ordering::Relaxed));
            }
        });
        let read = timed(1, 0, time / 2, read);
        stop.store(1, Ordering::Relaxed);
        read
    });
    let updated_beside = (from.into_inner() - batches - count) * BATCH;
    store.persist()?;
    let (read_micros, reads) = timed(THREADS, 1 << 40, time / 2, read);
    let half = time.as_secs_f64() / 2.0;
    let per_update: Vec<String> = changed
        .iter()
        .map(|(name, change)| format!("\"{name}\": {:.4}", *change as f64 / (count * BATCH) as f64))
        .collect();
    println!(
        "{{\"updates_per_second\": {rate:.0}, \"batch_micros\": {batch_micros:.0?}, \"beside\": {{\"reads_per_second\": {:.0}, \"read_micros\": {beside_micros:.0?}, \"updates_per_second\": {:.0}}}, \"reads_per_second\": {:.0}, \"read_micros\": {read_micros:.0?}, \"changed_per_update\": {{{}}}}}",
        beside as f64 / half,
        updated_beside as f64 / half,
        reads as f64 / half,
        per_update.join(", "),
    );
    store.close()
}
