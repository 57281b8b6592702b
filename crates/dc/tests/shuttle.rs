//! Schedules of the assembled component: splits, merges, evictions, flushes, cleaning, checkpoints and recovery under writers,
//! readers and scans, with a switch of threads at any access to shared memory, chosen by shuttle. What is there in the end is what a
//! sorted map holds, also after a reopening; no reader sees a key go back.
//!
//! ```sh
//! RUSTFLAGS="--cfg shuttle" DEUTERON_SCHEDULES=1000 cargo test -p deuteron-dc --release --test shuttle
//! ```
//!
//! What fails names the file of its schedule; with `DEUTERON_REPLAY` set to that, it is run again, by `a_schedule_that_failed_is_run_again` or, if the crowd
//! failed, by `a_crowd_that_failed_is_run_again`: run that test alone, as a schedule is of one scenario.
//!
//! A second scenario, a *crowd*, is of those who wait for each other: each comes to an end.

#![cfg(shuttle)]

mod support;

use deuteron_contract::conformance::{Counts, Schedules, SplitMix};
use deuteron_contract::{DataComponent, Direction, Lsn, TableId, Timestamp};
use deuteron_dc::BwTreeDc;
use deuteron_device::MemoryDirectory;
use deuteron_llama::FlushProgress;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use support::clock::Clock;
use support::{counter, open, row, scan};

const TABLE: TableId = TableId(1);
const WRITERS: u64 = 2;
const KEYS: u64 = 40;
const EVERYTHING: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

/// What is counted over all schedules: that what should meet is there to meet.
const COUNTED: [&str; 10] = [
    "leaf_splits",
    "leaf_merges",
    "inner_merges",
    "blind_deltas",
    "pages_evicted",
    "pages_packed",
    "loads",
    "pages_freed",
    "consolidations_lost",
    "mapping_lost",
];
static COUNTS: Counts = Counts::new();

struct Bed {
    dc: Arc<BwTreeDc>,
    /// Of std, as [`Bed::known`]: no place to switch threads.
    clock: Clock,
    /// For each key the last write that is known to be applied, and whether it has left a record.
    known: Vec<AtomicU64>,
}

impl Bed {
    /// Writes or deletes some keys of a writer as one batch, or a single one with a number that was taken before, if it may be.
    fn write(&self, writer: u64, keys: &[u64], deletes: bool) {
        if let [key] = keys {
            return self.write_one(writer, *key, deletes);
        }
        let first = self.clock.take(writer, keys.len() as u64);
        let rows: Vec<_> = keys.iter().map(|key| (key.to_be_bytes(), [*key as u8; 28])).collect();
        let operations: Vec<_> = (first..)
            .zip(&rows)
            .map(|(number, (key, value))| row(TABLE, key, (!deletes).then_some(&value[..]), number))
            .collect();
        self.dc.apply(&operations).expect("applies");
        self.clock.done(writer);
        for (number, &key) in (first..).zip(keys) {
            self.known[key as usize].store(number << 1 | u64::from(!deletes), Ordering::SeqCst);
        }
    }

    fn write_one(&self, writer: u64, key: u64, deletes: bool) {
        let value = [key as u8; 28];
        let mut number = self.clock.take(writer, 1);
        let numbered = |above: Option<Timestamp>| {
            if above.is_none_or(|above| above.0 >= number) {
                number = self.clock.take(writer, 1);
            }
            Some(Timestamp(number))
        };
        let value = (!deletes).then_some(&value[..]);
        assert!(self.dc.write(TABLE, &key.to_be_bytes(), value, numbered).expect("writes"));
        self.clock.done(writer);
        self.known[key as usize].store(number << 1 | u64::from(!deletes), Ordering::SeqCst);
    }

    fn known(&self) -> Vec<u64> {
        self.known.iter().map(|last| last.load(Ordering::SeqCst)).collect()
    }

    /// All keys that have a record, and their stamps.
    fn scan(&self, direction: Direction, bytes_max: usize) -> BTreeMap<u64, u64> {
        let found = scan(&self.dc, TABLE, EVERYTHING, direction, bytes_max).expect("scans");
        found
            .into_iter()
            .filter(|record| record.value.is_some())
            .map(|record| {
                (u64::from_be_bytes(record.key.try_into().expect("eight bytes")), record.timestamp.0)
            })
            .collect()
    }

    fn verify(&self) {
        let expected: BTreeMap<u64, u64> = (0..)
            .zip(self.known())
            .filter(|(_, last)| last & 1 == 1)
            .map(|(key, last)| (key, last >> 1))
            .collect();
        assert_eq!(self.scan(Direction::Forward, usize::MAX), expected);
        assert_eq!(self.scan(Direction::Reverse, 200), expected);
        for key in 0..KEYS {
            let found =
                self.dc.get(TABLE, &key.to_be_bytes()).expect("reads").filter(|found| found.value.is_some());
            assert_eq!(found.map(|found| found.timestamp.0), expected.get(&key).copied(), "key {key}");
        }
        self.dc.check().expect("is sound");
    }
}

/// Its own keys, in stretches that fill and empty pages; what it has written is what it reads.
fn writer(bed: &Bed, writer: u64, seed: u64) {
    let mut random = SplitMix::new(seed);
    for _ in 0..5 {
        let from = random.below(KEYS);
        let deletes = random.sometimes(60);
        let keys: Vec<u64> = (from..KEYS.min(from + 16)).filter(|key| key % WRITERS == writer).collect();
        for batch in keys.chunks(1 + random.index(4)) {
            bed.write(writer, batch, deletes);
        }
        for key in keys {
            let found = bed.dc.get(TABLE, &key.to_be_bytes()).expect("reads");
            let last = bed.known[key as usize].load(Ordering::SeqCst);
            match found {
                // A tombstone may have been forgotten.
                None => assert!(deletes, "key {key} is lost"),
                Some(found) => assert_eq!((found.timestamp.0, found.value.is_some()), (last >> 1, !deletes)),
            }
        }
    }
}

/// No key is older than what was known before the look; none is missing that has been there all the time.
fn reader(bed: &Bed, seed: u64) {
    let mut random = SplitMix::new(seed);
    for _ in 0..4 {
        let direction = if random.sometimes(50) { Direction::Forward } else { Direction::Reverse };
        let before = bed.known();
        let found = bed.scan(direction, 50 + random.index(1000));
        let after = bed.known();
        for (key, (before, after)) in (0..).zip(before.into_iter().zip(after)) {
            match found.get(&key) {
                Some(&seen) => assert!(seen >= before >> 1, "key {key} of {before} is back at {seen}"),
                // A delete may be under way: then something newer is there, or nothing.
                None if before == after && before & 1 == 1 => {
                    let now = bed.dc.get(TABLE, &key.to_be_bytes()).expect("reads");
                    let now = now.filter(|now| now.value.is_some()).map(|now| now.timestamp.0);
                    assert_ne!(
                        now,
                        Some(before >> 1),
                        "the scan {direction:?} has missed key {key}, found {found:?}"
                    );
                }
                None => {}
            }
        }
    }
}

fn maintain(bed: &Bed, seed: u64) {
    let (dc, mut random) = (&bed.dc, SplitMix::new(seed));
    for _ in 0..40 {
        match random.below(16) {
            0 => drop(dc.llama().evict_step(u64::MAX)),
            1 => drop(dc.llama().flush_step().expect("flushes")),
            2..6 => {
                // All that can be flushed, and then all that can be evicted: second chances first.
                while let FlushProgress::Wrote { .. } = dc.llama().flush_step().expect("flushes") {}
                for _ in 0..2 {
                    dc.llama().evict_step(u64::MAX);
                }
            }
            6 => drop(dc.llama().clean_step().expect("cleans")),
            7 => dc.redo_scan_start_point(Lsn(bed.clock.oldest())).expect("takes a checkpoint"),
            8 => drop(dc.check().expect("is sound")),
            _ => drop(dc.maintain_step().expect("maintains")),
        }
    }
}

/// Gives each role a thread and a seed; what they have shared, when all have ended.
fn play<T: Send + Sync + 'static, const ROLES: usize>(shared: Arc<T>, roles: [fn(&T, u64); ROLES]) -> T {
    let threads = roles.map(|role| {
        let (shared, seed) = (Arc::clone(&shared), thread_rng().r#gen());
        thread::spawn(move || role(&shared, seed))
    });
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    Arc::into_inner(shared).expect("all others are gone")
}

fn scenario() {
    let directory = Arc::new(MemoryDirectory::new());
    // Nodes are larger under shuttle: all but a few pages fit.
    let options = || support::tiny(64 << 10);
    let bed = |next: u64, known: Vec<u64>| Bed {
        dc: open(directory.clone(), options()).expect("opens"),
        clock: Clock::new(next, WRITERS),
        known: known.into_iter().map(AtomicU64::new).collect(),
    };
    let bed_of_threads = Arc::new(bed(1, vec![0; KEYS as usize]));
    // Several pages, durable, not all of them in memory; tombstones that may be forgotten.
    for writer in 0..WRITERS {
        let keys: Vec<u64> = (0..KEYS).filter(|key| key % WRITERS == writer).collect();
        keys.chunks(5).for_each(|keys| bed_of_threads.write(writer, keys, false));
        bed_of_threads.write(writer, &keys[4..16], true);
    }
    for _ in 0..2 {
        let lsn = Lsn(bed_of_threads.clock.oldest());
        bed_of_threads.dc.redo_scan_start_point(lsn).expect("takes a checkpoint");
    }
    let ended = play(
        bed_of_threads,
        [|bed, seed| writer(bed, 0, seed), |bed, seed| writer(bed, 1, seed), reader, maintain],
    );
    ended.verify();
    for name in COUNTED {
        COUNTS.add(name, counter(&ended.dc, name));
    }
    let (next, known) = (ended.clock.next(), ended.known());
    ended.dc.redo_scan_start_point(Lsn(next)).expect("takes a checkpoint");
    drop(ended);
    bed(next, known).verify();
}

const SCHEDULES: Schedules =
    Schedules { scenario, steps_max: 20_000_000, directory: env!("CARGO_TARGET_TMPDIR") };

// ---- waiting ------------------------------------------------------------------------------------------------

/// A table with values in chunks, and one that is dropped.
const LARGE: TableId = TableId(2);
const DROPPED: TableId = TableId(3);

/// What is counted over all schedules of those that wait for each other.
const WAITED_COUNTED: [&str; 6] =
    ["loads_awaited", "loads_together", "rows_prepared", "excerpts", "flushes_held", "large_values_removed"];
static WAITED_COUNTS: Counts = Counts::new();

struct Crowd {
    bed: Bed,
    /// Those who have not ended, but for those who do the duties.
    running: AtomicU64,
}

impl Crowd {
    fn ends(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    /// Does a duty as long as there is somebody for whom it is done, and gives way to others where there is nothing to do.
    fn as_long_as_wanted(&self, mut duty: impl FnMut() -> bool) {
        while self.running.load(Ordering::SeqCst) > 0 {
            if !duty() {
                thread::yield_now();
            }
        }
    }
}

/// Writes its own keys, and large values in between, and reads several keys together.
fn busy_writer(crowd: &Crowd, writer: u64, seed: u64) {
    let (bed, mut random) = (&crowd.bed, SplitMix::new(seed));
    for _ in 0..4 {
        let from = random.below(KEYS);
        let keys: Vec<u64> = (from..KEYS.min(from + 12)).filter(|key| key % WRITERS == writer).collect();
        for batch in keys.chunks(3) {
            bed.write(writer, batch, random.sometimes(40));
        }
        if random.sometimes(50) {
            let (number, value) = (bed.clock.take(writer, 1), vec![7; 3000]);
            let value = random.sometimes(70).then_some(&value[..]);
            bed.dc.apply(&[row(LARGE, b"large", value, number)]).expect("applies");
            bed.clock.done(writer);
        }
        let wanted: Vec<[u8; 8]> = (0..8).map(|_| random.below(KEYS).to_be_bytes()).collect();
        let wanted: Vec<&[u8]> = wanted.iter().map(<[u8; 8]>::as_slice).collect();
        assert_eq!(bed.dc.get_many(TABLE, &wanted, usize::MAX).expect("reads").len(), 8);
        bed.dc.get(LARGE, b"large").expect("reads");
    }
    crowd.ends();
}

/// Checkpoints, copies, figures, a table that goes: all that waits for the flush.
fn administrator(crowd: &Crowd, seed: u64) {
    let (bed, mut random) = (&crowd.bed, SplitMix::new(seed));
    for _ in 0..6 {
        match random.below(5) {
            0 => bed.dc.redo_scan_start_point(Lsn(bed.clock.oldest())).expect("takes a checkpoint"),
            1 => drop(bed.dc.hold_files().expect("holds")),
            2 => drop(bed.dc.statistics()),
            3 => bed.dc.drop_table(DROPPED).expect("drops"),
            _ => bed.dc.compact().expect("compacts"),
        }
    }
    crowd.ends();
}

/// What a program does that is short of memory, or of time.
fn helper(crowd: &Crowd, seed: u64) {
    let (bed, mut random) = (&crowd.bed, SplitMix::new(seed));
    let llama = bed.dc.llama();
    crowd.as_long_as_wanted(|| {
        let _hurry = random.sometimes(30).then(|| llama.hurry());
        match random.below(5) {
            0 => llama.prepare_step().expect("prepares"),
            1 => matches!(llama.flush_step().expect("flushes"), FlushProgress::Wrote { .. }),
            2 => {
                llama.await_flush();
                false
            }
            3 => llama.evict_step(u64::MAX).pages > 0,
            _ => {
                bed.dc.set_memory_budget((30 << 10) + random.below(60 << 10));
                false
            }
        }
    });
}

fn crowd() {
    let directory = Arc::new(MemoryDirectory::new());
    let dc = open(directory, support::tiny(48 << 10)).expect("opens");
    let known = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let bed = Bed { dc, clock: Clock::new(1, WRITERS), known };
    for writer in 0..WRITERS {
        let keys: Vec<u64> = (0..KEYS).filter(|key| key % WRITERS == writer).collect();
        keys.chunks(5).for_each(|keys| bed.write(writer, keys, false));
    }
    let number = bed.clock.take(0, 1);
    bed.dc.apply(&[row(DROPPED, b"key", Some(b"value"), number)]).expect("applies");
    bed.clock.done(0);
    bed.dc.redo_scan_start_point(Lsn(bed.clock.oldest())).expect("takes a checkpoint");
    let crowd = Arc::new(Crowd { bed, running: AtomicU64::new(WRITERS + 1) });
    let roles: [fn(&Crowd, u64); 5] = [
        |crowd, seed| busy_writer(crowd, 0, seed),
        |crowd, seed| busy_writer(crowd, 1, seed),
        administrator,
        helper,
        |crowd, _| crowd.as_long_as_wanted(|| crowd.bed.dc.maintain_step().expect("maintains")),
    ];
    let Crowd { bed, .. } = play(crowd, roles);
    bed.verify();
    for name in WAITED_COUNTED {
        WAITED_COUNTS.add(name, counter(&bed.dc, name));
    }
    // With nobody at work there is nothing to do before long.
    let mut steps = 0..10_000;
    while (0..4).any(|_| bed.dc.maintain_step().expect("maintains")) {
        steps.next().expect("background work comes to an end");
    }
}

const CROWDS: Schedules =
    Schedules { scenario: crowd, steps_max: 20_000_000, directory: env!("CARGO_TARGET_TMPDIR") };

#[test]
fn a_crowd_that_failed_is_run_again() {
    CROWDS.replay();
}

#[test]
fn whatever_the_schedule_those_who_wait_for_each_other_come_to_an_end() {
    CROWDS.run_all(&WAITED_COUNTS);
}

#[test]
fn a_schedule_that_failed_is_run_again() {
    SCHEDULES.replay();
}

#[test]
fn whatever_the_schedule_the_component_holds_what_a_sorted_map_holds() {
    SCHEDULES.run_all(&COUNTS);
}
