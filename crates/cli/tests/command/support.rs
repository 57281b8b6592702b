//! Running the program that was built, on databases in a scratch directory.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A scratch directory, removed at the end.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The path of a file or database in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file in it with this text.
    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// What the program said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    fn new(output: Output) -> Self {
        Self {
            status: output.status.code().expect("the program was killed"),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Expects success.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.status, 0, "{self:?}");
        self
    }

    /// Expects this status and this in the message.
    #[track_caller]
    pub fn fails(self, status: i32, message: &str) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.err.contains(message), "no \"{message}\" in {self:?}");
        self
    }

    /// The output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The program with these arguments.
pub fn command<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the program.
pub fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Said {
    Said::new(command(arguments).output().unwrap())
}

/// How it ends with a standard output, and a standard error if asked for, whose reader has gone.
pub fn status_without_reader<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, errors: bool) -> i32 {
    let gone = || std::io::pipe().unwrap().1;
    let mut command = command(arguments);
    command.stdout(gone()).stderr(if errors { Stdio::from(gone()) } else { Stdio::null() });
    command.status().unwrap().code().expect("the program was killed")
}

/// Runs the program with this on its standard input.
pub fn run_with_input<A: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = A>,
    input: impl AsRef<[u8]>,
) -> Said {
    let mut command = command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input.as_ref());
    Said::new(child.wait_with_output().unwrap())
}

/// A command line whose words are separated by spaces, with `DB` standing for the database.
pub fn words(database: &Path, line: &str) -> Said {
    run(line
        .split_whitespace()
        .map(|word| if word == "DB" { database.as_os_str() } else { OsStr::new(word) }))
}
