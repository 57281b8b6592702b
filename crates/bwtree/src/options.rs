//! [`Options`]: what can be set.

use crate::BwTreeError;
use crate::tree::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// The settings of a tree. None is part of the format: a tree may be opened with others than before.
///
/// ```
/// use deuteron_bwtree::Options;
/// assert!(Options { page_bytes_max: 16 << 10, ..Options::default() }.validate().is_ok());
/// assert!(Options { page_bytes_max: 1, ..Options::default() }.validate().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A page is split when, consolidated, it takes more bytes than this, unless it is a single record. What its bounds take
    /// beyond an eighth of it does not count.
    pub page_bytes_max: usize,
    /// A page is consolidated by the upsert that makes its chain this long; of deltas in the slack four count like one.
    pub consolidate_at: usize,
    /// Room in front of a page that is being changed, for its next deltas, while half of the store's budget is free: about so many
    /// bytes, at most [`SLACK_BYTES_MAX`](deuteron_llama::SLACK_BYTES_MAX).
    pub slack_bytes: usize,
    /// No chain gets longer than this. An upsert that finds one so long consolidates first, or, if the page is not in
    /// memory, has it loaded: the back-pressure that bounds unread deltas.
    pub chain_length_max: usize,
    /// An upsert batch to one page is cut into deltas of about this many bytes.
    pub delta_bytes_max: usize,
    /// An inner node with this many separators is split.
    pub inner_entries_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            page_bytes_max: 4 << 10,
            consolidate_at: 4,
            slack_bytes: 1536,
            chain_length_max: 20,
            delta_bytes_max: 64 << 10,
            inner_entries_max: 256,
        }
    }
}

impl Options {
    /// Everything small, so that rare paths are common.
    pub fn tiny_for_tests() -> Options {
        Options {
            page_bytes_max: 256,
            consolidate_at: 2,
            slack_bytes: 256,
            chain_length_max: 4,
            delta_bytes_max: 128,
            inner_entries_max: 4,
        }
    }

    /// No chain takes more bytes than this and one more delta. Like [`Options::chain_length_max`].
    pub(crate) fn chain_bytes_max(&self) -> usize {
        self.delta_bytes_max.max(8 * self.page_bytes_max)
    }

    /// The longest value in bytes in a store that takes pages of `store_page_bytes_max`
    /// ([`Llama::page_bytes_max`](deuteron_llama::Llama::page_bytes_max)). A page as large as it can get must fit: a base of
    /// one record, a chain up to its limit, and one more delta.
    pub fn value_bytes_max(&self, store_page_bytes_max: usize) -> usize {
        let chain = self.chain_bytes_max() + self.delta_bytes_max + self.page_bytes_max + 4 * KEY_BYTES_MAX;
        VALUE_BYTES_MAX.min(store_page_bytes_max.saturating_sub(chain) / 2)
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`BwTreeError::Options`] names the first setting that cannot be.
    pub fn validate(&self) -> Result<(), BwTreeError> {
        let refuse = |setting, requirement| Err(BwTreeError::Options { setting, requirement });
        if !(128..=1 << 20).contains(&self.page_bytes_max) {
            return refuse("page_bytes_max", "from 128 bytes to 1 MiB");
        }
        if self.consolidate_at == 0 {
            return refuse("consolidate_at", "at least 1");
        }
        if self.chain_length_max < self.consolidate_at || self.chain_length_max > 1024 {
            return refuse("chain_length_max", "at least consolidate_at, at most 1024");
        }
        if self.delta_bytes_max > 1 << 20 {
            return refuse("delta_bytes_max", "at most 1 MiB");
        }
        if !(4..=1 << 16).contains(&self.inner_entries_max) {
            return refuse("inner_entries_max", "from 4 to 65536");
        }
        Ok(())
    }
}
