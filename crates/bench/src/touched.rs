//! Which records have been touched, noted when the engine has answered (the paper's Figure 5).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Samples until everything has been touched.
const SAMPLES: u64 = 200;

/// A bit for each record, and samples of how many are set.
pub(crate) struct Touched {
    bits: Vec<AtomicU64>,
    records: u64,
    distinct: AtomicU64,
    begin: Instant,
    /// What had been counted at the begin.
    accesses: u64,
    samples: Mutex<Vec<TouchedSample>>,
}

/// How many records had been touched when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TouchedSample {
    pub(crate) elapsed: Duration,
    /// Different records.
    pub(crate) records: u64,
    /// Reads and writes of any, by the engine's own counters.
    pub(crate) accesses: u64,
}

impl Touched {
    /// Nothing of so many records has been touched, after so many accesses.
    pub(crate) fn new(records: u64, accesses: u64) -> Self {
        let bits = (0..records.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let samples = Mutex::new(Vec::with_capacity(SAMPLES as usize + 1));
        Self { bits, records, distinct: AtomicU64::new(0), begin: Instant::now(), accesses, samples }
    }

    /// These have been read or written. `accesses` is asked for with each sample. Keys beyond the records do not count.
    pub(crate) fn note(&self, keys: impl Iterator<Item = u64>, accesses: impl Fn() -> u64) {
        for key in keys.filter(|key| *key < self.records) {
            let (word, bit) = (&self.bits[key as usize / 64], 1 << (key % 64));
            // Relaxed: each bit is for itself. Most are set already, and their line stays where it is.
            if word.load(Ordering::Relaxed) & bit != 0 || word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
                continue;
            }
            let records = 1 + self.distinct.fetch_add(1, Ordering::Relaxed);
            if records.is_multiple_of((self.records / SAMPLES).max(1)) {
                let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
                let accesses = accesses().saturating_sub(self.accesses);
                samples.push(TouchedSample { elapsed: self.begin.elapsed(), records, accesses });
            }
        }
    }

    /// In the order of time.
    pub(crate) fn samples(&self) -> Vec<TouchedSample> {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner).clone();
        samples.sort_by_key(|sample| sample.records);
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_counts_once_and_a_sample_is_taken_with_every_two_hundredth_of_them() {
        let touched = Touched::new(1_000, 7);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| touched.note((0..500).chain(0..500).chain(1_000..2_000), || 27));
            }
        });
        let samples = touched.samples();
        assert_eq!(samples.len(), 100);
        assert!(samples.iter().enumerate().all(|(index, sample)| sample.records == 5 * (index as u64 + 1)));
        assert!(samples.iter().all(|sample| sample.accesses == 20));
    }
}
