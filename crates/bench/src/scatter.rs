//! A bijection that spreads popular ranks over the key space, so that hot keys are not neighbours.

/// A fixed pseudo-random permutation of `0..count`.
///
/// YCSB hashes ranks and takes the remainder, which lets two ranks fall on one key; a permutation keeps the
/// distribution exact. It mixes within the next power of two and walks the cycle until it falls below `count`,
/// twice at most on average.
///
/// ```
/// use deuteron_bench::Scatter;
/// let scatter = Scatter::new(1_000);
/// let mut keys: Vec<u64> = (0..1_000).map(|rank| scatter.key(rank)).collect();
/// keys.sort_unstable();
/// assert!(keys.into_iter().eq(0..1_000));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    count: u64,
    mask: u64,
    shift: u32,
}

impl Scatter {
    /// The permutation of `0..count`.
    pub fn new(count: u64) -> Self {
        let bits = (64 - count.saturating_sub(1).leading_zeros()).max(2);
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        Self { count, mask, shift: bits.div_ceil(2) }
    }

    /// The key of a rank. Ranks at or over `count` are themselves.
    #[inline]
    pub fn key(&self, rank: u64) -> u64 {
        if rank >= self.count {
            return rank;
        }
        let mut key = rank;
        loop {
            // Each line is invertible on `0..=mask`: an odd factor, an added constant, a shifted xor.
            key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x51_7cc1) & self.mask;
            key ^= key >> self.shift;
            key = key.wrapping_mul(0xbf58_476d_1ce4_e5b9) & self.mask;
            key ^= key >> self.shift;
            key = key.wrapping_mul(0x94d0_49bb_1331_11eb) & self.mask;
            key ^= key >> self.shift;
            if key < self.count {
                return key;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_bijection_at_every_small_size() {
        for count in 1..300 {
            let scatter = Scatter::new(count);
            let mut seen = vec![false; count as usize];
            for rank in 0..count {
                let key = scatter.key(rank) as usize;
                assert!(!std::mem::replace(&mut seen[key], true), "count {count}, rank {rank}");
            }
        }
    }

    #[test]
    fn the_first_fifth_of_the_ranks_falls_evenly_on_the_key_space() {
        let count = 100_000;
        let scatter = Scatter::new(count);
        let mut tenths = [0u32; 10];
        for rank in 0..count / 5 {
            tenths[(scatter.key(rank) * 10 / count) as usize] += 1;
        }
        assert!(tenths.iter().all(|&keys| (1_800..2_200).contains(&keys)), "{tenths:?}");
    }

    #[test]
    fn neighbouring_ranks_are_seldom_neighbouring_keys() {
        let scatter = Scatter::new(100_000);
        let near = (1..1_000).filter(|&rank| scatter.key(rank).abs_diff(scatter.key(rank - 1)) < 100).count();
        assert!(near < 20, "{near}");
    }
}
