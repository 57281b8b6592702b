//! What a database says of itself: how long things took agrees with how often they happened.

use deuteron::device::MemoryDirectory;
use deuteron::{Background, Db, Options};
use std::sync::Arc;

/// Records are written again and again, with checkpoints between, and read.
fn work(db: &Db) {
    let table = db.table("t").unwrap();
    for round in 0..8u32 {
        for start in (0..2000u32).step_by(20) {
            let put = |number: u32| (number * 7919 % 2000).to_be_bytes();
            db.transact(|tx| {
                (start..start + 20).try_for_each(|number| tx.put(&table, &put(number), &[round as u8; 100]))
            })
            .unwrap();
        }
        db.checkpoint().unwrap();
    }
    let mut tx = db.begin();
    for number in 0..2000u32 {
        assert!(tx.get(&table, &number.to_be_bytes()).unwrap().is_some());
    }
}

/// A transaction waits for another that has written what it wants to write, in vain.
fn meet(db: &Db) {
    let table = db.table("t").unwrap();
    let [mut first, mut second] = std::array::from_fn(|_| db.begin());
    first.put(&table, b"key", b"1").unwrap();
    assert!(second.put(&table, b"key", b"2").is_err());
    first.commit().unwrap();
}

#[test]
fn as_many_times_are_kept_as_events_are_counted() {
    let options = Options::tiny_for_tests().background(Background::Inline);
    let db = options.open_in(Arc::new(MemoryDirectory::new())).unwrap();
    work(&db);
    meet(&db);
    let stats = db.stats();
    let counter = |name: &str| stats.counter(name).expect("is counted");
    let count = |name: &str| stats.distribution(name).expect("is kept").count();
    let pairs = [
        ("log.write_nanoseconds", "log.flushes"),
        ("tc.writer_wait_nanoseconds", "tc.waits"),
        ("dc.load_nanoseconds", "dc.loads"),
        ("dc.buffer_write_nanoseconds", "dc.buffers_written"),
        ("dc.image_nanoseconds", "dc.checkpoints"),
        ("dc.cleaned_live_percent", "dc.segments_cleaned"),
        ("dc.chain_lengths", "dc.consolidations"),
    ];
    for (name, counted) in pairs {
        assert_eq!(count(name), counter(counted), "{name}");
    }
    assert_eq!(count("tc.room_wait_nanoseconds"), counter("tc.stalls") - counter("tc.waits"));
    for name in ["log.write_nanoseconds", "log.stable_wait_nanoseconds", "dc.load_nanoseconds"] {
        let found = stats.distribution(name).unwrap();
        assert!(found.max() > 0 && found.quantile(0.5) <= found.quantile(0.99), "{name}: {found:?}");
    }
    assert!(count("tc.writer_wait_nanoseconds") > 0 && count("tc.room_wait_nanoseconds") > 0);
    for name in ["dc.buffer_write_nanoseconds", "dc.checkpoint_nanoseconds", "dc.flush_step_nanoseconds"] {
        assert!(count(name) > 0, "{name}");
    }
    assert!(stats.distribution("dc.wishes").is_none());
    db.close().unwrap();
}
