//! Where the newest version of each bucket's first record was when it was read last.
//!
//! A read waits for memory three times, one after the other: for the bucket, for the record, and for its newest version. What is noted
//! here has the version asked for together with the record. It is a guess and nothing else: an address that is asked for and
//! never followed, which may have been freed since.

use crate::record::prefetch;
use crate::sync::{AtomicGuess, Ordering};
use crate::zeroed_array::ZeroedArray;

/// What addresses are multiples of.
const UNIT: usize = 16;

/// See the [module](self). For each bucket how far the address is from that of this array, in [`UNIT`]s, or 0; so 32 GiB either way.
pub(crate) struct Newest(ZeroedArray<AtomicGuess>);

impl Newest {
    /// For so many buckets.
    pub(crate) fn new(buckets: usize) -> Newest {
        Newest(ZeroedArray::<AtomicGuess>::new(buckets))
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn place(&self) -> std::ops::Range<usize> {
        let range = self.0.as_ptr_range();
        range.start.addr()..range.end.addr()
    }

    fn base(&self) -> usize {
        self.0.as_ptr().addr() / UNIT
    }

    /// Asks for what is noted for the bucket.
    #[inline]
    pub(crate) fn prefetch_bucket(&self, bucket: usize) {
        prefetch(std::ptr::from_ref(&self.0[bucket]).cast());
    }

    /// Asks for the version that is noted, and the value that may follow it.
    #[inline]
    pub(crate) fn prefetch(&self, bucket: usize) {
        // Relaxed, here and below: a guess.
        let distance = self.0[bucket].load(Ordering::Relaxed);
        if distance != 0 {
            let address = self.base().wrapping_add_signed(distance as i32 as isize) * UNIT;
            (0..3).for_each(|line| prefetch(std::ptr::without_provenance(address + 64 * line)));
        }
    }

    /// Notes where the newest version is.
    #[inline]
    pub(crate) fn note(&self, bucket: usize, version: usize) {
        let distance = (version / UNIT).wrapping_sub(self.base()) as isize;
        let distance = i32::try_from(distance).unwrap_or(0) as u32;
        // Whoever reads what has not been written since writes nothing.
        if self.0[bucket].load(Ordering::Relaxed) != distance {
            self.0[bucket].store(distance, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::counted::{asked, stored};

    #[test]
    fn what_is_noted_is_asked_for_line_by_line_and_nothing_else() {
        let newest = Newest::new(8);
        assert_eq!((newest.bytes(), asked(|| newest.prefetch(3))), (32, Vec::new()));
        for version in [newest.base() * UNIT + 4096, newest.base() * UNIT - (1 << 20)] {
            newest.note(3, version);
            assert_eq!(asked(|| newest.prefetch(3)), [version, version + 64, version + 128]);
        }
        assert_eq!(asked(|| newest.prefetch(4)), []);
        // Too far away to be noted.
        newest.note(3, (newest.base() + (1 << 31)) * UNIT);
        assert_eq!(asked(|| newest.prefetch(3)), []);
        assert_eq!(asked(|| newest.prefetch_bucket(0)), [newest.0.as_ptr().addr()]);
    }

    #[test]
    fn what_is_noted_already_is_not_written_again() {
        let newest = Newest::new(8);
        let version = newest.base() * UNIT - 320;
        newest.note(0, version);
        let before = newest.0[0].load(Ordering::Relaxed);
        assert_eq!(before as i32, -20);
        assert_eq!(stored(|| newest.note(0, version)).1, []);
        assert_eq!(newest.0[0].load(Ordering::Relaxed), before);
    }
}
