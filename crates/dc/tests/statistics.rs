//! What the component says of itself.

use deuteron_contract::{DataComponent, Lsn, Operation, TableId, Timestamp};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::{Directory, MemoryDirectory, SimulatedDisk};
use deuteron_epoch::Epochs;
use deuteron_histogram::Distribution;
use std::sync::Arc;

#[test]
fn amplification_is_written_over_applied_and_disk_over_live() {
    let directory = Arc::new(MemoryDirectory::new());
    let dc = BwTreeDc::open(directory, Epochs::new(), DcOptions::tiny_for_tests()).expect("opens");
    let figure = |name: &str| {
        let counters = dc.statistics().counters;
        counters.iter().find(|(known, _)| *known == name).map(|&(_, value)| value).expect("is counted")
    };
    assert_eq!((figure("applied_bytes"), figure("write_amplification_percent")), (0, 0));
    for number in 0..2000u64 {
        let key = number.to_be_bytes();
        let (table, value, lsn) = (TableId(1), Some(&[7; 92][..]), Lsn(number));
        dc.apply(&[Operation { table, key: &key, value, timestamp: Timestamp(number), lsn }])
            .expect("applies");
    }
    dc.redo_scan_start_point(Lsn(2000)).expect("checkpoint");
    assert_eq!(figure("applied_bytes"), 2000 * 100);
    let written = dc.statistics().bytes_written;
    assert!(written >= 200_000);
    assert_eq!(figure("write_amplification_percent"), written * 100 / 200_000);
    assert_eq!(
        figure("space_amplification_percent"),
        dc.statistics().disk_bytes * 100 / figure("live_bytes")
    );
    assert_eq!(figure("epoch_lag"), 0, "nobody is pinned");
    let guard = dc.llama().pin();
    dc.llama().epochs().advance();
    dc.llama().epochs().advance();
    assert!(figure("epoch_lag") >= 1);
    drop(guard);
}

/// A component that has loaded, flushed, cleaned, made room and taken checkpoints.
fn worked(directory: Arc<dyn Directory>) -> Arc<BwTreeDc> {
    let dc = BwTreeDc::open(directory, Epochs::new(), DcOptions::tiny_for_tests()).expect("opens");
    for lsn in 0..20_000u64 {
        // Once all of them, in any order, then the lower half again and again.
        let keys = if lsn < 4000 { 4000 } else { 2000 };
        let (table, key) = (TableId(1), (lsn * 7919 % keys).to_be_bytes());
        let (value, timestamp, lsn) = (Some(&[7; 92][..]), Timestamp(lsn), Lsn(lsn));
        dc.apply(&[Operation { table, key: &key, value, timestamp, lsn }]).expect("applies");
        if lsn.0 % 5000 == 4999 {
            dc.redo_scan_start_point(lsn).expect("checkpoint");
            while dc.maintain_step().expect("maintains") {}
        }
    }
    for number in 0..4000u64 {
        assert!(dc.get(TableId(1), &number.to_be_bytes()).expect("reads").is_some());
    }
    dc
}

fn distribution(dc: &BwTreeDc, name: &str) -> Distribution {
    let mut distributions = dc.statistics().distributions.into_iter();
    distributions.find(|(known, _)| *known == name).map(|(_, found)| found).expect("is kept")
}

#[test]
fn each_time_is_of_something_that_is_counted() {
    let dc = worked(Arc::new(MemoryDirectory::new()));
    let counters = dc.statistics().counters;
    let counter = |name: &str| counters.iter().find(|(known, _)| *known == name).expect("is counted").1;
    let pairs = [
        ("load_nanoseconds", "loads"),
        ("load_wait_nanoseconds", "loads_awaited"),
        ("excerpt_nanoseconds", "excerpts"),
        ("buffer_write_nanoseconds", "buffers_written"),
        ("cleaned_live_percent", "segments_cleaned"),
        ("image_nanoseconds", "checkpoints"),
        ("chain_lengths", "consolidations"),
    ];
    for (name, counted) in pairs {
        let count = distribution(&dc, name).count();
        assert_eq!(count, counter(counted), "{name}");
        assert!(count > 0 || name == "load_wait_nanoseconds", "{name}");
    }
    let others = ["flush_step_nanoseconds", "clean_step_nanoseconds", "room_nanoseconds", "epoch_lags"];
    for name in others {
        assert!(distribution(&dc, name).count() > 0, "{name}");
    }
    assert_eq!(distribution(&dc, "checkpoint_nanoseconds").count(), 4);
    for (name, found) in dc.statistics().distributions {
        let takes_time = name.ends_with("_nanoseconds") && found.count() > 0;
        assert!(!takes_time || found.max() > 0, "{name}");
    }
    let live = distribution(&dc, "cleaned_live_percent");
    let on_average = counter("cleaned_live_bytes") * 100 / counter("cleaned_bytes");
    assert!(on_average <= live.max() + 1 && live.max() <= 100, "{on_average}, {live:?}");
}

#[test]
fn times_are_of_the_machine_that_has_the_files() {
    let found = || worked(Arc::new(SimulatedDisk::new(1).directory())).statistics().distributions;
    for (name, found) in found() {
        // Each operation of its disk takes ten microseconds, and nothing else takes any time.
        assert!(!name.ends_with("_nanoseconds") || found.max().is_multiple_of(10_000), "{name}: {found:?}");
    }
    assert_eq!(found(), found(), "one history");
}
