//! Which pages a crash leaves, in the orders of events that random histories seldom meet.

mod harness;

use deuteron_device::{CrashPolicy, SimulatedDisk};
use deuteron_epoch::Epochs;
use deuteron_llama::{
    CheckpointProgress, FlushProgress, Llama, Options, OwnedNode, PageDescriptor, PageId, PageState,
};
use harness::steps::flush;
use std::sync::Arc;

fn open(disk: &SimulatedDisk) -> (Llama, Vec<(Vec<u8>, PageId)>) {
    let directory = Arc::new(disk.crash(CrashPolicy::LoseAll));
    let (llama, recovered) = Llama::open(directory, Options::tiny_for_tests(), Epochs::new()).unwrap();
    (llama, recovered.pages.into_iter().map(|page| (page.low_key, page.page)).collect())
}

fn install(llama: &Llama, page: PageId, low_key: &[u8], adopts: &[PageId]) {
    let guard = llama.pin();
    let descriptor = PageDescriptor { tree: 1, low_key, root: low_key.is_empty() };
    let snapshot = llama.snapshot(page, &guard);
    llama.install(page, snapshot, OwnedNode::base(low_key, descriptor, adopts), &guard).unwrap();
}

/// A checkpoint whose index holds these pages; `before_finish` runs after the last of them.
fn checkpoint(llama: &Llama, begun: Option<deuteron_llama::Checkpoint>, pages: &[(&[u8], PageId)]) {
    let mut checkpoint = begun.unwrap_or_else(|| llama.checkpoint_begin(b"").unwrap());
    while llama.checkpoint_flush_step(&mut checkpoint).unwrap() != CheckpointProgress::Done {}
    for &(low_key, page) in pages {
        llama.checkpoint_add(&mut checkpoint, 1, low_key, page).unwrap();
    }
    llama.checkpoint_finish(checkpoint).unwrap();
}

/// The image of a new store has the number 0, and is an image like any other.
#[test]
fn the_files_of_a_store_without_a_checkpoint_hold_its_first_image() {
    let disk = SimulatedDisk::new(1);
    let (llama, _) = open(&disk);
    install(&llama, llama.allocate(), b"", &[]);
    flush(&llama);
    let hold = llama.hold_files().unwrap();
    let names: Vec<&str> = hold.files().iter().map(|file| file.name.as_str()).collect();
    assert!(names.len() == 2 && names[1].starts_with("store-image-"), "{names:?}");
}

/// A right half was flushed before the checkpoint began, its left half came after the image: the scan must start at
/// the right half's fragment.
#[test]
fn a_page_that_is_adopted_after_the_checkpoint_is_found_before_its_scan_start() {
    let disk = SimulatedDisk::new(1);
    let (llama, _) = open(&disk);
    let (left, right) = (llama.allocate(), llama.allocate());
    install(&llama, left, b"", &[]);
    flush(&llama);
    install(&llama, right, b"m", &[]);
    flush(&llama);
    let begun = llama.checkpoint_begin(b"").unwrap();
    checkpoint(&llama, Some(begun), &[(b"", left)]);
    install(&llama, left, b"", &[right]);
    flush(&llama);
    drop(llama);
    let (_, pages) = open(&disk);
    assert_eq!(pages, [(b"".to_vec(), left), (b"m".to_vec(), right)]);
}

/// The right half was itself split and flushed while the left half was held. When the left half becomes durable,
/// all three count and are in the image, and the scan start moves on, so that old segments can go.
#[test]
fn adoptions_of_a_page_that_is_not_adopted_yet_wait_for_it() {
    let disk = SimulatedDisk::new(2);
    let (llama, _) = open(&disk);
    let pages: [PageId; 3] = std::array::from_fn(|_| llama.allocate());
    install(&llama, pages[0], b"", &[]);
    flush(&llama);
    install(&llama, pages[1], b"m", &[]);
    llama.hold(pages[0]);
    install(&llama, pages[0], b"", &[pages[1]]);
    install(&llama, pages[2], b"t", &[]);
    install(&llama, pages[1], b"m", &[pages[2]]);
    flush(&llama);
    llama.release(pages[0]);
    let index: [(&[u8], PageId); 3] = [(b"", pages[0]), (b"m", pages[1]), (b"t", pages[2])];
    checkpoint(&llama, None, &index);
    for _ in 0..100 {
        for (low_key, page) in index {
            install(&llama, page, low_key, &[]);
        }
        flush(&llama);
    }
    checkpoint(&llama, None, &index);
    assert!(llama.statistics().segments_removed > 3);
    drop(llama);
    let (_, found) = open(&disk);
    assert_eq!(found, index.map(|(low_key, page)| (low_key.to_vec(), page)));
}

/// The same, but the machine stops while the left half is held: neither right half counts. Their identifiers must
/// not be given out while their traces are there, or the old adoption would bring a page back.
#[test]
fn orphans_do_not_come_back_through_recycled_identifiers() {
    let disk = SimulatedDisk::new(3);
    let (llama, _) = open(&disk);
    let pages: [PageId; 3] = std::array::from_fn(|_| llama.allocate());
    install(&llama, pages[0], b"", &[]);
    flush(&llama);
    llama.hold(pages[0]);
    install(&llama, pages[1], b"m", &[]);
    install(&llama, pages[0], b"", &[pages[1]]);
    install(&llama, pages[2], b"t", &[]);
    install(&llama, pages[1], b"m", &[pages[2]]);
    flush(&llama);
    drop(llama);

    let (llama, found) = open(&disk);
    assert_eq!(found, [(b"".to_vec(), pages[0])]);
    for key in [b"k", b"p", b"w"] {
        let right = llama.allocate();
        install(&llama, right, key, &[]);
        llama.load(pages[0]).unwrap();
        install(&llama, pages[0], b"", &[right]);
    }
    flush(&llama);
    drop(llama);
    let (llama, found) = open(&disk);
    let keys: Vec<&[u8]> = found.iter().map(|(low_key, _)| low_key.as_slice()).collect();
    assert_eq!(keys, [b"".as_slice(), b"k", b"p", b"w"]);

    // After a checkpoint there are no traces any more.
    let index: Vec<(&[u8], PageId)> =
        found.iter().map(|(low_key, page)| (low_key.as_slice(), *page)).collect();
    checkpoint(&llama, None, &index);
    drop(llama);
    let (llama, _) = open(&disk);
    assert!([llama.allocate(), llama.allocate()].iter().all(|page| pages.contains(page)));
}

/// An adoption that was not durable when the left half was consolidated goes over to the new base.
#[test]
fn a_consolidation_keeps_the_adoptions_that_are_not_durable() {
    let disk = SimulatedDisk::new(4);
    let (llama, _) = open(&disk);
    let (left, right) = (llama.allocate(), llama.allocate());
    install(&llama, left, b"", &[]);
    install(&llama, right, b"m", &[]);
    install(&llama, left, b"", &[right]);
    install(&llama, left, b"", &[]);
    let guard = llama.pin();
    let PageState::Resident(head) = llama.snapshot(left, &guard).state() else { panic!("installed") };
    assert_eq!(head.adopts(), [right]);
    drop(guard);
    flush(&llama);
    drop(llama);
    assert_eq!(open(&disk).1.len(), 2);
}

/// Neither a page that was never adopted nor its identifier is lost when it is freed, even if it was flushed.
#[test]
fn a_freed_page_leaves_no_live_bytes_and_its_identifier_is_given_out_again() {
    let disk = SimulatedDisk::new(5);
    let (llama, _) = open(&disk);
    let (root, right) = (llama.allocate(), llama.allocate());
    install(&llama, root, b"", &[]);
    flush(&llama);
    let live = llama.statistics().live_bytes;
    install(&llama, right, b"m", &[]);
    flush(&llama);
    assert!(llama.statistics().live_bytes > live);
    let guard = llama.pin();
    llama.free_page(right, llama.snapshot(right, &guard), &guard).unwrap();
    assert_ne!(llama.allocate(), right, "somebody may still hold it");
    drop(guard);
    llama.epochs().collect();
    flush(&llama);
    assert_eq!(llama.statistics().live_bytes, live);
    assert_eq!(llama.allocate(), right);
}

/// The first page `left` loses what it has to `right`, as in a split. What it adopts then.
fn split_off(llama: &Llama, left: PageId, right: PageId) -> Vec<PageId> {
    let guard = llama.pin();
    let root = PageDescriptor { tree: 1, low_key: b"", root: true };
    let whole = llama.snapshot(left, &guard);
    let split = llama.install_base(left, whole, b"first", root, &[right], 0, &guard);
    let PageState::Resident(head) = split.expect("nobody else is there").state() else { panic!("installed") };
    head.adopts().to_vec()
}

/// Splits the first page into itself and one more page below all others, `times` times. The identifiers, the last one first.
fn split_first(llama: &Llama, left: PageId, first: u8, times: u8) -> Vec<PageId> {
    let mut pages = Vec::new();
    for key in (first..first + times).map(|key| [255 - key]) {
        let (right, guard) = (llama.allocate(), llama.pin());
        let base =
            OwnedNode::base(&[key[0]; 300], PageDescriptor { tree: 1, low_key: &key, root: false }, &[]);
        llama.install(right, llama.snapshot(right, &guard), base, &guard).unwrap();
        let adopts = split_off(llama, left, right);
        assert!(adopts.len() <= 8, "the first page adopts {adopts:?}");
        assert_eq!(adopts.last(), Some(&right));
        pages.insert(0, right);
    }
    pages
}

/// Keys that descend split the first page again and again. It does not adopt all of that itself.
#[test]
fn a_page_that_is_split_a_hundred_times_adopts_few() {
    let disk = SimulatedDisk::new(6);
    let (llama, _) = open(&disk);
    let left = llama.allocate();
    install(&llama, left, b"", &[]);
    let mut pages = split_first(&llama, left, 0, 100);
    flush(&llama);
    assert!(pages.iter().all(|&page| llama.is_settled(page)));
    pages.splice(0..0, split_first(&llama, left, 100, 50));
    flush(&llama);
    drop(llama);
    let (_, mut found) = open(&disk);
    found.sort();
    assert_eq!(found.iter().map(|(_, page)| *page).skip(1).collect::<Vec<_>>(), pages);
}

/// A new page that a flush has taken before it has been split off can tell of nothing any more: the page goes on with the list.
#[test]
fn a_page_that_has_been_flushed_is_handed_no_adoptions() {
    let disk = SimulatedDisk::new(7);
    let (llama, _) = open(&disk);
    let left = llama.allocate();
    install(&llama, left, b"", &[]);
    split_first(&llama, left, 0, 8);
    llama.hold(left);
    let right = llama.allocate();
    install(&llama, right, b"a", &[]);
    flush(&llama);
    assert_eq!(split_off(&llama, left, right).len(), 9);
    llama.release(left);
    flush(&llama);
    drop(llama);
    assert_eq!(open(&disk).1.len(), 10);
}

/// The machine stops at each step of the flush of such a page: what is found of the first page is either what it was, or everything that was split off from it.
#[test]
fn of_a_page_that_is_split_a_hundred_times_all_parts_are_found_or_none() {
    let mut outcomes = [0; 2];
    for steps in 0.. {
        let disk = SimulatedDisk::new(8);
        let (llama, _) = open(&disk);
        let left = llama.allocate();
        install(&llama, left, b"", &[]);
        flush(&llama);
        split_first(&llama, left, 0, 100);
        let is_done = (0..steps).any(|_| llama.flush_step().unwrap() == FlushProgress::Nothing);
        drop(llama);
        let (llama, found) = open(&disk);
        assert!(found.len() == 1 || found.len() == 101, "{} pages after {steps} steps", found.len());
        outcomes[usize::from(found.len() > 1)] += 1;
        // Identifiers of those that do not count are not given out as long as traces of them are there.
        split_first(&llama, left, 100, 50);
        flush(&llama);
        drop(llama);
        assert_eq!(open(&disk).1.len(), found.len() + 50);
        if is_done {
            break;
        }
    }
    assert!(outcomes[0] > 5 && outcomes[1] > 0, "{outcomes:?}");
}
