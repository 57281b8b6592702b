//! Bad input and misuse: each gets a clear, typed error and loses nothing acknowledged.

use deuteron::device::{Directory, MemoryDirectory};
use deuteron::sizes::Sizes;
use deuteron::{
    Background, Db, Durability, Error, FORMAT_VERSION, Isolation, Options, RetryPolicy,
    SPACE_AMPLIFICATION_PERCENT_MIN, TransactionOptions, VERSION_MEMORY_BYTES_MIN, WRITER_LOG_BYTES_MIN,
};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

fn small() -> Options {
    Options::new().memory(32 << 20)
}

fn memory_db() -> Db {
    Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new())).expect("opens")
}

/// Creates a database with one record, and closes it.
fn with_one_record(path: &Path) {
    let db = small().open(path).expect("creates");
    let table = db.table("t").expect("creates a table");
    db.transact(|tx| tx.put(&table, b"key", b"value")).expect("commits");
    db.close().expect("closes");
}

/// The value of the one record.
fn one_record(path: &Path) -> Option<Vec<u8>> {
    let db = small().open(path).expect("opens");
    let table = db.table("t").expect("is there");
    let value = db.transact(|tx| tx.get(&table, b"key")).expect("reads");
    db.close().expect("closes");
    value
}

#[test]
fn two_handles_on_one_directory_are_refused() {
    let scratch = tempfile::tempdir().expect("a directory");
    let db = small().open(scratch.path()).expect("opens");
    assert!(matches!(small().open(scratch.path()), Err(Error::InUse { .. })));
    db.close().expect("closes");
    small().open(scratch.path()).expect("the lock was given back").close().expect("closes");
}

#[test]
fn keys_over_the_limit_are_refused_and_the_transaction_goes_on() {
    let db = memory_db();
    let table = db.table("t").expect("creates");
    let mut tx = db.begin();
    tx.put(&table, b"kept", b"1").expect("writes");
    assert!(matches!(tx.put(&table, b"", b"1"), Err(Error::KeySize { found: 0, .. })));
    assert!(matches!(tx.put(&table, &[7; 4097], b"1"), Err(Error::KeySize { found: 4097, limit: 4096 })));
    tx.put(&table, &[7; 4096], b"longest").expect("the longest key");
    tx.commit().expect("commits");
    let kept = db.transact(|tx| Ok((tx.get(&table, b"kept")?, tx.get(&table, &[7; 4096])?))).expect("reads");
    assert_eq!(kept, (Some(b"1".to_vec()), Some(b"longest".to_vec())));
}

#[test]
fn values_over_the_limit_are_refused_and_the_transaction_goes_on() {
    let db = small().open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = db.table("t").expect("creates");
    let mut tx = db.begin();
    tx.put(&table, b"kept", b"1").expect("writes");
    let Err(Error::ValueSize { found, limit }) = tx.put(&table, b"large", &vec![0; 80 << 20]) else {
        panic!("eighty mebibytes are over the limit");
    };
    assert_eq!(found, 80 << 20);
    let largest = vec![9; limit];
    tx.put(&table, b"large", &largest).expect("the longest value");
    tx.commit().expect("commits");
    db.checkpoint().expect("takes a checkpoint");
    assert_eq!(db.transact(|tx| tx.get(&table, b"large")).expect("reads"), Some(largest));
    db.close().expect("closes");
}

#[test]
fn a_scan_whose_bounds_cross_is_empty() {
    let db = memory_db();
    let table = db.table("t").expect("creates");
    db.transact(|tx| tx.put(&table, b"m", b"1")).expect("commits");
    for (from, to) in [(&b"z"[..], &b"a"[..]), (b"m", b"m")] {
        let mut tx = db.begin();
        assert_eq!(tx.scan(&table, from..to).expect("scans").count(), 0);
        assert_eq!(tx.scan(&table, from..to).expect("scans").rev().count(), 0);
        tx.commit().expect("commits");
    }
}

#[test]
fn use_after_close_says_closed() {
    let db = memory_db();
    let table = db.table("t").expect("creates");
    let other = db.clone();
    let mut open = db.begin();
    open.put(&table, b"key", b"lost").expect("writes");
    db.close().expect("closes");
    assert!(matches!(open.get(&table, b"key"), Err(Error::Closed)));
    assert!(matches!(open.commit(), Err(Error::Closed)));
    assert!(matches!(other.table("u"), Err(Error::Closed)));
    assert!(matches!(other.transact(|tx| tx.get(&table, b"key")), Err(Error::Closed)));
    other.close().expect("closing twice is harmless");
}

#[test]
fn a_panic_in_the_closure_aborts_and_the_database_goes_on() {
    let db = memory_db();
    let table = db.table("t").expect("creates");
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        db.transact(|tx| {
            tx.put(&table, b"key", b"half")?;
            if tx.get(&table, b"key")?.is_some() {
                panic!("planned");
            }
            Ok(())
        })
    }));
    assert!(outcome.is_err());
    assert_eq!(db.transact(|tx| tx.get(&table, b"key")).expect("reads"), None);
    db.transact(|tx| tx.put(&table, b"key", b"whole")).expect("the key is not blocked");
}

#[test]
fn a_read_only_transaction_does_not_write() {
    let db = memory_db();
    let table = db.table("t").expect("creates");
    let mut tx = db.begin_with(TransactionOptions::new().read_only(true)).expect("begins");
    assert!(matches!(tx.put(&table, b"key", b"1"), Err(Error::ReadOnly)));
    // Also where there is nothing to be written.
    for isolation in [Isolation::Serializable, Isolation::Snapshot, Isolation::ReadCommitted] {
        let options = TransactionOptions::new().read_only(true).isolation(isolation);
        let mut tx = db.begin_with(options).expect("begins");
        assert!(matches!(tx.delete_range(&table, ..), Err(Error::ReadOnly)));
        assert!(matches!(tx.compare_and_set(&table, b"key", Some(b"1"), None), Err(Error::ReadOnly)));
        assert!(matches!(tx.append(&table, b"key", b""), Err(Error::ReadOnly)));
        assert!(matches!(tx.get_for_update(&table, b"key"), Err(Error::ReadOnly)));
    }
    assert_eq!(tx.get(&table, b"key").expect("goes on"), None);
}

#[test]
fn a_table_of_another_database_is_refused() {
    let (one, two) = (memory_db(), memory_db());
    let table = one.table("t").expect("creates");
    assert!(matches!(two.begin().get(&table, b"key"), Err(Error::ForeignTable { .. })));
}

#[test]
fn table_names_have_limits() {
    let db = memory_db();
    assert!(matches!(db.table(""), Err(Error::TableName { found: 0, .. })));
    assert!(matches!(db.table(&"n".repeat(256)), Err(Error::TableName { found: 256, limit: 255 })));
}

/// What was committed all the same stopped the database, and no opening could go past it.
#[test]
fn sizes_with_which_it_could_not_work_are_refused_and_no_key_is_longer_than_pages_take() {
    let with = |change: &dyn Fn(&mut Sizes)| {
        let mut sizes = Sizes::tiny();
        change(&mut sizes);
        Options::tiny_for_tests().sizes(sizes).open_in(Arc::new(MemoryDirectory::new()))
    };
    let refused = with(&|sizes| sizes.tc.scan_batch_bytes = 0);
    assert!(matches!(refused, Err(Error::InvalidOption { option: "scan_batch_bytes", .. })));
    let db = with(&|sizes| sizes.tc.key_bytes_max = 10_000).expect("opens");
    let table = db.table("t").expect("creates");
    let long = db.transact(|tx| tx.put(&table, &[7; 4097], b"value"));
    assert!(matches!(long, Err(Error::KeySize { found: 4097, limit: 4096 })), "{long:?}");
    db.transact(|tx| tx.put(&table, &[7; 4096], b"value")).expect("commits");
    db.close().expect("closes");
}

#[test]
fn too_little_memory_is_refused() {
    let refused = Options::new().memory(1 << 20).open_in(Arc::new(MemoryDirectory::new()));
    assert!(matches!(refused, Err(Error::InvalidOption { option: "memory", .. })));
    let few = Options::new().version_memory(VERSION_MEMORY_BYTES_MIN - 1);
    let refused = few.open_in(Arc::new(MemoryDirectory::new()));
    assert!(matches!(refused, Err(Error::InvalidOption { option: "version_memory", .. })));
}

#[test]
fn too_little_space_is_refused() {
    let crammed = Options::new().space_amplification_max(SPACE_AMPLIFICATION_PERCENT_MIN - 1);
    let refused = crammed.open_in(Arc::new(MemoryDirectory::new()));
    assert!(matches!(refused, Err(Error::InvalidOption { option: "space_amplification_max", .. })));
}

#[test]
fn too_little_log_for_a_transaction_is_refused_before_anything_is_created() {
    let few = || small().writer_log_max(WRITER_LOG_BYTES_MIN - 1);
    let directory = Arc::new(MemoryDirectory::new());
    let refused = few().open_in(Arc::clone(&directory) as Arc<dyn Directory>);
    assert!(matches!(refused, Err(Error::InvalidOption { option: "writer_log_max", .. })));
    assert!(directory.list().expect("lists").is_empty());
    let scratch = tempfile::tempdir().expect("a directory");
    let path = scratch.path().join("db");
    assert!(matches!(few().open(&path), Err(Error::InvalidOption { option: "writer_log_max", .. })));
    assert!(!path.exists());
}

#[test]
fn with_the_least_log_for_a_transaction_and_the_most_checkpoints_a_database_works() {
    for options in [
        small().checkpoint_every(1),
        small().writer_log_max(WRITER_LOG_BYTES_MIN),
        Options::tiny_for_tests().checkpoint_every(1),
    ] {
        let db = options.open_in(Arc::new(MemoryDirectory::new())).expect("opens");
        let table = db.table(&"n".repeat(255)).expect("creates");
        let refused = db.transact(|tx| tx.put(&table, b"long", &vec![0; 1 << 20]));
        let Err(Error::ValueSize { limit, .. }) = refused else { panic!("{refused:?}") };
        let (key, longest) = ([7; 4096], vec![9; limit]);
        db.transact(|tx| tx.put(&table, &key, &longest)).expect("commits");
        db.checkpoint().expect("takes a checkpoint");
        assert_eq!(db.transact(|tx| tx.get(&table, &key)).expect("reads"), Some(longest));
        db.close().expect("closes");
    }
}

#[test]
fn a_missing_database_is_not_created_unasked() {
    let scratch = tempfile::tempdir().expect("a directory");
    let path = scratch.path().join("missing");
    assert!(matches!(small().create_if_missing(false).open(&path), Err(Error::NotFound { .. })));
    assert!(!path.exists());
    assert!(matches!(small().create_if_missing(false).open(scratch.path()), Err(Error::NotFound { .. })));
}

#[test]
fn a_foreign_directory_is_left_alone() {
    let scratch = tempfile::tempdir().expect("a directory");
    fs::write(scratch.path().join("letter.txt"), "dear").expect("writes");
    assert!(matches!(small().open(scratch.path()), Err(Error::NotADatabase { .. })));
    let kept = fs::read_to_string(scratch.path().join("letter.txt")).expect("reads");
    assert_eq!(kept, "dear");
    assert_eq!(fs::read_dir(scratch.path()).expect("lists").count(), 1, "nothing was added");
}

#[test]
fn a_newer_format_is_named() {
    let scratch = tempfile::tempdir().expect("a directory");
    with_one_record(scratch.path());
    let superblock = scratch.path().join("superblock");
    let good = fs::read(&superblock).expect("reads");
    let mut newer = good.clone();
    for copy in newer.chunks_mut(4096) {
        copy[8..12].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
        copy[12..16].fill(0);
        let checksum = crc32c::crc32c(copy);
        copy[12..16].copy_from_slice(&checksum.to_le_bytes());
    }
    fs::write(&superblock, newer).expect("writes");
    let Err(Error::UnknownFormat { found, supported }) = small().open(scratch.path()) else {
        panic!("a newer format opens");
    };
    assert_eq!((found, supported), (FORMAT_VERSION + 1, FORMAT_VERSION));
    fs::write(&superblock, good).expect("writes");
    assert_eq!(one_record(scratch.path()).as_deref(), Some(&b"value"[..]));
}

#[test]
fn one_damaged_copy_of_the_superblock_is_survived_and_two_are_named() {
    let scratch = tempfile::tempdir().expect("a directory");
    with_one_record(scratch.path());
    let superblock = scratch.path().join("superblock");
    let good = fs::read(&superblock).expect("reads");
    let mut damaged = good.clone();
    damaged[20] ^= 1;
    fs::write(&superblock, &damaged).expect("writes");
    assert_eq!(one_record(scratch.path()).as_deref(), Some(&b"value"[..]));
    damaged[4096 + 20] ^= 1;
    fs::write(&superblock, &damaged).expect("writes");
    assert!(matches!(small().open(scratch.path()), Err(Error::Corrupt { file, .. }) if file == "superblock"));
    fs::write(&superblock, &good[..100]).expect("writes");
    assert!(matches!(small().open(scratch.path()), Err(Error::Corrupt { file, .. }) if file == "superblock"));
}

/// Overwrites `count` bytes in the middle of what is not zero in a file.
fn damage(path: &Path, count: usize) {
    let mut bytes = fs::read(path).expect("reads");
    let written = bytes.iter().rposition(|byte| *byte != 0).expect("something was written");
    let at = written / 2;
    bytes[at..at + count].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(path, bytes).expect("writes");
}

/// The largest file whose name begins with `prefix`.
fn file(directory: &Path, prefix: &str) -> std::path::PathBuf {
    fs::read_dir(directory)
        .expect("lists")
        .map(|entry| entry.expect("lists").path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
        .max_by_key(|path| fs::metadata(path).map_or(0, |metadata| metadata.len()))
        .expect("there is one")
}

#[test]
fn a_damaged_log_or_store_is_reported_with_its_place_and_never_returned_as_data() {
    for prefix in ["log-", "store-"] {
        let scratch = tempfile::tempdir().expect("a directory");
        let db = small().open(scratch.path()).expect("creates");
        let table = db.table("t").expect("creates a table");
        for number in 0..2000u32 {
            db.transact_with(
                TransactionOptions::new().durability(deuteron::Durability::None),
                deuteron::RetryPolicy::default(),
                |tx| tx.put(&table, &number.to_be_bytes(), &[b'v'; 100]),
            )
            .expect("commits");
            if number % 200 == 0 {
                db.flush().expect("flushes");
            }
        }
        if prefix == "store-" {
            db.checkpoint().expect("takes a checkpoint");
        }
        // Not closed: the next open has to read the log. (The handle goes without a clean end.)
        std::mem::forget(db.clone());
        std::mem::forget(db);
        let copy = tempfile::tempdir().expect("a directory");
        for entry in fs::read_dir(scratch.path()).expect("lists") {
            let entry = entry.expect("lists");
            if entry.file_name() != "lock" {
                fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copies");
            }
        }
        damage(&file(copy.path(), prefix), 64);
        let outcome = small().open(copy.path()).and_then(|db| {
            let table = db.table("t")?;
            let entries: Vec<_> = db.transact(|tx| tx.scan(&table, ..)?.collect())?;
            for (_, value) in &entries {
                assert_eq!(value, &[b'v'; 100], "damaged bytes came back as data");
            }
            db.check().map(|report| (entries.len(), report.problems.len()))
        });
        match outcome {
            Err(Error::Corrupt { file, .. }) => assert!(file.starts_with(prefix), "{file}"),
            Err(other) => panic!("{prefix}: {other}"),
            // The damage may lie in bytes that are not live; then nothing may be missing.
            Ok((entries, _)) => assert_eq!(entries, 2000, "{prefix}: records are silently missing"),
        }
    }
}

#[test]
fn the_files_of_a_database_belong_to_their_owner() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = tempfile::tempdir().expect("a directory");
    let path = scratch.path().join("db");
    with_one_record(&path);
    for entry in fs::read_dir(&path).expect("lists") {
        let mode = entry.expect("lists").metadata().expect("has metadata").permissions().mode();
        assert_eq!(mode & 0o077, 0);
    }
}

#[test]
fn a_directory_in_memory_keeps_the_database_between_opens() {
    let directory = Arc::new(MemoryDirectory::new());
    for number in 0..3u8 {
        let db = small().open_in(Arc::clone(&directory) as Arc<dyn Directory>).expect("opens");
        let table = db.table("t").expect("is there");
        let seen = db.transact(|tx| tx.scan(&table, ..)?.collect::<Result<Vec<_>, _>>()).expect("scans");
        assert_eq!(seen.len(), usize::from(number));
        db.transact(|tx| tx.put(&table, &[number], b"")).expect("commits");
        db.close().expect("closes");
    }
}

/// The checkpointer waits for the flusher, which must not have gone before it.
#[test]
fn closing_in_the_middle_of_a_checkpoint_ends() {
    for round in 0..150u32 {
        let options = Options::tiny_for_tests().background(Background::Threads).checkpoint_every(1 << 10);
        let db = options.open_in(Arc::new(MemoryDirectory::new())).expect("opens");
        let table = db.table("t").expect("creates");
        // A checkpoint is due every few transactions.
        for write in 0..round % 40 {
            let options = TransactionOptions::new().durability(Durability::None);
            db.transact_with(options, RetryPolicy::default(), |tx| {
                tx.put(&table, &write.to_be_bytes(), &[7; 150])
            })
            .expect("commits");
        }
        db.close().expect("closes");
    }
}

/// It was opened with a new store: what was loaded is not in the log.
#[test]
fn a_database_whose_store_is_gone_is_damaged_and_not_a_new_one() {
    let directory = Arc::new(MemoryDirectory::new());
    let options = || Options::tiny_for_tests();
    let db = options().open_in(directory.clone()).expect("opens");
    let mut load = db.load_table("loaded").expect("begins");
    (0..100u32).for_each(|number| load.push(&number.to_be_bytes(), b"value").expect("takes"));
    load.finish().expect("loads");
    db.close().expect("closes");
    for name in directory.list().expect("lists").iter().filter(|name| name.starts_with("store-")) {
        directory.remove(name).expect("removes");
    }
    let before = directory.list().expect("lists");
    for _ in 0..2 {
        assert!(matches!(options().open_in(directory.clone()).err(), Some(Error::Corrupt { .. })));
        assert!(matches!(deuteron::check_in(directory.clone()).err(), Some(Error::Corrupt { .. })));
    }
    assert_eq!(directory.list().expect("lists"), before);
    // What a crash has left of a creation is one.
    before.iter().filter(|name| name.starts_with("log-")).for_each(|name| {
        directory.remove(name).expect("removes");
    });
    options().open_in(directory).expect("opens").close().expect("closes");
}

#[test]
fn looking_for_a_database_leaves_nothing_in_a_directory_that_has_none() {
    let scratch = tempfile::tempdir().expect("a directory");
    let names = || fs::read_dir(scratch.path()).expect("lists").count();
    let opened = small().create_if_missing(false).open(scratch.path());
    assert!(matches!(opened, Err(Error::NotFound { .. })));
    assert!(matches!(deuteron::check(scratch.path()), Err(Error::NotFound { .. })));
    assert!(matches!(deuteron::recovery_plan(scratch.path()), Err(Error::NotFound { .. })));
    assert!(matches!(deuteron::salvage(scratch.path(), &mut |_| Ok(())), Err(Error::NotFound { .. })));
    assert_eq!(names(), 0);
    // Nor does a look at one whose files were copied without the lock's.
    with_one_record(scratch.path());
    fs::remove_file(scratch.path().join("lock")).expect("is there");
    let before = names();
    assert!(deuteron::check(scratch.path()).expect("checks").problems.is_empty());
    assert!(deuteron::check_fast(scratch.path()).expect("checks").problems.is_empty());
    deuteron::recovery_plan(scratch.path()).expect("plans");
    deuteron::salvage(scratch.path(), &mut |_| Ok(())).expect("salvages");
    assert_eq!(names(), before);
    // And while somebody has it open nobody looks.
    let db = small().open(scratch.path()).expect("opens");
    assert!(matches!(deuteron::check(scratch.path()), Err(Error::InUse { .. })));
    db.close().expect("closes");
}

#[test]
fn an_opening_that_fails_leaves_no_history_that_would_be_in_the_way_of_the_next() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (path, history) = (scratch.path().join("db"), scratch.path().join("history"));
    with_one_record(&path);
    let superblock = fs::read(path.join("superblock")).expect("reads");
    fs::write(path.join("superblock"), b"damaged").expect("writes");
    let open = || small().record_history(&history).open(&path);
    assert!(open().is_err() && !history.exists());
    fs::write(path.join("superblock"), superblock).expect("writes");
    open().expect("opens").close().expect("closes");
    assert!(history.exists());
}

#[test]
fn a_backup_that_goes_nowhere_or_is_not_there_says_so() {
    let scratch = tempfile::tempdir().expect("a directory");
    let db = memory_db();
    let nowhere = db.backup(scratch.path().join("missing").join("monday"));
    assert!(matches!(&nowhere, Err(Error::NothingAt { path }) if path.ends_with("missing")), "{nowhere:?}");
    let nothing = deuteron::restore(scratch.path().join("no backup"), scratch.path().join("target"));
    assert!(matches!(&nothing, Err(Error::NothingAt { path }) if path.ends_with("no backup")), "{nothing:?}");
}

#[test]
fn memory_for_more_than_there_can_be_is_no_overflow() {
    let options = Options::tiny_for_tests().memory(usize::MAX);
    options.open_in(Arc::new(MemoryDirectory::new())).expect("opens").close().expect("closes");
}

#[test]
fn a_table_of_a_copy_or_of_an_earlier_opening_is_a_foreign_one() {
    let scratch = tempfile::tempdir().expect("a directory");
    let at = |name: &str| scratch.path().join(name);
    with_one_record(&at("original"));
    let original = small().open(at("original")).expect("opens");
    original.backup(at("backup")).expect("copies");
    deuteron::restore(at("backup"), at("copy")).expect("restores");
    let copy = small().open(at("copy")).expect("opens");
    let (x, y) = (original.table("x").expect("creates"), copy.table("y").expect("creates"));
    assert_ne!(x, y);
    assert!(matches!(copy.transact(|tx| tx.put(&x, b"k", b"v")), Err(Error::ForeignTable { .. })));
    copy.close().expect("closes");
    // Dropped while nobody who has the handle could be told.
    original.close().expect("closes");
    let again = small().open(at("original")).expect("opens");
    again.drop_table("x").expect("drops");
    again.close().expect("closes");
    drop(y);
    let again = small().open(at("original")).expect("opens");
    assert!(matches!(again.transact(|tx| tx.put(&x, b"k", b"v")), Err(Error::ForeignTable { .. })));
    again.close().expect("closes");
}
