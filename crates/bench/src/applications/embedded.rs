//! The database under an application.

use super::{Access, Application, ApplicationStore, ApplicationTransaction, Body, Interruption, Order};
use crate::{BenchError, DELAYED, StoreFigures, directory_bytes};
use deuteron::device::Directory;
use deuteron::{Db, Durability, Error, Isolation, Options, Scan, Table, Transaction, TransactionOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A database of [`deuteron`], with the tables of an [`Application`].
///
/// Transactions that only read are declared so, which keeps them strictly serializable and out of the way of those that write.
///
/// ```
/// use deuteron::Durability;
/// use deuteron_bench::{Access, ApplicationStore, EmbeddedApplicationStore, Voter};
/// # let scratch = tempfile::tempdir()?;
/// let options = deuteron::Options::new().memory(64 << 20);
/// let store = EmbeddedApplicationStore::open(options, scratch.path(), Durability::Sync, &Voter::new(6))?;
/// store.transact(Access::Write, &mut |tx| tx.put(0, b"key", b"value")).unwrap();
/// assert_eq!(store.durability(), "sync");
/// store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EmbeddedApplicationStore {
    db: Db,
    tables: Vec<Table>,
    directory: Option<PathBuf>,
    durability: &'static str,
    isolation: Isolation,
}

impl EmbeddedApplicationStore {
    /// Opens (or creates) the database in `directory`, as durable as the options say.
    ///
    /// # Errors
    /// [`BenchError::Store`].
    pub fn open(
        options: Options,
        directory: &Path,
        durability: Durability,
        application: &dyn Application,
    ) -> Result<Self, BenchError> {
        let opened = options.durability(durability).open(directory);
        let db = opened.map_err(BenchError::store("open the database under measurement"))?;
        Ok(Self { directory: Some(directory.into()), ..Self::over(db, durability, application)? })
    }

    /// The same in a directory of the caller's, such as one in memory.
    ///
    /// # Errors
    /// [`BenchError::Store`].
    pub fn open_in(
        options: Options,
        directory: Arc<dyn Directory>,
        durability: Durability,
        application: &dyn Application,
    ) -> Result<Self, BenchError> {
        let opened = options.durability(durability).open_in(directory);
        let db = opened.map_err(BenchError::store("open the database under measurement"))?;
        Self::over(db, durability, application)
    }

    fn over(db: Db, durability: Durability, application: &dyn Application) -> Result<Self, BenchError> {
        let tables: Result<Vec<Table>, Error> =
            application.tables().iter().map(|table| db.table(table)).collect();
        let durability = match durability {
            Durability::Sync => "sync",
            Durability::Delayed(_) => "delayed",
            Durability::None => "none",
        };
        let tables = tables.map_err(BenchError::store("open the tables under measurement"))?;
        Ok(Self { db, tables, directory: None, durability, isolation: Isolation::Serializable })
    }

    /// With another isolation than strict serializability, to see what that lets through.
    pub fn isolated(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Closes the database.
    ///
    /// # Errors
    /// [`BenchError::Store`].
    pub fn close(self) -> Result<(), BenchError> {
        self.db.close().map_err(BenchError::store("close the database"))
    }
}

fn interruption(error: Error) -> Interruption {
    match error {
        Error::Conflict(conflict) => Interruption::Conflict(conflict.cause.name()),
        error if error.is_retryable() => Interruption::Conflict("memory-exhausted"),
        error => Interruption::Failed(BenchError::store("run a transaction")(error)),
    }
}

impl ApplicationStore for EmbeddedApplicationStore {
    fn name(&self) -> &'static str {
        "deuteron"
    }

    fn isolation(&self) -> &'static str {
        match self.isolation {
            Isolation::Serializable => "strictly serializable, ranges included",
            Isolation::Snapshot => "snapshot",
            Isolation::ReadCommitted => "read committed",
        }
    }

    fn durability(&self) -> &'static str {
        self.durability
    }

    fn transact(&self, access: Access, body: Body<'_>) -> Result<(), Interruption> {
        let options = TransactionOptions::new().isolation(self.isolation);
        let options = match access {
            Access::Read => options.read_only(true),
            Access::Write => options,
            Access::Load => options.durability(DELAYED),
        };
        let transaction = self.db.begin_with(options).map_err(interruption)?;
        let mut transaction = Embedded { tables: &self.tables, transaction };
        body(&mut transaction)?;
        transaction.transaction.commit().map_err(interruption)
    }

    fn settle(&self) -> Result<(), BenchError> {
        self.db.flush().map_err(BenchError::store("make the load durable"))
    }

    fn figures(&self) -> StoreFigures {
        let stats = self.db.stats();
        StoreFigures {
            disk_bytes: self.directory.as_deref().map_or(0, directory_bytes),
            bytes_written_log: stats.bytes_written_log,
            bytes_written_store: stats.bytes_written_store,
            checkpoints: stats.counter("dc.checkpoints").unwrap_or(0),
        }
    }
}

/// A transaction, and the tables by their numbers.
struct Embedded<'a> {
    tables: &'a [Table],
    transaction: Transaction,
}

impl ApplicationTransaction for Embedded<'_> {
    fn get(&mut self, table: usize, key: &[u8], reader: &mut dyn FnMut(&[u8])) -> Result<(), Interruption> {
        self.transaction.get_with(&self.tables[table], key, reader).map(drop).map_err(interruption)
    }

    fn get_for_update(
        &mut self,
        table: usize,
        key: &[u8],
        reader: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Interruption> {
        let found = self.transaction.get_for_update(&self.tables[table], key).map_err(interruption)?;
        found.as_deref().into_iter().for_each(reader);
        Ok(())
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), Interruption> {
        self.transaction.put(&self.tables[table], key, value).map_err(interruption)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), Interruption> {
        self.transaction.delete(&self.tables[table], key).map_err(interruption)
    }

    fn scan(
        &mut self,
        table: usize,
        keys: Range<&[u8]>,
        order: Order,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Interruption> {
        let scan = self.transaction.scan(&self.tables[table], keys).map_err(interruption)?;
        visit(scan, order, each)
    }

    fn first(
        &mut self,
        table: usize,
        keys: Range<&[u8]>,
        order: Order,
        reader: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), Interruption> {
        let scan = self.transaction.scan(&self.tables[table], keys).map_err(interruption)?;
        visit(scan.limit(1), order, &mut |key, value| {
            reader(key, value);
            true
        })
    }
}

/// Calls `each` on what a scan finds, until it says no.
fn visit(
    mut scan: Scan<'_>,
    order: Order,
    each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Interruption> {
    loop {
        let next = match order {
            Order::Ascending => scan.next_ref(),
            Order::Descending => scan.next_back_ref(),
        };
        match next.map_err(interruption)? {
            Some((key, value)) if each(key, value) => {}
            _ => return Ok(()),
        }
    }
}
