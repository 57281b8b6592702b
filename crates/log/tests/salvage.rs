//! Salvage: every sound buffer is found whatever is damaged around it, what is missing is told with its place, and values are put
//! together from what is left.
#![cfg(not(loom))]

mod harness;

use deuteron_contract::{Lsn, TableId, TransactionId};
use deuteron_device::{AlignedBuffer, Directory, Loss, MemoryDirectory, OpenMode};
use deuteron_log::{LogOptions, LogSalvage, Record};
use harness::closed::{BLOCK, Closed, closed, place};
use harness::{Owned, Pair, upsert};
use std::sync::Arc;

fn segment(lsn: u64) -> String {
    place(lsn).0
}

fn offset(lsn: u64) -> u64 {
    place(lsn).1
}

impl Closed {
    fn salvage(&self) -> LogSalvage {
        LogSalvage::scan(Arc::new(self.directory.clone())).unwrap()
    }

    /// What is left must be what was written outside of these parts of the log; whatever is left of values can be had.
    fn check(&self, salvage: &mut LogSalvage, lost: &[(u64, u64)]) {
        let is_lost = |lsn: u64| lost.iter().any(|&(from, to)| (from..to).contains(&lsn));
        let mut found = Vec::new();
        salvage.visit(&mut |lsn, record| {
            assert_eq!(record, self.model[&lsn.0].record());
            found.push(lsn.0);
        });
        let expected: Vec<u64> = self.model.keys().copied().filter(|lsn| !is_lost(*lsn)).collect();
        assert_eq!(found, expected);
        for (&lsn, record) in &self.model {
            match (salvage.value(Lsn(lsn)), record) {
                (Ok(value), Owned::Upsert(_, _, written)) => assert!(value == *written && !is_lost(lsn)),
                (Err(reason), Owned::Upsert(..)) => {
                    assert!(is_lost(lsn) && reason.contains("no sound buffer"), "{reason}");
                }
                (found, _) => assert!(found.is_err(), "no value was written at {lsn}"),
            }
        }
    }

    /// Where the buffer ends that begins here.
    fn end(&self, base: u64) -> u64 {
        self.bases.iter().copied().find(|other| *other > base).unwrap_or(self.tail)
    }
}

fn places(salvage: &LogSalvage) -> Vec<(String, u64, u64)> {
    salvage.losses().iter().map(|loss: &Loss| (loss.file.clone(), loss.offset, loss.bytes)).collect()
}

#[test]
fn of_a_sound_log_everything_is_left() {
    let log = closed(20);
    let mut salvage = log.salvage();
    assert!(salvage.buffers() >= log.bases.len() as u64 && salvage.end().0 == log.tail);
    assert!(log.tail > 0x20000, "of three segments at least");
    assert_eq!(salvage.losses(), []);
    log.check(&mut salvage, &[]);
    for (lsn, words) in
        [(log.bases[3], "header"), (log.bases[3] + 56, "header"), (log.tail, "no sound buffer")]
    {
        let reason = salvage.value(Lsn(lsn)).unwrap_err();
        assert!(reason.contains(words), "{reason}");
    }
    let empty = LogSalvage::scan(Arc::new(MemoryDirectory::new())).unwrap();
    assert_eq!((empty.buffers(), empty.end(), empty.losses().len()), (0, Lsn(0), 0));
}

#[test]
fn a_damaged_buffer_is_lost_with_its_place_and_no_other() {
    let (count, sound) = (closed(14).bases.len(), closed(14).salvage().buffers());
    for number in 0..count {
        let log = closed(14);
        let base = log.bases[number];
        let end = log.end(base);
        // Anywhere in it: its magic, its header, a record.
        log.flip(base + [0, 20, 90][number % 3], 1);
        let mut salvage = log.salvage();
        assert_eq!(salvage.buffers(), sound - 1);
        // What is missing at either end nobody knows of. (Behind the last records of a segment may be a buffer without any.)
        let is_between = number > 0 && number + 1 < count;
        let found = places(&salvage);
        assert_eq!(found.len(), usize::from(is_between));
        for (file, at, bytes) in found {
            assert_eq!((file, at), (segment(base), offset(base)));
            assert!(bytes.is_multiple_of(BLOCK) && (BLOCK..=end - base).contains(&bytes), "{bytes}");
        }
        assert_eq!(salvage.end().0, if number + 1 < count { log.tail } else { base });
        log.check(&mut salvage, &[(base, end)]);
    }
}

#[test]
fn a_segment_whose_header_is_damaged_still_has_its_buffers() {
    let log = closed(20);
    log.flip_in(&segment(0x10000), 8, 1);
    let mut salvage = log.salvage();
    assert_eq!(places(&salvage), [(segment(0x10000), 0, BLOCK)]);
    assert!(salvage.losses()[0].reason.starts_with("expected "));
    log.check(&mut salvage, &[]);
}

#[test]
fn a_segment_that_is_gone_is_a_loss_from_where_the_last_buffer_ended() {
    let log = closed(20);
    log.directory.remove(&segment(0x10000)).unwrap();
    let mut salvage = log.salvage();
    let is_gone = |base: &&u64| (0x10000..0x20000).contains(*base);
    let gone: Vec<u64> = log.bases.iter().filter(is_gone).copied().collect();
    let (from, to) = (gone[0], log.end(*gone.last().unwrap()));
    let first = log.bases.iter().copied().find(|base| *base >= 0x20000).unwrap();
    let end =
        log.bases.iter().copied().filter(|base| *base < 0x10000).map(|base| log.end(base)).max().unwrap();
    let found = places(&salvage);
    assert_eq!(found.iter().map(|(_, _, bytes)| bytes).sum::<u64>(), first - end.min(from));
    log.check(&mut salvage, &[(from, to)]);
}

#[test]
fn buffers_of_another_log_are_losses() {
    let (log, other) = (closed(20), closed(20));
    let sound = log.salvage().buffers() as usize;
    let name = segment(0x10000);
    let mut bytes = AlignedBuffer::zeroed(0x11000);
    other.directory.open(&name, OpenMode::Read, false).unwrap().read_at(&mut bytes, 0).unwrap();
    log.directory.open(&name, OpenMode::ReadWrite, false).unwrap().write_at(&bytes, 0).unwrap();
    let mut salvage = log.salvage();
    let strange: Vec<u64> =
        log.bases.iter().filter(|base| (0x10000..0x20000).contains(*base)).copied().collect();
    assert_eq!(salvage.buffers() as usize, sound - strange.len());
    let of_another = |loss: &&Loss| loss.reason.starts_with("a buffer of log ");
    let told: Vec<_> =
        salvage.losses().iter().filter(of_another).map(|loss| (loss.offset, loss.bytes)).collect();
    assert_eq!(told, strange.iter().map(|&base| (offset(base), log.end(base) - base)).collect::<Vec<_>>());
    let (from, to) = (strange[0], log.end(*strange.last().unwrap()));
    log.check(&mut salvage, &[(from, to)]);
}

#[test]
fn a_value_in_pieces_is_put_together_or_refused_with_the_reason() {
    let directory = MemoryDirectory::new();
    let pair = Pair::create(Arc::new(directory.clone()), LogOptions::tiny_for_tests()).unwrap();
    let (transaction, table) = (TransactionId(1), TableId(1));
    let piece = |before, bytes| pair.log.append(&Record::Piece { transaction, before, bytes }).unwrap();
    let large = |length, last| {
        pair.log.append(&Record::LargeUpsert { transaction, table, key: b"k", length, last }).unwrap()
    };
    let first = piece(Lsn(0), b"one ");
    let second = piece(first, b"two ");
    let third = piece(second, b"three");
    let nothing = piece(Lsn(0), b"");
    let whole = large(13, third);
    let part = large(8, second);
    let empty = large(0, Lsn(0));
    let too_short = large(12, third);
    let too_long = large(14, third);
    let never = large(1, nothing);
    let no_piece = large(4, whole);
    let forward = piece(Lsn(u64::MAX >> 8), b"ahead");
    let ahead = large(9, forward);
    let itself = piece(Lsn(forward.0 + (forward.0 - no_piece.0)), b"x");
    let abort = pair.log.append(&Record::Abort { transaction }).unwrap();
    pair.log.request_flush(pair.log.tail_lsn());
    while pair.log.flush_step().unwrap() {}
    let mut salvage = LogSalvage::scan(Arc::new(directory)).unwrap();
    for (lsn, value) in [(whole, &b"one two three"[..]), (part, b"one two "), (empty, b"")] {
        assert_eq!(salvage.value(lsn).unwrap(), value);
    }
    let cases = [
        (too_short, "does not fit"),
        (never, "does not fit"),
        (ahead, "does not fit"),
        (no_piece, "no piece"),
        (first, "a piece of a value"),
        (itself, "a piece of a value"),
        (abort, "no record"),
    ];
    for (lsn, words) in cases {
        let reason = salvage.value(lsn).unwrap_err();
        assert!(reason.contains(words), "{reason}");
    }
    // The first piece says that there is none before it.
    assert!(salvage.value(too_long).is_err());
}

#[test]
fn values_of_more_files_than_are_kept_open_are_found_in_any_order() {
    let directory = MemoryDirectory::new();
    let mut pair = Pair::create(Arc::new(directory.clone()), LogOptions::tiny_for_tests()).unwrap();
    let mut number = 0;
    while pair.log.tail_lsn().0 < 70 * 0x10000 {
        pair.append(upsert(number, 12_000)).unwrap();
        pair.flush_all().unwrap();
        while pair.proxy_step(true) {}
        while pair.log.recycle_step() {}
        number += 1;
    }
    let mut salvage = LogSalvage::scan(Arc::new(directory)).unwrap();
    assert_eq!(salvage.losses(), []);
    let lsns: Vec<u64> = pair.model.keys().copied().collect();
    for at in 0..lsns.len() {
        let lsn = lsns[at * 37 % lsns.len()];
        let Owned::Upsert(_, _, written) = &pair.model[&lsn] else { continue };
        assert!(salvage.value(Lsn(lsn)).unwrap() == *written);
    }
}
