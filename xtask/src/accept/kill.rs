//! Kills of a real process, in their thousands, with an oracle outside it.

use super::{Figure, Quick};
use crate::workspace::{displayed, last_line, release_binary, scratch};
use serde_json::Value;
use std::process::Command;

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
];

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
        command.arg("--dir").arg(directory.path().join("rounds"));
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
        parts.push(format!("{} {}{died}", number("rounds")?, adversity.name));
    }
    let parts = parts.join(", ");
    let figure = format!("{rounds} rounds, {acknowledged} acknowledged commits, {lost} lost: {parts}");
    Ok(Figure { figure, ok: ok && acknowledged > 0 })
}
