//! Deuteron and the engines that a user would otherwise pick, under the same workload and the same driver.
//!
//! `ycsb` measures one engine and prints the report of `deuteron bench ycsb`; `compare` runs several, each in a process of its
//! own, in turns, several rounds, and prints medians, their spread, and the ratio of each to the first. `contention` and
//! `compare-contention` do the same for transactions that meet, `records` and `compare-records` for records without transactions,
//! `load` and `compare-load` for a load in key order, `compare-recovery` (whose steps are `recovery-write` and `recovery-open`) for opening
//! what a killed process has left, `applications` and `compare-applications` for TATP, SmallBank, TPC-C and Voter.
//!
//! What each engine is set to, and why, stands at the head of its file.

mod applications;
mod bulk;
mod compare;
mod contention;
mod engines;
mod fjall;
mod limit;
mod lmdb;
mod load;
mod peer;
mod records;
mod recovery;
mod redb;
mod rocksdb;
mod sqlite;
mod surrealkv;
#[cfg(test)]
mod tests;
mod workload;

use applications::{ApplicationEngine, ApplicationWork};
use clap::{Args, Parser, Subcommand, ValueEnum};
use contention::{Case, ContentionEngine, ContentionWork};
use deuteron_bench::{Ahead, Driver, Report, Skew, Workload};
use engines::{Database, Task, Use};
use load::LoadWork;
use peer::Settings;
use records::{RecordEngine, RecordWork};
use recovery::RecoveryWork;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use workload::WorkloadName;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(about = "Deuteron and its peers under the same workload")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure one engine; print its report as JSON.
    Ycsb {
        /// Which.
        #[arg(long)]
        engine: Engine,
        #[command(flatten)]
        work: Work,
    },
    /// Measure several in turns; print medians and ratios.
    Compare {
        /// Which, the first being what the others are compared with.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "deuteron,rocksdb-optimistic,rocksdb-pessimistic,lmdb,redb,fjall,sqlite,surrealkv,map"
        )]
        engines: Vec<Engine>,
        /// Every engine is measured so many times.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Threads of the engines that acknowledge a commit only on the thread that waits for it, with `sync`.
        #[arg(long, default_value_t = 64)]
        sync_threads: usize,
        /// What each engine's process may have in all, in bytes, the page cache included: a control group sees to it, which takes root.
        #[arg(long)]
        limit: Option<u64>,
        #[command(flatten)]
        work: Work,
        /// Print the medians as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Measure one engine where transactions meet; print its figure as JSON.
    Contention {
        /// Which.
        #[arg(long)]
        engine: ContentionEngine,
        /// Where they meet.
        #[arg(long)]
        case: Case,
        #[arg(long)]
        threads: usize,
        #[command(flatten)]
        work: ContentionWork,
    },
    /// Measure several in turns where transactions meet; print commits, aborts and ratios.
    CompareContention {
        /// Which, the first being what the others are compared with.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "deuteron,timestamp-order,rocksdb-optimistic,rocksdb-pessimistic"
        )]
        engines: Vec<ContentionEngine>,
        /// Where they meet.
        #[arg(long, value_delimiter = ',', default_value = "zipf,hot,mix")]
        cases: Vec<Case>,
        #[arg(long, value_delimiter = ',', default_value = "2,4,8,16")]
        threads: Vec<usize>,
        /// Every engine is measured so many times.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        #[command(flatten)]
        work: ContentionWork,
        /// Print the medians as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Measure one engine under an application benchmark; print its report as JSON.
    Applications {
        /// Which.
        #[arg(long)]
        engine: ApplicationEngine,
        /// Which benchmark.
        #[arg(long)]
        workload: applications::Workload,
        #[command(flatten)]
        work: ApplicationWork,
    },
    /// Measure several in turns under application benchmarks; print medians and ratios, and what does not hold.
    CompareApplications {
        /// Which, the first being what the others are compared with.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "deuteron,rocksdb-optimistic,rocksdb-pessimistic,lmdb,redb,fjall"
        )]
        engines: Vec<ApplicationEngine>,
        /// Which benchmarks.
        #[arg(long, value_delimiter = ',', default_value = "tatp,small-bank,tpcc,voter")]
        workloads: Vec<applications::Workload>,
        /// Every engine is measured so many times.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        #[command(flatten)]
        work: ApplicationWork,
        /// Print the medians as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Measure records without transactions in one engine; print its report as JSON.
    Records {
        /// Which.
        #[arg(long)]
        engine: RecordEngine,
        #[command(flatten)]
        work: RecordWork,
    },
    /// Measure records without transactions in several engines, in turns; print medians as JSON.
    CompareRecords {
        /// Which.
        #[arg(long, value_delimiter = ',', default_value = "store,rocksdb,redb,fjall")]
        engines: Vec<RecordEngine>,
        /// Every engine is measured so many times.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        #[command(flatten)]
        work: RecordWork,
    },
    /// Load one engine from records in key order; print its report as JSON.
    Load {
        /// Which.
        #[arg(long)]
        engine: Engine,
        #[command(flatten)]
        work: LoadWork,
    },
    /// Load several engines from records in key order, in turns; print medians.
    CompareLoad {
        /// Which.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "deuteron,rocksdb-optimistic,lmdb,redb,fjall,sqlite,surrealkv"
        )]
        engines: Vec<Engine>,
        /// Every engine is measured so many times.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        #[command(flatten)]
        work: LoadWork,
        /// Print the medians as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Update random records of one engine until the process is killed.
    RecoveryWrite {
        /// Which.
        #[arg(long)]
        engine: Engine,
        #[command(flatten)]
        work: RecoveryWork,
    },
    /// Open what a killed process has left; print as JSON how long it took until a record was read.
    RecoveryOpen {
        /// Which.
        #[arg(long)]
        engine: Engine,
        #[command(flatten)]
        work: RecoveryWork,
    },
    /// Kill several engines while they write, in turns, and open them; print how long that takes, medians.
    CompareRecovery {
        /// Which.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "deuteron,rocksdb-optimistic,lmdb,redb,fjall,sqlite,surrealkv"
        )]
        engines: Vec<Engine>,
        /// Every engine is killed so many times.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        #[command(flatten)]
        work: RecoveryWork,
        /// Print the medians as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// An engine and how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Deuteron, embedded, serializable.
    Deuteron,
    /// RocksDB's OptimisticTransactionDB; reads are tracked.
    RocksdbOptimistic,
    /// RocksDB's TransactionDB; reads take locks.
    RocksdbPessimistic,
    /// LMDB: one writer, readers on snapshots.
    Lmdb,
    /// redb: one writer, readers on snapshots.
    Redb,
    /// fjall's optimistic transactions.
    Fjall,
    /// SQLite in WAL mode: one writer, readers on snapshots.
    Sqlite,
    /// SurrealKV's optimistic transactions; reads of writers are validated.
    Surrealkv,
    /// A sharded hash map with neither transactions nor durability: the limit.
    Map,
}

/// The workload, as `deuteron bench ycsb` has it.
#[derive(Args, Clone)]
struct Work {
    #[arg(long, default_value = "paper")]
    workload: WorkloadName,
    #[arg(long, default_value_t = 5_000_000)]
    records: u64,
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// The workload's if left out, and so are the next two.
    #[arg(long)]
    ops_per_txn: Option<usize>,
    /// The rest are blind updates.
    #[arg(long)]
    read_ratio: Option<f64>,
    #[arg(long)]
    skew: Option<Skew>,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    #[arg(long, default_value_t = 3.0)]
    warmup_seconds: f64,
    /// sync or delayed.
    #[arg(long, default_value = "delayed")]
    durability: String,
    /// Commits of a thread in flight, for the engine that has such a thing.
    #[arg(long, default_value_t = 512)]
    in_flight: usize,
    /// Memory of the engine, in bytes. The system's page cache, which all of the peers use and Deuteron does not, comes on top.
    #[arg(long, default_value_t = 4 << 30)]
    memory: usize,
    /// What Deuteron is told before it is asked: nothing, keys (of a transaction when it begins) or transactions (the next few).
    #[arg(long, default_value = "keys")]
    ahead: String,
    /// Where the databases are put; a temporary directory if left out.
    #[arg(long)]
    dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Ycsb { engine, work } => measure(engine, &work).and_then(|report| {
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }),
        Command::Compare { engines, rounds, sync_threads, limit, work, json } => {
            compare::run(&engines, rounds, sync_threads, limit, &work, json)
        }
        Command::Contention { engine, case, threads, work } => {
            contention::measure(engine, case, threads, &work).and_then(|figure| {
                println!("{}", serde_json::to_string(&figure)?);
                Ok(())
            })
        }
        Command::CompareContention { engines, cases, threads, rounds, work, json } => {
            contention::compare(&engines, &cases, &threads, rounds, &work, json)
        }
        Command::Applications { engine, workload, work } => applications::measure(engine, workload, &work)
            .and_then(|report| {
                println!("{}", serde_json::to_string(&report)?);
                Ok(())
            }),
        Command::CompareApplications { engines, workloads, rounds, work, json } => {
            applications::compare(&engines, &workloads, rounds, &work, json)
        }
        Command::Records { engine, work } => records::measure(engine, &work)
            .map(|report| println!("{report}"))
            .map_err(|error| error as Box<dyn Error>),
        Command::CompareRecords { engines, rounds, work } => {
            records::compare(&engines, rounds, &work).map_err(|error| error as Box<dyn Error>)
        }
        Command::Load { engine, work } => load::measure(engine, &work).map(|report| println!("{report}")),
        Command::CompareLoad { engines, rounds, work, json } => load::compare(&engines, rounds, &work, json),
        Command::RecoveryWrite { engine, work } => recovery::write(engine, &work),
        Command::RecoveryOpen { engine, work } => {
            recovery::open(engine, &work).map(|report| println!("{report}"))
        }
        Command::CompareRecovery { engines, rounds, work, json } => {
            recovery::compare(&engines, rounds, &work, json)
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("  because {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn measure(engine: Engine, work: &Work) -> Result<Report, Box<dyn Error>> {
    let workload = workload::workload(work);
    let driver = Driver {
        threads: work.threads,
        in_flight: work.in_flight,
        warmup: Duration::from_secs_f64(work.warmup_seconds),
        seconds: Duration::from_secs_f64(work.seconds),
        seed: 1,
        ..Driver::default()
    };
    let sync = match work.durability.as_str() {
        "sync" => true,
        "delayed" => false,
        other => return Err(format!("\"{other}\" is neither sync nor delayed").into()),
    };
    let scratch = scratch(work.dir.as_deref())?;
    let settings = Settings {
        directory: scratch.path().to_owned(),
        sync,
        memory: work.memory,
        beyond_memory: work.records.saturating_mul(8 + work.value_bytes as u64) > work.memory as u64,
    };
    let ahead = match work.ahead.as_str() {
        "nothing" => Ahead::Nothing,
        "keys" => Ahead::Keys,
        "transactions" => Ahead::Transactions,
        other => return Err(format!("\"{other}\" is none of nothing, keys and transactions").into()),
    };
    let how = Use { threads: driver.threads, in_flight: driver.in_flight, ahead };
    engines::with(engine, settings, &how, Drive { workload: &workload, driver: &driver })
}

/// A directory for one database, in another or among the temporary ones.
fn scratch(parent: Option<&Path>) -> std::io::Result<tempfile::TempDir> {
    match parent {
        Some(parent) => tempfile::tempdir_in(parent),
        None => tempfile::tempdir(),
    }
}

/// Fills an engine and runs the workload on it.
struct Drive<'a> {
    workload: &'a Workload,
    driver: &'a Driver,
}

impl Task for Drive<'_> {
    type Outcome = Report;

    fn run<S: Database>(self, store: &S) -> Result<Report, Box<dyn Error>> {
        let loaded = deuteron_bench::load(store, self.workload, self.driver, &mut |_| {})?;
        Ok(deuteron_bench::run(store, self.workload, self.driver, loaded, &mut |_| {})?)
    }
}
