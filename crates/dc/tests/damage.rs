//! A page that cannot be read is in nobody's way, and loses nothing.

mod support;

use deuteron_contract::{DataComponent, DcError, Lsn, Operation, TableId, Timestamp};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::{CrashPolicy, Directory, MemoryDirectory, OpenMode, SimulatedDisk};
use deuteron_llama::{FlushProgress, OwnedNode, PageDescriptor, PageId};
use std::sync::Arc;

const TABLE: TableId = TableId(1);
const KEYS: u64 = 400;

fn value(key: u64, version: u64) -> Vec<u8> {
    format!("value {version:08} of {key:08}").into_bytes()
}

fn put(dc: &BwTreeDc, key: u64, version: u64) {
    let (key, value) = (key.to_be_bytes(), value(key, version));
    let (timestamp, lsn) = (Timestamp(version), Lsn(version));
    dc.apply(&[Operation { table: TABLE, key: &key, value: Some(&value), timestamp, lsn }]).unwrap();
}

fn get(dc: &BwTreeDc, key: u64) -> Result<Vec<u8>, DcError> {
    dc.get(TABLE, &key.to_be_bytes()).map(|record| record.expect("it was written").value.expect("a value"))
}

/// The last place of these bytes in the segments.
fn find(disk: &SimulatedDisk, bytes: &[u8]) -> (String, u64) {
    let directory = disk.directory();
    let mut names = directory.list().unwrap();
    names.retain(|name| name.ends_with(".seg"));
    let places = names.into_iter().flat_map(|name| {
        let file = directory.open(&name, OpenMode::Read, false).unwrap();
        let mut content = vec![0; file.length().unwrap() as usize];
        file.read_at(&mut content, 0).unwrap();
        let places = content.windows(bytes.len()).enumerate().filter(|(_, window)| *window == bytes);
        places.map(|(at, _)| (name.clone(), at as u64)).collect::<Vec<_>>()
    });
    places.last().expect("it is durable")
}

#[test]
fn a_page_that_cannot_be_read_takes_writes_over_checkpoints_and_openings() {
    for memory_bytes in [256 << 10, 16 << 20] {
        let disk = SimulatedDisk::new(1);
        let options = || DcOptions { memory_bytes, ..DcOptions::tiny_for_tests() };
        let dc = support::open(Arc::new(disk.directory()), options()).unwrap();
        (0..KEYS).for_each(|key| put(&dc, key, 1));
        dc.redo_scan_start_point(Lsn(2)).unwrap();
        drop(dc);
        let (file, at) = find(&disk, &value(KEYS / 2, 1));
        disk.flip_bits(&file, at, 1).unwrap();
        let open = || support::open(Arc::new(disk.crash(CrashPolicy::LoseAll)), options()).unwrap();
        let mut dc = open();
        // Those on the same page: one that is written, and one that is not.
        let mut others = (KEYS / 2 - 3..KEYS / 2 + 4)
            .filter(|&key| key != KEYS / 2 && matches!(get(&dc, key), Err(DcError::Corrupt { .. })));
        let (written, kept) = (others.next().unwrap(), others.next().unwrap());
        let mut version = 1;
        let newest = |key: u64, version: u64| if key == KEYS / 2 { version - 1 } else { version };
        for round in 0..60 {
            assert!(matches!(get(&dc, written), Err(DcError::Corrupt { .. }) | Ok(_)));
            // Many more than a page takes unread.
            for _ in 0..40 {
                version += 1;
                for key in [written, KEYS / 2, 7, KEYS - 7] {
                    put(&dc, key, newest(key, version).max(1));
                }
            }
            let mut steps = 0;
            while dc.maintain_step().unwrap() {
                steps += 1;
                assert!(steps < 10_000, "there is no end of it");
            }
            dc.redo_scan_start_point(Lsn(version + 1)).unwrap();
            if round % 7 == 6 {
                drop(dc);
                dc = open();
                assert!(matches!(get(&dc, kept), Err(DcError::Corrupt { .. })));
            }
            assert_eq!(get(&dc, 7).unwrap(), value(7, version));
            assert_eq!(get(&dc, KEYS - 7).unwrap(), value(KEYS - 7, version));
        }
        assert!(dc.check().is_err());
        disk.flip_bits(&file, at, 1).unwrap();
        drop(dc);
        let dc = open();
        assert_eq!(dc.check().unwrap().trees.records, KEYS);
        for key in [KEYS / 2, written, 7, KEYS - 7] {
            assert_eq!(get(&dc, key).unwrap(), value(key, newest(key, version)));
        }
        assert_eq!(get(&dc, kept).unwrap(), value(kept, 1));
    }
}

/// Its checksum is right, as somebody has written it; but no tree has.
#[test]
fn what_is_no_page_of_a_tree_is_told_and_not_read() {
    for payload in [&b""[..], b"junk", &[0; 100], &[0xff; 100], &[1, 2, 0, 0, 0xff, 0xff, 0xff, 0x7f, 0, 0]] {
        let dc = support::open(Arc::new(MemoryDirectory::new()), support::tiny(1 << 20)).unwrap();
        put(&dc, 1, 1);
        let (llama, page) = (dc.llama(), PageId(1));
        {
            let guard = llama.pin();
            let descriptor = PageDescriptor { tree: TABLE.0, low_key: b"", root: true };
            let base = OwnedNode::base(payload, descriptor, &[]);
            llama.install(page, llama.snapshot(page, &guard), base, &guard).unwrap();
        }
        while llama.flush_step().unwrap() != FlushProgress::Nothing {}
        while llama.memory_bytes() > 0 {
            llama.evict_step(u64::MAX);
        }
        assert!(matches!(get(&dc, 1), Err(DcError::Corrupt { .. })), "{payload:?}");
        put(&dc, 1, 2);
        assert!(matches!(get(&dc, 1), Err(DcError::Corrupt { .. })), "{payload:?}");
    }
}

#[test]
fn a_compaction_passes_by_what_cannot_be_read_and_tells_of_it_at_the_end() {
    let disk = SimulatedDisk::new(2);
    let options = || DcOptions { memory_bytes: 256 << 10, ..DcOptions::tiny_for_tests() };
    let dc = support::open(Arc::new(disk.directory()), options()).unwrap();
    (0..KEYS).for_each(|key| put(&dc, key, 1));
    dc.redo_scan_start_point(Lsn(2)).unwrap();
    drop(dc);
    let broken = KEYS / 8;
    let (file, at) = find(&disk, &value(broken, 1));
    disk.flip_bits(&file, at, 1).unwrap();
    let dc = support::open(Arc::new(disk.directory()), options()).unwrap();
    let is_kept = |key: u64| key.is_multiple_of(20) || key <= KEYS / 4;
    for key in (0..KEYS).filter(|&key| !is_kept(key)) {
        let (bytes, timestamp, lsn) = (key.to_be_bytes(), Timestamp(2), Lsn(2));
        dc.apply(&[Operation { table: TABLE, key: &bytes, value: None, timestamp, lsn }]).unwrap();
    }
    [3, 4, 5].into_iter().for_each(|lsn| dc.redo_scan_start_point(Lsn(lsn)).unwrap());
    let pages = |dc: &BwTreeDc| {
        let mut pages = 0;
        let (epochs, mut from) = (dc.llama().pin(), Some(PageId(1)));
        while let Some(page) = from {
            pages += u64::from(!dc.llama().snapshot(page, &epochs).is_free());
            from = Some(PageId(page.0 + 1)).filter(|page| page.0 < dc.llama().statistics().page_ids);
        }
        pages
    };
    let before = pages(&dc);
    for _ in 0..2 {
        match dc.compact() {
            Err(DcError::Corrupt { found, .. }) => {
                assert!(found.contains("(pages that cannot be read: 1, page "), "{found}")
            }
            other => panic!("{other:?}"),
        }
    }
    // Three quarters of the records are gone, and so is what they lay on.
    let after = pages(&dc);
    assert!(after < before / 2, "{before} pages, then {after}");
    assert!(matches!(get(&dc, broken), Err(DcError::Corrupt { .. })));
    disk.flip_bits(&file, at, 1).unwrap();
    dc.compact().unwrap();
    for key in 0..KEYS {
        let found = dc.get(TABLE, &key.to_be_bytes()).unwrap().and_then(|record| record.value);
        assert_eq!(found, is_kept(key).then(|| value(key, 1)), "{key}");
    }
    dc.check().unwrap();
}

#[test]
fn a_page_that_cannot_be_read_keeps_nothing_of_other_tables_on_disk() {
    const LARGE: usize = 5 << 10;
    let disk = SimulatedDisk::new(1);
    let options = || DcOptions { memory_bytes: 256 << 10, ..DcOptions::tiny_for_tests() };
    let open = || support::open(Arc::new(disk.crash(CrashPolicy::LoseAll)), options()).unwrap();
    let dc = open();
    let mut lsn = 0;
    let mut put = |dc: &BwTreeDc, table: u32, number: u64, value: &[u8]| {
        lsn += 1;
        dc.apply(&[support::row(TableId(table), &number.to_be_bytes(), Some(value), lsn)]).unwrap();
        Lsn(lsn + 1)
    };
    for table in [1, 2] {
        // Its neighbour tells where the page is that refers to a large value.
        put(&dc, table, 1, &value(1, u64::from(table)));
        for number in 2..12 {
            put(&dc, table, number, &[table as u8; LARGE]);
        }
    }
    let end = put(&dc, 2, 1, b"again");
    dc.redo_scan_start_point(end).unwrap();
    drop(dc);
    let (file, at) = find(&disk, &value(1, 1));
    disk.flip_bits(&file, at, 1).unwrap();
    let dc = open();
    assert!(matches!(dc.get(TableId(1), &1u64.to_be_bytes()), Err(DcError::Corrupt { .. })));
    for _ in 0..4 {
        // The damaged one is written to, too.
        put(&dc, 1, 50, &[9; LARGE]);
        let end = (2..12).map(|number| put(&dc, 2, number, &[9; LARGE])).last().unwrap();
        dc.redo_scan_start_point(end).unwrap();
        let mut steps = 0;
        while dc.maintain_step().unwrap() {
            steps += 1;
            assert!(steps < 10_000, "there is no end of it");
        }
    }
    let removed = support::counter(&dc, "large_values_removed");
    assert!(removed >= 30, "{removed}");
    // What nobody knows to be dead stays.
    assert!((2..12).all(|number| match dc.get(TableId(1), &u64::to_be_bytes(number)) {
        Ok(record) => record.unwrap().value.unwrap() == [1; LARGE],
        Err(error) => matches!(error, DcError::Corrupt { .. }),
    }));
}

#[test]
fn a_part_of_a_dead_value_that_cannot_be_read_keeps_nobody_from_compacting() {
    // A chunk, and a short one, which shares its page with those of others.
    let large = |number: u64| [vec![7; 1 << 10], value(number, number)].concat();
    let disk = SimulatedDisk::new(1);
    let options = || DcOptions { memory_bytes: 256 << 10, ..DcOptions::tiny_for_tests() };
    let open = || support::open(Arc::new(disk.crash(CrashPolicy::LoseAll)), options()).unwrap();
    let dc = open();
    let mut lsn = 0;
    let mut put = |dc: &BwTreeDc, number: u64, value: &[u8]| {
        lsn += 1;
        dc.apply(&[support::row(TABLE, &number.to_be_bytes(), Some(value), lsn)]).unwrap();
        Lsn(lsn + 1)
    };
    let end = (0..20).map(|number| put(&dc, number, &large(number))).last().unwrap();
    dc.redo_scan_start_point(end).unwrap();
    drop(dc);
    let (file, at) = find(&disk, &value(10, 10));
    disk.flip_bits(&file, at, 1).unwrap();
    let dc = open();
    for round in 0..4 {
        let end = (0..20).map(|number| put(&dc, number, &large(100 + 20 * round + number))).last().unwrap();
        dc.redo_scan_start_point(end).unwrap();
        let mut steps = 0;
        while dc.maintain_step().unwrap() {
            steps += 1;
            assert!(steps < 10_000, "there is no end of it");
        }
    }
    match dc.compact() {
        Ok(_) | Err(DcError::Corrupt { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    assert!(support::counter(&dc, "large_values_removed") >= 60);
    for number in 0..20 {
        let found = dc.get(TABLE, &u64::to_be_bytes(number)).unwrap().unwrap().value.unwrap();
        assert_eq!(found, large(160 + number));
    }
}
