//! Flushes: what is written of a page, in which order, and what stops one.

use super::*;
use crate::checkpoint::CheckpointProgress;
use crate::options::Options;
use crate::test_bed::{flush, open, put};
use crate::writing::WAITING_KEPT;
use deuteron_device::SimulatedDisk;
use deuteron_epoch::Epochs;
use std::cell::Cell;
use std::sync::{Mutex, OnceLock};

/// What the steps write that flush new pages whose fragments are of these lengths: fragments, and the length of the buffer.
fn steps(llama: &Llama, lengths: &[usize]) -> Vec<(usize, u64)> {
    // A header of 64, a length of four, and a low key of eight.
    lengths.iter().for_each(|length| put(llama, llama.allocate(), &vec![7; length - 76]));
    let written = Cell::new(llama.counters.bytes_written.get());
    let step = || match llama.flush_step().unwrap() {
        FlushProgress::Wrote { pages, .. } => {
            let before = written.replace(llama.counters.bytes_written.get());
            Some((pages, written.get() - before))
        }
        FlushProgress::Nothing | FlushProgress::Busy => None,
    };
    std::iter::from_fn(step).collect()
}

#[test]
fn a_buffer_is_filled_to_its_last_byte_and_no_further() {
    let llama = open(Options::tiny_for_tests());
    assert_eq!(steps(&llama, &[4032, 4032]), [(2, 8192)]);
    assert_eq!(steps(&llama, &[4032, 4096]), [(1, 8192), (1, 8192)]);
    assert_eq!(steps(&llama, &[8064]), [(1, 8192)]);
    // Longer for a longer page, and for that alone.
    let llama = open(Options { segment_bytes: 1 << 20, ..Options::tiny_for_tests() });
    assert_eq!(steps(&llama, &[50_048]), [(1, 53_248)]);
    assert_eq!(steps(&llama, &[3136; 6]), [(2, 8192); 3]);
}

/// Who comes for other pages goes, and does not look again and again until they have.
#[test]
fn a_buffer_that_is_open_for_others_is_left_to_them() {
    let llama = open(Options::tiny_for_tests());
    put(&llama, llama.allocate(), b"first");
    flush(&llama);
    put(&llama, llama.allocate(), b"second");
    for (stream, is_alone) in [(Stream::Moved, false), (Stream::Fresh, true)] {
        let flusher = llama.lock_flusher();
        let mut filling = llama.filling();
        let room = llama.room(&flusher, &filling, stream as usize);
        filling.open(stream as usize, flusher.position.offsets[stream as usize], room, is_alone);
        drop((filling, flusher));
        assert!(matches!(llama.flush_step(), Ok(FlushProgress::Busy)));
        // Closes it, as nobody has put anything into it.
        llama.await_flush();
    }
    assert!(matches!(llama.flush_step(), Ok(FlushProgress::Wrote { pages: 1, .. })));
}

#[test]
fn what_adopts_many_durable_pages_is_flushed_though_there_are_always_new_ones_ahead() {
    // More than two buffers take.
    const EACH: u64 = 210;
    let llama = open(Options { segment_bytes: 1 << 20, ..Options::tiny_for_tests() });
    let first = llama.allocate();
    put(&llama, first, b"first");
    flush(&llama);
    let base = |page: PageId, adopts: &[PageId]| {
        let guard = llama.pin();
        let descriptor = PageDescriptor { tree: 1, low_key: &page.0.to_be_bytes(), root: page == first };
        let base = OwnedNode::base(b"", descriptor, adopts);
        llama.install(page, llama.snapshot(page, &guard), base, &guard).unwrap();
    };
    llama.flush_hand.store(first.0 + 1, Ordering::Relaxed);
    let mut durable = 0;
    while durable < 8000 {
        let leader = llama.allocate();
        let adopted: Vec<_> = (0..EACH).map(|_| llama.allocate()).collect();
        adopted.iter().for_each(|&page| base(page, &[]));
        base(leader, &adopted);
        base(first, &[leader]);
        for _ in 0..2 {
            assert!(matches!(llama.flush_step().unwrap(), FlushProgress::Wrote { .. }));
        }
        durable = llama.lock_flusher().unadopted.count();
    }
    let new: Vec<_> = (0..3000).map(|_| llama.allocate()).collect();
    new.iter().for_each(|&page| put(&llama, page, b"new"));
    while llama.lock_flusher().unadopted.count() > 0 {
        assert!(matches!(llama.flush_step().unwrap(), FlushProgress::Wrote { .. }));
    }
    let left = new.iter().filter(|&&page| llama.table.is_dirty(page)).count();
    assert!(left > 2000, "{left}");
    let flusher = llama.lock_flusher();
    assert!(flusher.waiting.is_empty() && flusher.waiting.capacity() < 4 * WAITING_KEPT);
}

/// The pages that it was asked to consolidate, which it does not.
struct Asked(Mutex<Vec<PageId>>);

impl AccessMethod for Asked {
    fn consolidate(&self, page: PageId) {
        self.0.lock().unwrap().push(page);
    }
}

#[test]
fn consolidation_is_asked_for_once_of_a_page_with_deltas_that_is_written_in_full() {
    let llama = open(Options { memory_bytes: 1 << 20, ..Options::tiny_for_tests() });
    let asked = Arc::new(Asked(Mutex::default()));
    let method: Weak<Asked> = Arc::downgrade(&asked);
    llama.set_access_method(method);
    let [long, short] = std::array::from_fn(|_| llama.allocate());
    [long, short].into_iter().for_each(|page| put(&llama, page, &[7; 1000]));
    flush(&llama);
    let delta = || {
        let guard = llama.pin();
        let delta = OwnedNode::delta(b"delta");
        llama.install(long, llama.snapshot(long, &guard), delta, &guard).unwrap();
    };
    // A second fragment, and one too many.
    for (full, expected) in [(2, &[][..]), (3, &[long])] {
        delta();
        flush(&llama);
        assert_eq!(&asked.0.lock().unwrap()[..], expected);
        assert_eq!(llama.counters.full_fragments_written.get(), full);
    }
    // The cleaner wants one moved that is a base alone.
    llama.table.set_rewrite(short);
    llama.table.mark_dirty(short);
    flush(&llama);
    assert_eq!(asked.0.lock().unwrap().len(), 1);
    assert_eq!(llama.counters.pages_relocated.get(), 1);
}

/// A page whose first fragment, of the first page of a tree, has just become durable.
fn durable(llama: &Llama) -> PageId {
    let page = llama.allocate();
    let position = llama.lock_flusher().position;
    llama.writing().note_root(page, position);
    page
}

#[test]
fn what_has_become_durable_is_noted_by_whoever_takes_the_flush_lock() {
    let llama = open(Options::tiny_for_tests());
    let ways: [fn(&Llama); 4] = [
        |llama| drop(llama.lock_flusher()),
        |llama| drop(llama.try_flusher()),
        Llama::await_flush,
        |llama| assert_eq!(llama.flush_step().unwrap(), FlushProgress::Nothing),
    ];
    for take in ways {
        let page = durable(&llama);
        drop(llama.try_fill());
        assert!(!llama.table.is_adopted(page));
        take(&llama);
        assert!(llama.table.is_adopted(page));
    }
}

#[test]
fn pages_are_looked_for_while_a_buffer_is_being_written() {
    let llama = open(Options::tiny_for_tests());
    let page = durable(&llama);
    assert!(!llama.is_writing());
    let writing = llama.writing();
    assert!(llama.is_writing());
    assert_eq!(llama.flush_step().unwrap(), FlushProgress::Nothing);
    assert!(!llama.table.is_adopted(page));
    drop(writing);
    assert!(!llama.is_writing());
}

/// The adopter goes first, while somebody is about to flush it.
#[test]
fn pages_that_are_given_up_beside_a_flush_are_not_missed() {
    let llama = open(Options::tiny_for_tests());
    for round in 0..2_000 {
        let free = |page: PageId| {
            let guard = llama.pin();
            let mut expected = llama.snapshot(page, &guard);
            while let Err(changed) = llama.free_page(page, expected, &guard) {
                expected = changed;
            }
        };
        let group: Vec<_> = (0..40).map(|_| llama.allocate()).collect();
        let leader = llama.allocate();
        let install = |page: PageId, adopts: &[PageId]| {
            let guard = llama.pin();
            let descriptor = PageDescriptor { tree: 1, low_key: b"of no tree", root: false };
            let node = OwnedNode::base(b"payload", descriptor, adopts);
            llama.install(page, llama.snapshot(page, &guard), node, &guard).unwrap();
        };
        group.iter().for_each(|&page| install(page, &[]));
        install(leader, &group);
        std::thread::scope(|scope| {
            scope.spawn(|| while !matches!(llama.flush_step().unwrap(), FlushProgress::Nothing) {});
            if round % 2 == 0 {
                std::thread::yield_now();
            }
            [leader].into_iter().chain(group).for_each(free);
        });
        while llama.epochs.collect() > 0 {}
    }
    assert!(llama.poisoned().is_none());
}

/// A page that must be read before, while somebody else reads it for as long as he likes.
#[test]
fn what_somebody_else_reads_is_awaited_and_not_asked_for_again_and_again() {
    let ways: [fn(&Llama); 2] = [
        |llama| assert!(matches!(llama.flush_step().unwrap(), FlushProgress::Wrote { pages: 1, .. })),
        |llama| {
            let mut round = llama.flush_round().unwrap();
            while llama.flush_round_step(&mut round).unwrap() != CheckpointProgress::Done {}
        },
    ];
    for way in ways {
        let llama = open(Options::tiny_for_tests());
        let page = llama.allocate();
        put(&llama, page, b"page");
        flush(&llama);
        while llama.evict_step(u64::MAX).pages == 0 {}
        llama.table.set_rewrite(page);
        llama.table.mark_dirty(page);
        let ticket = llama.loading.begin(page).unwrap();
        let prepared = std::thread::scope(|scope| {
            let flush = scope.spawn(|| way(&llama));
            while llama.counters.loads_awaited.get() == 0 && llama.counters.rows_prepared.get() < 100 {
                yield_now();
            }
            assert!(!flush.is_finished());
            let prepared = llama.counters.rows_prepared.get();
            drop(ticket);
            prepared
        });
        assert!(prepared <= 2, "{prepared} rows");
        assert_eq!(llama.counters.pages_relocated.get(), 1);
    }
}

/// Leaves the rows of some pages when it is asked for the first time, as a flush on another thread may.
struct Leaves {
    llama: OnceLock<Weak<Llama>>,
    rows: Mutex<Vec<PageId>>,
}

impl AccessMethod for Leaves {
    fn consolidate(&self, _: PageId) {
        let llama = self.llama.get().and_then(Weak::upgrade).unwrap();
        assert!(mem::take(&mut *self.rows.lock().unwrap()).into_iter().all(|page| llama.leave_row(page)));
    }
}

#[test]
fn there_is_something_to_flush_also_if_others_leave_as_many_rows_as_there_may_be() {
    let llama = Arc::new(open(Options::tiny_for_tests()));
    // The last is in none of the others' rows.
    let mut pages: Vec<_> = (0..300).map(|_| llama.allocate()).collect();
    pages.drain(8..299);
    pages.iter().for_each(|&page| put(&llama, page, b"page"));
    flush(&llama);
    while llama.evict_step(u64::MAX).pages > 0 {}
    let (rows, due) = ([&pages[..4], &pages[4..8]], pages[8]);
    let leaves = Arc::new(Leaves { llama: OnceLock::new(), rows: Mutex::new(rows[1].to_vec()) });
    leaves.llama.set(Arc::downgrade(&llama)).unwrap();
    let method: Weak<Leaves> = Arc::downgrade(&leaves);
    llama.set_access_method(method);
    assert!(rows[0].iter().all(|&page| llama.leave_row(page)));
    llama.table.set_rewrite(due);
    llama.table.mark_dirty(due);
    assert!(matches!(llama.flush_step().unwrap(), FlushProgress::Wrote { pages: 1, .. }));
    assert!(leaves.rows.lock().unwrap().is_empty() && !llama.table.wants_rewrite(due));
}

/// A recovery looks for the next buffer behind the last one and in the segment that follows: behind an empty segment none would be found.
#[test]
fn a_segment_without_a_buffer_is_not_left_behind_on_a_full_device() {
    const LONG: usize = 45_000;
    let disk = SimulatedDisk::new(1);
    let options = Options { flush_buffer_bytes: 16 << 10, direct: false, ..Options::tiny_for_tests() };
    let open = || Llama::open(Arc::new(disk.directory()), options.clone(), Epochs::new()).unwrap();
    let (llama, _) = open();
    put(&llama, llama.allocate(), b"first");
    flush(&llama);
    let segments = &llama.store.segments;
    // The one that is taken first has room for the shorter fragment only.
    let made = [(100, 60_000), (102, 30_000)];
    for (index, bytes) in made {
        segments.create(index, bytes).unwrap();
    }
    made.iter().for_each(|&(index, _)| segments.retire(index, u64::MAX).unwrap());
    disk.set_capacity(Some(disk.used_bytes()));
    {
        let (mut flusher, mut filling) = (llama.lock_flusher(), llama.filling());
        llama.make_room(&mut flusher, &mut filling, 0, 30_000).unwrap();
        assert_eq!(flusher.position.offsets[0], segments.start(2), "in a spare, and nothing is written yet");
    }
    // What room was made for has to wait, and a longer page comes first.
    let long = llama.allocate();
    put(&llama, long, &[7; LONG]);
    if let Err(error) = llama.flush_step() {
        assert!(matches!(&error, LlamaError::Device(error) if error.is_full()), "{error}");
        disk.set_capacity(None);
        flush(&llama);
    }
    drop(llama);
    let found: Vec<_> = open().1.pages.into_iter().map(|page| page.page).collect();
    assert!(found.contains(&long), "{found:?}");
}
