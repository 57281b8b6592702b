//! Churn: everything that a component can be asked for, at once, over data ten times as large as its memory. Afterwards
//! it holds what a sorted map says, and so it does when it is opened again.
//!
//! Each writer owns the keys of one residue. So it knows what its keys hold at any moment, and holds reads and scans against
//! that; neighbouring keys belong to different writers, which meet on every page. Others scan the whole, maintain, flush, evict, clean,
//! take checkpoints, check and compact meanwhile.
//!
//! `DEUTERON_CHURN_SECONDS` says for how long, on files; without it the test is short, and in memory.

#[path = "../support/mod.rs"]
mod support;
mod writer;

use deuteron_contract::conformance::SplitMix;
use deuteron_contract::{DataComponent, Direction, Lsn, TableId};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::{Directory, MemoryDirectory, OsDirectory};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::clock::Clock;
use support::{counter, live, open};
use writer::{Writer, decode};

const WRITERS: u64 = 3;
const TABLES: u64 = 2;

/// How much, for how long, in how many lives: each ends with a close, and a look at what was left.
#[derive(Clone, Copy, Debug)]
struct Scale {
    memory_bytes: u64,
    /// Keys of each table.
    keys: u64,
    /// Of each life.
    length: Length,
    lives: u64,
}

#[derive(Clone, Copy, Debug)]
enum Length {
    /// Batches of each writer.
    Batches(u64),
    Time(Duration),
}

/// What the threads share.
struct Bed {
    dc: Arc<BwTreeDc>,
    clock: Clock,
    stop: AtomicBool,
    scans: AtomicU64,
    peak_bytes: AtomicU64,
}

/// The second table's keys are long, share most of their bytes, and differ in length.
fn key(table: u64, number: u64) -> Vec<u8> {
    match table {
        0 => number.to_be_bytes().to_vec(),
        _ => format!(
            "a prefix that all keys of this table share/{number:08}/{}",
            "x".repeat(number as usize % 7)
        )
        .into_bytes(),
    }
}

fn number_of(table: u64, key: &[u8]) -> u64 {
    match table {
        0 => u64::from_be_bytes(key.try_into().expect("eight bytes")),
        _ => {
            let digits = key.split(|&byte| byte == b'/').nth(1).expect("a number");
            std::str::from_utf8(digits).expect("digits").parse().expect("a number")
        }
    }
}

/// Scans a table from end to end, and back: in order, every value as it was written.
fn scan(bed: &Bed, seed: u64) {
    let mut random = SplitMix::new(seed);
    while !bed.stop.load(Ordering::Relaxed) {
        let table = random.below(TABLES);
        let direction = if random.sometimes(50) { Direction::Forward } else { Direction::Reverse };
        let bytes_max = 1000 + random.index(100_000);
        let everything = (Bound::Unbounded, Bound::Unbounded);
        let found = support::scan(&bed.dc, TableId(table as u32), everything, direction, bytes_max);
        for record in found.expect("scans") {
            if let Some(value) = record.value {
                decode(table, number_of(table, &record.key), record.timestamp.0, &value);
            }
        }
        bed.scans.fetch_add(1, Ordering::Relaxed);
    }
}

fn maintain(bed: &Bed, seed: u64) {
    let (dc, mut random) = (&bed.dc, SplitMix::new(seed));
    while !bed.stop.load(Ordering::Relaxed) {
        bed.peak_bytes.fetch_max(dc.memory_bytes(), Ordering::Relaxed);
        match random.below(1000) {
            0 => dc.compact().expect("compacts"),
            1..3 => drop(dc.check().expect("is sound")),
            3..30 => {
                dc.redo_scan_start_point(Lsn(bed.clock.oldest())).expect("takes a checkpoint");
            }
            30..100 => drop(dc.llama().evict_step(random.below(dc.options().memory_bytes / 4))),
            100..150 => drop(dc.llama().flush_step().expect("flushes")),
            150..200 => drop(dc.llama().clean_step().expect("cleans")),
            200..250 => std::thread::yield_now(),
            _ => drop(dc.maintain_step().expect("maintains")),
        }
    }
}

/// The records that the writers' models say there are.
fn expected(writers: &[Writer], table: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    writers.iter().flat_map(|writer| writer.records(table)).collect()
}

fn compare(dc: &BwTreeDc, writers: &[Writer], when: &str) {
    for table in 0..TABLES {
        let expected = expected(writers, table);
        let found = live(dc, TableId(table as u32)).expect("scans");
        assert!(found.iter().map(|(key, value)| (key, value)).eq(&expected), "table {table} differs {when}");
        let everything = (Bound::Unbounded, Bound::Unbounded);
        let back = support::scan(dc, TableId(table as u32), everything, Direction::Reverse, 50_000);
        let back: BTreeMap<_, _> =
            back.expect("scans").into_iter().filter_map(|record| Some((record.key, record.value?))).collect();
        assert!(back == expected, "table {table} differs in reverse {when}");
    }
    dc.check().unwrap_or_else(|error| panic!("{when}: {error:?}"));
}

fn churn(directory: &Arc<dyn Directory>, scale: Scale) {
    let options = DcOptions {
        segment_bytes: 256 << 10,
        memory_bytes: scale.memory_bytes,
        flush_buffer_bytes: 32 << 10,
        tree: deuteron_bwtree::Options {
            page_bytes_max: 1024,
            inner_entries_max: 16,
            delta_bytes_max: 2048,
            ..Default::default()
        },
        ..DcOptions::default()
    };
    let mut writers: Vec<_> = (0..WRITERS).map(|writer| Writer::new(writer, scale.keys)).collect();
    let (mut next, mut scans, mut peak_bytes) = (1, 0, 0);
    let mut totals = BTreeMap::<&str, u64>::new();
    for life in 0..scale.lives {
        let dc = open(Arc::clone(directory), options.clone()).expect("opens");
        compare(&dc, &writers, &format!("at the beginning of life {life}"));
        let bed = Bed {
            dc,
            clock: Clock::new(next, WRITERS),
            stop: AtomicBool::new(false),
            scans: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
        };
        let begin = Instant::now();
        let goes_on = |batches| match scale.length {
            Length::Batches(count) => batches < count,
            Length::Time(time) => begin.elapsed() < time,
        };
        std::thread::scope(|scope| {
            let at_work: Vec<_> =
                writers.iter_mut().map(|writer| scope.spawn(|| writer.work(&bed, goes_on))).collect();
            scope.spawn(|| scan(&bed, life));
            scope.spawn(|| maintain(&bed, life + 1000));
            let outcomes: Vec<_> = at_work.into_iter().map(|thread| thread.join()).collect();
            bed.stop.store(true, Ordering::Relaxed);
            outcomes.into_iter().for_each(|outcome| outcome.expect("a writer finds what it wrote"));
        });
        compare(&bed.dc, &writers, &format!("at the end of life {life}"));
        bed.dc.compact().expect("compacts");
        compare(&bed.dc, &writers, &format!("after the compaction of life {life}"));
        next = bed.clock.next();
        bed.dc.redo_scan_start_point(Lsn(next)).expect("takes a checkpoint");
        for name in [
            "leaf_splits",
            "leaf_merges",
            "blind_deltas",
            "loads",
            "pages_evicted",
            "checkpoints",
            "segments_removed",
        ] {
            *totals.entry(name).or_default() += counter(&bed.dc, name);
        }
        scans += bed.scans.into_inner();
        peak_bytes = peak_bytes.max(bed.peak_bytes.into_inner());
    }
    let dc = open(Arc::clone(directory), options).expect("opens");
    compare(&dc, &writers, "after the last close");
    let operations: u64 = writers.iter().map(|writer| writer.operations).sum();
    let checked: u64 = writers.iter().map(|writer| writer.checked).sum();
    let counters: Vec<_> = totals.iter().map(|(name, count)| format!("{count} {name}")).collect();
    println!(
        "churn: {operations} operations, {checked} reads and {scans} scans compared, {} lives, {} records, \
         {peak_bytes} bytes of memory at most of {}, {}, 0 differences",
        scale.lives,
        (0..TABLES).map(|table| expected(&writers, table).len()).sum::<usize>(),
        scale.memory_bytes,
        counters.join(", ")
    );
    for (name, count) in totals {
        assert!(count > 0, "no {name}");
    }
    // A tiny budget is less than what the threads have in hand while the one that flushes is not running.
    if let Length::Time(_) = scale.length {
        let allowed = scale.memory_bytes / 4 * 5;
        assert!(peak_bytes <= allowed, "memory rose to {peak_bytes} of {}", scale.memory_bytes);
    }
}

#[test]
fn after_a_churn_the_component_holds_what_a_sorted_map_holds() {
    match std::env::var("DEUTERON_CHURN_SECONDS") {
        Err(_) => {
            let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
            // Records have about 130 bytes; so many of a table's keys are there at most.
            churn(
                &directory,
                Scale { memory_bytes: 256 << 10, keys: 10_000, length: Length::Batches(1200), lives: 2 },
            );
        }
        Ok(seconds) => {
            let seconds: f64 = seconds.parse().expect("seconds");
            let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
            let directory: Arc<dyn Directory> =
                Arc::new(OsDirectory::open_existing(place.path()).expect("opens"));
            // What follows a life, four comparisons and a compaction, takes half a minute and more.
            let lives = (seconds / 180.0).ceil().max(2.0) as u64;
            let length = Length::Time(Duration::from_secs_f64(seconds / lives as f64));
            churn(&directory, Scale { memory_bytes: 3 << 20, keys: 120_000, length, lives });
        }
    }
}
