//! RocksDB's two transaction engines.
//!
//! Both are used serializably on points: reads of transactions that write are tracked with `get_for_update`, which the optimistic engine validates at
//! commit and the pessimistic one locks: shared, or exclusively what will be written, with detection of deadlocks. Neither protects
//! ranges. What only reads does so on a snapshot, which is a state between two commits, and neither tracks nor locks. Settings after RocksDB's tuning guide
//! (<https://github.com/facebook/rocksdb/wiki/Setup-Options-and-Basic-Tuning>): three
//! quarters of the memory as block cache, bloom filters of 10 bits, index and filter blocks in the cache's high-priority
//! part, level compaction with dynamic level bytes, as many background jobs as cores, write buffers of 64 MiB; LZ4 below.
//! `delayed` is the default of RocksDB: the write-ahead log is written to the operating system at commit, and not synced.

use crate::peer::{Peer, PeerTransaction, Settings, Trouble, processors, seen};
use rocksdb::{
    BlockBasedOptions, Cache, DBAccess, DBCompressionType, Direction, Error, ErrorKind, IteratorMode,
    OptimisticTransactionDB, OptimisticTransactionOptions, Options, SnapshotWithThreadMode, Transaction,
    TransactionDB, TransactionDBOptions, TransactionOptions, WriteOptions,
};

const ISOLATION: &str = "serializable but for writers' scans";
const DELAYED: &str = "written at commit, not synced";

pub fn options(settings: &Settings) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(settings.memory / 4 * 3));
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.increase_parallelism(processors() as i32);
    options.set_write_buffer_size((64 << 20).min(settings.memory / 16));
    options.set_max_write_buffer_number(4);
    options.set_compression_type(DBCompressionType::Lz4);
    options
}

fn write_options(sync: bool) -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(sync);
    options
}

pub fn trouble(error: Error) -> Trouble {
    match error.kind() {
        ErrorKind::Busy | ErrorKind::TimedOut | ErrorKind::TryAgain => Trouble::Conflict,
        _ => error.into(),
    }
}

pub enum RocksTransaction<'a, D: DBAccess> {
    Reader(SnapshotWithThreadMode<'a, D>),
    Writer(Transaction<'a, D>),
}

impl<'a, D: DBAccess> RocksTransaction<'a, D> {
    /// The transaction of one that was begun to write.
    pub fn into_writer(self) -> Transaction<'a, D> {
        match self {
            RocksTransaction::Reader(_) => unreachable!("the driver said that it would not write"),
            RocksTransaction::Writer(transaction) => transaction,
        }
    }
}

impl<D: DBAccess> PeerTransaction for RocksTransaction<'_, D>
where
    for<'a> Transaction<'a, D>: DBAccess,
{
    fn get(&mut self, key: [u8; 8]) -> Result<(), Trouble> {
        match self {
            RocksTransaction::Reader(snapshot) => {
                seen(snapshot.get_pinned(key).map_err(trouble)?.as_deref());
            }
            RocksTransaction::Writer(transaction) => {
                seen(transaction.get_pinned_for_update(key, false).map_err(trouble)?.as_deref());
            }
        }
        Ok(())
    }

    fn value(&mut self, key: [u8; 8]) -> Result<Option<Vec<u8>>, Trouble> {
        match self {
            RocksTransaction::Reader(snapshot) => snapshot.get(key),
            RocksTransaction::Writer(transaction) => transaction.get_for_update(key, false),
        }
        .map_err(trouble)
    }

    fn get_for_update(&mut self, key: [u8; 8]) -> Result<(), Trouble> {
        match self {
            RocksTransaction::Reader(_) => unreachable!("the driver said that it would not write"),
            RocksTransaction::Writer(transaction) => {
                seen(transaction.get_pinned_for_update(key, true).map_err(trouble)?.as_deref());
                Ok(())
            }
        }
    }

    fn put(&mut self, key: [u8; 8], value: &[u8]) -> Result<(), Trouble> {
        match self {
            RocksTransaction::Reader(_) => unreachable!("the driver said that it would not write"),
            RocksTransaction::Writer(transaction) => transaction.put(key, value).map_err(trouble),
        }
    }

    fn scan(&mut self, key: [u8; 8], count: usize) -> Result<(), Trouble> {
        let from = IteratorMode::From(&key, Direction::Forward);
        match self {
            RocksTransaction::Reader(snapshot) => {
                for entry in snapshot.iterator(from).take(count) {
                    seen(Some(&entry.map_err(trouble)?.1));
                }
            }
            RocksTransaction::Writer(transaction) => {
                for entry in transaction.iterator(from).take(count) {
                    seen(Some(&entry.map_err(trouble)?.1));
                }
            }
        }
        Ok(())
    }

    fn commit(self) -> Result<(), Trouble> {
        match self {
            RocksTransaction::Reader(_) => Ok(()),
            RocksTransaction::Writer(transaction) => transaction.commit().map_err(trouble),
        }
    }
}

pub struct Optimistic(pub OptimisticTransactionDB);

impl Optimistic {
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        Ok(Self(OptimisticTransactionDB::open(&options(settings), &settings.directory)?))
    }
}

impl Peer for Optimistic {
    type Transaction<'a> = RocksTransaction<'a, OptimisticTransactionDB>;
    const NAME: &'static str = "rocksdb-optimistic";
    const ISOLATION: &'static str = ISOLATION;
    const DELAYED: &'static str = DELAYED;

    fn begin(&self, writes: bool, sync: bool) -> Result<Self::Transaction<'_>, Trouble> {
        if !writes {
            return Ok(RocksTransaction::Reader(SnapshotWithThreadMode::new(&self.0)));
        }
        let mut options = OptimisticTransactionOptions::new();
        options.set_snapshot(false);
        Ok(RocksTransaction::Writer(self.0.transaction_opt(&write_options(sync), &options)))
    }

    fn settle(&self) -> Result<(), Trouble> {
        Ok(self.0.flush()?)
    }
}

pub struct Pessimistic(pub TransactionDB);

impl Pessimistic {
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        let transactions = TransactionDBOptions::new();
        Ok(Self(TransactionDB::open(&options(settings), &transactions, &settings.directory)?))
    }
}

impl Peer for Pessimistic {
    type Transaction<'a> = RocksTransaction<'a, TransactionDB>;
    const NAME: &'static str = "rocksdb-pessimistic";
    const ISOLATION: &'static str = ISOLATION;
    const DELAYED: &'static str = DELAYED;

    fn begin(&self, writes: bool, sync: bool) -> Result<Self::Transaction<'_>, Trouble> {
        if !writes {
            return Ok(RocksTransaction::Reader(SnapshotWithThreadMode::new(&self.0)));
        }
        let mut options = TransactionOptions::new();
        // Else two that wait for each other wait for a second.
        options.set_deadlock_detect(true);
        Ok(RocksTransaction::Writer(self.0.transaction_opt(&write_options(sync), &options)))
    }

    fn settle(&self) -> Result<(), Trouble> {
        Ok(self.0.flush()?)
    }
}
