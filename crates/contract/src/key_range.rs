//! [`KeyRange`]: what a scan takes as its range.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// The two ends of a range of keys.
pub type KeyBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A range of keys: any of Rust's range expressions over byte strings, or a pair of [`Bound`]s.
///
/// ```
/// use deuteron_contract::KeyRange;
/// use std::ops::Bound;
/// assert_eq!((..).key_bounds(), (Bound::Unbounded, Bound::Unbounded));
/// assert_eq!((b"a"..b"b").key_bounds(), (Bound::Included(b"a".to_vec()), Bound::Excluded(b"b".to_vec())));
/// ```
pub trait KeyRange {
    /// The ends, copied.
    fn key_bounds(&self) -> KeyBounds;
}

fn included(key: impl AsRef<[u8]>) -> Bound<Vec<u8>> {
    Bound::Included(key.as_ref().to_vec())
}

fn excluded(key: impl AsRef<[u8]>) -> Bound<Vec<u8>> {
    Bound::Excluded(key.as_ref().to_vec())
}

impl KeyRange for RangeFull {
    fn key_bounds(&self) -> KeyBounds {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

impl<K: AsRef<[u8]>> KeyRange for Range<K> {
    fn key_bounds(&self) -> KeyBounds {
        (included(&self.start), excluded(&self.end))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeFrom<K> {
    fn key_bounds(&self) -> KeyBounds {
        (included(&self.start), Bound::Unbounded)
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeTo<K> {
    fn key_bounds(&self) -> KeyBounds {
        (Bound::Unbounded, excluded(&self.end))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeInclusive<K> {
    fn key_bounds(&self) -> KeyBounds {
        (included(self.start()), included(self.end()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeToInclusive<K> {
    fn key_bounds(&self) -> KeyBounds {
        (Bound::Unbounded, included(&self.end))
    }
}

impl<K: AsRef<[u8]>> KeyRange for (Bound<K>, Bound<K>) {
    fn key_bounds(&self) -> KeyBounds {
        let owned = |bound: &Bound<K>| bound.as_ref().map(|key| key.as_ref().to_vec());
        (owned(&self.0), owned(&self.1))
    }
}
