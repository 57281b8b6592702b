//! The paper's evaluation on this machine: Table 1, Figures 5 to 9 and sections 6.5 and 6.6 of *High Performance Transactions in
//! Deuteronomy*, and Tables 1 and 2 of *Hekaton*, as pictures, numbers, and a page that shows them.
//!
//! | file | what |
//! |---|---|
//! | `index.html` | all of it, and Table 1, the machine |
//! | `figure-5`, `figure-5-accesses` | how soon, and after how many accesses, how much of the database has been touched |
//! | `figure-6` | throughput by the number of threads, the mean of five runs between the least and the most |
//! | `figure-7-throughput`, `-utilization`, `-bandwidth` | throughput, processor time behind it, and what is written, by the share of reads |
//! | `figure-8-left`, `figure-8-right` | the distribution of the times of single operations, and its tail |
//! | `figure-9-throughput`, `-memory`, `-collection` | a run over time, with little memory for versions, from an empty table of them |
//! | `section-6-5-low-limit` | the same with a limit as low as the paper's 1 GB |
//! | `section-6-6` | throughput with checkpoints over that without |
//! | `hekaton-table-1`, `hekaton-table-2` | cycles of lookups and updates of one thread, by the size of transactions |

mod collection;
mod figure;
mod hekaton;
mod latencies;
mod machine;
mod measure;
mod plot;
mod report;

use crate::BenchError;
use deuteron::Processors;
pub use figure::{Axis, Curve, Figure, Source};
use std::path::PathBuf;
use std::time::Duration;

/// The paper's records.
const RECORDS: f64 = 50e6;

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct PaperBench {
    /// Where databases are put, and removed again.
    pub directory: PathBuf,
    /// Where the report is put.
    pub output: PathBuf,
    /// The share of the paper's 50 million records.
    pub scale: f64,
    /// How long each point is measured.
    pub seconds: Duration,
    /// How often points are measured; the middle one counts. Those of `figure-6` five times at least, of `section-6-6` three times.
    pub rounds: usize,
    /// The most threads of `figure-6`; the others run with as many as there are processors, at most this.
    pub threads: usize,
    /// Memory of the database, in bytes.
    pub memory: usize,
    /// Each thread that runs transactions runs on one of these processors; where the system puts it if there are none.
    pub pin: Option<Processors>,
    /// The database's own threads run on these only.
    pub pin_background: Option<Processors>,
}

/// How far a [`PaperBench`] is.
#[derive(Clone, Copy, Debug)]
pub struct PaperProgress {
    /// Measurements done.
    pub done: u64,
    /// Measurements in all.
    pub total: u64,
}

impl PaperBench {
    /// A fiftieth of the paper's records, 5 seconds a point, one round, up to twice as many threads as there are processors, 2 GiB.
    ///
    /// ```
    /// assert_eq!(deuteron_bench::PaperBench::new("databases", "report").scale, 0.02);
    /// ```
    pub fn new(directory: impl Into<PathBuf>, output: impl Into<PathBuf>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |number| number.get());
        Self {
            directory: directory.into(),
            output: output.into(),
            scale: 0.02,
            seconds: Duration::from_secs(5),
            rounds: 1,
            threads: 2 * processors,
            memory: 2 << 30,
            pin: None,
            pin_background: None,
        }
    }

    fn records(&self) -> u64 {
        (RECORDS * self.scale).round() as u64
    }

    /// Measures everything, writes the report, and returns its figures. `progress` is called at the beginning and after each
    /// measurement.
    ///
    /// # Errors
    /// [`BenchError::Settings`] for a scale, a time or a number that is impossible; [`BenchError::Store`] if a database fails, or the
    /// report cannot be written.
    ///
    /// ```no_run
    /// use deuteron_bench::PaperBench;
    /// let figures = PaperBench::new("databases", "report").run(&mut |progress| {
    ///     eprintln!("{} of {}", progress.done, progress.total);
    /// })?;
    /// println!("{} figures in report/index.html", figures.len());
    /// # Ok::<(), deuteron_bench::BenchError>(())
    /// ```
    pub fn run(&self, progress: &mut dyn FnMut(PaperProgress)) -> Result<Vec<Figure>, BenchError> {
        if !(self.scale > 0.0 && self.scale <= 100.0) || self.records() < 1_000 {
            return Err(BenchError::Settings(format!(
                "a scale of {} is not between 0.00002 (1000 records) and 100",
                self.scale
            )));
        }
        if self.rounds == 0 || self.threads == 0 || self.seconds.is_zero() {
            return Err(BenchError::Settings("rounds, threads and seconds are more than none".into()));
        }
        std::fs::create_dir_all(&self.directory)
            .map_err(BenchError::store("create the directory of the databases"))?;
        let (device, figures) = measure::all(self, progress)?;
        report::write(self, self.records(), &device, &figures)?;
        Ok(figures)
    }
}
