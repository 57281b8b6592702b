//! `--key-file` and `rotate-key`.

use crate::support::{Said, Scratch, run};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn key_file(scratch: &Scratch, name: &str, digits: &[&str]) -> PathBuf {
    let text: String = digits.iter().map(|digit| format!("{}\n", digit.repeat(64))).collect();
    let path = scratch.file(name, text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// A command with the database and a key file.
fn with_key(line: &str, db: &Path, key: &Path) -> Said {
    let words = line.split_whitespace().map(|word| if word == "DB" { db.as_os_str() } else { word.as_ref() });
    run(words.chain(["--key-file".as_ref(), key.as_os_str()]))
}

#[test]
fn an_encrypted_database_shows_nothing_and_its_key_can_be_changed() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let (old, new) = (key_file(&scratch, "old", &["a"]), key_file(&scratch, "new", &["b"]));
    with_key("put DB fruit pineapple-of-the-key yellow-of-the-value", &db, &old).ok();
    for entry in std::fs::read_dir(&db).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for secret in ["pineapple-of-the-key", "yellow-of-the-value", "fruit", "DEUTERON"] {
            assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "{secret}");
        }
    }
    let get = "get DB fruit pineapple-of-the-key";
    assert_eq!(with_key(get, &db, &old).ok().out, "yellow-of-the-value\n");
    with_key(get, &db, &new).fails(1, "encrypted with another key");
    with_key("check DB", &db, &old).ok();
    with_key("recover --dry-run DB", &db, &old).ok();
    assert!(with_key("salvage DB", &db, &old).ok().out.contains("table fruit"));
    let without = run(["get".as_ref(), db.as_os_str(), "fruit".as_ref(), "x".as_ref()]);
    without.fails(1, &format!("the files of {} are encrypted", db.display())).fails(1, "--key-file");

    let both = key_file(&scratch, "both", &["b", "a"]);
    // While somebody else has it open, it is to be tried again.
    let lock = std::fs::File::open(db.join("lock")).unwrap();
    lock.lock().unwrap();
    with_key("rotate-key DB", &db, &both).fails(4, "in use");
    drop(lock);
    // A unit in the middle of a segment that is not what was written.
    let names = std::fs::read_dir(&db).unwrap().map(|entry| entry.unwrap().path());
    let segment = names.filter(|path| path.extension().is_some_and(|end| end == "seg")).max().unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    let unit = bytes.len() / 4608 / 2 * 4608;
    bytes[unit] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let said = with_key("rotate-key DB --json", &db, &both).ok().json();
    let name = segment.file_name().unwrap().to_str().unwrap();
    assert_eq!(said["damaged_blocks"], serde_json::json!({ name: 1 }), "{said}");
    assert_eq!(with_key(get, &db, &new).ok().out, "yellow-of-the-value\n");
    with_key(get, &db, &old).fails(1, "encrypted with another key");
    with_key("check DB", &db, &new).ok();

    let open = scratch.file("open", "a".repeat(64));
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    with_key(get, &db, &open).fails(1, "cannot take the keys");
    let plain = scratch.path("plain.db");
    run(["put".as_ref(), plain.as_os_str(), "t".as_ref(), "k".as_ref(), "v".as_ref()]).ok();
    with_key("get DB t k", &plain, &new).fails(1, "not encrypted");
}

#[test]
fn what_damaged_headers_leave_is_salvaged() {
    let scratch = Scratch::new();
    let (db, key) = (scratch.path("a.db"), key_file(&scratch, "key", &["a"]));
    for table in ["one", "two", "three"] {
        with_key(&format!("put DB {table} key-of-{table} value"), &db, &key).ok();
    }
    let damaged = |file: &Path| {
        let mut bytes = std::fs::read(file).unwrap();
        bytes[..72].fill(0xff);
        std::fs::write(file, bytes).unwrap();
    };
    // Neither a spare nor a stranger is in the way of anything.
    std::fs::write(db.join("store-00000000000000ff.spare"), "nonsense").unwrap();
    std::fs::write(db.join("core"), "dumped").unwrap();
    with_key("check DB", &db, &key).ok();
    with_key("get DB two key-of-two", &db, &key).ok();

    let names =
        std::fs::read_dir(&db).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let needless = names.filter(|name| name.starts_with("superblock") || name.starts_with("store-image"));
    let needless: Vec<_> = needless.collect();
    needless.iter().for_each(|name| damaged(&db.join(name)));
    let said = with_key("get DB two key-of-two", &db, &key);
    assert!(said.status != 0 && said.err.contains("the header that names its key is damaged"), "{said:?}");
    let said = with_key("salvage DB --json", &db, &key).fails(5, "could not be read");
    let report = said.json();
    assert_eq!(report["records"], 3, "{report}");
    let losses = report["losses"].as_array().unwrap();
    for name in needless {
        assert!(losses.iter().any(|loss| loss["file"] == name.as_str()), "{name}: {report}");
    }
}

#[test]
fn a_backup_is_restored_encrypted_with_the_keys_that_are_given() {
    let scratch = Scratch::new();
    let (db, again, backup) = (scratch.path("a.db"), scratch.path("again.db"), scratch.path("a.backup"));
    let (old, new) = (key_file(&scratch, "old", &["a"]), key_file(&scratch, "new", &["b"]));
    with_key("put DB fruit apple red", &db, &old).ok();
    run(["backup".as_ref(), db.as_os_str(), backup.as_os_str(), "--key-file".as_ref(), old.as_os_str()]).ok();
    let restore =
        ["restore".as_ref(), backup.as_os_str(), again.as_os_str(), "--key-file".as_ref(), new.as_os_str()];
    run(restore).ok();
    assert_eq!(with_key("get DB fruit apple", &again, &new).ok().out, "red\n");
    with_key("get DB fruit apple", &again, &old).fails(1, "encrypted with another key");
    run(restore).fails(1, "exists already");
}
