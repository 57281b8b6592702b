//! Classes of slots: of what size they are, and of which part of the pool.
//!
//! Sizes from 32 to 256 go in steps of 16, up to 4 KiB in eighths of a power of two, and above that a span is cut into
//! fifteen parts, fourteen, and so on down to two. So a slot is seldom more than an eighth larger than what lies in it, and
//! little is left over at the end of a span.

use super::Part;
use super::span::SPAN_BYTES;

/// The smallest slot: what is known of a span has a bit for each.
pub(super) const SLOT_BYTES_MIN: usize = 2 * UNIT;
/// The largest slot. In the first span of a chunk, too, there is room for one.
pub(super) const SLOT_BYTES_MAX: usize = SPAN_BYTES / 2;
/// What all sizes are multiples of; the alignment of nodes.
const UNIT: usize = 16;
const FINE_MAX: usize = 256;
const EIGHTHS_MAX: usize = 4096;
const FINE: usize = (FINE_MAX - SLOT_BYTES_MIN) / UNIT + 1;
/// Classes up to [`EIGHTHS_MAX`].
const SMALL: usize = FINE + 8 * (EIGHTHS_MAX / FINE_MAX).ilog2() as usize;
/// Into how many parts a span is cut for the smallest of the other classes.
const PARTS_MAX: usize = SPAN_BYTES / EIGHTHS_MAX - 1;
/// The number of sizes.
const COUNT: usize = SMALL + PARTS_MAX - 1;
/// The number of classes: each part of the pool has its own.
pub(super) const CLASSES: usize = PARTS * COUNT;
/// The number of parts.
pub(super) const PARTS: usize = 2;

/// Slots that go from one place to another together, in bytes.
const BATCH_BYTES: usize = 32 << 10;

/// A class of slots: those of one size and one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SizeClass(pub(super) u8);

const SIZES: [u32; COUNT] = {
    let mut sizes = [0; COUNT];
    let mut class = 0;
    while class < COUNT {
        let size = if class < FINE {
            SLOT_BYTES_MIN + class * UNIT
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
    /// The class for `bytes` in `part`, or `None` if that is more than any slot has.
    #[inline]
    pub(super) fn of(part: Part, bytes: usize) -> Option<SizeClass> {
        let units = bytes.div_ceil(UNIT);
        let size = match BY_UNITS.get(units) {
            Some(&size) => usize::from(size),
            None if bytes <= SLOT_BYTES_MAX => SMALL + PARTS_MAX - SPAN_BYTES / (units * UNIT),
            None => return None,
        };
        Some(SizeClass((part as usize * COUNT + size) as u8))
    }

    #[inline]
    pub(super) fn index(self) -> usize {
        self.0.into()
    }

    /// The part that it is of, by its number.
    #[inline]
    pub(super) fn part(self) -> usize {
        self.index() / COUNT
    }

    /// Bytes of a slot.
    #[inline]
    pub(super) fn slot_bytes(self) -> usize {
        SIZES[self.index() % COUNT] as usize
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
        assert!(SIZES.is_sorted_by(|left, right| left < right) && CLASSES <= 1 << u8::BITS);
        for (number, part) in [Part::Pages, Part::Records].into_iter().enumerate() {
            for bytes in 1..=SLOT_BYTES_MAX {
                let class = SizeClass::of(part, bytes).expect("there is a class");
                let slot = class.slot_bytes();
                assert!(slot >= bytes && slot.is_multiple_of(UNIT), "{bytes} bytes in a slot of {slot}");
                let smaller = (class.index() % COUNT).checked_sub(1).map_or(0, |index| SIZES[index] as usize);
                assert!(smaller < bytes, "{bytes} bytes would fit into {smaller}");
                assert_eq!(class.part(), number);
            }
            assert_eq!(SizeClass::of(part, SLOT_BYTES_MAX + 1), None);
        }
    }

    #[test]
    fn little_is_lost_within_a_slot_and_behind_the_last_one() {
        for (index, slot) in
            SIZES.into_iter().map(|size| size as usize).enumerate().filter(|(_, slot)| *slot <= 8 << 10)
        {
            assert!(SPAN_BYTES % slot <= SPAN_BYTES / 14, "{} of a span lost", SPAN_BYTES % slot);
            let smaller = index.checked_sub(1).map_or(SLOT_BYTES_MIN - UNIT, |index| SIZES[index] as usize);
            assert!(slot - smaller <= (slot / 7).max(UNIT), "{smaller} to {slot}");
        }
    }
}
