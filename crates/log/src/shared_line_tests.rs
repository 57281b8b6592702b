//! What an append stores to lines that all threads write, counted: the figures of `docs/design/scaling.md`.

use crate::counted::stored;
use crate::{Log, LogOptions, Record};
use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use std::collections::BTreeSet;
use std::sync::Arc;

const LINE_BYTES: usize = 64;

fn log() -> Log {
    let directory = Arc::new(MemoryDirectory::new());
    let (log, _) =
        Log::open(directory, &LogOptions::default(), Epochs::new(), Lsn(0)..Lsn(0)).expect("a new log");
    // The first append opens a buffer.
    log.append(&Record::Abort { transaction: TransactionId(1) }).expect("room");
    log
}

fn lines(stores: &[usize]) -> BTreeSet<usize> {
    stores.iter().map(|address| address / LINE_BYTES).collect()
}

#[test]
fn an_append_writes_one_shared_line_twice_and_a_commit_thrice() {
    let log = log();
    let record =
        |value| Record::Upsert { transaction: TransactionId(7), table: TableId(1), key: b"key", value };
    let (_, update) = stored(|| log.append(&record(&[7; 100])).expect("room"));
    let (_, commit) = stored(|| log.reserve_commit().expect("room").fill(TransactionId(7), Timestamp(7), 0));
    let (_, cancelled) = stored(|| log.reserve_commit().expect("room").cancel());
    assert_eq!(
        (update.len(), commit.len(), cancelled.len()),
        (2, 3, 2),
        "reserve, leave; and the chain of commits"
    );
    let (_, with_updates) = stored(|| {
        let update = record(&[7; 100]);
        let mut commit = log.reserve_commit_behind(3 * update.encoded_bytes()).expect("room");
        for _ in 0..3 {
            commit.append(&update);
        }
        commit.fill(TransactionId(7), Timestamp(7), 0)
    });
    assert_eq!(with_updates.len(), 3, "however many are logged with it");
    let all = [update, commit, cancelled, with_updates].concat();
    assert_eq!(lines(&all).len(), 1, "all of them to the descriptor of the open buffer");
}

#[test]
fn asking_for_a_flush_stores_only_what_nobody_has_asked_for() {
    let log = log();
    let tail = log.tail_lsn();
    let (_, first) = stored(|| log.request_flush(tail));
    let (_, again) = stored(|| log.request_flush(tail));
    assert_eq!((first.len(), again.len()), (1, 0));
}
