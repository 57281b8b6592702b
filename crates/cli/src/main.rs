//! The `deuteron` command: a database from the shell, the demonstration, the benchmark.
//!
//! Results go to standard output, everything else (progress, notes, errors) to standard error, so that output can
//! be piped. The exit status says what kind of failure it was, see [`failure`].

#![deny(unsafe_code)]
// They panic where nobody listens.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod allocator;
mod arguments;
mod commands;
mod csv;
mod encoding;
mod failure;
mod kill;
mod output;
mod progress;
mod quantity;
mod quoting;

use arguments::{Arguments, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let json = arguments.json;
    let outcome = match arguments.command {
        Command::Demo(demo) => commands::demo::run(&demo, json),
        Command::Bench { workload } => commands::bench::run(&workload, json),
        Command::Shell(shell) => commands::shell::run(&shell),
        Command::Get(get) => commands::records::get(&get, json),
        Command::Put(put) => commands::records::put(&put, json),
        Command::Delete(delete) => commands::records::delete(&delete, json),
        Command::Scan(scan) => commands::records::scan(&scan, json),
        Command::Import(import) => commands::import::run(&import, json),
        Command::Export(export) => commands::export::run(&export, json),
        Command::Backup(backup) => commands::backup::backup(&backup, json),
        Command::Compact(database) => commands::compact::run(&database, json),
        Command::Restore(restore) => commands::backup::restore(&restore, json),
        Command::Stat(stat) => commands::stat::run(&stat, json),
        Command::Check(check) => commands::check::run(&check, json),
        Command::CheckHistory(check) => commands::check_history::run(&check, json),
        Command::Recover(recover) => commands::recover::run(&recover, json),
        Command::RotateKey(database) => commands::rotate_key::run(&database, json),
        Command::Salvage(salvage) => commands::salvage::run(&salvage, json),
        Command::KillRounds(rounds) => commands::kill_rounds::run(&rounds, json),
        Command::Histories(histories) => commands::histories::run(&histories, json),
        Command::KillChild(child) => kill::child::run(&child),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print(json);
            failure.exit_code()
        }
    }
}
