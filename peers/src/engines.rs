//! The engines of the comparison: opening any of them as a [`Store`], and what it promises.

use crate::peer::{Peer, PeerStore, Settings};
use crate::{Engine, fjall, lmdb, redb, rocksdb, sqlite, surrealkv};
use deuteron::{Durability, Options};
use deuteron_bench::{Ahead, BenchError, DELAYED, EmbeddedStore, MapStore, Store};
use std::error::Error;

/// How an engine is going to be used.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    pub threads: usize,
    /// Commits of a thread in flight, for the engine that has such a thing.
    pub in_flight: usize,
    /// What Deuteron is told before it is asked.
    pub ahead: Ahead,
}

/// A [`Store`] that answers.
pub trait Database: Store {
    /// The value of a record, in a transaction of its own.
    fn value(&self, key: u64) -> Result<Option<Vec<u8>>, BenchError>;
}

impl Database for EmbeddedStore {
    fn value(&self, key: u64) -> Result<Option<Vec<u8>>, BenchError> {
        let read = || {
            let table = self.db().table("usertable")?;
            self.db().transact(|tx| tx.get(&table, &key.to_be_bytes()))
        };
        read().map_err(BenchError::store("read a record"))
    }
}

impl<P: Peer> Database for PeerStore<P> {
    fn value(&self, key: u64) -> Result<Option<Vec<u8>>, BenchError> {
        PeerStore::value(self, key)
    }
}

impl Database for MapStore {
    /// What a process has in a map is gone with it: nothing that asks this of an engine is asked of a map.
    fn value(&self, _key: u64) -> Result<Option<Vec<u8>>, BenchError> {
        Err(BenchError::Settings("a map answers nobody but its driver".into()))
    }
}

/// What is done with an engine, whichever it is.
pub trait Task {
    type Outcome;
    fn run<S: Database>(self, store: &S) -> Result<Self::Outcome, Box<dyn Error>>;
}

/// Opens the database of an engine, which is created if it is not there, does the task, and closes it.
pub fn with<T: Task>(
    engine: Engine,
    settings: Settings,
    how: &Use,
    task: T,
) -> Result<T::Outcome, Box<dyn Error>> {
    match engine {
        Engine::Map => task.run(&MapStore::new()),
        Engine::Deuteron => {
            let durability = if settings.sync { Durability::Sync } else { DELAYED };
            let options = Options::new().memory(settings.memory);
            let store = EmbeddedStore::open(options, &settings.directory, durability, how.in_flight)?
                .with_ahead(how.ahead);
            let outcome = task.run(&store)?;
            store.close()?;
            Ok(outcome)
        }
        Engine::RocksdbOptimistic => {
            task.run(&PeerStore::new(rocksdb::Optimistic::open(&settings)?, settings))
        }
        Engine::RocksdbPessimistic => {
            task.run(&PeerStore::new(rocksdb::Pessimistic::open(&settings)?, settings))
        }
        Engine::Lmdb => task.run(&PeerStore::new(lmdb::Lmdb::open(&settings)?, settings)),
        Engine::Redb => task.run(&PeerStore::new(redb::Redb::open(&settings)?, settings)),
        Engine::Fjall => task.run(&PeerStore::new(fjall::Fjall::open(&settings)?, settings)),
        Engine::Sqlite => task.run(&PeerStore::new(sqlite::Sqlite::open(&settings, how.threads)?, settings)),
        Engine::Surrealkv => {
            let engine = surrealkv::Surrealkv::open(&settings).map_err(|error| error as Box<dyn Error>)?;
            task.run(&PeerStore::new(engine, settings))
        }
    }
}

/// What an engine promises as it is used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promises {
    /// To transactions, of each other.
    pub isolation: &'static str,
    /// To a commit that was acknowledged.
    pub durability: &'static str,
}

impl Promises {
    /// Of an engine whose commits wait for stable storage, or do not.
    pub fn of(engine: Engine, sync: bool) -> Self {
        fn of<P: Peer>(sync: bool) -> Promises {
            let durability = if sync { "synced at commit" } else { P::DELAYED };
            Promises { isolation: P::ISOLATION, durability }
        }
        match engine {
            Engine::Map => Promises { isolation: "none", durability: "none" },
            Engine::Deuteron => Promises {
                isolation: "serializable",
                durability: if sync { "synced at commit" } else { "synced within 10 ms" },
            },
            Engine::RocksdbOptimistic => of::<rocksdb::Optimistic>(sync),
            Engine::RocksdbPessimistic => of::<rocksdb::Pessimistic>(sync),
            Engine::Lmdb => of::<lmdb::Lmdb>(sync),
            Engine::Redb => of::<redb::Redb>(sync),
            Engine::Fjall => of::<fjall::Fjall>(sync),
            Engine::Sqlite => of::<sqlite::Sqlite>(sync),
            Engine::Surrealkv => of::<surrealkv::Surrealkv>(sync),
        }
    }
}
