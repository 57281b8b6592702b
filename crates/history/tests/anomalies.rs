//! Every anomaly in a history written by hand, and beside it a history that comes near and has none.

mod support;

use deuteron_history::Level::{self, ReadCommitted, Serializable, Snapshot, StrictSerializable};
use support::{T, names, report, t};

const ALL: [Level; 4] = [ReadCommitted, Snapshot, Serializable, StrictSerializable];

/// The history has just this at the levels from `from` on, and nothing at those below.
#[track_caller]
fn has(name: &str, from: Level, history: &[T]) {
    for level in ALL {
        let found = names(level, history);
        if level < from {
            assert!(found.is_empty(), "{level}: {found:?}");
        } else {
            assert_eq!(found, [name], "{level}: {:#?}", report(level, history).anomalies);
        }
    }
}

#[track_caller]
fn is_fine(history: &[T]) {
    for level in ALL {
        let report = report(level, history);
        assert!(report.anomalies.is_empty(), "{level}: {:#?}", report.anomalies);
    }
}

#[test]
fn write_cycles_are_g0() {
    let writers = |second: &[u64]| {
        [t(1, 9).a("x", 1).a("y", 1), t(1, 9).a("x", 2).a("y", 2), t(10, 11).l("x", &[1, 2]).l("y", second)]
    };
    has("G0", ReadCommitted, &writers(&[2, 1]));
    is_fine(&writers(&[1, 2]));
}

#[test]
fn aborted_reads_are_g1a() {
    has("G1a", ReadCommitted, &[t(1, 9).w("x", 1).aborted(), t(1, 9).r("x", 1)]);
    has("G1a", ReadCommitted, &[t(1, 9).a("x", 1).aborted(), t(1, 9).l("x", &[1])]);
    is_fine(&[t(1, 9).w("x", 1).aborted(), t(1, 9).n("x")]);
    is_fine(&[t(1, 9).w("x", 1), t(1, 9).r("x", 1).aborted()]);
}

#[test]
fn intermediate_reads_are_g1b() {
    has("G1b", ReadCommitted, &[t(1, 9).w("x", 1).w("x", 2), t(1, 9).r("x", 1)]);
    is_fine(&[t(1, 9).w("x", 1).w("x", 2), t(1, 9).r("x", 2)]);
    has("G1b", ReadCommitted, &[t(1, 9).a("x", 1).a("x", 2), t(1, 9).l("x", &[1])]);
    is_fine(&[t(1, 9).a("x", 1).a("x", 2), t(1, 9).l("x", &[1, 2])]);
}

#[test]
fn circular_information_flow_is_g1c() {
    has("G1c", ReadCommitted, &[t(1, 9).w("x", 1).r("y", 2), t(1, 9).w("y", 2).r("x", 1)]);
    is_fine(&[t(1, 9).w("x", 1).n("y"), t(1, 9).w("y", 2).r("x", 1)]);
}

#[test]
fn two_changes_of_one_version_are_a_lost_update() {
    has("lost-update", Snapshot, &[t(1, 9).n("x").w("x", 1), t(1, 9).n("x").w("x", 2)]);
    is_fine(&[t(1, 9).n("x").w("x", 1), t(1, 9).r("x", 1).w("x", 2)]);
    has(
        "lost-update",
        Snapshot,
        &[t(1, 9).l("x", &[]).a("x", 1), t(1, 9).l("x", &[]).a("x", 2), t(10, 11).l("x", &[1, 2])],
    );
    is_fine(&[t(1, 9).l("x", &[]).a("x", 1), t(1, 9).l("x", &[1]).a("x", 2), t(10, 11).l("x", &[1, 2])]);
}

#[test]
fn read_skew_is_g_single() {
    has("G-single", Snapshot, &[t(1, 9).w("x", 1).w("y", 1), t(1, 9).n("x").r("y", 1)]);
    is_fine(&[t(1, 9).w("x", 1).w("y", 1), t(1, 9).r("x", 1).r("y", 1)]);
    // Two reads of one key.
    has("G-single", Snapshot, &[t(1, 9).w("x", 1), t(1, 9).n("x").r("x", 1)]);
    // By a range.
    has("G-single", Snapshot, &[t(1, 9).w("x", 1).w("y", 1), t(1, 9).g("a", "y", &[]).r("y", 1)]);
}

#[test]
fn a_long_fork_is_nonadjacent() {
    let fork = |third: T| [t(1, 9).w("x", 1), t(1, 9).w("y", 1), t(1, 9).r("x", 1).n("y"), third];
    has("G-nonadjacent", Snapshot, &fork(t(1, 9).n("x").r("y", 1)));
    is_fine(&fork(t(1, 9).r("x", 1).r("y", 1)));
}

#[test]
fn write_skew_is_g2_item() {
    has("G2-item", Serializable, &[t(1, 9).n("x").n("y").w("x", 1), t(1, 9).n("x").n("y").w("y", 1)]);
    is_fine(&[t(1, 9).n("x").n("y").w("x", 1), t(1, 9).r("x", 1).n("y").w("y", 1)]);
    has(
        "G2-item",
        Serializable,
        &[t(1, 9).l("x", &[]).a("y", 1), t(1, 9).l("y", &[]).a("x", 1), t(10, 11).l("x", &[1]).l("y", &[1])],
    );
}

#[test]
fn phantoms_are_g2() {
    has("G2", Serializable, &[t(1, 9).g("a", "c", &[]).w("a1", 1), t(1, 9).g("a", "c", &[]).w("b1", 2)]);
    is_fine(&[t(1, 9).g("a", "c", &[]).w("a1", 1), t(1, 9).g("a", "c", &[("a1", 1)]).w("b1", 2)]);
    // Outside of each other's range.
    is_fine(&[t(1, 9).g("a", "b", &[]).w("c1", 1), t(1, 9).g("a", "b", &[]).w("b1", 2)]);
}

#[test]
fn stale_reads_violate_real_time_only() {
    has("G-single-realtime", StrictSerializable, &[t(1, 2).w("x", 1), t(3, 4).n("x")]);
    is_fine(&[t(1, 3).w("x", 1), t(3, 4).n("x")]);
    has("G-single-realtime", StrictSerializable, &[t(1, 2).a("x", 1), t(3, 4).l("x", &[])]);
    // The order of two writes that nobody made of each other is known by time only.
    has("G-single-realtime", StrictSerializable, &[t(1, 2).w("x", 1), t(3, 4).w("x", 2), t(5, 6).r("x", 1)]);
    is_fine(&[t(1, 3).w("x", 1), t(3, 4).w("x", 2), t(5, 6).r("x", 1)]);
    // An append that vanished.
    let vanished = [t(1, 2).a("x", 1), t(3, 4).a("x", 2), t(5, 6).l("x", &[2])];
    assert_eq!(names(StrictSerializable, &vanished), ["G-single-realtime", "G0-realtime"]);
    assert!(names(Serializable, &vanished).is_empty());
}

#[test]
fn reading_the_future_violates_real_time() {
    has("G1c-realtime", StrictSerializable, &[t(1, 2).r("x", 1), t(3, 4).w("x", 1)]);
    has("G0-realtime", StrictSerializable, &[t(1, 2).a("x", 1), t(3, 4).a("x", 2), t(1, 9).l("x", &[2, 1])]);
    is_fine(&[t(1, 3).a("x", 1), t(3, 4).a("x", 2), t(1, 9).l("x", &[2, 1])]);
}

#[test]
fn versions_that_come_and_go_are_found_by_time() {
    // 1, then 2, then 1 again.
    let history = [t(1, 2).w("x", 1), t(1, 9).w("x", 2), t(3, 4).r("x", 2), t(5, 6).r("x", 1)];
    let found = names(StrictSerializable, &history);
    assert!(!found.is_empty() && found.iter().all(|name| name.ends_with("-realtime")), "{found:?}");
    is_fine(&[t(1, 2).w("x", 1), t(1, 9).w("x", 2), t(3, 4).r("x", 1), t(5, 6).r("x", 2)]);
}

#[test]
fn many_blind_writes_are_ordered_by_time() {
    let mut history: Vec<T> = (1..200).map(|n| t(10 * n, 10 * n + 5).w("x", n)).collect();
    history.push(t(5000, 5001).r("x", 199));
    is_fine(&history);
    // At 1003 it is 100 or 99, and nothing else.
    for (value, is_stale) in [(98, true), (99, false), (100, false)] {
        let mut history = history.clone();
        history.push(t(1003, 1004).r("x", value));
        let found = names(StrictSerializable, &history);
        assert_eq!(!found.is_empty(), is_stale, "{value}: {found:?}");
    }
    let mut history = history.clone();
    history.push(t(1003, 1004).r("x", 101));
    assert_eq!(names(StrictSerializable, &history), ["G1c-realtime"]);
}

#[test]
fn damage_and_own_writes() {
    has("garbage-read", ReadCommitted, &[t(1, 9).r("x", 7)]);
    has("garbage-read", ReadCommitted, &[t(1, 9).l("x", &[7]), t(1, 9).a("x", 8)]);
    has("duplicate-element", ReadCommitted, &[t(1, 2).a("x", 7), t(3, 4).l("x", &[7, 7])]);
    let orders = [t(1, 9).a("x", 1), t(1, 9).a("x", 2), t(10, 11).l("x", &[1, 2]), t(10, 11).l("x", &[2])];
    assert!(names(ReadCommitted, &orders).contains(&"incompatible-order".to_owned()));
    has("internal", ReadCommitted, &[t(1, 9).w("x", 7).n("x")]);
    has("internal", ReadCommitted, &[t(1, 9).a("x", 7).l("x", &[])]);
    has("internal", ReadCommitted, &[t(1, 9).w("b", 7).g("a", "c", &[])]);
    is_fine(&[t(1, 9).w("b", 7).g("a", "c", &[("b", 7)]).d("b").g("a", "c", &[]).n("b")]);
    is_fine(&[t(1, 9).a("x", 7).l("x", &[7]).a("x", 8).l("x", &[7, 8])]);
}

#[test]
fn deleted_records_are_told_apart_by_time() {
    is_fine(&[t(1, 2).w("x", 1), t(3, 4).d("x"), t(5, 6).n("x")]);
    is_fine(&[t(1, 9).w("x", 1), t(3, 4).d("x"), t(5, 6).n("x"), t(5, 6).r("x", 1)]);
    // It was there all the time.
    has("G-single-realtime", StrictSerializable, &[t(1, 2).w("x", 1), t(3, 4).n("x"), t(5, 6).d("x")]);
    // It had been written again.
    has(
        "G-single-realtime",
        StrictSerializable,
        &[t(1, 2).w("x", 1), t(3, 4).d("x"), t(5, 6).w("x", 2), t(7, 8).n("x")],
    );
    // A deletion of unknown outcome may have happened.
    is_fine(&[t(1, 2).w("x", 1), t(3, 4).d("x").unknown(), t(5, 6).n("x")]);
}

#[test]
fn what_nobody_knows_happened_if_it_was_seen() {
    // Not seen, it may be left out, and happen at any time.
    is_fine(&[t(1, 2).w("x", 1).unknown(), t(3, 4).n("x")]);
    is_fine(&[t(1, 2).w("x", 1).unknown(), t(3, 4).n("x"), t(5, 6).r("x", 1)]);
    // Seen once, it does not go away.
    let gone = [t(1, 2).w("x", 1).unknown(), t(3, 4).r("x", 1), t(5, 6).n("x")];
    has("G-single-realtime", StrictSerializable, &gone);
    // What it saw was there, if it happened.
    let chain = |last: T| [t(1, 2).w("x", 1).unknown(), t(1, 2).r("x", 1).w("y", 1).unknown(), last];
    has("G-single", Snapshot, &chain(t(3, 4).r("y", 1).n("x")));
    is_fine(&chain(t(3, 4).n("y").n("x")));
    let report = report(StrictSerializable, &chain(t(3, 4).r("y", 1).r("x", 1)));
    assert_eq!((report.unknown, report.unknown_happened, report.anomalies.len()), (2, 2, 0));
    is_fine(&[t(1, 2).a("x", 1).unknown(), t(1, 2).l("x", &[1]).a("x", 2).unknown(), t(3, 4).l("x", &[])]);
    has(
        "G-single",
        Snapshot,
        &[
            t(1, 2).a("x", 1).w("y", 1).unknown(),
            t(1, 2).l("x", &[1]).a("z", 2).unknown(),
            t(3, 4).l("z", &[2]).n("y").l("x", &[1]),
        ],
    );
}

#[test]
fn keys_that_say_nothing_are_counted_and_left_out() {
    let mut mixed = t(1, 9).w("x", 1).a("x", 2);
    mixed.0.operations.push(deuteron_history::Operation::Change("y".into()));
    let report = report(StrictSerializable, &[mixed, t(10, 11).n("x").r("y", 5)]);
    assert_eq!((report.keys_unchecked, report.anomalies.len()), (2, 0));
}

#[test]
fn a_value_written_twice_says_nothing_but_in_time() {
    is_fine(&[t(1, 9).w("x", 1), t(1, 9).w("x", 1), t(1, 9).r("x", 1)]);
    is_fine(&[t(1, 2).w("x", 1), t(3, 4).w("x", 2), t(5, 6).w("x", 1), t(7, 8).r("x", 1)]);
    let stale = [t(1, 2).w("x", 1), t(3, 4).w("x", 1), t(5, 6).w("x", 2), t(7, 8).r("x", 1)];
    has("G-single-realtime", StrictSerializable, &stale);
}

#[test]
fn a_crowd_of_readers_and_writers_is_still_told_apart() {
    // Many who saw nothing, many who wrote unseen: through a hub. The reader at the end saw one too few.
    let mut history: Vec<T> = (0..100).map(|_| t(1, 9).l("x", &[])).collect();
    history.extend((0..100).map(|element| t(1, 9).a("x", element)));
    is_fine(&history);
    history.push(t(10, 11).l("x", &[]));
    has("G-single-realtime", StrictSerializable, &history);
    // And those who do both.
    let mut both: Vec<T> = (0..100).map(|element| t(1, 9).l("x", &[]).a("x", element)).collect();
    has("lost-update", Snapshot, &both);
    both.truncate(1);
    is_fine(&both);
}

#[test]
fn a_cycle_is_told_in_words_and_is_the_shortest() {
    // A long way round, and a short one.
    let history = [
        t(1, 9).n("x").w("a", 1),
        t(1, 9).r("a", 1).w("b", 1),
        t(1, 9).r("b", 1).w("c", 1),
        t(1, 9).r("c", 1).r("a", 1).w("x", 1).n("y"),
        t(1, 9).w("y", 1).n("a"),
        t(1, 9).r("y", 1).w("z", 1),
        t(1, 9).r("x", 1).n("z").r("y", 1),
        t(1, 9).n("y").r("z", 1),
    ];
    let report = report(Serializable, &history);
    let shortest = report.anomalies.iter().map(|anomaly| anomaly.transactions.len()).min();
    assert_eq!(shortest, Some(3), "{:#?}", report.anomalies);
    let text = report.anomalies[0].to_string();
    assert!(text.contains("T8 read \"y\" = nothing, and T5 wrote 1 after that"), "{text}");
    assert!(text.contains("G-single: read skew"), "{text}");
}
