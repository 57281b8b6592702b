//! Damaged files: a torn tail is the end of the log, damage anywhere else is told with its place, and nothing panics.
#![cfg(not(loom))]

mod harness;

use deuteron_contract::Lsn;
use deuteron_device::{AlignedBuffer, BLOCK_BYTES, Directory, MemoryDirectory, OpenMode};
use deuteron_epoch::Epochs;
use deuteron_log::{Log, LogError, LogOpening, LogOptions, Record};
use harness::closed::{BLOCK, Closed, closed, place};
use harness::{Pair, Recovered, check_recovery, upsert};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

impl Closed {
    fn open(&self, from: u64) -> Result<(Log, Recovered), LogError> {
        self.open_reaching(from..from)
    }

    fn open_reaching(&self, needed: Range<u64>) -> Result<(Log, Recovered), LogError> {
        let needed = Lsn(needed.start)..Lsn(needed.end);
        harness::open(Arc::new(self.directory.clone()), &LogOptions::tiny_for_tests(), Epochs::new(), needed)
    }
}

#[test]
fn damage_before_the_last_buffer_is_corruption_with_its_place() {
    let log = closed(20);
    let (last, others) = log.bases.split_last().unwrap();
    for &base in others {
        for at in [0, 12, 17, 26, 30, 34, 38, 42, 50, 64, 70, 140] {
            log.flip(base + at, 0x10);
            let error = log.open(0).err().expect("damage is noticed");
            let place = place(base);
            match error {
                LogError::Corrupt { file, offset, ref expected, .. } => {
                    assert_eq!((file, offset), place);
                    assert!(expected.contains("a valid buffer follows at LSN"), "{expected}");
                }
                other => panic!("{other}"),
            }
            log.flip(base + at, 0x10);
        }
    }
    // The last one is a torn tail: nobody can tell, and nothing behind it was promised.
    log.flip(last + 70, 1);
    let (opened, recovered) = log.open(0).unwrap();
    assert_eq!(recovered.recovery.tail(), Lsn(*last));
    check_recovery(
        &recovered,
        &log.model.range(..last).map(|(&lsn, owned)| (lsn, owned.clone())).collect(),
        Lsn(0),
    );
    drop(opened);
}

#[test]
fn damage_of_an_open_log_is_told_unless_it_is_below_what_was_asked_for() {
    let log = closed(20);
    let (opened, _) = log.open(0).unwrap();
    for (index, &base) in log.bases.iter().enumerate() {
        opened.verify(Lsn(0)).unwrap();
        log.flip(base + 70, 1);
        for &from in &log.bases[..=index] {
            match opened.verify(Lsn(from)) {
                Err(LogError::Corrupt { file, offset, .. }) => assert_eq!((file, offset), place(base)),
                other => panic!("{base} from {from}: {other:?}"),
            }
        }
        log.bases[index + 1..].iter().for_each(|&from| opened.verify(Lsn(from)).unwrap());
        opened.verify(Lsn(log.tail)).unwrap();
        log.flip(base + 70, 1);
    }
}

#[test]
fn a_log_that_ends_before_it_was_stable_is_corrupt_with_its_place() {
    let log = closed(20);
    let last = *log.bases.last().unwrap();
    log.open_reaching(0..log.tail).unwrap();
    log.flip(last + 70, 1);
    // As long as nobody knows better.
    let (_, recovered) = log.open_reaching(0..last).unwrap();
    assert_eq!(recovered.recovery.tail(), Lsn(last));
    let before = log.bytes(last, BLOCK_BYTES);
    for until in [last + 1, log.tail, log.tail + 8] {
        match log.open_reaching(0..until).err() {
            Some(LogError::Corrupt { file, offset, expected, .. }) => {
                assert_eq!((file, offset), place(last));
                assert!(expected.contains(&format!("stable up to LSN {until}")), "{expected}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(log.bytes(last, BLOCK_BYTES), before, "what is left of it is left to be salvaged");
    for name in log.directory.list().unwrap() {
        log.directory.remove(&name).unwrap();
    }
    assert!(matches!(log.open_reaching(0..8).err(), Some(LogError::Missing { wanted: Lsn(8), .. })));
}

#[test]
fn damage_below_the_start_point_is_nobodys_business() {
    let log = closed(20);
    let from = log.bases[7] + 64;
    for &base in &log.bases[..7] {
        log.flip(base + 20, 0xff);
    }
    let (_log, recovered) = log.open(from).unwrap();
    assert_eq!((recovered.recovery.start(), recovered.recovery.tail()), (Lsn(log.bases[7]), Lsn(log.tail)));
    check_recovery(&recovered, &log.model, Lsn(from));
}

#[test]
fn start_point_outside_the_log_is_corrupt_or_missing() {
    let log = closed(20);
    let missing = |from| match log.open(from).err() {
        Some(LogError::Missing { wanted, .. }) => assert_eq!(wanted, Lsn(from)),
        other => panic!("{other:?}"),
    };
    match log.open(log.tail + 8).err() {
        Some(LogError::Corrupt { file, offset, .. }) => assert_eq!((file, offset), place(log.tail)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(log.open(1 << 40).err(), Some(LogError::Corrupt { .. })));
    // The first segment is gone.
    log.directory.remove("log-0000000000000000.seg").unwrap();
    missing(64);
    log.open(0x10000).unwrap();
    log.directory.remove("log-0000000000010000.seg").unwrap();
    log.directory.open("log-0000000000000000.seg", OpenMode::CreateNew, false).unwrap();
    assert!(matches!(log.open(0).err(), Some(LogError::Corrupt { .. })), "an empty file is no segment");
}

#[test]
fn hole_between_segments_is_missing() {
    let log = closed(20);
    assert!(log.tail > 0x20000);
    log.directory.remove("log-0000000000010000.seg").unwrap();
    assert!(matches!(log.open(0).err(), Some(LogError::Missing { wanted: Lsn(0x10000), .. })));
}

#[test]
fn segment_of_another_log_is_refused() {
    let (log, other) = (closed(20), closed(20));
    let name = "log-0000000000010000.seg";
    let mut bytes = AlignedBuffer::zeroed(0x11000);
    other.directory.open(name, OpenMode::Read, false).unwrap().read_at(&mut bytes, 0).unwrap();
    log.directory.open(name, OpenMode::ReadWrite, false).unwrap().write_at(&bytes, 0).unwrap();
    match log.open(0).err() {
        Some(LogError::Corrupt { file, expected, .. }) => {
            assert_eq!(file, name);
            assert!(expected.contains("of log"), "{expected}");
        }
        other => panic!("{other:?}"),
    }
}

/// A crash leaves no header of one place in another; a device does that changes blocks round.
#[test]
fn what_belongs_elsewhere_is_no_tail() {
    let log = closed(20);
    let [.., one, other] = log.bases[..] else { panic!("there are many") };
    let (first, second) = (log.bytes(one, BLOCK_BYTES), log.bytes(other, BLOCK_BYTES));
    let put = |lsn: u64, bytes: &[u8]| {
        let (name, offset) = place(lsn);
        log.directory.open(&name, OpenMode::ReadWrite, false).unwrap().write_at(bytes, offset).unwrap();
    };
    put(one, &second);
    put(other, &first);
    match log.open(0).err() {
        Some(LogError::Corrupt { file, offset, found, .. }) => {
            assert_eq!((file, offset), place(one));
            assert!(found.contains(&other.to_string()), "{found}");
        }
        different => panic!("{different:?}"),
    }
    // One of another segment is what its file had before it was recycled.
    let old = log.bases.iter().find(|&&base| base & !0xffff != one & !0xffff).expect("another segment");
    put(one, &log.bytes(*old, BLOCK_BYTES));
    put(other, &[0; BLOCK_BYTES]);
    let (_, recovered) = log.open(0).unwrap();
    assert_eq!(recovered.recovery.tail(), Lsn(one));
}

/// A user who stores an image of the log in the log gets no say in where the log ends.
#[test]
fn image_of_a_buffer_in_a_value_is_not_a_buffer() {
    let log = closed(4);
    let image = log.bytes(log.bases[0], BLOCK_BYTES);
    let (opened, recovered) = log.open(0).unwrap();
    let at = recovered.recovery.tail().0;
    // The value starts in the middle of a block; the image inside it starts on a block.
    let mut value = vec![0; BLOCK_BYTES - 64 - 20 - 1];
    value.extend_from_slice(&image);
    let record = Record::Upsert {
        transaction: Default::default(),
        table: Default::default(),
        key: b"k",
        value: &value,
    };
    opened.append(&record).unwrap();
    opened.request_flush(opened.tail_lsn());
    while opened.flush_step().unwrap() {}
    drop((opened, recovered));
    assert_eq!(log.bytes(at + BLOCK, BLOCK_BYTES), image, "the image is on a block");
    log.flip(at, 1);
    let (_log, recovered) = log.open(0).unwrap();
    assert_eq!(recovered.recovery.tail(), Lsn(at));
}

#[test]
fn old_buffers_in_recycled_files_are_not_taken_for_new() {
    let directory = MemoryDirectory::new();
    let mut pair = Pair::create(Arc::new(directory.clone()), LogOptions::tiny_for_tests()).unwrap();
    let mut met = 0;
    for number in 0..200 {
        pair.append(upsert(number, 3000)).unwrap();
        pair.flush_all().unwrap();
        while pair.proxy_step(true) {}
        pair.log.truncate(pair.released).unwrap();
        // The end of a segment's former life, if it had one.
        let stable = pair.log.stable_lsn().0;
        let place = stable | 0xf000;
        let closed =
            Closed { directory: directory.clone(), model: BTreeMap::new(), bases: vec![], tail: stable };
        if stable < place && stable & 0xffff != 0 && closed.bytes(place, 8) == b"DEULOGB1" {
            met += 1;
            let Pair { log, options, model, acknowledged, released, .. } = pair;
            drop(log);
            pair = Pair::open(Arc::new(directory.clone()), options, model, acknowledged, released).unwrap();
            assert_eq!(pair.opened_at, Lsn(stable));
        }
    }
    assert!(met > 20, "{met}");
}

#[test]
fn damage_after_opening_is_told_by_readers() {
    let log = closed(20);
    let (opened, _) = log.open(0).unwrap();
    let record = *log.model.range(log.bases[5]..).next().unwrap().0;
    opened.read_stable(Lsn(record)).unwrap();
    assert!(matches!(opened.read_stable(Lsn(record + 8)), Err(LogError::NotARecord { .. })));
    assert!(matches!(opened.read_stable(Lsn(log.bases[5])), Err(LogError::NotARecord { .. })));
    log.flip(record + 30, 4);
    assert!(matches!(opened.read_stable(Lsn(record)), Err(LogError::Corrupt { .. })));
}

/// What comes before it is good, but for the buffer that nothing shows to be durable.
#[test]
fn damage_is_told_by_an_opening_that_comes_to_it() {
    let log = closed(20);
    log.flip(log.bases[6] + 70, 4);
    let directory = Arc::new(log.directory.clone());
    let mut opening =
        LogOpening::new(directory, &LogOptions::tiny_for_tests(), Lsn(0)..Lsn(log.tail)).unwrap();
    for &base in &log.bases[..5] {
        assert_eq!(opening.next_buffer().unwrap().unwrap().base(), Lsn(base));
    }
    let is_told = |error: Option<LogError>| match error {
        Some(LogError::Corrupt { file, offset, .. }) => assert_eq!((file, offset), place(log.bases[6])),
        other => panic!("{other:?}"),
    };
    is_told(opening.next_buffer().err());
    is_told(opening.next_buffer().err());
    is_told(opening.finish(Epochs::new()).err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    /// Whatever is flipped, opening gives a prefix or a typed error.
    #[test]
    fn any_damage_is_a_prefix_or_an_error(flips in prop::collection::vec(
        (any::<prop::sample::Index>(), 0..0x11000u64, 1..=255u8, any::<bool>()), 1..20))
    {
        let log = closed(12);
        let files = log.directory.list().unwrap();
        for (file, offset, mask, at_start) in flips {
            // Headers are a small part of the bytes and most of what is looked at.
            let offset = if at_start { offset & !0xfff | offset & 0x3f } else { offset };
            log.flip_in(&files[file.index(files.len())], offset, mask);
        }
        match log.open(0) {
            Ok((_log, recovered)) => {
                let tail = recovered.recovery.tail().0;
                let prefix = log.model.range(..tail).map(|(&lsn, owned)| (lsn, owned.clone())).collect();
                check_recovery(&recovered, &prefix, Lsn(0));
            }
            Err(LogError::Corrupt { .. } | LogError::Missing { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}
