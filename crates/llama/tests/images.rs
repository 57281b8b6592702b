//! Images of what has changed: what they cost, and that a recovery puts them together.

use deuteron_device::{CrashPolicy, Directory, OpenMode, SimulatedDisk};
use deuteron_epoch::Epochs;
use deuteron_llama::{
    Checkpoint, CheckpointProgress, FlushProgress, Llama, LlamaError, Options, OwnedNode, PageDescriptor,
    PageId,
};
use std::sync::Arc;

/// Low keys and pages.
type Index = Vec<(Vec<u8>, PageId)>;

fn open(disk: &SimulatedDisk) -> Result<(Llama, Index), LlamaError> {
    open_with(disk, Options::default().memory_bytes)
}

fn open_with(disk: &SimulatedDisk, memory_bytes: u64) -> Result<(Llama, Index), LlamaError> {
    let directory = Arc::new(disk.crash(CrashPolicy::LoseAll));
    let options =
        Options { segment_bytes: 1 << 20, flush_buffer_bytes: 64 << 10, memory_bytes, ..Options::default() };
    let (llama, recovered) = Llama::open(directory, options, Epochs::new())?;
    Ok((llama, recovered.pages.into_iter().map(|page| (page.low_key, page.page)).collect()))
}

fn put(llama: &Llama, page: PageId, low_key: &[u8], payload: &[u8]) {
    let guard = llama.pin();
    // Each is the first of its tree, so that each counts.
    let descriptor = PageDescriptor { tree: 1, low_key, root: true };
    let base = OwnedNode::base(payload, descriptor, &[]);
    llama.install(page, llama.snapshot(page, &guard), base, &guard).unwrap();
}

/// Of a page that is not in memory.
fn payload(llama: &Llama, page: PageId) -> Vec<u8> {
    llama.load(page).unwrap();
    let guard = llama.pin();
    llama.snapshot(page, &guard).head().unwrap().payload().to_vec()
}

fn flush(llama: &Llama, checkpoint: &mut Checkpoint) {
    while llama.checkpoint_flush_step(checkpoint).unwrap() != CheckpointProgress::Done {}
}

/// A checkpoint; whether its image is whole.
fn checkpoint(llama: &Llama, pages: &[(Vec<u8>, PageId)]) -> bool {
    let mut checkpoint = llama.checkpoint_begin(b"").unwrap();
    flush(llama, &mut checkpoint);
    let is_whole = checkpoint.is_whole();
    if is_whole {
        for (low_key, page) in pages {
            llama.checkpoint_add(&mut checkpoint, 1, low_key, *page).unwrap();
        }
    }
    llama.checkpoint_finish(checkpoint).unwrap();
    is_whole
}

/// An image of what has changed, which fails, as the disk is full.
fn image_without_room(disk: &SimulatedDisk, llama: &Llama) {
    let mut full = llama.checkpoint_begin(b"").unwrap();
    flush(llama, &mut full);
    assert!(!full.is_whole());
    disk.set_capacity(Some(disk.used_bytes()));
    assert!(matches!(llama.checkpoint_finish(full), Err(LlamaError::Device(error)) if error.is_full()));
    disk.set_capacity(None);
}

/// A store with many pages, all in images.
fn many(disk: &SimulatedDisk) -> (Llama, Index) {
    let (llama, _) = open(disk).unwrap();
    let mut pages: Vec<_> =
        (0..3000u64).map(|number| (number.to_be_bytes().to_vec(), llama.allocate())).collect();
    pages.iter().for_each(|(low_key, page)| put(&llama, *page, low_key, b"first"));
    pages.sort();
    // All are new to the images, so the next one would be as long as a whole one, and the one after that is whole.
    while !checkpoint(&llama, &pages) {
        put(&llama, pages[0].1, &pages[0].0, b"again");
    }
    (llama, pages)
}

#[test]
fn an_image_is_as_long_as_what_has_changed() {
    let disk = SimulatedDisk::new(1);
    let (llama, pages) = many(&disk);
    let bytes = |llama: &Llama| llama.statistics().bytes_of_images;
    for round in 0..5u8 {
        for (low_key, page) in &pages[..40] {
            put(&llama, *page, low_key, &[round; 100]);
        }
        let before = bytes(&llama);
        assert!(!checkpoint(&llama, &pages));
        // The first block, the last, and that between them.
        assert_eq!(bytes(&llama) - before, 3 * 4096);
    }
    // A checkpoint without changes names none.
    let before = bytes(&llama);
    assert!(!checkpoint(&llama, &pages));
    assert_eq!(bytes(&llama) - before, 2 * 4096);
    drop(llama);

    let (llama, found) = open(&disk).unwrap();
    assert_eq!(found, pages);
    let payload = |page| {
        llama.load(page).unwrap();
        let guard = llama.pin();
        llama.snapshot(page, &guard).head().unwrap().payload().to_vec()
    };
    assert_eq!((payload(pages[39].1), payload(pages[40].1)), (vec![4; 100], b"first".to_vec()));
    // It goes on from there.
    assert!(!checkpoint(&llama, &pages));
}

#[test]
fn whole_images_come_once_the_others_are_as_long_and_replace_them() {
    let disk = SimulatedDisk::new(2);
    let (llama, pages) = many(&disk);
    let images = || disk.directory().list().unwrap().iter().filter(|name| name.contains("image")).count();
    assert_eq!(images(), 1);
    let (mut wholes, mut most) = (0, 0);
    for _ in 0..100 {
        put(&llama, pages[7].1, &pages[7].0, b"again");
        wholes += u32::from(checkpoint(&llama, &pages));
        most = most.max(images());
    }
    // 3000 pages are some 130 KiB, a small image is 12.
    assert!((4..=12).contains(&wholes), "{wholes} whole images");
    assert!((8..=25).contains(&most), "{most} images");
    drop(llama);
    assert_eq!(open(&disk).unwrap().1, pages);
}

#[test]
fn after_an_image_that_was_given_up_the_next_is_whole() {
    let disk = SimulatedDisk::new(3);
    let (llama, pages) = many(&disk);
    put(&llama, pages[3].1, &pages[3].0, b"again");
    // It never began to write.
    drop(llama.checkpoint_begin(b"").unwrap());
    image_without_room(&disk, &llama);
    assert!(checkpoint(&llama, &pages));
    drop(llama);
    assert_eq!(open(&disk).unwrap().1, pages);
}

/// A page that is gone is in no index. If the image that was to say so failed, it must not be forgotten that it is noted: its
/// identifier comes again.
#[test]
fn pages_that_take_the_place_of_some_that_went_before_an_image_failed_are_in_the_next() {
    let disk = SimulatedDisk::new(13);
    let (llama, mut pages) = many(&disk);
    let left = pages[0].clone();
    let right = pages.remove(1);
    {
        let guard = llama.pin();
        llama.load(right.1).unwrap();
        llama.seal(right.1, llama.snapshot(right.1, &guard), &guard).unwrap();
        let low = PageDescriptor { tree: 1, low_key: &left.0, root: true };
        let heir = OwnedNode::heir(b"both", low, &[], &[right.1]);
        llama.install(left.1, llama.snapshot(left.1, &guard), heir, &guard).unwrap();
    }
    image_without_room(&disk, &llama);
    // The identifier passes through the epochs.
    let again = loop {
        put(&llama, left.1, &left.0, &[7; 10_000]);
        while llama.flush_step().unwrap() != FlushProgress::Nothing {}
        let page = llama.allocate();
        if page == right.1 {
            break page;
        }
        assert!(page.0 < 4000, "it does not come again");
    };
    assert!(checkpoint(&llama, &pages));
    pages.push((b"new".to_vec(), again));
    pages.sort();
    put(&llama, again, b"new", b"new");
    assert!(!checkpoint(&llama, &pages));
    drop(llama);
    let (llama, found) = open(&disk).unwrap();
    assert_eq!(found, pages);
    assert_eq!(payload(&llama, again), b"new");
}

/// What the scan has found is in the next image, though only that image's predecessors know the rest.
#[test]
fn what_was_flushed_before_a_crash_is_in_the_next_image() {
    let disk = SimulatedDisk::new(4);
    let (llama, mut pages) = many(&disk);
    put(&llama, pages[5].1, &pages[5].0, b"changed");
    let new = (b"new".to_vec(), llama.allocate());
    put(&llama, new.1, &new.0, b"new");
    while llama.flush_step().unwrap() != FlushProgress::Nothing {}
    drop(llama);
    pages.push(new);
    pages.sort();

    let (llama, found) = open(&disk).unwrap();
    assert_eq!(found, pages);
    assert!(!checkpoint(&llama, &pages));
    // Everything before the scan start is out of reach now.
    drop(llama);
    let (llama, found) = open(&disk).unwrap();
    assert_eq!(found, pages);
    assert_eq!(payload(&llama, pages[5].1), b"changed");
}

#[test]
fn a_damaged_image_of_the_row_is_reported() {
    let disk = SimulatedDisk::new(5);
    let (llama, pages) = many(&disk);
    for _ in 0..3 {
        put(&llama, pages[3].1, &pages[3].0, b"again");
        assert!(!checkpoint(&llama, &pages));
    }
    drop(llama);
    let images: Vec<String> =
        disk.directory().list().unwrap().into_iter().filter(|name| name.contains("image")).collect();
    assert_eq!(images.len(), 4);
    for name in &images {
        let damaged = disk.fork(1);
        damaged.flip_bits(name, 50, 1).unwrap();
        let error = open(&damaged).err().expect("the image is damaged");
        assert!(matches!(&error, LlamaError::Corrupt { file, .. } if file == name), "{error}");
        let missing = disk.fork(1);
        missing.directory().remove(name).unwrap();
        missing.directory().sync().unwrap();
        let opened = open(&missing);
        // Without the newest the row ends earlier; that a file is gone cannot be told then.
        match opened.err() {
            None => assert_eq!(Some(name), images.last()),
            Some(error) => {
                assert!(matches!(&error, LlamaError::Corrupt { file, .. } if file == name), "{error}")
            }
        }
        assert!(disk.directory().open(name, OpenMode::Read, false).is_ok());
    }
}

/// Nobody reads an image while the store is open: what is damaged would be copied, and noticed when the original is gone.
#[test]
fn a_damaged_image_is_not_copied() {
    let disk = SimulatedDisk::new(5);
    let (llama, _) = many(&disk);
    let images: Vec<_> = llama.hold_files().unwrap().files().to_vec();
    for file in images.iter().filter(|file| file.name.contains("image")) {
        for offset in [50, file.bytes - 4096] {
            disk.flip_bits(&file.name, offset, 1).unwrap();
            let error = llama.hold_files().err().expect("the image is damaged");
            assert!(
                matches!(&error, LlamaError::Corrupt { file: named, .. } if *named == file.name),
                "{error}"
            );
            disk.flip_bits(&file.name, offset, 1).unwrap();
        }
    }
    assert_eq!(llama.hold_files().unwrap().files(), images);
}

#[test]
fn places_that_take_too_much_are_forgotten_and_found_again_by_a_whole_image() {
    let disk = SimulatedDisk::new(4);
    // A 32nd is for places: of some 300 pages.
    let (llama, _) = open_with(&disk, 1 << 20).unwrap();
    let mut pages = Index::new();
    let mut add = |count: u64| {
        for _ in 0..count {
            let low_key = pages.len().to_be_bytes().to_vec();
            let page = llama.allocate();
            put(&llama, page, &low_key, b"value");
            pages.push((low_key, page));
        }
        while matches!(llama.flush_step().unwrap(), FlushProgress::Wrote { .. }) {}
        pages.clone()
    };
    // A few are not worth an image; so many are, and in time none is forgotten.
    add(50);
    assert!(!llama.is_image_due());
    let some = add(200);
    assert!(llama.is_image_due());
    assert!(!checkpoint(&llama, &some));
    assert!(!llama.is_image_due());
    let all = add(2000);
    // What comes between the scan start of a whole image and its end is named by the one after it.
    let mut late = llama.checkpoint_begin(b"").unwrap();
    flush(&llama, &mut late);
    assert!(late.is_whole());
    let new = add(1000);
    for (low_key, page) in &all {
        llama.checkpoint_add(&mut late, 1, low_key, *page).unwrap();
    }
    llama.checkpoint_finish(late).unwrap();
    assert!(!checkpoint(&llama, &new));
    drop(llama);
    assert_eq!(open(&disk).unwrap().1, new);
}

#[test]
fn an_image_is_due_when_a_recovery_would_scan_too_much() {
    let disk = SimulatedDisk::new(5);
    let (llama, pages) = many(&disk);
    let mut written = 0;
    while !llama.is_image_due() {
        let before = llama.statistics().bytes_written;
        pages.iter().for_each(|(low_key, page)| put(&llama, *page, low_key, &[7; 200]));
        while matches!(llama.flush_step().unwrap(), FlushProgress::Wrote { .. }) {}
        written += llama.statistics().bytes_written - before;
    }
    // Four segments of a megabyte.
    assert!((4 << 20..5 << 20).contains(&written), "after {written} bytes");
    checkpoint(&llama, &pages);
    assert!(!llama.is_image_due());
}

/// What is dirty stays so; it is not there after a crash, and what was flushed is.
#[test]
fn an_image_by_itself_flushes_nothing_and_forgets_nothing() {
    let disk = SimulatedDisk::new(6);
    let (llama, pages) = many(&disk);
    pages.iter().for_each(|(low_key, page)| put(&llama, *page, low_key, &[7; 200]));
    while matches!(llama.flush_step().unwrap(), FlushProgress::Wrote { .. }) {}
    pages.iter().for_each(|(low_key, page)| put(&llama, *page, low_key, &[8; 200]));
    let before = llama.statistics();
    let mut image = llama.image_begin(b"as before").unwrap();
    assert_eq!(llama.checkpoint_flush_step(&mut image).unwrap(), CheckpointProgress::Done);
    for (low_key, page) in &pages {
        llama.checkpoint_add(&mut image, 1, low_key, *page).unwrap();
    }
    llama.checkpoint_finish(image).unwrap();
    let after = llama.statistics();
    assert_eq!((after.bytes_flushed, after.checkpoints), (before.bytes_flushed, before.checkpoints + 1));
    drop(llama);
    let (llama, found) = open(&disk).unwrap();
    assert_eq!(found, pages);
    for (_, page) in pages {
        assert_eq!(payload(&llama, page), [7; 200]);
    }
}

/// It is gathered under its old place; then it goes, and another page has its identifier, before it is written down.
#[test]
fn a_page_that_takes_an_identifier_while_a_whole_image_gathers_keeps_its_own_place() {
    let disk = SimulatedDisk::new(1);
    let (llama, _) = open(&disk).unwrap();
    let install = |page: PageId, node: OwnedNode| {
        let guard = llama.pin();
        llama.install(page, llama.snapshot(page, &guard), node, &guard).unwrap();
    };
    let base = |low_key: &[u8], adopts: &[PageId]| {
        let descriptor = PageDescriptor { tree: 1, low_key, root: low_key.is_empty() };
        OwnedNode::base(low_key, descriptor, adopts)
    };
    let flush_all = || while llama.flush_step().unwrap() != FlushProgress::Nothing {};
    let (first, second) = (llama.allocate(), llama.allocate());
    install(second, base(b"m", &[]));
    install(first, base(b"", &[second]));
    flush_all();
    llama.renew_images();
    let mut checkpoint = llama.checkpoint_begin(b"").unwrap();
    flush(&llama, &mut checkpoint);
    assert!(checkpoint.is_whole());
    llama.checkpoint_add(&mut checkpoint, 1, b"m", second).unwrap();
    // The first takes the second over.
    {
        let guard = llama.pin();
        llama.seal(second, llama.snapshot(second, &guard), &guard).unwrap();
        let descriptor = PageDescriptor { tree: 1, low_key: b"", root: true };
        let heir = OwnedNode::heir(b"heir", descriptor, &[], &[second]);
        llama.install(first, llama.snapshot(first, &guard), heir, &guard).unwrap();
    }
    flush_all();
    assert_eq!(llama.statistics().pages_freed, 1);
    while llama.epochs().collect() > 0 {}
    install(first, base(b"", &[]));
    flush_all();
    assert_eq!(llama.allocate(), second, "it is given out again");
    install(second, base(b"x", &[]));
    install(first, base(b"", &[second]));
    flush_all();
    llama.checkpoint_add(&mut checkpoint, 1, b"", first).unwrap();
    llama.checkpoint_finish(checkpoint).unwrap();
    drop(llama);
    let (_llama, mut found) = open(&disk).unwrap();
    found.sort();
    assert_eq!(found, [(b"".to_vec(), first), (b"x".to_vec(), second)]);
}
