//! Every operation of the device fails in every way: the log says so, does not try again, and what was said to be
//! durable is there afterwards, whether the machine goes on or stops.
#![cfg(not(loom))]

mod harness;
mod lives;

use deuteron_contract::Lsn;
use deuteron_device::{CrashPolicy, Directory, FaultKind, FaultPlan, Operation, SimulatedDisk};
use deuteron_epoch::Epochs;
use deuteron_log::{AppendError, LogError, LogOptions};
use harness::{Owned, Pair, check_recovery, upsert};
use lives::{End, Known, live};
use std::sync::Arc;
use std::task::{Poll, Waker};

#[test]
fn every_fault_is_reported_and_survived() {
    let kinds = [FaultKind::Refuse, FaultKind::Full, FaultKind::Partial, FaultKind::Lose];
    let mut fired = 0;
    for (kind, operation) in kinds.iter().flat_map(|kind| Operation::ALL.map(|operation| (*kind, operation)))
    {
        for nth in 0.. {
            let disk = SimulatedDisk::new(nth);
            let mut known = Known::default();
            // A second life, so that recovery fails too.
            if nth % 2 == 1 {
                live(disk.directory(), &mut known);
            }
            disk.set_faults(FaultPlan::new().fail(operation, nth / 2, kind));
            let end = live(disk.directory(), &mut known);
            if disk.faults_fired() == 0 {
                assert!(matches!(end, End::Old));
                break;
            }
            fired += 1;
            match end {
                End::Failed(error, pair) => {
                    assert!(!matches!(error, LogError::Poisoned(_)), "the first error is the device's own");
                    if let Some(pair) = pair {
                        stays_stopped(*pair, &disk, operation);
                    }
                }
                // Noticed with half a segment to go, or it did not matter: a spare that could not be removed.
                End::DiskFull(pair) => assert!(pair.log.statistics().is_space_low),
                End::Old => {
                    assert!(kind == FaultKind::Full || operation == Operation::Remove, "{kind:?} {operation}")
                }
            }
            for policy in
                [None, Some(CrashPolicy::LoseAll), Some(CrashPolicy::KeepAll), Some(CrashPolicy::Random)]
            {
                let disk = disk.fork(nth);
                let mut known = known.clone();
                let directory = policy.map_or_else(|| disk.directory(), |policy| disk.crash(policy));
                let end = live(directory, &mut known);
                assert!(matches!(end, End::Old), "{kind:?} {operation} {nth} {policy:?}");
                // What was appended after the failure must not depend on what the failure lost.
                let end = live(disk.crash(CrashPolicy::LoseAll), &mut known);
                assert!(matches!(end, End::Old), "{kind:?} {operation} {nth} {policy:?}, later");
            }
        }
    }
    assert!(fired > 300, "{fired} faults");
}

/// Opening writes the last buffer again: what it has read for that is not what it wrote once, if it has rotted since.
#[test]
fn a_bit_that_rots_while_the_log_is_opened_is_told_or_does_not_matter() {
    let stopped = SimulatedDisk::new(1);
    let mut known = Known::default();
    assert!(matches!(live(stopped.directory(), &mut known), End::Old));
    stopped.crash(CrashPolicy::LoseAll);
    let (mut told, mut harmless) = (0, 0);
    for (nth, seed) in (0..).flat_map(|nth| (0..16).map(move |seed| (nth, seed))) {
        let disk = stopped.fork(seed);
        disk.set_faults(FaultPlan::new().fail(Operation::Read, nth, FaultKind::Rot));
        let needed = known.from..known.acknowledged;
        let opened =
            harness::open(Arc::new(disk.directory()), &LogOptions::tiny_for_tests(), Epochs::new(), needed);
        if disk.faults_fired() == 0 {
            break;
        }
        disk.set_faults(FaultPlan::new());
        match opened {
            Ok((_log, recovery)) => {
                check_recovery(&recovery, &known.model, known.from);
                harmless += 1;
            }
            Err(LogError::Corrupt { .. }) => told += 1,
            Err(other) => panic!("read {nth}: {other}"),
        }
    }
    assert!(told > 10 && harmless > 0, "{told} told, {harmless} harmless");
}

/// F4, for failures that concern the tail of the log.
fn stays_stopped(pair: Pair, disk: &SimulatedDisk, operation: Operation) {
    let is_harmless = matches!(operation, Operation::Rename | Operation::Remove);
    if is_harmless && pair.log.append(&Owned::Abort(1).record()).is_ok() {
        // Truncating failed.
        return;
    }
    let before = disk.operations();
    assert!(matches!(pair.log.append(&Owned::Abort(1).record()), Err(AppendError::Poisoned(_))));
    assert!(matches!(pair.log.reserve_commit().err(), Some(AppendError::Poisoned(_))));
    for _ in 0..3 {
        assert!(matches!(pair.log.flush_step(), Err(LogError::Poisoned(_))));
    }
    assert!(matches!(pair.log.truncate(Lsn(u64::MAX)), Err(LogError::Poisoned(_))));
    let stable = pair.log.stable_lsn();
    assert!(matches!(pair.log.wait_stable(stable), Err(LogError::Poisoned(_))));
    if stable.0 > 0 {
        pair.log.wait_stable(Lsn(stable.0 - 1)).unwrap();
    }
    assert_eq!(disk.operations(), before, "nothing is tried again");
}

#[test]
fn full_disk_is_noticed_with_room_to_commit() {
    let disk = SimulatedDisk::new(1);
    let mut pair =
        Pair::create(std::sync::Arc::new(disk.directory()), deuteron_log::LogOptions::tiny_for_tests())
            .unwrap();
    disk.set_capacity(Some(100_000));
    let mut number = 0;
    let refused = loop {
        number += 1;
        match pair.append(upsert(number, 1000)) {
            Ok(_) => {}
            Err(error) => break error,
        }
        pair.flush_all().unwrap();
        while pair.proxy_step(true) {}
    };
    assert_eq!(refused, AppendError::DiskFull);
    assert!(refused.is_full());
    assert!(pair.log.stable_lsn() < Lsn(50_000), "half of the segment is left");
    // What is under way can end.
    let lsn = pair.commit(number).unwrap();
    pair.flush_all().unwrap();
    pair.log.wait_stable(lsn).unwrap();
    // With space it goes on by itself, though it is a write that finds it, as there is no idle step.
    let last_part = LogOptions::tiny_for_tests().segment_bytes / 16 * 15;
    while pair.log.stable_lsn().0 < last_part {
        let lsn = pair.commit(number).unwrap();
        pair.log.request_flush(Lsn(lsn.0 + 1));
        while pair.log.stable_lsn() <= lsn {
            pair.flush_step().unwrap();
        }
        while pair.proxy_step(true) {}
    }
    assert_eq!(pair.append(upsert(number, 1000)).unwrap_err(), AppendError::DiskFull);
    disk.set_capacity(None);
    pair.commit(number).unwrap();
    pair.flush_all().unwrap();
    pair.append(upsert(number, 1000)).unwrap();

    // Whoever insists on commits until the last byte is told why it ends.
    disk.set_capacity(Some(disk.used_bytes()));
    let error = loop {
        let result = pair.commit(number).map(|_| ());
        while pair.proxy_step(true) {}
        if let Err(error) = pair.flush_all() {
            break error;
        }
        result.unwrap();
    };
    assert!(error.is_full(), "{error}");
    assert!(pair.commit(number).unwrap_err().is_full());
    let acknowledged = pair.acknowledged;
    let Pair { log, options, model, .. } = pair;
    drop(log);
    // It opens on the full disk, and what an opening writes has room; with space it goes on by itself.
    let mut pair = Pair::open(Arc::new(disk.directory()), options, model, acknowledged, Lsn(0)).unwrap();
    pair.commit(number + 1).unwrap();
    pair.flush_all().unwrap();
    assert_eq!(pair.append(upsert(number, 1000)).unwrap_err(), AppendError::DiskFull);
    disk.set_capacity(None);
    pair.flush_step().unwrap();
    pair.append(upsert(number, 1000)).unwrap();
}

/// The last segment is full to its end, and the next, which had been prepared, is not to be trusted after an opening.
#[test]
fn a_log_whose_last_segment_is_full_opens_on_a_full_disk() {
    let disk = SimulatedDisk::new(1);
    let options = LogOptions::tiny_for_tests();
    let mut pair = Pair::create(Arc::new(disk.directory()), options.clone()).unwrap();
    let mut number = 0;
    while !pair.log.stable_lsn().0.is_multiple_of(options.segment_bytes) || number == 0 {
        number += 1;
        pair.append(upsert(number, 10)).unwrap();
        pair.flush_all().unwrap();
        while pair.proxy_step(true) {}
    }
    for is_there in [true, false] {
        let tail = pair.log.stable_lsn();
        let next = format!("log-{:016x}.seg", tail.0);
        let Pair { log, model, acknowledged, .. } = pair;
        drop(log);
        if !is_there {
            disk.directory().remove(&next).unwrap();
        }
        disk.set_capacity(Some(disk.used_bytes()));
        let opened =
            Pair::open(Arc::new(disk.directory()), options.clone(), model.clone(), acknowledged, Lsn(0));
        if !is_there {
            // Somebody else has taken its room.
            let Err(error) = opened else { panic!("opened without room") };
            assert!(error.is_full(), "{error}");
            disk.set_capacity(None);
            Pair::open(Arc::new(disk.directory()), options, model, acknowledged, Lsn(0)).unwrap();
            return;
        }
        pair = opened.unwrap();
        assert_eq!(pair.log.stable_lsn(), tail);
    }
}

#[test]
fn waiters_are_told_of_the_failure() {
    let disk = SimulatedDisk::new(1);
    let mut pair =
        Pair::create(std::sync::Arc::new(disk.directory()), deuteron_log::LogOptions::tiny_for_tests())
            .unwrap();
    let lsn = pair.commit(1).unwrap();
    assert!(pair.log.poll_stable(lsn, Waker::noop()).is_pending());
    disk.set_faults(FaultPlan::new().fail(Operation::Write, 0, FaultKind::Refuse));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pair.log.wait_stable(lsn));
        let error = loop {
            match pair.log.flush_step() {
                Ok(_) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LogError::Device { .. }));
        let told = waiter.join().unwrap().unwrap_err();
        assert!(told.to_string().contains("failed to write a buffer"), "{told}");
    });
    assert!(matches!(pair.log.poll_stable(lsn, Waker::noop()), Poll::Ready(Err(LogError::Poisoned(_)))));
}
