//! A salvage brings back what is there, and nothing that was deleted, whatever the log says of other keys.

use deuteron_bwtree::{Cursor, Tree, Upsert};
use deuteron_contract::{Lsn, TableId, Timestamp};
use deuteron_dc::{FoundValue, LoggedVersion, StoreSalvage};
use deuteron_device::{Directory, MemoryDirectory};
use deuteron_epoch::Epochs;
use deuteron_llama::{FlushProgress, Llama, Options};
use std::ops::Bound;
use std::sync::Arc;

const TABLE: TableId = TableId(2);
const COUNT: u64 = 600;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// A store whose pages are empty, but for the last ones, while old fragments still hold what was in them.
fn emptied() -> (Arc<dyn Directory>, Vec<Vec<u8>>) {
    let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let (llama, _) = Llama::open(Arc::clone(&directory), Options::default(), Epochs::new()).unwrap();
    let tree = Tree::create(Arc::new(llama), TABLE.0, deuteron_bwtree::Options::tiny_for_tests());
    let flush = || while tree.llama().flush_step().unwrap() != FlushProgress::Nothing {};
    for number in 0..COUNT {
        let key = key(number);
        tree.upsert(&[Upsert { key: &key, value: Some(b"a value"), stamp: number + 1, lsn: number + 1 }])
            .unwrap();
    }
    flush();
    // As after deletes that have been forgotten.
    let mut from = Some(Vec::new());
    while let Some(leaf) = from.filter(|leaf| leaf.as_slice() < &key(COUNT - 20)[..]) {
        from = tree.clear_step(&leaf).unwrap();
    }
    flush();
    let mut kept = Vec::new();
    let mut everything = Cursor::new(Bound::Unbounded, Bound::Unbounded, false, usize::MAX);
    tree.scan(&mut everything, |record| {
        let mut key = Vec::new();
        record.append_key_to(&mut key);
        kept.push(key);
    })
    .unwrap();
    (directory, kept)
}

fn salvaged(directory: &Arc<dyn Directory>, logged: Vec<LoggedVersion>) -> (Vec<Vec<u8>>, u64) {
    let mut salvage = StoreSalvage::scan(Arc::clone(directory)).unwrap();
    let mut keys = Vec::new();
    let take = &mut |key: &[u8], value: FoundValue| {
        assert!(matches!(value, FoundValue::Stored(_)));
        keys.push(key.to_vec());
        Ok::<(), ()>(())
    };
    let found = salvage.records(TABLE, logged, take).unwrap();
    (keys, found.forgotten)
}

#[test]
fn what_was_deleted_and_forgotten_does_not_come_back_whatever_the_log_says_of_other_keys() {
    let (directory, kept) = emptied();
    let (keys, forgotten) = salvaged(&directory, Vec::new());
    assert_eq!((keys.len(), forgotten), (kept.len(), COUNT - kept.len() as u64));
    assert_eq!(keys, kept);
    let delete = |key: Vec<u8>| {
        let (timestamp, lsn) = (Timestamp(4 * COUNT), Lsn(4 * COUNT));
        LoggedVersion { key, timestamp, lsn, is_delete: true, is_stable: false }
    };
    for number in (0..COUNT - 30).step_by(29) {
        // Before a key, that key, and behind it.
        let key = key(number);
        let logged = [key[..7].to_vec(), key.to_vec(), [&key[..], b"+"].concat()].map(delete).to_vec();
        assert_eq!(salvaged(&directory, logged).0, kept, "{number}");
    }
}
