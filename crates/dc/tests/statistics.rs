//! What the component says of itself.

use deuteron_contract::{DataComponent, Lsn, Operation, TableId, Timestamp};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
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
    let chains = ["chains_to_2", "chains_to_4", "chains_to_8", "chains_to_16", "chains_longer"];
    assert!(figure("consolidations") > 0);
    assert_eq!(chains.map(figure).iter().sum::<u64>(), figure("consolidations"));
    assert_eq!(figure("epoch_lag"), 0, "nobody is pinned");
    let guard = dc.llama().pin();
    dc.llama().epochs().advance();
    dc.llama().epochs().advance();
    assert!(figure("epoch_lag") >= 1);
    drop(guard);
}
