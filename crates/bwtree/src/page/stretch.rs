//! [`Stretch`]: records of a page that a scan takes over at once.

use super::run::{RecordRef, Run};
use std::ops::Range;

/// Records that lie one behind the other on a page, or one that a delta has brought: what a scan reads next.
///
/// Whoever wants to keep the values copies [`Stretch::bytes`] in one go, and notes of each record where in there its value is.
///
/// ```
/// # use deuteron_bwtree::{Cursor, Options, RecordRef, Tree, Upsert};
/// # use std::ops::Bound;
/// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
/// # let epochs = deuteron_epoch::Epochs::new();
/// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
/// # let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
/// tree.upsert(&[Upsert { key: b"one", value: Some(b"1"), stamp: 1, lsn: 1 }])?;
/// let mut cursor = Cursor::new(Bound::Unbounded, Bound::Unbounded, false, usize::MAX);
/// let scanned = tree.try_scan_leaves(&mut cursor, &tree.llama().pin(), |stretch| {
///     let bytes = stretch.bytes();
///     stretch.visit(|record: &RecordRef<'_>, value_at: usize| {
///         assert_eq!((record.value, &bytes[value_at..]), (Some(&b"1"[..]), &b"1"[..]));
///     });
/// });
/// assert!(scanned.is_ok() && cursor.is_complete());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Stretch<'a> {
    bytes: &'a [u8],
    records: Records<'a>,
}

/// What is done with each record of a [`Stretch`]. A closure will do; a type of its own can ask to be compiled into the loops, of which there are several.
pub trait Visitor {
    /// Meets a record, whose value begins at `value_at` of [`Stretch::bytes`], if it has one.
    fn meet(&mut self, record: &RecordRef<'_>, value_at: usize);
}

impl<F: FnMut(&RecordRef<'_>, usize)> Visitor for F {
    #[inline]
    fn meet(&mut self, record: &RecordRef<'_>, value_at: usize) {
        self(record, value_at);
    }
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

    /// Gives the records to `visitor` in the order of the scan.
    #[inline]
    pub fn visit(&self, mut visitor: impl Visitor) {
        let (run, range, reverse) = match &self.records {
            Records::One(record) => return visitor.meet(record, 0),
            Records::Many { run, start, end, reverse } => (run, *start..*end, *reverse),
        };
        // One loop for each shape, whose lengths and places the compiler knows.
        match run.layout().shape.number() {
            8 => visit_each::<8>(run, range, reverse, visitor),
            10 => visit_each::<10>(run, range, reverse, visitor),
            11 => visit_each::<11>(run, range, reverse, visitor),
            12 => visit_each::<12>(run, range, reverse, visitor),
            14 => visit_each::<14>(run, range, reverse, visitor),
            15 => visit_each::<15>(run, range, reverse, visitor),
            _ => visit_each::<0>(run, range, reverse, visitor),
        }
    }
}

#[inline(always)]
fn visit_each<'a, const SHAPE: u8>(
    run: &Run<'a>,
    range: Range<usize>,
    reverse: bool,
    mut visitor: impl Visitor,
) {
    let layout = run.layout().of_shape::<SHAPE>();
    let from = run.record_start(range.start);
    for step in 0..range.len() {
        let index = if reverse { range.end - 1 - step } else { range.start + step };
        let (record, value_at) = run.record_as(layout, index);
        visitor.meet(&record, value_at - from);
    }
}
