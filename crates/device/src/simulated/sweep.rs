//! What tests that sweep over crash points have in common: how much to do, and to say what was done.

use super::CrashPolicy;

/// How many times as much as usual a test is to do: the number in `DEUTERON_EFFORT`, or 1. A sweep that leaves points out
/// in its usual version leaves none out in a larger one.
///
/// ```
/// assert!(deuteron_device::simulated::effort() >= 1);
/// ```
pub fn effort() -> u64 {
    std::env::var("DEUTERON_EFFORT").ok().and_then(|value| value.parse().ok()).unwrap_or(1).max(1)
}

impl CrashPolicy {
    /// All that a crash can do.
    pub const ALL: [CrashPolicy; 3] = [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Random];

    /// One of [`CrashPolicy::ALL`], each in its turn as `point` ascends.
    ///
    /// ```
    /// use deuteron_device::CrashPolicy;
    /// assert_eq!([0, 1, 2, 3].map(CrashPolicy::of)[..3], CrashPolicy::ALL);
    /// assert_eq!(CrashPolicy::of(3), CrashPolicy::of(0));
    /// ```
    pub fn of(point: u64) -> CrashPolicy {
        CrashPolicy::ALL[(point % 3) as usize]
    }
}

/// Counts the points at which a test has stopped the machine, or made it fail, and what came of it.
///
/// ```
/// use deuteron_device::simulated::Sweep;
/// let mut sweep = Sweep::default();
/// sweep.point();
/// sweep.recovered("after the first write", Ok(()));
/// assert_eq!((sweep.points(), sweep.recoveries()), (1, 1));
/// sweep.report("a sweep"); // prints "a sweep: 1 points, 1 recoveries, 0 failures"
/// ```
#[derive(Debug, Default)]
pub struct Sweep {
    points: u64,
    recoveries: u64,
    failures: Vec<String>,
}

impl Sweep {
    /// The machine stops, or an operation fails, at another point.
    pub fn point(&mut self) {
        self.points += 1;
    }

    /// What was left has been opened, and looked at; `place` says where it was, should there be something wrong.
    pub fn recovered(&mut self, place: impl std::fmt::Display, outcome: Result<(), String>) {
        self.recoveries += 1;
        if let Err(problem) = outcome {
            self.failed(place, problem);
        }
    }

    /// Something is wrong at `place`.
    pub fn failed(&mut self, place: impl std::fmt::Display, problem: impl std::fmt::Display) {
        self.failures.push(format!("{place}: {problem}"));
    }

    /// How many points there were.
    pub fn points(&self) -> u64 {
        self.points
    }

    /// How often something was recovered.
    pub fn recoveries(&self) -> u64 {
        self.recoveries
    }

    /// Prints `NAME: N points, N recoveries, N failures`, the line that the acceptance points add up.
    ///
    /// # Panics
    /// If there was a failure: with the first ten of them.
    pub fn report(&self, name: &str) {
        let Sweep { points, recoveries, failures } = self;
        println!("{name}: {points} points, {recoveries} recoveries, {} failures", failures.len());
        assert!(failures.is_empty(), "{}", failures[..failures.len().min(10)].join("\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "here: lost")]
    fn a_failure_is_reported_with_its_place() {
        let mut sweep = Sweep::default();
        sweep.recovered("there", Ok(()));
        sweep.recovered("here", Err("lost".into()));
        sweep.report("a sweep");
    }
}
