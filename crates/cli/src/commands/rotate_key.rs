//! `rotate-key`: what is encrypted with a former key is encrypted with the newest.

use super::encrypted;
use crate::arguments::PathArguments;
use crate::failure::{Failure, Kind, Outcome};
use crate::output;
use crate::quantity::count;
use deuteron::Error;
use deuteron_encryption::{EncryptionError, Rotation};
use serde_json::{Map, Value, json};
use std::time::Instant;

/// `deuteron rotate-key`.
pub fn run(arguments: &PathArguments, json: bool) -> Outcome {
    let begin = Instant::now();
    let path = arguments.database.display().to_string();
    let Some(directory) = encrypted(&arguments.database, &arguments.key, false)? else {
        return Err(Failure::new(Kind::Usage, "no keys are given")
            .hint("give --key-file, with the new key in the first line and the former ones below"));
    };
    let Rotation { files, damaged_blocks } = directory.rotate().map_err(|error| match error {
        EncryptionError::Device(error) if error.is_locked() => {
            Failure::from(Error::InUse { path: path.clone() })
        }
        error => Failure::because(format!("cannot encrypt {path} anew"), &error).hint("it may be repeated"),
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    if json {
        let damaged: Map<String, Value> =
            damaged_blocks.into_iter().map(|(file, blocks)| (file, blocks.into())).collect();
        return output::json(
            &json!({ "database": path, "files": files, "damaged_blocks": damaged, "seconds": seconds }),
        );
    }
    let mut rows = vec![("files encrypted anew".to_owned(), count(files))];
    rows.extend(
        damaged_blocks.into_iter().map(|(file, blocks)| (format!("damaged blocks in {file}"), count(blocks))),
    );
    rows.push(("time".to_owned(), format!("{seconds:.1} s")));
    output::table(&rows)
}
