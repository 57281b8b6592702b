//! [`DcOptions`]: what can be set.

use deuteron_contract::DcError;
use deuteron_llama::LlamaError;

/// What no option can make the longest value longer than.
pub(crate) const VALUE_BYTES_MAX: usize = 1 << 30;

/// The settings of a data component. `segment_bytes` is part of the format: a component that exists keeps its own.
///
/// ```
/// use deuteron_dc::DcOptions;
/// let options = DcOptions { memory_bytes: 1 << 30, ..DcOptions::default() };
/// assert!(options.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DcOptions {
    /// *Format.* Bytes of a segment file.
    pub segment_bytes: u64,
    /// Budget of pages and indexes in bytes.
    pub memory_bytes: u64,
    /// When so much of the budget, in percent, has been applied and not yet flushed, [`maintain_step`] flushes.
    ///
    /// [`maintain_step`]: crate::BwTreeDc::maintain_step
    pub dirty_percent_max: u32,
    /// About how many bytes a flush writes at once.
    pub flush_buffer_bytes: usize,
    /// After so many fragments a page is written in full, so that a cold read takes at most so many I/Os; or when those beside it have half as many on average, or up to a third less than that; after a third as many if
    /// it is in memory as a whole.
    pub fragments_max: usize,
    /// How much the segments may take before cleaning sets in, in percent of what is live in them.
    pub space_amplification_percent_max: u32,
    /// How much dead segments may take that are kept to become the next ones, in percent of what all segments take. They are given
    /// back when the component is idle.
    pub spare_percent_max: u32,
    /// The longest value in bytes.
    pub value_bytes_max: usize,
    /// A value longer than this is cut into chunks of so many bytes (fewer, if a segment is too small for such a page), which are read
    /// and written by themselves.
    pub chunk_bytes: usize,
    /// Whether pages are compressed on disk where that saves enough. What is on disk is read either way.
    pub compress: bool,
    /// Whether to bypass the operating system's page cache where it lets us.
    pub direct: bool,
    /// The shape of the trees.
    pub tree: deuteron_bwtree::Options,
}

impl Default for DcOptions {
    fn default() -> DcOptions {
        let store = deuteron_llama::Options::default();
        DcOptions {
            segment_bytes: store.segment_bytes,
            memory_bytes: store.memory_bytes,
            dirty_percent_max: 25,
            flush_buffer_bytes: store.flush_buffer_bytes,
            fragments_max: store.fragments_max,
            space_amplification_percent_max: store.space_amplification_percent_max,
            spare_percent_max: store.spare_percent_max,
            value_bytes_max: 64 << 20,
            chunk_bytes: 256 << 10,
            compress: store.compress,
            direct: store.direct,
            tree: deuteron_bwtree::Options::default(),
        }
    }
}

impl DcOptions {
    /// Everything small, so that rare paths are common.
    pub fn tiny_for_tests() -> DcOptions {
        let store = deuteron_llama::Options::tiny_for_tests();
        DcOptions {
            segment_bytes: store.segment_bytes,
            memory_bytes: store.memory_bytes,
            dirty_percent_max: 25,
            flush_buffer_bytes: store.flush_buffer_bytes,
            fragments_max: store.fragments_max,
            space_amplification_percent_max: store.space_amplification_percent_max,
            spare_percent_max: store.spare_percent_max,
            value_bytes_max: 64 << 10,
            chunk_bytes: 1 << 10,
            compress: store.compress,
            direct: store.direct,
            tree: deuteron_bwtree::Options::tiny_for_tests(),
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`DcError::Device`], whose source names the setting that cannot be.
    pub fn validate(&self) -> Result<(), DcError> {
        let refuse =
            |source| Err(DcError::Device { context: "use the options of the data component".into(), source });
        if !(1..=100).contains(&self.dirty_percent_max) {
            return refuse(Box::new(LlamaError::Options {
                setting: "dirty_percent_max",
                requirement: "from 1 to 100",
            }));
        }
        if !(1..=1 << 20).contains(&self.chunk_bytes) {
            return refuse(Box::new(LlamaError::Options {
                setting: "chunk_bytes",
                requirement: "from 1 byte to 1 MiB",
            }));
        }
        if self.value_bytes_max > VALUE_BYTES_MAX {
            return refuse(Box::new(LlamaError::Options {
                setting: "value_bytes_max",
                requirement: "at most 1 GiB",
            }));
        }
        if let Err(error) = self.store().validate() {
            return refuse(Box::new(error));
        }
        self.tree.validate().or_else(|error| refuse(Box::new(error)))
    }

    /// The settings of the store.
    pub(crate) fn store(&self) -> deuteron_llama::Options {
        deuteron_llama::Options {
            segment_bytes: self.segment_bytes,
            memory_bytes: pages_budget(self.memory_bytes),
            flush_buffer_bytes: self.flush_buffer_bytes,
            fragments_max: self.fragments_max,
            space_amplification_percent_max: self.space_amplification_percent_max,
            spare_percent_max: self.spare_percent_max,
            compress: self.compress,
            direct: self.direct,
        }
    }

    /// How many applied bytes may be unflushed before maintenance flushes.
    pub(crate) fn unflushed_bytes_max(&self) -> u64 {
        self.memory_bytes / 100 * u64::from(self.dirty_percent_max)
    }
}

/// Of a budget, that of the store: a sixteenth is left to indexes and to what is about to be freed.
pub(crate) fn pages_budget(memory_bytes: u64) -> u64 {
    memory_bytes - memory_bytes / 16
}

/// The budget of which so much is the store's.
pub(crate) fn budget_of_pages(pages_bytes: u64) -> u64 {
    pages_bytes + pages_bytes.div_ceil(15)
}
