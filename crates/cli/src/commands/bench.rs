//! `bench ycsb`: the paper's workload and YCSB A to F; `bench paper`: its figures; `bench contention`: transactions that meet;
//! `bench scaling` (in `scaling`): what threads lose to each other; `bench version-memory`, `bench timeline` and `bench cache`: what the
//! versions in memory take and give; `bench latency`: single operations; `bench device`: the disk below. TATP, SmallBank, TPC-C and Voter are
//! next door.

use super::{WorkDirectory, applications, scaling};
use crate::arguments::{
    AheadName, BenchCommand, CaseName, ContentionArguments, DeviceArguments, Engine, EvaluationArguments,
    PaperArguments, PinArguments, WorkloadName, YcsbArguments,
};
use crate::failure::{Failure, Kind, Outcome};
use crate::output;
use crate::progress::Progress;
use crate::quantity::{bytes, count, microseconds};
use deuteron::{ConcurrencyControl, Options};
use deuteron_bench::{
    Ahead, ContentionCase, ContentionFigure, DELAYED, DeviceBench, DeviceReport, Driver, EmbeddedStore,
    Latency, MapStore, PaperBench, ReadTimes, Report, Store, Workload, load, run as drive, run_cache,
    run_contention, run_latency, run_timeline, run_version_memory,
};

/// `deuteron bench`.
pub fn run(command: &BenchCommand, json: bool) -> Outcome {
    match command {
        BenchCommand::Ycsb(arguments) => ycsb(arguments, json),
        BenchCommand::Paper(arguments) => evaluation(arguments, json),
        BenchCommand::Contention(arguments) => contention(arguments, json),
        BenchCommand::Scaling(arguments) => scaling::run(arguments, json),
        BenchCommand::Tatp(arguments) => applications::tatp(arguments, json),
        BenchCommand::SmallBank(arguments) => applications::small_bank(arguments, json),
        BenchCommand::Tpcc(arguments) => applications::tpcc(arguments, json),
        BenchCommand::Voter(arguments) => applications::voter(arguments, json),
        BenchCommand::VersionMemory(arguments) => version_memory(arguments, json),
        BenchCommand::Cache(arguments) => cache(arguments, json),
        BenchCommand::Latency(arguments) => latency(arguments, json),
        BenchCommand::Timeline(arguments) => timeline(arguments, json),
        BenchCommand::Device(arguments) => device(arguments, json),
    }
}

/// A store with the paper's records, delayed commits, and how it is to be driven.
fn paper(arguments: &PaperArguments) -> Outcome<(WorkDirectory, EmbeddedStore, Workload, Driver)> {
    let workload = Workload::paper(arguments.records);
    let driver = Driver {
        threads: arguments.threads as usize,
        in_flight: 1,
        warmup: arguments.warmup_seconds,
        seconds: arguments.seconds,
        seed: arguments.seed,
        pin: arguments.pin.pin.clone(),
    };
    let directory = WorkDirectory::new(None)?;
    crate::allocator::suit(arguments.memory);
    let mut options = options(arguments.memory, &arguments.pin);
    if let Some(bytes) = arguments.version_memory {
        options = options.version_memory(bytes);
    }
    let store = EmbeddedStore::open(options, directory.path(), DELAYED, 1)?;
    load(&store, &workload, &driver, &mut |_| {})?;
    Ok((directory, store, workload, driver))
}

fn version_memory(arguments: &PaperArguments, json: bool) -> Outcome {
    let (_directory, store, workload, driver) = paper(arguments)?;
    let report = run_version_memory(&store, &workload, &driver)?;
    store.close()?;
    if json {
        return output::json(&report);
    }
    output::table(&[
        ("commits".to_owned(), count(report.commits)),
        ("transactions/s at first".into(), count(report.first_per_second as u64)),
        ("transactions/s in the end".into(), count(report.steady_per_second as u64)),
        ("most memory of versions".into(), bytes(report.version_bytes_max)),
        ("hard watermark".into(), bytes(report.watermark_bytes)),
        ("the reader got".into(), report.reader),
    ])
}

fn cache(arguments: &PaperArguments, json: bool) -> Outcome {
    let (_directory, store, workload, driver) = paper(arguments)?;
    let (store, report) = run_cache(store, &workload, &driver)?;
    store.close()?;
    if json {
        return output::json(&report);
    }
    let times = |times: ReadTimes| {
        format!("mean {}, p99 {}", microseconds(times.mean_us), microseconds(times.p99_us))
    };
    output::table(&[
        ("reads".to_owned(), count(report.reads)),
        ("answered by the versions in memory".into(), format!("{:.1} %", 100.0 * report.served_by_tc)),
        ("of all, by the read cache".into(), format!("{:.1} %", 100.0 * report.served_by_read_cache)),
        ("read cache".into(), bytes(report.read_cache_bytes)),
        ("versions that left it".into(), count(report.read_cache_evictions)),
        ("reads answered there".into(), times(report.tc_reads)),
        ("gets of the data component".into(), count(report.dc_gets_count)),
        ("these".into(), times(report.dc_gets)),
        ("operations/s, timed".into(), count(report.throughput_ops as u64)),
    ])
}

fn latency(arguments: &PaperArguments, json: bool) -> Outcome {
    let (_directory, store, workload, driver) = paper(arguments)?;
    let (store, report) = run_latency(store, &workload, &driver)?;
    store.close()?;
    if json {
        return output::json(&report);
    }
    let times = |times: Latency| {
        format!(
            "p50 {}, p99 {}, p99.9 {}",
            microseconds(times.p50),
            microseconds(times.p99),
            microseconds(times.p999)
        )
    };
    output::table(&[
        ("a read of what is in memory".to_owned(), times(report.read_us)),
        ("an update".into(), times(report.update_us)),
        ("a transaction of one read".into(), times(report.read_transaction_us)),
        ("a transaction of one update".into(), times(report.update_transaction_us)),
        ("of which the clock".into(), microseconds(report.clock_us)),
    ])
}

fn timeline(arguments: &PaperArguments, json: bool) -> Outcome {
    let (_directory, store, workload, driver) = paper(arguments)?;
    let timeline = run_timeline(&store, &workload, &driver, &mut |_| {})?;
    store.close()?;
    if json {
        return output::json(&timeline);
    }
    let mut rows: Vec<_> = timeline
        .samples
        .iter()
        .map(|sample| {
            let rate = count(sample.commits_per_second as u64);
            let memory = bytes(sample.version_bytes);
            let [keeper, collection] =
                [sample.keeper_share, sample.collection_share].map(|share| 100.0 * share);
            (
                format!("{:.2} s", sample.seconds),
                format!(
                    "{rate} commits/s, versions {memory}, keeper {keeper:.0} %, collection {collection:.0} %"
                ),
            )
        })
        .collect();
    rows.extend([
        ("operations/s".to_owned(), count(timeline.throughput_ops as u64)),
        ("records evicted".into(), count(timeline.evictions)),
        ("versions dropped".into(), count(timeline.versions_dropped)),
        ("hard watermark".into(), bytes(timeline.watermark_bytes)),
    ]);
    output::table(&rows)
}

/// Every figure of the paper, and a page.
fn evaluation(arguments: &EvaluationArguments, json: bool) -> Outcome {
    let directory = WorkDirectory::new(arguments.dir.as_deref())?;
    crate::allocator::suit(arguments.memory);
    let bench = PaperBench::new(directory.path(), &arguments.report);
    let bench = PaperBench {
        scale: arguments.scale,
        seconds: arguments.seconds,
        rounds: arguments.rounds as usize,
        threads: arguments.threads.map_or(bench.threads, |threads| threads as usize),
        memory: arguments.memory,
        pin: arguments.pin.pin.clone(),
        pin_background: arguments.pin.pin_background.clone(),
        ..bench
    };
    let mut bar = None;
    let figures = bench.run(&mut |progress| {
        bar.get_or_insert_with(|| Progress::counting(progress.total, "measure", "points")).set(progress.done);
    })?;
    drop(bar);
    let page = arguments.report.join("index.html").display().to_string();
    if json {
        let names: Vec<_> = figures.iter().map(|figure| figure.name).collect();
        return output::json(&serde_json::json!({ "page": page, "figures": names }));
    }
    let mut rows = vec![("page".to_owned(), page)];
    rows.extend(figures.into_iter().map(|figure| (figure.name.to_owned(), figure.title)));
    output::table(&rows)
}

/// Both controls on each case and number of threads, in turns.
fn contention(arguments: &ContentionArguments, json: bool) -> Outcome {
    let mut figures: Vec<ContentionFigure> = Vec::new();
    for case in &arguments.case {
        let case = match case {
            CaseName::Zipf => ContentionCase::Zipf,
            CaseName::Hot => ContentionCase::Hot,
            CaseName::Mix => ContentionCase::Mix,
        };
        for &threads in &arguments.threads {
            let driver = Driver {
                threads: threads as usize,
                in_flight: 1,
                warmup: arguments.warmup_seconds,
                seconds: arguments.seconds,
                seed: arguments.seed,
                pin: arguments.pin.pin.clone(),
            };
            let mut rounds: [Vec<ContentionFigure>; 2] = Default::default();
            for round in 0..arguments.rounds as usize {
                // In turns, so that neither has the better place.
                for turn in 0..CONTROLS.len() {
                    let which = (round + turn) % CONTROLS.len();
                    let (name, control) = CONTROLS[which];
                    let directory = WorkDirectory::new(None)?;
                    let options = options(arguments.memory, &arguments.pin).concurrency_control(control);
                    let store = EmbeddedStore::open(options, directory.path(), arguments.durability, 1)?;
                    let store = store.named(name);
                    load(&store, &case.workload(arguments.interleave), &driver, &mut |_| {})?;
                    rounds[which].push(run_contention(&store, case, arguments.interleave, &driver)?);
                    store.close()?;
                }
            }
            figures.extend(rounds.into_iter().filter_map(median));
        }
    }
    if json { output::json(&figures) } else { output::table(&contention_rows(&figures)) }
}

/// The figure in the middle, by commits.
fn median(mut figures: Vec<ContentionFigure>) -> Option<ContentionFigure> {
    figures.sort_by(|one, other| one.commits_per_second.total_cmp(&other.commits_per_second));
    let middle = figures.len() / 2;
    figures.into_iter().nth(middle)
}

const CONTROLS: [(&str, ConcurrencyControl); 2] = [
    ("deuteron", ConcurrencyControl::Pushes),
    ("deuteron-timestamp-order", ConcurrencyControl::TimestampOrder),
];

fn contention_rows(figures: &[ContentionFigure]) -> Vec<(String, String)> {
    let row = |figure: &ContentionFigure| {
        let causes: Vec<String> =
            figure.abort_causes.iter().map(|(cause, aborts)| format!("{cause} {}", count(*aborts))).collect();
        let name = format!("{}, {} threads, {}", figure.case, figure.threads, figure.engine);
        let rate = count(figure.commits_per_second as u64);
        let aborts = 100.0 * figure.abort_rate;
        (name, format!("{rate} commits/s, {aborts:.1} % aborted; {}", causes.join(", ")))
    };
    figures.iter().map(row).collect()
}

fn device(arguments: &DeviceArguments, json: bool) -> Outcome {
    let directory = WorkDirectory::new(arguments.dir.as_deref())?;
    let bench = DeviceBench {
        directory: directory.path().into(),
        file_bytes: arguments.file_size,
        seconds: arguments.seconds,
        seed: arguments.seed,
        io_uring: !arguments.without_io_uring,
    };
    let mut bar = None;
    let report = bench.run(&mut |progress| {
        bar.get_or_insert_with(|| Progress::counting(progress.total, "measure", "figures"))
            .set(progress.done);
    })?;
    drop(bar);
    if json { output::json(&report) } else { output::table(&device_rows(&report)) }
}

fn device_rows(report: &DeviceReport) -> Vec<(String, String)> {
    let mut rows = vec![
        ("directory".to_owned(), report.directory.clone()),
        ("file".into(), bytes(report.file_bytes)),
        (
            "page cache".into(),
            if report.direct { "bypassed" } else { "not bypassed: figures of memory" }.into(),
        ),
        ("a thread's reads in flight".into(), count(report.reads_at_once)),
        ("sequential writes".into(), format!("{}/s", bytes(report.write_bytes_per_second as u64))),
    ];
    for read in &report.reads {
        let (together, threads) = (read.together_per_second as u64, read.threads_per_second as u64);
        rows.push((
            format!("random reads of 4 KiB, {:2} in flight", read.depth),
            format!("{}/s by one thread, {}/s by a thread each", count(together), count(threads)),
        ));
    }
    rows
}

fn ycsb(arguments: &YcsbArguments, json: bool) -> Outcome {
    let workload = workload(arguments)?;
    let driver = Driver {
        threads: arguments.threads as usize,
        in_flight: arguments.in_flight as usize,
        warmup: arguments.warmup_seconds,
        seconds: arguments.seconds,
        seed: arguments.seed,
        pin: arguments.pin.pin.clone(),
    };
    let report = match arguments.engine {
        Engine::Map => measure(&MapStore::new(), &workload, &driver)?,
        Engine::Deuteron => {
            let directory = WorkDirectory::new(arguments.dir.as_deref())?;
            crate::allocator::suit(arguments.memory);
            let options =
                options(arguments.memory, &arguments.pin).checkpoint_every(arguments.checkpoint_every as u64);
            let store =
                EmbeddedStore::open(options, directory.path(), arguments.durability, driver.in_flight)?
                    .with_ahead(match arguments.ahead {
                        AheadName::Nothing => Ahead::Nothing,
                        AheadName::Keys => Ahead::Keys,
                        AheadName::Transactions => Ahead::Transactions,
                    });
            let report = measure(&store, &workload, &driver)?;
            store.close()?;
            report
        }
    };
    if json { output::json(&report) } else { output::table(&rows(&report)) }
}

/// Of a database whose own threads run where they are to.
pub fn options(memory: usize, pin: &PinArguments) -> Options {
    let options = Options::new().memory(memory);
    match &pin.pin_background {
        None => options,
        Some(processors) => options.pin_background(processors.clone()),
    }
}

fn workload(arguments: &YcsbArguments) -> Outcome<Workload> {
    let letter = match arguments.workload {
        WorkloadName::Paper => None,
        WorkloadName::A => Some('a'),
        WorkloadName::B => Some('b'),
        WorkloadName::C => Some('c'),
        WorkloadName::D => Some('d'),
        WorkloadName::E => Some('e'),
        WorkloadName::F => Some('f'),
    };
    let mut workload = match letter {
        None => Workload::paper(arguments.records),
        Some(letter) => Workload::ycsb(letter, arguments.records)
            .ok_or_else(|| Failure::new(Kind::Usage, format!("YCSB has no workload {letter}")))?,
    };
    if let Some(ratio) = arguments.read_ratio {
        workload = workload.with_read_ratio(ratio);
    }
    if let Some(skew) = arguments.skew {
        workload.skew = skew;
    }
    if let Some(operations) = arguments.ops_per_txn {
        workload.operations_per_transaction = operations as usize;
    }
    workload.value_bytes = arguments.value_bytes as usize;
    Ok(workload)
}

fn measure<S: Store>(store: &S, workload: &Workload, driver: &Driver) -> Outcome<Report> {
    let bar = Progress::counting(workload.records, "load", "records");
    let loaded = load(store, workload, driver, &mut |progress| bar.set(progress.records))?;
    drop(bar);
    let line = Progress::of_text();
    let report = drive(store, workload, driver, loaded, &mut |progress| {
        let rate = progress.commits as f64 / progress.interval.as_secs_f64().max(1e-9);
        let operations = rate * workload.operations_per_transaction as f64;
        line.text(format!(
            "{} {:.0} of {:.0} s: {} transactions/s, {} operations/s, {} aborts",
            if progress.warming_up { "warm-up" } else { "run" },
            progress.elapsed.as_secs_f64(),
            progress.total.as_secs_f64(),
            count(rate as u64),
            count(operations as u64),
            count(progress.aborts),
        ));
    })?;
    Ok(report)
}

fn rows(report: &Report) -> Vec<(String, String)> {
    let latency = &report.latency_us;
    let mut rows = vec![
        ("engine".to_owned(), report.engine.clone()),
        ("records".into(), count(report.records)),
        ("threads".into(), report.threads.to_string()),
        ("durability".into(), report.durability.clone()),
        ("transactions/s".into(), count(report.throughput_tps as u64)),
        ("operations/s".into(), count(report.throughput_ops as u64)),
        ("commits".into(), count(report.commits)),
        ("aborts".into(), count(report.aborts)),
    ];
    rows.extend(report.abort_causes.iter().map(|(cause, aborts)| (format!("  {cause}"), count(*aborts))));
    rows.extend([
        ("latency p50".to_owned(), microseconds(latency.p50)),
        ("latency p99".into(), microseconds(latency.p99)),
        ("latency p99.9".into(), microseconds(latency.p999)),
        ("latency max".into(), microseconds(latency.max)),
        ("processor time".into(), format!("{:.1} s", report.processor_seconds)),
        ("  of transactions".into(), format!("{:.1} s", report.transaction_seconds)),
        ("idle time".into(), format!("{:.1} s", report.idle_seconds)),
        ("peak memory".into(), bytes(report.peak_rss_bytes)),
        ("disk".into(), bytes(report.disk_bytes)),
        ("load".into(), format!("{:.1} s", report.load_seconds)),
        ("written to the log".into(), bytes(report.bytes_written_log)),
        ("written to the store".into(), bytes(report.bytes_written_store)),
        ("checkpoints".into(), report.checkpoints.to_string()),
    ]);
    rows
}
