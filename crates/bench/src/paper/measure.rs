//! The measurements behind the figures.

use super::figure::{Axis, Curve, Figure};
use super::{PaperBench, PaperProgress};
use crate::process::thread_seconds;
use crate::times::OperationTimes;
use crate::{
    Ahead, BenchError, DELAYED, Driver, EmbeddedStore, Generator, Loaded, Report, Skew, Timeline, Workload,
    load, run, run_timeline,
};
use deuteron::Options;
use hdrhistogram::Histogram;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

const READ_SHARES: [f64; 7] = [0.0, 0.2, 0.4, 0.6, 0.7, 0.84, 1.0];
/// Operations in a transaction of Hekaton's tables.
const TRANSACTION_SIZES: [usize; 5] = [1, 10, 100, 1_000, 10_000];
/// Hekaton's processor, in cycles a microsecond.
const HEKATON_MHZ: f64 = 2670.0;
/// Cycles of a transaction, in millions, by its size: Tables 1 and 2, the compiled procedures.
const HEKATON_LOOKUPS: [f64; 5] = [0.040, 0.051, 0.150, 1.063, 9.85];
const HEKATON_UPDATES: [f64; 5] = [0.045, 0.059, 0.260, 1.50, 14.4];
/// Figure 9 is measured so many times as long as a point.
const TIMELINE_POINTS: u32 = 6;
/// More log than any run writes: no checkpoint.
const NO_CHECKPOINT: u64 = 1 << 50;

/// All figures, in the paper's order.
pub(super) fn all(
    bench: &PaperBench,
    progress: &mut dyn FnMut(PaperProgress),
) -> Result<Vec<Figure>, BenchError> {
    let mut points = Points { bench, progress, done: 0 };
    points.step(0);
    let threads = points.throughput_by_threads()?;
    let best = threads.curves[0].points.iter().fold(0.0f64, |best, (_, rate)| best.max(*rate));
    let mut figures = vec![points.touched(1e6 * best), threads];
    figures.extend(points.throughput_by_reads()?);
    figures.push(points.latencies()?);
    figures.extend(points.timeline()?);
    figures.push(points.checkpoints()?);
    figures.push(points.hekaton()?);
    Ok(figures)
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
        let rounds = self.bench.rounds as u64;
        let points = self.threads().len() + READ_SHARES.len() + 4 + 2 * TRANSACTION_SIZES.len();
        let total = points as u64 * rounds + 1 + u64::from(TIMELINE_POINTS);
        (self.progress)(PaperProgress { done: self.done, total });
    }

    fn threads(&self) -> Vec<usize> {
        std::iter::successors(Some(1), |threads| Some(threads * 2))
            .take_while(|threads| *threads <= self.bench.threads)
            .collect()
    }

    fn driver(&self, threads: usize) -> Driver {
        let seconds = self.bench.seconds;
        Driver { threads, warmup: seconds / 4, seconds, ..Driver::default() }
    }

    fn processors(&self) -> usize {
        std::thread::available_parallelism().map_or(1, |number| number.get()).min(self.bench.threads)
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
        Options::new().memory(self.bench.memory)
    }

    /// As many runs as there are rounds, by their throughput.
    fn runs(
        &mut self,
        store: &EmbeddedStore,
        workload: &Workload,
        driver: &Driver,
    ) -> Result<Vec<Report>, BenchError> {
        let mut reports = Vec::new();
        for _ in 0..self.bench.rounds {
            reports.push(run(store, workload, driver, Loaded::default(), &mut |_| {})?);
            self.step(1);
        }
        reports.sort_by(|one, other| one.throughput_ops.total_cmp(&other.throughput_ops));
        Ok(reports)
    }

    /// Figure 5: distinct records among those that the workload's generator draws, at the rate that was measured.
    fn touched(&self, transactions_per_second: f64) -> Figure {
        let (workload, records) = (self.paper(), self.bench.records());
        let operations_per_second = transactions_per_second * workload.operations_per_transaction as f64;
        let present = AtomicU64::new(records);
        let mut generator = Generator::new(&workload, &present, 1);
        let mut touched = vec![false; records as usize];
        let (mut steps, mut drawn, mut distinct) = (Vec::new(), 0u64, 0u64);
        let mut points = vec![(0.0, 0.0)];
        for sample in 1..=40u64 {
            while drawn < sample * records / 4 {
                generator.transaction(&mut steps);
                for key in steps.iter().filter_map(|step| step.key()) {
                    drawn += 1;
                    distinct += u64::from(!std::mem::replace(&mut touched[key as usize], true));
                }
            }
            points.push((
                drawn as f64 / operations_per_second.max(1.0),
                100.0 * distinct as f64 / records as f64,
            ));
        }
        Figure {
            name: "figure-5",
            title: "Figure 5: how much of the database has been touched".into(),
            note: "The keys that the workload draws, at the best rate of figure 6. The paper: more than 2.5 of about 5 GB within 20 s, \
                   at 1.5 M transactions/s; nearly all within two minutes. Its database is larger by the scale."
                .into(),
            x: Axis::linear("seconds"),
            y: Axis::linear("records touched, per cent"),
            curves: vec![
                Curve::measured("this machine", points),
                Curve::paper("the paper's machine", &[(0.0, 0.0), (20.0, 50.0), (120.0, 100.0)]),
            ],
        }
    }

    /// Figure 6.
    fn throughput_by_threads(&mut self) -> Result<Figure, BenchError> {
        let workload = self.paper();
        let measured = self.open("figure-6", self.options(), &workload)?;
        let [mut middle, mut least, mut most] = [const { Vec::new() }; 3];
        for threads in self.threads() {
            let reports = self.runs(&measured.store, &workload, &self.driver(threads))?;
            let rate = |report: &Report| (threads as f64, report.throughput_tps / 1e6);
            middle.push(rate(&reports[reports.len() / 2]));
            least.push(rate(&reports[0]));
            most.push(rate(&reports[reports.len() - 1]));
        }
        let mut curves = vec![Curve::measured("this machine", middle)];
        if self.bench.rounds > 1 {
            curves.extend([Curve::measured("least", least), Curve::measured("most", most)]);
        }
        curves.push(Curve::paper("the paper's machine", &[(16.0, 1.3), (32.0, 1.5)]));
        measured.store.close()?;
        Ok(Figure {
            name: "figure-6",
            title: "Figure 6: throughput by threads".into(),
            note: "84 % reads, 4 operations a transaction, 80-20 skew, serializable, delayed commits. The paper states 1.5 M with 32 \
                   threads, and 1.3 M with 16 in its steady state of figure 9; posting has up to 16 more hardware threads there."
                .into(),
            x: Axis::linear("threads that run transactions"),
            y: Axis::linear("million transactions a second"),
            curves,
        })
    }

    /// Figure 7.
    fn throughput_by_reads(&mut self) -> Result<[Figure; 2], BenchError> {
        let measured = self.open("figure-7", self.options(), &self.paper())?;
        let driver = self.driver(self.processors());
        let [mut rates, mut posting, mut written] = [const { Vec::new() }; 3];
        let seconds = (driver.warmup + driver.seconds).as_secs_f64() * self.bench.rounds as f64;
        for share in READ_SHARES {
            let before = thread_seconds("deuteron-proxy");
            let reports = self.runs(&measured.store, &self.paper().with_read_ratio(share), &driver)?;
            let report = &reports[reports.len() / 2];
            let bytes = (report.bytes_written_log + report.bytes_written_store) as f64;
            rates.push((100.0 * share, report.throughput_tps / 1e6));
            posting.push((100.0 * share, 100.0 * (thread_seconds("deuteron-proxy") - before) / seconds));
            written.push((100.0 * share, bytes / driver.seconds.as_secs_f64() / 1e6));
        }
        measured.store.close()?;
        let x = Axis::linear("reads, per cent");
        Ok([
            Figure {
                name: "figure-7-throughput",
                title: "Figure 7: throughput by the share of reads".into(),
                note: format!("{} threads. The paper: 1.5 M at 84 %.", driver.threads),
                x,
                y: Axis::linear("million transactions a second"),
                curves: vec![
                    Curve::measured("this machine", rates),
                    Curve::paper("the paper's machine", &[(84.0, 1.5)]),
                ],
            },
            Figure {
                name: "figure-7-posting",
                title: "Figure 7: what posting takes, and what is written".into(),
                note: "The share of one processor that the thread takes which posts to the data component, and what log and store \
                       write. The paper: all 16 threads of the proxy are busy below 70 % reads; 390 MB/s when there are only writes."
                    .into(),
                x,
                y: Axis::linear("per cent of a processor; MB a second"),
                curves: vec![
                    Curve::measured("posting, %", posting),
                    Curve::measured("written, MB/s", written),
                    Curve::paper("written, the paper's machine", &[(0.0, 390.0)]),
                ],
            },
        ])
    }

    /// Figure 8.
    fn latencies(&mut self) -> Result<Figure, BenchError> {
        let workload = self.paper();
        // So that there are gets of the data component. Those of the warm-up count, too.
        let Measured { store, directory } = self.open_again("figure-8", self.options(), &workload)?;
        let store = store.with_ahead(Ahead::Nothing).timing_operations();
        let driver = self.driver(self.processors());
        run(&store, &workload, &driver, Loaded::default(), &mut |_| {})?;
        self.step(1);
        let times = store.take_times();
        store.close()?;
        drop(directory);
        Ok(figure_8(&times))
    }

    /// Figure 9: the table of versions begins empty.
    fn timeline(&mut self) -> Result<[Figure; 3], BenchError> {
        let workload = self.paper();
        // Twice the records: what the table of versions gets of that is less than it would take.
        let record_bytes = workload.value_bytes * self.bench.records() as usize;
        let options = Options::new().memory((record_bytes * 2).max(64 << 20));
        let Measured { store, directory } = self.open_again("figure-9", options, &workload)?;
        let driver = self.driver(self.processors());
        let driver = Driver { warmup: Duration::ZERO, seconds: driver.seconds * TIMELINE_POINTS, ..driver };
        let timeline = run_timeline(&store, &workload, &driver, &mut |_| {})?;
        self.step(u64::from(TIMELINE_POINTS));
        store.close()?;
        drop(directory);
        Ok(figure_9(&timeline))
    }

    /// Section 6.6.
    fn checkpoints(&mut self) -> Result<Figure, BenchError> {
        let directory = Removed(self.bench.directory.join("section-6-6"));
        let driver = self.driver(self.processors());
        let mut curves = Vec::new();
        for (name, reads) in [("84 % reads", 0.84), ("writes only", 0.0)] {
            let workload = self.paper().with_read_ratio(reads);
            let mut rates = [0.0; 2];
            // About three checkpoints a run, of what the runs without write.
            let mut every = NO_CHECKPOINT;
            for rate in &mut rates {
                let options = self.options().checkpoint_every(every);
                let store = EmbeddedStore::open(options, &directory.0, DELAYED, 1)?;
                load(&store, &workload, &driver, &mut |_| {})?;
                let reports = self.runs(&store, &workload, &driver)?;
                store.close()?;
                let report = &reports[reports.len() / 2];
                *rate = report.throughput_tps;
                every = (report.bytes_written_log / 3).max(1 << 20);
            }
            let [without, with] = rates;
            curves
                .push(Curve::measured(name, vec![(100.0 * (1.0 - reads), 100.0 * with / without.max(1.0))]));
        }
        curves.push(Curve::paper("the paper's machine", &[(16.0, 100.0), (100.0, 92.0)]));
        Ok(Figure {
            name: "section-6-6",
            title: "Section 6.6: throughput with checkpoints".into(),
            note: "As a share of that without any; about three checkpoints in each run. The paper: nothing that could be measured on the \
                   mix, 8 % less with writes only, with a checkpoint every 45 s."
                .into(),
            x: Axis::linear("writes, per cent"),
            y: Axis::linear("throughput, per cent of that without checkpoints"),
            curves,
        })
    }

    /// Hekaton's Tables 1 and 2: one thread, uniform keys, records of 40 bytes.
    fn hekaton(&mut self) -> Result<Figure, BenchError> {
        let base = Workload { value_bytes: 40, skew: Skew::Uniform, ..self.paper() };
        let measured = self.open("hekaton", self.options(), &base)?;
        let mut curves = Vec::new();
        let kinds = [("lookups", 1.0, HEKATON_LOOKUPS), ("updates", 0.0, HEKATON_UPDATES)];
        for (name, reads, cycles) in kinds {
            let mut points = Vec::new();
            for size in TRANSACTION_SIZES {
                let workload =
                    Workload { operations_per_transaction: size, ..base.clone().with_read_ratio(reads) };
                let reports = self.runs(&measured.store, &workload, &self.driver(1))?;
                points.push((size as f64, reports[reports.len() / 2].throughput_ops / 1e6));
            }
            let theirs: Vec<_> = TRANSACTION_SIZES
                .iter()
                .zip(cycles)
                .map(|(&size, cycles)| (size as f64, size as f64 / (cycles * 1e6) * HEKATON_MHZ))
                .collect();
            curves.push(Curve::measured(name, points));
            curves.push(Curve::paper(format!("{name}, Hekaton"), &theirs));
        }
        measured.store.close()?;
        Ok(Figure {
            name: "hekaton-tables",
            title: "Hekaton's Tables 1 and 2: operations of one thread".into(),
            note: "Random records of a table; Hekaton's million cycles a transaction at the rate of its processor, compiled \
                   procedures. Ours by the clock, with whatever the background needs of the machine."
                .into(),
            x: Axis::logarithmic("operations in one transaction"),
            y: Axis::logarithmic("million operations a second"),
            curves,
        })
    }
}

fn figure_8(times: &OperationTimes) -> Figure {
    let mut reads = times.reads_here.clone();
    // Equal bounds.
    reads.add(&times.reads_elsewhere).expect("equal bounds");
    let here = 100.0 * times.reads_here.len() as f64 / reads.len().max(1) as f64;
    let mean = |times: &Histogram<u64>| times.mean() / 1000.0;
    Figure {
        name: "figure-8",
        title: "Figure 8: times of single operations".into(),
        note: format!(
            "Each operation by itself within a transaction, the clock included; the database has just been opened. {here:.1} % of the \
             reads are answered by the transaction component (the paper: 92 %). Means: reads {:.2} us, gets of the data component \
             {:.2} us, updates {:.2} us. The paper states 2.4 us for reads and 11 us for gets, drawn here where it has half of them.",
            mean(&reads),
            mean(&times.reads_elsewhere),
            mean(&times.updates),
        ),
        x: Axis::logarithmic("microseconds"),
        y: Axis::linear("operations that took at most that, per cent"),
        curves: vec![
            Curve::measured("reads", distribution(&reads)),
            Curve::measured("gets of the data component", distribution(&times.reads_elsewhere)),
            Curve::measured("updates", distribution(&times.updates)),
            Curve::paper("mean of reads, the paper", &[(2.4, 50.0)]),
            Curve::paper("mean of gets, the paper", &[(11.0, 50.0)]),
        ],
    }
}

/// Per cents by microseconds.
fn distribution(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    if times.is_empty() {
        return Vec::new();
    }
    let quantiles = (0..200).map(|step| f64::from(step) / 200.0).chain([0.995, 0.998, 0.999, 0.9999]);
    quantiles.map(|part| (times.value_at_quantile(part) as f64 / 1000.0, 100.0 * part)).collect()
}

fn figure_9(timeline: &Timeline) -> [Figure; 3] {
    let x = Axis::linear("seconds");
    let points = |of: fn(&crate::TimelineSample) -> f64| -> Vec<(f64, f64)> {
        timeline.samples.iter().map(|sample| (sample.seconds, of(sample))).collect()
    };
    let end = timeline.samples.last().map_or(0.0, |sample| sample.seconds);
    let watermark = timeline.watermark_bytes as f64 / 1e6;
    [
        Figure {
            name: "figure-9-throughput",
            title: "Figure 9: throughput while versions are collected".into(),
            note: format!(
                "From an empty table of versions; {} records were evicted and {} versions dropped. The paper falls from 1.6 M to 1.3 M \
                 transactions/s once its table is full, after 160 s with 16 threads.",
                timeline.evictions, timeline.versions_dropped
            ),
            x,
            y: Axis::linear("million transactions a second"),
            curves: vec![
                Curve::measured("this machine", points(|sample| sample.commits_per_second / 1e6)),
                Curve::paper("the paper's machine, full", &[(0.0, 1.3), (end, 1.3)]),
            ],
        },
        Figure {
            name: "figure-9-memory",
            title: "Figure 9: memory of versions".into(),
            note: "Against the hard watermark; versions are evicted above fifteen sixteenths of it.".into(),
            x,
            y: Axis::linear("MB"),
            curves: vec![
                Curve::measured("versions and records", points(|sample| sample.version_bytes as f64 / 1e6)),
                Curve::measured("hard watermark", vec![(0.0, watermark), (end, watermark)]),
            ],
        },
        Figure {
            name: "figure-9-collection",
            title: "Figure 9: what the collection takes".into(),
            note: "The share of one processor of the thread that collects versions, which also evicts pages. The paper: 4 % of 16 \
                   hardware threads."
                .into(),
            x,
            y: Axis::linear("per cent of a processor"),
            curves: vec![
                Curve::measured("this machine", points(|sample| 100.0 * sample.keeper_share)),
                Curve::paper("the paper's machine", &[(0.0, 64.0), (end, 64.0)]),
            ],
        },
    ]
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
        for name in
            ["figure-5", "figure-6", "figure-7-throughput", "figure-8", "section-6-6", "hekaton-tables"]
        {
            assert!(names.contains(&name), "{names:?}");
        }
        assert_eq!(std::fs::read_dir(&bench.directory).unwrap().count(), 0);
        let hekaton = &figures.last().unwrap().curves[1];
        assert!((hekaton.points[4].1 - 2.71).abs() < 0.01, "2.7 M lookups a second: {:?}", hekaton.points);
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
