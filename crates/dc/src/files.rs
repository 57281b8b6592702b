//! The component's files as of a moment, for backups.

use crate::sync::{MutexGuard, yield_now};
use crate::tombstones::Tombstones;
use crate::{BwTreeDc, error};
use deuteron_contract::DcError;
use deuteron_llama::{FileHold, LlamaError, StoreFile};
use std::sync::PoisonError;

/// Keeps the files of a moment from being removed, as long as it lives.
pub struct HeldFiles<'d> {
    hold: FileHold,
    // Who wants a checkpoint waits here, or does something else.
    _one_at_a_time: MutexGuard<'d, Tombstones>,
}

impl HeldFiles<'_> {
    /// The files, as of the moment at which they were held.
    pub fn files(&self) -> &[StoreFile] {
        self.hold.files()
    }
}

impl BwTreeDc {
    /// Holds the files as of now: together they are a component that has everything of the last
    /// [redo scan start point](deuteron_contract::DataComponent::redo_scan_start_point), and whatever was flushed since. Nothing
    /// waits but checkpoints: do not ask for one on the same thread before the hold is dropped.
    ///
    /// # Errors
    /// [`DcError::Poisoned`], [`DcError::Device`].
    ///
    /// ```
    /// use deuteron_contract::{DataComponent, Lsn};
    /// use deuteron_dc::{BwTreeDc, DcOptions};
    /// let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// dc.redo_scan_start_point(Lsn(1))?;
    /// assert!(dc.hold_files()?.files().iter().any(|file| file.name.starts_with("store-image-")));
    /// # Ok::<(), deuteron_contract::DcError>(())
    /// ```
    pub fn hold_files(&self) -> Result<HeldFiles<'_>, DcError> {
        let one_at_a_time = self.checkpointing().lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match self.llama().hold_files() {
                Ok(hold) => return Ok(HeldFiles { hold, _one_at_a_time: one_at_a_time }),
                // Somebody uses the store below us.
                Err(LlamaError::CheckpointBusy) => yield_now(),
                Err(error) => return Err(error::store("back up", error)),
            }
        }
    }
}
