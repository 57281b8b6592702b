//! The machine stops at every operation that changes the disk. After a restart each record is as one of its writes since the
//! last completed persist left it, or that persist; nothing is older, nothing is made up, and later writes win.

use deuteron_store::device::simulated::{Random, Sweep, effort};
use deuteron_store::device::{CrashPolicy, FaultPlan, SimulatedDisk};
use deuteron_store::{Batch, Error, Options, Store, Table};
use std::collections::BTreeMap;
use std::sync::Arc;

const KEYS: u64 = 60;

/// What a key may hold after a crash: its value as of the last persist, and what was written to it since.
#[derive(Default)]
struct Allowed(BTreeMap<u64, Vec<Option<Vec<u8>>>>);

impl Allowed {
    fn written(&mut self, key: u64, value: Option<Vec<u8>>) {
        self.0.entry(key).or_insert_with(|| vec![None]).push(value);
    }

    fn persisted(&mut self) {
        for values in self.0.values_mut() {
            values.drain(..values.len() - 1);
        }
    }

    fn verify(&mut self, table: &Table) {
        for (&key, values) in &mut self.0 {
            let found = table.get(&name(key)).expect("a sound disk");
            assert!(values.contains(&found), "key {key} holds {found:?}, allowed are {values:?}");
            *values = vec![found];
        }
    }
}

fn name(key: u64) -> Vec<u8> {
    format!("key {key:03}").into_bytes()
}

fn mixed(number: u64) -> u64 {
    Random::new(number).next() >> 20
}

fn open(disk: &SimulatedDisk) -> Result<(Store, Table), Error> {
    let store = Options::tiny_for_tests().open_in(Arc::new(disk.directory()))?;
    let table = store.table("t")?;
    Ok((store, table))
}

/// Writes, persists now and then, and notes what a crash may leave.
fn work(disk: &SimulatedDisk, rounds: std::ops::Range<u64>, allowed: &mut Allowed) -> Result<(), Error> {
    let (store, table) = open(disk)?;
    for round in rounds {
        let mut batch = Batch::new();
        for write in 0..5 {
            let random = mixed(round * 5 + write);
            let key = random % KEYS;
            // One in ten is a large one, in chunks.
            let length =
                if random.is_multiple_of(10) { 1100 + random / 512 % 3000 } else { random / 512 % 80 };
            let value = ((random / KEYS) & 3 > 0)
                .then(|| format!("{round} {}", "x".repeat(length as usize)).into_bytes());
            // Before it is written: an error may come after a part has been.
            allowed.written(key, value.clone());
            match &value {
                Some(value) => batch.upsert(&table, &name(key), value),
                None => batch.delete(&table, &name(key)),
            };
        }
        store.apply(&batch)?;
        store.step()?;
        if round % 7 == 6 {
            store.persist()?;
            allowed.persisted();
        }
    }
    store.close()?;
    allowed.persisted();
    Ok(())
}

#[test]
fn a_crash_anywhere_keeps_what_was_persisted() {
    let disk = SimulatedDisk::new(1);
    work(&disk, 0..60, &mut Allowed::default()).expect("works");
    let operations = disk.operations();
    let mut count = Sweep::default();
    for (round, crash_at) in (0..effort()).flat_map(|round| (0..operations).map(move |at| (round, at))) {
        for policy in CrashPolicy::ALL {
            count.point();
            let disk = SimulatedDisk::new(round * operations + crash_at);
            disk.set_faults(FaultPlan::new().crash_after(crash_at));
            let mut allowed = Allowed::default();
            let ended = work(&disk, 0..60, &mut allowed);
            assert!(ended.is_err() || !disk.is_stopped());
            disk.crash(policy);
            let (store, table) = open(&disk).unwrap_or_else(|error| panic!("after {crash_at}: {error:?}"));
            allowed.verify(&table);
            store.check().unwrap_or_else(|error| panic!("after {crash_at}: {error:?}"));
            drop((store, table));
            // Life goes on: what is written now is newer than all that was there.
            work(&disk, 60..75, &mut allowed).expect("works");
            disk.crash(CrashPolicy::LoseAll);
            allowed.verify(&open(&disk).expect("opens").1);
            count.recovered(crash_at, Ok(()));
        }
    }
    count.report("the store");
    assert!(count.points() > 200);
}

#[test]
fn two_crashes_in_a_row_do_not_bring_an_old_value_back() {
    // The numbers of writes that no checkpoint has seen must not be given out again.
    let seeds = 40 * effort();
    for seed in 0..seeds {
        let disk = SimulatedDisk::new(seed);
        drop(open(&disk).expect("creates"));
        let mut allowed = Allowed::default();
        for life in 0..3 {
            let (store, table) = open(&disk).expect("opens");
            allowed.verify(&table);
            for write in 0..(1 + mixed(seed * 3 + life) % 40) {
                let value = format!("{life} {write}").into_bytes();
                allowed.written(write % 3, Some(value.clone()));
                table.upsert(&name(write % 3), &value).expect("writes");
                // The last write of each key is the one that is read, whatever earlier lives have left.
                assert_eq!(table.get(&name(write % 3)).expect("reads"), Some(value));
                store.step().expect("works");
            }
            disk.crash(if life == 1 { CrashPolicy::KeepAll } else { CrashPolicy::Random });
        }
        allowed.verify(&open(&disk).expect("opens").1);
    }
    println!("numbers of writes: {seeds} seeds, 0 failures");
}
