//! What the log says of itself: the longest records, the ends of what is flushed on request and of what is prepared ahead, its figures.
#![cfg(not(loom))]

mod harness;

use deuteron_contract::{Lsn, TransactionId};
use deuteron_device::MemoryDirectory;
use deuteron_log::{AppendError, LogOptions, Record};
use harness::{Owned, Pair, upsert};
use std::sync::Arc;

fn pair() -> Pair {
    Pair::create(Arc::new(MemoryDirectory::new()), LogOptions::tiny_for_tests()).unwrap()
}

/// Until nothing is left to do.
fn quiet() -> Pair {
    let mut pair = pair();
    pair.flush_all().unwrap();
    pair
}

#[test]
fn more_than_was_reserved_before_a_commit_record_is_refused_and_the_log_goes_on() {
    let mut pair = pair();
    let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut commit = pair.log.reserve_commit_behind(16).unwrap();
        commit.append(&upsert(1, 100).record())
    }));
    assert!(written.is_err());
    let limit = pair.log.record_bytes_max();
    let refused = pair.log.reserve_commit_behind(limit).err();
    assert!(matches!(refused, Some(AppendError::TooLarge { found, .. }) if found > limit), "{refused:?}");
    pair.commit_behind(vec![upsert(2, 100)], 0, Some(2)).unwrap();
    pair.flush_all().unwrap();
}

#[test]
fn the_longest_value_under_a_key_is_taken_and_a_longer_one_is_refused() {
    for key_bytes in [1, 8, 100] {
        let mut pair = pair();
        let longest = pair.log.value_bytes_max(key_bytes);
        assert_eq!(longest, pair.options.value_bytes_max(key_bytes));
        let value = |bytes| Owned::Upsert(1, vec![7; key_bytes], vec![7; bytes]);
        let limit = pair.log.record_bytes_max();
        match pair.append(value(longest + 1)) {
            Err(AppendError::TooLarge { found, limit: told }) => assert!(found > limit && told == limit),
            other => panic!("{other:?}"),
        }
        pair.append(value(longest)).unwrap();
        pair.flush_all().unwrap();
    }
    assert_eq!(pair().log.value_bytes_max(1 << 20), 0);
}

#[test]
fn four_pieces_fill_a_buffer() {
    let log = pair().log;
    let bytes = vec![7; log.piece_bytes()];
    let piece = Record::Piece { transaction: TransactionId(1), before: Lsn(0), bytes: &bytes };
    let before = log.tail_lsn().0;
    (0..4).for_each(|_| _ = log.append(&piece).unwrap());
    let taken = (log.tail_lsn().0 - before) as usize;
    let limit = log.record_bytes_max();
    assert!((limit - 4 * 8..=limit + 64).contains(&taken), "{taken} of {limit}");
    assert_eq!(log.statistics().sealed_full, 0, "all in one");
}

#[test]
fn a_flush_is_of_what_somebody_asked_for() {
    let mut pair = quiet();
    let stable = pair.log.stable_lsn();
    let first = pair.append(upsert(1, 10)).unwrap();
    for upto in [Lsn(0), stable] {
        pair.log.request_flush(upto);
        assert!(!pair.flush_step().unwrap(), "all of that is stable");
    }
    pair.log.request_flush(Lsn(first.0 + 1));
    // Less is wanted already.
    pair.log.request_flush(Lsn(1));
    assert!(pair.flush_step().unwrap());
    assert!(pair.log.stable_lsn() > first);
    let statistics = pair.log.statistics();
    assert_eq!((statistics.flushes, statistics.sealed_on_request), (1, 1));
    assert_eq!(statistics.bytes_written, 4096);
    // An empty buffer is not flushed, whoever asks.
    pair.log.request_flush(Lsn(u64::MAX));
    assert!(!pair.flush_step().unwrap());
}

#[test]
fn the_next_segment_is_prepared_once_more_than_half_of_the_last_is_used() {
    let mut pair = quiet();
    let bytes = pair.options.segment_bytes;
    for number in 0..40 {
        pair.append(upsert(number, 10)).unwrap();
        pair.flush_all().unwrap();
        while pair.proxy_step(true) {}
        let position = pair.log.stable_lsn().0;
        let expected = match position % bytes {
            // The one that begins here.
            0 => position / bytes + 1,
            used => position / bytes + 1 + u64::from(used > bytes / 2),
        };
        let statistics = pair.log.statistics();
        assert_eq!((statistics.segments_created, statistics.segments_recycled), (expected, 0), "{position}");
    }
}

#[test]
fn what_was_appended_is_counted_from_the_opening() {
    let directory = Arc::new(MemoryDirectory::new());
    let mut pair = Pair::create(directory.clone(), LogOptions::tiny_for_tests()).unwrap();
    (0..10).for_each(|number| _ = pair.append(upsert(number, 100)).unwrap());
    pair.flush_all().unwrap();
    let Pair { log, options, model, acknowledged, .. } = pair;
    drop(log);
    let mut pair = Pair::open(directory, options, model, acknowledged, Lsn(0)).unwrap();
    assert_eq!(pair.log.statistics().appended_bytes, 0);
    let before = pair.log.tail_lsn().0;
    pair.append(upsert(10, 100)).unwrap();
    let statistics = pair.log.statistics();
    assert_eq!(statistics.appended_bytes, pair.log.tail_lsn().0 - before);
    assert!((100..200).contains(&statistics.appended_bytes), "{}", statistics.appended_bytes);
    assert!(!statistics.is_space_low);
}

#[test]
fn a_new_segment_is_filled_ahead_of_small_buffers_and_no_other_is() {
    let mut pair = quiet();
    let bytes = pair.options.segment_bytes;
    let mut number = 0;
    let mut append = |pair: &mut Pair, bytes| {
        pair.append(upsert(number, bytes)).unwrap();
        pair.flush_all().unwrap();
        while pair.proxy_step(true) {}
        number += 1;
    };
    // What is left of a segment is filled once its first buffer has been written.
    while pair.log.stable_lsn().0 < 4 * bytes {
        append(&mut pair, 10);
        let (begun, first) = (pair.log.stable_lsn().0.div_ceil(bytes), 4096);
        assert_eq!(pair.log.statistics().bytes_filled, begun * (bytes - first));
    }
    // Those that were others before hold what they held.
    while pair.log.statistics().segments_recycled < 3 {
        append(&mut pair, 10);
        pair.log.truncate(pair.released).unwrap();
    }
    while !(pair.log.stable_lsn().0 + 4096).is_multiple_of(bytes) {
        append(&mut pair, 10);
    }
    let filled = pair.log.statistics().bytes_filled;
    for _ in 0..bytes / 4096 {
        append(&mut pair, 10);
    }
    assert_eq!(pair.log.statistics().bytes_filled, filled);
}

#[test]
fn large_buffers_are_written_once() {
    let options = LogOptions {
        ring_bytes: 4 << 20,
        buffer_bytes_max: 1 << 20,
        segment_bytes: 4 << 20,
        ..LogOptions::tiny_for_tests()
    };
    let mut pair = Pair::create(Arc::new(MemoryDirectory::new()), options).unwrap();
    for (number, bytes, filled) in [(1, 200 << 10, 0), (2, 10, 256 << 10), (3, 300 << 10, 256 << 10)] {
        pair.append(upsert(number, bytes)).unwrap();
        pair.flush_all().unwrap();
        assert_eq!(pair.log.statistics().bytes_filled, filled, "{bytes}");
    }
    pair.append(upsert(4, 10)).unwrap();
    pair.flush_all().unwrap();
    assert_eq!(pair.log.statistics().bytes_filled, 512 << 10, "behind the large one");
}
