//! The source of all randomness: SplitMix64, small and the same everywhere.

/// Steele, Lea and Flood's SplitMix64: one word of state, good enough for simulations and their tests.
///
/// ```
/// use deuteron_device::simulated::Random;
/// let (mut one, mut other) = (Random::new(7), Random::new(7));
/// assert_eq!(one.next(), other.next());
/// assert!(one.below(10) < 10);
/// ```
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that depends on nothing but the seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)] // An endless generator is no iterator: it has no `None`.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is at least 1. The bias of the remainder does not matter for the small bounds of tests.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True in half of the calls.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}
