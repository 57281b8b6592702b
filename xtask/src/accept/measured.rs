//! Runs of `deuteron bench`, and medians of them.

use super::Quick;
use crate::workspace::{displayed, output, release_binary, scratch};
use serde_json::Value;
use std::process::Command;

/// What a run has reported.
pub struct Report(Value);

impl Report {
    /// Of what a command has printed.
    pub fn read(text: &str) -> Result<Report, String> {
        let report = serde_json::from_str(text);
        report.map(Report).map_err(|error| format!("the report is not JSON: {error}"))
    }

    /// The reports that it is a list of.
    pub fn rows(&self) -> Result<Vec<Report>, String> {
        let rows = self.0.as_array().ok_or("the report is no list")?;
        Ok(rows.iter().cloned().map(Report).collect())
    }

    /// A text of it.
    pub fn text(&self, name: &str) -> Result<String, String> {
        let found = self.0.get(name).and_then(Value::as_str);
        found.map(str::to_owned).ok_or_else(|| format!("the report has no text {name}"))
    }

    /// A number of it, by its path in dots.
    pub fn number(&self, path: &str) -> Result<f64, String> {
        let found = path.split('.').try_fold(&self.0, |value, name| value.get(name));
        found.and_then(Value::as_f64).ok_or_else(|| format!("the report has no number {path}"))
    }
}

/// One run of `deuteron bench`, in a directory that goes afterwards.
pub fn bench(arguments: &[&str]) -> Result<Report, String> {
    let directory = scratch()?;
    let mut bench = Command::new(release_binary()?);
    // Databases without a directory of their own go where temporary files go.
    bench.env("TMPDIR", directory.path()).args(["bench", "--json"]).args(arguments);
    eprintln!("+ {}", displayed(&bench));
    Report::read(&output(&mut bench)?)
}

/// One run of a workload, delayed, for so many seconds.
pub fn ycsb(seconds: &str, arguments: &[&str]) -> Result<Report, String> {
    bench(&[&["ycsb", "--durability", "delayed", "--seconds", seconds][..], arguments].concat())
}

/// The paper's records and transactions, in the size of the bars.
pub fn papers_records(quick: Quick) -> [&'static str; 6] {
    ["--records", quick.pick("500000", "5000000"), "--ops-per-txn", "4", "--skew", "80-20"]
}

/// The medians of several ways to do something, five times each, in turns: what slows the machine down for a while slows all down.
/// Once each where it is to be quick.
pub fn in_turns<W: Copy, const N: usize>(
    quick: Quick,
    ways: [W; N],
    mut run: impl FnMut(W) -> Result<f64, String>,
) -> Result<[f64; N], String> {
    let mut rates = [const { Vec::new() }; N];
    for _ in 0..quick.pick(1, 5) {
        for (way, rates) in ways.iter().zip(&mut rates) {
            rates.push(run(*way)?);
        }
    }
    Ok(rates.map(median))
}

/// The number in the middle.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_by_its_path() {
        let report = Report(serde_json::json!({ "read_us": { "p50": 0.25 }, "commits": 3 }));
        assert_eq!((report.number("read_us.p50"), report.number("commits")), (Ok(0.25), Ok(3.0)));
        assert!(report.number("read_us.p99").unwrap_err().contains("read_us.p99"));
    }

    #[test]
    fn a_list_is_read_row_by_row() {
        let report = Report(serde_json::json!([{ "mix": "paper", "threads": 3 }]));
        let rows = report.rows().unwrap();
        assert_eq!((rows[0].text("mix"), rows[0].number("threads")), (Ok("paper".into()), Ok(3.0)));
        assert!(rows[0].rows().is_err() && rows[0].text("threads").is_err());
    }

    #[test]
    fn ways_are_run_in_turns_and_the_middle_counts() {
        let mut runs = 0.0;
        let medians = in_turns(Quick(false), [1.0, 10.0], |way| {
            runs += 1.0;
            Ok(way * runs)
        });
        assert_eq!(medians, Ok([5.0, 60.0]));
        assert_eq!(in_turns(Quick(true), [1.0], Ok), Ok([1.0]));
        assert!(in_turns(Quick(true), [()], |()| Err("broken".into())).is_err());
    }
}
