//! Random operations against `BTreeMap`, with tiny pages and chains of two.

mod support;

use deuteron_bwtree::{Cursor, Options, Tree, Upsert};
use deuteron_device::simulated::effort;
use std::collections::BTreeMap;
use std::ops::Bound;
use support::{Random, tree};

/// Neither bytes nor records of a scan have a limit.
const ALL: (usize, usize) = (usize::MAX, usize::MAX);

type Model = BTreeMap<Vec<u8>, (u64, u64, Option<Vec<u8>>)>;

fn key(random: &mut Random, style: u64) -> Vec<u8> {
    let number = random.below(300);
    match style {
        0 => number.to_be_bytes().to_vec(),
        1 => format!("a prefix that all keys of the table share/{number:04}").into_bytes(),
        // Keys that are prefixes of each other, with zeros.
        _ => vec![[0, 1, 255][number as usize % 3]; 1 + number as usize / 30],
    }
}

fn scan(
    tree: &Tree,
    lower: Bound<&[u8]>,
    upper: Bound<&[u8]>,
    reverse: bool,
    (bytes_max, records_max): (usize, usize),
) -> (Model, bool) {
    let mut cursor = Cursor::new(lower, upper, reverse, bytes_max).records_max(records_max);
    let mut found = Vec::new();
    tree.scan(&mut cursor, |record| {
        let mut key = Vec::new();
        record.append_key_to(&mut key);
        found.push((key, (record.stamp, record.lsn, record.value.map(<[u8]>::to_vec))));
    })
    .unwrap();
    assert!(found.is_sorted_by(|a, b| if reverse { a.0 > b.0 } else { a.0 < b.0 }), "scan out of order");
    (found.into_iter().collect(), cursor.is_complete())
}

fn bound(random: &mut Random, style: u64) -> Bound<Vec<u8>> {
    match random.below(3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(random, style)),
        _ => Bound::Excluded(key(random, style)),
    }
}

fn in_bounds(key: &[u8], lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    (match lower {
        Bound::Unbounded => true,
        Bound::Included(low) => key >= low,
        Bound::Excluded(low) => key > low,
    }) && match upper {
        Bound::Unbounded => true,
        Bound::Included(high) => key <= high,
        Bound::Excluded(high) => key < high,
    }
}

fn run(seed: u64, options: Options) {
    let mut random = Random::new(seed);
    let style = seed % 3;
    let tree = tree(options);
    let mut model = Model::new();
    for step in 0..400 {
        let mut batch: Vec<_> = (0..1 + random.below(8))
            .map(|_| {
                let key = key(&mut random, style);
                // Stamps arrive out of order and twice; the LSN is unique per operation.
                let (stamp, lsn) = (random.below(50), random.below(1 << 40));
                let value = (random.below(4) > 0).then(|| vec![lsn as u8; random.below(60) as usize]);
                (key, value, stamp, lsn)
            })
            .collect();
        batch.sort_by(|left, right| left.0.cmp(&right.0));
        let upserts: Vec<_> = batch
            .iter()
            .map(|(key, value, stamp, lsn)| Upsert { key, value: value.as_deref(), stamp: *stamp, lsn: *lsn })
            .collect();
        tree.upsert(&upserts).unwrap();
        if random.below(10) == 0 {
            // Again: it changes nothing.
            tree.upsert(&upserts).unwrap();
        }
        for (key, value, stamp, lsn) in batch {
            let slot = model.entry(key).or_insert((0, 0, None));
            if (stamp, lsn) > (slot.0, slot.1) {
                *slot = (stamp, lsn, value);
            }
        }
        let probe = key(&mut random, style);
        let found = tree.get(&probe, |r| r.map(|r| (r.stamp, r.lsn, r.value.map(<[u8]>::to_vec)))).unwrap();
        assert_eq!(found.as_ref(), model.get(&probe), "seed {seed}, step {step}, key {probe:?}");
        if step % 20 == 0 {
            let (lower, upper) = (bound(&mut random, style), bound(&mut random, style));
            let (lower, upper) = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
            let expected: Model =
                model.clone().into_iter().filter(|(key, _)| in_bounds(key, lower, upper)).collect();
            for reverse in [false, true] {
                let (found, complete) = scan(&tree, lower, upper, reverse, ALL);
                assert!(complete);
                assert_eq!(found, expected, "seed {seed}, step {step}, reverse {reverse}");
                let (part, complete) = scan(&tree, lower, upper, reverse, (100, usize::MAX));
                assert_eq!(part.is_empty(), expected.is_empty());
                assert!(complete || !part.is_empty());
                let keys: Vec<_> = expected.keys().cloned().collect();
                let near = if reverse { &keys[keys.len() - part.len()..] } else { &keys[..part.len()] };
                assert_eq!(part.keys().cloned().collect::<Vec<_>>(), near);
                // It ends with the last value that is wanted, tombstones on the way left out of the count.
                let wanted = 1 + random.below(30) as usize;
                let (part, _) = scan(&tree, lower, upper, reverse, (usize::MAX, wanted));
                let near = if reverse { &keys[keys.len() - part.len()..] } else { &keys[..part.len()] };
                assert_eq!(part.keys().cloned().collect::<Vec<_>>(), near);
                let values = |model: &Model| model.values().filter(|(_, _, value)| value.is_some()).count();
                assert_eq!(values(&part), wanted.min(values(&expected)));
                let last = if reverse { part.first_key_value() } else { part.last_key_value() };
                let is_full = values(&part) == wanted;
                assert!(!is_full || last.is_some_and(|(_, (_, _, value))| value.is_some()));
            }
        }
    }
    let report = tree.check().unwrap();
    assert_eq!(report.records + report.tombstones, model.len() as u64);
    assert!(report.leaves > 3 && tree.statistics().inner_splits > 0 || style == 2, "{report:?}");
    assert_eq!(scan(&tree, Bound::Unbounded, Bound::Unbounded, false, ALL).0, model);
}

#[test]
fn the_tree_holds_the_newest_version_of_every_key() {
    let seeds = 60 * effort();
    for seed in 0..seeds {
        run(seed, Options::tiny_for_tests());
    }
    println!("tree: {seeds} seeds, 0 failures");
}

#[test]
fn so_it_does_with_other_shapes() {
    let seeds = 12 * effort();
    for seed in 0..seeds {
        let tiny = Options::tiny_for_tests();
        run(seed, Options { consolidate_at: 1, chain_length_max: 1, ..tiny.clone() });
        run(seed, Options { consolidate_at: 9, chain_length_max: 30, ..tiny.clone() });
        run(seed, Options { page_bytes_max: 700, inner_entries_max: 7, delta_bytes_max: 0, ..tiny });
    }
    println!("tree of three other shapes: {seeds} seeds, 0 failures");
}

#[test]
fn tombstones_are_forgotten_once_no_replay_can_bring_the_key_back() {
    let tree = tree(Options::tiny_for_tests());
    for number in 0u64..100 {
        let key = number.to_be_bytes();
        tree.upsert(&[Upsert { key: &key, value: Some(b"value"), stamp: 1, lsn: number }]).unwrap();
    }
    for number in 0u64..100 {
        let key = number.to_be_bytes();
        tree.upsert(&[Upsert { key: &key, value: None, stamp: 2, lsn: 100 + number }]).unwrap();
    }
    let count = |tree: &Tree| scan(tree, Bound::Unbounded, Bound::Unbounded, false, ALL).0.len();
    assert_eq!(count(&tree), 100);
    tree.forget_tombstones_below(150);
    for number in 0u64..100 {
        tree.consolidate(&number.to_be_bytes(), &tree.llama().pin());
    }
    assert_eq!(count(&tree), 50);
    assert_eq!(tree.check().unwrap().tombstones, 50);
    // One that is not forgotten still wins against an older version that arrives late.
    let key = 60u64.to_be_bytes();
    tree.upsert(&[Upsert { key: &key, value: Some(b"late"), stamp: 1, lsn: 60 }]).unwrap();
    assert!(tree.get(&key, |record| record.unwrap().value.is_none()).unwrap());
}

#[test]
fn values_up_to_a_mebibyte_get_pages_of_their_own() {
    let tree = tree(Options::default());
    let large = |number: u8| vec![number; 1 << 20];
    for number in 0u8..8 {
        let value = large(number);
        tree.upsert(&[
            Upsert { key: &[number, 0], value: Some(b"small"), stamp: 1, lsn: 1 },
            Upsert { key: &[number, 1], value: Some(&value), stamp: 1, lsn: 2 },
            Upsert { key: &[number, 2], value: Some(b"small"), stamp: 1, lsn: 3 },
        ])
        .unwrap();
    }
    for number in 0u8..8 {
        assert!(tree.get(&[number, 1], |r| r.unwrap().value.unwrap() == large(number)).unwrap());
        assert_eq!(
            tree.get(&[number, 2], |r| r.unwrap().value.map(<[u8]>::to_vec)).unwrap().unwrap(),
            b"small"
        );
    }
    let report = tree.check().unwrap();
    assert_eq!((report.records, report.leaves >= 16), (24, true), "{report:?}");
}

#[test]
fn one_batch_may_fill_many_pages() {
    for options in [
        Options::tiny_for_tests(),
        Options::default(),
        Options { delta_bytes_max: 1 << 20, ..Options::default() },
    ] {
        let tree = tree(options);
        let keys: Vec<_> = (0u64..20_000).map(u64::to_be_bytes).collect();
        let upserts: Vec<_> =
            keys.iter().map(|key| Upsert { key, value: Some(&key[4..]), stamp: 1, lsn: 1 }).collect();
        tree.upsert(&upserts).unwrap();
        let report = tree.check().unwrap();
        assert_eq!(report.records, 20_000);
        // An ascending load fills its pages.
        assert!(report.page_bytes * 100 / report.leaves > tree_page_bytes(&tree) * 60, "{report:?}");
    }
}

fn tree_page_bytes(tree: &Tree) -> u64 {
    tree.options().page_bytes_max as u64
}

#[test]
fn sizes_out_of_bounds_are_refused() {
    let tree = tree(Options::default());
    let long = vec![0; deuteron_bwtree::KEY_BYTES_MAX + 1];
    for key in [&[][..], &long] {
        assert!(tree.upsert(&[Upsert { key, value: None, stamp: 1, lsn: 1 }]).is_err());
    }
    let key = &long[1..];
    tree.upsert(&[Upsert { key, value: Some(b"at the limit"), stamp: 1, lsn: 1 }]).unwrap();
    assert_eq!(tree.check().unwrap().records, 1);
}
