//! How the records of a run are written: in no more bytes than their stamps, LSNs and lengths need.
//!
//! The stamps of a page's records lie near each other, and so do their LSNs: what is written of each is how far it is from the
//! least one of the run, which the run's header says. Where all have the same stamp, as in a bulk load and in most deltas, nothing is
//! written; where each LSN is the stamp, as in a store without transactions, it is written once. A run that has too long a key or
//! value for that, or is too long itself, is *wide*: everything in full.
//!
//! A page keeps its layout from one consolidation to the next for as long as what is new fits, so that records are copied as they lie.

use super::key::HEAD_BYTES;
use super::run::RecordRef;
use crate::tree::KEY_BYTES_MAX;

/// The longest key of a narrow run. Counted with the prefix, so that it does not matter how much of it the run's keys share.
const NARROW_KEY_BYTES_MAX: usize = u8::MAX as usize;
/// What is written as the length of a tombstone's value.
const NARROW_TOMBSTONE: usize = u16::MAX as usize;
/// The same in a wide run.
const WIDE_TOMBSTONE: u32 = u32::MAX;

/// How many bytes the fields of a run's records have: the high half of the kind in its header.
///
/// | bits | |
/// |---|---|
/// | 0 and 1 | of a narrow run half the bytes of each number: 0, 2, 3 |
/// | 2 | of a narrow run whether the LSNs are written, too; otherwise they are the stamps |
/// | 3 | 1: narrow; 0: wide, and so are the others |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(u8);

impl Shape {
    pub(crate) const WIDE: Shape = Shape(0);
    const LSNS: u8 = 4;
    const NARROW: u8 = 8;

    /// As in a kind, and in the table above.
    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// The shape in the kind of a run.
    #[inline]
    pub(crate) fn of_kind(kind: u8) -> Shape {
        Shape(kind >> 4)
    }

    /// What it adds to the kind.
    pub(crate) fn in_kind(self) -> u8 {
        self.0 << 4
    }

    /// The format that has this shape; `None` if it is none.
    pub(crate) fn format(self) -> Option<u8> {
        match self.0 {
            0 => Some(1),
            8 | 10 | 11 | 12 | 14 | 15 => Some(2),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn is_wide(self) -> bool {
        self.0 == 0
    }

    /// Whether the LSNs are written, in a narrow run.
    #[inline]
    fn has_lsns(self) -> bool {
        self.0 & Shape::LSNS != 0
    }

    /// Bytes of a stamp or an LSN in a narrow run.
    #[inline]
    fn number_bytes(self) -> usize {
        2 * usize::from(self.0 & 3)
    }

    /// Bytes that the run's header is longer.
    #[inline]
    pub(crate) fn header_bytes(self) -> usize {
        8 * (usize::from(self.0 & 3 != 0) + usize::from(self.has_lsns()))
    }

    /// The longest run of this shape: where its records begin must fit into an offset.
    pub(crate) fn run_bytes_max(self) -> usize {
        if self.is_wide() { u32::MAX as usize } else { u16::MAX.into() }
    }

    /// The longest key in a run of this shape.
    pub(crate) fn key_bytes_max(self) -> usize {
        if self.is_wide() { KEY_BYTES_MAX } else { NARROW_KEY_BYTES_MAX }
    }

    /// Bytes of an offset.
    #[inline]
    pub(crate) fn offset_bytes(self) -> usize {
        if self.is_wide() { 4 } else { 2 }
    }

    /// Bytes of head and offset.
    #[inline]
    pub(crate) fn slot_bytes(self) -> usize {
        HEAD_BYTES + self.offset_bytes()
    }

    /// Bytes of a record without key and value.
    #[inline]
    pub(crate) fn record_header_bytes(self) -> usize {
        if self.is_wide() { 22 } else { 3 + (self.number_bytes() << usize::from(self.has_lsns())) }
    }

    /// Bytes of the key behind the prefix of the record that begins `record`.
    #[inline]
    pub(crate) fn suffix_bytes(self, record: &[u8]) -> usize {
        if self.is_wide() { (u32_at(record, 18) >> 16) as usize } else { record[2].into() }
    }

    /// Bytes of a record in a run with a prefix of `prefix_bytes`, its slot included.
    #[inline]
    pub(crate) fn record_bytes(self, key_bytes: usize, value_bytes: usize, prefix_bytes: usize) -> usize {
        let rest_bytes = (key_bytes - prefix_bytes).saturating_sub(HEAD_BYTES);
        self.slot_bytes() + self.record_header_bytes() + rest_bytes + value_bytes
    }

    /// The same of `record`.
    #[inline]
    pub(crate) fn bytes_of(self, record: &RecordRef<'_>, prefix_bytes: usize) -> usize {
        self.record_bytes(record.key.bytes(), record.value.map_or(0, <[u8]>::len), prefix_bytes)
    }
}

/// The header of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Its own length.
    pub(crate) bytes: usize,
    /// Bytes of the key behind the prefix.
    pub(crate) suffix_bytes: usize,
    /// `None` of a tombstone.
    pub(crate) value_bytes: Option<usize>,
    pub(crate) stamp: u64,
    pub(crate) lsn: u64,
}

impl Head {
    /// Where behind the beginning of the record its value begins.
    #[inline(always)]
    pub(crate) fn value_at(&self) -> usize {
        self.bytes + self.suffix_bytes.saturating_sub(HEAD_BYTES)
    }
}

#[inline]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A shape, and what the numbers of a narrow run are counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) shape: Shape,
    stamp_from: u64,
    lsn_from: u64,
}

impl Layout {
    pub(crate) const WIDE: Layout = Layout { shape: Shape::WIDE, stamp_from: 0, lsn_from: 0 };

    /// That of a run of `shape` with this newest stamp, from what its header has at `at`.
    #[inline]
    pub(crate) fn read(shape: Shape, newest_stamp: u64, header: &[u8], at: usize) -> Layout {
        if shape.is_wide() {
            return Layout::WIDE;
        }
        let has_stamp = shape.number_bytes() != 0;
        let stamp_from = if has_stamp { u64_at(header, at) } else { newest_stamp };
        // The last of what the header has there.
        let lsn_from = if shape.has_lsns() { u64_at(header, at + shape.header_bytes() - 8) } else { 0 };
        Layout { shape, stamp_from, lsn_from }
    }

    /// Writes into a header what [`Layout::read`] reads.
    pub(crate) fn write(&self, header: &mut [u8]) {
        let stamp = (self.shape.number_bytes() != 0).then_some(self.stamp_from);
        let lsn = self.shape.has_lsns().then_some(self.lsn_from);
        for (field, number) in header.chunks_exact_mut(8).zip(stamp.into_iter().chain(lsn)) {
            field.copy_from_slice(&number.to_le_bytes());
        }
    }

    /// This layout, whose shape is known to be this one: what is done with it is made for that shape.
    #[inline(always)]
    pub(crate) fn of_shape<const SHAPE: u8>(self) -> Layout {
        Layout { shape: Shape(SHAPE), ..self }
    }

    /// Whether a stamp and an LSN that were read are counted from what the header says, and do not go round.
    #[inline]
    pub(crate) fn counts_to(&self, stamp: u64, lsn: u64) -> bool {
        stamp >= self.stamp_from && lsn >= self.lsn_from
    }

    /// Whether `record` may be written so.
    #[inline]
    pub(crate) fn holds(&self, record: &RecordRef<'_>) -> bool {
        if self.shape.is_wide() {
            return true;
        }
        let fits = |number: u64, from: u64| {
            number.checked_sub(from).is_some_and(|distance| distance >> (8 * self.shape.number_bytes()) == 0)
        };
        let lsn_fits =
            if self.shape.has_lsns() { fits(record.lsn, self.lsn_from) } else { record.lsn == record.stamp };
        lsn_fits && fits(record.stamp, self.stamp_from) && is_short(record)
    }

    /// What the header of the record that begins `record` says.
    #[inline(always)]
    pub(crate) fn read_record(&self, record: &[u8]) -> Head {
        // Each case with lengths and places that the compiler knows.
        match self.shape.0 {
            8 => self.read_narrow::<0, false>(record),
            10 => self.read_narrow::<4, false>(record),
            11 => self.read_narrow::<6, false>(record),
            12 => self.read_narrow::<0, true>(record),
            14 => self.read_narrow::<4, true>(record),
            15 => self.read_narrow::<6, true>(record),
            _ => read_wide(record),
        }
    }

    #[inline(always)]
    fn read_narrow<const NUMBER: usize, const LSNS: bool>(&self, record: &[u8]) -> Head {
        let bytes = 3 + NUMBER * (1 + usize::from(LSNS));
        let header = &record[..bytes];
        let value_bytes = usize::from(header[0]) | usize::from(header[1]) << 8;
        // Of a damaged run they may not fit, as `counts_to` finds; what is read for that must not panic.
        let number = |at: usize| match NUMBER {
            0 => 0,
            4 => u64::from(u32_at(header, at)),
            _ => u64::from(u32_at(header, at)) | u64::from(u32_at(header, at + 2) >> 16) << 32,
        };
        let stamp = self.stamp_from.wrapping_add(number(3));
        let lsn = if LSNS { self.lsn_from.wrapping_add(number(3 + NUMBER)) } else { stamp };
        let value_bytes = (value_bytes != NARROW_TOMBSTONE).then_some(value_bytes);
        Head { bytes, suffix_bytes: header[2].into(), value_bytes, stamp, lsn }
    }

    /// Writes a record's lengths, stamp and LSN into its header; `suffix_bytes` of its key lie behind the run's prefix.
    ///
    /// # Panics
    /// If the layout does not hold it.
    #[inline]
    pub(crate) fn write_record(&self, header: &mut [u8], suffix_bytes: usize, record: &RecordRef<'_>) {
        if self.shape.is_wide() {
            let value_bytes = record.value.map_or(WIDE_TOMBSTONE, |value| {
                u32::try_from(value.len()).expect("values are shorter than 4 GiB")
            });
            let suffix_bytes = u16::try_from(suffix_bytes).expect("keys are shorter than 64 KiB");
            header[0..8].copy_from_slice(&record.stamp.to_le_bytes());
            header[8..16].copy_from_slice(&record.lsn.to_le_bytes());
            header[16..20].copy_from_slice(&value_bytes.to_le_bytes());
            header[20..22].copy_from_slice(&suffix_bytes.to_le_bytes());
            return;
        }
        assert!(self.holds(record), "the layout was made for the run's records");
        // As the layout holds it.
        let value_bytes = record.value.map_or(NARROW_TOMBSTONE, <[u8]>::len) as u16;
        header[0..2].copy_from_slice(&value_bytes.to_le_bytes());
        header[2] = suffix_bytes as u8;
        let bytes = self.shape.number_bytes();
        put_number(&mut header[3..], record.stamp - self.stamp_from, bytes);
        if self.shape.has_lsns() {
            put_number(&mut header[3 + bytes..], record.lsn - self.lsn_from, bytes);
        }
    }

    /// This layout with what a run takes in it by `bytes`, or if it is too long for a narrow one the wide layout.
    pub(crate) fn fitting(self, bytes: impl Fn(Shape) -> usize) -> (Layout, usize) {
        match bytes(self.shape) {
            own if self.shape.is_wide() || own <= self.shape.run_bytes_max() => (self, own),
            _ => (Layout::WIDE, bytes(Shape::WIDE)),
        }
    }
}

#[inline(always)]
fn read_wide(record: &[u8]) -> Head {
    let header = &record[..22];
    let value_bytes = u32_at(header, 16);
    Head {
        bytes: 22,
        suffix_bytes: (u32_at(header, 18) >> 16) as usize,
        value_bytes: (value_bytes != WIDE_TOMBSTONE).then_some(value_bytes as usize),
        stamp: u64_at(header, 0),
        lsn: u64_at(header, 8),
    }
}

#[inline]
fn put_number(bytes: &mut [u8], number: u64, number_bytes: usize) {
    match number_bytes {
        0 => {}
        4 => bytes[..4].copy_from_slice(&number.to_le_bytes()[..4]),
        _ => bytes[..6].copy_from_slice(&number.to_le_bytes()[..6]),
    }
}

/// Whether a narrow run has room for the lengths.
#[inline]
fn is_short(record: &RecordRef<'_>) -> bool {
    record.key.bytes() <= NARROW_KEY_BYTES_MAX
        && record.value.is_none_or(|value| value.len() < NARROW_TOMBSTONE)
}

/// What must be known of the records of a run to choose its layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    least: (u64, u64),
    greatest: (u64, u64),
    lsns_are_stamps: bool,
    short: bool,
}

impl Span {
    /// That of no record.
    pub(crate) const NONE: Span =
        Span { least: (u64::MAX, u64::MAX), greatest: (0, 0), lsns_are_stamps: true, short: true };

    /// That of some records.
    pub(crate) fn of<'a>(records: impl Iterator<Item = RecordRef<'a>>) -> Span {
        records.fold(Span::NONE, |span, record| span.with(&record))
    }

    /// With one more record.
    #[inline]
    pub(crate) fn with(self, record: &RecordRef<'_>) -> Span {
        let RecordRef { stamp, lsn, .. } = *record;
        Span {
            least: (self.least.0.min(stamp), self.least.1.min(lsn)),
            greatest: (self.greatest.0.max(stamp), self.greatest.1.max(lsn)),
            lsns_are_stamps: self.lsns_are_stamps && stamp == lsn,
            short: self.short && is_short(record),
        }
    }

    /// The layout of fewest bytes that holds them.
    #[inline]
    pub(crate) fn layout(&self) -> Layout {
        let (stamps, lsns) =
            (self.greatest.0.saturating_sub(self.least.0), self.greatest.1.saturating_sub(self.least.1));
        let number = match stamps.max(lsns) {
            0 => 0,
            distance if distance >> 32 == 0 => 2,
            distance if distance >> 48 == 0 => 3,
            _ => return Layout::WIDE,
        };
        if !self.short {
            return Layout::WIDE;
        }
        let has_lsns = !self.lsns_are_stamps;
        Layout {
            shape: Shape(Shape::NARROW | number | if has_lsns { Shape::LSNS } else { 0 }),
            // Of no record it is what the header of such a run says.
            stamp_from: self.least.0.min(self.greatest.0),
            lsn_from: if has_lsns { self.least.1 } else { 0 },
        }
    }
}
