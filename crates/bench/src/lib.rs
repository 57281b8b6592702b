//! Workloads and measurements: who asks for which key, how fast the answers come, what it costs.
//!
//! A [`Workload`] says which operations make up a transaction and how keys are chosen; a [`Store`] is something
//! that runs them; [`load()`] fills it and [`run()`] drives it in a closed loop: a number of threads, each with a
//! number of transactions in flight, every one measured from its begin to its acknowledgement. The outcome is a
//! [`Report`], the same for every store.
//!
//! ```
//! use deuteron_bench::{Driver, MapStore, Workload, load, run};
//! use std::time::Duration;
//!
//! let store = MapStore::new();
//! let workload = Workload::paper(1_000);
//! let driver = Driver { threads: 1, seconds: Duration::from_millis(50), ..Driver::default() };
//! let loaded = load(&store, &workload, &driver, &mut |_| {})?;
//! let report = run(&store, &workload, &driver, loaded, &mut |_| {})?;
//! assert!(report.throughput_tps > 0.0);
//! # Ok::<(), deuteron_bench::BenchError>(())
//! ```
//!
//! | module | what |
//! |---|---|
//! | `workload`, `chooser`, `zipf`, `scatter`, `random` | what is asked for |
//! | `store`, `embedded`, `map` | who is asked: anything, a database, a hash map |
//! | `load`, `driver`, `report` | filling, running, telling |
//! | `contention`, `order_entry` | transactions that meet |
//! | `scaling` | what a thread more brings, and where threads meet |
//! | `applications` | TATP, SmallBank, TPC-C, Voter: transactions that decide by what they read, and conditions that are checked |
//! | `times`, `latency`, `cache` | single operations: how long, answered where |
//! | `touched` | which records have been read or written so far |
//! | `timeline`, `version_memory` | versions in memory over time, and under a reader that stays |
//! | `paper` | the paper's figures and Hekaton's tables, as pictures and numbers |
//! | `device`, `process` | the disk and the process below |
//! | `histories` | random transactions whose answers are checked |
//!
//! [`DeviceBench`] measures the device below, for comparison.
//!
//! A measurement checks no answers: a checker inside it would measure the checker. [`run_histories`] checks answers and
//! measures nothing; [`run_application`] checks what is there after the measured time.

#![forbid(unsafe_code)]

mod applications;
mod cache;
mod chooser;
mod contention;
mod device;
mod driver;
mod embedded;
mod error;
mod histories;
mod latency;
mod load;
mod map;
mod order_entry;
mod paper;
mod process;
mod random;
mod report;
mod scaling;
mod scatter;
mod store;
mod timeline;
mod times;
mod touched;
mod version_memory;
mod workload;
mod zipf;

pub use applications::{
    Access, Application, ApplicationProgress, ApplicationReport, ApplicationStore, ApplicationTransaction,
    Body, Client, Condition, EmbeddedApplicationStore, Emit, Interruption, Order, SmallBank, Tatp, Tpcc,
    TransactionFigure, Voter, run_application,
};
pub use cache::{CacheReport, run_cache};
pub use chooser::{KeyChooser, Skew};
pub use contention::{ContentionCase, ContentionFigure, run_contention};
pub use device::{DeviceBench, DeviceProgress, DeviceReport, ReadFigure};
pub use driver::{Driver, Progress, run};
pub use embedded::{Ahead, DELAYED, EmbeddedStore};
pub use error::BenchError;
pub use histories::{HistoryOptions, HistoryReport, run_histories};
pub use latency::{LatencyReport, run_latency};
pub use load::{LoadProgress, Loaded, load};
pub use map::MapStore;
pub use paper::{Axis, Curve, Figure, PaperBench, PaperProgress, Source};
pub use process::{
    directory_bytes, idle_seconds, own_seconds, peak_rss_bytes, processor_seconds, thread_seconds,
};
pub use random::Random;
pub use report::{Latency, Report};
pub use scaling::{ScalingFigure, ScalingMix, SharedWrites, run_scaling};
pub use scatter::Scatter;
pub use store::{Store, StoreFigures, Submitted, Worker, consume, stamp};
pub use timeline::{Timeline, TimelineSample, run_timeline};
pub use times::ReadTimes;
pub use version_memory::{VersionMemoryReport, run_version_memory};
pub use workload::{Generator, Step, Workload};
pub use zipf::Zipf;
