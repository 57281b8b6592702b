//! A delta made of a batch of upserts.

use super::key::{KeyParts, common_prefix_bytes};
use super::layout::{Layout, Shape, Span};
use super::run::{RecordRef, Run};
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

/// The delta that says what the payloads of these say together, which lie on each other, the newest first: of each key its newest version. `None` if one of them is no delta, or there
/// is none.
///
/// ```
/// # use deuteron_bwtree::{Options, Tree, Upsert, unite_deltas};
/// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
/// # let epochs = deuteron_epoch::Epochs::new();
/// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
/// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
/// for stamp in 1..=2 {
///     tree.upsert(&[Upsert { key: b"one", value: Some(b"1"), stamp, lsn: stamp }])?;
/// }
/// let guard = tree.llama().pin();
/// tree.some_leaves(&[], |_, page| {
///     let newest = tree.llama().snapshot(page, &guard).head().expect("in memory");
///     let nodes = std::iter::successors(Some(newest), |node| node.next());
///     let deltas: Vec<_> = nodes.map(|node| node.payload()).take(2).collect();
///     let united = unite_deltas(&deltas).expect("they are deltas");
///     assert_eq!(united.len(), newest.payload().len());
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn unite_deltas(deltas: &[&[u8]]) -> Option<Vec<u8>> {
    let runs = deltas.iter().map(|delta| Run::verify(delta).ok().filter(|run| !run.is_base()));
    let runs: Vec<Run<'_>> = runs.collect::<Option<_>>()?;
    let (newest, oldest) = (runs.first()?, runs.last()?);
    let records = || runs.iter().flat_map(|run| (0..run.count()).map(|index| run.record(index)));
    let key_of = |record: RecordRef<'_>| {
        let mut key = Vec::with_capacity(record.key_bytes());
        record.append_key_to(&mut key);
        key
    };
    let keys: Vec<Vec<u8>> = records().map(key_of).collect();
    let mut upserts: Vec<Upsert<'_>> = (keys.iter().zip(records()))
        .map(|(key, RecordRef { value, stamp, lsn, .. })| Upsert { key, value, stamp, lsn })
        .collect();
    upserts.sort_by_key(|upsert| upsert.key);
    let batch = Batch::new(Some(&upserts[..]).filter(|upserts| !upserts.is_empty())?, newest.high());
    let mut united = vec![0; batch.bytes()];
    batch.write(&mut united, oldest.stamp_below());
    Some(united)
}

/// The newest of each group of operations with the same key.
fn winners<'o, 'a>(operations: &'o [Upsert<'a>]) -> impl Iterator<Item = &'o Upsert<'a>> {
    operations
        .chunk_by(|left, right| left.key == right.key)
        .filter_map(|group| group.iter().max_by_key(|upsert| (upsert.stamp, upsert.lsn)))
}
