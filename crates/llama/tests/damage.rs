//! Pages that cannot be read take changes, are flushed as what is known of them, and are in nobody's way.

mod harness;

use deuteron_device::{CrashPolicy, Directory, OpenMode, SimulatedDisk};
use deuteron_epoch::Epochs;
use deuteron_llama::{
    AccessMethod, CheckpointProgress, FlushProgress, Llama, LlamaError, NodeKind, Options, OwnedNode,
    PageDescriptor, PageId,
};
use harness::steps::checkpoint;
use std::collections::HashSet;
use std::iter::successors;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

fn open(directory: impl Directory + 'static, options: &Options) -> Llama {
    Llama::open(Arc::new(directory), options.clone(), Epochs::new()).unwrap().0
}

fn text(page: PageId, number: usize) -> Vec<u8> {
    format!("{page} number {number:08}").into_bytes()
}

fn put(llama: &Llama, page: PageId, payload: &[u8]) {
    let guard = llama.pin();
    let snapshot = llama.snapshot(page, &guard);
    let descriptor = PageDescriptor { tree: 1, low_key: &page.0.to_be_bytes(), root: true };
    let node = match snapshot.is_free() {
        true => OwnedNode::base(payload, descriptor, &[]),
        false => OwnedNode::delta(payload),
    };
    llama.install(page, snapshot, node, &guard).unwrap();
}

/// What the page holds, oldest first; each once, though it may have been flushed twice.
fn content(llama: &Llama, page: PageId) -> Vec<Vec<u8>> {
    let guard = llama.pin();
    let head = llama.snapshot(page, &guard).head();
    let mut nodes: Vec<_> =
        successors(head, |node| node.next()).map(|node| node.payload().to_vec()).collect();
    nodes.reverse();
    nodes.dedup();
    nodes
}

fn evict(llama: &Llama) {
    for _ in 0..4 {
        llama.evict_step(u64::MAX);
    }
}

/// In which file these bytes lie, and where; the last place.
fn find(disk: &SimulatedDisk, payload: &[u8]) -> (String, u64) {
    let directory = disk.directory();
    let mut found = Vec::new();
    for name in directory.list().unwrap().into_iter().filter(|name| name.ends_with(".seg")) {
        let file = directory.open(&name, OpenMode::Read, false).unwrap();
        let mut bytes = vec![0; file.length().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        let places = bytes.windows(payload.len()).enumerate().filter(|(_, window)| *window == payload);
        found.extend(places.map(|(at, _)| (name.clone(), at as u64)));
    }
    found.pop().expect("it is durable")
}

fn is_corrupt<T>(result: Result<T, LlamaError>) -> bool {
    matches!(result, Err(LlamaError::Corrupt { .. }))
}

/// A page whose base has rotted, or a fragment above it, takes hundreds of changes beside another one, over checkpoints, cleaning and openings; and when it can be read again
/// all of them are there.
#[test]
fn a_rotten_page_is_in_nobodys_way_and_loses_nothing() {
    for (fragments_max, rotten, rounds) in
        [(2, 0, 90), (4, 0, 90), (4, 2, 90), (25, 0, 200), (25, 11, 200), (25, 24, 200)]
    {
        let options = Options { fragments_max, ..Options::tiny_for_tests() };
        let disk = SimulatedDisk::new(1);
        let mut llama = open(disk.directory(), &options);
        let pages = [1, 2].map(|_| llama.allocate());
        let [broken, sound] = pages;
        let mut expected = [vec![], vec![]];
        // The base is long enough for the deltas.
        let payload = |page, number| match number {
            0 => [text(page, 0), vec![7; 3000]].concat(),
            _ => text(page, number),
        };
        for number in 0..=rotten {
            for (page, expected) in pages.into_iter().zip(&mut expected) {
                put(&llama, page, &payload(page, number));
                expected.push(payload(page, number));
            }
            checkpoint(&llama, &pages);
            evict(&llama);
        }
        let (file, at) = find(&disk, &text(broken, rotten));
        disk.flip_bits(&file, at, 4).unwrap();
        assert!(is_corrupt(llama.load(broken)));
        for number in rotten + 1..rounds {
            for (page, expected) in pages.into_iter().zip(&mut expected) {
                put(&llama, page, &payload(page, number));
                expected.push(payload(page, number));
            }
            match number % 5 {
                0 => checkpoint(&llama, &pages),
                1 => while llama.flush_step().unwrap() != FlushProgress::Nothing {},
                2 => while llama.prepare_step().unwrap() {},
                _ => {}
            }
            while llama.clean_step().unwrap() {}
            if number % 3 != 0 {
                evict(&llama);
            }
            if number % 40 == 39 {
                checkpoint(&llama, &pages);
                drop(llama);
                llama = open(disk.crash(CrashPolicy::LoseAll), &options);
                assert!(is_corrupt(llama.load(broken)));
            }
            llama.load(sound).unwrap();
            assert_eq!(content(&llama, sound), expected[1]);
            assert!(is_corrupt(llama.load(broken)));
        }
        disk.flip_bits(&file, at, 4).unwrap();
        for _ in 0..2 {
            llama.load(broken).unwrap();
            assert_eq!(content(&llama, broken), expected[0]);
            put(&llama, broken, b"more");
            put(&llama, broken, b"more");
            checkpoint(&llama, &pages);
            drop(llama);
            llama = open(disk.crash(CrashPolicy::LoseAll), &options);
            expected[0].push(b"more".to_vec());
            llama.load(broken).unwrap();
            let guard = llama.pin();
            let head = llama.snapshot(broken, &guard).head().unwrap();
            assert_eq!(successors(Some(head), |node| node.next()).last().unwrap().kind(), NodeKind::Base);
            expected[0].dedup();
        }
    }
}

/// A segment that was chosen to be emptied, and was not, as a page in it could not be read, is emptied when it can be.
#[test]
fn what_could_not_be_cleaned_is_cleaned_later() {
    let options = Options::tiny_for_tests();
    let disk = SimulatedDisk::new(2);
    let llama = open(disk.directory(), &options);
    let pages: Vec<_> = (0..30).map(|_| llama.allocate()).collect();
    let broken = pages[0];
    let write = |from: usize, rounds: usize| {
        for round in 0..rounds {
            // New bases: the old ones are dead.
            for &page in &pages[from..] {
                let guard = llama.pin();
                let descriptor = PageDescriptor { tree: 1, low_key: &page.0.to_be_bytes(), root: true };
                let base = OwnedNode::base(&[text(page, round), vec![7; 2000]].concat(), descriptor, &[]);
                llama.install(page, llama.snapshot(page, &guard), base, &guard).unwrap();
            }
            checkpoint(&llama, &pages);
            evict(&llama);
            while llama.clean_step().unwrap() {}
        }
    };
    let is_there = |file: &String| disk.directory().list().unwrap().contains(file);
    write(0, 1);
    let (file, at) = find(&disk, &text(broken, 0));
    disk.flip_bits(&file, at, 4).unwrap();
    let cleaned = llama.statistics().segments_cleaned;
    write(1, 20);
    assert!(is_there(&file) && llama.statistics().segments_cleaned > cleaned);
    disk.flip_bits(&file, at, 4).unwrap();
    write(1, 20);
    assert!(!is_there(&file));
    llama.load(broken).unwrap();
    assert_eq!(content(&llama, broken), [[text(broken, 0), vec![7; 2000]].concat()]);
}

/// Readers, writers and who makes room, beside flushes that unite what is known of a page.
#[test]
fn a_rotten_page_is_read_written_and_flushed_at_the_same_time() {
    const DELTAS: usize = 3000;
    let options = Options { segment_bytes: 1 << 20, ..Options::tiny_for_tests() };
    let disk = SimulatedDisk::new(3);
    let llama = open(disk.directory(), &options);
    let page = llama.allocate();
    let base = [text(page, 0), vec![7; 3000]].concat();
    put(&llama, page, &base);
    checkpoint(&llama, &[page]);
    evict(&llama);
    let (file, at) = find(&disk, &text(page, 0));
    disk.flip_bits(&file, at, 4).unwrap();
    assert!(is_corrupt(llama.load(page)));
    let is_done = AtomicBool::new(false);
    let until_done = |work: &dyn Fn()| {
        while !is_done.load(Ordering::Relaxed) {
            work();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| until_done(&|| assert!(is_corrupt(llama.load(page)))));
        scope.spawn(|| until_done(&|| assert!(llama.evict_step(1 << 20).pages < 1000)));
        scope.spawn(|| until_done(&|| assert!(llama.flush_step().is_ok())));
        scope.spawn(|| until_done(&|| assert!(llama.prepare_step().is_ok())));
        for number in 1..DELTAS {
            let payload = text(page, number);
            let guard = llama.pin();
            let write = |bytes: &mut [u8]| bytes.copy_from_slice(&payload);
            while llama
                .install_delta(page, llama.snapshot(page, &guard), payload.len(), write, &guard)
                .is_none()
            {}
            drop(guard);
            if number % 20 == 0 {
                thread::yield_now();
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    checkpoint(&llama, &[page]);
    drop(llama);
    disk.flip_bits(&file, at, 4).unwrap();
    let llama = open(disk.crash(CrashPolicy::LoseAll), &options);
    llama.load(page).unwrap();
    let mut expected: Vec<_> = (1..DELTAS).map(|number| text(page, number)).collect();
    expected.insert(0, base);
    // What was copied just before a flush took it was flushed twice.
    let mut found = content(&llama, page);
    let mut seen = HashSet::new();
    found.retain(|payload| seen.insert(payload.clone()));
    assert!(found == expected, "{} of {}", found.len(), expected.len());
}

/// Each fragment that it gets rots: the next lies on that one. When there is room for no other, the page alone is not flushed, which a round says when it has flushed all others; and nothing is lost.
#[test]
fn a_page_whose_newest_fragments_rot_one_after_the_other_holds_nobody_up() {
    let options = Options { fragments_max: 25, segment_bytes: 256 << 10, ..Options::tiny_for_tests() };
    let disk = SimulatedDisk::new(4);
    let mut llama = open(disk.directory(), &options);
    let pages = [1, 2].map(|_| llama.allocate());
    let broken = pages[0];
    let mut expected = [vec![], vec![]];
    let mut rotten = Vec::new();
    let mut number = 0;
    let mut write = |llama: &Llama| {
        for (page, expected) in pages.into_iter().zip(&mut expected) {
            let payload = match number {
                0 => [text(page, 0), vec![7; 3000]].concat(),
                _ => text(page, number),
            };
            put(llama, page, &payload);
            expected.push(payload);
        }
        number += 1;
        number - 1
    };
    let flush = |llama: &Llama| {
        while llama.flush_step().unwrap() != FlushProgress::Nothing {}
        while llama.prepare_step().unwrap() {}
        let mut round = llama.flush_round().unwrap();
        loop {
            match llama.flush_round_step(&mut round) {
                Ok(CheckpointProgress::Done) => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        }
    };
    loop {
        let newest = write(&llama);
        if flush(&llama).is_err() {
            break;
        }
        checkpoint(&llama, &pages);
        if newest == 10 {
            drop(llama);
            llama = open(disk.crash(CrashPolicy::LoseAll), &options);
        }
        evict(&llama);
        let (file, at) = find(&disk, &text(broken, newest));
        disk.flip_bits(&file, at, 4).unwrap();
        rotten.push((file, at));
        assert!(is_corrupt(llama.load(broken)));
        while llama.clean_step().unwrap() {}
    }
    assert!(rotten.len() > 18, "{rotten:?}");
    for _ in 0..3 {
        write(&llama);
        evict(&llama);
        assert!(is_corrupt(flush(&llama)));
        // The other one is.
        assert_eq!(llama.dirty_pages(), 1);
        assert_eq!(llama.unreadable_pages(), [broken]);
        while llama.clean_step().unwrap() {}
    }
    let repair = |(file, at): (String, u64)| disk.flip_bits(&file, at, 4).unwrap();
    repair(rotten.pop().unwrap());
    checkpoint(&llama, &pages);
    drop(llama);
    let llama = open(disk.crash(CrashPolicy::LoseAll), &options);
    assert!(is_corrupt(llama.load(broken)));
    rotten.into_iter().for_each(repair);
    for (page, expected) in pages.into_iter().zip(expected) {
        llama.load(page).unwrap();
        assert_eq!(content(&llama, page), expected);
    }
    assert!(llama.unreadable_pages().is_empty());
}

/// Consolidates a page as its newest change.
struct Newest(Mutex<Weak<Llama>>);

impl AccessMethod for Newest {
    fn consolidate(&self, page: PageId) {
        let llama = self.0.lock().unwrap().upgrade().unwrap();
        let guard = llama.pin();
        let snapshot = llama.snapshot(page, &guard);
        let descriptor = PageDescriptor { tree: 1, low_key: &page.0.to_be_bytes(), root: true };
        let base = OwnedNode::base(snapshot.head().unwrap().payload(), descriptor, &[]);
        llama.install(page, snapshot, base, &guard).unwrap();
    }
}

/// More than one fragment takes, while there was room in the list for further fragments. No flush that met the page succeeded.
#[test]
fn a_page_that_was_rotten_between_two_flushes_is_flushed_whatever_it_has_taken() {
    for is_mended in [false, true] {
        let options = Options::tiny_for_tests();
        let disk = SimulatedDisk::new(5);
        let llama = Arc::new(open(disk.directory(), &options));
        let method = Arc::new(Newest(Mutex::new(Arc::downgrade(&llama))));
        let weak: Weak<Newest> = Arc::downgrade(&method);
        llama.set_access_method(weak);
        let page = llama.allocate();
        put(&llama, page, &text(page, 0));
        checkpoint(&llama, &[page]);
        evict(&llama);
        let (file, at) = find(&disk, &text(page, 0));
        disk.flip_bits(&file, at, 4).unwrap();
        assert!(is_corrupt(llama.load(page)));
        let payload = |number| [text(page, number), vec![7; 1000]].concat();
        (1..100).for_each(|number| put(&llama, page, &payload(number)));
        if is_mended {
            disk.flip_bits(&file, at, 4).unwrap();
            llama.load(page).unwrap();
        }
        while llama.flush_step().unwrap() != FlushProgress::Nothing {}
        checkpoint(&llama, &[page]);
        drop(llama);
        if !is_mended {
            disk.flip_bits(&file, at, 4).unwrap();
        }
        let llama = open(disk.crash(CrashPolicy::LoseAll), &options);
        llama.load(page).unwrap();
        // It was consolidated if it could be read.
        let expected: Vec<_> = match is_mended {
            true => vec![payload(99)],
            false => std::iter::once(text(page, 0)).chain((1..100).map(payload)).collect(),
        };
        assert!(content(&llama, page) == expected);
    }
}
