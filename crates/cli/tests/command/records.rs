//! `get`, `put`, `delete`, `scan` and `stat`, with their exit statuses.

use crate::support::{Scratch, run, words};

#[test]
fn what_is_put_is_got_by_the_next_process_until_it_is_deleted() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    words(&db, "put DB fruit apple red").ok();
    words(&db, "put DB fruit pear green").ok();
    assert_eq!(words(&db, "get DB fruit apple").ok().out, "red\n");
    assert_eq!(words(&db, "get DB fruit apple --raw").ok().out, "red");
    words(&db, "put DB fruit apple yellow").ok();
    assert_eq!(words(&db, "get DB fruit apple").ok().out, "yellow\n");
    words(&db, "delete DB fruit apple").ok();
    words(&db, "get DB fruit apple").fails(3, "has no key apple");
    words(&db, "delete DB fruit apple").fails(3, "has no key apple");
    assert_eq!(words(&db, "get DB fruit pear").ok().out, "green\n");
}

#[test]
fn what_is_not_there_has_a_status_of_its_own_and_is_not_created() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    for command in ["get DB t k", "delete DB t k", "scan DB t", "stat DB", "export DB t --format csv"] {
        words(&db, command).fails(3, "there is no database");
        assert!(!db.exists(), "{command}");
    }
    words(&db, "put DB t k v").ok();
    words(&db, "get DB other k").fails(3, "there is no table other").fails(3, "the tables: t");
    assert_eq!(words(&db, "stat DB --json").ok().json()["tables"][0]["name"], "t");
    assert_eq!(words(&db, "stat DB --json").ok().json()["tables"].as_array().unwrap().len(), 1);
}

#[test]
fn scans_take_bounds_prefixes_limits_and_both_directions() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let lines: String = ["a", "ab", "b", "ba", "c"].map(|key| format!("{key},{key}{key}\n")).concat();
    let file = scratch.file("in.csv", "key,value\n".to_owned() + &lines);
    run(["import".as_ref(), db.as_os_str(), "t".as_ref(), file.as_os_str()]).ok();
    let keys = |options: &str| -> String {
        let said = words(&db, &format!("scan DB t {options}")).ok();
        said.out.lines().map(|line| line.split('\t').next().unwrap().to_owned() + " ").collect()
    };
    assert_eq!(keys(""), "a ab b ba c ");
    assert_eq!(keys("--from ab --to c"), "ab b ba ");
    assert_eq!(keys("--from ab --to c --reverse"), "ba b ab ");
    assert_eq!(keys("--prefix a"), "a ab ");
    assert_eq!(keys("--limit 2"), "a ab ");
    assert_eq!(keys("--limit 2 --reverse"), "c ba ");
    assert_eq!(keys("--from b --to b"), "");
    assert_eq!(words(&db, "scan DB t --count").ok().out, "5\n");
    assert_eq!(words(&db, "scan DB t --count --json").ok().json()["records"], 5);
    assert_eq!(words(&db, "scan DB t --prefix ab --json").ok().json()["value"], "abab");
    words(&db, "scan DB t --from b --to a").fails(2, "the bounds cross");
}

#[test]
fn binary_records_go_in_and_out_in_every_encoding() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    words(&db, "put DB t 00ff0a 6101 --encoding hex").ok();
    assert_eq!(words(&db, "get DB t 00ff0a --encoding hex").ok().out, "6101\n");
    assert_eq!(words(&db, "get DB t AP8K --encoding base64").ok().out, "YQE=\n");
    assert_eq!(words(&db, "scan DB t").ok().out, "\\x00\\xff\\n\ta\\x01\n");
    assert_eq!(words(&db, "scan DB t --encoding base64").ok().out, "AP8K\tYQE=\n");
    words(&db, "scan DB t --json").fails(1, "--encoding hex");
    words(&db, "put DB t 0 00 --encoding hex").fails(2, "key: 1 hexadecimal digits");
    words(&db, "put DB t 00 zz --encoding hex").fails(2, "value: 'z' at place 1");
}

#[test]
fn errors_are_json_on_request() {
    let scratch = Scratch::new();
    let said = words(&scratch.path("a.db"), "get DB t k --json");
    let error: serde_json::Value = serde_json::from_str(&said.err).unwrap();
    assert_eq!(error["exit_status"], 3);
    assert!(error["error"].as_str().unwrap().contains("there is no database"));
    assert!(error["hint"].as_str().unwrap().contains("path"));
}

#[test]
fn wrong_arguments_have_status_2() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    for line in ["", "nonsense", "get DB t", "bench ycsb --skew triangular", "scan DB t --prefix a --from b"]
    {
        assert_eq!(words(&db, line).status, 2, "{line}");
    }
    words(&db, "put DB t k v --memory 1k").fails(2, "memory");
    words(&db, "put DB t k v --memory lots").fails(2, "a number of bytes");
    assert!(words(&db, "--help").ok().out.contains("Exit status"));
}

#[test]
fn keys_values_and_tables_over_the_limit_are_refused() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    words(&db, "put DB t k v").ok();
    let long = "k".repeat(100_000);
    words(&db, &format!("put DB t {long} v")).fails(1, "key of 100000 bytes");
    words(&db, &format!("put DB {} k v", &long[..1000])).fails(1, "table name of 1000 bytes");
    run(["put".as_ref(), db.as_os_str(), "t".as_ref(), "".as_ref(), "v".as_ref()]).fails(1, "key of 0 bytes");
    assert_eq!(words(&db, "scan DB t --count").ok().out, "1\n");
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let scratch = Scratch::new();
    let db = scratch.path("home");
    std::fs::create_dir(&db).unwrap();
    std::fs::write(db.join("letter.txt"), "dear").unwrap();
    words(&db, "put DB t k v").fails(1, "is not a database");
    assert_eq!(std::fs::read_to_string(db.join("letter.txt")).unwrap(), "dear");
}

#[test]
fn statistics_are_json_and_text() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    words(&db, "put DB t k v").ok();
    let json = words(&db, "stat DB --records --json").ok().json();
    assert_eq!(json["tables"][0]["records"], 1);
    for name in ["memory_bytes", "disk_bytes", "files_bytes", "commits", "bytes_written_log"] {
        assert!(json[name].is_u64(), "{name}: {json}");
    }
    assert!(json["counters"].is_object());
    let writes = &json["distributions"]["log.write_nanoseconds"];
    assert!(writes["count"].as_u64() > Some(0), "{json}");
    assert_eq!(writes["count"], json["counters"]["log.flushes"]);
    let shown = ["p50", "p90", "p99", "max"].map(|name| writes[name].as_u64().expect("nanoseconds"));
    assert!(shown[0] > 0 && shown.is_sorted(), "{shown:?}");
    let text = words(&db, "stat DB --records").ok().out;
    assert!(text.contains("1 records") && text.contains("memory budget"), "{text}");
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).expect("a line").to_owned();
    let writes = line("log.write_nanoseconds");
    assert!(
        [": p50 ", ", p90 ", ", p99 ", ", max ", "s"].iter().all(|part| writes.contains(part)),
        "{writes}"
    );
    assert!(line("dc.cleaned_live_percent").ends_with(" 0"), "nothing was cleaned");
}

#[test]
fn a_sound_database_passes_its_check_and_a_recovery_is_foretold() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    words(&db, "check DB").fails(3, "there is no database");
    words(&db, "recover DB --dry-run").fails(3, "there is no database");
    words(&db, "put DB t k v").ok();
    let report = words(&db, "check DB --json").ok().json();
    assert_eq!(report["problems"].as_array().unwrap().len(), 0, "{report}");
    assert!(words(&db, "check DB").ok().out.contains("problems"));
    let plan = words(&db, "recover DB --dry-run --json").ok().json();
    assert_eq!(plan["operations_posted"], 0, "it was closed: {plan}");
    assert!(plan["recovered_seconds"].is_null());
    assert!(words(&db, "recover DB --dry-run").ok().out.contains("nothing (dry run)"));
    assert!(words(&db, "recover DB --json").ok().json()["recovered_seconds"].is_f64());
    assert_eq!(words(&db, "get DB t k").ok().out, "v\n");
}

#[test]
fn damage_is_found_by_the_check_and_has_its_status() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let rows: String = (0..5_000).map(|number| format!("key-{number:05},{number}\n")).collect();
    let file = scratch.file("in.csv", "key,value\n".to_owned() + &rows);
    run(["import".as_ref(), db.as_os_str(), "t".as_ref(), file.as_os_str()]).ok();
    // Every file is damaged in turn, in the middle of what it holds. Some of that is free space or a log that is
    // needed no more; but what passes the check must be whole. The check itself changes nothing.
    let mut found = 0;
    for path in files(&db) {
        let sound = std::fs::read(&path).unwrap();
        let Some(last) = sound.iter().rposition(|&byte| byte != 0) else { continue };
        let mut damaged = sound.clone();
        damaged[last / 2] ^= 0x10;
        std::fs::write(&path, &damaged).unwrap();
        let said = words(&db, "check DB");
        assert!(std::fs::read(&path).unwrap() == damaged, "the check changed {}", path.display());
        assert!([0, 1, 5].contains(&said.status), "{said:?}");
        found += u32::from(said.status != 0);
        if said.status == 0 {
            let copy = scratch.path("copy.db");
            std::fs::create_dir(&copy).unwrap();
            for file in files(&db) {
                std::fs::copy(&file, copy.join(file.file_name().unwrap())).unwrap();
            }
            assert_eq!(words(&copy, "scan DB t --count").ok().out, "5000\n", "{}", path.display());
            std::fs::remove_dir_all(&copy).unwrap();
        }
        std::fs::write(&path, sound).unwrap();
    }
    assert!(found > 0, "no damage was found");
    words(&db, "check DB").ok();
}

fn files(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
