//! The commands and their arguments.

use crate::encoding::Encoding;
use crate::failure::EXIT_STATUS_HELP;
use crate::quantity::{parse_bytes, parse_durability, parse_processors, parse_seconds, parse_share};
use clap::{Args, Parser, Subcommand, ValueEnum};
use deuteron::{Durability, Processors};
use deuteron_bench::Skew;
use deuteron_history::Level;
use std::path::PathBuf;
use std::time::Duration;

/// A transactional record store: serializable, durable, larger than memory.
#[derive(Debug, Parser)]
#[command(name = "deuteron", version, after_help = EXIT_STATUS_HELP)]
pub struct Arguments {
    /// Print reports (and errors) as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the paper's workload, kill it half-way, recover, and check every acknowledged commit.
    Demo(DemoArguments),
    /// Measure.
    Bench {
        #[command(subcommand)]
        workload: BenchCommand,
    },
    /// Work with a database interactively; reads commands from standard input if that is not a terminal.
    Shell(DatabaseArguments),
    /// Print the value of a key.
    Get(GetArguments),
    /// Write a record; creates the database and the table if they do not exist.
    Put(PutArguments),
    /// Delete a record.
    Delete(KeyArguments),
    /// Print the records of a range, a line each: key, tab, value.
    Scan(ScanArguments),
    /// Write records from CSV or JSON lines; creates the database and the table if they do not exist.
    Import(ImportArguments),
    /// Write the records of a table, as of one moment, to CSV or JSON lines.
    Export(ExportArguments),
    /// Write the whole database, as of one moment, to one file with checksums.
    Backup(BackupArguments),
    /// Bring disk use down to what the live records need.
    Compact(DatabaseArguments),
    /// Bring a database back from a backup into a new directory.
    Restore(RestoreArguments),
    /// Print sizes, memory, counters and times.
    Stat(StatArguments),
    /// Verify every checksum and structure, without writing anything.
    Check(CheckArguments),
    /// Say which isolation the transactions of a recorded history had.
    CheckHistory(CheckHistoryArguments),
    /// Recover a database, or say what a recovery would do.
    Recover(RecoverArguments),
    /// Encrypt anew, with the first key of the key file, what is encrypted with another.
    RotateKey(PathArguments),
    /// Write every readable record of a damaged database, or store, to files; writes nothing into it.
    Salvage(SalvageArguments),
    /// Run and kill the workload again and again, and check the database every time.
    #[command(hide = true)]
    KillRounds(KillRoundsArguments),
    /// Run random transactions and replay everything that they read.
    #[command(hide = true)]
    Histories(HistoriesArguments),
    /// The process that is killed.
    #[command(hide = true)]
    KillChild(KillChildArguments),
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The paper's workload and YCSB A to F.
    Ycsb(YcsbArguments),
    /// The paper's figures, as pictures and numbers, with a page that shows them.
    Paper(EvaluationArguments),
    /// Transactions that meet, under pushes and under pure timestamp order: commits and aborts.
    Contention(ContentionArguments),
    /// The paper's workload, reads only and updates only, by more and more threads: throughput, compare-and-swaps lost, lines shared.
    Scaling(ScalingArguments),
    /// A register of mobile subscribers: TATP's seven transactions, conditions checked afterwards.
    Tatp(TatpArguments),
    /// Accounts with savings and a checking balance: SmallBank's six transactions, the sum of all money checked afterwards.
    SmallBank(SmallBankArguments),
    /// A wholesaler: TPC-C's five transactions, its consistency conditions checked afterwards.
    Tpcc(TpccArguments),
    /// Votes by telephone, counted at once and checked afterwards.
    Voter(VoterArguments),
    /// Updates only, beside a reader that holds its snapshot and does nothing: memory of versions, throughput.
    VersionMemory(PaperArguments),
    /// The paper's workload, every read timed: how many are answered by the versions in memory.
    Cache(PaperArguments),
    /// The paper's workload, every operation timed by itself, and transactions of one operation.
    Latency(PaperArguments),
    /// The paper's workload over time: throughput, memory of versions, what their collection takes.
    Timeline(PaperArguments),
    /// What the disk can do: sequential writes, and random reads of 4 KiB by the number in flight.
    Device(DeviceArguments),
}

/// A database that is opened.
#[derive(Clone, Debug, Args)]
pub struct DatabaseArguments {
    /// The directory of the database.
    pub database: PathBuf,
    /// Memory that it may use, such as 256M.
    #[arg(long, value_parser = parse_bytes, default_value = "256M")]
    pub memory: usize,
    #[command(flatten)]
    pub key: KeyFileArguments,
}

/// A database that is only read as files.
#[derive(Debug, Args)]
pub struct PathArguments {
    /// The directory of the database.
    pub database: PathBuf,
    #[command(flatten)]
    pub key: KeyFileArguments,
}

/// Whether the files are encrypted, and with what.
#[derive(Clone, Debug, Args)]
pub struct KeyFileArguments {
    /// The files are encrypted; the keys, 64 hexadecimal digits a line, the newest first.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct KeyArguments {
    #[command(flatten)]
    pub database: DatabaseArguments,
    /// The table.
    pub table: String,
    /// The key, in the encoding.
    pub key: String,
    /// How keys and values are written.
    #[arg(long, value_enum, default_value_t)]
    pub encoding: Encoding,
}

#[derive(Debug, Args)]
pub struct GetArguments {
    #[command(flatten)]
    pub key: KeyArguments,
    /// Print the bytes of the value and nothing else, no line break either.
    #[arg(long, conflicts_with = "encoding")]
    pub raw: bool,
}

#[derive(Debug, Args)]
pub struct PutArguments {
    #[command(flatten)]
    pub key: KeyArguments,
    /// The value, in the encoding.
    pub value: String,
}

#[derive(Debug, Args)]
pub struct ScanArguments {
    #[command(flatten)]
    pub database: DatabaseArguments,
    /// The table.
    pub table: String,
    /// The first key of the range.
    #[arg(long)]
    pub from: Option<String>,
    /// The key after the range.
    #[arg(long)]
    pub to: Option<String>,
    /// Only keys that begin with this.
    #[arg(long, conflicts_with_all = ["from", "to"])]
    pub prefix: Option<String>,
    /// Highest key first.
    #[arg(long)]
    pub reverse: bool,
    /// At most so many records.
    #[arg(long)]
    pub limit: Option<usize>,
    /// Print how many records there are, and no record.
    #[arg(long)]
    pub count: bool,
    /// How keys and values are written.
    #[arg(long, value_enum, default_value_t)]
    pub encoding: Encoding,
}

/// How records lie in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Comma-separated values with the header `key,value`.
    Csv,
    /// A JSON object {"key": ..., "value": ...} a line.
    Jsonl,
}

#[derive(Debug, Args)]
pub struct FileArguments {
    /// The table.
    pub table: String,
    /// The file; - or nothing is standard input or output.
    #[arg(default_value = "-")]
    pub file: PathBuf,
    /// The format; if left out, the file's name tells: .csv, .jsonl, .ndjson.
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// How keys and values are written.
    #[arg(long, value_enum, default_value_t)]
    pub encoding: Encoding,
    /// The CSV has no header.
    #[arg(long)]
    pub no_header: bool,
}

#[derive(Debug, Args)]
pub struct ImportArguments {
    #[command(flatten)]
    pub database: DatabaseArguments,
    #[command(flatten)]
    pub file: FileArguments,
    /// Records in one transaction.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,
    /// Report wrong lines and go on, instead of stopping at the first.
    #[arg(long)]
    pub keep_going: bool,
    /// The keys ascend and the table is new: full pages are written at once, all of the table or nothing.
    #[arg(long, conflicts_with_all = ["keep_going", "batch"])]
    pub sorted: bool,
}

#[derive(Debug, Args)]
pub struct ExportArguments {
    #[command(flatten)]
    pub database: DatabaseArguments,
    #[command(flatten)]
    pub file: FileArguments,
    /// Of a damaged database, which need not open: every record of the table that can be read. Says what could not, and fails then.
    #[arg(long)]
    pub salvage: bool,
}

#[derive(Debug, Args)]
pub struct CheckArguments {
    #[command(flatten)]
    pub path: PathArguments,
    /// Only what an opening needs: superblock, newest image, catalogue, log and store behind the last checkpoint. Pages are not read.
    #[arg(long)]
    pub fast: bool,
}

#[derive(Debug, Args)]
pub struct BackupArguments {
    #[command(flatten)]
    pub database: DatabaseArguments,
    /// The file of the backup, which must not exist.
    pub target: PathBuf,
}

#[derive(Debug, Args)]
pub struct RestoreArguments {
    /// The file of the backup.
    pub backup: PathBuf,
    /// The directory of the database, which must be new or empty.
    pub database: PathBuf,
    #[command(flatten)]
    pub key: KeyFileArguments,
}

#[derive(Debug, Args)]
pub struct StatArguments {
    #[command(flatten)]
    pub database: DatabaseArguments,
    /// Count the records of every table, which reads all of it.
    #[arg(long)]
    pub records: bool,
}

#[derive(Debug, Args)]
pub struct RecoverArguments {
    #[command(flatten)]
    pub database: DatabaseArguments,
    /// Only say what a recovery would do; writes nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct SalvageArguments {
    /// The directory of the database, or of the stand-alone store.
    pub database: PathBuf,
    /// The directory for the files, which must not exist: a file of JSON lines for each table, which `import` reads. Without it
    /// there is only the report.
    pub target: Option<PathBuf>,
    /// How keys and values are written.
    #[arg(long, value_enum, default_value_t = Encoding::Base64)]
    pub encoding: Encoding,
    #[command(flatten)]
    pub key: KeyFileArguments,
}

#[derive(Debug, Args)]
pub struct DemoArguments {
    /// Records in the database.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub records: u64,
    /// Threads of the workload.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
    /// The workload is set to run so long, and is killed half-way.
    #[arg(long, default_value = "12", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// Where the database is put, and left; a temporary directory if left out.
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// What the store is told before it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AheadName {
    /// Nothing: each key comes with its operation.
    Nothing,
    /// All keys of a transaction when it begins.
    Keys,
    /// The keys of the next few transactions as well, as a server knows them from its queue.
    Transactions,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// 84 % reads, 16 % updates, 4 operations a transaction, 20 % of the keys get 80 % of the accesses.
    Paper,
    /// YCSB A: half reads, half updates.
    A,
    /// YCSB B: 95 % reads, 5 % updates.
    B,
    /// YCSB C: reads.
    C,
    /// YCSB D: 95 % reads of the latest records, 5 % inserts.
    D,
    /// YCSB E: 95 % short scans, 5 % inserts.
    E,
    /// YCSB F: half reads, half read-modify-writes.
    F,
}

/// The store that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// This database.
    Deuteron,
    /// A bare sharded hash map with neither transactions nor durability.
    Map,
}

#[derive(Debug, Args)]
pub struct YcsbArguments {
    /// The mix of operations; the options below change parts of it.
    #[arg(long, value_enum, default_value_t = WorkloadName::Paper)]
    pub workload: WorkloadName,
    /// The store.
    #[arg(long, value_enum, default_value_t = Engine::Deuteron)]
    pub engine: Engine,
    /// Records loaded before the run.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: u64,
    /// Bytes of each value.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=64 << 20))]
    pub value_bytes: u32,
    /// Operations in one transaction; 4 in the paper's workload, else 1.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub ops_per_txn: Option<u32>,
    /// Share of reads; the rest are blind updates.
    #[arg(long, value_parser = parse_share)]
    pub read_ratio: Option<f64>,
    /// How keys are chosen: 80-20, uniform, zipf=T or latest=T.
    #[arg(long)]
    pub skew: Option<Skew>,
    /// Threads that run transactions.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// How long it is measured.
    #[arg(long, default_value = "10", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// How long it runs before that.
    #[arg(long, default_value = "2", value_parser = parse_seconds)]
    pub warmup_seconds: Duration,
    /// When commits are acknowledged: sync, delayed, delayed=MILLISECONDS or none.
    #[arg(long, default_value = "sync", value_parser = parse_durability)]
    pub durability: Durability,
    /// Commits of a thread that may await their acknowledgement; matters with sync.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub in_flight: u32,
    /// A checkpoint is taken whenever so much log lies behind the last, such as 512M.
    #[arg(long, value_parser = parse_bytes, default_value = "512M")]
    pub checkpoint_every: usize,
    /// What the store is told before it is asked.
    #[arg(long, value_enum, default_value_t = AheadName::Keys)]
    pub ahead: AheadName,
    /// Memory that the database may use, such as 1G.
    #[arg(long, default_value = "4G", value_parser = parse_bytes)]
    pub memory: usize,
    /// Where the database is put, and left; one that holds the same load already is not loaded again. A temporary
    /// directory if left out.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Sets the choice of keys and operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub pin: PinArguments,
}

/// Where threads run.
#[derive(Debug, Args)]
pub struct PinArguments {
    /// Pins each thread that runs transactions to one processor: of all, or of a list such as 0-3,8.
    #[arg(long, value_name = "PROCESSORS", num_args = 0..=1, default_missing_value = "all", value_parser = parse_processors)]
    pub pin: Option<Processors>,
    /// The database's own threads run on these processors only, such as 4-5.
    #[arg(long, value_name = "PROCESSORS", value_parser = parse_processors)]
    pub pin_background: Option<Processors>,
}

#[derive(Debug, Args)]
pub struct ScalingArguments {
    /// What is run.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "paper,reads,writes")]
    pub mix: Vec<MixName>,
    /// Threads that run transactions; several numbers are measured one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,
    /// Records loaded before the run.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: u64,
    /// How long each is measured.
    #[arg(long, default_value = "5", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// How long each runs before that.
    #[arg(long, default_value = "1", value_parser = parse_seconds)]
    pub warmup_seconds: Duration,
    /// When commits are acknowledged: sync, delayed, delayed=MILLISECONDS or none.
    #[arg(long, default_value = "delayed", value_parser = parse_durability)]
    pub durability: Durability,
    /// Memory that each database may use, such as 1G.
    #[arg(long, default_value = "4G", value_parser = parse_bytes)]
    pub memory: usize,
    /// Sets the choice of keys and operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub pin: PinArguments,
}

/// A mix of reads and updates, four in a transaction, of keys that are skewed 80-20.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MixName {
    /// 84 % reads, 16 % updates.
    Paper,
    /// Reads only.
    Reads,
    /// Updates only.
    Writes,
}

#[derive(Debug, Args)]
pub struct PaperArguments {
    /// Records loaded before the run.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: u64,
    /// Threads that run transactions.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// How long it is measured.
    #[arg(long, default_value = "10", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// How long it runs before that.
    #[arg(long, default_value = "2", value_parser = parse_seconds)]
    pub warmup_seconds: Duration,
    /// Memory that the database may use, such as 1G.
    #[arg(long, default_value = "1G", value_parser = parse_bytes)]
    pub memory: usize,
    /// How much of it versions may take at most, such as 200M; what pages leave, if left out.
    #[arg(long, value_parser = parse_bytes)]
    pub version_memory: Option<usize>,
    /// Sets the choice of keys and operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub pin: PinArguments,
}

#[derive(Debug, Args)]
pub struct EvaluationArguments {
    /// The directory for the report, which is created if it is missing.
    pub report: PathBuf,
    /// The share of the paper's 50 million records.
    #[arg(long, default_value_t = 0.02)]
    pub scale: f64,
    /// How long each point is measured.
    #[arg(long, default_value = "5", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// How often each point is measured; the middle one counts. Those of Figure 6 five times at least, as the paper's.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// The most threads; twice as many as there are processors if left out.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Memory that each database may use, such as 1G.
    #[arg(long, default_value = "2G", value_parser = parse_bytes)]
    pub memory: usize,
    /// Where the databases are put while they are measured; a temporary directory if left out.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub pin: PinArguments,
}

#[derive(Debug, Args)]
pub struct ContentionArguments {
    /// Where they meet: on 100,000 keys by Zipf's law, on 10 hot keys, in a mix of long and short transactions.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "zipf,hot,mix")]
    pub case: Vec<CaseName>,
    /// Threads that run transactions; several numbers are measured one after the other.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,
    /// How often each is measured, in turns; the median counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Other threads have a turn after each operation, as where operations come from clients.
    #[arg(long)]
    pub interleave: bool,
    /// How long each is measured.
    #[arg(long, default_value = "3", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// How long each runs before that.
    #[arg(long, default_value = "1", value_parser = parse_seconds)]
    pub warmup_seconds: Duration,
    /// When commits are acknowledged: sync, delayed, delayed=MILLISECONDS or none.
    #[arg(long, default_value = "delayed", value_parser = parse_durability)]
    pub durability: Durability,
    /// Memory that each database may use, such as 1G.
    #[arg(long, default_value = "1G", value_parser = parse_bytes)]
    pub memory: usize,
    /// Sets the choice of keys and operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub pin: PinArguments,
}

/// Where transactions meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CaseName {
    /// Four read-modify-writes on 100,000 keys by Zipf's law, 0.99.
    Zipf,
    /// Two read-modify-writes on 10 keys.
    Hot,
    /// Long and short transactions with the accesses of TPC-C.
    Mix,
}

/// How an application benchmark is run.
#[derive(Debug, Args)]
pub struct ApplicationArguments {
    /// Threads that run transactions, each one after the other.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// How long it is measured.
    #[arg(long, default_value = "10", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// How long it runs before that.
    #[arg(long, default_value = "2", value_parser = parse_seconds)]
    pub warmup_seconds: Duration,
    /// When commits are acknowledged: sync, delayed, delayed=MILLISECONDS or none.
    #[arg(long, default_value = "delayed", value_parser = parse_durability)]
    pub durability: Durability,
    /// Memory that the database may use, such as 1G.
    #[arg(long, default_value = "1G", value_parser = parse_bytes)]
    pub memory: usize,
    /// Where a directory is made for the database, and removed in the end; the system's place for such if left out.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Sets what the transactions do.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub pin: PinArguments,
}

#[derive(Debug, Args)]
pub struct TatpArguments {
    /// Subscribers.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub subscribers: u32,
    #[command(flatten)]
    pub run: ApplicationArguments,
}

#[derive(Debug, Args)]
pub struct SmallBankArguments {
    /// Accounts.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(2..=1_000_000_000))]
    pub accounts: u64,
    /// Most draws are from so many of them; else all are drawn alike.
    #[arg(long, value_parser = clap::value_parser!(u64).range(2..))]
    pub hot_accounts: Option<u64>,
    /// The share of those draws.
    #[arg(long, default_value_t = 0.9, value_parser = parse_share, requires = "hot_accounts")]
    pub hot_share: f64,
    #[command(flatten)]
    pub run: ApplicationArguments,
}

#[derive(Debug, Args)]
pub struct TpccArguments {
    /// Warehouses: some 100 MB each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub warehouses: u16,
    /// So many times fewer items, customers and orders than specified.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub shrink: u32,
    #[command(flatten)]
    pub run: ApplicationArguments,
}

#[derive(Debug, Args)]
pub struct VoterArguments {
    /// Contestants.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u8).range(1..=200))]
    pub contestants: u8,
    /// Telephones in each of the 306 areas; fewer, and callers come to their limit of two votes.
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub telephones: u64,
    #[command(flatten)]
    pub run: ApplicationArguments,
}

#[derive(Debug, Args)]
pub struct DeviceArguments {
    /// A directory on the disk; a temporary one if left out.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// How long each of the 13 figures is measured.
    #[arg(long, default_value = "2", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// Size of the file that is written and read, and then removed: a multiple of 1M, at most 64G.
    #[arg(long, default_value = "512M", value_parser = parse_file_bytes)]
    pub file_size: u64,
    /// Sets which blocks are read.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Have threads do several reads at once, as where the kernel has no io_uring.
    #[arg(long)]
    pub without_io_uring: bool,
}

/// Reads the size of a file to measure with.
fn parse_file_bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)? as u64;
    let fits = (1 << 20..=64 << 30).contains(&bytes) && bytes.is_multiple_of(1 << 20);
    if fits { Ok(bytes) } else { Err("expected a multiple of 1M, at most 64G".into()) }
}

#[derive(Debug, Args)]
pub struct KillRoundsArguments {
    /// How often the workload is killed.
    #[arg(long, default_value_t = 50)]
    pub rounds: u32,
    /// Records in the database.
    #[arg(long, default_value_t = 20_000)]
    pub records: u64,
    /// Threads of the workload.
    #[arg(long, default_value_t = 2)]
    pub threads: u32,
    /// The longest that a round runs before it is killed.
    #[arg(long, default_value = "1.5", value_parser = parse_seconds)]
    pub seconds_max: Duration,
    /// Memory of the database.
    #[arg(long, default_value = "64M", value_parser = parse_bytes)]
    pub memory: usize,
    /// What the process meets besides.
    #[arg(long, value_enum)]
    pub adversity: Option<AdversityName>,
    /// Where the database is put, and left; a temporary directory if left out.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Sets the transactions and the times of the kills.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What a process meets, and dies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AdversityName {
    /// The system gives it no more memory.
    Memory,
    /// Writes and syncs fail from some operation on.
    Device,
    /// At some operation the power goes, and sectors of what was not synced with it.
    Power,
    /// The file system has no more room: one of less than 1 GiB is filled, of a larger one a part counts as all.
    Full,
}

#[derive(Debug, Args)]
pub struct CheckHistoryArguments {
    /// The history; docs/history.md has the format. `-` is standard input.
    pub file: PathBuf,
    /// strict-serializable, serializable, snapshot or read-committed.
    #[arg(long, default_value = "strict-serializable")]
    pub level: Level,
}

#[derive(Debug, Args)]
pub struct HistoriesArguments {
    /// Transactions in all.
    #[arg(long, default_value_t = 1_000_000)]
    pub transactions: u64,
    /// Threads that run them.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Different keys.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub keys: u32,
    /// Memory of the database.
    #[arg(long, default_value = "64M", value_parser = parse_bytes)]
    pub memory: usize,
    /// The smallest buffers and pages instead, so that rare paths are common.
    #[arg(long)]
    pub tiny: bool,
    /// Keep the files in memory: no time goes to the disk.
    #[arg(long)]
    pub in_memory: bool,
    /// Where the database is put, and left; a temporary directory if left out.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Sets what the transactions do.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Record the transactions to this file, for check-history, and run only such as it understands in full.
    #[arg(long)]
    pub record: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct KillChildArguments {
    pub database: PathBuf,
    /// A [`crate::kill::Shape`] as JSON.
    #[arg(long)]
    pub shape: String,
    /// The first transaction of each thread.
    #[arg(long, value_delimiter = ',')]
    pub first: Vec<u64>,
    #[arg(long)]
    pub round: u32,
    /// What it meets.
    #[arg(long, value_enum)]
    pub adversity: Option<AdversityName>,
    /// Sets when.
    #[arg(long, default_value_t = 0)]
    pub adversity_seed: u64,
    /// Open the database, say so, and do nothing.
    #[arg(long)]
    pub idle: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_acceptance_command_is_understood() {
        let line = "deuteron bench ycsb --records 5000000 --value-bytes 100 --ops-per-txn 4 --read-ratio 0.84 \
                    --skew 80-20 --threads 2 --seconds 10 --warmup-seconds 1 --durability delayed --in-flight 64 \
                    --memory 108000000 --dir x --json";
        let arguments = Arguments::try_parse_from(line.split_whitespace()).unwrap();
        assert!(arguments.json);
        let Command::Bench { workload: BenchCommand::Ycsb(ycsb) } = arguments.command else {
            panic!("{arguments:?}")
        };
        assert_eq!(
            (ycsb.records, ycsb.skew, ycsb.memory),
            (5_000_000, Some(Skew::EightyTwenty), 108_000_000)
        );
    }
}
