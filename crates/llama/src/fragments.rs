//! [`Fragments`]: of what a page consists on flash.

use crate::flash_address::FlashAddress;
use std::ops::Add;

/// The most fragments that a page may consist of on flash; then it is written in full.
pub const FRAGMENTS_MAX: usize = 25;

/// The most fragments that a page has of which some cannot be read, so that it cannot be written in full. One more is for what lies on the others when they are as many as there may be;
/// and each further one for a newest fragment that cannot be read either, on which the next must lie.
pub(crate) const UNREADABLE_FRAGMENTS_MAX: usize = FRAGMENTS_MAX + 4;

/// A Bloom filter of the keys in a fragment: those of a key that it holds have their [bits](crate::AccessMethod::filter) set.
pub type Filter = u16;

/// The filter of a fragment that may hold anything.
pub(crate) const ANYTHING: Filter = Filter::MAX;

/// How many fragments a page has, or some pages together have, and what they take on flash, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) count: u64,
    /// The full ones, and all others.
    pub(crate) full: u64,
    pub(crate) deltas: u64,
}

impl Sizes {
    pub(crate) fn bytes(self) -> u64 {
        self.full + self.deltas
    }

    /// Whether they are `count`, or the deltas take more than the full ones do. The latter bounds what is written by what has changed, and what is taken by twice the
    /// content.
    pub(crate) fn reach(self, count: u64) -> bool {
        self.count >= count || self.deltas > self.full
    }
}

impl Add for Sizes {
    type Output = Sizes;

    fn add(self, other: Sizes) -> Sizes {
        Sizes {
            count: self.count + other.count,
            full: self.full + other.full,
            deltas: self.deltas + other.deltas,
        }
    }
}

/// The fragments of a page, oldest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fragments {
    addresses: [Option<FlashAddress>; UNREADABLE_FRAGMENTS_MAX],
    /// Of each its filter; nothing where there is no fragment.
    filters: [Filter; UNREADABLE_FRAGMENTS_MAX],
    count: usize,
}

impl Fragments {
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = FlashAddress> + Clone + '_ {
        self.addresses[..self.count].iter().flatten().copied()
    }

    /// Each with its filter.
    pub(crate) fn with_filters(&self) -> impl Iterator<Item = (FlashAddress, Filter)> + Clone + '_ {
        self.iter().zip(self.filters)
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn newest(&self) -> Option<FlashAddress> {
        self.addresses[self.count.checked_sub(1)?]
    }

    /// Those that lie below `newest` in the page; none if that is not of the page.
    pub(crate) fn older_than(self, newest: FlashAddress) -> impl Iterator<Item = FlashAddress> {
        let count = self.position(newest).unwrap_or(0);
        self.addresses.into_iter().take(count).flatten()
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let mut lengths = self.iter().map(FlashAddress::length);
        let full = lengths.next().unwrap_or(0);
        Sizes { count: self.len() as u64, full, deltas: lengths.sum() }
    }

    /// `newest`, if it is one of these, and those below it.
    pub(crate) fn up_to(mut self, newest: FlashAddress) -> Option<Fragments> {
        let at = self.position(newest)?;
        while self.count > at + 1 {
            self.pop();
        }
        Some(self)
    }

    fn position(&self, address: FlashAddress) -> Option<usize> {
        self.iter().position(|other| other == address)
    }

    /// Appends a fragment of which nothing is known; `false` if there is no room.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn push(&mut self, address: FlashAddress) -> bool {
        self.push_filtered(address, ANYTHING)
    }

    /// Appends; `false` if there is no room.
    #[must_use]
    pub(crate) fn push_filtered(&mut self, address: FlashAddress, filter: Filter) -> bool {
        let Some(free) = self.addresses.get_mut(self.count) else { return false };
        (*free, self.filters[self.count]) = (Some(address), filter);
        self.count += 1;
        true
    }

    /// Takes the newest away.
    pub(crate) fn pop(&mut self) -> Option<FlashAddress> {
        self.count = self.count.checked_sub(1)?;
        // Nothing is left where there is none: two of the same content are equal.
        self.filters[self.count] = 0;
        self.addresses[self.count].take()
    }
}

/// The fragments of a page that lies with many others in memory while a store is opened: ten bytes each instead of room for as many as a page may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedFragments(Vec<u8>);

impl PackedFragments {
    const ADDRESS: usize = size_of::<u64>();
    const BYTES: usize = PackedFragments::ADDRESS + size_of::<Filter>();

    fn decode(fragment: &[u8]) -> (FlashAddress, Filter) {
        let (address, filter) = fragment.split_at(PackedFragments::ADDRESS);
        let address = u64::from_le_bytes(address.try_into().expect("eight bytes"));
        let filter = Filter::from_le_bytes(filter.try_into().expect("two bytes"));
        (FlashAddress::from_raw(address).expect("what was packed"), filter)
    }

    pub(crate) fn newest(&self) -> Option<FlashAddress> {
        self.0.rchunks_exact(PackedFragments::BYTES).next().map(|last| PackedFragments::decode(last).0)
    }

    /// Appends a fragment of which nothing is known; `false` if there is no room.
    #[must_use]
    pub(crate) fn push(&mut self, address: FlashAddress) -> bool {
        let has_room = self.0.len() < UNREADABLE_FRAGMENTS_MAX * PackedFragments::BYTES;
        if has_room {
            self.put(address, ANYTHING);
        }
        has_room
    }

    fn put(&mut self, address: FlashAddress, filter: Filter) {
        self.0.extend(address.to_raw().to_le_bytes());
        self.0.extend(filter.to_le_bytes());
    }

    /// Takes the newest away.
    pub(crate) fn pop(&mut self) {
        self.0.truncate(self.0.len().saturating_sub(PackedFragments::BYTES));
    }

    pub(crate) fn unpack(&self) -> Fragments {
        let mut fragments = Fragments::default();
        for fragment in self.0.chunks_exact(PackedFragments::BYTES) {
            let (address, filter) = PackedFragments::decode(fragment);
            let has_room = fragments.push_filtered(address, filter);
            debug_assert!(has_room);
        }
        fragments
    }
}

impl From<&Fragments> for PackedFragments {
    fn from(fragments: &Fragments) -> PackedFragments {
        let mut packed = PackedFragments(Vec::with_capacity(fragments.len() * PackedFragments::BYTES));
        fragments.with_filters().for_each(|(address, filter)| packed.put(address, filter));
        packed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_a_stack_of_bounded_height() {
        let mut fragments = Fragments::default();
        let address = |index: usize| FlashAddress::new(4096 * (index as u64 + 1), 64);
        for index in 0..UNREADABLE_FRAGMENTS_MAX {
            assert!(fragments.push(address(index)));
        }
        assert!(!fragments.push(address(90)));
        assert_eq!(fragments.newest(), Some(address(UNREADABLE_FRAGMENTS_MAX - 1)));
        assert_eq!(fragments.pop(), Some(address(UNREADABLE_FRAGMENTS_MAX - 1)));
        assert_eq!(fragments.len(), UNREADABLE_FRAGMENTS_MAX - 1);
    }

    #[test]
    fn packed_fragments_are_the_same() {
        let (mut fragments, mut packed) = (Fragments::default(), PackedFragments::default());
        assert_eq!((packed.newest(), packed.unpack()), (None, fragments));
        for index in 0..UNREADABLE_FRAGMENTS_MAX as u64 {
            let address = FlashAddress::new(4096 * (index + 1), 64);
            if index.is_multiple_of(2) {
                assert!(fragments.push(address) && packed.push(address));
            } else {
                assert!(fragments.push_filtered(address, index as Filter));
                packed = PackedFragments::from(&fragments);
            }
            assert_eq!((packed.newest(), packed.unpack()), (Some(address), fragments));
        }
        assert!(!packed.push(FlashAddress::new(4096 * 90, 64)));
        while fragments.pop().is_some() {
            packed.pop();
            assert_eq!(packed.unpack(), fragments);
        }
        packed.pop();
        assert_eq!(packed, PackedFragments::default());
    }

    #[test]
    fn what_fragments_take_is_enough_by_their_number_or_by_the_deltas() {
        let mut fragments = Fragments::default();
        let mut push = |offset: u64, length| {
            assert!(fragments.push(FlashAddress::new(offset, length)));
            fragments
        };
        assert!(!push(4096, 640).sizes().reach(3));
        assert!(!push(8192, 320).sizes().reach(3));
        let three = push(12_288, 320);
        assert!(three.sizes().reach(3) && !three.sizes().reach(4));
        let four = push(16_384, 64);
        assert!(four.sizes().reach(5), "384 bytes and 320 are more than 640");
        let both = three.sizes() + four.sizes();
        assert_eq!(both, Sizes { count: 7, full: 1280, deltas: 1344 });
        assert_eq!(both.bytes(), 2624);
        assert_eq!(four.up_to(FlashAddress::new(12_288, 320)), Some(three));
        assert_eq!(four.up_to(FlashAddress::new(20_480, 64)), None);
        let older: Vec<_> =
            four.older_than(FlashAddress::new(12_288, 320)).map(FlashAddress::offset).collect();
        assert_eq!(older, [4096, 8192]);
        assert_eq!(four.older_than(FlashAddress::new(20_480, 64)).count(), 0);
    }
}
