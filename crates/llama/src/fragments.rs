//! [`Fragments`]: of what a page consists on flash.

use crate::flash_address::FlashAddress;

/// The most fragments that a page may consist of on flash; then it is written in full.
pub const FRAGMENTS_MAX: usize = 17;

/// The most fragments that a page has of which some cannot be read, so that it cannot be written in full. One more is for what lies on the others when they are as many as there may be;
/// and each further one for a newest fragment that cannot be read either, on which the next must lie.
pub(crate) const UNREADABLE_FRAGMENTS_MAX: usize = FRAGMENTS_MAX + 4;

/// A Bloom filter of the keys in a fragment: those of a key that it holds have their [bits](crate::AccessMethod::filter) set.
pub type Filter = u16;

/// The filter of a fragment that may hold anything.
pub(crate) const ANYTHING: Filter = Filter::MAX;

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

    /// Whether they are enough, so that the next fragment is a full one: there are `max`, or those above the full one take more than it does.
    /// The latter bounds what is written by what has changed, and what a page takes by twice its content.
    pub(crate) fn are_enough(&self, max: usize) -> bool {
        let mut lengths = self.iter().map(FlashAddress::length);
        let full = lengths.next().unwrap_or(0);
        self.len() >= max || lengths.sum::<u64>() > full
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
    fn fragments_are_enough_by_their_number_or_by_what_the_deltas_take() {
        let mut fragments = Fragments::default();
        let mut push = |offset: u64, length| {
            assert!(fragments.push(FlashAddress::new(offset, length)));
            fragments
        };
        assert!(!push(4096, 640).are_enough(3));
        assert!(!push(8192, 320).are_enough(3));
        let three = push(12_288, 320);
        assert!(three.are_enough(3) && !three.are_enough(4));
        let four = push(16_384, 64);
        assert!(four.are_enough(5), "384 bytes and 320 are more than 640");
        assert_eq!(four.up_to(FlashAddress::new(12_288, 320)), Some(three));
        assert_eq!(four.up_to(FlashAddress::new(20_480, 64)), None);
        let older: Vec<_> =
            four.older_than(FlashAddress::new(12_288, 320)).map(FlashAddress::offset).collect();
        assert_eq!(older, [4096, 8192]);
        assert_eq!(four.older_than(FlashAddress::new(20_480, 64)).count(), 0);
    }
}
