//! What the collector keeps, drops and evicts: chains of versions made by hand, and what is left of them (rules R11, R12).

use crate::counted::{asked, stored};
use crate::linked::Linked;
use crate::planted::{self, Bug};
use crate::read::{Own, Protection, Reader, Visible};
use crate::record::{REMOVED, Record};
use crate::schedule;
use crate::sync::{Ordering, lock};
use crate::test_bed::{Bed, TABLE, all, bed, roomy};
use crate::transaction_table::SlotIndex;
use crate::version::{PRUNED, Version, VersionState, Written};
use crate::{BeginOptions, Stall, TcError, TcOptions, TransactionComponent};
use deuteron_contract::{Direction, Lsn, Timestamp, TransactionId};
use deuteron_epoch::Guard;
use deuteron_fuzz::Meter;
use deuteron_log::LogOptions;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

/// A version of a chain made by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Committed(u64),
    Aborted,
    /// Its writer has not stamped it.
    Pending,
    /// What is below has been dropped.
    Pruned,
}
use Is::{Aborted, Committed, Pending, Pruned};

/// Of nobody.
const SLOT: SlotIndex = SlotIndex(0);

/// A record in the table with these versions, the newest first. Committed ones have their records in the log at their timestamps.
fn record<'g>(bed: &Bed, key: &[u8], chain: &[Is], guard: &'g Guard<'_>) -> Linked<'g, Record> {
    let core = &bed.tc().core;
    let mut head = ptr::null_mut();
    for is in chain.iter().rev() {
        if *is == Pruned {
            head = PRUNED;
            continue;
        }
        let at = if let Committed(at) = *is { at } else { 0 };
        let version = Version::allocate_written(SLOT, Lsn(at), Written::Logged, 0);
        // SAFETY: just allocated.
        let new = unsafe { &*version };
        new.next.store(head, Ordering::Relaxed);
        core.account.add(new.bytes());
        match is {
            Committed(at) => new.stamp_committed(Timestamp(*at), Lsn(*at)),
            Aborted => new.stamp_aborted(),
            _ => {}
        }
        head = version;
    }
    let key = core.table.key(TABLE, key);
    let new = Record::allocate(key, Timestamp(0), 0);
    // SAFETY: just allocated.
    unsafe { (*new).head.store(head, Ordering::Relaxed) };
    core.table.insert(key, new, guard).unwrap_or_else(|_| panic!("there is one already"))
}

/// What is in a record's chain.
fn chain(record: &Record) -> Vec<Is> {
    let (mut found, mut current) = (Vec::new(), record.head.load(Ordering::Relaxed));
    while current != PRUNED {
        // SAFETY: the callers have a guard.
        let Some(version) = (unsafe { current.as_ref() }) else { return found };
        found.push(match version.state() {
            VersionState::Committed(at) => Committed(at.0),
            VersionState::Aborted => Aborted,
            VersionState::Pending(_) => Pending,
        });
        current = version.next.load(Ordering::Relaxed);
    }
    found.push(Pruned);
    found
}

/// How many versions a key has.
pub(crate) fn versions(bed: &Bed, key: &[u8]) -> usize {
    let (core, guard) = (&bed.tc().core, bed.epochs.pin());
    let record = core.table.find(core.table.key(TABLE, key), &guard).expect("a record");
    chain(&record).iter().filter(|is| **is != Pruned).count()
}

fn is_there(bed: &Bed, key: &[u8]) -> bool {
    let core = &bed.tc().core;
    core.table.find(core.table.key(TABLE, key), &bed.epochs.pin()).is_some()
}

/// A bed for each of many cases.
fn small() -> std::sync::Arc<Bed> {
    let options = TcOptions { memory_bytes: 1 << 20, ..TcOptions::default() };
    bed(options, &LogOptions::tiny_for_tests(), deuteron_proxy::Options::default())
}

/// Until there is nothing to do but what the test makes.
fn quiet() -> std::sync::Arc<Bed> {
    let bed = roomy();
    bed.settle();
    assert!(!bed.tc().collect_step());
    bed
}

/// What `work` has taken and not given back when it is done, in bytes. Done once before, for what a thread or a process keeps.
pub(crate) fn left_by(work: impl Fn()) -> isize {
    work();
    Meter::begin();
    work();
    Meter::held()
}

#[test]
fn a_component_that_is_gone_has_given_back_what_it_took() {
    let values: [&[u8]; 3] = [b"", b"short", &[7; 700]];
    let evict = |bed: &Bed, key: &[u8]| {
        let (core, guard) = (&bed.tc().core, bed.epochs.pin());
        let record = core.table.find(core.table.key(TABLE, key), &guard).expect("it was written");
        assert!(core.evict(&record, &guard));
    };
    let left = left_by(|| {
        let bed = roomy();
        for (key, value) in (1..).zip(values) {
            bed.put(&[key], value);
        }
        bed.settle();
        (1..4).for_each(|key| evict(&bed, &[key]));
        // Records from reads, with their bases and beneath new versions; chains, with an end that was dropped and without.
        (1..5).for_each(|key| _ = bed.get(&[key]));
        let old = bed.begin();
        for round in 0..3 {
            values.iter().for_each(|value| bed.put(&[round], value));
        }
        // In the order of the index, which a scan makes.
        assert_eq!(crate::test_bed::all(&mut bed.begin(), Direction::Forward).expect("no conflict").len(), 4);
        bed.put(b"queued", b"1");
        let mut aborted = bed.begin();
        aborted.put(TABLE, b"aborted", b"1").expect("no conflict");
        drop((aborted, old));
    });
    assert_eq!(left, 0);
}

#[test]
fn a_record_that_only_the_index_refers_to_is_given_back_in_the_end() {
    for ordered in [false, true] {
        let left = left_by(|| {
            let bed = roomy();
            let (core, guard) = (&bed.tc().core, bed.epochs.pin());
            let record = record(&bed, b"k", &[], &guard);
            core.index.note(record, 0, 0);
            if ordered {
                core.index.complete(&guard);
            }
            record.head.store(REMOVED, Ordering::SeqCst);
            core.table.remove_frozen(&record, &guard);
        });
        assert_eq!(left, 0, "ordered: {ordered}");
    }
}

#[test]
fn maintenance_drops_what_everybody_has_moved_on_from_and_what_was_aborted() {
    let cases: [(&[Is], u64, &[Is], u64); 18] = [
        // Below the newest version that all see nothing is kept; a version at the horizon is not seen by all.
        (&[Committed(9), Committed(7), Committed(5)], 8, &[Committed(9), Committed(7), Pruned], 1),
        (&[Committed(9), Committed(7), Committed(5)], 10, &[Committed(9), Pruned], 2),
        (&[Committed(9), Committed(7), Committed(5)], 9, &[Committed(9), Committed(7), Pruned], 1),
        (&[Committed(7), Committed(5)], 7, &[Committed(7), Committed(5)], 0),
        (&[Committed(7), Committed(5)], 6, &[Committed(7), Committed(5)], 0),
        // An end of either kind stays what it is.
        (&[Committed(7)], 8, &[Committed(7)], 0),
        (&[Committed(7), Pruned], 8, &[Committed(7), Pruned], 0),
        (&[Committed(7), Pruned], 7, &[Committed(7), Pruned], 0),
        (&[], 8, &[], 0),
        // Aborted versions go from anywhere above.
        (&[Aborted, Aborted, Committed(5)], 1, &[Committed(5)], 2),
        (&[Committed(7), Aborted, Committed(5)], 1, &[Committed(7), Committed(5)], 1),
        (&[Aborted, Pruned], 1, &[Pruned], 1),
        // Those that are not stamped stay (V2), and nothing with them below the newest version that all see.
        (&[Pending, Committed(7), Committed(5)], 9, &[Pending, Committed(7), Pruned], 1),
        (&[Committed(7), Pending, Committed(5)], 9, &[Committed(7), Pending, Pruned], 1),
        (&[Committed(7), Pending, Committed(5)], 7, &[Committed(7), Pending, Committed(5)], 0),
        (&[Committed(9), Committed(8), Pending, Committed(5)], 10, &[Committed(9), Pending, Pruned], 2),
        (
            &[Committed(9), Pending, Aborted, Committed(8), Pending, Committed(5), Pruned],
            10,
            &[Committed(9), Pending, Pending, Pruned],
            3,
        ),
        (&[Committed(9), Pending, Pending], 10, &[Committed(9), Pending, Pending], 0),
    ];
    for (before, horizon, after, dropped) in cases {
        let bed = small();
        // That of the writer of what is not stamped: aborted.
        bed.tc().core.transactions.allocate();
        let guard = bed.epochs.pin();
        let record = record(&bed, b"k", before, &guard);
        let worked = bed.tc().core.maintain(&record, Timestamp(horizon), &guard);
        assert_eq!(chain(&record), after, "{before:?} below {horizon}");
        assert_eq!(worked, dropped > 0, "{before:?} below {horizon}");
        assert_eq!(bed.tc().statistics().versions_dropped, dropped, "{before:?} below {horizon}");
    }
}

/// Whoever is too old for the version above would see it, and not what has gone from between.
#[test]
fn above_a_version_that_was_committed_and_is_not_stamped_yet_nothing_is_dropped() {
    let bed = small();
    let (core, guard) = (&bed.tc().core, bed.epochs.pin());
    let slot = core.transactions.slot(core.transactions.allocate());
    let begin = core.clock.tick();
    slot.status.begin(begin);
    assert!(slot.status.commit(begin, Timestamp(6), &core.transactions.lost));
    let versions = [Committed(9), Committed(8), Pending, Committed(5)];
    let record = record(&bed, b"k", &versions, &guard);
    assert!(!core.maintain(&record, Timestamp(10), &guard));
    assert_eq!(chain(&record), versions);
}

/// The horizon was forced past one that reads on while versions go: it sees the one it should, or that it is gone.
#[test]
fn who_is_too_old_steps_over_nothing_that_is_dropped_to_what_is_older() {
    let bed = small();
    let (core, guard) = (&bed.tc().core, bed.epochs.pin());
    core.transactions.allocate();
    let versions = [Committed(9), Committed(8), Pending, Committed(7), Pending, Committed(5)];
    let made = record(&bed, b"k", &versions, &guard);
    let (theirs, looks) = (Arc::clone(&bed), Arc::new(Mutex::new(Vec::new())));
    let looked = Arc::clone(&looks);
    schedule::set_hook(Some(Arc::new(move || {
        // Looking comes to points, too.
        let Ok(mut looks) = looked.try_lock() else { return };
        let (core, guard) = (&theirs.tc().core, theirs.epochs.pin());
        let record = core.table.find(core.table.key(TABLE, b"k"), &guard).expect("a record");
        for (at, newest) in [(5, 5), (6, 5), (7, 7), (8, 8)] {
            let (slot, own, protection) = (SlotIndex(1), Own::Visible, Protection::Published);
            let reader = Reader { at: Timestamp(at), slot, own, protection };
            let (visible, _) = core.visible(record.head.load(Ordering::SeqCst), reader, &guard);
            looks.push(match visible {
                Visible::Committed { at: found, .. } => {
                    assert_eq!(found, Timestamp(newest), "at {at}");
                    true
                }
                Visible::Pruned => false,
                _ => panic!("all are committed"),
            });
        }
    })));
    let dropped = core.maintain(&made, Timestamp(10), &guard);
    schedule::set_hook(None);
    assert!(dropped);
    assert_eq!(chain(&made), [Committed(9), Pending, Pending, Pruned]);
    let looks = lock(&looks);
    assert!(looks.contains(&true) && looks.contains(&false), "before and after");
}

/// Whether a writer comes behind whoever reads while the record is evicted, at each of the points at which that may be.
fn writers_come_behind_those_who_read_what_is_evicted() -> bool {
    let mut behind = Vec::new();
    for number in 0_u32.. {
        let bed = roomy();
        bed.put(b"k", b"before");
        bed.settle();
        let mut writer = bed.begin();
        // What has not come yet, and when it has read.
        let reading = Arc::new(Mutex::new((number, None)));
        let (theirs, read) = (Arc::clone(&bed), Arc::clone(&reading));
        schedule::set_hook(Some(Arc::new(move || {
            // Reading comes to points, too.
            let Ok(mut read) = read.try_lock() else { return };
            match *read {
                (0, None) => {
                    let mut reader = theirs.begin();
                    assert_eq!(reader.get(TABLE, b"k").unwrap().as_deref(), Some(&b"before"[..]));
                    read.1 = Some(reader.timestamp());
                }
                (points, _) => read.0 = points.saturating_sub(1),
            }
        })));
        let (core, guard) = (&bed.tc().core, bed.epochs.pin());
        let record = core.table.find(core.table.key(TABLE, b"k"), &guard).expect("a record");
        let evicted = core.evict(&record, &guard);
        schedule::set_hook(None);
        drop(guard);
        let Some(read_at) = lock(&reading).1 else { break };
        assert!(evicted);
        writer.put(TABLE, b"k", b"after").unwrap();
        behind.push(writer.commit().unwrap().timestamp > read_at);
    }
    assert!(behind.len() >= 3, "before it is frozen, then, and when it is unlinked");
    behind.into_iter().all(|is_behind| is_behind)
}

#[test]
fn who_reads_a_record_while_it_is_evicted_is_not_forgotten() {
    assert!(writers_come_behind_those_who_read_what_is_evicted());
    // R12, each with one of its rules left out.
    for bug in [Bug::NoFreeze, Bug::NoFloor] {
        planted::plant(Some(bug));
        assert!(!writers_come_behind_those_who_read_what_is_evicted(), "{bug:?}");
    }
    planted::plant(None);
}

#[test]
fn above_what_an_aborted_writer_has_written_that_does_nothing_a_chain_stays_short() {
    let bed = roomy();
    bed.put(b"k", b"before");
    let mut idle = bed.begin();
    idle.delete(TABLE, b"k").unwrap();
    assert_eq!(bed.tc().abort_writers_before(bed.log.tail_lsn()), 1);
    for round in 0..200u8 {
        bed.put(b"k", &[round]);
        // Past the version beneath the next one.
        bed.tc().force_horizon(Timestamp::MAX);
        assert!(versions(&bed, b"k") <= 4, "{round}");
    }
    drop(idle);
    assert_eq!((versions(&bed, b"k"), bed.get(b"k")), (1, Some(vec![199])));
}

/// When the versions of `k` were committed that are left, as numbers of `puts`, the newest first.
fn left_of(bed: &Bed, puts: &[Timestamp]) -> Vec<usize> {
    let (core, guard) = (&bed.tc().core, bed.epochs.pin());
    let record = core.table.find(core.table.key(TABLE, b"k"), &guard).expect("it was written");
    core.maintain(&record, core.horizon(), &guard);
    let number = |is| puts.iter().position(|at| Committed(at.0) == is);
    chain(&record).into_iter().filter_map(number).collect()
}

fn put_numbers(bed: &Bed, numbers: std::ops::Range<usize>, puts: &mut Vec<Timestamp>) {
    for number in numbers {
        let mut tx = bed.begin();
        tx.put(TABLE, b"k", number.to_string().as_bytes()).unwrap();
        puts.push(tx.commit().unwrap().timestamp);
    }
}

#[test]
fn of_what_lies_between_two_readers_only_the_newest_is_kept() {
    let (bed, mut puts) = (roomy(), Vec::new());
    put_numbers(&bed, 0..3, &mut puts);
    let declared = BeginOptions { read_only: true, ..BeginOptions::default() };
    let mut old = bed.begin_with(declared);
    put_numbers(&bed, 3..6, &mut puts);
    let mut middle = bed.begin();
    put_numbers(&bed, 6..9, &mut puts);
    assert_eq!(left_of(&bed, &puts), [8, 7, 6, 5, 4, 3, 2, 1], "nobody has looked who reads");
    bed.tc().core.gather_active();
    assert_eq!(left_of(&bed, &puts), [8, 5, 2]);
    // Writers do it as they go.
    put_numbers(&bed, 9..99, &mut puts);
    assert!(left_of(&bed, &puts).len() > 90, "who has begun since may see any of them");
    bed.tc().core.gather_active();
    put_numbers(&bed, 99..100, &mut puts);
    let guard = bed.epochs.pin();
    let core = &bed.tc().core;
    let record = core.table.find(core.table.key(TABLE, b"k"), &guard).expect("it was written");
    assert_eq!(chain(&record).iter().filter(|is| matches!(is, Committed(_))).count(), 4, "99, 98, 5 and 2");
    drop(guard);
    for (tx, number) in [(&mut old, "2"), (&mut middle, "5"), (&mut bed.begin(), "99")] {
        assert_eq!(tx.get(TABLE, b"k").unwrap().as_deref(), Some(number.as_bytes()));
    }
    drop(old);
    bed.tc().core.gather_active();
    assert_eq!(left_of(&bed, &puts), [99, 5]);
    middle.commit().unwrap();
    assert_eq!(left_of(&bed, &puts), [99]);
}

#[test]
fn what_may_be_read_in_the_past_is_kept_whole() {
    let options = TcOptions { retains: true, memory_bytes: 1 << 20, ..TcOptions::default() };
    let bed = bed(options, &LogOptions::tiny_for_tests(), deuteron_proxy::Options::default());
    let mut puts = Vec::new();
    put_numbers(&bed, 0..3, &mut puts);
    let old = bed.tc().begin_as_of(puts[0]).expect("all of it is kept");
    put_numbers(&bed, 3..9, &mut puts);
    bed.tc().retain_from(puts[6]);
    bed.tc().core.gather_active();
    assert_eq!(left_of(&bed, &puts), [8, 7, 6, 0], "from the bound on, and what is read before");
    drop(old);
}

#[test]
fn nobody_maintains_a_record_that_somebody_maintains_or_that_is_gone() {
    let bed = roomy();
    let core = &bed.tc().core;
    let guard = bed.epochs.pin();
    let busy = record(&bed, b"busy", &[Committed(9), Committed(5)], &guard);
    let other = busy.try_maintain();
    assert!(!core.maintain(&busy, Timestamp(10), &guard) && !core.evict(&busy, &guard));
    drop(other);
    assert!(core.maintain(&busy, Timestamp(10), &guard));
    let gone = record(&bed, b"gone", &[], &guard);
    gone.head.store(REMOVED, Ordering::SeqCst);
    assert!(!core.maintain(&gone, Timestamp(10), &guard) && !core.evict(&gone, &guard));
    assert_eq!(gone.head.load(Ordering::SeqCst), REMOVED);
}

#[test]
fn a_record_is_settled_once_its_newest_version_is_applied() {
    let bed = roomy();
    let core = &bed.tc().core;
    let guard = bed.epochs.pin();
    // Everything below 8 is applied.
    bed.tc().report_progress(Lsn(8), Lsn(8), Timestamp(8));
    let cases: [(&[Is], bool); 10] = [
        (&[], true),
        (&[Pruned], true),
        (&[Committed(7)], true),
        (&[Committed(8)], false),
        (&[Committed(7), Pending], true),
        (&[Committed(9), Committed(7)], false),
        (&[Aborted, Committed(7)], true),
        (&[Aborted, Pruned], true),
        (&[Pending, Committed(7)], false),
        (&[Aborted], true),
    ];
    for (number, (versions, settled)) in cases.into_iter().enumerate() {
        let record = record(&bed, &[number as u8], versions, &guard);
        assert_eq!(core.is_settled(&record), settled, "{versions:?}");
        // Only what is settled is evicted, and of that only what has no version that its writer holds on to.
        let evicted = core.evict(&record, &guard);
        assert_eq!(evicted, settled && !versions.contains(&Pending), "{versions:?}");
        assert_eq!(is_there(&bed, &[number as u8]), !evicted);
    }
    assert_eq!(bed.tc().statistics().evictions, 6);
    let gone = record(&bed, b"gone", &[], &guard);
    gone.head.store(REMOVED, Ordering::SeqCst);
    assert!(core.is_settled(&gone));
}

#[test]
fn a_base_is_settled_whatever_has_been_applied() {
    let bed = roomy();
    let core = &bed.tc().core;
    let guard = bed.epochs.pin();
    let record = record(&bed, b"k", &[], &guard);
    let base = Version::allocate_base(Timestamp(7), Some(b"value"), ptr::null_mut());
    record.head.store(base, Ordering::SeqCst);
    assert!(core.is_settled(&record));
    // A copy of a version whose commit record is known is one when that is applied.
    // SAFETY: in the chain, under the guard.
    unsafe { (*base).stamp_committed(Timestamp(7), Lsn(7)) };
    assert!(!core.is_settled(&record));
    bed.tc().report_progress(Lsn(8), Lsn(8), Timestamp(7));
    assert!(!core.is_settled(&record));
    bed.tc().report_progress(Lsn(8), Lsn(8), Timestamp(8));
    assert!(core.is_settled(&record));
    core.account.add(Version::base_bytes(Some(b"value")));
}

#[test]
fn what_the_index_refers_to_is_not_evicted() {
    let bed = roomy();
    let core = &bed.tc().core;
    let guard = bed.epochs.pin();
    let record = record(&bed, b"k", &[], &guard);
    assert!(record.set_queued());
    assert!(!core.evict(&record, &guard));
    assert!(!record.clear_queued());
    assert!(core.evict(&record, &guard));
}

#[test]
fn a_writer_prunes_beneath_itself_what_everybody_has_moved_on_from() {
    let cases: [(&[Is], &[Is]); 7] = [
        (&[Pending, Committed(1), Committed(0)], &[Pending, Committed(1), Pruned]),
        // The horizon is 2.
        (&[Pending, Committed(2), Committed(1)], &[Pending, Committed(2), Committed(1)]),
        (&[Pending, Committed(3), Committed(1)], &[Pending, Committed(3), Committed(1)]),
        (&[Pending, Committed(1), Pruned], &[Pending, Committed(1), Pruned]),
        (&[Pending, Aborted, Committed(3)], &[Pending, Committed(3)]),
        (&[Pending, Pending, Aborted], &[Pending, Pending, Aborted]),
        (&[Pending], &[Pending]),
    ];
    for (before, after) in cases {
        let bed = small();
        let core = &bed.tc().core;
        let mut tx = bed.begin();
        bed.begin().abort();
        bed.tc().force_horizon(Timestamp(2));
        assert_eq!(core.known_horizon(), Timestamp(2));
        let guard = bed.epochs.pin();
        let record = record(&bed, b"k", before, &guard);
        let new = record.head.load(Ordering::SeqCst);
        core.prune_below(&record, new, &mut tx.workspace.recycler, &guard);
        assert_eq!(chain(&record), after, "{before:?}");
        tx.abort();
    }
}

#[test]
fn a_hot_record_keeps_a_short_chain_without_a_collector() {
    let bed = roomy();
    for round in 0..10u8 {
        bed.put(b"k", &[round]);
        // Whoever looks for the oldest active transaction moves the horizon.
        bed.tc().horizon();
    }
    let core = &bed.tc().core;
    let guard = bed.epochs.pin();
    let record = core.table.find(core.table.key(TABLE, b"k"), &guard).unwrap();
    assert!(chain(&record).len() <= 3, "{:?}", chain(&record));
    assert!(bed.tc().statistics().versions_dropped >= 7);
}

#[test]
fn a_rollback_takes_its_versions_out_of_the_chains() {
    let bed = roomy();
    bed.put(b"k", b"1");
    let mut tx = bed.begin();
    tx.put(TABLE, b"k", b"2").unwrap();
    tx.put(TABLE, b"new", b"2").unwrap();
    tx.abort();
    let core = &bed.tc().core;
    let guard = bed.epochs.pin();
    for (key, left) in [(&b"k"[..], 1), (b"new", 0)] {
        let record = core.table.find(core.table.key(TABLE, key), &guard).unwrap();
        assert_eq!(chain(&record).len(), left);
    }
    assert_eq!(bed.tc().statistics().versions_dropped, 2);
}

#[test]
fn the_sweep_spares_once_what_was_used_and_evicts_only_when_memory_is_short() {
    let bed = quiet();
    let core = &bed.tc().core;
    let buckets = core.table.buckets();
    let sweep = || core.sweep(buckets);
    let make = |key: &[u8], used: bool| {
        let guard = bed.epochs.pin();
        let record = record(&bed, key, &[], &guard);
        if used {
            record.set_referenced();
        }
    };
    make(b"used", true);
    make(b"unused", false);
    assert!(!sweep() && is_there(&bed, b"used") && is_there(&bed, b"unused"), "there is room");
    make(b"used now", true);
    let budget = bed.tc().memory_budget() as usize;
    // Above the target and below the budget.
    core.account.add(budget / 64 * 61 - core.account.used() as usize);
    assert!(core.account.is_over_target() && !core.account.is_over_hard());
    assert!(sweep() && !is_there(&bed, b"unused"));
    assert!(is_there(&bed, b"used") && is_there(&bed, b"used now"), "no chance is taken where there is room");
    assert!(sweep() && !is_there(&bed, b"used") && !is_there(&bed, b"used now"), "spared once");
    assert!(!sweep());
    // Beyond the budget nothing is spared.
    make(b"used", true);
    core.account.add(budget / 4);
    assert!(core.account.is_over_hard());
    assert!(sweep() && !is_there(&bed, b"used"));
    core.account.subtract(budget * 7 / 8 + budget / 4);
}

#[test]
fn the_sweep_goes_on_where_the_last_one_ended_and_comes_round() {
    let bed = roomy();
    let core = &bed.tc().core;
    let buckets = core.table.buckets();
    let keys: Vec<[u8; 2]> = (0..300u16).map(u16::to_be_bytes).collect();
    {
        let guard = bed.epochs.pin();
        for key in &keys {
            record(&bed, key, &[Aborted], &guard);
        }
    }
    // Above the target and below the budget, whatever goes.
    let short = bed.tc().memory_budget() as usize / 64 * 61;
    core.account.add(short);
    let dropped = || bed.tc().statistics().versions_dropped;
    let (mut parts, mut seen) = (0, Vec::new());
    while dropped() < 300 {
        assert_eq!(core.sweep(buckets / 16), dropped() > seen.last().copied().unwrap_or_default());
        seen.push(dropped());
        parts += 1;
    }
    assert!(parts <= 16, "all buckets in one round");
    assert!(seen[0] < 100, "a part of them at a time");
    assert!(!core.sweep(buckets));
    core.account.subtract(short);
    // With room it goes no further than it must to see that.
    let hand = || core.clock_hand.load(Ordering::Relaxed);
    let before = hand();
    assert!(!core.sweep(buckets) && hand() - before <= 64);
}

/// A bed whose log is small, and gets room only by `Bed::step`.
fn stuck() -> std::sync::Arc<Bed> {
    let stalled = |_: &Bed| Err("nobody works".to_string());
    let options = TcOptions { memory_bytes: 1 << 20, clock_lease: 1 << 20, ..TcOptions::default() };
    let dc = std::sync::Arc::new(deuteron_contract::MemoryDc::new());
    let (log, proxy) = (LogOptions::tiny_for_tests(), deuteron_proxy::Options::tiny_for_tests());
    let bed = Bed::open(dc, options, &log, proxy, stalled).unwrap();
    bed.settle();
    bed
}

fn fill_log(tc: &TransactionComponent) {
    let abort = deuteron_log::Record::Abort { transaction: TransactionId(u64::MAX >> 8) };
    while tc.core.append(&abort).is_ok() {}
}

#[test]
fn aborts_that_found_no_room_in_the_log_are_told_later() {
    let bed = stuck();
    let tc = bed.tc();
    let untold = || lock(&tc.core.untold_aborts).len();
    let written = |key: &[u8]| {
        let mut tx = bed.begin();
        tx.delete(TABLE, key).unwrap();
        tx
    };
    written(b"a").abort();
    assert_eq!(untold(), 0, "there is room");
    let (first, second) = (written(b"b"), written(b"c"));
    fill_log(tc);
    first.abort();
    second.abort();
    assert_eq!(untold(), 2, "and an abort does not wait");
    while tc.collect_step() {}
    assert_eq!(untold(), 2, "and the collector says that it can do nothing about it");
    // What cannot wait for itself fails with what the host says.
    assert!(matches!(bed.begin().delete(TABLE, b"d"), Err(TcError::Stopped { .. })));
    assert_eq!(untold(), 2, "of a transaction that the log knows nothing of there is nothing to tell");
    let before = tc.statistics().stalls;
    while bed.duty(0) | bed.duty(1) | bed.duty(3) {}
    assert!(tc.collect_step());
    assert_eq!((untold(), tc.statistics().stalls), (0, before));
    bed.settle();
    assert!(!tc.collect_step());
}

#[test]
fn a_step_of_the_collector_says_whether_there_was_anything_to_do() {
    let bed = quiet();
    let tc = bed.tc();
    // Of a record that is posted.
    bed.put(b"k", b"1");
    assert!(!tc.collect_step(), "not posted yet");
    let settled = tc.statistics().settled;
    while bed.duty(0) | bed.duty(1) {}
    assert!(tc.collect_step());
    assert_eq!(tc.statistics().settled, settled + 1);
    assert!(!tc.collect_step());
    // Of memory that is short.
    let budget = tc.memory_budget() as usize;
    tc.core.account.add(budget * 7 / 8);
    let mut worked = 0;
    for _ in 0..2 * tc.core.table.buckets() / 1024 {
        worked += usize::from(tc.collect_step());
    }
    assert_eq!((worked, is_there(&bed, b"k")), (1, false));
    tc.core.account.subtract(budget * 7 / 8);
}

/// A bed with so many records that were written one by one and posted, and that nobody has let go of.
fn posted(count: u32) -> std::sync::Arc<Bed> {
    let bed = quiet();
    let settled = bed.tc().statistics().settled;
    (0..count).for_each(|number| bed.put(&number.to_be_bytes(), b"1"));
    while bed.duty(0) | bed.duty(1) {}
    assert_eq!(bed.tc().statistics().settled, settled);
    bed
}

#[test]
fn one_step_lets_go_of_all_that_has_settled_if_memory_is_short_and_of_a_few_if_not() {
    let bed = posted(3000);
    let tc = bed.tc();
    let before = tc.statistics().settled;
    assert!(tc.collect_step());
    assert_eq!(tc.statistics().settled, before + 256);
    let budget = tc.memory_budget() as usize;
    tc.core.account.add(budget * 7 / 8);
    assert!(tc.collect_step());
    assert_eq!(tc.statistics().settled, before + 3000);
    tc.core.account.subtract(budget * 7 / 8);
}

#[test]
fn operations_beyond_the_watermark_evict_what_was_posted_though_the_collector_does_not_come() {
    let bed = posted(3000);
    let tc = bed.tc();
    let more = tc.memory_budget() as usize + 1 - tc.core.account.used() as usize;
    tc.core.account.add(more);
    assert!(tc.core.account.is_over_hard() && !tc.core.account.is_over_limit());
    let slot = tc.core.transactions.slot(tc.core.transactions.allocate());
    slot.status.begin(tc.core.clock.tick());
    // Each lets go of some, and sweeps as many buckets: twice round. What is evicted is taken by others at once.
    let operations = 2 * tc.core.table.buckets() / 64;
    for _ in 0..operations {
        tc.core.account.add(1 << 10);
        tc.core.make_room(slot, || Ok(())).expect("what there is can be evicted");
    }
    assert!(tc.statistics().evictions > 2000, "{}", tc.statistics().evictions);
    tc.core.account.subtract(more + (operations << 10));
}

#[test]
fn what_lies_in_the_log_before_its_new_start_is_aborted_and_nothing_else() {
    let bed = roomy();
    let tc = bed.tc();
    assert_eq!(tc.oldest_writer(), None);
    let mut early = bed.begin();
    early.delete(TABLE, b"a").unwrap();
    let first = tc.oldest_writer().expect("it has written");
    let mut late = bed.begin();
    late.delete(TABLE, b"b").unwrap();
    let idle = bed.begin();
    assert_eq!(tc.oldest_writer(), Some(first), "the one that writes for the longest");
    assert_eq!(tc.abort_writers_before(first), 0, "it lies at the new start");
    assert_eq!(tc.abort_writers_before(Lsn(first.0 + 1)), 1);
    assert_eq!(tc.abort_writers_before(Lsn(first.0 + 1)), 0, "once");
    early.commit().unwrap_err();
    assert!(tc.oldest_writer().unwrap() > first);
    late.commit().unwrap();
    assert_eq!(tc.oldest_writer(), None);
    drop(idle);
}

#[test]
fn a_stall_is_told_to_the_host_and_counted() {
    let bed = stuck();
    let before = bed.tc().statistics().stalls;
    let error = bed.tc().core.stall(Stall::Memory).unwrap_err();
    assert!(matches!(error, TcError::Stopped { reason } if reason == "nobody works"));
    assert_eq!(bed.tc().statistics().stalls, before + 1);
}

#[test]
fn a_sweep_asks_for_what_it_comes_to_and_writes_to_no_record_that_stays_as_it_is() {
    let bed = quiet();
    let core = &bed.tc().core;
    let guard = bed.epochs.pin();
    core.find_oldest_active();
    // One that everybody sees, with nothing beneath it and with what was dropped; and some that are needed yet.
    let chains: [&[Is]; 4] =
        [&[Committed(1)], &[Committed(1), Pruned], &[Pending, Committed(1)], &[Pending, Pending]];
    let records: Vec<_> = (0..).zip(chains).map(|(key, chain)| record(&bed, &[key], chain, &guard)).collect();
    let addresses = |record: &Record| {
        let (begin, head) = (ptr::from_ref(record).addr(), record.head.load(Ordering::Relaxed));
        // SAFETY: under the guard; the head of none of them is a mark.
        let second = unsafe { &*head }.next.load(Ordering::Relaxed);
        (
            begin..begin + record.bytes(),
            head.addr(),
            (!second.is_null() && second != PRUNED).then(|| second.addr()),
        )
    };
    let mut asked_for = Vec::new();
    // With room a sweep ends after so many.
    let sweep_all = || (0..core.table.buckets()).step_by(64).for_each(|_| _ = core.sweep(64));
    let ((), written) = stored(|| asked_for = asked(sweep_all));
    for record in &records {
        let (place, head, second) = addresses(record);
        assert!(asked_for.contains(&place.start) && asked_for.contains(&head));
        assert!(second.is_none_or(|second| asked_for.contains(&second)));
        assert!(!written.iter().any(|address| place.contains(address)), "{:?}", chain(record));
    }
    assert_eq!(records.iter().filter(|record| addresses(record).2.is_some()).count(), 2);
}

#[test]
fn what_can_be_dropped_is_seen_before_anybody_changes_the_record() {
    let bed = small();
    let core = &bed.tc().core;
    let guard = bed.epochs.pin();
    core.transactions.allocate();
    let horizon = Timestamp(3);
    let kinds = [Committed(5), Committed(1), Aborted, Pending];
    let mut chains: Vec<Vec<Is>> = vec![Vec::new()];
    for _ in 0..4 {
        let longer = chains.iter().flat_map(|chain| kinds.map(|is| [&chain[..], &[is]].concat()));
        chains.extend(longer.collect::<Vec<_>>());
        chains.sort_by_key(|chain| format!("{chain:?}"));
        chains.dedup();
    }
    let cut = chains.iter().map(|chain| [&chain[..], &[Pruned]].concat()).collect::<Vec<_>>();
    let mut seen = 0;
    for (number, versions) in (0u32..).zip(chains.iter().chain(&cut)) {
        let made = record(&bed, &number.to_be_bytes(), versions, &guard);
        let has_garbage = bed.tc().core.has_garbage(&made, horizon, &guard);
        let dropped = core.maintain(&made, horizon, &guard);
        // What a writer has not stamped yet is left.
        let may_wait = versions.contains(&Pending);
        assert!(has_garbage == dropped || has_garbage && may_wait, "{versions:?}");
        assert!(may_wait || !bed.tc().core.has_garbage(&made, horizon, &guard), "{versions:?}");
        seen += u32::from(dropped);
    }
    assert!(seen > 200, "{seen}");
}

/// An evictor has found that a record is not in the index, and stops. Then the record is written, a scan reads what is stored, the write is posted, and the evictor goes on.
#[test]
fn a_scan_sees_what_was_evicted_though_it_came_into_the_index_just_then() {
    let bed = roomy();
    bed.put(b"k", b"old");
    bed.settle();
    let ((stopped, stops), (release, released)) = (channel::<()>(), channel::<()>());
    let theirs = Arc::clone(&bed);
    let evictor = std::thread::spawn(move || {
        let (core, guard) = (&theirs.tc().core, theirs.epochs.pin());
        let record = core.table.find(core.table.key(TABLE, b"k"), &guard).expect("in memory still");
        let released = Mutex::new(Some(released));
        schedule::set_hook(Some(Arc::new(move || {
            // At the first point only, behind the look whether the record is queued.
            if let Some(released) = lock(&released).take() {
                stopped.send(()).unwrap();
                released.recv().unwrap();
            }
        })));
        let evicted = core.evict(&record, &guard);
        schedule::set_hook(None);
        evicted
    });
    stops.recv().unwrap();
    bed.put(b"k", b"new");
    while bed.duty(0) {}
    let mut scanner = bed.begin();
    let (points, meanwhile) = (AtomicUsize::new(0), Mutex::new(Some((release, evictor))));
    let (worked, evicted) = (Arc::clone(&bed), Arc::new(AtomicBool::new(false)));
    let result = Arc::clone(&evicted);
    schedule::set_hook(Some(Arc::new(move || {
        // Behind the look at what is stored, before the walk.
        if points.fetch_add(1, Ordering::SeqCst) == 2 {
            let (release, evictor) = lock(&meanwhile).take().expect("once");
            while worked.duty(1) {}
            release.send(()).unwrap();
            result.store(evictor.join().unwrap(), Ordering::SeqCst);
        }
    })));
    let found = all(&mut scanner, Direction::Forward);
    schedule::set_hook(None);
    assert_eq!(found.unwrap(), [(b"k".to_vec(), b"new".to_vec())]);
    assert!(evicted.load(Ordering::SeqCst), "while the scan was at it");
}
