//! How the next key is chosen.

use crate::{Random, Scatter, Zipf};
use std::fmt;
use std::str::FromStr;

/// How unequal the keys are.
///
/// ```
/// use deuteron_bench::Skew;
/// assert_eq!("80-20".parse(), Ok(Skew::EightyTwenty));
/// assert_eq!("zipf=0.99".parse(), Ok(Skew::Zipf(0.99)));
/// assert!("zipf=lots".parse::<Skew>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skew {
    /// 20 % of the keys, scattered over the key space, receive 80 % of the accesses (paper 6.1). Within either
    /// class all keys are equal, which is the least friendly to caches among the distributions with that
    /// property; over five million records `zipf=0.88` has it too, and is kinder.
    EightyTwenty,
    /// All keys are equal.
    Uniform,
    /// Zipf with this exponent, scattered over the key space.
    Zipf(f64),
    /// Zipf with this exponent over the age of the records: the newest are the most popular (YCSB D).
    Latest(f64),
}

impl fmt::Display for Skew {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Skew::EightyTwenty => formatter.write_str("80-20"),
            Skew::Uniform => formatter.write_str("uniform"),
            Skew::Zipf(exponent) => write!(formatter, "zipf={exponent}"),
            Skew::Latest(exponent) => write!(formatter, "latest={exponent}"),
        }
    }
}

impl FromStr for Skew {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let exponent = |digits: &str| match digits.parse::<f64>() {
            Ok(exponent) if (0.0..=10.0).contains(&exponent) => Ok(exponent),
            _ => Err(format!("\"{digits}\" is not an exponent between 0 and 10")),
        };
        match text.split_once('=') {
            None if text == "80-20" => Ok(Skew::EightyTwenty),
            None if text == "uniform" => Ok(Skew::Uniform),
            None if text == "zipf" => Ok(Skew::Zipf(0.99)),
            Some(("zipf", digits)) => exponent(digits).map(Skew::Zipf),
            Some(("latest", digits)) => exponent(digits).map(Skew::Latest),
            _ => Err("expected 80-20, uniform, zipf=T or latest=T".into()),
        }
    }
}

/// Draws keys from `0..records`, and from those inserted since.
///
/// ```
/// use deuteron_bench::{KeyChooser, Random, Skew};
/// let chooser = KeyChooser::new(Skew::EightyTwenty, 1_000);
/// assert!(chooser.key(&mut Random::new(1), 1_000) < 1_000);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KeyChooser {
    skew: Skew,
    records: u64,
    hot: u64,
    scatter: Scatter,
    zipf: Zipf,
}

impl KeyChooser {
    /// A chooser over `records` keys.
    pub fn new(skew: Skew, records: u64) -> Self {
        let exponent = match skew {
            Skew::Zipf(exponent) | Skew::Latest(exponent) => exponent,
            Skew::EightyTwenty | Skew::Uniform => 0.0,
        };
        Self {
            skew,
            records,
            hot: (records / 5).max(1).min(records),
            scatter: Scatter::new(records),
            zipf: Zipf::new(records, exponent),
        }
    }

    /// Draws a key among the first `present` ones; `present` is at least the number loaded, more after inserts.
    #[inline]
    pub fn key(&self, random: &mut Random, present: u64) -> u64 {
        match self.skew {
            Skew::Uniform => random.below(present),
            Skew::EightyTwenty => {
                let cold = self.records - self.hot;
                // One draw decides both the class and the place: 4 of 5 values are hot.
                let draw = random.next_u64();
                let rank = if draw % 5 < 4 || cold == 0 {
                    random.below(self.hot)
                } else {
                    self.hot + random.below(cold)
                };
                self.scatter.key(rank)
            }
            Skew::Zipf(_) => self.scatter.key(self.zipf.rank(random)),
            Skew::Latest(_) => present.saturating_sub(1 + self.zipf.rank(random)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(skew: Skew, records: u64, draws: u32) -> Vec<u32> {
        let chooser = KeyChooser::new(skew, records);
        let mut random = Random::new(9);
        let mut counts = vec![0; records as usize];
        for _ in 0..draws {
            counts[chooser.key(&mut random, records) as usize] += 1;
        }
        counts
    }

    fn share_of_the_top_fifth(mut counts: Vec<u32>) -> f64 {
        counts.sort_unstable_by(|left, right| right.cmp(left));
        let total: u32 = counts.iter().sum();
        f64::from(counts[..counts.len() / 5].iter().sum::<u32>()) / f64::from(total)
    }

    #[test]
    fn a_fifth_of_the_keys_receives_four_fifths_of_the_accesses() {
        let counts = counts(Skew::EightyTwenty, 10_000, 1_000_000);
        assert!(counts.iter().all(|&count| count > 0), "every key has its turn");
        let share = share_of_the_top_fifth(counts);
        assert!((0.795..0.805).contains(&share), "{share}");
    }

    #[test]
    fn hot_keys_are_scattered() {
        let counts = counts(Skew::EightyTwenty, 10_000, 500_000);
        for tenth in counts.chunks(1_000) {
            let hot = tenth.iter().filter(|&&count| count > 100).count();
            assert!((150..250).contains(&hot), "{hot} hot keys of 1000 neighbours");
        }
    }

    #[test]
    fn uniform_is_uniform() {
        let share = share_of_the_top_fifth(counts(Skew::Uniform, 1_000, 1_000_000));
        assert!((0.20..0.22).contains(&share), "{share}");
    }

    #[test]
    fn the_latest_keys_are_the_most_popular() {
        let counts = counts(Skew::Latest(0.99), 1_000, 100_000);
        assert!(counts[999] > counts[900] && counts[900] > counts[100]);
    }

    #[test]
    fn the_latest_follow_the_inserts() {
        let chooser = KeyChooser::new(Skew::Latest(0.99), 10);
        let mut random = Random::new(3);
        assert!((0..1_000).all(|_| (90..100).contains(&chooser.key(&mut random, 100))));
    }

    #[test]
    fn tiny_populations_work() {
        for skew in [Skew::EightyTwenty, Skew::Uniform, Skew::Zipf(0.99), Skew::Latest(0.99)] {
            for records in 1..8 {
                let chooser = KeyChooser::new(skew, records);
                let mut random = Random::new(records);
                assert!((0..100).all(|_| chooser.key(&mut random, records) < records), "{skew} {records}");
            }
        }
    }

    #[test]
    fn a_skew_reads_what_it_prints() {
        for skew in [Skew::EightyTwenty, Skew::Uniform, Skew::Zipf(0.7), Skew::Latest(1.1)] {
            assert_eq!(skew.to_string().parse(), Ok(skew));
        }
        for wrong in ["", "zipf=", "zipf=-1", "zipf=NaN", "80-21", "latest"] {
            assert!(wrong.parse::<Skew>().is_err(), "{wrong}");
        }
    }
}
