//! How long an engine takes to be there again after its process was killed.
//!
//! A child process fills a database and updates random records, in transactions of four, with the durability that the others call delayed, until it is
//! killed (SIGKILL) in the middle of that. A fresh process then opens what is left: the time runs from before the opening to the first record read, and
//! is of the engine alone, not of starting a process. That process, unmeasured, goes on to see that more of the records are there.
//!
//! Only the process dies, not the system: whatever the page cache holds is still there, for the engines that use it. Deuteron reads past it.
//! How much there is to recover is the engine's affair, as is how it bounds that: each is set as in `compare`. redb could be had to recover at once for
//! slower commits (`set_quick_repair`), which is not its default.

use crate::Engine;
use crate::bulk::Outcome;
use crate::compare::{Spread, name, report_of};
use crate::engines::{self, Database, Promises, Task, Use};
use crate::peer::Settings;
use clap::Args;
use deuteron_bench::{Ahead, Driver, Random, Skew, Workload, directory_bytes, load, run};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a writer goes on whom nobody kills, after it has said that it may be killed.
const UNKILLED: Duration = Duration::from_secs(60);

/// Which signal kills.
const SIGKILL: i32 = 9;

/// What is written before the process is killed.
#[derive(Args, Clone)]
pub struct RecoveryWork {
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Seconds of updates.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Memory of the engine, in bytes.
    #[arg(long, default_value_t = 1 << 30)]
    memory: usize,
    /// Where the databases are put; for the two steps, the database itself. A temporary directory if left out.
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl RecoveryWork {
    fn settings(&self) -> Outcome<Settings> {
        let directory = self.dir.clone().ok_or("--dir says which database")?;
        Ok(Settings { directory, sync: false, memory: self.memory, beyond_memory: false })
    }

    fn how(&self) -> Use {
        Use { threads: self.threads, in_flight: 1, ahead: Ahead::Keys }
    }
}

/// Fills the database and updates it, and prints how many updates there were when the time is over. Goes on to be killed; it is an error if nobody does.
pub fn write(engine: Engine, work: &RecoveryWork) -> Outcome<()> {
    engines::with(engine, work.settings()?, &work.how(), Write { work })?;
    Err("the writer was not killed".into())
}

struct Write<'a> {
    work: &'a RecoveryWork,
}

impl Task for Write<'_> {
    type Outcome = ();

    fn run<S: Database>(self, store: &S) -> Outcome<()> {
        let work = self.work;
        let mut workload = Workload::paper(work.records).with_read_ratio(0.0);
        workload.skew = Skew::Uniform;
        workload.value_bytes = work.value_bytes;
        let seconds = Duration::from_secs_f64(work.seconds);
        let driver = Driver { threads: work.threads, seconds: seconds + UNKILLED, ..Driver::default() };
        let loaded = load(store, &workload, &driver, &mut |_| {})?;
        let mut commits = 0;
        let mut is_told = false;
        run(store, &workload, &driver, loaded, &mut |progress| {
            commits += progress.commits;
            if progress.elapsed >= seconds && !is_told {
                is_told = true;
                let updates = commits * workload.operations_per_transaction as u64;
                println!(
                    "{}",
                    json!({"updates_per_second": updates as f64 / progress.elapsed.as_secs_f64()})
                );
            }
        })?;
        Ok(())
    }
}

/// Opens what a killed process has left; how long until a record was read.
pub fn open(engine: Engine, work: &RecoveryWork) -> Outcome<Value> {
    let settings = work.settings()?;
    let disk_bytes = directory_bytes(&settings.directory);
    let read = Read { begin: Instant::now(), records: work.records, value_bytes: work.value_bytes };
    let seconds = engines::with(engine, settings, &work.how(), read)?;
    Ok(json!({"seconds": seconds, "disk_bytes": disk_bytes}))
}

/// The time from `begin` to the first record read, in seconds. Then reads some of the others.
struct Read {
    begin: Instant,
    records: u64,
    value_bytes: usize,
}

impl Task for Read {
    type Outcome = f64;

    fn run<S: Database>(self, store: &S) -> Outcome<f64> {
        let mut random = Random::new(2);
        let mut seconds = None;
        for _ in 0..self.records.min(1_000) {
            let number = random.below(self.records);
            let value = store.value(number)?.ok_or_else(|| format!("record {number} is gone"))?;
            seconds.get_or_insert(self.begin.elapsed().as_secs_f64());
            // The driver writes the key to the front of each value.
            let stamp = &number.to_be_bytes()[..self.value_bytes.min(8)];
            if value.len() != self.value_bytes || !value.starts_with(stamp) {
                return Err(format!("record {number} is not what was written").into());
            }
        }
        seconds.ok_or_else(|| "there are no records to read".into())
    }
}

/// Measures several engines, in turns, and prints medians.
pub fn compare(engines: &[Engine], rounds: usize, work: &RecoveryWork, as_json: bool) -> Outcome<()> {
    let mut reports = vec![Vec::new(); engines.len()];
    for round in 1..=rounds {
        for (&engine, reports) in engines.iter().zip(&mut reports) {
            let scratch = crate::scratch(work.dir.as_deref())?;
            let report = killed_and_opened(engine, work, scratch.path())?;
            eprintln!("round {round} of {rounds}: {:<20} {report}", name(engine));
            reports.push(report);
        }
    }
    let rows: Vec<Value> =
        engines.iter().zip(&reports).map(|(&engine, reports)| row(engine, reports)).collect();
    if as_json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!(
        "{:<20} {:>12} {:>25} {:>10} {:>12}  durability",
        "engine", "recovery ms", "(lowest to highest)", "disk MiB", "updates/s"
    );
    for row in &rows {
        let number = |field: &str| row[field].as_f64().unwrap_or_default();
        let text = |field: &str| row[field].as_str().unwrap_or_default();
        println!(
            "{:<20} {:>12.1} {:>12.1} {:>12.1} {:>10.0} {:>12.0}  {}",
            text("engine"),
            1000.0 * number("seconds"),
            1000.0 * number("lowest"),
            1000.0 * number("highest"),
            number("disk_bytes") / f64::from(1 << 20),
            number("updates_per_second"),
            text("durability"),
        );
    }
    Ok(())
}

fn row(engine: Engine, reports: &[Value]) -> Value {
    let times = Spread::of(reports, "seconds");
    json!({
        "engine": name(engine),
        "seconds": times.median,
        "lowest": times.lowest,
        "highest": times.highest,
        "disk_bytes": Spread::of(reports, "disk_bytes").median,
        "updates_per_second": Spread::of(reports, "updates_per_second").median,
        "durability": Promises::of(engine, false).durability,
    })
}

/// One round: a writer, its death, and the opening.
fn killed_and_opened(engine: Engine, work: &RecoveryWork, directory: &Path) -> Outcome<Value> {
    let step = |step: &str| -> Outcome<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([step, "--engine", &name(engine), "--records", &work.records.to_string()]);
        command.args(["--value-bytes", &work.value_bytes.to_string(), "--memory", &work.memory.to_string()]);
        command.args(["--threads", &work.threads.to_string(), "--seconds", &work.seconds.to_string()]);
        command.arg("--dir").arg(directory);
        Ok(command)
    };
    let said = killed(step("recovery-write")?)?;
    let mut report = report_of(step("recovery-open")?, &name(engine))
        .map_err(|error| error as Box<dyn std::error::Error>)?;
    report["updates_per_second"] = serde_json::from_str::<Value>(&said)?["updates_per_second"].clone();
    Ok(report)
}

/// Starts a process, kills it as soon as it has said a line, and returns that line.
fn killed(mut command: Command) -> Outcome<String> {
    /// Nobody leaves a writer behind, whatever goes wrong.
    struct Guard(Child);
    impl Drop for Guard {
        fn drop(&mut self) {
            // It may have ended.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let mut writer = Guard(command.stdout(Stdio::piped()).spawn()?);
    let mut said = String::new();
    BufReader::new(writer.0.stdout.take().ok_or("the writer has no output")?).read_line(&mut said)?;
    writer.0.kill()?;
    let status = writer.0.wait()?;
    if status.signal() != Some(SIGKILL) {
        return Err(format!("the writer ended by itself: {status}").into());
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_killed_when_it_has_said_its_line() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo a line; exec sleep 600"]);
        assert_eq!(killed(shell).unwrap(), "a line\n");
    }

    #[test]
    fn a_writer_that_ends_by_itself_is_an_error() {
        let mut shell = Command::new("sh");
        // Its output is closed when it has ended, so that nobody kills it first.
        shell.args(["-c", "exit 3"]);
        let error = killed(shell).unwrap_err().to_string();
        assert!(error.contains("ended by itself"), "{error}");
    }
}
