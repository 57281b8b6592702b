//! Which lines that others use a transaction writes, counted: the figures of `docs/design/scaling.md`.
//!
//! What is written to the log is counted by a test beside it (`crates/log/src/shared_line_tests.rs`), the two stores of each guard of the
//! epochs, to a line of the thread's own, by none.

use crate::counted::{asked, stored};
use crate::sync::Ordering;
use crate::test_bed::{Bed, TABLE, roomy};
use crate::{BeginOptions, ScanCursor, Transaction};
use deuteron_contract::Direction;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};

const LINE_BYTES: usize = 64;

/// Whose a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Line {
    /// All transactions write it.
    Clock,
    /// All declared readers write it, and all writers read it.
    Fence,
    /// So many threads share it as there are more of them than shards: idle workspaces, counters, the account, queues.
    Shard,
    /// Its owner writes it, at each begin and commit; others look at it, who ask for the oldest active transaction.
    Announcement,
    /// Its owner writes it, likewise, if it may write; others where they meet it.
    Slot,
    /// Of a record: others write it if they use the same key.
    Record,
    /// Of versions that the transaction has made.
    Version,
    /// Of sixteen buckets: where their newest versions are. Written by the first read of what has lain for a while.
    Newest,
}

fn range_of<T>(place: &T) -> Range<usize> {
    let start = std::ptr::from_ref(place).addr();
    start..start + size_of::<T>()
}

/// Stores by whose lines they go to, and how many lines those are.
fn sorted(
    bed: &Bed,
    keys: &[&[u8]],
    own: &[Range<usize>; 2],
    stores: &[usize],
) -> BTreeMap<Line, (usize, usize)> {
    let core = &bed.tc().core;
    let shards = [
        range_of(&core.pool),
        range_of(&core.counters),
        range_of(&*core.account),
        range_of(&core.index),
        range_of(&core.turnstile),
    ];
    let guard = bed.epochs.pin();
    let found = keys.iter().filter_map(|key| core.table.find(core.table.key(TABLE, key), &guard));
    let records: Vec<_> = found.map(|record| (record.pointer().addr(), record.bytes())).collect();
    let line = |address: &usize| match address {
        address if range_of(&core.clock).contains(address) => Line::Clock,
        address if range_of(&core.fence).contains(address) => Line::Fence,
        address if own[0].contains(address) => Line::Announcement,
        address if own[1].contains(address) => Line::Slot,
        address if core.table.noted().contains(address) => Line::Newest,
        address if shards.iter().any(|shard| shard.contains(address)) => Line::Shard,
        &address if records.iter().any(|&(start, bytes)| (start..start + bytes).contains(&address)) => {
            Line::Record
        }
        _ => Line::Version,
    };
    let mut sorted: BTreeMap<Line, (usize, BTreeSet<usize>)> = BTreeMap::new();
    for address in stores {
        let (count, lines) = sorted.entry(line(address)).or_default();
        *count += 1;
        lines.insert(address / LINE_BYTES);
    }
    sorted.into_iter().map(|(line, (count, lines))| (line, (count, lines.len()))).collect()
}

/// What a transaction of these writes, then reads, of keys that have been written before, stores at its begin, in its operations and at its
/// end.
fn stores_of(
    bed: &Bed,
    options: BeginOptions,
    reads: &[&[u8]],
    writes: &[&[u8]],
) -> [BTreeMap<Line, (usize, usize)>; 3] {
    let (mut tx, begin) = stored(|| bed.begin_with(options));
    let own = [range_of(tx.workspace.announcement()), range_of(tx.workspace.slot())];
    let ((), operations) = stored(|| {
        writes.iter().for_each(|key| tx.put(TABLE, key, &[8; 100]).unwrap());
        reads.iter().for_each(|key| _ = tx.get_with(TABLE, key, <[u8]>::len).unwrap());
    });
    let ((), end) = stored(|| {
        tx.commit().unwrap();
        drop(tx);
    });
    let keys = [reads, writes].concat();
    [begin, operations, end].map(|stores| sorted(bed, &keys, &own, &stores))
}

/// Four keys that have been written, read and pruned, and slots that have been used before.
fn steady() -> (std::sync::Arc<Bed>, [&'static [u8]; 4]) {
    let (bed, keys) = (roomy(), [&b"a"[..], b"b", b"c", b"d"]);
    for _ in 0..500 {
        stores_of(&bed, BeginOptions::default(), &keys, &keys);
        bed.step();
    }
    (bed, keys)
}

/// The lower bound and the timestamp are announced, and the status says that it is active.
fn begin_of_one_that_may_write() -> BTreeMap<Line, (usize, usize)> {
    let own = [(Line::Announcement, (2, 1)), (Line::Slot, (1, 1))];
    [(Line::Clock, (1, 1)), (Line::Shard, (1, 1))].into_iter().chain(own).collect()
}

#[test]
fn a_transaction_that_reads_writes_to_one_line_that_all_write() {
    let (bed, keys) = steady();
    // The first one finds versions that nobody has read.
    for _ in 0..2 {
        let [begin, reads, end] = stores_of(&bed, BeginOptions::default(), &keys, &[]);
        assert_eq!(begin, begin_of_one_that_may_write());
        assert_eq!(reads.keys().collect::<Vec<_>>(), [&Line::Record]);
        assert_eq!(reads[&Line::Record], (4, 4), "the read timestamp of each");
        assert_eq!(end, [(Line::Shard, (3, 2)), (Line::Announcement, (1, 1)), (Line::Slot, (1, 1))].into());
    }
}

#[test]
fn the_first_read_of_what_has_lain_for_a_while_notes_where_it_is() {
    let (bed, keys) = steady();
    let noted = |options| {
        let [_, reads, _] = stores_of(&bed, options, &keys, &[]);
        reads.get(&Line::Newest).map_or(0, |stores| stores.0)
    };
    assert_eq!(noted(BeginOptions::default()), 0);
    (0..64).for_each(|_| drop(bed.begin()));
    assert_eq!(
        noted(BeginOptions { read_only: true, ..BeginOptions::default() }),
        0,
        "who declares that it only reads stores nothing"
    );
    assert_eq!([(); 2].map(|()| noted(BeginOptions::default())), [4, 0]);
    // What it says is asked for before anybody looks at the record.
    let core = &bed.tc().core;
    let key = core.table.key(TABLE, keys[0]);
    let newest = {
        let guard = bed.epochs.pin();
        core.table.find(key, &guard).expect("a record").head.load(Ordering::SeqCst).addr()
    };
    assert!(asked(|| core.table.prefetch_record(key)).contains(&newest));
}

#[test]
fn a_transaction_that_writes_writes_to_one_line_that_all_write_and_to_the_log() {
    let (bed, keys) = steady();
    let [begin, writes, end] = stores_of(&bed, BeginOptions::default(), &[], &keys);
    assert_eq!(begin, begin_of_one_that_may_write());
    // Of each the head, and the right to prune it, taken and given back; what is pruned is counted.
    assert_eq!(writes.keys().collect::<Vec<_>>(), [&Line::Shard, &Line::Record, &Line::Version]);
    assert_eq!((writes[&Line::Shard], writes[&Line::Record].0), ((4, 1), 4 * 3));
    // Of each what it is above, and the new end of the chain. With debug assertions versions are marked when they are retired.
    assert_eq!(writes[&Line::Version].0, 4 * if cfg!(debug_assertions) { 3 } else { 2 });
    // The first record in the log is said, and two stamps for each version.
    let lines = [&Line::Shard, &Line::Announcement, &Line::Slot, &Line::Version];
    assert_eq!(end.keys().collect::<Vec<_>>(), lines);
    assert_eq!((end[&Line::Shard], end[&Line::Announcement]), ((3, 3), (1, 1)));
    assert_eq!((end[&Line::Slot], end[&Line::Version].0), ((5, 1), 4 * 2));
}

#[test]
fn a_declared_reader_writes_to_the_fence_unless_it_is_there_already() {
    let (bed, keys) = steady();
    let options = BeginOptions { read_only: true, ..BeginOptions::default() };
    for fence in [Some((1, 1)), None] {
        let [begin, reads, end] = stores_of(&bed, options, &keys, &[]);
        assert_eq!((begin.get(&Line::Fence).copied(), begin.get(&Line::Clock)), (fence, None));
        assert_eq!((begin[&Line::Shard], begin[&Line::Announcement]), ((1, 1), (2, 1)));
        assert!(reads.is_empty() && !begin.contains_key(&Line::Slot));
        assert_eq!(end, [(Line::Shard, (3, 2)), (Line::Announcement, (1, 1))].into());
    }
}

#[test]
fn a_declared_reader_stores_nothing_to_begin_behind_what_is_known_to_be_empty() {
    let bed = roomy();
    for value in [Some(&b"1"[..]), None] {
        let mut tx = bed.begin();
        (0..20).for_each(|number| tx.write(TABLE, &[number], value.filter(|_| number != 10)).unwrap());
        tx.put(TABLE, &[10], b"1").unwrap();
        tx.commit().unwrap();
    }
    // Whoever scans first brings the index up to date.
    assert!(crate::test_bed::keys(&mut bed.begin(), "x", "y").is_empty());
    for direction in [Direction::Forward, Direction::Reverse] {
        let scan = |tx: &mut Transaction| {
            let mut cursor = ScanCursor::new(TABLE, Bound::Unbounded, Bound::Unbounded, direction);
            assert!(tx.scan_next(&mut cursor, 1).unwrap());
            assert_eq!(tx.scanned(direction).get(0).0, [10]);
        };
        let shortened = || bed.tc().statistics().scans_shortened;
        let before = shortened();
        let reader = || {
            let mut tx = bed.begin_with(BeginOptions { read_only: true, ..BeginOptions::default() });
            let ((), stores) = stored(|| scan(&mut tx));
            assert!(stores.is_empty());
            tx.commit().unwrap();
        };
        reader();
        for _ in 0..2 {
            let mut tx = bed.begin();
            scan(&mut tx);
            tx.commit().unwrap();
        }
        assert_eq!(shortened(), before);
        reader();
        assert_eq!(shortened(), before + 1);
    }
}
