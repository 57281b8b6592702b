//! A fixed life of a log, which ends early if the device fails, and what is known after it.
#![allow(dead_code, reason = "each scenario uses a part")]

use crate::harness::{Owned, Pair, upsert};
use deuteron_contract::Lsn;
use deuteron_device::SimulatedDirectory;
use deuteron_log::{AppendError, LogError, LogOptions};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is known of a log between its lives.
#[derive(Clone, Default)]
pub struct Known {
    pub model: BTreeMap<u64, Owned>,
    pub acknowledged: Lsn,
    /// The redo scan start point.
    pub from: Lsn,
}

/// How a life ended.
pub enum End {
    /// As it should.
    Old,
    /// By this, with the log still open unless it could not be opened.
    Failed(LogError, Option<Box<Pair>>),
    /// For want of disk space, before anything failed.
    DiskFull(Box<Pair>),
}

/// Opens the log, checks what is recovered, and goes through some 200 KiB of work, in which segments are filled, truncated
/// and used again.
pub fn live(directory: SimulatedDirectory, known: &mut Known) -> End {
    let opened = Pair::open(
        Arc::new(directory),
        LogOptions::tiny_for_tests(),
        known.model.clone(),
        known.acknowledged,
        known.from,
    );
    let mut pair = match opened {
        Ok(pair) => Box::new(pair),
        Err(error) => return End::Failed(expected(error), None),
    };
    let mut result = Ok(());
    for number in 0..24 {
        result = work(&mut pair, known, number);
        known.model = pair.model.clone();
        known.acknowledged = pair.acknowledged;
        if result.is_err() {
            break;
        }
    }
    match result {
        Ok(()) => End::Old,
        Err(Stop::DiskFull) => End::DiskFull(pair),
        Err(Stop::Error(error)) => End::Failed(expected(error), Some(pair)),
    }
}

/// Whatever happens to the device, it is never taken for corruption or loss.
fn expected(error: LogError) -> LogError {
    assert!(matches!(error, LogError::Device { .. } | LogError::Poisoned(_)), "{error}");
    error
}

enum Stop {
    Error(LogError),
    DiskFull,
}

impl From<LogError> for Stop {
    fn from(error: LogError) -> Stop {
        Stop::Error(error)
    }
}

impl From<AppendError> for Stop {
    fn from(error: AppendError) -> Stop {
        match error {
            AppendError::Poisoned(poison) => Stop::Error(LogError::Poisoned(poison)),
            AppendError::DiskFull => Stop::DiskFull,
            other => panic!("{other}"),
        }
    }
}

fn work(pair: &mut Pair, known: &mut Known, number: u64) -> Result<(), Stop> {
    let bytes = [50, 9_000, 300, 14_000, 5_000][number as usize % 5];
    pair.append(upsert(number, bytes))?;
    pair.append(Owned::Delete(number, vec![1; 9]))?;
    if number.is_multiple_of(3) {
        drop(pair.log.reserve_commit());
    }
    let commit = pair.commit(number)?;
    if number.is_multiple_of(2) {
        pair.flush_all()?;
        assert!(pair.log.stable_lsn() > commit);
    }
    while pair.proxy_step(true) {}
    if number % 7 == 6 {
        // The checkpoint comes first, then the log is truncated.
        known.from = pair.released;
        pair.log.truncate(known.from)?;
    }
    Ok(())
}
