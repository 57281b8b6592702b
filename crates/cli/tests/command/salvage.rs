//! `salvage`: from a database that does not open to one that does.

use crate::support::{Scratch, run, status_without_reader, words};
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
    std::fs::create_dir(scratch.path("empty")).unwrap();
    words(&scratch.path("empty"), "salvage DB").fails(3, "no database");
}

#[test]
fn a_salvage_that_is_to_be_tried_again_can_be() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    words(&db, "put DB fruit apple red").ok();
    let out = scratch.path("out");
    let lock = std::fs::File::open(db.join("lock")).unwrap();
    lock.lock().unwrap();
    let said = salvage(&db, &out);
    assert_eq!(said.status, 4, "{said:?}");
    drop(lock);
    // Nor does a wrong path cost the name.
    salvage(scratch.path("none").as_path(), &out).fails(3, "no database");
    let said = salvage(&db, &out).ok();
    assert_eq!((said.json()["records"].as_u64(), names(&out)), (Some(1), vec!["1-fruit.jsonl".to_owned()]));
    salvage(&db, &out).fails(1, "cannot create the directory");
}

/// Overwrites what lies in a file under `from` with other bytes, wherever it is found.
fn damage(directory: &Path, kind: &str, what: &[u8]) -> usize {
    let mut places = 0;
    for name in names(directory).iter().filter(|name| name.starts_with(kind)) {
        let path = directory.join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        let found: Vec<_> =
            bytes.windows(what.len()).enumerate().filter(|(_, window)| *window == what).collect();
        let found: Vec<usize> = found.into_iter().map(|(at, _)| at).collect();
        found.iter().for_each(|&at| bytes[at] ^= 0xff);
        places += found.len();
        std::fs::write(&path, bytes).unwrap();
    }
    places
}

#[test]
fn a_fast_check_finds_what_an_opening_needs_and_a_full_one_what_is_on_pages() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    for number in 0..20 {
        words(&db, &format!("put DB fruit key-{number} value-{number}")).ok();
    }
    words(&db, "compact DB").ok();
    let sound = words(&db, "check DB --fast --json").ok().json();
    assert_eq!((sound["fast"].as_bool(), sound["tables"].as_u64()), (Some(true), Some(2)), "{sound}");
    assert!(words(&db, "check DB --fast").ok().out.contains("not read"));
    words(&db, "check DB").ok();

    let before = names(&db);
    assert!(damage(&db, "store-0", b"value-7") > 0);
    words(&db, "check DB --fast").ok();
    words(&db, "check DB").fails(5, "problems");
    // Whether or not somebody reads the report.
    for command in ["check", "salvage"] {
        for json in [None, Some("--json".as_ref())] {
            let words = [command.as_ref(), db.as_os_str()].into_iter().chain(json);
            assert_eq!(status_without_reader(words, false), 5, "{command}");
        }
    }
    let image = names(&db).into_iter().rfind(|name| name.starts_with("store-image")).unwrap();
    std::fs::write(db.join(image), "nonsense").unwrap();
    words(&db, "check DB --fast").fails(5, "corrupt");
    assert_eq!(names(&db), before, "nothing is written");
}

#[test]
fn what_can_be_read_of_a_damaged_table_is_exported_and_the_rest_reported() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    for number in 10..30 {
        words(&db, &format!("put DB fruit key-{number} value-{number}")).ok();
        words(&db, &format!("put DB other key-{number} other-{number}")).ok();
    }
    words(&db, "compact DB").ok();
    let whole = words(&db, "export DB fruit - --format csv").ok().out;
    assert_eq!(words(&db, "export DB fruit - --format csv --salvage").ok().out, whole);
    words(&db, "export DB nothing - --format csv --salvage").fails(3, "no table nothing was found");

    // The page of the other table, the catalogue's images, and the superblock: the first table is untouched.
    assert!(damage(&db, "store-0", b"other-17") > 0);
    std::fs::remove_file(db.join("superblock")).unwrap();
    words(&db, "export DB fruit - --format csv").fails(1, "not a database");
    let said = words(&db, "export DB fruit - --format csv --salvage");
    assert_eq!((said.status, &said.out), (5, &whole), "{said:?}");
    assert!(said.err.contains("lost: superblock"), "{said:?}");
    // Its own page.
    assert!(damage(&db, "store-0", b"value-17") > 0);
    let said = words(&db, "export DB fruit - --format csv --salvage");
    assert_eq!(said.status, 5, "{said:?}");
    let lines: Vec<_> = said.out.lines().collect();
    assert!(lines.iter().all(|line| whole.contains(line)) && !said.out.contains("value-17"), "{said:?}");
}
