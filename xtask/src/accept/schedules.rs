//! Schedules: the loom models, the assembled components under shuttle, and ThreadSanitizer.

use super::{Figure, Quick};
use crate::ci::{loom_commands, shuttle_commands};
use crate::sanitize::{Outcome, Sanitizer, sanitize};
use crate::workspace::{displayed, output, succeeds};

/// How many schedules each kind of scheduler runs of each scenario, of which there are three kinds, and two scenarios of each component. The data component's are longer.
const QUICK: [u64; 2] = [300, 3_000];
const FULL: [u64; 2] = [40_000, 300_000];

/// All loom models, shuttle's schedules, ThreadSanitizer's reports.
pub fn schedules(quick: Quick) -> Result<Figure, String> {
    for mut loom in loom_commands()? {
        eprintln!("+ {}", displayed(&loom));
        if !succeeds(loom.stdout(std::process::Stdio::null()))? {
            return Ok(Figure { figure: format!("{} failed", displayed(&loom)), ok: false });
        }
    }
    let mut schedules = 0;
    for mut shuttle in shuttle_commands(quick.pick(QUICK, FULL), None) {
        shuttle.args(["--", "--nocapture"]);
        eprintln!("+ {}", displayed(&shuttle));
        let said = output(&mut shuttle)?;
        // One line for each scenario.
        let lines: Vec<&str> =
            said.lines().filter_map(|line| Some(line.split_once("shuttle: ")?.1)).collect();
        if lines.is_empty() {
            return Err("shuttle said nothing".into());
        }
        for line in lines {
            eprintln!("  {line}");
            schedules += count(line).ok_or_else(|| format!("no schedules in {line}"))?;
        }
    }
    let sanitized = sanitize(Sanitizer::Thread)?;
    Ok(figure(schedules, &sanitized, quick))
}

/// Reads `N schedules, …`.
fn count(line: &str) -> Option<u64> {
    line.split_once(" schedules")?.0.parse().ok()
}

fn figure(schedules: u64, sanitized: &Outcome, quick: Quick) -> Figure {
    let (sanitized, clean) = match sanitized {
        Outcome::Skipped(why) => (format!("ThreadSanitizer skipped: {why}"), false),
        Outcome::Ran { programs, reports, failed } => (
            format!("ThreadSanitizer: {programs} test programs, {reports} reports"),
            *reports == 0 && failed.is_empty() && *programs > 0,
        ),
    };
    let enough = schedules >= quick.pick(1_000, 1_000_000);
    Figure { figure: format!("loom all, {schedules} schedules, {sanitized}"), ok: enough && clean }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read_from_what_the_tests_print() {
        assert_eq!(count("1500 schedules, 13729 commits, 0 failures"), Some(1500));
        assert_eq!(count("nothing"), None);
    }

    #[test]
    fn what_was_skipped_or_reported_is_short() {
        let ran = |reports| Outcome::Ran { programs: 8, reports, failed: Vec::new() };
        assert!(figure(1_000_000, &ran(0), Quick(false)).ok);
        assert!(!figure(1_000_000, &ran(1), Quick(false)).ok);
        assert!(!figure(999_999, &ran(0), Quick(false)).ok);
        assert!(!figure(1_000_000, &Outcome::Skipped("no nightly".into()), Quick(false)).ok);
    }

    #[test]
    fn the_full_size_is_a_million() {
        assert!(FULL.iter().sum::<u64>() * 3 >= 1_000_000);
    }
}
