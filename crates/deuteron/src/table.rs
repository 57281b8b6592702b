//! [`Table`]: a handle of a table.

use deuteron_contract::{TableId, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle of a table: a key space of its own. Cheap to clone, sent and shared freely, valid as long as the
/// database is open and the table is not [dropped](crate::Db::drop_table).
///
/// ```
/// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
/// let accounts = db.table("accounts")?;
/// let same = accounts.clone();
/// assert_eq!(accounts, same);
/// # db.close()?;
/// # Ok::<(), deuteron::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) id: TableId,
    pub(crate) name: Arc<str>,
    /// The number of the opening, so that a table of another database, or of an earlier opening of this one, is told apart.
    pub(crate) database: u64,
    /// When it was loaded, if that was in this opening: its records have been there always, for all that they say themselves.
    pub(crate) since: Timestamp,
    /// Shared by all handles: whether the table was dropped.
    pub(crate) dropped: Arc<AtomicBool>,
}

impl PartialEq for Table {
    fn eq(&self, other: &Table) -> bool {
        // An identifier is never used again.
        (self.id, self.database) == (other.id, other.database)
    }
}

impl Eq for Table {}

impl Table {
    pub(crate) fn new(id: TableId, name: &str, database: u64) -> Table {
        Table { id, name: name.into(), database, since: Timestamp(0), dropped: Arc::default() }
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

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
