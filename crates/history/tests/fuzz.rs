//! The reader of histories, and the checker behind it, under damaged histories.

use deuteron_fuzz::{Fuzz, Meter};
use deuteron_history::{Level, check};

#[global_allocator]
static METER: Meter = Meter;

#[test]
fn fuzz_histories() {
    let line = |process: u64, ops: &str, outcome: &str| {
        format!(
            "{{\"process\":{process},\"begin\":{process},\"end\":9,\"outcome\":\"{outcome}\",\"ops\":[{ops}]}}\n"
        )
    };
    let history = [
        line(1, r#"{"append":["l",1]},{"append":["l",2]},{"write":["x",1]},{"change":"c"}"#, "committed"),
        line(2, r#"{"read":["l",[1,2]]},{"append":["l",3]},{"write":["x",null]}"#, "committed"),
        line(
            3,
            r#"{"range":{"from":"a","to":"z","found":[["l",[1,2]],["x",1]]}},{"write":["x","\u0001t"]}"#,
            "committed",
        ),
        line(4, r#"{"read":["x",null]},{"write":["y",18]}"#, "unknown"),
        line(5, r#"{"read":["y",18]},{"read":["l",[]]}"#, "aborted"),
    ];
    let mut corpus: Vec<Vec<u8>> = history.iter().map(|line| line.clone().into_bytes()).collect();
    corpus.push(history.concat().into_bytes());
    // The source's buffer does not count; a key is there twice, an operation of a few bytes has its columns and edges.
    let fuzz = Fuzz { allowed_per_byte: 200, ..Fuzz::new("history", &corpus, 10_000) };
    fuzz.run(|_| {}, |bytes| check(bytes, Level::StrictSerializable).is_ok());
}
