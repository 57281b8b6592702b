//! Tables as a whole: dropped, loaded, compacted; and a crash at every operation that changes the disk meanwhile.

use deuteron_store::device::{CrashPolicy, Directory, FaultPlan, MemoryDirectory, SimulatedDisk};
use deuteron_store::{Batch, Error, Options, Store};
use std::sync::Arc;

fn open(directory: Arc<dyn Directory>) -> Result<Store, Error> {
    Options::tiny_for_tests().open_in(directory)
}

fn in_memory() -> Store {
    open(Arc::new(MemoryDirectory::new())).expect("opens")
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn fill(store: &Store, name: &str, count: u32) -> Result<(), Error> {
    let table = store.table(name)?;
    (0..count).try_for_each(|number| table.upsert(&key(number), &[7; 40]))
}

fn load(store: &Store, name: &str, count: u32) -> Result<(), Error> {
    let mut load = store.load_table(name)?;
    (0..count).try_for_each(|number| load.push(&key(number), &[8; 40]))?;
    load.finish().map(drop)
}

fn count(store: &Store, name: &str) -> usize {
    store
        .table(name)
        .expect("is there")
        .scan(..)
        .map(|entry| entry.expect("reads"))
        .fold(0, |count, _| count + 1)
}

fn work(store: &Store) {
    while store.step().expect("works") {}
}

#[test]
fn a_dropped_table_is_gone_and_its_handles_say_so() {
    let directory = Arc::new(MemoryDirectory::new());
    let store = open(directory.clone()).expect("opens");
    fill(&store, "kept", 30).expect("writes");
    fill(&store, "gone", 30).expect("writes");
    let handle = store.table("gone").expect("is there");
    let mut batch = Batch::new();
    batch.upsert(&store.table("kept").expect("is there"), b"with it", b"1").upsert(&handle, b"late", b"1");
    let mut scan = handle.scan(..);
    store.drop_table("gone").expect("drops");

    assert_eq!(store.tables().expect("lists"), ["kept"]);
    assert!(matches!(store.drop_table("gone"), Err(Error::NoSuchTable { table }) if table == "gone"));
    assert!(matches!(store.drop_table(""), Err(Error::TableName { found: 0, .. })));
    assert!(matches!(handle.get(b"a"), Err(Error::TableDropped { table }) if table == "gone"));
    assert!(matches!(handle.upsert(b"a", b"1"), Err(Error::TableDropped { .. })));
    assert!(matches!(handle.delete(b"a"), Err(Error::TableDropped { .. })));
    assert!(matches!(handle.get_many(&[b"a"]), Err(Error::TableDropped { .. })));
    assert!(matches!(scan.next(), Some(Err(Error::TableDropped { .. }))));
    assert!(matches!(store.apply(&batch), Err(Error::TableDropped { .. })), "the batch is refused whole");
    assert_eq!(store.table("kept").expect("is there").get(b"with it").expect("reads"), None);

    // Another table of the same name.
    assert_eq!(count(&store, "gone"), 0);
    fill(&store, "gone", 3).expect("writes");
    assert!(matches!(handle.get(b"a"), Err(Error::TableDropped { .. })));
    work(&store);
    store.close().expect("closes");
    let store = open(directory).expect("opens again");
    assert_eq!((count(&store, "gone"), count(&store, "kept")), (3, 30));
    store.check().expect("sound");
}

#[test]
fn the_space_of_a_dropped_table_comes_back() {
    let store = in_memory();
    fill(&store, "kept", 10).expect("writes");
    store.persist().expect("persists");
    let before = store.stats().disk_bytes;
    load(&store, "gone", 30_000).expect("loads");
    let between = store.stats().disk_bytes;
    assert!(between > before + 30_000 * 40);
    store.drop_table("gone").expect("drops");
    work(&store);
    store.persist().expect("persists");
    work(&store);
    let after = store.stats().disk_bytes;
    // Tiny inner nodes, each of which keeps a leaf, are many.
    assert!(after < before + (between - before) / 3, "{before} {between} {after}");
}

#[test]
fn a_loaded_table_is_read_written_and_there_after_a_crash() {
    let disk = SimulatedDisk::new(1);
    let store = open(Arc::new(disk.directory())).expect("opens");
    load(&store, "loaded", 800).expect("loads");
    let table = store.table("loaded").expect("is there");
    table.upsert(&key(7), b"new").expect("writes");
    table.delete(&key(8)).expect("deletes");
    store.persist().expect("persists");
    drop((table, store));
    disk.crash(CrashPolicy::LoseAll);
    let store = open(Arc::new(disk.directory())).expect("opens again");
    let table = store.table("loaded").expect("is there");
    assert_eq!(table.get(&key(7)).expect("reads").as_deref(), Some(&b"new"[..]));
    assert_eq!(table.get(&key(8)).expect("reads"), None);
    assert_eq!(count(&store, "loaded"), 799);
    store.check().expect("sound");
}

#[test]
fn existing_tables_and_unsorted_records_are_refused_and_an_abandoned_load_leaves_nothing() {
    let directory = Arc::new(MemoryDirectory::new());
    let store = open(directory.clone()).expect("opens");
    store.table("taken").expect("creates");
    assert!(matches!(store.load_table("taken"), Err(Error::TableExists { table }) if table == "taken"));
    assert!(matches!(store.load_table(""), Err(Error::TableName { found: 0, .. })));
    let mut load = store.load_table("new").expect("begins");
    for number in 0..300 {
        load.push(&key(number), b"1").expect("in order");
    }
    assert!(matches!(load.push(&key(299), b"2"), Err(Error::OutOfOrder { record: 301, .. })));
    assert!(matches!(load.push(b"", b"2"), Err(Error::KeySize { found: 0, .. })));
    let limit = store.value_bytes_max();
    assert!(matches!(load.push(b"l", &vec![0; limit + 1]), Err(Error::ValueSize { .. })));
    drop(load);
    assert_eq!(store.tables().expect("lists"), ["taken"]);
    // Somebody creates the table while it is loaded.
    let load = store.load_table("new").expect("begins");
    store.table("new").expect("creates");
    assert!(matches!(load.finish(), Err(Error::TableExists { .. })));
    assert_eq!(count(&store, "new"), 0);
    // The store closes under a load.
    let mut load = store.load_table("newer").expect("begins");
    store.clone().close().expect("closes");
    assert!(matches!(load.push(b"a", b""), Err(Error::Closed)));
    assert!(matches!(load.finish(), Err(Error::Closed)));
    let store = open(directory).expect("opens again");
    assert_eq!(store.tables().expect("lists"), ["new", "taken"]);
    store.check().expect("sound");
}

#[test]
fn less_disk_is_taken_for_more_writing() {
    let taken = |percent: u32| {
        let options = Options::tiny_for_tests().space_amplification_max(percent);
        let store = options.open_in(Arc::new(MemoryDirectory::new())).expect("opens");
        load(&store, "t", 2_000).expect("loads");
        let table = store.table("t").expect("is there");
        let (mut most, loaded) = (0, store.stats().bytes_written);
        for number in 0..24_000u32 {
            table.upsert(&key(number.wrapping_mul(2_654_435_761) % 2_000), &[9; 40]).expect("updates");
            if number % 16 == 0 {
                store.step().expect("works");
            }
            if number > 12_000 {
                most = most.max(store.stats().disk_bytes);
            }
        }
        assert_eq!(count(&store, "t"), 2_000);
        (most, store.stats().bytes_written - loaded)
    };
    let (few, many) = (taken(120), taken(400));
    assert!(few.0 * 3 < many.0 * 2 && few.1 > many.1, "{few:?} {many:?}");
}

/// Each leaves a block of the disk with little in it.
#[test]
fn writes_that_are_made_durable_one_by_one_keep_to_the_bound_of_disk_use() {
    let store = in_memory();
    load(&store, "t", 5_000).expect("loads");
    let table = store.table("t").expect("is there");
    let mut most = 0;
    for number in 0..6_000u32 {
        table.upsert(&key(number.wrapping_mul(2_654_435_761) % 5_000), &[9; 40]).expect("updates");
        store.persist().expect("is durable");
        while store.step().expect("works") {}
        if number > 3_000 {
            most = most.max(store.stats().disk_bytes);
        }
    }
    let least = store.compact().expect("compacts").after_bytes;
    assert!(most < 3 * least, "{most} {least}");
    assert_eq!(count(&store, "t"), 5_000);
}

/// Of five stores, as what one of them takes is five segments or six, by where its pages happen to lie.
#[test]
fn compaction_gives_back_what_deletes_have_left() {
    let (mut full_bytes, mut after_bytes) = (0, 0);
    for records in [20_000, 20_400, 20_800, 21_200, 21_600] {
        let store = in_memory();
        load(&store, "t", records).expect("loads");
        let table = store.table("t").expect("is there");
        full_bytes += store.stats().disk_bytes;
        for number in (0..records).filter(|number| number % 20 > 0) {
            table.delete(&key(number)).expect("deletes");
        }
        let compaction = store.compact().expect("compacts");
        assert_eq!(compaction.after_bytes, store.stats().disk_bytes);
        assert_eq!(count(&store, "t"), records as usize / 20);
        store.check().expect("sound");
        after_bytes += compaction.after_bytes;
    }
    assert!(after_bytes < full_bytes / 6, "{full_bytes} {after_bytes}");
}

#[test]
fn a_table_whose_creation_met_a_full_disk_does_not_share_its_identifier() {
    let disk = SimulatedDisk::new(1);
    let store = open(Arc::new(disk.directory())).expect("opens");
    fill(&store, "t", 10).expect("writes");
    disk.set_capacity(Some(disk.used_bytes()));
    assert!(matches!(store.table("first"), Err(Error::DiskFull { .. })));
    assert!(matches!(store.load_table("second"), Err(Error::DiskFull { .. })));
    disk.set_capacity(None);
    fill(&store, "third", 5).expect("writes");
    store.close().expect("closes");
    let store = open(Arc::new(disk.directory())).expect("opens again");
    assert_eq!((count(&store, "first"), count(&store, "second"), count(&store, "third")), (0, 0, 5));
    assert_eq!(count(&store, "t"), 10);
}

#[test]
fn a_table_whose_drop_met_a_full_disk_is_whole_or_gone_after_the_next_opening() {
    let mut whole = 0;
    for room in 0..10 {
        let disk = SimulatedDisk::new(room);
        let store = open(Arc::new(disk.directory())).expect("opens");
        load(&store, "gone", 500).expect("loads");
        let other = store.table("other").expect("creates");
        disk.set_capacity(Some(disk.used_bytes() + room * 4096));
        let dropped = store.drop_table("gone");
        assert!(matches!(dropped, Ok(()) | Err(Error::DiskFull { .. })), "{dropped:?}");
        while store.step().unwrap_or(false) {}
        disk.set_capacity(None);
        // Others want memory, for which what is dirty is flushed.
        (0..1000).for_each(|number| other.upsert(&key(number), &[7; 400]).expect("writes"));
        disk.crash(CrashPolicy::KeepAll);
        let store = open(Arc::new(disk.directory())).expect("opens again");
        let is_there = store.tables().expect("lists").contains(&"gone".into());
        assert!(!is_there || dropped.is_err());
        assert_eq!(count(&store, "gone"), if is_there { 500 } else { 0 });
        store.check().expect("sound");
        whole += u32::from(is_there);
    }
    assert!(whole > 0, "no drop met a full disk");
}

/// It was said to be gone, also where nothing had happened.
#[test]
fn a_table_whose_drop_met_a_full_disk_is_as_it_was_and_can_be_dropped_again_or_gone() {
    let mut again = 0;
    for room in 0..10 {
        let disk = SimulatedDisk::new(room);
        let store = open(Arc::new(disk.directory())).expect("opens");
        load(&store, "gone", 500).expect("loads");
        let table = store.table("gone").expect("is there");
        disk.set_capacity(Some(disk.used_bytes() + room * 4096));
        let dropped = store.drop_table("gone");
        disk.set_capacity(None);
        if store.tables().expect("lists").contains(&"gone".into()) {
            assert!(matches!(dropped, Err(Error::DiskFull { .. })), "{dropped:?}");
            table.upsert(b"key", b"value").expect("writes");
            assert_eq!(count(&store, "gone"), 501);
            store.drop_table("gone").expect("drops");
            again += 1;
        }
        assert!(matches!(table.get(b"key"), Err(Error::TableDropped { .. })));
        assert!(store.tables().expect("lists").is_empty());
    }
    assert!(again > 0, "no drop met a full disk");
}

#[test]
fn a_load_that_a_full_disk_holds_up_goes_on_where_it_was() {
    let disk = SimulatedDisk::new(1);
    let store = open(Arc::new(disk.directory())).expect("opens");
    let mut load = store.load_table("loaded").expect("begins");
    let value = |number: u32| vec![number as u8; if number % 50 == 7 { 20_000 } else { 60 }];
    let mut refused = 0;
    disk.set_capacity(Some(disk.used_bytes()));
    for number in 0..3000 {
        while let Err(error) = load.push(&key(number), &value(number)) {
            assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
            refused += 1;
            disk.set_capacity(Some(disk.used_bytes() + refused % 3 * (40 << 10)));
        }
    }
    assert!(refused > 10, "{refused} refused");
    disk.set_capacity(None);
    let table = load.finish().expect("loads");
    let found = table.scan(..).map(|entry| entry.expect("reads"));
    assert!(found.eq((0..3000).map(|number| (key(number), value(number)))));
    store.check().expect("sound");
}

#[test]
fn the_space_of_a_load_that_came_to_nothing_comes_back() {
    let disk = SimulatedDisk::new(1);
    let store = open(Arc::new(disk.directory())).expect("opens");
    fill(&store, "kept", 10).expect("writes");
    store.compact().expect("compacts");
    let (before, mut refused) = (store.stats().disk_bytes, 0);
    for full in [None, Some(0), Some(4096), Some(12288), Some(20480), Some(40960)] {
        let mut load = store.load_table("large").expect("begins");
        for number in 0..40 {
            load.push(&key(number), &[7; 20_000]).expect("in order");
        }
        if let Some(room) = full {
            disk.set_capacity(Some(disk.used_bytes() + room));
            let finished = load.finish();
            disk.set_capacity(None);
            match finished {
                Err(Error::DiskFull { .. }) => refused += 1,
                Ok(_) => store.drop_table("large").expect("drops"),
                Err(other) => panic!("{other:?}"),
            }
        } else {
            drop(load);
        }
        assert_eq!(store.tables().expect("lists"), ["kept"]);
        store.persist().expect("persists");
        work(&store);
        store.compact().expect("compacts");
        let after = store.stats().disk_bytes;
        // Of each some first leaves of inner nodes stay until the next opening; 800 KB have come.
        assert!(after < before + 500_000, "{full:?}: {before} {after}");
    }
    assert!(refused > 1, "{refused} refused");
    drop(store);
    disk.crash(CrashPolicy::LoseAll);
    let store = open(Arc::new(disk.directory())).expect("opens again");
    assert_eq!(store.tables().expect("lists"), ["kept"]);
    assert_eq!(count(&store, "kept"), 10);
    store.check().expect("sound");
}

/// Says how far it came: 1 when "gone" is there, 2 when "loaded" is, 3 when "gone" is not, 4 at the end.
fn history(disk: &SimulatedDisk, reached: &mut u32) -> Result<(), Error> {
    let store = open(Arc::new(disk.directory()))?;
    fill(&store, "gone", 60)?;
    store.persist()?;
    *reached = 1;
    load(&store, "loaded", 150)?;
    *reached = 2;
    store.drop_table("gone")?;
    *reached = 3;
    for _ in 0..10 {
        store.step()?;
    }
    store.compact()?;
    store.close()?;
    *reached = 4;
    Ok(())
}

#[test]
fn a_crash_at_any_operation_leaves_each_table_whole_or_not_there() {
    let whole = SimulatedDisk::new(3);
    history(&whole, &mut 0).expect("works");
    let mut points = 0;
    for crash_at in 0..whole.operations() {
        for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Random] {
            let disk = SimulatedDisk::new(crash_at);
            disk.set_faults(FaultPlan::new().crash_after(crash_at));
            let mut reached = 0;
            let outcome = history(&disk, &mut reached);
            assert!(outcome.is_err() || !disk.is_stopped());
            disk.crash(policy);
            let store = open(Arc::new(disk.directory()))
                .unwrap_or_else(|error| panic!("after {crash_at} {policy:?}: {error:?}"));
            let names = store.tables().expect("lists");
            let has = |name: &str| names.iter().any(|known| known == name);
            let context = format!("after {crash_at} {policy:?}, reached {reached}: {names:?}");
            match reached {
                0 => {}
                1 => assert!(has("gone"), "{context}"),
                2 => assert!(has("loaded"), "{context}"),
                _ => assert!(has("loaded") && !has("gone"), "{context}"),
            }
            if has("loaded") {
                assert_eq!(count(&store, "loaded"), 150, "{context}");
            }
            if has("gone") && reached >= 1 {
                assert_eq!(count(&store, "gone"), 60, "{context}");
            }
            // What was begun is finished, and life goes on.
            work(&store);
            let (gone, loaded) = (has("gone"), has("loaded"));
            if gone {
                store.drop_table("gone").expect("drops");
            }
            if !loaded {
                load(&store, "loaded", 20).unwrap_or_else(|error| panic!("{context}: {error:?}"));
            }
            fill(&store, "new", 20).expect("writes");
            store.check().unwrap_or_else(|error| panic!("{context}: {error:?}"));
            store.close().expect("closes");
            let store = open(Arc::new(disk.directory())).expect("opens again");
            assert_eq!(store.tables().expect("lists"), ["loaded", "new"], "{context}");
            assert_eq!((count(&store, "loaded"), count(&store, "new")), (if loaded { 150 } else { 20 }, 20));
            points += 1;
        }
    }
    println!("tables: {points} points, 0 failures");
    assert!(points > 100, "only {points} points");
}
