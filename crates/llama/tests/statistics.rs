//! Every figure of [`Statistics`] moves as it is documented, and no other, with actions whose cost is known.

mod harness;

use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_llama::{Llama, Options, OwnedNode, PageDescriptor, PageId, PageState};
use harness::steps;
use std::sync::Arc;

/// A full fragment of a page of 1000 bytes with a low key of eight: a header of 64, a length of four, and up to a multiple of 16.
const FULL: i64 = 1088;
/// A delta fragment of up to 20 bytes: a header of 40, a length of four.
const DELTA: i64 = 64;
const BLOCK: i64 = 4096;

struct Bed {
    directory: MemoryDirectory,
    llama: Llama,
}

type Moved = Vec<(&'static str, i64)>;

impl Bed {
    fn new(options: Options) -> Bed {
        let directory = MemoryDirectory::new();
        let llama = Llama::open(Arc::new(directory.clone()), options, Epochs::with_threshold(0)).unwrap().0;
        Bed { directory, llama }
    }

    /// What `act` changes.
    fn moved<T>(&self, act: impl FnOnce(&Llama) -> T) -> Moved {
        let before = self.llama.statistics().named();
        act(&self.llama);
        let after = self.llama.statistics().named();
        let moved = before
            .into_iter()
            .zip(after)
            .map(|((name, before), (_, after))| (name, after as i64 - before as i64));
        moved.filter(|&(_, moved)| moved != 0).collect()
    }

    fn base(&self, page: PageId, payload: &[u8]) {
        let guard = self.llama.pin();
        let descriptor = PageDescriptor { tree: 1, low_key: &page.0.to_be_bytes(), root: true };
        let base = OwnedNode::base(payload, descriptor, &[]);
        self.llama.install(page, self.llama.snapshot(page, &guard), base, &guard).unwrap();
    }

    fn delta(&self, page: PageId) {
        let guard = self.llama.pin();
        let delta = OwnedNode::delta(b"a delta");
        self.llama.install(page, self.llama.snapshot(page, &guard), delta, &guard).unwrap();
    }

    fn pages(&self, count: usize) -> Vec<PageId> {
        let pages: Vec<_> = (0..count).map(|_| self.llama.allocate()).collect();
        pages.iter().for_each(|&page| self.base(page, &[page.0 as u8; 1000]));
        pages
    }

    fn flush(&self) {
        steps::flush(&self.llama);
    }

    fn evict(&self) {
        steps::evict(&self.llama);
    }

    fn checkpoint(&self, pages: &[PageId]) {
        steps::checkpoint(&self.llama, pages);
    }
}

fn options() -> Options {
    Options { flush_buffer_bytes: 16 << 10, memory_bytes: 1 << 20, ..Options::tiny_for_tests() }
}

#[test]
fn a_new_store_has_nothing() {
    let bed = Bed::new(options());
    let figures = bed.llama.statistics();
    let named: Vec<_> = figures.named().into_iter().filter(|&(_, figure)| figure != 0).collect();
    assert_eq!(named, [("reads_at_once", 1)]);
}

#[test]
fn changes_are_dirty_until_they_are_written_and_written_once() {
    let bed = Bed::new(options());
    let mut memory = 0;
    let installed = bed.moved(|llama| {
        bed.pages(3);
        memory = llama.memory_bytes() as i64;
    });
    assert_eq!(installed, [("memory_bytes", memory), ("page_ids", 3), ("dirty_pages", 3)]);
    assert!((3 * 1064..3 * 1400).contains(&memory));

    // The first segment, with room for the flush buffer that is usual.
    let flushed = bed.moved(|_| bed.flush());
    let expected = [
        ("dirty_pages", -3),
        ("segments", 1),
        ("disk_bytes", BLOCK + (16 << 10)),
        ("live_bytes", 3 * FULL),
        ("bytes_written", BLOCK),
        ("bytes_flushed", 3 * FULL),
        ("bytes_padded", BLOCK - 3 * FULL),
        ("buffers_written", 1),
        ("full_fragments_written", 3),
    ];
    assert_eq!(flushed, expected);
    assert!(bed.moved(|_| bed.flush()).is_empty());

    let page = PageId(2);
    let changed = bed.moved(|_| bed.delta(page));
    assert_eq!(changed, [("memory_bytes", 48), ("dirty_pages", 1)]);
    let flushed = bed.moved(|_| bed.flush());
    let expected = [
        ("dirty_pages", -1),
        ("live_bytes", DELTA),
        ("bytes_written", BLOCK),
        ("bytes_flushed", DELTA),
        ("bytes_padded", BLOCK - DELTA),
        ("buffers_written", 1),
        ("delta_fragments_written", 1),
    ];
    assert_eq!(flushed, expected);

    // With the next one there would be one fragment too many.
    bed.delta(page);
    let rewritten = bed.moved(|_| bed.flush());
    // Two lengths and two deltas more, where twelve bytes were left.
    let longer = FULL + 16;
    let expected = [
        ("dirty_pages", -1),
        ("live_bytes", longer - FULL - DELTA),
        ("bytes_written", BLOCK),
        ("bytes_rewritten", longer),
        ("bytes_padded", BLOCK - longer),
        ("buffers_written", 1),
        ("full_fragments_written", 1),
    ];
    assert_eq!(rewritten, expected);

    bed.llama.hold(page);
    bed.delta(page);
    assert_eq!(bed.moved(|_| bed.flush()), [("flushes_held", 1)]);
}

#[test]
fn what_leaves_memory_is_read_again_with_its_fragments() {
    let bed = Bed::new(options());
    let pages = bed.pages(5);
    bed.flush();
    bed.delta(pages[1]);
    bed.flush();
    let memory = bed.llama.memory_bytes() as i64;
    assert_eq!(bed.moved(|_| bed.evict()), [("memory_bytes", -memory), ("pages_evicted", 5)]);
    let resident = |llama: &Llama| llama.memory_bytes() as i64;
    let loaded = bed.moved(|llama| llama.load(pages[1]).unwrap());
    let one = resident(&bed.llama);
    let expected = [
        ("memory_bytes", one),
        ("reads", 1),
        ("bytes_of_reads", 3 * BLOCK),
        ("loads", 1),
        ("fragments_read", 2),
        ("bytes_read", FULL + DELTA),
    ];
    assert_eq!(loaded, expected);
    // What is there is not read.
    assert!(bed.moved(|llama| llama.load(pages[1]).unwrap()).is_empty());
    let together = bed.moved(|llama| llama.load_many(&pages[..3]).unwrap());
    let expected = [
        ("memory_bytes", resident(&bed.llama) - one),
        ("reads", 1),
        ("bytes_of_reads", BLOCK),
        ("loads", 2),
        ("loads_together", 1),
        ("fragments_read", 2),
        ("bytes_read", 2 * FULL),
    ];
    assert_eq!(together, expected);

    // The base leaves under a delta that is not flushed.
    bed.delta(pages[0]);
    bed.evict_but_dirty(&pages);
    let guard = bed.llama.pin();
    let PageState::Resident(head) = bed.llama.snapshot(pages[0], &guard).state() else {
        panic!("it is dirty")
    };
    assert!(head.is_partial());
    let figures = bed.llama.statistics();
    assert_eq!((figures.pages_evicted, figures.pages_evicted_in_part), (5 + 2, 1));
}

impl Bed {
    fn evict_but_dirty(&self, pages: &[PageId]) {
        self.llama.evict_step(u64::MAX);
        assert!(pages[1..].iter().all(|&page| {
            let guard = self.llama.pin();
            !matches!(self.llama.snapshot(page, &guard).state(), PageState::Resident(_))
        }));
    }
}

#[test]
fn rows_are_prepared_of_the_pages_that_must_be_read() {
    let bed = Bed::new(options());
    let pages = bed.pages(6);
    bed.flush();
    for &page in &pages[..4] {
        bed.delta(page);
    }
    bed.flush();
    bed.evict();
    for &page in &pages[..3] {
        bed.delta(page);
    }
    let before = bed.llama.memory_bytes() as i64;
    let prepared = bed.moved(|llama| assert!(llama.prepare_step().unwrap()));
    let expected = [
        ("memory_bytes", bed.llama.memory_bytes() as i64 - before),
        ("reads", 1),
        ("bytes_of_reads", 3 * BLOCK),
        ("loads", 4),
        ("loads_together", 1),
        ("rows_prepared", 1),
        ("rows_pages", 4),
        ("fragments_read", 8),
        ("bytes_read", 4 * (FULL + DELTA)),
    ];
    assert_eq!(prepared, expected);
}

#[test]
fn checkpoints_are_images_of_everything_or_of_what_has_changed() {
    let bed = Bed::new(options());
    let pages = bed.pages(3);
    bed.flush();
    let image = |blocks: i64| {
        vec![("bytes_written", blocks * BLOCK), ("bytes_of_images", blocks * BLOCK), ("checkpoints", 1)]
    };
    assert_eq!(bed.moved(|_| bed.checkpoint(&[])), image(3));
    assert_eq!(bed.moved(|_| bed.checkpoint(&[])), image(2));
    bed.llama.renew_images();
    let mut whole = image(3);
    whole.push(("images_whole", 1));
    assert_eq!(bed.moved(|_| bed.checkpoint(&pages)), whole);
    assert_eq!(bed.moved(|_| bed.checkpoint(&[])), image(2));
}

#[test]
fn compression_is_told_of_by_what_it_saves() {
    let bed = Bed::new(Options { compress: true, ..options() });
    bed.pages(1);
    let moved = bed.moved(|_| bed.flush());
    let figure = |name: &str| moved.iter().find(|moved| moved.0 == name).map_or(0, |moved| moved.1);
    assert_eq!(figure("fragments_compressed"), 1);
    // What is saved is of the payload, and what lies there is rounded up.
    let lies = figure("bytes_flushed");
    assert_eq!((64 + 4 + 8 + 1000 - figure("bytes_compressed_away") + 15) / 16 * 16, lies);
    assert!(lies < FULL / 4 && figure("live_bytes") == lies);
}

#[test]
fn cleaning_moves_what_is_live_and_removes_what_is_not() {
    let bed = Bed::new(Options { flush_buffer_bytes: 4096, ..options() });
    // Of three pages a buffer, and so a block, until the second segment has begun.
    let pages = bed.pages(3 * 16);
    bed.flush();
    assert_eq!(bed.llama.statistics().segments, 2);
    // Of the first segment five pages stay.
    for &page in &pages[5..] {
        bed.base(page, &[9; 1000]);
    }
    bed.flush();
    bed.checkpoint(&pages);
    let before = bed.llama.statistics();
    let moved = bed.moved(|llama| {
        while llama.statistics().segments_cleaned == 0 {
            assert!(llama.clean_step_to(110).unwrap());
        }
        while llama.statistics().pages_relocated < 5 {
            assert!(llama.clean_step_to(110).unwrap());
        }
    });
    let figure = |name: &str| moved.iter().find(|moved| moved.0 == name).map_or(0, |moved| moved.1);
    assert_eq!((figure("segments_cleaned"), figure("cleaned_bytes")), (1, 64 << 10));
    assert_eq!((figure("cleaned_live_bytes"), figure("bytes_cleaned")), (5 * FULL, 5 * FULL));
    assert_eq!((figure("pages_relocated"), figure("pages_kept_apart")), (5, 5));
    assert_eq!((figure("full_fragments_written"), figure("live_bytes")), (5, 0));
    let Some(buffers) = bed.llama.statistics().buffers_written.checked_sub(before.buffers_written) else {
        panic!()
    };
    assert_eq!(figure("bytes_written"), figure("bytes_cleaned") + figure("bytes_padded"));
    assert_eq!(figure("bytes_written"), buffers as i64 * BLOCK);
    // It is empty now, and before the scan start of the newest image.
    let after = bed.llama.statistics();
    assert_eq!(after.dead_segments, 1);
    let removed = bed.moved(|llama| assert!(llama.clean_step_to(110).unwrap()));
    assert_eq!(
        removed,
        [("segments", -1), ("dead_segments", -1), ("spare_bytes", 64 << 10), ("segments_removed", 1)]
    );
    let released =
        bed.moved(|llama| assert!(llama.release_spare().unwrap() && !llama.release_spare().unwrap()));
    assert_eq!(released, [("disk_bytes", -(64 << 10)), ("spare_bytes", -(64 << 10))]);
    assert!(!bed.llama.wants_image(110));
    drop(bed.directory);
}

#[test]
fn pages_that_are_taken_over_are_freed() {
    let bed = Bed::new(options());
    let (left, right) = (bed.llama.allocate(), bed.llama.allocate());
    let low = PageDescriptor { tree: 1, low_key: b"", root: true };
    let high = PageDescriptor { tree: 1, low_key: b"m", root: false };
    let put = |page, base| {
        let guard = bed.llama.pin();
        bed.llama.install(page, bed.llama.snapshot(page, &guard), base, &guard).unwrap();
    };
    put(right, OwnedNode::base(b"right", high, &[]));
    put(left, OwnedNode::base(b"left", low, &[right]));
    bed.flush();
    let live = bed.llama.statistics().live_bytes as i64;
    {
        let guard = bed.llama.pin();
        bed.llama.seal(right, bed.llama.snapshot(right, &guard), &guard).unwrap();
    }
    put(left, OwnedNode::heir(b"left and right", low, &[], &[right]));
    let moved = bed.moved(|_| bed.flush());
    let figure = |name: &str| moved.iter().find(|moved| moved.0 == name).map_or(0, |moved| moved.1);
    assert_eq!((figure("pages_freed"), figure("full_fragments_written")), (1, 1));
    // A header, a length, a disowned page, and less than twenty bytes.
    assert_eq!(figure("live_bytes"), 64 + 4 + 8 + 20 - live);
}
