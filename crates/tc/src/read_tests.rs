//! What a read sees, what it leaves behind, and what it asks for ahead: the rare branches one by one (rules R2, R3, R12 to R14).

use crate::collect_tests::left_by;
use crate::counted::asked;
use crate::options::ConcurrencyControl;
use crate::read::{Failure, Own, Protection, Reader, Visible};
use crate::record::KeyRef;
use crate::schedule::set_hook;
use crate::status::Status;
use crate::sync::Ordering;
use crate::test_bed::{Bed, TABLE, all, bed, roomy};
use crate::version::{PRUNED, Version, VersionState, Written};
use crate::{BeginOptions, ConflictCause, Isolation, TcError, TcOptions, Transaction};
use deuteron_contract::{Direction, Lsn, MemoryDc, Operation, Timestamp, TransactionId};
use deuteron_log::{LogOptions, Record as LogRecord};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

fn key<'k>(bed: &Bed, key: &'k [u8]) -> KeyRef<'k> {
    bed.tc().core.table.key(TABLE, key)
}

/// Puts a value where only the data component has it.
fn stored(bed: &Bed, name: &[u8], value: Option<&[u8]>, at: u64) {
    let operation = Operation { table: TABLE, key: name, value, timestamp: Timestamp(at), lsn: Lsn(at) };
    bed.dc.apply(&[operation]).unwrap();
}

/// Makes the component forget a key that is posted.
fn forget(bed: &Bed, name: &[u8]) {
    let guard = bed.epochs.pin();
    let core = &bed.tc().core;
    let record = core.table.find(key(bed, name), &guard).expect("a record");
    core.maintain(&record, core.horizon(), &guard);
    assert!(core.evict(&record, &guard), "it is at the data component");
}

fn has_record(bed: &Bed, name: &[u8]) -> bool {
    bed.tc().core.table.find(key(bed, name), &bed.epochs.pin()).is_some()
}

fn misses(bed: &Bed, name: &[u8], value: Option<&[u8]>) -> u32 {
    let mut tx = bed.begin();
    assert!(tx.get(TABLE, name).unwrap().as_deref() == value);
    tx.misses()
}

#[test]
fn what_is_read_from_the_data_component_stays_with_its_record_and_is_accounted_for() {
    const HEAD: usize = size_of::<Version>();
    let dc = Arc::new(MemoryDc::with_limits(1 << 10, 4 << 20));
    let options = TcOptions { memory_bytes: 16 << 20, ..TcOptions::default() };
    let proxy = deuteron_proxy::Options::default();
    let bed = Bed::open(dc, options, &LogOptions::default(), proxy, |_| Err("nobody works".into())).unwrap();
    bed.settle();
    let core = &bed.tc().core;
    // The longest value that is kept is 2 MiB; up to 512 bytes lie in the record's own allocation.
    let lengths =
        [None, Some(0), Some(1), Some(480), Some(481), Some(20_000), Some(2 << 20), Some((2 << 20) + 1)];
    for (number, length) in lengths.into_iter().enumerate() {
        let name = [b'k', number as u8];
        let value = length.map(|length| vec![7u8; length]);
        if value.is_some() {
            stored(&bed, &name, value.as_deref(), 0);
        }
        let (used, before) = (core.account.used() as i64, bed.tc().statistics());
        assert_eq!(misses(&bed, &name, value.as_deref()), 1);
        let is_kept = length.is_none_or(|length| length <= 2 << 20);
        assert_eq!(misses(&bed, &name, value.as_deref()), u32::from(!is_kept), "{length:?}");
        let (after, bytes) = (bed.tc().statistics(), HEAD + length.unwrap_or(0));
        assert_eq!(after.read_cache_fills - before.read_cache_fills, u64::from(is_kept));
        assert_eq!(after.read_cache_bytes - before.read_cache_bytes, if is_kept { bytes as u64 } else { 0 });
        assert_eq!(has_record(&bed, &name), is_kept);
        if !is_kept {
            continue;
        }
        // The account is right to within what is carried over.
        let grown = core.account.used() as i64 - used;
        assert!((grown - bytes as i64).abs() <= 2 * (16 << 10), "{grown} for {bytes}");
        let guard = bed.epochs.pin();
        let record = core.table.find(key(&bed, &name), &guard).unwrap();
        // SAFETY: reached through the head under the guard.
        let base = unsafe { &*record.head.load(Ordering::SeqCst) };
        let is_embedded = bytes <= 512;
        assert_eq!((base.bytes(), base.cached_bytes()), (if is_embedded { 0 } else { bytes }, Some(bytes)));
        let in_record = if is_embedded { 56 + bytes } else { 48 + name.len() };
        assert_eq!(record.bytes(), in_record);
        drop(guard);
        forget(&bed, &name);
        let gone = bed.tc().statistics();
        assert_eq!(gone.read_cache_bytes, before.read_cache_bytes);
        assert_eq!(gone.read_cache_evictions - before.read_cache_evictions, 1);
    }
}

/// `work`, while `other` is done at the point of it with this number; whether it has so many.
fn interrupted<T>(
    number: usize,
    other: impl FnOnce() + Send + 'static,
    work: impl FnOnce() -> T,
) -> (T, bool) {
    let (points, other) = (AtomicUsize::new(0), Arc::new(Mutex::new(Some(other))));
    let taken = Arc::clone(&other);
    set_hook(Some(Arc::new(move || {
        if points.fetch_add(1, Relaxed) == number {
            let other = taken.lock().unwrap().take().expect("once");
            other();
        }
    })));
    let result = work();
    set_hook(None);
    let happened = other.lock().unwrap().is_none();
    (result, happened)
}

/// Bytes of the read cache, found one by one.
fn cached_bytes(bed: &Bed) -> usize {
    let (mut bytes, table, guard) = (0, &bed.tc().core.table, bed.epochs.pin());
    for bucket in 0..table.buckets() {
        table.for_each_in_bucket(bucket, &guard, |record| {
            let mut current = record.head.load(Ordering::SeqCst);
            while current != PRUNED {
                // SAFETY: reached through the head under the guard.
                let Some(version) = (unsafe { current.as_ref() }) else { break };
                bytes += version.cached_bytes().unwrap_or(0);
                current = version.next.load(Ordering::SeqCst);
            }
        });
    }
    bytes
}

/// What may happen in the middle of a read of `k`, where the data component has a value of it.
const MEANWHILE: [fn(&Bed, Transaction); 6] = [
    |bed, _| bed.put(b"k", b"new"),
    |bed, _| bed.begin().put(TABLE, b"k", b"aborted").unwrap(),
    |bed, _| _ = bed.get(b"k"),
    |bed, _| {
        let (core, guard) = (&bed.tc().core, bed.epochs.pin());
        if let Some(record) = core.table.find(key(bed, b"k"), &guard) {
            core.evict(&record, &guard);
        }
    },
    |bed, _| bed.tc().core.account.pretend_over_soft.store(true, Relaxed),
    |_, mut older| {
        older.put(TABLE, b"k", b"new").unwrap();
        older.commit().unwrap();
    },
];

#[test]
fn a_read_is_of_its_time_whatever_happens_at_any_of_its_points() {
    const LONG: &[u8] = &[7; 700];
    let interruptions = Cell::new(0);
    let sweep = |other: fn(&Bed, Transaction), value: &'static [u8], beneath: bool, is_short: bool| {
        for number in 0.. {
            let bed = bed(
                TcOptions { memory_bytes: 256 << 10, ..TcOptions::default() },
                &LogOptions::tiny_for_tests(),
                deuteron_proxy::Options::default(),
            );
            bed.begin().abort();
            stored(&bed, b"k", Some(value), 0);
            let older = bed.begin();
            let mut reader = bed.begin();
            if beneath {
                bed.put(b"k", b"newer");
            }
            bed.tc().core.account.pretend_over_soft.store(is_short, Relaxed);
            let others = Arc::clone(&bed);
            let (found, happened) = interrupted(
                number,
                move || other(&others, older),
                || reader.get(TABLE, b"k").unwrap().expect("a value"),
            );
            assert!(found == value || found == b"new", "{number}: {found:?}");
            let again = reader.get(TABLE, b"k").unwrap();
            assert!(again.as_deref() == Some(&*found), "{number}: not what it was");
            let cached = bed.tc().statistics().read_cache_bytes;
            assert_eq!(cached, cached_bytes(&bed) as u64, "{number}");
            if !happened {
                return;
            }
            interruptions.set(interruptions.get() + 1);
        }
    };
    let left = left_by(|| {
        for other in MEANWHILE {
            for value in [b"stored", LONG] {
                for (beneath, is_short) in [(false, false), (false, true), (true, false)] {
                    sweep(other, value, beneath, is_short);
                }
            }
        }
    });
    assert_eq!(left, 0, "bytes are lost");
    assert!(interruptions.get() > 100, "{}", interruptions.get());
}

#[test]
fn who_reads_the_newest_is_never_too_old() {
    let options = BeginOptions { isolation: Isolation::ReadCommitted, ..BeginOptions::default() };
    for scans in [false, true] {
        for number in 0.. {
            let bed = roomy();
            stored(&bed, b"k", Some(b"stored"), 0);
            let mut tx = bed.begin_with(options);
            let others = Arc::clone(&bed);
            let give_up_the_past = move || {
                others.begin().abort();
                others.tc().force_horizon(Timestamp::MAX);
            };
            let read = || {
                if scans {
                    all(&mut tx, Direction::Forward).map(|found| found.len())
                } else {
                    tx.get(TABLE, b"k").map(|found| found.iter().len())
                }
            };
            let (found, happened) = interrupted(number, give_up_the_past, read);
            assert_eq!(found.unwrap(), 1, "{number}");
            if !happened {
                assert!(number > 2);
                break;
            }
        }
    }
}

#[test]
fn only_reads_that_leave_a_mark_wait_for_memory() {
    let options = TcOptions::tiny_for_tests();
    let (log, proxy) = (LogOptions::tiny_for_tests(), deuteron_proxy::Options::tiny_for_tests());
    let nobody = |_: &Bed| Err("nobody works".to_string());
    let bed = Bed::open(Arc::new(MemoryDc::new()), options, &log, proxy, nobody).unwrap();
    let budget = bed.tc().memory_budget() as usize;
    bed.tc().core.account.add(2 * budget);
    for (read_only, waits) in [(false, true), (true, false)] {
        let begin = || bed.begin_with(BeginOptions { read_only, ..BeginOptions::default() });
        let results = [begin().get(TABLE, b"k").map(drop), all(&mut begin(), Direction::Forward).map(drop)];
        for result in results {
            assert_eq!(matches!(result, Err(TcError::Stopped { .. })), waits, "{result:?}");
            assert_eq!(result.is_ok(), !waits);
        }
    }
    bed.tc().core.account.subtract(2 * budget);
}

#[test]
fn a_scan_is_of_a_time_that_has_been_given_up_or_passed_from_the_next_timestamp_on() {
    let scan = |bed: &Bed, tx: &mut Transaction| match all(tx, Direction::Forward) {
        Ok(found) => Some(found.len()),
        Err(TcError::Conflict(conflict)) => {
            assert_eq!(conflict.cause, ConflictCause::SnapshotTooOld, "{}", bed.tc().now());
            None
        }
        Err(error) => panic!("{error}"),
    };
    let bed = roomy();
    let mut tx = bed.begin();
    (0..5).for_each(|_| bed.begin().abort());
    let at = tx.timestamp().0;
    stored(&bed, b"k", Some(b"1"), at);
    bed.tc().force_horizon(Timestamp(at));
    assert_eq!(scan(&bed, &mut tx), Some(1));
    bed.tc().force_horizon(Timestamp(at + 1));
    assert_eq!(scan(&bed, &mut tx), None);
    let mut tx = bed.begin();
    stored(&bed, b"k", Some(b"2"), tx.timestamp().0 + 1);
    assert_eq!(scan(&bed, &mut tx), None);
}

#[test]
fn a_read_that_leaves_no_record_is_protected_by_its_stripe_if_it_needs_to_be() {
    let bed = roomy();
    stored(&bed, b"k", Some(b"stored"), 0);
    bed.begin().abort();
    let core = &bed.tc().core;
    core.account.pretend_over_soft.store(true, Relaxed);
    let floor = || core.table.stripe(key(&bed, b"k").hash).floor();
    let read_only = BeginOptions { read_only: true, ..BeginOptions::default() };
    let mut declared = bed.begin_with(read_only);
    assert_eq!(declared.get(TABLE, b"k").unwrap().as_deref(), Some(&b"stored"[..]));
    assert_eq!((floor(), has_record(&bed, b"k")), (Timestamp(0), false), "the fence protects it");
    let mut old = bed.begin();
    let mut reader = bed.begin();
    assert_eq!(reader.get(TABLE, b"k").unwrap().as_deref(), Some(&b"stored"[..]));
    assert_eq!((floor(), has_record(&bed, b"k")), (reader.timestamp(), false));
    assert_eq!(bed.tc().statistics().read_cache_fills, 0);
    old.put(TABLE, b"k", b"new").unwrap();
    let committed = old.commit().unwrap().timestamp;
    assert!(committed > reader.timestamp(), "who writes what was read comes later");
    assert_eq!(reader.get(TABLE, b"k").unwrap().as_deref(), Some(&b"stored"[..]));
    core.account.pretend_over_soft.store(false, Relaxed);
}

#[test]
fn a_record_that_reads_bring_protects_them_and_only_those_that_need_it() {
    let bed = roomy();
    for name in [&b"a"[..], b"b"] {
        stored(&bed, name, Some(b"stored"), 0);
    }
    let core = &bed.tc().core;
    let read_at = |name: &[u8]| {
        let guard = bed.epochs.pin();
        core.table.find(key(&bed, name), &guard).expect("a record").own_read_timestamp()
    };
    bed.begin().abort();
    let mut declared = bed.begin_with(BeginOptions { read_only: true, ..BeginOptions::default() });
    declared.get(TABLE, b"a").unwrap();
    assert_eq!(read_at(b"a"), Timestamp(0));
    let mut reader = bed.begin();
    reader.get(TABLE, b"b").unwrap();
    assert_eq!(read_at(b"b"), reader.timestamp());
    reader.get(TABLE, b"a").unwrap();
    assert_eq!(read_at(b"a"), reader.timestamp());
    // What was used is spared once by the collector; those who store nothing store that only when it counts.
    let take = |name: &[u8]| {
        let guard = bed.epochs.pin();
        core.table.find(key(&bed, name), &guard).expect("a record").take_referenced()
    };
    assert!(take(b"a") && take(b"b") && !take(b"a"));
    declared.get(TABLE, b"a").unwrap();
    assert!(!take(b"a"));
    reader.get(TABLE, b"a").unwrap();
    assert!(take(b"a"));
    let budget = bed.tc().memory_budget() as usize;
    core.account.add(budget * 7 / 8);
    declared.get(TABLE, b"a").unwrap();
    assert!(take(b"a"), "somebody is about to choose what to evict");
    core.account.subtract(budget * 7 / 8);
}

#[test]
fn a_reader_beneath_newer_versions_brings_the_base_of_their_chain() {
    for is_short in [false, true] {
        let bed = roomy();
        stored(&bed, b"k", Some(b"stored"), 0);
        let core = &bed.tc().core;
        let mut old = bed.begin();
        let mut older = bed.begin();
        bed.put(b"k", b"new");
        core.account.pretend_over_soft.store(is_short, Relaxed);
        assert_eq!(old.get(TABLE, b"k").unwrap().as_deref(), Some(&b"stored"[..]));
        assert_eq!(old.get(TABLE, b"k").unwrap().as_deref(), Some(&b"stored"[..]));
        assert_eq!(older.get(TABLE, b"k").unwrap().as_deref(), Some(&b"stored"[..]));
        assert_eq!((old.misses(), older.misses()), if is_short { (2, 1) } else { (1, 0) });
        let statistics = bed.tc().statistics();
        let kept = u64::from(!is_short);
        assert_eq!(statistics.read_cache_fills, kept);
        assert_eq!(statistics.read_cache_bytes, kept * (size_of::<Version>() as u64 + 6));
        core.account.pretend_over_soft.store(false, Relaxed);
        assert_eq!(bed.get(b"k").as_deref(), Some(&b"new"[..]));
    }
}

/// A reader at 5 before a version whose writer's slot says this.
#[test]
fn what_has_not_been_stamped_is_what_its_writer_says() {
    use ConcurrencyControl::{Pushes, TimestampOrder};
    use Protection::{Fence, None, Published};
    let active = |at| Status::Active(Timestamp(at));
    let committed = |at| Status::Committed(Timestamp(at));
    let cases = [
        (Pushes, Published, active(3), "beneath", active(6)),
        (Pushes, Published, active(5), "beneath", active(6)),
        (Pushes, Published, active(6), "beneath", active(6)),
        (Pushes, Fence, active(3), "beneath", active(6)),
        (Pushes, None, active(3), "beneath", active(3)),
        (Pushes, Published, committed(4), "seen", committed(4)),
        (Pushes, Published, committed(5), "seen", committed(5)),
        (Pushes, Published, committed(6), "newer", committed(6)),
        (Pushes, None, committed(5), "seen", committed(5)),
        (Pushes, Published, Status::Aborted, "beneath", Status::Aborted),
        (TimestampOrder, Published, active(3), "gives way", active(3)),
        (TimestampOrder, Published, active(6), "beneath", active(6)),
        (TimestampOrder, Fence, active(3), "beneath", active(6)),
        (TimestampOrder, None, active(3), "beneath", active(3)),
    ];
    for (concurrency_control, protection, status, expected, after) in cases {
        let options = TcOptions { concurrency_control, memory_bytes: 1 << 20, ..TcOptions::default() };
        let bed = bed(options, &LogOptions::tiny_for_tests(), deuteron_proxy::Options::default());
        let core = &bed.tc().core;
        let (mine, other) = (core.transactions.allocate(), core.transactions.allocate());
        let slot = core.transactions.slot(other);
        match status {
            Status::Active(at) => slot.status.begin(at),
            Status::Committed(at) => {
                slot.status.begin(at);
                slot.set_commit_lsn(Lsn(64));
                assert!(slot.status.commit(at, at, &core.transactions.lost));
            }
            Status::Aborted => {}
        }
        let version = Version::allocate_written(other, Lsn(8), Written::Logged, 0);
        // SAFETY: just allocated.
        let new = unsafe { &*version };
        new.next.store(PRUNED, Ordering::SeqCst);
        let reader = Reader { at: Timestamp(5), slot: mine, own: Own::Visible, protection };
        let guard = bed.epochs.pin();
        let (found, newer) = core.visible(version, reader, &guard);
        let found = match found {
            Visible::Committed { version, at, commit_lsn } => {
                assert!(ptr::eq(version, new) && !newer);
                assert_eq!((Status::Committed(at), commit_lsn), (status, Lsn(64)));
                "seen"
            }
            Visible::Pruned if newer => "newer",
            Visible::Pruned => "beneath",
            Visible::Undecided(at) => {
                assert_eq!(Status::Active(at), status);
                "gives way"
            }
            _ => "something else",
        };
        assert_eq!((found, slot.status.load()), (expected, after), "{status:?}");
        // SAFETY: nobody else knows it.
        unsafe { Version::free(version.cast(), new.bytes()) };
    }
}

#[test]
fn what_the_data_component_has_is_refused_if_it_is_later_than_the_reader_or_given_up() {
    let bed = roomy();
    stored(&bed, b"k", Some(b"stored"), 5);
    let core = &bed.tc().core;
    let fetch = |at| core.fetch(key(&bed, b"k"), 3, Timestamp(at));
    assert!(matches!(fetch(4), Err(Failure::TooOld)));
    for at in [5, 6] {
        let Ok(fetched) = fetch(at) else { panic!("it is there") };
        assert_eq!((fetched.timestamp, fetched.value.as_deref()), (Timestamp(5), Some(&b"stored"[..])));
    }
    (0..20).for_each(|_| bed.begin().abort());
    core.force_horizon(Timestamp(9));
    assert!(matches!(fetch(8), Err(Failure::TooOld)));
    assert!(fetch(9).is_ok());
}

#[test]
fn a_value_that_has_left_the_memory_comes_from_where_it_is() {
    let bed = roomy();
    let core = &bed.tc().core;
    let record =
        LogRecord::Upsert { transaction: TransactionId(1), table: TABLE, key: b"k", value: b"logged" };
    let lsn = core.append(&record).unwrap();
    let other = core.append(&LogRecord::Abort { transaction: TransactionId(1) }).unwrap();
    let load = |lsn, written| core.load_recycled(key(&bed, b"k"), lsn, written);
    let logged = |found: Result<Option<Vec<u8>>, TcError>| found.unwrap().as_deref() == Some(&b"logged"[..]);
    let written = Some((Timestamp(7), other));
    // Not applied, or the reader's own: the log.
    assert!(logged(load(lsn, written)) && logged(load(lsn, None)));
    assert!(matches!(load(other, None), Err(TcError::Log(_))), "not a value");
    // Applied: the data component, if it has just that.
    bed.tc().report_progress(Lsn(1 << 30), Lsn(1 << 30), Timestamp(100));
    assert!(logged(load(lsn, None)), "the reader's own is never there");
    stored(&bed, b"k", Some(b"older"), 6);
    assert!(logged(load(lsn, written)), "it does not have what it was said to have");
    stored(&bed, b"k", Some(b"stored"), 7);
    assert_eq!(load(lsn, written).unwrap().as_deref(), Some(&b"stored"[..]));
    stored(&bed, b"k", Some(b"newer"), 8);
    assert_eq!(load(lsn, written).unwrap(), None, "look again");
    core.drop_table(TABLE);
    assert!(matches!(load(lsn, written), Err(TcError::TableDropped { table }) if table == TABLE));
}

/// A bed whose log keeps little in memory, and a key whose value it has no longer there, nor the data component.
fn recycled(value: &[u8]) -> (Arc<Bed>, crate::Transaction) {
    let bed = bed(
        TcOptions { memory_bytes: 16 << 20, value_bytes_max: 8 << 20, ..TcOptions::default() },
        &LogOptions::tiny_for_tests(),
        deuteron_proxy::Options {
            waiting_list_bytes_max: 64 << 20,
            ..deuteron_proxy::Options::tiny_for_tests()
        },
    );
    let mut old = bed.begin();
    assert_eq!(old.get(TABLE, b"other").unwrap(), None);
    bed.put(b"k", value);
    for number in 0..1_500u32 {
        bed.put(&number.to_be_bytes(), &[1; 100]);
        bed.step();
    }
    assert!(bed.dc.get(TABLE, b"k").unwrap().is_none(), "the old reader is in the way");
    (bed, old)
}

#[test]
fn a_copy_takes_the_place_of_a_version_whose_value_left_the_log_unless_memory_is_short() {
    for (length, is_short, reads) in [(600, false, [1, 0]), (600, true, [1, 1]), (600_000, false, [1, 0])] {
        let value = vec![7u8; length];
        let (bed, old) = recycled(&value);
        let core = &bed.tc().core;
        let before = bed.tc().statistics();
        core.account.pretend_over_soft.store(is_short, Relaxed);
        assert_eq!([(); 2].map(|()| misses(&bed, b"k", Some(&value))), reads, "{length}");
        core.account.pretend_over_soft.store(false, Relaxed);
        let after = bed.tc().statistics();
        assert_eq!(after.read_cache_fills - before.read_cache_fills, u64::from(!is_short));
        if !is_short {
            let bytes = (size_of::<Version>() + length) as u64;
            assert_eq!(after.read_cache_bytes - before.read_cache_bytes, bytes);
        }
        drop(old);
    }
}

#[test]
fn a_version_that_is_nowhere_any_more_is_too_old_to_be_read() {
    let (bed, old) = recycled(&[7; 600]);
    let mut tx = bed.begin();
    bed.begin().abort();
    let at = tx.timestamp().0;
    stored(&bed, b"k", Some(b"newer"), at + 5);
    bed.tc().report_progress(Lsn(1 << 40), Lsn(1 << 40), Timestamp(1 << 40));
    bed.tc().force_horizon(Timestamp(at + 1));
    let error = tx.get(TABLE, b"k").unwrap_err();
    assert!(
        matches!(&error, TcError::Conflict(conflict) if conflict.cause == ConflictCause::SnapshotTooOld),
        "{error}"
    );
    drop(old);
}

#[test]
fn a_copy_takes_the_place_of_just_its_version_and_once() {
    let (bed, old) = recycled(&[7; 600]);
    let core = &bed.tc().core;
    let (lsn, at, commit) = {
        // SAFETY: nobody evicts it.
        let version = unsafe { &*ptr::with_exposed_provenance::<Version>(expose(&bed, b"k")) };
        let VersionState::Committed(at) = version.state() else { panic!("it is committed") };
        (version.lsn().expect("a long value is in the log"), at, version.commit_lsn())
    };
    let fills = || bed.tc().statistics().read_cache_fills;
    let load = |at: Timestamp| {
        let value = core.load_recycled(key(&bed, b"k"), lsn, Some((at, commit))).unwrap();
        assert_eq!(value.as_deref(), Some(&[7; 600][..]));
    };
    let before = fills();
    load(Timestamp(at.0 + 1));
    assert_eq!(fills(), before, "there is no such version");
    bed.put(b"k", b"new");
    for _ in 0..2 {
        load(at);
        assert_eq!(fills(), before + 1);
    }
    drop(old);
    // Where it has been dropped meanwhile there is nothing to be replaced.
    let guard = bed.epochs.pin();
    let record = core.table.find(key(&bed, b"k"), &guard).expect("a record");
    assert!(core.maintain(&record, Timestamp(core.clock.last().0 + 1), &guard));
    drop(guard);
    load(at);
    assert_eq!((fills(), bed.get(b"k").as_deref()), (before + 1, Some(&b"new"[..])));
}

#[test]
fn a_value_longer_than_the_cache_takes_is_read_from_the_log_each_time() {
    let value = vec![7u8; (2 << 20) + 1];
    let (bed, old) = recycled(&value);
    assert_eq!([(); 2].map(|()| misses(&bed, b"k", Some(&value))), [1, 1]);
    assert_eq!(bed.tc().statistics().read_cache_bytes, size_of::<Version>() as u64, "of what is not there");
    drop(old);
}

/// Where a record and its newest version lie.
fn places(bed: &Bed, name: &[u8]) -> (usize, usize) {
    let guard = bed.epochs.pin();
    let record = bed.tc().core.table.find(key(bed, name), &guard).expect("a record");
    (record.pointer().addr(), record.head.load(Ordering::SeqCst).addr())
}

#[test]
fn with_every_announcement_all_before_go_one_link_further() {
    let bed = roomy();
    bed.put(b"k", &[7; 600]);
    let (record, version) = places(&bed, b"k");
    let lsn = {
        // SAFETY: nobody evicts it.
        let version = unsafe { &*ptr::with_exposed_provenance::<Version>(expose(&bed, b"k")) };
        version.lsn().expect("a long value is in the log").0 as usize
    };
    let mut ahead = bed.tc().lookahead();
    let bucket = asked(|| ahead.announce(TABLE, &[b"k"]));
    assert_eq!(bucket.len(), 2, "and what is noted of it");
    let mut next = || asked(|| ahead.announce::<&[u8]>(TABLE, &[]));
    let lines = |at: usize| [at, at + 64, at + 128];
    assert_eq!(next(), lines(record));
    let search = [bucket[1], record + 64, record + 128];
    assert_eq!(next(), [&search[..], &lines(version)].concat());
    assert_eq!(next(), [&search[..], &lines(version), &[lsn]].concat());
    assert!(next().is_empty(), "everything has been asked for");
    // Others at other links, side by side.
    ahead.announce(TABLE, &[b"k"]);
    ahead.announce(TABLE, &[b"nothing"]);
    let both = asked(|| ahead.announce(TABLE, &[b"k"]));
    assert!(both.starts_with(&bucket) && both.ends_with(&lines(version)), "{both:?}");
}

/// The address of the newest version, to be looked at.
fn expose(bed: &Bed, name: &[u8]) -> usize {
    let guard = bed.epochs.pin();
    let record = bed.tc().core.table.find(key(bed, name), &guard).expect("a record");
    record.head.load(Ordering::SeqCst).expose_provenance()
}

#[test]
fn of_many_keys_a_few_are_asked_for_again_when_their_turn_comes() {
    let bed = roomy();
    let keys: Vec<[u8; 2]> = (0..80u16).map(u16::to_be_bytes).collect();
    keys.iter().for_each(|name| bed.put(name, b"1"));
    let mut tx = bed.begin();
    let mut asked_for = asked(|| tx.get_many(TABLE, &keys, |_, _| {}).unwrap());
    // Each with the other 63 of its lot, and, but for the first 8 of them, with its neighbours.
    let bucket = |name: &[u8]| asked(|| bed.tc().core.table.prefetch_bucket(key(&bed, name)))[0];
    let mut expected: Vec<usize> = (0..keys.len())
        .flat_map(|index| vec![bucket(&keys[index]); if index % 64 < 8 { 1 } else { 2 }])
        .collect();
    asked_for.retain(|address| expected.contains(address));
    asked_for.sort_unstable();
    expected.sort_unstable();
    assert_eq!(asked_for, expected);
}

#[test]
fn long_keys_are_remembered_as_short_ones_are() {
    let options = TcOptions { key_bytes_max: 1 << 16, memory_bytes: 16 << 20, ..TcOptions::default() };
    let bed = bed(options, &LogOptions::default(), deuteron_proxy::Options::default());
    let mut tx = bed.begin();
    for number in 1..4 {
        assert!(tx.get(TABLE, &[number; 65_535]).unwrap().is_none());
        assert_eq!(tx.workspace.reads.len(), usize::from(number));
    }
}

#[test]
fn keys_named_before_are_asked_for_side_by_side() {
    let bed = roomy();
    bed.put(b"a", &[7; 600]);
    bed.put(b"b", b"short");
    bed.put(b"b", b"shorter");
    let mut tx = bed.begin();
    let ((record_a, version_a), (record_b, version_b)) = (places(&bed, b"a"), places(&bed, b"b"));
    let found = asked(|| tx.prefetch(TABLE, &[b"a", b"b"], &[]));
    // Two buckets with what is noted of them, then the records behind them, then the versions, and the value that is in the log.
    assert!(found[4..7] == [record_a, record_a + 64, record_a + 128]);
    assert!(found[7..10] == [record_b, record_b + 64, record_b + 128]);
    assert!([version_a, version_b].iter().all(|version| found[10..].contains(version)));
    assert_eq!(found.len(), 2 * 2 + 2 * 3 + 2 * 3 + 2 * 3 + 1);
    // Of those that will be written the version beneath is asked for, too.
    let beneath = {
        // SAFETY: nobody evicts it.
        let version = unsafe { &*ptr::with_exposed_provenance::<Version>(expose(&bed, b"b")) };
        version.next.load(Ordering::SeqCst).addr()
    };
    let found = asked(|| tx.prefetch(TABLE, &[], &[b"b"]));
    assert_eq!(found[2..5], [record_b, record_b + 64, record_b + 128]);
    assert_eq!(found[found.len() - 2..], [version_b, beneath]);
    // Without a record that is all.
    stored(&bed, b"c", None, 0);
    assert_eq!(asked(|| tx.prefetch(TABLE, &[b"c"], &[])).len(), 2 + 3 + 3);
}

#[test]
fn what_is_freed_in_the_end_is_asked_for_ahead() {
    let bed = bed(
        TcOptions::tiny_for_tests(),
        &LogOptions::tiny_for_tests(),
        deuteron_proxy::Options::tiny_for_tests(),
    );
    (0..50u8).for_each(|number| bed.put(&[number + 1], b"1"));
    bed.settle();
    let records = (1..51u8).filter(|number| has_record(&bed, &[*number])).count();
    let buckets = bed.tc().core.table.buckets();
    assert!(records > 32 && buckets == 512);
    // Buckets and records 32 ahead of their turn, versions 16.
    let expected = (buckets - 32) + (records - 32) + (records - 16);
    assert_eq!(asked(move || drop(bed)).len(), expected);
}
