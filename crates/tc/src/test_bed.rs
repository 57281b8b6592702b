//! A component with everything around it, in memory, worked by hand: for the tests.

use crate::{BeginOptions, Entry, Host, Stall, TcError, TcOptions, Transaction, TransactionComponent};
use deuteron_contract::{DataComponent, Direction, Lsn, MemoryDc, TableId, Timestamp};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_log::{Log, LogOptions};
use deuteron_proxy::{Progress, Proxy, ProxyHost};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

pub(crate) const TABLE: TableId = TableId(1);

pub(crate) struct Bed {
    pub(crate) tc: OnceLock<TransactionComponent>,
    pub(crate) log: Arc<Log>,
    pub(crate) dc: Arc<dyn DataComponent>,
    pub(crate) epochs: Arc<Epochs>,
    proxy: OnceLock<Proxy>,
}

struct Hosted(std::sync::Weak<Bed>);

impl Host for Hosted {
    fn stalled(&self, _: Stall) -> Result<(), String> {
        let bed = self.0.upgrade().ok_or("the bed is gone")?;
        if !bed.step() {
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl ProxyHost for Hosted {
    fn horizon(&self) -> Timestamp {
        self.0.upgrade().map_or(Timestamp(0), |bed| bed.tc().horizon())
    }

    fn force_horizon(&self, at_least: Timestamp) {
        if let Some(bed) = self.0.upgrade() {
            bed.tc().force_horizon(at_least);
        }
    }

    fn progress(&self, progress: Progress) {
        if let Some(bed) = self.0.upgrade() {
            bed.tc().report_progress(progress.t_lsn, progress.o_lsn, progress.posted);
        }
    }
}

pub(crate) fn tiny() -> Arc<Bed> {
    bed(TcOptions::tiny_for_tests(), &LogOptions::tiny_for_tests(), deuteron_proxy::Options::tiny_for_tests())
}

pub(crate) fn roomy() -> Arc<Bed> {
    let options = TcOptions { memory_bytes: 16 << 20, ..TcOptions::default() };
    bed(
        options,
        &LogOptions { ring_bytes: 8 << 20, ..LogOptions::default() },
        deuteron_proxy::Options::default(),
    )
}

pub(crate) fn bed(options: TcOptions, log: &LogOptions, proxy: deuteron_proxy::Options) -> Arc<Bed> {
    let epochs = Epochs::new();
    let (log, _) =
        Log::open(Arc::new(MemoryDirectory::new()), log, Arc::clone(&epochs), Lsn(0)).expect("a new log");
    let log = Arc::new(log);
    let start = log.tail_lsn();
    let dc: Arc<dyn DataComponent> = Arc::new(MemoryDc::new());
    let bed = Arc::new(Bed {
        tc: OnceLock::new(),
        log: Arc::clone(&log),
        dc: Arc::clone(&dc),
        epochs: Arc::clone(&epochs),
        proxy: OnceLock::new(),
    });
    let hosted = Arc::new(Hosted(Arc::downgrade(&bed)));
    let tc = TransactionComponent::open(
        options,
        log,
        Arc::clone(&dc),
        epochs,
        Arc::clone(&hosted) as Arc<dyn Host>,
    );
    assert!(bed.tc.set(tc.expect("an open log")).is_ok());
    assert!(bed.proxy.set(Proxy::new(dc, hosted, proxy, start)).is_ok());
    bed
}

impl Bed {
    pub(crate) fn tc(&self) -> &TransactionComponent {
        self.tc.get().expect("set when made")
    }

    pub(crate) fn begin(&self) -> Transaction {
        self.tc().begin()
    }

    pub(crate) fn begin_with(&self, options: BeginOptions) -> Transaction {
        self.tc().begin_with(options)
    }

    /// One round of all background duties.
    pub(crate) fn step(&self) -> bool {
        self.log.request_flush(Lsn(u64::MAX));
        let mut worked = self.log.flush_step().expect("a log in memory does not fail");
        worked |= self.proxy.get().expect("set when made").step(&*self.log).expect("a map does not fail");
        worked |= self.tc().collect_step();
        worked |= self.log.recycle_step();
        worked |= self.epochs.collect() > 0;
        worked
    }

    /// All background duties until there are none.
    pub(crate) fn settle(&self) {
        for _ in 0..100 {
            self.step();
        }
    }

    /// Puts one key in a transaction of its own.
    pub(crate) fn put(&self, key: &[u8], value: &[u8]) {
        let mut tx = self.begin();
        tx.put(TABLE, key, value).expect("no conflict");
        tx.commit().expect("no conflict");
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.begin().get(TABLE, key).expect("no error")
    }
}

/// Everything in the table as the transaction sees it.
pub(crate) fn all(tx: &mut Transaction, direction: Direction) -> Result<Vec<Entry>, TcError> {
    tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, direction).collect()
}
