//! What transactions say, wait for and leave behind: to the host, to the data component, in their workspaces.

use crate::options::ConcurrencyControl;
use crate::schedule;
use crate::sync::Ordering;
use crate::test_bed::{Bed, TABLE, bed, cause, put, roomy};
use crate::version::{Payload, Version};
use crate::{
    BeginOptions, ConflictCause, Host, Isolation, ScanCursor, Stall, TcError, TcOptions, Transaction,
    TransactionComponent,
};
use deuteron_contract::{
    DataComponent, DcError, DcStatistics, Direction, Lsn, MemoryDc, Operation, Record, ScanBatch,
    ScanRequest, TableId, Timestamp, TransactionId,
};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_log::{Log, LogOptions, Record as LogRecord};
use std::ops::Bound;
use std::sync::{Arc, Mutex};

fn with(options: TcOptions) -> Arc<Bed> {
    let options = TcOptions { memory_bytes: 16 << 20, ..options };
    bed(options, &LogOptions::tiny_for_tests(), deuteron_proxy::Options::default())
}

/// Notes what is asked of it, and has a map do it.
#[derive(Default)]
struct Noting {
    map: MemoryDc,
    alone: Mutex<usize>,
    together: Mutex<Vec<usize>>,
    scanned: Mutex<Vec<usize>>,
}

impl DataComponent for Noting {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Record>, DcError> {
        *self.alone.lock().unwrap() += 1;
        self.map.get(table, key)
    }
    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
        bytes_max: usize,
    ) -> Result<Vec<Option<Record>>, DcError> {
        self.together.lock().unwrap().push(keys.len());
        self.map.get_many(table, keys, bytes_max)
    }
    fn scan_into(&self, request: &ScanRequest<'_>, batch: &mut ScanBatch) -> Result<(), DcError> {
        self.scanned.lock().unwrap().push(request.bytes_max);
        self.map.scan_into(request, batch)
    }
    fn apply(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
        self.map.apply(operations)
    }
    fn end_of_stable_log(&self, lsn: Lsn) {
        self.map.end_of_stable_log(lsn);
    }
    fn redo_scan_start_point(&self, lsn: Lsn) -> Result<(), DcError> {
        self.map.redo_scan_start_point(lsn)
    }
    fn recovered_redo_scan_start_point(&self) -> Lsn {
        self.map.recovered_redo_scan_start_point()
    }
    fn recovered_end_of_stable_log(&self) -> Lsn {
        self.map.recovered_end_of_stable_log()
    }
    fn recovered_newest_timestamp(&self) -> Timestamp {
        self.map.recovered_newest_timestamp()
    }
    fn statistics(&self) -> DcStatistics {
        self.map.statistics()
    }
}

/// A bed over a data component that notes, with `count` records in it.
fn noting(options: TcOptions, count: u8) -> (Arc<Bed>, Arc<Noting>) {
    let dc = Arc::new(Noting::default());
    for number in 0..count {
        let (key, value) = ([b'k', number], [7; 20]);
        let operation =
            Operation { table: TABLE, key: &key, value: Some(&value), timestamp: Timestamp(0), lsn: Lsn(0) };
        dc.apply(&[operation]).unwrap();
    }
    let stalled = |bed: &Bed| {
        bed.step();
        Ok(())
    };
    let proxy = deuteron_proxy::Options::default();
    let dyn_dc = Arc::clone(&dc) as Arc<dyn DataComponent>;
    (Bed::open(dyn_dc, options, &LogOptions::default(), proxy, stalled).unwrap(), dc)
}

#[test]
fn keys_without_a_record_are_fetched_together_unless_it_is_a_single_one() {
    let (bed, dc) = noting(TcOptions::default(), 4);
    bed.put(b"here", b"1");
    let together = || std::mem::take(&mut *dc.together.lock().unwrap());
    let alone = || std::mem::take(&mut *dc.alone.lock().unwrap());
    let mut tx = bed.begin();
    tx.prefetch(TABLE, &[&b"here"[..], b"a"], &[]);
    assert_eq!(together(), []);
    tx.prefetch(TABLE, &[&b"here"[..], b"a", b"k\x01"], &[]);
    assert_eq!(together(), [2]);
    tx.prefetch(TABLE, &[], &[b"a", b"b"]);
    assert_eq!(together(), [], "a write needs no read");
    alone();
    // The reads find what was fetched, once; then there is a record.
    for _ in 0..2 {
        assert_eq!(tx.get(TABLE, b"a").unwrap(), None);
        assert_eq!(tx.get(TABLE, b"k\x01").unwrap(), Some(vec![7; 20]));
    }
    assert_eq!(alone(), 0);
    tx.get(TABLE, b"k\x02").unwrap();
    assert_eq!(alone(), 1);
    // Of many keys so many at a time.
    let keys: Vec<[u8; 2]> = (0..130u16).map(u16::to_be_bytes).collect();
    let mut tx = bed.begin();
    tx.get_many(TABLE, &keys, |_, value| assert!(value.is_none())).unwrap();
    assert_eq!((together(), alone()), (vec![64, 64, 2], 0));
    for key in &keys {
        tx.add(TableId(2), key, 1).unwrap();
    }
    tx.commit().unwrap();
    assert_eq!((together(), alone()), (vec![64, 64, 2], 0));
}

#[test]
fn what_was_fetched_ahead_is_fetched_again_if_its_stripe_has_evicted_since() {
    let (bed, dc) = noting(TcOptions::default(), 4);
    let mut tx = bed.begin();
    tx.prefetch(TABLE, &[b"k\x01", b"k\x02"], &[]);
    let now = *dc.alone.lock().unwrap();
    // What was evicted may have been a newer version.
    let table = &bed.tc().core.table;
    table.stripe(table.key(TABLE, b"k\x01").hash).begin_generation();
    assert_eq!(tx.get(TABLE, b"k\x01").unwrap(), Some(vec![7; 20]));
    assert_eq!(*dc.alone.lock().unwrap(), now + 1);
    // The next transaction finds nothing of it.
    drop(tx);
    let mut tx = bed.begin();
    tx.get(TABLE, b"k\x03").unwrap();
    assert_eq!(*dc.alone.lock().unwrap(), now + 2);
}

#[test]
fn batches_of_a_scan_grow_to_64_times_the_first_and_a_small_range_takes_one() {
    let options = TcOptions { scan_batch_bytes: 16, ..TcOptions::default() };
    let (bed, dc) = noting(options, 255);
    let take = || std::mem::take(&mut *dc.scanned.lock().unwrap());
    let mut tx = bed.begin();
    let (lower, upper) = (Bound::Included(&b"k\x05"[..]), Bound::Included(&b"k\x05"[..]));
    assert_eq!(tx.scan(TABLE, lower, upper, Direction::Forward).count(), 1);
    assert_eq!(take(), [16]);
    for direction in [Direction::Forward, Direction::Reverse] {
        assert_eq!(tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, direction).count(), 255);
        let asked = take();
        assert_eq!(asked[..9], [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
        assert!(asked.iter().all(|bytes| *bytes <= 1024));
    }
    // A refresh takes the largest.
    tx.put(TABLE, b"z", b"1").unwrap();
    bed.begin().get(TABLE, b"z").unwrap();
    tx.commit().unwrap();
    assert!(take().iter().all(|bytes| *bytes == 1024));
}

#[test]
fn a_rollback_looks_again_at_what_was_scanned_over_what_it_takes_back_and_at_nothing_else() {
    let (bed, dc) = noting(TcOptions::default(), 10);
    let take = || std::mem::take(&mut *dc.scanned.lock().unwrap()).len();
    let scan = |tx: &mut Transaction, from: u8, to: u8| {
        let (lower, upper) = ([b'k', from], [b'k', to]);
        tx.scan(TABLE, Bound::Included(&lower), Bound::Excluded(&upper), Direction::Forward).count()
    };
    let mut tx = bed.begin();
    assert_eq!(scan(&mut tx, 0, 5), 5);
    let savepoint = tx.savepoint().unwrap();
    tx.put(TABLE, b"k\x02", b"own").unwrap();
    assert_eq!(scan(&mut tx, 5, 9), 4);
    assert!(take() > 0);
    tx.rollback_to(&savepoint).unwrap();
    assert_eq!(take(), 0, "one scan came before it, the other passed it by");
    tx.put(TABLE, b"k\x02", b"own").unwrap();
    assert_eq!((scan(&mut tx, 0, 5), take()), (5, 1));
    tx.rollback_to(&savepoint).unwrap();
    assert_eq!(take(), 1);
}

#[test]
fn a_scan_that_has_ended_looks_at_no_changes() {
    let bed = roomy();
    let mut tx = bed.begin_with(BeginOptions { isolation: Isolation::Snapshot, ..BeginOptions::default() });
    let mut cursor = ScanCursor::new(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    assert!(tx.scan_batch(&mut cursor).unwrap().is_none());
    tx.append(TABLE, b"k", b"1").unwrap();
    assert!(tx.scan_batch(&mut cursor).unwrap().is_none());
    bed.put(b"k", b"0");
    tx.commit().unwrap();
    assert_eq!(bed.get(b"k").as_deref(), Some(&b"01"[..]), "it was in nobody's way");
}

#[test]
fn a_batch_takes_so_many_fresh_records_and_one_large_value() {
    let options = TcOptions { scan_batch_records_max: 3, ..TcOptions::default() };
    let (log, proxy) = (LogOptions::tiny_for_tests(), deuteron_proxy::Options::default());
    let bed = bed(TcOptions { memory_bytes: 16 << 20, ..options }, &log, proxy);
    let batches = |direction| {
        let mut tx = bed.begin();
        let mut cursor = ScanCursor::new(TABLE, Bound::Unbounded, Bound::Unbounded, direction);
        let mut sizes = Vec::new();
        while let Some(batch) = tx.scan_batch(&mut cursor).unwrap() {
            sizes.push(batch.len());
        }
        assert!(cursor.is_done());
        sizes
    };
    (0..10u8).for_each(|number| bed.put(&[number + 1], b"1"));
    assert_eq!(batches(Direction::Forward), [3, 3, 3, 1]);
    assert_eq!(batches(Direction::Reverse), [3, 3, 3, 1]);
    // So long that it is in the log in pieces.
    bed.put(&[2], &[7; 40 << 10]);
    assert_eq!(batches(Direction::Forward), [2, 3, 3, 2]);
}

#[test]
fn who_takes_the_first_of_a_queue_is_in_nobodys_way_at_its_end() {
    let bed = roomy();
    let key = |number: u8| [b'q', number];
    (0..60).for_each(|number| bed.put(&key(number), b"1"));
    // Deleted ones do not count: the batch goes on behind them.
    for number in 0..20 {
        let mut tx = bed.begin();
        tx.delete(TABLE, &key(number)).unwrap();
        tx.commit().unwrap();
    }
    for (lower, batches) in [(key(0), 2), (key(59), 1)] {
        let mut cursor =
            ScanCursor::new(TABLE, Bound::Included(lower.to_vec()), Bound::Unbounded, Direction::Forward);
        let mut tx = bed.begin();
        let sizes = std::iter::from_fn(|| tx.scan_batch(&mut cursor).unwrap()).map(|batch| batch.len());
        assert_eq!(sizes.collect::<Vec<_>>(), [vec![16, 24], vec![1]][2 - batches]);
    }
    let mut tx = bed.begin();
    let first = tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward).next();
    let (first, _) = first.unwrap().unwrap();
    assert_eq!(first, key(20));
    bed.put(&key(99), b"1");
    tx.delete(TABLE, &first).unwrap();
    // Makes it commit later than the append, and look again at what it has scanned.
    bed.begin().get(TABLE, &first).unwrap();
    tx.commit().unwrap();
    // What it has used is protected.
    let mut tx = bed.begin();
    assert!(tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward).next().is_some());
    bed.put(&key(1), b"1");
    tx.put(TABLE, b"other", b"1").unwrap();
    bed.begin().get(TABLE, b"other").unwrap();
    assert!(tx.commit().is_err());
}

#[test]
fn the_batches_of_a_scan_are_remembered_as_one_range_until_the_transaction_writes() {
    let bed = with(TcOptions { scan_batch_records_max: 3, ..TcOptions::default() });
    (0..10u8).for_each(|number| bed.put(&[number + 1], b"1"));
    let (mut first, mut second) = (bed.begin(), bed.begin());
    let mut cursor = ScanCursor::new(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    assert!(!cursor.is_done());
    first.scan_batch(&mut cursor).unwrap();
    first.scan_batch(&mut cursor).unwrap();
    assert_eq!(first.workspace.scans.len(), 1);
    // In another transaction a cursor goes on, and that remembers its own part.
    let mut third = bed.begin();
    third.scan_batch(&mut cursor.clone()).unwrap();
    assert_eq!(third.workspace.scans.len(), 1);
    first.put(TABLE, b"own", b"1").unwrap();
    first.scan_batch(&mut cursor).unwrap();
    assert_eq!(first.workspace.scans.len(), 2, "its digest leaves out what is its own by now");
    second.scan_batch(&mut cursor).unwrap();
    assert_eq!(second.workspace.scans.len(), 1);
    second.put(TABLE, b"other", b"1").unwrap();
    assert_eq!(bed.get(b"other"), None, "which pushes it");
    second.commit().unwrap();
    first.commit().unwrap();
}

#[test]
fn reads_and_scans_beyond_what_is_remembered_are_forgotten_together() {
    let bed = with(TcOptions { reads_max: 3, ..TcOptions::default() });
    let scan = |tx: &mut Transaction| {
        assert_eq!(tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward).count(), 0);
    };
    for reads in 0..4 {
        let mut tx = bed.begin();
        (0..reads).for_each(|number| _ = tx.get(TABLE, &[number + 1]).unwrap());
        assert!(!tx.workspace.reads_forgotten);
        scan(&mut tx);
        assert_eq!(tx.workspace.reads_forgotten, reads == 3, "{reads}");
        if reads < 3 {
            scan(&mut tx);
            assert_eq!(tx.workspace.reads_forgotten, reads == 2, "{reads}");
        }
    }
}

/// Notes why operations wait and who is told to look again.
#[derive(Default)]
struct Heard {
    stalls: Mutex<Vec<Stall>>,
    ended: Mutex<Vec<u32>>,
}

impl Host for Heard {
    fn stalled(&self, reason: Stall) -> Result<(), String> {
        self.stalls.lock().unwrap().push(reason);
        Ok(())
    }
    fn ends(&self, number: u32) -> u64 {
        100 + u64::from(number)
    }
    fn ended(&self, number: u32) {
        self.ended.lock().unwrap().push(number);
    }
}

fn heard(options: TcOptions) -> (TransactionComponent, Arc<Heard>, Arc<Log>) {
    let (epochs, directory) = (Epochs::new(), Arc::new(MemoryDirectory::new()));
    let log = Log::open(directory, &LogOptions::tiny_for_tests(), Arc::clone(&epochs), Lsn(0)..Lsn(0));
    let log = Arc::new(log.expect("a new log").0);
    let host = Arc::new(Heard::default());
    let options = TcOptions { memory_bytes: 1 << 20, ..options };
    let dyn_host = Arc::clone(&host) as Arc<dyn Host>;
    let tc =
        TransactionComponent::open(options, Arc::clone(&log), Arc::new(MemoryDc::new()), epochs, dyn_host);
    let tc = tc.expect("the log takes the lease");
    while log.flush_step().expect("a log in memory does not fail") {}
    tc.core.renew_ceiling().expect("the log has the lease");
    (tc, host, log)
}

#[test]
fn a_writer_waits_turn_by_turn_for_the_one_before_who_tells_it_that_it_has_ended() {
    let (tc, host, _) = heard(TcOptions { patience: 5, ..TcOptions::default() });
    let (mut first, mut second) = (tc.begin(), tc.begin());
    first.put(TABLE, b"k", b"1").unwrap();
    let number = first.workspace.slot.0;
    assert_eq!(cause(second.put(TABLE, b"k", b"2")), ConflictCause::WriteWrite);
    let since = 100 + u64::from(number);
    let expected: Vec<Stall> = (0..5).map(|turn| Stall::Writer { number, since, turn }).collect();
    assert_eq!(*host.stalls.lock().unwrap(), expected);
    assert_eq!(tc.statistics().waits, 5);
    assert!(host.ended.lock().unwrap().is_empty());
    first.commit().unwrap();
    assert_eq!(*host.ended.lock().unwrap(), [number]);
    // Nobody waits for the next.
    let mut third = tc.begin();
    third.put(TABLE, b"k", b"3").unwrap();
    third.commit().unwrap();
    assert_eq!(host.ended.lock().unwrap().len(), 1);
}

#[test]
fn who_rolls_back_to_a_savepoint_tells_those_who_wait() {
    let (tc, host, _) = heard(TcOptions { patience: 1, ..TcOptions::default() });
    let (mut first, mut second) = (tc.begin(), tc.begin());
    let start = first.savepoint().unwrap();
    first.put(TABLE, b"k", b"1").unwrap();
    second.put(TABLE, b"k", b"2").unwrap_err();
    first.rollback_to(&start).unwrap();
    assert_eq!(*host.ended.lock().unwrap(), [first.workspace.slot.0]);
}

#[test]
fn only_those_wait_who_can_use_what_the_other_commits() {
    let serializable = BeginOptions::default();
    let cases = [
        (ConcurrencyControl::Pushes, serializable, 3),
        (ConcurrencyControl::Pushes, BeginOptions { isolation: Isolation::ReadCommitted, ..serializable }, 3),
        (ConcurrencyControl::Pushes, BeginOptions { isolation: Isolation::Snapshot, ..serializable }, 0),
        (ConcurrencyControl::TimestampOrder, serializable, 0),
    ];
    for (concurrency_control, options, waits) in cases {
        let (tc, _, log) = heard(TcOptions { patience: 3, concurrency_control, ..TcOptions::default() });
        let mut first = tc.begin();
        first.put(TABLE, b"k", b"1").unwrap();
        let tail = log.tail_lsn();
        tc.begin_with(options).put(TABLE, b"k", b"2").unwrap_err();
        assert_eq!(tc.statistics().waits, waits, "{options:?}");
        assert_eq!(log.tail_lsn(), tail, "what is in the way already fills no log");
        // A change waits under snapshot isolation, too: what the other commits is not in its way.
        let mut change = tc.begin_with(options);
        change.append(TABLE, b"k", b"2").unwrap();
        change.commit().unwrap_err();
        let waits_too = if concurrency_control == ConcurrencyControl::Pushes { 3 } else { 0 };
        assert_eq!(tc.statistics().waits, waits + waits_too, "{options:?}");
    }
}

#[test]
fn a_chain_of_waiting_transactions_is_a_circle_if_it_comes_back_or_does_not_end() {
    let (tc, host, _) = heard(TcOptions::default());
    let mut open: Vec<Transaction> = (0..4).map(|_| tc.begin()).collect();
    let slots: Vec<_> = open.iter().map(|tx| tx.workspace.slot).collect();
    let waits = |one: usize, other: Option<usize>| {
        tc.core.transactions.slot(slots[one]).set_waits_for(other.map(|other| slots[other]));
    };
    let stalls = || host.stalls.lock().unwrap().len();
    // 1 waits for 2, that for 3, that for nobody.
    waits(1, Some(2));
    waits(2, Some(3));
    assert!(open[0].wait_for(slots[1]).unwrap());
    assert_eq!(stalls(), 1);
    waits(3, Some(0));
    assert!(!open[0].wait_for(slots[1]).unwrap(), "3 waits for it");
    waits(3, Some(1));
    assert!(!open[0].wait_for(slots[1]).unwrap(), "the others wait for each other");
    assert_eq!((stalls(), tc.core.transactions.slot(slots[0]).waits_for()), (1, None));
    (1..4).for_each(|one| waits(one, None));
    // Of one that has ended nothing is to be waited for.
    open[3].give_up();
    assert!(open[0].wait_for(slots[3]).unwrap());
    assert_eq!(stalls(), 1);
}

#[test]
fn a_transaction_moves_on_only_where_that_helps() {
    // Read committed: it reads the newest anyway.
    let bed = roomy();
    bed.put(b"k", b"1");
    let moves = |bed: &Bed| bed.tc().statistics().moves;
    let mut tx = bed.begin_with(BeginOptions { isolation: Isolation::ReadCommitted, read_only: false });
    bed.put(b"k", b"2");
    assert_eq!(tx.get_for_update(TABLE, b"k").unwrap().as_deref(), Some(&b"2"[..]));
    tx.commit().unwrap();
    assert_eq!(moves(&bed), 0);
    // A later reader is no reason to read anew: the writer is pushed beyond it.
    let mut tx = bed.begin();
    assert!(bed.get(b"k").is_some());
    tx.get_for_update(TABLE, b"k").unwrap();
    tx.put(TABLE, b"k", b"3").unwrap();
    assert!(tx.commit().unwrap().timestamp > tx.timestamp());
    assert_eq!(moves(&bed), 0);
    // A later version is: from there on it commits where it reads.
    let mut tx = bed.begin();
    bed.put(b"k", b"4");
    tx.get_for_update(TABLE, b"k").unwrap();
    assert_eq!(tx.commit().unwrap().timestamp, tx.timestamp());
    assert_eq!(moves(&bed), 1);
    // As often as refreshes are allowed.
    let bed = with(TcOptions { refreshes_max: 0, ..TcOptions::default() });
    bed.put(b"k", b"1");
    let mut tx = bed.begin();
    bed.put(b"k", b"2");
    assert_eq!(tx.get_for_update(TABLE, b"k").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(cause(tx.commit()), ConflictCause::PushedTooOften);
    assert_eq!(moves(&bed), 0);
}

#[test]
fn a_write_counts_when_it_is_in_its_place_however_often_it_was_tried() {
    let bed = roomy();
    let writes = || bed.tc().statistics().writes;
    let (mut first, mut second) = (bed.begin(), bed.begin());
    first.put(TABLE, b"k", b"1").unwrap();
    assert_eq!(cause(second.put(TABLE, b"k", b"2")), ConflictCause::WriteWrite);
    first.put(TABLE, b"k", b"3").unwrap();
    first.commit().unwrap();
    drop(second);
    assert!(bed.tc().statistics().waits > 0);
    assert_eq!(writes(), 2);
}

#[test]
fn a_later_reader_of_what_is_written_is_found_before_the_log_is_filled() {
    let concurrency_control = ConcurrencyControl::TimestampOrder;
    let bed = with(TcOptions { concurrency_control, ..TcOptions::default() });
    bed.put(b"k", b"1");
    let mut tx = bed.begin();
    let tail = |bed: &Bed| bed.log.tail_lsn();
    let before = tail(&bed);
    let mut later = bed.begin();
    assert!(later.get(TABLE, b"k").unwrap().is_some());
    assert_eq!(cause(tx.put(TABLE, b"k", b"2")), ConflictCause::TimestampOrder);
    assert_eq!(tail(&bed), before);
    // Who read it last may write it.
    later.put(TABLE, b"k", b"2").unwrap();
    later.commit().unwrap();
}

#[test]
fn what_was_read_in_one_table_says_nothing_of_the_key_in_another() {
    let bed = roomy();
    let mut tx = bed.begin();
    assert_eq!(tx.get(TableId(2), b"k").unwrap(), None);
    assert_eq!(tx.get(TABLE, b"other").unwrap(), None);
    bed.put(b"k", b"1");
    tx.put(TABLE, b"k", b"2").unwrap();
    tx.commit().unwrap();
    assert_eq!(bed.get(b"k").as_deref(), Some(&b"2"[..]));
}

/// The payload of a key's newest version.
fn newest<R>(bed: &Bed, key: &[u8], look: impl FnOnce(&Version) -> R) -> R {
    let guard = bed.epochs.pin();
    let core = &bed.tc().core;
    let record = core.table.find(core.table.key(TABLE, key), &guard).expect("a record");
    // SAFETY: reached through the head under the guard.
    look(unsafe { &*record.head.load(Ordering::SeqCst) })
}

fn is_inline(bed: &Bed, key: &[u8]) -> bool {
    newest(bed, key, |version| matches!(version.payload(), Payload::Inline(_)))
}

fn is_logged(bed: &Bed, key: &[u8]) -> bool {
    newest(bed, key, |version| matches!(version.payload(), Payload::Logged(_)))
}

#[test]
fn short_values_are_kept_beside_their_versions_unless_memory_is_short() {
    let bed = roomy();
    let bytes = |key: &[u8]| newest(&bed, key, Version::bytes);
    let value = [7; 513];
    bed.put(b"short", &value[..512]);
    bed.put(b"long", &value);
    assert!(is_inline(&bed, b"short") && is_logged(&bed, b"long"));
    let change = |key: &[u8], length: usize| {
        let mut tx = bed.begin();
        tx.append(TABLE, key, &value[..length]).unwrap();
        tx.commit().unwrap();
    };
    // The sum decides of what is appended.
    change(b"appended", 500);
    assert_eq!((is_inline(&bed, b"appended"), bytes(b"appended")), (true, 544));
    change(b"appended", 12);
    assert_eq!((is_inline(&bed, b"appended"), bytes(b"appended")), (true, 544));
    change(b"appended", 1);
    assert!(is_logged(&bed, b"appended"));
    let mut tx = bed.begin();
    tx.add(TABLE, b"sum", 5).unwrap();
    tx.commit().unwrap();
    assert_eq!((is_inline(&bed, b"sum"), bytes(b"sum")), (true, 48));
    let core = &bed.tc().core;
    let more = (15 << 20) + (1 << 18) - core.account.used() as usize;
    core.account.add(more);
    assert!(core.account.is_over_target() && !core.account.is_over_hard());
    bed.put(b"short", b"1");
    change(b"appended now", 1);
    assert!(is_logged(&bed, b"short") && is_logged(&bed, b"appended now"));
    core.account.subtract(more);
    assert_eq!(bed.get(b"appended").map(|value| value.len()), Some(513));
}

#[test]
fn what_is_logged_once_more_stays_where_it_was() {
    let bed = roomy();
    let mut tx = bed.begin();
    for (key, value) in [(&b"short"[..], &[7; 5][..]), (b"long", &[7; 600]), (b"gone", b"")] {
        tx.put(TABLE, key, value).unwrap();
    }
    tx.delete(TABLE, b"gone").unwrap();
    let kept = tx.savepoint().unwrap();
    tx.put(TABLE, b"given up", b"1").unwrap();
    tx.rollback_to(&kept).unwrap();
    assert!(tx.workspace.savepoints.relog);
    tx.commit().unwrap();
    assert!(!tx.workspace.savepoints.relog);
    assert!(is_inline(&bed, b"short") && is_logged(&bed, b"long"));
    assert!(newest(&bed, b"gone", Version::is_absent));
    bed.settle();
    assert_eq!(bed.dc.get(TABLE, b"long").unwrap().unwrap().value.as_deref(), Some(&[7; 600][..]));
}

/// The keys and values of the updates right before a commit record, if they are these.
fn logged(bed: &Bed, commit: Option<Lsn>, expected: &[(&str, &str)]) -> Vec<(String, String)> {
    bed.settle();
    let update = |(key, value): &(&str, &str)| {
        let (key, value) = (key.as_bytes(), value.as_bytes());
        LogRecord::Upsert { transaction: TransactionId(0), table: TABLE, key, value }.encoded_bytes() as u64
    };
    let end = commit.expect("it has written");
    let mut lsn = Lsn(end.0 - expected.iter().map(update).sum::<u64>());
    let mut found = Vec::new();
    while lsn < end {
        let record = bed.log.read_stable(lsn).unwrap();
        lsn = Lsn(lsn.0 + record.view().encoded_bytes() as u64);
        let LogRecord::Upsert { key, value, .. } = record.view() else { continue };
        found.push([key, value].map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).into());
    }
    found
}

#[test]
fn what_a_small_transaction_writes_is_logged_with_its_commit_and_nothing_of_one_that_aborts() {
    let bed = roomy();
    bed.put(b"a", b"0");
    bed.settle();
    let before = bed.log.statistics();
    let mut aborted = bed.begin();
    put(&mut aborted, "a", "given up");
    aborted.abort();
    let mut tx = bed.begin();
    let start = tx.savepoint().unwrap();
    put(&mut tx, "a", "given up");
    tx.rollback_to(&start).unwrap();
    put(&mut tx, "a", "1");
    put(&mut tx, "b", "1");
    let kept = tx.savepoint().unwrap();
    put(&mut tx, "b", "given up");
    put(&mut tx, "c", "given up");
    tx.rollback_to(&kept).unwrap();
    put(&mut tx, "a", "2");
    assert_eq!(bed.log.statistics().appended_bytes, before.appended_bytes, "nothing yet");
    let committed = tx.commit().unwrap();
    let expected = [("a", "2"), ("b", "1")];
    let found = logged(&bed, committed.durable_at, &expected);
    assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let written = bed.log.statistics().record_bytes_written - before.record_bytes_written;
    assert_eq!(written, 2 * 24 + 32, "nothing else");
    assert_eq!([b"a", b"b", b"c"].map(|key| bed.get(key)), [Some(b"2".to_vec()), Some(b"1".to_vec()), None]);
}

#[test]
fn what_a_larger_transaction_writes_is_logged_at_once_and_the_rest_with_its_commit() {
    let bed = roomy();
    let (tail, long) = (bed.log.tail_lsn(), "long".repeat(120));
    let mut tx = bed.begin();
    put(&mut tx, "a", "first");
    put(&mut tx, "b", &long);
    assert!(bed.log.tail_lsn() > tail, "more than may wait");
    // It is in the log already, and there is room for it in the version.
    put(&mut tx, "b", "short");
    let committed = tx.commit().unwrap();
    let expected = [("b", &long[..]), ("a", "first"), ("b", "short")];
    let found = logged(&bed, committed.durable_at, &expected);
    assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    assert_eq!(bed.get(b"b").as_deref(), Some(&b"short"[..]));
    // There is none for what is longer than what was written first.
    let mut tx = bed.begin();
    put(&mut tx, "c", "1");
    let longer = "2".repeat(50);
    put(&mut tx, "c", &longer);
    tx.commit().unwrap();
    assert_eq!(bed.get(b"c").as_deref(), Some(longer.as_bytes()));
    // Those that were only to be held may be more than fit before a commit record.
    let mut tx = bed.begin();
    let keys = || (0..40u8).map(|number| [b'h', number]);
    let value = [7; 400];
    keys().for_each(|key| bed.put(&key, &value));
    keys().for_each(|key| assert!(tx.get_for_update(TABLE, &key).unwrap().is_some()));
    tx.commit().unwrap();
    keys().for_each(|key| assert_eq!(bed.get(&key).as_deref(), Some(&value[..])));
}

/// What was logged before is void by the time at which the rest is logged again.
#[test]
fn only_what_is_logged_again_after_a_rollback_keeps_the_log_and_counts() {
    let log_bytes_max = 6000;
    let bed = with(TcOptions { log_bytes_max, ..TcOptions::default() });
    let mut tx = bed.begin();
    (0..8u8).for_each(|number| tx.put(TABLE, &[number + 1], &[7; 500]).unwrap());
    let kept = tx.savepoint().unwrap();
    tx.delete(TABLE, b"given up").unwrap();
    tx.rollback_to(&kept).unwrap();
    let (before, end) = (tx.logged_bytes, bed.log.tail_lsn());
    assert!(before < log_bytes_max * 7 / 8 && 2 * before > log_bytes_max);
    let (looker, aborted) = (Arc::clone(&bed), Arc::new(Mutex::new(None)));
    let told = Arc::clone(&aborted);
    schedule::set_hook(Some(Arc::new(move || {
        let tc = looker.tc();
        // As soon as that has been done, and once.
        if told.lock().unwrap().is_none() && tc.oldest_writer().is_some_and(|first| first >= end) {
            *told.lock().unwrap() = Some([0; 2]);
            let ends = [end, looker.log.tail_lsn()];
            *told.lock().unwrap() = Some(ends.map(|end| tc.abort_writers_before(end)));
        }
    })));
    let ended = tx.commit();
    schedule::set_hook(None);
    assert_eq!(*aborted.lock().unwrap(), Some([0, 1]), "what is void keeps nothing, and the rest does");
    assert_eq!(cause(ended), ConflictCause::LogPinned, "and not too large");
    assert!(tx.logged_bytes > 0 && tx.logged_bytes < before);
}

#[test]
fn who_has_rolled_back_everything_but_what_is_noted_has_nothing_in_the_log_until_that_is() {
    let bed = roomy();
    let mut tx = bed.begin();
    let start = tx.savepoint().unwrap();
    tx.put(TABLE, b"given up", b"1").unwrap();
    tx.rollback_to(&start).unwrap();
    tx.append(TABLE, b"k", b"1").unwrap();
    let (looker, seen) = (Arc::clone(&bed), Arc::new(Mutex::new(Vec::new())));
    let (noted, end) = (Arc::clone(&seen), bed.log.tail_lsn());
    schedule::set_hook(Some(Arc::new(move || {
        let is_void = looker.tc().oldest_writer().map(|first| first >= end);
        noted.lock().unwrap().push(is_void);
    })));
    let ended = tx.commit();
    schedule::set_hook(None);
    ended.unwrap();
    seen.lock().unwrap().dedup();
    assert_eq!(*seen.lock().unwrap(), [None, Some(true)]);
}

#[test]
fn what_a_transaction_cannot_give_back_before_its_end_is_accounted_for() {
    let bed = roomy();
    let mut tx = bed.begin();
    let start = tx.savepoint().unwrap();
    let mut bytes = {
        let mut before = 0;
        move |tx: &Transaction| {
            let grown = tx.workspace.written_bytes as i64 - before;
            before = tx.workspace.written_bytes as i64;
            grown
        }
    };
    // A version in steps of 16 bytes, and its record.
    tx.put(TABLE, b"k", &[7; 100]).unwrap();
    assert_eq!(bytes(&tx), 144 + 49);
    // Rewritten since the same savepoint: nothing is kept aside.
    tx.put(TABLE, b"k", &[7; 10]).unwrap();
    assert_eq!(bytes(&tx), 0);
    let _second = tx.savepoint().unwrap();
    tx.put(TABLE, b"k", &[7; 20]).unwrap();
    let ten = bytes(&tx);
    assert!(ten > 10);
    tx.put(TABLE, b"k", &[7; 90]).unwrap();
    assert_eq!(bytes(&tx), 0, "kept since the last savepoint already");
    let _third = tx.savepoint().unwrap();
    tx.put(TABLE, b"k", &[7; 1]).unwrap();
    assert_eq!(bytes(&tx), ten + 80, "90 bytes are kept aside instead of 10");
    tx.rollback_to(&start).unwrap();
    assert_eq!(tx.versions_written(), 0);
    assert_eq!(tx.workspace.written_bytes, 0, "what was kept aside is given back, too");
    bytes(&tx);
    // What is noted takes memory, too: more of a longer key and a longer piece, less of a key that is there.
    let mut noted = |key: &[u8], length: usize| {
        tx.append(TABLE, key, &vec![7; length]).unwrap();
        bytes(&tx)
    };
    let (short, again, longer) = (noted(b"a", 1), noted(b"a", 2), noted(b"longer", 1));
    assert_eq!(longer - short, 5);
    assert!(again > 2 && short > again + 1);
    assert_eq!(noted(b"a", 1002) - again, 1000);
    tx.rollback_to(&start).unwrap();
    assert_eq!(tx.workspace.written_bytes, 0);
}

#[test]
fn what_transactions_note_and_keep_aside_is_in_the_account_until_they_end() {
    let bed = roomy();
    let account = &bed.tc().core.account;
    let before = account.used();
    let kept = |bytes: u64| account.used().abs_diff(before + bytes) < 128 << 10;
    let mut transactions: Vec<Transaction> = (0..4).map(|_| bed.begin()).collect();
    for tx in &mut transactions {
        (0..10).for_each(|number| tx.append(TABLE, &[number + 1], &[7; 100 << 10]).unwrap());
    }
    assert!(kept(4000 << 10), "{}", account.used() - before);
    let more = transactions[0].savepoint().unwrap();
    (0..10).for_each(|number| transactions[0].append(TABLE, &[number + 1], &[7; 100 << 10]).unwrap());
    assert!(kept(5000 << 10), "{}", account.used() - before);
    transactions[0].rollback_to(&more).unwrap();
    assert!(kept(4000 << 10), "{}", account.used() - before);
    drop(transactions);
    assert!(kept(0), "{}", account.used() - before);
    // Payloads that a savepoint brings back.
    let mut tx = bed.begin();
    for _ in 0..1000 {
        tx.savepoint().unwrap();
        tx.put(TABLE, b"k", &[7; 500]).unwrap();
    }
    assert!(kept(500 << 10), "{}", account.used() - before);
    drop(tx);
    assert!(kept(0), "{}", account.used() - before);
}

/// Together they would take several times the memory, though each for itself takes less than half.
#[test]
fn several_transactions_that_only_note_wait_for_room_together() {
    let bed = crate::test_bed::tiny();
    let mut transactions: Vec<Transaction> = (0..8).map(|_| bed.begin()).collect();
    let mut refused = 0;
    for number in 0..100u64 {
        for tx in &mut transactions {
            if let Err(error) = tx.append(TABLE, &number.to_be_bytes(), &[7; 100]) {
                // Those that gave way keep what they have noted until they are told, so that the earliest may wait in vain.
                assert!(error.is_retryable(), "{error}");
                refused += 1;
                *tx = bed.begin();
            }
        }
    }
    assert!(refused > 0);
    let limit = bed.tc().memory_budget() * 5 / 4;
    assert!(bed.tc().memory_bytes() <= limit + (8 << 10), "{}", bed.tc().memory_bytes());
}

#[test]
fn a_transaction_takes_half_of_the_memory_at_most() {
    let bed = crate::test_bed::tiny();
    // Noted changes of 8-byte keys, about 100 bytes each; half of the memory is 32 KiB.
    let mut tx = bed.begin();
    let (noted, error) = (0..5_000u64)
        .find_map(|number| Some((number, tx.add(TABLE, &number.to_be_bytes(), 1).err()?)))
        .expect("an error");
    assert!(matches!(error, TcError::TransactionTooLarge { found: 1, limit: 0 }), "{error}");
    assert!((150..600).contains(&noted), "{noted}");
    let mut tx = bed.begin();
    let (written, error) = (0..5_000u64)
        .find_map(|number| Some((number as usize, tx.put(TABLE, &number.to_be_bytes(), b"").err()?)))
        .expect("an error");
    match error {
        TcError::TransactionTooLarge { found, limit } => assert_eq!((found, limit), (written + 1, written)),
        error => panic!("{error}"),
    }
    assert!((150..600).contains(&written), "{written}");
}

#[test]
fn values_and_savepoints_have_their_limits_to_the_byte_and_their_own_numbers() {
    let bed = with(TcOptions { value_bytes_max: 100, key_bytes_max: 10, ..TcOptions::default() });
    let mut tx = bed.begin();
    tx.put(TABLE, &[7; 10], &[7; 100]).unwrap();
    assert!(matches!(tx.put(TABLE, b"k", &[7; 101]), Err(TcError::ValueSize { found: 101, limit: 100 })));
    assert!(matches!(tx.get(TABLE, &[7; 11]), Err(TcError::KeySize { found: 11, limit: 10 })));
    tx.append(TABLE, b"k", &[7; 100]).unwrap();
    assert!(matches!(tx.append(TABLE, b"l", &[7; 101]), Err(TcError::ValueSize { found: 101, limit: 100 })));
    let outer = tx.savepoint().unwrap();
    let inner = tx.savepoint().unwrap();
    tx.rollback_to(&outer).unwrap();
    let other = tx.savepoint().unwrap();
    assert!(matches!(tx.rollback_to(&inner), Err(TcError::NoSavepoint)), "another is in its place");
    tx.rollback_to(&other).unwrap();
    assert_eq!(tx.versions_written(), 1);
    tx.commit().unwrap();
    assert_eq!(bed.get(b"k").as_deref(), Some(&[7; 100][..]));
}

#[test]
fn a_rollback_before_the_first_change_leaves_none() {
    let bed = roomy();
    let mut tx = bed.begin();
    let start = tx.savepoint().unwrap();
    tx.add(TABLE, b"n", 1).unwrap();
    tx.rollback_to(&start).unwrap();
    assert_eq!(tx.commit().unwrap().durable_at, None);
    assert_eq!(bed.get(b"n"), None);
}

#[test]
fn a_range_that_hid_what_was_rolled_back_is_as_it_was() {
    let bed = roomy();
    bed.put(b"b", b"1");
    let mut tx = bed.begin();
    let start = tx.savepoint().unwrap();
    tx.put(TABLE, b"b", b"own").unwrap();
    assert_eq!(tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward).count(), 1);
    tx.rollback_to(&start).unwrap();
    tx.put(TABLE, b"z", b"1").unwrap();
    assert_eq!(bed.get(b"z"), None, "which pushes it");
    tx.commit().unwrap();
}

#[test]
fn who_has_been_aborted_learns_it_from_its_next_read() {
    let bed = roomy();
    bed.put(b"k", b"1");
    for scans in [false, true] {
        let (mut tx, mut reader) = (bed.begin(), bed.begin());
        tx.delete(TABLE, b"own").unwrap();
        assert_eq!(bed.tc().abort_writers_before(bed.log.tail_lsn()), 1);
        let read = match scans {
            true => tx
                .scan(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward)
                .next()
                .map(|entry| entry.map(|_| ()))
                .expect("an error"),
            false => tx.get(TABLE, b"k").map(|_| ()),
        };
        assert_eq!(cause(read), ConflictCause::LogPinned);
        assert!(matches!(tx.get(TABLE, b"k"), Err(TcError::Aborted)));
        // Who has written nothing cannot be.
        assert!(reader.get(TABLE, b"k").unwrap().is_some());
    }
}

#[test]
fn what_is_durable_is_durable_beyond_its_commit_record() {
    let bed = roomy();
    let mut tx = bed.begin();
    tx.put(TABLE, b"k", b"1").unwrap();
    bed.settle();
    let written = tx.commit().unwrap().durable_at.expect("not yet");
    assert!(bed.log.stable_lsn() <= written);
    let mut reader = bed.begin();
    assert!(reader.get(TABLE, b"k").unwrap().is_some());
    assert_eq!(reader.commit().unwrap().durable_at, Some(written));
    bed.settle();
    assert!(bed.log.stable_lsn() > written);
}
