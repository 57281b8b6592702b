//! How fast the log is replayed: updates until so much log lies behind the last checkpoint, the end of the process without a close,
//! and the opening of what it left.
//!
//! ```text
//! cargo run --release --package deuteron --example replay -- write DIRECTORY RECORDS LOG_BYTES [uniform]
//! cargo run --release --package deuteron --example replay -- open DIRECTORY
//! ```
//!
//! Four of five updates are of a fifth of the records (or all are of any). The second command prints what the recovery did, as JSON.

use deuteron::{Db, Durability, Error, Options};
use std::path::Path;

const VALUE: [u8; 100] = [7; 100];
const MEMORY: usize = 4 << 30;

fn open(path: &Path) -> Result<Db, Error> {
    // A checkpoint only when asked for.
    Options::new().memory(MEMORY).durability(Durability::None).checkpoint_every(u64::MAX).open(path)
}

fn write(path: &Path, records: u64, log_bytes: u64, is_uniform: bool) -> Result<(), Error> {
    let db = open(path)?;
    let mut load = db.load_table("records")?;
    for number in 0..records {
        load.push(&number.to_be_bytes(), &VALUE)?;
    }
    let table = load.finish()?;
    db.checkpoint()?;
    let written = || db.stats().bytes_written_log;
    let before = written();
    let mut number = 0u64;
    while written() - before < log_bytes {
        for _ in 0..10_000 {
            db.transact(|tx| {
                (0..4).try_for_each(|_| {
                    number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let drawn = number >> 20;
                    let some = if is_uniform || drawn.is_multiple_of(5) { records } else { records / 5 };
                    tx.put(&table, &(drawn / 5 % some).to_be_bytes(), &VALUE)
                })
            })?;
        }
    }
    db.flush()?;
    // Neither closed nor dropped: what a crash would leave.
    std::process::exit(0);
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| -> u64 { arguments[at].parse().expect("a number") };
    let path = Path::new(&arguments[1]);
    match arguments[0].as_str() {
        "write" => {
            let is_uniform = arguments.get(4).is_some_and(|word| word == "uniform");
            write(path, number(2), number(3), is_uniform)
        }
        "open" => {
            let db = open(path)?;
            let report = db.recovery();
            let log_bytes = report.log_end.0 - report.redo_start.0;
            let seconds = report.duration.as_secs_f64();
            println!(
                "{{\"log_bytes\": {log_bytes}, \"operations\": {}, \"seconds\": {seconds}}}",
                report.operations_posted
            );
            db.close()
        }
        other => panic!("there is no mode {other}"),
    }
}
