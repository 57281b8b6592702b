//! [`Options`]: what can be set.

use crate::error::LlamaError;
use crate::fragments::FRAGMENTS_MAX;
use deuteron_device::BLOCK_BYTES;

/// The least of [`Options::space_amplification_percent_max`], in percent: what is closer to the live bytes is not worth moving.
pub const SPACE_AMPLIFICATION_PERCENT_MIN: u32 = 110;

/// The settings of a store. `segment_bytes` is part of the format: it is kept from the creation on.
///
/// ```
/// use deuteron_llama::Options;
/// let options = Options { memory_bytes: 64 << 20, ..Options::default() };
/// assert!(options.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// *Format.* Bytes of a segment file; a store that exists keeps its own.
    pub segment_bytes: u64,
    /// Budget of the resident pages in bytes, allocation overhead included.
    pub memory_bytes: u64,
    /// About how many bytes a flush step writes at once.
    pub flush_buffer_bytes: usize,
    /// After so many fragments a page is written in full, so that a cold read takes at most so many I/Os; or when those beside it have half as many on average, or up to a third less than that; after a third as many if
    /// it is in memory as a whole: then it need not be read for that, and what was read once may be read again.
    pub fragments_max: usize,
    /// How much the segments may take before cleaning sets in, in percent of what is live in them.
    pub space_amplification_percent_max: u32,
    /// How much dead segments may take that are kept to become the next ones, in percent of what all segments take. They are given
    /// back when the store is idle.
    pub spare_percent_max: u32,
    /// Whether pages are compressed where they are written in full and that saves an eighth at least. What is on disk is read
    /// either way.
    pub compress: bool,
    /// Whether to bypass the operating system's page cache where it lets us.
    pub direct: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            segment_bytes: 64 << 20,
            memory_bytes: 256 << 20,
            flush_buffer_bytes: 1 << 20,
            fragments_max: FRAGMENTS_MAX,
            space_amplification_percent_max: 200,
            spare_percent_max: 6,
            compress: false,
            direct: true,
        }
    }
}

impl Options {
    /// Everything small, so that rare paths are common.
    pub fn tiny_for_tests() -> Options {
        Options {
            segment_bytes: 64 << 10,
            memory_bytes: 64 << 10,
            flush_buffer_bytes: 8 << 10,
            fragments_max: 2,
            space_amplification_percent_max: 200,
            spare_percent_max: 50,
            compress: false,
            direct: true,
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`LlamaError::Options`] names the first setting that cannot be.
    pub fn validate(&self) -> Result<(), LlamaError> {
        let block = BLOCK_BYTES as u64;
        let refuse = |setting, requirement| Err(LlamaError::Options { setting, requirement });
        if !self.segment_bytes.is_multiple_of(block) || !(16 * block..=1 << 30).contains(&self.segment_bytes)
        {
            return refuse("segment_bytes", "a multiple of 4096 from 64 KiB to 1 GiB");
        }
        if !(BLOCK_BYTES..=1 << 30).contains(&self.flush_buffer_bytes)
            || !self.flush_buffer_bytes.is_multiple_of(BLOCK_BYTES)
        {
            return refuse("flush_buffer_bytes", "a multiple of 4096 from 4 KiB to 1 GiB");
        }
        if !(1..=FRAGMENTS_MAX).contains(&self.fragments_max) {
            return refuse("fragments_max", "from 1 to 25");
        }
        if self.space_amplification_percent_max < SPACE_AMPLIFICATION_PERCENT_MIN {
            return refuse("space_amplification_percent_max", "at least 110");
        }
        if self.spare_percent_max > 100 {
            return refuse("spare_percent_max", "at most 100");
        }
        if self.memory_bytes < 4096 {
            return refuse("memory_bytes", "at least 4096");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_is_refused_beyond_its_bounds_and_taken_at_them() {
        type Set = fn(&mut Options, u64);
        let settings: [(&str, Set, &[u64], &[u64]); 6] = [
            (
                "segment_bytes",
                |options, value| options.segment_bytes = value,
                &[64 << 10, 1 << 30, 68 << 10],
                &[60 << 10, (1 << 30) + 4096, (64 << 10) + 1, 0],
            ),
            (
                "flush_buffer_bytes",
                |options, value| options.flush_buffer_bytes = value as usize,
                &[4096, 1 << 30],
                &[0, 4095, 6000, (1 << 30) + 4096],
            ),
            ("fragments_max", |options, value| options.fragments_max = value as usize, &[1, 25], &[0, 26]),
            (
                "space_amplification_percent_max",
                |options, value| options.space_amplification_percent_max = value as u32,
                &[110, 1000],
                &[109, 0],
            ),
            (
                "spare_percent_max",
                |options, value| options.spare_percent_max = value as u32,
                &[0, 100],
                &[101],
            ),
            ("memory_bytes", |options, value| options.memory_bytes = value, &[4096, 1 << 40], &[4095, 0]),
        ];
        for (name, set, good, bad) in settings {
            let validated = |value| {
                let mut options = Options::default();
                set(&mut options, value);
                options.validate()
            };
            assert!(good.iter().all(|&value| validated(value).is_ok()), "{name}");
            for &value in bad {
                let refused = validated(value);
                assert!(
                    matches!(refused, Err(LlamaError::Options { setting, .. }) if setting == name),
                    "{name} {value}"
                );
            }
        }
        assert!(Options::tiny_for_tests().validate().is_ok());
    }
}
