//! A delta made of a batch of upserts.

use super::key::{KeyParts, common_prefix_bytes};
use super::layout::{Layout, Shape, Span};
use super::run::RecordRef;
use super::writer::{RunWriter, delta_bytes};

/// One blind upsert or delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upsert<'a> {
    /// The key, 1 to [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX) bytes.
    pub key: &'a [u8],
    /// The new value, or `None` for a delete.
    pub value: Option<&'a [u8]>,
    /// Which of two versions of a key is newer: the one with the higher stamp.
    pub stamp: u64,
    /// Where the operation lies in the log; decides between equal stamps.
    pub lsn: u64,
}

impl Upsert<'_> {
    /// Bytes of the record in a run without a prefix, an upper bound.
    pub(crate) fn bytes(&self) -> usize {
        Shape::WIDE.record_bytes(self.key.len(), self.value.map_or(0, <[u8]>::len), 0)
    }
}

impl<'a> Upsert<'a> {
    #[inline]
    pub(crate) fn record(&self) -> RecordRef<'a> {
        RecordRef { key: KeyParts::whole(self.key), stamp: self.stamp, lsn: self.lsn, value: self.value }
    }
}

/// The shape of a delta: what must be known before its memory is allocated.
pub(crate) struct Batch<'o, 'a> {
    /// Keys not descending; of equal keys only the newest is written.
    operations: &'o [Upsert<'a>],
    high: Option<&'o [u8]>,
    layout: Layout,
    count: usize,
    prefix_bytes: usize,
    bytes: usize,
}

impl<'o, 'a> Batch<'o, 'a> {
    /// Plans a delta of `operations`, which are not empty and sorted by key, for a page that ends at `high`.
    pub(crate) fn new(operations: &'o [Upsert<'a>], high: Option<&'o [u8]>) -> Batch<'o, 'a> {
        if let [only] = operations {
            let (record, prefix_bytes) = (only.record(), only.key.len());
            let (layout, bytes) = Span::NONE.with(&record).layout().fitting(|shape| {
                delta_bytes(shape, prefix_bytes, high, shape.bytes_of(&record, prefix_bytes))
            });
            return Batch { operations, high, layout, count: 1, prefix_bytes, bytes };
        }
        let (first, last) = (operations[0].key, operations[operations.len() - 1].key);
        let prefix_bytes = common_prefix_bytes(first, last);
        let records = || winners(operations).map(Upsert::record);
        let (layout, bytes) = Span::of(records()).layout().fitting(|shape| {
            let records = records().map(|record| shape.bytes_of(&record, prefix_bytes));
            delta_bytes(shape, prefix_bytes, high, records.sum())
        });
        Batch { operations, high, layout, count: records().count(), prefix_bytes, bytes }
    }

    /// How many operations it takes, those that lose against others of the batch included.
    pub(crate) fn operations(&self) -> usize {
        self.operations.len()
    }

    /// The delta's size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes the delta into a buffer of [`Batch::bytes`] bytes.
    pub(crate) fn write(&self, bytes: &mut [u8], stamp_below: u64) {
        let prefix = &self.operations[0].key[..self.prefix_bytes];
        let mut writer = RunWriter::delta(bytes, self.layout, self.count, prefix, self.high, stamp_below);
        match self.operations {
            [only] => writer.push(&only.record()),
            several => winners(several).for_each(|upsert| writer.push(&upsert.record())),
        }
        writer.finish();
    }
}

/// The newest of each group of operations with the same key.
fn winners<'o, 'a>(operations: &'o [Upsert<'a>]) -> impl Iterator<Item = &'o Upsert<'a>> {
    operations
        .chunk_by(|left, right| left.key == right.key)
        .filter_map(|group| group.iter().max_by_key(|upsert| (upsert.stamp, upsert.lsn)))
}
