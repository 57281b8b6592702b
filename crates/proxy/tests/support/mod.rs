//! A log in memory, a host that is told what to say, and a data component that fails now and then.
#![allow(dead_code)] // Each test file uses its part.

use deuteron_contract::conformance::SplitMix;
use deuteron_contract::{
    DataComponent, DcError, DcStatistics, Lsn, MemoryDc, Operation, Record, ScanBatch, ScanRequest, TableId,
    Timestamp, TransactionId,
};
use deuteron_proxy::{Entry, Progress, ProxyHost, ReadBack, RecordSource, StableLog};
use std::error::Error;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

pub const TABLE: TableId = TableId(1);

/// An [`Entry`] with bytes of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedEntry {
    Update {
        transaction: TransactionId,
        table: TableId,
        key: Vec<u8>,
        value: Option<Vec<u8>>,
    },
    Piece {
        transaction: TransactionId,
        bytes: Vec<u8>,
    },
    /// With the value that lies in its pieces.
    Large {
        transaction: TransactionId,
        table: TableId,
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Commit {
        transaction: TransactionId,
        timestamp: Timestamp,
    },
    Abort {
        transaction: TransactionId,
    },
    Other,
}

impl OwnedEntry {
    pub fn entry(&self) -> Entry<'_> {
        match self {
            OwnedEntry::Update { transaction, table, key, value } => {
                Entry::Update { transaction: *transaction, table: *table, key, value: value.as_deref() }
            }
            OwnedEntry::Piece { transaction, bytes } => Entry::Piece { transaction: *transaction, bytes },
            OwnedEntry::Large { transaction, table, key, value } => {
                Entry::Large { transaction: *transaction, table: *table, key, length: value.len() as u64 }
            }
            OwnedEntry::Commit { transaction, timestamp } => {
                Entry::Commit { transaction: *transaction, timestamp: *timestamp }
            }
            OwnedEntry::Abort { transaction } => Entry::Abort { transaction: *transaction },
            OwnedEntry::Other => Entry::Other,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            OwnedEntry::Update { key, value, .. } => {
                (20 + key.len() + value.as_ref().map_or(0, Vec::len)).next_multiple_of(8) as u64
            }
            OwnedEntry::Piece { bytes, .. } => (24 + bytes.len()).next_multiple_of(8) as u64,
            OwnedEntry::Large { key, .. } => (40 + key.len()).next_multiple_of(8) as u64,
            _ => 32,
        }
    }
}

pub fn piece(transaction: u64, bytes: &str) -> OwnedEntry {
    OwnedEntry::Piece { transaction: TransactionId(transaction), bytes: bytes.as_bytes().to_vec() }
}

pub fn large(transaction: u64, key: &str, value: &str) -> OwnedEntry {
    let (key, value) = (key.as_bytes().to_vec(), value.as_bytes().to_vec());
    OwnedEntry::Large { transaction: TransactionId(transaction), table: TABLE, key, value }
}

pub fn put(transaction: u64, key: &str, value: &str) -> OwnedEntry {
    let (key, value) = (key.as_bytes().to_vec(), Some(value.as_bytes().to_vec()));
    OwnedEntry::Update { transaction: TransactionId(transaction), table: TABLE, key, value }
}

pub fn commit(transaction: u64, timestamp: u64) -> OwnedEntry {
    OwnedEntry::Commit { transaction: TransactionId(transaction), timestamp: Timestamp(timestamp) }
}

pub fn abort(transaction: u64) -> OwnedEntry {
    OwnedEntry::Abort { transaction: TransactionId(transaction) }
}

/// A log buffer.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    pub start: u64,
    pub end: u64,
    pub entries: Vec<(Lsn, OwnedEntry)>,
}

impl RecordSource for Buffer {
    fn start(&self) -> Lsn {
        Lsn(self.start)
    }

    fn end(&self) -> Lsn {
        Lsn(self.end)
    }

    fn visit<'a, B>(&'a self, mut visit: impl FnMut(Lsn, Entry<'a>) -> ControlFlow<B>) -> ControlFlow<B> {
        self.entries.iter().try_for_each(|(lsn, entry)| visit(*lsn, entry.entry()))
    }
}

/// A log whose last buffer is being filled; the first `stable` buffers are stable.
#[derive(Debug, Default)]
pub struct MemoryLog {
    pub buffers: Vec<Buffer>,
    pub stable: usize,
    released: AtomicU64,
    /// Nothing below can be read back.
    pub truncated: Lsn,
    pub read_backs: AtomicUsize,
}

const HEADER_BYTES: u64 = 64;

impl MemoryLog {
    pub fn append(&mut self, entry: OwnedEntry) -> Lsn {
        if self.buffers.len() == self.stable {
            let start = self.tail().0;
            self.buffers.push(Buffer { start, end: start + HEADER_BYTES, entries: Vec::new() });
        }
        let buffer = self.buffers.last_mut().unwrap();
        let lsn = Lsn(buffer.end);
        buffer.end += entry.bytes();
        buffer.entries.push((lsn, entry));
        lsn
    }

    /// Seals the buffer and makes it stable. Buffers start at multiples of 256.
    pub fn flush(&mut self) {
        if let Some(buffer) = self.buffers.last_mut() {
            buffer.end = buffer.end.next_multiple_of(256);
        }
        self.stable = self.buffers.len();
    }

    /// Appends the entries as one stable buffer.
    pub fn write(&mut self, entries: Vec<OwnedEntry>) -> Vec<Lsn> {
        let lsns = entries.into_iter().map(|entry| self.append(entry)).collect();
        self.flush();
        lsns
    }

    /// Where the next buffer starts.
    pub fn tail(&self) -> Lsn {
        Lsn(self.buffers.last().map_or(0, |buffer| buffer.end))
    }

    pub fn released(&self) -> Lsn {
        Lsn(self.released.load(SeqCst))
    }

    /// What a restart finds.
    pub fn crash(mut self) -> MemoryLog {
        self.buffers.truncate(self.stable);
        MemoryLog {
            buffers: self.buffers,
            stable: self.stable,
            truncated: self.truncated,
            ..Default::default()
        }
    }
}

impl ReadBack for MemoryLog {
    fn read_back(
        &self,
        lsns: &[Lsn],
        take: &mut dyn FnMut(Entry<'_>) -> ControlFlow<()>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        for lsn in lsns {
            assert!(*lsn >= self.truncated, "{lsn} is read back after truncation at {}", self.truncated);
            self.read_backs.fetch_add(1, SeqCst);
            let mut entries = self.buffers[..self.stable].iter().flat_map(|buffer| &buffer.entries);
            let (_, entry) = entries.find(|(at, _)| at == lsn).ok_or("no such record")?;
            if take(entry.entry()).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl StableLog for MemoryLog {
    type Buffer<'a> = Buffer;

    fn next_stable(&self, after: Lsn) -> Option<Buffer> {
        assert!(after >= self.released(), "a released buffer is asked for");
        self.buffers[..self.stable].iter().find(|buffer| buffer.start == after.0).cloned()
    }

    fn release(&self, upto: Lsn) {
        self.released.fetch_max(upto.0, SeqCst);
    }
}

/// A transaction component that says what the test wants.
#[derive(Default)]
pub struct Host {
    pub horizon: AtomicU64,
    /// Whether a forced horizon takes effect.
    pub obeys: bool,
    pub forced: Mutex<Vec<Timestamp>>,
    pub progress: Mutex<Vec<Progress>>,
    /// More than one only if it is set.
    pub threads: AtomicUsize,
}

impl Host {
    pub fn new(horizon: u64, obeys: bool) -> Arc<Host> {
        Arc::new(Host { horizon: AtomicU64::new(horizon), obeys, ..Host::default() })
    }

    pub fn last_progress(&self) -> Progress {
        self.progress.lock().unwrap().last().copied().unwrap_or_default()
    }
}

impl ProxyHost for Host {
    fn horizon(&self) -> Timestamp {
        Timestamp(self.horizon.load(SeqCst))
    }

    fn force_horizon(&self, at_least: Timestamp) {
        self.forced.lock().unwrap().push(at_least);
        if self.obeys {
            self.horizon.fetch_max(at_least.0, SeqCst);
        }
    }

    fn progress(&self, progress: Progress) {
        let mut all = self.progress.lock().unwrap();
        if let Some(last) = all.last() {
            let grows = progress.t_lsn >= last.t_lsn
                && progress.o_lsn >= last.o_lsn
                && progress.posted >= last.posted;
            assert!(grows, "progress went back: {last:?}, {progress:?}");
        }
        all.push(progress);
    }

    fn threads(&self) -> usize {
        self.threads.load(SeqCst).max(1)
    }

    fn on_threads(&self, work: &(dyn Fn() + Sync)) {
        std::thread::scope(|scope| {
            (1..self.threads()).for_each(|_| drop(scope.spawn(work)));
            work();
        });
    }
}

/// A [`MemoryDc`] that fails in `percent` of applies, after applying some of the batch; and that insists on the
/// order of announcements.
pub struct FlakyDc {
    pub inner: MemoryDc,
    random: Mutex<SplitMix>,
    pub percent: AtomicU64,
    end_of_stable_log: AtomicU64,
    pub applied: AtomicUsize,
}

impl FlakyDc {
    pub fn new(inner: MemoryDc, seed: u64, percent: u64) -> Arc<FlakyDc> {
        Arc::new(FlakyDc {
            inner,
            random: Mutex::new(SplitMix::new(seed)),
            percent: AtomicU64::new(percent),
            end_of_stable_log: AtomicU64::new(0),
            applied: AtomicUsize::new(0),
        })
    }

    /// The value and timestamp under a key of [`TABLE`].
    pub fn value(&self, key: &str) -> Option<(String, u64)> {
        let record = self.inner.get(TABLE, key.as_bytes()).unwrap()?;
        Some((String::from_utf8(record.value?).unwrap(), record.timestamp.0))
    }
}

impl DataComponent for FlakyDc {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Record>, DcError> {
        self.inner.get(table, key)
    }

    fn scan_into(&self, request: &ScanRequest<'_>, batch: &mut ScanBatch) -> Result<(), DcError> {
        self.inner.scan_into(request, batch)
    }

    fn apply(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
        assert!(!operations.is_empty());
        let stable = self.end_of_stable_log.load(SeqCst);
        assert!(operations.iter().all(|operation| operation.lsn.0 < stable), "applied before it was stable");
        let sorted = operations.is_sorted_by(|one, other| (one.table, one.key) < (other.table, other.key));
        assert!(sorted, "a batch is sorted and has each key once");
        let mut random = self.random.lock().unwrap();
        if random.sometimes(self.percent.load(SeqCst)) {
            self.inner.apply(&operations[..random.index(operations.len() + 1)])?;
            let source = std::io::Error::other("planted");
            return Err(DcError::Device { context: "apply".into(), source: Box::new(source) });
        }
        self.applied.fetch_add(operations.len(), SeqCst);
        self.inner.apply(operations)
    }

    fn end_of_stable_log(&self, lsn: Lsn) {
        self.end_of_stable_log.fetch_max(lsn.0, SeqCst);
        self.inner.end_of_stable_log(lsn);
    }

    fn redo_scan_start_point(&self, lsn: Lsn) -> Result<(), DcError> {
        self.inner.redo_scan_start_point(lsn)
    }

    fn recovered_redo_scan_start_point(&self) -> Lsn {
        self.inner.recovered_redo_scan_start_point()
    }

    fn recovered_end_of_stable_log(&self) -> Lsn {
        self.inner.recovered_end_of_stable_log()
    }

    fn recovered_newest_timestamp(&self) -> Timestamp {
        self.inner.recovered_newest_timestamp()
    }

    fn statistics(&self) -> DcStatistics {
        self.inner.statistics()
    }
}
