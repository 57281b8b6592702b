//! [`FlashAddress`]: where a fragment lies in the store, and how long it is, in one word.
//!
//! | bits | field |
//! |---|---|
//! | 0 | always 1, so that a mapping word that holds an address differs from a pointer |
//! | 1..12 | length: how many units of it |
//! | 12..14 | which unit that is: 16 bytes, 256 bytes, 4 KiB, 64 KiB |
//! | 14..64 | offset in the logical store, in units of 16 bytes |
//!
//! The length is exact, so that a cold read takes one aligned read and never a second one: a fragment is padded to its unit, the smallest of
//! which there are not too many: 16 bytes below 32 KiB, 64 KiB up to 128 MiB. Offsets go up to 16 PiB of *ever written* bytes:
//! offsets are never used again, so an address means the same bytes for ever.

use std::fmt;
use std::num::NonZeroU64;

/// The unit of addresses and short lengths: every fragment starts at a multiple of it.
pub(crate) const ADDRESS_UNIT: u64 = 16;
/// No offset is as high.
pub(crate) const OFFSETS_END: u64 = ADDRESS_UNIT << 50;
/// How many units a length may have.
const UNITS_MAX: u64 = (1 << 11) - 1;
/// The longest fragment that an address can name.
pub(crate) const LENGTH_MAX: u64 = UNITS_MAX * unit(3);

/// The unit of this number.
const fn unit(scale: u64) -> u64 {
    ADDRESS_UNIT << (4 * scale)
}

/// The number of the smallest unit of which there are not too many in `bytes`, of which there may be too many in anything over [`LENGTH_MAX`].
fn scale_of(bytes: u64) -> u64 {
    (0..3).find(|&scale| bytes <= UNITS_MAX * unit(scale)).unwrap_or(3)
}

/// Where a fragment lies in the store. Opaque outside this crate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlashAddress(NonZeroU64);

impl FlashAddress {
    /// The length on flash of a fragment of `bytes` bytes: rounded up to what an address can say exactly.
    pub(crate) fn padded_length(bytes: u64) -> u64 {
        bytes.next_multiple_of(unit(scale_of(bytes)))
    }

    /// The address of `length` bytes at `offset`. `length` comes from [`FlashAddress::padded_length`].
    pub(crate) fn new(offset: u64, length: u64) -> FlashAddress {
        debug_assert!(offset.is_multiple_of(ADDRESS_UNIT) && offset > 0 && offset < OFFSETS_END);
        debug_assert!(length > 0 && length <= LENGTH_MAX && length == FlashAddress::padded_length(length));
        let scale = scale_of(length);
        let raw = (offset / ADDRESS_UNIT) << 14 | scale << 12 | (length / unit(scale)) << 1;
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
        (self.to_raw() >> 14) * ADDRESS_UNIT
    }

    /// The length in bytes, padding included.
    pub(crate) fn length(self) -> u64 {
        (self.to_raw() >> 1 & UNITS_MAX) * unit(self.to_raw() >> 12 & 3)
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
        let ends = [1, 16, 256, 4096, 32_752, 524_032, 8_384_512, 64 << 20, LENGTH_MAX - 1];
        for bytes in ends.into_iter().flat_map(|end| [end - 1, end, end + 1]).filter(|&bytes| bytes > 0) {
            let length = FlashAddress::padded_length(bytes);
            assert!((bytes..bytes + 16 + bytes / 127).contains(&length), "{bytes} {length}");
            assert_eq!(FlashAddress::padded_length(length), length);
            for offset in [16, 4096, 1 << 40, OFFSETS_END - 16] {
                let address = FlashAddress::new(offset, length);
                assert_eq!((address.offset(), address.length()), (offset, length));
                assert_eq!(FlashAddress::from_raw(address.to_raw()), Some(address));
            }
        }
        // Nothing, no offset, no length, and a pointer.
        for raw in [0, 1, 3, 1 << 14 | 1, 1 << 14 | 2] {
            assert_eq!(FlashAddress::from_raw(raw), None, "{raw:#x}");
        }
    }
}
