//! Where the workspace is, and how cargo is called in it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace's root")
}

/// Where cargo builds: `target`, or what the environment says.
pub fn target_directory() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => root().join(directory),
        None => root().join("target"),
    }
}

/// A directory on the disk that holds the build, which unlike the usual temporary one is seldom memory; removed
/// when dropped, or by the next who wants one if the process was killed.
pub fn scratch() -> Result<tempfile::TempDir, String> {
    let parent = target_directory().join("scratch");
    std::fs::create_dir_all(&parent)
        .map_err(|error| format!("cannot create {}: {error}", parent.display()))?;
    remove_orphans(&parent);
    tempfile::Builder::new()
        .prefix(&format!("{}-", std::process::id()))
        .tempdir_in(&parent)
        .map_err(|error| format!("cannot create a scratch directory: {error}"))
}

/// Removes what processes that are no more have left in `parent`, as far as that can be told and done.
fn remove_orphans(parent: &Path) {
    let processes = Path::new("/proc");
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    if !processes.join("self").exists() {
        return;
    }
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.split_once('-')?.0.parse::<u32>().ok());
        if owner.is_some_and(|owner| !processes.join(owner.to_string()).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The cargo that started us, to be run at the root.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// A command line as one would type it.
pub fn displayed(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={:?}", name.to_string_lossy(), value?.to_string_lossy()))
    });
    let words = std::iter::once(program).chain(command.get_args()).map(OsStr::to_string_lossy);
    variables.chain(words.map(Into::into)).collect::<Vec<_>>().join(" ")
}

/// Runs a command with its output where ours goes.
pub fn succeeds(command: &mut Command) -> Result<bool, String> {
    match command.status() {
        Ok(status) => Ok(status.success()),
        Err(error) => Err(format!("cannot run {}: {error}", displayed(command))),
    }
}

/// The commit that a name means.
pub fn commit(revision: &str) -> Result<String, String> {
    let found = output(git().args(["rev-parse", "--verify", "--quiet", &format!("{revision}^{{commit}}")]));
    found.map(|text| text.trim().to_owned()).map_err(|_| format!("there is no commit {revision}"))
}

/// `git`, in the workspace.
pub fn git() -> Command {
    let mut git = Command::new("git");
    git.current_dir(root());
    git
}

/// Runs a command and returns its standard output; what it says on standard error is shown as it comes.
pub fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", displayed(command)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("{} failed ({}): {}", displayed(command), output.status, last_line(&text)))
    }
}

/// The last line that is not blank.
pub fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("(no output)").trim()
}

/// Builds the command line in the release profile and returns the path of the program.
pub fn release_binary() -> Result<PathBuf, String> {
    let mut build = cargo();
    build.args(["build", "--quiet", "--release", "--locked", "--package", "deuteron-cli"]);
    eprintln!("+ {}", displayed(&build));
    if !succeeds(build.stdout(Stdio::null()))? {
        return Err("the release build failed".into());
    }
    Ok(target_directory().join("release").join("deuteron"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_typed() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["test", "--workspace"]).env("RUSTFLAGS", "--cfg loom");
        assert_eq!(displayed(&command), "RUSTFLAGS=\"--cfg loom\" cargo test --workspace");
    }

    #[test]
    fn the_last_line_skips_blanks() {
        assert_eq!(last_line("a\n b \n\n"), "b");
        assert_eq!(last_line(""), "(no output)");
    }
}
