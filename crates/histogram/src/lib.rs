//! Distributions of what happens seldom: how long reads of the device take, how long chains are.
//!
//! A [`Histogram`] counts values in buckets of memory that does not grow: below sixteen one for each value, from there on eight for
//! each power of two. So a quantile is never told too low, and too high by less than an eighth. A [`Distribution`] is what a
//! histogram has counted so far.
//!
//! To record a value is one addition to one of the counts, and a look at the largest: cheap enough for whatever does I/O, waits or
//! rewrites a page, and for nothing that is done at each hit, as all threads add to the same lines.
//!
//! This crate reads no clock. Whoever records a time takes it from the machine that has the files, which has a clock of its own where it is simulated.
//!
//! ## Concurrency
//!
//! There is no protocol, and so no model: each count, and the largest, is a number by itself that only grows, by relaxed operations of
//! std's atomics under loom and shuttle, too. Nothing but reports depends on them. A distribution is not of one moment: of a value that is
//! being recorded meanwhile the count may be there, and it not be the largest yet.
//!
//! ```
//! use deuteron_histogram::Histogram;
//! use std::time::Duration;
//!
//! let loads = Histogram::new();
//! for microseconds in 1..=100 {
//!     loads.record_time(Duration::from_micros(microseconds));
//! }
//! let loads = loads.read();
//! assert_eq!((loads.count(), loads.max()), (100, 100_000));
//! assert!((50_000..50_000 * 9 / 8).contains(&loads.quantile(0.5)));
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets for each power of two are so many, as a power of two.
const PART_BITS: u32 = 3;
/// Below twice as many each value has its own.
const PARTS: u64 = 1 << PART_BITS;

/// The bucket of a value. Its power of two says in which row, and the bits behind the first in which place.
fn bucket(value: u64) -> usize {
    let row = (value | PARTS).ilog2() - PART_BITS;
    (u64::from(row) * PARTS + (value >> row)) as usize
}

/// The highest value of a bucket.
fn highest(bucket: usize) -> u64 {
    let row = (bucket as u64 / PARTS).saturating_sub(1);
    let place = bucket as u64 - row * PARTS;
    // In this order, as the last one ends with the largest number there is.
    (place << row) + ((1 << row) - 1)
}

/// Counts values of one kind. See the [crate documentation](crate).
#[derive(Debug)]
pub struct Histogram {
    counts: Box<[AtomicU64]>,
    max: AtomicU64,
}

impl Histogram {
    /// An empty one, of any values: 4 KiB.
    ///
    /// ```
    /// let any = deuteron_histogram::Histogram::new();
    /// any.record(u64::MAX);
    /// assert_eq!(any.read().quantile(0.5), u64::MAX);
    /// ```
    pub fn new() -> Histogram {
        Histogram::up_to(u64::MAX)
    }

    /// An empty one, with as much memory as values up to `most` need. Greater ones count as that much, but that the
    /// [largest](Distribution::max) is known.
    ///
    /// ```
    /// let lengths = deuteron_histogram::Histogram::up_to(20);
    /// lengths.record(1000);
    /// assert_eq!((lengths.read().quantile(0.5), lengths.read().max()), (21, 1000));
    /// ```
    pub fn up_to(most: u64) -> Histogram {
        Histogram { counts: (0..=bucket(most)).map(|_| AtomicU64::new(0)).collect(), max: AtomicU64::new(0) }
    }

    /// Counts `value`.
    ///
    /// ```
    /// let lengths = deuteron_histogram::Histogram::new();
    /// lengths.record(5);
    /// assert_eq!(lengths.read().count(), 1);
    /// ```
    pub fn record(&self, value: u64) {
        self.counts[bucket(value).min(self.counts.len() - 1)].fetch_add(1, Ordering::Relaxed);
        if self.max.load(Ordering::Relaxed) < value {
            self.max.fetch_max(value, Ordering::Relaxed);
        }
    }

    /// Counts `time`, in nanoseconds.
    ///
    /// ```
    /// let times = deuteron_histogram::Histogram::new();
    /// times.record_time(std::time::Duration::from_micros(3));
    /// assert_eq!(times.read().max(), 3_000);
    /// ```
    pub fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// What has been counted.
    ///
    /// ```
    /// # use deuteron_histogram::{Distribution, Histogram};
    /// assert_eq!(Histogram::new().read(), Distribution::default());
    /// ```
    pub fn read(&self) -> Distribution {
        let mut counts: Vec<u64> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        counts.truncate(counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1));
        Distribution { counts, max: self.max.load(Ordering::Relaxed) }
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

/// How often which values were recorded, about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Of each bucket, up to the last that is not empty.
    counts: Vec<u64>,
    max: u64,
}

impl Distribution {
    /// How many values.
    ///
    /// ```
    /// assert_eq!(deuteron_histogram::Distribution::default().count(), 0);
    /// ```
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The largest; 0 if there is none.
    ///
    /// ```
    /// let lengths = deuteron_histogram::Histogram::new();
    /// [1000, 1001, 3].into_iter().for_each(|length| lengths.record(length));
    /// assert_eq!(lengths.read().max(), 1001);
    /// ```
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that a share of `quantile` of all values are not above, or up to an eighth more: 0.5 is the median, 0 is the least and 1 the largest. 0 if there is none.
    ///
    /// # Panics
    /// If `quantile` is not between 0 and 1.
    ///
    /// ```
    /// let lengths = deuteron_histogram::Histogram::new();
    /// (1..=10).for_each(|length| lengths.record(length));
    /// assert_eq!([0.0, 0.5, 0.9, 1.0].map(|quantile| lengths.read().quantile(quantile)), [1, 5, 9, 10]);
    /// ```
    pub fn quantile(&self, quantile: f64) -> u64 {
        assert!((0.0..=1.0).contains(&quantile), "a quantile is between 0 and 1, not {quantile}");
        let count = self.count();
        let rank = ((quantile * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        let found = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        });
        found.map_or(0, |bucket| highest(bucket).min(self.max))
    }

    /// What both have counted.
    ///
    /// ```
    /// # use deuteron_histogram::Histogram;
    /// let (left, right) = (Histogram::new(), Histogram::up_to(20));
    /// left.record(3);
    /// right.record(4);
    /// let both = left.read().plus(right.read());
    /// assert_eq!((both.count(), both.max()), (2, 4));
    /// ```
    #[must_use]
    pub fn plus(mut self, other: Distribution) -> Distribution {
        let length = self.counts.len().max(other.counts.len());
        self.counts.resize(length, 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.max = self.max.max(other.max);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of any magnitude, the same each time.
    fn values() -> impl Iterator<Item = u64> {
        let mut state = 1u64;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            state >> (state.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
        })
    }

    fn of(values: &[u64]) -> Distribution {
        let histogram = Histogram::new();
        values.iter().for_each(|&value| histogram.record(value));
        histogram.read()
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap_and_are_at_most_an_eighth_wide() {
        let last = bucket(u64::MAX);
        assert_eq!((last, highest(last)), (61 * 8 + 7, u64::MAX));
        let mut lowest = 0;
        for index in 0..=last {
            let highest = highest(index);
            assert_eq!((bucket(lowest), bucket(highest)), (index, index));
            assert!(highest - lowest <= lowest / 8, "{lowest} to {highest}");
            lowest = highest.wrapping_add(1);
        }
        assert_eq!(lowest, 0, "all values have a bucket");
    }

    #[test]
    fn a_quantile_is_that_of_the_sorted_values_or_at_most_an_eighth_more() {
        for count in [1, 2, 3, 10, 99, 1000] {
            let mut values: Vec<u64> = values().take(count).collect();
            let distribution = of(&values);
            values.sort_unstable();
            assert_eq!((distribution.count(), distribution.max()), (count as u64, values[count - 1]));
            for percent in 0..=100 {
                let quantile = f64::from(percent) / 100.0;
                let rank = ((quantile * count as f64).ceil() as usize).max(1);
                let (exact, found) = (values[rank - 1], distribution.quantile(quantile));
                let excess = found.checked_sub(exact).expect("never too low");
                assert!(excess <= exact / 8, "{percent} % of {count}: {found} for {exact}");
            }
            assert_eq!(distribution.quantile(1.0), distribution.max());
        }
        assert_eq!(Distribution::default().quantile(0.5), 0);
    }

    #[test]
    fn two_together_are_as_if_one_had_counted_all() {
        let values: Vec<u64> = values().take(1000).collect();
        for middle in [0, 1, 500, 1000] {
            let (left, right) = values.split_at(middle);
            assert_eq!(of(left).plus(of(right)), of(&values));
        }
    }

    #[test]
    fn what_is_beyond_a_small_one_counts_as_its_most() {
        let small = Histogram::up_to(100);
        [99, 100, 101, 1000, u64::MAX].into_iter().for_each(|value| small.record(value));
        let found = small.read();
        assert_eq!((found.count(), found.max(), found.quantile(0.99)), (5, u64::MAX, 103));
    }

    #[test]
    fn nothing_is_lost_if_threads_record_at_once() {
        let histogram = Histogram::new();
        let all: Vec<u64> = values().take(40_000).collect();
        std::thread::scope(|scope| {
            all.chunks(10_000).for_each(|part| {
                scope.spawn(|| part.iter().for_each(|&value| histogram.record(value)));
            });
        });
        assert_eq!(histogram.read(), of(&all));
    }

    #[test]
    #[should_panic(expected = "between 0 and 1")]
    fn a_quantile_is_a_share() {
        let _ = Distribution::default().quantile(50.0);
    }
}
