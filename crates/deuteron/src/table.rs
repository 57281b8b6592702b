//! [`Table`]: a handle of a table.

use deuteron_contract::TableId;
use std::sync::Arc;

/// A handle of a table: a key space of its own. Cheap to clone, sent and shared freely, valid as long as the
/// database is open.
///
/// ```
/// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
/// let accounts = db.table("accounts")?;
/// let same = accounts.clone();
/// assert_eq!(accounts, same);
/// # db.close()?;
/// # Ok::<(), deuteron::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub(crate) id: TableId,
    pub(crate) name: Arc<str>,
    /// The identifier of the open database, so that a table of another one is told apart.
    pub(crate) database: u64,
}

impl Table {
    /// The name.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// assert_eq!(db.table("accounts")?.name(), "accounts");
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }
}
