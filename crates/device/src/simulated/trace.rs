//! The trace: a hash of everything that was done to a disk.

use crate::Operation;

/// An odd constant without pattern: the golden ratio in 64 bits.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Trace(u64);

impl Trace {
    pub(super) fn hash(&self) -> u64 {
        self.0
    }

    pub(super) fn number(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(MIX);
    }

    pub(super) fn operation(&mut self, operation: Operation, file: &str) {
        self.number(operation as u64);
        self.bytes(0, file.as_bytes());
    }

    pub(super) fn bytes(&mut self, offset: u64, bytes: &[u8]) {
        self.number(offset);
        self.number(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.number(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.number(u64::from(*byte)));
    }
}
