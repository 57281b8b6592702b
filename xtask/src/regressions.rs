//! Instructions of the hot paths: counted by callgrind, kept in the repository, compared with a tolerance.
//!
//! A count is of the machine's instructions in user mode. It says nothing of cache misses, but it is the same on a busy machine,
//! so that a change by a few per cent shows. Examples of the crates run the paths; only what their function `measured` does
//! is counted. Where valgrind is not installed nothing is counted, and nothing fails.

use crate::workspace::{cargo, displayed, output, root, succeeds, target_directory};
use std::path::Path;
use std::process::Command;

/// A path that each operation takes, and how often it is run to be counted.
pub struct HotPath {
    /// What it is called in the file, and by the example.
    pub name: &'static str,
    example: &'static str,
    operations: u64,
}

/// What is counted.
pub const HOT_PATHS: &[HotPath] = &[
    HotPath { name: "read-hit", example: "hot_paths_tc", operations: 20_000 },
    HotPath { name: "update", example: "hot_paths_tc", operations: 20_000 },
    HotPath { name: "commit", example: "hot_paths_tc", operations: 5_000 },
    HotPath { name: "bwtree-lookup", example: "hot_paths_bwtree", operations: 20_000 },
    HotPath { name: "bwtree-upsert", example: "hot_paths_bwtree", operations: 20_000 },
    HotPath { name: "log-append", example: "hot_paths_log", operations: 20_000 },
    HotPath { name: "scan", example: "hot_paths_deuteron", operations: 1_000 },
    HotPath { name: "scan-written", example: "hot_paths_deuteron", operations: 1_000 },
    HotPath { name: "scan-deleted", example: "hot_paths_deuteron", operations: 1_000 },
    HotPath { name: "scan-tombstones", example: "hot_paths_deuteron", operations: 1_000 },
];

/// The packages and the examples that run the paths.
const DRIVERS: [(&str, &str); 4] = [
    ("deuteron-tc", "hot_paths_tc"),
    ("deuteron-bwtree", "hot_paths_bwtree"),
    ("deuteron-log", "hot_paths_log"),
    ("deuteron", "hot_paths_deuteron"),
];

/// The counts may differ by this share.
const TOLERANCE: f64 = 0.03;

/// Where they are kept, from the root.
const KEPT: &str = "xtask/instructions.txt";

/// Counts, and compares with what is kept, or writes that. Returns whether nothing is worse than it was.
pub fn run(write: bool) -> Result<bool, String> {
    if !is_valgrind_here() {
        println!("no valgrind here: instructions are not counted");
        return Ok(true);
    }
    build(root(), &target_directory())?;
    let mut counts = Vec::new();
    for path in HOT_PATHS {
        counts.push((path.name.to_owned(), count(&target_directory(), path)?));
    }
    let counts = Kept { compiler: compiler()?, counts };
    let file = root().join(KEPT);
    if write {
        std::fs::write(&file, counts.to_text())
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        print!("{}", counts.to_text());
        return Ok(true);
    }
    let text = std::fs::read_to_string(&file)
        .map_err(|error| format!("cannot read {}: {error}; --write writes it", file.display()))?;
    let comparison = Kept::parse(&text)?.compare(&counts);
    print!("{}", comparison.text);
    Ok(comparison.ok)
}

/// Whether the machine can count.
pub fn is_valgrind_here() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Builds the examples of the workspace at `root`, as the product is built.
pub fn build(root: &Path, target: &Path) -> Result<(), String> {
    let mut build = cargo();
    build.current_dir(root).env("CARGO_TARGET_DIR", target);
    build.args(["build", "--quiet", "--release", "--locked"]);
    for (package, example) in DRIVERS {
        build.args(["--package", package, "--example", example]);
    }
    eprintln!("+ {}", displayed(&build));
    match succeeds(&mut build)? {
        true => Ok(()),
        false => Err(format!("the examples that run the hot paths do not build in {}", root.display())),
    }
}

/// Instructions of one operation of a path, by the examples that were built into `target`.
pub fn count(target: &Path, path: &HotPath) -> Result<f64, String> {
    let mut run = Command::new("valgrind");
    run.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*measured*"]);
    run.arg("--log-fd=1").arg(target.join("release/examples").join(path.example));
    run.args([path.name, &path.operations.to_string()]);
    let collected = collected(&output(&mut run)?)?;
    Ok(collected as f64 / path.operations as f64)
}

/// The number that callgrind has printed.
fn collected(log: &str) -> Result<u64, String> {
    let number = log.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    // Nothing is what a name gives that no function has.
    number.filter(|&number| number > 0).ok_or_else(|| format!("callgrind has collected nothing:\n{log}"))
}

/// Which compiler for which machine: another one makes other instructions.
fn compiler() -> Result<String, String> {
    let text = output(Command::new("rustc").arg("-vV").current_dir(root()))?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
    Ok(format!("{} {}", field("release:"), field("host:")))
}

/// What is kept.
#[derive(Debug, PartialEq)]
struct Kept {
    compiler: String,
    /// In the order of the file.
    counts: Vec<(String, f64)>,
}

struct Comparison {
    text: String,
    ok: bool,
}

impl Kept {
    fn to_text(&self) -> String {
        let mut text = String::from(
            "# Instructions of one operation of each hot path. `cargo xtask regressions` compares, with --write it writes.\n",
        );
        text += &format!("compiler {}\n", self.compiler);
        self.counts.iter().for_each(|(name, count)| text += &format!("{name} {count:.1}\n"));
        text
    }

    fn parse(text: &str) -> Result<Kept, String> {
        let mut kept = Kept { compiler: String::new(), counts: Vec::new() };
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            let wrong = || format!("{KEPT}: not a name and a number: {line}");
            match line.split_once(' ').ok_or_else(wrong)? {
                ("compiler", compiler) => kept.compiler = compiler.into(),
                (name, count) => {
                    kept.counts.push((name.into(), count.trim().parse().map_err(|_| wrong())?));
                }
            }
        }
        Ok(kept)
    }

    /// `now` against what is kept.
    fn compare(&self, now: &Kept) -> Comparison {
        let same_compiler = self.compiler == now.compiler;
        let mut text = String::new();
        let mut ok = true;
        for (name, count) in &now.counts {
            let Some((_, kept)) = self.counts.iter().find(|(kept, _)| kept == name) else {
                text += &format!("{name:16} {count:9.1}  not kept: write it with --write\n");
                ok = false;
                continue;
            };
            let change = count / kept - 1.0;
            let verdict = match () {
                () if !same_compiler => "",
                () if change > TOLERANCE => "MORE than kept",
                () if change < -TOLERANCE => "less than kept: write it with --write",
                () => "ok",
            };
            ok &= !same_compiler || change <= TOLERANCE;
            text += &format!("{name:16} {count:9.1} {:+6.1} %  {verdict}\n", 100.0 * change);
        }
        if !same_compiler {
            let (kept, now) = (&self.compiler, &now.compiler);
            text += &format!("not held against each other: kept are the counts of {kept}, this is {now}\n");
        }
        Comparison { text, ok }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(counts: &[(&str, f64)]) -> Kept {
        let counts = counts.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
        Kept { compiler: "1.95.0 x86_64-unknown-linux-gnu".into(), counts }
    }

    #[test]
    fn what_is_written_is_read_again_and_nonsense_is_refused() {
        let counts = kept(&[("read-hit", 312.5), ("update", 1000.0)]);
        assert_eq!(Kept::parse(&counts.to_text()), Ok(counts));
        assert!(Kept::parse("read-hit many").unwrap_err().contains("read-hit many"));
        assert!(Kept::parse("read-hit").is_err());
    }

    #[test]
    fn more_fails_less_and_a_little_do_not() {
        let before = kept(&[("read-hit", 100.0), ("update", 1000.0)]);
        let compare = |read, update| before.compare(&kept(&[("read-hit", read), ("update", update)]));
        assert!(compare(102.9, 971.0).ok);
        let less = compare(50.0, 1000.0);
        assert!(less.ok && less.text.contains("--write"));
        let more = compare(100.0, 1031.0);
        assert!(!more.ok && more.text.contains("MORE"), "{}", more.text);
    }

    #[test]
    fn a_path_that_is_not_kept_fails_and_another_compiler_is_not_compared() {
        let before = kept(&[("read-hit", 100.0)]);
        assert!(!before.compare(&kept(&[("commit", 1.0)])).ok);
        let other =
            Kept { compiler: "1.96.0 x86_64-unknown-linux-gnu".into(), ..kept(&[("read-hit", 200.0)]) };
        let comparison = before.compare(&other);
        assert!(comparison.ok && comparison.text.contains("1.96.0"));
    }

    #[test]
    fn every_path_is_kept() {
        let kept = Kept::parse(&std::fs::read_to_string(root().join(KEPT)).unwrap()).unwrap();
        let names: Vec<&str> = kept.counts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, HOT_PATHS.iter().map(|path| path.name).collect::<Vec<_>>());
    }

    #[test]
    fn the_count_is_found_in_what_callgrind_prints() {
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 3141\n==7== \n"), Ok(3141));
        assert!(collected("==7== Collected : 0").is_err());
        assert!(collected("no such tool").is_err());
    }
}
