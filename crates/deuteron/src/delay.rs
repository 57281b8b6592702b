//! The window of delayed durability: the earliest moment by which something committed must be written.
//!
//! Commits set it, the flusher clears it. A commit inside a window that is already open costs one load.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// No window is open.
const CLOSED: u64 = u64::MAX;
/// The last moment at which one can end, in microseconds from the start: nine years.
const LATEST: u64 = (1 << 48) - 2;
/// The longest window, in microseconds.
const LONGEST: u64 = LATEST / 2;

/// See the [module](self).
pub struct Delay {
    start: Instant,
    /// In the upper 48 bits when the window ends, in microseconds from `start`; in the lower 16 how long the window was, as a [`Length`]: in one word, for the one says nothing
    /// of a commit without the other. Or [`CLOSED`].
    window: AtomicU64,
}

/// A time in microseconds, rounded down to its eleven highest digits: a number of binary floating point whose order is that of its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Length(u16);

impl Length {
    fn of(time: Duration) -> Length {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(LONGEST);
        let exponent = (u64::BITS - micros.leading_zeros()).saturating_sub(11);
        // The highest digit is not masked: it carries into the exponent, which so is one more than here for all that have eleven digits.
        Length(((exponent as u64) << 10) as u16 + (micros >> exponent) as u16)
    }

    /// In microseconds.
    fn micros(self) -> u64 {
        let exponent = u64::from(self.0 >> 10).saturating_sub(1);
        (u64::from(self.0) - (exponent << 10)) << exponent
    }
}

impl Delay {
    /// No window is open. The clock is asked for `start` and later moments.
    pub fn new(start: Instant) -> Self {
        Self { start, window: AtomicU64::new(CLOSED) }
    }

    /// Something was committed that must be durable within `window`. Returns whether the flusher has to be told,
    /// because the moment has come nearer.
    pub fn open(&self, window: Duration, now: impl FnOnce() -> Instant) -> bool {
        let length = Length::of(window);
        // With that of `restart`: either this is seen to have been appended, or the window is seen to be closed.
        fence(Ordering::SeqCst);
        // An open window of at most this length ends soon enough; no look at the clock is needed to know it.
        let open = self.window.load(Ordering::Acquire);
        if open != CLOSED && Length(open as u16) <= length {
            return false;
        }
        let due = self.microseconds(now()).saturating_add(length.micros()).min(LATEST);
        let window = due << 16 | u64::from(length.0);
        self.window.fetch_min(window, Ordering::AcqRel) > window
    }

    /// How long until the window ends; `None` if none is open.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        match self.window.load(Ordering::Acquire) {
            CLOSED => None,
            window => Some(Duration::from_micros((window >> 16).saturating_sub(self.microseconds(now)))),
        }
    }

    /// Closes the window. What is committed from here on opens the next; what was before is in the flush that the
    /// caller requests *after* this call.
    pub fn restart(&self) {
        self.window.store(CLOSED, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    fn microseconds(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.start).as_micros() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_commit_of_a_window_wakes_the_flusher() {
        let delay = Delay::new(Instant::now());
        assert_eq!(delay.due_in(Instant::now()), None);
        assert!(delay.open(Duration::from_secs(1), Instant::now));
        assert!(!delay.open(Duration::from_secs(1), Instant::now));
        assert!(
            delay.open(Duration::from_millis(1), Instant::now),
            "a shorter window brings the moment nearer"
        );
        delay.restart();
        assert_eq!(delay.due_in(Instant::now()), None);
    }

    #[test]
    fn lengths_are_rounded_down_by_a_thousandth_at_most_and_in_order() {
        let mut micros = [0, 1, 999, 1023, 1024, 2047, 2048, 2049, 4095, 4096].to_vec();
        micros.extend(
            (0..200).map(|number| 500 * 1_000_003_u64.pow(number % 2) + u64::from(number) * 7_777_777),
        );
        micros.extend([LONGEST - 1, LONGEST]);
        micros.sort_unstable();
        let mut before = Length(0);
        for micros in micros {
            let length = Length::of(Duration::from_micros(micros));
            let rounded = length.micros();
            assert!(rounded <= micros && micros - rounded <= micros >> 10, "{micros}: {rounded}");
            assert!(length >= before, "{micros}");
            before = length;
        }
        assert_eq!(Length::of(Duration::MAX), Length::of(Duration::from_micros(LONGEST)));
    }

    /// A long window and a short one that are opened at the same time by two threads.
    #[test]
    fn a_commit_within_a_window_is_written_by_the_end_of_its_own() {
        let (start, [long, short]) = (Instant::now(), [1000, 1].map(Duration::from_millis));
        let delay = Delay::new(start);
        assert!(delay.open(long, || start));
        assert!(delay.open(short, || start));
        assert!(!delay.open(long, || unreachable!("the window ends soon enough")));
        assert!(!delay.open(short, || unreachable!("the window ends soon enough")));
        assert_eq!(delay.due_in(start), Some(short));
        delay.restart();
        // The short one ends later than a long one that was opened before.
        assert!(delay.open(long, || start));
        assert!(!delay.open(short, || start + long));
        // So who comes with a short one looks at the clock.
        let late = start + 2 * long;
        assert!(!delay.open(short, || late));
        assert_eq!(delay.due_in(late), Some(Duration::ZERO));
    }
}
