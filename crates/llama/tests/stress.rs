//! Threads that install, load, flush, evict, checkpoint and clean at once.

use deuteron_device::{Directory, MemoryDirectory};
use deuteron_epoch::Epochs;
use deuteron_llama::{
    AccessMethod, CheckpointProgress, FlushProgress, Llama, NodeKind, NodeRef, Options, OwnedNode,
    PageDescriptor, PageId, PageState,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGES: u64 = 48;
const WRITERS: usize = 3;
const RUN: Duration = Duration::from_millis(1500);

/// The highest count of each writer on the chain; `None` if it is not whole.
fn counts(head: NodeRef<'_>) -> Option<[u64; WRITERS]> {
    if head.is_partial() {
        return None;
    }
    let mut counts = [0; WRITERS];
    for node in std::iter::successors(Some(head), |node| node.next()) {
        for pair in node.payload().chunks_exact(16) {
            let writer = u64::from_le_bytes(pair[..8].try_into().unwrap()) as usize;
            counts[writer] = counts[writer].max(u64::from_le_bytes(pair[8..].try_into().unwrap()));
        }
    }
    Some(counts)
}

fn payload(counts: &[u64; WRITERS]) -> Vec<u8> {
    // Repeated, so that a page weighs something.
    let pairs = counts.iter().enumerate().flat_map(|(writer, &count)| [writer as u64, count]);
    pairs.collect::<Vec<u64>>().repeat(10).iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn base(page: PageId, counts: &[u64; WRITERS]) -> OwnedNode {
    let low_key = page.0.to_be_bytes();
    OwnedNode::base(&payload(counts), PageDescriptor { tree: 1, low_key: &low_key, root: true }, &[])
}

fn read(llama: &Llama, page: PageId) -> [u64; WRITERS] {
    loop {
        {
            let guard = llama.pin();
            if let PageState::Resident(head) = llama.snapshot(page, &guard).state()
                && let Some(counts) = counts(head)
            {
                return counts;
            }
        }
        llama.load(page).unwrap();
    }
}

/// Puts the next count of `writer` on the page, and consolidates now and then.
fn write(llama: &Llama, page: PageId, writer: usize, count: u64) {
    let mut delta = [0; 16];
    delta[..8].copy_from_slice(&(writer as u64).to_le_bytes());
    delta[8..].copy_from_slice(&count.to_le_bytes());
    let mut delta = OwnedNode::delta(&delta);
    loop {
        let guard = llama.pin();
        let snapshot = llama.snapshot(page, &guard);
        match llama.install(page, snapshot, delta, &guard) {
            Ok(installed) => {
                let head = installed.head().unwrap();
                assert_eq!(head.kind(), NodeKind::Delta);
                if head.chain_length() > 6
                    && let Some(counts) = counts(head)
                {
                    // If it is lost, so be it.
                    let _ = llama.install(page, installed, base(page, &counts), &guard);
                }
                return;
            }
            Err(back) => delta = back,
        }
    }
}

fn checkpoint(llama: &Llama) {
    let mut checkpoint = llama.checkpoint_begin(b"stress").unwrap();
    while llama.checkpoint_flush_step(&mut checkpoint).unwrap() != CheckpointProgress::Done {
        std::thread::yield_now();
    }
    for page in (1..=PAGES).map(PageId) {
        llama.checkpoint_add(&mut checkpoint, 1, &page.0.to_be_bytes(), page).unwrap();
    }
    llama.checkpoint_finish(checkpoint).unwrap();
}

/// Consolidates when the flusher asks for it.
struct Toy(Arc<Llama>);

impl AccessMethod for Toy {
    fn consolidate(&self, page: PageId) {
        let guard = self.0.pin();
        let snapshot = self.0.snapshot(page, &guard);
        if let Some(counts) = snapshot.head().and_then(counts) {
            // If it is lost, so be it.
            let _ = self.0.install(page, snapshot, base(page, &counts), &guard);
        }
    }
}

#[test]
fn every_writer_finds_its_own_writes_under_flush_eviction_and_cleaning() {
    let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let options = Options { memory_bytes: 16 << 10, ..Options::tiny_for_tests() };
    let epochs = Epochs::with_threshold(16 << 10);
    let (llama, _) = Llama::open(Arc::clone(&directory), options.clone(), epochs).unwrap();
    let llama = Arc::new(llama);
    let toy: Arc<dyn AccessMethod> = Arc::new(Toy(Arc::clone(&llama)));
    llama.set_access_method(Arc::downgrade(&toy));
    for _ in 0..PAGES {
        let page = llama.allocate();
        let guard = llama.pin();
        llama.install(page, llama.snapshot(page, &guard), base(page, &[0; WRITERS]), &guard).unwrap();
    }
    let stop = AtomicBool::new(false);
    let written: [AtomicU64; WRITERS] = Default::default();
    std::thread::scope(|scope| {
        let (llama, stop) = (&llama, &stop);
        for (writer, written) in written.iter().enumerate() {
            scope.spawn(move || {
                let mut last = vec![0u64; PAGES as usize + 1];
                let mut random = writer as u64 + 1;
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let page = PageId(1 + (random >> 33) % PAGES);
                    count += 1;
                    write(llama, page, writer, count);
                    last[page.0 as usize] = count;
                    if random >> 60 == 0 {
                        assert_eq!(read(llama, page)[writer], count);
                    }
                    while llama.over_budget() {
                        if llama.evict_step(4096).pages == 0 {
                            llama.flush_step().unwrap();
                        }
                    }
                }
                for page in 1..=PAGES {
                    assert_eq!(read(llama, PageId(page))[writer], last[page as usize], "page {page}");
                }
                written.store(count, Ordering::Relaxed);
            });
        }
        scope.spawn(move || {
            let end = Instant::now() + RUN;
            while Instant::now() < end {
                llama.flush_step().unwrap();
                llama.clean_step().unwrap();
                llama.evict_step(2048);
                checkpoint(llama);
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
    while llama.flush_step().unwrap() != FlushProgress::Nothing {}
    let expected: Vec<_> = (1..=PAGES).map(|page| read(&llama, PageId(page))).collect();
    while {
        checkpoint(&llama);
        llama.clean_step().unwrap()
    } {}
    let statistics = llama.statistics();
    assert!(statistics.pages_evicted > 0 && statistics.loads > 0 && statistics.segments_removed > 0);
    let segments_max = 2 * statistics.live_bytes / options.segment_bytes + 3;
    assert!(statistics.segments <= segments_max, "{statistics:?}");
    assert!(statistics.live_bytes < PAGES * 2048, "the deltas have been consolidated: {statistics:?}");
    println!("{written:?} {statistics:?}");
    drop((toy, llama));
    let (llama, recovered) = Llama::open(directory, options, Epochs::new()).unwrap();
    assert_eq!(recovered.user_data, b"stress");
    assert_eq!(recovered.pages.len(), PAGES as usize);
    let found: Vec<_> = (1..=PAGES).map(|page| read(&llama, PageId(page))).collect();
    assert_eq!(found, expected);
}
