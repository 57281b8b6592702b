//! [`Lookahead`]: the keys of transactions that have not begun yet.

use crate::Table;

/// Brings what transactions to come will need from memory, while others run: for programs that know some transactions ahead, such as
/// a server with a queue of requests. One for each thread; from [`Db::lookahead`](crate::Db::lookahead).
///
/// ```
/// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
/// # use std::collections::VecDeque;
/// let stock = db.table("stock")?;
/// let mut lookahead = db.lookahead();
/// let mut requests = VecDeque::new();
/// for request in [["apples", "pears"], ["pears", "plums"], ["plums", "figs"], ["figs", "apples"]] {
///     lookahead.announce(&stock, &request);
///     requests.push_back(request);
///     if requests.len() > deuteron::Lookahead::DEPTH {
///         let [from, to] = requests.pop_front().expect("some");
///         db.transact(|tx| {
///             let value = tx.get(&stock, from.as_bytes())?;
///             tx.put(&stock, to.as_bytes(), value.as_deref().unwrap_or(b"0"))
///         })?;
///     }
/// }
/// # db.close()?;
/// # Ok::<(), deuteron::Error>(())
/// ```
pub struct Lookahead {
    inner: deuteron_tc::Lookahead,
    database: u64,
}

impl Lookahead {
    /// So many announcements after its own a transaction finds all that it needs; later does no harm.
    pub const DEPTH: usize = deuteron_tc::Lookahead::DEPTH;

    pub(crate) fn new(inner: deuteron_tc::Lookahead, database: u64) -> Self {
        Self { inner, database }
    }

    /// Says which keys a transaction will read or write soon. A hint: it reads nothing, fails on nothing, and keys that are not in
    /// memory stay where they are. See the type for an example.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// db.lookahead().announce(&stock, &["apples"]);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn announce<K: AsRef<[u8]>>(&mut self, table: &Table, keys: &[K]) {
        if table.database == self.database {
            self.inner.announce(table.id, keys);
        }
    }
}
