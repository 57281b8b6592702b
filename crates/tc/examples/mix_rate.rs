//! How many operations a second the transaction component does by itself: 84 % reads, 16 % writes, four operations in a
//! transaction, over an in-memory data component and a log in memory.
//!
//! ```text
//! cargo run --release -p deuteron-tc --example mix_rate -- [records] [seconds] [memory MiB] [threads...]
//! ```
//!
//! Each number of threads runs twice: the second time each transaction says beforehand which keys it will use.

use deuteron_contract::{DataComponent, Lsn, MemoryDc, Operation, TableId, Timestamp};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_log::{Log, LogOptions};
use deuteron_proxy::{Progress, Proxy, ProxyHost};
use deuteron_tc::{Host, Stall, TcOptions, TransactionComponent};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const TABLE: TableId = TableId(1);
const VALUE_BYTES: usize = 100;

#[derive(Default)]
struct Hosted(OnceLock<Arc<TransactionComponent>>);

impl Host for Hosted {
    fn stalled(&self, _: Stall) -> Result<(), String> {
        std::thread::sleep(Duration::from_micros(50));
        Ok(())
    }
}

impl ProxyHost for Hosted {
    fn horizon(&self) -> Timestamp {
        self.0.get().map_or(Timestamp(0), |tc| tc.horizon())
    }

    fn force_horizon(&self, at_least: Timestamp) {
        if let Some(tc) = self.0.get() {
            tc.force_horizon(at_least);
        }
    }

    fn progress(&self, progress: Progress) {
        if let Some(tc) = self.0.get() {
            tc.report_progress(progress.t_lsn, progress.o_lsn, progress.posted);
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

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

    let epochs = Epochs::new();
    let log_options = LogOptions { ring_bytes: 256 << 20, ..LogOptions::default() };
    let (log, _) = Log::open(Arc::new(MemoryDirectory::new()), &log_options, Arc::clone(&epochs), Lsn(0))?;
    let log = Arc::new(log);
    let start = log.tail_lsn();
    let dc = Arc::new(MemoryDc::new());
    for chunk in 0..records.div_ceil(1000) {
        let keys: Vec<[u8; 8]> =
            (chunk * 1000..records.min(chunk * 1000 + 1000)).map(u64::to_be_bytes).collect();
        let operations: Vec<Operation<'_>> = keys
            .iter()
            .map(|key| Operation {
                table: TABLE,
                key,
                value: Some(&[7; VALUE_BYTES]),
                timestamp: Timestamp(1),
                lsn: Lsn(0),
            })
            .collect();
        dc.apply(&operations)?;
    }
    let hosted = Arc::new(Hosted::default());
    let options = TcOptions {
        memory_bytes: (memory as usize) << 20,
        clock_start: Timestamp(1),
        ..TcOptions::default()
    };
    let (host, data) = (Arc::clone(&hosted) as Arc<dyn Host>, Arc::clone(&dc) as Arc<dyn DataComponent>);
    let tc =
        Arc::new(TransactionComponent::open(options, Arc::clone(&log), data, Arc::clone(&epochs), host)?);
    drop(hosted.0.set(Arc::clone(&tc)));
    let proxy = Proxy::new(dc, hosted, deuteron_proxy::Options::default(), start);

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
        scope.spawn(|| {
            let mut truncated = 0;
            while !stop.load(Ordering::Relaxed) {
                log.request_flush(Lsn(u64::MAX));
                let mut worked = log.flush_step().expect("memory does not fail");
                worked |= proxy.step(&*log).expect("memory does not fail");
                worked |= tc.collect_step();
                let start = proxy.redo_scan_start_point();
                if start.0 > truncated + (1 << 30) {
                    log.truncate(start).expect("memory does not fail");
                    truncated = start.0;
                }
                if !worked {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        // Into the cache.
        let begun = Instant::now();
        for chunk in 0..records.div_ceil(100) {
            let mut tx = tc.begin();
            for key in chunk * 100..records.min(chunk * 100 + 100) {
                tx.get_with(TABLE, &key.to_be_bytes(), <[u8]>::len)?;
            }
            tx.commit()?;
        }
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
                        let mut random = Random(thread * 77 + 1);
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
