//! Schedules of the assembled component: clients, the flusher, the proxy, the evictor and the recycler of the log, with a switch of
//! threads at any access to shared memory, chosen by shuttle. What the clients saw must be strictly serializable, in the eyes of the
//! checker of histories, which knows nothing of the component; and the data component holds in the end what the last reader sees.
//!
//! ```sh
//! RUSTFLAGS="--cfg shuttle" DEUTERON_SCHEDULES=1000 cargo test -p deuteron-tc --release --test shuttle
//! ```
//!
//! What fails names the file of its schedule; with `DEUTERON_REPLAY` set to that, it is run again.

#![cfg(shuttle)]

use deuteron_contract::conformance::SplitMix;
use deuteron_contract::{DataComponent, Direction, Lsn, MemoryDc, ScanRequest, TableId, Timestamp};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_history as history;
use deuteron_history::{Checker, Level, Outcome, Seen, Value};
use deuteron_log::{Log, LogOptions};
use deuteron_proxy::{Progress, Proxy, ProxyHost};
use deuteron_tc::{
    BeginOptions, Host, Stall, TcError, TcOptions, TcStatistics, Transaction, TransactionComponent,
};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner, thread};
use std::ops::Bound;
// Of std: no places to switch threads.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

const TABLE: TableId = TableId(1);
const CLIENTS: u64 = 3;
/// Keys are single letters: lists are appended to, registers written.
const LISTS: [&str; 2] = ["a", "c"];
const REGISTERS: [&str; 3] = ["b", "d", "e"];
const EVERYTHING: (&str, &str) = ("a", "f");

/// For records and versions.
const MEMORY_BYTES: u64 = 6 << 10;

/// What is counted over all schedules: that what should meet is there to meet.
type Counted = (&'static str, fn(&TcStatistics) -> u64);
const COUNTED: [Counted; 8] = [
    ("commits", |statistics| statistics.commits),
    ("conflicts", |statistics| statistics.conflicts),
    ("refreshed commits", |statistics| statistics.refreshed_commits),
    ("moves", |statistics| statistics.moves),
    ("waits", |statistics| statistics.waits),
    ("misses", |statistics| statistics.misses),
    ("evictions", |statistics| statistics.evictions),
    ("read cache hits", |statistics| statistics.read_cache_hits),
];
static COUNTS: [AtomicU64; COUNTED.len()] = [const { AtomicU64::new(0) }; COUNTED.len()];

struct Bed {
    tc: OnceLock<TransactionComponent>,
    log: Arc<Log>,
    dc: Arc<MemoryDc>,
    epochs: Arc<Epochs>,
    proxy: OnceLock<Proxy>,
    /// Orders what happens in real time.
    time: AtomicU64,
    running: AtomicU64,
    history: Mutex<Vec<history::Transaction>>,
}

struct Hosted(Weak<Bed>);

impl Host for Hosted {
    fn stalled(&self, _: Stall) -> Result<(), String> {
        thread::yield_now();
        Ok(())
    }
}

impl ProxyHost for Hosted {
    fn horizon(&self) -> Timestamp {
        self.0.upgrade().map_or(Timestamp(0), |bed| bed.tc().horizon())
    }

    fn force_horizon(&self, at_least: Timestamp) {
        if let Some(bed) = self.0.upgrade() {
            bed.tc().force_horizon(at_least);
        }
    }

    fn progress(&self, progress: Progress) {
        if let Some(bed) = self.0.upgrade() {
            bed.tc().report_progress(progress.t_lsn, progress.o_lsn, progress.posted);
        }
    }
}

impl Bed {
    fn new() -> Arc<Bed> {
        let options = TcOptions { memory_bytes: 1 << 10, patience: 6, ..TcOptions::tiny_for_tests() };
        let epochs = Epochs::new();
        let directory = Arc::new(MemoryDirectory::new());
        let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), Arc::clone(&epochs), Lsn(0))
            .expect("a new log");
        let log = Arc::new(log);
        let start = log.tail_lsn();
        let dc = Arc::new(MemoryDc::new());
        let bed = Arc::new(Bed {
            tc: OnceLock::new(),
            log: Arc::clone(&log),
            dc: Arc::clone(&dc),
            epochs: Arc::clone(&epochs),
            proxy: OnceLock::new(),
            time: AtomicU64::new(1),
            running: AtomicU64::new(CLIENTS),
            history: Mutex::default(),
        });
        let host = Arc::new(Hosted(Arc::downgrade(&bed)));
        let tc =
            TransactionComponent::open(options, log, Arc::clone(&dc) as _, epochs, Arc::clone(&host) as _);
        let tc = tc.expect("an open log");
        // Shuttle's atomics are large. Beyond what is there already, there is room for some of the keys.
        tc.set_memory_budget(tc.statistics().memory_bytes + MEMORY_BYTES);
        assert!(bed.tc.set(tc).is_ok());
        let proxy = Proxy::new(Arc::clone(&dc) as _, host, deuteron_proxy::Options::tiny_for_tests(), start);
        assert!(bed.proxy.set(proxy).is_ok());
        bed
    }

    fn tc(&self) -> &TransactionComponent {
        self.tc.get().expect("set when made")
    }

    fn now(&self) -> u64 {
        self.time.fetch_add(1, Ordering::SeqCst)
    }

    /// One of the background duties; whether there was something to do.
    fn duty(&self, which: u64) -> bool {
        match which {
            0 => {
                self.log.request_flush(Lsn(u64::MAX));
                self.log.flush_step().expect("a log in memory does not fail")
            }
            1 => self.proxy.get().expect("set when made").step(&*self.log).expect("a map does not fail"),
            2 => self.tc().collect_step(),
            3 => self.log.recycle_step(),
            _ => self.epochs.collect() > 0,
        }
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
            3 => {
                self.scan(EVERYTHING, Direction::Forward)?;
                None
            }
            4 => {
                self.scan(("b", "e"), Direction::Reverse)?;
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
            true => noted.scan(EVERYTHING, Direction::Reverse),
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
        if !bed.duty(random.below(5)) {
            thread::yield_now();
        }
    }
}

/// What is there in the end, as a transaction sees it, and as the data component holds it.
fn verify(bed: &Bed) {
    for _ in 0..20 {
        (0..5).for_each(|which| _ = bed.duty(which));
    }
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
    };
    let held = bed.dc.scan(&request).expect("a map does not fail").records.into_iter().filter_map(|record| {
        let key = String::from_utf8(record.key).expect("a letter");
        let value = seen(&key, Some(&record.value?));
        Some((key, value))
    });
    assert_eq!(held.collect::<Vec<_>>(), last.found, "what the data component holds");
}

fn scenario() {
    let bed = Bed::new();
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
    for ((_, of), count) in COUNTED.iter().zip(&COUNTS) {
        count.fetch_add(of(&statistics), Ordering::Relaxed);
    }
}

fn run(scheduler: impl Scheduler + 'static) -> usize {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = MaxSteps::FailAfter(5_000_000);
    config.silence_warnings = true;
    config.failure_persistence = FailurePersistence::File(Some(env!("CARGO_TARGET_TMPDIR").into()));
    Runner::new(scheduler, config).run(scenario)
}

#[test]
fn a_schedule_that_failed_is_run_again() {
    if let Ok(file) = std::env::var("DEUTERON_REPLAY") {
        run(ReplayScheduler::new_from_file(file).expect("a schedule"));
    }
}

#[test]
fn whatever_the_schedule_what_clients_see_is_strictly_serializable() {
    let schedules = std::env::var("DEUTERON_SCHEDULES").map_or(300, |count| count.parse().expect("a number"));
    let run = [
        run(RandomScheduler::new(schedules)),
        run(PctScheduler::new(3, schedules)),
        run(PctScheduler::new(30, schedules)),
    ];
    let counts: Vec<_> = COUNTED
        .iter()
        .zip(&COUNTS)
        .map(|((name, _), count)| {
            let count = count.load(Ordering::Relaxed);
            assert!(count > 0, "no {name} in any schedule");
            format!("{count} {name}")
        })
        .collect();
    println!("shuttle: {} schedules, {}, 0 failures", run.iter().sum::<usize>(), counts.join(", "));
}
