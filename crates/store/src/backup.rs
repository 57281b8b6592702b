//! How a store is brought back from a backup. What is in one is the [engine](crate::engine::Engine::backup)'s business.

use crate::Error;
use deuteron_device::Directory;
use std::path::Path;

/// What a backup holds.
pub use deuteron_archive::Summary as BackupReport;

/// Brings the store of the backup in the file `backup` back into the directory `target`, which must be new or empty. Every
/// checksum is verified. Then the store can be opened there.
///
/// # Errors
/// [`Error::Exists`] if the target holds anything or is no directory, and is left as it was; [`Error::InUse`] if somebody is about to open it;
/// [`Error::NotFound`] if there is no such file; [`Error::Corrupt`] with the place of the damage in the backup; [`Error::DiskFull`], [`Error::Device`]. After
/// any other error than the first two the target is empty, and after a crash it is not taken for a store.
///
/// ```
/// # let scratch = tempfile::tempdir()?;
/// # let at = |name: &str| scratch.path().join(name);
/// let store = deuteron_store::Store::open(at("readings"))?;
/// store.backup(at("monday"))?;
/// deuteron_store::restore(at("monday"), at("again"))?;
/// deuteron_store::Store::open(at("again"))?.close()?;
/// # store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn restore(backup: impl AsRef<Path>, target: impl AsRef<Path>) -> Result<BackupReport, Error> {
    Ok(deuteron_archive::restore(backup.as_ref(), target.as_ref())?)
}

/// [`restore`] from the file `name` in one directory of the caller's making into another.
///
/// # Errors
/// As [`restore`].
///
/// ```
/// use deuteron_store::{Options, device::MemoryDirectory, restore_in};
/// use std::sync::Arc;
/// let (shelf, target) = (MemoryDirectory::new(), Arc::new(MemoryDirectory::new()));
/// # let store = Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new()))?;
/// store.backup_in(&shelf, "monday")?;
/// restore_in(&shelf, "monday", target.as_ref())?;
/// Options::tiny_for_tests().create_if_missing(false).open_in(target)?.close()?;
/// # store.close()?;
/// # Ok::<(), deuteron_store::Error>(())
/// ```
pub fn restore_in(shelf: &dyn Directory, name: &str, target: &dyn Directory) -> Result<BackupReport, Error> {
    Ok(deuteron_archive::restore_in(shelf, name, target)?)
}
