//! Kills of a real process, in their thousands, with an oracle outside it.

use super::{Figure, Quick};
use crate::workspace::{displayed, last_line, release_binary, scratch};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A way in which the world is against the process.
struct Adversity {
    name: &'static str,
    arguments: &'static [&'static str],
    rounds: (u32, u32),
}

const ADVERSITIES: &[Adversity] = &[
    Adversity { name: "killed", arguments: &[], rounds: (140, 4_400) },
    Adversity { name: "short of memory", arguments: &["--adversity", "memory"], rounds: (20, 200) },
    Adversity { name: "on a device that fails", arguments: &["--adversity", "device"], rounds: (20, 200) },
    Adversity { name: "cut off from power", arguments: &["--adversity", "power"], rounds: (20, 200) },
    Adversity { name: FULL, arguments: &["--adversity", "full"], rounds: (20, 200) },
];

const FULL: &str = "on a full file system";

/// Bytes of a file system that is to be full.
const IMAGE_BYTES: u64 = 512 << 20;

/// A file system in a file. Where we may not mount one, the process is given a part of the room that there is.
struct Image {
    directory: TempDir,
}

impl Image {
    fn mounted() -> Option<Image> {
        let directory = scratch().ok()?;
        let (file, place) = (directory.path().join("image"), directory.path().join("mounted"));
        std::fs::File::create(&file).and_then(|image| image.set_len(IMAGE_BYTES)).ok()?;
        std::fs::create_dir(&place).ok()?;
        let done = |command: &mut Command| command.output().is_ok_and(|said| said.status.success());
        let made = done(Command::new("mkfs.ext4").arg("-q").arg(&file));
        let mounted = made && done(Command::new("mount").args(["-o", "loop"]).args([&file, &place]));
        mounted.then_some(Image { directory })
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("mounted")
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // What cannot be unmounted stays, and so does its directory.
        let _ = Command::new("umount").arg(self.path()).status();
    }
}

/// Rounds in which the workload's process dies in one way or another; what it was told was durable must be there.
pub fn kill(quick: Quick) -> Result<Figure, String> {
    let program = release_binary()?;
    let (mut rounds, mut acknowledged, mut lost, mut parts, mut ok) = (0, 0, 0, Vec::new(), true);
    for adversity in ADVERSITIES {
        let directory = scratch()?;
        let mut command = Command::new(&program);
        let count = quick.pick(adversity.rounds.0, adversity.rounds.1);
        // The process looks ten times a second whether it has failed.
        let longest = if adversity.arguments.is_empty() { "0.08" } else { "0.4" };
        command.args(["kill-rounds", "--json", "--records", "2000", "--seconds-max", longest]);
        command.args(["--rounds", &count.to_string()]).args(adversity.arguments);
        let image = if adversity.name == FULL { Image::mounted() } else { None };
        let place = image.as_ref().map_or(directory.path().to_owned(), Image::path);
        command.arg("--dir").arg(place.join("rounds"));
        eprintln!("+ {}", displayed(&command));
        // A loss makes the command fail, but it has reported all the same.
        let said =
            command.output().map_err(|error| format!("cannot run {}: {error}", displayed(&command)))?;
        let report: Value = serde_json::from_slice(&said.stdout)
            .map_err(|_| format!("no report: {}", last_line(&String::from_utf8_lossy(&said.stderr))))?;
        let number = |field| {
            report
                .get(field)
                .and_then(Value::as_u64)
                .ok_or_else(|| format!("the report has no number {field}"))
        };
        let bad = number("lost")? + number("half_applied")?;
        rounds += number("rounds")?;
        acknowledged += number("acknowledged")?;
        lost += bad;
        ok &= said.status.success() && bad == 0 && number("rounds")? == u64::from(count);
        let died = match number("ended_itself")? {
            0 => String::new(),
            died => format!(" ({died} died of it)"),
        };
        let how = if image.is_some() { ", a mounted image" } else { "" };
        parts.push(format!("{} {}{how}{died}", number("rounds")?, adversity.name));
    }
    let parts = parts.join(", ");
    let figure = format!("{rounds} rounds, {acknowledged} acknowledged commits, {lost} lost: {parts}");
    Ok(Figure { figure, ok: ok && acknowledged > 0 })
}
