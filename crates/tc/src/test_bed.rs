//! A component with everything around it, in memory, worked by hand: for the tests, for the schedules (`tests/shuttle.rs`) and for
//! the examples, all of which include this file.

#![allow(dead_code, reason = "each uses a part")]

use deuteron_contract::{DataComponent, Direction, Lsn, MemoryDc, TableId, Timestamp};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_log::{Log, LogOptions};
use deuteron_proxy::{Progress, Proxy, ProxyHost};
use deuteron_tc::{
    BeginOptions, ConflictCause, Entry, Host, Stall, TcError, TcOptions, Transaction, TransactionComponent,
};
use std::error::Error;
use std::ops::Bound;
use std::sync::{Arc, OnceLock, Weak};

pub const TABLE: TableId = TableId(1);

pub struct Bed {
    tc: OnceLock<TransactionComponent>,
    pub log: Arc<Log>,
    pub dc: Arc<dyn DataComponent>,
    pub epochs: Arc<Epochs>,
    proxy: OnceLock<Proxy>,
}

/// What whoever has to wait does.
pub type Stalled = fn(&Bed) -> Result<(), String>;

struct Hosted {
    bed: Weak<Bed>,
    stalled: Stalled,
}

impl Host for Hosted {
    fn stalled(&self, _: Stall) -> Result<(), String> {
        (self.stalled)(&*self.bed.upgrade().ok_or("the bed is gone")?)
    }
}

impl ProxyHost for Hosted {
    fn horizon(&self) -> Timestamp {
        self.bed.upgrade().map_or(Timestamp(0), |bed| bed.tc().horizon())
    }

    fn force_horizon(&self, at_least: Timestamp) {
        if let Some(bed) = self.bed.upgrade() {
            bed.tc().force_horizon(at_least);
        }
    }

    fn progress(&self, progress: Progress) {
        if let Some(bed) = self.bed.upgrade() {
            bed.tc().report_progress(progress.t_lsn, progress.o_lsn, progress.posted);
        }
    }
}

pub fn tiny() -> Arc<Bed> {
    bed(TcOptions::tiny_for_tests(), &LogOptions::tiny_for_tests(), deuteron_proxy::Options::tiny_for_tests())
}

pub fn roomy() -> Arc<Bed> {
    let options = TcOptions { memory_bytes: 16 << 20, ..TcOptions::default() };
    bed(
        options,
        &LogOptions { ring_bytes: 8 << 20, ..LogOptions::default() },
        deuteron_proxy::Options::default(),
    )
}

/// Over a sorted map. Whoever has to wait does a round of everything.
pub fn bed(options: TcOptions, log: &LogOptions, proxy: deuteron_proxy::Options) -> Arc<Bed> {
    let stalled = |bed: &Bed| {
        if !bed.step() {
            std::thread::yield_now();
        }
        Ok(())
    };
    Bed::open(Arc::new(MemoryDc::new()), options, log, proxy, stalled).expect("a new log")
}

/// How many [`Bed::duty`] there are.
pub const DUTIES: u64 = 5;

impl Bed {
    pub fn open(
        dc: Arc<dyn DataComponent>,
        options: TcOptions,
        log: &LogOptions,
        proxy: deuteron_proxy::Options,
        stalled: Stalled,
    ) -> Result<Arc<Bed>, Box<dyn Error>> {
        let epochs = Epochs::new();
        let (log, _) = Log::open(Arc::new(MemoryDirectory::new()), log, Arc::clone(&epochs), Lsn(0)..Lsn(0))?;
        let log = Arc::new(log);
        let start = log.tail_lsn();
        let bed = Arc::new(Bed {
            tc: OnceLock::new(),
            log: Arc::clone(&log),
            dc: Arc::clone(&dc),
            epochs: Arc::clone(&epochs),
            proxy: OnceLock::new(),
        });
        let hosted = Arc::new(Hosted { bed: Arc::downgrade(&bed), stalled });
        let host = Arc::clone(&hosted) as Arc<dyn Host>;
        let tc = TransactionComponent::open(options, log, Arc::clone(&dc), epochs, host)?;
        assert!(bed.tc.set(tc).is_ok());
        assert!(bed.proxy.set(Proxy::new(dc, hosted, proxy, start)).is_ok());
        Ok(bed)
    }

    pub fn tc(&self) -> &TransactionComponent {
        self.tc.get().expect("set when made")
    }

    pub fn begin(&self) -> Transaction {
        self.tc().begin()
    }

    pub fn begin_with(&self, options: BeginOptions) -> Transaction {
        self.tc().begin_with(options)
    }

    pub fn proxy(&self) -> &Proxy {
        self.proxy.get().expect("set when made")
    }

    /// A step of one of the background duties; whether there was something to do.
    pub fn duty(&self, which: u64) -> bool {
        match which {
            0 => {
                self.log.request_flush(Lsn(u64::MAX));
                self.log.flush_step().expect("a log in memory does not fail")
            }
            1 => self.proxy().step(&*self.log).expect("a map does not fail"),
            2 => self.tc().collect_step(),
            3 => self.log.recycle_step(),
            _ => self.epochs.collect() > 0,
        }
    }

    /// One round of all background duties.
    pub fn step(&self) -> bool {
        (0..DUTIES).fold(false, |worked, which| self.duty(which) | worked)
    }

    /// All background duties until there are none.
    pub fn settle(&self) {
        for _ in 0..100 {
            self.step();
        }
    }

    /// Puts one key in a transaction of its own.
    pub fn put(&self, key: &[u8], value: &[u8]) {
        let mut tx = self.begin();
        tx.put(TABLE, key, value).expect("no conflict");
        tx.commit().expect("no conflict");
    }

    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.begin().get(TABLE, key).expect("no error")
    }
}

/// Everything in the table as the transaction sees it.
pub fn all(tx: &mut Transaction, direction: Direction) -> Result<Vec<Entry>, TcError> {
    tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, direction).collect()
}

/// Which conflict it was.
pub fn cause<T: std::fmt::Debug>(result: Result<T, TcError>) -> ConflictCause {
    match result.expect_err("a conflict") {
        TcError::Conflict(conflict) => conflict.cause,
        other => panic!("{other}"),
    }
}

/// A value that is text.
pub fn get(tx: &mut Transaction, key: &str) -> Option<String> {
    let value = tx.get(TABLE, key.as_bytes()).unwrap();
    value.map(|value| String::from_utf8(value).unwrap())
}

pub fn put(tx: &mut Transaction, key: &str, value: &str) {
    tx.put(TABLE, key.as_bytes(), value.as_bytes()).unwrap();
}

/// The keys from `lower` up to before `upper`, as text.
pub fn keys(tx: &mut Transaction, lower: &str, upper: &str) -> Vec<String> {
    let (lower, upper) = (Bound::Included(lower.as_bytes()), Bound::Excluded(upper.as_bytes()));
    tx.scan(TABLE, lower, upper, Direction::Forward)
        .map(|entry| String::from_utf8(entry.unwrap().0).unwrap())
        .collect()
}
