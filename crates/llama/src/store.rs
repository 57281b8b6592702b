//! [`Store`]: the log-structured store below the pages: its segments, where its durable part ends, and whether it
//! still accepts work.

use crate::error::LlamaError;
use crate::flash_address::FlashAddress;
use crate::flush_buffer::{Position, STREAMS};
use crate::segments::Segments;
use crate::sync::{AtomicU64, Ordering};
use deuteron_device::DeviceError;
use std::error::Error;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};

/// The store. Its writing end is the [`Flusher`](crate::flush::Flusher), under the flush lock.
pub(crate) struct Store {
    pub(crate) segments: Segments,
    /// For each stream: every buffer below is durable. Addresses are given out before their bytes are written; only what
    /// ends at or below this may be relied upon.
    durable_ends: [AtomicU64; STREAMS],
    poison: OnceLock<Arc<str>>,
}

impl Store {
    /// Everything before `end` is durable.
    pub(crate) fn new(segments: Segments, end: Position) -> Store {
        Store { segments, durable_ends: end.offsets.map(AtomicU64::new), poison: OnceLock::new() }
    }

    /// Whether the fragment's bytes are durable.
    pub(crate) fn is_durable(&self, address: FlashAddress) -> bool {
        // Acquire pairs with the release below: whoever sees a fragment as durable finds its bytes in the file.
        let stream = self.segments.stream(address.offset());
        address.end() <= self.durable_ends[stream].load(Ordering::Acquire)
    }

    /// Publishes that everything of `stream` below `end` is durable.
    pub(crate) fn set_durable_end(&self, stream: usize, end: u64) {
        self.durable_ends[stream].store(end, Ordering::Release);
    }

    /// Refuses work if an earlier write has failed.
    pub(crate) fn check(&self) -> Result<(), LlamaError> {
        match self.poison.get() {
            None => Ok(()),
            Some(reason) => Err(LlamaError::Poisoned { reason: Arc::clone(reason) }),
        }
    }

    /// Why the store accepts no more work, if so.
    pub(crate) fn poisoned(&self) -> Option<Arc<str>> {
        self.poison.get().cloned()
    }

    /// Notes a failed write or sync, after which nobody can know what is on disk: it is never repeated, and nothing
    /// is written any more.
    pub(crate) fn fail(&self, error: DeviceError) -> LlamaError {
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            // Writing to a string cannot fail.
            let _ = write!(reason, ": {cause}");
            source = cause.source();
        }
        self.poison(&reason);
        LlamaError::Device(error)
    }

    /// Refuses work from now on, for this reason unless there is one already.
    pub(crate) fn poison(&self, reason: &str) {
        let _ = self.poison.set(reason.into());
    }
}
