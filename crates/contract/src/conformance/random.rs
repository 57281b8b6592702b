//! [`SplitMix`]: the generator of the suite. Equal seeds give equal histories on every machine.

/// Steele, Lea and Flood's SplitMix64: one word of state, good enough for tests and nothing else.
///
/// ```
/// use deuteron_contract::conformance::SplitMix;
/// let (mut one, mut other) = (SplitMix::new(7), SplitMix::new(7));
/// assert_eq!(one.next(), other.next());
/// assert!(one.below(10) < 10);
/// ```
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// A generator that depends on nothing but the seed.
    pub fn new(seed: u64) -> Self {
        SplitMix(seed)
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)] // An endless generator is no iterator: it has no `None`.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is at least 1.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// An index below `count`, which is at least 1.
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// True in about `percent` of a hundred calls.
    pub fn sometimes(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Puts the elements in a random order.
    pub fn shuffle<T>(&mut self, elements: &mut [T]) {
        for index in (1..elements.len()).rev() {
            elements.swap(index, self.index(index + 1));
        }
    }
}
