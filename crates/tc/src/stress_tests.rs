//! Threads against each other, with a proxy, a collector and far too little memory: invariants that every serializable
//! execution keeps.

use crate::test_bed::{Bed, TABLE, bed, tiny};
use crate::{BeginOptions, Isolation, TcError, TcOptions, Transaction};
use deuteron_contract::Direction;
use deuteron_log::LogOptions;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ACCOUNTS: u64 = 40;
const DEPOSIT: u64 = 1000;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Runs until it commits, or until a conflict that is not retryable.
fn transact<T>(
    bed: &Bed,
    options: BeginOptions,
    mut work: impl FnMut(&mut Transaction) -> Result<T, TcError>,
) -> T {
    loop {
        let mut tx = bed.begin_with(options);
        let result = work(&mut tx).and_then(|value| tx.commit().map(|_| value));
        match result {
            Ok(value) => return value,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

fn balance(tx: &mut Transaction, account: u64) -> Result<u64, TcError> {
    let value = tx.get(TABLE, &account.to_be_bytes())?;
    Ok(value.map_or(0, |value| u64::from_be_bytes(value[..8].try_into().expect("eight bytes"))))
}

/// Values are long, so that memory is short.
fn set(tx: &mut Transaction, account: u64, balance: u64) -> Result<(), TcError> {
    if balance == 0 {
        return tx.delete(TABLE, &account.to_be_bytes());
    }
    let mut value = balance.to_be_bytes().to_vec();
    value.resize(8 + (balance % 100) as usize, 7);
    tx.put(TABLE, &account.to_be_bytes(), &value)
}

fn total(tx: &mut Transaction, direction: Direction) -> Result<u64, TcError> {
    let mut total = 0;
    let mut before: Option<Vec<u8>> = None;
    for entry in tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, direction) {
        let (key, value) = entry?;
        if let Some(before) = before {
            assert_eq!(before < key, direction == Direction::Forward, "a scan is in order");
        }
        total += u64::from_be_bytes(value[..8].try_into().expect("eight bytes"));
        before = Some(key);
    }
    Ok(total)
}

/// Clients on threads of their own, and one that does the background work. `TC_STRESS` multiplies the rounds.
fn run(bed: &Arc<Bed>, clients: u64, rounds: u64, client: impl Fn(&Bed, u64, &mut u64) + Sync) {
    let times = std::env::var("TC_STRESS").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let rounds = rounds * times;
    let running = AtomicU64::new(clients);
    std::thread::scope(|scope| {
        for number in 0..clients {
            let (running, client) = (&running, &client);
            scope.spawn(move || {
                struct Done<'r>(&'r AtomicU64);
                impl Drop for Done<'_> {
                    fn drop(&mut self) {
                        self.0.fetch_sub(1, Ordering::SeqCst);
                    }
                }
                let _done = Done(running);
                let mut state = 0x9E37_79B9 + number;
                for _ in 0..rounds {
                    client(bed, number, &mut state);
                }
            });
        }
        while running.load(Ordering::SeqCst) > 0 {
            if !bed.step() {
                std::thread::yield_now();
            }
        }
    });
}

fn transfers(bed: &Arc<Bed>, rounds: u64) {
    for account in 0..ACCOUNTS {
        transact(bed, BeginOptions::default(), |tx| set(tx, account, DEPOSIT));
    }
    let read_only = BeginOptions { read_only: true, ..BeginOptions::default() };
    run(bed, 4, rounds, |bed, _, state| {
        let (from, to) = (random(state) % ACCOUNTS, random(state) % ACCOUNTS);
        match random(state) % 10 {
            0 => assert_eq!(transact(bed, read_only, |tx| total(tx, Direction::Forward)), ACCOUNTS * DEPOSIT),
            1 => assert_eq!(transact(bed, read_only, |tx| total(tx, Direction::Reverse)), ACCOUNTS * DEPOSIT),
            2 => {
                let sum = transact(bed, read_only, |tx| {
                    (0..ACCOUNTS).try_fold(0, |sum, account| Ok(sum + balance(tx, account)?))
                });
                assert_eq!(sum, ACCOUNTS * DEPOSIT);
            }
            3 if from != to => transact(bed, BeginOptions::default(), |tx| {
                // An account is emptied and its record deleted.
                let all = balance(tx, from)?;
                let there = balance(tx, to)?;
                set(tx, from, 0)?;
                set(tx, to, there + all)
            }),
            _ if from != to => transact(bed, BeginOptions::default(), |tx| {
                let have = balance(tx, from)?;
                let amount = have.min(1 + from);
                let there = balance(tx, to)?;
                set(tx, to, there + amount)?;
                set(tx, from, have - amount)
            }),
            _ => {}
        }
    });
    bed.settle();
    assert_eq!(transact(bed, read_only, |tx| total(tx, Direction::Forward)), ACCOUNTS * DEPOSIT);
}

#[test]
fn money_is_neither_made_nor_lost() {
    let options = TcOptions { memory_bytes: 1 << 20, ..TcOptions::default() };
    let bed = bed(options, &LogOptions::tiny_for_tests(), deuteron_proxy::Options::default());
    transfers(&bed, 400);
}

#[test]
fn money_is_neither_made_nor_lost_with_hardly_any_memory() {
    let options = TcOptions { memory_bytes: 3 << 10, ..TcOptions::tiny_for_tests() };
    let bed = bed(options, &LogOptions::tiny_for_tests(), deuteron_proxy::Options::tiny_for_tests());
    transfers(&bed, 150);
    assert!(bed.tc().statistics().evictions > 0);
}

#[test]
fn counters_count_every_increment() {
    let bed = tiny();
    let counted: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
    run(&bed, 4, 300, |bed, _, state| {
        let counter = random(state) % 8;
        transact(bed, BeginOptions::default(), |tx| {
            let count = balance(tx, counter)?;
            set(tx, counter, count + 1)
        });
        counted[counter as usize].fetch_add(1, Ordering::SeqCst);
    });
    for (counter, count) in counted.iter().enumerate() {
        let found = transact(&bed, BeginOptions::default(), |tx| balance(tx, counter as u64));
        assert_eq!(found, count.load(Ordering::SeqCst));
    }
}

/// Under snapshot isolation, too, while the horizon is forced again and again and there is hardly any memory.
#[test]
fn counters_count_every_increment_of_snapshots_below_the_forced_horizon() {
    let options = TcOptions { memory_bytes: 3 << 10, ..TcOptions::tiny_for_tests() };
    let bed = bed(options, &LogOptions::tiny_for_tests(), deuteron_proxy::Options::tiny_for_tests());
    let counted: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
    let snapshot = BeginOptions { isolation: Isolation::Snapshot, ..BeginOptions::default() };
    run(&bed, 4, 300, |bed, _, state| {
        let counter = random(state) % 8;
        let steps = random(state) % 8;
        transact(bed, snapshot, |tx| {
            let count = balance(tx, counter)?;
            bed.tc().force_horizon(bed.tc().now());
            (0..steps).for_each(|_| _ = bed.step());
            set(tx, counter, count + 1)
        });
        counted[counter as usize].fetch_add(1, Ordering::SeqCst);
    });
    for (counter, count) in counted.iter().enumerate() {
        let found = transact(&bed, BeginOptions::default(), |tx| balance(tx, counter as u64));
        assert_eq!(found, count.load(Ordering::SeqCst));
    }
}

/// Each pair of keys may lose one member, never both: write skew, with point reads and with scans.
#[test]
fn nobody_leaves_the_ward_without_a_doctor() {
    let bed = tiny();
    let read_only = BeginOptions { read_only: true, ..BeginOptions::default() };
    for doctor in 0..2 {
        transact(&bed, BeginOptions::default(), |tx| set(tx, doctor, 1));
    }
    let violated = AtomicBool::new(false);
    run(&bed, 3, 300, |bed, number, state| match number {
        2 => {
            if transact(bed, read_only, |tx| total(tx, Direction::Forward)) == 0 {
                violated.store(true, Ordering::SeqCst);
            }
        }
        doctor => {
            let scans = random(state).is_multiple_of(2);
            transact(bed, BeginOptions::default(), |tx| {
                let present =
                    if scans { total(tx, Direction::Forward)? } else { balance(tx, 0)? + balance(tx, 1)? };
                set(tx, doctor, u64::from(present < 2))
            });
        }
    });
    assert!(!violated.load(Ordering::SeqCst));
}

/// Inserts at one end, deletes at the other, and scans that must find an unbroken run.
#[test]
fn a_queue_has_no_holes() {
    let bed = tiny();
    transact(&bed, BeginOptions::default(), |tx| set(tx, 1000, 1));
    let ends = |tx: &mut Transaction| {
        let mut keys = Vec::new();
        for entry in tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Forward) {
            keys.push(u64::from_be_bytes(entry?.0.try_into().expect("eight bytes")));
        }
        Ok((keys.first().copied(), keys.last().copied(), keys.len() as u64))
    };
    run(&bed, 3, 200, |bed, number, _| match number {
        0 => transact(bed, BeginOptions::default(), |tx| {
            let (_, last, len) = ends(tx)?;
            if len < 20 { set(tx, last.expect("never empty") + 1, 1) } else { Ok(()) }
        }),
        1 => transact(bed, BeginOptions::default(), |tx| {
            let (first, _, len) = ends(tx)?;
            if len > 1 { set(tx, first.expect("never empty"), 0) } else { Ok(()) }
        }),
        _ => {
            let read_only = BeginOptions { read_only: true, ..BeginOptions::default() };
            let (first, last, len) = transact(bed, read_only, ends);
            assert_eq!(last.expect("never empty") - first.expect("never empty") + 1, len);
        }
    });
}
