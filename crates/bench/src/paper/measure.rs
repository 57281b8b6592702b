//! The measurements behind the figures.

use super::figure::{Axis, Curve, Figure};
use super::{PaperBench, PaperProgress, collection, hekaton, latencies, machine};
use crate::process::thread_seconds;
use crate::times::DataComponentTimes;
use crate::{
    Ahead, BenchError, DELAYED, DeviceBench, DeviceReport, Driver, EmbeddedStore, Loaded, Report, Skew,
    Timeline, Workload, load, run, run_timeline,
};
use deuteron::{Options, VERSION_MEMORY_BYTES_MIN};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const READ_SHARES: [f64; 12] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.84, 0.9, 1.0];
/// The paper's number of runs of a point of Figure 6.
const RUNS_OF_THREADS: usize = 5;
/// Runs with checkpoints and runs without, in turns.
const RUNS_OF_CHECKPOINTS: usize = 3;
/// Figure 9 is measured so many times as long as a point: five minutes, with five seconds a point.
const TIMELINE_POINTS: u32 = 60;
/// Figure 8: rounds of the proxy are seconds apart.
const LATENCY_POINTS: u32 = 3;
/// As Figure 9, with a low limit.
const LOW_TIMELINE_POINTS: u32 = 6;
/// Memory for versions of each record in Figure 8: about as much as all of them take, of which half may lie idle in the pool.
const VERSION_BYTES: usize = 300;
/// The same in Figure 9: not enough for all.
const VERSION_BYTES_FEW: usize = 200;
/// The same of the paper's low limit, 1 GB.
const VERSION_BYTES_LOW: usize = 20;
/// Accesses of the paper in its two minutes of Figure 5, for each record: 1.5 million transactions a second of four, of 50 million records.
const ACCESSES_A_RECORD: f64 = 14.4;
/// Figure 5 takes at most so many times as long as a point.
const TOUCHING_POINTS: f64 = 60.0;
/// More log than any run writes: no checkpoint.
const NO_CHECKPOINT: u64 = 1 << 50;
/// The most that is written to measure the device, and the least.
const DEVICE_FILE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=512 << 20;

/// What the device can do, and all figures in the paper's order.
pub(super) fn all(
    bench: &PaperBench,
    progress: &mut dyn FnMut(PaperProgress),
) -> Result<(DeviceReport, Vec<Figure>), BenchError> {
    let mut points = Points { bench, progress, done: 0 };
    points.step(0);
    let device = points.device()?;
    let threads = points.throughput_by_threads()?;
    let best = threads.curves[0].points.iter().fold(0.0f64, |best, (_, rate)| best.max(*rate));
    let mut figures = points.touched(1e6 * best)?.to_vec();
    figures.push(threads);
    figures.extend(points.throughput_by_reads(&device)?);
    figures.extend(points.latencies()?);
    figures.extend(points.timelines()?);
    figures.push(points.checkpoints()?);
    figures.extend(points.hekaton()?);
    Ok((device, figures))
}

struct Points<'a> {
    bench: &'a PaperBench,
    progress: &'a mut dyn FnMut(PaperProgress),
    done: u64,
}

/// A database of one figure; its directory goes when that is measured.
struct Measured {
    store: EmbeddedStore,
    directory: Removed,
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // What cannot be removed is left for the user, who has given the directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Points<'_> {
    fn step(&mut self, measurements: u64) {
        self.done += measurements;
        let rounds = |least: usize| self.bench.rounds.max(least) as u64;
        let total = self.threads().len() as u64 * rounds(RUNS_OF_THREADS)
            + (READ_SHARES.len() + 1 + 2 * hekaton::SIZES.len()) as u64 * rounds(1)
            + 4 * rounds(RUNS_OF_CHECKPOINTS)
            + u64::from(LATENCY_POINTS + TIMELINE_POINTS + LOW_TIMELINE_POINTS)
            + 2;
        (self.progress)(PaperProgress { done: self.done, total });
    }

    fn threads(&self) -> Vec<usize> {
        std::iter::successors(Some(1), |threads| Some(threads * 2))
            .take_while(|threads| *threads <= self.bench.threads)
            .collect()
    }

    fn driver(&self, threads: usize) -> Driver {
        let seconds = self.bench.seconds;
        Driver { threads, warmup: seconds / 4, seconds, pin: self.bench.pin.clone(), ..Driver::default() }
    }

    fn processors(&self) -> usize {
        machine::processors().min(self.bench.threads)
    }

    fn paper(&self) -> Workload {
        Workload::paper(self.bench.records())
    }

    /// A database with the records of `workload`, which commits with a delay.
    fn open(&self, name: &str, options: Options, workload: &Workload) -> Result<Measured, BenchError> {
        let directory = self.bench.directory.join(name);
        let removed = Removed(directory.clone());
        let store = EmbeddedStore::open(options, &directory, DELAYED, 1)?;
        load(&store, workload, &self.driver(self.processors()), &mut |_| {})?;
        Ok(Measured { store, directory: removed })
    }

    /// The same, closed after it has been loaded and opened again: nothing is in the table of versions yet.
    fn open_again(&self, name: &str, options: Options, workload: &Workload) -> Result<Measured, BenchError> {
        let Measured { store, directory } = self.open(name, options.clone(), workload)?;
        store.close()?;
        let store = EmbeddedStore::open(options, &directory.0, DELAYED, 1)?;
        Ok(Measured { store, directory })
    }

    fn options(&self) -> Options {
        let options = Options::new().memory(self.bench.memory);
        match &self.bench.pin_background {
            None => options,
            Some(processors) => options.pin_background(processors.clone()),
        }
    }

    /// The same with so many bytes for the versions of each record.
    fn options_for_versions(&self, bytes: usize) -> Options {
        let all = bytes * self.bench.records() as usize;
        self.options().version_memory(all.max(VERSION_MEMORY_BYTES_MIN))
    }

    /// As many runs as there are rounds, by their throughput.
    fn runs(
        &mut self,
        store: &EmbeddedStore,
        workload: &Workload,
        driver: &Driver,
    ) -> Result<Vec<Report>, BenchError> {
        self.runs_of(self.bench.rounds, store, workload, driver)
    }

    fn runs_of(
        &mut self,
        rounds: usize,
        store: &EmbeddedStore,
        workload: &Workload,
        driver: &Driver,
    ) -> Result<Vec<Report>, BenchError> {
        let mut reports = Vec::new();
        for _ in 0..rounds {
            reports.push(run(store, workload, driver, Loaded::default(), &mut |_| {})?);
            self.step(1);
        }
        reports.sort_by(|one, other| one.throughput_ops.total_cmp(&other.throughput_ops));
        Ok(reports)
    }

    /// Table 1: what the device can do.
    fn device(&mut self) -> Result<DeviceReport, BenchError> {
        const MEBIBYTE: u64 = 1 << 20;
        let file_bytes = (self.bench.records() * 100).next_multiple_of(MEBIBYTE);
        let bench = DeviceBench {
            file_bytes: file_bytes.clamp(*DEVICE_FILE_BYTES.start(), *DEVICE_FILE_BYTES.end()),
            seconds: self.bench.seconds / 5,
            ..DeviceBench::new(&self.bench.directory)
        };
        let report = bench.run(&mut |_| {})?;
        self.step(1);
        Ok(report)
    }

    /// Figure 5: the records that transactions have read or written, from an empty table of versions on, until there were as many
    /// accesses as in the paper's two minutes.
    fn touched(&mut self, transactions_per_second: f64) -> Result<[Figure; 2], BenchError> {
        let (workload, records) = (self.paper(), self.bench.records());
        let Measured { store, directory } = self.open_again("figure-5", self.options(), &workload)?;
        let store = store.noting_touched(records);
        let operations_per_second = transactions_per_second * workload.operations_per_transaction as f64;
        // At first, when all is read from the data component, it is slower.
        let seconds = 2.0 * ACCESSES_A_RECORD * records as f64 / operations_per_second.max(1.0);
        let least = self.bench.seconds.as_secs_f64();
        let seconds = Duration::from_secs_f64(seconds.clamp(least, TOUCHING_POINTS * least));
        let driver = Driver { warmup: Duration::ZERO, seconds, ..self.driver(self.processors()) };
        run(&store, &workload, &driver, Loaded::default(), &mut |_| {})?;
        self.step(1);
        let samples = store.touched().map(crate::touched::Touched::samples).unwrap_or_default();
        store.close()?;
        drop(directory);
        let share = |touched: u64| 100.0 * touched as f64 / records as f64;
        let accesses = |accesses: u64| accesses as f64 / records as f64;
        let among: Vec<_> =
            samples.iter().filter(|sample| accesses(sample.accesses) <= ACCESSES_A_RECORD).collect();
        let y = Axis::linear("records touched, per cent");
        Ok([
            Figure {
                name: "figure-5",
                title: "Figure 5: how much of the database has been touched".into(),
                note: format!(
                    "Records of {records} that transactions have read or written, noted as they are answered, with {} threads, from an \
                     empty table of versions on. The paper: more than 2.5 of about 5 GB within 20 s, at 1.5 M transactions/s; nearly \
                     all within two minutes. Its database is larger by the scale.",
                    driver.threads
                ),
                x: Axis::logarithmic("seconds"),
                y,
                curves: vec![
                    Curve::measured(
                        "this machine",
                        among.iter().map(|sample| (sample.elapsed.as_secs_f64(), share(sample.records))).collect(),
                    ),
                    Curve::paper("the paper's machine", &[(20.0, 50.0), (120.0, 100.0)]),
                ],
            },
            Figure {
                name: "figure-5-accesses",
                title: "Figure 5 by accesses: the same, whatever the speed and the scale".into(),
                note: "Reads and writes by the counters of the transaction component, aborted transactions included. The paper's 20 s and two \
                       minutes are 2.4 and 14.4 accesses for each record."
                    .into(),
                x: Axis::linear("accesses, for each record of the database"),
                y,
                curves: vec![
                    Curve::measured(
                        "this machine",
                        among.iter().map(|sample| (accesses(sample.accesses), share(sample.records))).collect(),
                    ),
                    Curve::paper("the paper's machine", &[(0.0, 0.0), (2.4, 50.0), (ACCESSES_A_RECORD, 100.0)]),
                ],
            },
        ])
    }

    /// Figure 6.
    fn throughput_by_threads(&mut self) -> Result<Figure, BenchError> {
        let workload = self.paper();
        let measured = self.open("figure-6", self.options(), &workload)?;
        let (mut means, mut spread) = (Vec::new(), Vec::new());
        let (mut commits, mut aborts) = (0, 0);
        for threads in self.threads() {
            let rounds = self.bench.rounds.max(RUNS_OF_THREADS);
            let reports = self.runs_of(rounds, &measured.store, &workload, &self.driver(threads))?;
            let rates: Vec<f64> = reports.iter().map(|report| report.throughput_tps / 1e6).collect();
            means.push((threads as f64, rates.iter().sum::<f64>() / rates.len() as f64));
            spread.push((rates[0], rates[rates.len() - 1]));
            commits += reports.iter().map(|report| report.commits).sum::<u64>();
            aborts += reports.iter().map(|report| report.aborts).sum::<u64>();
        }
        measured.store.close()?;
        Ok(Figure {
            name: "figure-6",
            title: "Figure 6: throughput by threads".into(),
            note: format!(
                "84 % reads, 4 operations a transaction (so half of the transactions only read), 80-20 skew, serializable, delayed \
                 commits; means of {} runs, the bars from the least to the most. {:.4} % of the transactions were aborted. The paper \
                 states 1.5 M with 32 threads and few aborts, and 1.3 M with 16 in its steady state of figure 9; posting has up to 16 \
                 more hardware threads there, here the same {}.",
                self.bench.rounds.max(RUNS_OF_THREADS),
                100.0 * aborts as f64 / (commits + aborts).max(1) as f64,
                machine::processors()
            ),
            x: Axis::linear("threads that run transactions"),
            y: Axis::linear("million transactions a second"),
            curves: vec![
                Curve::measured("this machine", means).between(spread),
                Curve::paper("the paper's machine", &[(16.0, 1.3), (32.0, 1.5)]),
            ],
        })
    }

    /// Figure 7.
    fn throughput_by_reads(&mut self, device: &DeviceReport) -> Result<[Figure; 3], BenchError> {
        let measured = self.open("figure-7", self.options(), &self.paper())?;
        let driver = self.driver(self.processors());
        let [mut rates, mut log, mut pages] = [const { Vec::new() }; 3];
        let mut busy: [Vec<(f64, f64)>; BEHIND.len()] = Default::default();
        for share in READ_SHARES {
            let (begin, before) = (Instant::now(), behind_seconds(&measured.store));
            let reports = self.runs(&measured.store, &self.paper().with_read_ratio(share), &driver)?;
            let processors = machine::processors() as f64 * begin.elapsed().as_secs_f64();
            let after = behind_seconds(&measured.store);
            let report = &reports[reports.len() / 2];
            let (reads, seconds) = (100.0 * share, driver.seconds.as_secs_f64());
            rates.push((reads, report.throughput_tps / 1e6));
            log.push((reads, report.bytes_written_log as f64 / seconds / 1e6));
            pages.push((reads, report.bytes_written_store as f64 / seconds / 1e6));
            for (busy, (before, after)) in busy.iter_mut().zip(before.into_iter().zip(after)) {
                busy.push((reads, 100.0 * (after - before) / processors));
            }
        }
        let skewed = Workload { skew: Skew::Zipf(0.99), ..self.paper().with_read_ratio(1.0) };
        let reports = self.runs(&measured.store, &skewed, &driver)?;
        let skewed = reports[reports.len() / 2].throughput_tps / 1e6;
        measured.store.close()?;
        let x = Axis::linear("reads, per cent");
        let sums = |one: &[(f64, f64)], other: &[(f64, f64)]| -> Vec<(f64, f64)> {
            one.iter().zip(other).map(|(one, other)| (one.0, one.1 + other.1)).collect()
        };
        let written = sums(&log, &pages);
        let peak = device.write_bytes_per_second / 1e6;
        let all = busy.iter().skip(1).fold(busy[0].clone(), |sum, part| sums(&sum, part));
        let parts = BEHIND.iter().zip(busy).map(|((name, _), points)| Curve::measured(*name, points));
        let utilization = [Curve::measured("all behind transactions", all)].into_iter().chain(parts);
        Ok([
            Figure {
                name: "figure-7-throughput",
                title: "Figure 7: throughput by the share of reads".into(),
                note: format!(
                    "{} threads. The paper: 1.5 M at 84 %, between 1 and 2 M for mixes that mostly read, 14 M operations/s (3.5 M \
                     transactions) for more skewed ones that nearly only read: beside it reads only by Zipf's law, 0.99.",
                    driver.threads
                ),
                x,
                y: Axis::linear("million transactions a second"),
                curves: vec![
                    Curve::measured("this machine", rates),
                    Curve::measured("more skewed, reads only", vec![(100.0, skewed)]),
                    Curve::paper("the paper's machine", &[(84.0, 1.5)]),
                    Curve::paper("the paper's, more skewed", &[(100.0, 3.5)]),
                ],
            },
            Figure {
                name: "figure-7-utilization",
                title: "Figure 7: processor time of what is done behind transactions".into(),
                note: "The share of all processors that posting to the data component takes, those who help the proxy's thread included, \
                       and the other threads of the database. The paper's proxy and data component have 16 hardware threads of their \
                       own, all of which are busy below some 70 % reads; here they share the processors with the transactions. Posting comes in \
                       rounds, some seconds apart: of a short point it tells little."
                    .into(),
                x,
                y: Axis::linear("per cent of the processors"),
                curves: utilization
                    .chain([Curve::paper("the paper's, of its 16 threads", &[(0.0, 100.0), (70.0, 100.0)])])
                    .collect(),
            },
            Figure {
                name: "figure-7-bandwidth",
                title: "Figure 7: what is written, by the share of reads".into(),
                note: format!(
                    "By the log and by the store of the data component, and what the device takes in sequential writes: {:.0} % of that \
                     with writes only. The paper: 390 MB/s with writes only, 89 % of its device.",
                    100.0 * written.first().map_or(0.0, |point| point.1) / peak.max(1e-9)
                ),
                x,
                y: Axis::logarithmic("MB a second"),
                curves: vec![
                    Curve::measured("log and store", written),
                    Curve::measured("log", log),
                    Curve::measured("store", pages),
                    Curve::measured("the device, sequential writes", vec![(0.0, peak), (100.0, peak)]),
                    Curve::paper("written, the paper's machine", &[(0.0, 390.0)]),
                    Curve::paper("its device", &[(0.0, 440.0), (100.0, 440.0)]),
                ],
            },
        ])
    }

    /// Figure 8.
    fn latencies(&mut self) -> Result<[Figure; 2], BenchError> {
        let workload = self.paper();
        let component = Arc::new(DataComponentTimes::new());
        let options = self.options_for_versions(VERSION_BYTES);
        let options = options.observe_data_component(Arc::clone(&component) as _);
        // What was loaded is not in memory, so that there are gets at any scale.
        let Measured { store, directory } = self.open_again("figure-8", options, &workload)?;
        let store = store.with_ahead(Ahead::Nothing);
        let driver = self.driver(self.processors());
        // Until the table of versions is as full as it gets.
        let warmup = Driver { warmup: Duration::ZERO, ..driver.clone() };
        run(&store, &workload, &warmup, Loaded::default(), &mut |_| {})?;
        let store = store.timing_operations();
        component.take();
        let driver = Driver { warmup: Duration::ZERO, seconds: driver.seconds * LATENCY_POINTS, ..driver };
        run(&store, &workload, &driver, Loaded::default(), &mut |_| {})?;
        self.step(u64::from(LATENCY_POINTS));
        let transactions = store.take_times();
        // What has not been posted is now.
        store.close()?;
        drop(directory);
        Ok(latencies::figure_8(&transactions, &component.take()))
    }

    /// Figure 9, and section 6.5's low limit.
    fn timelines(&mut self) -> Result<[Figure; 4], BenchError> {
        let timeline = self.timeline("figure-9", VERSION_BYTES_FEW, TIMELINE_POINTS)?;
        let low = self.timeline("section-6-5", VERSION_BYTES_LOW, LOW_TIMELINE_POINTS)?;
        Ok(collection::figure_9(&timeline, &low, self.processors()))
    }

    /// So many times as long as a point, from an empty table of versions on, without checkpoints.
    fn timeline(&mut self, name: &str, version_bytes: usize, points: u32) -> Result<Timeline, BenchError> {
        let workload = self.paper();
        let options = self.options_for_versions(version_bytes).checkpoint_every(NO_CHECKPOINT);
        let Measured { store, directory } = self.open_again(name, options, &workload)?;
        let driver = self.driver(self.processors());
        let driver = Driver { warmup: Duration::ZERO, seconds: driver.seconds * points, ..driver };
        let timeline = run_timeline(&store, &workload, &driver, &mut |_| {})?;
        self.step(u64::from(points));
        store.close()?;
        drop(directory);
        Ok(timeline)
    }

    /// Section 6.6.
    fn checkpoints(&mut self) -> Result<Figure, BenchError> {
        let directory = Removed(self.bench.directory.join("section-6-6"));
        let driver = self.driver(self.processors());
        let mut curves = Vec::new();
        for (name, reads) in [("84 % reads", 0.84), ("writes only", 0.0)] {
            let workload = self.paper().with_read_ratio(reads);
            let mut rates = [const { Vec::new() }; 2];
            // About three checkpoints a run, of what the first run without writes.
            let mut checkpoint_every = None;
            for _ in 0..self.bench.rounds.max(RUNS_OF_CHECKPOINTS) {
                for (rates, has_checkpoints) in rates.iter_mut().zip([false, true]) {
                    let every = checkpoint_every.filter(|_| has_checkpoints).unwrap_or(NO_CHECKPOINT);
                    let options = self.options().checkpoint_every(every);
                    let store = EmbeddedStore::open(options, &directory.0, DELAYED, 1)?;
                    load(&store, &workload, &driver, &mut |_| {})?;
                    let reports = self.runs_of(1, &store, &workload, &driver)?;
                    store.close()?;
                    rates.push(reports[0].throughput_tps);
                    checkpoint_every.get_or_insert((reports[0].bytes_written_log / 3).max(1 << 20));
                }
            }
            let [without, with] = rates.map(|mut rates: Vec<f64>| {
                rates.sort_by(f64::total_cmp);
                rates[rates.len() / 2]
            });
            curves
                .push(Curve::measured(name, vec![(100.0 * (1.0 - reads), 100.0 * with / without.max(1.0))]));
        }
        curves.push(Curve::paper("the paper's machine", &[(16.0, 100.0), (100.0, 92.0)]));
        Ok(Figure {
            name: "section-6-6",
            title: "Section 6.6: throughput with checkpoints".into(),
            note: "As a share of that without any, medians of runs in turns; about three checkpoints in each run. The paper: nothing that could be measured on the \
                   mix, 8 % less with writes only, with a checkpoint every 45 s."
                .into(),
            x: Axis::linear("writes, per cent"),
            y: Axis::linear("throughput, per cent of that without checkpoints"),
            curves,
        })
    }

    /// Hekaton's Tables 1 and 2: one thread, uniform keys, a million rows of 40 bytes.
    fn hekaton(&mut self) -> Result<Vec<Figure>, BenchError> {
        let records = self.bench.records().min(hekaton::ROWS);
        let base = Workload { value_bytes: 40, skew: Skew::Uniform, ..Workload::paper(records) };
        let measured = self.open("hekaton", self.options(), &base)?;
        let mut figures = Vec::new();
        for table in &hekaton::TABLES {
            let mut reports = Vec::new();
            for size in hekaton::SIZES {
                let workload = Workload {
                    operations_per_transaction: size,
                    ..base.clone().with_read_ratio(table.reads)
                };
                let runs = self.runs(&measured.store, &workload, &self.driver(1))?;
                reports.push(runs[runs.len() / 2].clone());
            }
            figures.push(hekaton::figure(table, &reports, machine::megahertz()));
        }
        measured.store.close()?;
        Ok(figures)
    }
}

/// What is done behind transactions, and the thread that does it.
const BEHIND: [(&str, &str); 4] = [
    ("posting", "deuteron-proxy"),
    ("versions and pages", "deuteron-keeper"),
    ("checkpoints", "deuteron-checkpointer"),
    ("log", "deuteron-flusher"),
];

/// The processor time of each of [`BEHIND`], so far.
fn behind_seconds(store: &EmbeddedStore) -> [f64; BEHIND.len()] {
    let mut seconds = BEHIND.map(|(_, thread)| thread_seconds(thread));
    // Who helps the proxy is gone when it has.
    let [helpers] = store.counters(["proxy.helpers_microseconds"]);
    seconds[0] += helpers as f64 / 1e6;
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_scale_gives_every_file_and_leaves_no_database() {
        let scratch = tempfile::tempdir().unwrap();
        let bench = PaperBench {
            scale: 0.00004,
            seconds: Duration::from_millis(60),
            threads: 2,
            memory: 64 << 20,
            ..PaperBench::new(scratch.path().join("databases"), scratch.path().join("report"))
        };
        let mut last = (0, 0);
        let figures = bench
            .run(&mut |progress| {
                assert!(progress.done >= last.0);
                last = (progress.done, progress.total);
            })
            .unwrap();
        assert_eq!(last.0, last.1, "the bar ends at its end");
        let page = std::fs::read_to_string(bench.output.join("index.html")).unwrap();
        for figure in &figures {
            let svg = std::fs::read_to_string(bench.output.join(format!("{}.svg", figure.name))).unwrap();
            assert!(svg.contains("<svg") && svg.contains("</svg>"), "{}", figure.name);
            let csv = std::fs::read_to_string(bench.output.join(format!("{}.csv", figure.name))).unwrap();
            assert!(csv.lines().count() > 1, "{}", figure.name);
            let png = std::fs::read(bench.output.join(format!("{}.png", figure.name))).unwrap();
            assert!(png.starts_with(b"\x89PNG"), "{}", figure.name);
            assert!(page.contains(&format!("{}.svg", figure.name)));
        }
        let names: Vec<&str> = figures.iter().map(|figure| figure.name).collect();
        for name in [
            "figure-5",
            "figure-5-accesses",
            "figure-6",
            "figure-7-throughput",
            "figure-7-utilization",
            "figure-7-bandwidth",
            "figure-8-left",
            "figure-8-right",
            "figure-9-throughput",
            "figure-9-memory",
            "figure-9-collection",
            "section-6-5-low-limit",
            "section-6-6",
            "hekaton-table-1",
            "hekaton-table-2",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert_eq!(std::fs::read_dir(&bench.directory).unwrap().count(), 0);
        let of = |name: &str| figures.iter().find(|figure| figure.name == name).unwrap();
        let touched = &of("figure-5-accesses").curves[0].points;
        assert!(touched.len() > 100 && touched.is_sorted_by(|one, other| one.1 < other.1), "{touched:?}");
        assert!(touched.iter().all(|(accesses, share)| 100.0 * accesses >= *share - 1.0), "{touched:?}");
        assert_eq!(of("figure-6").curves[0].spread.len(), 2);
        assert!(of("figure-8-left").curves.iter().any(|curve| curve.name.starts_with("upserts")));
        assert_eq!(of("figure-7-utilization").curves.len(), 1 + BEHIND.len() + 1);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let bench = PaperBench::new("nowhere", "nowhere");
        for bench in [
            PaperBench { scale: 0.0, ..bench.clone() },
            PaperBench { scale: f64::NAN, ..bench.clone() },
            PaperBench { rounds: 0, ..bench.clone() },
            PaperBench { seconds: Duration::ZERO, ..bench },
        ] {
            assert!(matches!(bench.run(&mut |_| {}), Err(BenchError::Settings(_))));
        }
    }
}
