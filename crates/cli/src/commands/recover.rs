//! `recover`: recovery, or what one would do.
use crate::arguments::RecoverArguments;
use crate::failure::Outcome;
pub fn run(_a: &RecoverArguments, _json: bool) -> Outcome {
    Ok(())
}
