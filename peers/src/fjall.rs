//! fjall: a log-structured merge tree in Rust, with optimistic serializable transactions (ranges included). Three quarters of the memory as
//! cache, as many workers as processors. `delayed` is its default: the journal is written to the operating system at commit, and not synced.

use crate::peer::{Peer, PeerTransaction, Settings, Trouble, processors, seen};
use fjall::{
    Error, KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, OptimisticWriteTx, PersistMode,
    Readable,
};

pub struct Fjall {
    pub database: OptimisticTxDatabase,
    pub records: OptimisticTxKeyspace,
}

impl Fjall {
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        let database = OptimisticTxDatabase::builder(&settings.directory)
            .cache_size(settings.memory as u64 / 4 * 3)
            .worker_threads(processors())
            .open()?;
        let records = database.keyspace("usertable", KeyspaceCreateOptions::default)?;
        Ok(Self { database, records })
    }
}

pub struct FjallTransaction<'a> {
    fjall: &'a Fjall,
    pub transaction: OptimisticWriteTx,
}

impl PeerTransaction for FjallTransaction<'_> {
    fn get(&mut self, key: [u8; 8]) -> Result<(), Trouble> {
        seen(self.transaction.get(&self.fjall.records, key)?.as_deref());
        Ok(())
    }

    fn value(&mut self, key: [u8; 8]) -> Result<Option<Vec<u8>>, Trouble> {
        Ok(self.transaction.get(&self.fjall.records, key)?.map(|value| value.to_vec()))
    }

    fn put(&mut self, key: [u8; 8], value: &[u8]) -> Result<(), Trouble> {
        self.transaction.insert(&self.fjall.records, key, value);
        Ok(())
    }

    fn scan(&mut self, key: [u8; 8], count: usize) -> Result<(), Trouble> {
        for entry in self.transaction.range(&self.fjall.records, key..).take(count) {
            seen(Some(&entry.value()?));
        }
        Ok(())
    }

    fn commit(self) -> Result<(), Trouble> {
        self.transaction.commit()?.map_err(|_| Trouble::Conflict)
    }
}

impl Peer for Fjall {
    type Transaction<'a> = FjallTransaction<'a>;
    const NAME: &'static str = "fjall";
    const ISOLATION: &'static str = "serializable";
    const DELAYED: &'static str = "written at commit, not synced";

    fn begin(&self, _writes: bool, sync: bool) -> Result<FjallTransaction<'_>, Trouble> {
        let mode = sync.then_some(PersistMode::SyncData);
        let transaction = self.database.write_tx()?;
        let transaction = if mode.is_some() { transaction.durability(mode) } else { transaction };
        Ok(FjallTransaction { fjall: self, transaction })
    }

    fn settle(&self) -> Result<(), Trouble> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }
}
