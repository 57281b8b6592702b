//! Scans of a database in memory so many times, for the counting of instructions: of `measured` alone.
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*measured*' target/release/examples/hot_paths_deuteron PATH OPERATIONS
//! ```
//!
//! One thread, no clock: what runs in the background otherwise is run between the measured stretches, or not at all.
//! `cargo xtask regressions` holds the counts against those that are kept.

use deuteron::device::MemoryDirectory;
use deuteron::{Background, Db, Durability, Error, Options, Table};
use std::hint::black_box;
use std::sync::Arc;

const RECORDS: u64 = 20_000;
/// Records of a scan.
const SCANNED: u64 = 50;
/// Records of a queue that were taken and are still remembered.
const TAKEN: u64 = 200;
const VALUE: [u8; 100] = [7; 100];

/// What is counted.
#[inline(never)]
fn measured<R>(work: impl FnOnce() -> R) -> R {
    black_box(work())
}

/// Writes or deletes the keys from `first` on, `count` of them.
fn write(db: &Db, table: &Table, first: u64, count: u64, value: Option<&[u8]>) -> Result<(), Error> {
    let keys: Vec<u64> = (first..first + count).collect();
    for keys in keys.chunks(100) {
        db.transact(|tx| {
            keys.iter().map(|key| key.to_be_bytes()).try_for_each(|key| match value {
                Some(value) => tx.put(table, &key, value),
                None => tx.delete(table, &key),
            })
        })?;
    }
    Ok(())
}

/// Until the data component has everything, and the transaction component remembers nothing of what was written.
fn settle(db: &Db) -> Result<(), Error> {
    db.checkpoint()?;
    while db.step()? {}
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which path?")?;
    let operations: u64 = arguments.next().ok_or("how many operations?")?.parse()?;
    let options =
        Options::new().memory(256 << 20).durability(Durability::None).background(Background::Inline);
    let db = options.open_in(Arc::new(MemoryDirectory::new()))?;
    let table = db.table("records")?;
    write(&db, &table, 0, RECORDS, Some(&VALUE))?;
    settle(&db)?;
    let scanned = match path.as_str() {
        // Of what the data component has.
        "scan" => SCANNED,
        // Of what was written a moment ago.
        "scan-written" => {
            write(&db, &table, 0, RECORDS, Some(&VALUE))?;
            SCANNED
        }
        // The first record behind so many that were deleted a moment ago.
        "scan-deleted" => {
            (0..RECORDS / 1000).try_for_each(|queue| write(&db, &table, 1000 * queue, TAKEN, None))?;
            1
        }
        // The same, deleted a while ago: the data component remembers that they were there.
        "scan-tombstones" => {
            (0..RECORDS / 1000).try_for_each(|queue| write(&db, &table, 1000 * queue, TAKEN, None))?;
            db.flush()?;
            while db.step()? {}
            1
        }
        other => return Err(format!("there is no path {other}").into()),
    };
    for operation in 0..operations {
        let first = match path.as_str() {
            "scan" | "scan-written" => operation * 7919 % (RECORDS - SCANNED),
            _ => operation % (RECORDS / 1000) * 1000,
        };
        let found = measured(|| -> Result<u64, Error> {
            let mut tx = db.begin();
            let mut found = 0;
            let mut scan = tx.scan(&table, &first.to_be_bytes()[..]..)?.limit(scanned as usize);
            while let Some((_, value)) = scan.next_ref()? {
                found += black_box(value).len() as u64 / VALUE.len() as u64;
            }
            tx.commit()?;
            Ok(found)
        })?;
        assert_eq!(found, scanned, "there are so many");
        if operation % 256 == 255 {
            // Memory that nobody looks at any more.
            db.step_of(deuteron::Duty::Keep)?;
        }
    }
    Ok(())
}
