//! [`Processors`]: where threads may run.

use crate::Error;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;
use std::str::FromStr;

/// Some of the machine's processors, by the numbers that the system gives them (`/proc/cpuinfo`, `lscpu --extended`).
///
/// ```
/// use deuteron::Processors;
/// let some: Processors = "0-2,5".parse()?;
/// assert_eq!(some.numbers(), [0, 1, 2, 5]);
/// assert_eq!(some.to_string(), "0-2,5");
/// # Ok::<(), deuteron::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processors(Vec<usize>);

impl Processors {
    /// Those that the calling thread may run on.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if the system does not say.
    ///
    /// ```
    /// assert!(!deuteron::Processors::available()?.numbers().is_empty());
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn available() -> Result<Self, Error> {
        let set = sched_getaffinity(None).map_err(|error| invalid(format!("they are not known: {error}")))?;
        Ok((0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect())
    }

    /// Their numbers, ascending.
    ///
    /// ```
    /// assert_eq!([7, 1, 7].into_iter().collect::<deuteron::Processors>().numbers(), [1, 7]);
    /// ```
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }

    /// One of them: for the threads of a pool, each by its index. Beyond the last one it begins anew.
    ///
    /// ```
    /// let some: deuteron::Processors = "4-6".parse()?;
    /// assert_eq!((some.nth(1).numbers(), some.nth(3).numbers()), (&[5][..], &[4][..]));
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn nth(&self, index: usize) -> Self {
        Self(self.0.iter().copied().cycle().nth(index).into_iter().collect())
    }

    /// The calling thread, and what threads it starts from here on, run on these processors only.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if the machine has none of them, or the process may use none of them.
    ///
    /// ```
    /// use deuteron::Processors;
    /// let one = Processors::available()?.nth(0);
    /// std::thread::spawn(move || {
    ///     one.pin_current_thread()?;
    ///     assert_eq!(Processors::available()?, one);
    ///     Ok::<(), deuteron::Error>(())
    /// })
    /// .join()
    /// .expect("no panic")?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn pin_current_thread(&self) -> Result<(), Error> {
        let mut set = CpuSet::new();
        self.0.iter().filter(|number| **number < CpuSet::MAX_CPU).for_each(|number| set.set(*number));
        sched_setaffinity(None, &set)
            .map_err(|error| invalid(format!("no thread can run on processor {self}: {error}")))
    }

    /// Runs `work` on a thread that is pinned to these processors, as are the threads that it starts.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
        std::thread::scope(|scope| {
            let pinned = scope.spawn(|| self.pin_current_thread().and_then(|()| work()));
            pinned.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

fn invalid(reason: String) -> Error {
    Error::InvalidOption { option: "processors", reason }
}

impl FromIterator<usize> for Processors {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut numbers: Vec<usize> = numbers.into_iter().collect();
        numbers.sort_unstable();
        numbers.dedup();
        Self(numbers)
    }
}

/// Numbers and runs of them, as `taskset` and `numactl` take them.
impl FromStr for Processors {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let run = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (first <= last && last < CpuSet::MAX_CPU).then_some(first..=last)
        };
        let runs: Option<Vec<_>> = text.split(',').map(run).collect();
        let runs = runs.ok_or_else(|| {
            invalid(format!("{text:?} is no list such as 0-3,8 of numbers below {}", CpuSet::MAX_CPU))
        })?;
        Ok(runs.into_iter().flatten().collect())
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|one, next| one + 1 == *next);
        for (index, run) in runs.enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match run {
                [one] => write!(formatter, "{comma}{one}")?,
                [first, .., last] => write!(formatter, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_written() {
        for text in ["0", "0-3", "0,2,4-7", "1-2,1023"] {
            assert_eq!(text.parse::<Processors>().unwrap().to_string(), text);
        }
        assert_eq!("3,0-1,1-2".parse::<Processors>().unwrap().to_string(), "0-3");
        for text in ["", "a", "3-1", "0-", "1,,2", "-1", "1024", "0-99999999999"] {
            let error = text.parse::<Processors>().unwrap_err();
            assert!(matches!(error, Error::InvalidOption { option: "processors", .. }), "{text}: {error}");
        }
    }

    #[test]
    fn threads_of_a_pinned_thread_are_pinned() {
        let one = Processors::available().unwrap().nth(0);
        let inherited = one.run(|| std::thread::spawn(Processors::available).join().expect("no panic"));
        assert_eq!(inherited.unwrap(), one);
        assert!(Processors::available().unwrap().numbers().len() >= one.numbers().len(), "the caller is not");
    }

    #[test]
    fn processors_that_are_not_there_are_an_error() {
        let none: Processors = [].into_iter().collect();
        let beyond: Processors = [CpuSet::MAX_CPU - 1].into_iter().collect();
        for processors in [none, beyond] {
            let failed = processors.run(|| Ok(()));
            assert!(matches!(failed, Err(Error::InvalidOption { option: "processors", .. })), "{processors}");
        }
    }
}
