//! What a peer must be able to do, and how it becomes a [`Store`] that the driver runs.

use deuteron_bench::{
    BenchError, Step, Store, StoreFigures, Submitted, Worker, consume, directory_bytes, stamp,
};
use std::error::Error;
use std::path::PathBuf;

/// Where, how durable, and with how much memory.
#[derive(Clone)]
pub struct Settings {
    pub directory: PathBuf,
    /// Every commit is on stable storage before it is acknowledged; otherwise within some milliseconds, or when the operating
    /// system sees fit, as the engine offers it.
    pub sync: bool,
    /// In bytes.
    pub memory: usize,
    /// The records take more than that.
    pub beyond_memory: bool,
}

/// For the threads that an engine has in the background.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |number| number.get())
}

/// Why an operation did not succeed.
pub enum Trouble {
    /// The transaction has to be repeated.
    Conflict,
    /// Anything else.
    Failed(Box<dyn Error + Send + Sync>),
}

impl<E: Error + Send + Sync + 'static> From<E> for Trouble {
    fn from(error: E) -> Self {
        Trouble::Failed(Box::new(error))
    }
}

/// A transaction of a peer. A scan gives its values to [`consume`], and so does a read.
pub trait PeerTransaction {
    fn get(&mut self, key: [u8; 8]) -> Result<(), Trouble>;
    /// Reads where the answer matters.
    fn value(&mut self, key: [u8; 8]) -> Result<Option<Vec<u8>>, Trouble>;
    /// Reads what will be written.
    fn get_for_update(&mut self, key: [u8; 8]) -> Result<(), Trouble> {
        self.get(key)
    }
    fn put(&mut self, key: [u8; 8], value: &[u8]) -> Result<(), Trouble>;
    fn scan(&mut self, key: [u8; 8], count: usize) -> Result<(), Trouble>;
    fn commit(self) -> Result<(), Trouble>;
}

/// An engine with transactions.
pub trait Peer: Sync {
    type Transaction<'a>: PeerTransaction
    where
        Self: 'a;
    const NAME: &'static str;
    /// What transactions are promised of each other, as the engine is used here: the strongest that it offers.
    const ISOLATION: &'static str;
    /// What a commit that does not wait for stable storage has behind it.
    const DELAYED: &'static str;
    /// Begins one; `writes` says whether it is going to write, `sync` whether its commit waits for stable storage.
    fn begin(&self, writes: bool, sync: bool) -> Result<Self::Transaction<'_>, Trouble>;
    /// Everything so far is on stable storage.
    fn settle(&self) -> Result<(), Trouble>;
}

/// A peer as a [`Store`].
pub struct PeerStore<P> {
    peer: P,
    settings: Settings,
}

impl<P: Peer> PeerStore<P> {
    pub fn new(peer: P, settings: Settings) -> Self {
        Self { peer, settings }
    }

    /// The value of a record, in a transaction of its own.
    pub fn value(&self, key: u64) -> Result<Option<Vec<u8>>, BenchError> {
        let read = || -> Result<_, Trouble> {
            let mut transaction = self.peer.begin(false, self.settings.sync)?;
            let value = transaction.value(key.to_be_bytes())?;
            transaction.commit()?;
            Ok(value)
        };
        read().map_err(|trouble| failure("read a record", trouble))
    }
}

pub struct PeerWorker<'a, P> {
    store: &'a PeerStore<P>,
    sync: bool,
    writes: u64,
}

impl<P: Peer> Store for PeerStore<P> {
    type Worker<'a>
        = PeerWorker<'a, P>
    where
        P: 'a;

    fn name(&self) -> &'static str {
        P::NAME
    }

    fn durability(&self) -> String {
        if self.settings.sync { "sync" } else { "delayed" }.into()
    }

    fn worker(&self) -> Result<PeerWorker<'_, P>, BenchError> {
        Ok(PeerWorker { store: self, sync: self.settings.sync, writes: 0 })
    }

    fn loader(&self) -> Result<PeerWorker<'_, P>, BenchError> {
        Ok(PeerWorker { store: self, sync: false, writes: 0 })
    }

    fn loaded(&self) -> Result<Option<(u64, usize)>, BenchError> {
        Ok(None)
    }

    fn settle(&self, _records: u64, _value_bytes: usize) -> Result<(), BenchError> {
        self.peer.settle().map_err(|trouble| failure("settle", trouble))
    }

    fn figures(&self) -> StoreFigures {
        StoreFigures { disk_bytes: directory_bytes(&self.settings.directory), ..StoreFigures::default() }
    }
}

fn failure(context: &'static str, trouble: Trouble) -> BenchError {
    match trouble {
        Trouble::Conflict => BenchError::store(context)("a conflict where none can be"),
        Trouble::Failed(error) => BenchError::store(context)(error),
    }
}

impl<P: Peer> PeerWorker<'_, P> {
    fn run(&mut self, steps: &[Step], value: &mut [u8]) -> Result<(), Trouble> {
        let writes = steps.iter().any(|step| step.is_write());
        let mut transaction = self.store.peer.begin(writes, self.sync)?;
        for &step in steps {
            match step {
                Step::Read(key) => transaction.get(key.to_be_bytes())?,
                Step::Update(key) | Step::Insert(key) => {
                    stamp(value, key, &mut self.writes);
                    transaction.put(key.to_be_bytes(), value)?;
                }
                Step::ReadModifyWrite(key) => {
                    transaction.get_for_update(key.to_be_bytes())?;
                    stamp(value, key, &mut self.writes);
                    transaction.put(key.to_be_bytes(), value)?;
                }
                Step::Yield => std::thread::yield_now(),
                Step::Scan { key, count } => transaction.scan(key.to_be_bytes(), count as usize)?,
            }
        }
        transaction.commit()
    }
}

impl<P: Peer> Worker for PeerWorker<'_, P> {
    type Pending = ();

    fn submit(&mut self, steps: &[Step], value: &mut [u8]) -> Result<Submitted<()>, BenchError> {
        match self.run(steps, value) {
            Ok(()) => Ok(Submitted::Acknowledged),
            Err(Trouble::Conflict) => Ok(Submitted::Aborted("conflict")),
            Err(trouble) => Err(failure("run a transaction", trouble)),
        }
    }

    fn is_acknowledged(&self, (): &()) -> bool {
        true
    }

    fn wait(&mut self, (): ()) -> Result<(), BenchError> {
        Ok(())
    }
}

/// Gives a value that was read to the driver's sink.
pub fn seen(value: Option<&[u8]>) {
    if let Some(value) = value {
        consume(value);
        #[cfg(test)]
        SEEN.with_borrow_mut(|all| all.push(value.to_vec()));
    }
}

#[cfg(test)]
thread_local! {
    /// Every value that operations on this thread have read, in order.
    pub static SEEN: std::cell::RefCell<Vec<Vec<u8>>> = const { std::cell::RefCell::new(Vec::new()) };
}
