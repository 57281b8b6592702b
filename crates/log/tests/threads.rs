//! Many threads append while others flush, lend, truncate and read versions: every record is there once, whole, and
//! what a version reader gets is what was written.
#![cfg(not(loom))]

use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_log::{AppendError, Log, LogOpening, LogOptions, Record};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const WRITERS: u64 = 3;
const TRANSACTIONS: u64 = 10_000;

/// Bytes that follow from the transaction, so that any reader can tell whether they are whole.
fn value(transaction: u64) -> Vec<u8> {
    let bytes = if transaction.is_multiple_of(97) { 9000 } else { 1 + transaction as usize * 7 % 300 };
    let word = transaction.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.iter().copied().cycle().take(bytes).collect()
}

fn check(record: &Record<'_>) -> u64 {
    match *record {
        Record::Upsert { transaction, table, key, value: found } => {
            assert_eq!((table, key), (TableId(1), &transaction.0.to_be_bytes()[..]));
            assert_eq!(found, value(transaction.0));
            transaction.0
        }
        Record::Commit { transaction, timestamp, token } => {
            assert_eq!((timestamp.0, token), (transaction.0 + 1, transaction.0 + 2));
            transaction.0
        }
        ref other => panic!("{other:?}"),
    }
}

fn insist<T>(append: impl Fn() -> Result<T, AppendError>) -> T {
    loop {
        match append() {
            Ok(appended) => return appended,
            Err(AppendError::Full) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn write(log: &Log, writer: u64, newest: &AtomicU64) {
    for number in 0..TRANSACTIONS {
        let transaction = TransactionId(number * WRITERS + writer);
        let (key, value) = (transaction.0.to_be_bytes(), value(transaction.0));
        let record = Record::Upsert { transaction, table: TableId(1), key: &key, value: &value };
        let lsn = insist(|| log.append(&record));
        newest.store(lsn.0, Ordering::Release);
        if number.is_multiple_of(5) {
            insist(|| log.reserve_commit()).cancel();
        }
        let commit = insist(|| log.reserve_commit());
        assert!(commit.lsn() > lsn);
        let commit = commit.fill(transaction, Timestamp(transaction.0 + 1), transaction.0 + 2);
        if number.is_multiple_of(10) {
            log.wait_stable(commit).unwrap();
            assert!(log.stable_lsn() > commit);
        }
    }
}

#[test]
fn every_record_arrives_whole_and_once() {
    let directory = Arc::new(MemoryDirectory::new());
    let epochs = Epochs::new();
    let options = LogOptions::tiny_for_tests();
    let (log, recovery) = Log::open(directory.clone(), &options, epochs.clone(), Lsn(0)..Lsn(0)).unwrap();
    let newest: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut seen: HashMap<u64, (u32, u32)> = HashMap::new();
    std::thread::scope(|scope| {
        let writers: Vec<_> = newest
            .iter()
            .enumerate()
            .map(|(writer, newest)| {
                let log = &log;
                scope.spawn(move || write(log, writer as u64, newest))
            })
            .collect();
        // Two flushers, who exclude each other.
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if !log.flush_step().unwrap() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        // A reader of versions, also of old ones.
        scope.spawn(|| {
            let mut known: Vec<u64> = Vec::new();
            let mut round = 0;
            while !done.load(Ordering::Relaxed) {
                round += 1;
                let slot = round % WRITERS as usize;
                known.push(newest[slot].load(Ordering::Acquire));
                // Mostly young ones: the ring is small.
                let lsn = known[known.len() - 1 - round * 7919 % known.len().min(10)];
                if lsn == 0 {
                    continue;
                }
                let guard = epochs.pin();
                // SAFETY: published by a writer after it had appended it.
                match unsafe { log.read(Lsn(lsn), &guard) } {
                    Some(record) => {
                        check(&record);
                        std::thread::yield_now();
                        check(&record);
                        hits.fetch_add(1, Ordering::Relaxed);
                    }
                    None => {
                        misses.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        // The proxy.
        let seen = &mut seen;
        let (log, done) = (&log, &done);
        scope.spawn(move || {
            let mut at = recovery.tail();
            loop {
                let was_done = done.load(Ordering::Acquire);
                let Some(buffer) = log.next_stable(at) else {
                    if was_done {
                        return;
                    }
                    std::thread::yield_now();
                    continue;
                };
                let view = buffer.view();
                let mut commits = 0;
                for (lsn, record) in view.records() {
                    assert!(lsn >= view.base() && lsn < view.end());
                    let entry = seen.entry(check(&record)).or_default();
                    if matches!(record, Record::Commit { .. }) {
                        assert_eq!(entry.0, 1, "the update comes before its commit");
                        entry.1 += 1;
                        commits += 1;
                    } else {
                        entry.0 += 1;
                    }
                }
                assert_eq!(view.commits().count(), commits);
                at = view.end();
                drop(buffer);
                log.release(at);
                log.truncate(Lsn(at.0.saturating_sub(100_000))).unwrap();
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        log.request_flush(log.tail_lsn());
        while log.stable_lsn() < log.tail_lsn() {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!(seen.len() as u64, WRITERS * TRANSACTIONS);
    assert!(seen.values().all(|&counts| counts == (1, 1)));
    let (hits, misses) = (hits.into_inner(), misses.into_inner());
    assert!(hits > 0 && misses > 0, "{hits} hits, {misses} misses");
    let statistics = log.statistics();
    assert!(statistics.sealed_full > 0 && statistics.sealed_on_request > 0, "{statistics:?}");
    assert!(statistics.segments_recycled > 0, "{statistics:?}");
    println!("{hits} hits, {misses} misses, {statistics:?}");

    let tail = log.tail_lsn();
    drop(log);
    let mut opening = LogOpening::new(directory, &options, Lsn(tail.0 - 90_000)..tail).unwrap();
    while let Some(buffer) = opening.next_buffer().unwrap() {
        buffer.view().records().for_each(|(_, record)| {
            check(&record);
        });
    }
    assert_eq!(opening.finish(epochs).unwrap().1.tail(), tail);
}
