//! `check`: verifies every checksum and structure, or only what an opening needs, and changes nothing.

use crate::arguments::CheckArguments;
use crate::failure::{Failure, Kind, Outcome};
use crate::output;
use crate::progress::Progress;
use crate::quantity::count;
use deuteron::CheckReport;
use serde_json::json;
use std::time::Instant;

/// `deuteron check`.
pub fn run(CheckArguments { path: arguments, fast }: &CheckArguments, json: bool) -> Outcome {
    let begin = Instant::now();
    let path = arguments.database.display().to_string();
    let turning = Progress::turning("checking");
    let checked = match (super::encrypted(&arguments.database, &arguments.key, false)?, fast) {
        (None, false) => deuteron::check(&arguments.database),
        (None, true) => deuteron::check_fast(&arguments.database),
        (Some(directory), false) => deuteron::check_in(directory),
        (Some(directory), true) => deuteron::check_fast_in(directory),
    };
    drop(turning);
    let report = checked.map_err(|error| Failure::from(error).at(&path))?;
    let verdict = match report.problems.len() as u64 {
        0 => Ok(()),
        problems => Err(Failure::new(Kind::Damage, format!("{path} has {} problems", count(problems)))
            .hint("restore the files from a copy; `deuteron salvage` says what can still be read")),
    };
    verdict.and(print(&report, &path, *fast, begin.elapsed().as_secs_f64(), json))
}

fn print(report: &CheckReport, path: &str, fast: bool, seconds: f64, json: bool) -> Outcome {
    if json {
        return output::json(&json!({
            "database": path,
            "fast": fast,
            "tables": report.tables,
            "pages": report.pages,
            "records": report.records,
            "problems": report.problems,
            "seconds": seconds,
        }));
    }
    report.problems.iter().try_for_each(|problem| output::text_line(&format!("problem: {problem}")))?;
    let read = |number| if fast { "not read".to_owned() } else { count(number) };
    output::table(&[
        ("tables", count(report.tables)),
        ("pages", read(report.pages)),
        ("records", read(report.records)),
        ("problems", count(report.problems.len() as u64)),
        ("time", format!("{seconds:.1} s")),
    ])
}
