//! `import` and `export`.

use crate::support::{Said, Scratch, run, run_with_input, status_without_reader, words};
use std::io::Read;
use std::path::Path;

fn import(db: &Path, file: &Path, options: &[&str]) -> Said {
    let fixed = [Path::new("import"), db, Path::new("t"), file];
    run(fixed.into_iter().map(Path::as_os_str).chain(options.iter().map(AsRef::as_ref)))
}

fn export(db: &Path, options: &[&str]) -> Said {
    let fixed = [Path::new("export"), db, Path::new("t")];
    run(fixed.into_iter().map(Path::as_os_str).chain(options.iter().map(AsRef::as_ref)))
}

/// Records in key order with everything that formats stumble over.
fn awkward() -> Vec<(String, String)> {
    let mut records: Vec<(String, String)> = [
        ("comma", "a,b"),
        ("quote", "say \"so\""),
        ("line", "one\ntwo\r\nthree\n"),
        ("empty", ""),
        ("umlaut", "Käse \u{1f9c0}"),
        ("control", "\u{0}\u{7f}\t"),
        ("back\\slash", "\\n"),
        (" spaces ", "  "),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .to_vec();
    records.extend((0..2_500).map(|number| (format!("row-{number:05}"), format!("value {number}"))));
    records.sort();
    records
}

#[test]
fn both_formats_and_all_encodings_bring_back_what_they_took() {
    let scratch = Scratch::new();
    let first = scratch.path("first.db");
    let jsonl: String = awkward()
        .iter()
        .map(|(key, value)| serde_json::json!({ "value": value, "key": key }).to_string() + "\n")
        .collect();
    let said = import(&first, &scratch.file("in.jsonl", jsonl), &["--json"]).ok();
    assert_eq!(said.json()["records"], awkward().len());
    let reference = export(&first, &["--format", "jsonl", "--encoding", "hex"]).ok().out;
    assert_eq!(reference.lines().count(), awkward().len());
    for format in ["csv", "jsonl"] {
        for encoding in ["utf8", "hex", "base64"] {
            let file = scratch.path(&format!("{encoding}.{format}"));
            let options = [file.to_str().unwrap(), "--encoding", encoding];
            let said = export(&first, &options).ok();
            assert!(said.err.contains("exported 2 508 records"), "{said:?}");
            assert!(!scratch.path(&format!("{encoding}.{format}.partial")).exists());
            let copy = scratch.path(&format!("{encoding}-{format}.db"));
            import(&copy, &file, &["--encoding", encoding, "--batch", "100"]).ok();
            let again = export(&copy, &["--format", "jsonl", "--encoding", "hex"]).ok().out;
            assert_eq!(again, reference, "{format} {encoding}");
        }
    }
}

#[test]
fn records_stream_through_pipes() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let target = [db.as_os_str(), "t".as_ref()];
    let arguments = |command: &'static str, options: &'static [&'static str]| {
        let words = [command.as_ref()].into_iter().chain(target);
        words.chain(options.iter().map(AsRef::as_ref)).collect::<Vec<&std::ffi::OsStr>>()
    };
    let csv = "key,value\na,1\n\"b\nb\",\"2,2\"\n";
    run_with_input(arguments("import", &["--format", "csv"]), csv).ok();
    assert_eq!(run(arguments("export", &["-", "--format", "csv"])).ok().out, csv);
    run_with_input(arguments("import", &["--format", "csv", "--no-header"]), "c,3").ok();
    let said = run(arguments("export", &["--format", "csv", "--no-header"])).ok();
    assert_eq!(said.out, "a,1\n\"b\nb\",\"2,2\"\nc,3\n");
    run_with_input(arguments("import", &[]), csv).fails(2, "the format is not known");
}

#[test]
fn every_error_names_file_and_line_and_says_what_was_imported() {
    let scratch = Scratch::new();
    for (name, text, place, reason) in [
        ("fields.csv", "key,value\na,1\nb,2\nc\nd,4\n", "fields.csv:4: ", "1 fields"),
        ("quote.csv", "key,value\na,1\nb,2\nc\"c,3\n", "quote.csv:4: ", "a quote in a field"),
        ("open.csv", "key,value\na,1\nb,2\n\"c,3\n", "open.csv:4: ", "is not closed"),
        ("empty.csv", "key,value\na,1\nb,2\n,3\n", "empty.csv:4: ", "key of 0 bytes"),
        (
            "field.jsonl",
            "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\",\"value\":\"2\"}\n\n{\"key\":\"c\"}\n",
            "field.jsonl:4: ",
            "missing field `value`",
        ),
        (
            "text.jsonl",
            "{\"key\":\"a\",\"value\":\"1\"}\n\n{\"key\":\"b\",\"value\":\"2\"}\n{\"key\":\"c\",\n",
            "text.jsonl:4: ",
            "column 11: EOF",
        ),
    ] {
        let db = scratch.path(&format!("{name}.db"));
        let file = scratch.file(name, text);
        let said =
            import(&db, &file, &[]).fails(1, reason).fails(1, place).fails(1, "the 2 records before it");
        assert!(said.err.contains("imported 2 records"), "{said:?}");
        assert_eq!(words(&db, "scan DB t").ok().out, "a\t1\nb\t2\n", "{name}");
    }
    let db = scratch.path("none.db");
    import(&db, &scratch.file("none.csv", "a,1\n"), &[]).fails(1, "none.csv:1: the header is not key,value");
    import(&db, &scratch.path("absent.csv"), &[]).fails(1, "absent.csv");
}

#[test]
fn wrong_lines_are_passed_over_on_request_and_still_a_failure() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let long = "v".repeat(100);
    let text = format!("key,value\na,1\nwrong\n{},x\nb,{long}\n,y\nc,3\n", "k".repeat(100_000));
    let file = scratch.file("in.csv", text);
    let said = import(&db, &file, &["--keep-going", "--json"]);
    let said = said.fails(1, "in.csv:3: ").fails(1, "in.csv:4: key of 100000").fails(1, "in.csv:6: key of 0");
    assert_eq!((said.json()["records"].as_u64(), said.json()["bad_lines"].as_u64()), (Some(3), Some(3)));
    assert_eq!(words(&db, "scan DB t").ok().out, format!("a\t1\nb\t{long}\nc\t3\n"));
    let again = ["import".as_ref(), db.as_os_str(), "t".as_ref(), file.as_os_str()].into_iter();
    let again = again.chain(["--keep-going".as_ref(), "--json".as_ref()]);
    assert_eq!(status_without_reader(again, false), 1, "nobody reads the report");
}

/// It panicked at the first one, in the middle of the import.
#[test]
fn wrong_lines_are_passed_over_though_nobody_hears_of_them() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let text: String = (0..100).map(|number| format!("wrong\nkey-{number:02},{number}\n")).collect();
    let file = scratch.file("in.csv", text);
    let words = ["import".as_ref(), db.as_os_str(), "t".as_ref(), file.as_os_str()].into_iter();
    let words = words.chain(["--keep-going".as_ref(), "--no-header".as_ref()]);
    assert_eq!(status_without_reader(words, true), 1);
    assert_eq!(crate::support::words(&db, "scan DB t --count").ok().out, "100\n");
    let absent = scratch.path("absent.db");
    assert_eq!(
        status_without_reader(["get".as_ref(), absent.as_os_str(), "t".as_ref(), "k".as_ref()], true),
        3
    );
}

#[test]
fn a_failed_export_leaves_no_file() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    words(&db, "put DB t ff ff --encoding hex").ok();
    let file = scratch.path("out.csv");
    export(&db, &[file.to_str().unwrap()]).fails(1, "is not UTF-8; use --encoding");
    assert!(!file.exists() && !scratch.path("out.csv.partial").exists());
    // Before it has begun, not when all has been written.
    std::fs::create_dir(&file).unwrap();
    export(&db, &[file.to_str().unwrap()]).fails(1, "out.csv is a directory");
    words(&db, "export DB absent --format csv").fails(3, "there is no table absent");
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_a_reader_that_left_is_none() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let rows: String = (0..20_000).map(|number| format!("key-{number:05},{number}\n")).collect();
    import(&db, &scratch.file("in.csv", rows), &["--no-header"]).ok();
    let into = |stdout: std::process::Stdio| {
        let mut command = crate::support::command(["export".as_ref(), db.as_os_str()]);
        command.args(["t", "-", "--format", "csv"]).stdout(stdout).stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = into(full.into()).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("because: No space left"), "{output:?}");
    let mut reader = into(std::process::Stdio::piped());
    drop(reader.stdout.take());
    let output = reader.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
}

#[test]
fn a_pipe_with_a_name_whose_reader_left_has_not_taken_the_export() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let rows: String = (0..20_000).map(|number| format!("key-{number:05},{number}\n")).collect();
    import(&db, &scratch.file("in.csv", rows), &["--no-header"]).ok();
    let pipe = scratch.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for options in [&["--format", "csv"][..], &["--format", "csv", "--salvage"]] {
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::File::open(pipe).unwrap().read_exact(&mut [0]).unwrap()
        });
        let said = export(&db, &[&[pipe.to_str().unwrap()], options].concat());
        let said = said.fails(1, &format!("cannot write {}", pipe.display())).fails(1, "Broken pipe");
        assert!(!said.err.contains("exported"), "{said:?}");
        reader.join().unwrap();
    }
}

#[test]
fn sorted_input_is_loaded_whole_or_not_at_all() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let import = |file: &std::path::Path| {
        run(["import".as_ref(), db.as_os_str(), "t".as_ref(), file.as_os_str(), "--sorted".as_ref()])
    };
    let lines =
        |keys: &[u32]| -> String { keys.iter().map(|key| format!("{key:06},value {key}\n")).collect() };
    let unsorted = scratch.file("unsorted.csv", "key,value\n".to_owned() + &lines(&[1, 2, 2]));
    import(&unsorted)
        .fails(1, "unsorted.csv:4")
        .fails(1, "record 3 is out of order")
        .fails(1, "nothing was loaded");
    words(&db, "scan DB t --count").fails(3, "there is no table t");
    let sorted =
        scratch.file("sorted.csv", "key,value\n".to_owned() + &lines(&(0..5000).collect::<Vec<_>>()));
    import(&sorted).ok();
    assert_eq!(words(&db, "scan DB t --count").ok().out, "5000\n");
    assert_eq!(words(&db, "get DB t 004999").ok().out, "value 4999\n");
    import(&sorted).fails(1, "table t exists already");
    words(&db, "compact DB").ok();
    assert_eq!(words(&db, "scan DB t --count").ok().out, "5000\n");
    words(&db, "check DB").ok();
}

#[test]
fn an_export_to_a_pipe_goes_through_it_and_leaves_it() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    words(&db, "put DB t apple red").ok();
    let pipe = scratch.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read_to_string(pipe).unwrap()
    });
    export(&db, &[pipe.to_str().unwrap(), "--format", "csv"]).ok();
    assert_eq!(reader.join().unwrap(), "key,value\napple,red\n");
    use std::os::unix::fs::FileTypeExt;
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
    export(&db, &["/dev/null", "--format", "csv"]).ok();
    assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    // Somebody else is at it, or has been killed.
    let file = scratch.path("out.csv");
    scratch.file("out.csv.partial", "half");
    export(&db, &[file.to_str().unwrap()]).fails(1, "another export");
    assert!(!file.exists() && scratch.path("out.csv.partial").exists());
}
