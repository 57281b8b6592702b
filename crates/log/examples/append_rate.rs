//! How fast records go into the log: `cargo run --release -p deuteron-log --example append_rate`.
//!
//! One and two threads append upserts of 100-byte values, every fourth followed by a commit record, while a further thread
//! flushes to memory and releases. Prints nanoseconds for each record and records for each second; best of five.

use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_log::{AppendError, Log, LogOptions, Record};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const RECORDS: u64 = 400_000;

/// What fits the ring, so that only appending is measured, and not the flusher on the same two processors.
fn in_the_ring(threads: u64) -> Result<f64, Box<dyn Error>> {
    let options = LogOptions { ring_bytes: 256 << 20, ..LogOptions::default() };
    let (log, _) = Log::open(Arc::new(MemoryDirectory::new()), &options, Epochs::new(), Lsn(0)..Lsn(0))?;
    let started = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let log = &log;
            scope.spawn(move || {
                append(log, thread, RECORDS / threads, |_| panic!("the ring is large enough"))
            });
        }
    });
    Ok(started.elapsed().as_nanos() as f64 / RECORDS as f64)
}

/// Much more than the ring, with a thread that flushes, lends and releases.
fn through_the_ring(threads: u64) -> Result<f64, Box<dyn Error>> {
    let records = 10 * RECORDS;
    let options = LogOptions { spare_segments_max: 1, ..LogOptions::default() };
    let (log, recovery) =
        Log::open(Arc::new(MemoryDirectory::new()), &options, Epochs::new(), Lsn(0)..Lsn(0))?;
    let done = AtomicBool::new(false);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|thread| {
                let log = &log;
                scope.spawn(move || append(log, thread, records / threads, |_| std::thread::yield_now()))
            })
            .collect();
        scope.spawn(|| {
            let mut at = recovery.tail();
            while !done.load(Ordering::Relaxed) {
                let flushed = log.flush_step().expect("memory does not fail");
                while let Some(buffer) = log.next_stable(at) {
                    at = buffer.end();
                    log.release(at);
                    log.truncate(at).expect("memory does not fail");
                }
                if !flushed {
                    std::thread::yield_now();
                }
            }
        });
        for writer in writers {
            writer.join().expect("a writer panicked");
        }
        done.store(true, Ordering::Relaxed);
    });
    Ok(started.elapsed().as_nanos() as f64 / records as f64)
}

fn append(log: &Log, thread: u64, records: u64, full: impl Fn(&AppendError)) {
    let value = [thread as u8; 100];
    let mut number = 0;
    while number < records {
        let transaction = TransactionId(number);
        let result = if number % 5 == 4 {
            log.reserve_commit().map(|commit| commit.fill(transaction, Timestamp(number), 0))
        } else {
            let key = (number * 2 + thread).to_be_bytes();
            log.append(&Record::Upsert { transaction, table: TableId(1), key: &key, value: &value })
        };
        match result {
            Ok(_) => number += 1,
            Err(error) => full(&error),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    for (name, measure) in
        [("in the ring", in_the_ring as fn(u64) -> _), ("through the ring", through_the_ring)]
    {
        for threads in [1, 2] {
            let mut best = f64::MAX;
            for _ in 0..5 {
                best = best.min(measure(threads)?);
            }
            println!("{name}, {threads} threads: {best:.1} ns/record, {:.1} M records/s", 1e3 / best);
        }
    }
    Ok(())
}
