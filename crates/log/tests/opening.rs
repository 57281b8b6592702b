//! What an opening offers for replay, and when.
#![cfg(not(loom))]

mod harness;

use deuteron_contract::Lsn;
use deuteron_device::{Operation, SimulatedDisk};
use deuteron_epoch::Epochs;
use deuteron_log::{LogOpening, LogOptions};
use harness::{Pair, check_buffer, upsert};
use std::sync::Arc;

/// The last buffer may be in a cache only; the one before it is known to be durable, as it was when the next was begun.
#[test]
fn buffers_are_offered_as_they_are_found_and_the_last_once_it_is_durable() {
    let disk = SimulatedDisk::new(1);
    let mut pair = Pair::create(Arc::new(disk.directory()), LogOptions::tiny_for_tests()).unwrap();
    for number in 0..40 {
        pair.append(upsert(number, 300)).unwrap();
        pair.flush_all().unwrap();
        pair.log.release(pair.log.stable_lsn());
    }
    let (model, tail) = (pair.model.clone(), pair.log.stable_lsn());
    drop(pair);
    let mut opening =
        LogOpening::new(Arc::new(disk.directory()), &LogOptions::tiny_for_tests(), Lsn(0)..tail).unwrap();
    let (mut offered, written) = (Lsn(0), disk.count(Operation::Write));
    while let Some(buffer) = opening.next_buffer().unwrap() {
        assert_eq!(buffer.base(), offered);
        offered = buffer.end();
        assert_eq!(disk.count(Operation::Write) > written, offered == tail);
        check_buffer(&buffer.view(), &model);
        // What a replay leaves for later it finds again, though the end is not known yet.
        let (lsn, _) = buffer.view().records().last().unwrap();
        assert_eq!(opening.reader().read_buffer(lsn).unwrap().base(), buffer.base());
    }
    assert_eq!(offered, tail);
    let (log, recovery) = opening.finish(Epochs::new()).unwrap();
    assert_eq!((log.stable_lsn(), recovery.tail(), recovery.buffers()), (tail, tail, 40));
    assert_eq!(recovery.records(), model.len() as u64);
}
