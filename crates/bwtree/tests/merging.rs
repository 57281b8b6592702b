//! Pages come and go: deletes, forgotten tombstones and merges, against a model, in one thread and in several.

mod support;

use deuteron_bwtree::{Options, Tree};
use deuteron_device::MemoryDirectory;
use deuteron_device::simulated::effort;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::{Random, checkpoint, flush, put, scan, tree_in};

fn expected(model: &BTreeMap<u64, u64>) -> Vec<(u64, u64)> {
    model.iter().map(|(&key, &version)| (key, version)).collect()
}

#[test]
fn random_inserts_deletes_and_merges_agree_with_a_sorted_map() {
    let mut merges = 0;
    let seeds = 60 * effort();
    for seed in 0..seeds {
        let directory = Arc::new(MemoryDirectory::new());
        let mut tree = tree_in(&directory, Options::tiny_for_tests());
        let mut random = Random::new(seed);
        let mut model = BTreeMap::new();
        let mut version = 0;
        for _ in 0..60 {
            let (from, count) = (random.below(400), random.below(120));
            let deletes = random.below(3) > 0;
            for _ in 0..count {
                version += 1;
                let key = from + random.below(80);
                if deletes {
                    put(&tree, key, None, version);
                    model.remove(&key);
                } else {
                    put(&tree, key, Some(&[7; 20]), version);
                    model.insert(key, version);
                }
            }
            match random.below(8) {
                0 => flush(&tree),
                1 => drop(tree.llama().evict_step(u64::MAX)),
                2 => checkpoint(&tree),
                3 => {
                    merges += tree.statistics().leaf_merges;
                    checkpoint(&tree);
                    drop(tree);
                    tree = tree_in(&directory, Options::tiny_for_tests());
                    tree.check().unwrap();
                }
                _ => {}
            }
            tree.retry_merges();
            tree.forget_tombstones_below(version.saturating_sub(random.below(100)));
            for _ in 0..random.below(60) {
                tree.maintain_step().unwrap();
            }
            assert_eq!(scan(&tree, false), expected(&model), "seed {seed}");
        }
        let mut reverse = scan(&tree, true);
        reverse.reverse();
        assert_eq!(reverse, expected(&model));
        for key in 0..480 {
            let found = tree
                .get(&u64::to_be_bytes(key), |found| found.filter(|r| r.value.is_some()).map(|r| r.stamp));
            assert_eq!(found.unwrap(), model.get(&key).copied());
        }
        tree.check().unwrap();
        merges += tree.statistics().leaf_merges;
    }
    println!("merges: {seeds} seeds, 0 failures");
    assert!(merges > 1000, "only {merges} merges");
}

#[test]
fn an_emptied_tree_shrinks_to_one_page() {
    for inner_entries_max in [4, 64] {
        let directory = Arc::new(MemoryDirectory::new());
        let options = Options { inner_entries_max, ..Options::tiny_for_tests() };
        let tree = tree_in(&directory, options.clone());
        for key in 0..4000 {
            put(&tree, key, Some(&[1; 40]), key + 1);
        }
        let before = tree.check().unwrap().leaves;
        for key in 0..4000 {
            put(&tree, key, None, key + 5000);
        }
        flush(&tree);
        tree.forget_tombstones_below(u64::MAX);
        // A page that has taken another over must be flushed before it goes over itself.
        for _ in 0..10 {
            // Those in chains that nobody had reason to consolidate, too.
            let mut from = Some(Vec::new());
            while let Some(low) = from {
                from = tree.mark_some(&low);
            }
            while tree.maintain_step().unwrap() {}
            flush(&tree);
            tree.retry_merges();
        }
        let after = tree.check().unwrap();
        assert_eq!((after.records, after.tombstones, after.leaves), (0, 0, 1), "{before} leaves before");
        assert_eq!(tree.llama().statistics().pages_freed, before - 1);
        assert!(tree.statistics().inner_merges >= tree.statistics().inner_splits);
        checkpoint(&tree);
        drop(tree);
        let tree = tree_in(&directory, options);
        assert_eq!(tree.check().unwrap().leaves, 1);
        put(&tree, 17, Some(b"again"), 10_000);
        assert_eq!(scan(&tree, false), [(17, 10_000)]);
    }
}

/// Looks at every leaf, until nothing is merged any more.
fn compact(tree: &Tree) {
    loop {
        let before = tree.statistics().leaf_merges;
        let mut from = Some(Vec::new());
        while let Some(low) = from {
            from = tree.mark_some(&low);
            while tree.maintain_step().unwrap() {}
        }
        flush(tree);
        tree.retry_merges();
        while tree.maintain_step().unwrap() {}
        if tree.statistics().leaf_merges == before {
            return;
        }
    }
}

#[test]
fn a_compaction_merges_all_that_fits_together_and_what_it_has_merged_is_not_split_by_updates() {
    let directory = Arc::new(MemoryDirectory::new());
    let options = Options { page_bytes_max: 1024, ..Options::tiny_for_tests() };
    let tree = tree_in(&directory, options);
    for key in 0..4000 {
        put(&tree, key, Some(&[1; 40]), key + 1);
    }
    for key in (0..4000).filter(|key| key % 5 > 1) {
        put(&tree, key, None, key + 5000);
    }
    flush(&tree);
    tree.forget_tombstones_below(u64::MAX);
    while tree.maintain_step().unwrap() {}
    let before = tree.check().unwrap();
    compact(&tree);
    let after = tree.check().unwrap();
    assert_eq!((after.records, after.tombstones), (1600, 0));
    // No two neighbours fit into seven eighths of a page, but for the first children of inner nodes.
    assert!(after.page_bytes / after.leaves > 1024 / 2, "{after:?}");
    assert!(after.leaves < before.leaves * 2 / 3, "{} leaves before, {} after", before.leaves, after.leaves);
    let (merges, splits) = (tree.statistics().leaf_merges, tree.statistics().leaf_splits);
    for key in (0..4000).filter(|key| key % 5 <= 1) {
        put(&tree, key, Some(&[2; 40]), key + 10_000);
    }
    compact(&tree);
    assert_eq!((tree.statistics().leaf_merges, tree.statistics().leaf_splits), (merges, splits));
    tree.check().unwrap();
}

/// Lets those go on who wait for a round, also if the one that makes them panics.
struct End<'a>(&'a AtomicU64);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Each writer owns the keys of one residue and knows what it has written last; scanners and readers hold it against that.
#[test]
fn writers_readers_and_scanners_lose_nothing_to_merges() {
    const KEYS: u64 = 600;
    const WRITERS: u64 = 3;
    let (mut merges, mut freed) = (0, 0);
    let seeds = 12 * effort();
    for seed in 0..seeds {
        let directory = Arc::new(MemoryDirectory::new());
        let tree = tree_in(&directory, Options::tiny_for_tests());
        // Per key: the version of its last completed write.
        let known: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        let clock = AtomicU64::new(1);
        let stop = AtomicBool::new(false);
        // Rounds of merging that have begun. A writer waits for one now and then: else there would be few where the writers have the processors.
        let rounds = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _end = End(&rounds);
                while !stop.load(Ordering::Relaxed) {
                    // Versions come in order, so that nothing older than what is complete can arrive.
                    let oldest = clock.load(Ordering::SeqCst).saturating_sub(WRITERS + 1);
                    rounds.fetch_add(1, Ordering::Relaxed);
                    tree.forget_tombstones_below(oldest);
                    tree.retry_merges();
                    while tree.maintain_step().unwrap() && !stop.load(Ordering::Relaxed) {}
                    std::thread::yield_now();
                }
            });
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (tree, known, clock, rounds) = (&tree, &known, &clock, &rounds);
                    scope.spawn(move || {
                        let mut random = Random::new(seed * 31 + writer);
                        for stretch in 0..200 {
                            if stretch % 20 == 19 {
                                let before = rounds.load(Ordering::Relaxed);
                                while rounds.load(Ordering::Relaxed) < before.saturating_add(2) {
                                    std::thread::yield_now();
                                }
                            }
                            // A stretch of keys is written or deleted, so that pages fill and empty.
                            let (from, deletes) = (random.below(KEYS), random.below(5) < 3);
                            for key in (from..KEYS.min(from + 120)).filter(|key| key % WRITERS == writer) {
                                let version = clock.fetch_add(1, Ordering::SeqCst);
                                put(tree, key, (!deletes).then_some(&[3; 24]), version);
                                let found = tree.get(&key.to_be_bytes(), |found| {
                                    found.map(|r| (r.stamp, r.value.is_some()))
                                });
                                // A tombstone may have been forgotten.
                                match found.unwrap() {
                                    None => assert!(deletes, "key {key} of {version} is lost"),
                                    Some(found) => assert_eq!(found, (version, !deletes)),
                                }
                                known[key as usize]
                                    .store(version << 1 | u64::from(!deletes), Ordering::SeqCst);
                            }
                        }
                    })
                })
                .collect();
            for reverse in [false, true] {
                let (tree, known, stop) = (&tree, &known, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let before: Vec<u64> = known.iter().map(|last| last.load(Ordering::SeqCst)).collect();
                        let found: BTreeMap<u64, u64> = scan(tree, reverse).into_iter().collect();
                        for (key, before) in before.into_iter().enumerate() {
                            let after = known[key].load(Ordering::SeqCst);
                            let seen = found.get(&(key as u64)).copied();
                            if let Some(seen) = seen {
                                assert!(
                                    seen >= before >> 1,
                                    "scan saw {seen} of key {key}, not {}",
                                    before >> 1
                                );
                            }
                            if after == before && before & 1 == 1 && seen.is_none() {
                                // Unless a delete is under way, it is there: look once more.
                                let now =
                                    tree.get(&(key as u64).to_be_bytes(), |r| r.map(|r| r.stamp)).unwrap();
                                assert_ne!(now, Some(before >> 1), "the scan has missed key {key}");
                            }
                        }
                    }
                });
            }
            scope.spawn(|| {
                let mut random = Random::new(seed + 5);
                while !stop.load(Ordering::Relaxed) {
                    match random.below(6) {
                        0 => drop(tree.llama().evict_step(random.below(64 << 10))),
                        1 => drop(tree.llama().evict_step(u64::MAX)),
                        2 => checkpoint(&tree),
                        3 => std::thread::yield_now(),
                        _ => drop(tree.llama().flush_step().unwrap()),
                    }
                }
            });
            for writer in writers {
                writer.join().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        let live = |tree: &Tree| scan(tree, false).into_iter().collect::<BTreeMap<_, _>>();
        let expected: BTreeMap<u64, u64> = known
            .iter()
            .enumerate()
            .map(|(key, last)| (key as u64, last.load(Ordering::SeqCst)))
            .filter(|(_, last)| last & 1 == 1)
            .map(|(key, last)| (key, last >> 1))
            .collect();
        assert_eq!(live(&tree), expected, "seed {seed}");
        tree.check().unwrap();
        merges += tree.statistics().leaf_merges;
        checkpoint(&tree);
        freed += tree.llama().statistics().pages_freed;
        drop(tree);
        let tree = tree_in(&directory, Options::tiny_for_tests());
        assert_eq!(live(&tree), expected, "seed {seed}, opened again");
        tree.check().unwrap();
    }
    println!("merges beside threads: {seeds} seeds, 0 failures");
    assert!(merges > 200 && freed > 100, "{merges} merges, {freed} pages freed");
}
