//! From the leaves of a tree into the batch of a scan.

use crate::stored_value;
use deuteron_bwtree::{Collector, Entry, Stretch};
use deuteron_contract::{BlockEntry, ScanBatch, Timestamp};

/// Adds the records of a stretch to a batch.
pub(crate) struct AddToBatch<'b> {
    pub(crate) stretch: &'b Stretch<'b>,
    pub(crate) batch: &'b mut ScanBatch,
    /// Whether a value is not the user's as it lies there, so far.
    pub(crate) special: &'b mut bool,
}

impl Collector for AddToBatch<'_> {
    // Part of the loop of a scan: a call takes as much as what is done here.
    #[inline(always)]
    fn collect<'a>(self, entries: impl ExactSizeIterator<Item = Entry<'a>>) {
        let AddToBatch { stretch, batch, special } = self;
        let entries = entries.map(|entry| {
            *special |= entry.value.is_some_and(stored_value::is_marked);
            BlockEntry {
                key_bytes: entry.key_bytes,
                value_at: entry.value_at,
                value_bytes: entry.value.map(<[u8]>::len),
                timestamp: Timestamp(entry.stamp),
            }
        });
        batch.push_block(stretch.bytes(), stretch.keys_bytes_max(), entries, |lengths, room| {
            stretch.write_keys(lengths, room);
        });
    }
}
