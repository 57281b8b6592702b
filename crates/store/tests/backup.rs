//! Online backup: what is in it while others write, what is refused, and a crash at every operation of taking and restoring one.

use deuteron_store::device::{CrashPolicy, FaultKind, FaultPlan, MemoryDirectory, Operation, SimulatedDisk};
use deuteron_store::{Error, Options, Store, restore, restore_in};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

fn key(number: u32) -> Vec<u8> {
    format!("key {number:04}").into_bytes()
}

fn fill(store: &Store, count: u32, value: u8) -> Result<(), Error> {
    let table = store.table("t")?;
    (0..count).try_for_each(|number| table.upsert(&key(number), &[value; 50]))
}

fn contents(store: &Store) -> BTreeMap<Vec<u8>, Vec<u8>> {
    store.table("t").expect("is there").scan(..).map(|entry| entry.expect("reads")).collect()
}

#[test]
fn a_backup_taken_while_others_write_has_all_from_before_and_nothing_made_up() {
    let scratch = tempfile::tempdir().expect("a directory");
    let at = |name: &str| scratch.path().join(name);
    let store = Options::new().memory(8 << 20).open(at("store")).expect("opens");
    let table = store.table("t").expect("creates");
    fill(&store, 5000, 1).expect("writes");
    table.upsert(b"large", &vec![1; 600_000]).expect("writes");
    let (stop, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    let (before, report) = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each round counts every record up, in order.
            for round in 2.. {
                table.upsert(b"large", &vec![round; 600_000]).expect("writes");
                for number in 0..5000 {
                    table.upsert(&key(number), &[round; 50]).expect("writes");
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
                rounds.store(round.into(), Ordering::SeqCst);
                if round == 250 {
                    return;
                }
            }
        });
        let before = rounds.load(Ordering::SeqCst).max(1);
        let report = store.backup(at("backup")).expect("backs up");
        assert!(matches!(store.backup(at("backup")), Err(Error::Exists { .. })));
        stop.store(true, Ordering::Relaxed);
        (before, report)
    });
    assert!(report.files >= 2 && report.bytes > 5000 * 50);
    // The store is not disturbed.
    store.persist().expect("persists");
    store.check().expect("sound");
    store.close().expect("closes");
    restore(at("backup"), at("again")).expect("restores");
    let again = Store::open(at("again")).expect("opens");
    again.check().expect("sound");
    let found = contents(&again);
    assert_eq!(found.len(), 5001);
    assert_eq!(found[&b"large"[..]].len(), 600_000);
    for (key, value) in found {
        let whole = value.iter().all(|&byte| byte == value[0]);
        assert!(u32::from(value[0]) >= before && whole, "{}", key.escape_ascii());
    }
    // It lives on its own.
    fill(&again, 5000, 255).expect("writes");
    again.table("t").expect("is there").delete(b"large").expect("deletes");
    again.close().expect("closes");
    let again = Store::open(at("again")).expect("opens");
    assert!(contents(&again).values().all(|value| value == &[255; 50]));
}

#[test]
fn what_cannot_be_is_refused_and_a_damaged_backup_leaves_nothing() {
    let scratch = tempfile::tempdir().expect("a directory");
    let at = |name: &str| scratch.path().join(name);
    let store = Store::open(at("store")).expect("opens");
    fill(&store, 100, 1).expect("writes");
    assert!(matches!(store.backup("/"), Err(Error::InvalidOption { .. })));
    assert!(matches!(store.backup(at("no such directory/backup")), Err(Error::NotFound { .. })));
    store.backup(at("backup")).expect("backs up");
    assert!(matches!(restore(at("missing"), at("again")), Err(Error::NotFound { .. })));
    assert!(matches!(restore(at("backup"), at("store")), Err(Error::Exists { .. } | Error::InUse { .. })));
    let mut bytes = std::fs::read(at("backup")).expect("reads");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(at("damaged"), &bytes).expect("writes");
    assert!(matches!(restore(at("damaged"), at("again")), Err(Error::Corrupt { .. })));
    std::fs::write(at("short"), &bytes[..middle & !4095]).expect("writes");
    assert!(matches!(restore(at("short"), at("again")), Err(Error::Corrupt { .. })));
    let left: Vec<_> =
        std::fs::read_dir(at("again")).expect("lists").map(|entry| entry.expect("reads")).collect();
    assert!(left.iter().all(|entry| entry.file_name() == "lock"), "{left:?}");
    store.clone().close().expect("closes");
    assert!(matches!(store.backup(at("late")), Err(Error::Closed)));
    restore(at("backup"), at("again")).expect("restores");
    assert_eq!(contents(&Store::open(at("again")).expect("opens")).len(), 100);
}

#[test]
fn a_shelf_that_is_full_or_fails_does_not_harm_the_store() {
    let store = Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    fill(&store, 300, 1).expect("writes");
    let shelf = SimulatedDisk::new(1);
    shelf.set_capacity(Some(64 << 10));
    let full = store.backup_in(&shelf.directory(), "backup");
    assert!(matches!(full, Err(Error::DiskFull { .. })), "{full:?}");
    shelf.set_capacity(None);
    shelf.set_faults(FaultPlan::new().fail_from(Operation::Write, 0, FaultKind::Refuse));
    assert!(matches!(store.backup_in(&shelf.directory(), "backup"), Err(Error::Device { .. })));
    shelf.set_faults(FaultPlan::new());
    fill(&store, 300, 2).expect("the store takes writes");
    store.persist().expect("persists");
    store.backup_in(&shelf.directory(), "backup").expect("backs up");
    let target = Arc::new(MemoryDirectory::new());
    restore_in(&shelf.directory(), "backup", target.as_ref()).expect("restores");
    let again = Options::tiny_for_tests().open_in(target).expect("opens");
    assert_eq!(contents(&again), contents(&store));
}

#[test]
fn a_crash_while_a_backup_is_taken_leaves_the_store_and_no_half_backup() {
    let work = |disk: &SimulatedDisk, shelf: &SimulatedDisk| -> Result<(), Error> {
        let store = Options::tiny_for_tests().open_in(Arc::new(disk.directory()))?;
        fill(&store, 80, 1)?;
        store.backup_in(&shelf.directory(), "backup").map(drop)
    };
    let shelf = SimulatedDisk::new(1);
    work(&SimulatedDisk::new(1), &shelf).expect("works");
    for crash_at in 0..shelf.operations() {
        let (disk, shelf) = (SimulatedDisk::new(1), SimulatedDisk::new(crash_at));
        shelf.set_faults(FaultPlan::new().crash_after(crash_at));
        let done = work(&disk, &shelf).is_ok();
        shelf.crash([CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Random][crash_at as usize % 3]);
        let target = Arc::new(MemoryDirectory::new());
        match restore_in(&shelf.directory(), "backup", target.as_ref()) {
            Ok(_) => {
                let again = Options::tiny_for_tests().open_in(target).expect("opens");
                assert_eq!(contents(&again).len(), 80, "after {crash_at}");
            }
            Err(error) => assert!(!done, "after {crash_at}: {error:?}"),
        }
    }
}

#[test]
fn a_crash_while_a_store_is_restored_leaves_the_whole_store_or_none() {
    let store = Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    fill(&store, 80, 1).expect("writes");
    let shelf = MemoryDirectory::new();
    store.backup_in(&shelf, "backup").expect("backs up");
    let whole = SimulatedDisk::new(1);
    restore_in(&shelf, "backup", &whole.directory()).expect("restores");
    let (mut stores, mut none) = (0, 0);
    for crash_at in 0..whole.operations() {
        for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Random] {
            let disk = SimulatedDisk::new(crash_at);
            disk.set_faults(FaultPlan::new().crash_after(crash_at));
            let done = restore_in(&shelf, "backup", &disk.directory()).is_ok();
            disk.crash(policy);
            let open = Options::tiny_for_tests().create_if_missing(false);
            match open.open_in(Arc::new(disk.directory())) {
                Ok(again) => {
                    assert_eq!(contents(&again).len(), 80, "after {crash_at} {policy:?}");
                    stores += 1;
                }
                Err(Error::NotFound { .. } | Error::NotAStore { .. } | Error::Corrupt { .. }) => {
                    assert!(!done, "after {crash_at} {policy:?}");
                    none += 1;
                }
                Err(other) => panic!("after {crash_at} {policy:?}: {other:?}"),
            }
        }
    }
    assert!(stores > 0 && none > 0, "{stores} {none}");
}

/// The store would not be found there any more.
#[test]
fn a_backup_into_the_stores_own_directory_is_refused() {
    let scratch = tempfile::tempdir().expect("a directory");
    let at = |name: &str| scratch.path().join(name);
    let store = Options::new().memory(4 << 20).open(at("store")).expect("opens");
    store.table("t").and_then(|table| table.upsert(b"a", b"1")).expect("writes");
    std::os::unix::fs::symlink(at("store"), at("link")).expect("links");
    for path in ["store/monday", "link/monday", "store/store-0000000000000000.seg.monday"] {
        let refused = store.backup(at(path));
        assert!(matches!(&refused, Err(Error::InvalidOption { option: "backup", .. })), "{refused:?}");
    }
    store.backup(at("monday")).expect("copies");
    store.close().expect("closes");
    let store = Options::new().memory(4 << 20).open(at("store")).expect("nothing was left there");
    assert_eq!(store.table("t").expect("is there").get(b"a").expect("reads").as_deref(), Some(&b"1"[..]));
}
