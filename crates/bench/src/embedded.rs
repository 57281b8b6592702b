//! The embedded store under measurement.

use crate::store::{consume, stamp};
use crate::times::OperationTimes;
use crate::touched::Touched;
use crate::{BenchError, Step, Store, StoreFigures, Submitted, Worker, directory_bytes};
use deuteron::{Db, Durability, Error, Lookahead, Table, Ticket, Transaction, TransactionOptions};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The records of the workload.
const RECORDS_TABLE: &str = "usertable";

/// What has been loaded, so that a directory can be used again.
const LOADED_TABLE: &str = "bench-loaded";
const LOADED_KEY: &[u8] = b"records value-bytes";

/// Of a long transaction the keys of so many operations are told at a time: all of them would have left the processor's caches
/// before they are used.
const AHEAD_STEPS: usize = 32;

/// Commits whose log is written within 10 ms: what is meant by delayed where nothing else is said.
pub const DELAYED: Durability = Durability::Delayed(Duration::from_millis(10));

/// A database of [`deuteron`], opened for a measurement.
///
/// ```
/// use deuteron::{Durability, Options};
/// use deuteron_bench::{EmbeddedStore, Step, Store, Worker};
/// # let scratch = tempfile::tempdir()?;
/// let store = EmbeddedStore::open(Options::new(), scratch.path(), Durability::Sync, 1)?;
/// store.worker()?.submit(&[Step::Update(1), Step::Read(1)], &mut [0; 100])?;
/// store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EmbeddedStore {
    db: Db,
    table: Table,
    directory: PathBuf,
    durability: Durability,
    in_flight: usize,
    ahead: Ahead,
    name: &'static str,
    /// Where workers leave the times of their operations, if they are to take them.
    timed: Option<Mutex<OperationTimes>>,
    /// Where workers note what they have touched, if they are to.
    touched: Option<Touched>,
}

/// What the database is told before it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// Nothing: each key comes with its operation.
    Nothing,
    /// The keys of a transaction, when it begins: as a program does that knows what it will ask for.
    Keys,
    /// The keys of the next few transactions as well: as a server can that has a queue of requests.
    Transactions,
}

impl EmbeddedStore {
    /// Opens (or creates) the database in `directory`. With durable commits and more than one in flight, commits
    /// are handed back as tickets.
    ///
    /// # Errors
    /// [`BenchError::Store`].
    pub fn open(
        options: deuteron::Options,
        directory: &Path,
        durability: Durability,
        in_flight: usize,
    ) -> Result<Self, BenchError> {
        let db = options
            .durability(durability)
            .open(directory)
            .map_err(BenchError::store("open the database under measurement"))?;
        let table = db.table(RECORDS_TABLE).map_err(BenchError::store("open the table under measurement"))?;
        let (directory, ahead, name) = (directory.into(), Ahead::Keys, "deuteron");
        Ok(Self { db, table, directory, durability, in_flight, ahead, name, timed: None, touched: None })
    }

    /// Every read and update is timed from here on.
    pub(crate) fn timing_operations(mut self) -> Self {
        self.timed = Some(Mutex::new(OperationTimes::new()));
        self
    }

    /// Which of so many records are touched is noted from here on.
    pub(crate) fn noting_touched(mut self, records: u64) -> Self {
        self.touched = Some(Touched::new(records, self.accesses()));
        self
    }

    /// What has been touched, if that was to be noted.
    pub(crate) fn touched(&self) -> Option<&Touched> {
        self.touched.as_ref()
    }

    /// Reads and writes that the transaction component has counted.
    fn accesses(&self) -> u64 {
        let [reads, writes] = self.counters(["tc.reads", "tc.writes"]);
        reads + writes
    }

    /// Nothing is timed any more.
    pub(crate) fn untimed(mut self) -> Self {
        self.timed = None;
        self
    }

    /// The times of the operations of all workers that are gone.
    pub(crate) fn take_times(&self) -> OperationTimes {
        match self.timed() {
            Some(mut timed) => std::mem::replace(&mut *timed, OperationTimes::new()),
            None => OperationTimes::new(),
        }
    }

    fn timed(&self) -> Option<MutexGuard<'_, OperationTimes>> {
        Some(self.timed.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The table under measurement.
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Under another name than `deuteron` in reports.
    pub fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// What the database is told before it is asked; [`Ahead::Keys`] unless said otherwise.
    pub fn with_ahead(mut self, ahead: Ahead) -> Self {
        self.ahead = ahead;
        self
    }

    /// Closes the database.
    ///
    /// # Errors
    /// [`BenchError::Store`].
    pub fn close(self) -> Result<(), BenchError> {
        self.db.close().map_err(BenchError::store("close the database"))
    }

    /// The database, for its statistics.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Some of the database's counters, by their names.
    pub(crate) fn counters<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        let stats = self.db.stats();
        names.map(|name| stats.counter(name).expect("a counter of this name"))
    }
}

impl Store for EmbeddedStore {
    type Worker<'a> = EmbeddedWorker<'a>;

    fn name(&self) -> &'static str {
        self.name
    }

    fn durability(&self) -> String {
        match self.durability {
            Durability::Sync => "sync".into(),
            Durability::Delayed(_) => "delayed".into(),
            Durability::None => "none".into(),
        }
    }

    fn worker(&self) -> Result<EmbeddedWorker<'_>, BenchError> {
        let tickets = self.durability == Durability::Sync && self.in_flight > 1;
        let lookahead = (self.ahead == Ahead::Transactions).then(|| self.db.lookahead());
        Ok(EmbeddedWorker {
            store: self,
            options: TransactionOptions::new(),
            tickets,
            writes: 0,
            keys: Vec::new(),
            lookahead,
            timed: self.timed.as_ref().map(|_| OperationTimes::new()),
        })
    }

    fn loader(&self) -> Result<EmbeddedWorker<'_>, BenchError> {
        let options = TransactionOptions::new().durability(DELAYED);
        Ok(EmbeddedWorker {
            store: self,
            options,
            tickets: false,
            writes: 0,
            keys: Vec::new(),
            lookahead: None,
            timed: None,
        })
    }

    fn loaded(&self) -> Result<Option<(u64, usize)>, BenchError> {
        let found = self
            .db
            .table(LOADED_TABLE)
            .and_then(|table| self.db.transact(|tx| tx.get(&table, LOADED_KEY)))
            .map_err(BenchError::store("read what has been loaded"))?;
        Ok(found.and_then(|bytes| {
            let text = String::from_utf8(bytes).ok()?;
            let (records, value_bytes) = text.split_once(' ')?;
            Some((records.parse().ok()?, value_bytes.parse().ok()?))
        }))
    }

    fn settle(&self, records: u64, value_bytes: usize) -> Result<(), BenchError> {
        let loaded = format!("{records} {value_bytes}");
        let settle = || {
            let table = self.db.table(LOADED_TABLE)?;
            self.db.transact(|tx| tx.put(&table, LOADED_KEY, loaded.as_bytes()))?;
            self.db.flush()
        };
        settle().map_err(BenchError::store("make the load durable"))
    }

    fn figures(&self) -> StoreFigures {
        let stats = self.db.stats();
        StoreFigures {
            disk_bytes: directory_bytes(&self.directory),
            bytes_written_log: stats.bytes_written_log,
            bytes_written_store: stats.bytes_written_store,
            checkpoints: stats.counter("dc.checkpoints").unwrap_or(0),
        }
    }
}

/// One thread's use of an [`EmbeddedStore`].
pub struct EmbeddedWorker<'a> {
    store: &'a EmbeddedStore,
    options: TransactionOptions,
    tickets: bool,
    writes: u64,
    keys: Vec<[u8; 8]>,
    lookahead: Option<Lookahead>,
    timed: Option<OperationTimes>,
}

impl Drop for EmbeddedWorker<'_> {
    fn drop(&mut self) {
        if let (Some(timed), Some(mut sum)) = (&self.timed, self.store.timed()) {
            sum.add(timed);
        }
    }
}

impl EmbeddedWorker<'_> {
    fn steps(&mut self, tx: &mut Transaction, steps: &[Step], value: &mut [u8]) -> Result<(), Error> {
        steps.chunks(AHEAD_STEPS).try_for_each(|steps| self.some_steps(tx, steps, value))
    }

    fn some_steps(&mut self, tx: &mut Transaction, steps: &[Step], value: &mut [u8]) -> Result<(), Error> {
        let table = &self.store.table;
        if self.store.ahead == Ahead::Keys {
            let is_write = |step: &&Step| matches!(step, Step::Update(_) | Step::Insert(_));
            let key = |step: &Step| Some(step.key_ahead()?.to_be_bytes());
            self.keys.clear();
            self.keys.extend(steps.iter().filter(|step| !is_write(step)).filter_map(key));
            let reads = self.keys.len();
            self.keys.extend(steps.iter().filter(is_write).filter_map(key));
            let (reads, writes) = self.keys.split_at(reads);
            if !reads.is_empty() || !writes.is_empty() {
                tx.prefetch(table, reads, writes);
            }
        }
        for &step in steps {
            match step {
                Step::Read(key) => match &mut self.timed {
                    None => drop(tx.get_with(table, &key.to_be_bytes(), consume)?),
                    Some(timed) => {
                        let (misses, begin) = (tx.misses(), Instant::now());
                        tx.get_with(table, &key.to_be_bytes(), consume)?;
                        let time = begin.elapsed();
                        timed.note_read(tx.misses() > misses, time);
                    }
                },
                Step::Update(key) | Step::Insert(key) => {
                    stamp(value, key, &mut self.writes);
                    match &mut self.timed {
                        None => tx.put(table, &key.to_be_bytes(), value)?,
                        Some(timed) => {
                            let begin = Instant::now();
                            tx.put(table, &key.to_be_bytes(), value)?;
                            timed.note_update(begin.elapsed());
                        }
                    }
                }
                Step::ReadModifyWrite(key) => {
                    if let Some(found) = tx.get_for_update(table, &key.to_be_bytes())? {
                        consume(&found);
                    }
                    stamp(value, key, &mut self.writes);
                    tx.put(table, &key.to_be_bytes(), value)?;
                }
                Step::Yield => std::thread::yield_now(),
                Step::Scan { key, count } => {
                    let mut scan = tx.scan(table, &key.to_be_bytes()[..]..)?.limit(count as usize);
                    while let Some((_, value)) = scan.next_ref()? {
                        consume(value);
                    }
                }
            }
        }
        if let Some(touched) = &self.store.touched {
            touched.note(steps.iter().filter_map(|step| step.key()), || self.store.accesses());
        }
        Ok(())
    }
}

impl Worker for EmbeddedWorker<'_> {
    type Pending = Ticket;

    fn lookahead(&self) -> usize {
        self.lookahead.as_ref().map_or(0, |_| Lookahead::DEPTH)
    }

    fn announce(&mut self, steps: &[Step]) {
        if let Some(lookahead) = &mut self.lookahead {
            self.keys.clear();
            self.keys.extend(steps.iter().filter_map(|step| Some(step.key_ahead()?.to_be_bytes())));
            lookahead.announce(&self.store.table, &self.keys);
        }
    }

    fn submit(&mut self, steps: &[Step], value: &mut [u8]) -> Result<Submitted<Ticket>, BenchError> {
        let tickets = self.tickets;
        let outcome = self.store.db.begin_with(self.options).and_then(|mut tx| {
            self.steps(&mut tx, steps, value)?;
            if tickets { tx.commit_async().map(Some) } else { tx.commit().map(|()| None) }
        });
        match outcome {
            Ok(None) => Ok(Submitted::Acknowledged),
            // A reader of durable data has nothing to wait for.
            Ok(Some(ticket)) if ticket.is_durable() => Ok(Submitted::Acknowledged),
            Ok(Some(ticket)) => Ok(Submitted::Pending(ticket)),
            Err(Error::Conflict(conflict)) => Ok(Submitted::Aborted(conflict.cause.name())),
            Err(error) => Err(BenchError::store("run a transaction")(error)),
        }
    }

    fn is_acknowledged(&self, pending: &Ticket) -> bool {
        pending.is_durable()
    }

    fn wait(&mut self, pending: Ticket) -> Result<(), BenchError> {
        pending.wait().map_err(BenchError::store("make a commit durable"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Driver, Workload, load, run};

    #[test]
    fn every_workload_runs_durable_in_flight_and_delayed() {
        let scratch = tempfile::tempdir().unwrap();
        let driver = Driver { in_flight: 8, seconds: Duration::from_millis(60), ..Driver::default() };
        let mut workloads = vec![Workload::paper(2_000)];
        workloads.extend("abcdef".chars().map(|letter| Workload::ycsb(letter, 2_000).unwrap()));
        for durability in [Durability::Sync, Durability::Delayed(Duration::from_millis(5))] {
            let directory = scratch.path().join(format!("{}.db", matches!(durability, Durability::Sync)));
            let options = deuteron::Options::new().memory(64 << 20);
            let ahead = if durability == Durability::Sync { Ahead::Transactions } else { Ahead::Keys };
            let store = EmbeddedStore::open(options, &directory, durability, 8).unwrap().with_ahead(ahead);
            for (index, workload) in workloads.iter().enumerate() {
                let loaded = load(&store, workload, &driver, &mut |_| {}).unwrap();
                assert_eq!(loaded.records, if index == 0 { 2_000 } else { 0 }, "the load is remembered");
                // A busy machine may leave the threads without a turn for a while.
                let mut reports =
                    std::iter::repeat_with(|| run(&store, workload, &driver, loaded, &mut |_| {}).unwrap());
                let report = reports.find(|report| report.commits > 0).unwrap();
                assert!(report.disk_bytes > 0 && report.peak_rss_bytes > 0);
            }
            let expected = if durability == Durability::Sync { "sync" } else { "delayed" };
            assert_eq!(store.durability(), expected);
            store.close().unwrap();
        }
    }
}
