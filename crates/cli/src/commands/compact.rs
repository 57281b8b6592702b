//! `deuteron compact`.

use super::with_database;
use crate::arguments::DatabaseArguments;
use crate::failure::Outcome;
use crate::output;
use crate::quantity::bytes;
use serde_json::json;
use std::time::Instant;

/// Compacts a database, and says what it has brought.
pub fn run(arguments: &DatabaseArguments, json: bool) -> Outcome {
    let begin = Instant::now();
    let compaction = with_database(arguments, false, |db| Ok(db.compact()?))?;
    let seconds = begin.elapsed().as_secs_f64();
    if json {
        return output::json(&json!({
            "before_bytes": compaction.before_bytes,
            "after_bytes": compaction.after_bytes,
            "seconds": seconds,
        }));
    }
    output::table(&[
        ("log and store before", bytes(compaction.before_bytes)),
        ("after", bytes(compaction.after_bytes)),
        ("done in", format!("{seconds:.2} s")),
    ])
}
