//! redb under applications: its own tables, opened once a transaction when they are first used. One writer at a time, readers on snapshots.

use super::{Durable, failed, interruption, reads_only};
use crate::peer::{Peer, Settings};
use crate::redb::{Redb, RedbTransaction};
use deuteron_bench::{
    Access, Application, ApplicationStore, ApplicationTransaction, BenchError, Body, Interruption, Order,
    StoreFigures, directory_bytes,
};
use redb::{
    Error, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, Table, TableDefinition,
    WriteTransaction,
};
use std::ops::Range;

type Bytes = &'static [u8];

pub struct RedbStore {
    redb: Redb,
    tables: &'static [&'static str],
    settings: Settings,
}

impl RedbStore {
    pub fn open(settings: Settings, application: &dyn Application) -> Result<Self, Error> {
        let redb = Redb::open(&settings)?;
        let transaction = redb.database.begin_write()?;
        for table in application.tables() {
            transaction.open_table(definition(table))?;
        }
        transaction.commit()?;
        Ok(Self { redb, tables: application.tables(), settings })
    }
}

fn definition(table: &'static str) -> TableDefinition<'static, Bytes, Bytes> {
    TableDefinition::new(table)
}

fn trouble(error: impl Into<Error>) -> Interruption {
    Interruption::Failed(BenchError::store("run a transaction")(error.into()))
}

impl ApplicationStore for RedbStore {
    fn name(&self) -> &'static str {
        Redb::NAME
    }

    fn isolation(&self) -> &'static str {
        "serializable: one writer at a time, readers on snapshots"
    }

    fn durability(&self) -> &'static str {
        self.settings.durability()
    }

    fn transact(&self, access: Access, body: Body<'_>) -> Result<(), Interruption> {
        if access == Access::Read {
            let transaction = self.redb.database.begin_read().map_err(trouble)?;
            let tables = self.tables.iter().map(|name| (*name, None)).collect();
            return body(&mut Reader { transaction: &transaction, tables });
        }
        let sync = access == Access::Write && self.settings.sync;
        let RedbTransaction::Writer(transaction) = self.redb.begin(true, sync).map_err(interruption)? else {
            return Err(reads_only());
        };
        let tables = self.tables.iter().map(|name| (*name, None)).collect();
        // One that is dropped is rolled back.
        body(&mut Writer { transaction: &transaction, tables })?;
        transaction.commit().map_err(trouble)
    }

    fn settle(&self) -> Result<(), BenchError> {
        self.redb.settle().map_err(|trouble| failed("settle", trouble))
    }

    fn figures(&self) -> StoreFigures {
        StoreFigures { disk_bytes: directory_bytes(&self.settings.directory), ..StoreFigures::default() }
    }
}

/// Tables by their numbers: the name, and the table once it is open.
type Tables<T> = Vec<(&'static str, Option<T>)>;

struct Reader<'t> {
    transaction: &'t ReadTransaction,
    tables: Tables<ReadOnlyTable<Bytes, Bytes>>,
}

impl Reader<'_> {
    fn table(&mut self, table: usize) -> Result<&ReadOnlyTable<Bytes, Bytes>, Interruption> {
        match &mut self.tables[table] {
            (_, Some(open)) => Ok(open),
            (name, closed) => {
                Ok(closed.insert(self.transaction.open_table(definition(name)).map_err(trouble)?))
            }
        }
    }
}

struct Writer<'t> {
    transaction: &'t WriteTransaction,
    tables: Tables<Table<'t, Bytes, Bytes>>,
}

impl<'t> Writer<'t> {
    fn table(&mut self, table: usize) -> Result<&mut Table<'t, Bytes, Bytes>, Interruption> {
        match &mut self.tables[table] {
            (_, Some(open)) => Ok(open),
            (name, closed) => {
                Ok(closed.insert(self.transaction.open_table(definition(name)).map_err(trouble)?))
            }
        }
    }
}

fn give(
    table: &impl ReadableTable<Bytes, Bytes>,
    key: &[u8],
    reader: &mut dyn FnMut(&[u8]),
) -> Result<(), Interruption> {
    if let Some(value) = table.get(key).map_err(trouble)? {
        reader(value.value());
    }
    Ok(())
}

fn scan(
    table: &impl ReadableTable<Bytes, Bytes>,
    keys: Range<&[u8]>,
    order: Order,
    each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Interruption> {
    let mut entries = table.range::<&[u8]>(keys).map_err(trouble)?;
    loop {
        let entry = match order {
            Order::Ascending => entries.next(),
            Order::Descending => entries.next_back(),
        };
        let Some(entry) = entry else { return Ok(()) };
        let (key, value) = entry.map_err(trouble)?;
        if !each(key.value(), value.value()) {
            return Ok(());
        }
    }
}

impl ApplicationTransaction for Reader<'_> {
    fn get(&mut self, table: usize, key: &[u8], reader: &mut dyn FnMut(&[u8])) -> Result<(), Interruption> {
        give(self.table(table)?, key, reader)
    }

    fn put(&mut self, _table: usize, _key: &[u8], _value: &[u8]) -> Result<(), Interruption> {
        Err(reads_only())
    }

    fn delete(&mut self, _table: usize, _key: &[u8]) -> Result<(), Interruption> {
        Err(reads_only())
    }

    fn scan(
        &mut self,
        table: usize,
        keys: Range<&[u8]>,
        order: Order,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Interruption> {
        scan(self.table(table)?, keys, order, each)
    }
}

impl ApplicationTransaction for Writer<'_> {
    fn get(&mut self, table: usize, key: &[u8], reader: &mut dyn FnMut(&[u8])) -> Result<(), Interruption> {
        give(self.table(table)?, key, reader)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), Interruption> {
        self.table(table)?.insert(key, value).map(drop).map_err(trouble)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), Interruption> {
        self.table(table)?.remove(key).map(drop).map_err(trouble)
    }

    fn scan(
        &mut self,
        table: usize,
        keys: Range<&[u8]>,
        order: Order,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Interruption> {
        scan(self.table(table)?, keys, order, each)
    }
}
