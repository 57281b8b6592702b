//! Long keys that begin alike, against a model, and how many of them a page takes in whatever order they come.

mod support;

use deuteron_bwtree::{BulkLoad, Cursor, Options, Tree, Upsert};
use deuteron_device::MemoryDirectory;
use deuteron_device::simulated::effort;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use support::{Random, checkpoint, flush, tree_in_store};

type Model = BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)>;

/// In which order keys come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Ascending,
    Descending,
    Random,
    /// Ascending, a hundred at a time.
    Batches,
    /// Ascending, in a bulk load.
    Load,
}

const KEYS: u64 = 4000;

/// A key whose first `shared` bytes are those of all others.
fn key(shared: usize, number: u64) -> Vec<u8> {
    [&vec![b'p'; shared][..], format!("{number:010}").as_bytes()].concat()
}

fn store(directory: &Arc<MemoryDirectory>) -> Tree {
    tree_in_store(directory, deuteron_llama::Options::default(), Options::default())
}

fn put(tree: &Tree, key: &[u8], value: Option<&[u8]>, version: u64) {
    tree.upsert(&[Upsert { key, value, stamp: version, lsn: version }]).unwrap();
}

fn filled(directory: &Arc<MemoryDirectory>, shared: usize, order: Order) -> Tree {
    let mut numbers: Vec<u64> = (0..KEYS).collect();
    match order {
        Order::Descending => numbers.reverse(),
        Order::Random => {
            let mut random = Random::new(shared as u64);
            numbers.sort_by_cached_key(|_| random.below(u64::MAX));
        }
        Order::Ascending | Order::Batches | Order::Load => {}
    }
    let keys: Vec<_> = numbers.iter().map(|&number| key(shared, number)).collect();
    let upserts: Vec<_> =
        keys.iter().map(|key| Upsert { key, value: Some(b"8 bytes."), stamp: 1, lsn: 1 }).collect();
    let tree = store(directory);
    match order {
        Order::Load => {
            let mut load = BulkLoad::new(Arc::clone(tree.llama()), 2, Options::default());
            for upsert in &upserts {
                load.push(upsert);
            }
            return load.finish().unwrap();
        }
        Order::Batches => upserts.chunks(100).for_each(|upserts| tree.upsert(upserts).unwrap()),
        _ => upserts.chunks(1).for_each(|upserts| tree.upsert(upserts).unwrap()),
    }
    consolidate(&tree, shared);
    tree
}

/// Every page, so that what is in it is all in its base.
fn consolidate(tree: &Tree, shared: usize) {
    for number in 0..KEYS {
        tree.consolidate(&key(shared, number), &tree.llama().pin());
    }
}

/// Bytes on the device that are not superseded.
fn live_bytes(tree: &Tree) -> u64 {
    flush(tree);
    tree.llama().statistics().live_bytes
}

#[test]
fn keys_that_share_their_beginning_fill_pages_in_any_order() {
    // What a record takes if a page is full: more than the rest of its key, its value and its header, by its part of the bounds.
    for (shared, bytes_when_full) in [(0, 31), (60, 31), (250, 60), (990, 90), (3000, 180)] {
        for order in [Order::Ascending, Order::Descending, Order::Random, Order::Batches, Order::Load] {
            let directory = Arc::new(MemoryDirectory::new());
            let tree = filled(&directory, shared, order);
            let report = tree.check().unwrap();
            assert_eq!(report.records, KEYS);
            let percent = match order {
                Order::Ascending | Order::Batches | Order::Load => 100,
                Order::Descending | Order::Random => 50,
            };
            let figures = format!(
                "{shared} bytes shared, {order:?}: {:.1} records a page, {} bytes each in pages, {} on the device, {} in the index",
                KEYS as f64 / report.leaves as f64,
                report.page_bytes / KEYS,
                live_bytes(&tree) / KEYS,
                tree.statistics().index_bytes / KEYS,
            );
            println!("{figures}");
            assert!(report.leaves * 70 * percent <= KEYS * 100, "{figures}");
            assert!(tree.statistics().index_bytes <= 3 * KEYS, "{figures}");
            assert!(live_bytes(&tree) * percent <= KEYS * bytes_when_full * 100, "{figures}");
        }
    }
}

/// Those of each group come in ascending order, and groups share nothing with each other.
#[test]
fn groups_of_keys_that_begin_alike_do_not_take_the_beginnings_from_each_other() {
    for order in [Order::Ascending, Order::Descending] {
        let tree = store(&Arc::new(MemoryDirectory::new()));
        let key_of = |group: u64, number: u64| [&[group as u8; 500][..], &number.to_be_bytes()].concat();
        for number in 0..1000 {
            let number = if order == Order::Ascending { number } else { 999 - number };
            for group in 0..6 {
                put(&tree, &key_of(group * 7 % 6, number), Some(b"value"), 1);
            }
        }
        for (group, number) in (0..6).flat_map(|group| (0..1000).map(move |number| (group, number))) {
            tree.consolidate(&key_of(group, number), &tree.llama().pin());
        }
        let report = tree.check().unwrap();
        assert_eq!(report.records, 6000);
        assert!(report.leaves < 6000 / 35 && report.page_bytes < 6000 * 90, "{order:?}: {report:?}");
    }
}

#[test]
fn pages_of_long_keys_are_merged_when_they_have_become_empty_and_filled_again() {
    for order in [Order::Ascending, Order::Descending, Order::Random] {
        let directory = Arc::new(MemoryDirectory::new());
        let tree = filled(&directory, 990, order);
        let leaves = tree.check().unwrap().leaves;
        let gone = |number: u64| !number.is_multiple_of(10);
        (0..KEYS).filter(|&number| gone(number)).for_each(|number| put(&tree, &key(990, number), None, 2));
        tree.forget_tombstones_below(3);
        consolidate(&tree, 990);
        for _ in 0..20 {
            while tree.maintain_step().unwrap() {}
            flush(&tree);
            tree.retry_merges();
        }
        let report = tree.check().unwrap();
        assert_eq!(report.records, KEYS / 10);
        assert!(report.leaves <= leaves / 3, "{order:?}: {leaves} leaves, then {report:?}");
        checkpoint(&tree);
        drop(tree);
        let tree = store(&directory);
        assert_eq!(tree.check().unwrap(), report);
        (0..KEYS).rev().for_each(|number| put(&tree, &key(990, number), Some(b"8 bytes."), 4));
        let report = tree.check().unwrap();
        assert!(report.records == KEYS && report.leaves * 35 < KEYS, "{order:?}: {report:?}");
    }
}

fn scan(tree: &Tree, reverse: bool) -> Model {
    let mut cursor = Cursor::new(Bound::Unbounded, Bound::Unbounded, reverse, usize::MAX);
    let mut found = Vec::new();
    tree.scan(&mut cursor, |record| {
        let mut key = Vec::new();
        record.append_key_to(&mut key);
        found.push((key, (record.stamp, record.value.map(<[u8]>::to_vec))));
    })
    .unwrap();
    assert!(found.is_sorted_by(|a, b| if reverse { a.0 > b.0 } else { a.0 < b.0 }), "scan out of order");
    found.into_iter().collect()
}

/// A key of one of a few groups, whose beginnings share some of theirs.
fn grouped(random: &mut Random, lengths: &[usize], near: &mut u64) -> Vec<u8> {
    let (shared, group) = (lengths[random.below(lengths.len() as u64) as usize], random.below(3) as u8);
    // Up, down, or anywhere.
    *near = match random.below(4) {
        0 => near.saturating_sub(random.below(4)),
        1 => random.below(500),
        _ => (*near + random.below(4)) % 500,
    };
    let mut key = [&vec![b'g'; shared / 2][..], &vec![group; shared - shared / 2]].concat();
    key.extend_from_slice(match random.below(8) {
        // Keys that are beginnings of others.
        0 => &[],
        1 => &[0],
        _ => b"/",
    });
    key.extend_from_slice(format!("{near:04}").as_bytes());
    key
}

fn run(seed: u64, options: &Options, lengths: &[usize]) {
    let mut random = Random::new(seed);
    let directory = Arc::new(MemoryDirectory::new());
    let open = || tree_in_store(&directory, deuteron_llama::Options::default(), options.clone());
    let (mut tree, mut model, mut version, mut near) = (open(), Model::new(), 0, 250);
    let mut forgotten = 0;
    for step in 0..60 {
        let deletes = random.below(3) == 0;
        for _ in 0..random.below(12) {
            let batch: BTreeMap<_, _> = (0..1 + random.below(10))
                .map(|_| {
                    version += 1;
                    let value = (!deletes || random.below(4) == 0)
                        .then(|| vec![version as u8; random.below(20) as usize]);
                    (grouped(&mut random, lengths, &mut near), (version, value))
                })
                .collect();
            let upserts: Vec<_> = batch
                .iter()
                .map(|(key, (version, value))| Upsert {
                    key,
                    value: value.as_deref(),
                    stamp: *version,
                    lsn: *version,
                })
                .collect();
            tree.upsert(&upserts).unwrap();
            model.extend(batch);
        }
        match random.below(8) {
            0 => flush(&tree),
            1 => drop(tree.llama().evict_step(u64::MAX)),
            2 => {
                checkpoint(&tree);
                drop(tree);
                tree = open();
            }
            _ => {}
        }
        forgotten = forgotten.max(version.saturating_sub(random.below(200)));
        tree.forget_tombstones_below(forgotten);
        tree.retry_merges();
        for _ in 0..random.below(20) {
            tree.maintain_step().unwrap();
        }
        let live =
            |model: Model| model.into_iter().filter(|(_, (_, value))| value.is_some()).collect::<Model>();
        for reverse in [false, true] {
            assert_eq!(live(scan(&tree, reverse)), live(model.clone()), "seed {seed}, step {step}");
        }
        let probe = grouped(&mut random, lengths, &mut near);
        let found =
            tree.get(&probe, |record| record.and_then(|record| record.value.map(<[u8]>::to_vec))).unwrap();
        assert_eq!(found, model.get(&probe).and_then(|(_, value)| value.clone()), "seed {seed}, step {step}");
    }
    tree.check().unwrap();
}

#[test]
fn long_keys_agree_with_a_sorted_map() {
    let seeds = 12 * effort();
    for seed in 0..seeds {
        run(seed, &Options::tiny_for_tests(), &[0, 3, 30, 120]);
        run(seed, &Options { page_bytes_max: 1024, ..Options::tiny_for_tests() }, &[10, 250, 600]);
        run(seed, &Options::default(), &[40, 990, 3000]);
    }
    println!("long keys: {seeds} seeds of three shapes, 0 failures");
}
