//! What a salvage finds of a store whose bytes are damaged in known places, and what it calls lost.

mod harness;

use deuteron_device::{Directory, Loss, MemoryDirectory, OpenMode};
use deuteron_epoch::Epochs;
use deuteron_llama::{
    CheckpointProgress, FlushProgress, FragmentPlace, FragmentReader, ImagedPage, Llama, Options, Order,
    OwnedNode, PageDescriptor, PageId, Salvage, salvage,
};
use harness::watched::Watched;
use std::sync::Arc;

/// A page of 1000 bytes with a low key of eight takes so much.
const FRAGMENT: u64 = 1088;
const BLOCK: u64 = 4096;
const SEGMENT: u64 = 64 << 10;
const FIRST: &str = "store-0000000000000000.seg";
const SECOND: &str = "store-0000000000000002.seg";
const SEQUENCE_UNKNOWN: u64 = u64::MAX;

fn options() -> Options {
    Options { flush_buffer_bytes: 16 << 10, ..Options::tiny_for_tests() }
}

fn open(directory: &MemoryDirectory, options: Options) -> Llama {
    Llama::open(Arc::new(directory.clone()), options, Epochs::new()).unwrap().0
}

fn content(page: PageId) -> Vec<u8> {
    vec![page.0 as u8; 1000]
}

/// New pages, each the first of its tree, in one flush buffer.
fn buffer(llama: &Llama, count: usize, content: impl Fn(PageId) -> Vec<u8>) {
    for page in (0..count).map(|_| llama.allocate()) {
        let descriptor = PageDescriptor { tree: 7, low_key: &page.0.to_be_bytes(), root: true };
        let guard = llama.pin();
        let base = OwnedNode::base(&content(page), descriptor, &[]);
        llama.install(page, llama.snapshot(page, &guard), base, &guard).unwrap();
    }
    assert!(matches!(llama.flush_step(), Ok(FlushProgress::Wrote { pages, .. }) if pages == count));
}

/// Four buffers of a block, with three pages each.
fn four_buffers() -> MemoryDirectory {
    let directory = MemoryDirectory::new();
    let llama = open(&directory, options());
    (0..4).for_each(|_| buffer(&llama, 3, content));
    directory
}

/// Where bytes are lost, and how many.
type Lost<'a> = &'a [(u64, u64)];

/// Where the fragment of page `number` (from 1) of [`four_buffers`] lies.
fn offset(number: u64) -> u64 {
    let (buffer, fragment) = ((number - 1) / 3, (number - 1) % 3);
    (buffer + 1) * BLOCK + 128 + fragment * FRAGMENT
}

fn length(directory: &MemoryDirectory, name: &str) -> u64 {
    directory.open(name, OpenMode::Read, false).unwrap().length().unwrap()
}

/// Changes some bytes of a file.
fn change(directory: &MemoryDirectory, name: &str, range: std::ops::Range<u64>, change: impl Fn(u8) -> u8) {
    let file = directory.open(name, OpenMode::ReadWrite, false).unwrap();
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_at(&mut bytes, range.start).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = change(*byte));
    file.write_at(&bytes, range.start).unwrap();
}

fn flip(directory: &MemoryDirectory, name: &str, at: u64) {
    change(directory, name, at..at + 1, |byte| !byte);
}

/// The first `count` bytes of `from` of one directory as a file of another.
fn copy(from: (&MemoryDirectory, &str), to: (&MemoryDirectory, &str), count: u64) {
    let mut bytes = vec![0; count as usize];
    from.0.open(from.1, OpenMode::Read, false).unwrap().read_at(&mut bytes, 0).unwrap();
    to.0.open(to.1, OpenMode::CreateNew, false).unwrap().write_at(&bytes, 0).unwrap();
}

#[derive(Debug, PartialEq)]
struct Found {
    page: u64,
    offset: u64,
    previous: Option<u64>,
    low_key: Option<Vec<u8>>,
    payloads: Vec<Vec<u8>>,
    order: Order,
}

fn salvaged(directory: &MemoryDirectory) -> (Salvage, Vec<Found>, Vec<FragmentPlace>) {
    let (mut found, mut places) = (Vec::new(), Vec::new());
    let directory: Arc<dyn Directory> = Arc::new(directory.clone());
    let salvage = salvage(&directory, &mut |fragment| {
        assert_eq!(fragment.offset, fragment.place.offset());
        places.push(fragment.place);
        let found_now = Found {
            page: fragment.page.0,
            offset: fragment.offset,
            previous: fragment.previous,
            low_key: fragment.descriptor.map(|descriptor| descriptor.low_key.to_vec()),
            payloads: fragment.payloads().map(<[u8]>::to_vec).collect(),
            order: Order { lowest: fragment.order as u64, highest: 0 },
        };
        found.push(found_now);
    })
    .unwrap();
    // Which order it is, is known in the end.
    for found in &mut found {
        found.order = salvage.orders[found.order.lowest as usize];
    }
    assert_eq!(salvage.fragments, found.len() as u64);
    (salvage, found, places)
}

fn pages(found: &[Found]) -> Vec<u64> {
    found.iter().map(|found| found.page).collect()
}

fn all_but(lost: &[u64]) -> Vec<u64> {
    (1..=12).filter(|page| !lost.contains(page)).collect()
}

fn loss(offset: u64, bytes: u64, reason: &str) -> Loss {
    Loss { file: FIRST.to_owned(), offset, bytes, reason: reason.to_owned() }
}

fn exactly(sequence: u64) -> Order {
    Order { lowest: sequence, highest: sequence }
}

#[test]
fn of_a_sound_store_everything_is_found_with_its_place_and_order() {
    let directory = four_buffers();
    let llama = open(&directory, options());
    let guard = llama.pin();
    for page in [PageId(5), PageId(2)] {
        let blind = OwnedNode::delta(b"blind");
        llama.install(page, llama.snapshot(page, &guard), blind, &guard).unwrap();
    }
    drop(guard);
    llama.flush_step().unwrap();
    drop(llama);
    let (salvage, found, places) = salvaged(&directory);
    let mut expected: Vec<Found> = (1..=12)
        .map(|page| Found {
            page,
            offset: offset(page),
            previous: None,
            low_key: Some(page.to_be_bytes().to_vec()),
            payloads: vec![content(PageId(page))],
            order: exactly((page - 1) / 3 + 1),
        })
        .collect();
    // A delta fragment is 40 + 4 + 5 bytes, rounded up.
    expected.extend([(2, 0), (5, 64)].map(|(page, at)| Found {
        page,
        offset: 5 * BLOCK + 128 + at,
        previous: Some(offset(page)),
        low_key: None,
        payloads: vec![b"blind".to_vec()],
        order: exactly(5),
    }));
    assert_eq!(found, expected);
    assert_eq!((salvage.segments, &salvage.losses[..]), (1, &[][..]));
    assert_eq!((salvage.user_data, salvage.is_newest_image), (Some(vec![]), true));
    // The store opens in the middle of its history: another incarnation, the same row.
    assert_eq!(salvage.orders, [1, 2, 3, 4, 5].map(exactly));
    for (place, found) in places.iter().zip(&found) {
        assert_eq!(place.file(), (FIRST.to_owned(), found.offset));
    }
}

#[test]
fn what_is_lost_with_damaged_bytes_is_what_lay_there() {
    let no_fragment = |buffer: u64| format!("no sound fragment in flush buffer {buffer}");
    // The pages that are damaged, and the losses: the first byte and how many.
    let cases: [(&[u64], Lost<'_>); 6] = [
        (&[5], &[(offset(5), FRAGMENT)]),
        (&[4], &[(offset(4), FRAGMENT)]),
        // Behind the last fragment nothing says where it ended.
        (&[6], &[(offset(6), 3 * BLOCK - offset(6))]),
        (&[4, 5], &[(offset(4), 2 * FRAGMENT)]),
        (&[4, 6], &[(offset(4), FRAGMENT), (offset(6), 3 * BLOCK - offset(6))]),
        (&[4, 5, 6], &[(offset(4), 3 * BLOCK - offset(4))]),
    ];
    for (damaged, lost) in cases {
        let directory = four_buffers();
        damaged.iter().for_each(|&page| flip(&directory, FIRST, offset(page) + 500));
        let (salvage, found, _) = salvaged(&directory);
        assert_eq!(pages(&found), all_but(damaged));
        let expected: Vec<_> = lost.iter().map(|&(at, bytes)| loss(at, bytes, &no_fragment(2))).collect();
        assert_eq!(salvage.losses, expected);
        assert_eq!(salvage.orders, [1, 2, 3, 4].map(exactly));
        assert!(found.iter().all(|found| found.order == exactly((found.page - 1) / 3 + 1)));
    }
}

#[test]
fn zeros_behind_the_last_fragment_are_no_loss_unless_there_are_too_many() {
    // The last fragment itself reads as zeros, and it was written.
    let directory = four_buffers();
    change(&directory, FIRST, offset(6)..3 * BLOCK, |_| 0);
    let (salvage, found, _) = salvaged(&directory);
    let last = loss(offset(6), 3 * BLOCK - offset(6), "no sound fragment in flush buffer 2");
    assert_eq!((pages(&found), salvage.losses), (all_but(&[6]), vec![last]));

    let directory = MemoryDirectory::new();
    // 11,008 bytes in three blocks.
    buffer(&open(&directory, options()), 10, content);
    let at = |number: u64| BLOCK + 128 + (number - 1) * FRAGMENT;
    flip(&directory, FIRST, at(1) + 500);
    let (first, reason) = (at(1), "no sound fragment in flush buffer 1");
    let (salvage, found, _) = salvaged(&directory);
    assert_eq!((pages(&found).len(), &salvage.losses[..]), (9, &[loss(first, FRAGMENT, reason)][..]));
    // The last blocks read as zeros, as those do that were never written.
    change(&directory, FIRST, at(4)..4 * BLOCK, |_| 0);
    let (salvage, found, _) = salvaged(&directory);
    let rest = loss(at(4), 4 * BLOCK - at(4), reason);
    assert_eq!((pages(&found), salvage.losses), (vec![2, 3], vec![loss(first, FRAGMENT, reason), rest]));
}

#[test]
fn fragments_of_a_buffer_without_its_header_are_ordered_by_its_neighbours() {
    let reason = "no sound flush buffer, or one that did not become durable";
    let cases: [(&[u64], [Order; 4]); 5] = [
        (&[2], [1, 2, 3, 4].map(exactly)),
        (&[1], [1, 2, 3, 4].map(exactly)),
        (&[2, 3], [exactly(1), Order { lowest: 2, highest: 3 }, Order { lowest: 2, highest: 3 }, exactly(4)]),
        (&[4], [exactly(1), exactly(2), exactly(3), Order { lowest: 4, highest: SEQUENCE_UNKNOWN }]),
        (&[1, 3], [1, 2, 3, 4].map(exactly)),
    ];
    for (damaged, orders) in cases {
        let directory = four_buffers();
        damaged.iter().for_each(|&buffer| flip(&directory, FIRST, buffer * BLOCK + 24));
        let (salvage, found, _) = salvaged(&directory);
        assert_eq!(pages(&found), all_but(&[]));
        for found in &found {
            assert_eq!(found.order, orders[(found.page as usize - 1) / 3], "{damaged:?}: {}", found.page);
        }
        let end = length(&directory, FIRST);
        let lost = match damaged {
            [2, 3] => vec![loss(2 * BLOCK, 2 * BLOCK, reason)],
            // Nothing says where it ended.
            [4] => vec![loss(4 * BLOCK, end - 4 * BLOCK, reason)],
            _ => damaged.iter().map(|&buffer| loss(buffer * BLOCK, BLOCK, reason)).collect(),
        };
        assert_eq!(salvage.losses, lost);
    }
}

/// Two segments of one stream, with five and one large pages.
fn two_segments() -> MemoryDirectory {
    let directory = MemoryDirectory::new();
    let llama = open(&directory, options());
    (0..6).for_each(|_| buffer(&llama, 1, |page| vec![page.0 as u8; 10_000]));
    directory
}

#[test]
fn where_a_segment_begins_is_known_without_its_header() {
    let sound = salvaged(&two_segments());
    assert_eq!(sound.0.segments, 2);
    assert_eq!(pages(&sound.1), [1, 2, 3, 4, 5, 6]);
    assert!(sound.0.losses.is_empty() && sound.1[5].offset > 2 * SEGMENT);
    // The other's header tells, or else a fragment.
    for headers in [&[FIRST][..], &[SECOND], &[FIRST, SECOND]] {
        let directory = two_segments();
        headers.iter().for_each(|name| flip(&directory, name, 40));
        let (salvage, found, _) = salvaged(&directory);
        assert_eq!(found, sound.1);
        let reason = "the segment's header is damaged".to_owned();
        let lost =
            |name: &&str| Loss { file: name.to_string(), offset: 0, bytes: BLOCK, reason: reason.clone() };
        assert_eq!(salvage.losses, headers.iter().map(lost).collect::<Vec<_>>());
        for (name, begin) in [(FIRST, 0), (SECOND, 2 * SEGMENT)] {
            let end = begin + length(&directory, name).min(SEGMENT);
            assert!(salvage.is_present(begin) && salvage.is_present(end - 1) && !salvage.is_present(end));
        }
        assert!(!salvage.is_present(2 * SEGMENT - 1));
    }
    // Nothing is left that could tell.
    let directory = two_segments();
    directory.remove(FIRST).unwrap();
    change(&directory, SECOND, 0..length(&directory, SECOND), |_| 1);
    let (salvage, found, _) = salvaged(&directory);
    assert!(found.is_empty() && !salvage.is_present(2 * SEGMENT));
    let reasons: Vec<&str> = salvage.losses.iter().map(|loss| &loss.reason[..]).collect();
    assert_eq!(reasons, ["the segment's header is damaged", "nothing says where the segment begins"]);
}

#[test]
fn a_segment_of_another_store_or_of_no_possible_number_is_not_read() {
    let (directory, other) = (two_segments(), four_buffers());
    let foreign = "store-0000000000000004.seg";
    change(&other, FIRST, 0..1, |byte| byte);
    let llama = open(&other, options());
    (0..12).for_each(|_| buffer(&llama, 1, |_| vec![1; 10_000]));
    drop(llama);
    copy((&other, foreign), (&directory, foreign), length(&other, foreign));
    // The least number whose segment would begin beyond what an address can say, and the greatest that there is.
    for number in [(1u64 << 54) / SEGMENT, u64::MAX] {
        copy((&directory, FIRST), (&directory, &format!("store-{number:016x}.seg")), 2 * BLOCK);
    }
    // As often as it takes for a vote that is counted wrongly to be lost.
    for _ in 0..12 {
        let (salvage, found, _) = salvaged(&directory);
        assert_eq!((pages(&found), salvage.segments), (vec![1, 2, 3, 4, 5, 6], 5));
        let [foreign_loss, rest @ ..] = &salvage.losses[..] else { panic!("there are losses") };
        assert_eq!((&foreign_loss.file[..], foreign_loss.bytes), (foreign, length(&other, foreign)));
        assert!(foreign_loss.reason.contains("not of this one"), "{foreign_loss}");
        let rest: Vec<_> = rest.iter().map(|loss| (loss.bytes, &loss.reason[..])).collect();
        let (header, number) =
            ((BLOCK, "the header of segment 0"), (2 * BLOCK, "a number that no segment has"));
        assert_eq!(rest, [header, number, header, number]);
        assert!(!salvage.is_present(1 << 54));
    }
}

#[test]
fn a_file_that_ends_anywhere_is_read_to_its_end() {
    let whole = four_buffers();
    // In a segment's header, in that of a buffer, in a fragment's, in a fragment.
    for end in [
        10,
        BLOCK + 10,
        BLOCK + 50,
        BLOCK + 128 + 5,
        2 * BLOCK + 70,
        offset(6) + 64,
        offset(6) + FRAGMENT - 1,
    ] {
        for damage in [None, Some(40)] {
            let directory = MemoryDirectory::new();
            copy((&whole, FIRST), (&directory, FIRST), end);
            if let Some(at) = damage.filter(|&at| at < end) {
                flip(&directory, FIRST, at);
            }
            let (salvage, found, _) = salvaged(&directory);
            let last = (1..=12).take_while(|&page| offset(page) + FRAGMENT <= end).count() as u64;
            assert_eq!(pages(&found), (1..=last).collect::<Vec<_>>(), "{end}");
            assert!(!salvage.losses.is_empty() || end < BLOCK);
            assert_eq!((salvage.user_data, salvage.is_newest_image), (None, false));
        }
    }
}

#[test]
fn compressed_fragments_are_handed_out_as_they_were() {
    let directory = MemoryDirectory::new();
    buffer(&open(&directory, Options { compress: true, ..options() }), 3, content);
    let (_, found, places) = salvaged(&directory);
    assert!(found[1].offset - found[0].offset < FRAGMENT / 2);
    let payloads: Vec<_> = found.into_iter().flat_map(|found| found.payloads).collect();
    assert_eq!(payloads, [1, 2, 3].map(|page| content(PageId(page))));
    let mut reader = FragmentReader::new(Arc::new(directory));
    let again = places
        .iter()
        .map(|&place| reader.read(place, |fragment| fragment.payloads().next().unwrap().to_vec()).unwrap());
    assert_eq!(again.collect::<Vec<_>>(), payloads);
}

fn checkpoint(llama: &Llama, user_data: &[u8]) {
    let mut checkpoint = llama.checkpoint_begin(user_data).unwrap();
    while llama.checkpoint_flush_step(&mut checkpoint).unwrap() != CheckpointProgress::Done {}
    assert!(!checkpoint.is_whole());
    llama.checkpoint_finish(checkpoint).unwrap();
}

#[test]
fn the_newest_image_that_can_be_read_tells_of_pages() {
    let directory = MemoryDirectory::new();
    let llama = open(&directory, options());
    buffer(&llama, 3, content);
    checkpoint(&llama, b"first");
    buffer(&llama, 1, content);
    checkpoint(&llama, b"second");
    drop(llama);
    let imaged = |number: u64| ImagedPage {
        page: PageId(number),
        tree: 7,
        low_key: number.to_be_bytes().to_vec(),
        fragments: vec![offset(number)],
    };
    type UserData = Option<&'static [u8]>;
    let cases: [(&[&str], UserData, u64); 4] = [
        (&[], Some(b"second"), 4),
        (&["store-image-0000000000000002"], Some(b"first"), 3),
        (&["store-image-0000000000000002", "store-image-0000000000000001"], Some(b""), 0),
        (&["store-image-0000000000000000"], None, 0),
    ];
    for (damaged, user_data, count) in cases {
        let damaged_directory = MemoryDirectory::new();
        for name in directory.list().unwrap() {
            copy((&directory, &name), (&damaged_directory, &name), length(&directory, &name));
        }
        damaged.iter().for_each(|name| flip(&damaged_directory, name, 50));
        let before = damaged_directory.list().unwrap();
        let (salvage, found, _) = salvaged(&damaged_directory);
        assert_eq!(pages(&found), [1, 2, 3, 4]);
        assert_eq!((salvage.user_data.as_deref(), salvage.is_newest_image), (user_data, damaged.is_empty()));
        assert_eq!(salvage.pages, (1..=count).map(imaged).collect::<Vec<_>>());
        // What a row builds on is missed by each of it.
        let losses = if user_data.is_none() { 3 } else { damaged.len() };
        assert_eq!(salvage.losses.len(), losses, "{:?}", salvage.losses);
        assert!(salvage.losses.iter().all(|loss| loss.reason.contains("checksum")), "{:?}", salvage.losses);
        assert_eq!(damaged_directory.list().unwrap(), before, "nothing is written");
    }
}

#[test]
fn fragments_are_read_again_from_files_that_are_kept_open_sixty_four_at_most() {
    let directory = MemoryDirectory::new();
    let llama = open(&directory, options());
    // Each fills a segment.
    (0..70).for_each(|_| buffer(&llama, 1, |page| vec![page.0 as u8; 50_000]));
    drop(llama);
    let (salvage, found, places) = salvaged(&directory);
    assert_eq!((found.len(), salvage.segments), (70, 70));
    let watched = Watched::new(directory.clone(), || ());
    let mut reader = FragmentReader::new(watched.clone());
    let mut read = |number: usize| {
        let taken = |fragment: &deuteron_llama::SalvagedFragment<'_>| {
            (fragment.page.0, fragment.offset, fragment.payloads().map(<[u8]>::to_vec).collect::<Vec<_>>())
        };
        let Found { page, offset, payloads, .. } = &found[number];
        assert_eq!(reader.read(places[number], taken), Some((*page, *offset, payloads.clone())));
        watched.opened()
    };
    for number in (0..64).chain(0..64) {
        let (opened, open) = read(number);
        assert!(opened <= 64 && open <= 64, "{opened} opened, {open} are open");
    }
    for number in 64..70 {
        let (opened, open) = read(number);
        assert_eq!((opened, open <= 64), (number + 1, true));
    }
    // What cannot be read any more, or is damaged since, is none.
    let name = places[3].file().0;
    flip(&directory, &name, places[3].file().1 + 100);
    directory.remove(&places[4].file().0).unwrap();
    let mut reader = FragmentReader::new(Arc::new(directory));
    let mut is_there = |number: usize| reader.read(places[number], |_| ()).is_some();
    assert!(is_there(2) && !is_there(3) && !is_there(4) && is_there(5));
}

/// A store whose second segment of the first stream was another one before, and has been filled to a half, and where that half ends.
fn recycled() -> (MemoryDirectory, String, u64) {
    let directory = MemoryDirectory::new();
    let llama = open(&directory, options());
    let page = llama.allocate();
    let put = |page: PageId| {
        let descriptor = PageDescriptor { tree: 7, low_key: &page.0.to_be_bytes(), root: true };
        let guard = llama.pin();
        let base = OwnedNode::base(&content(page), descriptor, &[]);
        llama.install(page, llama.snapshot(page, &guard), base, &guard).unwrap();
        drop(guard);
        llama.flush_step().unwrap();
    };
    // Each flush kills what the one before has written.
    (0..34).for_each(|_| put(page));
    let mut image = llama.image_begin(b"").unwrap();
    while llama.checkpoint_flush_step(&mut image).unwrap() != CheckpointProgress::Done {}
    llama.checkpoint_add(&mut image, 7, &page.0.to_be_bytes(), page).unwrap();
    llama.checkpoint_finish(image).unwrap();
    let before = llama.statistics();
    assert!(before.spare_bytes > 0 && before.segments_recycled == 0, "{before:?}");
    while llama.statistics().segments_recycled == 0 {
        put(page);
    }
    (0..6).for_each(|_| put(page));
    let names = directory.list().unwrap();
    let name = names.into_iter().filter(|name| name.ends_with(".seg")).max().unwrap();
    (directory, name, 8 * BLOCK)
}

#[test]
fn what_a_file_held_as_another_segment_is_neither_found_nor_lost() {
    let (directory, name, end) = recycled();
    assert_eq!(length(&directory, &name), SEGMENT);
    let behind = |salvage: &Salvage| {
        salvage.losses.iter().filter(|loss| loss.file == name).cloned().collect::<Vec<_>>()
    };
    let (salvage, found, _) = salvaged(&directory);
    assert_eq!(behind(&salvage), []);
    assert!(found.iter().all(|found| found.page == 1 && found.order.lowest == found.order.highest));
    let count = found.len();
    // What is damaged of the segment as it is now is told.
    flip(&directory, &name, end - BLOCK + 128 + 500);
    let (salvage, found, _) = salvaged(&directory);
    assert_eq!((found.len(), behind(&salvage).len()), (count - 1, 1), "{:?}", salvage.losses);
    // What is damaged of the other is not.
    flip(&directory, &name, end + 128 + 500);
    flip(&directory, &name, end + 7);
    assert_eq!(behind(&salvaged(&directory).0).len(), 1);
}
