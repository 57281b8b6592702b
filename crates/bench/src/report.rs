//! The outcome of a run, as every tool prints it.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The figures of one run. The names of the fields are the names in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The store.
    pub engine: String,
    /// Records loaded.
    pub records: u64,
    /// Threads that ran transactions.
    pub threads: usize,
    /// When commits were acknowledged: `sync`, `delayed` or `none`.
    pub durability: String,
    /// Commits a second.
    pub throughput_tps: f64,
    /// Operations of committed transactions a second.
    pub throughput_ops: f64,
    /// Acknowledged commits.
    pub commits: u64,
    /// Aborts; each was run again.
    pub aborts: u64,
    /// Aborts by cause.
    pub abort_causes: BTreeMap<String, u64>,
    /// From begin to acknowledgement, repeats after aborts included.
    pub latency_us: Latency,
    /// Processor time of the measured time, of all threads of the process.
    pub processor_seconds: f64,
    /// Of that, what the threads took that run transactions; 0 where the system does not say.
    pub transaction_seconds: f64,
    /// Time of the measured time in which processors had nothing to do, all of them together; other processes count as work.
    pub idle_seconds: f64,
    /// The most memory resident since the process began, the load included.
    pub peak_rss_bytes: u64,
    /// Disk space at the end.
    pub disk_bytes: u64,
    /// How long the load took; 0 if the records were there.
    pub load_seconds: f64,
    /// Written to the log in the measured time.
    pub bytes_written_log: u64,
    /// Written to the data store in the measured time.
    pub bytes_written_store: u64,
    /// Images of the page table that were written in the measured time: by checkpoints, and now and then by the store itself.
    pub checkpoints: u64,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// 999 of 1000 are at most this.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    /// The percentiles of a histogram of nanoseconds.
    pub fn of_nanoseconds(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        Self {
            p50: microseconds(histogram.value_at_quantile(0.5)),
            p99: microseconds(histogram.value_at_quantile(0.99)),
            p999: microseconds(histogram.value_at_quantile(0.999)),
            max: microseconds(histogram.max()),
        }
    }
}

/// A histogram of latencies in nanoseconds: from 1 ns to ten minutes, to three digits.
pub(crate) fn latency_histogram() -> Histogram<u64> {
    // The bounds are constants that the library accepts.
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("constant bounds are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_holds_exactly_the_documented_fields() {
        let json = serde_json::to_value(Report::default()).unwrap();
        let mut names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        let mut documented = [
            "engine",
            "records",
            "threads",
            "durability",
            "throughput_tps",
            "throughput_ops",
            "commits",
            "aborts",
            "abort_causes",
            "latency_us",
            "processor_seconds",
            "transaction_seconds",
            "idle_seconds",
            "peak_rss_bytes",
            "disk_bytes",
            "load_seconds",
            "bytes_written_log",
            "bytes_written_store",
            "checkpoints",
        ];
        documented.sort_unstable();
        assert_eq!(names, documented);
        let latency = json["latency_us"].as_object().unwrap();
        assert!(["p50", "p99", "p999", "max"].iter().all(|name| latency.contains_key(*name)));
        assert_eq!(latency.len(), 4);
    }

    #[test]
    fn percentiles_come_out_in_microseconds() {
        let mut histogram = latency_histogram();
        for microseconds in 1..=1_000u64 {
            histogram.record(microseconds * 1_000).unwrap();
        }
        let latency = Latency::of_nanoseconds(&histogram);
        assert!((latency.p50 - 500.0).abs() < 1.0, "{latency:?}");
        assert!((latency.p99 - 990.0).abs() < 1.0, "{latency:?}");
        assert!((latency.max - 1_000.0).abs() < 1.0, "{latency:?}");
        assert_eq!(Latency::of_nanoseconds(&latency_histogram()), Latency::default());
    }
}
