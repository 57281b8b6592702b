//! [`Mutator`]: damages bytes.

/// Integers at which decoders go wrong.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7f,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    u64::MAX >> 1,
    u64::MAX - 7,
    u64::MAX,
];

/// Damages bytes at random, the same way for the same seed.
#[derive(Clone, Debug)]
pub struct Mutator(u64);

impl Mutator {
    /// A mutator with a seed.
    ///
    /// ```
    /// let (mut one, mut other) = (deuteron_fuzz::Mutator::new(7), deuteron_fuzz::Mutator::new(7));
    /// assert_eq!(one.below(1000), other.below(1000));
    /// ```
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `bound`, which must not be 0.
    ///
    /// ```
    /// assert!(deuteron_fuzz::Mutator::new(7).below(10) < 10);
    /// ```
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 8) % bound as u64) as usize
    }

    /// One of the corpus in `out`, damaged in one to eight places. Of an empty corpus, nothing.
    ///
    /// ```
    /// let (corpus, mut out) = ([b"valid bytes".to_vec()], Vec::new());
    /// let mut mutator = deuteron_fuzz::Mutator::new(1);
    /// let damaged = (0..100).filter(|_| { mutator.damage(&corpus, &mut out); out != corpus[0] }).count();
    /// assert!(damaged > 80);
    /// ```
    pub fn damage(&mut self, corpus: &[Vec<u8>], out: &mut Vec<u8>) {
        out.clear();
        if corpus.is_empty() {
            return;
        }
        let one = self.below(corpus.len());
        out.extend_from_slice(&corpus[one]);
        for _ in 0..1 + self.below(8).min(self.below(8)) {
            let other = self.below(corpus.len());
            self.damage_once(out, &corpus[other]);
        }
    }

    fn damage_once(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        if bytes.is_empty() {
            bytes.push(self.below(256) as u8);
            return;
        }
        // Heads are where lengths are.
        let reach = if self.below(2) == 0 { bytes.len().min(96) } else { bytes.len() };
        let at = self.below(reach);
        match self.below(9) {
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes[at] = self.below(256) as u8,
            2 => {
                let edge = EDGES[self.below(EDGES.len())].wrapping_add(self.below(3) as u64).wrapping_sub(1);
                self.put(bytes, at, edge);
            }
            3 => {
                // A little more or less than what is there, or than what could be.
                let near = bytes.len().wrapping_add(self.below(17)).wrapping_sub(8) as u64;
                self.put(bytes, at, near);
            }
            4 => {
                let step = self.below(9) as u8;
                bytes[at] = bytes[at].wrapping_add(step).wrapping_sub(4);
            }
            5 => bytes.truncate(at),
            6 => {
                let (from, length) = (self.below(bytes.len()), 1 + self.below(64));
                let piece: Vec<u8> = bytes.iter().skip(from).take(length).copied().collect();
                bytes.splice(at..at, piece);
            }
            7 => {
                let end = (at + 1 + self.below(32)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ if other.is_empty() => bytes[at] = 0,
            _ => {
                let from = self.below(other.len());
                let length = (1 + self.below(64)).min(other.len() - from).min(bytes.len() - at);
                bytes[at..at + length].copy_from_slice(&other[from..from + length]);
            }
        }
    }

    /// An integer of 2, 4 or 8 bytes, at a multiple of its length as a rule.
    fn put(&mut self, bytes: &mut [u8], at: usize, integer: u64) {
        let length = [2, 4, 8][self.below(3)];
        let at = if self.below(4) == 0 { at } else { at / length * length };
        let length = length.min(bytes.len() - at);
        bytes[at..at + length].copy_from_slice(&integer.to_le_bytes()[..length]);
    }
}
