//! A log that has lost its end beside a store that has not: what had been in it is there in part, or would be.

use deuteron::device::{AlignedBuffer, BLOCK_BYTES, CrashPolicy, Directory, OpenMode, SimulatedDisk};
use deuteron::{Db, Error, Options, Table, salvage_in};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
const TRANSACTIONS: u32 = 40;

/// Each transaction writes its number under two keys.
fn keys(number: u32) -> [Vec<u8>; 2] {
    ["left", "right"].map(|side| format!("{side}/{number:02}").into_bytes())
}

fn write(db: &Db, table: &Table, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let value = [number as u8; 300];
        db.transact(|tx| keys(number).iter().try_for_each(|key| tx.put(table, key, &value))).unwrap();
    }
}

/// How many transactions are there; they are the first ones, and whole.
fn transactions(db: &Db) -> u32 {
    let table = db.table("t").unwrap();
    let there = db.transact(|tx| {
        let mut there = Vec::new();
        for number in 0..TRANSACTIONS {
            for key in keys(number) {
                there.push(tx.get(&table, &key)?.is_some());
            }
        }
        Ok(there)
    });
    let there = there.unwrap();
    let count = there.iter().filter(|there| **there).count() as u32;
    assert!(count.is_multiple_of(2) && there.is_sorted_by(|one, next| one >= next), "{there:?}");
    count / 2
}

/// The power has gone: all is in the log, the pages have nearly all of it, and redo starts near the beginning, as
/// somebody was undecided.
fn stopped() -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    let db = Options::tiny_for_tests().open_in(Arc::new(disk.directory())).unwrap();
    let table = db.table("t").unwrap();
    write(&db, &table, 0..2);
    let mut undecided = db.begin();
    // A delete is logged at once.
    undecided.delete(&table, b"undecided").unwrap();
    write(&db, &table, 2..TRANSACTIONS - 3);
    while db.step().unwrap() {}
    db.checkpoint().unwrap();
    write(&db, &table, TRANSACTIONS - 3..TRANSACTIONS);
    disk.crash(CrashPolicy::LoseAll);
    disk
}

fn segments(disk: &SimulatedDisk) -> Vec<String> {
    let mut names = disk.directory().list().unwrap();
    names.retain(|name| name.starts_with("log-") && name.ends_with(".seg"));
    names.sort();
    names
}

/// Forgets what the log holds from a block of a segment on.
fn lose_from(disk: &SimulatedDisk, segment: usize, offset: u64) {
    for (index, name) in segments(disk).iter().enumerate().skip(segment) {
        let file = disk.directory().open(name, OpenMode::ReadWrite, false).unwrap();
        let from = if index == segment { offset } else { BLOCK };
        let zeros = AlignedBuffer::zeroed((file.length().unwrap() - from) as usize);
        file.write_at(&zeros, from).unwrap();
        file.sync().unwrap();
    }
}

#[test]
fn a_log_that_has_lost_its_end_is_told_where_the_pages_have_it() {
    let disk = stopped();
    let reopened = Options::tiny_for_tests().open_in(Arc::new(disk.fork(0).directory())).unwrap();
    assert_eq!(transactions(&reopened), TRANSACTIONS);
    let (mut told, mut opened) = (0, 0);
    for (segment, name) in segments(&disk).iter().enumerate() {
        let length = disk.directory().open(name, OpenMode::Read, false).unwrap().length().unwrap();
        for offset in (BLOCK..length).step_by(BLOCK_BYTES) {
            let disk = disk.fork(offset);
            lose_from(&disk, segment, offset);
            match Options::tiny_for_tests().open_in(Arc::new(disk.directory())) {
                // The pages depend on nothing of what is lost.
                Ok(db) => {
                    opened += 1;
                    assert!(transactions(&db) >= TRANSACTIONS - 3);
                }
                Err(Error::Corrupt { file, expected, .. }) => {
                    told += 1;
                    assert!(file.starts_with("log-"), "{file}");
                    assert!(expected.contains("stable up to LSN"), "{expected}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(told > 30 && opened > 3, "told {told} times, opened {opened} times");
}

/// A clean close leaves a log of which the pages need nothing, but that says how far the clock had come.
#[test]
fn what_is_written_after_the_log_has_lost_its_end_is_kept() {
    let disk = SimulatedDisk::new(2);
    let open = |disk: &SimulatedDisk| Options::tiny_for_tests().open_in(Arc::new(disk.directory()));
    let db = open(&disk).unwrap();
    let table = db.table("t").unwrap();
    write(&db, &table, 0..TRANSACTIONS);
    let newest = db.timestamp();
    db.close().unwrap();
    let mut opened = 0;
    for (segment, name) in segments(&disk).iter().enumerate() {
        let length = disk.directory().open(name, OpenMode::Read, false).unwrap().length().unwrap();
        for offset in (BLOCK..length).step_by(BLOCK_BYTES) {
            let disk = disk.fork(offset);
            lose_from(&disk, segment, offset);
            let Ok(db) = open(&disk) else { continue };
            opened += 1;
            assert!(db.timestamp() > newest, "{} is not after {newest}", db.timestamp());
            let table = db.table("t").unwrap();
            for _ in 0..2 {
                db.transact(|tx| tx.put(&table, &keys(1)[0], b"changed")).unwrap();
            }
            db.close().unwrap();
            let db = open(&disk).unwrap();
            let table = db.table("t").unwrap();
            assert_eq!(db.transact(|tx| tx.get(&table, &keys(1)[0])).unwrap().unwrap(), b"changed");
        }
    }
    assert!(opened > 0);
}

#[test]
fn a_database_whose_log_has_lost_its_end_is_salvaged() {
    let disk = stopped();
    // What redo starts with is there, and little more.
    lose_from(&disk, 0, 4 * BLOCK);
    let refused = Options::tiny_for_tests().open_in(Arc::new(disk.directory()));
    assert!(matches!(refused, Err(Error::Corrupt { .. })));
    let mut records = 0;
    salvage_in(Arc::new(disk.directory()), &mut |_| {
        records += 1;
        Ok(())
    })
    .unwrap();
    // From the pages: of the log a few transactions are left.
    assert!(records > TRANSACTIONS, "{records}");
}
