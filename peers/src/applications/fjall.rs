//! fjall under applications: a keyspace for each table. Its optimistic transactions remember what they read, ranges as they were asked for,
//! and are validated at commit; those that only read have a snapshot.

use super::{Durable, failed, reads_only};
use crate::fjall::{Fjall, FjallTransaction};
use crate::peer::{Peer, Settings};
use deuteron_bench::{
    Access, Application, ApplicationStore, ApplicationTransaction, BenchError, Body, Interruption, Order,
    StoreFigures, directory_bytes,
};
use fjall::{Error, Iter, KeyspaceCreateOptions, OptimisticTxKeyspace, OptimisticWriteTx, Readable};
use std::ops::Range;

pub struct FjallStore {
    fjall: Fjall,
    tables: Vec<OptimisticTxKeyspace>,
    settings: Settings,
}

impl FjallStore {
    pub fn open(settings: Settings, application: &dyn Application) -> Result<Self, Error> {
        let fjall = Fjall::open(&settings)?;
        let tables: Result<Vec<OptimisticTxKeyspace>, Error> = application
            .tables()
            .iter()
            .map(|table| fjall.database.keyspace(table, KeyspaceCreateOptions::default))
            .collect();
        Ok(Self { tables: tables?, fjall, settings })
    }
}

fn trouble(error: Error) -> Interruption {
    Interruption::Failed(BenchError::store("run a transaction")(error))
}

impl ApplicationStore for FjallStore {
    fn name(&self) -> &'static str {
        Fjall::NAME
    }

    fn isolation(&self) -> &'static str {
        "serializable, ranges included, validated at commit"
    }

    fn durability(&self) -> &'static str {
        self.settings.durability()
    }

    fn transact(&self, access: Access, body: Body<'_>) -> Result<(), Interruption> {
        let tables = &self.tables;
        if access == Access::Read {
            return body(&mut Reader { tables, transaction: self.fjall.database.read_tx() });
        }
        let sync = access == Access::Write && self.settings.sync;
        let FjallTransaction { transaction, .. } =
            self.fjall.begin(true, sync).map_err(super::interruption)?;
        let mut writer = Writer { tables, transaction };
        // One that is dropped is rolled back.
        body(&mut writer)?;
        let conflict = |_| Interruption::Conflict("conflict");
        writer.transaction.commit().map_err(trouble)?.map_err(conflict)
    }

    fn settle(&self) -> Result<(), BenchError> {
        self.fjall.settle().map_err(|trouble| failed("settle", trouble))
    }

    fn figures(&self) -> StoreFigures {
        StoreFigures { disk_bytes: directory_bytes(&self.settings.directory), ..StoreFigures::default() }
    }
}

fn scan(
    mut entries: Iter,
    order: Order,
    each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Interruption> {
    loop {
        let entry = match order {
            Order::Ascending => entries.next(),
            Order::Descending => entries.next_back(),
        };
        let Some(entry) = entry else { return Ok(()) };
        let (key, value) = entry.into_inner().map_err(trouble)?;
        if !each(&key, &value) {
            return Ok(());
        }
    }
}

struct Reader<'a, R> {
    tables: &'a [OptimisticTxKeyspace],
    transaction: R,
}

impl<R: Readable> ApplicationTransaction for Reader<'_, R> {
    fn get(&mut self, table: usize, key: &[u8], reader: &mut dyn FnMut(&[u8])) -> Result<(), Interruption> {
        let found = self.transaction.get(&self.tables[table], key).map_err(trouble)?;
        found.as_deref().into_iter().for_each(reader);
        Ok(())
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
        scan(self.transaction.range(&self.tables[table], keys), order, each)
    }
}

struct Writer<'a> {
    tables: &'a [OptimisticTxKeyspace],
    transaction: OptimisticWriteTx,
}

impl ApplicationTransaction for Writer<'_> {
    fn get(&mut self, table: usize, key: &[u8], reader: &mut dyn FnMut(&[u8])) -> Result<(), Interruption> {
        let found = self.transaction.get(&self.tables[table], key).map_err(trouble)?;
        found.as_deref().into_iter().for_each(reader);
        Ok(())
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), Interruption> {
        self.transaction.insert(&self.tables[table], key, value);
        Ok(())
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), Interruption> {
        self.transaction.remove(&self.tables[table], key);
        Ok(())
    }

    fn scan(
        &mut self,
        table: usize,
        keys: Range<&[u8]>,
        order: Order,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Interruption> {
        scan(self.transaction.range(&self.tables[table], keys), order, each)
    }
}
