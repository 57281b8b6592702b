//! Loading a new database from records in key order, each engine in the way that its makers recommend for that.
//!
//! | engine | way | source |
//! |---|---|---|
//! | Deuteron | `Db::load_table`: full pages, past the log | `crates/deuteron/src/load.rs` |
//! | RocksDB | tables of 64 MiB by `SstFileWriter`, moved in by ingestion; the database is the same for both transaction engines | <https://github.com/facebook/rocksdb/wiki/Creating-and-Ingesting-SST-files> |
//! | LMDB | `MDB_APPEND`, `MDB_NOSYNC`, one sync at the end; a hundred thousand records a transaction, as more do not fit its list of dirty pages | `lmdb.h`, `mdb_put` and `mdb_env_open` |
//! | redb | one transaction | its own benchmark, `redb-bench` |
//! | fjall | `Keyspace::start_ingestion` | its documentation: "for maximum bulk load speed" |
//! | SQLite | one transaction, no journal, no sync but one at the end, exclusive locking | <https://www.sqlite.org/faq.html#q19>, <https://www.sqlite.org/pragma.html> |
//! | SurrealKV | transactions of a thousand records; it has nothing else for that | its documentation |
//!
//! Of a crash meanwhile Deuteron, RocksDB, redb and fjall leave nothing that anybody sees, SurrealKV a part, LMDB and SQLite perhaps a corrupt file.

use crate::peer::{Peer, PeerTransaction, Settings, Trouble};
use crate::{Engine, fjall, redb, rocksdb, sqlite, surrealkv};
use deuteron_bench::Random;
use heed::types::Bytes;
use std::error::Error;
use std::time::Instant;

/// The size of a table of RocksDB, in bytes: what its compactions make (`target_file_size_base`).
const TABLE_BYTES: u64 = 64 << 20;

/// Records of a transaction of LMDB.
const LMDB_BATCH: u64 = 100_000;

/// Records of a transaction of an engine that has nothing but transactions.
const BATCH: u64 = 1_000;

pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Records in key order, with random bytes, which nothing compresses.
pub struct Records {
    next: u64,
    count: u64,
    value: Vec<u8>,
}

impl Records {
    /// So many, with values of so many bytes.
    pub fn new(count: u64, value_bytes: usize) -> Self {
        Self { next: 0, count, value: vec![0; value_bytes] }
    }

    /// The next record.
    fn next(&mut self) -> Option<([u8; 8], &[u8])> {
        let number = self.next;
        if number == self.count {
            return None;
        }
        self.next += 1;
        fill(number, &mut self.value);
        Some((number.to_be_bytes(), &self.value))
    }
}

/// The value of a record.
pub fn fill(number: u64, value: &mut [u8]) {
    Random::new(number).fill(value);
}

/// Loads the records into a new database; the moment at which all of them were durable. The database is closed then.
pub fn load(engine: Engine, settings: &Settings, records: Records) -> Outcome<Instant> {
    match engine {
        Engine::Map => Err("a map keeps nothing".into()),
        Engine::Deuteron => into_deuteron(settings, records),
        Engine::RocksdbOptimistic | Engine::RocksdbPessimistic => into_rocksdb(settings, records),
        Engine::Lmdb => into_lmdb(settings, records),
        Engine::Redb => into_redb(settings, records),
        Engine::Fjall => into_fjall(settings, records),
        Engine::Sqlite => into_sqlite(settings, records),
        Engine::Surrealkv => {
            let engine = surrealkv::Surrealkv::open(settings).map_err(|error| error as Box<dyn Error>)?;
            by_transactions(&engine, records)
        }
    }
}

fn into_deuteron(settings: &Settings, mut records: Records) -> Outcome<Instant> {
    let db = deuteron::Options::new().memory(settings.memory).open(&settings.directory)?;
    let mut load = db.load_table("usertable")?;
    while let Some((key, value)) = records.next() {
        load.push(&key, value)?;
    }
    load.finish()?;
    let durable = Instant::now();
    db.close()?;
    Ok(durable)
}

fn into_rocksdb(settings: &Settings, mut records: Records) -> Outcome<Instant> {
    let options = rocksdb::options(settings);
    let db = ::rocksdb::DB::open(&options, &settings.directory)?;
    let directory = settings.directory.join("sorted");
    std::fs::create_dir(&directory)?;
    let mut tables = Vec::new();
    let mut record = records.next();
    while record.is_some() {
        let path = directory.join(format!("{}.sst", tables.len()));
        let mut table = ::rocksdb::SstFileWriter::create(&options);
        table.open(&path)?;
        while let Some((key, value)) = record
            && table.file_size() < TABLE_BYTES
        {
            table.put(key, value)?;
            record = records.next();
        }
        table.finish()?;
        tables.push(path);
    }
    let mut ingestion = ::rocksdb::IngestExternalFileOptions::default();
    ingestion.set_move_files(true);
    db.ingest_external_file_opts(&ingestion, tables)?;
    let durable = Instant::now();
    std::fs::remove_dir_all(&directory)?;
    Ok(durable)
}

fn into_lmdb(settings: &Settings, mut records: Records) -> Outcome<Instant> {
    let mut options = heed::EnvOpenOptions::new();
    options.map_size(64 << 30);
    // SAFETY: the directory is ours alone, and what a power cut leaves is of no interest.
    unsafe { options.flags(heed::EnvFlags::NO_SYNC) };
    // SAFETY: the file is mapped by this process alone, and nobody truncates it.
    let environment = unsafe { options.open(&settings.directory)? };
    let mut transaction = environment.write_txn()?;
    let table: heed::Database<Bytes, Bytes> = environment.create_database(&mut transaction, None)?;
    let mut count = 0;
    while let Some((key, value)) = records.next() {
        table.put_with_flags(&mut transaction, heed::PutFlags::APPEND, &key, value)?;
        count += 1;
        if count % LMDB_BATCH == 0 {
            transaction.commit()?;
            transaction = environment.write_txn()?;
        }
    }
    transaction.commit()?;
    environment.force_sync()?;
    Ok(Instant::now())
}

fn into_redb(settings: &Settings, mut records: Records) -> Outcome<Instant> {
    let database = redb::create(settings)?;
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(redb::TABLE)?;
        while let Some((key, value)) = records.next() {
            table.insert(&key[..], value)?;
        }
    }
    transaction.commit()?;
    Ok(Instant::now())
}

fn into_fjall(settings: &Settings, mut records: Records) -> Outcome<Instant> {
    let fjall = fjall::Fjall::open(settings)?;
    let mut ingestion = fjall.records.inner().start_ingestion()?;
    while let Some((key, value)) = records.next() {
        ingestion.write(key, value)?;
    }
    ingestion.finish()?;
    fjall.database.persist(::fjall::PersistMode::SyncAll)?;
    Ok(Instant::now())
}

fn into_sqlite(settings: &Settings, mut records: Records) -> Outcome<Instant> {
    let path = settings.directory.join(sqlite::FILE);
    let connection = rusqlite::Connection::open(&path)?;
    connection.pragma_update(None, "journal_mode", "OFF")?;
    connection.pragma_update(None, "synchronous", "OFF")?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    // Negative: in KiB instead of pages.
    connection.pragma_update(None, "cache_size", -(settings.memory as i64 / 1024))?;
    connection.execute(sqlite::CREATE, ())?;
    connection.execute("BEGIN", ())?;
    {
        let mut insert = connection.prepare("INSERT INTO usertable VALUES (?1, ?2)")?;
        while let Some((key, value)) = records.next() {
            insert.execute([&key[..], value])?;
        }
    }
    connection.execute("COMMIT", ())?;
    std::fs::File::open(&path)?.sync_all()?;
    Ok(Instant::now())
}

fn by_transactions<P: Peer>(peer: &P, mut records: Records) -> Outcome<Instant> {
    let mut record = records.next();
    while record.is_some() {
        let mut transaction = peer.begin(true, false).map_err(failure)?;
        let mut left = BATCH;
        while left > 0
            && let Some((key, value)) = record
        {
            transaction.put(key, value).map_err(failure)?;
            record = records.next();
            left -= 1;
        }
        transaction.commit().map_err(failure)?;
    }
    peer.settle().map_err(failure)?;
    Ok(Instant::now())
}

fn failure(trouble: Trouble) -> Box<dyn Error> {
    match trouble {
        Trouble::Conflict => "a conflict where none can be".into(),
        Trouble::Failed(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_in_key_order_each_with_its_own_value() {
        let mut records = Records::new(300, 20);
        let mut seen = Vec::new();
        while let Some((key, value)) = records.next() {
            let mut expected = [0; 20];
            fill(u64::from_be_bytes(key), &mut expected);
            assert_eq!(value, expected);
            seen.push((key, value.to_vec()));
        }
        assert_eq!(seen.len(), 300);
        assert!(seen.is_sorted_by(|(a, x), (b, y)| a < b && x != y));
    }
}
