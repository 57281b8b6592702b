//! Corruptions: bytes of log and store changed in every way, none of which may go unnoticed and have an effect.

use super::{Figure, Quick};
use crate::workspace::{cargo, displayed, output};

/// Injects corruptions into small databases in memory, on two threads.
pub fn corruptions(quick: Quick) -> Result<Figure, String> {
    let count: u64 = quick.pick(20_000, 1_000_000);
    let mut test = cargo();
    test.env("DEUTERON_CORRUPTIONS", count.to_string());
    test.args(["test", "--quiet", "--locked", "--release", "--package", "deuteron", "--test", "corruptions"]);
    test.args(["--", "--nocapture"]);
    eprintln!("+ {}", displayed(&test));
    figure(count, &output(&mut test)?)
}

/// Reads the line `corruptions: N injected, …, N silent`.
fn figure(count: u64, said: &str) -> Result<Figure, String> {
    let counts = said.lines().find_map(|line| Some(line.split_once("corruptions: ")?.1));
    let counts = counts.ok_or("the test did not say what it did")?;
    let ok = counts.starts_with(&format!("{count} injected, ")) && counts.ends_with(" 0 silent");
    Ok(Figure { figure: counts.to_owned(), ok })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_test_says_is_read() {
        let said =
            "running 1 test\ncorruptions: 10 injected, 6 told, 3 without effect, 1 torn tails, 0 silent\n.\n";
        assert!(figure(10, said).unwrap().ok);
        assert!(!figure(11, said).unwrap().ok);
        assert!(!figure(10, &said.replace("0 silent", "10 silent")).unwrap().ok);
        assert!(figure(10, "nothing").is_err());
    }
}
