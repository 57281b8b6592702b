//! Sweeps: tests that stop the machine at one point after the other, or run one seed after the other, and say how many there
//! were. `DEUTERON_EFFORT` makes them larger.

use super::Figure;
use crate::workspace::{cargo, displayed, output};

/// Runs tests (`targets`, words of cargo's) of packages in release mode, each `effort` times as large as usual, and adds up
/// what they have said.
pub fn sweep(effort: u64, packages: &[&str], targets: &[&str]) -> Result<Figure, String> {
    sweep_of(&[], effort, packages, targets)
}

/// The same of the tests whose names have one of `filters` in them.
pub fn sweep_of(
    filters: &[&str],
    effort: u64,
    packages: &[&str],
    targets: &[&str],
) -> Result<Figure, String> {
    let mut test = cargo();
    test.env("DEUTERON_EFFORT", effort.to_string());
    test.args(["test", "--quiet", "--locked", "--release"]);
    test.args(packages.iter().flat_map(|package| ["--package", package]));
    test.args(targets.iter().flat_map(|target| ["--test", target]));
    test.args(["--", "--nocapture"]);
    test.args(filters);
    // Databases come and go by the thousand: their memory is kept for the next.
    test.env("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824");
    eprintln!("+ {}", displayed(&test));
    figure(&output(&mut test)?)
}

/// Adds up the lines `WHAT: N points, N recoveries, N failures` and `WHAT: N seeds, N failures`.
pub fn figure(said: &str) -> Result<Figure, String> {
    let (mut sweeps, mut total, mut failures, mut ok) = (Vec::new(), [0; 3], 0, true);
    for line in said.lines() {
        let Some((what, counts)) = line.trim_start_matches('.').split_once(": ") else { continue };
        let counts: Vec<(u64, &str)> = counts
            .split(", ")
            .filter_map(|count| count.split_once(' '))
            .filter_map(|(count, of)| Some((count.parse().ok()?, of)))
            .collect();
        let (first, failed) = match counts[..] {
            [(points, "points"), (recoveries, "recoveries"), (failed, "failures")] => {
                total[0] += points;
                total[1] += recoveries;
                sweeps.push(format!("{what} {points} points, {recoveries} recoveries"));
                (points, failed)
            }
            [(seeds, "seeds"), (failed, "failures")] => {
                total[2] += seeds;
                sweeps.push(format!("{what} {seeds} seeds"));
                (seeds, failed)
            }
            _ => continue,
        };
        ok &= first > 0 && failed == 0;
        failures += failed;
    }
    if sweeps.is_empty() {
        return Err("the test did not say how many points it swept".into());
    }
    let [points, recoveries, seeds] = total;
    let mut figure = format!("{}; {failures} failures", sweeps.join("; "));
    if sweeps.len() > 4 {
        figure =
            format!("{points} points, {recoveries} recoveries, {seeds} seeds, {failures} failures: {figure}");
    }
    Ok(Figure { figure, ok })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sweeps_lines_add_up() {
        let said = "running 2 tests\ncrash sweep: 120 points, 480 recoveries, 0 failures\n\
                    .full disk: 30 points, 30 recoveries, 1 failures\ntest result: ok. 2 passed; 0 failed\n";
        let expected =
            "crash sweep 120 points, 480 recoveries; full disk 30 points, 30 recoveries; 1 failures";
        assert_eq!(figure(said).unwrap(), Figure { figure: expected.into(), ok: false });
        assert!(figure("crash sweep: 1 points, 1 recoveries, 0 failures").unwrap().ok);
        assert!(figure("model: 10 seeds, 0 failures").unwrap().ok);
        assert!(figure("running 0 tests").is_err());
        assert!(!figure("crash sweep: 0 points, 0 recoveries, 0 failures").unwrap().ok);
        let many =
            "a: 1 points, 2 recoveries, 0 failures\n".repeat(3) + &"b: 3 seeds, 0 failures\n".repeat(3);
        let figure = figure(&many).unwrap();
        assert!(figure.ok && figure.figure.starts_with("3 points, 6 recoveries, 9 seeds, 0 failures: a 1"));
    }
}
