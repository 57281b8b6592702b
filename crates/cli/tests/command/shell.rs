//! `shell`, fed from a pipe.

use crate::support::{Said, Scratch, run_with_input, words};

fn shell(db: &std::path::Path, script: &str) -> Said {
    run_with_input(["shell".as_ref(), db.as_os_str()], script)
}

#[test]
fn transactions_commit_and_abort_as_a_whole() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let said = shell(
        &db,
        "use accounts\nbegin\nput alice 100\nput bob 50\nget alice\ncommit\n\
         begin\nput alice 0\ndelete bob\nscan\nabort\nscan\ntables\n",
    )
    .ok();
    assert_eq!(said.out, "100\nalice\t0\nalice\t100\nbob\t50\naccounts\n");
    assert!(said.err.contains("table accounts is new"), "{said:?}");
    assert_eq!(words(&db, "scan DB accounts").ok().out, "alice\t100\nbob\t50\n");
}

#[test]
fn words_are_quoted_and_escaped() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let said = shell(
        &db,
        "use t\nput \"two words\" 'as \"it\" is'\nput \\x00\\xff tab\\there\nput e \"\"\n\
         get \"two words\"\nget \\x00\\xff\nget e\nscan\n",
    )
    .ok();
    assert_eq!(
        said.out,
        "\"as \\\"it\\\" is\"\ntab\\there\n\"\"\n\
         \\x00\\xff\ttab\\there\ne\t\"\"\n\"two words\"\t\"as \\\"it\\\" is\"\n"
    );
    assert_eq!(words(&db, "get DB t 00ff --encoding hex").ok().out, "7461620968657265\n");
}

#[test]
fn scans_take_bounds_and_options() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let said = shell(
        &db,
        "use t\nput a 1\nput ab 2\nput b 3\nscan a b\nscan reverse limit=1\nscan prefix=a reverse\nscan b\n",
    )
    .ok();
    assert_eq!(said.out, "a\t1\nab\t2\nb\t3\nab\t2\na\t1\nb\t3\n");
}

#[test]
fn a_script_stops_at_the_first_error_and_takes_back_what_is_open() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    shell(&db, "use t\nput a 1\nbegin\nput a 2\nfetch a\nput a 3\ncommit\n")
        .fails(2, "line 5: there is no command fetch");
    assert_eq!(words(&db, "get DB t a").ok().out, "1\n");
    shell(&db, "get a\n").fails(2, "line 1: no table is in use");
    shell(&db, "use t\nget absent\n").fails(3, "line 2: there is no key absent");
    shell(&db, "commit\n").fails(2, "no transaction is open");
    shell(&db, "begin\nbegin\n").fails(2, "a transaction is open already");
    shell(&db, "use t\nput a\n").fails(2, "put KEY VALUE");
    shell(&db, "use t\nput \"a 1\n").fails(2, "is not closed");
    shell(&db, "use t\nscan b a\n").fails(2, "the bounds cross");
}

#[test]
fn a_transaction_that_is_open_at_the_end_is_aborted_and_that_is_said() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let said = shell(&db, "use t\nput a 1\nbegin\nput a 2\n").ok();
    assert!(said.err.contains("aborted"), "{said:?}");
    assert_eq!(words(&db, "get DB t a").ok().out, "1\n");
    assert!(shell(&db, "help\nexit\nnonsense\n").ok().out.contains("scan [FROM [TO]]"));
}

#[test]
fn read_only_transactions_refuse_to_write() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    shell(&db, "use t\nput a 1\nbegin read-only\nget a\nput a 2\n").fails(1, "read-only");
    assert_eq!(words(&db, "get DB t a").ok().out, "1\n");
}

#[test]
fn a_database_in_use_is_told_apart() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let mut command = crate::support::command(["shell".as_ref(), db.as_os_str()]);
    let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = holder.stdin.take().unwrap();
    writeln!(input, "use t\nput a 1\nget a").unwrap();
    let mut answer = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    assert_eq!(answer, "1\n");
    words(&db, "get DB t a").fails(4, "in use").fails(4, "hint: ");
    drop(input);
    assert!(holder.wait().unwrap().success());
    assert_eq!(words(&db, "get DB t a").ok().out, "1\n");
}

#[test]
fn a_table_is_dropped_outside_of_transactions() {
    let scratch = Scratch::new();
    let db = scratch.path("a.db");
    let said = shell(&db, "use t\nput key value\nuse u\nput key value\ndrop t\ntables\n").ok();
    assert_eq!(said.out, "u\n");
    let said = shell(&db, "drop t\n");
    assert!(said.err.contains("there is no table t"), "{said:?}");
    let said = shell(&db, "begin\ndrop u\n");
    assert!(said.err.contains("a transaction is open"), "{said:?}");
    assert_eq!(shell(&db, "tables\n").ok().out, "u\n");
}
