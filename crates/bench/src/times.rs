//! The times of single operations within transactions.

use crate::report::latency_histogram;
use deuteron::DataComponentObserver;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::sync::{Mutex, MutexGuard, PoisonError};
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

    /// All reads, wherever they were answered.
    pub(crate) fn reads(&self) -> Histogram<u64> {
        let mut reads = self.reads_here.clone();
        reads.add(&self.reads_elsewhere).expect("equal bounds");
        reads
    }

    pub(crate) fn add(&mut self, other: &OperationTimes) {
        // All histograms have the same constant bounds.
        self.reads_here.add(&other.reads_here).expect("equal bounds");
        self.reads_elsewhere.add(&other.reads_elsewhere).expect("equal bounds");
        self.updates.add(&other.updates).expect("equal bounds");
    }
}

/// The times of the data component's operations, in nanoseconds, as those see them who ask for them.
#[derive(Debug)]
pub(crate) struct DataComponentTimes(Mutex<DataComponentHistograms>);

#[derive(Clone, Debug)]
pub(crate) struct DataComponentHistograms {
    pub(crate) gets: Histogram<u64>,
    /// Upserts that came alone.
    pub(crate) upserts: Histogram<u64>,
    /// Of upserts in batches: an equal share each of what their batch took.
    pub(crate) upserts_in_batches: Histogram<u64>,
}

impl DataComponentTimes {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(DataComponentHistograms::new()))
    }

    /// What has been noted since the last time.
    pub(crate) fn take(&self) -> DataComponentHistograms {
        std::mem::replace(&mut *self.lock(), DataComponentHistograms::new())
    }

    fn lock(&self) -> MutexGuard<'_, DataComponentHistograms> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DataComponentHistograms {
    fn new() -> Self {
        let [gets, upserts, upserts_in_batches] = std::array::from_fn(|_| latency_histogram());
        Self { gets, upserts, upserts_in_batches }
    }
}

impl DataComponentObserver for DataComponentTimes {
    fn got(&self, time: Duration) {
        self.lock().gets.saturating_record(time.as_nanos() as u64);
    }

    fn upserted(&self, time: Duration) {
        self.lock().upserts.saturating_record(time.as_nanos() as u64);
    }

    fn posted(&self, operations: usize, time: Duration) {
        let share = time.as_nanos() as u64 / operations.max(1) as u64;
        self.lock().upserts_in_batches.saturating_record_n(share, operations as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_shared_by_its_operations() {
        let times = DataComponentTimes::new();
        times.posted(10, Duration::from_micros(20));
        times.got(Duration::from_micros(3));
        let taken = times.take();
        assert_eq!((taken.gets.len(), taken.upserts.len(), taken.upserts_in_batches.len()), (1, 0, 10));
        assert!((taken.upserts_in_batches.mean() - 2000.0).abs() < 2.0);
        assert!(times.take().gets.is_empty());
    }
}
