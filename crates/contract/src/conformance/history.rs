//! Histories: what is done to a component, and their generator.
//!
//! The generator imitates the recovery log: it goes in *chunks*; only within a chunk may LSN order and timestamp
//! order differ, because a chunk's transactions have all committed below its end of stable log.

use super::{Limits, SplitMix};
use crate::{Lsn, Operation, TableId, Timestamp};
use std::fmt;

/// An owned operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub table: TableId,
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
    pub timestamp: Timestamp,
    pub lsn: Lsn,
}

impl Change {
    pub fn operation(&self) -> Operation<'_> {
        Operation {
            table: self.table,
            key: &self.key,
            value: self.value.as_deref(),
            timestamp: self.timestamp,
            lsn: self.lsn,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { table, key, value, timestamp, lsn } = self;
        let key = Key(key);
        match value {
            Some(value) => {
                write!(formatter, "put t{table}/{key} ({} bytes) ts {timestamp} lsn {lsn}", value.len())
            }
            None => write!(formatter, "delete t{table}/{key} ts {timestamp} lsn {lsn}"),
        }
    }
}

/// A key, printed.
pub(super) struct Key<'a>(pub &'a [u8]);

impl fmt::Display for Key<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0.escape_ascii())
    }
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    EndOfStableLog(Lsn),
    Apply(Vec<Change>),
    Maintain(u64),
    Together(u64),
    RedoScanStartPoint(Lsn),
    Crash(u64),
    Check(u64),
}

#[derive(Clone, Debug)]
pub(super) struct History {
    pub steps: Vec<Step>,
    pub tables: u32,
    /// Every key of the history, and some that it never writes.
    pub keys: Vec<Vec<u8>>,
}

impl fmt::Display for History {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            write!(formatter, "{:4}. ", index + 1)?;
            match step {
                Step::EndOfStableLog(lsn) => writeln!(formatter, "end of stable log {lsn}")?,
                Step::Maintain(seed) => writeln!(formatter, "maintain (seed {seed:#x})")?,
                Step::Together(seed) => writeln!(formatter, "read several keys (seed {seed:#x})")?,
                Step::RedoScanStartPoint(lsn) => writeln!(formatter, "redo scan start point {lsn}")?,
                Step::Crash(seed) => writeln!(formatter, "crash, replay (seed {seed:#x})")?,
                Step::Check(seed) => writeln!(formatter, "compare (seed {seed:#x})")?,
                Step::Apply(changes) => {
                    writeln!(formatter, "apply {} operations", changes.len())?;
                    let mut shown = changes.iter().take(20);
                    shown.try_for_each(|change| writeln!(formatter, "        {change}"))?;
                }
            }
        }
        Ok(())
    }
}

/// A kind of history.
pub(super) struct Profile {
    pub name: &'static str,
    keys: usize,
    tables: u32,
    chunks: u64,
    changes_per_chunk: u64,
    value_bytes_max: u64,
    delete_percent: u64,
    crash_percent: u64,
    /// One in so many of the histories asked for.
    rarity: u64,
}

impl Profile {
    pub const ALL: [Profile; 4] = [
        Profile {
            name: "order of arrival",
            keys: 5,
            tables: 1,
            chunks: 3,
            changes_per_chunk: 14,
            value_bytes_max: 40,
            delete_percent: 30,
            crash_percent: 0,
            rarity: 1,
        },
        Profile {
            name: "tables",
            keys: 12,
            tables: 3,
            chunks: 2,
            changes_per_chunk: 40,
            value_bytes_max: 100,
            delete_percent: 15,
            crash_percent: 4,
            rarity: 2,
        },
        Profile {
            name: "recovery",
            keys: 7,
            tables: 2,
            chunks: 6,
            changes_per_chunk: 12,
            value_bytes_max: 60,
            delete_percent: 35,
            crash_percent: 12,
            rarity: 1,
        },
        Profile {
            name: "pages",
            keys: 900,
            tables: 2,
            chunks: 5,
            changes_per_chunk: 500,
            value_bytes_max: 300,
            delete_percent: 10,
            crash_percent: 4,
            rarity: 12,
        },
    ];

    pub fn share(&self, histories: u64) -> u64 {
        (histories / self.rarity).max(1)
    }
}

pub(super) fn generate(profile: &Profile, seed: u64, limits: Limits) -> History {
    let mut random = SplitMix::new(seed);
    let keys: Vec<Vec<u8>> = (0..profile.keys).map(|index| key(index, limits)).collect();
    let mut steps = Vec::new();
    // Not yet delivered, or to be delivered again; the redo scan start point stays at or below all of these.
    let mut pending: Vec<Change> = Vec::new();
    let mut delivered: Vec<Change> = Vec::new();
    let mut end = 4096;
    let mut redo = 0;
    for chunk in 1..=profile.chunks {
        pending.extend(chunk_of_log(profile, &mut random, chunk, &mut end, &keys, limits));
        steps.push(Step::EndOfStableLog(Lsn(end)));
        let batch_max = (profile.changes_per_chunk / 3).max(1);
        for _ in 0..random.below(8) + 1 {
            steps.push(Step::Apply(deliver(&mut random, batch_max, &mut pending, &mut delivered, redo)));
            if random.sometimes(40) {
                steps.push(Step::Maintain(random.next()));
            }
            if random.sometimes(30) {
                steps.push(Step::Together(random.next()));
            }
            if random.sometimes(25) {
                let applied = pending.iter().map(|change| change.lsn.0).min().unwrap_or(end);
                redo = if random.sometimes(50) { applied } else { redo + random.below(applied - redo + 1) };
                steps.push(Step::RedoScanStartPoint(Lsn(redo)));
            }
            if random.sometimes(profile.crash_percent) {
                steps.push(Step::Crash(random.next()));
            }
            if random.sometimes(20) {
                steps.push(Step::Check(random.next()));
            }
        }
    }
    while !pending.is_empty() {
        let batch_max = profile.changes_per_chunk;
        steps.push(Step::Apply(deliver(&mut random, batch_max, &mut pending, &mut delivered, redo)));
    }
    steps.push(Step::Check(random.next()));
    if profile.crash_percent > 0 {
        steps.push(Step::RedoScanStartPoint(Lsn(end)));
        steps.push(Step::Crash(random.next()));
        steps.push(Step::Check(random.next()));
    }
    History { steps, tables: profile.tables, keys }
}

/// The next chunk's changes: transactions with timestamps of their own, mixed at random in the log.
fn chunk_of_log(
    profile: &Profile,
    random: &mut SplitMix,
    chunk: u64,
    end: &mut u64,
    keys: &[Vec<u8>],
    limits: Limits,
) -> Vec<Change> {
    let transactions = profile.changes_per_chunk / 3 + 1;
    let changes = (0..profile.changes_per_chunk).map(|_| {
        let lsn = Lsn(*end);
        *end += 8 * (1 + random.below(8));
        let timestamp = Timestamp(chunk * 10_000 + random.below(transactions));
        // The last key is never written: its absence is checked too.
        let key = keys[random.index(keys.len() - 1)].clone();
        let table = TableId(random.below(u64::from(profile.tables)) as u32);
        let length = random.below(profile.value_bytes_max.min(limits.value_bytes_max as u64) + 1);
        let value =
            (!random.sometimes(profile.delete_percent)).then(|| value(timestamp, lsn, length as usize));
        Change { table, key, value, timestamp, lsn }
    });
    let changes = changes.collect();
    *end += 8; // the last commit record
    changes
}

/// One batch: some of what is pending, which may stay pending (an interrupted or repeated delivery), and some
/// of what has been delivered before.
fn deliver(
    random: &mut SplitMix,
    batch_max: u64,
    pending: &mut Vec<Change>,
    delivered: &mut Vec<Change>,
    redo: u64,
) -> Vec<Change> {
    if random.sometimes(60) {
        random.shuffle(pending);
    } else {
        // From the back, so that this is the order of the log.
        pending.sort_unstable_by_key(|change| std::cmp::Reverse(change.lsn));
    }
    let mut batch = Vec::new();
    for _ in 0..random.below(batch_max) + 1 {
        let Some(change) = pending.pop() else { break };
        if random.sometimes(8) {
            pending.insert(0, change.clone());
        }
        delivered.push(change.clone());
        batch.push(change);
    }
    delivered.retain(|change| change.lsn.0 >= redo);
    while !delivered.is_empty() && random.sometimes(30) {
        batch.insert(random.index(batch.len() + 1), delivered[random.index(delivered.len())].clone());
    }
    batch
}

/// Keys of several shapes: zero bytes, prefixes of each other, runs of 0xff, and common prefixes.
fn key(index: usize, limits: Limits) -> Vec<u8> {
    let number = (index as u16).to_be_bytes();
    match index % 4 {
        0 => number.to_vec(),
        1 => format!("k{index}").into_bytes(),
        2 => {
            let run = 1 + index % (limits.key_bytes_max.min(64) - 3);
            let mut key = vec![0xff; run];
            key.extend(number);
            key
        }
        _ => format!("key{index:05}").into_bytes(),
    }
}

/// A value that tells which version it is, as far as its length permits.
pub(super) fn value(timestamp: Timestamp, lsn: Lsn, length: usize) -> Vec<u8> {
    let mut random = SplitMix::new(timestamp.0 ^ lsn.0.rotate_left(32));
    let head = [timestamp.0.to_be_bytes(), lsn.0.to_be_bytes()].concat();
    head.into_iter().chain(std::iter::repeat_with(|| random.next() as u8)).take(length).collect()
}
