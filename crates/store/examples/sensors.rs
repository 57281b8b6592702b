//! A store of measurements: writes in batches, ranges in both directions, what is durable when; tables loaded and dropped,
//! a backup, compaction.
//!
//! ```sh
//! cargo run --release -p deuteron-store --example sensors -- [directory]
//! ```

use deuteron_store::{Batch, Error, Options, Store, Table};
use std::time::Instant;

/// A key that orders by sensor, then by time.
fn key(sensor: &str, second: u32) -> Vec<u8> {
    [sensor.as_bytes(), b"/", &second.to_be_bytes()].concat()
}

/// The newest measurement of a sensor: the last key of its range.
fn newest(readings: &Table, sensor: &str) -> Result<Option<f32>, Error> {
    let range = key(sensor, 0)..=key(sensor, u32::MAX);
    let Some(entry) = readings.scan(range).limit(1).next_back() else { return Ok(None) };
    let (_, value) = entry?;
    Ok(value.try_into().ok().map(f32::from_le_bytes))
}

fn work(store: &Store) -> Result<(), Error> {
    let readings = store.table("readings")?;
    let begin = Instant::now();
    let mut batch = Batch::new();
    for second in 0..100_000u32 {
        for (sensor, base) in [("attic", 14.0f32), ("cellar", 11.0), ("hall", 19.0)] {
            let value = base + (second % 600) as f32 / 100.0;
            batch.upsert(&readings, &key(sensor, second), &value.to_le_bytes());
        }
        if batch.len() >= 3000 {
            store.apply(&batch)?;
            batch.clear();
        }
    }
    store.apply(&batch)?;
    println!("300000 measurements in {:.2?}", begin.elapsed());

    // Until here a crash might have taken them.
    store.persist()?;
    println!("durable after {:.2?}", begin.elapsed());

    println!("the cellar's newest: {:?} degrees", newest(&readings, "cellar")?);
    // Only the last hour of the attic is of interest.
    let mut old = Batch::new();
    for entry in readings.scan(key("attic", 0)..key("attic", 100_000 - 3600)) {
        old.delete(&readings, &entry?.0);
    }
    store.apply(&old)?;
    println!(
        "{} measurements of the attic left",
        readings.scan(key("attic", 0)..key("attic", u32::MAX)).count()
    );

    // What is sorted already is loaded in full pages.
    let begin = Instant::now();
    let mut load = store.load_table("calibration")?;
    for number in 0..200_000u32 {
        load.push(&number.to_be_bytes(), &(number as f32 / 1000.0).to_le_bytes())?;
    }
    load.finish()?;
    println!("200000 records loaded in {:.2?}", begin.elapsed());
    store.drop_table("calibration")?;
    let compaction = store.compact()?;
    println!("{} bytes on disk, {} compacted", compaction.before_bytes, compaction.after_bytes);

    let stats = store.stats();
    println!("{} bytes of memory, {} on disk", stats.memory_bytes, stats.disk_bytes);
    println!("{:?}", store.check()?);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch;
    let path = match std::env::args_os().nth(1) {
        Some(path) => path.into(),
        None => {
            scratch = tempfile::tempdir()?;
            scratch.path().join("sensors")
        }
    };
    let store = Options::new().memory(64 << 20).open(&path)?;
    work(&store)?;

    // A copy in one file, while others read and write; and the store that it becomes.
    let (backup, copy) = (path.with_extension("backup"), path.with_extension("copy"));
    let report = store.backup(&backup)?;
    store.close()?;
    deuteron_store::restore(&backup, &copy)?;
    let store = Store::open(&copy)?;
    println!("{} bytes of backup; tables: {:?}", report.archive_bytes, store.tables()?);
    store.close()?;
    Ok(())
}
