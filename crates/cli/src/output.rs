//! Reports on standard output: as JSON, or as aligned lines; notes on standard error.

use crate::failure::{Failure, Outcome};
use serde::Serialize;
use std::io::Write;

/// Prints a report as one JSON object, indented.
pub fn json(report: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(report)
        .map_err(|error| Failure::because("cannot write the report as JSON", &error))?;
    text_line(&text)
}

/// Prints one line.
pub fn text_line(line: &str) -> Outcome {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|error| Failure::output(&error))
}

/// Prints names and values, one a line, the values aligned.
pub fn table(rows: &[(impl AsRef<str>, String)]) -> Outcome {
    let width = rows.iter().map(|(name, _)| name.as_ref().chars().count()).max().unwrap_or(0);
    for (name, value) in rows {
        text_line(&format!("{:width$}  {value}", name.as_ref()))?;
    }
    Ok(())
}

/// Says a line on standard error. That nobody listens is no reason to stop.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
