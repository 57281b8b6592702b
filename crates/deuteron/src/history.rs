//! How long the past is kept: which timestamp was the present how long ago.
//!
//! The keeper takes a sample of the clock now and then; versions are kept from the newest sample that is older than the
//! window. So the past reaches back at least the window, and at most a sixteenth further.

use deuteron_contract::Timestamp;
use deuteron_tc::TransactionComponent;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const SAMPLES: u32 = 16;

/// See the [module](self).
pub struct History {
    window: Duration,
    samples: Mutex<VecDeque<(Instant, Timestamp)>>,
}

impl History {
    /// Keeps `window` of the past; nothing, if that is zero.
    pub fn new(window: Duration) -> Self {
        Self { window, samples: Mutex::default() }
    }

    /// Takes a sample if one is due, and gives up what is older than the window.
    pub fn step(&self, tc: &TransactionComponent, now: impl FnOnce() -> Instant) {
        if self.window.is_zero() {
            return;
        }
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(from) = Self::advance(&mut samples, self.window, now(), || tc.now()) {
            tc.retain_from(from);
        }
    }

    /// The timestamp from which the past is to be kept, if that has moved.
    fn advance(
        samples: &mut VecDeque<(Instant, Timestamp)>,
        window: Duration,
        now: Instant,
        present: impl FnOnce() -> Timestamp,
    ) -> Option<Timestamp> {
        if samples.back().is_none_or(|(taken, _)| now - *taken >= window / SAMPLES) {
            samples.push_back((now, present()));
        }
        let is_past = |sample: Option<&(Instant, Timestamp)>| {
            sample.is_some_and(|(taken, _)| now.duration_since(*taken) >= window)
        };
        let mut moved = None;
        while is_past(samples.front()) {
            moved = samples.front().map(|(_, timestamp)| *timestamp);
            if !is_past(samples.get(1)) {
                break;
            }
            samples.pop_front();
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_reaches_back_the_window_and_little_more() {
        let (start, window) = (Instant::now(), Duration::from_secs(16));
        let mut samples = VecDeque::new();
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            let from = History::advance(&mut samples, window, now, || Timestamp(1000 + second));
            let expected = second.checked_sub(16).map(|second| Timestamp(1000 + second));
            assert_eq!(from, expected, "after {second} s");
            assert!(samples.len() <= 18);
        }
    }
}
