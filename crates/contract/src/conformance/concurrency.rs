//! Readers beside writers.

use super::history::{Key, value};
use super::{Broken, Harness, SplitMix};
use crate::{DataComponent, Direction, Lsn, Operation, Record, ScanRequest, TableId, Timestamp};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const TABLE: TableId = TableId(2);
const KEYS: u64 = 48;
const WRITERS: u64 = 2;

fn key(index: u64) -> Vec<u8> {
    format!("key{index:04}").into_bytes()
}

/// Each writer owns every second key and writes all of them in each round; `rounds[w]` is published when the
/// apply of that round has returned.
pub(super) fn check(harness: &dyn Harness, rounds: u64) -> Result<(), Broken> {
    let instance = harness.open();
    let component = instance.component();
    component.end_of_stable_log(Lsn(u64::MAX / 2));
    let done: [AtomicU64; WRITERS as usize] = Default::default();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (done, stop) = (&done, &stop);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || write(component, writer, rounds, &done[writer as usize])))
            .collect();
        let readers = [
            scope.spawn(move || gets(component, done, stop)),
            scope.spawn(move || scans(component, done, stop)),
        ];
        let mut seed = 0;
        while !writers.iter().all(thread::ScopedJoinHandle::is_finished) {
            instance.maintain(seed);
            seed += 1;
            thread::yield_now();
        }
        stop.store(true, Ordering::SeqCst);
        let results = writers.into_iter().chain(readers).map(|thread| thread.join());
        results
            .map(|result| result.unwrap_or_else(|_| Err(Broken::new("panic", "a thread panicked"))))
            .collect::<Vec<_>>()
    })
    .into_iter()
    .collect()
}

fn write(component: &dyn DataComponent, writer: u64, rounds: u64, done: &AtomicU64) -> Result<(), Broken> {
    let keys: Vec<Vec<u8>> = (0..KEYS).filter(|index| index % WRITERS == writer).map(key).collect();
    let mut random = SplitMix::new(writer);
    for round in 1..=rounds {
        let timestamp = Timestamp(round);
        let values: Vec<Vec<u8>> =
            keys.iter().enumerate().map(|(i, _)| round_value(round, i as u64)).collect();
        let mut operations: Vec<Operation<'_>> = (keys.iter().zip(&values))
            .map(|(key, value)| Operation {
                table: TABLE,
                key,
                value: Some(value),
                timestamp,
                lsn: Lsn(round * 8),
            })
            .collect();
        random.shuffle(&mut operations);
        for batch in operations.chunks(1 + random.index(operations.len())) {
            component.apply(batch).map_err(|error| Broken::error("apply", &error))?;
        }
        done.store(round, Ordering::SeqCst);
    }
    Ok(())
}

/// The value says its round; its length differs from round to round.
fn round_value(round: u64, index: u64) -> Vec<u8> {
    value(Timestamp(round), Lsn(round * 8), 16 + ((round * 7 + index) % 60) as usize)
}

/// A whole version, at least as new as what had been applied before the call.
fn judge(index: u64, found: Option<&Record>, at_least: u64, seen: &mut u64) -> Result<(), Broken> {
    let round = found.map_or(0, |record| record.timestamp.0);
    if round < at_least.max(*seen) {
        let what = format!("{} is of round {round} after round {}", Key(&key(index)), at_least.max(*seen));
        return Err(Broken::new("concurrency", what));
    }
    if found.is_some_and(|record| record.value != Some(round_value(round, index / WRITERS))) {
        return Err(Broken::new(
            "concurrency",
            format!("{} has the value of another version", Key(&key(index))),
        ));
    }
    *seen = round;
    Ok(())
}

fn gets(component: &dyn DataComponent, done: &[AtomicU64], stop: &AtomicBool) -> Result<(), Broken> {
    let mut seen = vec![0; KEYS as usize];
    let mut random = SplitMix::new(11);
    while !stop.load(Ordering::SeqCst) {
        let index = random.below(KEYS);
        let end = if random.sometimes(20) { KEYS } else { index + 1 };
        let at_least: Vec<u64> = done.iter().map(|round| round.load(Ordering::SeqCst)).collect();
        let keys: Vec<Vec<u8>> = (index..end).map(key).collect();
        let found = match &keys[..] {
            [key] => vec![component.get(TABLE, key).map_err(|error| Broken::error("get", &error))?],
            keys => {
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let found = component.get_many(TABLE, &keys, usize::MAX);
                found.map_err(|error| Broken::error("get_many", &error))?
            }
        };
        for (index, found) in (index..end).zip(found) {
            judge(index, found.as_ref(), at_least[(index % WRITERS) as usize], &mut seen[index as usize])?;
        }
    }
    Ok(())
}

fn scans(component: &dyn DataComponent, done: &[AtomicU64], stop: &AtomicBool) -> Result<(), Broken> {
    let mut seen = vec![0; KEYS as usize];
    let mut forward = true;
    while !stop.load(Ordering::SeqCst) {
        let at_least: Vec<u64> = done.iter().map(|round| round.load(Ordering::SeqCst)).collect();
        let direction = if forward { Direction::Forward } else { Direction::Reverse };
        let request = ScanRequest {
            table: TABLE,
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
            direction,
            bytes_max: 200,
            records_max: usize::MAX,
        };
        let found = super::execute::scan_in_batches(component, request)?;
        for index in 0..KEYS {
            let record = found.iter().find(|record| record.key == key(index));
            judge(index, record, at_least[(index % WRITERS) as usize], &mut seen[index as usize])?;
        }
        forward = !forward;
    }
    Ok(())
}
