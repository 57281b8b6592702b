//! Random histories: concurrent transactions whose every read is recorded, and replayed against a map.
//!
//! Threads run random transactions: points, scans both ways with and without a limit, inserts, deletes,
//! read-modify-writes, adds and appends, savepoints and rollbacks, transactions given up, at several isolation levels, now and (if the database keeps it) in the past.
//! Each notes what it read, what it wrote, and when it committed. After each round the notes are sorted by commit
//! timestamp and replayed one by one on a `BTreeMap`: every read must return what the map has at that place, and the order
//! must agree with real time.
//!
//! | module | what |
//! |---|---|
//! | `client` | makes transactions and notes |
//! | `replay` | checks them |
//! | `values` | keys, values and what is done to them |
//!
//! ```
//! use deuteron::device::MemoryDirectory;
//! use deuteron::{Background, Durability, Options};
//! use deuteron_bench::{HistoryOptions, run_histories};
//! let options = Options::tiny_for_tests().background(Background::Threads).durability(Durability::None);
//! let db = options.open_in(std::sync::Arc::new(MemoryDirectory::new()))?;
//! let report = run_histories(&db, &HistoryOptions { transactions: 500, ..HistoryOptions::default() }, |_| {})?;
//! assert!(report.problems.is_empty(), "{:?}", report.problems);
//! db.close()?;
//! # Ok::<(), deuteron::Error>(())
//! ```

mod client;
mod replay;
mod values;

use client::Client;
use deuteron::{Db, Error};
use replay::Replay;
use serde::Serialize;
use std::sync::atomic::AtomicU64;

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryOptions {
    /// Transactions in all, those that conflict or are given up included.
    pub transactions: u64,
    /// Threads that run them.
    pub threads: u32,
    /// Different keys. Half of the accesses go to a sixteenth of them.
    pub keys: u32,
    /// Transactions between two replays, on all threads together.
    pub round: u64,
    /// Sets what the transactions do; how they meet is up to the system.
    pub seed: u64,
    /// Whether only such transactions are run as a recorded history tells in full: serializable ones in the present that write each value
    /// once, append to lists and do nothing else to them, on keys from a window of [`HistoryOptions::keys`] that moves on.
    pub recorded: bool,
}

impl Default for HistoryOptions {
    fn default() -> Self {
        Self { transactions: 100_000, threads: 4, keys: 512, round: 20_000, seed: 1, recorded: false }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HistoryReport {
    /// Transactions run.
    pub transactions: u64,
    /// Of these, committed.
    pub committed: u64,
    /// Given up by a conflict.
    pub conflicts: u64,
    /// Given up on purpose.
    pub given_up: u64,
    /// Begun in a past that was no longer kept.
    pub not_retained: u64,
    /// Reads of keys that were compared.
    pub reads: u64,
    /// Scans that were compared.
    pub scans: u64,
    /// Records that scans returned.
    pub records_scanned: u64,
    /// What was not as it should be; the run ends with the round of the first.
    pub problems: Vec<String>,
}

/// Runs random transactions and checks them, in a table of its own that must be empty; `progress` hears how many are done. At
/// the end the table is compared once more as a whole.
///
/// # Errors
/// What a transaction failed with, other than a conflict. What is wrong with the answers is in the report.
pub fn run_histories(
    db: &Db,
    options: &HistoryOptions,
    mut progress: impl FnMut(u64),
) -> Result<HistoryReport, Error> {
    let table = db.table("histories")?;
    let (mut report, events) = (HistoryReport::default(), AtomicU64::new(1));
    let mut replay = Replay::default();
    let mut clients: Vec<Client<'_>> =
        (0..options.threads.max(1)).map(|thread| Client::new(db, &table, &events, options, thread)).collect();
    while report.transactions < options.transactions && report.problems.is_empty() {
        let round = options.round.clamp(1, options.transactions - report.transactions);
        let share = round.div_ceil(clients.len() as u64);
        let start = db.timestamp();
        let outcomes = std::thread::scope(|scope| {
            let threads: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(move || client.run(share, start))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a client panicked")).collect::<Vec<_>>()
        });
        outcomes.into_iter().collect::<Result<(), Error>>()?;
        let notes = clients.iter_mut().flat_map(|client| client.take(&mut report)).collect();
        replay.round(notes, &mut report);
        // Eviction and posting go on by themselves; a checkpoint cuts the log between rounds.
        if (report.transactions / options.round.max(1)).is_multiple_of(4) {
            db.checkpoint()?;
        }
        progress(report.transactions);
    }
    if report.problems.is_empty() {
        replay.compare(db, &table, &mut report)?;
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron::device::MemoryDirectory;
    use deuteron::{Background, ConcurrencyControl, Durability, Options};
    use std::sync::Arc;
    use std::time::Duration;

    fn run(options: Options, histories: &HistoryOptions) {
        let directory = Arc::new(MemoryDirectory::new());
        let options = options.background(Background::Threads).durability(Durability::None);
        let db = options.clone().open_in(Arc::<MemoryDirectory>::clone(&directory)).expect("opens");
        let report = run_histories(&db, histories, |_| {}).expect("no error but conflicts");
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        assert!(report.committed > report.transactions / 3 && report.reads > 0 && report.scans > 0);
        db.close().expect("closes");
        let db = options.open_in(directory).expect("opens again");
        let table = db.table("histories").expect("is there");
        let left = db.transact(|tx| Ok(tx.scan(&table, ..)?.count())).expect("scans");
        assert!(left > 0);
        db.close().expect("closes");
    }

    #[test]
    fn every_read_is_that_of_the_serial_order() {
        let histories = HistoryOptions { transactions: 20_000, round: 5_000, ..HistoryOptions::default() };
        run(Options::new().memory(64 << 20).retention(Duration::from_millis(20)), &histories);
    }

    #[test]
    fn every_read_of_a_recorded_history_is_that_of_the_serial_order() {
        let histories = HistoryOptions {
            transactions: 8_000,
            round: 2_000,
            keys: 64,
            recorded: true,
            ..HistoryOptions::default()
        };
        run(Options::new().memory(64 << 20), &histories);
    }

    #[test]
    fn every_read_is_that_of_the_serial_order_in_pure_timestamp_order() {
        let histories = HistoryOptions { transactions: 8_000, round: 2_000, ..HistoryOptions::default() };
        let control = ConcurrencyControl::TimestampOrder;
        run(Options::new().memory(64 << 20).concurrency_control(control), &histories);
    }

    #[test]
    fn every_read_is_that_of_the_serial_order_with_hardly_any_memory() {
        let histories = HistoryOptions { transactions: 4_000, round: 1_000, ..HistoryOptions::default() };
        run(Options::tiny_for_tests(), &histories);
    }
}
