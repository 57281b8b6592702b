//! What the simulated disk keeps and loses in a crash, against a model that knows only what it may.

use deuteron_device::{
    CrashPolicy, Directory, File, OpenMode, Operation, SECTOR_BYTES, SimulatedDirectory, SimulatedDisk,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

fn create(directory: &SimulatedDirectory, name: &str) -> Arc<dyn File> {
    let file = directory.open(name, OpenMode::CreateNew, false).unwrap();
    directory.sync().unwrap();
    file
}

fn content(directory: &SimulatedDirectory, name: &str) -> Vec<u8> {
    let file = directory.open(name, OpenMode::Read, false).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn all(directory: &SimulatedDirectory) -> BTreeMap<String, Vec<u8>> {
    directory.list().unwrap().into_iter().map(|name| (name.clone(), content(directory, &name))).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        sector_start: u64,
        length: usize,
        byte: u8,
        durable: bool,
    },
    Allocate(u64),
    /// To so many sectors: a cut is no part of a sector's life.
    Shorten(u64),
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0u64..20_000, 1usize..9000, 1u8.., prop::bool::weighted(0.2)).prop_map(
        |(sector_start, length, byte, durable)| Step::Write { sector_start, length, byte, durable },
    );
    prop_oneof![
        12 => write,
        2 => (0u64..30_000).prop_map(Step::Allocate),
        1 => (0u64..60).prop_map(Step::Shorten),
        2 => Just(Step::Sync)
    ]
}

fn put(image: &mut Vec<u8>, offset: u64, length: usize, byte: u8) {
    let end = offset as usize + length;
    if image.len() < end {
        image.resize(end, 0);
    }
    image[offset as usize..end].fill(byte);
}

fn sector(image: &[u8], index: usize) -> Vec<u8> {
    let start = (index * SECTOR_BYTES as usize).min(image.len());
    let end = (start + SECTOR_BYTES as usize).min(image.len());
    let mut sector = image[start..end].to_vec();
    sector.resize(SECTOR_BYTES as usize, 0);
    sector
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The bounds of a crash: all-lost leaves exactly what was synced, all-kept exactly what was seen, and a
    /// random one leaves in each sector a state that the sector had since it was last synced.
    #[test]
    fn what_was_synced_survives_and_the_rest_only_by_sectors(
        steps in prop::collection::vec(step(), 1..30),
        seed in any::<u64>(),
    ) {
        let disk = SimulatedDisk::new(seed);
        let file = create(&disk.directory(), "a");
        // `states` holds, oldest first, every state that a sector may be left in; the first is the durable one.
        let mut states: Vec<Vec<u8>> = vec![Vec::new()];
        // The one after the last cut.
        let mut cut = None;
        for step in &steps {
            let mut visible = states.last().unwrap().clone();
            match *step {
                Step::Write { sector_start, length, byte, durable: false } => {
                    file.write_at(&vec![byte; length], sector_start).unwrap();
                    put(&mut visible, sector_start, length, byte);
                    states.push(visible);
                }
                Step::Write { sector_start, length, byte, durable: true } => {
                    file.write_durable_at(&vec![byte; length], sector_start).unwrap();
                    // A cut before them is not undone any more. In whatever state the rest is, these bytes are there.
                    states.drain(..cut.take().unwrap_or(0));
                    states.iter_mut().for_each(|state| put(state, sector_start, length, byte));
                }
                Step::Allocate(length) => {
                    file.allocate(length).unwrap();
                    visible.resize(visible.len().max(length as usize), 0);
                    states.push(visible);
                }
                Step::Shorten(sectors) => {
                    let length = sectors * SECTOR_BYTES;
                    file.shorten(length).unwrap();
                    if (length as usize) < visible.len() {
                        visible.truncate(length as usize);
                        cut = Some(states.len());
                        states.push(visible);
                    }
                }
                Step::Sync => {
                    file.sync().unwrap();
                    cut = None;
                    states = vec![visible];
                }
            }
            let seen = content(&disk.directory(), "a");
            prop_assert!(&seen == states.last().unwrap(), "reads show all writes");
        }
        prop_assert!(content(&disk.fork(0).crash(CrashPolicy::LoseAll), "a") == states[0]);
        prop_assert!(&content(&disk.fork(0).crash(CrashPolicy::KeepAll), "a") == states.last().unwrap());
        for seed in 0..4 {
            let left = content(&disk.fork(seed).crash(CrashPolicy::Random), "a");
            let lengths = || states.iter().map(Vec::len);
            prop_assert!(left.len() >= lengths().min().unwrap() && left.len() <= lengths().max().unwrap());
            for index in 0..left.len().div_ceil(SECTOR_BYTES as usize) {
                // Cut off where the surviving length ends.
                let matches = |state: &Vec<u8>| {
                    let mut cut = state.clone();
                    cut.truncate(left.len());
                    sector(&cut, index) == sector(&left, index)
                };
                prop_assert!(states.iter().any(matches), "sector {index} is in a state that it never had");
            }
        }
    }
}

/// A mixed life of several files; `seed` also decides the crash.
fn history(seed: u64) -> BTreeMap<String, Vec<u8>> {
    let disk = SimulatedDisk::new(seed);
    let directory = disk.directory();
    for number in 0..6u8 {
        let name = format!("file-{number}");
        let file = directory.open(&name, OpenMode::CreateNew, false).unwrap();
        file.write_at(&vec![number + 1; 20_000], 0).unwrap();
        if number % 2 == 0 {
            file.sync().unwrap();
            directory.sync().unwrap();
        }
        file.write_at(&vec![number + 100; 10_000], 5_000).unwrap();
    }
    directory.rename("file-0", "renamed").unwrap();
    directory.remove("file-2").unwrap();
    all(&disk.crash(CrashPolicy::Random))
}

#[test]
fn the_same_seed_leaves_the_same_bytes() {
    for seed in 0..10 {
        assert_eq!(history(seed), history(seed));
    }
    let mut outcomes: Vec<_> = (0..10).map(history).collect();
    outcomes.dedup();
    assert!(outcomes.len() > 5, "different seeds leave different bytes");
}

#[test]
fn a_random_crash_sometimes_reorders_and_tears() {
    let (mut reordered, mut torn_sector, mut torn_page) = (false, false, false);
    for seed in 0..200 {
        let disk = SimulatedDisk::new(seed);
        let file = create(&disk.directory(), "a");
        file.write_at(&[0; 16_384], 0).unwrap();
        file.sync().unwrap();
        file.write_at(&[1; 8192], 0).unwrap();
        file.write_at(&[2; 8192], 8192).unwrap();
        let left = content(&disk.crash(CrashPolicy::Random), "a");
        let first = &left[..8192];
        reordered |= first.iter().all(|&byte| byte == 0) && left[8192..].contains(&2);
        torn_sector |= first[..4096].contains(&0) && first[..4096].contains(&1);
        torn_page |=
            first[..4096].iter().all(|&byte| byte == 0) && first[4096..].iter().all(|&byte| byte == 1);
    }
    assert!(reordered && torn_sector && torn_page);
}

#[test]
fn a_file_whose_name_was_not_synced_may_vanish_though_its_bytes_were() {
    let disk = SimulatedDisk::new(1);
    let file = disk.directory().open("a", OpenMode::CreateNew, false).unwrap();
    file.write_durable_at(b"synced", 0).unwrap();
    assert!(all(&disk.fork(0).crash(CrashPolicy::LoseAll)).is_empty());
    assert_eq!(all(&disk.crash(CrashPolicy::KeepAll))["a"], b"synced");
}

#[test]
fn removals_and_renames_are_undone_unless_synced() {
    let disk = SimulatedDisk::new(1);
    let directory = disk.directory();
    for name in ["a", "b", "c"] {
        create(&directory, name).write_durable_at(name.as_bytes(), 0).unwrap();
    }
    directory.remove("a").unwrap();
    directory.rename("b", "c").unwrap();
    let lost = all(&disk.fork(0).crash(CrashPolicy::LoseAll));
    assert_eq!(lost.into_iter().collect::<Vec<_>>(), ["a", "b", "c"].map(|name| (name.into(), name.into())));
    directory.sync().unwrap();
    let kept = all(&disk.crash(CrashPolicy::LoseAll));
    assert_eq!(kept.into_iter().collect::<Vec<_>>(), [("c".into(), b"b".to_vec())]);
}

/// A rename over an existing file is the usual atomic replacement: some file is there in every outcome, whole.
#[test]
fn an_unsynced_rename_is_atomic() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let disk = SimulatedDisk::new(seed);
        let directory = disk.directory();
        create(&directory, "current").write_durable_at(b"old", 0).unwrap();
        let new = directory.open("new", OpenMode::CreateNew, false).unwrap();
        new.write_durable_at(b"new", 0).unwrap();
        directory.rename("new", "current").unwrap();
        outcomes.insert(content(&disk.crash(CrashPolicy::Random), "current"));
    }
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), [b"new", b"old"]);
}

#[test]
fn a_crash_ends_handles_and_locks() {
    let disk = SimulatedDisk::new(1);
    let directory = disk.directory();
    let file = create(&directory, "a");
    let lock = directory.lock().unwrap();
    let after = disk.crash(CrashPolicy::KeepAll);
    assert!(file.write_at(b"x", 0).unwrap_err().is_stopped());
    assert!(file.read_at(&mut [], 0).unwrap_err().is_stopped());
    assert!(directory.list().unwrap_err().is_stopped());
    let second = after.lock().unwrap();
    drop(lock);
    assert!(after.lock().is_err(), "the old machine's lock gives nothing back");
    drop(second);
}

#[test]
fn a_crash_while_a_file_is_removed_in_pieces_leaves_whole_pieces_from_its_beginning() {
    const PIECE: usize = 8192;
    let disk = SimulatedDisk::new(1);
    let file = create(&disk.directory(), "a");
    let written: Vec<u8> = (0..5 * PIECE - 100).map(|at| (at / 100) as u8).collect();
    file.write_durable_at(&written, 0).unwrap();
    file.sync().unwrap();
    let left: Arc<Mutex<Vec<Option<usize>>>> = Arc::default();
    let noted = Arc::clone(&left);
    let whole = written.clone();
    disk.watch(move |moment| {
        for policy in CrashPolicy::ALL {
            for disk in [&moment.before, &moment.during] {
                let files = all(&disk.fork(noted.lock().unwrap().len() as u64).crash(policy));
                let length = files.get("a").map(|bytes| {
                    assert!(bytes[..] == whole[..bytes.len()]);
                    bytes.len()
                });
                noted.lock().unwrap().push(length);
            }
        }
    });
    disk.directory().remove_in_pieces("a", file, PIECE as u64).unwrap();
    disk.directory().sync().unwrap();
    let mut left = left.lock().unwrap().clone();
    assert_eq!(disk.used_bytes(), 0);
    left.sort_unstable();
    left.dedup();
    let pieces = [1, 2, 3, 4].map(|pieces| Some(pieces * PIECE));
    assert_eq!(left, [&[None], &pieces[..], &[Some(written.len())]].concat());
    let moments =
        [Operation::Shorten, Operation::Sync, Operation::Remove].map(|operation| disk.count(operation));
    assert_eq!(moments, [4, 5, 1], "with the sync before");
}
