//! Schedules of the assembled component: clients, the flusher, the proxy, the evictor and the recycler of the log, with a switch of
//! threads at any access to shared memory, chosen by shuttle. What the clients saw must be strictly serializable, in the eyes of the
//! checker of histories, which knows nothing of the component; and the data component holds in the end what the last reader sees.
//!
//! ```sh
//! RUSTFLAGS="--cfg shuttle" DEUTERON_SCHEDULES=1000 cargo test -p deuteron-tc --release --test shuttle
//! ```
//!
//! What fails names the file of its schedule; with `DEUTERON_REPLAY` set to that, it is run again, by `a_schedule_that_failed_is_run_again` or, if the crowd
//! failed, by `a_crowd_that_failed_is_run_again`: run that test alone, as a schedule is of one scenario.
//!
//! A second scenario, a *crowd*, is of those who wait for each other: each comes to an end.

#![cfg(shuttle)]

#[path = "../src/test_bed.rs"]
mod test_bed;

use deuteron_contract::conformance::{Counts, Schedules, SplitMix};
use deuteron_contract::{Direction, Lsn, MemoryDc, ScanRequest};
use deuteron_history as history;
use deuteron_history::{Checker, Level, Outcome, Seen, Value};
use deuteron_log::LogOptions;
use deuteron_tc::{BeginOptions, TcError, TcOptions, TcStatistics, Transaction, TransactionComponent};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use std::ops::Bound;
// Of std: no places to switch threads.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use test_bed::{DUTIES, TABLE};

const CLIENTS: u64 = 3;
/// Keys are single letters: lists are appended to, registers written.
const LISTS: [&str; 2] = ["a", "c"];
const REGISTERS: [&str; 3] = ["b", "d", "e"];
const EVERYTHING: (&str, &str) = ("a", "f");
/// What is scanned: whatever is deleted is at an end of one of them, first or last.
const RANGES: [(&str, &str); 3] = [EVERYTHING, ("b", "e"), ("d", "f")];

/// For records and versions.
const MEMORY_BYTES: u64 = 6 << 10;

/// What is counted over all schedules: that what should meet is there to meet.
type Counted = (&'static str, fn(&TcStatistics) -> u64);
const COUNTED: [Counted; 13] = [
    ("commits", |statistics| statistics.commits),
    ("conflicts", |statistics| statistics.conflicts),
    ("refreshed commits", |statistics| statistics.refreshed_commits),
    ("moves", |statistics| statistics.moves),
    ("waits", |statistics| statistics.waits),
    ("scans shortened", |statistics| statistics.scans_shortened),
    ("misses", |statistics| statistics.misses),
    ("evictions", |statistics| statistics.evictions),
    ("read cache hits", |statistics| statistics.read_cache_hits),
    ("buckets lost", |statistics| statistics.buckets_lost),
    ("versions lost", |statistics| statistics.versions_lost),
    ("statuses lost", |statistics| statistics.statuses_lost),
    ("queues lost", |statistics| statistics.queues_lost),
];
static COUNTS: Counts = Counts::new();

struct Bed {
    parts: Arc<test_bed::Bed>,
    /// Orders what happens in real time.
    time: AtomicU64,
    running: AtomicU64,
    history: Mutex<Vec<history::Transaction>>,
}

impl Bed {
    fn options() -> TcOptions {
        TcOptions { memory_bytes: 1 << 10, patience: 6, ..TcOptions::tiny_for_tests() }
    }

    fn with(options: TcOptions, memory_bytes: u64) -> Arc<Bed> {
        let (log, proxy) = (LogOptions::tiny_for_tests(), deuteron_proxy::Options::tiny_for_tests());
        // Others do the duties meanwhile.
        let stalled = |bed: &test_bed::Bed| {
            bed.log.request_flush(bed.log.tail_lsn());
            thread::yield_now();
            Ok(())
        };
        let parts = test_bed::Bed::open(Arc::new(MemoryDc::new()), options, &log, proxy, stalled);
        let parts = parts.expect("a new log");
        // Shuttle's atomics are large. Beyond what is there already, there is room for some of the keys.
        parts.tc().set_memory_budget(parts.tc().statistics().memory_bytes + memory_bytes);
        let (time, running) = (AtomicU64::new(1), AtomicU64::new(CLIENTS));
        Arc::new(Bed { parts, time, running, history: Mutex::default() })
    }

    fn tc(&self) -> &TransactionComponent {
        self.parts.tc()
    }

    fn now(&self) -> u64 {
        self.time.fetch_add(1, Ordering::SeqCst)
    }
}

/// A transaction of a client, and what it notes of itself.
struct Noted {
    tx: Transaction,
    operations: Vec<history::Operation>,
}

fn element(bytes: &[u8]) -> Value {
    Value::Integer(u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
}

fn seen(key: &str, value: Option<&[u8]>) -> Seen {
    match value {
        None => Seen::Nothing,
        Some(value) if LISTS.contains(&key) => Seen::List(value.chunks(8).map(element).collect()),
        Some(value) => Seen::Value(element(value)),
    }
}

fn either(random: &mut SplitMix) -> Direction {
    if random.sometimes(50) { Direction::Forward } else { Direction::Reverse }
}

impl Noted {
    fn read(&mut self, key: &str, value: Option<Vec<u8>>) {
        self.operations.push(history::Operation::Read(key.to_owned(), seen(key, value.as_deref())));
    }

    fn scan(&mut self, (from, to): (&str, &str), direction: Direction) -> Result<(), TcError> {
        let (lower, upper) = (Bound::Included(from.as_bytes()), Bound::Excluded(to.as_bytes()));
        let mut found = Vec::new();
        for entry in self.tx.scan(TABLE, lower, upper, direction) {
            let (key, value) = entry?;
            let key = String::from_utf8(key).expect("a letter");
            let value = seen(&key, Some(&value));
            found.push((key, value));
        }
        let in_order = match direction {
            Direction::Forward => found.is_sorted_by(|a, b| a.0 < b.0),
            Direction::Reverse => found.is_sorted_by(|a, b| a.0 > b.0),
        };
        assert!(in_order, "a scan {direction:?} returned {found:?}");
        let range = history::Range { from: from.to_owned(), to: to.to_owned(), found };
        self.operations.push(history::Operation::Range(range));
        Ok(())
    }

    /// Some operation; `number` is written by no other. Whether it was a write.
    fn operate(&mut self, random: &mut SplitMix, number: u64) -> Result<bool, TcError> {
        let list = LISTS[random.index(LISTS.len())];
        let register = REGISTERS[random.index(REGISTERS.len())];
        let written = match random.below(12) {
            0..3 => {
                let key = if random.sometimes(50) { list } else { register };
                let value = self.tx.get(TABLE, key.as_bytes())?;
                self.read(key, value);
                None
            }
            3..5 => {
                let (range, direction) = (RANGES[random.index(RANGES.len())], either(random));
                // The second makes known what the first has noted to be empty.
                (0..1 + random.below(2)).try_for_each(|_| self.scan(range, direction))?;
                None
            }
            5 => {
                let value = self.tx.get_for_update(TABLE, register.as_bytes())?;
                self.read(register, value);
                None
            }
            6..9 => {
                self.tx.append(TABLE, list.as_bytes(), &number.to_be_bytes())?;
                Some(history::Operation::Append(list.to_owned(), number.into()))
            }
            9 => {
                self.tx.delete(TABLE, register.as_bytes())?;
                Some(history::Operation::Write(register.to_owned(), None))
            }
            _ => {
                self.tx.put(TABLE, register.as_bytes(), &number.to_be_bytes())?;
                Some(history::Operation::Write(register.to_owned(), Some(number.into())))
            }
        };
        let is_write = written.is_some();
        self.operations.extend(written);
        Ok(is_write)
    }

    fn step(&mut self, random: &mut SplitMix, number: u64) -> Result<(), TcError> {
        if random.sometimes(85) {
            return self.operate(random, number).map(drop);
        }
        let savepoint = self.tx.savepoint()?;
        let is_write = self.operate(random, number)?;
        self.tx.rollback_to(&savepoint)?;
        // What was written is undone; what was read has been seen.
        if is_write {
            self.operations.pop();
        }
        Ok(())
    }
}

fn client(bed: &Bed, process: u64, seed: u64) {
    let mut random = SplitMix::new(seed);
    for turn in 0..3 {
        let read_only = random.sometimes(20);
        let begin = bed.now();
        let tx = bed.tc().begin_with(BeginOptions { read_only, ..BeginOptions::default() });
        let mut noted = Noted { tx, operations: Vec::new() };
        let steps = 1 + random.below(4);
        let done = match read_only {
            true => noted.scan(RANGES[random.index(RANGES.len())], either(&mut random)),
            false => {
                (0..steps).try_for_each(|step| noted.step(&mut random, process << 16 | turn << 8 | step))
            }
        };
        let done = done.and_then(|()| noted.tx.commit().map(drop));
        if let Err(error) = &done {
            assert!(error.is_retryable() && !read_only, "client {process}: {error}");
        }
        let outcome = if done.is_ok() { Outcome::Committed } else { Outcome::Aborted };
        let (end, operations) = (bed.now(), noted.operations);
        let transaction = history::Transaction { process, begin, end, outcome, operations };
        bed.history.lock().expect("no panic").push(transaction);
    }
    bed.running.fetch_sub(1, Ordering::SeqCst);
}

/// All duties, in an order that chance chooses, as long as there are clients.
fn maintain(bed: &Bed, seed: u64) {
    let mut random = SplitMix::new(seed);
    while bed.running.load(Ordering::SeqCst) > 0 {
        if !bed.parts.duty(random.below(DUTIES)) {
            thread::yield_now();
        }
    }
}

/// What is there in the end, as a transaction sees it, and as the data component holds it.
fn verify(bed: &Bed) {
    (0..20).for_each(|_| _ = bed.parts.step());
    let begin = bed.now();
    let mut noted = Noted { tx: bed.tc().begin(), operations: Vec::new() };
    noted.scan(EVERYTHING, Direction::Forward).expect("no conflict");
    noted.tx.commit().expect("no conflict");
    let Some(history::Operation::Range(last)) = noted.operations.last().cloned() else {
        panic!("a scan was noted");
    };
    let (end, operations) = (bed.now(), noted.operations);
    let mut history = std::mem::take(&mut *bed.history.lock().expect("no panic"));
    let (process, outcome) = (CLIENTS, Outcome::Committed);
    history.push(history::Transaction { process, begin, end, outcome, operations });
    let mut checker = Checker::new(Level::StrictSerializable);
    for (line, transaction) in (1..).zip(&history) {
        checker.add(line, transaction).expect("a short history");
    }
    if let Some(anomaly) = checker.finish().anomalies.first() {
        let lines: Vec<_> =
            (1..).zip(&history).map(|(line, one): (u64, _)| format!("{line}: {one:?}")).collect();
        panic!("{anomaly}\n{}", lines.join("\n"));
    }
    let request = ScanRequest {
        table: TABLE,
        lower: Bound::Unbounded,
        upper: Bound::Unbounded,
        direction: Direction::Forward,
        bytes_max: usize::MAX,
        records_max: usize::MAX,
    };
    let batch = bed.parts.dc.scan(&request).expect("a map does not fail");
    let held = batch.iter().filter_map(|record| {
        let key = String::from_utf8(record.key.to_vec()).expect("a letter");
        let value = seen(&key, Some(record.value?));
        Some((key, value))
    });
    assert_eq!(held.collect::<Vec<_>>(), last.found, "what the data component holds");
}

fn scenario() {
    let bed = Bed::with(Bed::options(), MEMORY_BYTES);
    let seeds: Vec<u64> = (0..=CLIENTS).map(|_| thread_rng().r#gen()).collect();
    let threads: Vec<_> = (0..)
        .zip(seeds)
        .map(|(number, seed)| {
            let bed = Arc::clone(&bed);
            thread::spawn(move || match number {
                CLIENTS => maintain(&bed, seed),
                _ => client(&bed, number, seed),
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    verify(&bed);
    let statistics = bed.tc().statistics();
    for (name, of) in COUNTED {
        COUNTS.add(name, of(&statistics));
    }
}

const SCHEDULES: Schedules =
    Schedules { scenario, steps_max: 5_000_000, directory: env!("CARGO_TARGET_TMPDIR") };

// ---- waiting ------------------------------------------------------------------------------------------------

/// For one large transaction, and not for all.
const LARGE_MEMORY_BYTES: u64 = 24 << 10;

/// What is counted over all schedules of those that wait for each other.
const WAITED_COUNTED: [Counted; 4] = [
    ("stalls", |statistics| statistics.stalls),
    ("horizon forced", |statistics| statistics.horizon_forced),
    ("collections", |statistics| statistics.versions_dropped),
    ("conflicts", |statistics| statistics.conflicts),
];
static WAITED_COUNTS: Counts = Counts::new();

/// Wakes a thread of the schedule.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Parks until the record is durable.
fn wait_stable(bed: &Bed, record: Lsn) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    while bed
        .parts
        .log
        .poll_stable(record, &waker)
        .map(|stable| stable.expect("the log goes on"))
        .is_pending()
    {
        thread::park();
    }
}

/// Large transactions, each of which is durable before the next begins, and readers that are in the way of what is collected.
fn large_client(bed: &Bed, process: u64, seed: u64) {
    let mut random = SplitMix::new(seed);
    for _ in 0..3 {
        let mut tx = bed.tc().begin();
        let reads = random.sometimes(30);
        let done = (0..4 + random.below(5)).try_for_each(|number| {
            let key = [b'a' + random.below(6) as u8, process as u8 * u8::from(random.sometimes(70))];
            match reads {
                true => tx.get(TABLE, &key).map(drop),
                false => tx.put(TABLE, &key, &vec![number as u8; 200 * random.index(8)]),
            }
        });
        match done.and_then(|()| tx.commit()) {
            Ok(committed) => committed.durable_at.into_iter().for_each(|record| wait_stable(bed, record)),
            Err(error) => {
                let is_large = matches!(error, TcError::TransactionTooLarge { .. });
                assert!(error.is_retryable() || is_large, "client {process}: {error}");
            }
        }
    }
    bed.running.fetch_sub(1, Ordering::SeqCst);
}

/// A thread for each duty, and one that writes the log only if somebody asks for it.
fn crowd() {
    let bed = Bed::with(TcOptions { clock_lease: 4, ..Bed::options() }, LARGE_MEMORY_BYTES);
    let seeds: Vec<u64> = (0..CLIENTS).map(|_| thread_rng().r#gen()).collect();
    let clients = (0..).zip(seeds).map(|(number, seed)| {
        let bed = Arc::clone(&bed);
        thread::spawn(move || large_client(&bed, number, seed))
    });
    let duties = (0..DUTIES).map(|which| {
        let bed = Arc::clone(&bed);
        thread::spawn(move || {
            while bed.running.load(Ordering::SeqCst) > 0 {
                let worked = match which {
                    0 => {
                        let flushed = bed.parts.log.flush_step().expect("a log in memory does not fail");
                        flushed | bed.parts.log.wake_step()
                    }
                    _ => bed.parts.duty(which),
                };
                if !worked {
                    thread::yield_now();
                }
            }
        })
    });
    let threads: Vec<_> = clients.chain(duties).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    // With nobody at work there is nothing to do before long.
    let mut steps = 0..1000;
    while (0..4).any(|_| bed.parts.step()) {
        steps.next().expect("background work comes to an end");
    }
    let statistics = bed.tc().statistics();
    for (name, of) in WAITED_COUNTED {
        WAITED_COUNTS.add(name, of(&statistics));
    }
}

const CROWDS: Schedules =
    Schedules { scenario: crowd, steps_max: 5_000_000, directory: env!("CARGO_TARGET_TMPDIR") };

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
fn whatever_the_schedule_what_clients_see_is_strictly_serializable() {
    SCHEDULES.run_all(&COUNTS);
}
