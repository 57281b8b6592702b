//! Records without transactions, more of them than memory holds: the stand-alone store beside the engines that keep records in order
//! on disk.
//!
//! Each engine is filled in key order, then updated, then read, at uniformly random keys. Updates go in batches, as an engine without
//! a log takes them best, and the time until all of them are durable counts. Values are random bytes, which nothing compresses.
//!
//! None has a log for them: RocksDB's and fjall's are switched off or not synced, redb commits without durability but for the last.
//! RocksDB reads and writes past the page cache, so that its memory is what it was given; redb and fjall cannot, and have the page
//! cache besides. LMDB is not here: its only memory is the page cache.

use crate::peer::{Settings, seen};
use clap::{Args, ValueEnum};
use deuteron_bench::{Random, directory_bytes, peak_rss_bytes};
use deuteron_store as store;
use redb::ReadableDatabase;
use serde_json::{Value, json};
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// An engine that keeps records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RecordEngine {
    /// The stand-alone store over the data component.
    Store,
    /// RocksDB as it is, its log off.
    Rocksdb,
    /// redb.
    Redb,
    /// fjall.
    Fjall,
}

/// The work.
#[derive(Args, Clone)]
pub struct RecordWork {
    #[arg(long, default_value_t = 20_000_000)]
    records: u64,
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// Memory of the engine, in bytes.
    #[arg(long, default_value_t = 200 << 20)]
    memory: usize,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Updates given to the engine at once.
    #[arg(long, default_value_t = 100)]
    batch: usize,
    /// Seconds of updates, and of reads.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// How many updates are made before those that are measured, in times the number of records: the steady state.
    #[arg(long, default_value_t = 0.0)]
    rewrite: f64,
    /// Where the databases are put; a temporary directory if left out.
    #[arg(long)]
    dir: Option<PathBuf>,
}

type Pair = ([u8; 8], Vec<u8>);

trait Records: Sync {
    fn upsert(&self, pairs: &[Pair]) -> Outcome<()>;
    fn get(&self, key: [u8; 8]) -> Outcome<bool>;
    /// Everything so far is durable.
    fn settle(&self) -> Outcome<()>;
}

struct Own(store::Store, store::Table);

impl Own {
    fn open(settings: &Settings) -> Outcome<Self> {
        let store = store::Options::new().memory(settings.memory).open(settings.directory.join("store"))?;
        let table = store.table("records")?;
        Ok(Self(store, table))
    }
}

impl Records for Own {
    fn upsert(&self, pairs: &[Pair]) -> Outcome<()> {
        let mut batch = store::Batch::new();
        for (key, value) in pairs {
            batch.upsert(&self.1, key, value);
        }
        Ok(self.0.apply(&batch)?)
    }

    fn get(&self, key: [u8; 8]) -> Outcome<bool> {
        let found = self.1.get(&key)?;
        seen(found.as_deref());
        Ok(found.is_some())
    }

    fn settle(&self) -> Outcome<()> {
        Ok(self.0.persist()?)
    }
}

struct Rocksdb(rocksdb::DB);

impl Rocksdb {
    fn open(settings: &Settings) -> Outcome<Self> {
        let mut options = crate::rocksdb::options(settings);
        options.set_use_direct_reads(true);
        options.set_use_direct_io_for_flush_and_compaction(true);
        Ok(Self(rocksdb::DB::open(&options, &settings.directory)?))
    }
}

impl Records for Rocksdb {
    fn upsert(&self, pairs: &[Pair]) -> Outcome<()> {
        let mut batch = rocksdb::WriteBatch::default();
        for (key, value) in pairs {
            batch.put(key, value);
        }
        let mut options = rocksdb::WriteOptions::default();
        options.disable_wal(true);
        Ok(self.0.write_opt(batch, &options)?)
    }

    fn get(&self, key: [u8; 8]) -> Outcome<bool> {
        let found = self.0.get_pinned(key)?;
        seen(found.as_deref());
        Ok(found.is_some())
    }

    fn settle(&self) -> Outcome<()> {
        Ok(self.0.flush()?)
    }
}

struct Redb(redb::Database);

const TABLE: redb::TableDefinition<'static, &[u8], &[u8]> = redb::TableDefinition::new("records");

impl Redb {
    fn open(settings: &Settings) -> Outcome<Self> {
        let mut builder = redb::Builder::new();
        let database =
            builder.set_cache_size(settings.memory).create(settings.directory.join("records.redb"))?;
        let transaction = database.begin_write()?;
        transaction.open_table(TABLE)?;
        transaction.commit()?;
        Ok(Self(database))
    }
}

impl Records for Redb {
    fn upsert(&self, pairs: &[Pair]) -> Outcome<()> {
        let mut transaction = self.0.begin_write()?;
        transaction.set_durability(redb::Durability::None)?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in pairs {
                table.insert(&key[..], &value[..])?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn get(&self, key: [u8; 8]) -> Outcome<bool> {
        let found = self.0.begin_read()?.open_table(TABLE)?.get(&key[..])?;
        seen(found.as_ref().map(|value| value.value()));
        Ok(found.is_some())
    }

    fn settle(&self) -> Outcome<()> {
        Ok(self.0.begin_write()?.commit()?)
    }
}

struct Fjall(fjall::Database, fjall::Keyspace);

impl Fjall {
    fn open(settings: &Settings) -> Outcome<Self> {
        let database = fjall::Database::builder(&settings.directory)
            .cache_size(settings.memory as u64 / 4 * 3)
            .worker_threads(2)
            .open()?;
        let records = database.keyspace("records", fjall::KeyspaceCreateOptions::default)?;
        Ok(Self(database, records))
    }
}

impl Records for Fjall {
    fn upsert(&self, pairs: &[Pair]) -> Outcome<()> {
        let mut batch = self.0.batch();
        for (key, value) in pairs {
            batch.insert(&self.1, key, &value[..]);
        }
        Ok(batch.commit()?)
    }

    fn get(&self, key: [u8; 8]) -> Outcome<bool> {
        let found = self.1.get(key)?;
        seen(found.as_deref());
        Ok(found.is_some())
    }

    fn settle(&self) -> Outcome<()> {
        Ok(self.0.persist(fjall::PersistMode::SyncAll)?)
    }
}

/// Measures one engine.
pub fn measure(engine: RecordEngine, work: &RecordWork) -> Outcome<Value> {
    let scratch = match &work.dir {
        Some(parent) => tempfile::tempdir_in(parent)?,
        None => tempfile::tempdir()?,
    };
    let settings = Settings {
        directory: scratch.path().to_owned(),
        sync: false,
        memory: work.memory,
        beyond_memory: work.records.saturating_mul(8 + work.value_bytes as u64) > work.memory as u64,
    };
    match engine {
        RecordEngine::Store => drive(&Own::open(&settings)?, work, &settings),
        RecordEngine::Rocksdb => drive(&Rocksdb::open(&settings)?, work, &settings),
        RecordEngine::Redb => drive(&Redb::open(&settings)?, work, &settings),
        RecordEngine::Fjall => drive(&Fjall::open(&settings)?, work, &settings),
    }
}

fn drive(engine: &impl Records, work: &RecordWork, settings: &Settings) -> Outcome<Value> {
    let mut random = Random::new(0);
    let begin = Instant::now();
    for first in (0..work.records).step_by(1000) {
        let numbers = first..work.records.min(first + 1000);
        engine.upsert(&numbers.map(|number| pair(number, &mut random, work)).collect::<Vec<_>>())?;
    }
    engine.settle()?;
    let load_seconds = begin.elapsed().as_secs_f64();
    let disk_bytes_loaded = directory_bytes(&settings.directory);

    let update = |seed, until: &(dyn Fn(u64) -> bool + Sync)| -> Outcome<u64> {
        let updated = threads(work.threads, seed, &|random, done| {
            while until(done.fetch_add(work.batch as u64, Ordering::Relaxed)) {
                let one = |_| pair(random.below(work.records), random, work);
                engine.upsert(&(0..work.batch).map(one).collect::<Vec<_>>())?;
            }
            Ok(())
        })?;
        engine.settle()?;
        Ok(updated)
    };
    let rewritten = (work.rewrite * work.records as f64) as u64;
    update(1, &|done| done < rewritten)?;
    let written = written_bytes();
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(work.seconds);
    let updates = update(2, &|_| Instant::now() < end)?;
    let update_seconds = begin.elapsed().as_secs_f64();
    let written = written_bytes() - written;
    let disk_bytes = directory_bytes(&settings.directory);

    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(work.seconds);
    let reads = threads(work.threads, 3, &|random, done| {
        while Instant::now() < end {
            if !engine.get(random.below(work.records).to_be_bytes())? {
                return Err("a record is missing".into());
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    })?;
    let record_bytes = (8 + work.value_bytes) as f64;
    Ok(json!({
        "load_seconds": load_seconds,
        "updates_per_second": updates as f64 / update_seconds,
        "reads_per_second": reads as f64 / begin.elapsed().as_secs_f64(),
        "write_amplification": written as f64 / (updates as f64 * record_bytes),
        "space_amplification": disk_bytes as f64 / (work.records as f64 * record_bytes),
        "space_amplification_loaded": disk_bytes_loaded as f64 / (work.records as f64 * record_bytes),
        "peak_rss_bytes": peak_rss_bytes(),
    }))
}

fn pair(number: u64, random: &mut Random, work: &RecordWork) -> Pair {
    let mut value = vec![0; work.value_bytes];
    random.fill(&mut value);
    (number.to_be_bytes(), value)
}

type Share<'a> = dyn Fn(&mut Random, &AtomicU64) -> Outcome<()> + Sync + 'a;

/// Runs `share` on so many threads; the sum of what they have counted.
fn threads(count: usize, seed: u64, share: &Share<'_>) -> Outcome<u64> {
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let spawn = |thread| {
            let done = &done;
            let mut random = Random::new(seed << 32 | thread as u64);
            scope.spawn(move || share(&mut random, done))
        };
        let running: Vec<_> = (0..count).map(spawn).collect();
        running.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err("a thread panicked".into())))
    })?;
    Ok(done.into_inner())
}

/// What this process has sent to the device, in bytes (`/proc/self/io`).
fn written_bytes() -> u64 {
    let told = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    told.lines().find_map(|line| line.strip_prefix("write_bytes:")?.trim().parse().ok()).unwrap_or_default()
}

/// Measures several, each in a process of its own, in turns; prints a JSON object of the medians of each.
pub fn compare(engines: &[RecordEngine], rounds: usize, work: &RecordWork) -> Outcome<()> {
    let mut reports = vec![Vec::new(); engines.len()];
    for round in 1..=rounds {
        for (&engine, reports) in engines.iter().zip(&mut reports) {
            let report = child(engine, work)?;
            eprintln!("round {round} of {rounds}: {}: {report}", name(engine));
            reports.push(report);
        }
    }
    let median = |reports: &[Value]| -> Value {
        let fields = reports.first().and_then(Value::as_object).into_iter().flat_map(|first| first.keys());
        let of = |field: &String| {
            let series: Vec<f64> = reports.iter().filter_map(|report| report[field].as_f64()).collect();
            (field.clone(), json!(crate::compare::median(&series)))
        };
        fields.map(of).collect::<serde_json::Map<_, _>>().into()
    };
    let all = engines.iter().zip(&reports).map(|(&engine, reports)| (name(engine), median(reports)));
    println!("{}", serde_json::to_string_pretty(&all.collect::<serde_json::Map<_, _>>())?);
    Ok(())
}

fn name(engine: RecordEngine) -> String {
    engine.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn child(engine: RecordEngine, work: &RecordWork) -> Outcome<Value> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["records", "--engine", &name(engine), "--records", &work.records.to_string()]);
    command.args(["--value-bytes", &work.value_bytes.to_string(), "--memory", &work.memory.to_string()]);
    command.args(["--threads", &work.threads.to_string(), "--batch", &work.batch.to_string()]);
    command.args(["--seconds", &work.seconds.to_string(), "--rewrite", &work.rewrite.to_string()]);
    if let Some(directory) = &work.dir {
        command.arg("--dir").arg(directory);
    }
    crate::compare::suit_allocator(&mut command, work.memory);
    crate::compare::report_of(command, &name(engine))
}
