//! The process that kills: starts the child, listens to it, ends it with SIGKILL.

use super::child::LiveStats;
use super::{Shape, expectation::Findings};
use crate::arguments::AdversityName;
use crate::failure::{Failure, Kind, Outcome};
use clap::ValueEnum;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the parent looks at what the child has said.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A child that is not ready by then never will be.
const READY_WITHIN: Duration = Duration::from_secs(300);

/// When the child is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillAt {
    /// So long after it was ready.
    AfterReady(Duration),
    /// So long after it was started, in the middle of its recovery perhaps.
    AfterStart(Duration),
}

/// What a child has said by the time of its death.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reported {
    /// How long it took to open the database, if it came that far.
    pub ready_after: Option<Duration>,
    /// Whether it did not wait to be killed.
    pub ended_itself: bool,
    /// The last acknowledged writer of each thread.
    pub acknowledged: Vec<Option<u64>>,
    /// How many writers were acknowledged.
    pub acknowledged_count: u64,
    /// How fast it was.
    pub stats: LiveStats,
}

/// Which child to run.
pub struct ChildSettings<'a> {
    /// The database.
    pub database: &'a Path,
    /// What it does.
    pub shape: &'a Shape,
    /// The first transaction of each thread.
    pub first: &'a [u64],
    /// Its number.
    pub round: u32,
    /// Whether it only opens the database.
    pub idle: bool,
    /// What it meets besides, and may die of; it need not be killed then.
    pub adversity: Option<(AdversityName, u64)>,
}

/// Runs a child, and kills it at the time said. `look` is called now and then with what it has said so far.
pub fn run_and_kill(
    settings: &ChildSettings<'_>,
    kill_at: KillAt,
    mut look: impl FnMut(&Reported),
) -> Outcome<Reported> {
    let begin = Instant::now();
    let mut child = Guarded(start(settings)?);
    let reported = Arc::new(Mutex::new(Reported {
        acknowledged: vec![None; settings.shape.threads as usize],
        ..Reported::default()
    }));
    let listener = listen(&mut child.0, begin, Arc::clone(&reported))?;
    loop {
        std::thread::sleep(LOOK_INTERVAL);
        if let Some(status) =
            child.0.try_wait().map_err(|error| Failure::because("cannot watch the child", &error))?
        {
            if settings.adversity.is_some() {
                lock(&reported).ended_itself = true;
                break;
            }
            return Err(Failure::new(Kind::Failed, format!("the workload ended by itself ({status})"))
                .hint("what it said stands above"));
        }
        let now = lock(&reported);
        look(&now);
        let due = match (kill_at, now.ready_after) {
            (KillAt::AfterStart(time), _) => begin.elapsed() >= time,
            (KillAt::AfterReady(time), Some(ready)) => begin.elapsed() >= ready + time,
            (KillAt::AfterReady(_), None) if begin.elapsed() > READY_WITHIN => {
                return Err(Failure::new(Kind::Failed, "the workload could not open the database in time"));
            }
            (KillAt::AfterReady(_), None) => false,
        };
        drop(now);
        if due {
            break;
        }
    }
    // Child::kill is SIGKILL.
    child
        .0
        .kill()
        .and_then(|()| child.0.wait())
        .map_err(|error| Failure::because("cannot kill the child", &error))?;
    // What it said before its death is in the pipe.
    if listener.join().is_err() {
        return Err(Failure::new(Kind::Failed, "the child said what cannot be understood"));
    }
    let reported = lock(&reported).clone();
    Ok(reported)
}

fn start(settings: &ChildSettings<'_>) -> Outcome<Child> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::because("cannot find this program's own file", &error))?;
    let shape = serde_json::to_string(settings.shape)
        .map_err(|error| Failure::because("cannot write the workload's shape", &error))?;
    let first: Vec<String> = settings.first.iter().map(u64::to_string).collect();
    let mut command = Command::new(program);
    command.arg("kill-child").arg(settings.database);
    command.args(["--shape", &shape, "--round", &settings.round.to_string()]);
    if settings.idle {
        command.arg("--idle");
    } else {
        command.args(["--first", &first.join(",")]);
    }
    if let Some((name, seed)) = settings.adversity {
        let name = name.to_possible_value().expect("no name is left out");
        command.args(["--adversity", name.get_name(), "--adversity-seed", &seed.to_string()]);
        // That it fails is what is wanted.
        command.stderr(Stdio::null());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().map_err(|error| Failure::because("cannot start the workload's process", &error))
}

/// Listens to the child on a thread until the pipe ends.
fn listen(
    child: &mut Child,
    begin: Instant,
    reported: Arc<Mutex<Reported>>,
) -> Outcome<std::thread::JoinHandle<()>> {
    let Some(stdout) = child.stdout.take() else {
        return Err(Failure::new(Kind::Failed, "the child has no standard output"));
    };
    Ok(std::thread::spawn(move || {
        // Killed in the middle of a line, the child leaves a part of one; a line that is not whole counts as unsaid.
        let mut lines = BufReader::new(stdout);
        let mut line = String::new();
        while let Ok(bytes) = lines.read_line(&mut line) {
            if bytes == 0 || !line.ends_with('\n') {
                break;
            }
            understand(line.trim_end(), begin.elapsed(), &mut lock(&reported));
            line.clear();
        }
    }))
}

/// Takes in one line.
///
/// # Panics
/// If it is none of ours: then the harness is wrong.
fn understand(line: &str, elapsed: Duration, reported: &mut Reported) {
    let words: Vec<&str> = line.splitn(4, ' ').collect();
    match words[..] {
        ["ready"] => reported.ready_after = Some(elapsed),
        ["a", thread, sequence, count] => {
            let number = |word: &str| word.parse::<u64>().expect("a number");
            reported.acknowledged[number(thread) as usize] = Some(number(sequence));
            reported.acknowledged_count += number(count);
        }
        ["s", ..] => reported.stats = serde_json::from_str(&line[2..]).expect("statistics"),
        _ => panic!("the child said \"{line}\""),
    }
}

fn lock(reported: &Mutex<Reported>) -> MutexGuard<'_, Reported> {
    reported.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child that does not outlive us, whichever way we leave.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // It is dead already, unless something failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The failure of a command whose check found something.
pub fn loss(findings: &Findings) -> Failure {
    let Findings { lost, half_applied, .. } = findings;
    let message = format!("{lost} effects of acknowledged commits are lost, {half_applied} are half-applied");
    Failure::new(Kind::Damage, message)
        .hint("this is a defect of the program: please report it with the output above")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_child_says_is_understood() {
        let mut reported = Reported { acknowledged: vec![None, None], ..Reported::default() };
        understand("ready", Duration::from_millis(3), &mut reported);
        understand("a 1 17 4", Duration::ZERO, &mut reported);
        understand("a 1 21 2", Duration::ZERO, &mut reported);
        let stats = LiveStats { seconds: 0.5, commits: 9, ..LiveStats::default() };
        understand(&format!("s {}", serde_json::to_string(&stats).unwrap()), Duration::ZERO, &mut reported);
        assert_eq!(
            reported,
            Reported {
                ready_after: Some(Duration::from_millis(3)),
                ended_itself: false,
                acknowledged: vec![None, Some(21)],
                acknowledged_count: 6,
                stats,
            }
        );
    }
}
