//! The machine stops at every operation that changes the disk; after a restart, everything up to the last
//! completed redo scan start point is there, the trees are sound, and a replay of the log restores the rest.

mod support;

use deuteron_contract::conformance::SplitMix;
use deuteron_contract::{DataComponent, DcError, Lsn, Operation, TableId, Timestamp};
use deuteron_dc::BwTreeDc;
use deuteron_device::simulated::{Sweep, effort};
use deuteron_device::{CrashPolicy, FaultPlan, SimulatedDisk};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// An operation of the log; its place there is its LSN, and its timestamp.
struct Logged {
    table: u32,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
}

fn log(seed: u64, count: usize) -> Vec<Logged> {
    let mut random = SplitMix::new(seed);
    (0..count)
        .map(|_| Logged {
            table: random.below(2) as u32,
            key: format!("key {:03}", random.below(120)).into_bytes(),
            value: (random.below(5) > 0).then(|| vec![random.next() as u8; random.index(90)]),
        })
        .collect()
}

/// Keys that descend, with a few changes of what is there, so that the first page is split again and again.
fn descending(seed: u64, count: usize) -> Vec<Logged> {
    let mut random = SplitMix::new(seed);
    (0..count)
        .map(|at| {
            let key = count - if random.below(8) == 0 { random.index(at + 1) } else { at };
            Logged {
                table: 0,
                key: format!("key {key:03}").into_bytes(),
                value: (random.below(20) > 0).then(|| vec![random.next() as u8; random.index(90)]),
            }
        })
        .collect()
}

fn operation(log: &[Logged], lsn: usize) -> Operation<'_> {
    let Logged { table, key, value } = &log[lsn];
    Operation {
        table: TableId(*table),
        key,
        value: value.as_deref(),
        timestamp: Timestamp(lsn as u64),
        lsn: Lsn(lsn as u64),
    }
}

fn open(disk: &SimulatedDisk) -> Result<Arc<BwTreeDc>, DcError> {
    support::open(Arc::new(disk.directory()), support::tiny(16 << 10))
}

/// Of seven operations each: how many are applied before some pages are flushed, and how many before a checkpoint.
#[derive(Clone, Copy)]
struct Rhythm {
    flush: usize,
    checkpoint: usize,
}

const USUAL: Rhythm = Rhythm { flush: 3, checkpoint: 8 };

/// Applies the log from `from` on, with maintenance and checkpoints between; notes how far checkpoints have got.
fn work(dc: &BwTreeDc, log: &[Logged], from: usize, rhythm: Rhythm, safe: &mut usize) -> Result<(), DcError> {
    dc.end_of_stable_log(Lsn(log.len() as u64));
    for (step, start) in (from..log.len()).step_by(7).enumerate() {
        let end = log.len().min(start + 7);
        let operations: Vec<_> = (start..end).map(|lsn| operation(log, lsn)).collect();
        dc.apply(&operations)?;
        if step % rhythm.flush == 0 {
            dc.maintain_step()?;
            dc.llama().flush_step().map_err(|_| DcError::Poisoned { reason: "flush".into() })?;
            dc.llama().evict_step(2 << 10);
        }
        if step % rhythm.checkpoint == rhythm.checkpoint - 1 {
            dc.redo_scan_start_point(Lsn(end as u64))?;
            *safe = end;
        }
    }
    Ok(())
}

/// Every key must be as of some moment not before `safe`.
fn verify(dc: &BwTreeDc, log: &[Logged], safe: usize) {
    let redo = dc.recovered_redo_scan_start_point().0 as usize;
    assert!(redo >= safe, "redo starts at {redo}, checkpoints were completed up to {safe}");
    dc.check().expect("sound trees");
    let mut newest: BTreeMap<_, usize> = BTreeMap::new();
    for (lsn, logged) in log[..redo].iter().enumerate() {
        newest.insert((logged.table, &logged.key), lsn);
    }
    for ((table, key), lsn) in newest {
        match dc.get(TableId(table), key).expect("a sound disk") {
            Some(found) => {
                let found_lsn = found.timestamp.0 as usize;
                assert!(found_lsn >= lsn, "{key:?} is of {found_lsn}, older than {lsn}");
                assert_eq!((log[found_lsn].table, &log[found_lsn].key), (table, key));
                assert_eq!(found.value, log[found_lsn].value);
            }
            // Forgotten, or its tombstone.
            None => assert!(log[lsn].value.is_none(), "{key:?} of {lsn} is missing"),
        }
    }
}

fn sweep(seed: u64, stride: u64, log: &[Logged], rhythm: Rhythm, count: &mut Sweep) {
    let work = |dc: &BwTreeDc, from, safe: &mut usize| work(dc, log, from, rhythm, safe);
    let disk = SimulatedDisk::new(seed);
    work(&open(&disk).unwrap(), 0, &mut 0).unwrap();
    let operations = disk.operations();
    assert!(operations > 100, "only {operations} operations to crash at");
    let mut reached = 0;
    for crash_at in (seed % stride..operations).step_by(stride as usize) {
        let disk = SimulatedDisk::new(seed + crash_at);
        disk.set_faults(FaultPlan::new().crash_after(crash_at));
        let mut safe = 0;
        if let Ok(dc) = open(&disk) {
            let stopped = work(&dc, 0, &mut safe).is_err();
            assert!(stopped || !disk.is_stopped());
        }
        reached = reached.max(safe);
        count.point();
        disk.crash(CrashPolicy::of(crash_at / stride));
        // It stops again while it recovers, and redoes; then it recovers for good.
        disk.set_faults(FaultPlan::new().crash_after(disk.operations() + crash_at % 31));
        if let Ok(dc) = open(&disk) {
            let redo = dc.recovered_redo_scan_start_point().0 as usize;
            let stopped = work(&dc, redo, &mut safe).is_err();
            assert!(stopped || !disk.is_stopped());
        }
        disk.set_faults(FaultPlan::new());
        disk.crash(CrashPolicy::of(crash_at / stride / 3));
        let dc = open(&disk).unwrap_or_else(|error| panic!("after a crash at {crash_at}: {error:?}"));
        verify(&dc, log, safe);
        // Redo, then everything is as if there had been no crash.
        let redo = dc.recovered_redo_scan_start_point().0 as usize;
        work(&dc, redo, &mut safe).unwrap();
        dc.redo_scan_start_point(Lsn(log.len() as u64)).unwrap();
        drop(dc);
        disk.crash(CrashPolicy::LoseAll);
        verify(&open(&disk).unwrap(), log, log.len());
        count.recovered(crash_at, Ok(()));
    }
    assert!(reached > 300);
}

#[test]
fn a_crash_at_any_operation_loses_nothing_below_the_redo_scan_start_point() {
    let mut count = Sweep::default();
    let stride = if effort() > 1 { 1 } else { 5 };
    for seed in 1..=4 * effort() {
        sweep(seed, stride, &log(seed, 500), USUAL, &mut count);
    }
    count.report("trees, checkpoints, recovery");
}

/// Between two flushes the first page is split off more pages than it lists itself.
#[test]
fn a_crash_at_any_operation_loses_nothing_where_keys_descend() {
    let mut count = Sweep::default();
    let stride = if effort() > 1 { 1 } else { 3 };
    for seed in 1..=4 * effort() {
        sweep(seed, stride, &descending(seed, 500), Rhythm { flush: 20, checkpoint: 24 }, &mut count);
    }
    count.report("trees, keys that descend");
}

#[test]
fn a_failed_write_poisons_and_a_restart_recovers() {
    use deuteron_device::{FaultKind, Operation as DeviceOperation};
    let log = log(9, 500);
    for nth in (1..60).step_by(4) {
        for kind in [DeviceOperation::Write, DeviceOperation::Sync] {
            let disk = SimulatedDisk::new(nth);
            let dc = open(&disk).unwrap();
            disk.set_faults(FaultPlan::new().fail(kind, nth, FaultKind::Partial));
            let asked: Arc<Mutex<Vec<DeviceOperation>>> = Arc::default();
            let noted = Arc::clone(&asked);
            disk.watch(move |moment| noted.lock().unwrap().push(moment.operation));
            let mut safe = 0;
            let outcome = work(&dc, &log, 0, USUAL, &mut safe);
            if disk.faults_fired() == 0 {
                continue;
            }
            let asked = asked.lock().unwrap().clone();
            let failed = (0..asked.len()).filter(|&at| asked[at] == kind).nth(nth as usize).unwrap();
            if asked[failed - 1] == DeviceOperation::Shorten {
                // Nobody relies on a file that is being removed.
                assert!(outcome.is_ok());
                drop(dc);
                disk.crash(CrashPolicy::Random);
                verify(&open(&disk).unwrap(), &log, safe);
                continue;
            }
            assert!(outcome.is_err(), "{kind:?} {nth} failed unnoticed");
            // It stays so, and what is in memory can still be read.
            assert!(dc.redo_scan_start_point(Lsn(500)).is_err());
            drop(dc);
            disk.crash(CrashPolicy::Random);
            verify(&open(&disk).unwrap(), &log, safe);
        }
    }
}

#[test]
fn rotten_bytes_are_reported_and_never_returned() {
    let log = log(5, 500);
    let disk = SimulatedDisk::new(5);
    let dc = open(&disk).unwrap();
    work(&dc, &log, 0, USUAL, &mut 0).unwrap();
    dc.redo_scan_start_point(Lsn(500)).unwrap();
    drop(dc);
    let mut detected = 0;
    for attempt in 0..150u64 {
        let copy = disk.fork(attempt);
        let directory = copy.directory();
        let names = deuteron_device::Directory::list(&directory).unwrap();
        let mut random = SplitMix::new(attempt);
        let name = &names[random.index(names.len())];
        let file = deuteron_device::Directory::open(&directory, name, deuteron_device::OpenMode::Read, false)
            .unwrap();
        let length = deuteron_device::File::length(&*file).unwrap();
        copy.flip_bits(name, random.below(length.max(1)), 1 << random.below(8)).unwrap();
        let Ok(dc) = open(&copy) else {
            detected += 1;
            continue;
        };
        // Either found by the check, or in bytes that do not matter: then nothing is lost.
        match dc.check() {
            Err(_) => detected += 1,
            Ok(_) => verify(&dc, &log, 0),
        }
    }
    assert!(detected > 10, "only {detected} of 150 were noticed");
}
