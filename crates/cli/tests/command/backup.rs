//! `backup` and `restore`, with their exit statuses.

use crate::support::{Scratch, run, words};

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
    restore().fails(5, "corrupt a.backup at byte 4096");
    words(&again, "get DB fruit apple").fails(3, "");
    std::fs::remove_file(&backup).unwrap();
    restore().fails(3, "nothing at");
}
