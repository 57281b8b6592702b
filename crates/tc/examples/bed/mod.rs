//! A transaction component over a data component and a log in memory, with a proxy between.

use deuteron_contract::{DataComponent, Lsn, MemoryDc, Operation, TableId, Timestamp};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_log::{Log, LogOptions};
use deuteron_proxy::{Progress, Proxy, ProxyHost};
use deuteron_tc::{Host, Stall, TcOptions, TransactionComponent};
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub const TABLE: TableId = TableId(1);
pub const VALUE_BYTES: usize = 100;

/// The log is cut whenever so much of it is not needed any more.
const CUT_BYTES: u64 = 1 << 30;

struct Hosted {
    tc: OnceLock<Arc<TransactionComponent>>,
    log: Arc<Log>,
}

impl Host for Hosted {
    fn stalled(&self, _: Stall) -> Result<(), String> {
        self.log.request_flush(Lsn(u64::MAX));
        if !self.log.flush_step().map_err(|error| error.to_string())? {
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

impl ProxyHost for Hosted {
    fn horizon(&self) -> Timestamp {
        self.tc.get().map_or(Timestamp(0), |tc| tc.horizon())
    }

    fn force_horizon(&self, at_least: Timestamp) {
        if let Some(tc) = self.tc.get() {
            tc.force_horizon(at_least);
        }
    }

    fn progress(&self, progress: Progress) {
        if let Some(tc) = self.tc.get() {
            tc.report_progress(progress.t_lsn, progress.o_lsn, progress.posted);
        }
    }
}

pub struct Bed {
    pub tc: Arc<TransactionComponent>,
    log: Arc<Log>,
    proxy: Proxy,
    truncated: AtomicU64,
}

impl Bed {
    /// So many records, at the data component, with keys from 0 on.
    pub fn open(records: u64, ring_bytes: usize, memory_bytes: usize) -> Result<Bed, Box<dyn Error>> {
        let epochs = Epochs::new();
        let options = LogOptions { ring_bytes, ..LogOptions::default() };
        let (log, _) = Log::open(Arc::new(MemoryDirectory::new()), &options, Arc::clone(&epochs), Lsn(0))?;
        let log = Arc::new(log);
        let start = log.tail_lsn();
        let dc = Arc::new(MemoryDc::new());
        for chunk in 0..records.div_ceil(1000) {
            let keys: Vec<[u8; 8]> =
                (chunk * 1000..records.min(chunk * 1000 + 1000)).map(u64::to_be_bytes).collect();
            let operations: Vec<Operation<'_>> = keys
                .iter()
                .map(|key| Operation {
                    table: TABLE,
                    key,
                    value: Some(&[7; VALUE_BYTES]),
                    timestamp: Timestamp(1),
                    lsn: Lsn(0),
                })
                .collect();
            dc.apply(&operations)?;
        }
        let hosted = Arc::new(Hosted { tc: OnceLock::new(), log: Arc::clone(&log) });
        let options = TcOptions { memory_bytes, clock_start: Timestamp(1), ..TcOptions::default() };
        let (host, data) = (Arc::clone(&hosted) as Arc<dyn Host>, Arc::clone(&dc) as Arc<dyn DataComponent>);
        let tc = TransactionComponent::open(options, Arc::clone(&log), data, epochs, host)?;
        let tc = Arc::new(tc);
        drop(hosted.tc.set(Arc::clone(&tc)));
        let proxy = Proxy::new(dc, hosted, deuteron_proxy::Options::default(), start);
        Ok(Bed { tc, log, proxy, truncated: AtomicU64::new(0) })
    }

    /// Reads every record once, so that it is in the read cache.
    pub fn warm(&self, records: u64) -> Result<(), Box<dyn Error>> {
        for chunk in 0..records.div_ceil(100) {
            let mut tx = self.tc.begin();
            for key in chunk * 100..records.min(chunk * 100 + 100) {
                tx.get_with(TABLE, &key.to_be_bytes(), <[u8]>::len)?;
            }
            tx.commit()?;
        }
        Ok(())
    }

    /// A piece of what threads would do in the background. Whether there was any.
    pub fn step(&self) -> bool {
        self.log.request_flush(Lsn(u64::MAX));
        let mut worked = self.log.flush_step().expect("memory does not fail");
        worked |= self.proxy.step(&*self.log).expect("memory does not fail");
        worked |= self.tc.collect_step();
        let start = self.proxy.redo_scan_start_point();
        if start.0 > self.truncated.load(Ordering::Relaxed) + CUT_BYTES {
            self.log.truncate(start).expect("memory does not fail");
            self.truncated.store(start.0, Ordering::Relaxed);
        }
        worked
    }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
