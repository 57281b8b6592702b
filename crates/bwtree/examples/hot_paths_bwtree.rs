//! Each hot path of a tree in memory so many times, for the counting of instructions: of `measured` alone.
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*measured*' target/release/examples/hot_paths_bwtree PATH OPERATIONS
//! ```
//!
//! One thread, no clock. `cargo xtask regressions` holds the counts against those that are kept.

use deuteron_bwtree::{Options, Tree, Upsert};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_llama::Llama;
use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;

const RECORDS: u64 = 20_000;
const VALUE: [u8; 100] = [7; 100];
/// Upserts at a time, sorted, as the proxy posts them.
const BATCH: usize = 64;

/// What is counted.
#[inline(never)]
fn measured<R>(work: impl FnOnce() -> R) -> R {
    black_box(work())
}

/// Number `number` of the keys, in no order.
fn key(number: u64) -> [u8; 8] {
    let z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb).to_be_bytes()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which path?")?;
    let operations: u64 = arguments.next().ok_or("how many operations?")?.parse()?;
    let memory = deuteron_llama::Options { memory_bytes: 1 << 30, ..Default::default() };
    let (llama, _) = Llama::open(Arc::new(MemoryDirectory::new()), memory, Epochs::new())?;
    let tree = Tree::create(Arc::new(llama), 1, Options::default());
    let mut stamp = 0;
    let mut upsert = |numbers: std::ops::Range<u64>, counts: bool| -> Result<(), Box<dyn Error>> {
        let mut keys: Vec<[u8; 8]> = numbers.map(|number| key(number * 7 % RECORDS)).collect();
        keys.sort_unstable();
        for keys in keys.chunks(BATCH) {
            stamp += 1;
            let upsert = |key| Upsert { key, value: Some(&VALUE[..]), stamp, lsn: stamp };
            let batch: Vec<_> = keys.iter().map(|key| upsert(&key[..])).collect();
            if counts {
                measured(|| tree.upsert(&batch))?
            } else {
                tree.upsert(&batch)?
            };
        }
        Ok(())
    };
    upsert(0..RECORDS, false)?;
    match path.as_str() {
        // Of pages that are in memory, some of them with deltas.
        "bwtree-lookup" => {
            upsert(0..RECORDS / 4, false)?;
            for number in 0..operations {
                let key = key(number * 13 % RECORDS);
                let guard = tree.llama().pin();
                let found = measured(|| tree.try_get(&key, &guard).map(|found| found.is_some()));
                assert!(found.is_ok_and(|found| found), "every key is there, in memory");
            }
        }
        // Consolidations and splits that come of it included.
        "bwtree-upsert" => {
            for start in (0..operations).step_by(BATCH) {
                upsert(start..operations.min(start + BATCH as u64), true)?;
            }
        }
        other => return Err(format!("there is no path {other}: bwtree-lookup, bwtree-upsert").into()),
    }
    Ok(())
}
