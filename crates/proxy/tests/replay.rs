//! Replay in rounds, by one thread and by several.

mod support;

use deuteron_contract::{Lsn, MemoryDc};
use deuteron_proxy::{Options, Pending, Proxy, ProxyError, ProxyStatistics};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use support::*;

/// Short, and long with the same beginning; some the beginnings of others.
fn key(number: u64) -> String {
    match number % 4 {
        0 => format!("{:04}", number * 7919 % 501),
        1 => format!("the same beginning {:03}", number % 97),
        2 => "prefix".chars().chain("\0\0\0\0".chars()).take(number as usize % 10 + 1).collect(),
        _ => "z".repeat(number as usize % 11 + 1),
    }
}

/// A log of transactions, some aborted, some never ended, over buffers of so many transactions each.
fn log() -> (MemoryLog, BTreeMap<String, (String, u64)>) {
    let mut log = MemoryLog::default();
    let mut newest: BTreeMap<String, (String, u64)> = BTreeMap::new();
    for first in (1..2000).step_by(50) {
        let mut entries = Vec::new();
        for transaction in first..first + 50 {
            // The order of the log is not that of the timestamps.
            let timestamp = 1 + transaction * 37 % 2003;
            let ours: Vec<_> = (0..3).map(|n| key(transaction * 31 + n * 17)).collect();
            entries.extend(ours.iter().map(|key| put(transaction, key, &transaction.to_string())));
            match transaction % 10 {
                0 => entries.push(abort(transaction)),
                1 => {}
                _ => {
                    entries.push(commit(transaction, timestamp));
                    for key in ours {
                        let newest = newest.entry(key).or_default();
                        if newest.1 < timestamp {
                            *newest = (transaction.to_string(), timestamp);
                        }
                    }
                }
            }
        }
        log.write(entries);
    }
    (log, newest)
}

/// Replays in rounds of so many buffers, trying again after a failure.
fn replay(
    log: &MemoryLog,
    threads: usize,
    buffers: usize,
    fails_percent: u64,
) -> (Arc<FlakyDc>, ProxyStatistics) {
    let (dc, host) = (FlakyDc::new(MemoryDc::new(), 7, fails_percent), Host::new(0, false));
    host.threads.store(threads, SeqCst);
    let proxy = Proxy::new(dc.clone(), host, Options::default(), Lsn(0));
    let mut pending = Pending::default();
    for round in log.buffers.chunks(buffers).chain([&[][..]]) {
        pending = loop {
            if let Ok(pending) = proxy.replay(&mut pending, round, log) {
                break pending;
            }
        };
    }
    proxy.finish_replay(log.tail()).unwrap();
    (dc, proxy.statistics())
}

#[test]
fn the_newest_version_of_each_key_is_left_by_any_number_of_threads_and_rounds() {
    let (log, newest) = log();
    for threads in [1, 2, 5] {
        for (buffers, fails_percent) in [(1, 0), (3, 0), (7, 3), (100, 0)] {
            let (dc, statistics) = replay(&log, threads, buffers, fails_percent);
            for (key, version) in &newest {
                assert_eq!(
                    dc.value(key).as_ref(),
                    Some(version),
                    "{key:?}, {threads} threads, rounds of {buffers}"
                );
            }
            assert_eq!(dc.inner.contents().len(), newest.len());
            assert_eq!((statistics.outcomes, statistics.side_buffer_bytes), (0, 0));
        }
    }
}

#[test]
fn what_the_next_round_supersedes_is_not_posted() {
    let mut log = MemoryLog::default();
    for round in 1..=20 {
        let own = format!("own {round}");
        log.write(vec![put(round, "hot", &round.to_string()), put(round, &own, "x"), commit(round, round)]);
    }
    // Older than what lies before it in the log.
    log.write(vec![put(30, "own 20", "older"), commit(30, 3)]);
    for threads in [1, 3] {
        let (dc, statistics) = replay(&log, threads, 1, 0);
        assert_eq!(dc.value("hot"), Some(("20".into(), 20)));
        assert_eq!(dc.value("own 20"), Some(("x".into(), 20)));
        // The one that is hot once, as each of the others is superseded; all others; the older one, which loses in the data component.
        assert_eq!((statistics.operations_posted, statistics.operations_superseded), (1 + 20 + 1, 19));
    }
}

#[test]
fn redo_starts_where_it_did_until_the_replay_is_finished() {
    let mut log = MemoryLog::default();
    log.write(vec![put(1, "a", "1"), commit(1, 1)]);
    log.write(vec![put(2, "a", "2"), commit(2, 2)]);
    let dc = FlakyDc::new(MemoryDc::new(), 1, 0);
    let proxy = Proxy::new(dc.clone(), Host::new(0, false), Options::default(), Lsn(0));
    let mut first = proxy.replay(&mut Pending::default(), &log.buffers[..1], &log).unwrap();
    let mut second = proxy.replay(&mut first, &log.buffers[1..], &log).unwrap();
    assert_eq!((proxy.redo_scan_start_point(), dc.value("a")), (Lsn(0), None));
    let unfinished = proxy.finish_replay(log.tail()).unwrap_err();
    assert!(
        matches!(unfinished, ProxyError::ReplayIncomplete { after } if after == Lsn(log.buffers[1].start))
    );
    proxy.replay(&mut second, &log.buffers[..0], &log).unwrap();
    assert_eq!((proxy.redo_scan_start_point(), dc.value("a")), (Lsn(0), Some(("2".into(), 2))));
    proxy.finish_replay(log.tail()).unwrap();
    assert_eq!(proxy.redo_scan_start_point(), log.tail());
}

#[test]
fn replay_that_failed_cannot_be_finished_and_can_be_repeated() {
    let mut log = MemoryLog::default();
    log.write(vec![put(1, "a", "1"), commit(1, 1)]);
    let dc = FlakyDc::new(MemoryDc::new(), 1, 100);
    let proxy = Proxy::new(dc.clone(), Host::new(0, false), Options::default(), Lsn(0));
    let mut pending = proxy.replay(&mut Pending::default(), &log.buffers, &log).unwrap();
    assert!(matches!(
        proxy.replay(&mut pending, &log.buffers[..0], &log),
        Err(ProxyError::Apply { operations: 1, .. })
    ));
    let error = proxy.finish_replay(log.tail()).unwrap_err();
    assert!(matches!(error, ProxyError::ReplayIncomplete { .. }));
    dc.percent.store(0, SeqCst);
    proxy.replay(&mut pending, &log.buffers[..0], &log).unwrap();
    proxy.finish_replay(log.tail()).unwrap();
    assert!(dc.value("a").is_some());
}
