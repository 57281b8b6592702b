//! [`Outcomes`]: the proxy's transaction table.

use deuteron_contract::{Timestamp, TransactionId};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hasher of transaction identifiers: one multiplication.
///
/// Identifiers are begin timestamps, so nearly consecutive integers; a multiplication by an odd number gives
/// consecutive ones different low bits (the bucket), and the fold brings the mixed high bits (the tag) along.
/// Nobody outside chooses identifiers, so flooding is no concern.
#[derive(Default)]
pub(crate) struct IdentifierHasher(u64);

impl Hasher for IdentifierHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// A map by transaction.
pub(crate) type ByTransaction<T> = HashMap<TransactionId, T, BuildHasherDefault<IdentifierHasher>>;

/// The final timestamps of the transactions that the eager pass has seen commit.
///
/// An entry is needed until the delayed pass is through with the buffer that holds the commit record: all updates
/// of a transaction lie before its commit record.
#[derive(Default)]
pub(crate) struct Outcomes {
    committed: ByTransaction<Timestamp>,
}

impl Outcomes {
    pub fn commit(&mut self, transaction: TransactionId, timestamp: Timestamp) {
        self.committed.insert(transaction, timestamp);
    }

    #[inline]
    pub fn committed_at(&self, transaction: TransactionId) -> Option<Timestamp> {
        self.committed.get(&transaction).copied()
    }

    pub fn forget(&mut self, transaction: TransactionId) {
        self.committed.remove(&transaction);
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.committed.clear();
    }

    pub fn len(&self) -> usize {
        self.committed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hash;

    #[test]
    fn consecutive_identifiers_spread_over_buckets_and_tags() {
        let hash = |number: u64| {
            let mut hasher = IdentifierHasher::default();
            TransactionId(number).hash(&mut hasher);
            hasher.finish()
        };
        let (mut buckets, mut tags) = ([0_u32; 256], [0_u32; 128]);
        for number in 1_000_000..1_001_024 {
            buckets[(hash(number) & 255) as usize] += 1;
            tags[(hash(number) >> 57) as usize] += 1;
        }
        assert!(buckets.iter().all(|count| (1..=12).contains(count)), "{buckets:?}");
        assert!(tags.iter().all(|count| (1..=24).contains(count)), "{tags:?}");
    }
}
