//! Which pages are prepared together ahead of a flush, and which are united.

mod harness;

use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_llama::{FlushProgress, Llama, Options, OwnedNode, PageDescriptor, PageId, PageState};
use harness::steps::{evict, flush};
use std::sync::Arc;

/// The fragments of a page of 1000 bytes and of a delta on it.
const FRAGMENTS: u64 = 1088 + 64;

fn open(memory_bytes: u64) -> Llama {
    open_with(2, memory_bytes)
}

fn open_with(fragments_max: usize, memory_bytes: u64) -> Llama {
    let options = Options { fragments_max, memory_bytes, ..Options::default() };
    Llama::open(Arc::new(MemoryDirectory::new()), options, Epochs::with_threshold(0)).unwrap().0
}

fn put(llama: &Llama, page: PageId) {
    let guard = llama.pin();
    let snapshot = llama.snapshot(page, &guard);
    let descriptor = PageDescriptor { tree: 1, low_key: &page.0.to_be_bytes(), root: true };
    let node = match snapshot.is_free() {
        true => OwnedNode::base(&[7; 1000], descriptor, &[]),
        false => OwnedNode::delta(b"delta"),
    };
    llama.install(page, snapshot, node, &guard).unwrap();
}

/// Of `count` identifiers these have pages of two fragments, which are not in memory.
fn stored(llama: &Llama, count: u64, numbers: impl Iterator<Item = u64>) -> Vec<PageId> {
    for _ in 0..count {
        llama.allocate();
    }
    let pages: Vec<_> = numbers.map(PageId).collect();
    for _ in 0..2 {
        pages.iter().for_each(|&page| put(llama, page));
        flush(llama);
    }
    evict(llama);
    pages
}

/// As [`stored`], with a change on each: they must be read before they can be flushed.
fn due(llama: &Llama, count: u64, numbers: impl Iterator<Item = u64>) {
    stored(llama, count, numbers).into_iter().for_each(|page| put(llama, page));
}

/// The lengths of the rows that are prepared, until none is any more.
fn rows(llama: &Llama) -> Vec<u64> {
    let mut before = 0;
    let steps = std::iter::from_fn(|| {
        llama.prepare_step().unwrap().then(|| {
            let now = llama.statistics().rows_pages;
            now - std::mem::replace(&mut before, now)
        })
    });
    steps.collect()
}

#[test]
fn a_row_is_of_a_stretch_of_identifiers_and_four_wait_for_the_flush() {
    let llama = open(64 << 20);
    due(&llama, 1500, 1..=1500);
    assert_eq!(rows(&llama), [255, 256, 256, 256]);
    assert_eq!(llama.statistics().loads, 1023);
    // Once the flush has passed them there is room for others; it prepares those itself that nobody has.
    flush(&llama);
    assert!(llama.statistics().rows_pages >= 1500);
    assert!(!llama.prepare_step().unwrap());
    let llama = open(64 << 20);
    due(&llama, 1100, [1, 255, 256, 1025].into_iter());
    assert_eq!(rows(&llama), [2, 1, 1]);
}

#[test]
fn what_is_ready_is_flushed_next_wherever_the_flush_is() {
    let llama = open_with(2, 16 << 20);
    // Pages 1 to 40 are due, those behind have one fragment and take deltas.
    due(&llama, 3000, 1..=40);
    let others: Vec<_> = (1000..1400).map(PageId).collect();
    others.iter().for_each(|&page| put(&llama, page));
    // The flush leaves a row for when it has written the others, which take a buffer.
    let first = llama.flush_step().unwrap();
    assert!(matches!(first, FlushProgress::Wrote { pages: 400, .. }), "{first:?}");
    let prepared = llama.statistics();
    assert_eq!((prepared.rows_prepared, prepared.rows_pages, prepared.loads), (1, 40, 40));
    // There are others to be written ahead of it; those that are in memory as a whole go first.
    others.iter().for_each(|&page| put(&llama, page));
    let before = llama.statistics().full_fragments_written;
    assert!(matches!(llama.flush_step().unwrap(), FlushProgress::Wrote { .. }));
    assert_eq!(llama.statistics().full_fragments_written - before, 40);
}

#[test]
fn neighbours_taken_along_do_not_wait_for_the_next_revolution() {
    let llama = open_with(8, 16 << 20);
    let pages = stored(&llama, 3000, 1..=20);
    // Six more fragments for the first: it is due with the next.
    for _ in 0..6 {
        put(&llama, pages[0]);
        flush(&llama);
    }
    evict(&llama);
    // The flush is behind all of them, and has more than a buffer ahead.
    put(&llama, PageId(100));
    flush(&llama);
    put(&llama, pages[0]);
    assert_eq!(rows(&llama), [20]);
    // Without an access method they stay as they were read, until they are changed.
    pages.iter().for_each(|&page| put(&llama, page));
    (1000..2500).for_each(|page| put(&llama, PageId(page)));
    let before = llama.statistics();
    let FlushProgress::Wrote { pages: written, .. } = llama.flush_step().unwrap() else { panic!() };
    let after = llama.statistics();
    // In memory as a whole they are written so: with two deltas of five bytes, the first with nine.
    assert_eq!(after.delta_fragments_written, before.delta_fragments_written);
    assert_eq!(after.bytes_rewritten, 19 * 1104 + 1168);
    assert!(written < 1500);
}

#[test]
fn a_row_takes_its_part_of_the_memory() {
    for (room, expected) in [(5 * FRAGMENTS, &[5; 4][..]), (5 * FRAGMENTS - 1, &[4; 5])] {
        let llama = open(64 * room);
        due(&llama, 20, 1..=20);
        assert_eq!(rows(&llama), expected);
    }
    // The page that is due is one of them, wherever it lies.
    let llama = open(64 * 5 * FRAGMENTS);
    let pages = stored(&llama, 20, 1..=20);
    put(&llama, pages[7]);
    assert_eq!(rows(&llama), [5]);
    let is_loaded = |page: &PageId| matches!(llama.snapshot(*page, &llama.pin()).state(), PageState::Resident(head) if !head.is_partial());
    let loaded: Vec<u64> = pages.iter().filter(|page| is_loaded(page)).map(|page| page.0).collect();
    assert_eq!(loaded, [6, 7, 8, 9, 10]);
}

#[test]
fn pages_far_ahead_of_the_flush_are_left_alone() {
    for (number, expected) in [(8192, &[1][..]), (8193, &[])] {
        let llama = open(16 << 20);
        due(&llama, 8200, [number].into_iter());
        assert_eq!(rows(&llama), expected, "{number}");
    }
}

#[test]
fn neighbours_that_are_due_soon_are_taken_along_though_they_are_clean() {
    let llama = open(16 << 20);
    let pages = stored(&llama, 10, 1..=6);
    put(&llama, pages[2]);
    assert_eq!(rows(&llama), [6]);
    // What has one fragment only, or is in memory, is not.
    let llama = open(16 << 20);
    let pages = stored(&llama, 10, [1, 2, 3, 4, 6].into_iter());
    put(&llama, PageId(5));
    flush(&llama);
    evict(&llama);
    llama.load(pages[4]).unwrap();
    put(&llama, pages[2]);
    assert_eq!(rows(&llama), [4]);
}

#[test]
fn a_quarter_of_the_fragments_that_a_page_may_have_is_enough_to_be_taken_along() {
    let llama = open_with(8, 16 << 20);
    let pages = [1, 8, 2, 5].map(|fragments| (llama.allocate(), fragments));
    for round in 1..=8 {
        let growing = pages.iter().filter(|(_, fragments)| *fragments >= round);
        growing.for_each(|&(page, _)| put(&llama, page));
        flush(&llama);
        evict(&llama);
    }
    put(&llama, pages[1].0);
    assert_eq!(rows(&llama), [3]);
    assert_eq!(llama.statistics().fragments_read, 8 + 2 + 5);
}

/// Pages side by side, of so many fragments each, none of them in memory, their deltas of so many bytes; and the first with a change.
fn side_by_side(llama: &Llama, fragments: &[usize], delta_bytes: usize) {
    let pages: Vec<_> = fragments.iter().map(|&fragments| (llama.allocate(), fragments)).collect();
    let change = |page| {
        let guard = llama.pin();
        llama
            .install(page, llama.snapshot(page, &guard), OwnedNode::delta(&vec![7; delta_bytes]), &guard)
            .unwrap();
    };
    for round in 0..fragments.iter().copied().max().unwrap() {
        for &(page, _) in pages.iter().filter(|(_, fragments)| *fragments > round) {
            if round == 0 { put(llama, page) } else { change(page) }
        }
        flush(llama);
        evict(llama);
    }
    change(pages[0].0);
}

#[test]
fn pages_are_read_when_one_has_all_its_fragments_or_all_have_half_of_them() {
    let due = |fragments: &[usize], delta_bytes: usize| {
        let llama = open_with(8, 16 << 20);
        side_by_side(&llama, fragments, delta_bytes);
        rows(&llama)
    };
    assert_eq!(due(&[5, 4, 4, 3], 5), [4]);
    assert_eq!(due(&[5, 4, 4, 2], 5), []);
    assert_eq!(due(&[3, 5, 4, 4], 5), [], "that itself has fewer is not the one that asks");
    assert_eq!(due(&[7, 1, 1, 2], 5), []);
    assert_eq!(due(&[8, 1, 1, 2], 5), [2], "those with a quarter are taken along");
    // The full fragments take 1088 bytes, the deltas 656 each.
    assert_eq!(due(&[3, 1, 1, 1], 600), []);
    assert_eq!(due(&[5, 1, 1, 1], 600), [1], "more than twice what its full fragment takes");
    assert_eq!(due(&[3, 3, 3, 2], 600), [4], "together more than their full fragments take");
}

#[test]
fn what_is_in_memory_as_a_whole_is_written_in_full_after_a_third_of_the_fragments() {
    let llama = open_with(9, 16 << 20);
    let (whole, blind) = (llama.allocate(), llama.allocate());
    for round in 1..=5 {
        put(&llama, whole);
        put(&llama, blind);
        flush(&llama);
        let full = llama.statistics().full_fragments_written;
        assert_eq!(full, if round < 4 { 2 } else { 3 }, "after {round}");
        evict(&llama);
        llama.load(whole).unwrap();
    }
}

#[test]
fn pages_of_several_fragments_are_united_a_row_at_a_time() {
    // Room for 16, of which some are a little longer, or for as many as a row may have.
    for (room, each) in [(16 * FRAGMENTS + FRAGMENTS / 2, 16), (1 << 20, 256)] {
        let llama = open(64 * room);
        let pages = stored(&llama, 401, (1..=400).filter(|number| number % 7 != 0));
        assert_eq!(pages.len(), 343);
        // One of one fragment, and one that is free.
        put(&llama, PageId(7));
        flush(&llama);
        let mut from = Some(PageId(1));
        for united in (each..).step_by(each) {
            from = llama.unite_step(from.unwrap());
            let figures = llama.statistics();
            assert_eq!((figures.rows_pages, figures.loads), (united.min(343) as u64, united.min(343) as u64));
            let Some(next) = from else { break };
            assert!((pages[united - 1].0 + 1..=pages[united].0).contains(&next.0));
        }
        assert_eq!(llama.statistics().loads, 343);
        assert_eq!(llama.unite_step(PageId(401)), None);
        assert_eq!(llama.unite_step(PageId(402)), None);
    }
}
