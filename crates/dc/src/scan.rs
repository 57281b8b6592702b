//! From the leaves of a tree into the batch of a scan.

use crate::stored_value;
use deuteron_bwtree::{RecordRef, Visitor};
use deuteron_contract::{Block, Timestamp};

/// Adds what it meets to a batch, whose block holds the values already.
pub(crate) struct AddToBlock<'b, 's> {
    pub(crate) block: Block<'b>,
    /// Whether a value is not the user's as it lies there, so far.
    pub(crate) special: &'s mut bool,
}

impl Visitor for AddToBlock<'_, '_> {
    // Part of the loop of a scan: a call takes as much as what is done here.
    #[inline(always)]
    fn meet(&mut self, record: &RecordRef<'_>, value_at: usize) {
        *self.special |= record.value.is_some_and(stored_value::is_marked);
        let write_key = |room: &mut [u8]| record.write_key_to(room);
        let value = record.value.map(|value| value_at..value_at + value.len());
        self.block.push(record.key_bytes(), write_key, value, Timestamp(record.stamp));
    }
}
