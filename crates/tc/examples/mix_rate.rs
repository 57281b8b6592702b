//! How many operations a second the transaction component does by itself: 84 % reads, 16 % writes, four operations in a
//! transaction, over an in-memory data component and a log in memory.
//!
//! ```text
//! cargo run --release -p deuteron-tc --example mix_rate -- [records] [seconds] [memory MiB] [threads...]
//! ```
//!
//! Each number of threads runs twice: the second time each transaction says beforehand which keys it will use.

mod bed;

use bed::{Bed, TABLE, VALUE_BYTES};
use deuteron_contract::conformance::SplitMix;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nanoseconds that the calling thread has been on a processor: what counts on a machine that does other things too.
fn thread_nanoseconds() -> u64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    schedstat.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<u64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let argument = |index: usize, default| arguments.get(index).copied().unwrap_or(default);
    let (records, seconds, memory) = (argument(0, 1_000_000), argument(1, 3), argument(2, 2048));
    let threads = if arguments.len() > 3 { arguments[3..].to_vec() } else { vec![1, 2] };

    let bed = Bed::open(records, 256 << 20, (memory as usize) << 20)?;
    let tc = bed.tc();

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if !bed.step() {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        // Into the cache.
        let begun = Instant::now();
        bed.warm(records)?;
        println!("read {records} records for the first time in {:.1} s", begun.elapsed().as_secs_f64());

        for (threads, prefetches) in
            threads.into_iter().flat_map(|threads| [(threads, false), (threads, true)])
        {
            let (operations, transactions, conflicts, busy) =
                (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
            let running = AtomicBool::new(true);
            let begun = Instant::now();
            std::thread::scope(|workers| {
                for thread in 0..threads {
                    let (tc, running) = (&tc, &running);
                    let (operations, transactions, conflicts) = (&operations, &transactions, &conflicts);
                    let busy = &busy;
                    workers.spawn(move || {
                        let mut random = SplitMix::new(thread * 77 + 1);
                        let (mut done, mut committed, mut failed) = (0, 0, 0);
                        let value = [9; VALUE_BYTES];
                        let begun = thread_nanoseconds();
                        while running.load(Ordering::Relaxed) {
                            let mut tx = tc.begin();
                            let mut fine = true;
                            let keys: [[u8; 8]; 4] =
                                std::array::from_fn(|_| random.below(records).to_be_bytes());
                            if prefetches {
                                tx.prefetch(TABLE, &keys, &[]);
                            }
                            for key in keys {
                                fine &= if random.below(100) < 84 {
                                    tx.get_with(TABLE, &key, |value| std::hint::black_box(value[0])).is_ok()
                                } else {
                                    tx.put(TABLE, &key, &value).is_ok()
                                };
                                done += 1;
                            }
                            if fine && tx.commit().is_ok() {
                                committed += 1;
                            } else {
                                failed += 1;
                            }
                        }
                        busy.fetch_add(thread_nanoseconds() - begun, Ordering::Relaxed);
                        operations.fetch_add(done, Ordering::Relaxed);
                        transactions.fetch_add(committed, Ordering::Relaxed);
                        conflicts.fetch_add(failed, Ordering::Relaxed);
                    });
                }
                std::thread::sleep(Duration::from_secs(seconds));
                running.store(false, Ordering::Relaxed);
            });
            let elapsed = begun.elapsed().as_secs_f64();
            println!(
                "{threads} threads{}: {:.2} M operations/s, {:.0} ns of a processor each; {} transactions, {} conflicts",
                if prefetches { ", prefetching" } else { "" },
                operations.load(Ordering::Relaxed) as f64 / elapsed / 1e6,
                busy.load(Ordering::Relaxed) as f64 / operations.load(Ordering::Relaxed) as f64,
                transactions.load(Ordering::Relaxed),
                conflicts.load(Ordering::Relaxed),
            );
        }
        stop.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    println!("{:#?}", tc.statistics());
    Ok(())
}
