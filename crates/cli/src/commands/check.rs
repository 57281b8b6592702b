//! `check`: verifies every checksum and structure, and changes nothing.

use crate::arguments::PathArguments;
use crate::failure::{Failure, Kind, Outcome};
use crate::output;
use crate::progress::Progress;
use crate::quantity::count;
use serde_json::json;
use std::time::Instant;

/// `deuteron check`.
pub fn run(arguments: &PathArguments, json: bool) -> Outcome {
    let begin = Instant::now();
    let path = arguments.database.display().to_string();
    let turning = Progress::turning("checking");
    let checked = match super::encrypted(&arguments.database, &arguments.key, false)? {
        None => deuteron::check(&arguments.database),
        Some(directory) => deuteron::check_in(directory),
    };
    drop(turning);
    let report = checked.map_err(|error| Failure::from(error).at(&path))?;
    let seconds = begin.elapsed().as_secs_f64();
    if json {
        output::json(&json!({
            "database": path,
            "tables": report.tables,
            "pages": report.pages,
            "records": report.records,
            "problems": report.problems,
            "seconds": seconds,
        }))?;
    } else {
        report.problems.iter().try_for_each(|problem| output::text_line(&format!("problem: {problem}")))?;
        output::table(&[
            ("tables", count(report.tables)),
            ("pages", count(report.pages)),
            ("records", count(report.records)),
            ("problems", count(report.problems.len() as u64)),
            ("time", format!("{seconds:.1} s")),
        ])?;
    }
    if report.problems.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Kind::Damage, format!("{path} has {} problems", count(report.problems.len() as u64)))
        .hint("restore the files from a copy; export what can still be read"))
}
