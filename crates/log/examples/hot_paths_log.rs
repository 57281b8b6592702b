//! The hot path of the log so many times, for the counting of instructions: of `measured` alone.
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*measured*' target/release/examples/hot_paths_log log-append OPERATIONS
//! ```
//!
//! One thread, no clock. `cargo xtask regressions` holds the counts against those that are kept.

use deuteron_contract::{Lsn, TableId, TransactionId};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_log::{Log, LogOptions, Record};
use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;

/// What is counted.
#[inline(never)]
fn measured<R>(work: impl FnOnce() -> R) -> R {
    black_box(work())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which path?")?;
    let operations: u64 = arguments.next().ok_or("how many operations?")?.parse()?;
    if path != "log-append" {
        return Err(format!("there is no path {path}: log-append").into());
    }
    let options = LogOptions { ring_bytes: 64 << 20, ..LogOptions::default() };
    let (log, recovery) =
        Log::open(Arc::new(MemoryDirectory::new()), &options, Epochs::new(), Lsn(0)..Lsn(0))?;
    let mut at = recovery.tail();
    for number in 0..operations {
        let (transaction, key) = (TransactionId(number / 4), number.to_be_bytes());
        let record = Record::Upsert { transaction, table: TableId(1), key: &key, value: &[7; 100] };
        measured(|| log.append(&record))?;
        if number % 1000 == 999 {
            log.request_flush(Lsn(u64::MAX));
            while log.flush_step()? {}
            while let Some(buffer) = log.next_stable(at) {
                at = buffer.end();
                log.release(at);
            }
        }
    }
    Ok(())
}
