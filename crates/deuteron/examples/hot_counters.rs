//! Threads that count on ten keys, once with `add` and once with a read and a write: transactions a second, and how often they
//! had to be tried.
//!
//! `cargo run --release -p deuteron --example hot_counters -- [THREADS [SECONDS]]`

use deuteron::device::MemoryDirectory;
use deuteron::{Db, Durability, Error, Options, Table, Transaction};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KEYS: u64 = 10;

/// One count, with the way of doing it.
type Count = fn(&mut Transaction, &Table, &[u8]) -> Result<(), Error>;

fn add(tx: &mut Transaction, table: &Table, key: &[u8]) -> Result<(), Error> {
    tx.add(table, key, 1)
}

fn read_and_write(tx: &mut Transaction, table: &Table, key: &[u8]) -> Result<(), Error> {
    let seen = tx.get_for_update(table, key)?.and_then(|value| value.try_into().ok());
    tx.put(table, key, &(seen.map_or(0, i64::from_le_bytes) + 1).to_le_bytes())
}

/// Commits and attempts.
fn run(db: &Db, table: &Table, threads: u64, time: Duration, count: Count) -> Result<(u64, u64), Error> {
    let (commits, attempts, end) = (AtomicU64::new(0), AtomicU64::new(0), Instant::now() + time);
    let work = |thread: u64| -> Result<(), Error> {
        let mut number = thread;
        while Instant::now() < end {
            db.transact(|tx| {
                attempts.fetch_add(1, Ordering::Relaxed);
                for step in 0..4 {
                    count(tx, table, &[((number * 7 + step * 3) % KEYS) as u8 + 1])?;
                }
                Ok(())
            })?;
            commits.fetch_add(1, Ordering::Relaxed);
            number += 1;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread panicked"))
    })?;
    Ok((commits.into_inner(), attempts.into_inner()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().map_or(Ok(8), |threads| threads.parse())?;
    let seconds = arguments.next().map_or(Ok(2.0), |seconds| seconds.parse())?;
    for (name, count) in [("add", add as Count), ("get_for_update and put", read_and_write)] {
        let options = Options::new().memory(256 << 20).durability(Durability::None);
        let db = options.open_in(Arc::new(MemoryDirectory::new()))?;
        let table = db.table("counters")?;
        let (commits, attempts) = run(&db, &table, threads, Duration::from_secs_f64(seconds), count)?;
        let sum: i64 = db.transact(|tx| {
            let mut sum = 0;
            for entry in tx.scan(&table, ..)? {
                sum += entry?.1.try_into().map_or(0, i64::from_le_bytes);
            }
            Ok(sum)
        })?;
        assert_eq!(sum as u64, 4 * commits, "nothing is lost");
        let rate = commits as f64 / seconds;
        println!("{name}: {rate:.0} commits/s, {:.3} attempts each", attempts as f64 / commits.max(1) as f64);
        db.close()?;
    }
    Ok(())
}
