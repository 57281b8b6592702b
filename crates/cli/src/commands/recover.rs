//! `recover`: recovers a database, or says what that would do.

use crate::arguments::RecoverArguments;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::progress::Progress;
use crate::quantity::{bytes, count};
use serde_json::json;
use std::time::Instant;

/// `deuteron recover`.
pub fn run(arguments: &RecoverArguments, json: bool) -> Outcome {
    let database = &arguments.database;
    let path = database.database.display().to_string();
    let turning = Progress::turning("reading the log");
    let plan = match super::encrypted(&database.database, &database.key, false)? {
        None => deuteron::recovery_plan(&database.database),
        Some(directory) => deuteron::recovery_plan_in(directory),
    };
    let plan = plan.map_err(|error| Failure::from(error).at(&path))?;
    drop(turning);
    let recovered_seconds = if arguments.dry_run {
        None
    } else {
        let turning = Progress::turning("recovering");
        let begin = Instant::now();
        super::with_database(database, false, |_| Ok(()))?;
        drop(turning);
        Some(begin.elapsed().as_secs_f64())
    };
    let log_bytes = plan.log_end.0.saturating_sub(plan.redo_start.0);
    if json {
        return output::json(&json!({
            "database": path,
            "dry_run": arguments.dry_run,
            "redo_start_lsn": plan.redo_start.0,
            "log_end_lsn": plan.log_end.0,
            "log_bytes": log_bytes,
            "buffers": plan.buffers,
            "records": plan.records,
            "transactions_committed": plan.transactions_committed,
            "operations_posted": plan.operations_posted,
            "operations_dropped": plan.operations_dropped,
            "plan_seconds": plan.duration.as_secs_f64(),
            "recovered_seconds": recovered_seconds,
        }));
    }
    let mut rows = vec![
        ("redo starts at", format!("LSN {}", plan.redo_start)),
        ("log ends at", format!("LSN {}", plan.log_end)),
        ("log to replay", bytes(log_bytes)),
        ("log buffers", count(plan.buffers)),
        ("records", count(plan.records)),
        ("committed transactions", count(plan.transactions_committed)),
        ("operations to post", count(plan.operations_posted)),
        ("operations to drop", count(plan.operations_dropped)),
        ("time it took to find out", format!("{:.3} s", plan.duration.as_secs_f64())),
    ];
    match recovered_seconds {
        Some(seconds) => rows.push(("recovered and closed in", format!("{seconds:.3} s"))),
        None => rows.push(("changed", "nothing (dry run)".into())),
    }
    output::table(&rows)
}
