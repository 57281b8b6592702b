//! The same on a file system, with direct I/O where it has that.
#![cfg(not(loom))]

mod harness;

use deuteron_contract::Lsn;
use deuteron_device::OsDirectory;
use deuteron_log::LogOptions;
use harness::{Pair, upsert};
use std::sync::Arc;

#[test]
fn log_survives_closing() {
    let scratch = tempfile::tempdir().unwrap();
    let open = || Arc::new(OsDirectory::open_or_create(scratch.path()).unwrap());
    let options = LogOptions {
        buffer_bytes_max: 2 << 20,
        ring_bytes: 8 << 20,
        segment_bytes: 2 << 20,
        ..LogOptions::default()
    };
    let mut pair = Pair::create(open(), options).unwrap();
    let mut from = Lsn(0);
    for number in 0..40 {
        let bytes = if number % 8 == 7 { 1 << 20 } else { 5000 };
        pair.append(upsert(number, bytes)).unwrap();
        let commit = pair.commit(number).unwrap();
        pair.flush_all().unwrap();
        pair.log.wait_stable(commit).unwrap();
        while pair.proxy_step(true) {}
        if number == 20 {
            from = pair.released;
            assert!(pair.log.truncate(from).unwrap() > 0);
        }
        if number % 13 == 12 {
            let Pair { log, options, model, acknowledged, .. } = pair;
            drop(log);
            pair = Pair::open(open(), options, model, acknowledged, from).unwrap();
        }
    }
    for lsn in pair.model.keys().copied().collect::<Vec<_>>() {
        pair.check_read_stable(lsn);
    }
}
