//! The process that is killed: it runs the script and says what has been acknowledged.
//!
//! What it says on standard output, a line each: `ready` once the database is open; `a THREAD SEQUENCE COUNT` when
//! the writers of a thread up to that number, COUNT more than the last time, are durable; `s JSON`, a [`LiveStats`].
//! It ends when its standard input does, so that it does not outlive its parent.

use super::script::{Access, Script, Scripted};
use super::{LEDGER_TABLE, MARKER_TABLES, RECORDS_TABLE, Shape, Version, ledger_key, room, write_value};
use crate::arguments::{AdversityName, KillChildArguments};
use crate::failure::{Failure, Kind, Outcome};
use deuteron::device::{AdverseDirectory, Adversity, OsDirectory};
use deuteron::{Db, Durability, Error, Options, Table, Ticket, Transaction};
use deuteron_bench::{Latency, Random};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the child says how fast it is.
const STATS_INTERVAL: Duration = Duration::from_millis(100);

/// The shortest time between two reports of one thread's acknowledgements; each is a system call.
const REPORT_INTERVAL: Duration = Duration::from_micros(500);

/// An adversity comes at one of so many operations on files; opening takes some.
const OPERATIONS_MAX: u64 = 120;

/// At most so much memory is left to a process that is to run out of it.
const MEMORY_LEFT_MAX: u64 = 24 << 20;

/// How fast the child is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveStats {
    /// Since the database was open.
    pub seconds: f64,
    /// Acknowledged commits, readers included.
    pub commits: u64,
    /// Aborts; each was run again.
    pub aborts: u64,
    /// From begin to durable acknowledgement.
    pub latency_us: Latency,
}

/// The tables of the workload.
struct Tables {
    records: Table,
    markers: [Table; 2],
    ledger: Table,
}

impl Tables {
    fn open(db: &Db) -> Outcome<Self> {
        let [left, right] = MARKER_TABLES;
        Ok(Self {
            records: db.table(RECORDS_TABLE)?,
            markers: [db.table(left)?, db.table(right)?],
            ledger: db.table(LEDGER_TABLE)?,
        })
    }
}

/// Takes all memory away but what the process has, and `more` bytes.
fn limit_memory(more: u64) -> Outcome {
    let failed = |error: std::io::Error| Failure::because("cannot limit the memory", &error);
    let status = std::fs::read_to_string("/proc/self/status").map_err(failed)?;
    let held = status
        .lines()
        .find_map(|line| line.strip_prefix("VmData:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let Some(held) = held else {
        return Err(Failure::new(Kind::Failed, "the system does not say what memory is held"));
    };
    let limit = Some((held << 10) + more);
    rustix::process::setrlimit(
        rustix::process::Resource::Data,
        rustix::process::Rlimit { current: limit, maximum: limit },
    )
    .map_err(|error| failed(error.into()))
}

/// What one thread counts.
struct Counts {
    commits: AtomicU64,
    aborts: AtomicU64,
    latencies: Mutex<Histogram<u64>>,
}

impl Counts {
    fn new() -> Self {
        // From a microsecond to a minute to three digits; the bounds are constants that the library accepts.
        let latencies =
            Histogram::new_with_bounds(1_000, 60_000_000_000, 3).expect("constant bounds are valid");
        Self { commits: AtomicU64::new(0), aborts: AtomicU64::new(0), latencies: Mutex::new(latencies) }
    }
}

/// `deuteron kill-child`.
pub fn run(arguments: &KillChildArguments) -> Outcome {
    std::thread::spawn(|| {
        // Nothing is ever written to it: it ends when the parent does.
        let _ = std::io::stdin().lock().read(&mut [0]);
        std::process::exit(0);
    });
    let shape: Shape = serde_json::from_str(&arguments.shape)
        .map_err(|error| Failure::new(Kind::Usage, format!("--shape: {error}")))?;
    let options = Options::new().memory(shape.memory).durability(Durability::Sync).create_if_missing(false);
    let mut random = Random::new(arguments.adversity_seed);
    let adversity = match arguments.adversity {
        Some(AdversityName::Device) => Some(Adversity::Fails(random.below(OPERATIONS_MAX))),
        Some(AdversityName::Power) => {
            Some(Adversity::LosesPower(random.below(OPERATIONS_MAX), arguments.adversity_seed))
        }
        Some(AdversityName::Full) if !room::is_small(&arguments.database)? => {
            Some(Adversity::Fills(room::left(&mut random)))
        }
        Some(AdversityName::Full | AdversityName::Memory) | None => None,
    };
    let db = match adversity {
        None => options.open(&arguments.database)?,
        Some(adversity) => {
            let files = OsDirectory::open_existing(&arguments.database)
                .map_err(|error| Failure::because("cannot open the directory", &error))?;
            options.open_in(Arc::new(AdverseDirectory::new(Arc::new(files), adversity)))?
        }
    };
    if arguments.adversity == Some(AdversityName::Memory) {
        limit_memory(random.below(MEMORY_LEFT_MAX))?;
    }
    let tables = Tables::open(&db)?;
    say("ready")?;
    if arguments.idle {
        loop {
            std::thread::park();
        }
    }
    if arguments.first.len() != shape.threads as usize {
        return Err(Failure::new(Kind::Usage, "--first has one number for each thread"));
    }
    let counts: Vec<Counts> = (0..shape.threads).map(|_| Counts::new()).collect();
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for ((thread, &first), counts) in (0..).zip(&arguments.first).zip(&counts) {
            let (db, tables, shape, failure) = (&db, &tables, &shape, &failure);
            let version = Version { round: arguments.round, thread, sequence: first };
            scope.spawn(move || {
                let mut thread = Thread::new(db, tables, shape, counts, version);
                if let Err(error) = thread.run() {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            });
        }
        let begin = Instant::now();
        loop {
            std::thread::sleep(STATS_INTERVAL);
            if let Some(failure) = failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // The other threads have no end of their own.
                failure.print(false);
                std::process::exit(1);
            }
            report_stats(&counts, begin)?;
        }
    })
}

/// Says one line to the parent.
fn say(line: &str) -> Outcome {
    let mut output = std::io::stdout().lock();
    // One write: lines of this length go through a pipe whole, or not at all when we are killed.
    output
        .write_all(format!("{line}\n").as_bytes())
        .and_then(|()| output.flush())
        .map_err(|error| Failure::output(&error))
}

fn report_stats(counts: &[Counts], begin: Instant) -> Outcome {
    let mut latencies = Counts::new().latencies.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut stats = LiveStats { seconds: begin.elapsed().as_secs_f64(), ..LiveStats::default() };
    for counts in counts {
        stats.commits += counts.commits.load(Ordering::Relaxed);
        stats.aborts += counts.aborts.load(Ordering::Relaxed);
        let thread = counts.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.add(&*thread).expect("all histograms have the same bounds");
    }
    stats.latency_us = Latency::of_nanoseconds(&latencies);
    let json = serde_json::to_string(&stats)
        .map_err(|error| Failure::because("cannot write the statistics as JSON", &error))?;
    say(&format!("s {json}"))
}

/// A commit that awaits its acknowledgement.
struct InFlight {
    begin: Instant,
    ticket: Ticket,
    /// Its number, if it writes.
    writer: Option<u64>,
}

/// One thread of the workload.
struct Thread<'a> {
    db: &'a Db,
    tables: &'a Tables,
    shape: &'a Shape,
    counts: &'a Counts,
    version: Version,
    value: Vec<u8>,
    in_flight: VecDeque<InFlight>,
    /// The last durable writer and how many, not yet reported.
    acknowledged: Option<(u64, u64)>,
    reported: Instant,
}

impl<'a> Thread<'a> {
    fn new(db: &'a Db, tables: &'a Tables, shape: &'a Shape, counts: &'a Counts, version: Version) -> Self {
        Self {
            db,
            tables,
            shape,
            counts,
            version,
            value: vec![0; shape.value_bytes],
            in_flight: VecDeque::with_capacity(shape.in_flight),
            acknowledged: None,
            reported: Instant::now(),
        }
    }

    /// Runs until killed.
    fn run(&mut self) -> Outcome {
        let script = Script::new(self.shape);
        let mut scripted = Scripted::default();
        let mut now = Instant::now();
        loop {
            script.transaction(self.version, &mut scripted);
            let begin = now;
            let ticket = self.commit(&scripted)?;
            let writer = scripted.writer.then_some(self.version.sequence);
            self.in_flight.push_back(InFlight { begin, ticket, writer });
            now = Instant::now();
            if self.in_flight.len() >= self.shape.in_flight.max(1)
                && let Some(oldest) = self.in_flight.pop_front()
            {
                let InFlight { begin, ticket, writer } = oldest;
                ticket.wait()?;
                now = Instant::now();
                self.acknowledge(writer, now - begin);
            }
            while let Some(durable) = self.in_flight.pop_front_if(|oldest| oldest.ticket.is_durable()) {
                durable.ticket.wait()?;
                self.acknowledge(durable.writer, now - durable.begin);
            }
            self.report(now)?;
            self.version.sequence += 1;
        }
    }

    /// Runs one transaction until it commits.
    fn commit(&mut self, scripted: &Scripted) -> Outcome<Ticket> {
        loop {
            let mut tx = self.db.begin();
            let body = self.execute(&mut tx, scripted);
            match body.and_then(|()| tx.commit_async()) {
                Ok(ticket) => return Ok(ticket),
                Err(error) if error.is_retryable() => {
                    self.counts.aborts.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn execute(&mut self, tx: &mut Transaction, scripted: &Scripted) -> Result<(), Error> {
        for &access in &scripted.accesses {
            match access {
                Access::Read(key) => {
                    tx.get_with(&self.tables.records, &key.to_be_bytes(), |value| {
                        std::hint::black_box(value.len())
                    })?;
                }
                Access::Write(key) => {
                    write_value(&mut self.value, self.version, key);
                    tx.put(&self.tables.records, &key.to_be_bytes(), &self.value)?;
                }
            }
        }
        let (thread, version) = (self.version.thread, self.version.to_bytes());
        if scripted.writer {
            for marker in &self.tables.markers {
                tx.put(marker, &thread.to_be_bytes(), &version)?;
            }
        }
        if let Some(entry) = scripted.ledger {
            tx.put(&self.tables.ledger, &ledger_key(thread, self.version.sequence), &version)?;
            if let Some(deletes) = entry.deletes {
                tx.delete(&self.tables.ledger, &ledger_key(thread, deletes))?;
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self, writer: Option<u64>, latency: Duration) {
        self.counts.commits.fetch_add(1, Ordering::Relaxed);
        let mut latencies = self.counts.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.saturating_record(latency.as_nanos() as u64);
        drop(latencies);
        if let Some(sequence) = writer {
            let (_, count) = self.acknowledged.unwrap_or_default();
            self.acknowledged = Some((sequence, count + 1));
        }
    }

    fn report(&mut self, now: Instant) -> Outcome {
        if now - self.reported < REPORT_INTERVAL {
            return Ok(());
        }
        let Some((sequence, count)) = self.acknowledged.take() else { return Ok(()) };
        self.reported = now;
        say(&format!("a {} {sequence} {count}", self.version.thread))
    }
}
