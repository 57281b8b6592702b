//! redb: a copy-on-write B-tree in Rust. One writer at a time; transactions that only read run on snapshots. `delayed`: commits are not
//! durable by themselves, and the first after every 10 ms is.

use crate::peer::{Peer, PeerTransaction, Settings, Trouble, seen};
use redb::{
    Builder, Database, Durability, Error, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
    WriteTransaction,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The table in its file.
pub const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("usertable");

pub struct Redb {
    pub database: Database,
    opened: Instant,
    /// Milliseconds after opening.
    synced: AtomicU64,
}

/// Opens the file, which is created if it is not there.
pub fn create(settings: &Settings) -> Result<Database, Error> {
    Ok(Builder::new().set_cache_size(settings.memory).create(settings.directory.join("records.redb"))?)
}

impl Redb {
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        let database = create(settings)?;
        let transaction = database.begin_write()?;
        transaction.open_table(TABLE)?;
        transaction.commit()?;
        Ok(Self { database, opened: Instant::now(), synced: AtomicU64::new(0) })
    }
}

#[expect(
    clippy::large_enum_variant,
    reason = "there is one a thread, and a box would be an allocation of ours that redb pays for"
)]
pub enum RedbTransaction {
    Reader(ReadTransaction),
    Writer(WriteTransaction),
}

impl PeerTransaction for RedbTransaction {
    fn get(&mut self, key: [u8; 8]) -> Result<(), Trouble> {
        match self {
            RedbTransaction::Reader(transaction) => {
                seen(transaction.open_table(TABLE)?.get(&key[..])?.as_ref().map(|value| value.value()));
            }
            RedbTransaction::Writer(transaction) => {
                seen(transaction.open_table(TABLE)?.get(&key[..])?.as_ref().map(|value| value.value()));
            }
        }
        Ok(())
    }

    fn value(&mut self, key: [u8; 8]) -> Result<Option<Vec<u8>>, Trouble> {
        Ok(match self {
            RedbTransaction::Reader(transaction) => {
                transaction.open_table(TABLE)?.get(&key[..])?.map(|value| value.value().to_vec())
            }
            RedbTransaction::Writer(transaction) => {
                transaction.open_table(TABLE)?.get(&key[..])?.map(|value| value.value().to_vec())
            }
        })
    }

    fn put(&mut self, key: [u8; 8], value: &[u8]) -> Result<(), Trouble> {
        match self {
            RedbTransaction::Reader(_) => unreachable!("the driver said that it would not write"),
            RedbTransaction::Writer(transaction) => {
                transaction.open_table(TABLE)?.insert(&key[..], value)?;
            }
        }
        Ok(())
    }

    fn scan(&mut self, key: [u8; 8], count: usize) -> Result<(), Trouble> {
        match self {
            RedbTransaction::Reader(transaction) => {
                for entry in transaction.open_table(TABLE)?.range(&key[..]..)?.take(count) {
                    seen(Some(entry?.1.value()));
                }
            }
            RedbTransaction::Writer(transaction) => {
                for entry in transaction.open_table(TABLE)?.range(&key[..]..)?.take(count) {
                    seen(Some(entry?.1.value()));
                }
            }
        }
        Ok(())
    }

    fn commit(self) -> Result<(), Trouble> {
        match self {
            RedbTransaction::Reader(_) => Ok(()),
            RedbTransaction::Writer(transaction) => Ok(transaction.commit()?),
        }
    }
}

impl Peer for Redb {
    type Transaction<'a> = RedbTransaction;
    const NAME: &'static str = "redb";
    const ISOLATION: &'static str = "serializable, one writer";
    const DELAYED: &'static str = "synced by the first commit after 10 ms";

    fn begin(&self, writes: bool, sync: bool) -> Result<RedbTransaction, Trouble> {
        if !writes {
            return Ok(RedbTransaction::Reader(self.database.begin_read()?));
        }
        let mut transaction = self.database.begin_write()?;
        if !sync {
            // Under the writer's lock: nobody else looks.
            let now = self.opened.elapsed().as_millis() as u64;
            if now < self.synced.load(Ordering::Relaxed) + 10 {
                transaction.set_durability(Durability::None)?;
            } else {
                self.synced.store(now, Ordering::Relaxed);
            }
        }
        Ok(RedbTransaction::Writer(transaction))
    }

    fn settle(&self) -> Result<(), Trouble> {
        Ok(self.database.begin_write()?.commit()?)
    }
}
