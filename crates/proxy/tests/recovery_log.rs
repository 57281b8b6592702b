//! The proxy over the real recovery log: stable buffers from the ring, replay from disk, reading back.

mod support;

use deuteron_contract::conformance::SplitMix;
use deuteron_contract::{DataComponent, Lsn, MemoryDc, Timestamp, TransactionId};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_log::{AppendError, Log, LogOpening, LogOptions, Record};
use deuteron_proxy::{Options, Pending, Proxy};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use support::{FlakyDc, Host, TABLE};

struct Store {
    log: Log,
    dc: Arc<FlakyDc>,
    host: Arc<Host>,
    proxy: Proxy,
    /// Key to final timestamp and value, as committed.
    expected: BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)>,
}

/// Opens the log and replays it into the data component.
fn open(directory: &Arc<MemoryDirectory>, dc: MemoryDc, options: &Options) -> Store {
    let start = dc.recovered_redo_scan_start_point();
    let mut opening =
        LogOpening::new(directory.clone(), &LogOptions::tiny_for_tests(), start..start).unwrap();
    let dc = FlakyDc::new(dc, 1, 0);
    let host = Host::new(0, true);
    let proxy = Proxy::new(dc.clone(), host.clone(), options.clone(), start);
    let mut round = Vec::new();
    while let Some(buffer) = opening.next_buffer().unwrap() {
        round.push(buffer);
    }
    let mut pending = Pending::default();
    for buffers in round.chunks(2).chain([&[][..]]) {
        pending = proxy.replay(&mut pending, buffers, &opening.reader()).unwrap();
    }
    let (log, recovery) = opening.finish(Epochs::new()).unwrap();
    proxy.finish_replay(recovery.tail()).unwrap();
    Store { log, dc, host, proxy, expected: BTreeMap::new() }
}

impl Store {
    fn work(&self) {
        self.log.flush_step().unwrap();
        self.proxy.step(&self.log).unwrap();
        self.log.recycle_step();
    }

    /// Appends; makes room by working if there is none.
    fn append(&self, record: &Record<'_>) -> Lsn {
        loop {
            match self.log.append(record) {
                Ok(lsn) => return lsn,
                Err(AppendError::Full) => {
                    self.log.request_flush(Lsn(u64::MAX));
                    self.work();
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn commit(&self, transaction: TransactionId, timestamp: Timestamp) {
        loop {
            if let Ok(reservation) = self.log.reserve_commit() {
                reservation.fill(transaction, timestamp, 0);
                return;
            }
            self.work();
        }
    }

    fn transaction(&mut self, id: u64, keys: &[Vec<u8>], value: Option<&[u8]>) {
        let transaction = TransactionId(id);
        for key in keys {
            match value {
                Some(value) => self.append(&Record::Upsert { transaction, table: TABLE, key, value }),
                None => self.append(&Record::Delete { transaction, table: TABLE, key }),
            };
            self.expected.insert(key.clone(), (id, value.map(<[u8]>::to_vec)));
        }
        self.commit(transaction, Timestamp(id));
        self.host.horizon.store(id + 1, SeqCst);
    }

    fn post_everything(&self) {
        self.log.request_flush(self.log.tail_lsn());
        while self.log.flush_step().unwrap() {}
        while self.proxy.step(&self.log).unwrap() {}
    }

    fn assert_expected(&self) {
        for (key, (timestamp, value)) in &self.expected {
            match self.dc.get(TABLE, key).unwrap() {
                Some(found) => assert_eq!((found.timestamp.0, &found.value), (*timestamp, value), "{key:?}"),
                None => assert!(value.is_none(), "{key:?} is missing"),
            }
        }
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:04}").into_bytes()
}

#[test]
fn what_is_committed_in_the_log_arrives_and_survives_restarts() {
    let directory = Arc::new(MemoryDirectory::new());
    let options = Options { lag_bytes: 8 << 10, batch_operations_max: 50, ..Options::default() };
    let mut random = SplitMix::new(3);
    let mut store = open(&directory, MemoryDc::new(), &options);
    let mut clock = 0;
    for round in 0..6 {
        for _ in 0..300 {
            clock += 1;
            let keys: Vec<_> = (0..4).map(|_| key(random.below(200))).collect();
            let value = vec![clock as u8; random.index(120)];
            store.transaction(clock, &keys, (!random.sometimes(10)).then_some(&value));
            // One that never ends.
            if random.sometimes(2) {
                clock += 1;
                let record = Record::Upsert {
                    transaction: TransactionId(clock),
                    table: TABLE,
                    key: b"lost",
                    value: b"x",
                };
                store.append(&record);
            }
            if random.sometimes(10) {
                store.work();
            }
        }
        store.post_everything();
        store.assert_expected();
        assert_eq!(store.dc.value("lost"), None);
        if round % 2 == 0 {
            let redo = store.proxy.redo_scan_start_point();
            store.dc.redo_scan_start_point(redo).unwrap();
            store.log.truncate(redo).unwrap();
        }
        let dc = store.dc.inner.crash(|_| random.sometimes(30));
        let expected = std::mem::take(&mut store.expected);
        drop(store);
        store = open(&directory, dc, &options);
        store.expected = expected;
        store.assert_expected();
        assert_eq!(store.proxy.redo_scan_start_point(), store.log.tail_lsn());
    }
}

#[test]
fn a_transaction_larger_than_ring_and_side_buffer_is_read_back_from_disk() {
    let directory = Arc::new(MemoryDirectory::new());
    let options = Options { side_buffer_bytes_max: 4 << 10, batch_operations_max: 64, ..Options::default() };
    let mut store = open(&directory, MemoryDc::new(), &options);
    let keys: Vec<_> = (0..2000).map(key).collect();
    store.transaction(1, &keys, Some(&[7; 100]));
    store.post_everything();
    store.assert_expected();
    let statistics = store.proxy.statistics();
    assert!(statistics.operations_read_back > 1000, "{statistics:?}");

    // Replay does the same.
    let dc = store.dc.inner.crash(|_| false);
    let expected = std::mem::take(&mut store.expected);
    drop(store);
    let mut store = open(&directory, dc, &options);
    store.expected = expected;
    store.assert_expected();
    assert!(store.proxy.statistics().operations_read_back > 1000);
}
