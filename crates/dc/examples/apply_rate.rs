//! How fast sorted batches of updates are applied to records that fit into memory, as the proxy posts a round of them: random keys of which
//! four fifths fall to one fifth, values scattered over memory.
//!
//! ```text
//! cargo run --release -p deuteron-dc --example apply_rate [RECORDS [OPERATIONS OF A ROUND [ROUNDS]]]
//! ```

use deuteron_contract::{DataComponent, Lsn, Operation, TableId, Timestamp};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TABLE: TableId = TableId(1);
/// So many operations are handed over at a time, as by the proxy.
const CHUNK: usize = 4096;
/// Bytes of a log record: header, key, value.
const STRIDE: usize = 144;

fn spread(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 16
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let mut number = |default| arguments.next().unwrap_or(Ok(default));
    let (records, operations, rounds) = (number(5_000_000)?, number(1_700_000)?, number(6)?);
    let options = DcOptions { memory_bytes: 1200 << 20, ..DcOptions::default() };
    let dc = BwTreeDc::open(Arc::new(MemoryDirectory::new()), Epochs::new(), options)?;
    let mut stamp = 0;
    let value = [7; 100];
    for first in (0..records).step_by(CHUNK) {
        let keys: Vec<[u8; 8]> = (first..records.min(first + CHUNK as u64)).map(u64::to_be_bytes).collect();
        let batch: Vec<Operation<'_>> = keys
            .iter()
            .map(|key| {
                stamp += 1;
                let (timestamp, lsn) = (Timestamp(stamp), Lsn(stamp));
                Operation { table: TABLE, key, value: Some(&value), timestamp, lsn }
            })
            .collect();
        dc.apply(&batch)?;
        while dc.maintain_step()? {}
    }
    // The keys and values lie as in the log: in the order in which they came.
    let mut log = vec![9u8; operations as usize * STRIDE];
    for round in 0..rounds {
        let mut places: Vec<(u64, usize)> = (0..operations)
            .map(|at| {
                let random = spread(round * operations + at);
                let hot = records / 5;
                let key = if !random.is_multiple_of(5) {
                    random / 5 % hot
                } else {
                    hot + random / 5 % (records - hot)
                };
                // The hot ones are everywhere.
                (key.wrapping_mul(1_000_003) % records, at as usize)
            })
            .collect();
        for &(key, at) in &places {
            log[at * STRIDE + 32..][..8].copy_from_slice(&key.to_be_bytes());
        }
        places.sort_unstable();
        places.dedup_by_key(|place| place.0);
        let mut time = Duration::ZERO;
        for chunk in places.chunks(CHUNK) {
            let batch: Vec<Operation<'_>> = chunk
                .iter()
                .map(|&(_, at)| {
                    stamp += 1;
                    let record = &log[at * STRIDE..][..STRIDE];
                    let (timestamp, lsn) = (Timestamp(stamp), Lsn(stamp));
                    Operation {
                        table: TABLE,
                        key: &record[32..40],
                        value: Some(&record[40..140]),
                        timestamp,
                        lsn,
                    }
                })
                .collect();
            let begin = Instant::now();
            dc.apply(&batch)?;
            time += begin.elapsed();
        }
        let each = time.as_nanos() as f64 / places.len() as f64;
        println!("round {round}: {} operations applied, {each:.0} ns each", places.len());
        while dc.maintain_step()? {}
    }
    let counters = dc.statistics().counters;
    let counter = |name| counters.iter().find(|(found, _)| *found == name).map_or(0, |(_, count)| *count);
    println!("{} consolidations, {} bytes in memory", counter("consolidations"), counter("memory_bytes"));
    Ok(())
}
