//! How [`crate::Db::transact`] retries: randomised exponential back-off, with limits.

use crate::Error;
use std::cell::Cell;
use std::thread;
use std::time::Duration;

/// How often and how patiently a transaction is retried after a conflict.
///
/// ```
/// use deuteron::RetryPolicy;
/// let twice = RetryPolicy { attempts_max: 2, ..RetryPolicy::default() };
/// assert!(twice.back_off_max >= twice.back_off_min);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all before the conflict is returned to the caller. Of those that end for want of memory, each of which has waited for some by itself, it is four in a row at most.
    pub attempts_max: u32,
    /// The longest pause before the second attempt; it doubles with each further one.
    pub back_off_min: Duration,
    /// The longest pause of all.
    pub back_off_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 10_000,
            back_off_min: Duration::from_micros(2),
            back_off_max: Duration::from_millis(2),
        }
    }
}

/// So many attempts in a row may end with [`Error::MemoryExhausted`]: each has waited for ten seconds or so, and what is short for so long does not come back by being asked for again.
const EXHAUSTED_MAX: u32 = 4;

/// Pauses shorter than this are spent yielding: a sleep would cost more than it spares.
const SLEEP_MIN: Duration = Duration::from_micros(50);

impl RetryPolicy {
    /// Calls `attempt` with its number, from 1 on, until it succeeds, fails with an error that a retry does not help, or the attempts are used
    /// up.
    pub(crate) fn run<T>(&self, mut attempt: impl FnMut(u32) -> Result<T, Error>) -> Result<T, Error> {
        let (mut number, mut exhausted) = (1, 0);
        loop {
            let outcome = attempt(number);
            exhausted = if matches!(outcome, Err(Error::MemoryExhausted)) { exhausted + 1 } else { 0 };
            match outcome {
                Err(error)
                    if error.is_retryable() && number < self.attempts_max && exhausted < EXHAUSTED_MAX =>
                {
                    number += 1;
                    self.pause(number);
                }
                outcome => return outcome,
            }
        }
    }

    /// Pauses before attempt number `attempt` (the second attempt is number 2), for whoever retries by himself: a random time of
    /// at most the bound that applies to it, so that two transactions in conflict do not meet again in step.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let mut attempt = 1;
    /// while let Err(error) = db.begin().commit() {
    ///     assert!(error.is_retryable());
    ///     attempt += 1;
    ///     deuteron::RetryPolicy::default().pause(attempt);
    /// }
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn pause(&self, attempt: u32) {
        let doublings = attempt.saturating_sub(2).min(20);
        let bound = self.back_off_min.saturating_mul(1 << doublings).min(self.back_off_max);
        let pause = bound.mul_f64(random_fraction());
        if pause < SLEEP_MIN {
            thread::yield_now();
        } else {
            thread::sleep(pause);
        }
    }
}

/// A number in 0..1 from a xorshift generator of the thread's own.
fn random_fraction() -> f64 {
    thread_local!(static STATE: Cell<u64> = const { Cell::new(0) });
    STATE.with(|state| {
        let mut word = state.get();
        if word == 0 {
            // The address of the cell differs between threads, which is all that is asked of the seed.
            word = std::ptr::from_ref(state).addr() as u64 | 1;
        }
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        state.set(word);
        (word >> 11) as f64 / (1u64 << 53) as f64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conflict() -> Error {
        let db = crate::Options::tiny_for_tests()
            .open_in(std::sync::Arc::new(deuteron_device::MemoryDirectory::new()));
        let db = db.unwrap();
        let table = db.table("t").unwrap();
        let mut early = db.begin();
        early.get(&table, b"a").unwrap();
        db.transact(|tx| tx.put(&table, b"a", b"1")).unwrap();
        early.put(&table, b"a", b"2").and_then(|()| early.commit().map(drop)).unwrap_err()
    }

    #[test]
    fn want_of_memory_is_not_waited_for_again_and_again() {
        let attempts_of = |fails: fn(u32) -> Error| {
            let attempts = Cell::new(0);
            let policy = RetryPolicy { attempts_max: 10, ..RetryPolicy::default() };
            let failed = policy.run(|number| {
                attempts.set(number);
                Err::<(), _>(fails(number))
            });
            assert!(failed.unwrap_err().is_retryable());
            attempts.get()
        };
        assert_eq!(attempts_of(|_| Error::MemoryExhausted), EXHAUSTED_MAX);
        assert_eq!(attempts_of(|_| conflict()), 10);
        // Not in a row.
        assert_eq!(
            attempts_of(|number| if number % 4 == 0 { conflict() } else { Error::MemoryExhausted }),
            10
        );
    }

    #[test]
    fn fractions_spread_over_the_unit_interval() {
        let draws: Vec<f64> = (0..1000).map(|_| random_fraction()).collect();
        assert!(draws.iter().all(|draw| (0.0..1.0).contains(draw)));
        let mean = draws.iter().sum::<f64>() / 1000.0;
        assert!((0.4..0.6).contains(&mean), "mean {mean}");
    }
}
