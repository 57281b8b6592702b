//! [`Outcomes`]: the proxy's transaction table.

use deuteron_contract::{Timestamp, TransactionId};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hasher of transaction identifiers: two multiplications.
///
/// Identifiers are begin timestamps, so nearly consecutive integers, and those of one time are close to each other in the log. They are
/// so in the table, too, which would not fit into a cache otherwise: the low bits (the bucket) of up to 64 neighbours follow each other,
/// and where such a run lies is a multiplication of the rest by an odd number. Another multiplication gives them different high bits (the
/// tag). Nobody outside chooses identifiers, so flooding is no concern.
#[derive(Default)]
pub(crate) struct IdentifierHasher(u64);

/// Neighbours that lie together, as a power of two.
const RUN_BITS: u32 = 6;
/// What a hash table tells entries of the same bucket apart by, before it looks at them.
const TAG: u64 = 0x7F << 57;

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
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        let run = (number >> RUN_BITS).wrapping_mul(ODD);
        // Each run begins elsewhere, for identifiers that are multiples.
        let within = number.wrapping_add(run >> 48) & ((1 << RUN_BITS) - 1);
        let bucket = (run ^ (run >> 32)) << RUN_BITS | within;
        let tag = number.wrapping_mul(ODD) & TAG;
        self.0 = bucket & !TAG | tag;
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

    /// However far apart they are: clocks hand timestamps out in blocks.
    #[test]
    fn identifiers_at_any_distance_spread_and_neighbours_lie_together() {
        let hash = |number: u64| {
            let mut hasher = IdentifierHasher::default();
            TransactionId(number).hash(&mut hasher);
            hasher.finish()
        };
        for distance in [1, 2, 3, 7, 16, 64, 100, 128, 1000, 1024, 4096, 1 << 20] {
            let mut buckets = [0_u32; 1024];
            for number in (1_000_003..).step_by(distance).take(4096) {
                buckets[(hash(number) & 1023) as usize] += 1;
            }
            // Four on average. Those that are 64 apart and more have a bit less to spread over.
            assert!(
                buckets.chunks(16).all(|group| group.iter().sum::<u32>() <= 160),
                "{distance}: {buckets:?}"
            );
        }
        // In one stretch of the table, and each in a place of its own.
        let places = std::collections::BTreeSet::from_iter((6400..6464).map(|number| hash(number) & 0xFFFF));
        assert_eq!(places.len(), 64);
        assert_eq!(places.last().unwrap() - places.first().unwrap(), 63);
    }
}
