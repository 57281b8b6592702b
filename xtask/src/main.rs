//! `cargo xtask`: the project's own commands, the same by hand and in continuous integration.
//!
//! - `cargo xtask ci` runs the gate, from fast to slow.
//! - `cargo xtask sanitize thread|miri` runs the tests that share memory under ThreadSanitizer or Miri.
//! - `cargo xtask tidy` checks what no compiler checks: the crate edges, module documents, leftovers.
//! - `cargo xtask regressions` counts the instructions of the hot paths; `cargo xtask compare OLD NEW` those of two commits.
//! - `cargo xtask soak [--hours H]` looks for something new, for hours.
//! - `cargo xtask accept SLUG [POINT] [--quick]` runs acceptance points, one line each.

#![forbid(unsafe_code)]

mod accept;
mod ci;
mod compare;
mod regressions;
mod sanitize;
mod soak;
mod tidy;
mod workspace;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gate: format, tidy, clippy, docs, tests, loom, shuttle, simulation, canaries, regressions, kill.
    Ci {
        /// Run only these stages.
        stages: Vec<String>,
        /// Go on after a stage has failed.
        #[arg(long)]
        keep_going: bool,
    },
    /// Run the tests that share memory under ThreadSanitizer or Miri, where the nightly toolchain has them.
    Sanitize {
        /// Which.
        sanitizer: sanitize::Sanitizer,
    },
    /// Check crate edges, documents and leftovers.
    Tidy,
    /// Count the instructions of the hot paths, which needs valgrind, and compare them with those that are kept.
    Regressions {
        /// Keep what is counted.
        #[arg(long)]
        write: bool,
    },
    /// Count the instructions of the hot paths of two commits.
    Compare {
        /// The one before.
        old: String,
        /// The one after.
        new: String,
    },
    /// Look for something new, for hours: seeds, kills, corruptions, fuzz, histories, isolation, in turn; each at least once.
    Soak {
        /// So long; a turn that has begun is finished.
        #[arg(long, default_value_t = 8.0)]
        hours: f64,
        /// Only these activities.
        #[arg(long = "only", value_delimiter = ',')]
        only: Vec<String>,
        /// Where the logs go; a directory of the build if left out.
        #[arg(long)]
        log: Option<PathBuf>,
    },
    /// Run acceptance points and print a line for each: SLUG.POINT, figure, bar, ok or short.
    Accept {
        /// end-to-end, data-component, transaction-component, safety or speed.
        slug: String,
        /// One point of the slug; all of them if left out.
        point: Option<String>,
        /// A small version of the long points.
        #[arg(long)]
        quick: bool,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Ci { stages, keep_going } => ci::run(&stages, keep_going),
        Command::Sanitize { sanitizer } => sanitize::run(sanitizer),
        Command::Tidy => tidy::run(),
        Command::Regressions { write } => regressions::run(write),
        Command::Compare { old, new } => compare::run([&old, &new]),
        Command::Soak { hours, only, log } => soak::run(hours, &only, log),
        Command::Accept { slug, point, quick } => accept::run(&slug, point.as_deref(), quick),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            ExitCode::from(2)
        }
    }
}
