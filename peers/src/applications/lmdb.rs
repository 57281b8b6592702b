//! LMDB under applications: a named database for each table. One writer at a time, readers on snapshots.

use super::{Durable, failed, reads_only};
use crate::lmdb::Lmdb;
use crate::peer::{Peer, Settings};
use deuteron_bench::{
    Access, Application, ApplicationStore, ApplicationTransaction, BenchError, Body, Interruption, Order,
    StoreFigures, directory_bytes,
};
use heed::types::Bytes;
use heed::{AnyTls, Database, RoTxn, RwTxn, WithTls};
use std::ops::{Bound, Range};

type Table = Database<Bytes, Bytes>;

pub struct LmdbStore {
    lmdb: Lmdb,
    tables: Vec<Table>,
    settings: Settings,
}

impl LmdbStore {
    pub fn open(settings: Settings, application: &dyn Application) -> Result<Self, heed::Error> {
        let lmdb = Lmdb::open(&settings)?;
        let mut transaction = lmdb.environment.write_txn()?;
        let tables: Result<Vec<Table>, heed::Error> = application
            .tables()
            .iter()
            .map(|table| lmdb.environment.create_database(&mut transaction, Some(table)))
            .collect();
        transaction.commit()?;
        Ok(Self { tables: tables?, lmdb, settings })
    }
}

fn interruption(error: heed::Error) -> Interruption {
    Interruption::Failed(BenchError::store("run a transaction")(error))
}

impl ApplicationStore for LmdbStore {
    fn name(&self) -> &'static str {
        Lmdb::NAME
    }

    fn isolation(&self) -> &'static str {
        "serializable: one writer at a time, readers on snapshots"
    }

    fn durability(&self) -> &'static str {
        self.settings.durability()
    }

    fn transact(&self, access: Access, body: Body<'_>) -> Result<(), Interruption> {
        let tables = &self.tables;
        let environment = &self.lmdb.environment;
        if access == Access::Read {
            let transaction = environment.read_txn().map_err(interruption)?;
            return body(&mut LmdbTransaction::Reader(tables, transaction));
        }
        let transaction = environment.write_txn().map_err(interruption)?;
        let mut writer = LmdbTransaction::Writer(tables, transaction);
        // One that is dropped is rolled back.
        body(&mut writer)?;
        match writer {
            LmdbTransaction::Writer(_, transaction) => transaction.commit().map_err(interruption),
            LmdbTransaction::Reader(..) => Ok(()),
        }
    }

    fn settle(&self) -> Result<(), BenchError> {
        self.lmdb.settle().map_err(|trouble| failed("settle", trouble))
    }

    fn figures(&self) -> StoreFigures {
        StoreFigures { disk_bytes: directory_bytes(&self.settings.directory), ..StoreFigures::default() }
    }
}

enum LmdbTransaction<'a> {
    Reader(&'a [Table], RoTxn<'a, WithTls>),
    Writer(&'a [Table], RwTxn<'a>),
}

impl LmdbTransaction<'_> {
    fn parts(&self, table: usize) -> (Table, &RoTxn<'_, AnyTls>) {
        match self {
            LmdbTransaction::Reader(tables, transaction) => (tables[table], transaction),
            LmdbTransaction::Writer(tables, transaction) => (tables[table], transaction),
        }
    }
}

impl ApplicationTransaction for LmdbTransaction<'_> {
    fn get(&mut self, table: usize, key: &[u8], reader: &mut dyn FnMut(&[u8])) -> Result<(), Interruption> {
        let (table, transaction) = self.parts(table);
        table.get(transaction, key).map_err(interruption)?.into_iter().for_each(reader);
        Ok(())
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), Interruption> {
        match self {
            LmdbTransaction::Reader(..) => Err(reads_only()),
            LmdbTransaction::Writer(tables, transaction) => {
                tables[table].put(transaction, key, value).map_err(interruption)
            }
        }
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), Interruption> {
        match self {
            LmdbTransaction::Reader(..) => Err(reads_only()),
            LmdbTransaction::Writer(tables, transaction) => {
                tables[table].delete(transaction, key).map(drop).map_err(interruption)
            }
        }
    }

    fn scan(
        &mut self,
        table: usize,
        keys: Range<&[u8]>,
        order: Order,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Interruption> {
        let (table, transaction) = self.parts(table);
        let range = (Bound::Included(keys.start), Bound::Excluded(keys.end));
        match order {
            Order::Ascending => {
                for entry in table.range(transaction, &range).map_err(interruption)? {
                    let (key, value) = entry.map_err(interruption)?;
                    if !each(key, value) {
                        break;
                    }
                }
            }
            Order::Descending => {
                for entry in table.rev_range(transaction, &range).map_err(interruption)? {
                    let (key, value) = entry.map_err(interruption)?;
                    if !each(key, value) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}
