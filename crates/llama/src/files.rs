//! [`FileHold`]: the store's files as of a moment, for whoever copies them while the store goes on.
//!
//! What lies below the end of the last flush buffer of its stream never changes. So a copy is: the newest image with those that it builds on, every segment that is
//! accounted for, the last one of each stream up to its end and zeros behind it. To recover from it is to recover after a crash at that
//! moment. Two things could take a file away meanwhile, and wait: a checkpoint (it would remove the image, and move the scan
//! start), and the removal of dead segments.

use crate::checkpoint::Active;
use crate::error::LlamaError;
use crate::image::{image_name, verify_image};
use crate::llama::Llama;
use crate::segments::segment_name;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A file of which the beginning is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFile {
    /// Its name.
    pub name: String,
    /// The bytes that belong to the store as of the moment; what lies behind is zeros, or not to be looked at.
    pub bytes: u64,
    /// The length of the file.
    pub length: u64,
}

/// Keeps the files of a moment from being removed, as long as it lives. Checkpoints are refused meanwhile; everything else goes on.
pub struct FileHold {
    files: Vec<StoreFile>,
    _checkpointing: Active,
    _segments: SegmentHold,
}

impl FileHold {
    /// The files, as of the moment at which they were held. A copy without the last of them is refused when it is opened.
    pub fn files(&self) -> &[StoreFile] {
        &self.files
    }
}

/// Counts those who hold the segments.
#[derive(Default)]
pub(crate) struct SegmentHolds(Arc<AtomicUsize>);

struct SegmentHold(Arc<AtomicUsize>);

impl SegmentHolds {
    /// Asked under the flush lock, under which the files of a hold are listed.
    pub(crate) fn is_held(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    fn hold(&self) -> SegmentHold {
        self.0.fetch_add(1, Ordering::AcqRel);
        SegmentHold(Arc::clone(&self.0))
    }
}

impl Drop for SegmentHold {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Llama {
    /// Holds the files as they are now: what is durable. Waits for a flush that is going on.
    ///
    /// # Errors
    /// [`LlamaError::CheckpointBusy`] if a checkpoint is going on; [`LlamaError::Corrupt`] if an image that is to be copied is damaged;
    /// [`LlamaError::Poisoned`]; [`LlamaError::Device`].
    pub fn hold_files(&self) -> Result<FileHold, LlamaError> {
        self.store.check()?;
        let checkpointing = Active::begin(&self.checkpointing)?;
        let flusher = self.lock_flusher();
        self.store.check()?;
        // Under the lock: what was dead before is closed already, and nothing is removed from now on.
        let held = self.segment_holds.hold();
        let segments = &self.store.segments;
        let ends = flusher.position.offsets;
        let mut files: Vec<StoreFile> = flusher
            .accounts
            .segments()
            .map(|index| {
                let length = flusher.accounts.allocated(index);
                let end = ends.into_iter().find(|&end| segments.index(end) == index);
                let bytes = end.map_or(length, |end| end % segments.segment_bytes);
                StoreFile { name: segment_name(index), bytes, length }
            })
            .collect();
        // A new store has one, too, whose number is 0. The whole one comes last: without it the others are no store, while it
        // alone would be taken for one, of an earlier time.
        let images = flusher.images.numbers().to_vec();
        drop(flusher);
        for number in images.into_iter().rev() {
            // Nobody reads an image before the next opening: a copy of a damaged one would be worth nothing.
            let bytes = verify_image(&*segments.directory, number, self.options.direct)?;
            files.push(StoreFile { name: image_name(number), bytes, length: bytes });
        }
        Ok(FileHold { files, _checkpointing: checkpointing, _segments: held })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::test_bed::{open, put_in_buffer};

    #[test]
    fn a_segment_that_is_being_filled_is_copied_up_to_the_tail_and_others_whole() {
        let options = Options { flush_buffer_bytes: 16 << 10, ..Options::tiny_for_tests() };
        let llama = open(options);
        // Six buffers of three blocks: five fill a segment.
        for _ in 0..6 {
            put_in_buffer(&llama, |_| vec![7; 11_000]);
        }
        let length = llama.lock_flusher().accounts.allocated(2);
        let file = |name: String, bytes, length| StoreFile { name, bytes, length };
        let hold = llama.hold_files().unwrap();
        assert_eq!(
            hold.files(),
            [
                file(segment_name(0), 64 << 10, 64 << 10),
                file(segment_name(2), 4 * 4096, length),
                file(image_name(0), 8192, 8192),
            ]
        );
        assert!(length > 4 * 4096 && llama.segment_holds.is_held());
        assert!(matches!(llama.hold_files(), Err(LlamaError::CheckpointBusy)));
        drop(hold);
        assert!(!llama.segment_holds.is_held() && llama.hold_files().is_ok());
    }
}
