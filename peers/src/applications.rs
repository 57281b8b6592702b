//! Application benchmarks: TATP, SmallBank, TPC-C and Voter on Deuteron and its peers.
//!
//! All run the same transactions, as `deuteron bench tatp` and its neighbours do, under the strongest isolation that they offer, which is
//! printed. Each measurement is a process of its own with a new database; the engines take turns. What must hold
//! afterwards is checked in each run; the comparison names what does not, and fails in the end.

mod fjall;
mod lmdb;
mod redb;
mod rocksdb;

use crate::compare::{median, report_of, suit_allocator};
use crate::peer::{Settings, Trouble};
use clap::{Args, ValueEnum};
use deuteron::{Durability, Options};
use deuteron_bench::{
    Application, ApplicationReport, ApplicationStore, BenchError, Driver, EmbeddedApplicationStore,
    Interruption, SmallBank, Tatp, Tpcc, Voter, run_application,
};
use serde_json::{Value, json};
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// An engine that runs applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ApplicationEngine {
    /// Deuteron, embedded.
    Deuteron,
    /// RocksDB's OptimisticTransactionDB.
    RocksdbOptimistic,
    /// RocksDB's TransactionDB, with its detection of deadlocks.
    RocksdbPessimistic,
    /// LMDB: one writer, readers on snapshots.
    Lmdb,
    /// redb: one writer, readers on snapshots.
    Redb,
    /// fjall's optimistic transactions.
    Fjall,
}

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// A register of mobile subscribers.
    Tatp,
    /// Accounts with savings and a checking balance.
    SmallBank,
    /// A wholesaler.
    Tpcc,
    /// Votes by telephone.
    Voter,
}

/// How large, how long and with what.
#[derive(Args, Clone)]
pub struct ApplicationWork {
    /// Of TATP.
    #[arg(long, default_value_t = 100_000)]
    subscribers: u32,
    /// Of SmallBank.
    #[arg(long, default_value_t = 100_000)]
    accounts: u64,
    /// Nine draws of ten are from so many accounts of SmallBank; all alike if 0.
    #[arg(long, default_value_t = 0)]
    hot_accounts: u64,
    /// Of TPC-C.
    #[arg(long, default_value_t = 1)]
    warehouses: u16,
    /// So many times fewer items, customers and orders of TPC-C than specified.
    #[arg(long, default_value_t = 1)]
    shrink: u32,
    /// Of Voter.
    #[arg(long, default_value_t = 6)]
    contestants: u8,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    #[arg(long, default_value_t = 2.0)]
    warmup_seconds: f64,
    /// sync or delayed.
    #[arg(long, default_value = "delayed")]
    durability: String,
    /// Memory of the engine, in bytes.
    #[arg(long, default_value_t = 1 << 30)]
    memory: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the databases are put; a temporary directory if left out.
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl ApplicationWork {
    fn application(&self, workload: Workload) -> Box<dyn Application> {
        match workload {
            Workload::Tatp => Box::new(Tatp::new(self.subscribers)),
            Workload::SmallBank if self.hot_accounts == 0 => Box::new(SmallBank::new(self.accounts)),
            Workload::SmallBank => {
                Box::new(SmallBank::new(self.accounts).with_hotspot(self.hot_accounts, 0.9))
            }
            Workload::Tpcc => Box::new(Tpcc::new(self.warehouses).shrunk(self.shrink)),
            Workload::Voter => Box::new(Voter::new(self.contestants)),
        }
    }
}

/// The name of the durability, for reports.
trait Durable {
    fn durability(&self) -> &'static str;
}

impl Durable for Settings {
    fn durability(&self) -> &'static str {
        if self.sync { "sync" } else { "delayed" }
    }
}

fn interruption(trouble: Trouble) -> Interruption {
    match trouble {
        Trouble::Conflict => Interruption::Conflict("conflict"),
        trouble => Interruption::Failed(failed("run a transaction", trouble)),
    }
}

fn failed(context: &'static str, trouble: Trouble) -> BenchError {
    match trouble {
        Trouble::Conflict => BenchError::store(context)("a conflict where none can be"),
        Trouble::Failed(error) => BenchError::store(context)(error),
    }
}

/// A write where none was announced.
fn reads_only() -> Interruption {
    Interruption::Failed(BenchError::store("write")("the transaction said that it would only read"))
}

/// Measures one engine.
pub fn measure(
    engine: ApplicationEngine,
    workload: Workload,
    work: &ApplicationWork,
) -> Result<ApplicationReport, Box<dyn Error>> {
    let sync = match work.durability.as_str() {
        "sync" => true,
        "delayed" => false,
        other => return Err(format!("\"{other}\" is neither sync nor delayed").into()),
    };
    let scratch = match &work.dir {
        Some(parent) => tempfile::tempdir_in(parent)?,
        None => tempfile::tempdir()?,
    };
    let settings =
        Settings { directory: scratch.path().to_owned(), sync, memory: work.memory, beyond_memory: false };
    let driver = Driver {
        threads: work.threads,
        in_flight: 1,
        warmup: Duration::from_secs_f64(work.warmup_seconds),
        seconds: Duration::from_secs_f64(work.seconds),
        seed: work.seed,
        pin: None,
    };
    let application = &*work.application(workload);
    let drive = |store: &dyn ApplicationStore| run_application(application, store, &driver, &mut |_| {});
    let report = match engine {
        ApplicationEngine::Deuteron => {
            let durability =
                if sync { Durability::Sync } else { Durability::Delayed(Duration::from_millis(10)) };
            let options = Options::new().memory(work.memory);
            let store = EmbeddedApplicationStore::open(options, scratch.path(), durability, application)?;
            let report = drive(&store)?;
            store.close()?;
            report
        }
        ApplicationEngine::RocksdbOptimistic => drive(&rocksdb::RocksdbStore::optimistic(settings)?)?,
        ApplicationEngine::RocksdbPessimistic => drive(&rocksdb::RocksdbStore::pessimistic(settings)?)?,
        ApplicationEngine::Lmdb => drive(&lmdb::LmdbStore::open(settings, application)?)?,
        ApplicationEngine::Redb => drive(&redb::RedbStore::open(settings, application)?)?,
        ApplicationEngine::Fjall => drive(&fjall::FjallStore::open(settings, application)?)?,
    };
    Ok(report)
}

/// What was measured of one engine, one number a round.
#[derive(Default)]
struct Series {
    rates: Vec<f64>,
    /// By the processor time of all threads: what a busy machine leaves as it is.
    processor_rates: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    aborted: Vec<f64>,
    isolation: String,
    scale: String,
    /// Conditions that did not hold.
    violated: Vec<Value>,
}

/// Measures the engines in turns, and prints a line for each benchmark and engine.
pub fn compare(
    engines: &[ApplicationEngine],
    workloads: &[Workload],
    rounds: usize,
    work: &ApplicationWork,
    as_json: bool,
) -> Result<(), Box<dyn Error>> {
    let mut rows = Vec::new();
    for &workload in workloads {
        let mut all: Vec<Series> = engines.iter().map(|_| Series::default()).collect();
        for round in 0..rounds {
            // The one that begins is another each time.
            for turn in 0..engines.len() {
                let which = (round + turn) % engines.len();
                all[which].add(&child(engines[which], workload, work)?);
            }
        }
        let first = all.first().map(|series| median(&series.rates)).unwrap_or_default();
        for (&engine, series) in engines.iter().zip(&all) {
            let row = series.row(name(workload), name(engine), first);
            if !as_json {
                println!("{}", line(&row));
            }
            rows.push(row);
        }
    }
    if as_json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    }
    let violated: Vec<String> = rows
        .iter()
        .filter(|row| row["violated"].as_array().is_some_and(|violated| !violated.is_empty()))
        .map(|row| format!("{} on {}: {}", row["application"], row["engine"], row["violated"]))
        .collect();
    if violated.is_empty() { Ok(()) } else { Err(violated.join("\n").into()) }
}

impl Series {
    fn add(&mut self, report: &Value) {
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.rates.push(number(&report["transactions_per_second"]));
        let ended = number(&report["commits"]) + number(&report["rolled_back"]);
        self.processor_rates.push(ended / number(&report["processor_seconds"]).max(0.01));
        self.p50.push(number(&report["latency_us"]["p50"]));
        self.p99.push(number(&report["latency_us"]["p99"]));
        self.aborted.push(number(&report["abort_rate"]));
        (self.isolation, self.scale) = (text(&report["isolation"]), text(&report["scale"]));
        let conditions = report["conditions"].as_array().into_iter().flatten();
        self.violated.extend(conditions.filter(|condition| condition["holds"] != true).cloned());
    }

    fn row(&self, application: String, engine: String, first: f64) -> Value {
        let rate = median(&self.rates);
        json!({
            "application": application,
            "scale": self.scale,
            "engine": engine,
            "isolation": self.isolation,
            "transactions_per_second": rate,
            "lowest": self.rates.iter().copied().fold(f64::INFINITY, f64::min),
            "highest": self.rates.iter().copied().fold(0.0, f64::max),
            "first_is_times_as_fast": first / rate,
            "transactions_per_processor_second": median(&self.processor_rates),
            "latency_us_p50": median(&self.p50),
            "latency_us_p99": median(&self.p99),
            "abort_rate": median(&self.aborted),
            "violated": self.violated,
        })
    }
}

fn line(row: &Value) -> String {
    let text = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let number = |field: &str| row[field].as_f64().unwrap_or_default();
    let violated = row["violated"].as_array().map_or(0, Vec::len);
    format!(
        "{:<10} {:<19} {:>9.0} transactions/s ({:.0} to {:.0}), the first is {:>6.2} times as fast, {:.0} a processor's second, \
         p50 {:.1} us, p99 {:.1} us, {:.2} % aborted; {}; {}{}",
        text("application"),
        text("engine"),
        number("transactions_per_second"),
        number("lowest"),
        number("highest"),
        number("first_is_times_as_fast"),
        number("transactions_per_processor_second"),
        number("latency_us_p50"),
        number("latency_us_p99"),
        100.0 * number("abort_rate"),
        text("scale"),
        text("isolation"),
        if violated == 0 { String::new() } else { format!("; {violated} CONDITIONS DO NOT HOLD") },
    )
}

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn child(
    engine: ApplicationEngine,
    workload: Workload,
    work: &ApplicationWork,
) -> Result<Value, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["applications", "--engine", &name(engine), "--workload", &name(workload)]);
    for (option, value) in [
        ("--subscribers", work.subscribers.to_string()),
        ("--accounts", work.accounts.to_string()),
        ("--hot-accounts", work.hot_accounts.to_string()),
        ("--warehouses", work.warehouses.to_string()),
        ("--shrink", work.shrink.to_string()),
        ("--contestants", work.contestants.to_string()),
        ("--threads", work.threads.to_string()),
        ("--seconds", work.seconds.to_string()),
        ("--warmup-seconds", work.warmup_seconds.to_string()),
        ("--durability", work.durability.clone()),
        ("--memory", work.memory.to_string()),
        ("--seed", work.seed.to_string()),
    ] {
        command.args([option, &value]);
    }
    if let Some(directory) = &work.dir {
        command.arg("--dir").arg(directory);
    }
    suit_allocator(&mut command, work.memory);
    report_of(command, &name(engine)).map_err(|error| error as Box<dyn Error>)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_runs_every_application_and_the_conditions_hold() {
        let work = ApplicationWork {
            subscribers: 200,
            accounts: 100,
            hot_accounts: 5,
            warehouses: 2,
            shrink: 1_000,
            contestants: 3,
            threads: 3,
            seconds: 0.2,
            warmup_seconds: 0.0,
            durability: "delayed".into(),
            memory: 64 << 20,
            seed: 1,
            dir: None,
        };
        for &engine in ApplicationEngine::value_variants() {
            for &workload in Workload::value_variants() {
                let report = measure(engine, workload, &work).unwrap();
                assert_eq!(report.engine, name(engine));
                assert!(report.holds(), "{report:?}");
            }
        }
    }

    #[test]
    fn a_row_holds_medians_and_what_was_violated() {
        let mut series = Series::default();
        for rate in [10.0, 30.0, 20.0] {
            let conditions = json!([{"name": "money", "holds": rate < 25.0, "found": "3 missing"}]);
            series.add(
                &json!({"transactions_per_second": rate, "isolation": "some", "conditions": conditions}),
            );
        }
        let row = series.row("voter".into(), "deuteron".into(), 40.0);
        assert_eq!(
            (&row["transactions_per_second"], &row["first_is_times_as_fast"]),
            (&json!(20.0), &json!(2.0))
        );
        assert_eq!(row["violated"].as_array().unwrap().len(), 1);
        assert!(line(&row).ends_with("some; 1 CONDITIONS DO NOT HOLD"), "{}", line(&row));
    }
}
