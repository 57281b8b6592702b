//! Contention: the cases of `deuteron bench contention`, also for RocksDB's two transaction engines.
//!
//! Each measurement is a process of its own with a new database; the engines take turns, and for each case and number of threads the
//! medians are printed beside each other. All run the same transactions under the same driver, which repeats what
//! was aborted after the same pauses. A read-modify-write reads with the intent to write in each of them.

use crate::compare::{median, report_of, suit_allocator};
use crate::peer::{PeerStore, Settings};
use crate::rocksdb::{Optimistic, Pessimistic};
use clap::{Args, ValueEnum};
use deuteron::{ConcurrencyControl, Durability, Options};
use deuteron_bench::{ContentionCase, ContentionFigure, Driver, EmbeddedStore, Store, load, run_contention};
use serde_json::{Value, json};
use std::error::Error;
use std::process::Command;
use std::time::Duration;

/// An engine under contention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ContentionEngine {
    /// Deuteron as it is.
    Deuteron,
    /// Deuteron in pure timestamp order.
    TimestampOrder,
    /// RocksDB's OptimisticTransactionDB.
    RocksdbOptimistic,
    /// RocksDB's TransactionDB, with its detection of deadlocks.
    RocksdbPessimistic,
}

/// Where transactions meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Four read-modify-writes on 100,000 keys by Zipf's law, 0.99.
    Zipf,
    /// Two read-modify-writes on 10 keys.
    Hot,
    /// Long and short transactions with the accesses of TPC-C.
    Mix,
}

impl Case {
    fn case(self) -> ContentionCase {
        match self {
            Case::Zipf => ContentionCase::Zipf,
            Case::Hot => ContentionCase::Hot,
            Case::Mix => ContentionCase::Mix,
        }
    }
}

/// How long and with what.
#[derive(Args, Clone)]
pub struct ContentionWork {
    /// Other threads have a turn after each operation.
    #[arg(long)]
    interleave: bool,
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    #[arg(long, default_value_t = 1.0)]
    warmup_seconds: f64,
    /// Memory of the engine, in bytes.
    #[arg(long, default_value_t = 1 << 30)]
    memory: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Measures one engine in one case.
pub fn measure(
    engine: ContentionEngine,
    case: Case,
    threads: usize,
    work: &ContentionWork,
) -> Result<ContentionFigure, Box<dyn Error>> {
    let driver = Driver {
        threads,
        in_flight: 1,
        warmup: Duration::from_secs_f64(work.warmup_seconds),
        seconds: Duration::from_secs_f64(work.seconds),
        seed: work.seed,
        ..Driver::default()
    };
    let scratch = tempfile::tempdir()?;
    let settings = Settings {
        directory: scratch.path().to_owned(),
        sync: false,
        memory: work.memory,
        beyond_memory: false,
    };
    let embedded = |control, name| -> Result<ContentionFigure, Box<dyn Error>> {
        let options = Options::new().memory(work.memory).concurrency_control(control);
        let durability = Durability::Delayed(Duration::from_millis(10));
        let store = EmbeddedStore::open(options, scratch.path(), durability, 1)?.named(name);
        let figure = drive(&store, case, work, &driver)?;
        store.close()?;
        Ok(figure)
    };
    match engine {
        ContentionEngine::Deuteron => embedded(ConcurrencyControl::Pushes, "deuteron"),
        ContentionEngine::TimestampOrder => embedded(ConcurrencyControl::TimestampOrder, "timestamp-order"),
        ContentionEngine::RocksdbOptimistic => {
            drive(&PeerStore::new(Optimistic::open(&settings)?, settings), case, work, &driver)
        }
        ContentionEngine::RocksdbPessimistic => {
            drive(&PeerStore::new(Pessimistic::open(&settings)?, settings), case, work, &driver)
        }
    }
}

fn drive<S: Store>(
    store: &S,
    case: Case,
    work: &ContentionWork,
    driver: &Driver,
) -> Result<ContentionFigure, Box<dyn Error>> {
    // By one thread: nobody meets while loading.
    let loading = Driver { threads: 1, ..driver.clone() };
    load(store, &case.case().workload(work.interleave), &loading, &mut |_| {})?;
    Ok(run_contention(store, case.case(), work.interleave, driver)?)
}

/// Measures the engines in turns, and prints a line for each case, number of threads and engine.
pub fn compare(
    engines: &[ContentionEngine],
    cases: &[Case],
    threads: &[usize],
    rounds: usize,
    work: &ContentionWork,
    as_json: bool,
) -> Result<(), Box<dyn Error>> {
    let mut rows = Vec::new();
    for &case in cases {
        for &threads in threads {
            let mut series = vec![(Vec::new(), Vec::new()); engines.len()];
            for round in 0..rounds {
                // The one that begins is another each time.
                for turn in 0..engines.len() {
                    let which = (round + turn) % engines.len();
                    let figure = child(engines[which], case, threads, work)?;
                    let number = |field: &str| figure[field].as_f64().unwrap_or_default();
                    series[which].0.push(number("commits_per_second"));
                    series[which].1.push(number("abort_rate"));
                }
            }
            let first = series.first().map(|(commits, _)| median(commits)).unwrap_or_default();
            for (engine, (commits, aborts)) in engines.iter().zip(&series) {
                let rate = median(commits);
                rows.push(json!({
                    "case": name(case), "interleaved": work.interleave, "threads": threads,
                    "engine": name(*engine), "commits_per_second": rate, "abort_rate": median(aborts),
                    "first_is_times_as_fast": first / rate,
                }));
                if !as_json {
                    println!("{}", line(&rows[rows.len() - 1]));
                }
            }
        }
    }
    if as_json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    }
    Ok(())
}

fn line(row: &Value) -> String {
    let text = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let number = |field: &str| row[field].as_f64().unwrap_or_default();
    format!(
        "{:<4} {:<11} {:>2} threads {:<20} {:>9.0} commits/s {:>5.1} % aborted, the first is {:>5.2} times as fast",
        text("case"),
        if row["interleaved"] == true { "interleaved" } else { "" },
        number("threads"),
        text("engine"),
        number("commits_per_second"),
        100.0 * number("abort_rate"),
        number("first_is_times_as_fast"),
    )
}

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn child(
    engine: ContentionEngine,
    case: Case,
    threads: usize,
    work: &ContentionWork,
) -> Result<Value, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["contention", "--engine", &name(engine), "--case", &name(case)]);
    command.args(["--threads", &threads.to_string(), "--seconds", &work.seconds.to_string()]);
    command.args(["--warmup-seconds", &work.warmup_seconds.to_string()]);
    command.args(["--memory", &work.memory.to_string(), "--seed", &work.seed.to_string()]);
    if work.interleave {
        command.arg("--interleave");
    }
    suit_allocator(&mut command, work.memory);
    report_of(command, &name(engine)).map_err(|error| error as Box<dyn Error>)
}
