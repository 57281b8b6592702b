//! Zipf-distributed ranks by rejection-inversion.
//!
//! W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates from monotone discrete
//! distributions" (1996). Against the method of Gray et al. that YCSB uses: exact, no sum over all ranks when
//! the population is large or grows, and the exponent may be 1 or more.

use crate::Random;

/// Draws ranks in `0..count`, rank `r` with a probability proportional to `1 / (r + 1)^exponent`.
///
/// ```
/// use deuteron_bench::{Random, Zipf};
/// let zipf = Zipf::new(100, 0.99);
/// let mut random = Random::new(1);
/// assert!(zipf.rank(&mut random) < 100);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    count: f64,
    exponent: f64,
    integral_low: f64,
    integral_high: f64,
    squeeze: f64,
}

impl Zipf {
    /// A distribution over `count` ranks (at least one).
    ///
    /// # Panics
    /// If the exponent is negative or not a number.
    pub fn new(count: u64, exponent: f64) -> Self {
        assert!(exponent >= 0.0, "a Zipf exponent is at least 0");
        let count = count.max(1) as f64;
        Self {
            count,
            exponent,
            integral_low: integral(1.5, exponent) - 1.0,
            integral_high: integral(count + 0.5, exponent),
            squeeze: 2.0 - integral_inverse(integral(2.5, exponent) - power(2.0, exponent), exponent),
        }
    }

    /// Draws a rank; 0 is the most popular.
    #[inline]
    pub fn rank(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.integral_high + random.unit() * (self.integral_low - self.integral_high);
            let place = integral_inverse(area, self.exponent);
            let rank = (place + 0.5).floor().clamp(1.0, self.count);
            if rank - place <= self.squeeze
                || area >= integral(rank + 0.5, self.exponent) - power(rank, self.exponent)
            {
                return rank as u64 - 1;
            }
        }
    }
}

/// The density, `place^-exponent`.
#[inline]
fn power(place: f64, exponent: f64) -> f64 {
    (-exponent * place.ln()).exp()
}

/// The integral of the density, `(place^(1-exponent) - 1) / (1-exponent)`, sound at an exponent of 1.
#[inline]
fn integral(place: f64, exponent: f64) -> f64 {
    let log = place.ln();
    exp_minus_one_over((1.0 - exponent) * log) * log
}

/// The inverse of [`integral`].
#[inline]
fn integral_inverse(area: f64, exponent: f64) -> f64 {
    // Rounding may carry the argument below the pole at -1.
    let scaled = (area * (1.0 - exponent)).max(-1.0);
    (log_plus_one_over(scaled) * area).exp()
}

/// `ln(1 + x) / x`, continued to 1 at 0.
#[inline]
fn log_plus_one_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x * (0.5 - x * (1.0 / 3.0)) }
}

/// `(e^x - 1) / x`, continued to 1 at 0.
#[inline]
fn exp_minus_one_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x * 0.5 * (1.0 + x * (1.0 / 3.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(count: u64, exponent: f64, draws: u32) -> Vec<f64> {
        let zipf = Zipf::new(count, exponent);
        let mut random = Random::new(42);
        let mut counts = vec![0u32; count as usize];
        for _ in 0..draws {
            counts[zipf.rank(&mut random) as usize] += 1;
        }
        counts.into_iter().map(|drawn| f64::from(drawn) / f64::from(draws)).collect()
    }

    #[test]
    fn each_rank_has_its_probability() {
        for exponent in [0.0, 0.5, 0.99, 1.0, 1.3] {
            let count = 50u64;
            let total: f64 = (1..=count).map(|rank| (rank as f64).powf(-exponent)).sum();
            let found = frequencies(count, exponent, 400_000);
            for (rank, &found) in found.iter().enumerate() {
                let expected = ((rank + 1) as f64).powf(-exponent) / total;
                // Five standard deviations of a binomial draw.
                let tolerance = 5.0 * (expected * (1.0 - expected) / 400_000.0).sqrt();
                assert!(
                    (found - expected).abs() < tolerance,
                    "{exponent}: rank {rank} {found} not {expected}"
                );
            }
        }
    }

    #[test]
    fn a_single_rank_and_a_huge_population_work() {
        let mut random = Random::new(5);
        assert_eq!(Zipf::new(1, 0.99).rank(&mut random), 0);
        let huge = Zipf::new(1 << 40, 0.99);
        assert!((0..10_000).all(|_| huge.rank(&mut random) < 1 << 40));
    }

    #[test]
    fn over_five_million_records_an_exponent_of_0_88_gives_a_fifth_of_them_four_fifths_of_the_accesses() {
        let zipf = Zipf::new(5_000_000, 0.88);
        let mut random = Random::new(6);
        let popular = (0..200_000).filter(|_| zipf.rank(&mut random) < 1_000_000).count();
        let share = popular as f64 / 200_000.0;
        assert!((0.79..0.81).contains(&share), "{share}");
    }
}
