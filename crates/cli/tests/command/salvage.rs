//! `salvage`: from a database that does not open to one that does.

use crate::support::{Scratch, run, words};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn salvage(from: &Path, to: &Path) -> crate::support::Said {
    run(["salvage".as_ref(), "--json".as_ref(), from.as_os_str(), to.as_os_str()])
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_does_not_open_is_salvaged_and_imported() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    words(&db, "put DB fruit apple red").ok();
    words(&db, "put DB fruit plum blue").ok();
    words(&db, "put DB fruit kiwi green").ok();
    words(&db, "delete DB fruit plum").ok();
    words(&db, "put DB ../etc odd name").ok();
    std::fs::remove_file(db.join("superblock")).unwrap();
    for image in names(&db).iter().filter(|name| name.starts_with("store-image")) {
        std::fs::write(db.join(image), "nonsense").unwrap();
    }
    words(&db, "get DB fruit apple").fails(1, "not a database");
    let before = names(&db);

    let out = scratch.path("out");
    let said = salvage(&db, &out);
    assert_eq!(said.status, 5, "{said:?}");
    let report = said.json();
    assert_eq!(report["records"], 3, "{report}");
    let losses = report["losses"].as_array().unwrap();
    assert!(losses.iter().any(|loss| loss["file"] == "superblock"), "{report}");
    assert!(losses.iter().any(|loss| loss["file"].as_str().unwrap().starts_with("store-image")), "{report}");
    assert_eq!(names(&db), before, "nothing is written into the database");
    assert_eq!(names(&out), ["1-fruit.jsonl", "2-table.jsonl"]);
    assert_eq!(std::fs::metadata(&out).unwrap().permissions().mode() & 0o077, 0);
    salvage(&db, &out).fails(1, "cannot create the directory");

    let again = scratch.path("again.db");
    let file = out.join("1-fruit.jsonl");
    let import = ["import", "--sorted", "--encoding", "base64"].map(AsRef::<std::ffi::OsStr>::as_ref);
    run(import.into_iter().chain([again.as_os_str(), "fruit".as_ref(), file.as_os_str()])).ok();
    assert_eq!(words(&again, "scan DB fruit").ok().out, "apple\tred\nkiwi\tgreen\n");
}

#[test]
fn of_a_sound_database_there_is_only_a_report_unless_files_are_asked_for() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    words(&db, "put DB fruit apple red").ok();
    let said = words(&db, "salvage DB").ok();
    assert!(said.out.contains("table fruit, number 1: 1 records, 0 incomplete, not written"), "{said:?}");
    words(&scratch.path("none"), "salvage DB").fails(3, "no database");
}
