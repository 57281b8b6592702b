//! RocksDB's two transaction engines under applications.
//!
//! A table is a prefix of one byte, as MyRocks numbers its indexes, so that one write-ahead log and one set of memory tables serve all. A
//! transaction that writes reads with `get_for_update`, which the optimistic engine validates at commit and the pessimistic one
//! locks: shared, or exclusively what will be written. What it scans is not protected. A transaction that only reads has a snapshot:
//! beside writers that are serial in the order of their commits that is serializable, and costs no locks.

use super::{Durable, failed, interruption};
use crate::peer::{Peer, Settings};
use crate::rocksdb::{Optimistic, Pessimistic};
use deuteron_bench::{
    Access, ApplicationStore, ApplicationTransaction, BenchError, Body, Interruption, Order, StoreFigures,
    directory_bytes,
};
use rocksdb::{
    DBAccess, DBIteratorWithThreadMode, DBPinnableSlice, Direction, Error, IteratorMode,
    OptimisticTransactionDB, ReadOptions, SnapshotWithThreadMode, Transaction, TransactionDB,
};
use std::ops::Range;

/// One of the two, and what is said of it.
pub struct RocksdbStore<P> {
    peer: P,
    settings: Settings,
    isolation: &'static str,
}

impl RocksdbStore<Optimistic> {
    pub fn optimistic(settings: Settings) -> Result<Self, Error> {
        let isolation =
            "serializable on records, whose reads are validated at commit; ranges are not protected";
        Ok(Self { peer: Optimistic::open(&settings)?, settings, isolation })
    }
}

impl RocksdbStore<Pessimistic> {
    pub fn pessimistic(settings: Settings) -> Result<Self, Error> {
        let isolation = "serializable on records, by locks; ranges are not protected";
        Ok(Self { peer: Pessimistic::open(&settings)?, settings, isolation })
    }
}

/// What the two have in common.
pub trait RocksdbPeer: Peer {
    type Database: DBAccess;
    fn database(&self) -> &Self::Database;
    fn begin_transaction(&self, sync: bool) -> Result<Transaction<'_, Self::Database>, Interruption>;
}

impl RocksdbPeer for Optimistic {
    type Database = OptimisticTransactionDB;

    fn database(&self) -> &OptimisticTransactionDB {
        &self.0
    }

    fn begin_transaction(
        &self,
        sync: bool,
    ) -> Result<Transaction<'_, OptimisticTransactionDB>, Interruption> {
        Ok(self.begin(true, sync).map_err(interruption)?.into_writer())
    }
}

impl RocksdbPeer for Pessimistic {
    type Database = TransactionDB;

    fn database(&self) -> &TransactionDB {
        &self.0
    }

    fn begin_transaction(&self, sync: bool) -> Result<Transaction<'_, TransactionDB>, Interruption> {
        Ok(self.begin(true, sync).map_err(interruption)?.into_writer())
    }
}

impl<P: RocksdbPeer> ApplicationStore for RocksdbStore<P>
where
    for<'a> Transaction<'a, P::Database>: DBAccess,
{
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn isolation(&self) -> &'static str {
        self.isolation
    }

    fn durability(&self) -> &'static str {
        self.settings.durability()
    }

    fn transact(&self, access: Access, body: Body<'_>) -> Result<(), Interruption> {
        if access == Access::Read {
            return body(&mut Reader(SnapshotWithThreadMode::new(self.peer.database())));
        }
        let sync = access == Access::Write && self.settings.sync;
        let mut writer = Writer(self.peer.begin_transaction(sync)?);
        // One that is dropped is rolled back.
        body(&mut writer)?;
        writer.0.commit().map_err(trouble)
    }

    fn settle(&self) -> Result<(), BenchError> {
        self.peer.settle().map_err(|trouble| failed("settle", trouble))
    }

    fn figures(&self) -> StoreFigures {
        StoreFigures { disk_bytes: directory_bytes(&self.settings.directory), ..StoreFigures::default() }
    }
}

fn trouble(error: Error) -> Interruption {
    interruption(crate::rocksdb::trouble(error))
}

/// The key in the one space of keys.
fn full(table: usize, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(key.len() + 1);
    full.push(table as u8);
    full.extend_from_slice(key);
    full
}

fn give(
    found: Result<Option<DBPinnableSlice<'_>>, Error>,
    reader: &mut dyn FnMut(&[u8]),
) -> Result<(), Interruption> {
    if let Some(value) = found.map_err(trouble)? {
        reader(&value);
    }
    Ok(())
}

/// Scans with an iterator that `begin` makes.
fn scan<'i, D: DBAccess + 'i>(
    table: usize,
    keys: Range<&[u8]>,
    order: Order,
    each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    begin: impl FnOnce(IteratorMode<'_>, ReadOptions) -> DBIteratorWithThreadMode<'i, D>,
) -> Result<(), Interruption> {
    let (first, behind) = (full(table, keys.start), full(table, keys.end));
    let mut options = ReadOptions::default();
    options.set_iterate_lower_bound(first.clone());
    options.set_iterate_upper_bound(behind.clone());
    let entries = match order {
        Order::Ascending => begin(IteratorMode::From(&first, Direction::Forward), options),
        Order::Descending => begin(IteratorMode::From(&behind, Direction::Reverse), options),
    };
    for entry in entries {
        let (key, value) = entry.map_err(trouble)?;
        // What the transaction itself has written may lie beyond the bounds.
        if *key >= *behind && order == Order::Descending {
            continue;
        }
        if *key < *first || *key >= *behind || !each(&key[1..], &value) {
            break;
        }
    }
    Ok(())
}

struct Writer<'a, D>(Transaction<'a, D>);

impl<D: DBAccess> ApplicationTransaction for Writer<'_, D>
where
    for<'a> Transaction<'a, D>: DBAccess,
{
    fn get(&mut self, table: usize, key: &[u8], reader: &mut dyn FnMut(&[u8])) -> Result<(), Interruption> {
        give(self.0.get_pinned_for_update(full(table, key), false), reader)
    }

    fn get_for_update(
        &mut self,
        table: usize,
        key: &[u8],
        reader: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Interruption> {
        give(self.0.get_pinned_for_update(full(table, key), true), reader)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), Interruption> {
        self.0.put(full(table, key), value).map_err(trouble)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), Interruption> {
        self.0.delete(full(table, key)).map_err(trouble)
    }

    fn scan(
        &mut self,
        table: usize,
        keys: Range<&[u8]>,
        order: Order,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Interruption> {
        scan(table, keys, order, each, |mode, options| self.0.iterator_opt(mode, options))
    }
}

struct Reader<'a, D: DBAccess>(SnapshotWithThreadMode<'a, D>);

impl<D: DBAccess> ApplicationTransaction for Reader<'_, D> {
    fn get(&mut self, table: usize, key: &[u8], reader: &mut dyn FnMut(&[u8])) -> Result<(), Interruption> {
        give(self.0.get_pinned(full(table, key)), reader)
    }

    fn put(&mut self, _table: usize, _key: &[u8], _value: &[u8]) -> Result<(), Interruption> {
        Err(super::reads_only())
    }

    fn delete(&mut self, _table: usize, _key: &[u8]) -> Result<(), Interruption> {
        Err(super::reads_only())
    }

    fn scan(
        &mut self,
        table: usize,
        keys: Range<&[u8]>,
        order: Order,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Interruption> {
        scan(table, keys, order, each, |mode, options| self.0.iterator_opt(mode, options))
    }
}
