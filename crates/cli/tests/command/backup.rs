//! `backup` and `restore`, with their exit statuses.

use crate::support::{Scratch, run, words};
use std::os::unix::ffi::OsStrExt;

#[test]
fn a_backup_comes_back_and_a_damaged_one_is_refused_with_its_place() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    words(&db, "put DB fruit apple red").ok();
    let (backup, again) = (scratch.path("a.backup"), scratch.path("again.db"));
    let back_up = || run(["backup".as_ref(), db.as_os_str(), backup.as_os_str()]);
    let restore = || run(["restore".as_ref(), backup.as_os_str(), again.as_os_str()]);
    back_up().ok();
    back_up().fails(1, "exists already");
    words(&db, "put DB fruit apple brown").ok();
    restore().ok();
    assert_eq!(words(&again, "get DB fruit apple").ok().out, "red\n");
    words(&again, "check DB").ok();
    restore().fails(1, "exists already");

    std::fs::remove_dir_all(&again).unwrap();
    let mut bytes = std::fs::read(&backup).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&backup, bytes).unwrap();
    let said = restore().fails(5, "corrupt a.backup at byte 4096").fails(5, "restore another one");
    assert!(!said.err.contains("salvage"), "{said:?}");
    words(&again, "get DB fruit apple").fails(3, "");
    std::fs::remove_file(&backup).unwrap();
    restore().fails(3, "nothing at");
}

/// A report that could not say where it was made panicked, when all was done.
#[test]
fn paths_that_are_not_utf8_are_paths() {
    let scratch = Scratch::new();
    let odd = scratch.path("").join(std::ffi::OsStr::from_bytes(b"\xff"));
    std::fs::create_dir(&odd).unwrap();
    let (db, again, backup) = (odd.join("a.db"), odd.join("again.db"), odd.join("a.backup"));
    words(&db, "put DB fruit apple red").ok();
    words(&db, "stat DB --json").ok().json();
    let json = |command: &str, from: &std::path::Path, to: &std::path::Path| {
        run([command.as_ref(), "--json".as_ref(), from.as_os_str(), to.as_os_str()])
    };
    assert!(json("backup", &db, &backup).ok().json()["backup"].as_str().unwrap().ends_with("a.backup"));
    json("restore", &backup, &again).ok().json();
    json("backup", &db, &odd.join(std::ffi::OsStr::from_bytes(b"\xff"))).fails(2, "is not UTF-8");
}
