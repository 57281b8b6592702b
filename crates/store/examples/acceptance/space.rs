//! What the store takes on disk, what it writes, and what readers feel of it.

use crate::numbers::spread;
use crate::{VALUE, fill};
use deuteron_store::{Error, Options, Store, Table};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a record's key and value.
const RECORD_BYTES: u64 = 8 + VALUE.len() as u64;

fn counter(store: &Store, name: &str) -> u64 {
    store.stats().counter(name).unwrap_or_else(|| panic!("there is no counter {name}"))
}

/// Bytes that the files take on the device.
fn disk_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(path).expect("the store's directory").flatten();
    // A file may be gone by the time that it is asked.
    entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.blocks() * 512).sum()
}

/// Overwrites `updates` records, any with the same chance.
fn update(table: &Table, records: u64, from: u64, updates: u64) -> Result<(), Error> {
    for number in from..from + updates {
        table.upsert(&(spread(number) % records).to_be_bytes(), &VALUE)?;
    }
    Ok(())
}

/// Bytes written for each byte of update, and taken for each byte of record, once that does not change any more.
pub fn amplification(path: &Path, records: u64, budget: usize) -> Result<(), Error> {
    let store = Options::new().memory(budget).open(path)?;
    let table = fill(&store, records)?;
    update(&table, records, 0, 2 * records)?;
    let causes = ["flushed", "rewritten", "cleaned", "padded", "of_images"];
    let written = || causes.map(|cause| counter(&store, &format!("bytes_{cause}")));
    let begin = (written(), counter(&store, "cleaned_bytes"), counter(&store, "cleaned_live_bytes"));
    let (mut most, rounds, time) = (0, 10, Instant::now());
    for round in 0..rounds {
        update(&table, records, (2 + round) * records, records / 5)?;
        most = most.max(disk_bytes(path));
    }
    let rate = (records / 5 * rounds) as f64 / time.elapsed().as_secs_f64();
    store.persist()?;
    let applied = (records / 5 * rounds * RECORD_BYTES) as f64;
    let parts: Vec<f64> =
        written().iter().zip(begin.0).map(|(after, before)| (after - before) as f64 / applied).collect();
    let cleaned = (counter(&store, "cleaned_bytes") - begin.1) as f64;
    let moved = (counter(&store, "cleaned_live_bytes") - begin.2) as f64;
    let by_cause: Vec<String> =
        causes.iter().zip(&parts).map(|(cause, part)| format!("\"{cause}\": {part:.3}")).collect();
    println!(
        "{{\"write\": {:.3}, \"space\": {:.3}, \"space_of_store\": {:.3}, \"yield\": {:.3}, \"rate\": {rate:.0}, {}}}",
        parts.iter().sum::<f64>(),
        most as f64 / (records * RECORD_BYTES) as f64,
        counter(&store, "space_amplification_percent") as f64 / 100.0,
        1.0 - moved / cleaned.max(1.0),
        by_cause.join(", "),
    );
    store.close()
}

/// Deletes nine records of ten; how long until the disk holds less than twice what is left.
pub fn shrink(path: &Path, records: u64, budget: usize) -> Result<(), Error> {
    let store = Options::new().memory(budget).open(path)?;
    let table = fill(&store, records)?;
    store.persist()?;
    let full = disk_bytes(path);
    for number in (0..records).filter(|number| number % 10 != 0) {
        table.delete(&number.to_be_bytes())?;
    }
    let live = records.div_ceil(10) * RECORD_BYTES;
    let begin = Instant::now();
    let mut least = u64::MAX;
    let reached = loop {
        least = least.min(disk_bytes(path));
        if least < 2 * live || begin.elapsed() > Duration::from_secs(120) {
            break begin.elapsed().as_secs_f64();
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let left = store.check()?.records;
    println!(
        "{{\"seconds\": {reached:.1}, \"full\": {full}, \"least\": {least}, \"live\": {live}, \"records\": {left}, \"live_in_store\": {}}}",
        counter(&store, "live_bytes")
    );
    store.close()
}

/// The time of reads, in microseconds: median, and what one in a hundred and one in a thousand exceed.
fn percentiles(mut nanoseconds: Vec<u64>) -> [f64; 3] {
    nanoseconds.sort_unstable();
    let at = |share: f64| nanoseconds[((nanoseconds.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
    [at(0.5), at(0.99), at(0.999)]
}

/// Reads any record, over and over, and overwrites `updates` a second at the same time.
fn read_beside_updates(table: &Table, records: u64, time: Duration, updates: u64) -> [f64; 3] {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begin = Instant::now();
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                table.upsert(&(spread(number) % records).to_be_bytes(), &VALUE).expect("writes");
                let due = Duration::from_secs_f64(number as f64 / updates as f64);
                std::thread::sleep(due.saturating_sub(begin.elapsed()).min(Duration::from_millis(10)));
            }
        });
        let begin = Instant::now();
        let mut times = Vec::new();
        for number in 0.. {
            let key = (spread(!number) % records).to_be_bytes();
            let start = Instant::now();
            assert!(table.get(&key).expect("reads").is_some());
            times.push(start.elapsed().as_nanos() as u64);
            if begin.elapsed() > time {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        percentiles(times)
    })
}

/// The time of reads beside the same updates: before there is anything to clean, and while the store cleans and checkpoints.
pub fn latency(path: &Path, records: u64, budget: usize, seconds: u64) -> Result<(), Error> {
    let (time, updates) = (Duration::from_secs(seconds), 5000);
    let open =
        |every: u64| Options::new().memory(budget).persist_every(Duration::from_secs(every)).open(path);
    let store = open(3600)?;
    fill(&store, records)?;
    store.close()?;
    let store = open(3600)?;
    let done = |store: &Store| (counter(store, "segments_cleaned"), counter(store, "checkpoints"));
    let table = store.table("t")?;
    // The cache first.
    read_beside_updates(&table, records, time / 2, updates);
    let before = done(&store);
    let calm = read_beside_updates(&table, records, time, updates);
    assert_eq!(done(&store), before, "nothing was to be cleaned");
    // Now there is.
    update(&table, records, 0, 2 * records)?;
    store.close()?;
    let store = open(2)?;
    let table = store.table("t")?;
    // Not for long: on a fast device there would be nothing left to clean.
    read_beside_updates(&table, records, time / 10, updates);
    let before = done(&store);
    let busy = read_beside_updates(&table, records, time, updates);
    let (cleaned, checkpoints) = done(&store);
    println!(
        "{{\"calm\": {calm:?}, \"busy\": {busy:?}, \"cleaned\": {}, \"checkpoints\": {}}}",
        cleaned - before.0,
        checkpoints - before.1
    );
    store.close()
}
