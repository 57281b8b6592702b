//! `check-history`, and histories that are recorded.

use crate::support::{Scratch, run, status_without_reader};

const SKEW: &str = r#"{"process":1,"begin":1,"end":4,"outcome":"committed","ops":[{"read":["x",null]},{"write":["y",1]}]}
{"process":2,"begin":2,"end":5,"outcome":"committed","ops":[{"read":["y",null]},{"write":["x",1]}]}
"#;

#[test]
fn an_anomaly_is_told_in_words_and_by_the_exit_status() {
    let scratch = Scratch::new();
    let file = scratch.file("history", SKEW);
    let file = file.to_str().unwrap();
    let said = run(["check-history", file]).fails(6, "not strict-serializable: G2-item 1");
    assert!(said.out.contains("T1 comes before T2: T1 read \"x\" = nothing, and T2 wrote 1"), "{said:?}");
    run(["check-history", file, "--level", "snapshot"]).ok();
    assert_eq!(status_without_reader(["check-history", file], false), 6);
    let said = run(["check-history", file, "--json", "--level", "serializable"]).fails(6, "G2-item");
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&report["anomalies"][0]["name"], &report["transactions"]), (&"G2-item".into(), &2.into()));
}

#[test]
fn what_is_no_history_is_an_error() {
    let scratch = Scratch::new();
    let file = scratch.file("history", format!("{SKEW}nonsense\n"));
    run(["check-history", file.to_str().unwrap()]).fails(1, "line 3 is not a transaction");
    run(["check-history", scratch.path("none").to_str().unwrap()]).fails(3, "there is no file");
    run(["check-history", file.to_str().unwrap(), "--level", "perfect"])
        .fails(2, "there is no level perfect");
}

#[test]
fn a_recorded_run_has_no_anomaly() {
    let scratch = Scratch::new();
    let (history, directory) = (scratch.path("history"), scratch.path("work"));
    let words = "histories --json --transactions 3000 --keys 64 --memory 64M --in-memory --dir";
    let paths = [directory.to_str().unwrap(), "--record", history.to_str().unwrap()];
    let report = run(words.split(' ').chain(paths)).ok().json();
    assert_eq!(report["problems"].as_array().unwrap().len(), 0, "{report}");
    let report = run(["check-history", "--json", history.to_str().unwrap()]).ok().json();
    assert!(report["transactions"].as_u64().unwrap() >= 3000, "{report}");
    assert!(report["dependencies"].as_u64().unwrap() > 3000, "{report}");
}
