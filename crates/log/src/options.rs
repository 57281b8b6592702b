//! The log's options.

use crate::LogError;
use crate::block::HEADER_BYTES;
use crate::buffer_word::LIMIT_MAX;
use crate::record::UPDATE_HEAD_BYTES;
use deuteron_device::BLOCK_BYTES;

/// Options of a [`Log`](crate::Log); validated when it is opened.
///
/// ```
/// use deuteron_log::LogOptions;
/// let options = LogOptions { ring_bytes: 256 << 20, ..LogOptions::default() };
/// assert!(options.value_bytes_max(16) > 1 << 20);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Memory of the ring, which is both log buffer and version cache. A power of two, at least four times
    /// `buffer_bytes_max`.
    pub ring_bytes: usize,
    /// The longest buffer, hence the longest single write, hence a little more than the longest record. A multiple of
    /// 4096, below 16 MiB.
    pub buffer_bytes_max: usize,
    /// *Format:* the log bytes in one segment file. A power of two, at least `buffer_bytes_max`. Of a log that exists
    /// the stored number is used.
    pub segment_bytes: u64,
    /// How many buffers may be open or waiting to be written. A power of two from 2 to 2048.
    pub buffer_count: usize,
    /// How many truncated segment files are kept for reuse.
    pub spare_segments_max: usize,
    /// Whether to bypass the page cache.
    pub direct_io: bool,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            ring_bytes: 64 << 20,
            buffer_bytes_max: 2 << 20,
            segment_bytes: 64 << 20,
            buffer_count: 64,
            spare_segments_max: 2,
            direct_io: true,
        }
    }
}

impl LogOptions {
    /// So small that every rare path is common.
    pub fn tiny_for_tests() -> LogOptions {
        LogOptions {
            ring_bytes: 64 << 10,
            buffer_bytes_max: 16 << 10,
            segment_bytes: 64 << 10,
            buffer_count: 4,
            spare_segments_max: 2,
            direct_io: true,
        }
    }

    /// The longest record, its head included.
    pub const fn record_bytes_max(&self) -> usize {
        self.buffer_bytes_max - HEADER_BYTES
    }

    /// The longest value under a key of `key_bytes`.
    pub const fn value_bytes_max(&self, key_bytes: usize) -> usize {
        self.record_bytes_max().saturating_sub(UPDATE_HEAD_BYTES + key_bytes)
    }

    pub(crate) fn validate(&self) -> Result<(), LogError> {
        let wrong = |option, problem| Err(LogError::Options { option, problem });
        let max = self.buffer_bytes_max;
        if !max.is_multiple_of(BLOCK_BYTES) || max < 2 * BLOCK_BYTES || max >= LIMIT_MAX as usize {
            return wrong("buffer_bytes_max", "not a multiple of 4096 from 8192 up to below 16 MiB");
        }
        if !self.ring_bytes.is_power_of_two() || self.ring_bytes < 4 * max {
            return wrong("ring_bytes", "not a power of two of at least four times buffer_bytes_max");
        }
        if !self.segment_bytes.is_power_of_two() || self.segment_bytes < max as u64 {
            return wrong("segment_bytes", "not a power of two of at least buffer_bytes_max");
        }
        if !self.buffer_count.is_power_of_two() || !(2..=2048).contains(&self.buffer_count) {
            return wrong("buffer_count", "not a power of two from 2 to 2048");
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid() {
        LogOptions::default().validate().unwrap();
        LogOptions::tiny_for_tests().validate().unwrap();
    }

    #[test]
    fn options_are_good_up_to_their_limits_and_not_beyond() {
        let roomy =
            || LogOptions { ring_bytes: 1 << 27, segment_bytes: 1 << 24, ..LogOptions::tiny_for_tests() };
        let buffers = |max| LogOptions { buffer_bytes_max: max, ..roomy() };
        let rings = |ring_bytes| LogOptions { ring_bytes, ..LogOptions::tiny_for_tests() };
        let segments = |segment_bytes| LogOptions { segment_bytes, ..LogOptions::tiny_for_tests() };
        let counts = |buffer_count| LogOptions { buffer_count, ..LogOptions::tiny_for_tests() };
        for (good, bad) in [
            (buffers(8 << 10), buffers(4 << 10)),
            (buffers((16 << 20) - 4096), buffers(16 << 20)),
            (buffers(12 << 10), buffers(10 << 10)),
            (rings(64 << 10), rings(32 << 10)),
            (rings(128 << 10), rings(96 << 10)),
            (segments(16 << 10), segments(8 << 10)),
            (segments(32 << 10), segments(24 << 10)),
            (counts(2), counts(1)),
            (counts(2048), counts(4096)),
            (counts(8), counts(6)),
        ] {
            assert!(good.validate().is_ok() && bad.validate().is_err());
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let tiny = LogOptions::tiny_for_tests;
        for options in [
            LogOptions { ring_bytes: 32 << 10, ..tiny() },
            LogOptions { buffer_bytes_max: 5000, ..tiny() },
            LogOptions { buffer_bytes_max: 16 << 20, ring_bytes: 1 << 30, segment_bytes: 1 << 30, ..tiny() },
            LogOptions { segment_bytes: 8 << 10, ..tiny() },
            LogOptions { buffer_count: 1, ..tiny() },
        ] {
            assert!(matches!(options.validate(), Err(LogError::Options { .. })));
        }
    }
}
