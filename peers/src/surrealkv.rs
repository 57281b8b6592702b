//! SurrealKV: a log-structured merge tree in Rust, the storage engine of SurrealDB, with optimistic transactions.
//!
//! Transactions run on snapshots. What a transaction that writes has read with `get_for_update` is validated at commit, under the lock that orders
//! commits, so that all of its reads do: they are serializable on points, and scans of a transaction that writes are not protected. What only reads
//! says so (`Mode::ReadOnly`).
//!
//! Set as its documentation has it (<https://docs.rs/surrealkv>, README and `Options`), which gives no advice for tuning: three quarters of the memory as
//! block cache, for the default of 32 MiB is of a small database; memtables of 100 MiB, the default, or an eighth of the memory if that is less, as up
//! to two wait to be flushed; no value log, which is for large values, and no versions. Blocks of 64 KiB without compression, bloom filters of 10 bits, as they are.
//! `Durability::Eventual`, the default, writes the log to the operating system at commit and does not sync it; with `Durability::Immediate`
//! the log is given its space ahead (`with_wal_preallocation`), which its documentation recommends for syncs on ext4.
//!
//! Commits are asynchronous: each thread waits for its own (`Handle::block_on`). Flushes and compactions run on a runtime of two threads.

use crate::peer::{Peer, PeerTransaction, Settings, Trouble, seen};
use surrealkv::{Durability, Error, LSMIterator, Mode, Options, Transaction, Tree, TreeBuilder};
use tokio::runtime::{Builder, Runtime};

pub struct Surrealkv {
    tree: Tree,
    runtime: Runtime,
}

impl Surrealkv {
    pub fn open(settings: &Settings) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
        let options = Options::new()
            .with_path(settings.directory.clone())
            .with_block_cache_capacity(settings.memory as u64 / 4 * 3)
            .with_max_memtable_size((100 << 20).min(settings.memory / 8))
            .with_wal_preallocation(settings.sync);
        let tree = {
            // Its tasks are spawned while it opens.
            let _runtime = runtime.enter();
            TreeBuilder::with_options(options).build()?
        };
        Ok(Self { tree, runtime })
    }

    /// Writes what is in memory to tables, and ends the tasks.
    pub fn close(&self) -> Result<(), Error> {
        self.runtime.block_on(self.tree.close())
    }
}

impl Drop for Surrealkv {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            eprintln!("surrealkv was not closed: {error}");
        }
    }
}

pub struct SurrealkvTransaction<'a> {
    surrealkv: &'a Surrealkv,
    transaction: Transaction,
    writes: bool,
}

fn trouble(error: Error) -> Trouble {
    match error {
        Error::TransactionWriteConflict | Error::TransactionRetry => Trouble::Conflict,
        error => error.into(),
    }
}

impl PeerTransaction for SurrealkvTransaction<'_> {
    fn get(&mut self, key: [u8; 8]) -> Result<(), Trouble> {
        seen(self.value(key)?.as_deref());
        Ok(())
    }

    fn value(&mut self, key: [u8; 8]) -> Result<Option<Vec<u8>>, Trouble> {
        let value = match self.writes {
            true => self.transaction.get_for_update(&key),
            false => self.transaction.get(&key),
        };
        value.map_err(trouble)
    }

    fn put(&mut self, key: [u8; 8], value: &[u8]) -> Result<(), Trouble> {
        self.transaction.set(&key, value).map_err(trouble)
    }

    fn scan(&mut self, key: [u8; 8], count: usize) -> Result<(), Trouble> {
        let mut entries = self.transaction.scan(&key[..]..).map_err(trouble)?;
        let mut left = count;
        entries.seek_first().map_err(trouble)?;
        while left > 0 && entries.valid() {
            seen(Some(&entries.value_ref().map_err(trouble)?));
            entries.next().map_err(trouble)?;
            left -= 1;
        }
        Ok(())
    }

    fn commit(mut self) -> Result<(), Trouble> {
        if !self.writes {
            return Ok(());
        }
        self.surrealkv.runtime.handle().block_on(self.transaction.commit()).map_err(trouble)
    }
}

impl Peer for Surrealkv {
    type Transaction<'a> = SurrealkvTransaction<'a>;
    const NAME: &'static str = "surrealkv";
    const ISOLATION: &'static str = "serializable but for writers' scans";
    const DELAYED: &'static str = "written at commit, not synced";

    fn begin(&self, writes: bool, sync: bool) -> Result<SurrealkvTransaction<'_>, Trouble> {
        let mode = if writes { Mode::ReadWrite } else { Mode::ReadOnly };
        let mut transaction = self.tree.begin_with_mode(mode).map_err(trouble)?;
        transaction.set_durability(if sync { Durability::Immediate } else { Durability::Eventual });
        Ok(SurrealkvTransaction { surrealkv: self, transaction, writes })
    }

    fn settle(&self) -> Result<(), Trouble> {
        self.tree.flush_wal(true).map_err(trouble)
    }
}
