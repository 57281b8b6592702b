//! The command: runs seeds, or one.

use clap::Parser;
use deuteron_simulation::{
    Configuration, Feature, Features, Report, fresh_seed, run, silence_panics, smaller,
};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Deterministic simulation of the whole engine: one seed, one run.
#[derive(Parser)]
struct Arguments {
    /// Runs this seed, and says what came of it.
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// So many steps instead of the seed's.
    #[arg(long, requires = "seed")]
    steps: Option<u32>,
    /// So many clients instead of the seed's.
    #[arg(long, requires = "seed")]
    clients: Option<usize>,
    /// So many keys instead of the seed's.
    #[arg(long, requires = "seed")]
    keys: Option<u32>,
    /// Features that the run is not to have, separated by commas.
    #[arg(long, requires = "seed", value_delimiter = ',', value_parser = feature)]
    without: Vec<Feature>,
    /// Runs so many seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them; by default one that was never used before.
    #[arg(long)]
    first: Option<u64>,
    /// Threads, each with seeds of its own.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Runs so many of the seeds twice, and compares their traces.
    #[arg(long, default_value_t = 0)]
    twice: u64,
    /// Prints the trace of each seed.
    #[arg(long)]
    traces: bool,
    /// Leaves a failing run as large as it is.
    #[arg(long)]
    as_it_is: bool,
    /// Begins no seed any more when one has failed.
    #[arg(long)]
    until_failure: bool,
}

fn feature(name: &str) -> Result<Feature, String> {
    Features::named(name).ok_or_else(|| {
        let known: Vec<_> = Features::all().into_iter().map(Features::name).collect();
        format!("there is no feature {name}; the features are {}", known.join(", "))
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    silence_panics();
    let ok = match arguments.seed {
        Some(seed) => one(seed, &arguments),
        None => many(&arguments),
    };
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one seed, twice, and says everything about it.
fn one(seed: u64, arguments: &Arguments) -> bool {
    let mut configuration = Configuration::of(seed);
    configuration.steps = arguments.steps.unwrap_or(configuration.steps);
    configuration.clients = arguments.clients.unwrap_or(configuration.clients);
    configuration.keys = arguments.keys.unwrap_or(configuration.keys);
    for feature in &arguments.without {
        configuration.features = configuration.features.without(*feature);
    }
    println!("seed {seed}: {}", configuration.description());
    let outcome = run(&configuration);
    println!("{}", outcome.report);
    println!("trace {:016x}", outcome.trace);
    let again = run(&configuration);
    if again.trace != outcome.trace {
        println!("FAILED: run again, its trace is {:016x}", again.trace);
        return false;
    }
    match &outcome.problem {
        None => true,
        Some(problem) => {
            println!("FAILED at step {}: {problem}", outcome.report.steps);
            make_smaller(&configuration, arguments);
            false
        }
    }
}

fn make_smaller(configuration: &Configuration, arguments: &Arguments) {
    if !arguments.as_it_is {
        let smallest = smaller(configuration);
        let problem = run(&smallest).problem.unwrap_or_default();
        println!("smallest: {}", smallest.description());
        println!("{problem}");
        println!("{}", smallest.command());
    }
}

/// How often the runs are looked at.
const TICK: Duration = Duration::from_millis(20);

/// A run that takes more ticks than this, a minute, will not end. The largest takes less than a second. Ticks, as a process that was stopped
/// for a while has not run meanwhile.
const HANGS: u64 = 3_000;

/// What the threads share.
struct Progress {
    next: AtomicU64,
    /// What each thread runs, and since which tick.
    running: Mutex<Vec<(u64, u64)>>,
    ticks: AtomicU64,
    done: AtomicU64,
    failures: Mutex<Vec<(Configuration, String)>>,
    report: Mutex<Report>,
}

impl Progress {
    /// Whether every seed has been run, or there is no need to.
    fn is_over(&self, arguments: &Arguments) -> bool {
        self.done.load(Ordering::Relaxed) >= arguments.seeds || self.is_enough(arguments)
    }

    fn is_enough(&self, arguments: &Arguments) -> bool {
        arguments.until_failure && !self.failures.lock().expect("no thread panicked").is_empty()
    }
}

fn many(arguments: &Arguments) -> bool {
    let first = arguments.first.unwrap_or_else(fresh_seed);
    println!("seeds {first} to {}", first + arguments.seeds.max(1) - 1);
    let progress = Progress {
        next: AtomicU64::new(0),
        running: Mutex::default(),
        ticks: AtomicU64::new(0),
        done: AtomicU64::new(0),
        failures: Mutex::default(),
        report: Mutex::default(),
    };
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            scope.spawn(|| work(first, arguments, &progress));
        }
        let mut last = Instant::now();
        while !progress.is_over(arguments) {
            std::thread::sleep(TICK);
            let tick = progress.ticks.fetch_add(1, Ordering::Relaxed);
            let running = progress.running.lock().expect("no thread panicked");
            if let Some((seed, _)) = running.iter().find(|(_, since)| tick > since + HANGS) {
                println!("\nFAILED: a run does not end\n{} --as-it-is", Configuration::of(*seed).command());
                std::process::exit(1);
            }
            drop(running);
            if last.elapsed() > Duration::from_secs(10) {
                last = Instant::now();
                let done = progress.done.load(Ordering::Relaxed);
                let seconds = begin.elapsed().as_secs_f64();
                eprintln!("{done} of {} seeds, {:.0} a second", arguments.seeds, done as f64 / seconds);
            }
        }
    });
    let Progress { failures, report, done, .. } = progress;
    println!("{}", report.into_inner().expect("no thread panicked"));
    let failures = failures.into_inner().expect("no thread panicked");
    for (configuration, problem) in failures.iter().take(5) {
        println!("\nFAILED: {problem}\n{}", configuration.command());
    }
    if let Some((configuration, _)) = failures.first() {
        println!("\nmaking the first smaller");
        make_smaller(configuration, arguments);
    }
    println!("simulation: {} seeds, {} failures", done.into_inner(), failures.len());
    println!("took {:.1} s", begin.elapsed().as_secs_f64());
    failures.is_empty()
}

fn work(first: u64, arguments: &Arguments, progress: &Progress) {
    loop {
        let number = progress.next.fetch_add(1, Ordering::Relaxed);
        if number >= arguments.seeds || progress.is_enough(arguments) {
            return;
        }
        let configuration = Configuration::of(first + number);
        let running = (configuration.seed, progress.ticks.load(Ordering::Relaxed));
        progress.running.lock().expect("no thread panicked").push(running);
        let outcome = run(&configuration);
        if arguments.traces {
            println!("{} {:016x}", configuration.seed, outcome.trace);
        }
        *progress.report.lock().expect("no thread panicked") += &outcome.report;
        let mut problem = outcome.problem;
        if number < arguments.twice && run(&configuration).trace != outcome.trace {
            problem = Some("run twice, it has two traces".into());
        }
        if let Some(problem) = problem {
            eprintln!("FAILED: {problem}\n{}", configuration.command());
            progress.failures.lock().expect("no thread panicked").push((configuration, problem));
        }
        progress.running.lock().expect("no thread panicked").retain(|other| *other != running);
        progress.done.fetch_add(1, Ordering::Relaxed);
    }
}
