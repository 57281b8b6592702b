//! The database's own threads run where they are told to. A process of its own, in which no other database is open.

use deuteron::{Error, Options, Processors};
use std::path::Path;

/// Flusher, waker, proxy, keeper and checkpointer.
const DUTIES: usize = 5;

/// Name and processors of each thread of the process that has the name of a duty.
fn duties() -> Vec<(String, Processors)> {
    let read = |thread: &Path| -> Option<(String, Processors)> {
        let name = std::fs::read_to_string(thread.join("comm")).ok()?.trim().to_owned();
        let status = std::fs::read_to_string(thread.join("status")).ok()?;
        let allowed =
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().parse().ok()?;
        name.starts_with("deuteron-").then_some((name, allowed))
    };
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
    threads.filter_map(|thread| read(&thread.path())).collect()
}

#[test]
fn the_background_runs_on_the_processors_that_it_was_given() {
    let scratch = tempfile::tempdir().unwrap();
    let all = Processors::available().unwrap();
    for processors in [None, Some(all.nth(all.numbers().len() - 1))] {
        let options = Options::new().memory(32 << 20);
        let options = processors.iter().cloned().fold(options, Options::pin_background);
        let db = options.open(scratch.path().join("a.db")).unwrap();
        // A thread takes its name when it first runs.
        let found = std::iter::repeat_with(duties).find(|found| found.len() == DUTIES).unwrap();
        let expected = processors.unwrap_or_else(|| all.clone());
        for (name, found) in found {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(Processors::available().unwrap(), all, "the caller runs where it ran");
        db.transact(|tx| tx.put(&db.table("t")?, b"k", b"v")).unwrap();
        db.close().unwrap();
        // They have ended; the system may take a moment to forget them.
        std::iter::repeat_with(duties).find(Vec::is_empty).unwrap();
    }
    let nowhere: Processors = "1023".parse().unwrap();
    let failed = Options::new().pin_background(nowhere).open(scratch.path().join("b.db"));
    assert!(matches!(failed, Err(Error::InvalidOption { option: "processors", .. })));
}
