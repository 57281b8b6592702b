//! How fast a data component in memory reads and applies: nanoseconds of processor time for each operation, and the rate by
//! the clock.
//!
//! ```sh
//! cargo run --release -p deuteron-dc --example point_rate -- \
//!     [records=4000000] [value bytes=8] [threads=1] [page bytes] [consolidate at]
//! ```

use deuteron_contract::{
    DataComponent, Direction, Lsn, Operation, ScanBatch, ScanRequest, TableId, Timestamp,
};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const TABLE: TableId = TableId(1);
const BATCH: u64 = 1000;

/// Spreads the numbers over the whole key space.
fn key(number: u64) -> [u8; 8] {
    let z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb).to_be_bytes()
}

/// Processor time of this thread in nanoseconds; 0 where the system does not say.
fn processor_nanoseconds() -> u64 {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    statistics.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Runs `work` for each thread's share of `count` and prints the time for one.
fn measure(what: &str, threads: u64, count: u64, work: impl Fn(std::ops::Range<u64>) + Sync) {
    let share = count / threads;
    let start = Instant::now();
    let processor = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (work, processor) = (&work, &processor);
            scope.spawn(move || {
                let before = processor_nanoseconds();
                work(thread * share..(thread + 1) * share);
                processor.fetch_add(processor_nanoseconds() - before, Ordering::Relaxed);
            });
        }
    });
    println!(
        "{what:32} {:7.0} ns/op {:7.2} M/s",
        processor.into_inner() as f64 / count as f64,
        count as f64 * 1e3 / start.elapsed().as_nanos() as f64
    );
}

fn main() {
    let argument = |at: usize, default: usize| {
        std::env::args().nth(at).map_or(default, |text| text.parse().expect("arguments are numbers"))
    };
    let records = argument(1, 4_000_000) as u64;
    let value = vec![7u8; argument(2, 8)];
    let threads = argument(3, 1) as u64;
    let mut options = DcOptions { memory_bytes: 8 << 30, ..DcOptions::default() };
    options.tree.page_bytes_max = argument(4, options.tree.page_bytes_max);
    options.tree.consolidate_at = argument(5, options.tree.consolidate_at);
    let dc = BwTreeDc::open(Arc::new(MemoryDirectory::new()), Epochs::new(), options).expect("a new store");

    // As the proxy does: batches of random keys.
    let apply = |numbers: std::ops::Range<u64>, stamp: u64| {
        for start in numbers.clone().step_by(BATCH as usize) {
            let keys: Vec<_> =
                (start..numbers.end.min(start + BATCH)).map(|number| key(number % records)).collect();
            let operations: Vec<_> = keys
                .iter()
                .map(|key| Operation {
                    table: TABLE,
                    key,
                    value: Some(&value),
                    timestamp: Timestamp(stamp + start),
                    lsn: Lsn(stamp + start),
                })
                .collect();
            dc.apply(&operations).expect("no I/O fails in memory");
        }
    };
    let some = records.min(1_000_000);
    measure("insert, batches of 1000", threads, records, |numbers| apply(numbers, 0));
    measure("get after inserts", threads, some, |numbers| {
        for number in numbers {
            assert!(dc.get(TABLE, &key(number * 7 % records)).expect("no I/O").is_some());
        }
    });
    measure("update, batches of 1000", threads, some, |numbers| apply(numbers, records));
    for _ in 0..2 {
        measure("get after updates", threads, some, |numbers| {
            for number in numbers {
                assert!(dc.get(TABLE, &key(number * 7 % records)).expect("no I/O").is_some());
            }
        });
    }
    measure("scan 100 records, each", threads, some / 10, |numbers| {
        let mut batch = ScanBatch::new();
        for number in numbers {
            let request = ScanRequest {
                table: TABLE,
                lower: Bound::Included(&key(number)),
                upper: Bound::Unbounded,
                direction: Direction::Forward,
                bytes_max: usize::MAX,
                records_max: 100,
            };
            dc.scan_into(&request, &mut batch).expect("no I/O");
            assert!(!batch.is_empty());
        }
    });
    println!("{} MiB of pages and indexes", dc.statistics().memory_bytes >> 20);
    for (name, count) in dc.statistics().counters.iter().filter(|(_, count)| *count > 0) {
        println!("  {name} {count}");
    }
}
