//! Verification of a database: all that an opening needs, or every checksum and every structure.

use crate::engine::Engine;
use crate::{Error, recovery};
use deuteron_contract::DcError;
use deuteron_device::Directory;
use std::path::Path;
use std::sync::Arc;

/// What a check has looked at and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Tables, the catalogue included.
    pub tables: u64,
    /// Pages of the data component; none in a fast check, which reads only what it needs.
    pub pages: u64,
    /// Records in them; none in a fast check.
    pub records: u64,
    /// What is wrong, a sentence each; the check ends at the first defect. Empty if all is well.
    pub problems: Vec<String>,
}

/// Verifies the database in `path` without changing a byte: recovers it over a copy in memory of what recovery writes,
/// then reads every page of every table.
///
/// # Errors
/// As [`crate::Options::open`]: a database that does not open is reported so. Damage that is found after that is in
/// the report.
///
/// ```
/// # let scratch = tempfile::tempdir()?;
/// # let path = scratch.path().join("a.db");
/// deuteron::Db::open(&path)?.close()?;
/// assert!(deuteron::check(&path)?.problems.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check(path: impl AsRef<Path>) -> Result<CheckReport, Error> {
    let engine = recovery::open_overlay(path.as_ref())?;
    check_open(&engine)
}

/// [`check`] of a directory of the caller's making.
///
/// # Errors
/// As [`check`].
///
/// ```
/// use deuteron::{Options, check_in, device::MemoryDirectory};
/// use std::sync::Arc;
/// let directory = Arc::new(MemoryDirectory::new());
/// Options::new().memory(32 << 20).open_in(directory.clone())?.close()?;
/// assert!(check_in(directory)?.problems.is_empty());
/// # Ok::<(), deuteron::Error>(())
/// ```
pub fn check_in(directory: Arc<dyn Directory>) -> Result<CheckReport, Error> {
    check_open(&*recovery::open_overlay_in(directory)?)
}

/// Verifies what an opening of the database in `path` needs, without changing a byte, in the time that it takes: the superblock, the newest image of
/// the mapping table and those that it builds on, the headers of all segments, the store and the log behind the last
/// checkpoint with all checksums, and the catalogue. Pages that nothing needs are not read: [`check()`] reads them all.
///
/// # Errors
/// As [`check()`]; what is damaged is the error.
///
/// ```
/// # let scratch = tempfile::tempdir()?;
/// # let path = scratch.path().join("a.db");
/// deuteron::Db::open(&path)?.close()?;
/// assert!(deuteron::check_fast(&path)?.problems.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check_fast(path: impl AsRef<Path>) -> Result<CheckReport, Error> {
    look_at(&recovery::open_overlay(path.as_ref())?)
}

/// [`check_fast`] of a directory of the caller's making.
///
/// # Errors
/// As [`check_fast`].
///
/// ```
/// use deuteron::{Options, check_fast_in, device::MemoryDirectory};
/// use std::sync::Arc;
/// let directory = Arc::new(MemoryDirectory::new());
/// Options::new().memory(32 << 20).open_in(directory.clone())?.close()?;
/// assert_eq!(check_fast_in(directory)?.tables, 1);
/// # Ok::<(), deuteron::Error>(())
/// ```
pub fn check_fast_in(directory: Arc<dyn Directory>) -> Result<CheckReport, Error> {
    look_at(&recovery::open_overlay_in(directory)?)
}

fn look_at(engine: &Arc<Engine>) -> Result<CheckReport, Error> {
    let tables = engine.catalogue().names(engine)?.len() as u64 + 1;
    Ok(CheckReport { tables, ..CheckReport::default() })
}

/// The same for an open database.
pub fn check_open(engine: &Engine) -> Result<CheckReport, Error> {
    match engine.dc().check() {
        Ok(found) => Ok(CheckReport {
            tables: found.tables,
            pages: found.trees.leaves,
            records: found.trees.records,
            problems: Vec::new(),
        }),
        Err(damage @ DcError::Corrupt { .. }) => {
            Ok(CheckReport { problems: vec![damage.to_string()], ..CheckReport::default() })
        }
        Err(error) => Err(error.into()),
    }
}
