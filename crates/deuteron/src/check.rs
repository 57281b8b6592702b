//! Verification of a database: every checksum, every structure.

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
    /// Pages of the data component.
    pub pages: u64,
    /// Records in them.
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
