//! A transaction component over a data component and a log in memory, with a proxy between.

#[path = "../../src/test_bed.rs"]
mod test_bed;

use deuteron_contract::{DataComponent, Lsn, MemoryDc, Operation, Timestamp};
use deuteron_log::LogOptions;
use deuteron_tc::{TcOptions, TransactionComponent};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
pub use test_bed::TABLE;

pub const VALUE_BYTES: usize = 100;

/// The log is cut whenever so much of it is not needed any more.
const CUT_BYTES: u64 = 1 << 30;

pub struct Bed {
    parts: Arc<test_bed::Bed>,
    truncated: AtomicU64,
}

impl Bed {
    /// So many records, at the data component, with keys from 0 on.
    pub fn open(records: u64, ring_bytes: usize, memory_bytes: usize) -> Result<Bed, Box<dyn Error>> {
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
        let options = TcOptions { memory_bytes, clock_start: Timestamp(1), ..TcOptions::default() };
        let log = LogOptions { ring_bytes, ..LogOptions::default() };
        let stalled = |bed: &test_bed::Bed| {
            if !bed.duty(0) {
                std::thread::sleep(Duration::from_micros(50));
            }
            Ok(())
        };
        let parts = test_bed::Bed::open(dc, options, &log, deuteron_proxy::Options::default(), stalled)?;
        Ok(Bed { parts, truncated: AtomicU64::new(0) })
    }

    pub fn tc(&self) -> &TransactionComponent {
        self.parts.tc()
    }

    /// Reads every record once, so that it is in the read cache.
    pub fn warm(&self, records: u64) -> Result<(), Box<dyn Error>> {
        for chunk in 0..records.div_ceil(100) {
            let mut tx = self.tc().begin();
            for key in chunk * 100..records.min(chunk * 100 + 100) {
                tx.get_with(TABLE, &key.to_be_bytes(), <[u8]>::len)?;
            }
            tx.commit()?;
        }
        Ok(())
    }

    /// A piece of what threads would do in the background. Whether there was any.
    pub fn step(&self) -> bool {
        let worked = self.parts.step();
        let start = self.parts.proxy().redo_scan_start_point();
        if start.0 > self.truncated.load(Ordering::Relaxed) + CUT_BYTES {
            self.parts.log.truncate(start).expect("memory does not fail");
            self.truncated.store(start.0, Ordering::Relaxed);
        }
        worked
    }
}
