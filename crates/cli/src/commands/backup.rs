//! `deuteron backup` and `deuteron restore`.

use super::with_database;
use crate::arguments::{BackupArguments, RestoreArguments};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::quantity::{bytes, count};
use deuteron::BackupReport;
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// `deuteron backup`.
pub fn backup(arguments: &BackupArguments, json: bool) -> Outcome {
    let begin = Instant::now();
    let report = with_database(&arguments.database, false, |db| {
        db.backup(&arguments.target).map_err(|error| at(&arguments.target, error))
    })?;
    say("backup", &arguments.target, &report, begin, json)
}

/// `deuteron restore`.
pub fn restore(arguments: &RestoreArguments, json: bool) -> Outcome {
    let begin = Instant::now();
    let report = match super::encrypted(&arguments.database, &arguments.key, true)? {
        None => deuteron::restore(&arguments.backup, &arguments.database),
        Some(directory) => deuteron::restore_into(&arguments.backup, directory.as_ref()),
    };
    let report = report.map_err(|error| {
        let is_damage = matches!(error, deuteron::Error::Corrupt { .. });
        let failure = at(&arguments.backup, error);
        if is_damage { failure.hint("the backup is damaged there: restore another one") } else { failure }
    })?;
    say("database", &arguments.database, &report, begin, json)
}

fn at(path: &Path, error: deuteron::Error) -> Failure {
    Failure::from(error).at(&path.display().to_string())
}

fn say(what: &str, path: &Path, report: &BackupReport, begin: Instant, json: bool) -> Outcome {
    let seconds = begin.elapsed().as_secs_f64();
    if json {
        return output::json(&json!({
            what: path.display().to_string(),
            "files": report.files,
            "bytes": report.bytes,
            "archive_bytes": report.archive_bytes,
            "seconds": seconds,
        }));
    }
    output::table(&[
        (what.to_owned(), path.display().to_string()),
        ("files".into(), count(report.files)),
        ("their bytes".into(), bytes(report.bytes)),
        ("the backup".into(), bytes(report.archive_bytes)),
        ("done in".into(), format!("{seconds:.2} s")),
    ])
}
