//! One property of the passes a test.

mod support;

use deuteron_contract::{DcError, Lsn, MemoryDc, Timestamp};
use deuteron_proxy::{Options, Pending, Proxy, ProxyError};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use support::*;

struct Setup {
    log: MemoryLog,
    dc: Arc<FlakyDc>,
    host: Arc<Host>,
    proxy: Proxy,
}

fn setup(options: Options, host: Arc<Host>) -> Setup {
    let dc = FlakyDc::new(MemoryDc::new(), 1, 0);
    let proxy = Proxy::new(dc.clone(), host.clone(), options, Lsn(0));
    Setup { log: MemoryLog::default(), dc, host, proxy }
}

impl Setup {
    fn run(&self) {
        while self.proxy.step(&self.log).unwrap() {}
    }
}

#[test]
fn committed_operations_are_posted_with_the_final_timestamp() {
    let mut setup = setup(Options::default(), Host::new(100, false));
    setup.log.write(vec![
        put(5, "a", "1"),
        put(6, "b", "2"),
        commit(5, 9),
        put(7, "c", "3"),
        abort(6),
        commit(7, 7),
    ]);
    setup.run();
    assert_eq!(setup.dc.value("a"), Some(("1".into(), 9)));
    assert_eq!(setup.dc.value("b"), None);
    assert_eq!(setup.dc.value("c"), Some(("3".into(), 7)));
    assert_eq!(setup.log.released(), Lsn(setup.log.buffers[0].end));
    assert_eq!(setup.proxy.redo_scan_start_point(), setup.log.released());
    let statistics = setup.proxy.statistics();
    assert_eq!((statistics.outcomes, statistics.undecided_transactions), (0, 0), "{statistics:?}");
    assert_eq!(statistics.operations_undecided, 1, "only the aborted transaction's operation is copied");
}

#[test]
fn operations_wait_in_the_side_buffer_for_a_commit_record_many_buffers_later() {
    let mut setup = setup(Options { lag_bytes: 0, ..Options::default() }, Host::new(100, false));
    let first = setup.log.write(vec![put(5, "long", "1")])[0];
    setup.run();
    for n in 0..10 {
        setup.log.write(vec![put(10 + n, "short", "x"), commit(10 + n, 10 + n), put(5, "long", "2")]);
        setup.run();
        assert_eq!(setup.dc.value("short").unwrap().1, 10 + n);
        assert_eq!(setup.dc.value("long"), None);
        assert_eq!(setup.proxy.redo_scan_start_point(), first);
    }
    setup.log.write(vec![commit(5, 5)]);
    setup.run();
    assert_eq!(setup.dc.value("long"), Some(("2".into(), 5)));
    assert_eq!(setup.proxy.redo_scan_start_point(), Lsn(setup.log.buffers.last().unwrap().end));
}

#[test]
fn a_long_transaction_holds_back_neither_progress_nor_the_release_of_buffers() {
    let mut setup = setup(Options::tiny_for_tests(), Host::new(1000, false));
    setup.log.write(vec![put(1, "long", "1")]);
    for n in 10..40 {
        setup.log.write(vec![put(n, "k", "x"), put(1, "long", "another"), commit(n, n)]);
        setup.run();
        let (end, progress) = (Lsn(setup.log.buffers.last().unwrap().end), setup.host.last_progress());
        assert_eq!((progress.o_lsn, progress.t_lsn, progress.posted), (end, end, Timestamp(1000)));
        assert_eq!(setup.log.released(), end);
    }
}

#[test]
fn a_transaction_too_large_for_the_side_buffer_is_read_back_from_the_log() {
    let options = Options::tiny_for_tests();
    let mut setup = setup(options.clone(), Host::new(1000, false));
    let value = "v".repeat(100);
    let keys: Vec<String> = (0..50).map(|n| format!("key{n}")).collect();
    for key in &keys {
        setup.log.write(vec![put(1, key, &value)]);
        setup.run();
        let bytes = setup.proxy.statistics().side_buffer_bytes as usize;
        // The LSNs, in room that grows, and what each transaction takes besides.
        assert!(
            bytes <= options.side_buffer_bytes_max + keys.len() * 16 + 1000,
            "{bytes} bytes in the side buffer"
        );
    }
    assert_eq!(setup.log.read_backs.load(SeqCst), 0);
    setup.log.write(vec![commit(1, 7)]);
    setup.run();
    assert_eq!(setup.log.read_backs.load(SeqCst), 50);
    assert!(keys.iter().all(|key| setup.dc.value(key) == Some((value.clone(), 7))));
}

#[test]
fn a_value_in_pieces_is_one_operation_and_holds_the_log_from_its_first_piece_on() {
    let mut setup = setup(Options { lag_bytes: 0, ..Options::default() }, Host::new(100, false));
    let first = setup.log.write(vec![piece(5, "one "), put(6, "b", "2"), commit(6, 6)])[0];
    setup.run();
    setup.log.write(vec![piece(7, "void"), piece(5, "two "), piece(5, "three"), abort(7)]);
    setup.run();
    assert_eq!(setup.proxy.redo_scan_start_point(), first);
    setup.log.write(vec![large(5, "a", "one two three"), put(5, "c", "3")]);
    setup.run();
    assert_eq!((setup.proxy.redo_scan_start_point(), setup.dc.value("a")), (first, None));
    setup.log.write(vec![commit(5, 9)]);
    setup.run();
    assert_eq!(setup.proxy.redo_scan_start_point(), setup.log.released());
    assert_eq!(setup.dc.value("a"), Some(("one two three".into(), 9)));
    assert_eq!(setup.dc.value("c"), Some(("3".into(), 9)));
    // The eager pass knows of the commit before the delayed pass meets the pieces.
    let pieces =
        vec![piece(10, "half "), piece(10, "and half"), large(10, "d", "half and half"), commit(10, 10)];
    setup.log.write(pieces);
    setup.run();
    assert_eq!(setup.dc.value("d"), Some(("half and half".into(), 10)));
}

#[test]
fn versions_at_or_above_the_horizon_wait_for_it() {
    let mut setup = setup(Options::default(), Host::new(10, false));
    let lsns = setup.log.write(vec![put(5, "a", "old"), commit(5, 5), put(8, "a", "new"), commit(8, 10)]);
    setup.run();
    assert_eq!(setup.dc.value("a"), Some(("old".into(), 5)), "a reader at 10 still needs it");
    let progress = setup.host.last_progress();
    assert!(progress.covers(lsns[0], lsns[1], Timestamp(5)));
    assert!(!progress.covers(lsns[2], lsns[3], Timestamp(10)));
    assert_eq!(setup.proxy.redo_scan_start_point(), lsns[2]);
    assert!(setup.log.released() > lsns[3], "the waiting operation has been copied");

    setup.host.horizon.store(11, SeqCst);
    assert!(setup.proxy.step(&setup.log).unwrap());
    assert_eq!(setup.dc.value("a"), Some(("new".into(), 10)));
    assert!(setup.host.last_progress().covers(lsns[2], lsns[3], Timestamp(10)));
    assert_eq!(setup.proxy.redo_scan_start_point(), setup.log.released());
    assert!(!setup.proxy.step(&setup.log).unwrap());
}

#[test]
fn a_side_buffered_transaction_that_commits_above_the_horizon_waits() {
    let mut setup = setup(Options::tiny_for_tests(), Host::new(10, false));
    setup.log.write(vec![put(9, "a", "1")]);
    setup.run();
    setup.log.write(vec![put(9, "b", "2"), commit(9, 20)]);
    setup.run();
    assert_eq!((setup.dc.value("a"), setup.dc.value("b")), (None, None));
    setup.host.horizon.store(21, SeqCst);
    setup.run();
    assert_eq!((setup.dc.value("a").unwrap().1, setup.dc.value("b").unwrap().1), (20, 20));
}

#[test]
fn a_full_waiting_list_asks_for_the_horizon_and_stops_the_delayed_pass() {
    let options = Options::tiny_for_tests();
    let mut setup = setup(options.clone(), Host::new(1, false));
    for n in 10..200 {
        setup.log.write(vec![put(n, &format!("key{n}"), "some value"), commit(n, n)]);
    }
    setup.run();
    assert!(!setup.host.forced.lock().unwrap().is_empty());
    let bytes = setup.proxy.statistics().waiting_list_bytes as usize;
    assert!(bytes <= options.waiting_list_bytes_max + 100, "{bytes} bytes waiting");
    assert!(setup.log.released() < Lsn(setup.log.buffers[30].end));
    // The eager pass went on: what it costs is in the log's memory anyhow.
    assert_eq!(setup.host.last_progress().t_lsn, Lsn(setup.log.buffers.last().unwrap().end));
    assert_eq!(setup.dc.applied.load(SeqCst), 0);

    // The reader that held it back has been told to go.
    let forced = setup.host.forced.lock().unwrap()[0];
    setup.host.horizon.store(forced.0, SeqCst);
    setup.run();
    assert!(setup.dc.value("key10").is_some());
    setup.host.horizon.store(1000, SeqCst);
    setup.run();
    assert_eq!(setup.dc.applied.load(SeqCst), 190);
}

#[test]
fn an_obedient_host_keeps_the_log_moving_past_a_stuck_reader() {
    let mut setup = setup(Options::tiny_for_tests(), Host::new(1, true));
    for n in 10..200 {
        setup.log.write(vec![put(n, &format!("key{n}"), "some value"), commit(n, n)]);
    }
    for _ in 0..2000 {
        setup.proxy.step(&setup.log).unwrap();
    }
    assert_eq!(setup.log.released(), Lsn(setup.log.buffers.last().unwrap().end));
}

#[test]
fn a_stuck_reader_pins_no_more_log_than_it_may_whatever_the_list_takes() {
    let (waiting_list_bytes_max, waiting_log_bytes_max) = (usize::MAX, 2000);
    let options = Options { waiting_list_bytes_max, waiting_log_bytes_max, ..Options::tiny_for_tests() };
    let mut setup = setup(options, Host::new(1, true));
    for n in 10..200 {
        setup.log.write(vec![put(n, &format!("key{n}"), "some value"), commit(n, n)]);
        for _ in 0..10 {
            setup.proxy.step(&setup.log).unwrap();
        }
        let end = setup.log.buffers.last().unwrap().end;
        let pinned = end - setup.proxy.redo_scan_start_point().0;
        assert!(pinned <= waiting_log_bytes_max + 1000, "{pinned} bytes of log are pinned");
    }
    let forced = setup.host.forced.lock().unwrap();
    assert!((2..100).contains(&forced.len()), "not for each transaction: {}", forced.len());
}

#[test]
fn a_failed_apply_releases_nothing_and_is_repeated() {
    let mut setup = setup(Options::tiny_for_tests(), Host::new(10, false));
    let entries =
        vec![put(1, "undecided", "1"), put(2, "a", "2"), put(3, "waits", "3"), commit(2, 2), commit(3, 30)];
    setup.log.write(entries);
    setup.dc.percent.store(100, SeqCst);
    setup.proxy.step(&setup.log).unwrap();
    for _ in 0..3 {
        let error = setup.proxy.step(&setup.log).unwrap_err();
        assert!(error.is_retryable());
        assert!(matches!(error, ProxyError::Apply { source: DcError::Device { .. }, .. }));
        assert_eq!(setup.log.released(), Lsn(0));
        assert_eq!(setup.proxy.redo_scan_start_point(), Lsn(0));
        assert_eq!(setup.host.last_progress().o_lsn, Lsn(0));
        let statistics = setup.proxy.statistics();
        assert_eq!((statistics.operations_undecided, statistics.operations_waited), (1, 1), "held once");
    }
    setup.dc.percent.store(0, SeqCst);
    setup.run();
    assert_eq!(setup.dc.value("a").unwrap().1, 2);
    setup.log.write(vec![commit(1, 40)]);
    setup.host.horizon.store(50, SeqCst);
    setup.run();
    assert_eq!((setup.dc.value("undecided").unwrap().1, setup.dc.value("waits").unwrap().1), (40, 30));
    assert_eq!(setup.proxy.redo_scan_start_point(), setup.log.released());
}

#[test]
fn the_delayed_pass_lags_while_there_is_more_to_scan() {
    let mut setup = setup(Options { lag_bytes: 1000, ..Options::default() }, Host::new(1000, false));
    for n in 1..20 {
        setup.log.write(vec![put(n, "k", "v"), commit(n, n)]);
    }
    setup.proxy.step(&setup.log).unwrap();
    assert_eq!(setup.log.released(), Lsn(0));
    while setup.host.last_progress().t_lsn < Lsn(setup.log.buffers[18].end) {
        setup.proxy.step(&setup.log).unwrap();
        let progress = setup.host.last_progress();
        assert!(progress.t_lsn.0 - progress.o_lsn.0 <= 1000 + 2 * 256);
    }
    setup.run();
    assert_eq!(setup.log.released(), Lsn(setup.log.buffers[18].end));
}

#[test]
fn a_proxy_posts_nothing_below_its_start() {
    // Below the redo scan start point a tombstone may be gone already.
    let mut setup = setup(Options::default(), Host::new(100, false));
    let lsns = setup.log.write(vec![put(1, "below", "1"), put(1, "above", "2"), commit(1, 1)]);
    let proxy = Proxy::new(setup.dc.clone(), setup.host.clone(), Options::default(), lsns[1]);
    let mut pending = proxy.replay(&mut Pending::default(), &setup.log.buffers[..1], &setup.log).unwrap();
    proxy.replay(&mut pending, &setup.log.buffers[..0], &setup.log).unwrap();
    proxy.finish_replay(setup.log.tail()).unwrap();
    assert_eq!(setup.dc.value("below"), None);
    assert!(setup.dc.value("above").is_some());
}

/// It has been posted by then, and may be lost with all that lies above the start.
#[test]
fn a_recovery_does_not_start_among_the_pieces_of_a_value() {
    let mut setup = setup(Options { lag_bytes: 0, ..Options::default() }, Host::new(100, false));
    let lsns = setup.log.write(vec![
        piece(4, "f"),
        piece(5, "one "),
        large(4, "d", "f"),
        put(6, "b", "undecided"),
        commit(4, 4),
        piece(5, "two "),
        piece(5, "three"),
        large(5, "a", "one two three"),
        piece(5, "an"),
        piece(5, "other"),
        large(5, "c", "another"),
        commit(5, 5),
    ]);
    setup.run();
    assert_eq!(setup.dc.value("a"), Some(("one two three".into(), 5)));
    // What is undecided lies within one value, and the beginning of that within another.
    let start = setup.proxy.redo_scan_start_point();
    assert_eq!(start, lsns[0]);
    setup.log.write(vec![put(7, "e", "1"), commit(7, 7)]);
    setup.run();
    assert_eq!(setup.proxy.redo_scan_start_point(), start);
    let dc = FlakyDc::new(MemoryDc::new(), 1, 0);
    let again = Proxy::new(dc.clone(), Host::new(0, false), Options::default(), start);
    let mut pending = Pending::default();
    let mut rest = again.replay(&mut pending, &setup.log.buffers, &setup.log).unwrap();
    again.replay(&mut rest, &setup.log.buffers[..0], &setup.log).unwrap();
    again.finish_replay(setup.log.tail()).unwrap();
    for (key, value, at) in [("a", "one two three", 5), ("c", "another", 5), ("d", "f", 4), ("e", "1", 7)] {
        assert_eq!(dc.value(key), Some((value.into(), at)));
    }
    assert_eq!(dc.value("b"), None);
    // With the end of that one nothing holds the start any more.
    setup.log.write(vec![abort(6)]);
    setup.run();
    assert_eq!(setup.proxy.redo_scan_start_point(), setup.log.released());
}
