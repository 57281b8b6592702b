//! Size classes: of what size the slots are that nodes lie in.
//!
//! Sizes up to 256 go in steps of 16, up to 4 KiB in eighths of a power of two, and above that a span is cut into
//! fifteen parts, fourteen, and so on down to two. So a slot is seldom more than an eighth larger than what lies in it, and
//! little is left over at the end of a span.

use super::span::SPAN_BYTES;

/// The largest slot. In the first span of a chunk, too, there is room for one.
pub(super) const SLOT_BYTES_MAX: usize = SPAN_BYTES / 2;
/// What all sizes are multiples of; the alignment of nodes.
const UNIT: usize = 16;
const FINE_MAX: usize = 256;
const EIGHTHS_MAX: usize = 4096;
const FINE: usize = FINE_MAX / UNIT;
/// Classes up to [`EIGHTHS_MAX`].
const SMALL: usize = FINE + 8 * (EIGHTHS_MAX / FINE_MAX).ilog2() as usize;
/// Into how many parts a span is cut for the smallest of the other classes.
const PARTS_MAX: usize = SPAN_BYTES / EIGHTHS_MAX - 1;
/// The number of classes.
pub(super) const CLASSES: usize = SMALL + PARTS_MAX - 1;

/// Slots that go from one place to another together, in bytes.
const BATCH_BYTES: usize = 32 << 10;

/// A class of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SizeClass(pub(super) u8);

const SIZES: [u32; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let size = if class < FINE {
            (class + 1) * UNIT
        } else if class < SMALL {
            let (octave, eighth) = ((class - FINE) / 8, (class - FINE) % 8);
            (FINE_MAX << octave) / 8 * (9 + eighth)
        } else {
            SPAN_BYTES / (PARTS_MAX - (class - SMALL)) / UNIT * UNIT
        };
        sizes[class] = size as u32;
        class += 1;
    }
    sizes
};

/// The class for each number of units up to [`EIGHTHS_MAX`].
const BY_UNITS: [u8; EIGHTHS_MAX / UNIT + 1] = {
    let mut classes = [0; EIGHTHS_MAX / UNIT + 1];
    let (mut units, mut class) = (1, 0);
    while units < classes.len() {
        if units * UNIT > SIZES[class] as usize {
            class += 1;
        }
        classes[units] = class as u8;
        units += 1;
    }
    classes
};

impl SizeClass {
    /// The class for `bytes`, or `None` if that is more than any slot has.
    #[inline]
    pub(super) fn of(bytes: usize) -> Option<SizeClass> {
        let units = bytes.div_ceil(UNIT);
        match BY_UNITS.get(units) {
            Some(&class) => Some(SizeClass(class)),
            None if bytes <= SLOT_BYTES_MAX => {
                let parts = SPAN_BYTES / (units * UNIT);
                Some(SizeClass((SMALL + PARTS_MAX - parts) as u8))
            }
            None => None,
        }
    }

    #[inline]
    pub(super) fn index(self) -> usize {
        self.0.into()
    }

    /// Bytes of a slot.
    #[inline]
    pub(super) fn slot_bytes(self) -> usize {
        SIZES[self.index()] as usize
    }

    /// How many slots go from a thread to the others, or the other way, together.
    #[inline]
    pub(super) fn batch(self) -> u32 {
        (BATCH_BYTES / self.slot_bytes()).clamp(1, 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_class_that_is_large_enough_is_taken() {
        assert!(SIZES.is_sorted_by(|left, right| left < right));
        for bytes in 1..=SLOT_BYTES_MAX {
            let class = SizeClass::of(bytes).expect("there is a class");
            let slot = class.slot_bytes();
            assert!(slot >= bytes && slot.is_multiple_of(UNIT), "{bytes} bytes in a slot of {slot}");
            let smaller = class.index().checked_sub(1).map_or(0, |index| SIZES[index] as usize);
            assert!(smaller < bytes, "{bytes} bytes would fit into {smaller}");
        }
        assert_eq!(SizeClass::of(SLOT_BYTES_MAX + 1), None);
    }

    #[test]
    fn little_is_lost_within_a_slot_and_behind_the_last_one() {
        for class in (0..CLASSES as u8).map(SizeClass).filter(|class| class.slot_bytes() <= 8 << 10) {
            let slot = class.slot_bytes();
            assert!(SPAN_BYTES % slot <= SPAN_BYTES / 14, "{} of a span lost", SPAN_BYTES % slot);
            let smaller = class.index().checked_sub(1).map_or(0, |index| SIZES[index] as usize);
            assert!(slot - smaller <= (slot / 7).max(UNIT), "{smaller} to {slot}");
        }
    }
}
