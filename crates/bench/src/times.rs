//! The times of single operations within transactions.

use crate::report::latency_histogram;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// How long reads took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReadTimes {
    /// On average.
    pub mean_us: f64,
    /// 99 of 100 took at most this.
    pub p99_us: f64,
}

impl ReadTimes {
    /// Of a histogram of nanoseconds.
    pub(crate) fn of(times: &Histogram<u64>) -> Self {
        if times.is_empty() {
            return Self::default();
        }
        Self { mean_us: times.mean() / 1000.0, p99_us: times.value_at_quantile(0.99) as f64 / 1000.0 }
    }
}

/// The times of reads, answered by the transaction component or elsewhere, and of updates, in nanoseconds.
#[derive(Debug)]
pub(crate) struct OperationTimes {
    /// Reads that the transaction component answered by itself.
    pub(crate) reads_here: Histogram<u64>,
    /// Reads that asked the data component, or the log on disk.
    pub(crate) reads_elsewhere: Histogram<u64>,
    pub(crate) updates: Histogram<u64>,
}

impl OperationTimes {
    pub(crate) fn new() -> Self {
        let [reads_here, reads_elsewhere, updates] = std::array::from_fn(|_| latency_histogram());
        Self { reads_here, reads_elsewhere, updates }
    }

    #[inline]
    pub(crate) fn note_read(&mut self, missed: bool, time: Duration) {
        let times = if missed { &mut self.reads_elsewhere } else { &mut self.reads_here };
        times.saturating_record(time.as_nanos() as u64);
    }

    #[inline]
    pub(crate) fn note_update(&mut self, time: Duration) {
        self.updates.saturating_record(time.as_nanos() as u64);
    }

    pub(crate) fn add(&mut self, other: &OperationTimes) {
        // All histograms have the same constant bounds.
        self.reads_here.add(&other.reads_here).expect("equal bounds");
        self.reads_elsewhere.add(&other.reads_elsewhere).expect("equal bounds");
        self.updates.add(&other.updates).expect("equal bounds");
    }
}
