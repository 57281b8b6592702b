//! Where buffers start on disk: a sparse list, so that one record can be found without reading its whole segment.

use crate::sync::Mutex;
use std::sync::PoisonError;

/// About how far entries are apart in LSN space.
const GAP_BYTES: u64 = 256 << 10;

/// Bases of some of the stable buffers, ascending.
#[derive(Default)]
pub(crate) struct StableIndex {
    bases: Mutex<Vec<u64>>,
}

impl StableIndex {
    /// Notes that a buffer starts at `base`, if the last noted one is far enough away.
    pub(crate) fn note(&self, base: u64) {
        let mut bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        if bases.last().is_none_or(|&last| base >= last + GAP_BYTES) {
            bases.push(base);
        }
    }

    /// The last noted base at or below `lsn`.
    pub(crate) fn floor(&self, lsn: u64) -> Option<u64> {
        let bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        let after = bases.partition_point(|&base| base <= lsn);
        after.checked_sub(1).map(|index| bases[index])
    }

    /// Forgets what is below `lsn`.
    pub(crate) fn truncate(&self, lsn: u64) {
        let mut bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        let below = bases.partition_point(|&base| base < lsn);
        bases.drain(..below);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn floor_is_a_base_at_most_a_gap_away() {
        let index = StableIndex::default();
        (0..1000).for_each(|number| index.note(number * 4096));
        assert_eq!(index.floor(4096 * 64), Some(4096 * 64));
        assert_eq!(index.floor(4096 * 64 - 1), Some(0));
        index.truncate(4096 * 64);
        assert_eq!(index.floor(4096 * 64 - 1), None);
    }
}
