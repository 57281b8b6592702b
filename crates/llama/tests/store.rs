//! The store at its limits, and on real files.

mod harness;

use deuteron_device::{CrashPolicy, MemoryDirectory, OsDirectory, SimulatedDisk};
use deuteron_epoch::Epochs;
use deuteron_llama::{
    CheckpointProgress, FlushProgress, Llama, LlamaError, Options, OwnedNode, PageDescriptor, PageId,
};
use harness::{Harness, Random};
use std::sync::Arc;

fn install(llama: &Llama, page: PageId, payload: &[u8]) {
    let guard = llama.pin();
    let descriptor = PageDescriptor { tree: 1, low_key: &page.0.to_be_bytes(), root: true };
    let base = OwnedNode::base(payload, descriptor, &[]);
    llama.install(page, llama.snapshot(page, &guard), base, &guard).unwrap();
}

fn payload(llama: &Llama, page: PageId) -> Vec<u8> {
    llama.load(page).unwrap();
    let guard = llama.pin();
    let head = llama.snapshot(page, &guard).head().expect("loaded, and nobody evicts");
    head.payload().to_vec()
}

/// Pages larger than the flush buffer, and of lengths that take the coarser unit of addresses.
#[test]
fn a_page_may_be_as_large_as_a_segment_nearly() {
    let options = Options { segment_bytes: 4 << 20, flush_buffer_bytes: 64 << 10, ..Options::default() };
    let disk = SimulatedDisk::new(1);
    let open = |directory| Llama::open(Arc::new(directory), options.clone(), Epochs::new()).unwrap().0;
    let llama = open(disk.directory());
    let lengths = [10, 70_000, (1 << 20) - 100, (1 << 20) + 1, 3_000_000, llama.page_bytes_max() - 8];
    let mut pages = Vec::new();
    for length in lengths {
        let page = llama.allocate();
        let bytes: Vec<u8> = (0..length).map(|index| (index * 31 + length) as u8).collect();
        install(&llama, page, &bytes);
        pages.push((page, bytes));
    }
    while llama.flush_step().unwrap() != FlushProgress::Nothing {}
    while llama.evict_step(u64::MAX).pages > 0 {}
    assert_eq!(llama.memory_bytes(), 0);
    for (page, bytes) in &pages {
        assert!(payload(&llama, *page) == *bytes, "{page}");
    }
    drop(llama);
    let llama = open(disk.crash(CrashPolicy::LoseAll));
    for (page, bytes) in &pages {
        assert!(payload(&llama, *page) == *bytes, "{page} after a crash");
    }
}

#[test]
fn a_page_over_the_limit_is_reported_and_does_not_stop_the_others() {
    let options = Options::tiny_for_tests();
    let (llama, _) = Llama::open(Arc::new(MemoryDirectory::new()), options, Epochs::new()).unwrap();
    let pages: [PageId; 3] = std::array::from_fn(|_| llama.allocate());
    install(&llama, pages[0], b"one");
    install(&llama, pages[1], &vec![1; llama.page_bytes_max() * 2]);
    install(&llama, pages[2], b"three");
    let first = llama.flush_step();
    assert!(matches!(first, Err(LlamaError::PageTooLarge { page, .. }) if page == pages[1]), "{first:?}");
    assert!(matches!(llama.flush_step(), Ok(FlushProgress::Wrote { pages: 1, .. }) | Err(_)));
    assert_eq!(llama.statistics().dirty_pages, 1);
    install(&llama, pages[1], b"two");
    llama.flush_step().unwrap();
    assert_eq!(llama.statistics().dirty_pages, 0);
}

/// Updates for ever: cleaning and checkpoints keep the disk within its bound, all the time. The most that it takes, in percent of the live bytes.
fn update_steadily(spare_percent_max: u32, seed: u64) -> u64 {
    let options = Options { spare_percent_max, ..Options::tiny_for_tests() };
    let disk = SimulatedDisk::new(seed);
    let mut random = Random::new(seed);
    let mut harness = Harness::create(Arc::new(disk.directory()), &options).unwrap();
    // Much that is never written again, so that every segment stays live in part.
    for key in 0..3000 {
        harness.upsert(key);
    }
    harness.flush_all().unwrap();
    let mut most = 0;
    for round in 0..150 {
        for _ in 0..60 {
            harness.upsert(random.below(3000) as u32);
        }
        harness.llama.evict_step(20_000);
        harness.llama.flush_step().unwrap();
        while harness.llama.clean_step().unwrap() {}
        if round % 5 == 4 {
            harness.checkpoint(|_| {}).unwrap();
        }
        let statistics = harness.llama.statistics();
        if round > 30 {
            let others = statistics.disk_bytes - statistics.spare_bytes;
            most = most.max(others * 100 / statistics.live_bytes);
            assert!(statistics.spare_bytes * 100 <= others * u64::from(spare_percent_max), "{statistics:?}");
        }
    }
    harness.check_all().unwrap();
    let statistics = harness.llama.statistics();
    assert!(statistics.segments_removed > 20 && statistics.pages_relocated > 100, "{statistics:?}");
    assert_eq!(statistics.segments_recycled > 20, spare_percent_max > 0, "{statistics:?}");
    most
}

#[test]
fn the_disk_does_not_grow_under_steady_updates() {
    const SEEDS: u64 = 16;
    for spare_percent_max in [0, 50] {
        let most: u64 = (9..9 + SEEDS).map(|seed| update_steadily(spare_percent_max, seed)).sum();
        // 200 % allowed, and what dies between two checkpoints.
        assert!(most < 350 * SEEDS, "{} % of the live bytes", most / SEEDS);
    }
}

/// What is written again and again and what is not are in segments of their own, and what has been moved once is hardly
/// moved again.
#[test]
fn the_cleaner_parts_what_changes_from_what_does_not() {
    let options = Options { space_amplification_percent_max: 110, ..Options::tiny_for_tests() };
    let directory = Arc::new(MemoryDirectory::new());
    let (llama, _) = Llama::open(directory.clone(), options.clone(), Epochs::new()).unwrap();
    let pages: Vec<PageId> = (0..800).map(|_| llama.allocate()).collect();
    let (rounds, hot_every) = (24u8, 10);
    let cold = (pages.len() - pages.len() / hot_every) as u64;
    let mut apart = Vec::new();
    for round in 0..rounds {
        for (at, &page) in pages.iter().enumerate() {
            if round == 0 || at % hot_every == 0 {
                install(&llama, page, &[round; 1000]);
            }
        }
        let mut checkpoint = llama.checkpoint_begin(b"").unwrap();
        while llama.checkpoint_flush_step(&mut checkpoint).unwrap() != CheckpointProgress::Done {}
        for &page in &pages {
            llama.checkpoint_add(&mut checkpoint, 1, &page.0.to_be_bytes(), page).unwrap();
        }
        llama.checkpoint_finish(checkpoint).unwrap();
        while llama.clean_step().unwrap() {}
        apart.push(llama.statistics().pages_kept_apart);
    }
    let statistics = llama.statistics();
    let last = *apart.last().unwrap();
    assert!(last > cold / 4 && last <= cold, "still pages were moved: {apart:?}");
    assert!(last - apart[apart.len() / 2] < cold / 4, "and hardly again: {apart:?}");
    assert!(0 < statistics.cleaned_live_bytes && statistics.cleaned_live_bytes < statistics.cleaned_bytes);
    let parts = statistics.bytes_flushed
        + statistics.bytes_rewritten
        + statistics.bytes_cleaned
        + statistics.bytes_padded
        + statistics.bytes_of_images;
    assert_eq!(parts, statistics.bytes_written);
    assert!(statistics.disk_bytes < 2 * statistics.live_bytes, "{statistics:?}");
    drop(llama);
    let (llama, recovered) = Llama::open(directory, options, Epochs::new()).unwrap();
    assert_eq!(recovered.pages.len(), pages.len());
    for (at, &page) in pages.iter().enumerate() {
        assert_eq!(payload(&llama, page), [if at % hot_every == 0 { rounds - 1 } else { 0 }; 1000]);
    }
}

#[test]
fn compressed_pages_take_less_and_are_read_whatever_the_options_say() {
    let options = Options { compress: true, ..Options::tiny_for_tests() };
    let directory = Arc::new(MemoryDirectory::new());
    let (llama, _) = Llama::open(directory.clone(), options.clone(), Epochs::new()).unwrap();
    let pages: Vec<PageId> = (0..100).map(|_| llama.allocate()).collect();
    let content = |page: PageId| page.0.to_be_bytes().repeat(250);
    pages.iter().for_each(|&page| install(&llama, page, &content(page)));
    while llama.flush_step().unwrap() != FlushProgress::Nothing {}
    let statistics = llama.statistics();
    assert_eq!(statistics.fragments_compressed, 100);
    assert!(statistics.bytes_compressed_away > 180_000 && statistics.live_bytes < 20_000, "{statistics:?}");
    while llama.evict_step(u64::MAX).pages > 0 {}
    pages.iter().for_each(|&page| assert_eq!(payload(&llama, page), content(page)));
    drop(llama);
    let plain = Options { compress: false, ..options };
    let (llama, _) = Llama::open(directory, plain, Epochs::new()).unwrap();
    pages.iter().for_each(|&page| assert_eq!(payload(&llama, page), content(page)));
    // Written again, it is plain.
    install(&llama, pages[0], &content(pages[0]));
    llama.flush_step().unwrap();
    assert_eq!(llama.statistics().fragments_compressed, 0);
}

#[test]
fn a_store_on_real_files_is_there_when_it_is_opened_again() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = || Arc::new(OsDirectory::open_or_create(scratch.path()).unwrap());
    let options = Options { segment_bytes: 1 << 20, ..Options::default() };
    let (llama, _) = Llama::open(directory(), options.clone(), Epochs::new()).unwrap();
    let pages: Vec<PageId> = (0..500).map(|_| llama.allocate()).collect();
    for &page in &pages {
        install(&llama, page, &page.0.to_le_bytes().repeat(500));
    }
    let mut checkpoint = llama.checkpoint_begin(b"remember").unwrap();
    while llama.checkpoint_flush_step(&mut checkpoint).unwrap() != CheckpointProgress::Done {}
    for &page in &pages {
        llama.checkpoint_add(&mut checkpoint, 1, &page.0.to_be_bytes(), page).unwrap();
    }
    llama.checkpoint_finish(checkpoint).unwrap();
    drop(llama);
    // What the options say of the format does not matter any more.
    let other = Options { segment_bytes: 8 << 20, ..options };
    let (llama, recovered) = Llama::open(directory(), other, Epochs::new()).unwrap();
    assert_eq!(llama.options().segment_bytes, 1 << 20);
    assert_eq!(recovered.user_data, b"remember");
    assert_eq!(recovered.pages.iter().map(|page| page.page).collect::<Vec<_>>(), pages);
    for &page in &pages {
        assert_eq!(payload(&llama, page), page.0.to_le_bytes().repeat(500));
    }
}
