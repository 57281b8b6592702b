//! What one step of cleaning does, and when a checkpoint would help.

mod harness;

use deuteron_device::{MemoryDirectory, SimulatedDisk};
use deuteron_epoch::Epochs;
use deuteron_llama::{Llama, Options, OwnedNode, PageDescriptor, PageId};
use harness::steps::{checkpoint, flush};
use std::sync::Arc;

const SEGMENT: u64 = 64 << 10;

fn open(options: Options) -> Llama {
    let options = Options { memory_bytes: 16 << 20, ..options };
    Llama::open(Arc::new(MemoryDirectory::new()), options, Epochs::with_threshold(0)).unwrap().0
}

fn put(llama: &Llama, page: PageId, bytes: usize) {
    let guard = llama.pin();
    let descriptor = PageDescriptor { tree: 1, low_key: &page.0.to_be_bytes(), root: true };
    let base = OwnedNode::base(&vec![7; bytes], descriptor, &[]);
    llama.install(page, llama.snapshot(page, &guard), base, &guard).unwrap();
}

/// Gives out identifiers, this one the last.
fn allocate_up_to(llama: &Llama, last: u64) {
    let given_out = llama.statistics().page_ids;
    for _ in given_out..last {
        llama.allocate();
    }
}

/// `segments` segments, in each of which `live` bytes of a page are live and a larger page is dead.
fn sparse(segments: usize, live: usize) -> (Llama, Vec<PageId>) {
    sparse_behind(0, segments, live)
}

/// As [`sparse`], with identifiers behind this one.
fn sparse_behind(last: u64, segments: usize, live: usize) -> (Llama, Vec<PageId>) {
    let llama = open(Options { flush_buffer_bytes: 64 << 10, ..Options::tiny_for_tests() });
    allocate_up_to(&llama, last);
    let (mut kept, large) = (Vec::new(), llama.allocate());
    for _ in 0..segments {
        let page = llama.allocate();
        put(&llama, page, live);
        flush(&llama);
        put(&llama, large, 52_000 - live);
        flush(&llama);
        kept.push(page);
    }
    put(&llama, large, 10);
    flush(&llama);
    assert_eq!(llama.statistics().segments, segments as u64);
    (llama, kept)
}

/// The segments that the first step that cleans has chosen.
fn chosen(llama: &Llama) -> u64 {
    while llama.statistics().segments_cleaned == 0 {
        assert!(llama.clean_step_to(110).unwrap());
    }
    llama.statistics().segments_cleaned
}

#[test]
fn as_many_segments_are_emptied_together_as_give_a_segment_of_live_pages_and_sixteen_at_most() {
    // Of 16 KiB each: four are a segment.
    let live = (16 << 10) - 76;
    let (llama, _) = sparse(9, live);
    assert_eq!(chosen(&llama), 4);
    let (llama, _) = sparse(20, 100);
    assert_eq!(chosen(&llama), 16);
}

#[test]
fn a_step_moves_about_a_flush_buffer_of_pages() {
    let llama = open(Options { segment_bytes: 1 << 20, ..Options::tiny_for_tests() });
    // More pages than the entries that a careless step would look at.
    let pages: Vec<_> = (0..1600).map(|_| llama.allocate()).collect();
    pages.iter().for_each(|&page| put(&llama, page, 1000));
    flush(&llama);
    pages.iter().filter(|page| page.0 % 5 != 0).for_each(|&page| put(&llama, page, 1000));
    flush(&llama);
    checkpoint(&llama, &pages);
    let mut moved = Vec::new();
    while moved.iter().sum::<u64>() < 100 {
        let before = llama.statistics();
        assert!(llama.clean_step_to(110).unwrap());
        let after = llama.statistics();
        if after.segments_removed == before.segments_removed {
            moved.push(after.pages_relocated - before.pages_relocated);
        }
    }
    // 1088 bytes each: the eighth does not fit any more, and is taken along. The table is looked over at once.
    assert!(moved[..5].iter().all(|&moved| moved == 8), "{moved:?}");
    // And in time all.
    while llama.clean_step_to(110).unwrap() {}
    let figures = llama.statistics();
    assert!(figures.disk_bytes < 2 * figures.live_bytes + 2 * (1 << 20), "{figures:?}");
}

#[test]
fn a_large_table_is_looked_over_in_several_steps_before_pages_are_moved() {
    // The last identifiers for which the table has room without growing.
    const LAST: u64 = 127 * 1024 - 1;
    for (before, behind) in [(LAST, 0), (0, LAST)] {
        let (llama, pages) = sparse_behind(before, 6, 100);
        allocate_up_to(&llama, behind);
        // The segment that is being filled is none of them.
        assert_eq!(chosen(&llama), pages.len() as u64 - 1);
        assert_eq!(llama.statistics().pages_relocated, 0);
        while llama.clean_step_to(110).unwrap() {}
        assert!(llama.statistics().pages_relocated >= pages.len() as u64 - 1);
    }
}

#[test]
fn short_pages_are_moved_a_few_hundred_at_a_time() {
    let llama = open(Options {
        flush_buffer_bytes: 256 << 10,
        segment_bytes: 256 << 10,
        ..Options::tiny_for_tests()
    });
    let pages: Vec<_> = (0..2500).map(|_| llama.allocate()).collect();
    let long = llama.allocate();
    pages.iter().for_each(|&page| put(&llama, page, 10));
    put(&llama, long, 200_000);
    flush(&llama);
    put(&llama, long, 10);
    pages[..600].iter().for_each(|&page| put(&llama, page, 10));
    flush(&llama);
    checkpoint(&llama, &pages);
    let mut most = 0;
    for _ in 0..40 {
        let before = llama.statistics().pages_relocated;
        llama.clean_step_to(110).unwrap();
        most = most.max(llama.statistics().pages_relocated - before);
    }
    assert_eq!(most, 256);
}

#[test]
fn a_checkpoint_is_wanted_if_it_would_remove_segments_and_they_are_too_many() {
    let llama = open(Options { flush_buffer_bytes: 64 << 10, ..Options::tiny_for_tests() });
    let page = llama.allocate();
    assert!(!llama.wants_image(110));
    for _ in 0..12 {
        // Half a segment with its header.
        put(&llama, page, (32 << 10) - 64 - 4 - 8);
        flush(&llama);
    }
    let figures = llama.statistics();
    assert!(figures.dead_segments >= 4);
    let exceeded = |percent: u32| figures.disk_bytes * 100 > figures.live_bytes * u64::from(percent);
    // Exactly as much as is allowed is among them.
    let percents = || (110..4000).step_by(10);
    assert!(percents().any(|percent| exceeded(percent - 1) && !exceeded(percent)));
    for percent in percents() {
        assert_eq!(llama.wants_image(percent), exceeded(percent), "{percent}");
    }
    // Nothing can be removed meanwhile.
    let hold = llama.hold_files().unwrap();
    assert!(!llama.wants_image(110));
    drop(hold);
    assert!(llama.wants_image(110));
    checkpoint(&llama, &[page]);
    assert!(!llama.wants_image(110));
    let dead = figures.dead_segments;
    while llama.release_spare().unwrap() {}
    let figures = llama.statistics();
    assert_eq!((figures.dead_segments, figures.segments_removed), (0, dead));
    assert!(figures.disk_bytes <= SEGMENT);
}

#[test]
fn nothing_is_removed_while_files_are_held() {
    let (llama, pages) = sparse(6, 100);
    let hold = llama.hold_files().unwrap();
    let names: Vec<_> = hold.files().iter().map(|file| file.name.clone()).collect();
    assert!(llama.checkpoint_begin(b"").is_err());
    for _ in 0..20 {
        llama.clean_step_to(110).unwrap();
    }
    assert_eq!(llama.statistics().segments_removed, 0);
    assert_eq!(names.iter().filter(|name| name.ends_with(".seg")).count() as u64, 6);
    drop(hold);
    checkpoint(&llama, &pages);
    while llama.clean_step_to(110).unwrap() {}
    assert!(llama.statistics().segments_removed >= 5);
}

#[test]
fn on_a_full_device_what_is_flushed_goes_to_a_spare() {
    let disk = SimulatedDisk::new(1);
    let options = Options { memory_bytes: 16 << 20, spare_percent_max: 100, ..Options::tiny_for_tests() };
    let (llama, _) = Llama::open(Arc::new(disk.directory()), options, Epochs::with_threshold(0)).unwrap();
    let pages: Vec<_> = (0..4).map(|_| llama.allocate()).collect();
    let rewrite = || {
        pages.iter().for_each(|&page| put(&llama, page, 5000));
        flush(&llama);
    };
    // All that is live in the second segment, which is not allocated to its end.
    while llama.statistics().dead_segments == 0 {
        rewrite();
    }
    checkpoint(&llama, &pages);
    let before = llama.statistics();
    assert_eq!((before.segments, before.segments_recycled), (1, 0));
    assert!(before.spare_bytes > 0);
    disk.set_capacity(Some(disk.used_bytes()));
    while llama.statistics().segments_recycled == 0 {
        rewrite();
    }
    let after = llama.statistics();
    assert_eq!((after.segments, after.spare_bytes, after.segments_recycled), (2, 0, 1));
}
