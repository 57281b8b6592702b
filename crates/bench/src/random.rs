//! A random generator that costs a nanosecond, so that a measurement measures the store.

/// xoshiro256++ (Blackman and Vigna), seeded through splitmix64. Deterministic from its seed; not for secrets.
///
/// ```
/// use deuteron_bench::Random;
/// let (mut a, mut b) = (Random::new(7), Random::new(7));
/// assert_eq!(a.next_u64(), b.next_u64());
/// assert!(a.below(10) < 10);
/// ```
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// A generator whose whole sequence follows from `seed`; neighbouring seeds give unrelated sequences.
    pub fn new(seed: u64) -> Self {
        let mut splitmix = seed;
        Self { state: std::array::from_fn(|_| splitmix64(&mut splitmix)) }
    }

    /// The next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let state = &mut self.state;
        let result = state[0].wrapping_add(state[3]).rotate_left(23).wrapping_add(state[0]);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }

    /// A number in `0..limit`, or 0 if the limit is 0. The bias of the multiply-shift is below 2^-40 for every
    /// limit in use here.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// A number in `[0, 1)` with 53 random bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Fills `bytes` with random bits.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// One step of splitmix64: advances `state` and returns 64 well-mixed bits.
#[inline]
pub(crate) fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_residue_is_about_equally_likely() {
        let mut random = Random::new(1);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
    }

    #[test]
    fn unit_stays_in_its_interval_with_mean_one_half() {
        let mut random = Random::new(2);
        let samples: Vec<f64> = (0..100_000).map(|_| random.unit()).collect();
        assert!(samples.iter().all(|&sample| (0.0..1.0).contains(&sample)));
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        assert!((0.49..0.51).contains(&mean), "{mean}");
    }

    #[test]
    fn fill_reaches_every_byte() {
        let mut bytes = [0u8; 29];
        let mut seen = [false; 29];
        let mut random = Random::new(3);
        for _ in 0..64 {
            random.fill(&mut bytes);
            for (seen, &byte) in seen.iter_mut().zip(&bytes) {
                *seen |= byte != 0;
            }
        }
        assert!(seen.iter().all(|&seen| seen));
    }

    #[test]
    fn below_zero_and_one_are_zero() {
        let mut random = Random::new(4);
        assert_eq!((random.below(0), random.below(1)), (0, 0));
    }
}
