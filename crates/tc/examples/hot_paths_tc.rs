//! Each hot path of the transaction component so many times, for the counting of instructions: of `measured` alone.
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*measured*' target/release/examples/hot_paths_tc PATH OPERATIONS
//! ```
//!
//! One thread, no clock: what runs in the background otherwise is run between the measured stretches. `cargo xtask regressions`
//! holds the counts against those that are kept.

mod bed;

use bed::{Bed, TABLE, VALUE_BYTES};
use deuteron_contract::conformance::SplitMix;
use std::error::Error;
use std::hint::black_box;

const RECORDS: u64 = 10_000;

/// What is counted.
#[inline(never)]
fn measured<R>(work: impl FnOnce() -> R) -> R {
    black_box(work())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which path?")?;
    let operations: u64 = arguments.next().ok_or("how many operations?")?.parse()?;
    let per_transaction: u64 = arguments.next().map_or(Ok(4), |number| number.parse())?;
    let bed = Bed::open(RECORDS, 64 << 20, 64 << 20)?;
    bed.warm(RECORDS)?;
    let mut random = SplitMix::new(1);
    let mut value = [9u8; VALUE_BYTES];
    let (mut done, mut round) = (0, 0u64);
    while done < operations {
        let keys: Vec<[u8; 8]> = (0..per_transaction).map(|_| random.below(RECORDS).to_be_bytes()).collect();
        match path.as_str() {
            // Of what is in memory, within a transaction.
            "read-hit" => {
                let mut tx = bed.tc().begin();
                measured(|| {
                    keys.iter()
                        .try_for_each(|key| tx.get_with(TABLE, key, |value| black_box(value[0])).map(drop))
                })?;
                tx.commit()?;
                done += per_transaction;
            }
            // Blind, within a transaction.
            "update" => {
                let mut tx = bed.tc().begin();
                value[0] = value[0].wrapping_add(1);
                measured(|| keys.iter().try_for_each(|key| tx.put(TABLE, key, &value)))?;
                tx.commit()?;
                done += per_transaction;
            }
            // The begin and the commit of a transaction that has updated as many records.
            "commit" => {
                let mut tx = measured(|| bed.tc().begin());
                keys.iter().try_for_each(|key| tx.put(TABLE, key, &value))?;
                measured(|| tx.commit())?;
                done += 1;
            }
            other => return Err(format!("there is no path {other}: read-hit, update, commit").into()),
        }
        round += 1;
        // Some rounds, for what one finds the one before has left.
        if round % 256 == 0 {
            (0..4).for_each(|_| _ = bed.step());
        }
    }
    Ok(())
}
