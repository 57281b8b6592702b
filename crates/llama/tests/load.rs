//! Loading pages, alone and together.

mod harness;

use deuteron_device::{
    Directory, FaultKind, FaultPlan, MemoryDirectory, Operation, OsDirectory, SimulatedDisk,
};
use deuteron_epoch::Epochs;
use deuteron_llama::{
    FlushProgress, Llama, LlamaError, Options, OwnedNode, PageDescriptor, PageId, PageState,
};
use harness::steps::evict;
use harness::watched::Watched;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn open(directory: Arc<dyn Directory>) -> Llama {
    let options = Options { fragments_max: 8, segment_bytes: 256 << 10, ..Options::default() };
    Llama::open(directory, options, Epochs::new()).unwrap().0
}

fn put(llama: &Llama, page: PageId, payload: &[u8]) {
    let guard = llama.pin();
    let snapshot = llama.snapshot(page, &guard);
    let node = if snapshot.is_free() {
        let low_key = page.to_string();
        OwnedNode::base(payload, PageDescriptor { tree: 1, low_key: low_key.as_bytes(), root: true }, &[])
    } else {
        OwnedNode::delta(payload)
    };
    llama.install(page, snapshot, node, &guard).unwrap();
}

/// `count` pages; page number `n` has `n % 4 + 1` fragments, and none is in memory.
fn pages_on_flash(llama: &Llama, count: usize) -> Vec<PageId> {
    pages_of(llama, count, |number| number % 4 + 1)
}

/// `count` pages of so many fragments each, and none is in memory.
fn pages_of(llama: &Llama, count: usize, fragments: impl Fn(usize) -> usize) -> Vec<PageId> {
    let pages: Vec<_> = (0..count).map(|_| llama.allocate()).collect();
    for layer in 0..5 {
        for (number, &page) in pages.iter().enumerate().filter(|&(number, _)| fragments(number) > layer) {
            put(llama, page, &content(number, layer));
        }
        while llama.flush_step().unwrap() != FlushProgress::Nothing {}
        // What is in memory as a whole is written in full sooner.
        evict(llama);
    }
    pages
}

fn text(number: usize, layer: usize) -> Vec<u8> {
    format!("{number}.{layer} ").into_bytes()
}

/// The deltas take less than the base, all together: else the page is written in full before it has as many fragments as it may have.
fn content(number: usize, layer: usize) -> Vec<u8> {
    text(number, layer).repeat(if layer == 0 { 1600 } else { 400 })
}

fn assert_resident(llama: &Llama, pages: &[PageId]) {
    let guard = llama.pin();
    for (number, &page) in pages.iter().enumerate() {
        let head = llama.snapshot(page, &guard).head();
        let payloads: Vec<_> =
            std::iter::successors(head, |node| node.next()).map(|node| node.payload().to_vec()).collect();
        let expected: Vec<_> = (0..=number % 4).rev().map(|layer| content(number, layer)).collect();
        assert!(payloads == expected, "{page}");
    }
}

#[test]
fn pages_of_many_fragments_are_loaded_together_neighbours_with_one_read() {
    let scratch = tempfile::tempdir().unwrap();
    let disk = SimulatedDisk::new(1);
    let directories: [Arc<dyn Directory>; 4] = [
        Arc::new(disk.directory()),
        Arc::new(MemoryDirectory::new()),
        Arc::new(OsDirectory::open_or_create(scratch.path().join("ring")).unwrap()),
        Arc::new(OsDirectory::open_or_create(scratch.path().join("alone")).unwrap().without_io_uring()),
    ];
    for directory in directories {
        let llama = open(directory);
        let pages = pages_on_flash(&llama, 150);
        let before = disk.count(Operation::Read);
        llama.load_many(&pages).unwrap();
        assert_resident(&llama, &pages);
        let statistics = llama.statistics();
        assert_eq!((statistics.loads, statistics.loads_together), (150, 1));
        assert_eq!(statistics.fragments_read, (0..150).map(|number| number % 4 + 1).sum::<u64>());
        // Of the simulated disk or of another.
        let reads = disk.count(Operation::Read) - before;
        assert!(reads < statistics.fragments_read / 8, "{reads}");
        // What is in memory is not read again; the same page twice is one page.
        llama.load_many(&pages).unwrap();
        assert_eq!(llama.statistics().loads, 150);
        evict(&llama);
        llama.load_many(&[pages[3], pages[4], pages[3]]).unwrap();
        assert_eq!(llama.statistics().loads, 152);
        llama.load_many(&[]).unwrap();
    }
}

#[test]
fn the_neighbours_of_a_page_come_with_it_while_memory_has_room() {
    let disk = SimulatedDisk::new(1);
    let llama = open(Arc::new(disk.directory()));
    // Pages 1 to 40, of which each fifth has a fragment more.
    let pages = pages_of(&llama, 40, |number| 1 + usize::from(number % 5 == 0));
    let read = |page: PageId| {
        let before = (llama.statistics().loads, disk.count(Operation::Read));
        llama.load_neighbours(page);
        llama.load(page).unwrap();
        (llama.statistics().loads - before.0, disk.count(Operation::Read) - before.1)
    };
    // Of 16 to 23, numbers 15 to 22, two have two fragments.
    assert_eq!(read(pages[18]), (6, 1));
    assert_eq!(read(pages[18]), (0, 0));
    // One of several fragments comes alone.
    assert_eq!(read(pages[20]).0, 1);
    assert_eq!(read(pages[0]).0, 1);
    // Pages 1 to 7: what is there already is left out.
    assert_eq!(read(pages[3]), (5, 1));
    // With memory for as much as there is nothing is read besides.
    llama.set_memory_budget(llama.memory_bytes() * 9 / 8);
    llama.recount(0);
    assert!(!llama.has_room());
    assert_eq!(read(pages[31]), (1, 1));
    let guard = llama.pin();
    for (number, &page) in
        pages.iter().enumerate().filter(|&(number, _)| (15..23).contains(&number) && number % 5 > 0)
    {
        assert_eq!(llama.snapshot(page, &guard).head().unwrap().payload(), content(number, 0), "{page}");
    }
}

/// Full fragments of 3888 bytes nearly fill a block each, those of 2976 do not, but for a few that happen to end just before a block's end.
#[test]
fn a_page_that_nearly_fills_a_block_lies_in_one() {
    // The buffer's header takes 128 bytes of the first block.
    for (payload, bytes) in
        [(3800, 50 * 4096 - 128..=50 * 4096 - 128), (2900, 50 * 2976..=50 * 2976 + 5 * 186)]
    {
        let llama = open(Arc::new(MemoryDirectory::new()));
        let pages: Vec<_> = (0..50).map(|_| llama.allocate()).collect();
        pages.iter().for_each(|&page| put(&llama, page, &vec![7; payload]));
        while llama.flush_step().unwrap() != FlushProgress::Nothing {}
        let live = llama.statistics().live_bytes;
        assert!(bytes.contains(&live), "{live}");
        evict(&llama);
        llama.load_many(&pages).unwrap();
        let guard = llama.pin();
        for &page in &pages {
            assert_eq!(llama.snapshot(page, &guard).head().unwrap().payload(), vec![7; payload], "{page}");
        }
    }
}

/// Deltas over an address: what is missing is not the newest fragment that the page has.
#[test]
fn what_was_put_on_pages_meanwhile_stays_on_top() {
    let llama = open(Arc::new(MemoryDirectory::new()));
    let pages = pages_on_flash(&llama, 40);
    for &page in &pages {
        put(&llama, page, b"blind, and flushed");
    }
    while llama.flush_step().unwrap() != FlushProgress::Nothing {}
    for &page in &pages {
        put(&llama, page, b"blind");
    }
    llama.load_many(&pages).unwrap();
    let guard = llama.pin();
    for (number, &page) in pages.iter().enumerate() {
        let head = llama.snapshot(page, &guard).head().unwrap();
        assert!(!head.is_partial());
        let payloads: Vec<_> = std::iter::successors(Some(head), |node| node.next())
            .map(|node| node.payload().to_vec())
            .collect();
        let mut expected = vec![b"blind".to_vec(), b"blind, and flushed".to_vec()];
        expected.extend((0..=number % 4).rev().map(|layer| content(number, layer)));
        assert!(payloads == expected, "{page}");
    }
}

#[test]
fn pages_that_a_flush_must_read_are_read_together() {
    let disk = SimulatedDisk::new(1);
    let llama = open(Arc::new(disk.directory()));
    let pages = pages_of(&llama, 200, |number| if number % 5 == 0 { 1 } else { 4 });
    for &page in &pages {
        put(&llama, page, b"blind");
    }
    // On average they have 3.4 fragments, and half of what a page may have, four, when 120 have been flushed. Then the next one that has four is due, and all that have two are read: 121 that have
    // been flushed, and 64 others.
    disk.set_faults(FaultPlan::new().fail(Operation::Read, 0, FaultKind::Refuse));
    while llama.flush_step().unwrap() != FlushProgress::Nothing {}
    let statistics = llama.statistics();
    assert_eq!((statistics.loads, statistics.rows_prepared), (185, 1));
    assert!((1..=5).contains(&statistics.loads_together), "{statistics:?}");
    evict(&llama);
    llama.load_many(&pages).unwrap();
    let guard = llama.pin();
    for &page in &pages {
        let head = llama.snapshot(page, &guard).head().unwrap();
        assert_eq!(head.payload(), b"blind", "{page}");
    }
}

#[test]
fn what_a_flush_must_read_may_be_read_before_it() {
    let llama = open(Arc::new(MemoryDirectory::new()));
    let pages = pages_of(&llama, 100, |number| if number % 4 == 0 { 1 } else { 5 });
    assert!(!llama.prepare_step().unwrap(), "nothing is dirty");
    for &page in &pages {
        put(&llama, page, b"blind");
    }
    // On average they have half of the fragments that a page may have: those that have more.
    assert!(llama.prepare_step().unwrap());
    assert_eq!(llama.statistics().loads, 75);
    assert!(!llama.prepare_step().unwrap(), "there is no more to be read");
    while llama.flush_step().unwrap() != FlushProgress::Nothing {}
    let statistics = llama.statistics();
    assert_eq!((statistics.loads, statistics.rows_prepared, statistics.rows_pages), (75, 1, 75));
    evict(&llama);
    llama.load_many(&pages).unwrap();
    let guard = llama.pin();
    for &page in &pages {
        assert_eq!(llama.snapshot(page, &guard).head().unwrap().payload(), b"blind", "{page}");
    }
}

#[test]
fn a_page_that_cannot_be_loaded_does_not_hinder_the_others() {
    // Neighbours are read at once. If that fails, it is done block by block, in the order in which they lie. A failure of a newest fragment
    // is told, and the page is tried once more alone; an older one is read again when the page is known to need it.
    let refuse = |reads: &[u64]| {
        reads.iter().fold(FaultPlan::new(), |plan, &read| plan.fail(Operation::Read, read, FaultKind::Refuse))
    };
    let load = |plan: FaultPlan| {
        let disk = SimulatedDisk::new(1);
        let llama = open(Arc::new(disk.directory()));
        let pages = pages_on_flash(&llama, 20);
        disk.set_faults(plan);
        let before = disk.count(Operation::Read);
        let outcome = llama.load_many(&pages);
        let (loaded, reads) = (llama.statistics().loads, disk.count(Operation::Read) - before);
        disk.set_faults(FaultPlan::new());
        llama.load_many(&pages).unwrap();
        assert_resident(&llama, &pages);
        match outcome {
            Ok(()) => (loaded, reads, false),
            Err(LlamaError::Device(_)) => (loaded, reads, true),
            Err(other) => panic!("{other:?}"),
        }
    };
    let (loaded, reads, failed) = load(refuse(&[0]));
    assert_eq!((loaded, failed), (20, false));
    let tried = [1, 2, 3, 4, 5].map(|read| load(refuse(&[0, read])));
    assert!(tried.iter().all(|tried| tried.0 == 20 && tried.1 > reads), "{tried:?}");
    assert_eq!(tried.map(|tried| tried.2), [true, true, false, false, false]);
    let (loaded, _, failed) = load(refuse(&[0]).fail_from(Operation::Read, 3, FaultKind::Refuse));
    assert!(failed && (1..20).contains(&loaded), "{loaded}");
    // A flipped bit in one of them.
    let disk = SimulatedDisk::new(1);
    let llama = open(Arc::new(disk.directory()));
    let pages = pages_on_flash(&llama, 20);
    disk.flip_bits("store-0000000000000000.seg", 20_000, 1).unwrap();
    let error = llama.load_many(&pages).unwrap_err();
    assert!(matches!(error, LlamaError::Corrupt { .. }), "{error:?}");
    let guard = llama.pin();
    let missing = |page: &&PageId| matches!(llama.snapshot(**page, &guard).state(), PageState::Stored(_));
    assert_eq!(pages.iter().filter(missing).count(), 1);
}

#[test]
fn a_page_is_read_once_however_many_wait_for_it() {
    const THREADS: u64 = 6;
    let asking = Arc::new(AtomicU64::new(0));
    let enough = Arc::new(AtomicU64::new(0));
    // Reads wait until all threads that want something have had time to ask for it.
    let slow = Watched::new(MemoryDirectory::new(), {
        let (asking, enough) = (Arc::clone(&asking), Arc::clone(&enough));
        move || {
            while asking.load(Ordering::SeqCst) < enough.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            (0..200).for_each(|_| std::thread::yield_now());
        }
    });
    let llama = open(Arc::clone(&slow) as Arc<dyn Directory>);
    let pages = pages_on_flash(&llama, 12);
    slow.reads.store(0, Ordering::SeqCst);
    enough.store(THREADS, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for thread in 0..THREADS as usize {
            let (llama, asking, mut pages) = (&llama, &asking, pages.clone());
            scope.spawn(move || {
                asking.fetch_add(1, Ordering::SeqCst);
                // In different orders, alone and together.
                pages.rotate_left(thread * 2);
                if thread % 2 == 0 {
                    llama.load_many(&pages).unwrap();
                } else {
                    pages.iter().for_each(|&page| llama.load(page).unwrap());
                }
            });
        }
    });
    assert_resident(&llama, &pages);
    assert_eq!(llama.statistics().loads, 12);
    assert!(slow.reads.load(Ordering::SeqCst) <= 3 * (1 + 2 + 3 + 4));
}
