//! What the proxy costs per operation, outside the data component: a log of four-operation transactions over a data
//! component that does nothing.
//!
//! ```text
//! cargo run --release -p deuteron-proxy --example posting_cost
//! ```

use deuteron_contract::{
    DataComponent, DcError, DcStatistics, Lsn, Operation, Record as DcRecord, ScanBatch, ScanRequest,
    TableId, Timestamp, TransactionId,
};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_log::{Log, LogOptions, Record};
use deuteron_proxy::{Options, Progress, Proxy, ProxyHost};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Nothing;

impl DataComponent for Nothing {
    fn get(&self, _: TableId, _: &[u8]) -> Result<Option<DcRecord>, DcError> {
        Ok(None)
    }
    fn scan_into(&self, _: &ScanRequest<'_>, batch: &mut ScanBatch) -> Result<(), DcError> {
        batch.clear();
        batch.set_complete(true);
        Ok(())
    }
    fn apply(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
        black_box(operations);
        Ok(())
    }
    fn end_of_stable_log(&self, _: Lsn) {}
    fn redo_scan_start_point(&self, _: Lsn) -> Result<(), DcError> {
        Ok(())
    }
    fn recovered_redo_scan_start_point(&self) -> Lsn {
        Lsn(0)
    }
    fn recovered_end_of_stable_log(&self) -> Lsn {
        Lsn(0)
    }
    fn recovered_newest_timestamp(&self) -> Timestamp {
        Timestamp(0)
    }
    fn statistics(&self) -> DcStatistics {
        DcStatistics::default()
    }
}

impl ProxyHost for Nothing {
    fn horizon(&self) -> Timestamp {
        Timestamp::MAX
    }
    fn force_horizon(&self, _: Timestamp) {}
    fn progress(&self, _: Progress) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = LogOptions { segment_bytes: 64 << 20, ..LogOptions::default() };
    let (log, recovery) =
        Log::open(Arc::new(MemoryDirectory::new()), &options, Epochs::new(), Lsn(0)..Lsn(0))?;
    let proxy = Proxy::new(Arc::new(Nothing), Arc::new(Nothing), Options::default(), recovery.tail());
    let (mut spent, mut key_number, mut clock) = (Duration::ZERO, 0_u64, 0_u64);
    for _ in 0..20 {
        for _ in 0..20_000 {
            clock += 1;
            let transaction = TransactionId(clock);
            for _ in 0..4 {
                key_number = key_number
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let key = (key_number >> 42).to_be_bytes();
                log.append(&Record::Upsert { transaction, table: TableId(1), key: &key, value: &[7; 100] })?;
            }
            log.reserve_commit()?.fill(transaction, Timestamp(clock), 0);
        }
        log.request_flush(log.tail_lsn());
        while log.flush_step()? {}
        let start = Instant::now();
        while proxy.step(&log)? {}
        spent += start.elapsed();
        while log.recycle_step() {}
    }
    let statistics = proxy.statistics();
    let operations = statistics.operations_posted + statistics.operations_superseded;
    println!("{operations} operations, {} ns each", spent.as_nanos() / u128::from(operations));
    println!("{statistics:#?}");
    Ok(())
}
