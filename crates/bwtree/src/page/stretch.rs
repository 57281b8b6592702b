//! [`Stretch`]: records of a page that a scan takes over at once.

use super::run::{Entry, RecordRef, Run};
use std::iter;
use std::ops::Range;

/// Records that lie one behind the other on a page, or one that a delta has brought: what a scan reads next.
///
/// Whoever wants to keep the values copies [`Stretch::bytes`] in one go, and notes of each record where in there its value is, as [`Stretch::collect`] tells.
///
/// ```
/// # use deuteron_bwtree::{Cursor, Options, Tree, Upsert};
/// # use std::ops::Bound;
/// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
/// # let epochs = deuteron_epoch::Epochs::new();
/// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
/// # let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
/// tree.upsert(&[Upsert { key: b"one", value: Some(b"1"), stamp: 1, lsn: 1 }])?;
/// let mut cursor = Cursor::new(Bound::Unbounded, Bound::Unbounded, false, usize::MAX);
/// let scanned = tree.try_scan_leaves(&mut cursor, &tree.llama().pin(), |stretch| {
///     stretch.visit(|record| assert_eq!(record.value, Some(&b"1"[..])));
///     assert_eq!(stretch.bytes(), b"1");
/// });
/// assert!(scanned.is_ok() && cursor.is_complete());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Stretch<'a> {
    bytes: &'a [u8],
    records: Records<'a>,
}

/// Who takes over the records of a [`Stretch`] but for their keys: compiled into several loops, one for each way in which they may be written.
pub trait Collector {
    /// Takes them over, in the order of the scan.
    fn collect<'a>(self, entries: impl ExactSizeIterator<Item = Entry<'a>>);
}

#[derive(Clone, Copy)]
enum Records<'a> {
    One(RecordRef<'a>),
    Many { run: Run<'a>, start: usize, end: usize, reverse: bool },
}

impl<'a> Stretch<'a> {
    /// A record by itself.
    pub(crate) fn of_one(record: &RecordRef<'a>) -> Stretch<'a> {
        Stretch { bytes: record.value.unwrap_or_default(), records: Records::One(*record) }
    }

    /// Those of `run` in `range`, which are visited in the order of their keys or in reverse.
    pub(crate) fn of_run(run: &Run<'a>, range: Range<usize>, reverse: bool) -> Stretch<'a> {
        let bytes = run.record_bytes(range.clone());
        Stretch { bytes, records: Records::Many { run: *run, start: range.start, end: range.end, reverse } }
    }

    /// All their values, and what lies between.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Gives the records to `visit` in the order of the scan.
    #[inline]
    pub fn visit(&self, mut visit: impl FnMut(&RecordRef<'a>)) {
        match &self.records {
            Records::One(record) => visit(record),
            Records::Many { run, start, end, reverse: false } => {
                (*start..*end).for_each(|index| visit(&run.record(index)));
            }
            Records::Many { run, start, end, reverse: true } => {
                (*start..*end).rev().for_each(|index| visit(&run.record(index)));
            }
        }
    }

    /// Gives the records but for their keys to `collector`.
    #[inline]
    pub fn collect(&self, collector: impl Collector) {
        let (run, range, reverse) = match &self.records {
            Records::One(record) => {
                let (key_bytes, stamp, value) = (record.key_bytes(), record.stamp, record.value);
                return collector.collect(iter::once(Entry { key_bytes, stamp, value, value_at: 0 }));
            }
            Records::Many { run, start, end, reverse } => (run, *start..*end, *reverse),
        };
        // Loops for each shape, whose lengths and places the compiler knows.
        match run.layout().shape.number() {
            8 => collect_from(run.entries::<8, 2>(range), reverse, collector),
            10 => collect_from(run.entries::<10, 2>(range), reverse, collector),
            11 => collect_from(run.entries::<11, 2>(range), reverse, collector),
            12 => collect_from(run.entries::<12, 2>(range), reverse, collector),
            14 => collect_from(run.entries::<14, 2>(range), reverse, collector),
            15 => collect_from(run.entries::<15, 2>(range), reverse, collector),
            _ => collect_from(run.entries::<0, 4>(range), reverse, collector),
        }
    }

    /// As many bytes as the keys have together, or more: a part of a long key lies among the values.
    #[inline]
    pub fn keys_bytes_max(&self) -> usize {
        match &self.records {
            Records::One(record) => record.key_bytes(),
            Records::Many { run, start, end, .. } => run.entry_bytes_max(*start..*end),
        }
    }

    /// Writes the keys, whose lengths are known from [`Stretch::collect`], one behind the other to the beginning of `room`, which has at least eight bytes more;
    /// these may be written to, too.
    ///
    /// # Panics
    /// If it has not, or the lengths are others.
    #[inline]
    pub fn write_keys(&self, lengths: impl Iterator<Item = usize>, room: &mut [u8]) {
        match &self.records {
            Records::One(record) => record.key.write_to(room),
            Records::Many { run, start, end, reverse } => {
                run.write_keys(*start..*end, *reverse, lengths, room)
            }
        }
    }
}

#[inline(always)]
fn collect_from<'a>(
    entries: impl DoubleEndedIterator<Item = Entry<'a>> + ExactSizeIterator,
    reverse: bool,
    collector: impl Collector,
) {
    if reverse { collector.collect(entries.rev()) } else { collector.collect(entries) }
}
