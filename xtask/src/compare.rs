//! Two commits beside each other: the instructions of their hot paths.

use crate::regressions::{HOT_PATHS, build, count, is_valgrind_here};
use crate::workspace::{commit, displayed, git, output, target_directory};
use std::path::{Path, PathBuf};

/// Counts the hot paths of two commits, each by its own examples, and prints a line for each path.
pub fn run(revisions: [&str; 2]) -> Result<bool, String> {
    if !is_valgrind_here() {
        return Err("valgrind is not installed, which counts the instructions".into());
    }
    // Names first: a wrong one shall not be found out after the first build.
    let commits = [commit(revisions[0])?, commit(revisions[1])?];
    let directory = target_directory().join("compare");
    let checkout = Checkout::new(directory.join("checkout"), &commits[0])?;
    let mut counts = Vec::new();
    for (revision, commit) in revisions.iter().zip(&commits) {
        checkout.switch(commit)?;
        build(&checkout.path, &directory.join("target"))
            .map_err(|reason| format!("{revision} has nothing to count: {reason}"))?;
        // A path that a commit does not know yet has no count there.
        counts.push(
            HOT_PATHS.iter().map(|path| count(&directory.join("target"), path).ok()).collect::<Vec<_>>(),
        );
    }
    println!("{:16} {:>12} {:>12}", "instructions", shortened(revisions[0]), shortened(revisions[1]));
    for ((path, old), new) in HOT_PATHS.iter().zip(&counts[0]).zip(&counts[1]) {
        println!("{}", line(path.name, *old, *new));
    }
    Ok(true)
}

fn shortened(revision: &str) -> String {
    revision.chars().take(12).collect()
}

fn line(name: &str, old: Option<f64>, new: Option<f64>) -> String {
    let number = |count: Option<f64>| count.map_or("none".into(), |count| format!("{count:.1}"));
    let change =
        old.zip(new).map_or(String::new(), |(old, new)| format!("{:+7.1} %", 100.0 * (new / old - 1.0)));
    format!("{name:16} {:>12} {:>12} {change}", number(old), number(new)).trim_end().into()
}

/// A working tree beside ours; goes when dropped.
struct Checkout {
    path: PathBuf,
}

impl Checkout {
    fn new(path: PathBuf, commit: &str) -> Result<Self, String> {
        // One that was left behind by a run that was stopped.
        remove(&path);
        let mut add = git();
        add.args(["worktree", "add", "--quiet", "--force", "--detach"]).arg(&path).arg(commit);
        eprintln!("+ {}", displayed(&add));
        output(&mut add)?;
        Ok(Self { path })
    }

    fn switch(&self, commit: &str) -> Result<(), String> {
        output(git().current_dir(&self.path).args(["checkout", "--quiet", "--detach", commit])).map(drop)
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    if path.exists() {
        // What cannot be removed is in the target directory, and is removed with that.
        let _ = git().args(["worktree", "remove", "--force"]).arg(path).output();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_both_counts_and_the_change() {
        assert_eq!(
            line("update", Some(1000.0), Some(900.0)),
            "update                 1000.0        900.0   -10.0 %"
        );
        assert_eq!(line("update", None, Some(900.0)), "update                   none        900.0");
    }

    #[test]
    fn what_is_no_commit_is_an_error() {
        assert!(run(["no-such-revision", "HEAD"]).is_err());
    }
}
