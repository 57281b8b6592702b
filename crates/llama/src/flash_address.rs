//! [`FlashAddress`]: where a fragment lies in the store, and how long it is, in one word.
//!
//! | bits | field |
//! |---|---|
//! | 0 | always 1, so that a mapping word that holds an address differs from a pointer |
//! | 1..16 | length class |
//! | 16..64 | offset in the logical store, in units of 64 bytes |
//!
//! The length class is exact, so that a cold read takes one aligned read and never a second one: below
//! `0x4000` it counts units of 64 bytes (up to 1 MiB); from there on its low 14 bits count units of 64 KiB (up to
//! 1 GiB), and a fragment that long is padded to such a unit. Offsets go up to 16 PiB of *ever written* bytes:
//! offsets are never used again, so an address means the same bytes for ever.

use std::fmt;
use std::num::NonZeroU64;

/// The unit of addresses and short lengths: every fragment starts at a multiple of it.
pub(crate) const ADDRESS_UNIT: u64 = 64;
/// The unit of long lengths.
const LONG_UNIT: u64 = 64 * 1024;
const LONG: u64 = 0x4000;
const LENGTH_MASK: u64 = 0x7fff;
/// The longest fragment that an address can name.
pub(crate) const LENGTH_MAX: u64 = (LONG - 1) * LONG_UNIT;

/// Where a fragment lies in the store. Opaque outside this crate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlashAddress(NonZeroU64);

impl FlashAddress {
    /// The length on flash of a fragment of `bytes` bytes: rounded up to what an address can say exactly.
    pub(crate) fn padded_length(bytes: u64) -> u64 {
        let short = bytes.next_multiple_of(ADDRESS_UNIT);
        if short < LONG * ADDRESS_UNIT { short } else { bytes.next_multiple_of(LONG_UNIT) }
    }

    /// The address of `length` bytes at `offset`. `length` comes from [`FlashAddress::padded_length`].
    pub(crate) fn new(offset: u64, length: u64) -> FlashAddress {
        debug_assert!(offset.is_multiple_of(ADDRESS_UNIT) && offset > 0 && offset / ADDRESS_UNIT < 1 << 48);
        debug_assert!(length > 0 && length <= LENGTH_MAX && length == FlashAddress::padded_length(length));
        let class =
            if length < LONG * ADDRESS_UNIT { length / ADDRESS_UNIT } else { LONG | (length / LONG_UNIT) };
        let raw = (offset / ADDRESS_UNIT) << 16 | class << 1;
        FlashAddress(NonZeroU64::MIN | raw)
    }

    /// The address in `raw`, if it is well formed: tag bit, an offset and a length that are not 0.
    pub(crate) fn from_raw(raw: u64) -> Option<FlashAddress> {
        let address = FlashAddress(NonZeroU64::new(raw)?);
        (raw & 1 == 1 && address.offset() > 0 && address.length() > 0).then_some(address)
    }

    /// The word that holds this address.
    pub(crate) fn to_raw(self) -> u64 {
        self.0.get()
    }

    /// The byte offset in the logical store.
    pub(crate) fn offset(self) -> u64 {
        (self.to_raw() >> 16) * ADDRESS_UNIT
    }

    /// The length in bytes, padding included.
    pub(crate) fn length(self) -> u64 {
        let class = (self.to_raw() >> 1) & LENGTH_MASK;
        if class < LONG { class * ADDRESS_UNIT } else { (class & (LONG - 1)) * LONG_UNIT }
    }

    /// The first byte behind the fragment.
    pub(crate) fn end(self) -> u64 {
        self.offset() + self.length()
    }
}

impl fmt::Debug for FlashAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}+{:#x}", self.offset(), self.length())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn length_and_offset_survive_the_word() {
        for bytes in [1, 64, 65, 4096, 1_048_575, 1_048_576, 1_048_577, 3_000_000, 64 << 20, LENGTH_MAX] {
            let length = FlashAddress::padded_length(bytes);
            assert!(length >= bytes);
            for offset in [64, 4096, 1 << 40, (1u64 << 54) - 64] {
                let address = FlashAddress::new(offset, length);
                assert_eq!((address.offset(), address.length()), (offset, length));
                assert_eq!(FlashAddress::from_raw(address.to_raw()), Some(address));
            }
        }
        // Nothing, no offset, no length, and a pointer.
        for raw in [0, 1, 3, 1 << 16 | 1, 1 << 16 | 2] {
            assert_eq!(FlashAddress::from_raw(raw), None, "{raw:#x}");
        }
    }
}
