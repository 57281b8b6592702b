//! Backups: what they report, and how a database is brought back from one. What is in them is the
//! [engine](crate::engine::Engine::backup)'s business.

use crate::Error;
use deuteron_archive::Summary;
use deuteron_contract::Lsn;
use deuteron_device::Directory;
use std::path::Path;

/// What a backup holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Files of the database in it.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes of the backup.
    pub archive_bytes: u64,
    /// The log position up to which commits are in it. 0 in the report of a restore: opening tells.
    pub log_end: Lsn,
}

impl BackupReport {
    pub(crate) fn new(summary: Summary, log_end: Lsn) -> Self {
        let Summary { files, bytes, archive_bytes } = summary;
        Self { files, bytes, archive_bytes, log_end }
    }
}

/// Brings the database of the backup in the file `backup` back into the directory `target`, which must be new or empty. Every
/// checksum is verified. Open the database afterwards: that recovers it to the backup's moment.
///
/// # Errors
/// [`Error::Exists`] if the target holds anything or is no directory, and is left as it was; [`Error::InUse`] if somebody is about to open it;
/// [`Error::NothingAt`] if there is no such file; [`Error::Corrupt`] with the place of the damage in the backup; [`Error::DiskFull`], [`Error::Device`]. After
/// any other error than the first two the target is empty, and after a crash it is not taken for a database.
///
/// ```
/// # let scratch = tempfile::tempdir()?;
/// # let at = |name: &str| scratch.path().join(name);
/// let db = deuteron::Db::open(at("a.db"))?;
/// db.backup(at("backup"))?;
/// let restored = deuteron::restore(at("backup"), at("b.db"))?;
/// assert!(restored.files >= 2);
/// deuteron::Db::open(at("b.db"))?.close()?;
/// # db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn restore(backup: impl AsRef<Path>, target: impl AsRef<Path>) -> Result<BackupReport, Error> {
    Ok(BackupReport::new(deuteron_archive::restore(backup.as_ref(), target.as_ref())?, Lsn(0)))
}

/// [`restore`] into a directory of the caller's making, one that encrypts say.
///
/// # Errors
/// As [`restore`].
///
/// ```
/// use deuteron::{Options, device::MemoryDirectory, restore_into};
/// use std::sync::Arc;
/// # let scratch = tempfile::tempdir()?;
/// # let file = scratch.path().join("monday");
/// # let db = Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new()))?;
/// db.backup(&file)?;
/// let target = Arc::new(MemoryDirectory::new());
/// restore_into(&file, target.as_ref())?;
/// Options::tiny_for_tests().create_if_missing(false).open_in(target)?.close()?;
/// # db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn restore_into(backup: impl AsRef<Path>, target: &dyn Directory) -> Result<BackupReport, Error> {
    Ok(BackupReport::new(deuteron_archive::restore_into(backup.as_ref(), target)?, Lsn(0)))
}

/// [`restore`] from the file `name` in one directory of the caller's making into another.
///
/// # Errors
/// As [`restore`].
///
/// ```
/// use deuteron::{Options, device::MemoryDirectory, restore_in};
/// use std::sync::Arc;
/// let (shelf, target) = (MemoryDirectory::new(), Arc::new(MemoryDirectory::new()));
/// # let db = Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new()))?;
/// db.backup_in(&shelf, "monday")?;
/// restore_in(&shelf, "monday", target.as_ref())?;
/// Options::tiny_for_tests().create_if_missing(false).open_in(target)?.close()?;
/// # db.close()?;
/// # Ok::<(), deuteron::Error>(())
/// ```
pub fn restore_in(shelf: &dyn Directory, name: &str, target: &dyn Directory) -> Result<BackupReport, Error> {
    Ok(BackupReport::new(deuteron_archive::restore_in(shelf, name, target)?, Lsn(0)))
}
