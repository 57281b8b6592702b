//! What encryption at rest costs: the same load, durable commits and reads beyond memory, with and without, in turns.
//!
//! `cargo run --release -p deuteron --example encryption_cost [RECORDS] [SECONDS]`

use deuteron::device::simulated::Random;
use deuteron::device::{Directory, OsDirectory};
use deuteron::{Db, Durability, Options, RetryPolicy, TransactionOptions};
use deuteron_encryption::{EncryptedDirectory, Key, Keys};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MEMORY: usize = 32 << 20;
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let records: u64 = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let mut rates = [[0.0; 3]; 2];
    for round in 0..ROUNDS {
        for encrypted in [false, true] {
            let scratch = tempfile::tempdir_in(std::env::current_dir()?)?;
            let files: Arc<dyn Directory> =
                Arc::new(OsDirectory::open_or_create(scratch.path().join("a.db"))?);
            let files = match encrypted {
                true => Arc::new(EncryptedDirectory::new(files, Keys::new(Key::random()?))?),
                false => files,
            };
            let db = Options::new().memory(MEMORY).open_in(files)?;
            let found = measure(&db, records, Duration::from_secs(seconds))?;
            db.close()?;
            println!(
                "round {round}, encrypted {encrypted}: load {:.0}/s, durable commits {:.0}/s, reads {:.0}/s",
                found[0], found[1], found[2]
            );
            let sums = &mut rates[usize::from(encrypted)];
            sums.iter_mut().zip(found).for_each(|(sum, rate)| *sum += rate);
        }
    }
    let ratio = |at: usize| rates[1][at] / rates[0][at];
    println!(
        "with over without: load {:.2}, durable commits {:.2}, reads {:.2}",
        ratio(0),
        ratio(1),
        ratio(2)
    );
    Ok(())
}

/// Records loaded, transactions that wait to be durable, and random reads, each in a second, by two threads.
fn measure(db: &Db, records: u64, time: Duration) -> Result<[f64; 3], Box<dyn Error>> {
    let table = db.table("records")?;
    let begin = Instant::now();
    let options = || TransactionOptions::new().durability(Durability::Delayed(Duration::from_millis(10)));
    for first in (0..records).step_by(100) {
        db.transact_with(options(), RetryPolicy::default(), |tx| {
            (first..first + 100).try_for_each(|key| tx.put(&table, &key.to_be_bytes(), &[key as u8; 100]))
        })?;
    }
    db.flush()?;
    let load = records as f64 / begin.elapsed().as_secs_f64();
    let per_second = |writes: bool| -> f64 {
        let begin = Instant::now();
        let count = |thread: u64| {
            let (mut random, mut done) = (Random::new(thread), 0u64);
            while begin.elapsed() < time {
                let key = random.below(records).to_be_bytes();
                let outcome = db.transact(|tx| match writes {
                    true => tx.put(&table, &key, &[7; 100]),
                    false => tx.get(&table, &key).map(drop),
                });
                done += u64::from(outcome.is_ok());
            }
            done
        };
        let done: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2).map(|thread| scope.spawn(move || count(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
        });
        done as f64 / begin.elapsed().as_secs_f64()
    };
    Ok([load, per_second(true), per_second(false)])
}
