//! `rotate-key`: what is encrypted with a former key is encrypted with the newest.

use super::encrypted;
use crate::arguments::PathArguments;
use crate::failure::{Failure, Kind, Outcome};
use crate::output;
use crate::quantity::count;
use serde_json::json;
use std::time::Instant;

/// `deuteron rotate-key`.
pub fn run(arguments: &PathArguments, json: bool) -> Outcome {
    let begin = Instant::now();
    let path = arguments.database.display().to_string();
    let Some(directory) = encrypted(&arguments.database, &arguments.key, false)? else {
        return Err(Failure::new(Kind::Usage, "no keys are given")
            .hint("give --key-file, with the new key in the first line and the former ones below"));
    };
    let files = directory.rotate().map_err(|error| {
        Failure::because(format!("cannot encrypt {path} anew"), &error).hint("it may be repeated")
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    if json {
        return output::json(&json!({ "database": path, "files": files, "seconds": seconds }));
    }
    output::table(&[("files encrypted anew", count(files)), ("time", format!("{seconds:.1} s"))])
}
